//! What a device does on its fabric. Buffers and attachments keep it alive.

use std::io::IoSlice;
use std::sync::{Arc, Mutex};

use smc_core::device::{DeviceError, Event, Limits, MemoryAccount, PeerEvent, Signal, SubmitError};
use smc_core::mem::sync::{AtomicBool, Ordering};
use smc_core::mem::{WORDWISE_MAX, gather};
use smc_wire::types::{DmbToken, Gid};

use crate::fabric::{Fabric, News, Unmet};
use crate::lock;
use crate::owned_buffers::{IsmDmb, Lease, Owned};
use crate::peers::Peers;
use crate::shared::{GRANULE, Newcomer, Phase, Room, Sleep, Tag, Target};

/// A device as its fabric sees it.
#[derive(Debug)]
pub(crate) struct Node {
    fabric: Arc<dyn Fabric>,
    /// That of the fabric, which is asked for it too often to ask.
    room: Arc<Room>,
    tag: Tag,
    gid: Gid,
    limits: Limits,
    owned: Owned,
    account: MemoryAccount,
    peers: Peers,
    /// Why the device no longer works.
    gone: Mutex<Option<DeviceError>>,
    is_gone: AtomicBool,
}

impl Node {
    /// Takes a slot that the fabric has given us.
    pub(crate) fn join(
        fabric: Arc<dyn Fabric>,
        slot: u16,
        gid: Gid,
        limits: Limits,
    ) -> Result<Arc<Self>, DeviceError> {
        let room = fabric.room();
        let granules = room.granules() as usize;
        // Halved as long as the memory has no room for two.
        let mut longest = limits.max_dmb_len;
        while longest > GRANULE && longest * 2 > granules * GRANULE {
            longest /= 2;
        }
        let tag = room.join(Newcomer {
            slot,
            port: fabric.port(),
            beats: fabric.beats(),
            gid,
        })?;
        fabric.joined(tag);
        let node = Arc::new(Self {
            room: Arc::clone(fabric.room()),
            fabric,
            tag,
            gid,
            limits: Limits::new(limits.max_dmbs, longest),
            owned: Owned::new(limits.max_dmbs),
            account: MemoryAccount::default(),
            peers: Peers::default(),
            gone: Mutex::default(),
            is_gone: AtomicBool::new(false),
        });
        // Whoever had the slot before is gone, which may be news.
        node.tell_others();
        Ok(node)
    }

    pub(crate) fn room(&self) -> &Room {
        &self.room
    }

    pub(crate) fn fabric(&self) -> &dyn Fabric {
        &*self.fabric
    }

    pub(crate) fn tag(&self) -> Tag {
        self.tag
    }

    pub(crate) fn gid(&self) -> Gid {
        self.gid
    }

    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    pub(crate) fn owned(&self) -> &Owned {
        &self.owned
    }

    pub(crate) fn account(&self) -> &MemoryAccount {
        &self.account
    }

    pub(crate) fn peers(&self) -> &Peers {
        &self.peers
    }

    /// Makes sure that the peer with a GID is there, and that its end is noticed.
    pub(crate) fn meet(&self, gid: Gid) -> Result<Tag, DeviceError> {
        self.check()?;
        let unreachable = |why| DeviceError::Unreachable { peer: gid, why };
        let Some(peer) = self.room().by_gid(gid) else {
            return Err(unreachable("no such device on the fabric"));
        };
        match self.fabric.meet(peer) {
            Ok(()) => {}
            Err(Unmet::Dead) => {
                self.bury(peer);
                return Err(unreachable("its process has ended"));
            }
            Err(Unmet::Busy) => return Err(unreachable("it does not accept connections")),
            Err(Unmet::Failed(error)) => return Err(error),
        }
        self.peers.watch(peer, gid);
        // It may have left between the look and the watch.
        if self.room().is_live(peer) {
            Ok(peer)
        } else {
            Err(unreachable("it has just left"))
        }
    }

    /// Makes a buffer for one writer.
    pub(crate) fn register(self: &Arc<Self>, peer: Gid, len: usize) -> Result<IsmDmb, DeviceError> {
        let order = order_of(len).filter(|_| len <= self.limits.max_dmb_len);
        let order = order.ok_or(DeviceError::Invalid("length of a buffer"))?;
        let writer = self.meet(peer)?;
        self.owned.count()?;
        self.place_buffer(writer, order)
            .inspect_err(|_| self.owned.uncount())
    }

