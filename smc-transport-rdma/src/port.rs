//! Ports of a device: their state, and the addresses that links can have.

use std::io;

use rdma_mummy_sys as sys;
use sideway::ibverbs::device_context::{DeviceContext, QueryDeviceErrorKind, QueryPortErrorKind};
use smc_core::device::{RdmaAddress, RoceKind};
use smc_netlink::Interface;
use smc_wire::types::{Mac, MtuCode, RoceGid};

use crate::verbs::{self, GidEntry};

/// An address and its place in the GID table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IndexedAddress {
    pub(crate) address: RdmaAddress,
    pub(crate) index: u8,
}

/// State of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Port {
    pub(crate) number: u8,
    pub(crate) state: PortState,
    /// It sends Ethernet frames: without that there is no RoCE.
    pub(crate) ethernet: bool,
    pub(crate) mtu: Option<MtuCode>,
    /// Places in its GID table.
    pub(crate) capacity: usize,
    /// All RoCE addresses, whatever the state.
    pub(crate) entries: Vec<IndexedAddress>,
}

/// State of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PortState {
    /// Ready for links.
    Active,
    /// Its network interface is down, or has no carrier.
    Down,
    /// On the way from one to the other, or something else; the number of the verbs interface.
    Other(u32),
}

/// All ports of a device, with their addresses.
pub(crate) fn read(context: &DeviceContext) -> io::Result<Vec<Port>> {
    let mut ports = states(context)?;
    read_addresses(context, &mut ports)?;
    Ok(ports)
}

/// All ports of a device, without their addresses.
pub(crate) fn states(context: &DeviceContext) -> io::Result<Vec<Port>> {
    let attributes = context.query_device().map_err(|error| match error.0 {
        QueryDeviceErrorKind::Ibverbs(error) => error,
        _ => io::ErrorKind::Other.into(),
    })?;
    let mut ports = Vec::new();
    for number in 1..=attributes.phys_port_cnt() {
        let port = context
            .query_port(number)
            .map_err(|error| match error.source {
                QueryPortErrorKind::Ibverbs(error) => error,
                _ => io::ErrorKind::Other.into(),
            })?;
        // Numbers, not sideway's enums: those panic on values that they do not know.
        ports.push(Port {
            number,
            capacity: usize::try_from(port.attr.gid_tbl_len).unwrap_or(0),
            state: match port.attr.state {
                sys::ibv_port_state::IBV_PORT_ACTIVE => PortState::Active,
                sys::ibv_port_state::IBV_PORT_DOWN => PortState::Down,
                state => PortState::Other(state),
            },
            ethernet: port.attr.link_layer == sys::IBV_LINK_LAYER_ETHERNET,
            mtu: mtu(port.attr.active_mtu),
            entries: Vec::new(),
        });
    }
    Ok(ports)
}

/// Adds the addresses of the ports.
pub(crate) fn read_addresses(context: &DeviceContext, ports: &mut [Port]) -> io::Result<()> {
    let capacity = ports.iter().map(|port| port.capacity).sum();
    let interfaces = smc_netlink::interfaces()?;
    for gid in verbs::gid_table(context, capacity)? {
        let port = ports
            .iter_mut()
            .find(|port| u32::from(port.number) == gid.port);
        if let Some(port) = port {
            if let Some(entry) = entry(port, &gid, &interfaces) {
                port.entries.push(entry);
            }
        }
    }
    Ok(())
}

/// Whether a link at this address goes on. `ports` have addresses, unless those are not known now.
pub(crate) fn is_usable(at: &RdmaAddress, ports: &[Port], has_addresses: bool) -> bool {
    let mut active = ports.iter().filter(|port| port.state == PortState::Active);
    active.any(|port| match has_addresses {
        true => port
            .entries
            .iter()
            .any(|entry| entry.address.is_same_entry(at)),
        false => port.number == at.port,
    })
}

/// The addresses of active ports, in the order of the table.
pub(crate) fn active(ports: &[Port]) -> Vec<IndexedAddress> {
    let active = ports.iter().filter(|port| port.state == PortState::Active);
    active
        .flat_map(|port| port.entries.iter().cloned())
        .collect()
}

fn entry(port: &Port, gid: &GidEntry, interfaces: &[Interface]) -> Option<IndexedAddress> {
    let kind = match gid.kind {
        verbs::GID_ROCE_V1 => RoceKind::V1,
        verbs::GID_ROCE_V2 => RoceKind::V2,
        _ => return None,
    };
    // An address vector has eight bits for the place in the table.
    let index = u8::try_from(gid.index).ok()?;
    let roce = RoceGid::new(gid.gid);
    if !port.ethernet || roce.is_zero() {
        return None;
    }
    // The VLAN of an interface that is not known, as one of another network namespace, is not
    // either, so that the address is of no use.
    let interface = interfaces.iter().find(|one| one.index == gid.interface)?;
    let mac = interface.mac.map_or(Mac::ZERO, Mac::new);
    let address = RdmaAddress::new(roce, kind, mac, port.mtu?)
        .with_port(port.number)
        .with_interface(&*interface.name, interface.vlan);
    Some(IndexedAddress { address, index })
}

/// The code of verbs is the one on the wire.
fn mtu(code: u32) -> Option<MtuCode> {
    let code = MtuCode::new(u8::try_from(code).ok()?)?;
    code.bytes().map(|_| code)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(number: u8, state: PortState) -> Port {
        Port {
            number,
            state,
            ethernet: true,
            mtu: Some(MtuCode::MTU_1024),
            capacity: 16,
            entries: Vec::new(),
        }
    }

    fn gid(interface: u32) -> GidEntry {
        GidEntry {
            gid: [1; 16],
            index: 3,
            port: 1,
            kind: verbs::GID_ROCE_V2,
            interface,
        }
    }

    #[test]
    fn an_address_of_an_unknown_interface_is_left_out() {
        let mut eth0 = Interface::default();
        eth0.index = 2;
        eth0.name = "eth0".to_owned();
        let port = port(1, PortState::Active);
        let found = entry(&port, &gid(2), std::slice::from_ref(&eth0)).unwrap();
        assert_eq!(found.address.interface.as_deref(), Some("eth0"));
        assert_eq!(entry(&port, &gid(5), &[eth0]), None);
    }

    #[test]
    fn links_end_with_their_port_also_while_addresses_are_not_known() {
        let mut eth0 = Interface::default();
        eth0.index = 2;
        let mut ports = [port(1, PortState::Active), port(2, PortState::Down)];
        let known = entry(&ports[0], &gid(2), &[eth0]).unwrap();
        let mut elsewhere = known.address.clone();
        elsewhere.port = 2;
        assert!(is_usable(&known.address, &ports, false));
        assert!(!is_usable(&elsewhere, &ports, false));
        assert!(!is_usable(&known.address, &ports, true));
        ports[0].entries.push(known.clone());
        assert!(is_usable(&known.address, &ports, true));
    }

    #[test]
    fn only_the_five_path_mtus_count() {
        assert_eq!(mtu(3), Some(MtuCode::MTU_1024));
        assert_eq!(mtu(0), None);
        assert_eq!(mtu(6), None);
        assert_eq!(mtu(300), None);
    }
}
