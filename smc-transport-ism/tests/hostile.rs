//! Effects of a hostile process that overwrites words of the shared memory, or connects to devices.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs::{self, File};
use std::io::{ErrorKind, IoSlice};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::time::Duration;

use futures_lite::AsyncWriteExt as _;
use futures_lite::future::block_on;
use rustix::net::{RecvFlags, recv};
use smc_core::device::{Device as _, Direct as _, Event, PeerEvent, PeerEvents as _, Signal};
use smc_testkit::middleware::{Trace, What};
use smc_testkit::on::{On, in_time};
use smc_testkit::streams::{connect_smc, join_all, listen};
use smc_testkit::unix::{connect_to, drain_full, fill, is_closed, listen_at, send};
use smc_testkit::wait::until;
use smc_transport_ism::IsmDevice;
use smc_wire::types::Gid;
use support::{Kind, World, await_event, builder};

/// The memory of a fabric in a directory, for a process that may write to it.
struct Memory(File);

impl Memory {
    fn of(world: &World) -> Self {
        let path = world.address().join("memory");
        Self(File::options().read(true).write(true).open(path).unwrap())
    }

    fn word(&self, at: u64) -> u64 {
        let mut bytes = [0; 8];
        self.0.read_exact_at(&mut bytes, at).unwrap();
        u64::from_ne_bytes(bytes)
    }

    fn write(&self, at: u64, word: u64) {
        self.0.write_all_at(&word.to_ne_bytes(), at).unwrap();
    }

    /// Slots and granules, and the length of a slot, as in `docs/ism.md`.
    fn layout(&self) -> (u64, u64, u64) {
        let (slots, granules) = (self.word(0x28), self.word(0x30));
        let ready = granules.div_ceil(64);
        let slot_len = 0x100 + 8 * (slots + ready.div_ceil(64) + ready);
        (slots, granules, slot_len.next_multiple_of(64))
    }

    /// Marks all granules as locked and used by the live device of a slot.
    fn occupy(&self, slot: u16) {
        let (slots, granules, slot_len) = self.layout();
        let generation = self.word(0x1000 + u64::from(slot) * slot_len) >> 32;
        let user = generation << 32 | u64::from(slot) << 16 | 1;
        for granule in 0..granules {
            let at = 0x1000 + slots * slot_len + granule * 128;
            self.write(at + 16, user);
            self.write(at + 32, user);
        }
    }
}

#[test]
fn streams_whose_moves_are_blocked_time_out_after_few_tries() {
    const STREAMS: usize = 4;
    On::Smol.run(async {
        let world = World::new(Kind::Directory, false);
        let (traced, journal) = Trace::with_journal(Arc::new(world.device()));
        let client = builder(On::Smol, world.dir()).device(traced).build();
        let (client, server) = (client.unwrap(), world.endpoint(On::Smol));
        let hostile = world.device();
        let listener = listen(&server).await;
        let mut pairs = Vec::new();
        for _ in 0..STREAMS {
            pairs.push(connect_smc(&client, &listener).await);
        }
        Memory::of(&world).occupy(hostile.slot());
        let _setup = journal.take();
        // Each in its own task, which is woken for its stream only.
        let writing = pairs.into_iter().map(|(mut ours, theirs)| {
            smol::spawn(async move {
                let written = ours.write_all(b"data").await;
                drop(theirs);
                written
            })
        });
        let writing: Vec<_> = writing.collect();
        for written in in_time(Duration::from_secs(60), join_all(writing)).await {
            assert_eq!(written.unwrap_err().kind(), ErrorKind::TimedOut);
        }
        let records = journal.take();
        let is_move = |what: &What| matches!(what, What::Moved { .. });
        let moves = records
            .iter()
            .filter(|record| is_move(&record.what))
            .count();
        assert!((1..STREAMS * 1000).contains(&moves), "{moves} moves");
    });
}

/// Connects to a device as the one that has a slot, in generation 1.
fn connect_as(slot: u16, device: &IsmDevice, world: &World) -> OwnedFd {
    let socket = connect_to(world.address().join(format!("{}.sock", device.slot())));
    let mut hello = b"SMI1".to_vec();
    hello.extend(1_u32.to_ne_bytes());
    hello.extend(slot.to_ne_bytes());
    hello.extend([0; 6]);
    hello.extend(device.fabric_id().to_ne_bytes());
    send(&socket, &hello, &[]);
    socket
}

fn drain(device: &IsmDevice) {
    device.drain(&mut |event| panic!("{event:?}")).unwrap();
}

#[test]
fn a_hello_from_a_slot_that_does_not_exist_ends_its_connection_and_nothing_else() {
    let world = World::new(Kind::Directory, false);
    let device = world.device();
    let (slots, _, _) = Memory::of(&world).layout();
    let slots = u16::try_from(slots).unwrap();
    for slot in [slots, slots + 1, 1023, 1024, 0x7fff, 0xfffe, 0xffff] {
        let refused = connect_as(slot, &device, &world);
        // The first call accepts it, the second one receives.
        (0..2).for_each(|_| drain(&device));
        // Another thread closes it.
        let is_ended = || is_closed(&refused);
        until(is_ended, || format!("slot {slot} is accepted"));
    }
    // The end of a device that said so is handled as well.
    let last = connect_as(slots - 1, &device, &world);
    (0..2).for_each(|_| drain(&device));
    assert!(!is_closed(&last));
    drop(last);
    drain(&device);

    let peer = world.device();
    let (from, event) = (peer.gid(), PeerEvent::TestRequest);
    peer.signal_event(device.gid(), event).unwrap();
    await_event(&device, |seen| *seen == Event::Peer { from, event });
}

