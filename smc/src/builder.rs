//! The builder of endpoints: devices, negotiation, policy and limits.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use smc_wire::size::SizeCode;
use smc_wire::types::{Eid, Features, PnetId};

use super::busy_poll::Pollers;
use super::endpoint::{Endpoint, EndpointInner};
use super::groups::Groups;
use super::lifetime::{Deadlines, Lifetime};
use super::links::RdmaPorts;
use super::memory_limit::default_limit;
use super::negotiate::{Negotiation, Never};
use super::runtime::Runtime;
use crate::config::{EndpointConfig, Policy, PolicyRule, VENDOR_FEATURES};
use crate::device::{Device, DeviceError, MemoryLimit};
use crate::error::Error;
use crate::handshake::TcpHandshakes;
use crate::mem::TrustPeers;
use crate::mutex::Mutex;
use crate::precedents::Precedents;
use crate::proto::handshake::HandshakeConfig;
use crate::proto::links::LlcConfig;
use crate::stats::SetupCounters;
use crate::unix::IdleSockets;

/// Builds an [`Endpoint`].
///
/// An endpoint of its defaults has neither a device nor a [negotiation](super::negotiate), and so
/// makes plain TCP streams. `smc::tokio()` and `smc::smol()` return builders with both.
///
/// Counts and times beyond the range of a setting are replaced by the nearest value in it.
///
/// ```
/// use std::time::Duration;
///
/// # #[cfg(feature = "smol")]
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let endpoint = smc::smol()? // or smc::tokio(), or smc::builder() with a runtime of your own
///     .recv_buffer(256 * 1024)
///     .memory_limit(64 << 20)
///     .handshake_timeout(Duration::from_secs(2))
///     .build()?;
/// # drop(endpoint);
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "smol"))]
/// # fn main() {}
/// ```
#[derive(Debug, Default)]
pub struct Builder {
    devices: Vec<Arc<dyn Device>>,
    runtime: Option<Result<Arc<dyn Runtime>, Error>>,
    negotiation: Option<Arc<dyn Negotiation>>,
    recv_buffer: Option<usize>,
    send_buffer: Option<usize>,
    ports: RdmaPorts,
    llc: LlcConfig,
    memory: Option<usize>,
    driver_thread: bool,
    config: EndpointConfig,
}

impl Builder {
    /// With all defaults and no runtime.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// With tokio's runtime of the calling task, which has to run while the endpoint is in use (see
    /// [`Endpoint`]), with I/O and time enabled ([`Builder::build`]). Outside of a runtime,
    /// building fails.
    #[cfg(feature = "tokio")]
    #[must_use]
    pub fn tokio() -> Self {
        match super::runtime::tokio::TokioRuntime::current() {
            Ok(runtime) => Self::new().runtime(Arc::new(runtime)),
            Err(_) => Self {
                runtime: Some(Err(NOT_IN_TOKIO)),
                ..Self::new()
            },
        }
    }

    /// With smol's runtime and its global executor.
    #[cfg(feature = "smol")]
    #[must_use]
    pub fn smol() -> Self {
        Self::new().runtime(Arc::new(super::runtime::smol::SmolRuntime::new()))
    }

    /// Adds a device; those added first are preferred.
    ///
    /// A device object serves one endpoint at a time ([`Builder::build`]). Another endpoint can use
    /// it when the first one, its listeners and its streams were dropped. Streams of SMC-R are
    /// closed in the background then, as long as the runtime runs tasks; [`Endpoint::close`] waits
    /// for them. Building blocks for up to a second if the device is not free at once, for tasks
    /// that are ending on other threads.
    #[must_use]
    pub fn device(mut self, device: Arc<dyn Device>) -> Self {
        self.devices.push(device);
        self
    }

    /// Sets the runtime.
    #[must_use]
    pub fn runtime(mut self, runtime: Arc<dyn Runtime>) -> Self {
        self.runtime = Some(Ok(runtime));
        self
    }

    /// Sets how clients and listeners find out that the other end supports SMC.
    ///
    /// Without one all streams are TCP, with the cause
    /// [`NoNegotiation`](crate::FallbackCause::NoNegotiation).
    #[must_use]
    pub fn negotiation(mut self, negotiation: Arc<dyn Negotiation>) -> Self {
        self.negotiation = Some(negotiation);
        self
    }

