//! Layout of the shared memory.
//!
//! ```text
//! 0x0000  header: magic, version, length, fabric id (two words), slots, granules, flags, heartbeat
//! 0x1000  slots, one per device that can be on the fabric:
//!    +0x000   state        generation << 32 | phase
//!    +0x008   GID, two words
//!    +0x018   heartbeat    incremented by a device whose end the fabric cannot detect
//!    +0x020   port         the number that the fabric uses for the device
//!    +0x040   sleeping     owner: 1 before it parks, 2 when awake; notifier: 1 to 0, then notifies
//!    +0x048   changed      any device: 1 when a peer has joined or left
//!    +0x080   mailbox, summary: a bit per slot with events
//!    +0x100   mailbox, a word per sending slot, a bit per kind of event
//!    ..       ready, summary: a bit per word of `ready`
//!    ..       ready, a bit per granule: the buffer that begins there was written
//! ..      granules, two lines of 64 bytes per 16 KiB of data, the second one for what the owner
//!         writes while the writer uses the first one:
//!    +0       claim        the owner of the granule
//!    +8       writer       the device that may write the buffer that begins here
//!    +16      users        its current user, and the count of uses
//!    +24      token        of the buffer that begins here; 0 if there is none
//!    +32      write lock   the device that moves data there now, without a count; 0 if free
//!    +64      armed        owner: 1 to request a signal; notifier: 0 when it sets `ready`
//! ..      data: the granules themselves, from the start of a page
//! ```
//!
//! The offsets follow from the length of the memory and the number of slots alone, so a corrupted
//! header leads to an error and never to another offset.

use smc_core::device::DeviceError;

use crate::region::WORDS_LEN;

/// Offsets in bytes from the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) len: usize,
    pub(crate) slots: u16,
    pub(crate) granules: u32,
    slot_len: usize,
    granules_at: usize,
    data_at: usize,
}

impl Layout {
    /// For memory of `len` bytes with `slots` devices.
    pub(crate) fn new(len: usize, slots: u16) -> Result<Self, DeviceError> {
        if slots == 0 || slots > MAX_SLOTS {
            return Err(DeviceError::Invalid("number of devices of a fabric"));
        }
        let most = (len / (GRANULE + GRANULE_LINE)).min(MAX_GRANULES);
        let mut granules = u32::try_from(most).map_err(|_| TOO_SMALL)?;
        loop {
            if granules < MIN_GRANULES {
                return Err(TOO_SMALL);
            }
            let layout = Self::with_granules(len, slots, granules);
            let end = layout.data_at + granules as usize * GRANULE;
            if end <= len {
                return Ok(layout);
            }
            let excess = (end - len).div_ceil(GRANULE);
            granules = granules.saturating_sub(u32::try_from(excess).unwrap_or(u32::MAX));
        }
    }

    fn with_granules(len: usize, slots: u16, granules: u32) -> Self {
        let words = words(granules);
        let slot_len = MAILBOX + 8 * (usize::from(slots) + words.div_ceil(64) + words);
        let slot_len = slot_len.next_multiple_of(64);
        let granules_at = SLOTS_AT + usize::from(slots) * slot_len;
        let data_at = granules_at + granules as usize * GRANULE_LINE;
        Self {
            len,
            slots,
            granules,
            slot_len,
            granules_at,
            data_at: data_at.next_multiple_of(PAGE),
        }
    }

    /// A field of a slot, which must be below the number of slots.
    pub(crate) fn slot(&self, slot: u16, field: usize) -> usize {
        debug_assert!(slot < self.slots);
        SLOTS_AT + usize::from(slot) * self.slot_len + field
    }

    /// The mailbox word for events from one slot to another.
    pub(crate) fn mailbox(&self, to: u16, from: u16) -> usize {
        self.slot(to, MAILBOX + 8 * usize::from(from))
    }

    /// The summary of the ready buffers, and their bits.
    pub(crate) fn ready(&self, slot: u16) -> (usize, usize) {
        let summary = self.slot(slot, MAILBOX + 8 * usize::from(self.slots));
        (summary, summary + 8 * words(self.granules).div_ceil(64))
    }

