use smc_wire::clc::Body;
use smc_wire::types::{FeatureMask, Features, HostName, OsType, PnetId, Release, Version};

use super::*;
use crate::error::{PeerMisbehaved, Phase};
use crate::proto::group::GroupState;

#[test]
fn first_contact_of_v2_1() {
    let pair = Pair::new(host(), host()).completed();

    let (client, server) = (pair.client.established(), pair.server.established());
    for side in [client, server] {
        assert!(side.first_contact);
        assert_eq!((side.version, side.release), (Version::V2, Release::V2_1));
        assert_eq!(side.eid, Some(DEFAULT_SEID));
        assert_eq!(side.peer_host.as_str(), Some("host-a"));
    }

    let (here, there) = (pair.client.direct(), pair.server.direct());
    assert_eq!(
        (here.local, there.local),
        (there.peer_buffer.token, here.peer_buffer.token)
    );
    assert_eq!(here.peer, device(0, LOOP).gid);
    assert_eq!(here.chid, LOOP);
    assert_eq!(here.access, PeerAccess::Attached);
    assert_eq!(there.access, PeerAccess::Attached);
    assert_eq!(here.local_size, there.peer_buffer.size);

    // PROPOSAL, ACCEPT with parts, CONFIRM with parts; not a byte more.
    assert_eq!(pair.from_server.len(), 130);
    assert_eq!(
        pair.from_client.len(),
        proposal(&host()).encoded_len() + 130
    );
    assert!(pair.to_client.is_empty() && pair.to_server.is_empty());
    let group = pair
        .server
        .groups
        .borrow()
        .registry
        .group_info(server.group)
        .unwrap();
    assert_eq!((group.state, group.connections), (GroupState::Active, 1));
}

#[test]
fn one_byte_at_a_time() {
    let mut pair = Pair::new(host(), host());
    pair.chunk = 1;
    pair.run();
    assert!(pair.client.established().first_contact);
    assert!(pair.server.established().first_contact);
}

#[test]
fn next_connection_joins_the_group() {
    let first = Pair::new(host(), host()).completed();
    let (client, server) = (
        Rc::clone(&first.client.groups),
        Rc::clone(&first.server.groups),
    );
    let second =
        Pair::with_groups(host(), host(), Rc::clone(&client), Rc::clone(&server)).completed();

    let joined = second.server.established();
    assert!(!joined.first_contact && !second.client.established().first_contact);
    assert_eq!(joined.group, first.server.established().group);
    assert_eq!(joined.release, Release::V2_1, "as agreed at first contact");
    assert_eq!(joined.peer_host.as_str(), Some("host-a"));
    assert_eq!(second.from_server.len(), 78);
    assert_eq!(
        (client.borrow().connections(), server.borrow().connections()),
        (2, 2)
    );
}

#[test]
fn v2_0_server_and_v2_0_client() {
    let old = || HandshakeConfig {
        release: Release::V2_0,
        ..host()
    };
    for (client, server) in [(host(), old()), (old(), host())] {
        let pair = Pair::new(client, server).completed();
        assert_eq!(
            pair.from_server.len(),
            114,
            "first-contact parts of 36 bytes"
        );
        for side in [&pair.client, &pair.server] {
            assert_eq!(side.established().release, Release::V2_0);
        }
    }
}

#[test]
fn features_are_what_both_have() {
    let many = FeatureMask::from_bits_retain(0x00ff);
    let mut pair = Pair::new(
        host(),
        HandshakeConfig {
            features: many,
            ..host()
        },
    );
    pair.run();
    assert_eq!(
        pair.accepts()[0].first_contact().unwrap().features,
        many,
        "not intersected"
    );
    assert_eq!(
        pair.confirms()[0].first_contact().unwrap().features,
        FeatureMask::EMULATED_ISM
    );
}

#[test]
fn system_eid_goes_before_ueids() {
    let config = || HandshakeConfig {
        ueids: vec![ueid("SALES")],
        ..host()
    };
    let pair = Pair::new(config(), config()).completed();
    assert_eq!(pair.client.established().eid, Some(DEFAULT_SEID));
}

#[test]
fn first_common_ueid_in_the_clients_order() {
    let client = host_with_ueids(&["UNKNOWN", "SECOND", "FIRST"]);
    let pair = Pair::new(client, host_with_ueids(&["FIRST", "SECOND"])).completed();
    assert_eq!(pair.client.established().eid, Some(ueid("SECOND")));
    assert_eq!(pair.server.established().eid, Some(ueid("SECOND")));
}

