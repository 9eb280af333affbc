//! The steps of a client, row by row (docs/spec/handshake.md#client).

use smc_wire::Bounded;
use smc_wire::clc::Terms as ClcTerms;
use smc_wire::clc::{AcceptKind, DirectEnd, FirstContact, GidEntry};
use smc_wire::size::SizeCode;
use smc_wire::types::{FeatureMask, GroupId, OfferedTypes, OsType, PnetId, Release, Version};

use super::*;
use crate::error::{CloseReason, FallbackCause, IoError, PeerMisbehaved, Phase};

/// A client that has sent its PROPOSAL.
fn waiting(config: HandshakeConfig) -> HandshakeFixture {
    let mut f = HandshakeFixture::client(config, &TcpPath::default());
    Proposal::parse(&f.side.take_sent()).unwrap();
    assert_eq!(f.side.machine.state(), Some("ACCEPT"));
    f
}

/// The ACCEPT of a server for [`host`] at first contact.
fn accept() -> AcceptConfirm {
    AcceptConfirm {
        kind: AcceptKind::Accept,
        terms: ClcTerms::V2 {
            eid: DEFAULT_SEID,
            first_contact: Some(FirstContact {
                v2_direct: false,
                os: OsType::ZOS,
                release: Release::V2_1,
                host: HostName::new("server"),
                max_conns: 0,
                max_links: 0,
                features: FeatureMask::from_bits_retain(0xff),
                vendor_options: 0,
                gids: None,
            }),
        },
        body: Body::D(DirectEnd {
            gid: Gid::new(0xaaaa, 0xbbbb),
            chid: LOOP,
            dmb: DmbToken(0xdead_beef),
            dmbe_index: 0,
            size: SizeCode::LINUX_DEFAULT,
            group: GroupId([1, 2, 3, 4]),
        }),
    }
}

fn v1_accept() -> AcceptConfirm {
    let mut accept = accept();
    accept.terms = ClcTerms::V1 {
        first_contact: true,
    };
    let Body::D(end) = &mut accept.body else {
        panic!()
    };
    (end.gid, end.chid) = (Gid::native(0xaaaa), Chid::NONE);
    accept
}

// C3 to C7: device search

#[test]
fn c3_ipsec() {
    let path = TcpPath {
        ipsec: true,
        ..TcpPath::default()
    };
    let f = HandshakeFixture::client(host(), &path);
    assert_eq!(f.side.fallback(), local(DeclineCode::IPSEC));
    assert_eq!(f.side.declined().diagnosis, DeclineCode::IPSEC);
}

#[test]
fn c6_no_device_and_the_version_of_the_decline() {
    let f = HandshakeFixture::client(host_with(vec![]), &TcpPath::default());
    assert_eq!(f.side.fallback(), local(DeclineCode::NOSMCDEV));
    assert_eq!(
        f.side.declined().version,
        Version::V1,
        "the host knows no version 2"
    );
    assert_eq!(f.side.sent.len(), 28);

    // A device on a network that no interface is connected to: capable, but not here.
    let elsewhere = Some(PnetId::new("ELSEWHERE").unwrap());
    let f = HandshakeFixture::client(
        host_with(vec![DirectDevice {
            pnet_id: elsewhere,
            ..device(0, LOOP)
        }]),
        &TcpPath::default(),
    );
    assert_eq!(f.side.fallback(), local(DeclineCode::NOSMCDEV));
    let decline = f.side.declined();
    assert_eq!((decline.version, decline.os), (Version::V2, OsType::LINUX));
    assert_eq!(f.side.sent.len(), 44);
}

#[test]
fn c7_only_v1_and_no_prefix() {
    let net = Some(PnetId::new("NET1").unwrap());
    let mut config = host_with(vec![DirectDevice {
        pnet_id: net,
        ..device(0, Chid::NONE)
    }]);
    config.v1 = true;
    let f = HandshakeFixture::client(config, &TcpPath::over(Interface::new(vec![], net)));
    assert_eq!(f.side.fallback(), local(DeclineCode::CNFERR));
}

