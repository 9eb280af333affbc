//! Methods of a stream and of its halves, each with its documentation once.

use std::fmt;
use std::future::poll_fn;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::BufMut;
use futures_io::{AsyncBufRead, AsyncRead, AsyncWrite};

use super::{
    Mode, OwnedReadHalf, OwnedWriteHalf, ReadGuard, ReadHalf, Reservation, Stream, WriteHalf,
};
use crate::address::UnixAddr;
use crate::error::FallbackReason;
use crate::unix::PeerCred;

macro_rules! any {
    ($($type:ident $(<$lifetime:lifetime>)?),+) => {$(
        /// One short line: the mode, without devices and the cause of a fallback, and both
        /// addresses.
        impl fmt::Debug for $type $(<$lifetime>)? {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({:?})", stringify!($type), &*self.shared)
            }
        }

        impl $type $(<$lifetime>)? {
            /// The mode of the stream: SMC, or TCP with the reason.
            #[must_use]
            pub fn mode(&self) -> &Mode {
                self.shared.mode()
            }

            /// Why the stream is TCP; `None` when it is SMC.
            #[must_use]
            pub fn fallback_reason(&self) -> Option<FallbackReason> {
                self.shared.mode().fallback_reason()
            }

            /// Whether the server has taken the [early data](crate::ConnectOptions::early_data) of
            /// the connect from the PROPOSAL. Otherwise the connect has written it, or there was
            /// none.
            #[must_use]
            pub fn early_data_accepted(&self) -> bool {
                self.shared.mode().has_early_data()
            }

            /// Whether the first bytes of an accepted stream have come with the PROPOSAL
            /// ([`ListenOptions::max_early_data`](crate::ListenOptions::max_early_data)). The
            /// client may send them again on another connection, if it has not received the answer
            /// to this one.
            #[must_use]
            pub fn is_early(&self) -> bool {
                self.shared.mode().has_early_data()
            }

            /// The local address of the TCP connection, which stays open as long as the stream.
            ///
            /// # Errors
            ///
            /// As `getsockname(2)`; `Unsupported` over a UNIX socket.
            pub fn local_addr(&self) -> io::Result<SocketAddr> {
                self.shared.local_address()?.require_tcp()
            }

            /// The peer's address of the TCP connection.
            ///
            /// # Errors
            ///
            /// As `getpeername(2)`, but not for SMC streams; `Unsupported` over a UNIX socket.
            pub fn peer_addr(&self) -> io::Result<SocketAddr> {
                self.shared.peer_address()?.require_tcp()
            }

            /// The local address of the UNIX socket, which stays open as long as the stream.
            ///
            /// # Errors
            ///
            /// As `getsockname(2)`; `Unsupported` over TCP.
            pub fn local_unix_addr(&self) -> io::Result<UnixAddr> {
                self.shared.local_address()?.require_unix()
            }

            /// The peer's address of the UNIX socket: a client's has none, unless the client is
            /// bound.
            ///
            /// # Errors
            ///
            /// As `getpeername(2)`, but not for SMC streams; `Unsupported` over TCP.
            pub fn peer_unix_addr(&self) -> io::Result<UnixAddr> {
                self.shared.peer_address()?.require_unix()
            }

            /// The process at the other end of the UNIX socket: of a client as it was when that
            /// connected the socket, which may have served other streams before
            /// ([`Builder::socket_reuse`](crate::Builder::socket_reuse)), of a listener as it was
            /// when that began to listen.
            ///
            /// # Errors
            ///
            /// As `getsockopt(2)`; `Unsupported` over TCP, of which the system does not report it.
            pub fn peer_cred(&self) -> io::Result<PeerCred> {
                self.shared.local_address()?.require_unix()?;
                PeerCred::of(self.shared.tcp()?)
            }
        }
    )+};
}

