//! Slots: the devices of the fabric, their sleep states, signals and events.

use smc_core::device::DeviceError;
use smc_core::mem::sync::{AtomicU64, Ordering, fence};
use smc_core::mem::{BitSet, take_bits};
use smc_wire::types::Gid;

use super::FabricMemory;
use super::layout::slot;

/// A device on the fabric: its slot, and the generation of the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tag {
    pub(crate) slot: u16,
    pub(crate) generation: u32,
}

impl Tag {
    /// Bits 16 and up of a word; the lower ones are left to the word.
    pub(super) fn bits(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.slot) << 16
    }

    pub(super) fn of_bits(bits: u64) -> Self {
        let [_, _, b2, b3, b4, b5, b6, b7] = bits.to_le_bytes();
        Self {
            slot: u16::from_le_bytes([b2, b3]),
            generation: u32::from_le_bytes([b4, b5, b6, b7]),
        }
    }
}

/// Life cycle of the device of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The device initialises its slot; peers must not use it yet.
    Joining = 1,
    Live = 2,
    /// The device is gone for its peers, but its process still uses buffers of it.
    Leaving = 3,
    /// The buffers of the device may be reclaimed.
    Dead = 4,
}

/// Whether the driver of a device sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sleep {
    /// It requests a notification.
    Asleep,
    /// It was asleep, and a peer has notified it.
    Notified,
    /// It polls by itself.
    Awake,
}

impl FabricMemory {
    /// Takes the slot that the fabric has assigned, whatever device had it before. `port` is the
    /// number that the fabric uses for the device; `has_heartbeat`, whether it sends heartbeats,
    /// see [`FabricMemory::bump_heartbeat`].
    pub(crate) fn join(
        &self,
        slot: u16,
        gid: Gid,
        port: u16,
        has_heartbeat: bool,
    ) -> Result<Tag, DeviceError> {
        if !self.has_slot(slot) {
            return Err(DeviceError::Invalid(
                "the fabric has no slot for this device",
            ));
        }
        let word = |field| self.slot_word(slot, field);
        let old = word(slot::STATE).load(Ordering::SeqCst);
        let generation = match Tag::of_bits(old).generation.wrapping_add(1) {
            0 => 1,
            next => next,
        };
        let tag = Tag { slot, generation };
        self.set_phase(tag, Phase::Joining);
        word(slot::SLEEPING).store(AWAKE, Ordering::SeqCst);
        word(slot::PEERS_CHANGED).store(0, Ordering::SeqCst);
        // Not zero from the start: the process may be killed before the first heartbeat.
        word(slot::HEARTBEAT).store(has_heartbeat.into(), Ordering::SeqCst);
        self.take_ready(slot, usize::MAX, |_| {});
        self.take_events(slot, |_, _| {});
        word(slot::PORT).store(port.into(), Ordering::Relaxed);
        word(slot::GID_HI).store(gid.hi().0, Ordering::Relaxed);
        word(slot::GID_LO).store(gid.lo().0, Ordering::Relaxed);
        self.set_phase(tag, Phase::Live);
        // Of two devices with the same GID, at least one sees the other.
        fence(Ordering::SeqCst);
        if self.others(tag).any(|other| self.gid(other) == Some(gid)) {
            self.set_phase(tag, Phase::Dead);
            return Err(DeviceError::NotPermitted(
                "another device of the fabric has this GID".into(),
            ));
        }
        Ok(tag)
    }

    /// Sets the phase of the own device.
    pub(crate) fn set_phase(&self, tag: Tag, phase: Phase) {
        self.slot_word(tag.slot, slot::STATE)
            .store(state(tag, phase), Ordering::SeqCst);
    }

