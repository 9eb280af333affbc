//! Many peers at once, peers that load the driver, and drivers that wait for edges.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use common::hostile::{HostilePeer, doorbell, send_hello};
use common::{DrivenDevice, LEN, device, socket_path, start};
use futures_lite::future::{block_on, poll_once};
use rustix::event::{Timespec, epoll};
use rustix::net::{RecvFlags, accept, recv};
use smc_core::device::{Device, DeviceError, Direct, Doorbell, MemoryLimit};
use smc_core::mem::sync::{AtomicUsize, Ordering};
use smc_testkit::process::{Child, Role};
use smc_testkit::resources::{limit_descriptors, open_descriptors};
use smc_testkit::unix::{connect_to, is_closed, lingering, sealed, send};
use smc_testkit::wait::until;
use smc_wire::types::{DmbToken, Gid};
use tempfile::TempDir;

fn connected(dir: &TempDir, victim: Gid, number: u64) -> HostilePeer {
    HostilePeer::connect(dir.path(), victim, number)
}

/// Drives a device like an edge-triggered runtime, until there are no more events.
fn drive_by_edges(device: &DrivenDevice) {
    let Doorbell::Fd(doorbell) = device.device.doorbell() else {
        panic!("doorbell is a descriptor")
    };
    let set = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
    epoll::add(&set, doorbell, epoll::EventData::new_u64(0), flags).unwrap();
    let timeout = Timespec {
        tv_sec: 0,
        tv_nsec: 50_000_000,
    };
    loop {
        let mut space = [MaybeUninit::uninit(); 1];
        let (events, _) = epoll::wait(&set, &mut space, Some(&timeout)).unwrap();
        if events.is_empty() {
            return;
        }
        device.drain();
        device.device.arm().unwrap();
        device.drain();
    }
}

#[test]
fn all_connections_are_accepted_however_many_come_at_once() {
    let dir = TempDir::new().unwrap();
    let victim = DrivenDevice::in_dir(dir.path());
    // Garbage: a closed channel shows that it was accepted, and there are no other events.
    let path = socket_path(dir.path(), victim.gid());
    let connections: Vec<_> = (0..400).map(|_| connect_to(&path)).collect();
    for channel in &connections {
        send(channel, b"garbage", &[]);
    }
    drive_by_edges(&victim);
    assert!(connections.iter().all(is_closed), "not accepted");
    // The same for peers in good order.
    let connections: Vec<_> = (1..150)
        .map(|number| connected(&dir, victim.gid(), number))
        .collect();
    drive_by_edges(&victim);
    assert_eq!(victim.device.peers(), connections.len());
}

#[test]
fn buffers_reach_a_new_peer_without_space_in_its_channel() {
    for _ in 0..20 {
        let dir = TempDir::new().unwrap();
        let (local, peer) = DrivenDevice::pair(&dir);
        let gid = peer.gid();
        std::thread::scope(|scope| {
            // The first ones open the channel, and the others find it.
            let registering: Vec<_> = (0..8)
                .map(|_| scope.spawn(|| (0..8).map(|_| local.register(gid)).collect::<Vec<_>>()))
                .collect();
            while !registering.iter().all(|thread| thread.is_finished()) {
                for device in [&local, &peer] {
                    device.wait_within(Duration::from_millis(1), |_| false);
                }
            }
            for thread in registering {
                thread.join().unwrap();
            }
        });
    }
}

#[test]
fn a_channel_without_hello_is_closed_without_further_connections() {
    let dir = TempDir::new().unwrap();
    let victim = DrivenDevice::in_dir(dir.path());
    let silent = connect_to(socket_path(dir.path(), victim.gid()));
    let is_ended = || {
        victim.wait_within(Duration::from_millis(20), |_| false);
        is_closed(&silent)
    };
    until(is_ended, || "waits without end".to_owned());
}

#[test]
fn descriptors_that_take_long_to_close_do_not_block_the_device() {
    let dir = TempDir::new().unwrap();
    let victim = DrivenDevice::in_dir(dir.path());
    let mut others = Vec::new();
    let mut slow = || {
        let (near, far) = lingering(LINGER);
        others.push(far);
        near
    };
    let began = Instant::now();
    // In place of a signal page and of a doorbell.
    for number in 1..3 {
        let hostile = HostilePeer::silent(dir.path(), victim.gid(), number);
        match number {
            1 => send_hello(&hostile.channel, hostile.gid, slow(), doorbell()),
            _ => send_hello(&hostile.channel, hostile.gid, &hostile.signal_page, slow()),
        }
        victim.accept();
        assert!(hostile.is_closed());
    }
    // In place of memory.
    let hostile = connected(&dir, victim.gid(), 3);
    let token = hostile.offer_usual(0, slow());
    assert!(victim.try_attach(hostile.gid, token).is_err());
    assert!(hostile.is_closed());
    // Unread, when the channel is closed.
    let hostile = connect_to(socket_path(dir.path(), victim.gid()));
    send(&hostile, b"garbage", &[]);
    send(&hostile, b"more", &[slow().as_fd()]);
    victim.drain();
    assert!(is_closed(&hostile));
    assert!(began.elapsed() < LINGER / 2, "waited");
}

