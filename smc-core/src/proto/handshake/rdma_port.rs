//! The ports of SMC-R, and the choice of the one for a connection (docs/spec/handshake.md#port).

use core::fmt::Debug;
use core::net::IpAddr;
use std::sync::Arc;

use smc_wire::types::{Features, PeerId, PnetId, RoceGid, Version};

use super::{Subnet, TcpPath};
use crate::device::{RdmaAddress, RoceKind, Route};
use crate::proto::group::DeviceIndex;

/// The abilities of this host with SMC-R, the same for all handshakes.
#[derive(Clone, Debug)]
pub struct RdmaConfig {
    /// Addresses of active ports, in order of preference.
    pub ports: Vec<RdmaPort>,
    /// Names this instance. It must stay the same in all handshakes, and two processes that do not
    /// share their link groups must not have the same.
    pub peer_id: PeerId,
    /// Connections per link group to offer or accept, 16..=255.
    pub max_conns: u8,
    /// Links per link group to offer or accept, 1..=2.
    pub max_links: u8,
    /// Whether SMC-R v1 is offered and accepted. It needs an address of kind
    /// [`RoceKind::V1`] and an interface whose subnets are known.
    pub v1: bool,
    /// Whether a client with [`Features::RDMA_IPV6`] offers SMC-R v2 over IPv6. Servers without the
    /// feature get that offer as well, and decline it (docs/spec/extensions.md#smc-r-over-ipv6).
    pub offers_ipv6: bool,
    /// Routes of the host; without, the subnets of the ports are all that is reached.
    pub routes: Option<Arc<dyn Routes>>,
}

impl RdmaConfig {
    /// Connections per link group that every peer has to support (v2.1).
    pub const MIN_CONNS: u8 = 16;

    /// Most regular links of a link group.
    pub const MAX_LINKS: u8 = 2;

    /// A host with these addresses: 255 connections per link group, and two links if there are
    /// two ports that can be in one group.
    #[must_use]
    pub fn new(peer_id: PeerId, ports: Vec<RdmaPort>) -> Self {
        let has_two = ports
            .iter()
            .any(|one| ports.iter().any(|two| one.is_alternate_of(two)));
        Self {
            max_links: if has_two { 2 } else { 1 },
            ports,
            peer_id,
            max_conns: u8::MAX,
            v1: true,
            offers_ipv6: false,
            routes: None,
        }
    }

    /// Connections and links per link group, within what the protocol allows.
    pub(super) fn limits(&self) -> LinkLimits {
        LinkLimits {
            conns: self.max_conns.max(Self::MIN_CONNS),
            links: self.max_links.clamp(1, Self::MAX_LINKS),
        }
    }

    /// The port for a connection in this version: the first on its physical network with a
    /// suitable address (docs/spec/handshake.md#port). `features`: those that both sides may have.
    pub(super) fn port(
        &self,
        version: Version,
        path: &TcpPath,
        features: Features,
    ) -> Option<&RdmaPort> {
        if path.vlan_unknown || !(version.is_v2() || self.v1) {
            return None;
        }
        let ports = self.ports.iter();
        let mut fitting = ports.filter(|port| port.mismatch(version, path, features).is_none());
        // Of IPv6 an interface has several addresses, of which some are not usable yet, and some
        // not for long. That of the connection is, for as long as the connection.
        let is_of_connection =
            |port: &&RdmaPort| port.is_ipv6() && port.address.gid.ip() == path.local;
        let of_connection = fitting.clone().find(is_of_connection);
        of_connection.or_else(|| fitting.next())
    }

    /// Another address for a link to a peer: on another port of the same physical network. Without
    /// PNET IDs it is the same if a route to the peer's GID leads by that port.
    pub(super) fn alternate(&self, of: &RdmaPort, peer: RoceGid) -> Option<&RdmaPort> {
        self.ports.iter().find(|other| {
            other.is_alternate_of(of) && (of.pnet_id.is_some() || self.has_route(other, peer))
        })
    }

    fn has_route(&self, port: &RdmaPort, to: RoceGid) -> bool {
        let (Some(routes), Some(to)) = (&self.routes, to.ip()) else {
            return true;
        };
        routes.by_port(&port.address, to).is_some()
    }

    /// How packets get from a port to a GID; `None` if they do not.
    pub(super) fn route(&self, port: &RdmaPort, version: Version, to: RoceGid) -> Option<Route> {
        if !version.is_v2() {
            return Some(Route::SameSubnet);
        }
        let to = to.ip().filter(|_| port.address.is_of_family(to))?;
        match &self.routes {
            Some(routes) => routes.route(&port.address, to),
            None => has_address(&port.subnets, to).then_some(Route::SameSubnet),
        }
    }
}

/// The routes of a host.
pub trait Routes: Debug + Send + Sync {
    /// How packets get from an address of a device to another address; `None` if they do not.
    fn route(&self, from: &RdmaAddress, to: IpAddr) -> Option<Route>;

    /// The same by the network interface of the address alone.
    fn by_port(&self, from: &RdmaAddress, to: IpAddr) -> Option<Route>;
}

/// Connections and links of a link group, as stated in v2.1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LinkLimits {
    pub(super) conns: u8,
    pub(super) links: u8,
}

/// An address of one of the local RDMA devices, and what is known about its network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RdmaPort {
    /// The device.
    pub device: DeviceIndex,
    /// The address.
    pub address: RdmaAddress,
    /// Its physical network, if it was given one.
    pub pnet_id: Option<PnetId>,
    /// Subnets of its network interface.
    pub subnets: Vec<Subnet>,
    /// The lowest device below its network interface, such as `eth0`, or the interface itself.
    pub base: Option<String>,
}

