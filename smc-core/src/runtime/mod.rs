//! The async runtime of streams, as object-safe traits.
//!
//! [`Runtime`] is time, tasks, TCP and readiness of a descriptor. The crate `smc` has adapters for
//! tokio and smol; `smc-testkit` has one with a virtual clock and sockets in memory.
//!
//! Another runtime outside of that crate implements [`Runtime`], [`Socket`], [`Acceptor`] and
//! [`Watch`]. Inside it, `smc/src/runtime/smol.rs` is the pattern: `Registered` of `net.rs` takes
//! `AsFd` and four methods, and sockets follow from it. One more adapter there also takes a feature
//! in `smc/Cargo.toml`, its `cfg` in `smc/src/runtime/mod.rs`, a constructor in
//! `smc/src/builder.rs` and a function in `smc/src/lib.rs`. `smc/tests/runtime_adapters.rs` has the
//! scenarios that each adapter passes.

use std::fmt::{self, Debug};
use std::future::Future;
use std::io::{self, IoSlice};
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use async_trait::async_trait;

pub use smc_netlink::{Interface as NetworkInterface, PnetEntry, Route as NetworkRoute};

/// A task for [`Runtime::spawn`].
pub type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Completes at a given time.
pub type Timer = Pin<Box<dyn Future<Output = ()> + Send + Sync>>;

/// An async runtime.
#[async_trait]
pub trait Runtime: Send + Sync + Debug + 'static {
    /// The runtime's clock.
    fn now(&self) -> Instant;

    /// A future that completes at `at`, at once if that is in the past.
    fn timer(&self, at: Instant) -> Timer;

    /// Spawns a task.
    fn spawn(&self, task: Task);

    /// Whether several threads run tasks, so that a task that yields may wake one of them.
    fn has_several_threads(&self) -> bool {
        false
    }

    /// Wakes a task that returns `Pending` after this, when other tasks have run. A runtime may
    /// have a better way than to wake it at once.
    fn yield_now(&self, cx: &mut Context<'_>) {
        cx.waker().wake_by_ref();
    }

    /// Addresses of a host name; `host` is a name or an address without port.
    ///
    /// # Errors
    ///
    /// As the system's resolver.
    async fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>>;

    /// Opens a TCP connection.
    ///
    /// The hook of `options` is called with the new socket ([`SocketOptions::call_hook`]). Then the
    /// socket is bound: to `options.local`, else to a free port of the address that leads to `to`.
    /// With [`SocketOptions::unbound`], or where no port is free, it is not bound and has no
    /// address. Then `before` is called with it, then it is connected. What `before` does is for
    /// the last socket that it was called with.
    ///
    /// # Errors
    ///
    /// As `connect(2)`, or what the hook or `before` returned.
    async fn connect(
        &self,
        to: SocketAddr,
        options: &SocketOptions,
        before: &mut BeforeConnect<'_>,
    ) -> io::Result<Arc<dyn Socket>>;

    /// The local address of connections to `to`, as routes are now; `None` if it is not known, as
    /// if not implemented.
    fn source(&self, to: SocketAddr) -> Option<IpAddr> {
        let _ = to;
        None
    }

    /// Listens on a TCP address.
    ///
    /// The hook of `options` is called with the new socket ([`SocketOptions::call_hook`]). Then the
    /// socket is bound; then `before` is called with it, then it listens.
    ///
    /// # Errors
    ///
    /// As `bind(2)` and `listen(2)`, or what the hook or `before` returned.
    fn bind(
        &self,
        at: SocketAddr,
        options: &SocketOptions,
        before: &mut BeforeListen<'_>,
    ) -> io::Result<Arc<dyn Acceptor>>;

    /// Takes over a TCP socket that listens already, and makes it nonblocking.
    ///
    /// # Errors
    ///
    /// When it cannot be watched; `Unsupported` for a runtime without sockets of the system, as if
    /// not implemented.
    fn acceptor(&self, listener: std::net::TcpListener) -> io::Result<Arc<dyn Acceptor>> {
        drop(listener);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Takes over a connected UNIX stream socket, which is nonblocking.
    ///
    /// # Errors
    ///
    /// `Unsupported` for a runtime without sockets of the system, as if not implemented.
    fn unix_socket(&self, fd: OwnedFd) -> io::Result<Arc<dyn Socket>> {
        drop(fd);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Takes over a UNIX socket that listens, and makes it nonblocking.
    ///
    /// # Errors
    ///
    /// When it cannot be watched; `Unsupported` for a runtime without sockets of the system, as if
    /// not implemented.
    fn unix_acceptor(&self, listener: net::UnixListener) -> io::Result<Arc<dyn UnixAcceptor>> {
        drop(listener);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Watches a descriptor for becoming readable. The runtime keeps a duplicate of it. Called on
    /// any thread, also outside of the runtime.
    ///
    /// # Errors
    ///
    /// When it cannot be watched, or the runtime has no reactor.
    fn watch(&self, fd: BorrowedFd<'_>) -> io::Result<Box<dyn Watch>>;

    /// A runtime of the same kind with one thread, which waits for nothing but its own tasks,
    /// timers and watches. What the application does on this runtime does not delay those. `smc`
    /// runs tasks of an endpoint on it, if that is configured.
    ///
    /// Both have the same clock, if that is the system's. The thread ends when the result is
    /// dropped with all its clones, and the tasks that are left are dropped. Waits for the start of
    /// the thread.
    ///
    /// # Errors
    ///
    /// When the thread cannot be started; `Unsupported` for a runtime without such a thread, as if
    /// not implemented.
    fn on_own_thread(&self) -> io::Result<Arc<dyn Runtime>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// The host's network interfaces now; none if the system does not report them.
    fn interfaces(&self) -> Vec<NetworkInterface> {
        smc_netlink::interfaces().unwrap_or_default()
    }

    /// The kernel's table of physical networks (`smc_pnet`) now; empty if the system has none.
    fn pnet_table(&self) -> Vec<PnetEntry> {
        smc_netlink::pnet_table().unwrap_or_default()
    }

    /// The host's route from one address to another now; `None` if there is none, or the system
    /// does not report it. With the index of an interface only the routes by that one count.
    fn route(&self, from: IpAddr, to: IpAddr, by: Option<u32>) -> Option<NetworkRoute> {
        smc_netlink::route(from, to, by).ok().flatten()
    }

    /// The length of packets from one address to another that no IPsec policy applies to; `None` if
    /// the system does not report it. A connection with shorter packets stays TCP.
    fn unprotected_mtu(&self, from: IpAddr, to: IpAddr) -> Option<u32> {
        smc_netlink::unprotected_mtu(from, to).ok().flatten()
    }
}

/// Called with a socket that is not connected yet. It is bound if it has to be
/// ([`Runtime::connect`]).
pub type BeforeConnect<'a> = dyn FnMut(&Unconnected<'_>) -> io::Result<()> + Send + 'a;

/// Called with a socket that is bound and does not listen yet.
pub type BeforeListen<'a> = dyn FnMut(&Unconnected<'_>) -> io::Result<()> + 'a;

/// A socket that is not connected or listening yet.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Unconnected<'a> {
    /// The address that it is bound to, or gets as it is connected. Unspecified, with port 0, if it
    /// need not be bound ([`SocketOptions::unbound`]) or no port was found.
    pub local: SocketAddr,
    /// Whether `connect` might take another port than this one. An offer with this address is then
    /// good only for a connection that has it.
    pub may_change: bool,
    /// The descriptor, where there is one.
    pub fd: Option<BorrowedFd<'a>>,
}

