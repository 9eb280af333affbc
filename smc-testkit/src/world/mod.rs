//! Hosts with an endpoint and a device each, and peers without an endpoint.
//!
//! A [`World`] runs on a virtual clock with sockets in memory, or on real ones. Its hosts are on
//! one SMC-D fabric. The other end of a connection is another host, or a [`Raw`] TCP socket that
//! follows a script, for which a [`ForgedPeer`] writes the messages. [`RdmaWorld`] is the same for
//! SMC-R.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails the test")]

mod codes;
mod device;
mod forged_peer;
pub mod messages;
mod negotiation;
mod peer;
mod rdma;
mod side_channel;

pub use codes::{Codes, codes, kind, reason};
pub use device::{Call, ScriptedDevice};
#[cfg(feature = "runtimes")]
pub(crate) use forged_peer::answer_from;
pub use forged_peer::{ForgedPeer, proposal_from};
pub use negotiation::{Finds, Scripted};
pub use peer::{Raw, RawListener, Step, StreamEnd};
pub use rdma::{RdmaHosts, RdmaWorld, SERVER, are_kept, eid, is_smcr, rdma_pair};
pub use side_channel::SideChannelPipe;

use std::fmt;
use std::future::Future;
use std::net::{Ipv4Addr, Shutdown, SocketAddr};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use futures_lite::future::{or, zip};
use futures_lite::{AsyncReadExt as _, AsyncWriteExt as _};
#[cfg(feature = "runtimes")]
use smc::runtime::smol::SmolRuntime;
use smc::{Builder, Endpoint, Listener, Stream};
use smc_core::device::Direct as _;
use smc_core::negotiate::Assume;
use smc_core::proto::group;
use smc_core::runtime::Runtime;
use smc_core::wire::size::SizeCode;

use crate::memory_device::MemFabric;
use crate::port::HeldPort;
use crate::runtime::{Options, VirtualRuntime};
use crate::streams;

/// What a scenario runs in.
pub struct World {
    runtime: WorldRuntime,
    rt: Arc<dyn Runtime>,
    fabric: MemFabric,
}

enum WorldRuntime {
    Virtual(VirtualRuntime),
    #[cfg(feature = "runtimes")]
    Smol(Arc<smol::Executor<'static>>),
}

impl Default for World {
    fn default() -> Self {
        Self::new()
    }
}

impl World {
    /// Virtual clock and sockets in memory.
    #[must_use]
    pub fn new() -> Self {
        Self::with_seed(1)
    }

    /// The same with tasks in another order.
    #[must_use]
    pub fn with_seed(seed: u64) -> Self {
        Self::on(VirtualRuntime::new(seed))
    }

    /// The same with every read and write cut into pieces of one byte.
    #[must_use]
    pub fn in_pieces() -> Self {
        let options = Options::default().with_fragment(1);
        Self::on(VirtualRuntime::with_options(1, options))
    }

    fn on(runtime: VirtualRuntime) -> Self {
        Self {
            rt: runtime.handle(),
            runtime: WorldRuntime::Virtual(runtime),
            fabric: MemFabric::new(7),
        }
    }

    /// Real sockets and a real clock.
    #[cfg(feature = "runtimes")]
    #[must_use]
    pub fn real() -> Self {
        let executor = Arc::new(smol::Executor::new());
        Self {
            rt: Arc::new(SmolRuntime::with_executor(Arc::clone(&executor))),
            runtime: WorldRuntime::Smol(executor),
            fabric: MemFabric::new(7),
        }
    }

    /// As [`World::real`], with tasks on two threads.
    #[cfg(feature = "runtimes")]
    #[must_use]
    pub fn parallel() -> Self {
        let world = Self::real();
        if let WorldRuntime::Smol(executor) = &world.runtime {
            let executor = Arc::downgrade(executor);
            std::thread::spawn(move || {
                while let Some(executor) = executor.upgrade() {
                    let pause = async {
                        smol::Timer::after(Duration::from_millis(50)).await;
                    };
                    smol::block_on(executor.run(pause));
                }
            });
        }
        world
    }

    /// One with a virtual clock and a real one.
    #[cfg(feature = "runtimes")]
    #[must_use]
    pub fn both() -> [Self; 2] {
        [Self::new(), Self::real()]
    }

    /// One of each kind that the result of one task does not depend on.
    #[cfg(feature = "runtimes")]
    #[must_use]
    pub fn all() -> [Self; 3] {
        [Self::new(), Self::in_pieces(), Self::real()]
    }

