//! Configured failures.

use super::*;

#[test]
fn senders_wait_for_receive_buffers() {
    let world = LinkWorld::with(12, RdmaOptions::default().with_receives(4));
    for op in 0..9 {
        world.to_b.post(OpId(op), &[], &[0; 44]).unwrap();
    }
    assert_eq!(drained(&world.a).len(), 4);
    assert_eq!(world.to_b.counters().rnr, Some(1));
    assert_eq!(world.to_a.counters().receives_low, Some(0));
    // Draining frees buffers, which fill at once.
    let came: usize = (0..3).map(|_| drained(&world.b).len()).sum();
    assert_eq!(came, 9);
    let rest: Vec<_> = (4..9).map(|op| sent(&world.to_b, op)).collect();
    assert_eq!(drained(&world.a), rest);
}

#[test]
fn who_waits_for_a_buffer_of_a_closed_link_gives_up() {
    let world = LinkWorld::with(13, RdmaOptions::default().with_receives(1));
    for op in 0..2 {
        world.to_b.post(OpId(op), &[], &[0; 44]).unwrap();
    }
    world.to_a.close();
    let expected = [
        sent(&world.to_b, 0),
        down(&world.to_b, LinkFailure::RetryExceeded),
    ];
    assert_eq!(drained(&world.a), expected);
    // Nothing is reported of a closed link.
    assert_eq!(drained(&world.b), []);
}

#[test]
fn a_cut_costs_a_link_only_after_the_retry_time() {
    let (runtime, world) = LinkWorld::timed(15);
    world.network.cut();
    world.post(1, 0, b"late").unwrap();
    runtime.run_for(Duration::from_millis(500));
    assert_eq!(drained(&world.a), []);
    world.network.repair();
    runtime.run_for(Duration::from_millis(1));
    assert_eq!(drained(&world.a), [sent(&world.to_b, 1)]);
    assert_eq!(world.inbox(), b"late");
    // The old retry time is not held against it.
    runtime.run_for(Duration::from_secs(2));
    assert_eq!(drained(&world.a), []);

    world.a.set_cut(world.to_b.qpn(), true);
    world.post(2, 0, b"lost").unwrap();
    runtime.run_for(Duration::from_secs(2));
    let expected = [down(&world.to_b, LinkFailure::RetryExceeded)];
    assert_eq!(drained(&world.a), expected);
    assert_eq!(world.inbox(), b"late");
}

#[test]
fn a_post_can_be_lost_in_three_ways() {
    for (what, data, messages) in [
        (Lost::Everything, "", 1),
        (Lost::Message, "data", 1),
        (Lost::Answer, "data", 2),
    ] {
        let (runtime, world) = LinkWorld::timed(16);
        let loss = Loss::of(what).after(1);
        world.a.set_loss(world.to_b.qpn(), Some(loss));
        world.to_b.post(OpId(1), &[], &[1; 44]).unwrap();
        world.post(2, 0, b"data").unwrap();
        runtime.run_for(Duration::from_millis(1));
        assert_eq!(drained(&world.a), [sent(&world.to_b, 1)], "{what:?}");
        assert_eq!(world.inbox(), data.as_bytes(), "{what:?}");
        assert_eq!(drained(&world.b).len(), messages, "{what:?}");
        runtime.run_for(Duration::from_secs(2));
        let expected = [down(&world.to_b, LinkFailure::RetryExceeded)];
        assert_eq!(drained(&world.a), expected, "{what:?}");
    }
}

#[test]
fn a_loss_can_end_in_time() {
    let (runtime, world) = LinkWorld::timed(17);
    let link = world.to_b.qpn();
    world.a.set_loss(link, Some(Loss::of(Lost::Answer)));
    world.post(1, 0, b"once").unwrap();
    runtime.run_for(Duration::from_millis(1));
    assert_eq!(drained(&world.b).len(), 1);
    world.a.set_loss(link, None);
    runtime.run_for(Duration::from_secs(2));
    assert_eq!(drained(&world.a), [sent(&world.to_b, 1)]);
    assert_eq!(drained(&world.b), []);
}

#[test]
fn completions_can_be_held_back() {
    let world = LinkWorld::new(19);
    world.a.hold_completions(true);
    world.post(1, 0, b"x").unwrap();
    assert_eq!(drained(&world.b).len(), 1);
    assert_eq!(drained(&world.a), []);
    world.a.hold_completions(false);
    assert_eq!(drained(&world.a), [sent(&world.to_b, 1)]);
}

