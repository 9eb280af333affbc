//! Everything that can be read from or written to, under one set of names.

use std::future::Future;
use std::io::{self, IoSlice, IoSliceMut, Write as _};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_io::{AsyncBufRead, AsyncRead, AsyncWrite};
use smc::Stream;
use smc::{OwnedReadHalf, OwnedWriteHalf, ReadGuard, ReadHalf, Reservation, WriteHalf};

pub(super) type IoWait<'a> = Pin<Box<dyn Future<Output = io::Result<()>> + Send + 'a>>;

/// A write that may take several polls.
pub(super) type Put<'a> = Pin<Box<dyn Future<Output = io::Result<usize>> + Send + 'a>>;

/// How bytes get into a reservation.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fill {
    /// As slices copied in, the last one first.
    Pieces,
    /// By `io::Write`.
    Stream,
    /// As one slice of memory.
    Slice,
    /// Not at all: the reservation is dropped after they were written.
    Abandon,
}

/// How much is reserved.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ask {
    /// What there is.
    Any,
    /// Exactly what is to be written.
    Exact,
    /// Half of it at least.
    Half,
}

/// What a reader needs.
pub(super) trait Reading: Send {
    fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
    ) -> Poll<io::Result<usize>>;

    /// Passes the next bytes to `check`, which returns how much of it to consume; gives what was
    /// shown. `None` for ends that are not buffered.
    fn poll_fill(
        &mut self,
        _cx: &mut Context<'_>,
        _check: &mut dyn FnMut(&[u8]) -> usize,
    ) -> Option<Poll<io::Result<usize>>> {
        None
    }

    /// Takes what comes next as a guard. `None` for ends that do not give them.
    fn poll_guard(
        &mut self,
        _cx: &mut Context<'_>,
        _max: usize,
    ) -> Option<Poll<io::Result<ReadGuard>>> {
        None
    }

    fn poll_peek(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>>;

    fn try_read(&self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize>;

    fn try_read_buf(&self, buf: &mut Vec<u8>) -> io::Result<usize>;

    fn readable(&self) -> IoWait<'_>;
}

/// What a writer needs.
pub(super) trait Writing: Send {
    fn poll_write(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>])
    -> Poll<io::Result<usize>>;

    /// Whether there are reservations.
    const RESERVES: bool = false;

    /// Writes a part of `data` into a reservation and sends at most `most` bytes of it.
    fn put<'a>(&'a mut self, _: &'a [u8], _: Ask, _: usize, _: Fill) -> Put<'a> {
        Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    fn try_write(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize>;

    fn writable(&self) -> IoWait<'_>;

    /// Shuts writing down, the way of `poll_close`.
    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Shuts writing down, the way of `shutdown(Write)`; `None` for ends that have none.
    fn shutdown(&self) -> Option<io::Result<()>> {
        None
    }
}

macro_rules! reading {
    ($end:ty) => {
        impl Reading for $end {
            fn poll_read(
                &mut self,
                cx: &mut Context<'_>,
                bufs: &mut [IoSliceMut<'_>],
            ) -> Poll<io::Result<usize>> {
                match bufs {
                    [one] => AsyncRead::poll_read(Pin::new(self), cx, one),
                    _ => AsyncRead::poll_read_vectored(Pin::new(self), cx, bufs),
                }
            }

            fn poll_fill(
                &mut self,
                cx: &mut Context<'_>,
                check: &mut dyn FnMut(&[u8]) -> usize,
            ) -> Option<Poll<io::Result<usize>>> {
                let (shown, taken) = match AsyncBufRead::poll_fill_buf(Pin::new(self), cx) {
                    Poll::Ready(Ok(bytes)) => (bytes.len(), check(bytes)),
                    Poll::Ready(Err(error)) => return Some(Poll::Ready(Err(error))),
                    Poll::Pending => return Some(Poll::Pending),
                };
                AsyncBufRead::consume(Pin::new(self), taken);
                Some(Poll::Ready(Ok(shown)))
            }

            fn poll_guard(
                &mut self,
                cx: &mut Context<'_>,
                max: usize,
            ) -> Option<Poll<io::Result<ReadGuard>>> {
                Some(self.poll_read_guard(cx, max))
            }

            fn poll_peek(
                &mut self,
                cx: &mut Context<'_>,
                buf: &mut [u8],
            ) -> Poll<io::Result<usize>> {
                <$end>::poll_peek(self, cx, buf)
            }

            fn try_read(&self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
                match bufs {
                    [one] => <$end>::try_read(self, one),
                    _ => <$end>::try_read_vectored(self, bufs),
                }
            }

            fn try_read_buf(&self, buf: &mut Vec<u8>) -> io::Result<usize> {
                <$end>::try_read_buf(self, buf)
            }

            fn readable(&self) -> IoWait<'_> {
                Box::pin(<$end>::readable(self))
            }
        }
    };
}

macro_rules! writing {
    ($end:ty, $($more:tt)*) => {
        impl Writing for $end {
            fn poll_write(
                &mut self,
                cx: &mut Context<'_>,
                bufs: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                match bufs {
                    [one] => AsyncWrite::poll_write(Pin::new(self), cx, one),
                    _ => AsyncWrite::poll_write_vectored(Pin::new(self), cx, bufs),
                }
            }

            const RESERVES: bool = true;

            fn put<'a>(&'a mut self, data: &'a [u8], ask: Ask, most: usize, fill: Fill) -> Put<'a> {
                Box::pin(async move {
                    let len = data.len();
                    let (least, reserved) = match ask {
                        Ask::Any => (len.min(1), self.reserve(len).await),
                        Ask::Exact => (len, self.reserve_exact(len).await),
                        Ask::Half => {
                            let half = len.div_ceil(2);
                            (half, self.reserve_at_least(half, len).await)
                        }
                    };
                    let space = match reserved {
                        // It never fits the ring, of which the shortest has almost 16 KiB.
                        Err(error) if is_misuse(&error) && len > RING_MIN => return Ok(0),
                        reserved => reserved?,
                    };
                    if !(least..=len).contains(&space.len()) {
                        let what = format!("reserved {} of {least} to {len} bytes", space.len());
                        return Err(io::Error::other(what));
                    }
                    put(space, data, most, fill).await
                })
            }

            fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                AsyncWrite::poll_flush(Pin::new(self), cx)
            }

            fn try_write(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
                match bufs {
                    [one] => <$end>::try_write(self, one),
                    _ => <$end>::try_write_vectored(self, bufs),
                }
            }

            fn writable(&self) -> IoWait<'_> {
                Box::pin(<$end>::writable(self))
            }

            fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                AsyncWrite::poll_close(Pin::new(self), cx)
            }

            $($more)*
        }
    };
}

