//! Peers that violate the protocol, and users who may not be peers.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::fs::{File, Permissions};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::time::{Duration, Instant};

use common::{DrivenDevice, Helper, LEN, Role, TIMEOUT, names, socket_name};
use futures_lite::future::block_on;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::Errno;
use rustix::io::ioctl_fionbio;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketType, accept, bind, connect, listen,
    recv, recvmsg, send, sendmsg, socket,
};
use smc_core::Domain;
use smc_core::device::{Device, DeviceError, Direct, Dmb, Event, MemoryLimit, SubmitError};
use smc_testkit::user::run_as;
use smc_transport_loop::LoopDevice;
use smc_wire::types::{DmbToken, Gid};
use tempfile::TempDir;

/// What helpers do.
#[test]
fn helper_process() {
    let Some(role) = Role::current() else { return };
    match role.name.as_str() {
        "idle" => {
            let device = DrivenDevice::in_dir(&role.dir);
            role.send(device.gid());
            assert_eq!(role.recv(), None);
        }
        "refused" => refused_user(&role),
        "accepted" => accepted_user(&role),
        other => panic!("no role {other}"),
    }
}

/// Implements the protocol between devices by hand, in this process.
struct Rogue {
    gid: Gid,
    channel: OwnedFd,
    signal_page: File,
    listener: OwnedFd,
}

const GID: Gid = Gid::new(0x1111, 0x2222);
const SIGNAL_PAGE_LEN: u64 = 0x2000 + 16_384 * 64;
const TOKEN: DmbToken = DmbToken(0x7766_5544_3322_1100);

impl Rogue {
    /// Listens like a device and sends HELLO to the victim like one.
    fn connect(dir: &TempDir, victim: Gid) -> Self {
        let signal_page = sealed(SIGNAL_PAGE_LEN);
        let doorbell = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        Self::send_hello_with(dir, victim, signal_page, doorbell.as_fd())
    }

    fn send_hello_with(
        dir: &TempDir,
        victim: Gid,
        signal_page: File,
        doorbell: BorrowedFd<'_>,
    ) -> Self {
        let listener = seqpacket();
        let path = dir.path().join(socket_name(GID));
        bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        listen(&listener, 8).unwrap();
        let channel = connect_to(dir, victim);
        send_with_fds(&channel, &hello(GID), &[signal_page.as_fd(), doorbell]);
        Self {
            gid: GID,
            channel,
            signal_page,
            listener,
        }
    }

    /// Offers memory in a slot, with a token of our own.
    fn offer(&self, index: u32, len: u64, file: &File) -> DmbToken {
        let token = self.announce(index);
        send_with_fds(&self.channel, &message(2, index, 5, len), &[file.as_fd()]);
        token
    }

    /// Announces memory in a slot.
    fn announce(&self, index: u32) -> DmbToken {
        let token = DmbToken(TOKEN.0 + u64::from(index));
        let slot = 0x2000 + u64::from(index) * 64;
        for (at, word) in [(16, 5), (24, token.0), (32, 5)] {
            self.signal_page
                .write_at(&u64::to_ne_bytes(word), slot + at)
                .unwrap();
        }
        token
    }

    /// Whether the victim has closed the channel.
    fn is_closed(&self) -> bool {
        let mut byte = [0; 1];
        let got = recv(&self.channel, &mut byte, RecvFlags::DONTWAIT);
        !matches!(got, Err(Errno::AGAIN))
    }
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

fn hello(gid: Gid) -> Vec<u8> {
    message(1, 16_384, gid.hi().0, gid.lo().0)
}

fn send_with_fds(channel: &OwnedFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
    let mut space = [std::mem::MaybeUninit::uninit(); 64];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(descriptors)));
    let bytes = [std::io::IoSlice::new(bytes)];
    sendmsg(channel, &bytes, &mut ancillary, SendFlags::empty()).unwrap();
}

/// The descriptors that come with the next message that has some.
fn receive_fds(channel: &OwnedFd) -> Vec<File> {
    loop {
        let mut space = [std::mem::MaybeUninit::uninit(); 64];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut bytes = [0; 32];
        let mut bytes = [std::io::IoSliceMut::new(&mut bytes)];
        recvmsg(channel, &mut bytes, &mut ancillary, RecvFlags::DONTWAIT).unwrap();
        let rights = ancillary.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(rights) => Some(rights),
            _ => None,
        });
        let files: Vec<_> = rights.flatten().map(File::from).collect();
        if !files.is_empty() {
            return files;
        }
    }
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

