//! Hosts: their devices, their addresses, and the configuration of their handshakes.

use super::*;

pub(super) const LOOP: Chid = Chid(0xff01);

pub(super) const ISM: Chid = Chid(0x07c1);

/// A device of its own kind: index, GID and fabric.
pub(super) fn device(index: usize, chid: Chid) -> DirectDevice {
    let gid = if chid.is_emulated() {
        Gid::new(0x1111_1111_1111_1111, 0x2222_2222_2222_2200 + index as u64)
    } else {
        Gid::native(0x0200_0000_0000_0000 + index as u64)
    };
    DirectDevice::new(DeviceIndex(index), gid, chid)
}

/// A host with one emulated device.
pub(super) fn host() -> HandshakeConfig {
    host_with(vec![device(0, LOOP)])
}

pub(super) fn host_with(devices: Vec<DirectDevice>) -> HandshakeConfig {
    let mut config = HandshakeConfig::new(devices);
    config.host = HostName::new("host-a");
    config
}

/// A host without a system EID but with these UEIDs.
pub(super) fn host_with_ueids(names: &[&str]) -> HandshakeConfig {
    let mut config = host();
    config.seid = None;
    config.ueids = names.iter().map(|name| ueid(name)).collect();
    config
}

pub(super) fn ueid(name: &str) -> Eid {
    Eid::ueid(name).unwrap()
}

/// Connections within one host.
pub(super) fn same_host() -> Vec<TcpPath> {
    let over = |local: &str, peer: &str| {
        TcpPath::default().with_addresses(local.parse().unwrap(), peer.parse().unwrap())
    };
    vec![
        TcpPath::default(),
        over("127.0.0.1", "127.0.0.2"),
        over("::1", "::1"),
        over("10.9.0.1", "::ffff:10.9.0.1"),
    ]
}

/// A connection with another host.
pub(super) fn other_host() -> TcpPath {
    TcpPath::default().with_addresses([10, 9, 0, 1].into(), [10, 9, 0, 2].into())
}
