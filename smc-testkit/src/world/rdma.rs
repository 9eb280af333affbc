//! Hosts with RDMA devices on a virtual network.

use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use smc::info::RdmaGroupInfo;
use smc::{Builder, Endpoint, Listener, Mode, Stream};
use smc_core::device::{Device, RdmaAddress, RoceKind};
use smc_core::negotiate::Assume;
use smc_core::wire::types::{Eid, Mac, MtuCode, RoceGid};

use crate::memory_rdma::{MemoryRdma, RdmaNetwork, RdmaOptions};
use crate::runtime::{Options, VirtualRuntime};
use crate::streams;

/// A network with four addresses, and a virtual clock.
#[derive(Debug)]
pub struct RdmaWorld {
    runtime: VirtualRuntime,
    network: RdmaNetwork,
}

impl RdmaWorld {
    /// One whose every choice follows from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self::with_options(seed, Options::default())
    }

    /// The same with another TCP.
    #[must_use]
    pub fn with_options(seed: u64, options: Options) -> Self {
        let runtime = VirtualRuntime::with_options(seed, options);
        for last in 1..=4 {
            let address = Ipv4Addr::new(10, 0, 0, last);
            runtime.add_interface("v0", address.into(), 24);
        }
        let network = RdmaNetwork::with_clock(seed, runtime.handle());
        Self { runtime, network }
    }

    /// The runtime.
    pub fn runtime(&self) -> &VirtualRuntime {
        &self.runtime
    }

    /// The fabric.
    pub fn network(&self) -> &RdmaNetwork {
        &self.network
    }

    /// The time since it began.
    pub fn elapsed(&self) -> Duration {
        self.runtime.elapsed()
    }

    /// A device with one port, at 10.0.0.`last`.
    pub fn device(&self, name: &str, last: u8) -> Arc<MemoryRdma> {
        self.device_with_ports(name, &[last])
    }

    /// A device with a port at each of these addresses.
    pub fn device_with_ports(&self, name: &str, lasts: &[u8]) -> Arc<MemoryRdma> {
        self.device_at(name, 0, lasts)
    }

    /// The same at addresses in 10.0.`subnet`.0/24, which the interface may have to be given.
    pub fn device_at(&self, name: &str, subnet: u8, lasts: &[u8]) -> Arc<MemoryRdma> {
        let mut options = RdmaOptions::default();
        for (port, last) in (1..).zip(lasts) {
            let ip = Ipv4Addr::new(10, 0, subnet, *last);
            let gid = RoceGid::from_ipv4(ip);
            let mac = Mac::new([2, 0, 0, 0, subnet, *last]);
            let address = RdmaAddress::new(gid, RoceKind::V2, mac, MtuCode::MTU_1024)
                .with_interface("v0", 0)
                .with_port(port);
            options = options.with_address(address);
        }
        self.network.device_with(name, options)
    }

    /// An endpoint on these devices, with the EID of all.
    ///
    /// # Panics
    ///
    /// If it cannot be built.
    pub fn endpoint(&self, devices: &[&Arc<MemoryRdma>]) -> Endpoint {
        self.endpoint_with(devices, |builder| builder)
    }

    /// The same with another configuration.
    ///
    /// # Panics
    ///
    /// If it cannot be built.
    pub fn endpoint_with(
        &self,
        devices: &[&Arc<MemoryRdma>],
        more: impl FnOnce(Builder) -> Builder,
    ) -> Endpoint {
        let devices = devices
            .iter()
            .map(|device| Arc::clone(*device) as Arc<dyn Device>);
        self.endpoint_on(devices.collect(), |builder| more(builder.ueid(eid())))
    }

    /// An endpoint without any EID on any devices.
    ///
    /// # Panics
    ///
    /// If it cannot be built.
    pub fn endpoint_on(
        &self,
        devices: Vec<Arc<dyn Device>>,
        more: impl FnOnce(Builder) -> Builder,
    ) -> Endpoint {
        let mut builder = Builder::new()
            .runtime(self.runtime.handle())
            .negotiation(Arc::new(Assume::new()));
        for device in devices {
            builder = builder.device(device);
        }
        more(builder).build().expect("an endpoint")
    }

    /// One device on each of two hosts.
    ///
    /// # Panics
    ///
    /// If an endpoint cannot be built.
    pub fn hosts(&self) -> RdmaHosts {
        self.hosts_with(|builder| builder)
    }

    /// The same, configured both alike.
    ///
    /// # Panics
    ///
    /// If an endpoint cannot be built.
    pub fn hosts_with(&self, configure: impl Fn(Builder) -> Builder) -> RdmaHosts {
        let devices = vec![self.device("a0", 1), self.device("b0", 2)];
        let endpoint = |at: usize| self.endpoint_with(&[&devices[at]], &configure);
        RdmaHosts {
            client: endpoint(0),
            server: endpoint(1),
            devices,
        }
    }

    /// Two devices on each of two hosts: a0, b0, a1, b1.
    ///
    /// # Panics
    ///
    /// If an endpoint cannot be built.
    pub fn hosts_with_two_links(&self) -> RdmaHosts {
        let names = [("a0", 1), ("b0", 2), ("a1", 3), ("b1", 4)];
        let devices = names.map(|(name, last)| self.device(name, last)).to_vec();
        let endpoint = |at: usize| self.endpoint(&[&devices[at], &devices[at + 2]]);
        RdmaHosts {
            client: endpoint(0),
            server: endpoint(1),
            devices,
        }
    }

    /// Runs a scenario to its end.
    ///
    /// # Panics
    ///
    /// If it has none.
    pub fn block_on<T>(&self, scenario: impl Future<Output = T>) -> T {
        self.runtime.block_on(scenario)
    }

    /// Waits for a span of virtual time.
    pub async fn sleep(&self, time: Duration) {
        let handle = self.runtime.handle();
        handle.timer(handle.now() + time).await;
    }

    /// What a scenario comes to, and how much virtual time it takes.
    pub async fn timed<T>(&self, scenario: impl Future<Output = T>) -> (T, Duration) {
        let begin = self.elapsed();
        let result = scenario.await;
        (result, self.elapsed() - begin)
    }
}