#[test]
fn what_is_mapped_for_peers_is_limited() {
    let dir = TempDir::new().unwrap();
    let victim = DrivenDevice::new(device(dir.path()).max_mappings(10));
    // The signal pages of each are two.
    let peers = [1, 2].map(|number| connected(&dir, victim.gid(), number));
    victim.accept();
    let memory = sealed(LEN as u64);
    let attach = |hostile: &HostilePeer, index| {
        let token = hostile.offer_usual(index, &memory);
        victim.try_attach(hostile.gid, token)
    };
    for index in 0..6 {
        drop(attach(&peers[usize::from(index % 2 == 0)], index).unwrap());
    }
    for hostile in &peers {
        let error = attach(hostile, 10).unwrap_err();
        assert!(matches!(error, DeviceError::Exhausted), "{error:?}");
    }
    let late = connected(&dir, victim.gid(), 3);
    victim.accept();
    assert!(late.is_closed(), "no space for its signal_page");
    // New memory in the place of other memory fits.
    attach(&peers[1], 0).unwrap();
    // What a peer leaves is for others.
    let [first, second] = peers;
    drop(second);
    victim.drain();
    for index in 20..25 {
        attach(&first, index).unwrap();
    }
    let error = attach(&first, 25).unwrap_err();
    assert!(matches!(error, DeviceError::Exhausted), "{error:?}");
}

#[test]
fn peers_and_their_slots_are_charged_to_the_memory_limit() {
    let dir = TempDir::new().unwrap();
    let victim = DrivenDevice::in_dir(dir.path());
    let limit = MemoryLimit::new(1 << 18);
    victim.device.limit_memory(&limit);
    // Each buffer has its slot on another page.
    let hostile = connected(&dir, victim.gid(), 1);
    let memory = sealed(LEN as u64);
    let attach = |index: u32| {
        let token = hostile.offer_usual(index * 64, &memory);
        victim.try_attach(hostile.gid, token).map(drop)
    };
    let refused = (0..100).find_map(|index| attach(index).err());
    assert!(
        matches!(refused, Some(DeviceError::OverLimit { .. })),
        "{refused:?}"
    );
    drop(hostile);
    victim.drain();
    assert_eq!(limit.used(), 0, "given back with the peer");

    let peers: Vec<_> = (2..102)
        .map(|number| {
            let hostile = connected(&dir, victim.gid(), number);
            victim.accept();
            hostile
        })
        .collect();
    assert!(victim.device.peers() < peers.len());
    assert!(limit.used() <= limit.limit());
    let closed = peers.iter().filter(|hostile| hostile.is_closed()).count();
    assert_eq!(victim.device.peers() + closed, peers.len());
}

/// What helpers do.
#[test]
fn helper_process() {
    let Some(role) = Role::current() else { return };
    assert_eq!(role.name(), "short of descriptors");
    limit_descriptors(DESCRIPTORS as u64);
    let devices = [(); 6].map(|()| DrivenDevice::in_dir(role.dir()));
    devices.iter().for_each(|device| role.send(device.gid()));
    while role.recv().is_some() {
        devices.iter().for_each(DrivenDevice::accept);
        role.send(devices.iter().map(|it| it.device.peers()).sum::<usize>());
        role.send(open_descriptors());
    }
}

/// A process with few descriptors, and devices that are driven when it is told so.
struct Short {
    helper: Child,
    gids: [Gid; 6],
}

impl Short {
    fn new(dir: &TempDir) -> Self {
        let mut helper = start("short of descriptors", dir);
        let gids = [(); 6].map(|()| helper.parse::<Gid>());
        Self { helper, gids }
    }

    /// Returns how many peers they have then, and how many descriptors there are.
    fn drive(&mut self) -> (usize, usize) {
        self.helper.send("drive");
        (self.helper.parse(), self.helper.parse())
    }
}

#[test]
fn peers_of_a_user_leave_half_of_the_descriptors() {
    let dir = TempDir::new().unwrap();
    let mut victim = Short::new(&dir);
    let (_, before) = victim.drive();
    // Of either device of the process, in turn.
    let mut hostiles: Vec<_> = (1..=100)
        .map(|number| {
            let device = victim.gids[usize::from(number % 2 == 0)];
            let hostile = connected(&dir, device, number);
            victim.drive();
            hostile
        })
        .collect();
    let (peers, _) = victim.drive();
    assert!(peers > 10, "{peers} peers");
    // Another thread closes the eventfds of those that were refused.
    let is_so = || {
        let (_, descriptors) = victim.drive();
        descriptors <= before + DESCRIPTORS / 2
    };
    until(is_so, || "descriptors stay open".to_owned());
    hostiles.retain(|hostile| !hostile.is_closed());
    assert_eq!(hostiles.len(), peers);
    // A peer that goes makes space for another one.
    drop(hostiles.pop());
    victim.drive();
    let late = connected(&dir, victim.gids[0], 200);
    assert_eq!(victim.drive().0, peers);
    assert!(!late.is_closed());
    victim.helper.finish();
}

