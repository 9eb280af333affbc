//! The local RDMA addresses with their networks, and the choice for a TCP connection.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use smc_wire::types::{Mac, PeerId, PnetId, RoceGid};

use super::super::groups::Groups;
use super::super::runtime::{NetworkInterface, PnetEntry, Runtime};
use crate::device::{RdmaAddress, RoceKind, Route};
use crate::mutex::Mutex;
use crate::proto::handshake::{
    HandshakeConfig, Interface, RdmaConfig, RdmaPort, Routes, Subnet, TcpPath,
};
use crate::proto::links::PortCandidate;

/// The RDMA ports and interfaces of this host, as far as an endpoint has devices for them.
#[derive(Debug, Default)]
pub(crate) struct RdmaPorts {
    /// The last scan; repeated when a device reports a change.
    known: Mutex<Option<PortScan>>,
    peer_id: OnceLock<PeerId>,
    /// PNET IDs of network interfaces, by configuration.
    pub(crate) pnet_ids: Vec<(String, PnetId)>,
    pub(crate) max_links: Option<u8>,
    pub(crate) max_conns: Option<u8>,
    /// Clients offer SMC-R v2 over IPv6.
    pub(crate) offers_ipv6: bool,
}

/// The result of a scan, which takes a dozen system calls.
#[derive(Debug)]
struct PortScan {
    at: Instant,
    interfaces: Arc<Vec<NetworkInterface>>,
    /// The kernel's PNET table.
    pnet_table: Vec<PnetEntry>,
    ports: Arc<Vec<RdmaPort>>,
    /// The configuration for handshakes, made at the first use, behind what it was made from.
    config: Option<[Arc<HandshakeConfig>; 2]>,
}

impl RdmaPorts {
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
        config.offers_ipv6 = self.offers_ipv6;
        Some(config)
    }

    /// Discards the scan after a change of a device's addresses.
    pub(crate) fn refresh(&self) {
        *self.known.lock() = None;
    }

    /// The PNET ID of an interface, or of the device below it: by configuration, or in the kernel's
    /// table.
    fn pnet_id(&self, table: &[PnetEntry], interface: &NetworkInterface) -> Option<PnetId> {
        let configured = |wanted: &str| {
            let found = self.pnet_ids.iter().find(|(name, _)| name == wanted);
            found.map(|(_, id)| *id)
        };
        let in_table = |wanted: &str| {
            let is_of = |entry: &&PnetEntry| entry.interface.as_deref() == Some(wanted);
            PnetId::new(&table.iter().find(is_of)?.pnet_id)
        };
        let names = [&*interface.name, &*interface.base];
        let found = names.into_iter().find_map(configured);
        found.or_else(|| names.into_iter().find_map(in_table))
    }
}

/// The PNET ID of a port of a device in the kernel's table.
fn pnet_id_of_port(table: &[PnetEntry], device: &str, port: u8) -> Option<PnetId> {
    let found = table.iter().find(|entry| {
        entry.device.as_deref() == Some(device) && entry.port.is_none_or(|own| own == port)
    });
    PnetId::new(&found?.pnet_id)
}

/// The port with this address, whatever its MTU is now.
fn port_at<'a>(ports: &'a [RdmaPort], address: &RdmaAddress) -> Option<&'a RdmaPort> {
    let key = |address: &RdmaAddress| (address.kind, address.gid, address.vlan);
    ports.iter().find(|port| key(&port.address) == key(address))
}

impl Groups {
    /// The configuration for handshakes: `base`, which has the devices of SMC-D, with the ports
    /// that are active.
    pub(crate) fn with_rdma(&self, base: &Arc<HandshakeConfig>) -> Arc<HandshakeConfig> {
        let mut known = self.ports.known.lock();
        let known = self.port_scan(&mut known);
        if let Some([of, config]) = &known.config {
            if Arc::ptr_eq(of, base) {
                return Arc::clone(config);
            }
        }
        let config = match self.ports.rdma_config(&known.ports) {
            Some(mut rdma) => {
                rdma.routes = Some(Arc::new(self.routes(&known.interfaces)));
                let mut config = HandshakeConfig::clone(base);
                config.rdma = Some(rdma);
                Arc::new(config)
            }
            None => Arc::clone(base),
        };
        known.config = Some([Arc::clone(base), Arc::clone(&config)]);
        config
    }

    /// The physical network of the port with this address, while it is active.
    pub(crate) fn pnet_id_of(&self, address: &RdmaAddress) -> Option<PnetId> {
        let (ports, _) = self.ports_and_routes();
        port_at(&ports, address)?.pnet_id
    }

