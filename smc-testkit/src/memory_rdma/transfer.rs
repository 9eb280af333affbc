//! How packets get from one queue pair to another.

use std::mem;
use std::time::{Duration, Instant};

use smc_core::device::{Access, Event, Inbound, LinkFailure};

use super::faults::Lost;
use super::pair::{
    Chain, ChainPhase, PairConnection, Phase, QueuePair, SendStall, Transfer, advance,
};
use super::state::{Action, DeviceId, Locked, PairId};

/// The result of the delivery of a chain.
enum DeliveryResult {
    Delivered,
    /// It has arrived, but the sender gets no acknowledgement.
    Unacknowledged,
    NoAnswer,
    /// The same, and it is of no use to give up without a clock: the peer may connect yet.
    NotYet,
    NotReady,
    /// Both ends are in their error states.
    Refused,
    /// The sender is.
    Broken(LinkFailure),
}

impl Locked<'_> {
    pub(super) fn act(&mut self, action: Action) {
        match action {
            Action::Arrive(id) => self.arrive(id),
            Action::Complete(id) => self.complete(id),
            Action::Expire(id, expiry) => {
                let pair = self.pairs.get(&id);
                let waits = pair.and_then(|pair| pair.connection()?.expiry);
                if waits == Some(expiry) {
                    self.fail(id, LinkFailure::RetryExceeded);
                }
            }
        }
    }

    /// Sends a chain on its way.
    pub(super) fn send_chain(&mut self, id: PairId, mut chain: Chain) {
        let earliest = self.now.map(|now| now + self.travel());
        let Some(connection) = self.connection(id) else {
            return;
        };
        chain.due = earliest.max(connection.last_due);
        connection.last_due = chain.due;
        let due = chain.due;
        connection.chains.push_back(chain);
        self.at(due, Action::Arrive(id));
    }

    /// Delivers all chains of a queue pair that are due, until one cannot be.
    fn arrive(&mut self, id: PairId) {
        loop {
            let (now, is_paused) = (self.now, self.is_paused);
            let Some(connection) = self.connection(id) else {
                return;
            };
            let mut chains = connection.chains.iter();
            let next = chains.position(|chain| chain.phase == ChainPhase::Underway);
            let is_due = |at: usize| connection.chains.get(at).is_some_and(|it| it.due <= now);
            let Some(at) = next.filter(|at| is_due(*at)) else {
                return;
            };
            if is_paused || connection.stall.is_some() {
                return;
            }
            let Some(mut chain) = connection.chains.remove(at) else {
                return;
            };
            let result = self.deliver(id, &mut chain);
            let mut due = None;
            match result {
                DeliveryResult::Delivered => {
                    due = self.now.map(|now| now + self.travel());
                    chain.phase = ChainPhase::Delivered(due);
                }
                DeliveryResult::Unacknowledged => chain.phase = ChainPhase::Unanswered,
                _ => {}
            }
            if let Some(connection) = self.connection(id) {
                connection.chains.insert(at, chain);
            }
            match result {
                DeliveryResult::Delivered => self.at(due, Action::Complete(id)),
                DeliveryResult::Unacknowledged => self.await_answer(id),
                DeliveryResult::NoAnswer => {
                    self.stall(id, SendStall::NoAnswer);
                    self.await_answer(id);
                }
                DeliveryResult::NotYet => {
                    self.stall(id, SendStall::NoAnswer);
                    if self.now.is_some() {
                        self.await_answer(id);
                    }
                }
                DeliveryResult::NotReady => {
                    self.stall(id, SendStall::NotReady);
                    if let Some(pair) = self.pairs.get_mut(&id) {
                        *pair.counters.rnr.get_or_insert(0) += 1;
                    }
                }
                DeliveryResult::Refused => {}
                DeliveryResult::Broken(cause) => self.fail(id, cause),
            }
        }
    }

    /// Reports all chains of a queue pair that were acknowledged by now, in order.
    pub(super) fn complete(&mut self, id: PairId) {
        let now = self.now;
        let holds = self.devices.get(&id.device);
        if holds.is_none_or(|member| member.holds_completions) || self.is_paused {
            return;
        }
        while let Some(connection) = self.connection(id) {
            let first = connection.chains.front().map(|chain| chain.phase);
            if !matches!(first, Some(ChainPhase::Delivered(due)) if due <= now) {
                return;
            }
            let Some(chain) = connection.chains.pop_front() else {
                return;
            };
            connection.unreported += 1;
            let (link, op) = (id.qpn, chain.op);
            self.report(id.device, Event::Completed { link, op });
        }
    }

    /// An event was taken from the list of its device.
    pub(super) fn reported(&mut self, device: DeviceId, event: &Event) {
        match *event {
            Event::Received { link: qpn, .. } => self.repost(PairId { device, qpn }),
            Event::Completed { link: qpn, .. } => {
                if let Some(connection) = self.connection(PairId { device, qpn }) {
                    connection.unreported = connection.unreported.saturating_sub(1);
                }
            }
            _ => {}
        }
    }

    /// A receive buffer of this queue pair is free again.
    fn repost(&mut self, id: PairId) {
        let Some(connection) = self.connection(id) else {
            return;
        };
        connection.free += 1;
        let peer = connection.peer;
        let Some(sender) = self.find(peer.gid, peer.qpn) else {
            return;
        };
        if let Some(connection) = self.connection(sender) {
            if connection.stall == Some(SendStall::NotReady) {
                connection.stall = None;
                self.arrive(sender);
            }
        }
    }

    /// Requests that wait for a receive buffer of a peer that has gone fail.
    pub(super) fn retry_unready(&mut self) {
        let ids: Vec<_> = self.pairs.keys().copied().collect();
        for id in ids {
            let Some(connection) = self.pairs.get(&id).and_then(QueuePair::connection) else {
                continue;
            };
            let peer = self.find(connection.peer.gid, connection.peer.qpn);
            let peer = peer.and_then(|peer| self.pairs.get(&peer)?.connection());
            if connection.stall == Some(SendStall::NotReady) && peer.is_none() {
                if let Some(connection) = self.connection(id) {
                    connection.stall = None;
                }
                self.arrive(id);
            }
        }
    }

    /// All waiting requests are tried again: some may succeed now.
    pub(super) fn retry_all(&mut self) {
        let ids: Vec<_> = self.pairs.keys().copied().collect();
        for id in ids {
            let now = self.now;
            let receives = self.is_open(id);
            let loss = self.pairs.get(&id).and_then(|pair| pair.loss);
            let is_unresponsive = loss.is_some_and(|loss| loss.what == Lost::Answer);
            let Some(connection) = self.connection(id) else {
                continue;
            };
            if connection.stall == Some(SendStall::NoAnswer) {
                connection.stall = None;
            }
            let answered = |chain: &&mut Chain| {
                let is_unanswered = chain.phase == ChainPhase::Unanswered;
                is_unanswered && receives && !(is_unresponsive && chain.is_hit)
            };
            for chain in connection.chains.iter_mut().filter(answered) {
                chain.phase = ChainPhase::Delivered(now);
            }
            self.arrive(id);
            self.complete(id);
            self.clear_expiry(id);
        }
    }

    /// Lets one chain take effect at the other end, as far as it can.
    fn deliver(&mut self, id: PairId, chain: &mut Chain) -> DeliveryResult {
        let lost = self.lost(id, chain);
        if lost == Some(Lost::Everything) {
            return DeliveryResult::NoAnswer;
        }
        let receiver = match self.receiver(id, chain) {
            Ok(receiver) => receiver,
            Err(result) => return result,
        };
        for write in &chain.writes {
            match self.write(id, receiver, write) {
                Ok(()) => {}
                Err(LinkFailure::RemoteAccess) => {
                    self.fail(id, LinkFailure::RemoteAccess);
                    self.fail(receiver, LinkFailure::Flushed);
                    return DeliveryResult::Refused;
                }
                Err(cause) => return DeliveryResult::Broken(cause),
            }
        }
        if lost == Some(Lost::Message) {
            return DeliveryResult::NoAnswer;
        }
        let Some(connection) = self.connection(receiver) else {
            return DeliveryResult::NoAnswer;
        };
        let Some(free) = connection.free.checked_sub(1) else {
            return DeliveryResult::NotReady;
        };
        connection.free = free;
        connection.expected_psn = advance(connection.expected_psn, chain.packets);
        if let Some(pair) = self.pairs.get_mut(&receiver) {
            let low = pair.counters.receives_low.get_or_insert(free);
            *low = free.min(*low);
        }
        self.received(receiver, Inbound::new(&chain.message));
        if lost == Some(Lost::Answer) {
            return DeliveryResult::Unacknowledged;
        }
        DeliveryResult::Delivered
    }

    /// What is lost of a chain.
    fn lost(&mut self, id: PairId, chain: &mut Chain) -> Option<Lost> {
        let is_first = !mem::replace(&mut chain.is_counted, true);
        let loss = self.pairs.get_mut(&id)?.loss.as_mut()?;
        if is_first {
            chain.is_hit = loss.left == 0;
            loss.left = loss.left.saturating_sub(1);
        }
        chain.is_hit.then_some(loss.what)
    }

    /// The queue pair at the other end, if it takes the packets of this chain.
    fn receiver(&self, id: PairId, chain: &Chain) -> Result<PairId, DeliveryResult> {
        let sender = self.pairs.get(&id).ok_or(DeliveryResult::NoAnswer)?;
        let sending = sender.connection().ok_or(DeliveryResult::NoAnswer)?;
        let receiver = self.find(sending.peer.gid, sending.peer.qpn);
        let receiver = receiver.ok_or(DeliveryResult::NoAnswer)?;
        let pair = self.pairs.get(&receiver).ok_or(DeliveryResult::NoAnswer)?;
        if !self.is_open(id) || !self.is_open(receiver) {
            return Err(DeliveryResult::NoAnswer);
        }
        let receiving = match &pair.phase {
            Phase::Reset => return Err(DeliveryResult::NotYet),
            Phase::Error => return Err(DeliveryResult::NoAnswer),
            Phase::Connected(connection) => connection,
        };
        let is_connected_back =
            receiving.peer.gid == sender.local.gid && receiving.peer.qpn == sender.local.qpn;
        if !is_connected_back || pair.kind != sender.kind || pair.local.gid != sending.peer.gid {
            return Err(DeliveryResult::NoAnswer);
        }
        if receiving.expected_psn != chain.psn {
            return Err(DeliveryResult::NoAnswer);
        }
        let longest = chain.writes.iter().map(Transfer::len).max().unwrap_or(0);
        let longest = longest.max(u64::try_from(chain.message.len()).unwrap_or(u64::MAX));
        let least = sending.mtu.min(receiving.mtu).bytes().map_or(0, u64::from);
        if sending.mtu != receiving.mtu && longest > least {
            return Err(DeliveryResult::Broken(LinkFailure::QueuePair(
                "path MTUs differ",
            )));
        }
        Ok(receiver)
    }

    /// Whether packets get through at this end.
    fn is_open(&self, id: PairId) -> bool {
        let (Some(pair), Some(member)) = (self.pairs.get(&id), self.devices.get(&id.device)) else {
            return false;
        };
        let is_cut = self.is_cut || pair.is_cut || member.cut.contains(&pair.port);
        !is_cut && !member.is_gone && !member.down.contains(&pair.port)
    }

    /// One write: all of it or nothing.
    fn write(&self, from: PairId, to: PairId, write: &Transfer) -> Result<(), LinkFailure> {
        let sending = self.devices.get(&from.device);
        if sending.is_none_or(|member| !member.memory.contains_key(&write.own.0)) {
            return Err(LinkFailure::QueuePair("memory is no longer registered"));
        }
        if write.len() == 0 {
            return Ok(());
        }
        let receiving = self.devices.get(&to.device);
        let memory = receiving.and_then(|member| member.memory.get(&write.rkey.0));
        let memory = memory.filter(|memory| memory.access == Access::RemoteWrite);
        let domain = self.pairs.get(&to).map(|pair| pair.domain);
        let memory = memory.filter(|memory| Some(memory.domain) == domain);
        let memory = memory.ok_or(LinkFailure::RemoteAccess)?;
        let at = write.to.0.checked_sub(memory.addr);
        let at = at.ok_or(LinkFailure::RemoteAccess)?;
        let size = u64::try_from(memory.region.len()).unwrap_or(0);
        if at.checked_add(write.len()).is_none_or(|end| end > size) {
            return Err(LinkFailure::RemoteAccess);
        }
        let mut at = usize::try_from(at).map_err(|_| LinkFailure::RemoteAccess)?;
        for piece in write.pieces {
            let local = LinkFailure::QueuePair("piece outside of its memory");
            let (from, len) = (usize::try_from(piece.at), usize::try_from(piece.len));
            let (Ok(from), Ok(len)) = (from, len) else {
                return Err(local);
            };
            let mut data = vec![0; len];
            write.region.copy_out(from, &mut data).map_err(|_| local)?;
            let copied = memory.region.copy_in(at, &data);
            copied.map_err(|_| LinkFailure::RemoteAccess)?;
            at += len;
        }
        Ok(())
    }

    fn stall(&mut self, id: PairId, why: SendStall) {
        if let Some(connection) = self.connection(id) {
            connection.stall = Some(why);
        }
    }

    /// Gives up after the retry time, unless the answer comes.
    fn await_answer(&mut self, id: PairId) {
        let Some(now) = self.now else {
            self.fail(id, LinkFailure::RetryExceeded);
            return;
        };
        let at = now + self.timing.retry;
        let expiry = self.fresh_expiry();
        if let Some(connection) = self.connection(id) {
            if connection.expiry.is_none() {
                connection.expiry = Some(expiry);
                self.schedule(at, Action::Expire(id, expiry));
            }
        }
    }

    /// Stops the retry time if no answer is missing.
    fn clear_expiry(&mut self, id: PairId) {
        if let Some(connection) = self.connection(id) {
            let mut chains = connection.chains.iter();
            let is_missing = chains.any(|chain| chain.phase == ChainPhase::Unanswered);
            if !is_missing && connection.stall != Some(SendStall::NoAnswer) {
                connection.expiry = None;
            }
        }
    }

    fn connection(&mut self, id: PairId) -> Option<&mut PairConnection> {
        self.pairs.get_mut(&id)?.connection_mut()
    }

    /// How long the next packet is under way.
    fn travel(&mut self) -> Duration {
        let jitter = usize::try_from(self.timing.jitter.as_nanos()).unwrap_or(usize::MAX - 1);
        let extra = self.rng.below(jitter.saturating_add(1));
        let extra = Duration::from_nanos(u64::try_from(extra).unwrap_or(0));
        self.timing.latency + extra
    }

    /// Does something now or then.
    fn at(&mut self, due: Option<Instant>, action: Action) {
        match due.filter(|due| Some(*due) > self.now) {
            Some(due) => self.schedule(due, action),
            None => self.act(action),
        }
    }
}
