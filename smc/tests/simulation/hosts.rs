//! Hosts: an endpoint with its devices and listener, on tasks of its own that can be stopped.

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use smc::info::RdmaGroupInfo;
use smc::{Endpoint, ListenOptions, Listener};
use smc_core::device::{Device, Rdma as _};
use smc_core::error::FallbackCause;
use smc_core::negotiate::{
    Candidate, Delivery, Negotiated, Negotiation, Offer, Published, Withdrawn,
};
use smc_core::runtime::{Runtime, Socket};
use smc_core::wire::types::Features;
use smc_testkit::memory_device::{MemDevice, MemFabric};
use smc_testkit::memory_rdma::MemoryRdma;
use smc_testkit::middleware::{Fault, Faults};
use smc_testkit::runtime::{EndingRuntime, Options, VirtualRuntime};
use smc_testkit::world::{RdmaWorld, ScriptedDevice, eid};

use super::connections::lock;
use super::schedule::{End, HostSetting, Ports, Setting};

/// What all hosts are on.
pub(crate) struct Networks {
    rdma: RdmaWorld,
    direct: MemFabric,
    pub(crate) options: SynOptions,
}

impl Networks {
    pub(crate) fn new(setting: &Setting) -> Self {
        let network = &setting.network;
        let micros = |most: u32| Duration::from_micros(most.into());
        let tcp = micros(network.tcp);
        let mut options = Options::default()
            .with_latency(tcp, tcp / 2)
            .with_max_steps(STEPS_MAX);
        if network.fragment > 0 {
            options = options.with_fragment(network.fragment as usize);
        }
        let rdma = RdmaWorld::with_options(setting.seed, options);
        let fabric = rdma.network();
        fabric.set_latency(micros(network.rdma), micros(network.rdma / 2));
        fabric.set_setup_time(micros(network.setup));
        let direct = MemFabric::new(setting.seed).with_nocopy(network.nocopy);
        Self {
            rdma,
            direct,
            options: SynOptions::default(),
        }
    }

    pub(crate) fn runtime(&self) -> &VirtualRuntime {
        self.rdma.runtime()
    }

    /// Gives the interface addresses, unless it has them.
    fn add_addresses(&self, subnet: u8, lasts: &[u8]) {
        let runtime = self.runtime();
        for last in lasts {
            let ip = IpAddr::from([10, 0, subnet, *last]);
            let interfaces = runtime.handle().interfaces();
            let mut known = interfaces.iter().flat_map(|one| &one.addresses);
            if !known.any(|(address, _)| *address == ip) {
                runtime.add_interface("v0", ip, 16);
            }
        }
    }

    pub(crate) fn rdma(&self) -> &RdmaWorld {
        &self.rdma
    }
}

/// One life of a host.
pub(crate) struct Host {
    pub(crate) index: usize,
    /// Of this life alone.
    pub(crate) runtime: Arc<EndingRuntime>,
    pub(crate) endpoint: Endpoint,
    pub(crate) direct: Option<DirectDevice>,
    pub(crate) rdma: Vec<(Arc<MemoryRdma>, Arc<Fault>)>,
    /// All ports of all RDMA devices.
    pub(crate) ports: Vec<(Arc<MemoryRdma>, u8)>,
    pub(crate) is_listening: AtomicBool,
    /// An event keeps it from listening.
    pub(crate) is_unlistened: AtomicBool,
    pub(crate) is_killed: AtomicBool,
    pub(crate) is_closed: AtomicBool,
    /// Ends of connections in use here.
    pub(crate) ends: AtomicUsize,
    early: usize,
}

/// An SMC-D device, what makes it slow, and what counts its objects.
pub(crate) struct DirectDevice {
    memory: Arc<MemDevice>,
    fault: Arc<Fault>,
    counted: Arc<ScriptedDevice>,
}

