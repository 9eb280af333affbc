//! TCP and UNIX stream sockets over any reactor, shared by the adapters.
//!
//! An adapter implements [`Registered`] for its descriptor type, and gets [`TcpSocket`],
//! [`TcpAcceptor`] and [`FdWatch`] for it. No call allocates, and each one tries the system call
//! before it waits.

use std::fmt::Debug;
use std::io::{self, IoSlice};
use std::net::{Shutdown, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use nix::libc;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{IpMtu, SetStruct};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, SocketFlags, SocketType, sockopt,
};

use super::{Acceptor, BeforeListen, Socket, SocketOptions, Unconnected, UnixAcceptor, Watch};

use crate::mem::sync::{AtomicBool, Ordering};
use crate::mutex::Mutex;

/// A descriptor that is registered with a reactor. Stores one waker per direction, the last one
/// given.
pub(super) trait Registered: AsFd + Debug + Send + Sync + Sized + 'static {
    /// The reactor.
    type Reactor: Clone + Debug + Send + Sync;

    /// Registers a descriptor for both directions.
    fn register(reactor: &Self::Reactor, fd: Arc<OwnedFd>) -> io::Result<Self>;

    /// Repeats `op` until it returns something else than `WouldBlock`, waiting in between.
    fn poll_io<T>(
        &self,
        cx: &mut Context<'_>,
        direction: Direction,
        op: impl FnMut(BorrowedFd<'_>) -> io::Result<IoDone<T>>,
    ) -> Poll<io::Result<T>>;

    /// Tries `op` once.
    fn try_io<T>(
        &self,
        direction: Direction,
        op: impl FnOnce(BorrowedFd<'_>) -> io::Result<IoDone<T>>,
    ) -> io::Result<T>;

    /// Waits until the descriptor became readable since the last time this was ready.
    fn poll_edge(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
}

/// Which readiness an operation waits for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Direction {
    Read,
    Write,
}

/// A finished operation.
#[derive(Debug)]
pub(super) struct IoDone<T> {
    /// Its result.
    pub(super) value: T,
    /// Whether it is certain that the next one would block. Edge-triggered reactors save a system
    /// call that way: a stream that returned less than requested is empty.
    #[cfg_attr(
        not(feature = "tokio"),
        expect(dead_code, reason = "smol's has levels")
    )]
    pub(super) exhausted: bool,
}

/// A TCP connection, or one of UNIX sockets. It is registered with the reactor on the first wait:
/// the connection of an SMC stream may never be waited for.
#[derive(Debug)]
pub(super) struct TcpSocket<R: Registered> {
    // Dropped first: a registered descriptor has to be open.
    registered: OnceLock<R>,
    fd: Arc<OwnedFd>,
    reactor: R::Reactor,
    /// Whether the port needs no further handling: that of a client is shared with other
    /// destinations before it gets into TIME_WAIT, if it ever does.
    is_port_handled: AtomicBool,
}

impl<R: Registered> TcpSocket<R> {
    /// A socket that is connected or connecting.
    pub(super) fn new(reactor: &R::Reactor, fd: OwnedFd) -> Self {
        Self {
            registered: OnceLock::new(),
            fd: Arc::new(fd),
            reactor: reactor.clone(),
            is_port_handled: AtomicBool::new(true),
        }
    }

    /// As [`TcpSocket::new`] for a client socket, which may be bound to a random port.
    pub(super) fn client(reactor: &R::Reactor, fd: OwnedFd) -> Self {
        let mut socket = Self::new(reactor, fd);
        socket.is_port_handled = AtomicBool::new(false);
        socket
    }

    /// Shares the port with other destinations from now on, most of all while this connection is in
    /// TIME_WAIT.
    fn share_port(&self) {
        if !self.is_port_handled.swap(true, Ordering::Relaxed) {
            let _best_effort = sockopt::set_socket_reuseaddr(&self.fd, true);
        }
    }

    /// Waits until the connect that was begun has ended.
    pub(super) async fn connected(self) -> io::Result<Self> {
        std::future::poll_fn(|cx| self.poll_writable(cx)).await?;
        sockopt::socket_error(&self.fd)??;
        Ok(self)
    }