    /// Candidates for links of a group to a peer with this GID: the address of the first link
    /// (`like`) while its port is active, and one of each other physical port of its network,
    /// `pnet_id`.
    pub(crate) fn candidates(
        &self,
        like: &RdmaAddress,
        pnet_id: Option<PnetId>,
        peer: RoceGid,
    ) -> Vec<PortCandidate> {
        let (ports, routes) = self.ports_and_routes();
        let own = port_at(&ports, like);
        let mut found: Vec<&RdmaPort> = own.into_iter().collect();
        for port in ports.iter() {
            let is_known = found.iter().any(|known| routes.is_same_port(known, port));
            if !is_known
                && port.address.is_of_family(like.gid)
                && port.pnet_id == pnet_id
                && (port.address.kind, port.address.vlan) == (like.kind, like.vlan)
                && (pnet_id.is_some() || routes.is_in_network(port, own, peer))
            {
                found.push(port);
            }
        }
        found
            .into_iter()
            .map(|port| PortCandidate {
                device: port.device,
                address: port.address.clone(),
            })
            .collect()
    }

    /// The route of a link between two GIDs, if they have addresses of IP.
    pub(crate) fn link_route(&self, local: RoceGid, peer: RoceGid) -> Option<Route> {
        let (ports, routes) = self.ports_and_routes();
        let port = ports.iter().find(|port| port.address.gid == local)?;
        let (to, address) = (peer.ip()?, &port.address);
        let by_port = routes.by_port(address, to);
        by_port.or_else(|| routes.route(address, to))
    }

    fn ports_and_routes(&self) -> (Arc<Vec<RdmaPort>>, HostRoutes) {
        let mut known = self.ports.known.lock();
        let known = self.port_scan(&mut known);
        (Arc::clone(&known.ports), self.routes(&known.interfaces))
    }

    fn routes(&self, interfaces: &Arc<Vec<NetworkInterface>>) -> HostRoutes {
        HostRoutes {
            runtime: Arc::clone(&self.runtime),
            interfaces: Arc::clone(interfaces),
        }
    }

    /// The path of a TCP connection, for the handshake.
    pub(crate) fn tcp_path(&self, local: Option<SocketAddr>, peer: SocketAddr) -> TcpPath {
        let Some(local) = local else {
            return TcpPath::default();
        };
        let now = self.runtime.now();
        let mut known = self.ports.known.lock();
        // Devices report changes of their own interfaces only.
        let is_of_use = |scan: &mut PortScan| {
            let age = now.saturating_duration_since(scan.at);
            let is_known = || interface_of(&scan.interfaces, local.ip()).is_some();
            age < RESCAN_MIN || age <= SCAN_AGE && is_known()
        };
        known.take_if(|scan| !is_of_use(scan));
        let scan = self.port_scan(&mut known);
        let path = match interface_of(&scan.interfaces, local.ip()) {
            Some(interface) => {
                let pnet_id = self.ports.pnet_id(&scan.pnet_table, interface);
                let known = Interface::new(subnets_of(interface), pnet_id);
                let mut path = TcpPath::over(known.with_name(&interface.base));
                path.vlan = interface.vlan;
                path
            }
            None => TcpPath {
                vlan_unknown: true,
                ..TcpPath::default()
            },
        };
        path.with_addresses(local.ip(), peer.ip())
    }

    /// The last scan, or a new one.
    fn port_scan<'a>(&self, known: &'a mut Option<PortScan>) -> &'a mut PortScan {
        known.get_or_insert_with(|| {
            let interfaces = self.runtime.interfaces();
            let pnet_table = self.runtime.pnet_table();
            PortScan {
                at: self.runtime.now(),
                ports: Arc::new(self.active_ports(&interfaces, &pnet_table)),
                interfaces: Arc::new(interfaces),
                pnet_table,
                config: None,
            }
        })
    }

    fn active_ports(&self, all: &[NetworkInterface], table: &[PnetEntry]) -> Vec<RdmaPort> {
        let mut ports = Vec::new();
        for (index, driver) in self.drivers() {
            let Some(rdma) = driver
                .device
                .operations()
                .rdma()
                .filter(|_| !driver.is_gone())
            else {
                continue;
            };
            let device = driver.device.identity();
            for address in rdma.addresses() {
                let interface = named(all, address.interface.as_deref());
                let pnet_id = device
                    .pnet_id
                    .or_else(|| pnet_id_of_port(table, &device.name, address.port))
                    .or_else(|| self.ports.pnet_id(table, interface?));
                ports.push(RdmaPort {
                    device: index,
                    address,
                    pnet_id,
                    subnets: interface.map(subnets_of).unwrap_or_default(),
                    base: interface.map(|interface| interface.base.clone()),
                });
            }
        }
        ports
    }
}