    fn place_buffer(self: &Arc<Self>, writer: Tag, order: u8) -> Result<IsmDmb, DeviceError> {
        let room = self.room();
        self.owned.give_back(self);
        let charge = self.account.charge(GRANULE << order)?;
        let place = match room.take(self.tag, order) {
            Some(place) => Some(place),
            None => {
                // What the dead have left behind.
                let fabric = &self.fabric;
                room.sweep(|tag| tag != self.tag && (room.is_dead(tag) || fabric.is_dead(tag)));
                room.take(self.tag, order)
            }
        };
        let Some(place) = place else {
            return Err(match order {
                0 => DeviceError::Exhausted,
                _ => DeviceError::NoMemory,
            });
        };
        let lease = Arc::new(());
        let offered = room.offer(place, writer).and_then(|token| {
            let region = room.lend(place, Lease::new(&lease, self));
            Ok((token, region.ok_or(DeviceError::NoMemory)?))
        });
        let (token, region) = offered.inspect_err(|_| room.give_back(self.tag, place))?;
        self.owned.insert(place, token);
        let node = Arc::clone(self);
        Ok(IsmDmb::new(node, place, token, region, lease, charge))
    }

    /// Writes into a peer's buffer.
    pub(crate) fn move_data(
        &self,
        token: DmbToken,
        at: u32,
        data: &[IoSlice<'_>],
        signal: Signal,
    ) -> Result<(), SubmitError> {
        if self.is_gone.load(Ordering::Acquire) {
            return Err(self.why_gone().into());
        }
        let room = self.room();
        let moved = room.using(token, self.tag, |turn| {
            write(room, turn.target, at, data)?;
            if signal == Signal::Yes && turn.must_signal() {
                self.report(turn.target);
            }
            Ok(())
        });
        if moved == Err(SubmitError::UnknownToken) {
            self.left_buffer(token);
        }
        moved
    }

    /// The owner of a buffer that is gone may wait for the moves before this one.
    #[cold]
    fn left_buffer(&self, token: DmbToken) {
        if let Some(target) = self.room().withdrawn(token, self.tag) {
            self.left(target);
        }
    }

    /// A use of a buffer has ended: the owner may wait for that.
    fn left(&self, target: Target) {
        if self.room().is_awaited(target.place.first) {
            self.report(target);
        }
    }

    /// Begins to use a peer's buffer for a longer time.
    pub(crate) fn attach(
        self: &Arc<Self>,
        peer: Gid,
        token: DmbToken,
    ) -> Result<(Target, Use), DeviceError> {
        let owner = self.meet(peer).map_err(|error| match error {
            // It was on the fabric when it made the buffer.
            DeviceError::Unreachable { .. } => DeviceError::PeerGone,
            error => error,
        })?;
        let target = match self.room().begin_use(token, self.tag) {
            Ok(target) => target,
            Err(SubmitError::PeerGone) => return Err(DeviceError::PeerGone),
            Err(_) => return Err(UNKNOWN),
        };
        let lease = Use {
            node: Arc::clone(self),
            target,
        };
        if target.owner != owner {
            return Err(UNKNOWN);
        }
        Ok((target, lease))
    }

    /// Tells the owner of a buffer that it was written, if it wants to know.
    pub(crate) fn signal(&self, target: Target) {
        if self.room().must_signal(target.place.first) {
            self.report(target);
        }
    }

    /// Reports a buffer whose owner wants to hear of it.
    #[cold]
    fn report(&self, target: Target) {
        self.room().set_ready(target.owner.slot, target.place.first);
        self.ring(target.owner);
    }

    /// Sends an event to a peer.
    pub(crate) fn post(&self, peer: Gid, event: PeerEvent) -> Result<(), SubmitError> {
        let peer = self.meet(peer).map_err(|error| match error {
            DeviceError::Unreachable { .. } => SubmitError::PeerGone,
            error => error.into(),
        })?;
        let Some((_, bit)) = EVENTS.into_iter().find(|(known, _)| *known == event) else {
            return Err(DeviceError::Invalid("unknown event").into());
        };
        self.room().post(peer.slot, self.tag.slot, bit);
        self.ring(peer);
        Ok(())
    }

    /// Hands all that happened to `events`, without waiting.
    pub(crate) fn drain(&self, events: &mut Vec<Event>) -> Result<(), DeviceError> {
        self.check()?;
        let (room, slot) = (self.room(), self.tag.slot);
        let mut must_check = false;
        let looked = self.fabric.look(&mut |News::Left(peer)| {
            room.bury(peer);
            must_check = true;
        });
        if let Err(error) = looked {
            self.fail(error);
            events.push(Event::DeviceGone);
            return Ok(());
        }
        // Not `||`: the flag has to be taken either way.
        if room.take_look(slot) | must_check {
            if !room.is_live(self.tag) {
                self.fail(DeviceError::Gone("the fabric counts the device as dead"));
                events.push(Event::DeviceGone);
                return Ok(());
            }
            self.peers.check(room, events);
        }
        let mut has_left = false;
        room.take_ready(slot, |first| match self.owned.token(first) {
            Some(token) => events.push(Event::Signalled(token)),
            None => has_left = true,
        });
        if has_left {
            self.owned.give_back(self);
        }
        room.take_mail(slot, |from, bits| self.open_mail(from, bits, events));
        if !events.is_empty() {
            room.wake(slot);
        } else if room.sleep_of(slot) == Sleep::Rung {
            // The driver sleeps if it gets no event, and no ring would wake it.
            self.fabric.ring(self.tag);
        }
        Ok(())
    }

    /// Asks to be rung from now on.
    pub(crate) fn arm(&self) -> Result<(), DeviceError> {
        self.check()?;
        self.room().sleep(self.tag.slot);
        self.fabric.arm();
        Ok(())
    }

    /// The device is given up by its user. Peers learn it; buffers that are left keep their memory.
    pub(crate) fn leave(&self) {
        self.fail(DeviceError::Gone("the device was dropped"));
        self.peers.clear();
        if self.room().is_live(self.tag) {
            self.room().set_phase(self.tag, Phase::Leaving);
            self.tell_others();
        }
    }

    fn open_mail(&self, from: u16, bits: u64, events: &mut Vec<Event>) {
        let sender = self.room().occupant(from);
        let gid = sender.and_then(|(tag, _)| self.peers.gid(tag).or_else(|| self.room().gid(tag)));
        let Some(from) = gid else { return };
        let sent = EVENTS.into_iter().filter(|(_, bit)| bits & bit != 0);
        events.extend(sent.map(|(event, _)| Event::Peer { from, event }));
    }

    fn ring(&self, peer: Tag) {
        if self.room().must_ring(peer.slot) {
            self.fabric.ring(peer);
        }
    }

    fn tell_others(&self) {
        for peer in self.room().others(self.tag) {
            self.room().ask_to_look(peer.slot);
            // Whoever knows us is woken if we die between noting that we ring and doing so.
            let _ = self.fabric.meet(peer);
            self.ring(peer);
        }
    }

    /// Marks a peer as dead for all, and has our own driver report it.
    fn bury(&self, peer: Tag) {
        if self.room().bury(peer) {
            self.room().ask_to_look(self.tag.slot);
            self.ring(self.tag);
        }
    }

    fn check(&self) -> Result<(), DeviceError> {
        if self.is_gone.load(Ordering::Acquire) {
            return Err(self.why_gone());
        }
        Ok(())
    }

    fn fail(&self, error: DeviceError) {
        lock(&self.gone).get_or_insert(error);
        self.is_gone.store(true, Ordering::Release);
    }

    fn why_gone(&self) -> DeviceError {
        let gone = lock(&self.gone).clone();
        gone.unwrap_or(DeviceError::Gone("the fabric"))
    }
}

/// A use of a peer's buffer that has begun, and ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Use {
    node: Arc<Node>,
    target: Target,
}