impl<'a> Unconnected<'a> {
    /// For runtimes: describes a socket with this local address.
    #[must_use]
    pub fn new(local: SocketAddr, fd: Option<BorrowedFd<'a>>) -> Self {
        Self {
            local,
            may_change: false,
            fd,
        }
    }

    /// For runtimes: the socket is not bound to its port yet. `connect` binds it, and might take
    /// another one.
    #[must_use]
    pub fn with_port_of_connect(mut self) -> Self {
        self.may_change = true;
        self
    }
}

/// Options of TCP sockets that have to be set before they are connected or listen.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct SocketOptions {
    /// Local address of a connecting socket.
    pub local: Option<SocketAddr>,
    /// A connecting socket without a local address need not be bound before `before` is called: the
    /// system chooses its address as it connects.
    pub unbound: bool,
    /// Connections that may wait to be accepted; 1024 if not given.
    pub backlog: Option<u32>,
    /// TCP Fast Open (RFC 7413). A connecting socket sends its first data in the SYN, if the system
    /// has a cookie of the server: then it counts as connected, without a peer's address, until
    /// that data is written. A listener takes such data. A runtime without it ignores this.
    pub fast_open: bool,
    /// `SO_REUSEPORT` on a listener.
    pub reuse_port: bool,
    /// `IPV6_V6ONLY` on an IPv6 listener; the system's default if not given.
    pub only_v6: Option<bool>,
    /// Called with each socket after it was made and before it is bound. A runtime without sockets
    /// of the system ignores it.
    pub hook: Option<SocketHook>,
}

impl SocketOptions {
    /// For runtimes: calls the hook, if there is one.
    ///
    /// # Errors
    ///
    /// What the hook returns.
    pub fn call_hook(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        match &self.hook {
            Some(SocketHook(hook)) => hook(socket),
            None => Ok(()),
        }
    }
}

/// A function that sets options of a socket which this library does not name, such as `SO_MARK`,
/// `SO_BINDTODEVICE` or `TCP_USER_TIMEOUT`. Clones are the same function.
#[derive(Clone)]
pub struct SocketHook(Arc<SocketHookFn>);

