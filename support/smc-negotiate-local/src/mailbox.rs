//! The memory in which a client announces its connections to one listener.
//!
//! The client makes the mailbox and passes it with HELLO. Each connection has one *slot* of the
//! mailbox. The index finds the slot by the client's port:
//!
//! ```text
//! 0x00000  index   8192 words: port << 32 | number of the slot + 1, at one of eight positions from
//!          port
//! 0x10000  slots, 2 KiB each:
//!    +0    state             generation << 8 | state; the client offers, the listener takes
//!    +8    listener waits    listener: 1 before it waits; client: 0 when it notifies
//!    +16   client written    bytes that the client has written; the top bit: no more will come
//!    +24   early             length of the expected ACCEPT | that of the early CONFIRM << 8, or 0
//!    +64   client waits      client: 1 before it waits; listener: 0 when it notifies
//!    +72   listener written  bytes that the listener has written; the top bit: no more will come
//!    +80   refusal           why the listener refused the offer, or 0
//!    +128  cookie of the client's socket, client address 24, server address 24
//!    +192  the client's messages, 1088 bytes
//!    +1280 the ACCEPT that the client expects, 128 bytes, and its CONFIRM in that case, 128 bytes
//!    +1536 the listener's, 512 bytes
//! 0x210000 closed     1 if the listener takes no more offers
//! 0x210008 heartbeat  the listener increments it while it works on any connection
//! ```
//!
//! Either side can write any bytes anywhere. Each side uses only copies, within bounds that it
//! knows by itself. A side that writes wrong bytes affects its own connections only. A slot is
//! reused for the next connection only after the listener has closed its direction.

mod slot;

pub(super) use slot::{
    Announcement, Direction, Generation, MAX_ANSWER, MAX_EARLY, MAX_PROPOSAL, OfferState, Slot,
};

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use smc_core::mem::sync::{AtomicU64, Ordering};
use smc_core::mem::{MemoryError, Region};
use smc_core::quota::Permit;

use slot::SLOT_LEN;

/// The mailbox of one channel, as mapped by either side.
#[derive(Clone, Debug)]
pub(super) struct Mailbox(Region);

impl Mailbox {
    /// A new mailbox, and the file to be passed. The permit is that of the mapping.
    pub(super) fn create(permit: Permit) -> io::Result<(Self, OwnedFd)> {
        let (region, file) = Region::shared("smc-mailbox", LEN)?;
        Ok((Self(region.leased(permit)), file))
    }

    /// A mailbox that a client has passed. The permit is that of the mapping.
    pub(super) fn adopt(file: BorrowedFd<'_>, permit: Permit) -> Result<Self, MemoryError> {
        let region = Region::adopt(file, LEN)?;
        Ok(Self(region.leased(permit)))
    }

    /// The same mailbox, if the other side is of this user, which is not the own one.
    pub(super) fn shared_with(self, user: u32) -> Self {
        Self(self.0.shared_with(user, None))
    }

    /// The slot of this number; `None` from [`SLOTS`] on.
    pub(super) fn slot(&self, number: u32) -> Option<Slot> {
        if number >= SLOTS {
            return None;
        }
        let at = INDEX_LEN + number as usize * SLOT_LEN;
        let region = self.0.part(at, SLOT_LEN).ok()?;
        Some(Slot { region, number })
    }

    /// Client: adds a slot to the index under a port. False if all positions are in use.
    pub(super) fn insert(&self, port: u16, number: u32) -> bool {
        let word = entry(port, number);
        index_positions(port).any(|position| {
            let word_at = self.index(position);
            word_at.load(Ordering::Relaxed) == 0 && {
                word_at.store(word, Ordering::Release);
                true
            }
        })
    }

    /// Client: removes the slot from the index.
    pub(super) fn remove(&self, port: u16, number: u32) {
        let word = entry(port, number);
        for position in index_positions(port) {
            let word_at = self.index(position);
            if word_at.load(Ordering::Relaxed) == word {
                word_at.store(0, Ordering::Release);
            }
        }
    }

    /// Listener: the slots in the index under a port.
    pub(super) fn find(&self, port: u16) -> impl Iterator<Item = Slot> {
        (0..PROBES).filter_map(move |probe| {
            let word = self
                .index(index_position(port, probe))
                .load(Ordering::Acquire);
            let number = u32::try_from(word & 0xffff_ffff).ok()?.checked_sub(1)?;
            (word >> 32 == u64::from(port)).then(|| self.slot(number))?
        })
    }

    /// Listener: no offer will be taken any more.
    pub(super) fn close(&self) {
        self.word(CLOSED).store(1, Ordering::Release);
    }

    /// Whether the listener takes no more offers.
    pub(super) fn is_closed(&self) -> bool {
        self.word(CLOSED).load(Ordering::Acquire) != 0
    }

    /// Listener: shows that it works.
    pub(super) fn heartbeat(&self) {
        self.word(HEARTBEAT).fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn heartbeats(&self) -> u64 {
        self.word(HEARTBEAT).load(Ordering::Relaxed)
    }

    fn index(&self, position: usize) -> &AtomicU64 {
        self.word(position * 8)
    }

    /// A word at an offset within the mailbox.
    pub(super) fn word(&self, at: usize) -> &AtomicU64 {
        let word = self.0.word(at);
        word.expect("words are within a mailbox, and mailboxes have one length")
    }
}

fn entry(port: u16, number: u32) -> u64 {
    u64::from(port) << 32 | u64::from(number + 1)
}

fn index_positions(port: u16) -> impl Iterator<Item = usize> {
    (0..PROBES).map(move |probe| index_position(port, probe))
}

fn index_position(port: u16, probe: u32) -> usize {
    (usize::from(port) + probe as usize) % INDEX
}

/// Slots of a mailbox: pending connections of a client with one listener.
pub(super) const SLOTS: u32 = 1024;

const INDEX: usize = 8192;
const INDEX_LEN: usize = INDEX * 8;
/// Positions of the index that are read for a port.
pub(super) const PROBES: u32 = 8;

const CLOSED: usize = INDEX_LEN + SLOTS as usize * SLOT_LEN;
const HEARTBEAT: usize = CLOSED + 8;
/// Length of a mailbox.
pub(super) const LEN: usize = CLOSED + 64;

/// The permit of a mailbox between processes of the own user.
#[cfg(test)]
pub(super) fn own_permit() -> Permit {
    let user = rustix::process::geteuid().as_raw();
    smc_core::quota::mappings::take(user).expect("tests have few mappings")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_index_refuses_a_slot() {
        let (client, _file) = Mailbox::create(own_permit()).unwrap();
        assert!((0..8).all(|number| client.insert(100, number)));
        assert!(!client.insert(100, 8));
        client.remove(100, 4);
        assert!(client.insert(100, 8));
    }
}