fn unsealed(len: u64) -> File {
    let file = memfd_create("smc-test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    let file = File::from(file);
    file.set_len(len).unwrap();
    file
}

fn sealed(len: u64) -> File {
    let file = unsealed(len);
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    fcntl_add_seals(&file, seals).unwrap();
    file
}

#[test]
fn what_a_peer_offers_is_checked_before_it_is_mapped() {
    let dir = TempDir::new().unwrap();
    let victim = DrivenDevice::in_dir(dir.path());
    let rogue = Rogue::connect(&dir, victim.gid());
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
        let token = rogue.offer(u32::try_from(index).unwrap(), *len, file);
        let error = victim.try_attach(rogue.gid, token).unwrap_err();
        assert!(
            matches!(error, DeviceError::PeerMisbehaved(_)),
            "{what}: {error:?}"
        );
        let error = victim.write(token, 0, b"x").unwrap_err();
        assert!(matches!(error, SubmitError::Device(_)), "{what}: {error:?}");
    }
    // Nothing of that touches what is in order.
    let token = rogue.offer(100, len, &sealed(len));
    let attached = victim.attach(rogue.gid, token);
    attached.region().copy_in(LEN - 1, b"x").unwrap();
    assert!(!rogue.is_closed());
    // What is not memory at all may be slow to close, and is the end.
    let (pipe, _) = rustix::pipe::pipe().unwrap();
    let token = rogue.offer(101, len, &File::from(pipe));
    assert!(victim.try_attach(rogue.gid, token).is_err());
    assert!(rogue.is_closed());
}

#[test]
fn memory_that_is_sealed_later_does_not_count() {
    let dir = TempDir::new().unwrap();
    let victim = DrivenDevice::in_dir(dir.path());
    let rogue = Rogue::connect(&dir, victim.gid());
    let token = rogue.offer(0, LEN as u64, &sealed(LEN as u64));
    let attached = victim.attach(rogue.gid, token);
    // The peer cannot pull the file from under the mapping.
    let file = sealed(LEN as u64);
    assert!(file.set_len(0).is_err());
    attached.region().copy_in(0, &[1; LEN]).unwrap();
}

#[test]
fn an_overwritten_signal_page_affects_no_other_peer() {
    let dir = TempDir::new().unwrap();
    let victim = DrivenDevice::in_dir(dir.path());
    let honest = DrivenDevice::in_dir(dir.path());
    let rogue = Rogue::connect(&dir, victim.gid());
    let token = rogue.offer(3, LEN as u64, &sealed(LEN as u64));
    let attached = victim.attach(rogue.gid, token);
    let scribble = vec![0xa5; usize::try_from(SIGNAL_PAGE_LEN).unwrap()];
    rogue.signal_page.write_all_at(&scribble, 0).unwrap();
    send_with_fds(
        &rogue.channel,
        &message(3, 0, 0, 0),
        &[rogue.signal_page.as_fd()],
    );
    victim.drain();
    attached.signal().unwrap();
    assert!(victim.write(token, 0, b"x").is_err());
    // Others go on as before.
    let dmb = victim.register(honest.gid());
    let theirs = honest.attach(victim.gid(), dmb.token());
    dmb.arm();
    theirs.signal().unwrap();
    victim.wait(Event::Signalled(dmb.token()));
}

fn resident(file: &File) -> u64 {
    file.metadata().unwrap().blocks() * 512
}

/// A process that has a descriptor of a file can hold the lock of its inode, for which each call
/// waits that removes pages.
#[test]
fn no_pages_are_removed_from_a_file_of_which_a_peer_has_the_descriptor() {
    const LONG: usize = 1 << 20;
    let dir = TempDir::new().unwrap();
    let victim = DrivenDevice::in_dir(dir.path());
    let rogue = Rogue::connect(&dir, victim.gid());
    victim.drain();
    let register = || block_on(victim.device.register(rogue.gid, LONG)).unwrap();
    let first = register();
    let channel = accept(&rogue.listener).unwrap();
    assert_eq!(receive_fds(&channel).len(), 2, "HELLO");
    let mut buffers = vec![(first, receive_fds(&channel).remove(0))];
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
        let other = receive_fds(&channel).remove(0);
        assert_eq!(resident(&other), 0);
        buffers.push((next, other));
    }
}