#[test]
fn different_system_eids_do_not_match() {
    let native = Eid::from_bytes(*b"IBM-SYSZ-ISMSEID00000000A23B3906");
    let mut pair = Pair::new(
        HandshakeConfig {
            seid: Some(native),
            ..host()
        },
        host(),
    );
    pair.run();
    // An EID mismatch leaves no reason of its own.
    pair.server_declines(DeclineCode::NOSMCDDEV);
}

#[test]
fn without_any_eid_there_is_no_v2() {
    let pair = Pair::new(host_with_ueids(&[]), host()).completed();
    pair.server_declines(DeclineCode::NOUEID);
}

#[test]
fn devices_that_copy_are_not_attached() {
    let copying = || {
        host_with(vec![DirectDevice {
            nocopy: false,
            ..device(0, LOOP)
        }])
    };
    let pair = Pair::new(copying(), copying()).completed();
    for side in [&pair.client, &pair.server] {
        assert_eq!(side.direct().access, PeerAccess::Moved);
        assert!(
            !side
                .works
                .iter()
                .any(|work| matches!(work, Work::Attach { .. }))
        );
    }
}

#[test]
fn native_and_emulated_devices_in_the_clients_order() {
    let devices = || vec![device(0, ISM), device(1, LOOP)];
    let pair = Pair::new(host_with(devices()), host_with(devices())).completed();
    let chosen = pair.server.direct();
    assert_eq!(
        (chosen.device, chosen.chid, chosen.peer),
        (DeviceIndex(0), ISM, device(0, ISM).gid)
    );

    let mut pair = Pair::new(host_with(devices()), host_with(devices()));
    pair.server.faults.unreachable.push(DeviceIndex(0));
    pair.run();
    let chosen = pair.server.direct();
    assert_eq!((chosen.device, chosen.chid), (DeviceIndex(1), LOOP));
    assert_eq!(chosen.peer, device(1, LOOP).gid, "all 128 bits");
    assert_eq!(pair.client.direct().device, DeviceIndex(1));
}

#[test]
fn next_device_is_tried_when_a_buffer_cannot_be_had() {
    let devices = || vec![device(0, ISM), device(1, LOOP)];
    let mut pair = Pair::new(host_with(devices()), host_with(devices()));
    pair.server
        .faults
        .register
        .insert(DeviceIndex(0), [DeviceError::Exhausted].into());
    pair.run();
    assert_eq!(pair.server.direct().device, DeviceIndex(1));
    assert_eq!(
        pair.server.discards, 1,
        "the member in the first device's group is given up"
    );
    assert_eq!(pair.server.groups.borrow().connections(), 1);
}

#[test]
fn smaller_buffer_when_memory_is_short() {
    let mut pair = Pair::new(host(), host());
    let short = || [DeviceError::NoMemory, DeviceError::NoMemory].into();
    pair.client.faults.register.insert(DeviceIndex(0), short());
    pair.run();
    assert_eq!(pair.server.direct().local_size, SizeCode::LINUX_DEFAULT);
    assert_eq!(pair.server.direct().peer_buffer.size, SizeCode::MIN);
    assert_eq!(pair.client.direct().local_size, SizeCode::MIN);

    let mut pair = Pair::new(host(), host());
    pair.server.faults.register.insert(DeviceIndex(0), short());
    pair.run();
    assert_eq!(pair.server.direct().local_size, SizeCode::MIN);
    assert_eq!(pair.client.direct().peer_buffer.size, SizeCode::MIN);
    assert_eq!(
        pair.client.direct().local_size,
        SizeCode::MIN,
        "the server has to have memory for the client's buffer, too"
    );

    let mut pair = Pair::new(host(), host());
    let dry = std::iter::repeat_n(DeviceError::NoMemory, 3).collect();
    pair.server.faults.register.insert(DeviceIndex(0), dry);
    pair.run();
    assert_eq!(pair.client.fallback(), peer(DeclineCode::MEM));
}

#[test]
fn buffers_keep_to_the_limit_of_the_device() {
    let small = DirectDevice {
        max_buffer: SizeCode::MIN,
        ..device(0, LOOP)
    };
    let pair = Pair::new(host_with(vec![small]), host()).completed();
    assert_eq!(pair.client.direct().local_size, SizeCode::MIN);
    assert_eq!(pair.server.direct().local_size, SizeCode::LINUX_DEFAULT);
}

