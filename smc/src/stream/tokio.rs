//! tokio's I/O traits, by way of those of futures-io.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, ReadBuf};

use super::read::Reader;
use super::tcp::TcpReader;
use super::wait::Ready as _;
use super::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, Stream, WriteHalf};

macro_rules! read {
    ($($half:ty),+) => {$(
        impl AsyncRead for $half {
            fn poll_read(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buf: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                let this = self.get_mut();
                let is_initialized = buf.initialized().len() - buf.filled().len() == buf.remaining();
                match this.read.get_mut() {
                    Reader::Tcp(half) if !is_initialized => poll_read_tcp(half, cx, buf),
                    half if !is_initialized => poll_read_smc(half, cx, buf),
                    half => {
                        let read = half.poll_read(cx, buf.initialize_unfilled());
                        buf.advance(ready!(read)?);
                        Poll::Ready(Ok(()))
                    }
                }
            }
        }

        impl AsyncBufRead for $half {
            fn poll_fill_buf(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
            ) -> Poll<io::Result<&[u8]>> {
                futures_io::AsyncBufRead::poll_fill_buf(self, cx)
            }

            fn consume(self: Pin<&mut Self>, amt: usize) {
                futures_io::AsyncBufRead::consume(self, amt);
            }
        }
    )+};
}

macro_rules! write {
    ($($half:ty),+) => {$(
        impl AsyncWrite for $half {
            fn poll_write(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buf: &[u8],
            ) -> Poll<io::Result<usize>> {
                futures_io::AsyncWrite::poll_write(self, cx, buf)
            }

            fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                futures_io::AsyncWrite::poll_flush(self, cx)
            }

            fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                futures_io::AsyncWrite::poll_close(self, cx)
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                bufs: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                futures_io::AsyncWrite::poll_write_vectored(self, cx, bufs)
            }

            fn is_write_vectored(&self) -> bool {
                true
            }
        }
    )+};
}

/// Reads into a buffer that is only partly initialised. Initialising more than the read fills would
/// cost more than the read.
fn poll_read_smc(
    half: &mut Reader,
    cx: &mut Context<'_>,
    buf: &mut ReadBuf<'_>,
) -> Poll<io::Result<()>> {
    let wanted = buf.remaining();
    let mut space = half.available(wanted);
    if space == 0 {
        ready!(half.poll_ready(cx))?;
        // At end of stream nothing is available; a read reports it.
        space = half.available(wanted).max(1);
    }
    let read = ready!(half.poll_read(cx, buf.initialize_unfilled_to(space)))?;
    buf.advance(read);
    Poll::Ready(Ok(()))
}

/// As [`poll_read_smc`] where the available length is unknown. Copying the data costs less than
/// initialising a buffer for the expected maximum, until reads are long.
fn poll_read_tcp(
    half: &mut TcpReader,
    cx: &mut Context<'_>,
    buf: &mut ReadBuf<'_>,
) -> Poll<io::Result<()>> {
    let space = half.expected().min(buf.remaining());
    if space > SCRATCH_LEN {
        let read = ready!(half.poll_read(cx, buf.initialize_unfilled_to(space)))?;
        buf.advance(read);
        return Poll::Ready(Ok(()));
    }
    // Taken out during the read: the `Socket` implementation may itself read a stream.
    let mut scratch = SCRATCH.try_with(Cell::take).unwrap_or_default();
    scratch.resize(SCRATCH_LEN, 0);
    let unfilled = &mut scratch[..space];
    let read = half.poll_read(cx, unfilled);
    if let Poll::Ready(Ok(count)) = read {
        buf.put_slice(&unfilled[..count]);
    }
    let _thread_is_ending = SCRATCH.try_with(|cell| cell.set(scratch));
    read.map_ok(|_count| ())
}

/// Fits a first-level cache together with the destination.
const SCRATCH_LEN: usize = 16 * 1024;

thread_local! {
    /// The buffer of TCP reads into uninitialised memory.
    static SCRATCH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

read!(Stream, ReadHalf<'_>, OwnedReadHalf);
write!(Stream, WriteHalf<'_>, OwnedWriteHalf);