impl Host {
    /// The `life`-th life of a host. The network of each is its own.
    pub(crate) fn new(networks: &Networks, setting: &Setting, index: usize, life: u8) -> Arc<Self> {
        let configured = &setting.hosts[index];
        let seed = setting.seed ^ (index as u64 + 1) << 8 ^ u64::from(life);
        let direct = configured.direct.then(|| {
            let memory = networks.direct.device(&format!("d{index}"));
            let fault = Fault::new(Arc::<MemDevice>::clone(&memory), seed, Faults::default());
            let counted = Arc::new(ScriptedDevice::around(Arc::<Fault>::clone(&fault)));
            DirectDevice {
                memory,
                fault,
                counted,
            }
        });
        let device = |number: usize, lasts: &[u8]| {
            let name = format!("r{index}{number}");
            networks.add_addresses(life, lasts);
            let memory = networks.rdma.device_at(&name, life, lasts);
            let faults = Faults::default();
            let fault = Fault::new(Arc::<MemoryRdma>::clone(&memory), seed ^ 77, faults);
            (memory, fault)
        };
        let lasts = [gid_number(index, 0), gid_number(index, 1)];
        let rdma = match configured.rdma {
            Ports::None => Vec::new(),
            Ports::One => vec![device(0, &lasts[..1])],
            Ports::TwoDevices => vec![device(0, &lasts[..1]), device(1, &lasts[1..])],
            Ports::OneDevice => vec![device(0, &lasts)],
        };
        let port = |at: usize, number| (Arc::clone(&rdma[at].0), number);
        let ports = match configured.rdma {
            Ports::None => Vec::new(),
            Ports::One => vec![port(0, 1)],
            Ports::TwoDevices => vec![port(0, 1), port(1, 1)],
            Ports::OneDevice => vec![port(0, 1), port(0, 2)],
        };
        let mut devices: Vec<Arc<dyn Device>> = Vec::new();
        devices.extend(direct.iter().map(|all| Arc::clone(&all.counted) as _));
        devices.extend(rdma.iter().map(|(_, fault)| Arc::clone(fault) as _));
        let runtime = networks.runtime().ending();
        let endpoint = endpoint(networks, &runtime, devices, configured);
        Arc::new(Self {
            index,
            runtime,
            endpoint,
            direct,
            rdma,
            ports,
            is_listening: AtomicBool::new(false),
            is_unlistened: AtomicBool::new(false),
            is_killed: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            ends: AtomicUsize::new(0),
            early: configured.early.into(),
        })
    }

    pub(crate) async fn listen(&self) -> Result<Listener, smc::Error> {
        let options = ListenOptions::new().max_early_data(self.early);
        let at = SocketAddr::new(address(self.index), PORT);
        self.endpoint.bind_with(at, &options).await
    }

    /// Runs a task that uses an end of a connection, on this host.
    pub(crate) fn use_end(self: &Arc<Self>, task: impl Future<Output = ()> + Send + 'static) {
        self.ends.fetch_add(1, Ordering::Relaxed);
        let host = Arc::clone(self);
        self.runtime.spawn(Box::pin(async move {
            task.await;
            host.ends.fetch_sub(1, Ordering::Relaxed);
        }));
    }

    /// Nothing of this host runs or is reached any more.
    pub(crate) fn kill(&self, networks: &Networks) {
        self.is_killed.store(true, Ordering::Relaxed);
        self.runtime.pause();
        if let Some(device) = &self.direct {
            device.memory.leave();
        }
        self.rdma.iter().for_each(|(device, _)| device.leave());
        networks.runtime().end_host(address(self.index));
    }

    pub(crate) fn has_been_killed(&self) -> bool {
        self.is_killed.load(Ordering::Relaxed)
    }

    /// What makes the device of this number slow: the SMC-D device is the first.
    pub(crate) fn fault(&self, device: u8) -> Option<&Arc<Fault>> {
        let direct = self.direct.iter().map(|device| &device.fault);
        let mut all = direct.chain(self.rdma.iter().map(|(_, fault)| fault));
        all.nth(device.into())
    }