// Contents of PROPOSAL (docs/spec/handshake.md#offer)

#[test]
fn proposal_is_byte_for_byte_the_known_one() {
    // Synthetic vector: v2.1, SMC-D only, one UEID, no SEID, loopback only.
    let vector = unhex(
        "e2d4c3d90100e026000000000000000000000000000000000000000000000000000000000000000000000000
         000000000000001c000000000000000000000000000000000000000000000000000000000102001000000040
         00000000000000000000000000000000000000010000000000000000000000004558414d504c452d45494420
         2020202020202020202020202020202020202020000000000000000000000000000000000000000000000000
         0000000000000000000000000000000000000000000000001111111111111111ffff2222222222222222ffff
         e2d4c3d9",
    );
    let gid = Gid::new(0x1111_1111_1111_1111, 0x2222_2222_2222_2222);
    let mut config = host_with(vec![DirectDevice::new(DeviceIndex(0), gid, Chid::LOOPBACK)]);
    config.seid = None;
    config.ueids = vec![ueid("EXAMPLE-EID")];
    let offer = ClientProposal::new(&config, &TcpPath::default()).unwrap();
    assert_eq!(offer.bytes(), vector);
}

#[test]
fn loopback_devices_are_offered_to_the_own_host_only() {
    let offered = |path: &TcpPath| {
        let config = host_with(vec![device(0, Chid::LOOPBACK), device(1, LOOP)]);
        let proposal = ClientProposal::new(&config, path).unwrap();
        let proposal = Proposal::parse(proposal.bytes()).unwrap();
        proposal
            .devices()
            .map(|device| device.chid)
            .collect::<Vec<_>>()
    };
    for path in same_host() {
        assert_eq!(offered(&path), [Chid::LOOPBACK, LOOP], "{path:?}");
    }
    assert_eq!(offered(&other_host()), [LOOP]);

    let config = host_with(vec![device(0, Chid::LOOPBACK)]);
    let f = HandshakeFixture::client(config, &other_host());
    let Some(Outcome::Tcp(fallback)) = &f.side.outcome else {
        panic!("{:?}", f.side.outcome);
    };
    assert_eq!(fallback.reason, FallbackCause::OtherHost.into());
    assert_eq!(f.side.declined().diagnosis, DeclineCode::NOSMCDEV);
}

#[test]
fn proposal_without_v1_keeps_the_bytes_zero_that_linux_misreads() {
    let offer = ClientProposal::new(&host(), &TcpPath::default()).unwrap();
    let bytes = offer.bytes();
    assert_eq!(bytes[7], 0x26, "version 2, v2 type D, v1 type none");
    assert_eq!(bytes[38..40], [0, 0], "IP area offset");
    assert_eq!(bytes[40..48], [0; 8], "native GID");
}

#[test]
fn proposal_lists_each_fabric_once_and_emulated_devices_whole() {
    let chid = |n: u16| Chid(0x100 + n);
    let mut devices: Vec<_> = (0..5).map(|n| device(usize::from(n), chid(n))).collect();
    devices.push(device(5, chid(0))); // a second one on the first fabric
    devices.push(device(6, LOOP)); // two entries: 5 + 2
    devices.push(device(7, Chid(0xff02))); // one entry left, two needed
    devices.push(device(8, chid(8)));
    devices.push(device(9, chid(9))); // full
    let proposal = proposal(&host_with(devices));
    let offered: Vec<_> = proposal.devices().map(|device| device.chid.0).collect();
    assert_eq!(offered, [0x100, 0x101, 0x102, 0x103, 0x104, 0xff01, 0x108]);
    assert_eq!(proposal.ext.unwrap().direct.unwrap().entries.len(), 8);
}

#[test]
fn proposal_offers_devices_on_connected_networks() {
    let net = |name| Some(PnetId::new(name).unwrap());
    let mut config = host_with(vec![
        DirectDevice {
            pnet_id: net("HERE"),
            ..device(0, Chid(0x100))
        },
        DirectDevice {
            pnet_id: net("ELSEWHERE"),
            ..device(1, Chid(0x101))
        },
        device(2, LOOP),
    ]);
    config.pnet_ids = vec![PnetId::new("here").unwrap()];
    let offered: Vec<_> = proposal(&config)
        .devices()
        .map(|device| device.chid.0)
        .collect();
    assert_eq!(offered, [0x100, 0xff01]);
}

