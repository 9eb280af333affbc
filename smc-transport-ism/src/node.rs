//! The state of a device on its fabric. Buffers and attachments have references to it.

use std::io::IoSlice;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use hashbrown::HashMap;
use smc_core::device::{
    DeviceError, DmbCount, Event, Limits, MemoryAccount, PeerEvent, Signal, SubmitError,
};
use smc_core::mem::sync::{AtomicU32, Ordering};
use smc_core::mutex::Mutex;
use smc_wire::types::{DmbToken, Gid};

use crate::fabric::{ConnectError, FabricOps};
use crate::owned_buffers::{IsmDmb, Lease, OwnedBuffers};
use crate::shared::{FabricMemory, GRANULE, Phase, Sleep, Tag, Target};

/// A device on its fabric.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) fabric: Arc<dyn FabricOps>,
    /// The memory of `fabric`, stored here to avoid a virtual call on the data path.
    pub(crate) memory: Arc<FabricMemory>,
    pub(crate) tag: Tag,
    pub(crate) gid: Gid,
    pub(crate) limits: Limits,
    pub(crate) dmbs: Arc<DmbCount>,
    pub(crate) owned: OwnedBuffers,
    pub(crate) account: MemoryAccount,
    pub(crate) peers: Mutex<Peers>,
    /// Where the last sweep has ended.
    swept: AtomicU32,
    /// The error with which the device has failed.
    gone: OnceLock<DeviceError>,
}

impl Node {
    /// Takes the slot that the fabric has assigned.
    pub(crate) fn join(
        fabric: Arc<dyn FabricOps>,
        slot: u16,
        gid: Gid,
        limits: Limits,
    ) -> Result<Arc<Self>, DeviceError> {
        let memory = fabric.memory();
        let granules = memory.granules() as usize;
        // Halved until the memory has space for two.
        let mut longest = limits.max_dmb_len;
        while longest > GRANULE && longest * 2 > granules * GRANULE {
            longest /= 2;
        }
        let tag = memory.join(slot, gid, fabric.port(), fabric.has_heartbeat())?;
        fabric.joined(tag);
        let node = Arc::new(Self {
            memory: Arc::clone(fabric.memory()),
            fabric,
            tag,
            gid,
            limits: Limits::new(limits.max_dmbs, longest),
            dmbs: DmbCount::new(limits.max_dmbs),
            owned: OwnedBuffers::default(),
            account: MemoryAccount::default(),
            peers: Mutex::default(),
            swept: AtomicU32::new(0),
            gone: OnceLock::new(),
        });
        // The previous device of the slot is gone; its peers may not have detected that.
        node.notify_others();
        Ok(node)
    }

    /// Ensures that the peer with a GID is live, and that its end is detected.
    pub(crate) fn connect_peer(&self, gid: Gid) -> Result<Tag, DeviceError> {
        self.check()?;
        let unreachable = |why| DeviceError::Unreachable { peer: gid, why };
        let Some(peer) = self.memory.by_gid(gid) else {
            return Err(unreachable("no such device on the fabric"));
        };
        let connected = self.fabric.connect_peer(peer);
        connected.map_err(|error| match error {
            ConnectError::Dead => {
                self.mark_dead(peer);
                unreachable("its process has ended")
            }
            ConnectError::Busy => unreachable("it does not accept connections"),
            ConnectError::Failed(error) => error,
        })?;
        let inserted = self.peers.lock().insert(peer, gid, self.memory.slots());
        match inserted {
            Inserted::Known => {}
            Inserted::Replaced => {
                self.memory.set_peers_changed(self.tag.slot);
                self.notify(self.tag);
            }
            Inserted::Full => return Err(unreachable("too many devices of the fabric have ended")),
        }
        // It may have left between the look-up and the watch.
        if self.memory.is_live(peer) {
            Ok(peer)
        } else {
            Err(unreachable("it has just left"))
        }
    }