    /// Marks a device as dead. False if it was marked before, another device has the slot, or there
    /// is no such slot.
    pub(crate) fn mark_dead(&self, tag: Tag) -> bool {
        if !self.has_slot(tag.slot) {
            return false;
        }
        let word = self.slot_word(tag.slot, slot::STATE);
        let alive = [Phase::Joining, Phase::Live, Phase::Leaving].map(|phase| state(tag, phase));
        let dead = |now| alive.contains(&now).then(|| state(tag, Phase::Dead));
        word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, dead)
            .is_ok()
    }

    /// The device that has a slot, and its phase; `None` for an empty slot or an invalid word.
    pub(crate) fn device_of_slot(&self, slot: u16) -> Option<(Tag, Phase)> {
        let state = self.slot_word(slot, slot::STATE).load(Ordering::SeqCst);
        let tag = Tag {
            slot,
            generation: Tag::of_bits(state).generation,
        };
        let phases = [Phase::Joining, Phase::Live, Phase::Leaving, Phase::Dead];
        let phase = phases.into_iter().find(|it| *it as u64 == state & PHASE)?;
        Some((tag, phase))
    }

    /// Whether the fabric has a slot with this number, which may come from a peer.
    #[inline]
    pub(crate) fn has_slot(&self, slot: u16) -> bool {
        slot < self.slots()
    }

    /// Whether peers may use the device.
    #[inline]
    pub(crate) fn is_live(&self, tag: Tag) -> bool {
        self.has_slot(tag.slot)
            && self.slot_word(tag.slot, slot::STATE).load(Ordering::SeqCst)
                == state(tag, Phase::Live)
    }

    /// Whether the device is dead, so that no use of its buffers can begin.
    pub(crate) fn is_dead(&self, tag: Tag) -> bool {
        let has_slot = self.has_slot(tag.slot);
        let found = has_slot.then(|| self.device_of_slot(tag.slot)).flatten();
        found.is_none_or(|(now, phase)| now != tag || phase == Phase::Dead)
    }

    /// The GID of a device, if it is live.
    pub(crate) fn gid(&self, tag: Tag) -> Option<Gid> {
        if !self.is_live(tag) {
            return None;
        }
        let gid = self.slot_gid(tag.slot);
        fence(Ordering::Acquire);
        self.is_live(tag).then_some(gid)
    }

    /// Whether this is the GID of a device that was live a moment ago. The words of a slot change
    /// with its device only.
    #[inline]
    pub(crate) fn has_gid(&self, tag: Tag, gid: Gid) -> bool {
        self.slot_gid(tag.slot) == gid
    }

    /// The GID in a slot, whatever its state.
    #[inline]
    fn slot_gid(&self, slot: u16) -> Gid {
        let half = |at| self.slot_word(slot, at).load(Ordering::Relaxed);
        Gid::new(half(slot::GID_HI), half(slot::GID_LO))
    }

    /// The number that the fabric uses for a device.
    pub(crate) fn port(&self, slot: u16) -> Option<u16> {
        let port = self.slot_word(slot, slot::PORT).load(Ordering::Relaxed);
        u16::try_from(port).ok()
    }

    /// The live device with a GID.
    pub(crate) fn by_gid(&self, gid: Gid) -> Option<Tag> {
        self.live().find(|tag| self.gid(*tag) == Some(gid))
    }

    /// All devices that are live.
    pub(crate) fn live(&self) -> impl Iterator<Item = Tag> {
        (0..self.slots()).filter_map(|slot| match self.device_of_slot(slot) {
            Some((tag, Phase::Live)) => Some(tag),
            _ => None,
        })
    }

    /// All other devices that are live.
    pub(crate) fn others(&self, tag: Tag) -> impl Iterator<Item = Tag> {
        self.live().filter(move |other| other.slot != tag.slot)
    }

    /// Owner: requests a notification from now on. The caller has to poll afterwards.
    pub(crate) fn sleep(&self, slot: u16) {
        self.slot_word(slot, slot::SLEEPING)
            .store(ASLEEP, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Owner: is awake and polls by itself.
    pub(crate) fn wake(&self, slot: u16) {
        self.slot_word(slot, slot::SLEEPING)
            .store(AWAKE, Ordering::Relaxed);
    }

    /// Owner: its sleep state.
    pub(crate) fn sleep_of(&self, slot: u16) -> Sleep {
        match self.slot_word(slot, slot::SLEEPING).load(Ordering::SeqCst) {
            ASLEEP => Sleep::Asleep,
            AWAKE => Sleep::Awake,
            _ => Sleep::Notified,
        }
    }

    /// Peer: whether the device has to be notified. After `true` the caller must notify it.
    pub(crate) fn must_notify(&self, slot: u16) -> bool {
        let word = self.slot_word(slot, slot::SLEEPING);
        word.compare_exchange(ASLEEP, NOTIFIED, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }

    /// Sets the flag of a device that its peers have changed.
    pub(crate) fn set_peers_changed(&self, slot: u16) {
        self.slot_word(slot, slot::PEERS_CHANGED)
            .store(1, Ordering::SeqCst);
    }

    /// Takes the flag that the peers have changed.
    pub(crate) fn take_peers_changed(&self, slot: u16) -> bool {
        take(self.slot_word(slot, slot::PEERS_CHANGED)) != 0
    }

    /// Marks a buffer of a device as written.
    pub(crate) fn set_ready(&self, slot: u16, granule: u32) {
        self.ready(slot).set(granule);
    }

    /// Passes buffers that were written since the last call to `each`, about so many. Returns
    /// whether there may be more.
    pub(crate) fn take_ready(&self, slot: u16, most: usize, each: impl FnMut(u32)) -> bool {
        self.ready(slot).take_some(most, each).more
    }

    fn ready(&self, slot: u16) -> BitSet<'_> {
        let (summary, bits) = self.layout.ready(slot);
        let bits = BitSet::new(&self.all, summary, bits, self.granules());
        bits.expect("offsets of the layout are inside of the memory and multiples of 8")
    }

    /// Posts events, as bits, to the mailbox of another device.
    pub(crate) fn post(&self, to: u16, from: u16, events: u64) {
        self.word(self.layout.mailbox(to, from))
            .fetch_or(events, Ordering::SeqCst);
        self.mailbox_summary(to, from / 64)
            .fetch_or(1 << (from % 64), Ordering::SeqCst);
    }

    /// Passes the contents of the mailbox to `each`: sending slot and events.
    pub(crate) fn take_events(&self, slot: u16, mut each: impl FnMut(u16, u64)) {
        for group in 0..self.slots().div_ceil(64) {
            for bit in take_bits(self.mailbox_summary(slot, group)) {
                let from = group * 64 + u16::try_from(bit).expect("a word has 64 bits");
                if self.has_slot(from) {
                    each(from, take(self.word(self.layout.mailbox(slot, from))));
                }
            }
        }
    }

    /// Increments the heartbeat of a device.
    pub(crate) fn bump_heartbeat(&self, slot: u16) {
        self.slot_word(slot, slot::HEARTBEAT)
            .fetch_add(1, Ordering::Relaxed);
    }

    /// The heartbeat of a device.
    pub(crate) fn heartbeat_of(&self, slot: u16) -> u64 {
        self.slot_word(slot, slot::HEARTBEAT)
            .load(Ordering::Relaxed)
    }

    fn mailbox_summary(&self, slot: u16, group: u16) -> &AtomicU64 {
        self.slot_word(slot, slot::MAILBOX_SUMMARY + 8 * usize::from(group))
    }

    fn slot_word(&self, slot: u16, field: usize) -> &AtomicU64 {
        self.word(self.layout.slot(slot, field))
    }
}

fn state(tag: Tag, phase: Phase) -> u64 {
    u64::from(tag.generation) << 32 | phase as u64
}

/// Takes the content of a word; most of the time there is none.
fn take(word: &AtomicU64) -> u64 {
    match word.load(Ordering::SeqCst) {
        0 => 0,
        _ => word.swap(0, Ordering::SeqCst),
    }
}

const PHASE: u64 = 0xffff_ffff;

/// Values of `sleeping`.
const NOTIFIED: u64 = 0;
const ASLEEP: u64 = 1;
const AWAKE: u64 = 2;