#[test]
fn a_port_that_goes_down_takes_its_addresses_and_links() {
    let world = LinkWorld::new(20);
    let before = world.a.addresses();
    world.a.set_port_active(1, false);
    let expected = [
        down(&world.to_b, LinkFailure::PortDown),
        Event::AddressesChanged,
    ];
    assert_eq!(drained(&world.a), expected);
    assert_eq!(world.a.addresses(), []);
    assert!(now(world.domain_a.open_link(&before[0])).is_err());
    world.to_a.post(OpId(1), &[], &[]).unwrap();
    assert_eq!(
        drained(&world.b),
        [down(&world.to_a, LinkFailure::RetryExceeded)]
    );
    world.a.set_port_active(1, true);
    world.a.set_port_active(1, true);
    assert_eq!(drained(&world.a), [Event::AddressesChanged]);
    assert_eq!(world.a.addresses(), before);
}

#[test]
fn ports_fail_one_by_one() {
    let network = RdmaNetwork::new(21);
    let entry = |n, port| {
        let gid = RoceGid::from_ipv4([192, 0, 2, n].into());
        let address = RdmaAddress::new(gid, RoceKind::V2, mac(n), MtuCode::MTU_4096);
        address.with_port(port).with_interface(format!("eth{n}"), 0)
    };
    let two = RdmaOptions::default()
        .with_address(entry(1, 1))
        .with_address(entry(2, 2));
    let a = network.device_with("rdma0", two);
    let b = network.device("rdma1");
    let [first, second] = &a.addresses()[..] else {
        panic!("two ports");
    };
    let (over_first, _b1) = connect(now(domain(&a).open_link(first)).unwrap(), open(&b));
    let (over_second, _b2) = connect(now(domain(&a).open_link(second)).unwrap(), open(&b));
    a.set_port_cut(1, true);
    over_first.post(OpId(1), &[], &[]).unwrap();
    over_second.post(OpId(2), &[], &[]).unwrap();
    let expected = [
        down(&over_first, LinkFailure::RetryExceeded),
        sent(&over_second, 2),
    ];
    assert_eq!(drained(&a), expected);
    a.set_port_active(1, false);
    assert_eq!(a.addresses(), [entry(2, 2)]);
    assert_eq!(drained(&a), [Event::AddressesChanged]);
}

#[test]
fn a_removed_device_says_so_and_is_no_more() {
    let world = LinkWorld::new(22);
    world.a.remove();
    assert_eq!(drained(&world.a), [Event::DeviceGone]);
    assert!(world.a.drain(&mut |_| {}).is_err());
    let post = world.to_b.post(OpId(1), &[], &[]);
    assert_eq!(post, Err(SubmitError::PeerGone));
    let region = Region::anonymous(8);
    assert!(now(world.domain_a.register(&region, Access::Local)).is_err());
    world.to_a.post(OpId(1), &[], &[]).unwrap();
    let expected = [down(&world.to_a, LinkFailure::RetryExceeded)];
    assert_eq!(drained(&world.b), expected);
}

#[test]
fn setup_fails_as_told() {
    let options = RdmaOptions::default()
        .with_max_links(1)
        .with_limits(Limits::new(2, 64));
    let device = RdmaNetwork::new(23).device_with("rdma0", options);
    let first = open(&device);
    let address = at(&device, RoceKind::V2);
    let open_another = || now(domain(&device).open_link(&address)).map(drop);
    assert_eq!(open_another(), Err(DeviceError::Exhausted));
    drop(first);
    open_another().unwrap();
    device.set_max_links(0);
    assert_eq!(open_another(), Err(DeviceError::Exhausted));

    let register = |len| now(domain(&device).register(&Region::anonymous(len), Access::Local));
    assert!(matches!(register(65), Err(DeviceError::NoMemory)));
    device.refuse_registrations([DeviceError::Exhausted]);
    assert!(matches!(register(8), Err(DeviceError::Exhausted)));
    let kept = [register(8).unwrap(), register(64).unwrap()];
    assert!(matches!(register(8), Err(DeviceError::Exhausted)));
    drop(kept);
    assert_eq!(device.registrations(), 0);
    register(8).unwrap();
}

#[test]
fn setup_can_take_time() {
    let runtime = VirtualRuntime::new(24);
    let network = RdmaNetwork::with_clock(24, runtime.handle());
    network.set_setup_time(Duration::from_millis(3));
    let device = network.device("rdma0");
    let address = at(&device, RoceKind::V2);
    let domain = runtime.block_on(device.protection_domain()).unwrap();
    let elapsed = runtime.elapsed();
    runtime.block_on(domain.open_link(&address)).unwrap();
    assert!(runtime.elapsed() - elapsed >= Duration::from_millis(3));
}
