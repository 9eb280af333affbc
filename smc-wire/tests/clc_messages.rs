//! CLC messages byte by byte: synthetic ones that Linux accepts, and captured ones.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails the test")]

mod support;

use std::net::Ipv4Addr;

use smc_wire::Bounded;
use smc_wire::clc::{
    AcceptConfirm, AcceptKind, Body, Decline, DirectEnd, DirectExtension, FirstContact, Frame,
    GidEntry, GidList, IpArea, Ipv6Prefix, Message, OfferedDevice, Proposal, RdmaEnd, SmcdArea,
    Terms, V2Extension,
};
use smc_wire::size::SizeCode;
use smc_wire::types::{
    AlertToken, Chid, DeclineCode, DmbToken, Eid, FeatureMask, Gid, GroupId, HostName, IsmGid, Mac,
    MtuCode, OfferedTypes, OsType, PeerId, Psn, Qpn, Release, Rkey, RmbAddr, RoceGid, Version,
};
use support::*;

const EXAMPLE_MAC: Mac = Mac::new([2, 0, 0, 0, 0, 0xaa]);
const EXAMPLE_PEER: PeerId = PeerId::new(0x1234, EXAMPLE_MAC);

fn example_gid() -> RoceGid {
    RoceGid::from_ipv6("fe80::200:ff:fe00:aa".parse().unwrap())
}

fn example_eid() -> Eid {
    Eid::ueid("EXAMPLE-EID").unwrap()
}

fn test_eid() -> Eid {
    Eid::ueid("SMCV2-TEST-EID").unwrap()
}

/// Both directions: the bytes read as `expected`, and `expected` is written as the bytes.
#[track_caller]
fn assert_proposal(text: &str, expected: &Proposal) {
    let bytes = hex(text);
    assert_eq!(Proposal::parse(&bytes).as_ref(), Ok(expected));
    assert_eq!(expected.encoded_len(), bytes.len());
    let mut out = [0xee; 700];
    assert_eq!(expected.emit(&mut out), Ok(bytes.len()));
    assert_eq!(out[..bytes.len()], bytes);
}

#[track_caller]
fn assert_accept_confirm(text: &str, expected: &AcceptConfirm) {
    let bytes = hex(text);
    assert_eq!(AcceptConfirm::parse(&bytes).as_ref(), Ok(expected));
    assert_eq!(expected.encoded_len(), bytes.len());
    let mut out = [0xee; 700];
    assert_eq!(expected.emit(&mut out), Ok(bytes.len()));
    assert_eq!(out[..bytes.len()], bytes);
}

#[track_caller]
fn assert_decline(text: &str, expected: &Decline) {
    let bytes = hex(text);
    assert_eq!(Decline::parse(&bytes).as_ref(), Ok(expected));
    assert_eq!(expected.encoded_len(), bytes.len());
    let mut out = [0xee; 64];
    assert_eq!(expected.emit(&mut out), Ok(bytes.len()));
    assert_eq!(out[..bytes.len()], bytes);
}

fn example_rdma_v1(version: Version) -> Proposal {
    Proposal {
        version,
        v1: OfferedTypes::R,
        v2: OfferedTypes::Neither,
        peer_id: EXAMPLE_PEER,
        gid: example_gid(),
        mac: EXAMPLE_MAC,
        smcd: None,
        ip: Some(IpArea::v4(Ipv4Addr::new(192, 0, 2, 0), 24)),
        ext: None,
    }
}

fn loopback_entries() -> [GidEntry; 2] {
    [0x1111_1111_1111_1111, 0x2222_2222_2222_2222].map(|gid| GidEntry {
        gid: IsmGid(gid),
        chid: Chid::LOOPBACK,
    })
}

fn loopback() -> OfferedDevice {
    OfferedDevice {
        gid: Gid::emulated(0x1111_1111_1111_1111_2222_2222_2222_2222),
        chid: Chid::LOOPBACK,
    }
}

#[test]
fn p1_version_1_smc_r_only() {
    assert_proposal(P1, &example_rdma_v1(Version::V1));
}

#[test]
fn p2_version_1_both_kinds_over_ipv6() {
    let prefix = Ipv6Prefix {
        prefix: "2001:db8::".parse().unwrap(),
        prefix_len: 64,
    };
    let expected = Proposal {
        v1: OfferedTypes::Both,
        smcd: Some(SmcdArea {
            gid: IsmGid(0x0100_0000_0000_0001),
            ..SmcdArea::default()
        }),
        ip: Some(IpArea::v6(Bounded::from_slice(&[prefix]).unwrap())),
        ..example_rdma_v1(Version::V1)
    };
    assert_proposal(P2, &expected);
}

