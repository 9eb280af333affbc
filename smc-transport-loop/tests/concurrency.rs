//! Many peers at once, peers that load the driver, and drivers that wait for edges.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use common::{DrivenDevice, Helper, LEN, Role, TIMEOUT, open_descriptors, socket_name};
use futures_lite::future::{block_on, poll_once};
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_linger;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketType, accept, bind, connect, listen, recv, send, sendmsg, socket,
};
use smc_core::Domain;
use smc_core::device::{Device, DeviceError, Direct, Doorbell, MemoryLimit};
use smc_core::mem::sync::{AtomicUsize, Ordering};
use smc_testkit::limits::limit_descriptors;
use smc_transport_loop::LoopDevice;
use smc_wire::types::{DmbToken, Gid};
use tempfile::TempDir;

/// A peer that implements the protocol between devices by hand.
struct Rogue {
    gid: Gid,
    channel: OwnedFd,
    signal_page: OwnedFd,
    listener: OwnedFd,
}

impl Rogue {
    /// Listens like a device and connects to the victim, but does not send_hello it yet.
    fn silent(dir: &TempDir, victim: Gid, number: u64) -> Self {
        let gid = Gid::new(number, 0x2222);
        let listener = seqpacket();
        let path = dir.path().join(socket_name(gid));
        bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        listen(&listener, 8).unwrap();
        Self {
            gid,
            channel: connect_to(dir, victim),
            signal_page: sealed(SIGNAL_PAGE_LEN),
            listener,
        }
    }

    fn connected(dir: &TempDir, victim: Gid, number: u64) -> Self {
        let rogue = Self::silent(dir, victim, number);
        rogue.send_hello();
        rogue
    }

    fn send_hello(&self) {
        let doorbell = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        self.send_hello_with(self.signal_page.as_fd(), doorbell.as_fd());
    }

    fn send_hello_with(&self, signal_page: BorrowedFd<'_>, doorbell: BorrowedFd<'_>) {
        let hello = message(1, 16_384, self.gid.hi().0, self.gid.lo().0);
        send_with_fds(&self.channel, &hello, &[signal_page, doorbell]);
    }

    /// Offers memory in a slot, with a token of our own.
    fn offer(&self, index: u32, file: BorrowedFd<'_>) -> DmbToken {
        let token = DmbToken(self.gid.hi().0 << 32 | u64::from(index) | 1 << 31);
        let slot = 0x2000 + u64::from(index) * 64;
        for (at, word) in [(16, 5), (24, token.0), (32, 5)] {
            rustix::io::pwrite(&self.signal_page, &u64::to_ne_bytes(word), slot + at).unwrap();
        }
        send_with_fds(
            &self.channel,
            &message(2, index, 5, LEN as u64),
            &[file.as_fd()],
        );
        token
    }

    fn is_closed(&self) -> bool {
        is_ended(&self.channel)
    }
}

fn is_ended(channel: &OwnedFd) -> bool {
    let mut byte = [0; 1];
    !matches!(
        recv(channel, &mut byte, RecvFlags::DONTWAIT),
        Err(Errno::AGAIN)
    )
}

fn message(kind: u8, index: u32, first: u64, second: u64) -> Vec<u8> {
    let mut bytes = b"SMCL\x01".to_vec();
    bytes.extend([kind, 0, 0]);
    bytes.extend(index.to_ne_bytes());
    bytes.extend([0; 4]);
    bytes.extend(first.to_ne_bytes());
    bytes.extend(second.to_ne_bytes());
    bytes
}

fn send_with_fds(channel: &OwnedFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); 64];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(descriptors)));
    sendmsg(
        channel,
        &[IoSlice::new(bytes)],
        &mut ancillary,
        SendFlags::empty(),
    )
    .unwrap();
}

fn seqpacket() -> OwnedFd {
    socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap()
}

fn connect_to(dir: &TempDir, victim: Gid) -> OwnedFd {
    let channel = seqpacket();
    let path = dir.path().join(socket_name(victim));
    connect(&channel, &SocketAddrUnix::new(path).unwrap()).unwrap();
    channel
}

