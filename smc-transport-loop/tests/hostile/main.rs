//! Peers that violate the protocol, and users who may not be peers.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../common/mod.rs"]
mod common;
mod users;

use std::fs::{self, File};
use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt};
use std::time::Duration;

use common::hostile::{
    HostilePeer, SIGNAL_PAGE_LEN, doorbell, hello, memory, message, resident, send_hello,
};
use common::{
    DrivenDevice, LEN, device, names, shared_dir, socket_name, socket_path, start, start_as,
};
use futures_lite::future::block_on;
use rustix::buffer::spare_capacity;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::fs::{SealFlags, fcntl_add_seals};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::accept;
use smc::Domain;
use smc_core::device::{
    Device, DeviceError, Direct, Dmb, Doorbell, Event, MemoryLimit, Signal, SubmitError,
};
use smc_core::quota::mappings;
use smc_testkit::process::{Child, Role};
use smc_testkit::resources::is_mapped;
use smc_testkit::slow_close::block_closing_threads;
use smc_testkit::unix::{
    connect_to, drain_full, fill, is_closed, listen_at, receive_descriptors, sealed, send,
    send_if_possible, unsealed,
};
use smc_testkit::user::{is_root, run_as};
use smc_testkit::wait::{TIMEOUT, until};
use smc_transport_loop::LoopDevice;
use smc_wire::types::{DmbToken, Gid};
use tempfile::TempDir;

/// What helpers do.
#[test]
fn helper_process() {
    let Some(role) = Role::current() else { return };
    match role.name() {
        "idle" => {
            let device = DrivenDevice::in_dir(role.dir());
            role.send(device.gid());
            assert_eq!(role.recv(), None);
        }
        "refused" => users::refused_user(&role),
        "accepted" => users::accepted_user(&role),
        other => panic!("no role {other}"),
    }
}

/// Another user than the one who runs the tests.
const USER: u32 = 990;

/// A victim, and a peer that violates the protocol.
fn scene() -> (TempDir, DrivenDevice, HostilePeer) {
    let (dir, victim) = victim();
    let hostile = hostile(&dir, &victim);
    (dir, victim, hostile)
}

fn victim() -> (TempDir, DrivenDevice) {
    let dir = TempDir::new().unwrap();
    let victim = DrivenDevice::in_dir(dir.path());
    (dir, victim)
}

fn hostile(dir: &TempDir, victim: &DrivenDevice) -> HostilePeer {
    HostilePeer::connect(dir.path(), victim.gid(), 0x1111)
}

/// Sends a message with a file. The victim receives later while its closing threads are behind.
fn deliver(victim: &DrivenDevice, hostile: &HostilePeer, message: &[u8], file: &File) {
    let is_sent = || {
        victim.drain();
        send_if_possible(&hostile.channel, message, &[file.as_fd()])
    };
    until(is_sent, || "a message is not received".to_owned());
}

fn accepted<const N: usize>(dir: &TempDir, victim: &DrivenDevice) -> [HostilePeer; N] {
    std::array::from_fn(|index| {
        let peer = HostilePeer::connect(dir.path(), victim.gid(), index as u64 + 1);
        victim.accept();
        peer
    })
}

