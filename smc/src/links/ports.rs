//! The local RDMA addresses with their networks, and the choice for a TCP connection.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use smc_wire::types::{Mac, PeerId, PnetId};

use super::super::device_driver::DeviceDriver;
use super::super::runtime::{InterfaceAddress, Runtime};
use crate::device::{RdmaAddress, RoceKind};
use crate::mutex::Mutex;
use crate::proto::group::DeviceIndex;
use crate::proto::handshake::{HandshakeConfig, Interface, RdmaConfig, RdmaPort, Subnet, TcpPath};
use crate::proto::links::PortCandidate;

/// The RDMA ports and interfaces of this host, as far as an endpoint has devices for them.
#[derive(Default)]
pub(crate) struct RdmaPorts {
    /// The last scan; repeated when a device reports a change.
    known: Mutex<Option<PortScan>>,
    peer_id: OnceLock<PeerId>,
    /// PNET IDs of network interfaces, by configuration.
    pnet_ids: Vec<(String, PnetId)>,
    max_links: Option<u8>,
    max_conns: Option<u8>,
}

/// The result of a scan, which takes a dozen system calls.
struct PortScan {
    at: Instant,
    interfaces: Arc<Vec<InterfaceAddress>>,
    ports: Arc<Vec<RdmaPort>>,
    /// The configuration for handshakes, made at the first use.
    config: Option<Arc<HandshakeConfig>>,
}

impl RdmaPorts {
    pub(crate) fn new(
        pnet_ids: Vec<(String, PnetId)>,
        max_links: Option<u8>,
        max_conns: Option<u8>,
    ) -> Self {
        Self {
            pnet_ids,
            max_links,
            max_conns,
            ..Self::default()
        }
    }

    /// The configuration for handshakes: `base`, which is constant, with the ports that are active.
    pub(crate) fn config(
        &self,
        runtime: &dyn Runtime,
        drivers: &[Arc<DeviceDriver>],
        base: &Arc<HandshakeConfig>,
    ) -> Arc<HandshakeConfig> {
        let mut known = self.known.lock();
        let known = self.known(&mut known, runtime, drivers);
        let config = known.config.get_or_insert_with(|| {
            let Some(rdma) = self.rdma_config(&known.ports) else {
                return Arc::clone(base);
            };
            let mut config = HandshakeConfig::clone(base);
            config.rdma = Some(rdma);
            Arc::new(config)
        });
        Arc::clone(config)
    }

    /// `None` without an active port.
    fn rdma_config(&self, ports: &[RdmaPort]) -> Option<RdmaConfig> {
        let first = ports.first()?.address.mac;
        let peer_id = *self.peer_id.get_or_init(|| peer_id(first));
        let mut config = RdmaConfig::new(peer_id, ports.to_vec());
        if let Some(max) = self.max_links {
            config.max_links = max;
        }
        if let Some(max) = self.max_conns {
            config.max_conns = max;
        }
        Some(config)
    }

    /// Candidates for further links of a group whose first one is at this address.
    pub(crate) fn candidates(
        &self,
        runtime: &dyn Runtime,
        drivers: &[Arc<DeviceDriver>],
        like: &RdmaAddress,
    ) -> Vec<PortCandidate> {
        let ports = {
            let mut known = self.known.lock();
            Arc::clone(&self.known(&mut known, runtime, drivers).ports)
        };
        let first = ports.iter().find(|port| port.address.gid == like.gid);
        let pnet_id = first.and_then(|port| port.pnet_id);
        let fits = |port: &&RdmaPort| {
            let address = &port.address;
            port.pnet_id == pnet_id
                && address.kind == like.kind
                && (address.kind == RoceKind::V1 || address.gid.ipv4().is_some())
        };
        let fitting = ports.iter().filter(fits);
        fitting
            .map(|port| PortCandidate {
                device: port.device,
                address: port.address.clone(),
            })
            .collect()
    }

    /// Discards the scan after a change of a device's addresses.
    pub(crate) fn refresh(&self) {
        *self.known.lock() = None;
    }