    pub(crate) fn remove_device(&self, device: u8) {
        let mut number = usize::from(device);
        if let Some(direct) = &self.direct {
            let Some(rest) = number.checked_sub(1) else {
                return direct.memory.remove();
            };
            number = rest;
        }
        if let Some((device, _)) = self.rdma.get(number) {
            device.remove();
        }
    }

    /// What is registered or attached at devices now.
    pub(crate) fn device_objects(&self) -> Vec<(&'static str, usize)> {
        let mut all = Vec::new();
        if let Some(device) = &self.direct {
            all.push(("buffers", device.counted.dmbs()));
            all.push(("attachments", device.counted.attachments()));
        }
        for (device, _) in &self.rdma {
            all.push(("queue pairs", device.links().len()));
            all.push(("registrations", device.registrations()));
        }
        all
    }

    /// Whether every link group has two links.
    pub(crate) fn has_two_links(&self) -> bool {
        self.endpoint.rdma_groups().iter().all(has_two_links)
    }

    /// One of several ports, which is not that of the only link of a group.
    pub(crate) fn spare_port(&self) -> Option<(Arc<MemoryRdma>, u8)> {
        let groups = self.endpoint.rdma_groups();
        let only = groups.iter().filter(|group| !has_two_links(group));
        let gids: Vec<_> = only
            .flat_map(|group| &group.links)
            .filter_map(|link| Some(link.local?.gid))
            .collect();
        let is_spare = |(device, port): &&(Arc<MemoryRdma>, u8)| {
            let addresses = device.addresses();
            let mut here = addresses.iter().filter(|address| address.port == *port);
            here.all(|address| !gids.contains(&address.gid))
        };
        match self.ports.len() {
            0 | 1 => None,
            _ => self.ports.iter().find(is_spare).cloned(),
        }
    }
}

fn has_two_links(group: &RdmaGroupInfo) -> bool {
    let links = group.links.iter();
    let active = links.filter(|link| link.state.name() == "ACTIVE");
    active.count() == 2 && group.links.len() == 2
}

fn endpoint(
    networks: &Networks,
    runtime: &Arc<EndingRuntime>,
    devices: Vec<Arc<dyn Device>>,
    setting: &HostSetting,
) -> Endpoint {
    let kib = |size: u16| usize::from(size).max(16) * 1024;
    let memory = match setting.memory {
        // Not that of the process, which other runs have a part of.
        0 => 1 << 30,
        limit => limit as usize * 1024,
    };
    let mut builder = smc::Builder::new()
        .runtime(Arc::<EndingRuntime>::clone(runtime))
        .negotiation(Arc::new(networks.options.clone()))
        .fast_open(setting.fast_open)
        .ueid(eid())
        .recv_buffer(kib(setting.receive))
        .send_buffer(kib(setting.send))
        .memory_limit(memory)
        .close_timeout(CLOSE_TIMEOUT)
        .vendor_features(Features::from_bits_retain(setting.features))
        // That looks at a clock of its own.
        .polling(Duration::ZERO);
    // Reports to other processes are not part of the simulation.
    #[cfg(feature = "introspection")]
    {
        builder = builder.introspection(false);
    }
    for device in devices {
        builder = builder.device(device);
    }
    if setting.max_links > 0 {
        builder = builder.max_links(setting.max_links);
    }
    if setting.max_conns > 0 {
        builder = builder.max_connections_per_group(setting.max_conns);
    }
    if setting.rkeys_in_flight > 0 {
        builder = builder.rkeys_in_flight(setting.rkeys_in_flight.into());
    }
    builder.build().expect("all settings make sense")
}

/// The SMC option of TCP: all clients have it in their SYNs, but those with a port that says
/// otherwise, and all listeners in their SYN-ACKs. The network may remove it.
#[derive(Clone, Debug, Default)]
pub(crate) struct SynOptions {
    lost: Arc<Mutex<Vec<LostOption>>>,
}