#[test]
fn proposal_with_v1_has_the_native_device_in_the_fixed_part_only() {
    let net = Some(PnetId::new("NET1").unwrap());
    let mut config = host_with(vec![
        DirectDevice {
            pnet_id: net,
            ..device(0, ISM)
        },
        device(1, LOOP),
    ]);
    config.v1 = true;
    config.pnet_ids = net.into_iter().collect();
    let subnets = vec![Subnet::V4([192, 0, 2, 77].into(), 24)];
    let path = TcpPath::over(Interface::new(subnets, net));
    let offer = ClientProposal::new(&config, &path).unwrap();
    assert_eq!(offer.bytes()[7], 0x25, "D in both versions");
    let proposal = Proposal::parse(offer.bytes()).unwrap();
    assert_eq!(
        (proposal.v1, proposal.v2),
        (OfferedTypes::D, OfferedTypes::D)
    );
    let area = proposal.smcd.unwrap();
    assert_eq!((area.gid, area.chid), (device(0, ISM).gid.hi(), ISM));
    let ip = proposal.ip.as_ref().unwrap();
    assert_eq!((ip.subnet, ip.prefix_len), ([192, 0, 2, 0].into(), 24));
    let entries = proposal.ext.unwrap().direct.unwrap().entries;
    let low = device(1, LOOP).gid;
    assert_eq!(
        entries,
        Bounded::<GidEntry, 8>::from_slice(&[
            GidEntry {
                gid: low.hi(),
                chid: LOOP
            },
            GidEntry {
                gid: low.lo(),
                chid: LOOP
            },
        ])
        .unwrap()
    );
}

#[test]
fn proposal_with_v1_over_ipv6() {
    let net = Some(PnetId::new("NET1").unwrap());
    let mut config = host_with(vec![DirectDevice {
        pnet_id: net,
        ..device(0, ISM)
    }]);
    config.v1 = true;
    let subnets = vec![
        Subnet::V6("2001:db8::77".parse().unwrap(), 64),
        Subnet::V6("2001:db8:1::77".parse().unwrap(), 48),
    ];
    let offer = ClientProposal::new(&config, &TcpPath::over(Interface::new(subnets, net))).unwrap();
    let ip = Proposal::parse(offer.bytes()).unwrap().ip.unwrap();
    let prefixes: Vec<_> = ip
        .prefixes
        .iter()
        .map(|prefix| (prefix.prefix.to_string(), prefix.prefix_len))
        .collect();
    assert_eq!(
        prefixes,
        [("2001:db8::".into(), 64), ("2001:db8:1::".into(), 48)]
    );
}

// C9 to C12: waiting for ACCEPT

#[test]
fn c9_no_accept_within_six_seconds() {
    let mut f = waiting(host());
    assert_eq!(f.side.machine.poll_timeout(), Some(f.now + CLC_TIMEOUT));
    f.wait(CLC_TIMEOUT);
    assert_eq!(*f.side.error(), Error::TimedOut(Phase::Accept));
    assert!(f.side.sent.is_empty(), "an abort says nothing");
}

#[test]
fn c10_rubbish() {
    let mut f = waiting(host());
    assert!(f.receive(b"220 mail.example ESMTP\r\n") <= 8);
    assert!(matches!(f.side.error(), Error::Malformed(_)));
}

#[test]
fn c10_unexpected_message() {
    let mut f = waiting(host());
    let taken = f.receive(&bytes(&proposal(&host())));
    assert_eq!(taken, 8);
    assert_eq!(*f.side.error(), PeerMisbehaved::UnexpectedMessage.into());
}