    fn registered(&self) -> io::Result<&R> {
        if let Some(registered) = self.registered.get() {
            return Ok(registered);
        }
        // A descriptor is registered once, so two first waits exclude each other.
        static REGISTRATION: Mutex<()> = Mutex::new(());
        let _guard = REGISTRATION.lock();
        match self.registered.get() {
            Some(registered) => Ok(registered),
            None => {
                // A wait means that the connection carries data.
                self.share_port();
                let registered = R::register(&self.reactor, Arc::clone(&self.fd))?;
                Ok(self.registered.get_or_init(|| registered))
            }
        }
    }

    fn poll_io<T>(
        &self,
        cx: &mut Context<'_>,
        direction: Direction,
        mut op: impl FnMut(BorrowedFd<'_>) -> io::Result<IoDone<T>>,
    ) -> Poll<io::Result<T>> {
        while self.registered.get().is_none() {
            match op(self.fd.as_fd()) {
                Ok(done) => return Poll::Ready(Ok(done.value)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        self.registered()?.poll_io(cx, direction, op)
    }

    fn try_io<T>(
        &self,
        direction: Direction,
        op: impl FnOnce(BorrowedFd<'_>) -> io::Result<IoDone<T>>,
    ) -> io::Result<T> {
        match self.registered.get() {
            Some(registered) => registered.try_io(direction, op),
            None => op(self.fd.as_fd()).map(|done| done.value),
        }
    }
}

impl<R: Registered> Socket for TcpSocket<R> {
    fn poll_read(&self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        self.poll_io(cx, Direction::Read, |fd| read(fd, &mut *buf))
    }

    fn poll_peek(&self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        self.poll_io(cx, Direction::Read, |fd| {
            let (value, _) = rustix::net::recv(fd, &mut *buf, RecvFlags::PEEK)?;
            Ok(IoDone {
                value,
                exhausted: false,
            })
        })
    }

    fn poll_write(&self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        self.poll_io(cx, Direction::Write, |fd| write(fd, bufs))
    }

    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_io(cx, Direction::Read, |fd| {
            probe(fd, PollFlags::IN | PollFlags::RDHUP)
        })
    }

    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_io(cx, Direction::Write, |fd| probe(fd, PollFlags::OUT))
    }

    fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.try_io(Direction::Read, |fd| read(fd, buf))
    }

    fn try_write(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        self.try_io(Direction::Write, |fd| write(fd, bufs))
    }

    fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        let how = match how {
            Shutdown::Read => rustix::net::Shutdown::Read,
            Shutdown::Write => rustix::net::Shutdown::Write,
            Shutdown::Both => rustix::net::Shutdown::Both,
        };
        self.share_port();
        Ok(rustix::net::shutdown(&self.fd, how)?)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        local_addr(self.fd.as_fd())
    }

    fn peer_addr(&self) -> io::Result<SocketAddr> {
        let peer = rustix::net::getpeername(&self.fd)?.ok_or(io::ErrorKind::NotConnected)?;
        Ok(peer.try_into()?)
    }

    fn path_mtu(&self) -> Option<u32> {
        let mtu = nix::sys::socket::getsockopt(&self.fd, IpMtu);
        mtu.ok().and_then(|mtu| mtu.try_into().ok())
    }

    fn set_nodelay(&self, on: bool) -> io::Result<()> {
        Ok(sockopt::set_tcp_nodelay(&self.fd, on)?)
    }

    fn nodelay(&self) -> io::Result<bool> {
        Ok(sockopt::tcp_nodelay(&self.fd)?)
    }

    fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        if linger == Some(Duration::ZERO) {
            // Such a connection never enters TIME_WAIT.
            self.is_port_handled.store(true, Ordering::Relaxed);
        }
        Ok(sockopt::set_socket_linger(&self.fd, linger)?)
    }

    fn linger(&self) -> io::Result<Option<Duration>> {
        Ok(sockopt::socket_linger(&self.fd)?)
    }

    fn set_keepalive(&self, on: bool) -> io::Result<()> {
        Ok(sockopt::set_socket_keepalive(&self.fd, on)?)
    }