#[test]
fn marks_of_buffers_that_do_not_exist_take_no_memory() {
    let dir = TempDir::new().unwrap();
    let victim = DrivenDevice::in_dir(dir.path());
    let signal_page = sealed(SIGNAL_PAGE_LEN);
    signal_page.write_all_at(&[0xff; 32], 0xc0).unwrap();
    signal_page.write_all_at(&[0xff; 2048], 0x1800).unwrap();
    let before = resident(&signal_page);
    let doorbell = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    let rogue = Rogue::send_hello_with(&dir, victim.gid(), signal_page, doorbell.as_fd());
    victim.drain();
    assert_eq!(victim.device.peers(), 1);
    assert_eq!(resident(&rogue.signal_page), before);
}

#[test]
fn slots_take_no_more_memory_than_the_limit_leaves() {
    let dir = TempDir::new().unwrap();
    let victim = DrivenDevice::in_dir(dir.path());
    let limit = MemoryLimit::new(1 << 20);
    victim.device.limit_memory(&limit);
    let rogue = Rogue::connect(&dir, victim.gid());
    victim.drain();
    let before = resident(&rogue.signal_page);
    // Buffers without memory, of which each has its slot on another page.
    for index in (0..16_384).step_by(64) {
        let memory = message(2, index, 5, LEN as u64);
        send(&rogue.channel, &memory, SendFlags::empty()).unwrap();
        victim.drain();
    }
    assert!(!rogue.is_closed());
    let pages = (resident(&rogue.signal_page) - before) / 4096;
    assert!(pages <= 64, "{pages} pages");
}

#[test]
fn malformed_hellos_are_refused() {
    let unsuitable = || {
        let doorbell = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let blocking = eventfd(0, EventfdFlags::empty()).unwrap();
        let (pipe, _) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
        vec![
            (
                "signal page unsealed",
                unsealed(SIGNAL_PAGE_LEN),
                doorbell.try_clone().unwrap(),
            ),
            (
                "signal page too short",
                sealed(SIGNAL_PAGE_LEN - 4096),
                doorbell,
            ),
            ("doorbell blocks", sealed(SIGNAL_PAGE_LEN), blocking),
            ("doorbell is a pipe", sealed(SIGNAL_PAGE_LEN), pipe),
        ]
    };
    for (what, signal_page, doorbell) in unsuitable() {
        let dir = TempDir::new().unwrap();
        let victim = DrivenDevice::in_dir(dir.path());
        let rogue = Rogue::send_hello_with(&dir, victim.gid(), signal_page, doorbell.as_fd());
        victim.drain();
        assert!(rogue.is_closed(), "{what}");
    }
}

/// A missing descriptor of a peer is not a shortage of this process.
#[test]
fn a_peer_that_passes_nothing_does_not_have_descriptors_reported_as_lacking() {
    let dir = TempDir::new().unwrap();
    let victim = DrivenDevice::in_dir(dir.path());
    let unknown = connect_to(&dir, victim.gid());
    send(&unknown, &hello(GID), SendFlags::empty()).unwrap();
    victim.drain();
    let mut byte = [0; 1];
    let end = recv(&unknown, &mut byte, RecvFlags::DONTWAIT);
    assert!(matches!(end, Ok((0, _))), "{end:?}");
    let lack = victim.device.shortage();
    assert!(lack.is_none(), "{lack:?}");

    let rogue = Rogue::connect(&dir, victim.gid());
    let token = rogue.announce(0);
    let memory = message(2, 0, 5, LEN as u64);
    send(&rogue.channel, &memory, SendFlags::empty()).unwrap();
    let error = victim.try_attach(rogue.gid, token).unwrap_err();
    assert!(matches!(error, DeviceError::PeerMisbehaved(_)), "{error:?}");
}

#[test]
fn nonsense_ends_a_channel_and_nothing_else() {
    let dir = TempDir::new().unwrap();
    let victim = DrivenDevice::in_dir(dir.path());
    let honest = DrivenDevice::in_dir(dir.path());
    let dmb = victim.register(honest.gid());
    let theirs = honest.attach(victim.gid(), dmb.token());
    // Before HELLO.
    let unknown = connect_to(&dir, victim.gid());
    send(&unknown, b"GET / HTTP/1.1", SendFlags::empty()).unwrap();
    // After it.
    let rogue = Rogue::connect(&dir, victim.gid());
    victim.drain();
    assert!(!rogue.is_closed());
    send(&rogue.channel, b"nonsense", SendFlags::empty()).unwrap();
    victim.wait(Event::PeerGone(rogue.gid));
    assert!(rogue.is_closed());
    // Never.
    let silent = connect_to(&dir, victim.gid());
    assert!(!victim.wait_within(Duration::from_millis(20), |_| true));
    dmb.arm();
    theirs.signal().unwrap();
    victim.wait(Event::Signalled(dmb.token()));
    drop(silent);
    victim.drain();
}