#[test]
fn c10_accept_that_is_cut_short() {
    let mut bytes = accept_bytes(&accept());
    // The first-contact flag is set and the parts are not there.
    bytes.drain(74..126);
    bytes[6] = 78;
    let mut f = waiting(host());
    f.receive(&bytes);
    assert!(matches!(f.side.error(), Error::Malformed(_)));
}

#[test]
fn c10_accept_with_unknown_parts_is_read_to_its_end() {
    let mut bytes = accept_bytes(&accept());
    let end = bytes.len() - 4;
    bytes.splice(end..end, std::iter::repeat_n(0xee, 2_000));
    let len = u16::try_from(bytes.len()).unwrap();
    bytes[5..7].copy_from_slice(&len.to_be_bytes());
    bytes.extend_from_slice(b"data");
    let mut f = waiting(host());
    let buffer = SizeCode::LINUX_DEFAULT.byte_len();
    f.side
        .fabric
        .borrow_mut()
        .buffers
        .insert(DmbToken(0xdead_beef), buffer);
    assert_eq!(f.receive(&bytes), usize::from(len));
    f.side.established();
}

#[test]
fn c11_server_closes_or_resets() {
    let mut f = waiting(host());
    f.close();
    assert_eq!(*f.side.error(), Error::Closed(CloseReason::DuringHandshake));

    let mut f = waiting(host());
    let reset = Error::from(std::io::Error::from(std::io::ErrorKind::ConnectionReset));
    f.side.machine.handle_io_error(reset.clone());
    f.side.settle(f.now);
    assert_eq!(*f.side.error(), reset);
    assert!(matches!(reset, Error::Io(error) if is_reset(&error)));
}

fn is_reset(error: &IoError) -> bool {
    error.kind() == std::io::ErrorKind::ConnectionReset
}

#[test]
fn c11_failure_to_send_takes_the_outcome_back() {
    let now = Instant::now();
    let mut client = Handshake::client(now, Arc::new(host_with(vec![])), &TcpPath::default());
    assert!(matches!(
        client.poll_output(),
        Some(HandshakeOutput::Send(_))
    ));
    client.handle_closed();
    assert!(matches!(
        client.poll_output(),
        Some(HandshakeOutput::Abort(Error::Closed(_)))
    ));
    assert_eq!(client.poll_output(), None);
}

#[test]
fn c12_decline() {
    // 44 bytes, version 2; and 28 bytes, which early forms of version 2 use as well.
    let new = Decline::new(Version::V2, DeclineCode::NOUEID, OsType::LINUX);
    let early = Decline { extra: None, ..new };
    for decline in [new, early] {
        let mut bytes = vec![0; 64];
        let len = decline.emit(&mut bytes).unwrap();
        bytes.truncate(len);
        bytes.extend_from_slice(b"application data");
        let mut f = waiting(host());
        assert_eq!(f.receive(&bytes), len, "what follows is application data");
        assert_eq!(f.side.fallback(), peer(DeclineCode::NOUEID));
        assert!(f.side.sent.is_empty(), "a DECLINE is never answered");
    }
}

// C13 and later: ACCEPT

#[test]
fn c13_smc_r_was_not_offered() {
    let mut f = waiting(host());
    let accept = unhex(
        "e2d4c3d90200441812340200000000aafe80000000000000020000fffe0000aa0200000000aa00012300001a2b
         010000000725000000000012340000000a0b0ce2d4c3d9",
    );
    f.receive(&accept);
    assert_eq!(f.side.fallback(), local(DeclineCode::MODEUNSUPP));
    let decline = f.side.declined();
    assert_eq!(decline.version, Version::V1, "that of ACCEPT");
    assert_eq!(f.side.sent.len(), 28);
}

#[test]
fn c13_version_1_was_not_offered() {
    let mut f = waiting(host());
    f.receive_end(&v1_accept());
    assert_eq!(f.side.fallback(), local(DeclineCode::MODEUNSUPP));
    assert_eq!(f.side.declined().version, Version::V1);
}

