//! [`Runtime`] on smol: async-io's reactor and an executor.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker, ready};
use std::time::Instant;

use ::smol::Executor;
use async_io::Async;
use async_trait::async_trait;
use atomic_waker::AtomicWaker;

use super::connect::{self, ConnectStatus};
use super::net::{
    self, Direction, FdWatch, IoDone, Registered, TcpAcceptor, TcpSocket, UnixAcceptorOf,
};
use super::own_thread::OwnThread;
use super::{
    Acceptor, BeforeConnect, BeforeListen, Runtime, Socket, SocketOptions, Task, Timer,
    UnixAcceptor, Watch,
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

    fn unix_socket(&self, fd: OwnedFd) -> io::Result<Arc<dyn Socket>> {
        Ok(net::unix_stream::<SmolIo>(&(), fd))
    }

    fn unix_acceptor(&self, listener: UnixListener) -> io::Result<Arc<dyn UnixAcceptor>> {
        Ok(Arc::new(UnixAcceptorOf::<SmolIo>::new((), listener)?))
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
    /// For reading and for writing, made for the first wait.
    waits: [OnceLock<Wait>; 2],
}

/// A task that waits for a direction of a descriptor.
#[derive(Debug)]
struct Wait {
    /// Whether a task waits, and no readiness was reported since.
    ///
    /// The reactor would report the same readiness once more, after it was used up.
    is_waiting: AtomicBool,
    event: Arc<ReactorEvent>,
    /// That of `event`, for the reactor.
    waker: Waker,
}

/// An event of the reactor. Its wake-up is what counts: an event that comes in the turn of the
/// reactor during which the descriptor was registered wakes the task, and `poll_readable` does not
/// report it. While the executor is busy and another thread turns the reactor, that is so each
/// time.
#[derive(Debug, Default)]
struct ReactorEvent {
    has_come: AtomicBool,
    task: AtomicWaker,
}

impl Wake for ReactorEvent {
    fn wake(self: Arc<Self>) {
        self.has_come.store(true, Ordering::Release);
        self.task.wake();
    }
}

impl Default for Wait {
    fn default() -> Self {
        let event = Arc::<ReactorEvent>::default();
        Self {
            is_waiting: AtomicBool::new(false),
            waker: Waker::from(Arc::clone(&event)),
            event,
        }
    }
}

impl SmolIo {
    fn wait(&self, direction: Direction) -> &Wait {
        let [for_reading, for_writing] = &self.waits;
        let wait = match direction {
            Direction::Read => for_reading,
            Direction::Write => for_writing,
        };
        wait.get_or_init(Wait::default)
    }

    fn poll_ready(
        &self,
        cx: &mut Context<'_>,
        direction: Direction,
        wait: &Wait,
    ) -> Poll<io::Result<()>> {
        // First, so that an event that comes now wakes this task.
        wait.event.task.register(cx.waker());
        if wait.event.has_come.swap(false, Ordering::Acquire) {
            return Poll::Ready(Ok(()));
        }
        let cx = &mut Context::from_waker(&wait.waker);
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
        let wait = self.wait(direction);
        loop {
            if wait.is_waiting.load(Ordering::Relaxed) {
                ready!(self.poll_ready(cx, direction, wait))?;
                wait.is_waiting.store(false, Ordering::Relaxed);
            }
            match op(self.as_fd()) {
                Ok(done) => return Poll::Ready(Ok(done.value)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    wait.is_waiting.store(true, Ordering::Relaxed);
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
        self.poll_ready(cx, Direction::Read, self.wait(Direction::Read))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread;
    use std::time::Duration;

    use rustix::io::{read, write};
    use rustix::pipe::{PipeFlags, pipe_with};

    use super::*;

    struct Wakes(Sender<()>);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            let _ended = self.0.send(());
        }
    }

    /// A pipe becomes readable while a task waits for it, which polls late after each wake-up, as
    /// on a busy executor. Another thread turns the reactor all the time.
    fn wait(mut poll: impl FnMut(&SmolIo, &mut Context<'_>) -> Poll<io::Result<()>>) {
        thread::spawn(|| async_io::block_on(std::future::pending::<()>()));
        let (reader, writer) = pipe_with(PipeFlags::NONBLOCK).unwrap();
        let io = SmolIo::register(&(), Arc::new(reader)).unwrap();
        let (wakes, woken): (_, Receiver<()>) = channel();
        let waker = Waker::from(Arc::new(Wakes(wakes)));
        let mut cx = Context::from_waker(&waker);
        let late = Duration::from_millis(20);
        thread::sleep(late);
        assert!(poll(&io, &mut cx).is_pending());
        write(&writer, b"a").unwrap();
        for _ in 0..3 {
            woken.recv().unwrap();
            thread::sleep(late);
            if let Poll::Ready(ready) = poll(&io, &mut cx) {
                return ready.unwrap();
            }
        }
        panic!("woken three times, and never ready");
    }

    #[test]
    fn a_late_task_reads_what_the_reactor_does_not_report() {
        wait(|io, cx| {
            let read = io.poll_io(cx, Direction::Read, |fd| {
                let value = read(fd, &mut [0; 8])?;
                Ok(IoDone {
                    value,
                    exhausted: false,
                })
            });
            read.map_ok(drop)
        });
    }

    #[test]
    fn a_late_task_sees_that_a_watched_descriptor_is_readable() {
        wait(|io, cx| io.poll_edge(cx));
    }
}
