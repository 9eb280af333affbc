//! Links between two ends on a real device, or soft-RoCE.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{DrainInto, End, MEMORY, address, builder, devices, domain, pair};
use futures_lite::future::block_on;
use smc_core::device::{
    Access, Device, DeviceError, Event, Inbound, LinkFailure, MESSAGE_MAX, OpId, Piece, Route,
    SENDS_MAX, SHORT_LEN, SubmitError, Write,
};
use smc_core::mem::Region;
use smc_wire::types::{Rkey, RmbAddr};

#[test]
fn data_is_there_when_its_message_arrives() {
    let Some((near, far)) = ends() else { return };
    near.memory.region().copy_in(100, b"hello, ").unwrap();
    near.memory.region().copy_in(9, b"world").unwrap();
    near.link
        .post(
            OpId(7),
            &[write(&near, &far, (100, 7), (9, 5), 4096)],
            &[3; 44],
        )
        .unwrap();
    assert_eq!(received(&far), Inbound::Short([3; 44]));
    let mut data = [0; 12];
    far.memory.region().copy_out(4096, &mut data).unwrap();
    assert_eq!(&data, b"hello, world");
    assert_eq!(sent(&near), OpId(7));
    let low = far.link.counters().receives_low;
    assert!(low.is_some_and(|low| (1..128).contains(&low)), "{low:?}");
}

#[test]
fn data_is_there_also_in_another_traffic_class_and_with_relaxed_ordering() {
    let Some((device, _)) = devices() else { return };
    let name = device.identity().name.clone();
    let [a, b] = [(); 2].map(|()| {
        let builder = builder(&name).traffic_class(104).relaxed_ordering(true);
        Arc::new(builder.open().unwrap())
    });
    let (near, far) = pair(a, b);
    for round in 0..100_u8 {
        near.memory.region().copy_in(0, &[round; 4096]).unwrap();
        let data = write(&near, &far, (0, 4096), (0, 0), 0);
        let message = [round; SHORT_LEN];
        near.link.post(OpId(1), &[data], &message).unwrap();
        assert_eq!(received(&far), Inbound::Short(message));
        sent(&near);
        let mut there = [0; 4096];
        far.memory.region().copy_out(0, &mut there).unwrap();
        assert_eq!(there, [round; 4096]);
    }
}

#[test]
fn as_many_posts_as_promised_are_taken_and_reported_in_order() {
    let Some((near, far)) = ends() else { return };
    let mut taken = 0;
    loop {
        let writes = [
            write(&near, &far, (0, 3000), (5000, 2000), 0),
            write(&near, &far, (0, 100), (0, 0), 8192),
        ];
        match near.link.post(OpId(taken), &writes, &[taken as u8; 44]) {
            Ok(()) => taken += 1,
            Err(SubmitError::WouldBlock) => break,
            Err(error) => panic!("{error}"),
        }
        assert!(taken < 1000, "no end of posts");
    }
    assert!(taken >= SENDS_MAX as u64, "only {taken} posts taken");
    for number in 0..taken {
        assert_eq!(received(&far), Inbound::Short([number as u8; 44]));
        assert_eq!(sent(&near), OpId(number));
    }
    // And there is space again.
    near.link.post(OpId(1), &[], &[1; 44]).unwrap();
    assert_eq!(sent(&near), OpId(1));
}

#[test]
fn messages_of_all_lengths_arrive() {
    let Some((near, far)) = ends() else { return };
    for len in [1, 43, 44, 45, 64, 1000, 4096, MESSAGE_MAX - 1, MESSAGE_MAX] {
        near.link.post(OpId(1), &[], &pattern(len, len)).unwrap();
        assert_eq!(received(&far).as_bytes(), pattern(len, len), "length {len}");
        sent(&near);
    }
    let too_long = near.link.post(OpId(1), &[], &[0; MESSAGE_MAX + 1]);
    assert_eq!(too_long, Err(SubmitError::OutOfBounds));
}

#[test]
fn sixteen_long_messages_in_a_row_do_not_mix() {
    let Some((near, far)) = ends() else { return };
    for round in 0..20 {
        for number in 0..SENDS_MAX {
            let message = pattern(MESSAGE_MAX - number, round + number);
            near.link.post(OpId(number as u64), &[], &message).unwrap();
        }
        for number in 0..SENDS_MAX {
            sent(&near);
            let message = pattern(MESSAGE_MAX - number, round + number);
            assert!(
                received(&far).as_bytes() == message,
                "message {number} is mixed up"
            );
        }
    }
}

