//! Endpoints, which connect and listen.

use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net;
use std::path::Path;
use std::pin::{Pin, pin};
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;

use rustix::net::sockopt;

use super::append_list::AppendList;
use super::candidates::{CandidateInfo, candidates};
use super::connect_options::ConnectOptions;
use super::device_driver::DeviceDriver;
use super::groups::Groups;
#[cfg(any(feature = "tokio", feature = "smol"))]
use super::handshake::tcp_stream;
use super::handshake::{Failed, connect};
use super::lifetime::{ENDPOINT_CLOSED, Lifetime};
use super::links::RdmaGroupInfo;
use super::listener::{ListenOptions, Listener, ListenerService, ListeningSocket};
use super::negotiate::Negotiation;
use super::runtime::{Acceptor, Runtime, SocketOptions};
use super::stream::Stream;
use super::target::{IntoTarget, Target};
use super::unix::{self, IdleSockets, ListeningUnix, UnixListener};
use crate::address::{Address, UnixAddr};
use crate::busy_poll::Pollers;
use crate::config::EndpointConfig;
use crate::device::{Device, MemoryLimit, TrimMemory};
#[cfg(any(feature = "tokio", feature = "smol"))]
use crate::error::FallbackCause;
use crate::error::{Error, Phase};
use crate::handshake::TcpHandshakes;
use crate::info::{ConnectionInfo, DeviceInfo, ListenerInfo};
use crate::log::Warned;
use crate::mutex::Mutex;
use crate::precedents::Precedents;
use crate::proto::Role;
use crate::proto::group::{LinkGroupInfo, Registry};
use crate::proto::handshake::{ClientProposal, HandshakeConfig};
use crate::stats::{DeviceStats, SetupCounters, Stats};
use crate::tcp_streams::TcpStreams;

/// Makes streams; has the devices, the settings and the runtime.
///
/// Clones are the same endpoint. Streams and listeners live on when the endpoint is dropped.
///
/// **Runtime.** An endpoint has tasks on the runtime that it was built on. They have to run while
/// the endpoint, a listener of it, or a stream is in use; those may be used on another runtime, or
/// on none. When that runtime ends, so do its tasks: [`Endpoint::connect`], [`Endpoint::bind`],
/// [`Endpoint::listen_on`] and [`Listener::accept`] fail with [`Error::Misuse`]. SMC streams return
/// received data, and accept data while there is space; every operation that would wait, or waits
/// at that moment, fails with [`CloseReason::Runtime`](crate::error::CloseReason::Runtime)
/// (`ConnectionAborted`). So an endpoint in a `static` needs a runtime that lasts as long as it,
/// and not that of one `#[tokio::test]`. A runtime that exists and does not run, such as tokio's of
/// one thread outside of `block_on`, cannot be distinguished from a busy one: operations wait until
/// it runs again.
///
/// **Fork.** A child process of `fork` that continues without `exec` has none of the threads, and
/// shares sockets, names and buffers with its parent. In the child, no object made before may be
/// used or dropped: that would take wake-ups and data from the parent, and end its connections.
/// Operations that could only wait fail: the methods above return [`Error::Misuse`]. Build another
/// endpoint there, with other devices.
#[derive(Clone)]
pub struct Endpoint {
    inner: Arc<EndpointInner>,
}

pub(crate) struct EndpointInner {
    pub(crate) config: EndpointConfig,
    pub(crate) runtime: Arc<dyn Runtime>,
    /// The configuration that handshakes begin with, for the devices that there are.
    pub(crate) base_config: Mutex<Arc<HandshakeConfig>>,
    pub(crate) negotiation: Arc<dyn Negotiation>,
    /// By [`DeviceIndex`](crate::proto::group::DeviceIndex). Those of removed devices stay.
    pub(crate) drivers: Arc<AppendList<Arc<DeviceDriver>>>,
    /// Held while a device is added.
    pub(crate) adding: Mutex<()>,
    pub(crate) groups: Arc<Groups>,
    pub(crate) tcp_handshakes: TcpHandshakes,
    /// Of handshakes on side channels.
    pub(crate) handshake_pollers: Arc<Pollers>,
    pub(crate) lifetime: Arc<Lifetime>,
    /// The cached PROPOSAL for any destination, and the configuration that it was made from.
    pub(crate) proposal: Mutex<Option<(Arc<HandshakeConfig>, Arc<ClientProposal>)>>,
    pub(crate) precedents: Precedents,
    pub(crate) idle_sockets: Arc<IdleSockets>,
    pub(crate) setups: SetupCounters,
    pub(crate) tcp_streams: Arc<TcpStreams>,
    pub(crate) listeners: Mutex<Vec<Weak<ListenerService>>>,
    pub(crate) warned: Arc<Warned>,
}