macro_rules! reading {
    ($($type:ty),+) => {$(
        impl $type {
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
                self.read.get_mut().poll_read_guard(cx, max)
            }

            /// Waits until a read would not wait, because there is data, the end, or an error. Any
            /// number of tasks may wait. Cancel safe.
            ///
            /// # Errors
            ///
            /// When the runtime's reactor is gone.
            pub async fn readable(&self) -> io::Result<()> {
                self.read.ready().await
            }

            /// Reads what is there now, without waiting.
            ///
            /// # Errors
            ///
            /// `WouldBlock` if nothing is; otherwise as reading.
            pub fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
                self.read.lock().try_read(buf)
            }

            /// As `try_read` into several buffers, one after the other.
            ///
            /// # Errors
            ///
            /// As `try_read`.
            pub fn try_read_vectored(&self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
                self.read.lock().try_read_vectored(bufs)
            }

            /// As `try_read`, appending to `buf` what fits its next chunk
            /// ([`BufMut::chunk_mut`]): of a `Vec` the spare capacity, or 64 bytes if there is
            /// none. [`BufMut::limit`] bounds it further. Returns 0 also if the chunk is empty.
            ///
            /// The bytes are copied twice; `try_read` copies once.
            ///
            /// # Errors
            ///
            /// As `try_read`; `buf` is unchanged then.
            pub fn try_read_buf<B: BufMut>(&self, buf: &mut B) -> io::Result<usize> {
                self.read.lock().try_read_buf(buf)
            }
        }

        impl AsyncRead for $type {
            fn poll_read(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buf: &mut [u8],
            ) -> Poll<io::Result<usize>> {
                self.get_mut().read.get_mut().poll_read(cx, buf)
            }

            fn poll_read_vectored(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                bufs: &mut [IoSliceMut<'_>],
            ) -> Poll<io::Result<usize>> {
                let half = self.get_mut().read.get_mut();
                half.poll_read_vectored(cx, bufs)
            }
        }

        impl AsyncBufRead for $type {
            fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
                self.get_mut().read.get_mut().poll_fill_buf(cx)
            }

            fn consume(self: Pin<&mut Self>, amt: usize) {
                self.get_mut().read.get_mut().consume_filled(amt);
            }
        }
    )+};
}