#[test]
fn many_silent_connections_do_not_block_a_peer() {
    let dir = TempDir::new().unwrap();
    let victim = DrivenDevice::in_dir(dir.path());
    let connections: Vec<_> = (0..200).map(|_| connect_to(&dir, victim.gid())).collect();
    for _ in 0..10 {
        victim.drain();
    }
    let honest = DrivenDevice::in_dir(dir.path());
    let dmb = honest.register(victim.gid());
    victim.attach(honest.gid(), dmb.token()).signal().unwrap();
    drop(connections);
}

#[test]
fn users_who_are_not_allowed_cost_each_drain_a_bounded_number_of_connections() {
    let Some(user) = another_user() else { return };
    let dir = shared_dir();
    let domain = Domain::shared(dir.path(), [user + 1]);
    let victim = DrivenDevice::new(LoopDevice::builder().domain(domain));
    let own = dir.path().join("0").join(socket_name(victim.gid()));
    let address = SocketAddrUnix::new(&own).unwrap();
    let connect_filled = |_| {
        let channel = seqpacket();
        connect(&channel, &address).unwrap();
        for _ in 0..20 {
            send(&channel, b"x", SendFlags::empty()).unwrap();
        }
        channel
    };
    let flood: Vec<_> = run_as(user, || (0..200).map(connect_filled).collect()).unwrap();
    let count_ended = || {
        let at_its_end = |channel: &&OwnedFd| {
            recv(channel, &mut [0; 1][..], RecvFlags::DONTWAIT) != Err(Errno::AGAIN)
        };
        flood.iter().filter(at_its_end).count()
    };
    victim.device.drain(&mut |_| {}).unwrap();
    // Another thread ends those that were accepted.
    let end = Instant::now() + TIMEOUT;
    while count_ended() < 32 {
        assert!(Instant::now() < end, "{} in one call", count_ended());
    }
    assert_eq!(count_ended(), 32, "in one call");
    while count_ended() < flood.len() {
        assert!(Instant::now() < end, "{} have ended", count_ended());
        victim.device.drain(&mut |_| {}).unwrap();
    }
}

#[test]
fn a_gid_of_another_process_is_refused() {
    let dir = TempDir::new().unwrap();
    let victim = DrivenDevice::in_dir(dir.path());
    let mut helper = Helper::start("idle", dir.path());
    let foreign = helper.recv_gid();
    let forged = connect_to(&dir, victim.gid());
    let doorbell = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    send_with_fds(
        &forged,
        &hello(foreign),
        &[sealed(SIGNAL_PAGE_LEN).as_fd(), doorbell.as_fd()],
    );
    victim.drain();
    let mut byte = [0; 1];
    let got = recv(&forged, &mut byte, RecvFlags::DONTWAIT);
    assert!(matches!(got, Ok((0, _)) | Err(Errno::CONNRESET)), "{got:?}");
    // The owner of the GID is still accepted.
    assert!(block_on(victim.device.reach(foreign)).is_ok());
    // A GID without a listener, and our own.
    for gid in [Gid::new(9, 9), victim.gid()] {
        let forged = connect_to(&dir, victim.gid());
        send_with_fds(
            &forged,
            &hello(gid),
            &[sealed(SIGNAL_PAGE_LEN).as_fd(), doorbell.as_fd()],
        );
        victim.drain();
        assert!(!matches!(
            recv(&forged, &mut byte, RecvFlags::DONTWAIT),
            Err(Errno::AGAIN)
        ));
    }
    helper.finish();
}

/// Another user than the one who runs the tests, if this process can become it.
fn another_user() -> Option<u32> {
    if rustix::process::geteuid().is_root() {
        return Some(990);
    }
    println!("skipped: only root can start processes of other users");
    None
}

/// A directory that users can share.
fn shared_dir() -> TempDir {
    let dir = TempDir::new().unwrap();
    std::fs::set_permissions(dir.path(), Permissions::from_mode(0o1777)).unwrap();
    dir
}

