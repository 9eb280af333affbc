//! The configuration of a host, derived from a capture.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use smc_core::device::{RdmaAddress, RoceKind};
use smc_core::proto::group::DeviceIndex;
use smc_core::proto::handshake::{
    HandshakeConfig, Interface, RdmaConfig, RdmaPort, Subnet, TcpPath,
};
use smc_wire::clc::{AcceptConfirm, Body, Proposal};
use smc_wire::types::{Eid, HostName, Mac, MtuCode, PeerId, RoceGid};

/// One of the two hosts: 10.9.0.x/24 and fd09:5c::x/64 on one interface with one RDMA device.
pub(crate) struct Host {
    number: u8,
    address: IpAddr,
    pub(crate) peer_id: PeerId,
    pub(crate) mac: Mac,
    pub(crate) ueids: Vec<Eid>,
    /// Whether it has a RoCE v2 address.
    pub(crate) has_v2: bool,
    /// Its RoCE v1 address.
    v1: Option<RoceGid>,
    limits: (u8, u8),
    name: HostName,
}

impl Host {
    /// A host without anything.
    pub(crate) fn new(address: IpAddr) -> Self {
        let number = match address {
            IpAddr::V4(v4) => v4.octets()[3],
            IpAddr::V6(v6) => v6.octets()[15],
        };
        Self {
            number,
            address,
            peer_id: PeerId::ZERO,
            mac: Mac::new([0x52, 0x54, 0, 0, 0, number]),
            ueids: Vec::new(),
            has_v2: false,
            v1: None,
            limits: (255, 2),
            name: HostName::BLANK,
        }
    }

    /// Adds the statements of a PROPOSAL about the client.
    pub(crate) fn offered(&mut self, proposal: &Proposal) {
        if proposal.v1.has_r() {
            (self.peer_id, self.v1) = (proposal.peer_id, Some(proposal.gid));
        }
        if let Some(ext) = &proposal.ext {
            self.ueids = ext.ueids.iter().copied().collect();
            self.has_v2 = true;
            self.limits = (ext.max_conns, ext.max_links);
        }
    }

    /// Adds the statements of ACCEPT or CONFIRM about the sender.
    pub(crate) fn told(&mut self, message: &AcceptConfirm) {
        let Body::R(end) = message.body else {
            panic!("not SMC-R");
        };
        self.peer_id = end.peer_id;
        if message.version().is_v2() {
            self.has_v2 = true;
        } else {
            self.v1 = Some(end.gid);
        }
        if let Some(parts) = message.first_contact() {
            self.name = parts.host;
            // The smaller ones of both; a client has stated its own already.
            if message.kind == smc_wire::clc::AcceptKind::Accept {
                self.limits = (parts.max_conns, parts.max_links);
            }
        }
    }

    fn v4(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 9, 0, self.number)
    }

    fn subnets(&self) -> Vec<Subnet> {
        let v6 = Ipv6Addr::new(0xfd09, 0x5c, 0, 0, 0, 0, 0, self.number.into());
        vec![Subnet::V4(self.v4(), 24), Subnet::V6(v6, 64)]
    }

    fn port(&self, gid: RoceGid, kind: RoceKind) -> RdmaPort {
        let address = RdmaAddress::new(gid, kind, self.mac, MtuCode::MTU_1024);
        let address = address.with_interface("eth0", 0);
        RdmaPort {
            device: DeviceIndex(0),
            address,
            pnet_id: None,
            subnets: self.subnets(),
            base: Some("eth0".into()),
        }
    }

    pub(crate) fn config(&self) -> Arc<HandshakeConfig> {
        let v2 = self
            .has_v2
            .then(|| self.port(RoceGid::from_ipv4(self.v4()), RoceKind::V2));
        let v1 = self.v1.map(|gid| self.port(gid, RoceKind::V1));
        let ports: Vec<_> = v1.into_iter().chain(v2).collect();
        let mut config = HandshakeConfig::new(Vec::new());
        config.seid = None;
        config.ueids.clone_from(&self.ueids);
        config.host = self.name;
        if !ports.is_empty() || !self.peer_id.is_zero() {
            let mut rdma = RdmaConfig::new(self.peer_id, ports);
            (rdma.max_conns, rdma.max_links) = self.limits;
            config.rdma = Some(rdma);
        }
        Arc::new(config)
    }

    /// The properties of a connection with another host.
    pub(crate) fn path(&self, peer: IpAddr) -> TcpPath {
        let interface = Interface::new(self.subnets(), None).with_name("eth0");
        TcpPath::over(interface).with_addresses(self.address, peer)
    }
}