impl Drop for EndpointInner {
    fn drop(&mut self) {
        self.drivers
            .iter()
            .for_each(|driver| driver.handle_endpoint_dropped());
        #[cfg(feature = "introspection")]
        if self.config.introspection {
            crate::introspection::unregister();
        }
    }
}

impl EndpointInner {
    /// The configuration that handshakes begin with now.
    pub(crate) fn base_config(&self) -> Arc<HandshakeConfig> {
        Arc::clone(&self.base_config.lock())
    }

    pub(crate) fn rdma_groups(&self) -> Vec<RdmaGroupInfo> {
        let groups = self.groups.all_rdma();
        let mut groups: Vec<_> = groups.iter().map(|group| group.snapshot()).collect();
        groups.sort_unstable_by_key(|group| group.id);
        groups
    }

    pub(crate) fn connections(&self) -> Vec<ConnectionInfo> {
        let conns = self.drivers.iter().flat_map(|driver| driver.connections());
        let mut all: Vec<_> = conns.map(|conn| conn.info()).collect();
        all.extend(self.tcp_streams.infos());
        all.sort_unstable_by_key(|info| info.id);
        all
    }

    pub(crate) fn add_listener(&self, listener: &Arc<ListenerService>) {
        let mut listeners = self.listeners.lock();
        listeners.retain(|listener| listener.strong_count() > 0);
        listeners.push(Arc::downgrade(listener));
    }

    pub(crate) fn listener_infos(&self) -> Vec<ListenerInfo> {
        let listeners = self.listeners.lock().clone();
        let listeners: Vec<_> = listeners.iter().filter_map(Weak::upgrade).collect();
        listeners
            .iter()
            .filter_map(|listener| listener.info())
            .collect()
    }

    pub(crate) fn device_infos(&self) -> Vec<DeviceInfo> {
        self.drivers.iter().map(|driver| driver.info()).collect()
    }

    /// The network interface of a link: that of its GID, while its port is active.
    #[cfg(feature = "introspection")]
    pub(crate) fn interface_of(&self, link: &crate::info::LinkInfo) -> Option<String> {
        let end = link.local?;
        let rdma = self
            .drivers
            .get(link.device.0)?
            .device
            .operations()
            .rdma()?;
        let mut addresses = rdma.addresses().into_iter();
        let address = addresses.find(|it| (it.gid, it.mac) == (end.gid, end.mac))?;
        address.interface
    }

    pub(crate) fn stats(&self) -> Stats {
        let devices = self.drivers.iter().map(|driver| {
            let rdma = driver.device.operations().rdma();
            let hardware = rdma.map(|rdma| rdma.hardware_counters());
            DeviceStats {
                device: driver.name.to_string(),
                is_rdma: rdma.is_some(),
                hardware: hardware.into_iter().flatten().collect(),
                ..driver.counters.stats()
            }
        });
        self.setups.stats(devices.collect())
    }
}

impl Endpoint {
    pub(super) fn new(inner: EndpointInner) -> Self {
        let inner = Arc::new(inner);
        let pools: Arc<dyn TrimMemory> = Arc::clone(&inner) as _;
        inner.groups.memory.add_user(Arc::downgrade(&pools));
        #[cfg(feature = "introspection")]
        if inner.config.introspection {
            // Without a thread or a descriptor it is not seen by tools.
            let _seen = crate::introspection::register(&inner);
        }
        Self { inner }
    }

    #[cfg(any(feature = "tokio", feature = "smol"))]
    pub(crate) fn downgrade(&self) -> Weak<EndpointInner> {
        Arc::downgrade(&self.inner)
    }

