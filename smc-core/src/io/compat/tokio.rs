//! tokio's I/O traits, by way of those of futures-io.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, ReadBuf};

use crate::io::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, Stream, WriteHalf};

macro_rules! read {
    ($($half:ty),+) => {$(
        impl AsyncRead for $half {
            fn poll_read(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buf: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                let this = self.get_mut();
                let wanted = buf.remaining();
                // Clearing more than is going to be filled would cost more than the read, and
                // clearing anything for nothing as much as one.
                let side = this.read_side_mut().as_mut();
                let mut room = side.available(wanted);
                if room == 0 && wanted > 0 {
                    ready!(side.poll_ready(cx))?;
                    // At the end there is nothing, which takes a read to be told.
                    room = side.available(wanted).max(1);
                }
                let spare = buf.initialize_unfilled_to(room);
                let read = ready!(futures_io::AsyncRead::poll_read(Pin::new(this), cx, spare))?;
                buf.advance(read);
                Poll::Ready(Ok(()))
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

read!(Stream, ReadHalf<'_>, OwnedReadHalf);
write!(Stream, WriteHalf<'_>, OwnedWriteHalf);
