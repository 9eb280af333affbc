//! Network interfaces of this host.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVlan, LinkAttribute, LinkInfo, LinkMessage,
};

use netlink_sys::protocols::NETLINK_ROUTE;

use crate::request;

/// A network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Interface {
    /// Its number in the network namespace.
    pub index: u32,
    /// Its name, such as `eth0.7`.
    pub name: String,
    /// Its MAC address, if it has one of six bytes.
    pub mac: Option<[u8; 6]>,
    /// VLAN of its packets, 0 without: its own, or that of a device below it.
    pub vlan: u16,
    /// Name of the lowest device below it, such as `eth0` for a bond with this port; its own name
    /// without one.
    pub base: String,
    /// The physical port as the driver names it: the same for all functions (SR-IOV) of a port.
    pub physical_port: Option<Vec<u8>>,
    /// Its addresses, each with the bits of its subnet.
    pub addresses: Vec<(IpAddr, u8)>,
}

/// The interfaces of this thread's network namespace, in the kernel's order.
///
/// # Errors
///
/// When the kernel cannot be asked, as without netlink sockets.
pub fn interfaces() -> io::Result<Vec<Interface>> {
    let links = RouteNetlinkMessage::GetLink(LinkMessage::default());
    let links = request::dump(NETLINK_ROUTE, &links)?;
    let links = Links::new(links.into_iter().filter_map(link).collect());
    let all = links.all.iter();
    let mut interfaces: Vec<_> = all.map(|link| interface(link, &links)).collect();
    let addresses = RouteNetlinkMessage::GetAddress(AddressMessage::default());
    for reply in request::dump(NETLINK_ROUTE, &addresses)? {
        let RouteNetlinkMessage::NewAddress(message) = reply else {
            continue;
        };
        let position = links.by_index.get(&message.header.index);
        let interface = position.and_then(|position| interfaces.get_mut(*position));
        if let (Some(interface), Some(address)) = (interface, address(&message)) {
            let bits = message.header.prefix_len;
            interface.addresses.push((address, bits));
        }
    }
    Ok(interfaces)
}

/// An interface, and how it is stacked on others.
#[derive(Clone, Debug, Default)]
struct Link {
    interface: Interface,
    vlan: Option<u16>,
    /// The device that its packets go through.
    lower: Option<u32>,
    /// The bond, bridge or team that it is a port of.
    controller: Option<u32>,
}

/// All interfaces, with their positions in the list.
struct Links {
    all: Vec<Link>,
    by_index: HashMap<u32, usize>,
    /// The first port of each bond, bridge or team.
    first_ports: HashMap<u32, usize>,
}

impl Links {
    fn new(all: Vec<Link>) -> Self {
        let mut first_ports = HashMap::new();
        for (position, link) in all.iter().enumerate() {
            if let Some(controller) = link.controller {
                first_ports.entry(controller).or_insert(position);
            }
        }
        let positions = all.iter().enumerate();
        let by_index = positions.map(|(position, link)| (link.interface.index, position));
        Self {
            by_index: by_index.collect(),
            first_ports,
            all,
        }
    }

    /// The device that the packets of another one go through.
    fn below(&self, link: &Link) -> Option<&Link> {
        let position = match link.lower {
            Some(lower) => self.by_index.get(&lower),
            None => self.first_ports.get(&link.interface.index),
        };
        self.all.get(*position?)
    }
}

fn link(reply: RouteNetlinkMessage) -> Option<Link> {
    let RouteNetlinkMessage::NewLink(message) = reply else {
        return None;
    };
    let mut link = Link::default();
    link.interface.index = message.header.index;
    let (mut below, mut is_stacked, mut is_below_elsewhere) = (None, false, false);
    for attribute in message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.interface.name = name,
            LinkAttribute::Address(address) => link.interface.mac = address.try_into().ok(),
            LinkAttribute::PhysPortId(id) => {
                link.interface.physical_port = id.id.get(..id.len).map(<[u8]>::to_vec);
            }
            LinkAttribute::Controller(index) => link.controller = Some(index),
            LinkAttribute::Link(index) => below = Some(index),
            LinkAttribute::LinkNetNsId(_) => is_below_elsewhere = true,
            LinkAttribute::LinkInfo(infos) => {
                is_stacked = infos.iter().any(is_stacked_kind);
                link.vlan = infos.iter().find_map(vlan);
            }
            _ => {}
        }
    }
    // Other kinds have something else there: `veth` its peer.
    link.lower = below.filter(|_| is_stacked && !is_below_elsewhere);
    Some(link)
}