    /// Sets the policy for all destinations and clients.
    #[must_use]
    pub fn policy(mut self, policy: Policy) -> Self {
        self.config.policy = PolicyRule::Fixed(policy);
        self
    }

    #[cfg(any(feature = "tokio", feature = "smol"))]
    pub(crate) fn policy_rule(mut self, rule: PolicyRule) -> Self {
        self.config.policy = rule;
        self
    }

    /// Whether connections are SMC although an IPsec policy applies to them. Data of SMC does not
    /// pass through the network stack, so nothing encrypts it there. `false` unless set: such a
    /// stream is TCP, with the code 0x03020000.
    ///
    /// The policies are not read, which takes privileges. A connection counts as protected if its
    /// packets (`IP_MTU`) are shorter than its network interface permits, as IPsec makes them, or
    /// if the kernel does not tell (netlink).
    #[must_use]
    pub fn bypass_ipsec(mut self, bypass: bool) -> Self {
        self.config.bypass_ipsec = bypass;
        self
    }

    /// Sets a policy by destination or client.
    #[must_use]
    pub fn policy_for(
        mut self,
        policy: impl Fn(&SocketAddr) -> Policy + Send + Sync + 'static,
    ) -> Self {
        self.config.policy = PolicyRule::ByAddress(Arc::new(policy));
        self
    }

    /// Adds a user-defined EID: endpoints need a common one. Without any, the system EID is used.
    #[must_use]
    pub fn ueid(mut self, eid: Eid) -> Self {
        self.config.ueids.push(eid);
        self
    }

    /// Whether the system EID is offered and accepted; it is by default.
    ///
    /// Without it an endpoint needs a [UEID](Builder::ueid): if it has none either, it has no EID
    /// in common with any peer, and all its streams are TCP. Reason 0x03030008 is a client's
    /// lack of any EID.
    #[must_use]
    pub fn seid(mut self, enabled: bool) -> Self {
        self.config.seid_enabled = enabled;
        self
    }

    /// Sets the system EID of SMC-D, for machines that define one and have no device that states it
    /// ([`Direct::seid`](crate::device::Direct::seid)): on s390x all hosts of a machine share one
    /// (docs/spec/identifiers.md#seid), and a host without native ISM meets one with it over no
    /// other. The SEID of a device goes before this one. The default is the same for all endpoints.
    #[must_use]
    pub fn system_eid(mut self, eid: Eid) -> Self {
        self.config.seid = eid;
        self
    }

    /// Adds the PNET ID of an attached network. Devices with another one are not offered.
    #[must_use]
    pub fn pnet_id(mut self, id: PnetId) -> Self {
        self.config.pnet_ids.push(id);
        self
    }

    /// Sets the size of receive buffers in bytes, rounded up to a power of two from 16 KiB to the
    /// device's maximum; unless set [`RECV_BUFFER`](crate::config::RECV_BUFFER), or
    /// [`RMB`](crate::config::RMB) with SMC-R.
    ///
    /// A loop device has a maximum of 16 MiB, which `LoopDevice::builder().max_dmb_size` changes.
    /// Longer sizes are reduced to the maximum of the device.
    ///
    /// A client's is no larger than its server's, with SMC-D. See [memory](crate::manual::memory)
    /// for what it means. SMC-D has no send buffer: data is written into the peer's receive buffer.
    ///
    /// # Errors
    ///
    /// None here; [`Builder::build`] refuses more than 512 MiB.
    #[must_use]
    pub fn recv_buffer(mut self, len: usize) -> Self {
        self.recv_buffer = Some(len);
        self
    }

    /// Sets the size in bytes of SMC-R's staging ring, which holds written data until the peer has
    /// acknowledged it, rounded up to a power of two from 16 KiB. 256 KiB unless set, and less
    /// where memory is short; SMC-D has no such ring.
    ///
    /// # Errors
    ///
    /// None here; [`Builder::build`] refuses more than 512 MiB.
    #[must_use]
    pub fn send_buffer(mut self, len: usize) -> Self {
        self.send_buffer = Some(len);
        self
    }