#[test]
fn p3_everything_offered() {
    let native = GidEntry {
        gid: IsmGid(0x0200_0000_0000_0002),
        chid: Chid(0x07c2),
    };
    let [high, low] = loopback_entries();
    let expected = Proposal {
        v1: OfferedTypes::Both,
        v2: OfferedTypes::Both,
        smcd: Some(SmcdArea {
            gid: IsmGid(0x0100_0000_0000_0001),
            chid: Chid(0x07c1),
            ..SmcdArea::default()
        }),
        ext: Some(V2Extension {
            release: Release::V2_1,
            has_seid: true,
            gid: Ipv4Addr::new(192, 0, 2, 1).into(),
            max_conns: 255,
            max_links: 2,
            features: FeatureMask::EMULATED_ISM,
            ueids: Bounded::from_slice(&[example_eid()]).unwrap(),
            direct: Some(DirectExtension {
                seid: Eid::from_bytes(*b"IBM-SYSZ-ISMSEID000000001A2B3906"),
                entries: Bounded::from_slice(&[native, high, low]).unwrap(),
            }),
        }),
        ..example_rdma_v1(Version::V2)
    };
    assert_proposal(P3, &expected);
    assert_eq!(
        expected.seid(),
        Some(Eid::from_bytes(*b"IBM-SYSZ-ISMSEID000000001A2B3906"))
    );
    let devices: Vec<_> = expected.devices().collect();
    let ism = |gid, chid| OfferedDevice {
        gid: Gid::native(gid),
        chid: Chid(chid),
    };
    assert_eq!(
        devices,
        [
            ism(0x0100_0000_0000_0001, 0x7c1),
            ism(0x0200_0000_0000_0002, 0x7c2),
            loopback()
        ]
    );
}

fn loopback_only() -> Proposal {
    let mut direct = DirectExtension::default();
    direct.push_device(loopback()).unwrap();
    Proposal {
        version: Version::V2,
        v1: OfferedTypes::Neither,
        v2: OfferedTypes::D,
        peer_id: PeerId::ZERO,
        gid: RoceGid::ZERO,
        mac: Mac::ZERO,
        smcd: Some(SmcdArea::default()),
        ip: None,
        ext: Some(V2Extension {
            release: Release::V2_1,
            has_seid: false,
            gid: RoceGid::ZERO,
            max_conns: 0,
            max_links: 0,
            features: FeatureMask::EMULATED_ISM,
            ueids: Bounded::from_slice(&[example_eid()]).unwrap(),
            direct: Some(direct),
        }),
    }
}

#[test]
fn p4_loopback_only() {
    assert_proposal(P4, &loopback_only());
    assert_eq!(loopback_only().seid(), None);
    assert_eq!(loopback_only().devices().collect::<Vec<_>>(), [loopback()]);
}

#[test]
fn p5_version_2_message_with_version_1_offer() {
    let expected = Proposal {
        smcd: Some(SmcdArea::default()),
        ..example_rdma_v1(Version::V2)
    };
    assert_proposal(P5, &expected);
}

#[test]
fn a1_smc_r_version_1() {
    let expected = AcceptConfirm {
        kind: AcceptKind::Accept,
        terms: Terms::V1 {
            first_contact: true,
        },
        body: Body::R(RdmaEnd {
            peer_id: EXAMPLE_PEER,
            gid: example_gid(),
            mac: EXAMPLE_MAC,
            qpn: Qpn::new(0x123).unwrap(),
            rkey: Rkey(0x1a2b),
            rmbe_index: 1,
            token: AlertToken::new(7).unwrap(),
            size: SizeCode::new(2).unwrap(),
            mtu: MtuCode::MTU_4096,
            rmb_addr: RmbAddr(0x1234_0000),
            psn: Psn::new(0x0a_0b0c).unwrap(),
        }),
    };
    assert_accept_confirm(A1, &expected);
}

fn direct_end(gid: Gid, chid: Chid, size: u8) -> DirectEnd {
    DirectEnd {
        gid,
        chid,
        dmb: DmbToken(0xdead_beef),
        dmbe_index: 0,
        size: SizeCode::new(size).unwrap(),
        group: GroupId([0, 1, 0, 0]),
    }
}