#[test]
fn server_without_a_free_buffer_declines() {
    let mut pair = Pair::new(host(), host());
    pair.server
        .faults
        .register
        .insert(DeviceIndex(0), [DeviceError::Exhausted].into());
    pair.run();
    pair.server_declines(DeclineCode::MAX_DMB);
    assert_eq!(
        pair.server.groups.borrow().registry.group_infos(),
        [],
        "no group stays behind"
    );
}

#[test]
fn a_client_enters_no_group_of_a_device_that_it_does_not_reach() {
    let mut pair = Pair::new(host(), host());
    pair.client.faults.unreachable.push(DeviceIndex(0));
    pair.run();
    pair.client_declines(DeclineCode::NOSMCD2DEV);
    assert_eq!(
        pair.client.works.iter().map(name).collect::<Vec<_>>(),
        ["reach"]
    );
}

#[test]
fn client_without_a_free_buffer_declines_after_accept() {
    let mut pair = Pair::new(host(), host());
    pair.client
        .faults
        .register
        .insert(DeviceIndex(0), [DeviceError::Exhausted].into());
    pair.run();
    pair.client_declines(DeclineCode::MAX_DMB);
    for side in [&pair.client, &pair.server] {
        assert_eq!(side.groups.borrow().registry.group_infos(), []);
    }
}

#[test]
fn client_that_cannot_attach_declines() {
    for result in [Err(DeviceError::PeerGone), Ok(65_535)] {
        let mut pair = Pair::new(host(), host());
        pair.client.faults.attach = Some(result);
        pair.run();
        pair.client_declines(DeclineCode::MEM);
    }
}

/// A client that has confirmed is in SMC mode: it may have written and closed.
#[test]
fn server_that_cannot_attach_keeps_what_the_client_has_written() {
    for error in [DeviceError::PeerGone, DeviceError::NoMemory] {
        let mut pair = Pair::new(host(), host());
        pair.server.faults.attach = Some(Err(error));
        pair.run();
        pair.client.established();
        assert_eq!(pair.server.direct().access, PeerAccess::Lost);
    }
}

#[test]
fn server_aborts_when_the_clients_buffer_is_shorter_than_it_said() {
    let mut pair = Pair::new(host(), host());
    pair.server.faults.attach = Some(Ok(100));
    pair.run();
    pair.client.established();
    assert_eq!(*pair.server.error(), PeerMisbehaved::BadBuffer.into());
    assert_eq!(pair.server.groups.borrow().connections(), 0);
}

/// The server has had the CONFIRM before it answered, and is gone when its answer is read.
#[test]
fn client_that_confirmed_in_advance_keeps_what_the_server_has_written() {
    for (error, is_lost) in [
        (DeviceError::PeerGone, true),
        (DeviceError::Invalid("no such buffer any more"), true),
        (DeviceError::NoMemory, false),
    ] {
        let mut pair = Pair::new(host(), host());
        pair.client.machine.handle_confirmed();
        pair.client.faults.attach = Some(Err(error));
        pair.run();
        match is_lost {
            true => assert_eq!(pair.client.direct().access, PeerAccess::Lost),
            false => assert_eq!(pair.client.fallback(), local(DeclineCode::MEM)),
        }
    }
}

/// As above, where the client sees the end of the link group first.
#[test]
fn client_that_confirmed_in_advance_waits_for_its_work_when_the_group_ends() {
    let mut pair = Pair::new(host(), host());
    pair.client.machine.handle_confirmed();
    pair.client.faults.stall = Some("attach");
    pair.settle();
    pair.client.machine.handle_terminated();
    let gone = WorkDone::Attached(Err(DeviceError::PeerGone));
    pair.client.machine.handle_done(pair.now, gone);
    pair.run();
    assert_eq!(pair.client.direct().access, PeerAccess::Lost);
}

#[test]
fn lost_link_group_is_out_of_sync_and_the_server_makes_a_new_one() {
    let first = Pair::new(host(), host()).completed();
    let server = Rc::clone(&first.server.groups);
    // The client's process forgot its groups.
    let second = Pair::with_groups(host(), host(), Rc::default(), Rc::clone(&server)).completed();

    second.client_declines(DeclineCode::SYNCERR);
    // Any process could have said it: the connection of the first one stays.
    assert_eq!(server.borrow().terminated, []);
    assert_eq!(server.borrow().connections(), 1);
    let (_, decline) = second.from_client.split_at(proposal(&host()).encoded_len());
    assert!(Decline::parse(decline).unwrap().out_of_sync);

    // The next one starts afresh.
    let third = Pair::with_groups(host(), host(), Rc::default(), server).completed();
    assert!(third.client.established().first_contact);
    let group = first.server.established().group;
    assert_ne!(third.server.established().group, group);
}

