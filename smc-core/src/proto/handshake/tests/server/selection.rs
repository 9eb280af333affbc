//! S9: device selection.

use super::*;

#[test]
fn s9_no_device_on_an_offered_fabric() {
    let f = HandshakeFixture::new(host_with(vec![device(0, ISM)]));
    assert_eq!(
        f.declines_offer(&proposal(&host())),
        DeclineCode::NOSMCD2DEV
    );
}

#[test]
fn s9_device_that_does_not_reach_the_client() {
    let mut f = HandshakeFixture::new(host());
    f.side.faults.unreachable.push(DeviceIndex(0));
    assert_eq!(
        f.declines_offer(&proposal(&host())),
        DeclineCode::NOSMCD2DEV
    );
}

#[test]
fn s9_the_first_reason_is_told() {
    let devices = || vec![device(0, ISM), device(1, LOOP)];
    let mut f = HandshakeFixture::new(host_with(devices()));
    f.side
        .faults
        .register
        .insert(DeviceIndex(0), [DeviceError::Exhausted].into());
    f.side
        .faults
        .register
        .insert(DeviceIndex(1), [DeviceError::PeerGone].into());
    assert_eq!(
        f.declines_offer(&proposal(&host_with(devices()))),
        DeclineCode::MAX_DMB
    );
}

#[test]
fn s9_native_device_of_the_fixed_part_goes_first() {
    let mut proposal = proposal(&host());
    let area = proposal.smcd.as_mut().unwrap();
    (area.gid, area.chid) = (device(1, ISM).gid.hi(), ISM);
    proposal.v1 = OfferedTypes::D;
    proposal.ip = Some(IpArea::v4([192, 0, 2, 0].into(), 24));
    let mut f = HandshakeFixture::new(host_with(vec![device(0, LOOP), device(1, ISM)]));
    let accept = f.accepts(&proposal);
    let Body::D(end) = accept.body else { panic!() };
    assert_eq!(end.chid, ISM);
    assert_eq!(
        f.side.works[0],
        Work::Reach {
            device: DeviceIndex(1),
            peer: device(1, ISM).gid
        }
    );
}

#[test]
fn s9_emulated_devices_come_in_pairs_and_malformed_pairs_are_skipped() {
    let mut proposal = proposal(&host());
    let entry = |gid, chid| GidEntry {
        gid: IsmGid(gid),
        chid: Chid(chid),
    };
    let direct = proposal.ext.as_mut().unwrap().direct.as_mut().unwrap();
    direct.entries = Bounded::from_slice(&[
        entry(1, 0xff02), // no second entry of its CHID
        entry(2, 0x0001),
        entry(3, 0xff01),
        entry(4, 0xff01),
        entry(5, 0xff02), // cut off
    ])
    .unwrap();
    let mut f = HandshakeFixture::new(host_with(vec![
        device(0, Chid(0xff02)),
        device(1, Chid(0xff01)),
    ]));
    f.accepts(&proposal);
    let reached: Vec<_> = f
        .side
        .works
        .iter()
        .filter(|work| matches!(work, Work::Reach { .. }))
        .collect();
    assert_eq!(
        reached,
        [&Work::Reach {
            device: DeviceIndex(1),
            peer: Gid::new(3, 4)
        }]
    );
}

#[test]
fn s9_loopback_devices_are_taken_from_the_own_host_only() {
    let config = || host_with(vec![device(0, Chid::LOOPBACK), device(1, LOOP)]);
    let reached = |path: TcpPath| {
        let mut f = HandshakeFixture::server(config(), path);
        let accept = f.accepts(&proposal(&config()));
        let Body::D(end) = accept.body else {
            panic!("{accept:?}");
        };
        end.chid
    };
    for path in same_host() {
        assert_eq!(reached(path), Chid::LOOPBACK);
    }
    assert_eq!(reached(other_host()), LOOP);

    let config = || host_with(vec![device(0, Chid::LOOPBACK)]);
    let f = HandshakeFixture::server(config(), other_host());
    assert_eq!(
        f.declines_offer(&proposal(&config())),
        DeclineCode::NOSMCD2DEV
    );
}

#[test]
fn s9_one_device_of_ours_serves_one_entry() {
    let mut proposal = proposal(&host());
    let entry = |gid| GidEntry {
        gid: IsmGid(gid),
        chid: ISM,
    };
    let direct = proposal.ext.as_mut().unwrap().direct.as_mut().unwrap();
    direct.entries = Bounded::from_slice(&[entry(1), entry(2)]).unwrap();
    let mut f = HandshakeFixture::new(host_with(vec![device(0, ISM)]));
    f.side
        .faults
        .register
        .insert(DeviceIndex(0), [DeviceError::Exhausted].into());
    assert_eq!(f.declines_offer(&proposal), DeclineCode::MAX_DMB);
}

#[test]
fn s9_one_entry_is_offered_to_each_of_our_devices_until_one_reaches_it() {
    let twins = vec![device(0, LOOP), device(1, LOOP), device(2, LOOP)];
    let mut f = HandshakeFixture::new(host_with(twins));
    f.side.faults.unreachable.push(DeviceIndex(0));
    f.accepts(&proposal(&host()));
    let devices: Vec<_> = f
        .side
        .works
        .iter()
        .filter_map(|work| match work {
            Work::Reach { device, .. } => Some(device.0),
            _ => None,
        })
        .collect();
    assert_eq!(devices, [0, 1]);
}

