//! Halves of a stream, with tokio's names.

#![allow(
    clippy::result_large_err,
    reason = "both halves come back, as from tokio's reunite"
)]

use std::future::poll_fn;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_io::{AsyncBufRead, AsyncRead, AsyncWrite};

use super::halves::{LockedSide, ReadSide, WriteSide};
use super::in_place::{ReadGuard, Reservation};
use super::mode::Mode;
use super::stream::{Shared, Stream, try_read_buf};
use crate::error::FallbackReason;

/// The reading half of [`Stream::split`].
#[derive(Debug)]
pub struct ReadHalf<'a> {
    side: &'a mut LockedSide<ReadSide>,
    shared: &'a Shared,
}

/// The writing half of [`Stream::split`].
#[derive(Debug)]
pub struct WriteHalf<'a> {
    side: &'a mut LockedSide<WriteSide>,
    shared: &'a Shared,
}

/// The reading half of [`Stream::into_split`].
#[derive(Debug)]
pub struct OwnedReadHalf {
    // Dropped before the handle in `shared`, see `Stream`.
    side: LockedSide<ReadSide>,
    shared: Arc<Shared>,
}

/// The writing half of [`Stream::into_split`]. Dropping it shuts writing down.
#[derive(Debug)]
pub struct OwnedWriteHalf {
    side: Option<LockedSide<WriteSide>>,
    shared: Arc<Shared>,
    shutdown_on_drop: bool,
}

impl<'a> ReadHalf<'a> {
    pub(crate) fn new(side: &'a mut LockedSide<ReadSide>, shared: &'a Shared) -> Self {
        Self { side, shared }
    }

    fn read_side(&self) -> &LockedSide<ReadSide> {
        self.side
    }

    pub(crate) fn read_side_mut(&mut self) -> &mut LockedSide<ReadSide> {
        self.side
    }
}

impl OwnedReadHalf {
    pub(crate) fn new(side: LockedSide<ReadSide>, shared: Arc<Shared>) -> Self {
        Self { side, shared }
    }

    /// Puts the halves of one stream together again.
    ///
    /// # Errors
    ///
    /// [`ReuniteError`] with both halves when they are of different streams.
    pub fn reunite(self, write: OwnedWriteHalf) -> Result<Stream, ReuniteError> {
        reunite(self, write)
    }

    fn read_side(&self) -> &LockedSide<ReadSide> {
        &self.side
    }

    pub(crate) fn read_side_mut(&mut self) -> &mut LockedSide<ReadSide> {
        &mut self.side
    }
}

impl<'a> WriteHalf<'a> {
    pub(crate) fn new(side: &'a mut LockedSide<WriteSide>, shared: &'a Shared) -> Self {
        Self { side, shared }
    }

    fn write_side(&self) -> &LockedSide<WriteSide> {
        self.side
    }

    fn write_side_mut(&mut self) -> &mut LockedSide<WriteSide> {
        self.side
    }
}

impl OwnedWriteHalf {
    pub(crate) fn new(side: LockedSide<WriteSide>, shared: Arc<Shared>) -> Self {
        Self {
            side: Some(side),
            shared,
            shutdown_on_drop: true,
        }
    }

    /// Puts the halves of one stream together again.
    ///
    /// # Errors
    ///
    /// [`ReuniteError`] with both halves when they are of different streams.
    pub fn reunite(self, read: OwnedReadHalf) -> Result<Stream, ReuniteError> {
        reunite(read, self)
    }

    /// Drops the half without shutting writing down.
    pub fn forget(mut self) {
        self.shutdown_on_drop = false;
    }

    fn write_side(&self) -> &LockedSide<WriteSide> {
        self.side
            .as_ref()
            .expect("only reunite takes the side, and it takes the half as well")
    }

    fn write_side_mut(&mut self) -> &mut LockedSide<WriteSide> {
        self.side
            .as_mut()
            .expect("only reunite takes the side, and it takes the half as well")
    }
}

impl Drop for OwnedWriteHalf {
    fn drop(&mut self) {
        if let (true, Some(side)) = (self.shutdown_on_drop, &mut self.side) {
            // The error cannot be returned; the peer sees the end of the connection.
            let _unseen = side.as_mut().shutdown();
        }
    }
}

fn reunite(read: OwnedReadHalf, mut write: OwnedWriteHalf) -> Result<Stream, ReuniteError> {
    if !Arc::ptr_eq(&read.shared, &write.shared) {
        return Err(ReuniteError(read, write));
    }
    match write.side.take() {
        Some(side) => Ok(Stream::from_halves(read.side, side, read.shared)),
        None => Err(ReuniteError(read, write)),
    }
}