    /// With another fabric.
    #[must_use]
    pub fn with_fabric(self, change: impl FnOnce(MemFabric) -> MemFabric) -> Self {
        Self {
            fabric: change(self.fabric),
            ..self
        }
    }

    /// The runtime.
    pub fn rt(&self) -> &Arc<dyn Runtime> {
        &self.rt
    }

    /// The network with a virtual clock.
    ///
    /// # Panics
    ///
    /// If the clock is real.
    #[must_use]
    pub fn network(&self) -> &VirtualRuntime {
        match &self.runtime {
            WorldRuntime::Virtual(runtime) => runtime,
            #[cfg(feature = "runtimes")]
            WorldRuntime::Smol(_) => panic!("the network of the system"),
        }
    }

    /// The time on its clock.
    pub fn now(&self) -> Instant {
        self.rt.now()
    }

    /// Runs a scenario to its end.
    ///
    /// # Panics
    ///
    /// If it has none.
    pub fn block_on<T>(&self, scenario: impl Future<Output = T>) -> T {
        match &self.runtime {
            WorldRuntime::Virtual(runtime) => runtime.block_on(scenario),
            #[cfg(feature = "runtimes")]
            WorldRuntime::Smol(executor) => {
                let bounded = crate::on::in_time(Duration::from_secs(30), scenario);
                smol::block_on(executor.run(bounded))
            }
        }
    }

    /// Runs a scenario of real sockets within a runtime of the caller's.
    #[cfg(feature = "runtimes")]
    pub(crate) async fn run<T>(&self, scenario: impl Future<Output = T>) -> T {
        match &self.runtime {
            WorldRuntime::Virtual(_) => scenario.await,
            WorldRuntime::Smol(executor) => executor.run(scenario).await,
        }
    }

    /// Runs a scenario between a client and a server that assume that every peer supports SMC.
    ///
    /// # Panics
    ///
    /// If the scenario does.
    pub fn between_hosts<T>(&self, scenario: impl AsyncFnOnce(Host, Host) -> T) -> T {
        self.block_on(scenario(self.host("client"), self.host("server")))
    }

    /// Whether less than `limit` has passed. A real clock does not tell: it goes on while other
    /// processes have the processor.
    pub fn is_within(&self, since: Instant, limit: Duration) -> bool {
        match &self.runtime {
            WorldRuntime::Virtual(_) => self.now() - since < limit,
            #[cfg(feature = "runtimes")]
            WorldRuntime::Smol(_) => true,
        }
    }

    /// Whether about so much time has passed: not less, and not a fifth more.
    pub fn has_taken(&self, since: Instant, time: Duration) -> bool {
        let taken = self.now().saturating_duration_since(since);
        taken >= time && taken < time.mul_f32(1.2)
    }

    /// Waits for a span of time.
    pub async fn sleep(&self, time: Duration) {
        self.rt.timer(self.rt.now() + time).await;
    }

    /// What comes of something within a span of time.
    pub async fn within<T>(&self, time: Duration, work: impl Future<Output = T>) -> Option<T> {
        let late = async {
            self.sleep(time).await;
            None
        };
        or(async { Some(work.await) }, late).await
    }

    /// A host with one device, whose endpoint assumes that every peer supports SMC.
    ///
    /// # Panics
    ///
    /// If the endpoint cannot be built.
    pub fn host(&self, name: &str) -> Host {
        self.host_with(name, |builder| builder)
    }

    /// The same with another configuration.
    ///
    /// # Panics
    ///
    /// If the endpoint cannot be built.
    pub fn host_with(&self, name: &str, configure: impl FnOnce(Builder) -> Builder) -> Host {
        self.host_on(self.device(name), configure)
    }

    /// The same on another device.
    ///
    /// # Panics
    ///
    /// If the endpoint cannot be built.
    pub fn host_on(
        &self,
        device: ScriptedDevice,
        configure: impl FnOnce(Builder) -> Builder,
    ) -> Host {
        let device = Arc::new(device);
        let configure = |builder: Builder| configure(builder.device(device.clone()));
        Host {
            endpoint: self.endpoint(configure),
            device,
        }
    }

    /// An endpoint without devices of its own.
    ///
    /// # Panics
    ///
    /// If it cannot be built.
    pub fn endpoint(&self, configure: impl FnOnce(Builder) -> Builder) -> Endpoint {
        let builder = Builder::new()
            .runtime(Arc::clone(&self.rt))
            .negotiation(Arc::new(Assume::new()))
            .polling(Duration::ZERO);
        configure(builder).build().unwrap()
    }

    /// A device on the fabric.
    pub fn device(&self, name: &str) -> ScriptedDevice {
        ScriptedDevice::new(self.fabric.device(name))
    }