fn start_as(user: u32, role: &str, dir: &TempDir) -> Option<Helper> {
    // The build directory may be closed to other users.
    let program = dir.path().join("helper");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    std::fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    let mut command = std::process::Command::new(program);
    command.args([
        "helper_process",
        "--exact",
        "--nocapture",
        "--test-threads=1",
    ]);
    command.uid(user).gid(user).current_dir("/");
    Some(Helper::spawn(command, role, dir.path()))
}

/// Tries all it can without being allowed.
fn refused_user(role: &Role) {
    let us = DrivenDevice::new(LoopDevice::builder().domain(Domain::shared(&role.dir, [0])));
    role.send(us.gid());
    let them = role.recv_gid();
    role.send(match block_on(us.device.register(them, LEN)) {
        Err(DeviceError::NotPermitted(_)) => "not permitted",
        Err(DeviceError::Unreachable { .. } | DeviceError::PeerGone) => "refused",
        Err(other) => panic!("{other:?}"),
        Ok(_) => {
            us.wait(Event::PeerGone(them));
            "refused"
        }
    });
    assert_eq!(role.recv(), None);
}

#[test]
fn other_users_are_refused() {
    let Some(user) = another_user() else { return };
    // The directory is closed.
    let dir = shared_dir();
    let refused = LoopDevice::builder()
        .domain(Domain::directory(dir.path()))
        .build();
    assert!(
        matches!(refused, Err(DeviceError::RuntimeDir(_))),
        "open to all: {refused:?}"
    );
    // The socket is closed; then open for some other user.
    for allowed in [None, Some(1234)] {
        let dir = shared_dir();
        let users = [allowed.unwrap_or(1)];
        let us = DrivenDevice::new(LoopDevice::builder().domain(Domain::shared(dir.path(), users)));
        if allowed.is_none() {
            let path = dir.path().join("0").join(socket_name(us.gid()));
            std::fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
        }
        let mut helper = start_as(user, "refused", &dir).unwrap();
        let them = helper.recv_gid();
        let reached = block_on(us.device.reach(them));
        assert!(
            matches!(reached, Err(DeviceError::Unreachable { .. })),
            "is not looked for: {reached:?}"
        );
        helper.send(us.gid());
        us.wait_within(Duration::from_millis(100), |_| false);
        let expected = if allowed.is_some() {
            "refused"
        } else {
            "not permitted"
        };
        assert_eq!(helper.recv(), expected);
        helper.finish();
    }
}

/// A user whom the victim allows makes a socket under the name of the device of another such user, in
/// the directory of its own, which comes first in the order of the domain.
#[test]
fn a_user_cannot_take_the_gid_of_another_user_s_device() {
    let Some(attacker) = another_user() else {
        return;
    };
    let honest = attacker + 1;
    let dir = shared_dir();
    let domain = Domain::shared(dir.path(), [attacker, honest]);
    let victim = DrivenDevice::new(LoopDevice::builder().domain(domain));
    let mut helper = start_as(honest, "accepted", &dir).unwrap();
    let gid = helper.recv_gid();
    let [own_dir, victim_dir] = [attacker, 0].map(|user| dir.path().join(user.to_string()));
    let doorbell = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    let (listener, channel) = run_as(attacker, || {
        std::fs::create_dir(&own_dir).unwrap();
        std::fs::set_permissions(&own_dir, Permissions::from_mode(0o755)).unwrap();
        let listener = seqpacket();
        let name = own_dir.join(socket_name(gid));
        bind(&listener, &SocketAddrUnix::new(name).unwrap()).unwrap();
        listen(&listener, 8).unwrap();
        let channel = seqpacket();
        let name = victim_dir.join(socket_name(victim.gid()));
        connect(&channel, &SocketAddrUnix::new(name).unwrap()).unwrap();
        (listener, channel)
    })
    .unwrap();
    send_with_fds(
        &channel,
        &hello(gid),
        &[sealed(SIGNAL_PAGE_LEN).as_fd(), doorbell.as_fd()],
    );
    victim.drain();
    assert_eq!(victim.device.peers(), 0);
    let mut byte = [0; 1];
    let got = recv(&channel, &mut byte, RecvFlags::DONTWAIT);
    assert!(matches!(got, Ok((0, _)) | Err(Errno::CONNRESET)), "{got:?}");

    // The owner of the GID is still reached, and still accepted.
    let dmb = victim.register(gid);
    assert_eq!(victim.device.process(gid).unwrap().uid, honest);
    ioctl_fionbio(&listener, true).unwrap();
    assert_eq!(accept(&listener).unwrap_err(), Errno::AGAIN);
    exchange_signals(&victim, &mut helper, gid, &*dmb);
    helper.finish();
}