// S9: hosts without RDMA and without SMC-D v1

#[test]
fn s9_v1_only_clients() {
    let cases = [
        (
            OfferedTypes::D,
            interface([192, 0, 2, 9], 24),
            DeclineCode::NOSMCDDEV,
        ),
        (
            OfferedTypes::D,
            interface([192, 0, 3, 9], 24),
            DeclineCode::DIFFPREFIX,
        ),
        (
            OfferedTypes::D,
            interface([192, 0, 2, 9], 16),
            DeclineCode::DIFFPREFIX,
        ),
        (
            OfferedTypes::R,
            interface([192, 0, 2, 9], 24),
            DeclineCode::NOSMCDEV,
        ),
        (
            OfferedTypes::R,
            interface([10, 0, 0, 1], 24),
            DeclineCode::DIFFPREFIX,
        ),
        (
            OfferedTypes::Both,
            interface([192, 0, 2, 9], 24),
            DeclineCode::NOSMCDDEV,
        ),
        (
            OfferedTypes::Both,
            interface([10, 0, 0, 1], 8),
            DeclineCode::DIFFPREFIX,
        ),
        // The interface is not known: the missing device is the reason that matters.
        (OfferedTypes::D, TcpPath::default(), DeclineCode::NOSMCDDEV),
        (OfferedTypes::R, TcpPath::default(), DeclineCode::NOSMCDEV),
    ];
    for (types, path, code) in cases {
        let what = format!("{types} over {path:?}");
        assert_eq!(
            HandshakeFixture::server(host(), path).declines_offer(&v1(types)),
            code,
            "{what}"
        );
    }
}

#[test]
fn s9_v1_prefixes_of_ipv6() {
    let mut proposal = v1(OfferedTypes::R);
    let prefix = Ipv6Prefix {
        prefix: "2001:db8::".parse().unwrap(),
        prefix_len: 64,
    };
    proposal.ip = Some(IpArea::v6(Bounded::from_slice(&[prefix]).unwrap()));
    let over = |address: &str, len| {
        let subnet = Subnet::V6(address.parse().unwrap(), len);
        TcpPath::over(Interface::new(vec![subnet], None))
    };
    let code = |path| HandshakeFixture::server(host(), path).declines_offer(&proposal);
    assert_eq!(code(over("2001:db8::7", 64)), DeclineCode::NOSMCDEV);
    assert_eq!(code(over("2001:db8::7", 48)), DeclineCode::DIFFPREFIX);
    assert_eq!(code(over("2001:db8:0:1::7", 64)), DeclineCode::DIFFPREFIX);
}

#[test]
fn s9_v1_offered_in_a_version_2_message() {
    let mut proposal = v1(OfferedTypes::R);
    proposal.version = Version::V2;
    proposal.smcd = Some(SmcdArea::default());
    assert_eq!(
        HandshakeFixture::new(host()).declines_offer(&proposal),
        DeclineCode::NOSMCDEV
    );
}

#[test]
fn s9_smc_r_only_clients() {
    let server = || host_with_ueids(&["SALES"]);
    assert_eq!(
        HandshakeFixture::new(server()).declines_offer(&r_v2(&["SALES"])),
        DeclineCode::NOSMCRDEV
    );
    // An EID mismatch leaves no reason of its own.
    assert_eq!(
        HandshakeFixture::new(server()).declines_offer(&r_v2(&["OTHER"])),
        DeclineCode::NOSMCDEV
    );
}

#[test]
fn s9_subnet_mismatch_is_told_when_v2_and_smc_r_failed_too() {
    let mut both = proposal(&host());
    both.v1 = OfferedTypes::R;
    both.ip = Some(IpArea::v4([192, 0, 2, 0].into(), 24));
    let mut f = HandshakeFixture::server(host(), interface([10, 0, 0, 1], 8));
    f.side.faults.unreachable.push(DeviceIndex(0));
    assert_eq!(f.declines_offer(&both), DeclineCode::DIFFPREFIX);
    let mut f = HandshakeFixture::server(host(), interface([192, 0, 2, 1], 24));
    f.side.faults.unreachable.push(DeviceIndex(0));
    assert_eq!(f.declines_offer(&both), DeclineCode::NOSMCD2DEV);
}

#[test]
fn s9_unknown_vlan() {
    let path = TcpPath {
        vlan_unknown: true,
        ..TcpPath::default()
    };
    assert_eq!(
        HandshakeFixture::server(host(), path.clone()).declines_offer(&v1(OfferedTypes::D)),
        DeclineCode::GETVLANERR
    );
    // Version 2 does not look at it.
    HandshakeFixture::server(host(), path).accepts(&proposal(&host()));
}

#[test]
fn s9_v1_device_that_does_not_reach_the_client() {
    let net = Some(PnetId::new("NET1").unwrap());
    let mut config = host_with(vec![DirectDevice {
        pnet_id: net,
        ..device(0, ISM)
    }]);
    config.v1 = true;
    let subnets = vec![Subnet::V4([192, 0, 2, 7].into(), 24)];
    let path = TcpPath::over(Interface::new(subnets, net));
    let mut f = HandshakeFixture::server(config, path);
    f.side.faults.unreachable.push(DeviceIndex(0));
    assert_eq!(
        f.declines_offer(&v1(OfferedTypes::D)),
        DeclineCode::NOSMCDDEV
    );
}