    fn take_error(&self) -> io::Result<Option<io::Error>> {
        Ok(sockopt::socket_error(&self.fd)?.err().map(Into::into))
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.fd.as_fd())
    }
}

impl<R: Registered> Drop for TcpSocket<R> {
    fn drop(&mut self) {
        self.share_port();
    }
}

/// A TCP listener.
#[derive(Debug)]
pub(super) struct TcpAcceptor<R: Registered>(R, R::Reactor);

impl<R: Registered> TcpAcceptor<R> {
    /// Watches a listening socket.
    pub(super) fn new(reactor: R::Reactor, fd: OwnedFd) -> io::Result<Self> {
        Ok(Self(R::register(&reactor, Arc::new(fd))?, reactor))
    }
}

impl<R: Registered> Acceptor for TcpAcceptor<R> {
    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(Arc<dyn Socket>, SocketAddr)>> {
        let (fd, peer) = ready!(self.0.poll_io(cx, Direction::Read, |fd| {
            let value = rustix::net::acceptfrom_with(fd, FLAGS)?;
            Ok(IoDone {
                value,
                exhausted: false,
            })
        }))?;
        let peer = peer.ok_or(io::ErrorKind::NotConnected)?.try_into()?;
        let socket: Arc<dyn Socket> = Arc::new(TcpSocket::<R>::new(&self.1, fd));
        Poll::Ready(Ok((socket, peer)))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        local_addr(self.0.as_fd())
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.as_fd())
    }
}

/// A UNIX listener. std accepts: of the addresses of clients it can represent all.
#[derive(Debug)]
pub(super) struct UnixAcceptorOf<R: Registered> {
    registered: R,
    reactor: R::Reactor,
    listener: unix::net::UnixListener,
}

impl<R: Registered> UnixAcceptorOf<R> {
    /// Watches a listening socket, which is made nonblocking.
    pub(super) fn new(reactor: R::Reactor, listener: unix::net::UnixListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let watched = listener.try_clone()?;
        Ok(Self {
            registered: R::register(&reactor, Arc::new(watched.into()))?,
            reactor,
            listener,
        })
    }
}

