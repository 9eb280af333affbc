//! Clients that do not keep to the rules.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::sockopt::socket_cookie;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketType,
};

use super::child::{self, Child, Where};
use super::*;

#[test]
fn rubbish_ends_the_channel_and_nothing_else() {
    run(|world| async move {
        let server = world.server("127.0.0.1:0");
        let client = world.client();
        let mut twice = hello();
        twice.push(9);
        for rubbish in [
            vec![vec![0xff]],
            vec![b"GET / HTTP/1.1\r\n\r\n".to_vec()],
            vec![vec![0; 60_000]],
            vec![twice],
            vec![hello(), hello()],
            vec![vec![3, 0, 0, 0, 0, 0, 0, 0, 0]], // WITHDRAW before HELLO
            vec![hello(), vec![3, 0, 0]],
            vec![hello(), [&[4][..], &[0; 24], &[4, 127, 0, 0, 1]].concat()], // PROVE at home
        ] {
            let channel = raw_channel(&world);
            for packet in &rubbish {
                let _ = rustix::net::send(&channel, packet, SendFlags::NOSIGNAL);
            }
            // The next connection makes the listener look.
            let _dialled = world.dial(&*client, server.at()).await;
            assert_eq!(server.accept().await, clc(PROPOSAL));
            assert!(is_ended(&channel), "{rubbish:?}");
        }
    });
}

#[test]
fn announcements_without_or_with_a_false_token_are_not_answered() {
    run(|world| async move {
        let server = world.server("127.0.0.1:0");
        let (no_token, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        for token in [None, Some(no_token.as_fd())] {
            let channel = raw_channel(&world);
            rustix::net::send(&channel, &hello(), SendFlags::empty()).unwrap();
            let socket = bound();
            let cookie = socket_cookie(&socket).unwrap();
            send_announcement(&channel, 9, &socket, server.at(), cookie, token);
            rustix::net::connect(&socket, &server.at()).unwrap();
            assert_eq!(server.accept().await, Verdict::Plain);
            let mut buf = [0; 64];
            let (len, _) = rustix::net::recv(&channel, &mut buf[..], RecvFlags::DONTWAIT).unwrap();
            assert_eq!((buf[0], len), (0x81, 9), "REFUSED");
        }
    });
}

#[test]
fn floods_are_limited() {
    // Counts descriptors, so it needs a process without other tests.
    let mut flooded = Child::start(Where::Here, "hostile::flood", &[]);
    assert_eq!(flooded.line(), "limited");
    flooded.wait();
}

#[test]
#[ignore = "started by `floods_are_limited`"]
fn flood() {
    run(|world| async move {
        let server = world.server("127.0.0.1:0");
        let channel = raw_channel(&world);
        rustix::net::send(&channel, &hello(), SendFlags::empty()).unwrap();
        let socket = bound();
        let before = open_descriptors();
        for id in 0..5000_u64 {
            let token = rustix::event::eventfd(1, rustix::event::EventfdFlags::NONBLOCK).unwrap();
            send_announcement(&channel, id, &socket, server.at(), 1, Some(token.as_fd()));
            if id % 50 == 0 {
                let _plain = TcpStream::connect(server.at()).unwrap();
                assert_eq!(server.accept().await, Verdict::Plain);
            }
        }
        assert!(
            open_descriptors() - before < 1000,
            "descriptors are kept for each"
        );
        assert!(!is_ended(&channel));
        assert!(open_descriptors() > before + 100, "nothing was kept");
        drop(channel);
        let _plain = TcpStream::connect(server.at()).unwrap();
        assert_eq!(server.accept().await, Verdict::Plain);
        assert!(
            open_descriptors() <= before + 5,
            "nothing stays of a channel that ended"
        );
        child::say("limited");
    });
}

/// A channel as a client opens it, before the first packet.
pub(super) fn raw_channel(world: &World) -> OwnedFd {
    let name = world
        .names()
        .into_iter()
        .find(|name| name.starts_with("l-"))
        .unwrap();
    raw_channel_at(&world.dir.path.join(name)).unwrap()
}

pub(super) fn raw_channel_at(path: &Path) -> rustix::io::Result<OwnedFd> {
    let channel = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None)?;
    rustix::net::connect(&channel, &SocketAddrUnix::new(path)?)?;
    Ok(channel)
}

/// HELLO from this thread's network namespace.
pub(super) fn hello() -> Vec<u8> {
    let stat = rustix::fs::stat("/proc/thread-self/ns/net").unwrap();
    [&b"\x01SMCL\x01"[..], &stat.st_ino.to_le_bytes()].concat()
}

fn send_announcement(
    channel: &OwnedFd,
    id: u64,
    socket: &OwnedFd,
    to: SocketAddr,
    cookie: u64,
    token: Option<BorrowedFd<'_>>,
) {
    let from: SocketAddr = rustix::net::getsockname(socket)
        .unwrap()
        .try_into()
        .unwrap();
    let packet = announcement(id, cookie, from, to);
    send_with(channel, &packet, token);
}

pub(super) fn announcement(id: u64, cookie: u64, from: SocketAddr, to: SocketAddr) -> Vec<u8> {
    let mut packet = vec![2];
    packet.extend(id.to_le_bytes());
    packet.extend(cookie.to_le_bytes());
    for addr in [from, to] {
        let SocketAddr::V4(addr) = addr else {
            panic!("IPv4 here")
        };
        packet.push(4);
        packet.extend(addr.ip().octets());
        packet.extend(addr.port().to_le_bytes());
    }
    packet.extend(PROPOSAL);
    packet
}

pub(super) fn send_with(channel: &OwnedFd, packet: &[u8], passed: Option<BorrowedFd<'_>>) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds: Vec<_> = passed.into_iter().collect();
    if !fds.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let _ = rustix::net::sendmsg(channel, &[IoSlice::new(packet)], &mut control, flags);
}

fn bound() -> OwnedFd {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &loopback(0)).unwrap();
    socket
}

/// Whether the other side has closed it.
fn is_ended(channel: &OwnedFd) -> bool {
    loop {
        match rustix::net::recv(channel, &mut [0; 64][..], RecvFlags::DONTWAIT) {
            Ok((_, 0)) | Err(rustix::io::Errno::CONNRESET) => return true,
            Ok(_) => {}
            Err(_) => return false,
        }
    }
}

fn open_descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}
