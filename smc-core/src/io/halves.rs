//! Reading and writing by mode of the stream: the one place that distinguishes SMC and TCP.

use std::io::{self, IoSlice, IoSliceMut};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use atomic_waker::AtomicWaker;
use event_listener::Event;
use smc_wire::size::SizeCode;

use super::conn::Conn;
use super::in_place::ReadGuard;
use super::recv::Receiver;
use super::send::{NEVER_FITS, ReservedSpace, Sender};
use super::tcp::{TcpReader, TcpWriter};
use crate::error::Error;

/// The reading side of a stream.
#[derive(Debug)]
pub(crate) enum ReadSide {
    Smc(Receiver),
    Tcp(TcpReader),
}

impl ReadSide {
    pub(crate) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        match self {
            Self::Smc(half) => half.poll_read(cx, buf).map_err(io::Error::from),
            Self::Tcp(half) => half.poll_read(cx, buf),
        }
    }

    pub(crate) fn poll_read_vectored(
        &mut self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
    ) -> Poll<io::Result<usize>> {
        match self {
            Self::Smc(half) => half.poll_read_vectored(cx, bufs).map_err(io::Error::from),
            Self::Tcp(half) => half.poll_read_vectored(cx, bufs),
        }
    }

    /// Bytes that a read of `wanted` would return now, or the expected number where that is not
    /// known: an upper bound for a temporary buffer.
    pub(crate) fn available(&mut self, wanted: usize) -> usize {
        match self {
            Self::Smc(half) => half.available(wanted),
            Self::Tcp(half) => half.expected().min(wanted),
        }
    }

    pub(crate) fn poll_peek(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        match self {
            Self::Smc(half) => half.poll_peek(cx, buf).map_err(io::Error::from),
            Self::Tcp(half) => half.poll_peek(cx, buf),
        }
    }

    /// As [`ReadSide::poll_peek`] without waiting, for SMC; a TCP socket is polled with a waker.
    fn try_peek(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Smc(half) => now_or_never(half.try_peek(buf)),
            Self::Tcp(_) => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    pub(crate) fn poll_fill_buf(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        match self {
            Self::Smc(half) => half.poll_fill_buf(cx).map_err(io::Error::from),
            Self::Tcp(half) => half.poll_fill_buf(cx),
        }
    }

    pub(crate) fn consume_filled(&mut self, count: usize) {
        match self {
            Self::Smc(half) => half.consume_filled(count),
            Self::Tcp(half) => half.consume_filled(count),
        }
    }

    pub(crate) fn poll_read_guard(
        &mut self,
        cx: &mut Context<'_>,
        max: usize,
    ) -> Poll<io::Result<ReadGuard>> {
        match self {
            Self::Smc(half) => half.poll_read_guard(cx, max).map_err(io::Error::from),
            Self::Tcp(half) => half.poll_read_guard(cx, max),
        }
    }

    pub(crate) fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Smc(half) => half.poll_ready(cx).map_err(io::Error::from),
            Self::Tcp(half) => half.poll_ready(cx),
        }
    }

    #[inline]
    pub(crate) fn try_read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Smc(half) => now_or_never(half.try_read(buf)),
            Self::Tcp(half) => half.try_read(buf),
        }
    }

    pub(crate) fn try_read_vectored(&mut self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match self {
            Self::Smc(half) => now_or_never(half.try_read_vectored(bufs)),
            Self::Tcp(half) => match bufs.iter_mut().find(|buf| !buf.is_empty()) {
                Some(buf) => half.try_read(buf),
                None => Ok(0),
            },
        }
    }

    pub(crate) fn shutdown(&mut self) -> io::Result<()> {
        match self {
            Self::Smc(half) => {
                half.shutdown();
                Ok(())
            }
            Self::Tcp(half) => half.shutdown(),
        }
    }
}

/// The writing side of a stream.
#[derive(Debug)]
pub(crate) enum WriteSide {
    Smc(Sender),
    Tcp(TcpWriter),
}