macro_rules! writing {
    ($($type:ty),+) => {$(
        impl $type {
            /// Reserves memory for the next bytes, at most `max` and at least one unless `max` is
            /// 0; waits until there is space.
            ///
            /// [`Reservation::commit`] sends the bytes; see [`Reservation`] for where they are
            /// until then. Cancel safe.
            ///
            /// # Errors
            ///
            /// As writing. On TCP they come with the commit.
            pub async fn reserve(&mut self, max: usize) -> io::Result<Reservation<'_>> {
                Reservation::wait(self.write.get_mut(), max.min(1), max).await
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
                Reservation::poll(self.write.get_mut(), cx, max.min(1), max)
            }

            /// Reserves memory for exactly the next `len` bytes; waits until there is space for
            /// them.
            ///
            /// As `reserve_at_least` with both bounds the same.
            ///
            /// # Errors
            ///
            /// As `reserve_at_least`.
            pub async fn reserve_exact(&mut self, len: usize) -> io::Result<Reservation<'_>> {
                Reservation::wait(self.write.get_mut(), len, len).await
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
                Reservation::poll(self.write.get_mut(), cx, len, len)
            }

            /// Reserves memory for at least `min` and at most `max` of the next bytes, at least one
            /// unless `max` is 0; waits until there is space for `min`.
            ///
            /// It is in the peer's memory as far as `reserve` would be, if that is enough for
            /// `min`, and otherwise a private buffer. Space comes back as the peer reads: while the
            /// peer does not read, or holds a [`ReadGuard`], this waits, and for more space than
            /// `reserve` would. On TCP it does not wait. [`Reservation::commit`] sends the bytes.
            /// Cancel safe.
            ///
            /// # Errors
            ///
            /// [`Error::Misuse`](crate::Error::Misuse) (`InvalidInput`) if `min` is more than
            /// `max`, or if there can never be space for it: more than the peer's buffer over SMC-D
            /// ([`Stream::peer_recv_buffer_size`]), than the own send buffer over SMC-R
            /// ([`Builder::send_buffer`](crate::Builder::send_buffer)), or than 512 MiB on TCP.
            /// Otherwise as writing; on TCP errors of the socket come with the commit.
            pub async fn reserve_at_least(
                &mut self,
                min: usize,
                max: usize,
            ) -> io::Result<Reservation<'_>> {
                Reservation::wait(self.write.get_mut(), min, max).await
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
                Reservation::poll(self.write.get_mut(), cx, min, max)
            }

            /// Waits until a write would not wait. Any number of tasks may wait. Cancel safe.
            ///
            /// # Errors
            ///
            /// When the runtime's reactor is gone.
            pub async fn writable(&self) -> io::Result<()> {
                self.write.ready().await
            }

            /// Writes what there is space for now, without waiting.
            ///
            /// # Errors
            ///
            /// `WouldBlock` if there is none; otherwise as writing.
            pub fn try_write(&self, buf: &[u8]) -> io::Result<usize> {
                self.write.lock().try_write(&[IoSlice::new(buf)])
            }

            /// As `try_write` from several buffers, one after the other.
            ///
            /// # Errors
            ///
            /// As `try_write`.
            pub fn try_write_vectored(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
                self.write.lock().try_write(bufs)
            }
        }

        impl AsyncWrite for $type {
            fn poll_write(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buf: &[u8],
            ) -> Poll<io::Result<usize>> {
                let half = self.get_mut().write.get_mut();
                half.poll_write(cx, &[IoSlice::new(buf)])
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                bufs: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                self.get_mut().write.get_mut().poll_write(cx, bufs)
            }

            /// Ready at once, as with TCP: written data is sent without a flush.
            ///
            /// Over SMC-D it is in the peer's memory. Over SMC-R it may still be in the send buffer
            /// ([`Builder::send_buffer`](crate::Builder::send_buffer)), because the peer's
            /// buffer is full or earlier data is on its way; closing waits for that.
            fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                Poll::Ready(Ok(()))
            }

            /// Shuts writing down, as [`Stream::shutdown_how`], and waits until what was written
            /// is delivered even if this process ends.
            ///
            /// Over SMC-D that is so when a busy device has taken everything, mostly at once. Over
            /// SMC-R the send buffer is written out first, and the peer has to have acknowledged
            /// it: this waits while the peer's buffer is full, for at most
            /// [`Builder::close_timeout`](crate::Builder::close_timeout). Two peers that both
            /// wait for this before they read, with more under way than fits the buffers, wait for
            /// each other; [`Stream::shutdown_how`] does not wait. On TCP it does not wait either,
            /// as the system delivers. Writing is shut down from the first poll on, and the time
            /// runs from there, also if the future is dropped
            /// (docs/spec/closing.md#waiting-for-delivery). Closing again waits for the rest of the
            /// time, and after a timeout for the whole time anew.
            ///
            /// # Errors
            ///
            /// If the peer has closed and not read everything (`ConnectionReset`), the connection
            /// ended otherwise before the peer had it, or the time has passed (`TimedOut`): what
            /// was written still goes out then, and closing may be called again to go on waiting.
            fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                self.get_mut().write.get_mut().poll_shutdown(cx)
            }
        }
    )+};
}

/// For a stream that tasks share, such as one that reads and one that writes. Stores one waker,
/// that of the last call of this, of [`Stream::poll_peek`] or of [`Stream::poll_read_ready`]: only
/// one task may wait in these at a time, besides any number in [`Stream::readable`].
impl AsyncRead for &Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let read = &self.get_mut().read;
        read.poll_shared(cx, |half, cx| half.poll_read(cx, buf))
    }

    fn poll_read_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
    ) -> Poll<io::Result<usize>> {
        let read = &self.get_mut().read;
        read.poll_shared(cx, |half, cx| half.poll_read_vectored(cx, bufs))
    }
}

/// For a stream that tasks share, such as one that reads and one that writes. Stores one waker,
/// that of the last call of this or of [`Stream::poll_write_ready`]: only one task may wait in
/// these at a time, besides any number in [`Stream::writable`].
///
/// Flushing and closing are as with `&mut Stream`.
impl AsyncWrite for &Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let write = &self.get_mut().write;
        write.poll_shared(cx, |half, cx| half.poll_write(cx, bufs))
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let write = &self.get_mut().write;
        write.poll_shared(cx, |half, cx| half.poll_shutdown(cx))
    }
}

any!(
    Stream,
    ReadHalf<'_>,
    OwnedReadHalf,
    WriteHalf<'_>,
    OwnedWriteHalf
);
reading!(Stream, ReadHalf<'_>, OwnedReadHalf);
writing!(Stream, WriteHalf<'_>, OwnedWriteHalf);