fn is_stacked_kind(info: &LinkInfo) -> bool {
    use InfoKind::{IpVlan, IpVtap, MacVlan, MacVtap, Vlan};
    matches!(
        info,
        LinkInfo::Kind(Vlan | MacVlan | MacVtap | IpVlan | IpVtap)
    )
}

fn vlan(info: &LinkInfo) -> Option<u16> {
    let LinkInfo::Data(InfoData::Vlan(data)) = info else {
        return None;
    };
    data.iter().find_map(|entry| match entry {
        InfoVlan::Id(id) => Some(*id),
        _ => None,
    })
}

/// An interface with what it takes from the devices below it.
fn interface(link: &Link, links: &Links) -> Interface {
    let mut interface = link.interface.clone();
    let (mut base, mut vlan) = (link, link.vlan);
    // A chain is shorter than the list of all.
    for _ in &links.all {
        let Some(lower) = links.below(base) else {
            break;
        };
        base = lower;
        vlan = vlan.or(lower.vlan);
    }
    interface.base.clone_from(&base.interface.name);
    interface.vlan = vlan.unwrap_or(0);
    let port = &base.interface.physical_port;
    interface.physical_port = interface.physical_port.or_else(|| port.clone());
    interface
}

/// The address on this side: of a point-to-point interface the kernel gives the peer's as well.
fn address(message: &AddressMessage) -> Option<IpAddr> {
    let local = message
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            AddressAttribute::Local(address) => Some(*address),
            _ => None,
        });
    local.or_else(|| {
        message
            .attributes
            .iter()
            .find_map(|attribute| match attribute {
                AddressAttribute::Address(address) => Some(*address),
                _ => None,
            })
    })
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn the_loopback_interface_has_its_address() {
        let all = interfaces().unwrap();
        let found = all.iter().find(|interface| interface.name == "lo").unwrap();
        assert_eq!((found.mac, found.vlan), (Some([0; 6]), 0));
        assert_eq!(found.base, "lo");
        assert!(found.addresses.contains(&(Ipv4Addr::LOCALHOST.into(), 8)));
    }

    /// A link message with these attributes besides index and name.
    fn message(index: u32, name: &str, more: Vec<LinkAttribute>) -> Link {
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.attributes = vec![LinkAttribute::IfName(name.into())];
        message.attributes.extend(more);
        link(RouteNetlinkMessage::NewLink(message)).unwrap()
    }

    fn info(kind: InfoKind, data: Option<InfoData>) -> LinkAttribute {
        let data = data.map(LinkInfo::Data);
        LinkAttribute::LinkInfo([LinkInfo::Kind(kind)].into_iter().chain(data).collect())
    }

    #[test]
    fn what_is_stacked_on_a_device_has_its_vlan_and_its_base() {
        let vlan_7 = InfoData::Vlan(vec![InfoVlan::Id(7)]);
        let all = [
            message(1, "eth0", vec![LinkAttribute::Controller(3)]),
            message(2, "eth1", vec![LinkAttribute::Controller(3)]),
            message(3, "bond0", vec![info(InfoKind::Bond, None)]),
            message(
                4,
                "bond0.7",
                vec![LinkAttribute::Link(3), info(InfoKind::Vlan, Some(vlan_7))],
            ),
            message(
                5,
                "pod",
                vec![LinkAttribute::Link(4), info(InfoKind::MacVlan, None)],
            ),
            message(
                6,
                "veth0",
                vec![LinkAttribute::Link(4), info(InfoKind::Veth, None)],
            ),
        ];
        let links = Links::new(all.into());
        let found: Vec<_> = links
            .all
            .iter()
            .map(|link| interface(link, &links))
            .map(|Interface { base, vlan, .. }| (base, vlan))
            .collect();
        let expected = [
            ("eth0", 0),
            ("eth1", 0),
            ("eth0", 0),
            ("eth0", 7),
            ("eth0", 7),
            ("veth0", 0),
        ];
        assert_eq!(found, expected.map(|(base, vlan)| (base.to_owned(), vlan)));
    }

    #[test]
    fn devices_that_lie_on_each_other_end_the_search() {
        let on = |index| vec![LinkAttribute::Link(index), info(InfoKind::MacVlan, None)];
        let links = Links::new(vec![message(1, "a", on(2)), message(2, "b", on(1))]);
        assert_eq!(interface(&links.all[0], &links).vlan, 0);
    }
}