    /// Makes a buffer for one writer.
    pub(crate) fn register(self: &Arc<Self>, peer: Gid, len: usize) -> Result<IsmDmb, DeviceError> {
        let order = order_of(len).filter(|_| len <= self.limits.max_dmb_len);
        let order = order.ok_or(DeviceError::Invalid("length of a buffer"))?;
        let writer = self.connect_peer(peer)?;
        let permit = self.dmbs.take()?;
        let memory = &*self.memory;
        self.owned.release_unused(self);
        let charge = self.account.charge(GRANULE << order)?;
        let run = memory.allocate(self.tag, order).or_else(|| {
            let freed = self.sweep();
            (freed > 0).then(|| memory.allocate(self.tag, order))?
        });
        let run = run.ok_or(match order {
            0 => DeviceError::Exhausted,
            _ => DeviceError::NoMemory,
        })?;
        let lease = Arc::new(());
        let offered = memory.offer(run, writer).and_then(|token| {
            let region = memory.region_of(run, Lease::new(&lease, self));
            Ok((token, region.ok_or(DeviceError::NoMemory)?))
        });
        let (token, region) = offered.inspect_err(|_| memory.release(self.tag, run))?;
        self.owned.insert(run, token);
        Ok(IsmDmb {
            token,
            run,
            region,
            lease: Some(lease),
            charge,
            node: Arc::clone(self),
            _permit: permit,
        })
    }

    /// Reclaims memory of dead devices, from where the last call has ended. Returns the number of
    /// granules.
    fn sweep(&self) -> u32 {
        let granules = sweep_range(self.swept.load(Ordering::Relaxed), self.memory.granules());
        self.swept.store(granules.end, Ordering::Relaxed);
        let is_known_dead = |device| self.fabric.is_dead(device);
        self.memory.sweep(granules, self.tag, is_known_dead)
    }