/// A user whom the victim allows announces the same memory behind very many slots.
#[test]
fn a_user_with_very_many_buffers_leaves_mappings_to_others() {
    let Some(attacker) = another_user() else {
        return;
    };
    let honest = attacker + 1;
    let dir = shared_dir();
    let domain = Domain::shared(dir.path(), [attacker, honest]);
    let victim = DrivenDevice::new(LoopDevice::builder().domain(domain).max_mappings(64));
    let gid = Gid::emulated(GID.to_u128() & !u128::from(u32::MAX) | u128::from(attacker));
    let [own_dir, victim_dir] = [attacker, 0].map(|user| dir.path().join(user.to_string()));
    let (_listener, channel) = run_as(attacker, || {
        std::fs::create_dir(&own_dir).unwrap();
        std::fs::set_permissions(&own_dir, Permissions::from_mode(0o755)).unwrap();
        let listener = seqpacket();
        let name = own_dir.join(socket_name(gid));
        bind(&listener, &SocketAddrUnix::new(name).unwrap()).unwrap();
        listen(&listener, 8).unwrap();
        let channel = seqpacket();
        let name = victim_dir.join(socket_name(victim.gid()));
        connect(&channel, &SocketAddrUnix::new(name).unwrap()).unwrap();
        (listener, channel)
    })
    .unwrap();
    let (signal_page, memory) = (sealed(SIGNAL_PAGE_LEN), sealed(LEN as u64));
    let doorbell = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    send_with_fds(
        &channel,
        &hello(gid),
        &[signal_page.as_fd(), doorbell.as_fd()],
    );
    victim.drain();
    assert_eq!(victim.device.peers(), 1);
    for index in 0..100 {
        let slot = 0x2000 + u64::from(index) * 64;
        signal_page
            .write_at(&5_u64.to_ne_bytes(), slot + 32)
            .unwrap();
        let message = message(2, index, 5, LEN as u64);
        send_with_fds(&channel, &message, &[memory.as_fd()]);
        victim.drain();
    }

    let mut helper = start_as(honest, "accepted", &dir).unwrap();
    let gid = helper.recv_gid();
    let dmb = victim.register(gid);
    exchange_signals(&victim, &mut helper, gid, &*dmb);
    helper.finish();
}

/// Answers one signal.
fn accepted_user(role: &Role) {
    let us = DrivenDevice::new(LoopDevice::builder().domain(Domain::shared(&role.dir, [0])));
    role.send(us.gid());
    let (them, token) = (role.recv_gid(), role.recv_token());
    let dmb = us.register(them);
    let attached = us.attach(them, token);
    role.send(dmb.token().0);
    let mut last = 0;
    for _ in 0..50 {
        last = us.wait_word(&*dmb, 8, last);
        attached.region().copy_in(8, &last.to_ne_bytes()).unwrap();
        attached.signal().unwrap();
    }
    assert_eq!(role.recv(), None);
}

/// Signals to an accepted user and back, with a buffer for it.
fn exchange_signals(us: &DrivenDevice, helper: &mut Helper, them: Gid, dmb: &dyn Dmb) {
    helper.send(us.gid());
    helper.send(dmb.token().0);
    let attached = us.attach(them, helper.recv_token());
    let mut last = 0;
    for round in 1..=50 {
        attached
            .region()
            .copy_in(8, &u64::to_ne_bytes(round))
            .unwrap();
        attached.signal().unwrap();
        last = us.wait_word(dmb, 8, last);
        assert_eq!(last, round);
    }
}

#[test]
fn other_users_can_be_allowed() {
    let Some(user) = another_user() else { return };
    let dir = shared_dir();
    let us = DrivenDevice::new(LoopDevice::builder().domain(Domain::shared(dir.path(), [user])));
    let mut helper = start_as(user, "accepted", &dir).unwrap();
    let them = helper.recv_gid();
    let dmb = us.register(them);
    exchange_signals(&us, &mut helper, them, &*dmb);
    helper.finish();
    us.wait(Event::PeerGone(them));
    drop(us);
    for user in [0, user] {
        assert!(names(&dir.path().join(user.to_string())).is_empty());
    }
}