    /// A peer of a host that has a device and no endpoint.
    ///
    /// # Panics
    ///
    /// Without memory.
    pub fn forged_peer(&self, host: &ScriptedDevice) -> ForgedPeer {
        let device = self.fabric.device("forged");
        let size = SizeCode::MIN;
        let dmb = self.block_on(device.register(host.gid(), size.byte_len()));
        ForgedPeer {
            dmb: dmb.unwrap(),
            device,
            size,
        }
    }

    /// A TCP client without SMC.
    ///
    /// # Panics
    ///
    /// If it cannot connect.
    pub async fn raw(&self, to: SocketAddr) -> Raw {
        Raw::connect(&self.rt, to).await
    }

    /// A TCP client without SMC that has sent this.
    ///
    /// # Panics
    ///
    /// If it cannot connect.
    pub async fn raw_that_sent(&self, to: SocketAddr, bytes: impl AsRef<[u8]>) -> Raw {
        let raw = self.raw(to).await;
        raw.send(bytes.as_ref()).await;
        raw
    }

    /// A TCP listener without SMC, and its address.
    ///
    /// # Panics
    ///
    /// If there is no port.
    pub fn raw_listener(&self) -> (RawListener, SocketAddr) {
        let listener = RawListener::new(&self.rt, anywhere());
        let at = listener.acceptor().local_addr().unwrap();
        (listener, at)
    }

    /// An address at which only this test listens, and what holds its port while it does not. With
    /// virtual sockets nothing else could.
    ///
    /// # Panics
    ///
    /// If there is no port.
    pub fn own_address(&self) -> (SocketAddr, Option<HeldPort>) {
        match &self.runtime {
            WorldRuntime::Virtual(_) => (self.raw_listener().1, None),
            #[cfg(feature = "runtimes")]
            WorldRuntime::Smol(_) => {
                let port = HeldPort::of(Ipv4Addr::LOCALHOST).unwrap();
                (port.addr(), Some(port))
            }
        }
    }

    /// Waits until hosts have nothing of any connection any more, not even a link group.
    ///
    /// # Panics
    ///
    /// If something stays.
    pub async fn nothing_left<'a>(&self, hosts: impl IntoIterator<Item = &'a Host>) {
        self.until(hosts, |left| *left == Left::default()).await;
    }

    /// Waits until hosts have nothing of any connection but idle link groups.
    ///
    /// # Panics
    ///
    /// If something else stays.
    pub async fn only_idle_groups_left<'a>(&self, hosts: impl IntoIterator<Item = &'a Host>) {
        let is_idle = |group: &group::LinkGroupInfo| group.connections == 0;
        self.until(hosts, |left| {
            left.groups.iter().all(is_idle)
                && (left.connections, left.dmbs, left.attachments) == (0, 0, 0)
        })
        .await;
    }

    /// How often to look, once in a millisecond, for what does not wait for anything: a real clock
    /// goes on while other processes have the processor.
    fn looks(&self) -> u32 {
        match &self.runtime {
            WorldRuntime::Virtual(_) => 500,
            #[cfg(feature = "runtimes")]
            WorldRuntime::Smol(_) => 20_000,
        }
    }

    async fn until<'a>(
        &self,
        hosts: impl IntoIterator<Item = &'a Host>,
        is_fine: impl Fn(&Left) -> bool,
    ) {
        'hosts: for host in hosts {
            for _ in 0..self.looks() {
                if is_fine(&host.left()) {
                    continue 'hosts;
                }
                self.sleep(Duration::from_millis(1)).await;
            }
            panic!("left behind: {}", host.left());
        }
    }
}

impl fmt::Display for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.runtime {
            WorldRuntime::Virtual(_) => "virtual sockets",
            #[cfg(feature = "runtimes")]
            WorldRuntime::Smol(_) => "real sockets",
        })
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "World({self})")
    }
}

/// A host: an endpoint and its device.
#[derive(Debug)]
#[expect(clippy::exhaustive_structs, reason = "tests take it apart")]
pub struct Host {
    /// Its endpoint.
    pub endpoint: Endpoint,
    /// The device of the endpoint.
    pub device: Arc<ScriptedDevice>,
}

/// What connections leave behind.
#[derive(Default, PartialEq)]
struct Left {
    connections: usize,
    groups: Vec<group::LinkGroupInfo>,
    dmbs: usize,
    attachments: usize,
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            connections,
            groups,
            dmbs,
            attachments,
        } = self;
        write!(
            f,
            "{connections} connections, {dmbs} buffers, {attachments} attachments"
        )?;
        for group in groups {
            write!(f, ", group {} of {}", group.state.name(), group.connections)?;
        }
        Ok(())
    }
}