/// An option that is removed.
#[derive(Debug)]
struct LostOption {
    /// The client, once there is one.
    client: Arc<OnceLock<SocketAddr>>,
    /// Whether the server does not see it, nor the client.
    is_lost: [bool; 2],
}

impl SynOptions {
    /// Removes the option of the SYN-ACK of a client, and of its SYN as well if `of_syn`.
    pub(crate) fn lose(&self, client: Arc<OnceLock<SocketAddr>>, of_syn: bool) {
        let is_lost = [of_syn, true];
        lock(&self.lost).push(LostOption { client, is_lost });
    }

    /// The client's next connection is another one.
    fn forget(&self, client: SocketAddr) {
        lock(&self.lost).retain(|one| one.client.get() != Some(&client));
    }

    /// Whether the option does not arrive at the server, or else at the client.
    fn is_lost(&self, client: SocketAddr, at: End) -> bool {
        let mut lost = lock(&self.lost);
        let mut of_client = lost
            .iter_mut()
            .filter(|one| one.client.get() == Some(&client));
        let at = usize::from(at == End::Client);
        of_client.any(|one| std::mem::take(&mut one.is_lost[at]))
    }
}

#[async_trait]
impl Negotiation for SynOptions {
    async fn look_up(
        &self,
        _: &Arc<dyn Runtime>,
        _: SocketAddr,
    ) -> Result<Candidate, FallbackCause> {
        let options = self.clone();
        Ok(Candidate::new(move |socket, _, _| {
            options.forget(socket.local);
            Ok(Box::new(options.clone()))
        }))
    }

    fn publish(
        &self,
        _: &Arc<dyn Runtime>,
        _: SocketAddr,
        _: Option<std::os::fd::BorrowedFd<'_>>,
    ) -> Result<Arc<dyn Published>, FallbackCause> {
        Ok(Arc::new(self.clone()))
    }
}

impl Offer for SynOptions {
    fn connected(&mut self, socket: &dyn Socket) -> Delivery {
        let client = socket.local_addr().expect("a virtual socket has one");
        match self.is_lost(client, End::Client) {
            true => Delivery::Plain,
            false => Delivery::OnTcp,
        }
    }

    fn withdraw(&mut self) -> Withdrawn {
        Withdrawn::Taken
    }
}

impl Published for SynOptions {
    fn negotiated(&self, _: &dyn Socket, peer: SocketAddr) -> Negotiated {
        match PLAIN_PORTS.contains(&peer.port()) || self.is_lost(peer, End::Server) {
            true => Negotiated::Plain(FallbackCause::NoSynOption),
            false => Negotiated::Clc,
        }
    }

    fn dismiss(
        &self,
        socket: &dyn Socket,
        peer: SocketAddr,
        _: smc_core::error::Refusal,
    ) -> Negotiated {
        self.negotiated(socket, peer)
    }
}

/// The address of a host.
pub(crate) fn address(index: usize) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, gid_number(index, 0)).into()
}

/// The last byte of the address of a port.
fn gid_number(index: usize, port: u8) -> u8 {
    u8::try_from(index % 20).unwrap_or(0) * 10 + 1 + port
}

/// Where hosts listen.
pub(crate) const PORT: u16 = 4000;

/// The client's port of the connection 0, and of the following ones.
pub(crate) const SMC_PORT: u16 = 20_000;

/// The same of connections without an offer.
pub(crate) const PLAIN_PORT: u16 = 24_000;

const PLAIN_PORTS: std::ops::Range<u16> = PLAIN_PORT..PLAIN_PORT + 256;

pub(crate) const CLOSE_TIMEOUT: Duration = Duration::from_secs(60);

/// Polls of tasks, after which a run counts as endless.
const STEPS_MAX: u64 = 5_000_000;
