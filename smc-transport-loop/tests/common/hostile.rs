//! The protocol between loop devices by hand, for a peer that violates it.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use rustix::event::{EventfdFlags, eventfd};
use smc_testkit::unix::{connect_to, is_closed, listen_at, sealed, send};
use smc_wire::types::{DmbToken, Gid};

use super::{LEN, socket_path};

pub const SIGNAL_PAGE_LEN: u64 = 0x2000 + 16_384 * 64;

/// A peer in this process.
pub struct HostilePeer {
    pub gid: Gid,
    pub channel: OwnedFd,
    pub signal_page: File,
    pub listener: OwnedFd,
}

impl HostilePeer {
    /// Listens like a device and connects to the victim, but does not send HELLO.
    pub fn silent(dir: &Path, victim: Gid, number: u64) -> Self {
        let gid = Gid::new(number, 0x2222);
        Self {
            gid,
            listener: listen_at(socket_path(dir, gid)),
            channel: connect_to(socket_path(dir, victim)),
            signal_page: sealed(SIGNAL_PAGE_LEN),
        }
    }

    /// The same, and sends HELLO.
    pub fn connect(dir: &Path, victim: Gid, number: u64) -> Self {
        let peer = Self::silent(dir, victim, number);
        send_hello(&peer.channel, peer.gid, &peer.signal_page, doorbell());
        peer
    }

    /// Offers memory in a slot, with a token of its own.
    pub fn offer(&self, index: u32, len: u64, file: impl AsFd) -> DmbToken {
        let token = self.announce(index);
        send(&self.channel, &message(2, index, 5, len), &[file.as_fd()]);
        token
    }

    /// Offers memory of the usual length.
    pub fn offer_usual(&self, index: u32, file: impl AsFd) -> DmbToken {
        self.offer(index, LEN as u64, file)
    }

    /// Announces memory in a slot.
    pub fn announce(&self, index: u32) -> DmbToken {
        let token = DmbToken(self.gid.hi().0 << 32 | u64::from(index) | 1 << 31);
        let slot = 0x2000 + u64::from(index) * 64;
        for (at, word) in [(16, 5), (24, token.0), (32, 5)] {
            self.signal_page
                .write_all_at(&u64::to_ne_bytes(word), slot + at)
                .unwrap();
        }
        token
    }

    /// Bytes of the signal page that are resident.
    pub fn resident(&self) -> u64 {
        resident(&self.signal_page)
    }

    /// Whether the victim has closed the channel.
    pub fn is_closed(&self) -> bool {
        is_closed(&self.channel)
    }
}

/// Bytes of a memory file that are resident.
pub fn resident(file: &File) -> u64 {
    file.metadata().unwrap().blocks() * 512
}

pub fn message(kind: u8, index: u32, first: u64, second: u64) -> Vec<u8> {
    let mut bytes = b"SMCL\x01".to_vec();
    bytes.extend([kind, 0, 0]);
    bytes.extend(index.to_ne_bytes());
    bytes.extend([0; 4]);
    bytes.extend(first.to_ne_bytes());
    bytes.extend(second.to_ne_bytes());
    bytes
}

/// MEMORY of the usual length, for which no descriptor comes along.
pub fn memory(index: u32) -> Vec<u8> {
    message(2, index, 5, LEN as u64)
}

pub fn hello(gid: Gid) -> Vec<u8> {
    message(1, 16_384, gid.hi().0, gid.lo().0)
}

pub fn send_hello(channel: impl AsFd, gid: Gid, signal_page: impl AsFd, doorbell: impl AsFd) {
    let descriptors: [BorrowedFd<'_>; 2] = [signal_page.as_fd(), doorbell.as_fd()];
    send(channel, &hello(gid), &descriptors);
}

pub fn doorbell() -> OwnedFd {
    eventfd(0, EventfdFlags::NONBLOCK).unwrap()
}