#[test]
fn a2_smc_d_version_1() {
    let expected = AcceptConfirm {
        kind: AcceptKind::Accept,
        terms: Terms::V1 {
            first_contact: true,
        },
        body: Body::D(direct_end(
            Gid::native(0x0100_0000_0000_0001),
            Chid::NONE,
            6,
        )),
    };
    assert_accept_confirm(A2, &expected);
}

#[test]
fn a3_loopback_release_1() {
    let parts = FirstContact {
        features: FeatureMask::EMULATED_ISM,
        ..FirstContact::new(Release::V2_1, OsType::LINUX, HostName::new("host-a"))
    };
    let expected = AcceptConfirm {
        kind: AcceptKind::Accept,
        terms: Terms::V2 {
            eid: example_eid(),
            first_contact: Some(parts),
        },
        body: Body::D(direct_end(loopback().gid, Chid::LOOPBACK, 2)),
    };
    assert_accept_confirm(A3, &expected);
}

#[test]
fn a4_native_ism_release_0() {
    let parts = FirstContact::new(Release::V2_0, OsType::LINUX, HostName::new("host-a"));
    let expected = AcceptConfirm {
        kind: AcceptKind::Accept,
        terms: Terms::V2 {
            eid: Eid::from_bytes(*b"IBM-SYSZ-ISMSEID000000001A2B3906"),
            first_contact: Some(parts),
        },
        body: Body::D(direct_end(
            Gid::native(0x1111_1111_1111_1111),
            Chid(0x07c2),
            2,
        )),
    };
    assert_accept_confirm(A4, &expected);
}

#[test]
fn d1_version_1_out_of_sync() {
    let expected = Decline {
        peer_id: EXAMPLE_PEER,
        ..Decline::new(Version::V1, DeclineCode::SYNCERR, OsType::LINUX)
    };
    assert!(expected.out_of_sync);
    assert_eq!(expected.os, OsType::NONE);
    assert_decline(D1, &expected);
}

#[test]
fn d2_version_2_no_ueid() {
    let expected = Decline {
        peer_id: EXAMPLE_PEER,
        ..Decline::new(Version::V2, DeclineCode::NOUEID, OsType::LINUX)
    };
    assert_decline(D2, &expected);
}

#[test]
fn captured_proposal() {
    let expected = Proposal {
        v2: OfferedTypes::R,
        ext: Some(V2Extension {
            release: Release::V2_1,
            has_seid: false,
            gid: Ipv4Addr::new(10, 9, 0, 2).into(),
            max_conns: 255,
            max_links: 2,
            features: FeatureMask::EMULATED_ISM,
            ueids: Bounded::from_slice(&[test_eid()]).unwrap(),
            direct: None,
        }),
        ..loopback_only()
    };
    assert_proposal(CAPTURED_PROPOSAL, &expected);
    assert_eq!(expected.devices().count(), 0);
}

fn captured_server_end(token: u32) -> Body {
    let mac = Mac::new([0x52, 0x54, 0, 0, 0, 1]);
    Body::R(RdmaEnd {
        peer_id: PeerId::new(0x9b5a, mac),
        gid: Ipv4Addr::new(10, 9, 0, 1).into(),
        mac,
        qpn: Qpn::new(0x11).unwrap(),
        rkey: Rkey(0x3bb),
        rmbe_index: 1,
        token: AlertToken::new(token).unwrap(),
        size: SizeCode::LINUX_DEFAULT,
        mtu: MtuCode::MTU_1024,
        rmb_addr: RmbAddr(0xff45_9d13_8381_0000),
        psn: Psn::new(0x3d_41e7).unwrap(),
    })
}

fn captured_client_end(token: u32) -> Body {
    let mac = Mac::new([0x52, 0x54, 0, 0, 0, 2]);
    Body::R(RdmaEnd {
        peer_id: PeerId::new(0xa507, mac),
        gid: Ipv4Addr::new(10, 9, 0, 2).into(),
        mac,
        qpn: Qpn::new(0x11).unwrap(),
        rkey: Rkey(0x3d5),
        rmbe_index: 1,
        token: AlertToken::new(token).unwrap(),
        size: SizeCode::LINUX_DEFAULT,
        mtu: MtuCode::MTU_1024,
        rmb_addr: RmbAddr(0xff45_88c4_c387_0000),
        psn: Psn::new(0x5c_b51d).unwrap(),
    })
}