impl WriteSide {
    pub(crate) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self {
            Self::Smc(half) => half.poll_write(cx, bufs).map_err(io::Error::from),
            Self::Tcp(half) => half.poll_write(cx, bufs),
        }
    }

    pub(crate) fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Smc(half) => half.poll_ready(cx).map_err(io::Error::from),
            Self::Tcp(half) => half.poll_ready(cx),
        }
    }

    pub(crate) fn try_write(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Smc(half) => now_or_never(half.try_write(bufs)),
            Self::Tcp(half) => half.try_write(bufs),
        }
    }

    pub(crate) fn shutdown(&mut self) -> io::Result<()> {
        match self {
            Self::Smc(half) => {
                half.shutdown();
                Ok(())
            }
            Self::Tcp(half) => half.shutdown(),
        }
    }

    /// As [`WriteSide::shutdown`], and waits until the delivery of written data does not depend on
    /// this process.
    pub(crate) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Smc(half) => half.poll_shutdown(cx).map_err(io::Error::from),
            Self::Tcp(half) => Poll::Ready(half.shutdown()),
        }
    }
}

/// Operations of reservations.
impl WriteSide {
    /// Waits until a reservation of at least `least` bytes, and one, is possible. Returns the
    /// reserved space, at most `most`; empty if that is 0.
    #[inline]
    pub(crate) fn poll_space(
        &mut self,
        cx: &mut Context<'_>,
        least: usize,
        most: usize,
    ) -> Poll<io::Result<ReservedSpace>> {
        if least > most {
            return Poll::Ready(Err(LEAST_IS_MORE.into()));
        }
        let least = least.max(1);
        match self {
            _ if most == 0 => Poll::Ready(Ok(ReservedSpace {
                len: 0,
                is_in_place: matches!(self, Self::Smc(half) if half.is_mapped()),
            })),
            Self::Smc(half) => half.poll_space(cx, least, most).map_err(io::Error::from),
            // TCP has no ring: the maximum ring size bounds the private buffer.
            Self::Tcp(_) if least > SizeCode::MAX.byte_len() => Poll::Ready(Err(NEVER_FITS.into())),
            Self::Tcp(_) => Poll::Ready(Ok(ReservedSpace::private(most, least, most))),
        }
    }

    pub(crate) fn is_trusted(&self) -> bool {
        matches!(self, Self::Smc(half) if half.is_trusted())
    }

    pub(crate) fn put_at(&mut self, offset: usize, data: &[u8]) -> io::Result<()> {
        match self {
            Self::Smc(half) => Ok(half.put_at(offset, data)?),
            Self::Tcp(_) => Err(NOT_MAPPED.into()),
        }
    }

    pub(crate) fn copy_reserved(&mut self, to: &mut [u8]) {
        if let Self::Smc(half) = self {
            half.copy_reserved(to);
        }
    }

    pub(crate) fn reserved_mut(&mut self, len: usize) -> &mut [u8] {
        match self {
            Self::Smc(half) => half.reserved_mut(len),
            Self::Tcp(_) => &mut [],
        }
    }

    pub(crate) fn commit_reserved(&mut self, len: usize) -> io::Result<()> {
        match self {
            Self::Smc(half) => Ok(half.commit_reserved(len)?),
            Self::Tcp(_) => Err(NOT_MAPPED.into()),
        }
    }

    /// The buffer of reservations that are not in the peer's memory.
    pub(crate) fn spare(&mut self) -> &mut Box<[u8]> {
        match self {
            Self::Smc(half) => &mut half.spare,
            Self::Tcp(half) => &mut half.spare,
        }
    }
}

/// A side with its own lock: methods with `&mut` do without it, methods with `&` may be called from
/// several tasks.
#[derive(Debug)]
pub(crate) struct LockedSide<S> {
    half: Mutex<S>,
    /// Tasks that wait for a TCP socket. Those of SMC are in [`Conn`].
    waiters: OnceLock<Arc<Waiters>>,
}