#[test]
fn thousands_of_messages_both_ways() {
    let Some((near, far)) = ends() else { return };
    for number in 0..2000_u32 {
        let mut message = [0; SHORT_LEN];
        message[..4].copy_from_slice(&number.to_be_bytes());
        near.link.post(OpId(number.into()), &[], &message).unwrap();
        assert_eq!(received(&far).as_bytes(), message);
        far.link.post(OpId(number.into()), &[], &message).unwrap();
        assert_eq!(received(&near).as_bytes(), message);
        assert_eq!(sent(&near), OpId(number.into()));
        assert_eq!(sent(&far), OpId(number.into()));
    }
}

#[test]
fn a_wrong_key_takes_the_link_down_on_both_sides() {
    let Some((near, far)) = ends() else { return };
    let mut wrong = write(&near, &far, (0, 8), (0, 0), 0);
    wrong.rkey = Rkey(wrong.rkey.0 ^ 0x5a5a);
    near.link.post(OpId(1), &[wrong], &[0; 44]).unwrap();
    assert_eq!(went_down(&near), LinkFailure::RemoteAccess);
    went_down(&far);
    assert_eq!(
        near.link.post(OpId(2), &[], &[0; 44]),
        Err(SubmitError::PeerGone)
    );
    assert_eq!(near.events(), []);
}

#[test]
fn a_write_past_the_end_is_the_peers_to_refuse() {
    let Some((near, far)) = ends() else { return };
    let past = write(&near, &far, (0, 4096), (0, 0), MEMORY as u64 - 4095);
    near.link.post(OpId(1), &[past], &[0; 44]).unwrap();
    assert_eq!(went_down(&near), LinkFailure::RemoteAccess);
}

#[test]
fn pieces_outside_of_our_memory_are_ours_to_refuse() {
    let Some((near, far)) = ends() else { return };
    let past = write(&near, &far, (0, 8), (MEMORY as u32 - 7, 8), 0);
    assert_eq!(
        near.link.post(OpId(1), &[past], &[0; 44]),
        Err(SubmitError::OutOfBounds)
    );
    let wraps = write(&near, &far, (u32::MAX, u32::MAX), (0, 0), 0);
    assert_eq!(
        near.link.post(OpId(1), &[wraps], &[0; 44]),
        Err(SubmitError::OutOfBounds)
    );
    let fits = write(&near, &far, (0, 8), (0, 0), 0);
    let three = near.link.post(OpId(1), &[fits, fits, fits], &[0; 44]);
    assert!(
        matches!(&three, Err(SubmitError::Device(error)) if matches!(**error, DeviceError::Invalid(_))),
        "{three:?}"
    );
    near.link.post(OpId(1), &[fits, fits], &[0; 44]).unwrap();
    sent(&near);
}

#[test]
fn memory_of_another_device_is_refused() {
    let Some((near, far)) = ends() else { return };
    let mut strange = write(&near, &far, (0, 8), (0, 0), 0);
    strange.from = &*far.memory;
    let refused = near.link.post(OpId(1), &[strange], &[0; 44]);
    assert!(
        matches!(&refused, Err(SubmitError::Device(error)) if matches!(**error, DeviceError::Invalid(_))),
        "{refused:?}"
    );
}

#[test]
fn nothing_is_reported_of_a_link_that_we_closed() {
    let Some((near, far)) = ends() else { return };
    near.link.post(OpId(1), &[], &[1; 44]).unwrap();
    received(&far);
    far.link.post(OpId(1), &[], &[1; 44]).unwrap();
    sent(&far);
    near.link.close();
    near.link.close();
    assert_eq!(near.events(), []);
    assert_eq!(
        near.link.post(OpId(2), &[], &[0; 44]),
        Err(SubmitError::PeerGone)
    );
    // The other end notices by what it posts.
    far.link.post(OpId(2), &[], &[0; 44]).unwrap();
    assert_eq!(went_down(&far), LinkFailure::RetryExceeded);
    assert_eq!(near.events(), []);
}