#[test]
fn what_a_peer_offers_is_checked_before_it_is_mapped() {
    let (_dir, victim, hostile) = scene();
    let len = LEN as u64;
    let half_sealed = unsealed(len);
    fcntl_add_seals(&half_sealed, SealFlags::GROW | SealFlags::SEAL).unwrap();
    let read_only = unsealed(len);
    let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL;
    fcntl_add_seals(&read_only, all).unwrap();
    let bad = [
        ("unsealed", len, unsealed(len)),
        ("may shrink", len, half_sealed),
        ("cannot be written", len, read_only),
        ("shorter than said", len, sealed(len / 2)),
        ("longer than said", len, sealed(len * 2)),
        ("no DMB size", len + 4096, sealed(len + 4096)),
        ("beyond all sizes", 1 << 40, sealed(len)),
    ];
    for (index, (what, len, file)) in bad.iter().enumerate() {
        let token = hostile.offer(u32::try_from(index).unwrap(), *len, file);
        let error = victim.try_attach(hostile.gid, token).unwrap_err();
        assert!(
            matches!(error, DeviceError::PeerMisbehaved(_)),
            "{what}: {error:?}"
        );
        let error = victim.write(hostile.gid, token, 0, b"x").unwrap_err();
        assert!(matches!(error, SubmitError::Device(_)), "{what}: {error:?}");
    }
    // Nothing of that touches what is in order.
    let token = hostile.offer_usual(100, sealed(len));
    let attached = victim.attach(hostile.gid, token);
    attached.region().copy_in(LEN - 1, b"x").unwrap();
    assert!(!hostile.is_closed());
    // What is not memory at all may be slow to close, and is the end.
    let (pipe, _) = rustix::pipe::pipe().unwrap();
    let token = hostile.offer(101, len, pipe);
    assert!(victim.try_attach(hostile.gid, token).is_err());
    assert!(hostile.is_closed());
}

#[test]
fn memory_that_is_sealed_later_does_not_count() {
    let (_dir, victim, hostile) = scene();
    let token = hostile.offer_usual(0, sealed(LEN as u64));
    let attached = victim.attach(hostile.gid, token);
    // The peer cannot pull the file from under the mapping.
    let file = sealed(LEN as u64);
    assert!(file.set_len(0).is_err());
    attached.region().copy_in(0, &[1; LEN]).unwrap();
}

#[test]
fn an_overwritten_signal_page_affects_no_other_peer() {
    let (dir, victim) = victim();
    let honest = DrivenDevice::in_dir(dir.path());
    let hostile = hostile(&dir, &victim);
    let token = hostile.offer_usual(3, sealed(LEN as u64));
    let attached = victim.attach(hostile.gid, token);
    let scribble = vec![0xa5; usize::try_from(SIGNAL_PAGE_LEN).unwrap()];
    hostile.signal_page.write_all_at(&scribble, 0).unwrap();
    send(
        &hostile.channel,
        &message(3, 0, 0, 0),
        &[hostile.signal_page.as_fd()],
    );
    victim.drain();
    attached.signal().unwrap();
    assert!(victim.write(hostile.gid, token, 0, b"x").is_err());
    // Others go on as before.
    let dmb = victim.register(honest.gid());
    let theirs = honest.attach(victim.gid(), dmb.token());
    dmb.arm();
    theirs.signal().unwrap();
    victim.wait(Event::Signalled(dmb.token()));
}

/// A process that has a descriptor of a file can hold the lock of its inode, for which each call
/// waits that removes pages.
#[test]
fn no_pages_are_removed_from_a_file_of_which_a_peer_has_the_descriptor() {
    const LONG: usize = 1 << 20;
    let (_dir, victim, hostile) = scene();
    victim.accept();
    let register = || block_on(victim.device.register(hostile.gid, LONG)).unwrap();
    let first = register();
    let channel = accept(&hostile.listener).unwrap();
    assert_eq!(receive_files(&channel).len(), 2, "HELLO");
    let mut buffers = vec![(first, receive_files(&channel).remove(0))];
    for used in [None, Some(LONG)] {
        let (dmb, file) = buffers.pop().unwrap();
        file.write_all_at(&vec![7; LONG], 0).unwrap();
        used.into_iter().for_each(|len| dmb.set_used(len));
        drop(dmb);
        victim.drain();
        let next = register();
        assert_eq!(resident(&file), LONG as u64);
        let mut bytes = vec![0; LONG];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 7));
        let other = receive_files(&channel).remove(0);
        assert_eq!(resident(&other), 0);
        buffers.push((next, other));
    }
}

/// The files that come with the next message that has some.
fn receive_files(channel: &OwnedFd) -> Vec<File> {
    loop {
        let files = receive_descriptors(channel);
        if !files.is_empty() {
            return files.into_iter().map(File::from).collect();
        }
    }
}