impl RdmaPort {
    /// Whether a link of the same group can be at this address, as far as is known without the
    /// peer: another port with the same PNET ID, or without one in the same VLAN.
    fn is_alternate_of(&self, other: &Self) -> bool {
        let (own, address) = (&self.address, &other.address);
        // A port without an IP address can get one of either family.
        let is_open = address.gid.ip().is_none() && own.gid.ip().is_some();
        self.pnet_id == other.pnet_id
            && own.kind == address.kind
            && own.vlan == address.vlan
            && (self.device, own.port) != (other.device, address.port)
            && (is_open || own.is_of_family(address.gid))
    }

    /// Whether the GID is an IPv6 address of RoCEv2.
    pub(super) fn is_ipv6(&self) -> bool {
        let ip = self.address.gid.ip();
        self.address.kind == RoceKind::V2 && ip.is_some_and(|ip| ip.is_ipv6())
    }

    /// Same PNET ID, or without one: the same network device.
    fn is_on_network_of(&self, path: &TcpPath) -> bool {
        let interface = path.interface.as_ref();
        if let Some(pnet_id) = interface.and_then(|interface| interface.pnet_id) {
            return self.pnet_id == Some(pnet_id);
        }
        match (
            interface.and_then(|interface| interface.name.as_ref()),
            &self.base,
        ) {
            (Some(wanted), Some(own)) => wanted == own,
            // Not told by name: the interface that has the connection's address.
            _ => path.local.is_some_and(|local| {
                self.subnets.iter().any(|subnet| match *subnet {
                    Subnet::V4(own, _) => local == IpAddr::V4(own),
                    Subnet::V6(own, _) => local == IpAddr::V6(own),
                })
            }),
        }
    }

    /// Why a connection cannot use this address; `None` if it can. `features`: those that both
    /// sides may have.
    pub(super) fn mismatch(
        &self,
        version: Version,
        path: &TcpPath,
        features: Features,
    ) -> Option<DeviceExclusion> {
        let (address, is_v2) = (&self.address, version.is_v2());
        let kind = if is_v2 { RoceKind::V2 } else { RoceKind::V1 };
        if !self.is_on_network_of(path) {
            return Some(DeviceExclusion::OtherNetwork);
        }
        if address.vlan != path.vlan {
            return Some(DeviceExclusion::OtherVlan);
        }
        if address.kind != kind {
            return Some(DeviceExclusion::OtherVersion);
        }
        let is_ipv6 = path.local.is_some_and(|local| local.is_ipv6());
        let of_family = address.gid.ip().filter(|ip| ip.is_ipv6() == is_ipv6);
        let is_agreed = !is_ipv6 || features.contains(Features::RDMA_IPV6);
        let is_fit = path
            .local
            .is_some_and(|local| has_address(&self.subnets, local));
        match (is_agreed, of_family) {
            _ if !is_v2 => None,
            (false, _) => Some(DeviceExclusion::Ipv6NotOffered),
            (true, Some(_)) if is_fit => None,
            (true, _) if is_ipv6 => Some(DeviceExclusion::NoIpv6),
            (true, _) => Some(DeviceExclusion::NoIpv4),
        }
    }
}

/// Why a device or port is not offered on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceExclusion {
    /// SMC-D: the device reaches this host only, and the peer's address is not of this host.
    #[error("device reaches peers of this host only")]
    OtherHost,
    /// SMC-D: no network interface that is up has the device's PNET ID.
    #[error("no network interface has the PNET ID of the device")]
    OtherPnetId,
    /// SMC-D: another device of the same fabric is offered.
    #[error("another device of the same fabric is offered")]
    SameFabric,
    /// SMC-D: a PROPOSAL has eight entries for devices, of which emulated ones take two.
    #[error("a PROPOSAL has no space for the device")]
    Full,
    /// SMC-D: a native device without a fabric is for version 1 alone, which is disabled, or
    /// cannot be used on the interface of the connection.
    #[error("SMC-D v1 cannot be used")]
    NoV1,
    /// SMC-R v2 needs a UEID, and the endpoint has none.
    #[error("endpoint has no UEID, which SMC-R v2 needs")]
    NoUeid,
    /// SMC-R: the connection is on another physical network, by PNET ID or interface.
    #[error("connection is on another physical network")]
    OtherNetwork,
    /// SMC-R: the connection is in another VLAN.
    #[error("connection is in another VLAN")]
    OtherVlan,
    /// SMC-R: the VLAN of the connection is not known.
    #[error("VLAN of the connection is not known")]
    VlanUnknown,
    /// SMC-R: the GID is not of RoCE v2, and SMC-R v1 cannot be used.
    #[error("GID is not one of RoCE v2, and SMC-R v1 cannot be used")]
    OtherVersion,
    /// SMC-R v2: the GID or the connection has no IPv4 address in one subnet.
    #[error("GID and connection have no IPv4 addresses in one subnet")]
    NoIpv4,
    /// SMC-R v2 over IPv6: the GID or the connection has no IPv6 address in one subnet; link-local
    /// addresses do not count.
    #[error("GID and connection have no IPv6 addresses in one subnet")]
    NoIpv6,
    /// SMC-R v2: the connection is one of IPv6, and the endpoint does not offer SMC-R over that.
    #[error("endpoint does not offer SMC-R v2 over IPv6")]
    Ipv6NotOffered,
    /// SMC-R: another address is offered.
    #[error("another port of the same network is offered")]
    OtherPort,
}

/// Whether an address is in one of these subnets.
fn has_address(subnets: &[Subnet], address: IpAddr) -> bool {
    subnets.iter().any(|subnet| subnet.contains(address))
}