    /// The path of a TCP connection, for the handshake.
    pub(crate) fn path(
        &self,
        runtime: &dyn Runtime,
        drivers: &[Arc<DeviceDriver>],
        local: Option<SocketAddr>,
        peer: SocketAddr,
    ) -> TcpPath {
        let Some(local) = local else {
            return TcpPath::default();
        };
        let all = self.interfaces(runtime, drivers, local.ip());
        let path = match interface_of(&all, local.ip()) {
            Some(name) => {
                let pnet_id = self.pnet_id(name);
                let subnets = subnets_of(&all, name);
                TcpPath::over(Interface::new(subnets, pnet_id).with_name(name))
            }
            None => TcpPath::default(),
        };
        path.with_addresses(local.ip(), peer.ip())
    }

    /// The interfaces, including the one of this address if it exists. Devices report changes of
    /// their own interfaces only.
    fn interfaces(
        &self,
        runtime: &dyn Runtime,
        drivers: &[Arc<DeviceDriver>],
        address: IpAddr,
    ) -> Arc<Vec<InterfaceAddress>> {
        let now = runtime.now();
        let mut known = self.known.lock();
        let all = Arc::clone(&self.known(&mut known, runtime, drivers).interfaces);
        let age = |known: &PortScan| now.saturating_duration_since(known.at);
        let is_old = known
            .as_ref()
            .is_none_or(|known| age(known) > INTERFACES_AGE);
        if !is_old && interface_of(&all, address).is_some() {
            return all;
        }
        let all = Arc::new(runtime.interfaces());
        if let Some(known) = &mut *known {
            known.interfaces = Arc::clone(&all);
            known.at = now;
        }
        all
    }

    fn known<'a>(
        &self,
        known: &'a mut Option<PortScan>,
        runtime: &dyn Runtime,
        drivers: &[Arc<DeviceDriver>],
    ) -> &'a mut PortScan {
        known.get_or_insert_with(|| {
            let interfaces = runtime.interfaces();
            PortScan {
                at: runtime.now(),
                ports: Arc::new(self.look(&interfaces, drivers)),
                interfaces: Arc::new(interfaces),
                config: None,
            }
        })
    }

    fn look(&self, all: &[InterfaceAddress], drivers: &[Arc<DeviceDriver>]) -> Vec<RdmaPort> {
        let mut ports = Vec::new();
        for (index, driver) in drivers.iter().enumerate() {
            let Some(rdma) = driver
                .device()
                .fabric()
                .rdma()
                .filter(|_| !driver.is_gone())
            else {
                continue;
            };
            for address in rdma.addresses() {
                let interface = address.interface.clone().unwrap_or_default();
                let subnets = subnets_of(all, &interface);
                let own = driver.device().identity().pnet_id;
                let pnet_id = own.or_else(|| self.pnet_id(&interface));
                let port = RdmaPort::new(DeviceIndex(index), address, subnets);
                ports.push(port.with_pnet_id(pnet_id).with_gateway(true));
            }
        }
        ports
    }

    fn pnet_id(&self, interface: &str) -> Option<PnetId> {
        let found = self.pnet_ids.iter().find(|(name, _)| name == interface);
        found.map(|(_, id)| *id)
    }
}

/// The interface that has this address.
fn interface_of(all: &[InterfaceAddress], address: IpAddr) -> Option<&str> {
    let address = address.to_canonical();
    let has = |subnet: &Subnet| match *subnet {
        Subnet::V4(own, _) => address == own,
        Subnet::V6(own, _) => address == own,
    };
    let found = all.iter().find(|interface| has(&interface.subnet));
    found.map(|interface| interface.name.as_str())
}

/// The subnets of one interface.
fn subnets_of(all: &[InterfaceAddress], name: &str) -> Vec<Subnet> {
    let found = all.iter().filter(|interface| interface.name == name);
    found.map(|interface| interface.subnet).collect()
}

/// Identifies this instance: random, so that two processes of a host differ, and the port's MAC.
fn peer_id(mac: Mac) -> PeerId {
    // Without randomness the process ID is used.
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let random = crate::random::bytes().unwrap_or([high, low]);
    PeerId::new(u16::from_be_bytes(random).max(1), mac)
}

/// Maximum age of a scan of interfaces that no device reports.
const INTERFACES_AGE: Duration = Duration::from_secs(5);