type SocketHookFn = dyn Fn(BorrowedFd<'_>) -> io::Result<()> + Send + Sync;

impl SocketHook {
    /// A hook that calls `hook` with each socket.
    #[must_use]
    pub fn new(hook: impl Fn(BorrowedFd<'_>) -> io::Result<()> + Send + Sync + 'static) -> Self {
        Self(Arc::new(hook))
    }
}

impl Debug for SocketHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SocketHook").finish_non_exhaustive()
    }
}

/// A connected TCP socket, or a UNIX stream socket: that one has no addresses here, and no options
/// of TCP.
///
/// Calls that wait store one waker per direction, the last one given.
pub trait Socket: Send + Sync + Debug {
    /// Reads into `buf`; 0 at end of stream.
    ///
    /// # Errors
    ///
    /// As `recv(2)`.
    fn poll_read(&self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>>;

    /// Copies received data without consuming it; waits until there is some.
    ///
    /// # Errors
    ///
    /// As `recv(2)`.
    fn poll_peek(&self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>>;

    /// Writes from `bufs`, as much as there is space for.
    ///
    /// # Errors
    ///
    /// As `send(2)`.
    fn poll_write(&self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>>;

    /// Waits until a read would not wait.
    ///
    /// # Errors
    ///
    /// As `poll(2)`.
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Waits until a write would not wait.
    ///
    /// # Errors
    ///
    /// As `poll(2)`.
    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Reads the data that is available now.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if there is none.
    fn try_read(&self, buf: &mut [u8]) -> io::Result<usize>;

    /// Writes as much as there is space for now.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if there is none.
    fn try_write(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Shuts directions down.
    ///
    /// # Errors
    ///
    /// As `shutdown(2)`.
    fn shutdown(&self, how: Shutdown) -> io::Result<()>;

    /// The local address.
    ///
    /// # Errors
    ///
    /// As `getsockname(2)`.
    fn local_addr(&self) -> io::Result<SocketAddr>;

    /// The peer's address.
    ///
    /// # Errors
    ///
    /// As `getpeername(2)`.
    fn peer_addr(&self) -> io::Result<SocketAddr>;

    /// The length of packets on the way to the peer now (`IP_MTU`); `None` if it is not known, as
    /// for sockets that are not the system's.
    fn path_mtu(&self) -> Option<u32> {
        None
    }

    /// `TCP_NODELAY`.
    ///
    /// # Errors
    ///
    /// As `setsockopt(2)`.
    fn set_nodelay(&self, on: bool) -> io::Result<()>;

    /// Whether `TCP_NODELAY` is set.
    ///
    /// # Errors
    ///
    /// As `getsockopt(2)`.
    fn nodelay(&self) -> io::Result<bool>;

    /// `SO_LINGER`: how long closing may take, zero for a reset.
    ///
    /// # Errors
    ///
    /// As `setsockopt(2)`.
    fn set_linger(&self, linger: Option<Duration>) -> io::Result<()>;

    /// The value of `SO_LINGER`.
    ///
    /// # Errors
    ///
    /// As `getsockopt(2)`.
    fn linger(&self) -> io::Result<Option<Duration>>;

    /// `SO_KEEPALIVE`.
    ///
    /// # Errors
    ///
    /// As `setsockopt(2)`.
    fn set_keepalive(&self, on: bool) -> io::Result<()>;

    /// Takes the pending error (`SO_ERROR`).
    ///
    /// # Errors
    ///
    /// As `getsockopt(2)`.
    fn take_error(&self) -> io::Result<Option<io::Error>>;

    /// The descriptor, where there is one.
    fn fd(&self) -> Option<BorrowedFd<'_>>;
}

/// A listening TCP socket.
pub trait Acceptor: Send + Sync + Debug {
    /// Accepts the next connection. Stores one waker, the last one given.
    ///
    /// # Errors
    ///
    /// As `accept(2)`.
    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(Arc<dyn Socket>, SocketAddr)>>;

    /// The address listened on.
    ///
    /// # Errors
    ///
    /// As `getsockname(2)`.
    fn local_addr(&self) -> io::Result<SocketAddr>;

    /// The descriptor, where there is one.
    fn fd(&self) -> Option<BorrowedFd<'_>>;
}

/// A listening UNIX stream socket.
pub trait UnixAcceptor: Send + Sync + Debug {
    /// Accepts the next connection, with the address of the client. Stores one waker, the last one
    /// given.
    ///
    /// # Errors
    ///
    /// As `accept(2)`.
    fn poll_accept(
        &self,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<(Arc<dyn Socket>, net::SocketAddr)>>;

    /// The descriptor.
    fn fd(&self) -> BorrowedFd<'_>;
}

/// Readiness of a descriptor.
pub trait Watch: Send + Sync + Debug {
    /// Waits until the descriptor has become readable since the last time this was ready.
    ///
    /// May be ready spuriously, but misses no event, provided that the caller reads the descriptor
    /// empty after each time. Stores one waker, the last one given.
    ///
    /// # Errors
    ///
    /// When the reactor is gone.
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
}