#[test]
fn many_setups_at_once_do_not_wait_for_each_other() {
    let (client, server) = (Rc::default(), Rc::default());
    let mut pairs: Vec<_> = (0..50)
        .map(|_| Pair::with_groups(host(), host(), Rc::clone(&client), Rc::clone(&server)))
        .collect();
    // All PROPOSALs arrive before any CONFIRM.
    for pair in &mut pairs {
        pair.client.settle(pair.now);
        let bytes = pair.client.take_sent();
        pair.server.receive(pair.now, &bytes, usize::MAX);
    }
    assert_eq!(server.borrow().registry.waiting(), 0);
    for pair in &mut pairs {
        pair.settle();
        assert!(pair.client.established().first_contact);
    }
    assert_eq!(
        (client.borrow().connections(), server.borrow().connections()),
        (50, 50)
    );
    let next =
        Pair::with_groups(host(), host(), Rc::clone(&client), Rc::clone(&server)).completed();
    assert!(!next.client.established().first_contact);
}

#[test]
fn stalled_client_costs_the_others_nothing() {
    let server = Rc::default();
    let mut stalled = Pair::with_groups(host(), host(), Rc::default(), Rc::clone(&server));
    stalled.client.faults.stall = Some("register");
    stalled.settle();
    let mut other = Pair::with_groups(host(), host(), Rc::default(), Rc::clone(&server));
    other.settle();
    assert!(other.server.established().first_contact);

    // The client's device never answers: the client times out before the server does.
    stalled.run();
    stalled.client_declines(DeclineCode::MEM);
    assert_eq!(server.borrow().connections(), 1);
}

#[test]
fn stalled_device_of_the_server_ends_in_a_decline_before_the_client_gives_up() {
    for (stall, step, code) in [
        ("reach", SetupStep::Reach, DeclineCode::NOSMCD2DEV),
        ("enter", SetupStep::Enter, DeclineCode::INTERR),
        ("register", SetupStep::Register, DeclineCode::MEM),
    ] {
        let mut pair = Pair::new(host(), host());
        pair.server.faults.stall = Some(stall);
        let start = pair.now;
        pair.run();
        assert_eq!(pair.now - start, WORK_TIMEOUT);
        pair.server_declines(code);
        assert_eq!(*pair.server.cause(), FallbackCause::TimedOut(step));
    }
}

#[test]
fn stalled_work_of_the_client() {
    for (stall, step, code) in [
        ("reach", SetupStep::Reach, DeclineCode::NOSMCD2DEV),
        ("enter", SetupStep::Enter, DeclineCode::INTERR),
        ("register", SetupStep::Register, DeclineCode::MEM),
        ("attach", SetupStep::Attach, DeclineCode::MEM),
    ] {
        let mut pair = Pair::new(host(), host());
        pair.client.faults.stall = Some(stall);
        pair.run();
        pair.client_declines(code);
        assert_eq!(*pair.client.cause(), FallbackCause::TimedOut(step));
    }
}

#[test]
fn stalled_last_steps_of_either_side() {
    let mut pair = Pair::new(host(), host());
    pair.server.faults.stall = Some("attach");
    pair.run();
    pair.client.established();
    assert_eq!(pair.server.direct().access, PeerAccess::Lost);

    let mut pair = Pair::new(host(), host());
    pair.client.faults.stall = Some("establish");
    pair.run();
    assert_eq!(*pair.client.error(), Error::TimedOut(Phase::Group));
}

#[test]
fn silent_client_after_accept() {
    let mut pair = Pair::new(host(), host());
    pair.client.settle(pair.now);
    let bytes = pair.client.take_sent();
    pair.server.receive(pair.now, &bytes, usize::MAX);
    assert_eq!(pair.server.machine.state(), Some("CONFIRM"));
    assert_eq!(
        pair.server.machine.poll_timeout(),
        Some(pair.now + CLC_TIMEOUT)
    );
    pair.server.machine.handle_timeout(pair.now + CLC_TIMEOUT);
    pair.server.settle(pair.now);
    assert_eq!(*pair.server.error(), Error::TimedOut(Phase::Confirm));
    assert_eq!(pair.server.groups.borrow().registry.group_infos(), []);
}