fn captured_parts() -> FirstContact {
    FirstContact {
        v2_direct: true,
        max_conns: 255,
        max_links: 2,
        features: FeatureMask::EMULATED_ISM,
        ..FirstContact::new(Release::V2_1, OsType::LINUX, HostName::new("(none)"))
    }
}

#[test]
fn captured_first_contact() {
    let accept = AcceptConfirm {
        kind: AcceptKind::Accept,
        terms: Terms::V2 {
            eid: test_eid(),
            first_contact: Some(captured_parts()),
        },
        body: captured_server_end(1),
    };
    assert_accept_confirm(CAPTURED_ACCEPT, &accept);

    let gids = GidList::from_slice(&[Ipv4Addr::new(10, 9, 0, 2).into()]);
    let parts = FirstContact {
        gids,
        ..captured_parts()
    };
    let confirm = AcceptConfirm {
        kind: AcceptKind::Confirm,
        terms: Terms::V2 {
            eid: test_eid(),
            first_contact: Some(parts),
        },
        body: captured_client_end(1),
    };
    assert_accept_confirm(CAPTURED_CONFIRM, &confirm);
}

#[test]
fn captured_reuse_of_the_link_group() {
    let terms = Terms::V2 {
        eid: test_eid(),
        first_contact: None,
    };
    let accept = AcceptConfirm {
        kind: AcceptKind::Accept,
        terms,
        body: captured_server_end(2),
    };
    assert_accept_confirm(CAPTURED_ACCEPT_REUSE, &accept);
    let confirm = AcceptConfirm {
        kind: AcceptKind::Confirm,
        terms,
        body: captured_client_end(2),
    };
    assert_accept_confirm(CAPTURED_CONFIRM_REUSE, &confirm);
}

#[test]
fn a_stream_is_cut_at_message_ends() {
    let mut stream = hex(D2);
    let length = stream.len();
    stream.extend(b"application data");
    assert_eq!(Frame::peek(&stream[..7]), Ok(None));
    let frame = Frame::peek(&stream[..8]).unwrap().unwrap();
    assert_eq!((frame.length(), frame.keep()), (length, length));
    let (message, rest) = Message::parse_prefix(&stream).unwrap();
    assert!(matches!(message, Message::Decline(_)));
    assert_eq!(message, Message::parse(&hex(D2)).unwrap());
    assert_eq!(rest, b"application data");
}

#[test]
fn plain_tcp_is_recognised_by_its_first_byte() {
    assert!(Frame::peek(b"").unwrap().is_none());
    assert!(Frame::peek(b"G").is_err());
    assert!(Frame::peek(&[0xe2, 0xd4]).unwrap().is_none());
    assert!(Frame::peek(&[0xe2, 0xd4, 0xc4]).is_err());
}

#[test]
fn the_excess_of_a_very_long_accept_is_thrown_away() {
    let long = with_excess(&hex(CAPTURED_ACCEPT), 1000);
    let frame = Frame::peek(&long).unwrap().unwrap();
    assert_eq!(
        (frame.length(), frame.keep()),
        (1160, AcceptConfirm::MAX_KEEP)
    );
    let kept = &long[..frame.keep()];
    let repr = AcceptConfirm::parse(kept).unwrap();
    assert_eq!(
        Ok(&repr),
        AcceptConfirm::parse(&hex(CAPTURED_ACCEPT)).as_ref()
    );
    // What was kept of a message is no prefix of a stream.
    assert!(Message::parse_prefix(kept).is_err());
    assert!(Message::parse(kept).is_ok());
    // Its trailer is neither kept nor checked.
    assert!(AcceptConfirm::parse(&with(&long, 1159, 0)).is_err());
}

#[test]
fn the_longest_proposal_has_652_bytes() {
    let prefix = Ipv6Prefix {
        prefix: "2001:db8::".parse().unwrap(),
        prefix_len: 64,
    };
    let mut full = Proposal::parse(&hex(P3)).unwrap();
    full.ip = Some(IpArea::v6(Bounded::from_slice(&[prefix; 8]).unwrap()));
    let ext = full.ext.as_mut().unwrap();
    ext.ueids = Bounded::from_slice(&[example_eid(); 8]).unwrap();
    ext.direct.as_mut().unwrap().entries = Bounded::from_slice(&[GidEntry::default(); 8]).unwrap();
    let mut out = [0; Proposal::MAX_LEN];
    assert_eq!(full.emit(&mut out), Ok(Proposal::MAX_LEN));
    assert_eq!(Proposal::parse(&out), Ok(full));
}