#[test]
fn marks_of_buffers_that_do_not_exist_take_no_memory() {
    let (dir, victim) = victim();
    let hostile = HostilePeer::silent(dir.path(), victim.gid(), 1);
    hostile.signal_page.write_all_at(&[0xff; 32], 0xc0).unwrap();
    hostile
        .signal_page
        .write_all_at(&[0xff; 2048], 0x1800)
        .unwrap();
    let before = hostile.resident();
    send_hello(
        &hostile.channel,
        hostile.gid,
        &hostile.signal_page,
        doorbell(),
    );
    victim.accept();
    assert_eq!(victim.device.peers(), 1);
    assert_eq!(hostile.resident(), before);
}

#[test]
fn slots_take_no_more_memory_than_the_limit_leaves() {
    let (dir, victim) = victim();
    let limit = MemoryLimit::new(1 << 20);
    victim.device.limit_memory(&limit);
    let hostile = hostile(&dir, &victim);
    victim.accept();
    let before = hostile.resident();
    // Buffers without memory, of which each has its slot on another page.
    let unsuitable = unsealed(LEN as u64);
    for index in (0..16_384).step_by(64) {
        deliver(&victim, &hostile, &memory(index), &unsuitable);
    }
    assert!(!hostile.is_closed());
    let pages = (hostile.resident() - before) / 4096;
    assert!(pages <= 64, "{pages} pages");
}

#[test]
fn malformed_hellos_are_refused() {
    let (pipe, _) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
    let blocking = eventfd(0, EventfdFlags::empty()).unwrap();
    let unsuitable = [
        (
            "signal page unsealed",
            unsealed(SIGNAL_PAGE_LEN),
            doorbell(),
        ),
        (
            "signal page too short",
            sealed(SIGNAL_PAGE_LEN - 4096),
            doorbell(),
        ),
        ("doorbell blocks", sealed(SIGNAL_PAGE_LEN), blocking),
        ("doorbell is a pipe", sealed(SIGNAL_PAGE_LEN), pipe),
    ];
    for (what, signal_page, doorbell) in unsuitable {
        let (dir, victim) = victim();
        let hostile = HostilePeer::silent(dir.path(), victim.gid(), 1);
        send_hello(&hostile.channel, hostile.gid, signal_page, doorbell);
        victim.accept();
        assert!(hostile.is_closed(), "{what}");
    }
}

/// A missing descriptor of a peer is not a shortage of this process.
#[test]
fn a_peer_that_passes_nothing_does_not_have_descriptors_reported_as_lacking() {
    let (dir, victim) = victim();
    let unknown = connect_to(socket_path(dir.path(), victim.gid()));
    send(&unknown, &hello(Gid::new(1, 2)), &[]);
    victim.drain();
    assert!(is_closed(&unknown));
    let lack = victim.device.shortage();
    assert!(lack.is_none(), "{lack:?}");

    let hostile = hostile(&dir, &victim);
    let token = hostile.announce(0);
    send(&hostile.channel, &memory(0), &[]);
    assert!(victim.try_attach(hostile.gid, token).is_err());
    victim.drain();
    assert!(hostile.is_closed());
    let lack = victim.device.shortage();
    assert!(lack.is_none(), "{lack:?}");
}

#[test]
fn nonsense_ends_a_channel_and_nothing_else() {
    let (dir, victim) = victim();
    let honest = DrivenDevice::in_dir(dir.path());
    let dmb = victim.register(honest.gid());
    let theirs = honest.attach(victim.gid(), dmb.token());
    // Before HELLO.
    let unknown = connect_to(socket_path(dir.path(), victim.gid()));
    send(&unknown, b"GET / HTTP/1.1", &[]);
    // After it.
    let hostile = hostile(&dir, &victim);
    victim.accept();
    assert!(!hostile.is_closed());
    send(&hostile.channel, b"nonsense", &[]);
    victim.wait(Event::PeerGone(hostile.gid));
    assert!(hostile.is_closed());
    // Never.
    let silent = connect_to(socket_path(dir.path(), victim.gid()));
    assert!(!victim.wait_within(Duration::from_millis(20), |_| true));
    dmb.arm();
    theirs.signal().unwrap();
    victim.wait(Event::Signalled(dmb.token()));
    drop(silent);
    victim.drain();
}