/// Two hosts.
#[derive(Debug)]
#[expect(clippy::exhaustive_structs, reason = "tests take it apart")]
pub struct RdmaHosts {
    /// The host that connects.
    pub client: Endpoint,
    /// The host that listens.
    pub server: Endpoint,
    /// The devices of the client and of the server in turn.
    pub devices: Vec<Arc<MemoryRdma>>,
}

impl RdmaHosts {
    /// A listener at [`SERVER`].
    ///
    /// # Panics
    ///
    /// If there is one already.
    pub async fn listen(&self) -> Listener {
        self.server.bind(SERVER).await.expect("a free port")
    }

    /// A stream by a listener of its own: the client's end and the server's.
    ///
    /// # Panics
    ///
    /// If an end fails.
    pub async fn pair(&self) -> (Stream, Stream) {
        rdma_pair(&self.client, &self.server).await
    }

    /// Another stream by a listener.
    ///
    /// # Panics
    ///
    /// If an end fails.
    pub async fn connect(&self, listener: &Listener) -> (Stream, Stream) {
        streams::connect(&self.client, listener).await
    }
}

/// A stream by a listener of its own at [`SERVER`]: the client's end and the server's.
///
/// # Panics
///
/// If an end fails.
pub async fn rdma_pair(client: &Endpoint, server: &Endpoint) -> (Stream, Stream) {
    let listener = server.bind(SERVER).await.expect("a free port");
    streams::connect(client, &listener).await
}

/// The EID of all endpoints that do not say otherwise.
///
/// # Panics
///
/// Never: it is valid.
#[must_use]
pub fn eid() -> Eid {
    "TEST-EID".parse().expect("a valid EID")
}

/// Whether a stream uses RDMA.
pub fn is_smcr(stream: &Stream) -> bool {
    matches!(stream.mode(), Mode::SmcR { .. })
}

/// Whether the keys that the hosts of these groups know of each other, without connections, are
/// those of RMBs that stay announced; of none if they keep none.
#[must_use]
pub fn are_kept(groups: &[RdmaGroupInfo], keeps_rkeys: bool) -> bool {
    let sum = |of: fn(&RdmaGroupInfo) -> usize| groups.iter().map(of).sum::<usize>();
    let kept = sum(|group| group.kept);
    sum(|group| group.retiring) == 0
        && sum(|group| group.rtokens) == kept
        && (keeps_rkeys || kept == 0)
}

/// Where servers listen.
pub const SERVER: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)), 4000);