#[test]
fn connections_that_name_the_same_slot_leave_descriptors_to_the_process() {
    let world = World::new(Kind::Directory, false);
    let device = world.device();
    let peer = world.device();
    let event = PeerEvent::TestRequest;
    peer.signal_event(device.gid(), event).unwrap();
    let from = peer.gid();
    await_event(&device, |seen| *seen == Event::Peer { from, event });
    for slot in [device.slot() + 2, peer.slot()] {
        let claimed: Vec<_> = (0..100)
            .map(|_| {
                let claimed = connect_as(slot, &device, &world);
                (0..2).for_each(|_| drain(&device));
                claimed
            })
            .collect();
        let open = || claimed.iter().filter(|claimed| !is_closed(claimed)).count();
        until(
            || open() <= 1,
            || format!("slot {slot}: {} are open", open()),
        );
    }
    // The device that is there is reached as before.
    peer.signal_event(device.gid(), event).unwrap();
    await_event(&device, |seen| *seen == Event::Peer { from, event });
}

#[test]
fn peers_that_send_without_end_cost_each_drain_a_bounded_number_of_messages() {
    let world = World::new(Kind::Directory, false);
    let device = world.device();
    let (slots, _, _) = Memory::of(&world).layout();
    let slots = u16::try_from(slots).unwrap();
    let flood: Vec<_> = (1..slots)
        .map(|slot| connect_as(slot, &device, &world))
        .collect();
    (0..4).for_each(|_| drain(&device));
    let refill = || flood.iter().map(|socket| fill(socket, &[0]));
    assert!(refill().sum::<usize>() > 4096);
    drain_full(&flood, &[0], || drain(&device));
}

#[test]
fn a_slot_with_ever_new_devices_is_one_peer_and_costs_each_drain_a_bounded_number_of_events() {
    const LIVE: u64 = 2;
    let world = World::new(Kind::Directory, false);
    let (device, peer) = (world.device(), world.device());
    let memory = Memory::of(&world);
    let (slots, _, slot_len) = memory.layout();
    let gid = peer.gid();
    let mut generation = 1;
    let mut next_device = || {
        generation += 1;
        let state = 0x1000 + u64::from(peer.slot()) * slot_len;
        memory.write(state, generation << 32 | LIVE);
        // It accepts the connection of this generation.
        let _its_own_end = peer.drain(&mut |_| {});
        device.signal_event(gid, PeerEvent::TestRequest)
    };
    next_device().unwrap();
    for _ in 0..2 {
        (0..slots).for_each(|_| next_device().unwrap());
        // No more before the ends of those are reported.
        (0..slots).for_each(|_| assert!(next_device().is_err()));
        assert_eq!(device.peers(), 1);
        let mut gone = 0;
        let seen = &mut |event| gone += u64::from(event == Event::PeerGone(gid));
        device.drain(seen).unwrap();
        // The last one is in the slot no more either.
        assert_eq!((gone, device.peers()), (slots + 1, 0));
        next_device().unwrap();
    }
}

#[test]
fn a_slot_with_ever_new_devices_has_one_connection_of_each_device_that_writes_to_it() {
    const LIVE: u64 = 2;
    let world = World::new(Kind::Directory, false);
    let (device, peer) = (world.device(), world.device());
    let memory = Memory::of(&world);
    let (slots, granules, slot_len) = memory.layout();
    let dmb = block_on(peer.register(device.gid(), 1 << 14)).unwrap();
    let write = || {
        let data = [IoSlice::new(&[1; 8])];
        device.move_data(peer.gid(), dmb.token(), 0, &data, Signal::Yes)
    };
    write().unwrap();
    // What it connects to is a socket of the hostile process from here on.
    let socket = world.address().join(format!("{}.sock", peer.slot()));
    fs::remove_file(&socket).unwrap();
    let listener = listen_at(&socket);
    let mut granules = (0..granules).map(|granule| 0x1000 + slots * slot_len + granule * 128);
    let buffer = granules.find(|at| memory.word(at + 24) == dmb.token().0);
    let buffer = buffer.unwrap();
    let (slot, mut accepted) = (u64::from(peer.slot()), Vec::new());
    let state = 0x1000 + slot * slot_len;
    for generation in 2..100 {
        memory.write(state, generation << 32 | LIVE);
        memory.write(buffer, generation << 32 | slot << 16 | 2);
        // The buffer and its owner are to be signalled.
        memory.write(buffer + 64, 1);
        memory.write(state + 0x40, 1);
        write().unwrap();
        let connected = rustix::net::accept(&listener).unwrap();
        recv(&connected, &mut [0; 64], RecvFlags::empty()).expect("HELLO");
        accepted.push(connected);
        if generation % 8 == 0 {
            device.drain(&mut |_| {}).unwrap();
        }
    }
    let open = || accepted.iter().filter(|socket| !is_closed(*socket)).count();
    until(|| open() <= 1, || format!("{} are open", open()));
}

#[test]
fn a_device_that_takes_another_gid_is_another_peer() {
    const GID_LO: u64 = 0x10;
    let world = World::new(Kind::Directory, false);
    let (device, peer) = (world.device(), world.device());
    let (earlier, next) = (peer.gid(), Gid::new(peer.gid().hi().0, 1));
    device
        .signal_event(earlier, PeerEvent::TestRequest)
        .unwrap();
    let memory = Memory::of(&world);
    let (_, _, slot_len) = memory.layout();
    let slot = 0x1000 + u64::from(peer.slot()) * slot_len;
    memory.write(slot + GID_LO, next.lo().0);
    device.signal_event(next, PeerEvent::TestRequest).unwrap();
    await_event(&device, |event| *event == Event::PeerGone(earlier));
    assert_eq!(device.peers(), 1);
}