#[test]
fn d1_fabric_that_was_not_offered() {
    let mut f = waiting(host());
    let mut accept = accept();
    let Body::D(end) = &mut accept.body else {
        panic!()
    };
    end.chid = Chid(0xff09);
    f.receive_end(&accept);
    assert_eq!(
        *f.side.error(),
        PeerMisbehaved::SelectedUnofferedDevice.into()
    );
    assert!(f.side.sent.is_empty());
}

#[test]
fn d2_release_and_features() {
    let mut f = waiting(host());
    f.receive_end(&accept());
    let established = f.side.established();
    assert_eq!(established.release, Release::V2_1);
    assert_eq!(established.peer_host.as_str(), Some("server"));
    let groups = f.side.groups.borrow().registry.group_infos();
    assert_eq!(groups[0].terms.unwrap().os, OsType::ZOS);

    let confirm = AcceptConfirm::parse(&f.side.sent).unwrap();
    let stated = confirm.first_contact().unwrap();
    assert_eq!(
        (stated.release, stated.features),
        (Release::V2_1, FeatureMask::EMULATED_ISM)
    );
    assert_eq!(confirm.eid(), Some(DEFAULT_SEID));
}

#[test]
fn d2_release_above_the_offered_one() {
    let mut f = waiting(HandshakeConfig {
        release: Release::V2_0,
        ..host()
    });
    f.receive_end(&accept());
    assert_eq!(f.side.fallback(), local(DeclineCode::RELEASEERR));
}

#[test]
fn d3_emulated_gids_have_both_halves() {
    let mut f = waiting(host());
    f.receive_end(&accept());
    assert_eq!(f.side.direct().peer, Gid::new(0xaaaa, 0xbbbb));

    let mut f = waiting(host_with(vec![device(0, ISM)]));
    let mut bytes = accept_bytes(&accept());
    bytes[32..34].copy_from_slice(&ISM.0.to_be_bytes());
    f.side
        .fabric
        .borrow_mut()
        .buffers
        .insert(DmbToken(0xdead_beef), 0x10000);
    f.receive(&bytes);
    assert_eq!(
        f.side.direct().peer,
        Gid::native(0xaaaa),
        "the rest is reserved"
    );
}

#[test]
fn d4_reuse_of_an_unknown_group_is_out_of_sync() {
    let mut f = waiting(host());
    let mut accept = accept();
    accept.terms = ClcTerms::V2 {
        eid: DEFAULT_SEID,
        first_contact: None,
    };
    f.receive_end(&accept);
    assert_eq!(f.side.fallback(), local(DeclineCode::SYNCERR));
    let decline = f.side.declined();
    assert!(decline.out_of_sync);
    assert_eq!(decline.version, Version::V2);
    assert_eq!(
        f.side.sent[7], 0x28,
        "version 2, out of sync, type bits zero"
    );
}

#[test]
fn d4_first_contact_never_reuses_a_group() {
    let mut first = waiting(host());
    first.receive_end(&accept());
    let groups = Rc::clone(&first.side.groups);
    let now = first.now;
    let client = Handshake::client(now, Arc::new(host()), &TcpPath::default());
    let mut client = HandshakeSide::with_groups(client, groups, Rc::clone(&first.side.fabric));
    client.settle(now);
    client.receive(now, &accept_bytes(&accept()), usize::MAX);
    assert_ne!(client.established().group, first.side.established().group);
}

#[test]
fn d5_order_of_the_work() {
    let mut f = waiting(host());
    f.receive_end(&accept());
    let kinds: Vec<_> = f.side.works.iter().map(name).collect();
    assert_eq!(kinds, ["reach", "enter", "register", "attach", "establish"]);
    assert_eq!(f.side.direct().peer_buffer.token, DmbToken(0xdead_beef));
}

#[test]
fn bytes_are_not_wanted_during_work() {
    let mut f = waiting(host());
    f.side.faults.stall = Some("enter");
    f.receive_end(&accept());
    assert_eq!(f.side.machine.bytes_needed(), 0);
    assert_eq!(f.side.machine.handle_bytes(f.now, b"anything"), 0);
    f.close();
    assert_eq!(*f.side.error(), Error::Closed(CloseReason::DuringHandshake));
}