#[test]
fn channels_without_hello_leave_half_of_the_descriptors() {
    let dir = TempDir::new().unwrap();
    let mut victim = Short::new(&dir);
    let (_, before) = victim.drive();
    let mut silent = Vec::new();
    for gid in victim.gids {
        let path = socket_path(dir.path(), gid);
        silent.extend((0..60).map(|_| connect_to(&path)));
        let (_, descriptors) = victim.drive();
        let most = before + DESCRIPTORS / 2;
        assert!(descriptors <= most, "{descriptors}, {before} before");
    }
    // A peer in good order takes the place of some of them.
    let honest = connected(&dir, victim.gids[0], 1);
    assert_eq!(victim.drive().0, 1);
    assert!(!honest.is_closed());
    victim.helper.finish();
}

/// Whether a device has connected this listener, which has not read it until now.
fn was_sent_hello(listener: &OwnedFd) -> bool {
    rustix::io::ioctl_fionbio(listener, true).unwrap();
    let mut message = [0; 32];
    let mut was_sent_hello = false;
    while let Ok(channel) = accept(listener) {
        let got = recv(&channel, &mut message, RecvFlags::DONTWAIT);
        was_sent_hello |= matches!(got, Ok((32, _))) && message[5] == 1;
    }
    was_sent_hello
}

#[test]
fn hellos_that_a_user_leaves_unread_are_bounded() {
    let dir = TempDir::new().unwrap();
    let mut victim = Short::new(&dir);
    victim.drive();
    let rounds = (1..=100).map(|number| {
        let HostilePeer {
            channel, listener, ..
        } = connected(&dir, victim.gids[0], number);
        victim.drive();
        drop(channel);
        assert_eq!(victim.drive().0, 0, "a peer is left");
        listener
    });
    let listeners: Vec<_> = rounds.collect();
    let late = connected(&dir, victim.gids[0], 200);
    assert_eq!(victim.drive().0, 0);
    assert!(late.is_closed());
    let count = listeners.iter().filter(|it| was_sent_hello(it)).count();
    assert!((10..=DESCRIPTORS / 8).contains(&count), "{count}");
    // They are read now, and no longer count for the other device of the process either.
    let mut late = Vec::new();
    let is_accepted = || {
        late.push(connected(&dir, victim.gids[1], 201 + late.len() as u64));
        victim.drive().0 == 1
    };
    until(is_accepted, || "what was read still counts".to_owned());
    assert!(late.last().is_some_and(|late| !late.is_closed()));
    victim.helper.finish();
}

/// Uses a device from within a wake-up, as executors may that run tasks at once.
struct Inline {
    device: Arc<DrivenDevice>,
    wakes: AtomicUsize,
}

impl Wake for Inline {
    fn wake(self: Arc<Self>) {
        self.wakes.fetch_add(1, Ordering::Relaxed);
        self.device.drain();
        let unknown = Gid::new(7, 7);
        assert!(block_on(self.device.device.register(unknown, LEN)).is_err());
        let attached = self.device.try_attach(unknown, DmbToken(1));
        assert!(attached.is_err());
    }
}

#[test]
fn a_waker_may_use_the_device() {
    let dir = TempDir::new().unwrap();
    let ours = Arc::new(DrivenDevice::in_dir(dir.path()));
    let theirs = DrivenDevice::in_dir(dir.path());
    let inline = Arc::new(Inline {
        device: Arc::clone(&ours),
        wakes: AtomicUsize::new(0),
    });
    let waker = Waker::from(Arc::clone(&inline));
    ours.reach(theirs.gid());
    let mut dmbs = Vec::new();
    let mut fill_channel = || loop {
        let mut register = Box::pin(ours.device.register(theirs.gid(), LEN));
        match block_on(poll_once(&mut register)) {
            Some(dmb) => dmbs.push(dmb.unwrap()),
            None => {
                let polled = register.as_mut().poll(&mut Context::from_waker(&waker));
                assert!(matches!(polled, Poll::Pending));
                break register;
            }
        }
        assert!(dmbs.len() < 10_000, "channels are bounded");
    };
    let _sent = fill_channel();
    theirs.accept();
    // Accepting a channel receives few of its messages.
    theirs.drain();
    ours.drain();
    assert_eq!(inline.wakes.load(Ordering::Relaxed), 1, "there is space");
    let _failed = fill_channel();
    drop(theirs);
    ours.drain();
    assert_eq!(inline.wakes.load(Ordering::Relaxed), 2, "the peer is gone");
}

const DESCRIPTORS: usize = 256;
const LINGER: Duration = Duration::from_secs(4);