    #[cfg(any(feature = "tokio", feature = "smol"))]
    pub(crate) fn upgrade(endpoint: &Weak<EndpointInner>) -> Option<Self> {
        endpoint.upgrade().map(|inner| Self { inner })
    }

    /// Whether it can still connect and listen: it was not closed, its runtime has not ended, and
    /// it was made in this process, not in a parent before `fork`.
    #[cfg(any(feature = "tokio", feature = "smol"))]
    pub(crate) fn is_open(&self) -> bool {
        self.inner.lifetime.check().is_ok()
    }

    /// The time of its runtime.
    #[cfg(any(feature = "tokio", feature = "smol"))]
    pub(crate) fn now(&self) -> std::time::Instant {
        self.inner.runtime.now()
    }

    /// Connects to an address or a name. Several addresses are tried in order, until one succeeds.
    ///
    /// Returns when the stream can be used: as SMC, or as TCP if SMC is not possible (see
    /// [`Stream::mode`]). Dropping the future cancels the attempt.
    ///
    /// # Errors
    ///
    /// As `connect(2)`; the error of a failed handshake; [`Error::Declined`] if the policy requires
    /// SMC; [`Error::Misuse`] for a target without a port or an empty list of addresses, or if the
    /// endpoint is closed or its runtime has ended. Of several addresses it is the error of the
    /// last.
    pub async fn connect(&self, to: impl IntoTarget) -> Result<Stream, Error> {
        self.connect_with(to, &ConnectOptions::default()).await
    }

    /// As [`Endpoint::connect`] with options of its own.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::connect`]; [`Error::TimedOut`] with [`Phase::Connect`] when
    /// [`ConnectOptions::timeout`] has passed; what the function of [`ConnectOptions::socket`]
    /// returns; [`Error::Misuse`] for too much [early data](ConnectOptions::early_data). If that
    /// may have been delivered, no further address is tried.
    pub async fn connect_with(
        &self,
        to: impl IntoTarget,
        options: &ConnectOptions,
    ) -> Result<Stream, Error> {
        // Pinned here: a future that is passed on by value is copied, and this one is large.
        let connecting = pin!(async {
            let mut last = None;
            for addr in self.addresses(to.into_target()).await? {
                match connect(&self.inner, &addr.into(), options).await {
                    Ok(stream) => return Ok(stream),
                    Err(Failed {
                        error,
                        has_sent_data: true,
                        ..
                    }) => return Err(error),
                    Err(Failed { error, .. }) => last = Some(error),
                }
            }
            Err(last.unwrap_or_else(no_address))
        });
        let connecting = pin!(self.within(options.timeout, connecting));
        self.inner.lifetime.until_end(connecting).await?
    }

    /// Runs a connect for so long at most; it is cancelled then.
    async fn within<T>(
        &self,
        timeout: Option<Duration>,
        mut work: Pin<&mut impl Future<Output = Result<T, Error>>>,
    ) -> Result<T, Error> {
        let runtime = &self.inner.runtime;
        // A time that the clock does not reach is none.
        let until = timeout.and_then(|timeout| runtime.now().checked_add(timeout));
        let Some(until) = until else {
            return work.await;
        };
        let mut timer = runtime.timer(until);
        poll_fn(|cx| match work.as_mut().poll(cx) {
            Poll::Ready(done) => Poll::Ready(done),
            Poll::Pending => {
                let passed = timer.as_mut().poll(cx);
                passed.map(|()| {
                    self.inner.setups.add_error(Role::Client);
                    Err(Error::TimedOut(Phase::Connect))
                })
            }
        })
        .await
    }

    /// The ways to a destination: each device and port, and TCP, with the reason why a connection
    /// would not use it. Those that can be used come first, in order of preference; a server that
    /// can use several of them chooses. Several addresses follow each other.
    ///
    /// Nothing is connected, so what only a connection shows is not considered: whether the peer
    /// has a device and an EID in common, and whether IPsec applies. With a negotiation by TCP
    /// option it is not known before a connection whether the peer supports SMC.
    ///
    /// # Errors
    ///
    /// If a name cannot be resolved; [`Error::Misuse`] as [`Endpoint::connect`].
    pub async fn candidates(&self, to: impl IntoTarget) -> Result<Vec<CandidateInfo>, Error> {
        let searching = pin!(async {
            let mut all = Vec::new();
            for addr in self.addresses(to.into_target()).await? {
                all.extend(candidates(&self.inner, addr).await);
            }
            Ok(all)
        });
        self.inner.lifetime.until_end(searching).await?
    }