    /// The words of a granule, which must be below the number of granules.
    #[inline]
    pub(crate) fn granule(&self, granule: u32) -> usize {
        debug_assert!(granule < self.granules);
        self.granules_at + granule as usize * GRANULE_LINE
    }

    /// The bytes of a granule.
    pub(crate) fn data(&self, granule: u32) -> usize {
        self.data_at + granule as usize * GRANULE
    }
}

fn words(granules: u32) -> usize {
    (granules as usize).div_ceil(64)
}

/// The smallest buffer, and the unit of allocation.
pub(crate) const GRANULE: usize = 1 << 14;

/// Words of the header.
pub(crate) mod header {
    pub(crate) const MAGIC: usize = 0x00;
    pub(crate) const VERSION: usize = 0x08;
    pub(crate) const LEN: usize = 0x10;
    pub(crate) const FABRIC_HI: usize = 0x18;
    pub(crate) const FABRIC_LO: usize = 0x20;
    pub(crate) const SLOTS: usize = 0x28;
    pub(crate) const GRANULES: usize = 0x30;
    pub(crate) const FLAGS: usize = 0x38;
    pub(crate) const HEARTBEAT: usize = 0x40;
}

/// Words of a slot.
pub(crate) mod slot {
    pub(crate) const STATE: usize = 0x00;
    pub(crate) const GID_HI: usize = 0x08;
    pub(crate) const GID_LO: usize = 0x10;
    pub(crate) const HEARTBEAT: usize = 0x18;
    pub(crate) const PORT: usize = 0x20;
    pub(crate) const SLEEPING: usize = 0x40;
    pub(crate) const PEERS_CHANGED: usize = 0x48;
    pub(crate) const MAILBOX_SUMMARY: usize = 0x80;
}

/// Words of a granule, by their number.
pub(crate) mod granule {
    pub(crate) const CLAIM: usize = 0;
    pub(crate) const WRITER: usize = 1;
    pub(crate) const USERS: usize = 2;
    pub(crate) const TOKEN: usize = 3;
    pub(crate) const WRITE_LOCK: usize = 4;
    /// The first one of the second line.
    pub(crate) const ARMED: usize = 8;
}

const MAILBOX: usize = 0x100;
const SLOTS_AT: usize = 0x1000;
const GRANULE_LINE: usize = WORDS_LEN;
const PAGE: usize = 0x1000;

/// The number of bits of the mailbox summary.
pub(crate) const MAX_SLOTS: u16 = 1024;
/// A token has 24 bits for the granule index.
pub(crate) const MAX_GRANULES: usize = 1 << 24;
/// With fewer buffers a fabric is of no use.
const MIN_GRANULES: u32 = 8;
const TOO_SMALL: DeviceError = DeviceError::Invalid("the fabric's memory is too small");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_overlap_and_fit() {
        for len in [1 << 20, 3_000_000, 64 << 20, (1 << 30) + 4096] {
            for slots in [1, 2, 63, 64, 65, 1024] {
                let Ok(layout) = Layout::new(len, slots) else {
                    assert!(len < 4 << 20, "{len} bytes are enough for {slots} slots");
                    continue;
                };
                let last = layout.ready(slots - 1).1 + 8 * words(layout.granules);
                assert!(last <= layout.granule(0), "{layout:?}");
                let end = layout.granule(layout.granules - 1) + GRANULE_LINE;
                assert!(end <= layout.data(0));
                assert_eq!(layout.data(0) % PAGE, 0);
                let end = layout.data(layout.granules - 1) + GRANULE;
                assert!(end <= len);
                assert!(len - end < 2 * GRANULE + PAGE + len / 64, "{layout:?}");
            }
        }
    }

    #[test]
    fn little_memory_is_refused() {
        for len in [0, 4096, 1 << 16, 100_000] {
            assert_eq!(Layout::new(len, 4), Err(TOO_SMALL), "{len}");
        }
        assert!(Layout::new(1 << 20, 0).is_err());
        assert!(Layout::new(1 << 20, MAX_SLOTS + 1).is_err());
    }
}