/// The routes of this host, from the ports of a scan.
#[derive(Debug)]
struct HostRoutes {
    runtime: Arc<dyn Runtime>,
    interfaces: Arc<Vec<NetworkInterface>>,
}

impl Routes for HostRoutes {
    fn route(&self, from: &RdmaAddress, to: IpAddr) -> Option<Route> {
        self.find(from, to, None)
    }

    fn by_port(&self, from: &RdmaAddress, to: IpAddr) -> Option<Route> {
        let interface = named(&self.interfaces, from.interface.as_deref())?;
        self.find(from, to, Some(interface.index))
    }
}

impl HostRoutes {
    fn find(&self, from: &RdmaAddress, to: IpAddr, by: Option<u32>) -> Option<Route> {
        let from = from.gid.ip().filter(|ip| ip.is_ipv4() == to.is_ipv4())?;
        let route = self.runtime.route(from, to, by)?;
        Some(match route.has_gateway {
            true => Route::Gateway,
            false => Route::SameSubnet,
        })
    }

    /// Whether two addresses are those of one physical port: of one device, or of several that are
    /// stacked on one interface or are functions of one card.
    fn is_same_port(&self, one: &RdmaPort, two: &RdmaPort) -> bool {
        if one.device == two.device {
            return one.address.port == two.address.port;
        }
        let interface =
            |port: &RdmaPort| named(&self.interfaces, port.address.interface.as_deref());
        let (Some(one), Some(two)) = (interface(one), interface(two)) else {
            return false;
        };
        let port_id = one.physical_port.as_ref();
        // The two devices of one interface are no reason to do without one of them.
        let is_stacked = one.index != two.index && one.base == two.base;
        is_stacked || port_id.is_some_and(|port| Some(port) == two.physical_port.as_ref())
    }

    /// Whether a port reaches the network of a peer by itself.
    fn is_in_network(&self, port: &RdmaPort, own: Option<&RdmaPort>, peer: RoceGid) -> bool {
        if let (RoceKind::V2, Some(peer)) = (port.address.kind, peer.ip()) {
            return self.by_port(&port.address, peer).is_some();
        }
        // Version 1 does not leave the subnet.
        let addresses = own.into_iter().flat_map(|own| &own.subnets);
        let mut addresses = addresses.map(Subnet::address);
        addresses.any(|address| port.subnets.iter().any(|subnet| subnet.contains(address)))
    }
}

fn named<'a>(all: &'a [NetworkInterface], name: Option<&str>) -> Option<&'a NetworkInterface> {
    all.iter().find(|interface| Some(&*interface.name) == name)
}

/// The interface that has this address.
fn interface_of(all: &[NetworkInterface], address: IpAddr) -> Option<&NetworkInterface> {
    let address = address.to_canonical();
    all.iter().find(|interface| {
        let mut addresses = interface.addresses.iter();
        addresses.any(|(own, _)| *own == address)
    })
}

/// The subnets of one interface. Link-local ones are the same everywhere, and prove nothing.
fn subnets_of(interface: &NetworkInterface) -> Vec<Subnet> {
    let is_usable = |address: &IpAddr| match address {
        IpAddr::V4(_) => true,
        IpAddr::V6(address) => !address.is_unicast_link_local(),
    };
    let addresses = interface.addresses.iter();
    let usable = addresses.filter(|(address, _)| is_usable(address));
    usable
        .map(|(address, bits)| Subnet::new(*address, *bits))
        .collect()
}

/// Identifies this instance: random, so that two processes of a host differ, and the port's MAC.
fn peer_id(mac: Mac) -> PeerId {
    // Without randomness the process ID is used.
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let random = crate::random::bytes().unwrap_or([high, low]);
    PeerId::new(u16::from_be_bytes(random).max(1), mac)
}

/// Minimum time between two scans for interfaces that are not in the last one: a client can connect
/// to an address that no interface has, as often as it likes.
const RESCAN_MIN: Duration = Duration::from_millis(100);

/// Maximum age of a scan: most interfaces change without a report.
const SCAN_AGE: Duration = Duration::from_secs(5);