impl Host {
    /// A listener, and its address.
    ///
    /// # Panics
    ///
    /// If there is no port.
    pub async fn listen(&self) -> (Listener, SocketAddr) {
        let listener = streams::listen(&self.endpoint).await;
        let at = listener.local_addr().unwrap();
        (listener, at)
    }

    fn left(&self) -> Left {
        Left {
            connections: self
                .endpoint
                .connections()
                .iter()
                .filter(|conn| conn.smc.is_some())
                .count(),
            groups: self.endpoint.link_groups(),
            dmbs: self.device.dmbs(),
            attachments: self.device.attachments(),
        }
    }
}

/// Connects two hosts.
///
/// # Panics
///
/// If an end fails.
pub async fn connect_pair(client: &Host, server: &Host) -> (Stream, Stream) {
    streams::pair(&client.endpoint, &server.endpoint).await
}

/// Connects a host to a listener.
///
/// # Panics
///
/// If an end fails.
pub async fn join(client: &Host, listener: &Listener) -> (Stream, Stream) {
    streams::connect(&client.endpoint, listener).await
}

/// Connects two hosts by SMC.
///
/// # Panics
///
/// If an end fails or is TCP.
pub async fn connect_pair_smc(client: &Host, server: &Host) -> (Stream, Stream) {
    let (listener, _) = server.listen().await;
    join_smc(client, &listener).await
}

/// Connects a host to a listener by SMC.
///
/// # Panics
///
/// If an end fails or is TCP.
pub async fn join_smc(client: &Host, listener: &Listener) -> (Stream, Stream) {
    let (client, server) = join(client, listener).await;
    assert_eq!((reason(&client), reason(&server)), (None, None));
    (client, server)
}

/// The next stream of a listener, if there is one now.
///
/// # Panics
///
/// If the listener has failed.
pub fn accept_now(listener: &Listener) -> Option<(Stream, SocketAddr)> {
    let mut context = Context::from_waker(Waker::noop());
    match listener.poll_accept(&mut context) {
        Poll::Ready(accepted) => Some(accepted.unwrap()),
        Poll::Pending => None,
    }
}

/// Application data goes both ways between two streams, to the end.
///
/// # Panics
///
/// If something else arrives.
pub async fn exchange_to_end((mut client, mut server): (Stream, Stream)) {
    let exchange = async |stream: &mut Stream, word: &[u8], answer: &[u8]| {
        stream.write_all(word).await.unwrap();
        stream.shutdown_how(Shutdown::Write).unwrap();
        streams::expect_rest(stream, answer).await;
    };
    let client_side = exchange(&mut client, b"from the client", b"from the server");
    let server_side = exchange(&mut server, b"from the server", b"from the client");
    zip(client_side, server_side).await;
}

/// Application data goes both ways over a TCP connection, to the end, with nothing missing and
/// nothing added. `early` is what the peer has written before. Without a peer the connection has
/// ended.
///
/// # Panics
///
/// If something else arrives.
pub async fn exchange(mut stream: Stream, raw: Option<Raw>, early: &[u8]) {
    let Some(raw) = raw else {
        // A reset may take away what was not read yet; it must not add anything.
        let (read, end) = streams::read_all(&mut stream).await;
        assert!(early.starts_with(&read), "invented {read:?}");
        assert!(end.is_err() || read == early, "lost of {early:?}");
        return;
    };
    let [to_peer, to_local] = [b'p', b'l'].map(|first| {
        let bytes = (0..EXCHANGE_LEN).map(|at| first ^ u8::try_from(at % 251).unwrap());
        bytes.collect::<Vec<_>>()
    });
    let local = async {
        stream.write_all(&to_peer).await.unwrap();
        stream.shutdown_how(Shutdown::Write).unwrap();
        streams::expect_rest(&mut stream, [early, &to_local].concat()).await;
    };
    let peer = async {
        raw.send(&to_local).await;
        raw.finish();
        assert_eq!(raw.rest().await, (to_peer.clone(), StreamEnd::Closed));
    };
    zip(local, peer).await;
}

/// Reads to the end, before which nothing was invented.
///
/// # Panics
///
/// If data comes.
pub async fn expect_no_data(stream: &mut Stream) {
    let end = stream.read(&mut [0; 8]).await;
    assert!(!matches!(end, Ok(1..)), "invented data");
}

/// Any port of this host.
#[must_use]
pub fn anywhere() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

/// Bytes of application data in each direction.
const EXCHANGE_LEN: usize = 500;