    /// Sets how much memory connections of this endpoint may take, in bytes: see
    /// [memory](crate::manual::memory). Unless set, all endpoints of a process share a limit: a
    /// quarter of the memory of the machine, or of what the cgroups of the process allow
    /// ([`MEMORY_SHARE`](crate::config::MEMORY_SHARE)).
    ///
    /// As there is less left, new connections get smaller buffers, and then stay TCP with reason
    /// 0x01010000. Existing connections keep their buffers. With 0 all streams are TCP.
    #[must_use]
    pub fn memory_limit(mut self, bytes: usize) -> Self {
        self.memory = Some(bytes);
        self
    }

    /// Sets the physical network of an interface such as `eth0`: connections over it use RDMA
    /// devices with the same PNET ID. Without, they use the RDMA port of that interface.
    #[must_use]
    pub fn interface_pnet_id(mut self, interface: impl Into<String>, id: PnetId) -> Self {
        self.ports.pnet_ids.push((interface.into(), id));
        self
    }

    /// Sets how many links an SMC-R link group may have, 1 or 2. As many as there are ports unless
    /// set. 1 is for devices that are redundant below, as bonded ports are: further connections
    /// take less time then ([`vendor_features`](Self::vendor_features)).
    #[must_use]
    pub fn max_links(mut self, count: u8) -> Self {
        let count = count.clamp(1, 2);
        self.ports.max_links = Some(count);
        self.llc.max_links = count;
        self
    }

    /// Sets the features beyond the released protocol that the endpoint agrees on with peers that
    /// have them, too: all of the library unless set, but for [`Features::FAST_OPEN`], which
    /// [`fast_open`](Self::fast_open) sets. They are stated in vendor options of v2.1,
    /// which other implementations ignore ([`Mode::SmcR`](crate::Mode) says which a stream has).
    /// Those that the library does not have are ignored.
    ///
    /// - [`Features::AUTHENTICATION`]: ACCEPT and CONFIRM of further connections of an SMC-R link
    ///   group are refused if they come from another process or host than the group's.
    /// - [`Features::EARLY_CONFIRM`]: further connections of an SMC-D link group over TCP or a UNIX
    ///   socket, and of an SMC-R link group with a single link, take two messages, not three: the
    ///   PROPOSAL has the client's buffer, so that the server can write when it has answered.
    /// - [`Features::EARLY_DATA`], only with the feature before: the PROPOSAL of such a connection
    ///   has the first bytes of the stream, if the connect is given
    ///   [some](crate::ConnectOptions::early_data) and the listener
    ///   [takes them](crate::ListenOptions::max_early_data). That saves one round trip.
    /// - [`Features::RECEIVE_CREDITS`]: an end of an SMC-R link sends no message for which the peer
    ///   has no receive buffer, so that the connections of a link do not stall until the device
    ///   sends it again (RNR).
    /// - [`Features::RDMA_IPV6`]: SMC-R v2 over IPv6 with clients that offer it
    ///   ([`rdma_ipv6`](Self::rdma_ipv6)).
    /// - [`Features::SINGLE_LINK`], only with authentication: in groups with one link
    ///   ([`max_links`](Self::max_links)) RMBs stay announced when their connections have ended, so
    ///   that further connections take two round trips less.
    /// - [`Features::SOCKET_REUSE`]: a UNIX socket serves several connections
    ///   ([`socket_reuse`](Self::socket_reuse)).
    #[must_use]
    pub fn vendor_features(mut self, features: Features) -> Self {
        self.config.vendor_features = features & VENDOR_FEATURES;
        self
    }

    /// Whether a UNIX socket serves several SMC-D connections, one after the other
    /// ([`Features::SOCKET_REUSE`], docs/spec/extensions.md#socket-reuse), with peers that do so
    /// too. `true` unless set.
    ///
    /// When a stream has ended in order at both ends, they keep its socket, which saves the system
    /// calls that make and close one. The next connect to the address uses it, if `connect(2)`
    /// would lead to the same listener and be permitted. One second after it was connected a socket
    /// is not used again, so that processes that share a listening socket share the clients, too.
    /// [`Stats::socket_reuses`](crate::stats::Stats::socket_reuses) counts that. A socket is not
    /// used again after a plain stream, after a stream whose descriptor the application has asked
    /// for ([`Stream::tcp_fd`](crate::Stream::tcp_fd)), and after a connect with
    /// [options](crate::ConnectOptions::socket) for the socket. A connect with early data makes a
    /// socket of its own.
    ///
    /// A listener that is later than [`answer_timeout`](Self::answer_timeout) on a socket that is
    /// used again may accept a stream that its client has given up, which ends at once, without
    /// data. The client has connected another socket then, and uses none again with this address
    /// for ten seconds.
    ///
    /// What the system knows of a client ([`Stream::peer_cred`](crate::Stream::peer_cred)) is of
    /// the time when the socket was connected. A listener takes further streams on it for two
    /// seconds after it has accepted the socket, whatever its clients do. A client that has changed
    /// its effective user or group since connects another socket. What a security module, such as
    /// Landlock or SELinux, permits to connect is not asked for again.
    #[must_use]
    pub fn socket_reuse(mut self, on: bool) -> Self {
        self.config.vendor_features.set(Features::SOCKET_REUSE, on);
        self
    }

