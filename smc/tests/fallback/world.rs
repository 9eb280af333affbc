//! Hosts with an endpoint each, on a runtime with a virtual clock or with real sockets.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use futures_lite::{AsyncReadExt, AsyncWriteExt, future};
use smc::{Builder, Endpoint};
use smc::{Error, FallbackReason, Listener, Stream};
use smc_core::device::{Direct, Dmb};
use smc_core::negotiate::Assume;
use smc_core::proto::group::{self, DeviceIndex};
use smc_core::proto::handshake::{
    ClientOffer, DEFAULT_SEID, DirectDevice, HandshakeConfig, TcpPath,
};
use smc_core::runtime::{Acceptor, Runtime, SocketOptions};
use smc_core::wire::clc::{AcceptConfirm, Body, DirectEnd, FirstContact, Proposal, Step, Terms};
use smc_core::wire::size::SizeCode;
use smc_core::wire::types::DeclineCode;
use smc_core::wire::types::{FeatureMask, GroupId, HostName, OsType, Release};
use smc_testkit::memory_device::{MemDevice, MemFabric};
use smc_testkit::port::HeldPort;
use smc_testkit::runtime::{Options, VirtualRuntime};

use crate::device::TestDevice;
use crate::peer::{End, Raw};

/// What a scenario runs in.
pub(crate) struct World {
    runtime: Kind,
    pub(crate) rt: Arc<dyn Runtime>,
    pub(crate) fabric: MemFabric,
}

enum Kind {
    Virtual(VirtualRuntime),
    #[cfg(feature = "smol")]
    Smol(Arc<smol::Executor<'static>>),
}

impl World {
    /// Virtual clock and sockets in memory.
    pub(crate) fn new() -> Self {
        Self::with_seed(1)
    }

    /// The same with tasks in another order.
    pub(crate) fn with_seed(seed: u64) -> Self {
        Self::on(VirtualRuntime::new(seed))
    }

    /// The same with every read and write cut into pieces of one byte.
    pub(crate) fn in_pieces() -> Self {
        let options = Options::default().with_fragment(1);
        Self::on(VirtualRuntime::with_options(1, options))
    }

    fn on(runtime: VirtualRuntime) -> Self {
        Self {
            rt: runtime.handle(),
            runtime: Kind::Virtual(runtime),
            fabric: MemFabric::new(7),
        }
    }

    /// Real sockets and a real clock, if there is an adapter.
    pub(crate) fn real() -> Option<Self> {
        #[cfg(feature = "smol")]
        {
            use smc::runtime::smol::SmolRuntime;
            let executor = Arc::new(smol::Executor::new());
            Some(Self {
                rt: Arc::new(SmolRuntime::with_executor(Arc::clone(&executor))),
                runtime: Kind::Smol(executor),
                fabric: MemFabric::new(7),
            })
        }
        #[cfg(not(feature = "smol"))]
        None
    }