fn sealed(len: u64) -> OwnedFd {
    let file = memfd_create("smc-test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&file, len).unwrap();
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    fcntl_add_seals(&file, seals).unwrap();
    file
}

/// A connection that takes long to close: unsent data, and a peer that does not read.
fn lingering() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    near.set_nonblocking(true).unwrap();
    while near.write(&[0; 1 << 16]).is_ok() {}
    near.set_nonblocking(false).unwrap();
    set_socket_linger(&near, Some(LINGER)).unwrap();
    (near.into(), far)
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
    let connections: Vec<_> = (0..400).map(|_| connect_to(&dir, victim.gid())).collect();
    for channel in &connections {
        send(channel, b"garbage", SendFlags::empty()).unwrap();
    }
    drive_by_edges(&victim);
    let waiting = connections
        .iter()
        .filter(|channel| !is_ended(channel))
        .count();
    assert_eq!(waiting, 0, "not accepted");
    // The same for peers in good order.
    let connections: Vec<_> = (1..150)
        .map(|number| Rogue::connected(&dir, victim.gid(), number))
        .collect();
    drive_by_edges(&victim);
    assert_eq!(victim.device.peers(), connections.len());
}

#[test]
fn a_channel_without_hello_is_closed_without_further_connections() {
    let dir = TempDir::new().unwrap();
    let victim = DrivenDevice::in_dir(dir.path());
    let silent = connect_to(&dir, victim.gid());
    let deadline = Instant::now() + TIMEOUT;
    while !is_ended(&silent) {
        assert!(Instant::now() < deadline, "waits without end");
        victim.wait_within(Duration::from_millis(20), |_| false);
    }
}

#[test]
fn descriptors_that_take_long_to_close_do_not_block_the_device() {
    let dir = TempDir::new().unwrap();
    let victim = DrivenDevice::in_dir(dir.path());
    let mut others = Vec::new();
    let mut slow = || {
        let (near, far) = lingering();
        others.push(far);
        near
    };
    let doorbell = eventfd(0, EventfdFlags::NONBLOCK).unwrap();

    let start = Instant::now();
    // In place of a signal page and of a doorbell.
    for number in 1..3 {
        let rogue = Rogue::silent(&dir, victim.gid(), number);
        if number == 1 {
            rogue.send_hello_with(slow().as_fd(), doorbell.as_fd());
        } else {
            rogue.send_hello_with(rogue.signal_page.as_fd(), slow().as_fd());
        }
        victim.drain();
        assert!(rogue.is_closed());
    }
    // In place of memory.
    let rogue = Rogue::connected(&dir, victim.gid(), 3);
    let token = rogue.offer(0, slow().as_fd());
    assert!(victim.try_attach(rogue.gid, token).is_err());
    assert!(rogue.is_closed());
    // Unread, when the channel is closed.
    let rogue = connect_to(&dir, victim.gid());
    send(&rogue, b"garbage", SendFlags::empty()).unwrap();
    send_with_fds(&rogue, b"more", &[slow().as_fd()]);
    victim.drain();
    assert!(is_ended(&rogue));
    assert!(start.elapsed() < LINGER / 2, "waited");
}

#[test]
fn what_is_mapped_for_peers_is_limited() {
    let dir = TempDir::new().unwrap();
    let victim = DrivenDevice::new(
        LoopDevice::builder()
            .domain(Domain::directory(dir.path()))
            .max_mappings(10),
    );
    // The signal pages of each are two.
    let peers = [1, 2].map(|number| Rogue::connected(&dir, victim.gid(), number));
    victim.drain();
    let memory = sealed(LEN as u64);
    let attach = |rogue: &Rogue, index| {
        let token = rogue.offer(index, memory.as_fd());
        victim.try_attach(rogue.gid, token)
    };
    for index in 0..6 {
        drop(attach(&peers[usize::from(index % 2 == 0)], index).unwrap());
    }
    for rogue in &peers {
        let error = attach(rogue, 10).unwrap_err();
        assert!(matches!(error, DeviceError::Exhausted), "{error:?}");
    }
    let late = Rogue::connected(&dir, victim.gid(), 3);
    victim.drain();
    assert!(late.is_closed(), "no room for its signal_page");
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
    let rogue = Rogue::connected(&dir, victim.gid(), 1);
    let memory = sealed(LEN as u64);
    let attach = |index: u32| {
        let token = rogue.offer(index * 64, memory.as_fd());
        victim.try_attach(rogue.gid, token).map(drop)
    };
    let refused = (0..100).find_map(|index| attach(index).err());
    assert!(
        matches!(refused, Some(DeviceError::OverLimit { .. })),
        "{refused:?}"
    );
    drop(rogue);
    victim.drain();
    assert_eq!(limit.used(), 0, "given back with the peer");

    let peers: Vec<_> = (2..102)
        .map(|number| {
            let rogue = Rogue::connected(&dir, victim.gid(), number);
            victim.drain();
            rogue
        })
        .collect();
    assert!(victim.device.peers() < peers.len());
    assert!(limit.used() <= limit.limit());
    let closed = peers.iter().filter(|rogue| rogue.is_closed()).count();
    assert_eq!(victim.device.peers() + closed, peers.len());
}