#[test]
fn group_terminated_under_a_setup() {
    // The server waits for CONFIRM, which may be there unread, and the client can still fall back.
    let mut pair = Pair::new(host(), host());
    pair.client.faults.stall = Some("register");
    pair.settle();
    pair.server.machine.handle_terminated();
    pair.server.settle(pair.now);
    pair.client.machine.handle_terminated();
    pair.run();
    pair.client_declines(DeclineCode::NOACTLINK);
    assert_eq!(*pair.client.cause(), FallbackCause::GroupTerminated);

    // It has confirmed, and perhaps written, before the group ended.
    let mut pair = Pair::new(host(), host());
    pair.server.faults.stall = Some("attach");
    pair.settle();
    pair.server.machine.handle_terminated();
    pair.run();
    pair.client.established();
    pair.server.established();

    // The server waits for its buffer and has no other device.
    let mut pair = Pair::new(host(), host());
    pair.server.faults.stall = Some("register");
    pair.settle();
    pair.server.machine.handle_terminated();
    pair.run();
    pair.server_declines(DeclineCode::NOACTLINK);
    assert_eq!(*pair.server.cause(), FallbackCause::GroupTerminated);
}

#[test]
fn group_that_ends_at_the_moment_of_its_establishment() {
    let mut pair = Pair::new(host(), host());
    pair.client.faults.stall = Some("establish");
    pair.settle();
    pair.client
        .machine
        .handle_done(pair.now, WorkDone::GroupEstablished(Err(terminated())));
    pair.client.settle(pair.now);
    // It is the connection that ends, behind what the server has written.
    pair.client.established();

    let mut pair = Pair::new(host(), host());
    pair.server.faults.stall = Some("establish");
    pair.settle();
    pair.server
        .machine
        .handle_done(pair.now, WorkDone::GroupEstablished(Err(terminated())));
    pair.run();
    pair.server.established();
}

/// The answer of a registry about a group that it does not know.
fn terminated() -> group::Terminated {
    let terms = group::GroupTerms {
        version: Version::V2,
        release: Release::V2_1,
        eid: None,
        os: OsType::NONE,
        host: HostName::BLANK,
        max_connections: None,
        vendor_features: Features::empty(),
    };
    Registry::default()
        .establish(group::GroupId([0; 4]), terms)
        .unwrap_err()
}

#[test]
fn announced_proposal_and_a_client_that_speaks_second() {
    let now = Instant::now();
    let config = Arc::new(host());
    let offer = ClientProposal::new(&config, &TcpPath::default()).unwrap();
    let announced = offer.bytes().to_vec();
    let fabric = Rc::<RefCell<TestFabric>>::default();
    let client = Handshake::client_delivered(now, Arc::clone(&config), Arc::new(offer));
    let server = Handshake::server(now, config, TcpPath::default());
    let mut pair = Pair::of(
        now,
        HandshakeSide::with_groups(client, Rc::default(), Rc::clone(&fabric)),
        HandshakeSide::with_groups(server, Rc::default(), fabric),
    );
    pair.settle();
    assert!(
        pair.from_client.is_empty(),
        "not a byte before the server has shown itself"
    );
    assert_eq!(
        pair.server.machine.handle_bytes(now, &announced),
        announced.len()
    );
    pair.run();
    assert!(pair.client.established().first_contact);
    assert_eq!(pair.from_client.len(), 130, "only CONFIRM");
}

#[test]
fn v1_over_a_native_device_on_a_common_physical_network() {
    let net = Some(PnetId::new("NET1").unwrap());
    let v1 = || {
        let native = DirectDevice {
            pnet_id: net,
            ..device(0, ISM)
        };
        let mut config = host_with(vec![native]);
        config.v1 = true;
        // No EID in common: version 2 is out.
        config.seid = None;
        config
    };
    let mut server = v1();
    server.ueids = vec![ueid("SERVER")];
    let mut client = v1();
    client.ueids = vec![ueid("CLIENT")];
    let subnets = vec![Subnet::V4([192, 0, 2, 7].into(), 24)];
    let pair = Pair::over(client, server, TcpPath::over(Interface::new(subnets, net))).completed();

    assert_eq!(pair.from_server.len(), 48);
    for side in [&pair.client, &pair.server] {
        let established = side.established();
        assert_eq!((established.version, established.eid), (Version::V1, None));
        assert!(established.first_contact);
        assert_eq!(side.direct().peer, device(0, ISM).gid);
        assert_eq!(side.direct().chid, ISM);
    }
    let Body::D(end) = pair.confirms()[0].body else {
        panic!()
    };
    assert_eq!(end.dmb, pair.client.direct().local);
}
