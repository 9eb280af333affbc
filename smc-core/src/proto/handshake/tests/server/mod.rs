//! The steps of a server, row by row (docs/spec/handshake.md#server).

mod completion;
mod screening;
mod selection;

use smc_wire::Bounded;
use smc_wire::clc::Terms as ClcTerms;
use smc_wire::clc::{
    AcceptKind, DirectEnd, DirectExtension, GidEntry, IpArea, Ipv6Prefix, SmcdArea,
};
use smc_wire::size::SizeCode;
use smc_wire::types::{
    GroupId, IsmGid, Mac, OfferedTypes, OsType, PeerId, PnetId, Release, RoceGid, Version,
};

use super::*;
use crate::error::{CloseReason, PeerMisbehaved, Phase};

impl HandshakeFixture {
    fn new(config: HandshakeConfig) -> Self {
        Self::server(config, TcpPath::default())
    }

    /// Is expected to decline a PROPOSAL.
    fn declines_offer(self, proposal: &Proposal) -> DeclineCode {
        self.declines(&bytes(proposal))
    }

    /// Is expected to accept a PROPOSAL.
    fn accepts(&mut self, proposal: &Proposal) -> AcceptConfirm {
        self.receive(&bytes(proposal));
        AcceptConfirm::parse(&self.side.take_sent()).unwrap()
    }
}

/// A CONFIRM that fits an ACCEPT.
fn confirmed(accept: &AcceptConfirm) -> AcceptConfirm {
    let end = DirectEnd {
        gid: device(0, LOOP).gid,
        chid: LOOP,
        dmb: DmbToken(0xc11e),
        dmbe_index: 0,
        size: SizeCode::MIN,
        group: GroupId([0, 0, 1, 0]),
    };
    AcceptConfirm {
        kind: AcceptKind::Confirm,
        body: Body::D(end),
        ..accept.clone()
    }
}

/// A PROPOSAL that offers SMC-R in version 2.
fn r_v2(ueids: &[&str]) -> Proposal {
    let mut proposal = proposal(&host());
    proposal.v2 = OfferedTypes::R;
    let ext = proposal.ext.as_mut().unwrap();
    ext.direct = None;
    ext.has_seid = false;
    ext.gid = RoceGid::from_ipv4([192, 0, 2, 1].into());
    (ext.max_conns, ext.max_links) = (255, 2);
    ext.ueids = ueids.iter().fold(Bounded::new(), |mut list, name| {
        list.push(ueid(name)).unwrap();
        list
    });
    proposal
}

/// A PROPOSAL of an old stack: version 1.
fn v1(types: OfferedTypes) -> Proposal {
    Proposal {
        version: Version::V1,
        v1: types,
        v2: OfferedTypes::Neither,
        peer_id: PeerId::new(0x1234, Mac::new([2, 0, 0, 0, 0, 0xaa])),
        gid: RoceGid::new([0xfe; 16]),
        mac: Mac::new([2, 0, 0, 0, 0, 0xaa]),
        smcd: types.has_d().then(|| SmcdArea {
            gid: IsmGid(0x0100_0000_0000_0001),
            ..SmcdArea::default()
        }),
        ip: Some(IpArea::v4([192, 0, 2, 0].into(), 24)),
        ext: None,
    }
}

fn interface(address: [u8; 4], len: u8) -> TcpPath {
    TcpPath::over(Interface::new(vec![Subnet::V4(address.into(), len)], None))
}