impl<S> LockedSide<S> {
    pub(crate) fn new(side: S) -> Self {
        Self {
            half: Mutex::new(side),
            waiters: OnceLock::new(),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, S> {
        self.half.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn as_mut(&mut self) -> &mut S {
        self.half.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    fn waiters(&self) -> &Arc<Waiters> {
        self.waiters.get_or_init(Arc::default)
    }
}

impl<S: Ready> LockedSide<S> {
    /// Waits until the side is ready. Any number of tasks may wait.
    pub(crate) async fn ready(&self) -> io::Result<()> {
        let conn = self.lock().conn();
        match conn {
            Some(conn) => self.ready_smc(&conn).await,
            None => self.wait_tcp(|side, cx| side.poll_ready(cx)).await,
        }
    }

    async fn ready_smc(&self, conn: &Arc<Conn>) -> io::Result<()> {
        while !self.lock().is_ready() {
            let changed = conn.listen();
            conn.watch_tcp();
            conn.arm();
            if self.lock().is_ready() {
                break;
            }
            conn.check_can_wait()?;
            changed.await;
        }
        Ok(())
    }

    /// Waits at a TCP socket, which stores one waker: the shared one of all waiting tasks.
    async fn wait_tcp<T>(
        &self,
        mut attempt: impl FnMut(&mut S, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> io::Result<T> {
        let waiters = self.waiters();
        let waker = Waker::from(Arc::clone(waiters));
        loop {
            let changed = waiters.changed.listen();
            let attempted = attempt(&mut self.lock(), &mut Context::from_waker(&waker));
            if let Poll::Ready(result) = attempted {
                return result;
            }
            changed.await;
        }
    }

    /// As an async method with `&self`, for a poll function: stores the waker of the last call,
    /// besides the tasks that wait in async methods.
    pub(crate) fn poll_shared<T>(
        &self,
        cx: &mut Context<'_>,
        attempt: impl FnOnce(&mut S, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        let mut side = self.lock();
        if side.is_smc() {
            return attempt(&mut side, cx);
        }
        let waiters = self.waiters();
        waiters.polling.register(cx.waker());
        let waker = Waker::from(Arc::clone(waiters));
        attempt(&mut side, &mut Context::from_waker(&waker))
    }
}

impl LockedSide<ReadSide> {
    /// Copies the next bytes without consuming them; waits until there are some. Any number of
    /// tasks may wait.
    pub(crate) async fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        let conn = self.lock().conn();
        let Some(conn) = conn else {
            return self.wait_tcp(|side, cx| side.poll_peek(cx, buf)).await;
        };
        loop {
            self.ready_smc(&conn).await?;
            match self.lock().try_peek(buf) {
                // Another task has read it.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return result,
            }
        }
    }
}

/// Tasks that wait for one TCP socket in one direction: all of them are woken when it is ready, as
/// any of them may have stopped waiting.
#[derive(Debug, Default)]
struct Waiters {
    /// For async methods, of which any number may wait.
    changed: Event,
    /// For poll functions: the last call.
    polling: AtomicWaker,
}

impl Wake for Waiters {
    fn wake(self: Arc<Self>) {
        self.changed.notify(usize::MAX);
        self.polling.wake();
    }
}

/// A side whose readiness can be checked.
pub(crate) trait Ready {
    /// The connection, if this is SMC.
    fn conn(&self) -> Option<Arc<Conn>>;
    fn is_smc(&self) -> bool;
    fn is_ready(&mut self) -> bool;
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
}

impl Ready for ReadSide {
    fn is_smc(&self) -> bool {
        matches!(self, Self::Smc(_))
    }

    fn conn(&self) -> Option<Arc<Conn>> {
        match self {
            Self::Smc(half) => Some(half.shared()),
            Self::Tcp(_) => None,
        }
    }

    fn is_ready(&mut self) -> bool {
        match self {
            Self::Smc(half) => half.is_ready(),
            Self::Tcp(_) => true,
        }
    }

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Self::poll_ready(self, cx)
    }
}

impl Ready for WriteSide {
    fn is_smc(&self) -> bool {
        matches!(self, Self::Smc(_))
    }

    fn conn(&self) -> Option<Arc<Conn>> {
        match self {
            Self::Smc(half) => Some(half.shared()),
            Self::Tcp(_) => None,
        }
    }

    fn is_ready(&mut self) -> bool {
        match self {
            Self::Smc(half) => half.is_ready(),
            Self::Tcp(_) => true,
        }
    }

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Self::poll_ready(self, cx)
    }
}

fn now_or_never(result: Result<Option<usize>, Error>) -> io::Result<usize> {
    result?.ok_or_else(|| io::ErrorKind::WouldBlock.into())
}

const LEAST_IS_MORE: Error = Error::misuse("reservation of at least more than it may have");

/// Reservations check this first.
const NOT_MAPPED: Error = Error::Bug("reservation in place on TCP");