#[test]
fn many_silent_connections_do_not_block_a_peer() {
    let (dir, victim) = victim();
    let path = socket_path(dir.path(), victim.gid());
    let connections: Vec<_> = (0..200).map(|_| connect_to(&path)).collect();
    for _ in 0..10 {
        victim.drain();
    }
    let honest = DrivenDevice::in_dir(dir.path());
    let dmb = honest.register(victim.gid());
    victim.attach(honest.gid(), dmb.token()).signal().unwrap();
    drop(connections);
}

#[test]
fn peers_that_send_without_end_cost_each_drain_a_bounded_number_of_messages() {
    for count in [2, 66] {
        let (dir, victim) = victim();
        let connect = |number| {
            let peer = HostilePeer::connect(dir.path(), victim.gid(), number);
            victim.accept();
            peer
        };
        let flood: Vec<_> = (1..=count).map(connect).collect();
        let honest = connect(count + 1);
        let notify = message(3, 0, 0, 0);
        let refill = || flood.iter().map(|peer| fill(&peer.channel, &notify));
        assert!(refill().sum::<usize>() > 200, "too few messages are queued");
        let channels: Vec<_> = flood.iter().map(|peer| &peer.channel).collect();
        drain_full(&channels, &notify, || drop(victim.drain()));
        // A call finds what it needs behind other messages of the same peer.
        (0..15).for_each(|_| send(&honest.channel, &notify, &[]));
        let token = honest.offer_usual(0, sealed(LEN as u64));
        drop(victim.attach(honest.gid, token));
        assert!(refill().sum::<usize>() <= 4 * 64, "messages in one call");
        // Each is handled, though nothing but the doorbell has the device drained.
        let doorbell = DoorbellEdges::of(&victim);
        (0..2).for_each(|_| drop(victim.drain()));
        let file = sealed(LEN as u64);
        let offer = |peer: &HostilePeer| (peer.gid, peer.offer_usual(0, &file));
        let mut offered: Vec<_> = flood.iter().map(offer).collect();
        while !offered.is_empty() {
            doorbell.wait();
            victim.drain();
            offered.retain(|(peer, token)| !victim.device.is_registered(*peer, *token));
        }
    }
}

/// Marks all slots of a signal page as changed, each with a new token.
fn mark_all(peer: &HostilePeer, generation: u64) {
    let mut slots = vec![0; 16_384 * 64];
    for (index, slot) in (0..).zip(slots.chunks_exact_mut(64)) {
        slot[16..24].copy_from_slice(&generation.to_ne_bytes());
        let token = peer.gid.hi().0 << 48 | generation << 16 | index;
        slot[24..32].copy_from_slice(&u64::to_ne_bytes(token));
        slot[32..40].copy_from_slice(&5_u64.to_ne_bytes());
    }
    peer.signal_page.write_all_at(&slots, 0x2000).unwrap();
    peer.signal_page
        .write_all_at(&[0xff; 2048], 0x1800)
        .unwrap();
    peer.signal_page.write_all_at(&[0xff; 32], 0xc0).unwrap();
}

/// The slots that are still marked as changed.
fn marked(peer: &HostilePeer) -> u32 {
    let mut bits = [0; 2048];
    peer.signal_page.read_exact_at(&mut bits, 0x1800).unwrap();
    bits.iter().map(|byte| byte.count_ones()).sum()
}