impl Drop for Use {
    fn drop(&mut self) {
        let Self { node, target } = self;
        node.room().end_use(target.place.first, node.tag);
        node.left(*target);
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Unless another device has the slot already.
        self.room().bury(self.tag);
    }
}

fn write(room: &Room, target: Target, at: u32, data: &[IoSlice<'_>]) -> Result<(), SubmitError> {
    let mut at = usize::try_from(at).map_err(|_| SubmitError::OutOfBounds)?;
    if let [one] = data {
        return room.copy_in(target.place, at, one);
    }
    let total = data
        .iter()
        .try_fold(at, |end, part| end.checked_add(part.len()));
    if total.is_none_or(|end| end > target.place.len()) {
        return Err(SubmitError::OutOfBounds);
    }
    // Short ones together, so that their words arrive as those of one write.
    let mut gathered = [0; WORDWISE_MAX];
    if let Some(len) = gather(data, &mut gathered) {
        return room.copy_in(target.place, at, &gathered[..len]);
    }
    for part in data {
        room.copy_in(target.place, at, part)?;
        at += part.len();
    }
    Ok(())
}

/// A buffer of `len` bytes has 2^order granules.
fn order_of(len: usize) -> Option<u8> {
    let granules = len / GRANULE;
    let is_size = len % GRANULE == 0 && granules.is_power_of_two();
    let order = u8::try_from(granules.trailing_zeros()).ok()?;
    is_size.then_some(order)
}

/// There is no buffer of this name for us.
pub(crate) const UNKNOWN: DeviceError = DeviceError::Invalid("no such buffer for this device");

/// Events with their bits in a mailbox.
const EVENTS: [(PeerEvent, u64); 3] = [
    (PeerEvent::TestRequest, 1),
    (PeerEvent::TestResponse, 2),
    // Last: what came before is still heard.
    (PeerEvent::Shutdown, 4),
];