/// The halves are not of one stream; both are returned.
#[derive(Debug, thiserror::Error)]
#[error("tried to reunite halves that are not from the same stream")]
#[expect(
    clippy::exhaustive_structs,
    reason = "tokio's error has these two fields as well"
)]
pub struct ReuniteError(pub OwnedReadHalf, pub OwnedWriteHalf);

macro_rules! info {
    ($half:ty) => {
        impl $half {
            /// What carries the stream.
            #[must_use]
            pub fn mode(&self) -> &Mode {
                self.shared.mode()
            }

            /// Why the stream is TCP; `None` when it is SMC.
            #[must_use]
            pub fn fallback_reason(&self) -> Option<FallbackReason> {
                self.shared.mode().fallback_reason()
            }

            /// Our address of the TCP connection.
            ///
            /// # Errors
            ///
            /// As `getsockname(2)`.
            pub fn local_addr(&self) -> io::Result<SocketAddr> {
                self.shared.local_addr()
            }

            /// The peer's address of the TCP connection.
            ///
            /// # Errors
            ///
            /// As `getpeername(2)`; not for SMC streams.
            pub fn peer_addr(&self) -> io::Result<SocketAddr> {
                self.shared.peer_addr()
            }
        }
    };
}

macro_rules! read_half {
    ($half:ty) => {
        info!($half);

        impl $half {
            /// Reads into `buf` without taking the bytes away. Cancel safe.
            ///
            /// # Errors
            ///
            /// As reading.
            pub async fn peek(&mut self, buf: &mut [u8]) -> io::Result<usize> {
                poll_fn(|cx| self.poll_peek(cx, buf)).await
            }

            /// As `peek` for use in a poll function.
            ///
            /// # Errors
            ///
            /// As reading.
            pub fn poll_peek(
                &mut self,
                cx: &mut Context<'_>,
                buf: &mut [u8],
            ) -> Poll<io::Result<usize>> {
                self.read_side_mut().as_mut().poll_peek(cx, buf)
            }

            /// Reads up to `max` bytes as a guard, which can be retained and passed on while
            /// reading continues; waits until there are some.
            ///
            /// A guard is contiguous, and may be shorter than the available data, and is empty at
            /// end of stream. See [`ReadGuard`] for where its bytes are and the cost of retaining
            /// it. Cancel safe.
            ///
            /// # Errors
            ///
            /// As reading.
            pub async fn read_guard(&mut self, max: usize) -> io::Result<ReadGuard> {
                poll_fn(|cx| self.poll_read_guard(cx, max)).await
            }

            /// As `read_guard` for use in a poll function.
            ///
            /// # Errors
            ///
            /// As reading.
            pub fn poll_read_guard(
                &mut self,
                cx: &mut Context<'_>,
                max: usize,
            ) -> Poll<io::Result<ReadGuard>> {
                self.read_side_mut().as_mut().poll_read_guard(cx, max)
            }

            /// Waits until a read would not wait. Cancel safe.
            ///
            /// # Errors
            ///
            /// When the runtime's reactor is gone.
            pub async fn readable(&self) -> io::Result<()> {
                self.read_side().ready().await
            }

            /// Reads what is there now.
            ///
            /// # Errors
            ///
            /// `WouldBlock` if nothing is; otherwise as reading.
            pub fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
                self.read_side().lock().try_read(buf)
            }

            /// As `try_read` into several buffers.
            ///
            /// # Errors
            ///
            /// As `try_read`.
            pub fn try_read_vectored(&self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
                self.read_side().lock().try_read_vectored(bufs)
            }

            /// As `try_read`, appending at most `limit` bytes to `buf`.
            ///
            /// # Errors
            ///
            /// As `try_read`.
            pub fn try_read_buf(&self, buf: &mut Vec<u8>, limit: usize) -> io::Result<usize> {
                try_read_buf(&mut self.read_side().lock(), buf, limit)
            }
        }

        impl AsyncRead for $half {
            fn poll_read(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buf: &mut [u8],
            ) -> Poll<io::Result<usize>> {
                self.get_mut().read_side_mut().as_mut().poll_read(cx, buf)
            }

            fn poll_read_vectored(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                bufs: &mut [IoSliceMut<'_>],
            ) -> Poll<io::Result<usize>> {
                self.get_mut()
                    .read_side_mut()
                    .as_mut()
                    .poll_read_vectored(cx, bufs)
            }
        }

        impl AsyncBufRead for $half {
            fn poll_fill_buf(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
            ) -> Poll<io::Result<&[u8]>> {
                self.get_mut().read_side_mut().as_mut().poll_fill_buf(cx)
            }

            fn consume(self: Pin<&mut Self>, amt: usize) {
                self.get_mut().read_side_mut().as_mut().consume_filled(amt);
            }
        }
    };
}