#[test]
fn links_can_be_dropped_at_any_time() {
    let Some((a, b)) = devices() else { return };
    let (a, b) = (Arc::new(a), Arc::new(b));
    for round in 0..200 {
        let (near, far) = pair(Arc::clone(&a), Arc::clone(&b));
        for number in 0..round % 17 {
            let writes = [write(&near, &far, (0, 4000), (0, 0), 0)];
            near.link.post(OpId(number), &writes, &[0; 44]).unwrap();
        }
        if round % 3 == 0 && round % 17 > 0 {
            near.wait_some();
        }
        drop(near);
        drop(far);
        // Whatever is left over is not taken for an event of a link that is there.
        let mut left = Vec::new();
        a.drain_into(&mut left);
        b.drain_into(&mut left);
        assert_eq!(left, []);
    }
    let (near, far) = pair(a, b);
    near.link.post(OpId(1), &[], &[9; 44]).unwrap();
    assert_eq!(received(&far), Inbound::Short([9; 44]));
}

#[test]
fn a_device_can_be_dropped_before_what_it_made() {
    let Some((near, far)) = ends() else { return };
    let End {
        device,
        link,
        memory,
        ..
    } = near;
    drop(device);
    link.post(OpId(1), &[], &[5; 44]).unwrap();
    assert_eq!(received(&far), Inbound::Short([5; 44]));
    drop(memory);
    drop(link);
}

#[test]
fn the_doorbell_rings_for_what_comes_after_arming_and_not_before() {
    let Some((near, far)) = ends() else { return };
    far.events();
    far.device_arm();
    assert_eq!(far.events(), []);
    assert!(!far.park(Duration::ZERO), "rings for nothing");
    near.link.post(OpId(1), &[], &[0; 44]).unwrap();
    assert!(far.park(Duration::from_secs(60)), "does not ring");
    received(&far);
    far.events();
    assert!(!far.park(Duration::ZERO), "still rings");
    // Without arming it stays quiet, and arming again makes it ring again.
    for _ in 0..3 {
        near.link.post(OpId(1), &[], &[0; 44]).unwrap();
        received(&far);
        sent(&near);
    }
}

#[test]
fn a_receiver_that_sleeps_makes_the_sender_wait_and_no_more() {
    let Some((near, far)) = ends() else { return };
    for round in 0..5 {
        let (mut posted, mut sent) = (0, 0);
        let timeout = Instant::now() + Duration::from_secs(2);
        while Instant::now() < timeout {
            match near.link.post(OpId(posted), &[], &[posted as u8; 44]) {
                Ok(()) => posted += 1,
                Err(error) => {
                    assert_eq!(error, SubmitError::WouldBlock);
                    sent += near.events().len() as u64;
                }
            }
        }
        assert!(posted > SENDS_MAX as u64, "{posted}");
        println!("round {round}: {posted} posted, {sent} sent");
        for number in 0..posted {
            assert_eq!(received(&far), Inbound::Short([number as u8; 44]));
        }
        for _ in sent..posted {
            near.wait("completion", |event| {
                matches!(event, Event::Completed { .. })
            });
        }
    }
    assert_eq!(far.link.counters().receives_low, Some(0));
}

#[test]
fn two_threads_can_post_on_one_link() {
    let Some((near, far)) = ends() else { return };
    const EACH: u64 = 300;
    std::thread::scope(|scope| {
        for thread in 0..2_u64 {
            let near = &near;
            scope.spawn(move || {
                for number in 0..EACH {
                    let op = OpId(thread << 32 | number);
                    while let Err(error) = near.link.post(op, &[], &[thread as u8; 44]) {
                        assert_eq!(error, SubmitError::WouldBlock);
                        std::thread::yield_now();
                    }
                }
            });
        }
        let mut next = [0; 2];
        for _ in 0..2 * EACH {
            received(&far);
            let OpId(op) = sent(&near);
            let thread = (op >> 32) as usize;
            assert_eq!(op & 0xffff_ffff, next[thread]);
            next[thread] += 1;
        }
    });
}

#[test]
fn an_address_that_is_not_there_is_refused() {
    let Some((device, _)) = devices() else { return };
    let mut strange = address(&device);
    strange.gid = std::net::Ipv4Addr::new(192, 0, 2, 77).into();
    let refused = block_on(async { domain(&device).await.open_link(&strange).await });
    assert!(
        matches!(refused, Err(DeviceError::Invalid(_))),
        "{refused:?}"
    );
}