    /// Sets whether PROPOSALs may be data of the SYN (TCP Fast Open, RFC 7413), which saves one
    /// round trip of a connection over a network. Off unless set.
    ///
    /// The time for TCP's handshake counts to that for the answer to the PROPOSAL
    /// ([`handshake_timeout`](Self::handshake_timeout)) then: a connect to a silent host fails
    /// after that.
    ///
    /// A client does so with servers with which it has a link group that has the feature
    /// ([`Features::FAST_OPEN`]): both ends have to set this. A listener that was bound by the
    /// endpoint then takes data in SYNs, if `net.ipv4.tcp_fastopen` permits that to servers (2 is
    /// set in it; by default only 1 is, for clients), and otherwise works without. Without a cookie
    /// of the server, which the first connection with fast open fetches, or if it is refused,
    /// connections are as without this setting.
    ///
    /// What it costs:
    ///
    /// - The network can deliver a SYN twice. The server takes a PROPOSAL once, so SMC streams and
    ///   [early data](crate::ConnectOptions::early_data) are not affected. Clients without SMC that
    ///   send data in their SYN can have it delivered twice, as at any listener with Fast Open.
    /// - A listener without SMC that has taken over the address of one with SMC within ten minutes
    ///   gets one PROPOSAL of each client as data, or the part of it that is in the SYN. It does so
    ///   too if it does not take data in SYNs: the client's system then sends the data again right
    ///   behind TCP's handshake. Its application may read it, and answer, before the connection is
    ///   reset. The client sees that the SYN-ACK has no SMC option, resets the connection and
    ///   connects anew; with early data in the PROPOSAL the connect fails. With
    ///   [`Assume`](crate::negotiate::Assume) it cannot see it, as without this setting.
    /// - Where the network removes the SMC option of the SYN but not its data, a listener with this
    ///   setting resets the connection, and the client connects anew. A listener that answers with
    ///   SYN cookies, since it has too many connections, has forgotten the option as well; the data
    ///   then comes behind TCP's handshake, and its application may read the PROPOSAL before the
    ///   client resets the connection.
    #[must_use]
    pub fn fast_open(mut self, on: bool) -> Self {
        self.config.fast_open = on;
        self
    }

    /// Sets whether connects over IPv6 offer SMC-R v2, with GIDs that are IPv6 addresses. Off
    /// unless set: a kernel has SMC-R v2 over IPv4 only, and does not get such an offer otherwise
    /// (docs/spec/extensions.md#smc-r-over-ipv6).
    ///
    /// Clients alone have to set it: servers of this library accept the offer if they have
    /// [`Features::RDMA_IPV6`], which all have unless
    /// [`vendor_features`](Self::vendor_features) leaves it out. A kernel declines it, or uses what
    /// else is offered, as it would without; a stream that is TCP then takes one round trip more.
    /// Link-local addresses are not used.
    #[must_use]
    pub fn rdma_ipv6(mut self, on: bool) -> Self {
        self.ports.offers_ipv6 = on;
        self
    }

    /// Sets how many connections an SMC-R link group may have, 16 to 255. 255 unless set.
    #[must_use]
    pub fn max_connections_per_group(mut self, count: u8) -> Self {
        self.ports.max_conns = Some(count.max(16));
        self
    }

    /// Sets how long an SMC-R link may be silent before it is tested; `None` for never. 30 s unless
    /// set.
    #[must_use]
    pub fn test_link(mut self, interval: Option<Duration>) -> Self {
        self.llc.test_link = interval;
        self
    }

