//! [`Runtime`] on tokio.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use ::tokio::io::Interest;
use ::tokio::io::unix::AsyncFd;
use ::tokio::runtime::{Handle, RuntimeFlavor, TryCurrentError};
use async_trait::async_trait;

use super::connect::{self, ConnectStatus};
use super::net::{
    self, Direction, FdWatch, IoDone, Registered, TcpAcceptor, TcpSocket, UnixAcceptorOf,
};
use super::own_thread::OwnThread;
use super::{
    Acceptor, BeforeConnect, BeforeListen, Runtime, Socket, SocketOptions, Task, Timer,
    UnixAcceptor, Watch,
};

/// A tokio runtime, by handle. Its methods may be called from anywhere, also from threads that
/// are not tokio's.
///
/// # Panics
///
/// As tokio itself does, sockets and timers panic if the runtime was built without
/// `enable_io` and `enable_time`.
#[derive(Clone, Debug)]
pub struct TokioRuntime {
    handle: Handle,
    /// The thread that runs the runtime, if it is one for an endpoint's drivers.
    _thread: Option<Arc<OwnThread>>,
}

impl TokioRuntime {
    /// The runtime behind this handle.
    #[must_use]
    pub fn new(handle: Handle) -> Self {
        Self {
            handle,
            _thread: None,
        }
    }

    /// The runtime that this code runs on.
    ///
    /// # Errors
    ///
    /// When it does not run on a tokio runtime.
    pub fn current() -> Result<Self, TryCurrentError> {
        Handle::try_current().map(Self::new)
    }

    fn listening(&self, fd: OwnedFd) -> io::Result<Arc<dyn Acceptor>> {
        let acceptor: TcpAcceptor<TokioIo> = TcpAcceptor::new(self.handle.clone(), fd)?;
        Ok(Arc::new(acceptor))
    }
}

#[async_trait]
impl Runtime for TokioRuntime {
    fn now(&self) -> Instant {
        // tokio's clock, so that a paused one is followed.
        let _context = self.handle.enter();
        ::tokio::time::Instant::now().into_std()
    }

    fn timer(&self, at: Instant) -> Timer {
        let _context = self.handle.enter();
        Box::pin(::tokio::time::sleep_until(at.into()))
    }

    fn spawn(&self, task: Task) {
        drop(self.handle.spawn(task));
    }

    fn has_several_threads(&self) -> bool {
        self.handle.runtime_flavor() != RuntimeFlavor::CurrentThread
    }

    /// With several threads, a task that wakes itself also wakes a thread that could take it.
    fn yield_now(&self, cx: &mut Context<'_>) {
        if self.has_several_threads() {
            // The first poll has the worker wake the task later.
            let _pending = pin!(::tokio::task::yield_now()).poll(cx);
        } else {
            cx.waker().wake_by_ref();
        }
    }

