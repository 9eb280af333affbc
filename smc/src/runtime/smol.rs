//! [`Runtime`] on smol: async-io's reactor and an executor.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use ::smol::Executor;
use async_io::Async;
use async_trait::async_trait;

use super::connect::{self, ConnectStatus};
use super::net::{self, Direction, FdWatch, IoDone, Registered, TcpAcceptor, TcpSocket};
use super::own_thread::OwnThread;
use super::{
    Acceptor, BeforeConnect, BeforeListen, Runtime, Socket, SocketOptions, Task, Timer, Watch,
};
use crate::mem::sync::{AtomicBool, Ordering};

/// async-io's reactor, with smol's global executor or one of the caller's.
#[derive(Clone, Debug, Default)]
pub struct SmolRuntime {
    executor: Option<Arc<Executor<'static>>>,
    /// The thread that runs the executor, if it is one for an endpoint's drivers.
    _thread: Option<Arc<OwnThread>>,
}

impl SmolRuntime {
    /// Spawns on smol's global executor, which starts threads of its own (`SMOL_THREADS`, one if
    /// not set).
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Spawns on `executor`, which the caller has to run.
    #[must_use]
    pub fn with_executor(executor: Arc<Executor<'static>>) -> Self {
        Self {
            executor: Some(executor),
            _thread: None,
        }
    }
}

#[async_trait]
impl Runtime for SmolRuntime {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn timer(&self, at: Instant) -> Timer {
        Box::pin(async move {
            async_io::Timer::at(at).await;
        })
    }

    fn spawn(&self, task: Task) {
        match &self.executor {
            Some(executor) => executor.spawn(task).detach(),
            None => ::smol::spawn(task).detach(),
        }
    }

    async fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        if let Some(addr) = net::literal(host, port) {
            return Ok(vec![addr]);
        }
        let host = host.to_owned();
        ::smol::unblock(move || net::lookup(&host, port)).await
    }

    async fn connect(
        &self,
        to: SocketAddr,
        options: &SocketOptions,
        before: &mut BeforeConnect<'_>,
    ) -> io::Result<Arc<dyn Socket>> {
        Ok(Arc::new(match connect::start(to, options, before)? {
            ConnectStatus::Connected(fd) => TcpSocket::<SmolIo>::client(&(), fd),
            ConnectStatus::InProgress(fd) => {
                TcpSocket::<SmolIo>::client(&(), fd).connected().await?
            }
        }))
    }

    fn source(&self, to: SocketAddr) -> Option<IpAddr> {
        connect::source(to).ok().map(|from| from.ip())
    }

    fn bind(
        &self,
        at: SocketAddr,
        options: &SocketOptions,
        before: &mut BeforeListen<'_>,
    ) -> io::Result<Arc<dyn Acceptor>> {
        let fd = net::listen(at, options, before)?;
        Ok(Arc::new(TcpAcceptor::<SmolIo>::new((), fd)?))
    }

    fn acceptor(&self, listener: std::net::TcpListener) -> io::Result<Arc<dyn Acceptor>> {
        listener.set_nonblocking(true)?;
        Ok(Arc::new(TcpAcceptor::<SmolIo>::new((), listener.into())?))
    }

    fn watch(&self, fd: BorrowedFd<'_>) -> io::Result<Box<dyn Watch>> {
        let fd = Arc::new(fd.try_clone_to_owned()?);
        Ok(Box::new(FdWatch(SmolIo::register(&(), fd)?)))
    }

    fn on_own_thread(&self) -> io::Result<Arc<dyn Runtime>> {
        let (executor, thread) = OwnThread::start(|started, mut ended| {
            let executor = Arc::new(Executor::new());
            if started.send(Ok(Arc::clone(&executor))).is_err() {
                return;
            }
            // A panic ends the task that it comes from, and no other, as on smol's own threads.
            let mut run = || async_io::block_on(executor.run(&mut ended));
            while catch_unwind(AssertUnwindSafe(&mut run)).is_err() {}
        })?;
        Ok(Arc::new(Self {
            executor: Some(executor),
            _thread: Some(thread),
        }))
    }
}

/// A descriptor on async-io's reactor.
#[derive(Debug)]
struct SmolIo {
    source: Async<Arc<OwnedFd>>,
    /// Whether a task waits for reading, or writing, and no readiness was reported since.
    ///
    /// The reactor would report the same readiness once more, after it was used up.
    waits: [AtomicBool; 2],
}

impl SmolIo {
    fn poll_ready(&self, cx: &mut Context<'_>, direction: Direction) -> Poll<io::Result<()>> {
        match direction {
            Direction::Read => self.source.poll_readable(cx),
            Direction::Write => self.source.poll_writable(cx),
        }
    }
}

impl AsFd for SmolIo {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.source.get_ref().as_fd()
    }
}

impl Registered for SmolIo {
    type Reactor = ();

    /// The descriptor's flags are unchanged: it may be a duplicate of one that is not its own.
    fn register(_reactor: &(), fd: Arc<OwnedFd>) -> io::Result<Self> {
        Ok(Self {
            source: Async::new_nonblocking(fd)?,
            waits: Default::default(),
        })
    }

    fn poll_io<T>(
        &self,
        cx: &mut Context<'_>,
        direction: Direction,
        mut op: impl FnMut(BorrowedFd<'_>) -> io::Result<IoDone<T>>,
    ) -> Poll<io::Result<T>> {
        let [for_reading, for_writing] = &self.waits;
        let waits = match direction {
            Direction::Read => for_reading,
            Direction::Write => for_writing,
        };
        loop {
            if waits.load(Ordering::Relaxed) {
                ready!(self.poll_ready(cx, direction))?;
                waits.store(false, Ordering::Relaxed);
            }
            match op(self.as_fd()) {
                Ok(done) => return Poll::Ready(Ok(done.value)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    waits.store(true, Ordering::Relaxed);
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    fn try_io<T>(
        &self,
        _side: Direction,
        op: impl FnOnce(BorrowedFd<'_>) -> io::Result<IoDone<T>>,
    ) -> io::Result<T> {
        op(self.as_fd()).map(|done| done.value)
    }

    /// The reactor checks the level on each call, so no event can be missed.
    fn poll_edge(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_ready(cx, Direction::Read)
    }
}
