//! UNIX sockets and descriptors of a peer that keeps to no protocol.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Write as _};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::Errno;
use rustix::net::sockopt::{
    set_socket_linger, set_socket_recv_buffer_size, set_socket_send_buffer_size,
};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, connect,
    listen, recv, recvmsg, sendmsg, socket_with, socketpair,
};

/// A socket for packets.
///
/// # Panics
///
/// Without a descriptor.
pub fn seqpacket() -> OwnedFd {
    let flags = SocketFlags::CLOEXEC;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
}

/// Two connected sockets for packets that never wait.
///
/// # Panics
///
/// Without descriptors.
pub fn pair() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
}

/// A stream socket that is connected as by a client with SMC, which sends a PROPOSAL next.
///
/// # Errors
///
/// As `bind(2)` and `connect(2)`.
pub fn marked_client(to: &SocketAddrUnix) -> io::Result<UnixStream> {
    static LAST: AtomicU32 = AtomicU32::new(0);
    let number = LAST.fetch_add(1, Ordering::Relaxed);
    let flags = SocketFlags::CLOEXEC;
    let client = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // No other client has this name.
    let name = format!("smc-client\0{:08x}{number:08x}", std::process::id());
    bind(
        &client,
        &SocketAddrUnix::new_abstract_name(name.as_bytes())?,
    )?;
    connect(&client, to)?;
    Ok(client.into())
}

/// A socket that is connected to the one with this name.
///
/// # Panics
///
/// If nothing listens there.
pub fn connect_to(path: impl AsRef<Path>) -> OwnedFd {
    let socket = seqpacket();
    connect(&socket, &SocketAddrUnix::new(path.as_ref()).unwrap()).unwrap();
    socket
}

/// A socket that listens under this name.
///
/// # Panics
///
/// If the name is taken.
pub fn listen_at(path: impl AsRef<Path>) -> OwnedFd {
    let socket = seqpacket();
    bind(&socket, &SocketAddrUnix::new(path.as_ref()).unwrap()).unwrap();
    listen(&socket, 128).unwrap();
    socket
}

/// Sends a packet with descriptors.
///
/// # Panics
///
/// If it cannot be sent.
pub fn send(socket: impl AsFd, packet: &[u8], descriptors: &[BorrowedFd<'_>]) {
    try_send(socket, packet, descriptors, SendFlags::empty()).unwrap();
}

/// Sends a packet with descriptors, if there is space for it, the socket is connected, and its peer
/// takes descriptors. Returns whether that was so.
pub fn send_if_possible(socket: impl AsFd, packet: &[u8], descriptors: &[BorrowedFd<'_>]) -> bool {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    try_send(socket, packet, descriptors, flags).is_ok()
}

/// Sends an urgent byte with descriptors on a stream. False if the kernel has none (before Linux
/// 5.15).
///
/// # Panics
///
/// If it cannot be sent for another reason.
pub fn send_urgent(socket: impl AsFd, descriptors: &[BorrowedFd<'_>]) -> bool {
    match try_send(socket, b"!", descriptors, SendFlags::OOB) {
        Err(Errno::OPNOTSUPP) => false,
        sent => sent.unwrap() == 1,
    }
}

/// Sends a packet without descriptors until there is no space. Returns how many were sent.
pub fn fill(socket: impl AsFd, packet: &[u8]) -> usize {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let is_sent = || try_send(&socket, packet, &[], flags).is_ok();
    std::iter::repeat_with(is_sent)
        .take_while(|is_sent| *is_sent)
        .count()
}

/// Drains a device whose peers have filled these sockets, four times, and fills them again after
/// each time. A drain handles 1 to 64 messages, and in the end all peers have had their turn.
///
/// # Panics
///
/// If that does not hold.
pub fn drain_full<S: AsFd>(sockets: &[S], packet: &[u8], mut drain: impl FnMut()) {
    let mut handled = vec![0; sockets.len()];
    for _ in 0..4 {
        drain();
        let now: Vec<_> = sockets.iter().map(|socket| fill(socket, packet)).collect();
        let sum: usize = now.iter().sum();
        assert!((1..=64).contains(&sum), "{sum} messages in one call");
        handled
            .iter_mut()
            .zip(now)
            .for_each(|(all, now)| *all += now);
    }
    assert!(handled.iter().all(|count| *count > 0), "{handled:?}");
}

fn try_send(
    socket: impl AsFd,
    packet: &[u8],
    descriptors: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SCM_MAX_FD))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
    }
    sendmsg(socket, &[IoSlice::new(packet)], &mut control, flags)
}

/// Receives a packet that is there already, and returns the descriptors that come with it.
///
/// # Panics
///
/// If there is none.
pub fn receive_descriptors(socket: impl AsFd) -> Vec<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SCM_MAX_FD))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut packet = [0; 64];
    let mut packet = [IoSliceMut::new(&mut packet)];
    recvmsg(socket, &mut packet, &mut control, RecvFlags::DONTWAIT).unwrap();
    let rights = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(rights) => Some(rights),
        _ => None,
    });
    rights.flatten().collect()
}

/// Whether the peer has closed its end, or has sent something, which it does not do here.
pub fn is_closed(socket: impl AsFd) -> bool {
    recv(socket, &mut [0; 64][..], RecvFlags::DONTWAIT) != Err(Errno::AGAIN)
}

/// Whether a descriptor becomes readable in this time.
///
/// # Panics
///
/// If the system cannot tell.
pub fn is_readable(fd: impl AsFd, time: Duration) -> bool {
    is_ready(fd, PollFlags::IN, time)
}

/// Whether a descriptor becomes writable in this time.
///
/// # Panics
///
/// If the system cannot tell.
pub fn is_writable(fd: impl AsFd, time: Duration) -> bool {
    is_ready(fd, PollFlags::OUT, time)
}

fn is_ready(fd: impl AsFd, flags: PollFlags, time: Duration) -> bool {
    let time = Timespec::try_from(time).unwrap();
    poll(&mut [PollFd::new(&fd, flags)], Some(&time)) == Ok(1)
}

/// A memory file that can be made shorter.
///
/// # Panics
///
/// Without memory.
pub fn unsealed(len: u64) -> File {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = File::from(memfd_create("smc-test", flags).unwrap());
    file.set_len(len).unwrap();
    file
}

/// A memory file with a length that does not change.
///
/// # Panics
///
/// Without memory.
pub fn sealed(len: u64) -> File {
    let file = unsealed(len);
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    fcntl_add_seals(&file, seals).unwrap();
    file
}

/// A TCP connection that takes this time to close, as it has unsent data, and its other end, which
/// does not read.
///
/// # Panics
///
/// Without descriptors.
pub fn lingering(time: Duration) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    // Which the connection inherits, and which does not grow.
    set_socket_recv_buffer_size(&listener, 4096).unwrap();
    let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    set_socket_send_buffer_size(&near, 4096).unwrap();
    near.set_nonblocking(true).unwrap();
    // What is in flight when a write is refused may still find space at the other end, which takes
    // a moment where the system is busy.
    while is_writable(&near, Duration::from_millis(50)) {
        while near.write(&[0; 1 << 16]).is_ok() {}
    }
    near.set_nonblocking(false).unwrap();
    set_socket_linger(&near, Some(time)).unwrap();
    (near, far)
}

/// Descriptors that one packet can pass at most.
pub const SCM_MAX_FD: usize = 253;
