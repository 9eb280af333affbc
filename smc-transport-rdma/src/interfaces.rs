//! Network interfaces of the host, as rtnetlink reports them.
//!
//! Nothing is read from `/proc` or `/sys`: any user can hold the lock of a directory there.

use std::io;

use hashbrown::HashMap;
use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{InfoData, InfoVlan, LinkAttribute, LinkInfo, LinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use smc_wire::types::Mac;

/// What a link takes from the network interface of its port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Interface {
    pub(crate) name: Option<String>,
    /// Without for an interface that is not Ethernet.
    pub(crate) mac: Option<Mac>,
    /// 0 without.
    pub(crate) vlan: u16,
}

/// The interfaces of this process's network namespace, by index.
///
/// # Errors
///
/// As `netlink(7)`, and `InvalidData` for a reply that cannot be parsed.
pub(crate) fn read() -> io::Result<HashMap<u32, Interface>> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    // A dump never waits: the first messages are there when the request was sent, and the others
    // are made by the call that receives them.
    socket.set_non_blocking(true)?;
    socket.send(&request(), 0)?;
    let mut interfaces = HashMap::new();
    loop {
        let (reply, _) = socket.recv_from_full()?;
        let mut rest = reply.as_slice();
        while !rest.is_empty() {
            let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
            let len = usize::try_from(message.header.length).unwrap_or(usize::MAX);
            rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
            match message.payload {
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(link)) => {
                    interfaces.insert(link.header.index, interface(link));
                }
                NetlinkPayload::Done(_) => return Ok(interfaces),
                NetlinkPayload::Error(error) => return Err(error.to_io()),
                _ => {}
            }
        }
    }
}

fn request() -> Vec<u8> {
    let mut message = NetlinkMessage::from(RouteNetlinkMessage::GetLink(LinkMessage::default()));
    message.header.flags = NLM_F_DUMP | NLM_F_REQUEST;
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}

fn interface(link: LinkMessage) -> Interface {
    let mut interface = Interface::default();
    for attribute in link.attributes {
        match attribute {
            LinkAttribute::IfName(name) => interface.name = Some(name),
            LinkAttribute::Address(address) => {
                interface.mac = <[u8; 6]>::try_from(address).ok().map(Mac::new);
            }
            LinkAttribute::LinkInfo(infos) => interface.vlan = vlan(&infos).unwrap_or(0),
            _ => {}
        }
    }
    interface
}

fn vlan(infos: &[LinkInfo]) -> Option<u16> {
    let data = infos.iter().find_map(|info| match info {
        LinkInfo::Data(InfoData::Vlan(data)) => Some(data),
        _ => None,
    })?;
    data.iter().find_map(|entry| match entry {
        InfoVlan::Id(id) => Some(*id),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use netlink_packet_route::link::InfoKind;

    use super::*;

    #[test]
    fn the_loopback_interface_is_found() {
        let interfaces = read().unwrap();
        let mut all = interfaces.values();
        let found = all.find(|interface| interface.name.as_deref() == Some("lo"));
        assert_eq!(found.unwrap().mac, Some(Mac::ZERO));
    }

    #[test]
    fn an_interface_of_a_vlan_has_its_number() {
        let mut link = LinkMessage::default();
        link.attributes = vec![
            LinkAttribute::IfName("eth0.7".into()),
            LinkAttribute::Address(vec![2, 0, 0, 0, 0, 1]),
            LinkAttribute::LinkInfo(vec![
                LinkInfo::Kind(InfoKind::Vlan),
                LinkInfo::Data(InfoData::Vlan(vec![InfoVlan::Id(7)])),
            ]),
        ];
        let expected = Interface {
            name: Some("eth0.7".into()),
            mac: Some(Mac::new([2, 0, 0, 0, 0, 1])),
            vlan: 7,
        };
        assert_eq!(interface(link), expected);
    }
}
