//! Two hosts with RDMA devices on a virtual network.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures_lite::{AsyncReadExt, AsyncWriteExt, future};
use smc::{Builder, Endpoint, Listener, Mode, Stream};
use smc_core::device::{Device, RdmaAddress, RoceKind};
use smc_core::negotiate::Assume;
use smc_core::proto::handshake::Subnet;
use smc_core::wire::types::{Eid, Mac, MtuCode, RoceGid};
use smc_testkit::memory_rdma::{MemoryRdma, RdmaOptions, RdmaWire};
use smc_testkit::runtime::{Options, VirtualRuntime};

/// A network with two hosts.
pub(crate) struct World {
    pub(crate) runtime: VirtualRuntime,
    pub(crate) wire: RdmaWire,
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        Self::with_options(seed, Options::default())
    }

    pub(crate) fn with_options(seed: u64, options: Options) -> Self {
        let runtime = VirtualRuntime::with_options(seed, options);
        for last in 1..=4 {
            runtime.add_interface("v0", Subnet::V4(Ipv4Addr::new(10, 0, 0, last), 24));
        }
        let wire = RdmaWire::with_clock(seed, runtime.handle());
        Self { runtime, wire }
    }

    /// A device with one port, at 10.0.0.`last`.
    pub(crate) fn device(&self, name: &str, last: u8) -> Arc<MemoryRdma> {
        self.device_with_ports(name, &[last])
    }

    /// A device with a port at each of these addresses.
    pub(crate) fn device_with_ports(&self, name: &str, lasts: &[u8]) -> Arc<MemoryRdma> {
        let mut options = RdmaOptions::default();
        for (port, last) in (1..).zip(lasts) {
            let gid = RoceGid::from_ipv4(Ipv4Addr::new(10, 0, 0, *last));
            let mac = Mac::new([2, 0, 0, 0, 0, *last]);
            let mtu = MtuCode::for_bytes(1024).expect("a size there is");
            let address = RdmaAddress::new(gid, RoceKind::V2, mac, mtu)
                .with_interface("v0", 0)
                .with_port(port);
            options = options.with_address(address);
        }
        self.wire.device_with(name, options)
    }

    pub(crate) fn endpoint(&self, devices: &[&Arc<MemoryRdma>]) -> Endpoint {
        self.endpoint_with(devices, |builder| builder)
    }

    pub(crate) fn endpoint_with(
        &self,
        devices: &[&Arc<MemoryRdma>],
        more: impl FnOnce(Builder) -> Builder,
    ) -> Endpoint {
        let devices = devices
            .iter()
            .map(|device| Arc::clone(*device) as Arc<dyn Device>);
        self.endpoint_on(devices.collect(), |builder| more(builder.ueid(eid())))
    }

    /// An endpoint without any EID on these devices.
    pub(crate) fn endpoint_on(
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
    pub(crate) fn pair(&self) -> (Endpoint, Endpoint) {
        self.pair_with(|builder| builder)
    }

    /// The same, configured both alike.
    pub(crate) fn pair_with(&self, configure: impl Fn(Builder) -> Builder) -> (Endpoint, Endpoint) {
        let (a, b) = (self.device("a0", 1), self.device("b0", 2));
        let endpoint = |device| self.endpoint_with(&[device], &configure);
        (endpoint(&a), endpoint(&b))
    }

    pub(crate) fn block_on<T>(&self, scenario: impl Future<Output = T>) -> T {
        self.runtime.block_on(scenario)
    }

    pub(crate) async fn sleep(&self, time: Duration) {
        let handle = self.runtime.handle();
        handle.timer(handle.now() + time).await;
    }
}

/// Where servers listen.
pub(crate) fn server_address() -> SocketAddr {
    (Ipv4Addr::new(10, 0, 0, 2), 4000).into()
}

pub(crate) async fn listen(server: &Endpoint) -> Listener {
    server.bind(server_address()).await.expect("a free port")
}

/// A client's stream and its server's.
pub(crate) async fn connect(client: &Endpoint, listener: &Listener) -> (Stream, Stream) {
    let connecting = async { client.connect(server_address()).await.expect("connects") };
    let accepting = async { listener.accept().await.expect("accepts").0 };
    future::zip(connecting, accepting).await
}

/// The EID of all endpoints that do not say otherwise.
pub(crate) fn eid() -> Eid {
    "TEST-EID".parse().expect("a valid EID")
}

pub(crate) fn is_smcr(stream: &Stream) -> bool {
    matches!(stream.mode(), Mode::SmcR { .. })
}

/// Bytes that tell where they belong.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + at / 251) as u8).collect()
}

/// Sends all of it one way and compares what arrives.
pub(crate) async fn transfer(from: &mut Stream, to: &mut Stream, len: usize) {
    let data = pattern(len);
    let mut got = vec![0; len];
    let (sent, received) = future::zip(from.write_all(&data), to.read_exact(&mut got)).await;
    sent.expect("writes");
    received.expect("reads");
    assert!(got == data, "what arrives is not what was sent");
}