    /// Sets how many RKEY requests an SMC-R link group may have outstanding. Unless set 1, which
    /// suits every peer, and 2 with Linux and this library, which answer any number.
    #[must_use]
    pub fn rkeys_in_flight(mut self, count: usize) -> Self {
        self.llc.rkeys_in_flight = count.max(1);
        self
    }

    /// Sets how long each message of the handshake may take; unless set
    /// [`HANDSHAKE_TIMEOUT`](crate::config::HANDSHAKE_TIMEOUT). With 0 no handshake succeeds.
    #[must_use]
    pub fn handshake_timeout(mut self, timeout: Duration) -> Self {
        self.config.handshake_timeout = timeout.min(TIMEOUT_MAX);
        self
    }

    /// Sets how long `connect` waits for a listener on the same host that stays silent, before the
    /// stream is TCP; 200 ms unless set. A listener that makes progress, on this connection or on
    /// others, may take as long as [`Builder::handshake_timeout`]. After a timeout, connections to
    /// the same listener are TCP at once, for at most two seconds. With 0 there is no time for an
    /// answer, and such streams are TCP.
    ///
    /// On a UNIX socket that it uses again ([`socket_reuse`](Self::socket_reuse)) a connect waits
    /// for the same time, and then connects another one; the listener may accept both.
    ///
    /// Handshakes over TCP, as with kernels, have no such limit: the server's messages must not be
    /// taken for data.
    #[must_use]
    pub fn answer_timeout(mut self, timeout: Duration) -> Self {
        self.config.answer_timeout = timeout.min(TIMEOUT_MAX);
        self
    }

    /// Sets how long a closed connection waits for the peer's close before it is aborted, and how
    /// long closing a stream waits for delivery to the peer; 120 s unless set.
    #[must_use]
    pub fn close_timeout(mut self, timeout: Duration) -> Self {
        self.config.close_timeout = timeout.min(TIMEOUT_MAX);
        self
    }

    /// Sets the maximum busy-poll window before a task parks; zero switches polling off. Unless set
    /// it is [`POLLING`](crate::config::POLLING), and zero on a machine with a single CPU.
    ///
    /// The window in use is shorter where polling finds nothing: each stream learns it, and a new
    /// one begins with what the last stream on its device has learned. If more than a few streams
    /// poll, the driver of the device polls for all of them instead.
    #[must_use]
    pub fn polling(mut self, window: Duration) -> Self {
        self.config.polling = window;
        self
    }

    /// Whether the endpoint has a thread of its own for its devices and link groups, named
    /// `smc-driver`; it has none unless set.
    ///
    /// A peer of SMC-R takes a link for dead that does not answer its tests and requests within two
    /// seconds, and resets the connections of a group without another link. Without this option the
    /// tasks that answer are on the runtime of the endpoint, so that a runtime of one thread that
    /// computes or blocks for longer loses its connections. With it, they do not depend on what the
    /// application does. Setting up connections, TCP and what a stream itself waits for stay on the
    /// runtime of the endpoint.
    ///
    /// The thread sleeps while there is nothing to do. A task that waits for data is woken across
    /// threads, which takes some tens of microseconds longer than on the thread of the driver.
    /// The thread ends when the endpoint, its listeners and its streams are dropped; when the
    /// runtime of the endpoint ends before that, its work for devices does. It has the clock of the
    /// system, so tokio's clock must not be paused.
    ///
    /// # Errors
    ///
    /// None here; [`Builder::build`] fails if the thread cannot be started, with `Unsupported` on a
    /// runtime that has no [`on_own_thread`](super::runtime::Runtime::on_own_thread).
    #[must_use]
    pub fn driver_thread(mut self, enabled: bool) -> Self {
        self.driver_thread = enabled;
        self
    }

    /// Sets the maximum number of concurrent handshakes of a listener; 256 unless set. A quarter is
    /// reserved for clients of the own user, and of the rest one source has half at most; a maximum
    /// of one is for all. See [`Listener`](super::Listener).
    #[must_use]
    pub fn max_handshakes(mut self, count: usize) -> Self {
        self.config.max_handshakes = count.max(1);
        self
    }

    /// Lets `fill_buf`, guards and reservations borrow the peer's data and memory in place instead
    /// of copying. The token documents the promise about peers.
    #[must_use]
    pub fn trust_peers(mut self, trust: TrustPeers) -> Self {
        self.config.trust = Some(trust);
        self
    }