    /// As [`World::real`], with tasks on two threads.
    pub(crate) fn parallel() -> Option<Self> {
        let world = Self::real()?;
        #[cfg(feature = "smol")]
        if let Kind::Smol(executor) = &world.runtime {
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
        Some(world)
    }

    pub(crate) fn block_on<T>(&self, scenario: impl Future<Output = T>) -> T {
        match &self.runtime {
            Kind::Virtual(runtime) => runtime.block_on(scenario),
            #[cfg(feature = "smol")]
            Kind::Smol(executor) => {
                let late = async {
                    self.sleep(Duration::from_secs(30)).await;
                    panic!("the scenario does not end");
                };
                future::block_on(executor.run(future::or(scenario, late)))
            }
        }
    }

    /// Whether less than `limit` has passed. A real clock does not tell: it goes on while other
    /// processes have the processor.
    pub(crate) fn is_within(&self, since: Instant, limit: Duration) -> bool {
        match &self.runtime {
            Kind::Virtual(_) => self.rt.now() - since < limit,
            #[cfg(feature = "smol")]
            Kind::Smol(_) => true,
        }
    }

    pub(crate) async fn sleep(&self, time: Duration) {
        self.rt.timer(self.rt.now() + time).await;
    }

    /// A host with one device, whose endpoint assumes that every peer supports SMC.
    pub(crate) fn host(&self, name: &str) -> Host {
        self.host_with(self.device(name), |builder| builder)
    }

    pub(crate) fn host_with(
        &self,
        device: TestDevice,
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
    pub(crate) fn endpoint(&self, configure: impl FnOnce(Builder) -> Builder) -> Endpoint {
        let builder = Builder::new()
            .runtime(Arc::clone(&self.rt))
            .negotiation(Arc::new(Assume::new()))
            .polling(Duration::ZERO);
        configure(builder).build().unwrap()
    }

    pub(crate) fn device(&self, name: &str) -> TestDevice {
        TestDevice::new(self.fabric.device(name))
    }

    /// A device without an endpoint, for a scripted peer of this host.
    pub(crate) fn forger(&self, host: &Host) -> Forger {
        self.forger_for(&host.device)
    }

    pub(crate) fn forger_for(&self, host: &TestDevice) -> Forger {
        let device = self.fabric.device("forged");
        let size = SizeCode::MIN;
        let dmb = self.block_on(device.register(host.gid(), size.byte_len()));
        Forger {
            dmb: dmb.unwrap(),
            device,
            size,
        }
    }

    /// A TCP listener for a scripted server.
    pub(crate) fn acceptor(&self) -> Arc<dyn Acceptor> {
        self.rt
            .bind(anywhere(), &SocketOptions::default(), &mut |_| Ok(()))
            .unwrap()
    }

    /// An address at which only this test listens, and what holds its port while it does not. With
    /// virtual sockets nothing else could.
    pub(crate) fn own_address(&self) -> (SocketAddr, Option<HeldPort>) {
        match &self.runtime {
            Kind::Virtual(_) => (self.acceptor().local_addr().unwrap(), None),
            #[cfg(feature = "smol")]
            Kind::Smol(_) => {
                let port = HeldPort::of(Ipv4Addr::LOCALHOST).unwrap();
                (port.addr(), Some(port))
            }
        }
    }

    /// Application data goes both ways over the TCP connection, to the end, with nothing missing
    /// and nothing added. `early` is what the peer has written before.
    pub(crate) async fn exchange(&self, mut stream: Stream, raw: Option<Raw>, early: &[u8]) {
        let Some(raw) = raw else {
            let mut read = Vec::new();
            // A reset may take away what was not read yet; it must not add anything.
            let end = stream.read_to_end(&mut read).await;
            assert!(early.starts_with(&read), "invented {read:?}");
            assert!(end.is_err() || read == early, "lost of {early:?}");
            return;
        };
        let [ours, theirs] = [b'o', b't'].map(|first| {
            let bytes = (0..TALK).map(|at| first ^ u8::try_from(at % 251).unwrap());
            bytes.collect::<Vec<_>>()
        });
        let us = async {
            stream.write_all(&ours).await.unwrap();
            stream.shutdown_how(std::net::Shutdown::Write).unwrap();
            let mut read = Vec::new();
            stream.read_to_end(&mut read).await.unwrap();
            assert_eq!(read, [early, &theirs].concat());
        };
        let them = async {
            raw.send(&theirs).await;
            raw.finish();
            assert_eq!(raw.rest().await, (ours.clone(), End::Closed));
        };
        future::zip(us, them).await;
    }

    /// Application data goes both ways between two streams, to the end.
    pub(crate) async fn chat(&self, mut ours: Stream, mut theirs: Stream) {
        let exchange = async |stream: &mut Stream, word: &[u8], answer: &[u8]| {
            stream.write_all(word).await.unwrap();
            stream.shutdown_how(std::net::Shutdown::Write).unwrap();
            let mut read = Vec::new();
            stream.read_to_end(&mut read).await.unwrap();
            assert_eq!(read, answer);
        };
        let us = exchange(&mut ours, b"from us", b"from them");
        let them = exchange(&mut theirs, b"from them", b"from us");
        future::zip(us, them).await;
    }

    /// Waits until a host has nothing of any connection any more, not even a link group.
    pub(crate) async fn nothing_left(&self, host: &Host) {
        self.until(host, |left| *left == Left::default()).await;
    }

    /// Waits until a host has nothing of any connection but idle link groups.
    pub(crate) async fn only_idle_groups_left(&self, host: &Host) {
        let is_idle = |group: &group::LinkGroupInfo| group.connections == 0;
        self.until(host, |left| {
            left.groups.iter().all(is_idle)
                && (left.connections, left.dmbs, left.attachments) == (0, 0, 0)
        })
        .await;
    }

    async fn until(&self, host: &Host, is_fine: impl Fn(&Left) -> bool) {
        for _ in 0..500 {
            if is_fine(&host.left()) {
                return;
            }
            self.sleep(Duration::from_millis(1)).await;
        }
        panic!("left behind: {}", host.left());
    }
}

impl fmt::Display for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.runtime {
            Kind::Virtual(_) => "virtual sockets",
            #[cfg(feature = "smol")]
            Kind::Smol(_) => "real sockets",
        })
    }
}

/// A host: an endpoint and its device.
pub(crate) struct Host {
    pub(crate) endpoint: Endpoint,
    pub(crate) device: Arc<TestDevice>,
}

/// What connections leave behind.
#[derive(Default, PartialEq)]
pub(crate) struct Left {
    pub(crate) connections: usize,
    pub(crate) groups: Vec<group::LinkGroupInfo>,
    pub(crate) dmbs: usize,
    pub(crate) attachments: usize,
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
    pub(crate) async fn listen(&self) -> (Listener, SocketAddr) {
        let listener = self.endpoint.bind(anywhere()).await.unwrap();
        let at = listener.local_addr().unwrap();
        (listener, at)
    }