    /// Listens on an address or a name. Several addresses are tried in order, until one succeeds.
    ///
    /// The socket has `SO_REUSEADDR`, as that of tokio's and std's listeners: the address can be
    /// used again while connections of an earlier listener are in TIME_WAIT.
    ///
    /// # Errors
    ///
    /// As `bind(2)` and `listen(2)`; [`Error::Misuse`] for a target without a port or an empty list
    /// of addresses, or if the endpoint is closed or its runtime has ended.
    pub async fn bind(&self, at: impl IntoTarget) -> Result<Listener, Error> {
        self.bind_with(at, &ListenOptions::default()).await
    }

    /// As [`Endpoint::bind`] with options of its own.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::bind`]; what the function of [`ListenOptions::socket`] returns.
    pub async fn bind_with(
        &self,
        at: impl IntoTarget,
        options: &ListenOptions,
    ) -> Result<Listener, Error> {
        self.inner.lifetime.check()?;
        let mut last = None;
        for addr in self.addresses(at.into_target()).await? {
            match self.listen(addr, options) {
                Ok(listener) => return Ok(listener),
                Err(error) => last = Some(error.into()),
            }
        }
        Err(last.unwrap_or_else(no_address))
    }

    fn listen(&self, at: SocketAddr, options: &ListenOptions) -> io::Result<Listener> {
        let backlog = options.backlog.unwrap_or(BACKLOG);
        let mut socket = SocketOptions::default();
        socket.backlog = Some(backlog);
        socket.fast_open = self.inner.config.fast_open;
        socket.reuse_port = options.reuse_port;
        socket.only_v6 = options.only_v6;
        socket.hook.clone_from(&options.socket);
        let negotiation = &self.inner.negotiation;
        let acceptor = self.inner.runtime.bind(at, &socket, &mut |socket| {
            negotiation.prepare(socket);
            Ok(())
        })?;
        self.serve(acceptor, backlog, options.max_early_data)
    }