macro_rules! write_half {
    ($half:ty) => {
        info!($half);

        impl $half {
            /// Reserves memory for the next bytes, at most `max` and at least one unless `max` is 0; waits
            /// until there is space.
            ///
            /// [`Reservation::commit`] sends the bytes; see [`Reservation`] for where they are until
            /// then. Cancel safe.
            ///
            /// # Errors
            ///
            /// As writing. On TCP they come with the commit.
            pub async fn reserve(&mut self, max: usize) -> io::Result<Reservation<'_>> {
                Reservation::wait(self.write_side_mut().as_mut(), max.min(1), max).await
            }

            /// As `reserve` for use in a poll function.
            ///
            /// # Errors
            ///
            /// As writing.
            pub fn poll_reserve(
                &mut self,
                cx: &mut Context<'_>,
                max: usize,
            ) -> Poll<io::Result<Reservation<'_>>> {
                Reservation::poll(self.write_side_mut().as_mut(), cx, max.min(1), max)
            }

            /// Reserves memory for exactly the next `len` bytes; waits until there is space for them.
            ///
            /// As `reserve_at_least` with both bounds the same.
            ///
            /// # Errors
            ///
            /// As `reserve_at_least`.
            pub async fn reserve_exact(&mut self, len: usize) -> io::Result<Reservation<'_>> {
                Reservation::wait(self.write_side_mut().as_mut(), len, len).await
            }

            /// As `reserve_exact` for use in a poll function.
            ///
            /// # Errors
            ///
            /// As `reserve_exact`.
            pub fn poll_reserve_exact(
                &mut self,
                cx: &mut Context<'_>,
                len: usize,
            ) -> Poll<io::Result<Reservation<'_>>> {
                Reservation::poll(self.write_side_mut().as_mut(), cx, len, len)
            }

            /// Reserves memory for at least `min` and at most `max` of the next bytes, at least one unless
            /// `max` is 0; waits until there is space for `min`.
            ///
            /// It is in the peer's memory as far as `reserve` would be, if that is enough for `min`, and
            /// otherwise a private buffer. Space comes back as the peer reads: while the peer does not read,
            /// or holds a [`ReadGuard`], this waits, and for more space than `reserve` would. On TCP it does
            /// not wait. [`Reservation::commit`] sends the bytes. Cancel safe.
            ///
            /// # Errors
            ///
            /// `Error::Misuse` (`InvalidInput`) if `min` is more than `max`, or if there can never be space for
            /// it: more than the peer's buffer over SMC-D ([`Stream::send_buffer_size`]), than the own send
            /// buffer over SMC-R ([`Builder::send_buffer`](super::Builder::send_buffer)), or than 512 MiB on
            /// TCP. Otherwise as writing; on TCP errors of the socket come with the commit.
            pub async fn reserve_at_least(
                &mut self,
                min: usize,
                max: usize,
            ) -> io::Result<Reservation<'_>> {
                Reservation::wait(self.write_side_mut().as_mut(), min, max).await
            }

            /// As `reserve_at_least` for use in a poll function.
            ///
            /// # Errors
            ///
            /// As `reserve_at_least`.
            pub fn poll_reserve_at_least(
                &mut self,
                cx: &mut Context<'_>,
                min: usize,
                max: usize,
            ) -> Poll<io::Result<Reservation<'_>>> {
                Reservation::poll(self.write_side_mut().as_mut(), cx, min, max)
            }

            /// Waits until a write would not wait. Cancel safe.
            ///
            /// # Errors
            ///
            /// When the runtime's reactor is gone.
            pub async fn writable(&self) -> io::Result<()> {
                self.write_side().ready().await
            }

            /// Writes what there is space for now.
            ///
            /// # Errors
            ///
            /// `WouldBlock` if there is none; otherwise as writing.
            pub fn try_write(&self, buf: &[u8]) -> io::Result<usize> {
                self.write_side().lock().try_write(&[IoSlice::new(buf)])
            }

            /// As `try_write` from several buffers.
            ///
            /// # Errors
            ///
            /// As `try_write`.
            pub fn try_write_vectored(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
                self.write_side().lock().try_write(bufs)
            }
        }

        impl AsyncWrite for $half {
            fn poll_write(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buf: &[u8],
            ) -> Poll<io::Result<usize>> {
                self.get_mut()
                    .write_side_mut()
                    .as_mut()
                    .poll_write(cx, &[IoSlice::new(buf)])
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                bufs: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                self.get_mut()
                    .write_side_mut()
                    .as_mut()
                    .poll_write(cx, bufs)
            }

            /// Ready at once, as [`Stream`]'s.
            fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                Poll::Ready(Ok(()))
            }

            /// Shuts writing down and waits as closing a [`Stream`] does.
            fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                self.get_mut().write_side_mut().as_mut().poll_shutdown(cx)
            }
        }
    };
}

read_half!(ReadHalf<'_>);
read_half!(OwnedReadHalf);
write_half!(WriteHalf<'_>);
write_half!(OwnedWriteHalf);
