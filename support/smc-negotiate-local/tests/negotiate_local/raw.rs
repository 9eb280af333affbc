//! Channels and mailboxes of a client that violates the protocol.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::Ordering;

use rustix::net::RecvFlags;
use smc_core::mem::Region;
use smc_ipc::netns;
use smc_testkit::unix::{connect_to, send_if_possible};

use super::World;

/// A channel as a client opens it, before the first packet.
pub(super) struct RawChannel(OwnedFd);

impl RawChannel {
    /// To the one listener of a directory.
    pub(super) fn to(world: &World) -> Self {
        let mut names = world.names().into_iter();
        let name = names.find(|name| name.starts_with("l-")).unwrap();
        Self::at(&world.dir.path.join(name))
    }

    pub(super) fn at(path: &Path) -> Self {
        Self(connect_to(path))
    }

    /// Sends HELLO with this file.
    pub(super) fn send_hello(self, file: Option<BorrowedFd<'_>>) -> Self {
        self.send(&hello(), file);
        self
    }

    /// Sends a packet, if there is space for it and the channel is open.
    pub(super) fn send(&self, packet: &[u8], passed: Option<BorrowedFd<'_>>) {
        let passed: Vec<_> = passed.into_iter().collect();
        send_if_possible(&self.0, packet, &passed);
    }

    /// What the listener has sent, in whole packets.
    pub(super) fn received(&self) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        let mut buf = [0; 64];
        while let Ok((len @ 1.., _)) = rustix::net::recv(&self.0, &mut buf[..], RecvFlags::DONTWAIT)
        {
            all.push(buf[..len].to_vec());
        }
        all
    }

    /// Whether the listener has closed it.
    pub(super) fn is_ended(&self) -> bool {
        loop {
            match rustix::net::recv(&self.0, &mut [0; 64][..], RecvFlags::DONTWAIT) {
                Ok((_, 0)) | Err(rustix::io::Errno::CONNRESET) => return true,
                Ok(_) => {}
                Err(_) => return false,
            }
        }
    }

    /// Waits until the listener has closed it.
    pub(super) async fn until_ended(&self, world: &World) {
        while !self.is_ended() {
            world.pause().await;
        }
    }
}

/// HELLO from this thread's network namespace.
pub(super) fn hello() -> Vec<u8> {
    [
        &b"\x01SMCL\x04"[..],
        &netns::current().unwrap().to_le_bytes(),
    ]
    .concat()
}

impl From<OwnedFd> for RawChannel {
    fn from(socket: OwnedFd) -> Self {
        Self(socket)
    }
}

impl AsFd for RawChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// NOTIFY for a slot.
pub(super) fn notify(slot: u64) -> Vec<u8> {
    [&[2][..], &slot.to_le_bytes()].concat()
}

/// A mailbox that anything can be written on.
pub(super) struct RawMailbox {
    region: Region,
    file: OwnedFd,
}

impl RawMailbox {
    pub(super) fn new() -> Self {
        let (region, file) = Region::shared("smc-mailbox", LEN).unwrap();
        Self { region, file }
    }

    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Announces a connection as a client does.
    pub(super) fn announce(
        &self,
        slot: usize,
        cookie: u64,
        from: SocketAddr,
        to: SocketAddr,
        message: &[u8],
    ) {
        let at = slot_at(slot);
        let write = |offset, bytes: &[u8]| self.region.copy_in(at + offset, bytes).unwrap();
        write(128, &cookie.to_ne_bytes());
        write(136, &address(from));
        write(160, &address(to));
        write(192, message);
        self.set(at + 16, message.len() as u64);
        self.set(at, 1 << 8 | OFFERED);
        self.insert(from.port(), 0, slot as u64);
    }

    /// Sets one of the eight index positions of a port to a slot.
    pub(super) fn insert(&self, port: u16, probe: usize, slot: u64) {
        let place = (usize::from(port) + probe) % 8192;
        self.set(place * 8, u64::from(port) << 32 | (slot + 1));
    }

    pub(super) fn set(&self, at: usize, value: u64) {
        self.region.store(at, value, Ordering::SeqCst).unwrap();
    }

    pub(super) fn word(&self, at: usize) -> u64 {
        self.region.word(at).unwrap().load(Ordering::SeqCst)
    }

    /// The state of an offer.
    pub(super) fn state(&self, slot: usize) -> u64 {
        self.word(slot_at(slot)) & 0xff
    }

    /// Writes the same byte everywhere.
    pub(super) fn scribble(&self, byte: u8) {
        self.region.copy_in(0, &vec![byte; LEN]).unwrap();
    }
}

/// Placement a slot begins.
pub(super) fn slot_at(slot: usize) -> usize {
    0x10000 + slot * 2048
}

fn address(addr: SocketAddr) -> Vec<u8> {
    let SocketAddr::V4(addr) = addr else {
        panic!("IPv4 here")
    };
    let port = addr.port().to_ne_bytes();
    let ip = addr.ip().to_ipv6_mapped().octets();
    [&[4, 0][..], &port, &ip, &[0; 4]].concat()
}

pub(super) const OFFERED: u64 = 1;
pub(super) const TAKEN: u64 = 2;
pub(super) const CLAIMED: u64 = 4;
pub(super) const CANCELLED: u64 = 3;

/// Length of a mailbox.
pub(super) const LEN: usize = 0x10000 + 1024 * 2048 + 64;