    /// Accepts streams from a socket that listens already, such as one of a service manager that
    /// starts a service when the first client connects (`LISTEN_FDS` of systemd).
    ///
    /// The socket is made nonblocking, also for other processes that share it.
    ///
    /// **Which clients get SMC.** The socket is published as one of [`Endpoint::bind`] is, so by
    /// local negotiation clients find it as soon as this returns; clients that connected
    /// before are plain TCP. Preparations before listening ([`Negotiation::prepare`]) are not done:
    /// a listener that `SynOption` has not marked in time sends no TCP option, so clients that
    /// request SMC by option, kernels among them, are plain TCP. So are clients in the network
    /// namespace of the socket if that differs from this process's, and all clients if the socket
    /// belongs to another user, such as a service manager that runs as root.
    ///
    /// ```
    /// # #[cfg(feature = "smol")]
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// // A service manager passes a descriptor; `TcpListener::from` makes a listener of that.
    /// let passed = std::net::TcpListener::bind("127.0.0.1:0")?;
    /// let endpoint = smc::smol()?.build()?;
    /// let listener = endpoint.listen_on(passed)?;
    /// if let Some(cause) = listener.unpublished() {
    ///     println!("all clients will be plain TCP: {cause}");
    /// }
    /// println!("serving {}", listener.local_addr()?);
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "smol"))]
    /// # fn main() {}
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Misuse`] when the socket does not listen or is not TCP, or the endpoint is closed
    /// or its runtime has ended; when it cannot be watched; `Unsupported` with a runtime that has
    /// no sockets of the system.
    pub fn listen_on(&self, listener: TcpListener) -> Result<Listener, Error> {
        self.listen_on_with(listener, &ListenOptions::default())
    }

    /// As [`Endpoint::listen_on`] with options of its own.
    ///
    /// The length of the TCP backlog is unchanged unless one is given.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::listen_on`]; [`Error::Misuse`] when the socket does not have `SO_REUSEPORT`
    /// or `IPV6_V6ONLY` as requested, or a function is given by [`ListenOptions::socket`]: what has
    /// to be set before a socket is bound comes too late.
    pub fn listen_on_with(
        &self,
        listener: TcpListener,
        options: &ListenOptions,
    ) -> Result<Listener, Error> {
        self.inner.lifetime.check()?;
        let is_listening = sockopt::socket_acceptconn(&listener).map_err(io::Error::from)?;
        if !is_listening {
            return Err(Error::misuse("the socket does not listen"));
        }
        if listener.local_addr().is_err() {
            return Err(Error::misuse("the socket is not a TCP socket"));
        }
        if options.reuse_port && !sockopt::socket_reuseport(&listener).map_err(io::Error::from)? {
            return Err(Error::misuse("SO_REUSEPORT comes too late for this socket"));
        }
        if let Some(only) = options.only_v6 {
            // Fails on a socket of IPv4, where the option has no effect.
            if sockopt::ipv6_v6only(&listener).is_ok_and(|is_only| is_only != only) {
                return Err(Error::misuse("IPV6_V6ONLY comes too late for this socket"));
            }
        }
        if options.socket.is_some() {
            let why = "the socket is bound already, and its options are for the caller to set";
            return Err(Error::misuse(why));
        }
        if let Some(backlog) = options.backlog {
            // A second `listen(2)` changes only the length of the backlog.
            let backlog = i32::try_from(backlog).unwrap_or(i32::MAX);
            rustix::net::listen(&listener, backlog).map_err(io::Error::from)?;
        }
        let acceptor = self.inner.runtime.acceptor(listener)?;
        let backlog = options.backlog.unwrap_or(BACKLOG);
        Ok(self.serve(acceptor, backlog, options.max_early_data)?)
    }

    /// Accepts streams from a listening socket.
    fn serve(
        &self,
        acceptor: Arc<dyn Acceptor>,
        backlog: u32,
        early_data: usize,
    ) -> io::Result<Listener> {
        let local = acceptor.local_addr()?;
        // Without devices too: clients with SMC have to receive a DECLINE. A listener that clients
        // cannot find is still a TCP listener.
        let negotiation = &self.inner.negotiation;
        let published = negotiation.publish(&self.inner.runtime, local, acceptor.fd());
        let socket = ListeningSocket::tcp(acceptor, published)?;
        let inner = Arc::clone(&self.inner);
        Ok(Listener::new(inner, socket, backlog, early_data))
    }

    /// Connects to a UNIX socket: a path, or an abstract name behind a zero byte.
    ///
    /// As [`Endpoint::connect`], with the handshake on the socket itself: there is no negotiation
    /// and no name in a runtime directory for it. At a listener without SMC this is a plain UNIX
    /// stream, as it is where SMC is not possible.
    ///
    /// # Errors
    ///
    /// As `connect(2)`; `InvalidInput` for a path that no socket can have; else as
    /// [`Endpoint::connect`].
    pub async fn connect_unix(&self, to: impl AsRef<Path>) -> Result<Stream, Error> {
        self.connect_unix_with(to, &ConnectOptions::default()).await
    }

    /// As [`Endpoint::connect_unix`] with options of its own.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::connect_unix`] and [`Endpoint::connect_with`]; [`Error::Misuse`] with a local
    /// address.
    pub async fn connect_unix_with(
        &self,
        to: impl AsRef<Path>,
        options: &ConnectOptions,
    ) -> Result<Stream, Error> {
        let to = UnixAddr::from_path(to)?;
        if options.local.is_some() {
            return Err(Error::misuse("a local address of TCP for a UNIX socket"));
        }
        let to = Address::Unix(to);
        let connecting = pin!(async {
            let connected = connect(&self.inner, &to, options).await;
            connected.map_err(|failed| failed.error)
        });
        let connecting = pin!(self.within(options.timeout, connecting));
        self.inner.lifetime.until_end(connecting).await?
    }

    /// Listens at a UNIX socket: a path, which must not exist, or an abstract name behind a zero
    /// byte.
    ///
    /// The system shows the path of the socket with `/././/./` in place of its last slash, by which
    /// clients see that it supports SMC; it is the same path. Together they must be shorter than
    /// 108 bytes: otherwise, as [`UnixListener::unpublished`] tells, all streams are plain. For an
    /// abstract name there is a second socket, at the name with `\0smc` behind it.
    ///
    /// Clients may connect as soon as the path is there, with the mode that the umask leaves. For
    /// another mode from the start the function of [`ListenOptions::socket`] calls `fchmod` for the
    /// socket. As with `bind(2)` the calling thread looks the path up, which takes as long as the
    /// file systems of the path do.
    ///
    /// # Errors
    ///
    /// As `bind(2)` and `listen(2)`; `InvalidInput` for a path that no socket can have;
    /// [`Error::Misuse`] if the endpoint is closed or its runtime has ended; `Unsupported` with a
    /// runtime that has no sockets of the system.
    pub fn bind_unix(&self, at: impl AsRef<Path>) -> Result<UnixListener, Error> {
        self.bind_unix_with(at, &ListenOptions::default())
    }

    /// As [`Endpoint::bind_unix`] with options of its own.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::bind_unix`]; [`Error::Misuse`] for options of TCP; what the function of
    /// [`ListenOptions::socket`] returns.
    pub fn bind_unix_with(
        &self,
        at: impl AsRef<Path>,
        options: &ListenOptions,
    ) -> Result<UnixListener, Error> {
        self.inner.lifetime.check()?;
        let at = UnixAddr::from_path(at)?;
        if options.reuse_port || options.only_v6.is_some() {
            return Err(Error::misuse("options of TCP for a UNIX socket"));
        }
        let backlog = options.backlog.unwrap_or(BACKLOG);
        let mut socket = SocketOptions::default();
        socket.hook.clone_from(&options.socket);
        let listening = unix::listen(&*self.inner.runtime, &at, backlog, &socket)?;
        Ok(self.serve_unix(listening, backlog, options.max_early_data))
    }

    /// Accepts streams from a UNIX socket that listens already. It is made nonblocking, also for
    /// other processes that share it.
    ///
    /// Clients see that it supports SMC if it was bound by [`Endpoint::bind_unix`], or is bound to
    /// a path with `/././/./` in place of the last slash; otherwise all streams are plain. With SMC
    /// the process that began to listen has to be this one.
    ///
    /// Clients that connected before this can have passed descriptors, as at any UNIX socket. Those
    /// are closed by the thread that reads or closes the stream, which for a TCP socket that
    /// lingers takes as long as its owner likes. From Linux 6.16 on later clients cannot pass any.
    ///
    /// # Errors
    ///
    /// [`Error::Misuse`] when the socket does not listen, or the endpoint is closed or its runtime
    /// has ended; when it cannot be watched; `Unsupported` with a runtime that has no sockets of
    /// the system.
    pub fn listen_on_unix(&self, listener: net::UnixListener) -> Result<UnixListener, Error> {
        self.inner.lifetime.check()?;
        let is_listening = sockopt::socket_acceptconn(&listener).map_err(io::Error::from)?;
        if !is_listening {
            return Err(Error::misuse("the socket does not listen"));
        }
        let listening = unix::listen_on(&*self.inner.runtime, listener)?;
        Ok(self.serve_unix(listening, BACKLOG, 0))
    }

    /// Two connected UNIX sockets, as streams without a handshake.
    #[cfg(any(feature = "tokio", feature = "smol"))]
    pub(crate) fn unix_pair(&self) -> io::Result<(Stream, Stream)> {
        let (one, other) = net::UnixStream::pair()?;
        let stream = |role, socket: net::UnixStream| {
            socket.set_nonblocking(true)?;
            let socket = self.inner.runtime.unix_socket(socket.into())?;
            let (peer, cause) = (UnixAddr::unnamed().into(), FallbackCause::NotOffered);
            Ok::<_, io::Error>(tcp_stream(&self.inner, role, socket, &peer, cause))
        };
        Ok((stream(Role::Client, one)?, stream(Role::Server, other)?))
    }

    fn serve_unix(
        &self,
        listening: ListeningUnix,
        backlog: u32,
        early_data: usize,
    ) -> UnixListener {
        let (inner, socket) = (Arc::clone(&self.inner), ListeningSocket::unix(listening));
        UnixListener::new(Listener::new(inner, socket, backlog, early_data))
    }

    async fn addresses(
        &self,
        target: Target,
    ) -> Result<impl Iterator<Item = SocketAddr> + use<>, Error> {
        // Most targets are one address, for which nothing is allocated.
        let (one, several) = match target {
            Target::Addr(addr) => (Some(addr), Vec::new()),
            Target::Addrs(addrs) if addrs.is_empty() => {
                return Err(Error::misuse("the target is an empty list of addresses"));
            }
            Target::Addrs(addrs) => (None, addrs),
            Target::Name(host, port) => (None, self.inner.runtime.resolve(&host, port).await?),
            Target::Invalid(text) => return Err(invalid_target(&text)),
        };
        Ok(one.into_iter().chain(several))
    }

    /// Runs a task on the endpoint's runtime; drops it if that has ended.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.inner.runtime.spawn(Box::pin(task));
    }

    /// The devices in order of preference, without those that were removed or reset. By that an
    /// application learns that a device is gone.
    pub fn devices(&self) -> impl Iterator<Item = &Arc<dyn Device>> {
        let drivers = self.inner.drivers.iter();
        let present = drivers.filter(|driver| !driver.is_gone());
        present.map(|driver| &driver.device)
    }

    /// Adds a device to an endpoint in use: one that was plugged in, or that takes the place of one
    /// that was removed or reset. It comes last in the order of preference.
    ///
    /// Handshakes that begin from now on can use it, and SMC-R link groups can have a link on it.
    /// Existing SMC-D streams stay on their device.
    ///
    /// A device that was removed or reset does not come back by itself
    /// ([`Event::DeviceGone`](crate::device::Event::DeviceGone)): it is missing from
    /// [`Endpoint::devices`] from then on, its SMC-D streams end, and so do SMC-R streams without
    /// another link. That there is a device again the system reports, by udev for instance; it
    /// is opened anew and added here. The former object is not released before the endpoint, its
    /// listeners and its streams are dropped.
    ///
    /// Blocks for up to a second if the device is not free at once, as [`Builder::device`].
    ///
    /// # Errors
    ///
    /// [`Error::Misuse`] if the device serves another endpoint, or this one has or had it, or if
    /// the endpoint is closed or its runtime has ended; an error of the runtime when the device's
    /// doorbell cannot be watched. The endpoint is unchanged then.
    ///
    /// [`Builder::device`]: crate::Builder::device
    pub fn add_device(&self, device: Arc<dyn Device>) -> Result<(), Error> {
        self.inner.lifetime.check()?;
        self.inner.start_driver(device)?;
        self.inner.update_base_config();
        Ok(())
    }

    /// The limit on the memory of connections, with its current use.
    #[must_use]
    pub fn memory(&self) -> &MemoryLimit {
        self.inner.groups.memory.release_all_unneeded();
        &self.inner.groups.memory
    }

    /// The link groups, in order of creation.
    #[must_use]
    pub fn link_groups(&self) -> Vec<LinkGroupInfo> {
        self.inner.groups.infos()
    }

    /// The SMC-R link groups with their links, in order of creation, including groups that are just
    /// ending.
    #[must_use]
    pub fn rdma_groups(&self) -> Vec<RdmaGroupInfo> {
        self.inner.rdma_groups()
    }

    /// The streams, in the order in which they were made: SMC connections, including those that
    /// wait for the peer's close, and those that are TCP, with the reason.
    #[must_use]
    pub fn connections(&self) -> Vec<ConnectionInfo> {
        self.inner.connections()
    }

    /// The listeners, in the order in which they were made.
    #[must_use]
    pub fn listener_infos(&self) -> Vec<ListenerInfo> {
        self.inner.listener_infos()
    }

    /// The devices in order of preference, also those that are gone.
    #[must_use]
    pub fn device_infos(&self) -> Vec<DeviceInfo> {
        self.inner.device_infos()
    }

    /// The statistics of the endpoint: connections, fallbacks by reason, bytes.
    ///
    /// With RDMA devices it reads counters of their ports from sysfs: a few short files for each.
    ///
    /// This and the other snapshots hold the locks of one connection at a time, for a moment.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.inner.stats()
    }

    /// Closes the endpoint in order: waits until all data of streams that were dropped, or shut
    /// down for writing, is in the memory of their peers, then terminates all link groups and
    /// notifies the peers. Peers then read the data and the end of the stream, whether this end
    /// still exists or not.
    ///
    /// With SMC-D this does not wait, unless a device is busy. With SMC-R it waits while data is in
    /// flight, or the peer's buffer is full, at most for the close timeout. After that peers may
    /// read and close for a second at most, so that link groups end without open connections.
    ///
    /// Streams in use end here, as by [`Endpoint::shutdown`]: those that were shut down for writing
    /// in order, the others with an abort. Call this before a process ends: the runtime finishes no
    /// work after that.
    ///
    /// From the first poll on, set-ups fail: [`Endpoint::connect`], [`Endpoint::bind`],
    /// [`Endpoint::listen_on`] and [`Listener::accept`] return [`Error::Misuse`], also calls that
    /// wait at that moment. Streams that were not accepted end. A listening socket stays open until
    /// its listener is dropped, and clients wait there until then. TCP streams continue. Closing
    /// twice is no error.
    pub async fn close(&self) {
        let EndpointInner {
            groups, drivers, ..
        } = &*self.inner;
        self.inner.lifetime.end(ENDPOINT_CLOSED);
        self.inner.idle_sockets.end();
        let until = self.inner.runtime.now() + self.inner.config.close_timeout;
        let is_delivered = || drivers.iter().all(|driver| driver.arm_delivery());
        groups.wait_until(until, is_delivered).await;
        let until = until.min(self.inner.runtime.now() + DELETIONS);
        let has_completed_closes = || {
            groups
                .all_rdma()
                .iter()
                .all(|group| group.has_completed_closes())
                && !drivers.iter().any(|driver| driver.has_app_closed_rdma())
        };
        groups.wait_until(until, has_completed_closes).await;
        self.shutdown();
        let until = self.inner.runtime.now() + TERMINATE_TIMEOUT;
        groups
            .wait_until(until, || groups.all_rdma().is_empty())
            .await;
    }

    /// Terminates all link groups and with them all SMC connections, at once.
    ///
    /// Streams return received data, then end of stream if the peer has published it, else
    /// `ConnectionAborted`. Peers of streams that were shut down for writing and delivered see
    /// those closed in order; peers of others see an abort. TCP streams continue.
    ///
    /// The endpoint can still be used. A stream to a peer that has not noticed the end yet may be
    /// TCP, with reason 0x04000000 ([`SYNCERR`](smc_wire::types::DeclineCode::SYNCERR)).
    /// [`Endpoint::close`] ends the endpoint.
    pub fn shutdown(&self) {
        self.inner.groups.update(Registry::shutdown);
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("devices", &self.devices().collect::<Vec<_>>())
            .field("config", &self.inner.config)
            .finish_non_exhaustive()
    }
}

/// The error of a text that is no target.
fn invalid_target(text: &str) -> Error {
    let is_number = |port: &str| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    let what = match text.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && is_number(port) => {
            format!("port of target {text:?} is more than {}", u16::MAX)
        }
        _ => {
            format!("target {text:?} is neither address:port nor name:port, with a number as port")
        }
    };
    Error::Misuse(what.into())
}

/// The error of a name without addresses.
fn no_address() -> Error {
    io::Error::from(io::ErrorKind::AddrNotAvailable).into()
}

/// How long SMC-R peers may take to close, and to delete the RKEYs of ended connections. Both sides
/// do that after the peer's close, so it takes one round trip, unless the peer still reads, the
/// link is dead, or the peer's implementation differs.
const DELETIONS: Duration = Duration::from_secs(1);

/// How long the final messages to peers may take.
const TERMINATE_TIMEOUT: Duration = Duration::from_secs(3);

const BACKLOG: u32 = 1024;