    async fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        if let Some(addr) = net::literal(host, port) {
            return Ok(vec![addr]);
        }
        let host = host.to_owned();
        let lookup = self.handle.spawn_blocking(move || net::lookup(&host, port));
        lookup.await.map_err(io::Error::other)?
    }

    async fn connect(
        &self,
        to: SocketAddr,
        options: &SocketOptions,
        before: &mut BeforeConnect<'_>,
    ) -> io::Result<Arc<dyn Socket>> {
        Ok(Arc::new(match connect::start(to, options, before)? {
            ConnectStatus::Connected(fd) => TcpSocket::<TokioIo>::client(&self.handle, fd),
            ConnectStatus::InProgress(fd) => {
                let socket = TcpSocket::<TokioIo>::client(&self.handle, fd);
                socket.connected().await?
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
        self.listening(fd)
    }

    fn acceptor(&self, listener: std::net::TcpListener) -> io::Result<Arc<dyn Acceptor>> {
        listener.set_nonblocking(true)?;
        self.listening(listener.into())
    }

    fn unix_socket(&self, fd: OwnedFd) -> io::Result<Arc<dyn Socket>> {
        Ok(net::unix_stream::<TokioIo>(&self.handle, fd))
    }

    fn unix_acceptor(&self, listener: UnixListener) -> io::Result<Arc<dyn UnixAcceptor>> {
        let acceptor: UnixAcceptorOf<TokioIo> = UnixAcceptorOf::new(self.handle.clone(), listener)?;
        Ok(Arc::new(acceptor))
    }

    fn watch(&self, fd: BorrowedFd<'_>) -> io::Result<Box<dyn Watch>> {
        let fd = Arc::new(fd.try_clone_to_owned()?);
        let io = TokioIo::new(&self.handle, fd, Interest::READABLE)?;
        Ok(Box::new(FdWatch(io)))
    }

    fn on_own_thread(&self) -> io::Result<Arc<dyn Runtime>> {
        // The runtime is built and dropped on its thread: dropping one in a task panics.
        let (handle, thread) = OwnThread::start(|started, ended| {
            let runtime = ::tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            let (runtime, handle) = match runtime {
                Ok(runtime) => {
                    let handle = runtime.handle().clone();
                    (Some(runtime), Ok(handle))
                }
                Err(error) => (None, Err(error)),
            };
            let is_wanted = started.send(handle).is_ok();
            if let Some(runtime) = runtime.filter(|_| is_wanted) {
                runtime.block_on(ended);
            }
        })?;
        Ok(Arc::new(Self {
            handle,
            _thread: Some(thread),
        }))
    }
}

/// A descriptor on tokio's reactor.
#[derive(Debug)]
struct TokioIo {
    fd: AsyncFd<Arc<OwnedFd>>,
}

impl TokioIo {
    fn new(handle: &Handle, fd: Arc<OwnedFd>, interest: Interest) -> io::Result<Self> {
        let _context = handle.enter();
        #[allow(
            deprecated,
            reason = "the successor is unsafe, for types that change their descriptor"
        )]
        let fd = AsyncFd::with_interest(fd, interest)?;
        Ok(Self { fd })
    }
}

impl AsFd for TokioIo {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.get_ref().as_fd()
    }
}

impl Registered for TokioIo {
    type Reactor = Handle;

    fn register(reactor: &Handle, fd: Arc<OwnedFd>) -> io::Result<Self> {
        Self::new(reactor, fd, Interest::READABLE | Interest::WRITABLE)
    }

    fn poll_io<T>(
        &self,
        cx: &mut Context<'_>,
        direction: Direction,
        mut op: impl FnMut(BorrowedFd<'_>) -> io::Result<IoDone<T>>,
    ) -> Poll<io::Result<T>> {
        loop {
            let mut guard = ready!(match direction {
                Direction::Read => self.fd.poll_read_ready(cx),
                Direction::Write => self.fd.poll_write_ready(cx),
            })?;
            match op(self.as_fd()) {
                Ok(IoDone { value, exhausted }) => {
                    if exhausted {
                        guard.clear_ready();
                    }
                    return Poll::Ready(Ok(value));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => guard.clear_ready(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    fn try_io<T>(
        &self,
        direction: Direction,
        op: impl FnOnce(BorrowedFd<'_>) -> io::Result<IoDone<T>>,
    ) -> io::Result<T> {
        let interest = match direction {
            Direction::Read => Interest::READABLE,
            Direction::Write => Interest::WRITABLE,
        };
        let mut done = None;
        let tried = self.fd.try_io(interest, |fd| match op(fd.as_fd())? {
            // Clears the readiness.
            IoDone {
                value,
                exhausted: true,
            } => {
                done = Some(value);
                Err(io::ErrorKind::WouldBlock.into())
            }
            IoDone { value, .. } => Ok(value),
        });
        done.map_or(tried, Ok)
    }

    /// The readiness is cleared before the caller reads, so an event that arrives while it reads
    /// is reported once more. An event that arrived between taking the guard and clearing it has
    /// another tick, and clearing then does nothing.
    fn poll_edge(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut guard = ready!(self.fd.poll_read_ready(cx))?;
        guard.clear_ready();
        Poll::Ready(Ok(()))
    }
}