#[test]
fn peers_whose_slots_have_all_changed_are_scanned_in_turn_some_slots_in_each_drain() {
    let (dir, victim) = victim();
    let peers = accepted::<3>(&dir, &victim);
    let unsuitable = unsealed(LEN as u64);
    for index in 0..64 {
        for peer in &peers {
            deliver(&victim, peer, &memory(index), &unsuitable);
        }
    }
    peers.iter().for_each(|peer| mark_all(peer, 1));
    let notify = || {
        for peer in &peers {
            fill(&peer.channel, &message(3, 0, 0, 0));
        }
    };
    let left = || peers.each_ref().map(marked);
    let sum = || left().iter().sum::<u32>();
    let doorbell = DoorbellEdges::of(&victim);
    notify();
    let mut before = sum();
    while before > 0 {
        doorbell.wait();
        victim.drain();
        let now = sum();
        // Words of 64 slots are scanned together.
        assert!(before - now <= 4096 + 3 * 64, "{} slots", before - now);
        let [first, second, third] = left();
        assert!(first.abs_diff(second) <= 4096 && second.abs_diff(third) <= 4096);
        before = now;
    }
    // Moves have what a drain has left.
    peers.iter().for_each(|peer| mark_all(peer, 2));
    victim.drain();
    peers.iter().for_each(|peer| mark_all(peer, 3));
    let before = sum();
    for _ in 0..100 {
        let data = [IoSlice::new(&[1])];
        let moved = victim
            .device
            .move_data(peers[0].gid, DmbToken(1), 0, &data, Signal::Yes);
        assert!(moved.is_err());
        notify();
    }
    assert!(before - sum() <= 4096 + 3 * 64, "{} slots", before - sum());
}

/// Mappings of a file in this process.
fn mappings_of(file: &File) -> usize {
    let inode = file.metadata().unwrap().ino().to_string();
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let is_of_file = |line: &&str| line.split_whitespace().nth(4) == Some(&*inode);
    maps.lines().filter(is_of_file).count()
}

#[test]
fn buffers_of_an_ended_peer_are_unmapped_some_in_each_drain() {
    let (dir, victim) = victim();
    let hostile = hostile(&dir, &victim);
    let file = sealed(LEN as u64);
    let offer = |index| {
        let token = hostile.announce(index);
        let offer = message(2, index, 5, LEN as u64);
        deliver(&victim, &hostile, &offer, &file);
        token
    };
    let tokens: Vec<_> = (0..1000).map(offer).collect();
    let is_known = |token: &DmbToken| victim.device.is_registered(hostile.gid, *token);
    until(
        || {
            victim.drain();
            tokens.iter().all(is_known)
        },
        || "not all are known".to_owned(),
    );
    let mut left = mappings_of(&file);
    assert_eq!(left, 1000);
    let doorbell = DoorbellEdges::of(&victim);
    let gid = hostile.gid;
    drop(hostile);
    while left > 0 {
        doorbell.wait();
        victim.drain();
        let now = mappings_of(&file);
        assert!(left - now <= 256, "{} in one drain", left - now);
        left = now;
    }
    assert!(!victim.device.is_registered(gid, tokens[0]));
}

#[test]
fn moves_to_unknown_buffers_receive_a_bounded_number_of_messages_between_two_drains() {
    let (dir, victim) = victim();
    let flood = accepted::<2>(&dir, &victim);
    let notify = message(3, 0, 0, 0);
    let refill = || {
        let filled = flood.iter().map(|peer| fill(&peer.channel, &notify));
        filled.sum::<usize>()
    };
    for _ in 0..2 {
        refill();
        let mut received = 0;
        for _ in 0..200 {
            let data = [IoSlice::new(&[1])];
            let unknown = DmbToken(1);
            let moved = victim
                .device
                .move_data(flood[0].gid, unknown, 0, &data, Signal::Yes);
            assert_eq!(moved, Err(SubmitError::WouldBlock));
            received += refill();
        }
        // Eight rounds, and those that the last call has begun.
        assert!((1..=11 * 64).contains(&received), "{received}");
        victim.drain();
    }
}

