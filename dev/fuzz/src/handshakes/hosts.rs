//! The hosts: their devices, addresses and configurations.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use smc_core::device::{LinkAddress, RdmaAddress, RoceKind};
use smc_core::proto::group::DeviceIndex;
use smc_core::proto::handshake::{
    DirectDevice, EarlyDataPolicy, HandshakeConfig, Interface, RdmaConfig, RdmaPort, Subnet,
    TcpPath,
};
use smc_wire::types::{
    Chid, Eid, Features, Gid, HostName, Mac, MtuCode, PeerId, PnetId, Psn, Qpn, Release, RoceGid,
};

use super::SERVER;

/// The most early data that the server takes.
const EARLY_DATA_MAX: usize = 64;

/// What all hosts have.
#[derive(Clone, Copy, Debug, Default)]
pub struct Setting {
    /// An emulated device of SMC-D.
    pub loopback: bool,
    /// A native device of SMC-D, with a PNET ID and SMC-D v1.
    pub ism: bool,
    /// A port of SMC-R.
    pub rdma: bool,
    /// SMC-R v1.
    pub rdma_v1: bool,
    /// Release 2.0 at the server.
    pub old_server: bool,
    /// Groups of SMC-R with a single link, which take early CONFIRMs and early data.
    pub single_link: bool,
    /// Connections over IPv6, and SMC-R with GIDs for them.
    pub ipv6: bool,
    /// Groups that take PROPOSALs in the SYN, which may come twice.
    pub fast_open: bool,
}

/// The configuration of a host.
pub(super) fn config(side: usize, setting: Setting) -> HandshakeConfig {
    let number = u64::from(ip(side).octets()[3]);
    let mut devices = Vec::new();
    if setting.ism {
        let gid = Gid::native(0x0200_0000_0000_0000 + number);
        let mut device = DirectDevice::new(DeviceIndex(0), gid, Chid(0x07c1));
        device.pnet_id = PnetId::new("NET");
        devices.push(device);
    }
    if setting.loopback {
        let gid = Gid::new(0x1111_1111_1111_1111, 0x2222_2222_2222_2200 + number);
        devices.push(DirectDevice::new(
            DeviceIndex(devices.len()),
            gid,
            Chid(0xff01),
        ));
    }
    let mut config = HandshakeConfig::new(devices);
    config.v1 = setting.ism;
    config.pnet_ids = PnetId::new("NET").into_iter().collect();
    config.host = HostName::new("host");
    config.vendor_features = Features::EARLY_CONFIRM | Features::EARLY_DATA;
    config
        .vendor_features
        .set(Features::FAST_OPEN, setting.fast_open);
    if setting.single_link {
        config.vendor_features |= Features::SINGLE_LINK | Features::AUTHENTICATION;
    }
    if side == SERVER {
        config.early_data = Some(Arc::new(EarlyDataPolicy::new(EARLY_DATA_MAX)));
    }
    config.ueids = vec![Eid::ueid("EXAMPLE").expect("a valid name")];
    if setting.old_server && side == SERVER {
        config.release = Release::V2_0;
    }
    if setting.rdma {
        let mut ports = vec![port(side)];
        if setting.ipv6 {
            config.vendor_features |= Features::RDMA_IPV6;
            let mut of_ipv6 = port(side);
            of_ipv6.address.gid = RoceGid::from_ipv6(ipv6(side));
            ports.push(of_ipv6);
        }
        let mut rdma = RdmaConfig::new(PeerId::new(0x1234, mac(side)), ports);
        rdma.offers_ipv6 = setting.ipv6;
        rdma.max_links = if setting.single_link { 1 } else { 2 };
        rdma.v1 = setting.rdma_v1;
        config.rdma = Some(rdma);
    }
    config
}

fn ip(side: usize) -> Ipv4Addr {
    let last = [2, 1, 3][side];
    Ipv4Addr::new(10, 9, 0, last)
}

fn ipv6(side: usize) -> Ipv6Addr {
    let [.., last] = ip(side).octets();
    Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 0, last.into())
}

fn mac(side: usize) -> Mac {
    Mac::new([0x52, 0x54, 0, 0, 0, ip(side).octets()[3]])
}

fn subnets(side: usize) -> Vec<Subnet> {
    vec![Subnet::V4(ip(side), 24), Subnet::V6(ipv6(side), 64)]
}

/// The path of a connection at one of its hosts.
pub(super) fn path(side: usize, peer: usize, setting: Setting) -> TcpPath {
    let interface = Interface::new(subnets(side), PnetId::new("NET")).with_name("eth0");
    let [own, other] = [side, peer].map(|side| match setting.ipv6 {
        true => IpAddr::from(ipv6(side)),
        false => ip(side).into(),
    });
    let path = TcpPath::over(interface).with_addresses(own, other);
    TcpPath {
        // So that emulated devices are offered as well.
        same_host: true,
        ..path
    }
}

fn port(side: usize) -> RdmaPort {
    let gid = RoceGid::from_ipv4(ip(side));
    let address = RdmaAddress::new(gid, RoceKind::V2, mac(side), MtuCode::MTU_1024);
    RdmaPort {
        device: DeviceIndex(0),
        address: address.with_interface("eth0", 0),
        pnet_id: PnetId::new("NET"),
        subnets: subnets(side),
        base: Some("eth0".into()),
    }
}

/// The local end of a new link.
pub(super) fn local_link(address: &RdmaAddress, number: u32) -> LinkAddress {
    LinkAddress {
        gid: address.gid,
        mac: address.mac,
        qpn: Qpn::new(0x100 + number).expect("24 bits"),
        psn: Psn::new(0x7000 + number).expect("24 bits"),
        mtu: address.mtu,
    }
}