    /// Writes into a buffer of `peer`.
    pub(crate) fn move_data(
        &self,
        peer: Gid,
        token: DmbToken,
        at: u32,
        data: &[IoSlice<'_>],
        signal: Signal,
    ) -> Result<(), SubmitError> {
        if let Some(error) = self.gone.get() {
            return Err(error.clone().into());
        }
        let memory = &*self.memory;
        let moved = memory.with_access(token, self.tag, |target, wake_flag| {
            if !memory.has_gid(target.owner, peer) {
                return Err(SubmitError::UnknownToken);
            }
            memory.write(target.run, at, data)?;
            if signal == Signal::Yes && wake_flag.must_wake() {
                self.signal_owner(target);
            }
            Ok(())
        });
        if moved == Err(SubmitError::UnknownToken) {
            self.signal_withdrawn(token);
        }
        moved
    }

    /// The owner of a withdrawn buffer may wait for earlier moves.
    #[cold]
    fn signal_withdrawn(&self, token: DmbToken) {
        if let Some(target) = self.memory.withdrawn(token, self.tag) {
            self.signal_use_ended(target);
        }
    }

    /// A use of a buffer has ended; signals the owner if it waits for that.
    fn signal_use_ended(&self, target: Target) {
        if self.memory.is_armed(target.run.first) {
            self.signal_owner(target);
        }
    }

    /// Begins to use a peer's buffer for a longer time.
    pub(crate) fn attach(
        self: &Arc<Self>,
        peer: Gid,
        token: DmbToken,
    ) -> Result<(Target, UseGuard), DeviceError> {
        let owner = self.connect_peer(peer).map_err(|error| match error {
            // It was on the fabric when it registered the buffer.
            DeviceError::Unreachable { .. } => DeviceError::PeerGone,
            error => error,
        })?;
        let target = match self.memory.begin_use(token, self.tag) {
            Ok(target) => target,
            Err(SubmitError::PeerGone) => return Err(DeviceError::PeerGone),
            Err(_) => return Err(UNKNOWN),
        };
        let lease = UseGuard {
            node: Arc::clone(self),
            target,
        };
        if target.owner != owner {
            return Err(UNKNOWN);
        }
        Ok((target, lease))
    }

    /// After a write: signals the owner of a buffer, if the buffer is armed.
    pub(crate) fn signal(&self, target: Target) {
        if self.memory.must_signal(target.run.first) {
            self.signal_owner(target);
        }
    }

    /// Sets the ready bit of a buffer and notifies its owner.
    #[cold]
    fn signal_owner(&self, target: Target) {
        self.memory.set_ready(target.owner.slot, target.run.first);
        self.notify(target.owner);
    }

    /// Sends an event to a peer.
    pub(crate) fn post(&self, peer: Gid, event: PeerEvent) -> Result<(), SubmitError> {
        let peer = self.connect_peer(peer).map_err(|error| match error {
            DeviceError::Unreachable { .. } => SubmitError::PeerGone,
            error => error.into(),
        })?;
        let Some((_, bit)) = EVENTS.into_iter().find(|(known, _)| *known == event) else {
            return Err(DeviceError::Invalid("unknown event").into());
        };
        self.memory.post(peer.slot, self.tag.slot, bit);
        self.notify(peer);
        Ok(())
    }

    /// Appends all pending events to `events`, without blocking.
    pub(crate) fn drain(&self, events: &mut Vec<Event>) -> Result<(), DeviceError> {
        self.check()?;
        let (memory, slot) = (&*self.memory, self.tag.slot);
        let mut must_check = false;
        let polled = self.fabric.poll_events(&mut |peer| {
            memory.mark_dead(peer);
            must_check = true;
        });
        if let Err(error) = polled {
            self.fail(error);
            events.push(Event::DeviceGone);
            return Ok(());
        }
        // Not `||`: the flag has to be taken either way.
        if memory.take_peers_changed(slot) | must_check {
            if !memory.is_live(self.tag) {
                self.fail(DeviceError::Gone("the fabric counts the device as dead"));
                events.push(Event::DeviceGone);
                return Ok(());
            }
            let gone = self.peers.lock().take_gone(|tag| memory.is_live(tag));
            events.extend(gone.into_iter().map(Event::PeerGone));
        }
        let mut has_left = false;
        let more = memory.take_ready(slot, READY_PER_DRAIN, |first| {
            match self.owned.token(first) {
                Some(token) => events.push(Event::Signalled(token)),
                None => has_left = true,
            }
        });
        if more {
            self.fabric.notify(self.tag);
        }
        if has_left {
            self.owned.release_unused(self);
        }
        memory.take_events(slot, |from, bits| {
            self.handle_peer_events(from, bits, events)
        });
        if !events.is_empty() {
            memory.wake(slot);
        } else if memory.sleep_of(slot) == Sleep::Notified {
            // Without an event the driver sleeps, and peers send no second notification.
            self.fabric.notify(self.tag);
        }
        Ok(())
    }

    /// Requests notifications from now on.
    pub(crate) fn arm(&self) -> Result<(), DeviceError> {
        self.check()?;
        self.memory.sleep(self.tag.slot);
        self.fabric.arm();
        Ok(())
    }

    /// The user has dropped the device. Peers are notified; remaining buffers keep their memory.
    pub(crate) fn leave(&self) {
        self.fail(DeviceError::Gone("the device was dropped"));
        *self.peers.lock() = Peers::default();
        if self.memory.is_live(self.tag) {
            self.memory.set_phase(self.tag, Phase::Leaving);
            self.notify_others();
        }
    }

    fn handle_peer_events(&self, from: u16, bits: u64, events: &mut Vec<Event>) {
        let sender = self.memory.device_of_slot(from);
        let Some((sender, _)) = sender else { return };
        let known = self.peers.lock().gid(sender);
        let Some(from) = known.or_else(|| self.memory.gid(sender)) else {
            return;
        };
        let sent = EVENTS.into_iter().filter(|(_, bit)| bits & bit != 0);
        events.extend(sent.map(|(event, _)| Event::Peer { from, event }));
    }

    fn notify(&self, peer: Tag) {
        if self.memory.must_notify(peer.slot) {
            self.fabric.notify(peer);
        }
    }

    fn notify_others(&self) {
        for peer in self.memory.others(self.tag) {
            self.memory.set_peers_changed(peer.slot);
            // A connected peer is woken by the end of file if this process is killed between
            // `must_notify` and `notify`.
            let _ = self.fabric.connect_peer(peer);
            self.notify(peer);
        }
    }

    /// Marks a peer as dead in the shared memory, and wakes the local driver to report it.
    fn mark_dead(&self, peer: Tag) {
        if self.memory.mark_dead(peer) {
            self.memory.set_peers_changed(self.tag.slot);
            self.notify(self.tag);
        }
    }

    fn check(&self) -> Result<(), DeviceError> {
        match self.gone.get() {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    fn fail(&self, error: DeviceError) {
        // The first error counts.
        let _ = self.gone.set(error);
    }
}

/// The peers that a device communicates with, whose end has to be reported: one for each slot,
/// however often the memory names another device in it.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    by_slot: HashMap<u16, (Tag, Gid)>,
    /// Their slots have other devices by now.
    replaced: Vec<Gid>,
}

/// What the insertion of a peer has changed.
enum Inserted {
    /// Nothing that has to be reported.
    Known,
    /// The end of an earlier device of the slot has to be reported.
    Replaced,
    /// The peer was not inserted: too many ends have to be reported first.
    Full,
}

impl Peers {
    pub(crate) fn len(&self) -> usize {
        self.by_slot.len()
    }

    fn insert(&mut self, peer: Tag, gid: Gid, slots: u16) -> Inserted {
        let known = self.by_slot.get(&peer.slot).copied();
        match known {
            Some(known) if known == (peer, gid) => return Inserted::Known,
            Some(_) if self.replaced.len() >= slots.into() => return Inserted::Full,
            _ => self.by_slot.insert(peer.slot, (peer, gid)),
        };
        match known {
            Some((_, earlier)) => {
                self.replaced.push(earlier);
                Inserted::Replaced
            }
            None => Inserted::Known,
        }
    }

    fn gid(&self, peer: Tag) -> Option<Gid> {
        let (known, gid) = self.by_slot.get(&peer.slot)?;
        (*known == peer).then_some(*gid)
    }

    /// Removes the peers that are gone.
    fn take_gone(&mut self, is_live: impl Fn(Tag) -> bool) -> Vec<Gid> {
        let mut gone = std::mem::take(&mut self.replaced);
        self.by_slot.retain(|_, (tag, gid)| {
            let is_live = is_live(*tag);
            if !is_live {
                gone.push(*gid);
            }
            is_live
        });
        gone
    }
}

/// A use of a peer's buffer, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct UseGuard {
    node: Arc<Node>,
    target: Target,
}

impl Drop for UseGuard {
    fn drop(&mut self) {
        let Self { node, target } = self;
        node.memory.end_use(target.run.first, node.tag);
        node.signal_use_ended(*target);
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // No effect if another device has the slot already.
        self.memory.mark_dead(self.tag);
    }
}

/// What is swept after a sweep that has ended there, of so many granules.
fn sweep_range(end: u32, granules: u32) -> Range<u32> {
    let begin = if end < granules { end } else { 0 };
    begin..begin.saturating_add(MAX_SWEEP).min(granules)
}

/// A buffer of `len` bytes has 2^order granules.
fn order_of(len: usize) -> Option<u8> {
    let granules = len / GRANULE;
    let is_size = len % GRANULE == 0 && granules.is_power_of_two();
    let order = u8::try_from(granules.trailing_zeros()).ok()?;
    is_size.then_some(order)
}

/// Granules of a sweep, of 256 MiB: a set-up tries several sizes, and each one that finds no memory
/// sweeps.
const MAX_SWEEP: u32 = 1 << 14;

/// Buffers that one drain reports as written. Users of the memory can mark all granules.
const READY_PER_DRAIN: usize = 1 << 14;

/// The token names no buffer of which this device is the writer.
pub(crate) const UNKNOWN: DeviceError = DeviceError::Invalid("no such buffer for this device");

/// Events with their bits in an event mailbox.
const EVENTS: [(PeerEvent, u64); 3] = [
    (PeerEvent::TestRequest, 1),
    (PeerEvent::TestResponse, 2),
    // Last: earlier events are still delivered.
    (PeerEvent::Shutdown, 4),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sweeps_of_a_long_memory_look_at_a_part_each_one_behind_the_other() {
        const MAX: u32 = MAX_SWEEP;
        assert_eq!(sweep_range(0, 1000), 0..1000);
        assert_eq!(sweep_range(1000, 1000), 0..1000);
        let long = 2 * MAX + 5;
        assert_eq!(sweep_range(0, long), 0..MAX);
        assert_eq!(sweep_range(MAX, long), MAX..2 * MAX);
        assert_eq!(sweep_range(2 * MAX, long), 2 * MAX..long);
        assert_eq!(sweep_range(long, long), 0..MAX);
        assert_eq!(sweep_range(u32::MAX - 1, u32::MAX), u32::MAX - 1..u32::MAX);
    }
}