reading!(Stream);
reading!(ReadHalf<'_>);
reading!(OwnedReadHalf);
writing!(
    Stream,
    fn shutdown(&self) -> Option<io::Result<()>> {
        Some(self.shutdown_how(std::net::Shutdown::Write))
    }
);
writing!(WriteHalf<'_>,);
writing!(OwnedWriteHalf,);

/// A stream that is used through `&`: waits for readiness, then tries.
impl Reading for Arc<Stream> {
    fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
    ) -> Poll<io::Result<usize>> {
        loop {
            match Reading::try_read(self, bufs) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result),
            }
            ready!(self.poll_read_ready(cx))?;
        }
    }

    fn poll_peek(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        Stream::poll_peek(self, cx, buf)
    }

    fn try_read(&self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match bufs {
            [one] => Stream::try_read(self, one),
            _ => Stream::try_read_vectored(self, bufs),
        }
    }

    fn try_read_buf(&self, buf: &mut Vec<u8>) -> io::Result<usize> {
        Stream::try_read_buf(self, buf)
    }

    fn readable(&self) -> IoWait<'_> {
        Box::pin(Stream::readable(self))
    }
}

impl Writing for Arc<Stream> {
    fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        loop {
            match Stream::try_write_vectored(self, bufs) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result),
            }
            ready!(self.poll_write_ready(cx))?;
        }
    }

    fn poll_flush(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn try_write(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        match bufs {
            [one] => Stream::try_write(self, one),
            _ => Stream::try_write_vectored(self, bufs),
        }
    }

    fn writable(&self) -> IoWait<'_> {
        Box::pin(Stream::writable(self))
    }

    fn poll_close(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Stream::shutdown_how(self, std::net::Shutdown::Write))
    }

    fn shutdown(&self) -> Option<io::Result<()>> {
        Some(Stream::shutdown_how(self, std::net::Shutdown::Write))
    }
}

/// Writes what there is space for, and sends at most `most` bytes of it.
async fn put(
    mut space: Reservation<'_>,
    data: &[u8],
    most: usize,
    fill: Fill,
) -> io::Result<usize> {
    let data = &data[..space.len()];
    match fill {
        Fill::Stream => space.write_all(data)?,
        Fill::Slice => space.as_mut_slice().copy_from_slice(data),
        Fill::Pieces | Fill::Abandon => {
            let middle = data.len() / 2;
            space.write_at(middle, &data[middle..])?;
            space.write_at(0, &data[..middle])?;
        }
    }
    if matches!(fill, Fill::Abandon) {
        return Ok(0);
    }
    let len = data.len().min(most);
    space.commit(len).await?;
    Ok(len)
}

fn is_misuse(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::InvalidInput
}

/// No ring is shorter.
const RING_MIN: usize = 16 * 1024 - 256;