/// What helpers do.
#[test]
fn helper_process() {
    let Some(role) = Role::current() else { return };
    assert_eq!(role.name, "short of descriptors");
    limit_descriptors(DESCRIPTORS as u64);
    let device = DrivenDevice::in_dir(&role.dir);
    role.send(device.gid());
    while role.recv().is_some() {
        device.drain();
        role.send(device.device.peers());
        role.send(open_descriptors());
    }
}

/// A process with few descriptors, and a device that is driven when it is told so.
struct Short {
    helper: Helper,
    gid: Gid,
}

impl Short {
    fn start(dir: &TempDir) -> Self {
        let mut helper = Helper::start("short of descriptors", dir.path());
        let gid = helper.recv_gid();
        Self { helper, gid }
    }

    /// Returns how many peers it has then, and how many descriptors.
    fn drive(&mut self) -> (usize, usize) {
        self.helper.send("drive");
        let [peers, descriptors] = [(); 2].map(|()| self.helper.recv().parse().unwrap());
        (peers, descriptors)
    }
}

#[test]
fn peers_of_a_user_leave_half_of_the_descriptors() {
    let dir = TempDir::new().unwrap();
    let mut victim = Short::start(&dir);
    let (_, before) = victim.drive();
    let mut rogues: Vec<_> = (1..=100)
        .map(|number| {
            let rogue = Rogue::connected(&dir, victim.gid, number);
            victim.drive();
            rogue
        })
        .collect();
    let (peers, mut descriptors) = victim.drive();
    assert!(peers > 10, "{peers} peers");
    // Another thread closes the eventfds of those that were refused.
    let end = Instant::now() + TIMEOUT;
    while descriptors > before + DESCRIPTORS / 2 {
        assert!(Instant::now() < end, "{descriptors}");
        descriptors = victim.drive().1;
    }
    rogues.retain(|rogue| !rogue.is_closed());
    assert_eq!(rogues.len(), peers);
    // A peer that goes makes room for another one.
    drop(rogues.pop());
    victim.drive();
    let late = Rogue::connected(&dir, victim.gid, 200);
    assert_eq!(victim.drive().0, peers);
    assert!(!late.is_closed());
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
    let mut victim = Short::start(&dir);
    victim.drive();
    let rounds = (1..=100).map(|number| {
        let Rogue {
            channel, listener, ..
        } = Rogue::connected(&dir, victim.gid, number);
        victim.drive();
        drop(channel);
        assert_eq!(victim.drive().0, 0, "a peer is left");
        listener
    });
    let listeners: Vec<_> = rounds.collect();
    let late = Rogue::connected(&dir, victim.gid, 200);
    assert_eq!(victim.drive().0, 0);
    assert!(late.is_closed());
    let connected = listeners.iter().filter(|it| was_sent_hello(it)).count();
    assert!((10..=DESCRIPTORS / 8).contains(&connected), "{connected}");
    // They are read now.
    let late = Rogue::connected(&dir, victim.gid, 201);
    assert_eq!(victim.drive().0, 1);
    assert!(!late.is_closed());
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
const SIGNAL_PAGE_LEN: u64 = 0x2000 + 16_384 * 64;