    pub(crate) fn left(&self) -> Left {
        Left {
            connections: self.endpoint.connections().len(),
            groups: self.endpoint.link_groups(),
            dmbs: self.device.dmbs(),
            attachments: self.device.attachments(),
        }
    }
}

/// Writes the messages of a peer that has a device, without an endpoint to keep the rules.
#[derive(Clone, Debug)]
pub(crate) struct Forger {
    pub(crate) device: Arc<MemDevice>,
    /// A buffer that the host under test may write.
    pub(crate) dmb: Arc<dyn Dmb>,
    size: SizeCode,
}

impl Forger {
    /// A PROPOSAL with this device and the default system EID.
    pub(crate) fn proposal(&self) -> Proposal {
        Proposal::parse(&proposal_from(&*self.device)).unwrap()
    }

    /// ACCEPT at first contact.
    pub(crate) fn accept(&self) -> AcceptConfirm {
        self.message(Step::Accept)
    }

    /// CONFIRM at first contact.
    pub(crate) fn confirm(&self) -> AcceptConfirm {
        self.message(Step::Confirm)
    }

    fn message(&self, step: Step) -> AcceptConfirm {
        let mut first_contact = FirstContact::new(Release::V2_1, OsType::LINUX, HostName::BLANK);
        first_contact.features = FeatureMask::EMULATED_ISM;
        AcceptConfirm {
            step,
            terms: Terms::V2 {
                eid: DEFAULT_SEID,
                first_contact: Some(first_contact),
            },
            body: Body::D(DirectEnd {
                gid: self.device.gid(),
                chid: self.device.chid(),
                dmb: self.dmb.token(),
                dmbe_index: 0,
                size: self.size,
                group: GroupId([0, 0, 1, 0]),
            }),
        }
    }
}

/// The PROPOSAL of a client with this device.
pub(crate) fn proposal_from(device: &dyn Direct) -> Vec<u8> {
    let device = DirectDevice::new(DeviceIndex(0), device.gid(), device.chid());
    let offer = ClientOffer::new(&HandshakeConfig::new(vec![device]), &TcpPath::default());
    offer.unwrap().bytes().to_vec()
}

/// Connects two hosts.
pub(crate) async fn meet(client: &Host, server: &Host) -> (Stream, Stream) {
    let (listener, at) = server.listen().await;
    let connect = client.endpoint.connect(at);
    let (ours, theirs) = future::zip(connect, listener.accept()).await;
    let (theirs, _) = theirs.unwrap();
    (ours.unwrap(), theirs)
}

/// The next stream of a listener, if there is one now.
pub(crate) fn accept_now(listener: &Listener) -> Option<(Stream, SocketAddr)> {
    let mut context = Context::from_waker(Waker::noop());
    match listener.poll_accept(&mut context) {
        Poll::Ready(accepted) => Some(accepted.unwrap()),
        Poll::Pending => None,
    }
}

/// The codes of why a stream is TCP; its mode has to report the same.
pub(crate) fn reason(stream: &Stream) -> Option<Codes> {
    let reason = stream.fallback_reason();
    assert_eq!(stream.mode().fallback_reason(), reason);
    assert_eq!(stream.mode().is_smc(), reason.is_none());
    assert_eq!(stream.state().is_some(), reason.is_none());
    reason.map(Codes::from)
}

/// The codes of a reason, ours and the peer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Codes {
    pub(crate) local: DeclineCode,
    pub(crate) peer: Option<DeclineCode>,
}

impl Codes {
    pub(crate) const fn local(local: DeclineCode) -> Self {
        Self { local, peer: None }
    }

    pub(crate) const fn peer_declined(peer: DeclineCode) -> Self {
        Self {
            local: DeclineCode::PEERDECL,
            peer: Some(peer),
        }
    }
}

impl From<FallbackReason> for Codes {
    fn from(reason: FallbackReason) -> Self {
        Self {
            local: reason.local,
            peer: reason.peer,
        }
    }
}

/// The codes of an error that states that SMC was required.
pub(crate) fn codes(error: &Error) -> Codes {
    match error {
        Error::Declined(reason) => reason.clone().into(),
        other => panic!("not declined, but {other}"),
    }
}

/// The kind that callers see.
pub(crate) fn kind(error: Error) -> io::ErrorKind {
    io::Error::from(error).kind()
}

/// Whether about so much time has passed: not less, and not a fifth more.
pub(crate) fn has_taken(now: Instant, since: Instant, time: Duration) -> bool {
    let taken = now.saturating_duration_since(since);
    taken >= time && taken < time.mul_f32(1.2)
}

pub(crate) fn anywhere() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

/// Bytes of application data in each direction.
const TALK: usize = 500;