#[test]
fn an_unreachable_peer_is_an_error_of_connecting_or_of_sending() {
    let Some((device, _)) = devices() else { return };
    let device = Arc::new(device);
    let pending =
        block_on(async { domain(&device).await.open_link(&address(&device)).await }).unwrap();
    let mut unreachable = pending.local();
    unreachable.gid = std::net::Ipv4Addr::new(192, 0, 2, 77).into();
    match block_on(pending.connect(unreachable, Route::SameSubnet)) {
        Ok(link) => drop(link),
        Err(error) => println!("{error}"),
    }
}

#[test]
fn a_reserved_path_mtu_is_refused() {
    let Some((device, _)) = devices() else { return };
    let pending =
        block_on(async { domain(&device).await.open_link(&address(&device)).await }).unwrap();
    let mut strange = pending.local();
    strange.mtu = smc_wire::types::MtuCode::new(0).unwrap();
    let refused = block_on(pending.connect(strange, Route::SameSubnet));
    assert!(
        matches!(refused, Err(DeviceError::Invalid(_))),
        "{refused:?}"
    );
}

#[test]
fn addresses_for_peers_do_not_tell_where_memory_is() {
    let Some((device, _)) = devices() else { return };
    let domain = block_on(domain(&device));
    let region = Region::anonymous(MEMORY);
    let register = || block_on(domain.register(&region, Access::RemoteWrite)).unwrap();
    let own = region.as_ptr().as_ptr().addr() as u64;
    let (one, other) = (register().addr().0, register().addr().0);
    assert!(one != own && other != own, "{one:#x} {other:#x} {own:#x}");
    assert_ne!(one, other, "drawn at random");
    assert_eq!(one % 4096, own % 4096, "at the same place of a page");
}

#[test]
fn links_are_limited_and_their_places_come_back() {
    let Some((device, _)) = devices() else { return };
    let name = device.identity().name.clone();
    let device = builder(&name).links(2).open().unwrap();
    let at = address(&device);
    let domain = block_on(domain(&device));
    for _ in 0..50 {
        let first = block_on(domain.open_link(&at)).unwrap();
        let second = block_on(domain.open_link(&at)).unwrap();
        let third = block_on(domain.open_link(&at));
        assert!(matches!(third, Err(DeviceError::Exhausted)), "{third:?}");
        drop((first, second));
        let mut left = Vec::new();
        device.drain_into(&mut left);
        assert_eq!(left, []);
    }
}

/// Both ends, if there is a device.
fn ends() -> Option<(End, End)> {
    let (a, b) = devices()?;
    Some(pair(Arc::new(a), Arc::new(b)))
}

fn write<'a>(from: &'a End, to: &End, first: (u32, u32), second: (u32, u32), at: u64) -> Write<'a> {
    let piece = |(at, len)| Piece { at, len };
    Write {
        from: &*from.memory,
        first: piece(first),
        second: piece(second),
        rkey: to.memory.rkey(),
        to: RmbAddr(to.memory.addr().0 + at),
    }
}

fn received(end: &End) -> Inbound {
    let is = |event: &Event| matches!(event, Event::Received { .. } | Event::LinkDown { .. });
    match end.wait("message", is) {
        Event::Received { message, link } => {
            assert_eq!(link, end.link.qpn());
            message
        }
        other => panic!("instead of a message: {other:?}"),
    }
}

fn sent(end: &End) -> OpId {
    let is = |event: &Event| matches!(event, Event::Completed { .. } | Event::LinkDown { .. });
    match end.wait("completion", is) {
        Event::Completed { op, link } => {
            assert_eq!(link, end.link.qpn());
            op
        }
        other => panic!("instead of a completion: {other:?}"),
    }
}

fn went_down(end: &End) -> LinkFailure {
    let is = |event: &Event| matches!(event, Event::LinkDown { .. });
    match end.wait("end of the link", is) {
        Event::LinkDown { cause, link } => {
            assert_eq!(link, end.link.qpn());
            cause
        }
        other => panic!("instead of its end: {other:?}"),
    }
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + seed * 7) as u8).collect()
}
