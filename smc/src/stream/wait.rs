//! Waiting for a half of a stream, by one task or by several.

use std::future::poll_fn;
use std::io;
use std::sync::{Arc, MutexGuard, OnceLock};
use std::task::{Context, Poll, Wake, Waker};

use atomic_waker::AtomicWaker;
use event_listener::Event;

use super::super::busy_poll::{BusyPoll, HITS_MAX, PollStep};
use super::super::conn::{Conn, HalfCounters};
use super::read::Reader;
use crate::error::Error;
use crate::mem::sync::{AtomicU32, Ordering};
use crate::mutex::Mutex;

/// A half of an SMC stream.
pub(crate) trait StreamHalf {
    fn conn(&self) -> &Arc<Conn>;
    fn busy_poll(&mut self) -> &mut BusyPoll;
    fn counters(&self) -> &HalfCounters;
    fn register(&self, waker: &Waker);

    /// Requests a report of the event that the half waits for. The caller checks once more
    /// afterwards.
    fn arm(&self);

    /// Polls the device, where updates do not appear in memory by themselves. Returns false if
    /// there were more events than a poll takes.
    fn poll_device(&self) -> bool;
}

/// Repeats `attempt` until it succeeds: first by busy polling, then parked.
///
/// Before parking the waker is registered, then the device is armed to report the next write of the
/// peer, then `attempt` is made once more: a write is either visible to that attempt or reported.
/// Without a running driver task it is an error to park.
pub(crate) fn poll_until<H: StreamHalf, T>(
    half: &mut H,
    cx: &mut Context<'_>,
    attempt: impl FnMut(&mut H) -> Result<Option<T>, Error>,
) -> Poll<io::Result<T>> {
    if half.busy_poll().take_spent_budget() {
        half.conn().driver.stream_runtime.yield_now(cx);
        return Poll::Pending;
    }
    let polled = look_until(half, cx, attempt);
    if polled.is_pending() {
        half.busy_poll().end_turn();
    }
    polled
}

fn look_until<H: StreamHalf, T>(
    half: &mut H,
    cx: &mut Context<'_>,
    mut attempt: impl FnMut(&mut H) -> Result<Option<T>, Error>,
) -> Poll<io::Result<T>> {
    let (mut is_armed, mut is_device_busy) = (false, false);
    loop {
        match attempt(half) {
            Ok(Some(found)) => {
                if half.busy_poll().hit() {
                    half.counters().add_poll_won();
                }
                return Poll::Ready(Ok(found));
            }
            Ok(None) if is_armed => {
                return match half.conn().check_can_wait() {
                    Ok(()) => Poll::Pending,
                    Err(error) => Poll::Ready(Err(error.into())),
                };
            }
            // Events of others without end must not keep the executor from its other tasks.
            Ok(None) if is_device_busy => {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            Ok(None) => is_device_busy = !half.poll_device(),
            Err(error) => return Poll::Ready(Err(error.into())),
        }
        match half.busy_poll().miss() {
            PollStep::Again => {}
            PollStep::Yield => {
                half.conn().driver.stream_runtime.yield_now(cx);
                return Poll::Pending;
            }
            PollStep::Park => {
                half.counters().add_parked();
                half.conn().driver.start_polling();
                half.register(cx.waker());
                half.conn().watch_tcp();
                half.arm();
                is_armed = true;
            }
        }
    }
}

/// A half with its own lock: methods with `&mut` do without it, methods with `&` may be called from
/// several tasks.
pub(crate) struct LockedHalf<S> {
    half: Mutex<S>,
    /// Tasks that wait for a TCP socket. Those of SMC are in [`Conn`].
    waiters: OnceLock<Arc<Waiters>>,
    /// Calls of async methods for any number of tasks.
    calls: AtomicU32,
}

impl<S> LockedHalf<S> {
    pub(crate) fn new(half: S) -> Self {
        Self {
            half: Mutex::new(half),
            waiters: OnceLock::new(),
            calls: AtomicU32::new(0),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, S> {
        self.half.lock()
    }

    pub(crate) fn get_mut(&mut self) -> &mut S {
        self.half.get_mut()
    }

    fn waiters(&self) -> &Arc<Waiters> {
        self.waiters.get_or_init(Arc::default)
    }
}

impl<S: Ready> LockedHalf<S> {
    /// Yields to the executor once in so many calls: with data that is not consumed, or a fast
    /// peer, a task could run without ever waiting.
    async fn keep_budget(&self) {
        if self.calls.fetch_add(1, Ordering::Relaxed) % HITS_MAX == HITS_MAX - 1 {
            let mut has_yielded = false;
            poll_fn(|cx| match std::mem::replace(&mut has_yielded, true) {
                true => Poll::Ready(()),
                false => {
                    cx.waker().wake_by_ref();
                    Poll::Pending
                }
            })
            .await;
        }
    }

    /// Waits until the half is ready. Any number of tasks may wait.
    pub(crate) async fn ready(&self) -> io::Result<()> {
        self.keep_budget().await;
        let conn = self.lock().conn();
        match conn {
            Some(conn) => self.ready_smc(&conn).await,
            None => self.wait_tcp(|half, cx| half.poll_ready(cx)).await,
        }
    }

    async fn ready_smc(&self, conn: &Arc<Conn>) -> io::Result<()> {
        while !self.lock().is_ready() {
            let changed = conn.changed.listen();
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
        let mut half = self.lock();
        if half.conn().is_some() {
            return attempt(&mut half, cx);
        }
        let waiters = self.waiters();
        waiters.polling.register(cx.waker());
        let waker = Waker::from(Arc::clone(waiters));
        attempt(&mut half, &mut Context::from_waker(&waker))
    }
}

impl LockedHalf<Reader> {
    /// Copies the next bytes without consuming them; waits until there are some. Any number of
    /// tasks may wait.
    pub(crate) async fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.keep_budget().await;
        let conn = self.lock().conn();
        let Some(conn) = conn else {
            return self.wait_tcp(|half, cx| half.poll_peek(cx, buf)).await;
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
#[derive(Default)]
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

/// A half whose readiness can be checked.
pub(crate) trait Ready {
    /// The connection, if this is SMC.
    fn conn(&mut self) -> Option<Arc<Conn>>;
    fn is_ready(&mut self) -> bool;
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
}

/// The result of an attempt that does not wait.
pub(super) fn now_or_never<T>(result: Result<Option<T>, Error>) -> io::Result<T> {
    result?.ok_or_else(|| io::ErrorKind::WouldBlock.into())
}

/// Methods of a half that call the method of the same name of what it is.
macro_rules! delegate {
    ($(
        $(#[$attribute:meta])*
        $vis:vis fn $name:ident(&mut self $(, $arg:ident: $type:ty)*) -> $result:ty;
    )+) => {$(
        $(#[$attribute])*
        $vis fn $name(&mut self $(, $arg: $type)*) -> $result {
            match self {
                Self::Direct(half) => half.$name($($arg),*),
                Self::Rdma(half) => half.$name($($arg),*),
                Self::Tcp(half) => half.$name($($arg),*),
            }
        }
    )+};
}

pub(super) use delegate;