    /// Whether other processes of the same user, and root, can see what the endpoint does, as
    /// `smc ss` shows it: see [`introspection`](crate::introspection). `true` unless set.
    #[cfg(feature = "introspection")]
    #[must_use]
    pub fn introspection(mut self, on: bool) -> Self {
        self.config.introspection = on;
        self
    }

    /// Builds the endpoint. Starts one task per device on the runtime, or on a
    /// [thread](Self::driver_thread).
    ///
    /// # Errors
    ///
    /// [`Error::Misuse`] without a runtime, with an impossible buffer size, with too many EIDs, or
    /// with a device that serves another endpoint or was given twice; an error of the runtime when
    /// a device's doorbell cannot be watched, or when the memory of the machine cannot be read for
    /// lack of descriptors.
    ///
    /// # Panics
    ///
    /// Panics where the runtime does: a tokio runtime without `enable_time` panics here, and one
    /// without `enable_io` when a device or a socket is watched first, here, in [`Endpoint::bind`]
    /// or in [`Endpoint::connect`].
    pub fn build(self) -> Result<Endpoint, Error> {
        let mut config = self.config;
        let runtime = self.runtime.unwrap_or(Err(NO_RUNTIME))?;
        // Otherwise a runtime without timers would panic in a task, where the panic is not seen.
        drop(runtime.timer(runtime.now()));
        if let Some(len) = self.recv_buffer {
            config.recv_buffer = recv_buffer_size(len)?;
            config.rmb = config.recv_buffer;
        }
        if let Some(len) = self.send_buffer {
            let size = SizeCode::for_len(len);
            config.send_buffer = size.ok_or(SEND_BUFFER_TOO_LONG)?;
        }
        if config.ueids.len() > UEIDS_MAX {
            return Err(Error::misuse("an endpoint has at most 4 UEIDs"));
        }
        let negotiation = self.negotiation.unwrap_or_else(|| Arc::new(Never::new()));
        let lifetime = Arc::new(Lifetime::default());
        let driver_runtime = match self.driver_thread {
            true => runtime.on_own_thread()?,
            false => Arc::clone(&runtime),
        };
        let memory = match self.memory {
            Some(bytes) => MemoryLimit::new(bytes),
            None => default_limit().map_err(DeviceError::from)?,
        };
        let groups = Groups::new(
            driver_runtime,
            Deadlines::new(&runtime, &lifetime),
            self.ports,
            self.llc,
            memory,
        );
        if self.driver_thread {
            groups.deadlines.set_groups(&groups);
        }
        let inner = EndpointInner {
            handshake_pollers: Arc::new(Pollers::new(false, false)),
            tcp_handshakes: TcpHandshakes::default(),
            proposal: Mutex::default(),
            precedents: Precedents::default(),
            idle_sockets: IdleSockets::new(&runtime),
            setups: SetupCounters::default(),
            tcp_streams: Arc::default(),
            listeners: Mutex::default(),
            lifetime,
            config,
            runtime,
            base_config: Mutex::new(Arc::new(HandshakeConfig::new(Vec::new()))),
            negotiation,
            drivers: Arc::default(),
            adding: Mutex::default(),
            groups,
            warned: Arc::default(),
        };
        for device in self.devices {
            inner.start_driver(device)?;
        }
        inner.update_base_config();
        Ok(Endpoint::new(inner))
    }
}

/// The size code for a receive buffer of at least `len` bytes.
pub(crate) fn recv_buffer_size(len: usize) -> Result<SizeCode, Error> {
    SizeCode::for_len(len).ok_or(RECV_BUFFER_TOO_LONG)
}

#[cfg(feature = "tokio")]
const NOT_IN_TOKIO: Error = Error::misuse(
    "Builder::tokio was called outside of a tokio runtime: call it in an async function that tokio \
     runs, or after Runtime::enter",
);
const NO_RUNTIME: Error = Error::misuse("an endpoint needs a runtime: give Builder::runtime one");
const RECV_BUFFER_TOO_LONG: Error = Error::misuse("receive buffers have at most 512 MiB");
const SEND_BUFFER_TOO_LONG: Error = Error::misuse("send buffers have at most 512 MiB");

/// Linux's maximum of UEIDs; a PROPOSAL has space for eight.
const UEIDS_MAX: usize = 4;

/// Practically infinite, and representable by every clock.
const TIMEOUT_MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);