#[test]
fn moves_to_unknown_buffers_do_not_keep_the_buffers_of_others_from_being_found() {
    let (dir, victim) = victim();
    let honest = DrivenDevice::in_dir(dir.path());
    let settle = || {
        for _ in 0..5 {
            victim.drain();
            honest.drain();
        }
    };
    let mut dmb = honest.register(victim.gid());
    // Until the victim has accepted the channel.
    while victim.write(honest.gid(), dmb.token(), 0, b"x") == Err(SubmitError::WouldBlock) {
        settle();
    }
    dmb.set_used(1);
    drop(dmb);
    settle();
    let flood = accepted::<2>(&dir, &victim);
    let notify = message(3, 0, 0, 0);
    let spend_all_rounds = || {
        for _ in 0..8 {
            for peer in &flood {
                fill(&peer.channel, &notify);
            }
            let moved = victim.write(flood[0].gid, DmbToken(1), 0, b"x");
            assert_eq!(moved, Err(SubmitError::WouldBlock));
        }
    };
    spend_all_rounds();
    // No message comes with memory that the victim has mapped before.
    dmb = honest.register(victim.gid());
    assert!(dmb.is_reused());
    assert_eq!(victim.write(honest.gid(), dmb.token(), 0, b"y"), Ok(()));
}

/// The doorbell of a device as runtimes watch it.
struct DoorbellEdges(OwnedFd);

impl DoorbellEdges {
    fn of(device: &DrivenDevice) -> Self {
        let edges = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let Doorbell::Fd(doorbell) = device.device.doorbell() else {
            panic!("no descriptor");
        };
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&edges, doorbell, epoll::EventData::new_u64(0), flags).unwrap();
        Self(edges)
    }

    fn wait(&self) {
        let mut events = Vec::with_capacity(1);
        let time = Timespec::try_from(TIMEOUT).unwrap();
        let count = epoll::wait(&self.0, spare_capacity(&mut events), Some(&time));
        assert_eq!(count, Ok(1), "the driver is not woken");
    }
}

#[test]
fn users_who_are_not_allowed_cost_each_drain_a_bounded_number_of_connections() {
    if !is_root("start processes of other users") {
        return;
    }
    let dir = shared_dir();
    let domain = Domain::shared(dir.path(), [USER + 1]);
    let victim = DrivenDevice::new(LoopDevice::builder().domain(domain));
    let own = socket_path(&dir.path().join("0"), victim.gid());
    let connect_filled = |_| {
        let channel = connect_to(&own);
        (0..20).for_each(|_| send(&channel, b"x", &[]));
        channel
    };
    let flood: Vec<_> = run_as(USER, || (0..200).map(connect_filled).collect()).unwrap();
    let count_ended = || {
        flood
            .iter()
            .filter(|channel: &&OwnedFd| is_closed(channel))
            .count()
    };
    victim.drain();
    // Another thread ends those that were accepted.
    let text = || format!("{} have ended", count_ended());
    until(|| count_ended() >= 32, text);
    assert_eq!(count_ended(), 32, "in one call");
    let all_ended = || {
        victim.drain();
        count_ended() == flood.len()
    };
    until(all_ended, text);
}

#[test]
fn a_gid_of_another_process_is_refused() {
    let (dir, victim) = victim();
    let mut helper = start("idle", &dir);
    let foreign = helper.parse::<Gid>();
    let forge = |gid| {
        let forged = connect_to(socket_path(dir.path(), victim.gid()));
        send_hello(&forged, gid, sealed(SIGNAL_PAGE_LEN), doorbell());
        victim.accept();
        assert!(is_closed(&forged), "{gid}");
    };
    forge(foreign);
    // The owner of the GID is still accepted.
    assert!(block_on(victim.device.reach(foreign)).is_ok());
    // A GID without a listener, and our own.
    forge(Gid::new(9, 9));
    forge(victim.gid());
    helper.finish();
}

#[test]
fn a_second_channel_that_is_refused_keeps_no_driver_busy() {
    let dir = TempDir::new().unwrap();
    let victim = DrivenDevice::in_dir(dir.path());
    let hostile = HostilePeer::connect(dir.path(), victim.gid(), 0x1111);
    victim.accept();
    let _blocked = block_closing_threads();
    let again = connect_to(socket_path(dir.path(), victim.gid()));
    send_hello(&again, hostile.gid, &hostile.signal_page, doorbell());
    for _ in 0..5 {
        send(&again, b"garbage", &[]);
    }
    victim.accept();
    let is_idle = || {
        victim.drain();
        victim.arm();
        victim.drain();
        !victim.park(Duration::from_millis(20))
    };
    assert!((0..100).any(|_| is_idle()), "the doorbell stays ready");
}