impl<R: Registered> UnixAcceptor for UnixAcceptorOf<R> {
    fn poll_accept(
        &self,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<(Arc<dyn Socket>, unix::net::SocketAddr)>> {
        let (stream, peer) = ready!(self.registered.poll_io(cx, Direction::Read, |_| {
            Ok(IoDone {
                value: self.listener.accept()?,
                exhausted: false,
            })
        }))?;
        stream.set_nonblocking(true)?;
        let socket = unix_stream::<R>(&self.reactor, stream.into());
        Poll::Ready(Ok((socket, peer)))
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// A UNIX stream. An urgent byte (`MSG_OOB`) is data in its place: otherwise the socket is readable
/// while a look finds nothing, and a task that waits for data to look at keeps a CPU busy.
pub(super) fn unix_stream<R: Registered>(reactor: &R::Reactor, fd: OwnedFd) -> Arc<dyn Socket> {
    let _where_it_exists = sockopt::set_socket_oobinline(&fd, true);
    Arc::new(TcpSocket::<R>::new(reactor, fd))
}

/// Readiness of a descriptor of a device.
#[derive(Debug)]
pub(super) struct FdWatch<R>(pub(super) R);

impl<R: Registered> Watch for FdWatch<R> {
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_edge(cx)
    }
}

/// Binds a nonblocking socket, passes it to `before` and lets it listen.
pub(super) fn listen(
    at: SocketAddr,
    options: &SocketOptions,
    before: &mut BeforeListen<'_>,
) -> io::Result<OwnedFd> {
    let fd = stream(at, options)?;
    sockopt::set_socket_reuseaddr(&fd, true)?;
    if options.reuse_port {
        sockopt::set_socket_reuseport(&fd, true)?;
    }
    if let (SocketAddr::V6(_), Some(only)) = (at, options.only_v6) {
        sockopt::set_ipv6_v6only(&fd, only)?;
    }
    rustix::net::bind(&fd, &at)?;
    before(&Unconnected::new(local_addr(fd.as_fd())?, Some(fd.as_fd())))?;
    let backlog = options
        .backlog
        .map_or(BACKLOG, |n| i32::try_from(n).unwrap_or(i32::MAX));
    if options.fast_open {
        // The connections that may wait for the end of TCP's handshake.
        setsockopt(&fd, TcpFastOpen, &backlog)?;
    }
    rustix::net::listen(&fd, backlog)?;
    Ok(fd)
}

/// Data in the SYN for a listener, and how many connections may be without the end of TCP's
/// handshake.
#[derive(Clone, Copy, Debug)]
struct TcpFastOpen;

nix::setsockopt_impl!(
    TcpFastOpen,
    libc::IPPROTO_TCP,
    libc::TCP_FASTOPEN,
    libc::c_int,
    SetStruct<'_, libc::c_int>
);

/// A nonblocking TCP socket for an address of this family, which the hook has seen.
pub(super) fn stream(family: SocketAddr, options: &SocketOptions) -> io::Result<OwnedFd> {
    let fd = socket(family, SocketType::STREAM)?;
    options.call_hook(fd.as_fd())?;
    Ok(fd)
}

/// A nonblocking socket of this kind.
pub(super) fn socket(family: SocketAddr, kind: SocketType) -> io::Result<OwnedFd> {
    let family = match family {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    Ok(rustix::net::socket_with(family, kind, FLAGS, None)?)
}

/// The address a socket is bound to.
pub(super) fn local_addr(fd: BorrowedFd<'_>) -> io::Result<SocketAddr> {
    Ok(rustix::net::getsockname(fd)?.try_into()?)
}

/// The address in `host`, if it is not a name.
pub(super) fn literal(host: &str, port: u16) -> Option<SocketAddr> {
    host.parse().ok().map(|ip| SocketAddr::new(ip, port))
}

/// Calls the system's resolver. Blocks.
pub(super) fn lookup(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    (host, port).to_socket_addrs().map(Iterator::collect)
}

/// Whether the descriptor is ready for `what` at this moment.
fn probe(fd: BorrowedFd<'_>, what: PollFlags) -> io::Result<IoDone<()>> {
    let mut fds = [PollFd::from_borrowed_fd(fd, what)];
    match rustix::event::poll(&mut fds, Some(&Timespec::default()))? {
        0 => Err(io::ErrorKind::WouldBlock.into()),
        _ => Ok(IoDone {
            value: (),
            exhausted: false,
        }),
    }
}

fn read(fd: BorrowedFd<'_>, buf: &mut [u8]) -> io::Result<IoDone<usize>> {
    let requested_len = buf.len();
    let (value, _) = rustix::net::recv(fd, buf, RecvFlags::empty())?;
    Ok(IoDone {
        value,
        exhausted: 0 < value && value < requested_len,
    })
}

fn write(fd: BorrowedFd<'_>, bufs: &[IoSlice<'_>]) -> io::Result<IoDone<usize>> {
    let (value, exhausted) = match bufs {
        [] => (0, false),
        [one] => {
            let sent = rustix::net::send(fd, one, SendFlags::NOSIGNAL).map_err(of_write)?;
            (sent, sent < one.len())
        }
        many => {
            let many = many.get(..IOV_MAX).unwrap_or(many);
            let none = &mut SendAncillaryBuffer::default();
            let sent = rustix::net::sendmsg(fd, many, none, SendFlags::NOSIGNAL);
            let sent = sent.map_err(of_write)?;
            (sent, sent < many.iter().map(|buf| buf.len()).sum())
        }
    };
    Ok(IoDone {
        value,
        exhausted: exhausted && value > 0,
    })
}

/// A first write with TCP Fast Open begins to connect where the cookie has been lost meanwhile: it
/// is to be repeated when the socket is connected.
fn of_write(error: Errno) -> Errno {
    match error {
        Errno::INPROGRESS => Errno::WOULDBLOCK,
        error => error,
    }
}

/// Flags of every socket.
const FLAGS: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);

/// Default length of the backlog.
const BACKLOG: i32 = 1024;

/// Maximum of buffers in one system call (`UIO_MAXIOV`).
const IOV_MAX: usize = 1024;
