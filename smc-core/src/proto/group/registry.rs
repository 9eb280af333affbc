use core::net::IpAddr;
use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use smc_wire::types::Gid;

use super::{
    Admission, Cause, DeviceIndex, GroupId, Intent, Key, NoGroup, Output, Seat, Snapshot, State,
    Terminated, Terms, Waiter,
};
use crate::shares::Shares;

/// The link groups of an endpoint.
///
/// Mutators are [`enter`](Self::enter), [`establish`](Self::establish),
/// [`set_keys`](Self::set_keys), [`set_full`](Self::set_full), [`leave`](Self::leave),
/// [`cancel`](Self::cancel), [`out_of_sync`](Self::out_of_sync), the `terminate` family and
/// [`handle_timeout`](Self::handle_timeout); after each of them drain
/// [`poll_output`](Self::poll_output), then look at
/// [`poll_timeout`](Self::poll_timeout). Each call costs time in proportion to the groups it
/// touches; a short lock around the registry, never held while waiting, is all that sharing takes.
#[derive(Debug, Default)]
pub struct Registry {
    groups: HashMap<GroupId, Group>,
    keys: HashMap<Key, Slot>,
    waiters: HashMap<Waiter, Waiting>,
    /// When idle groups expire.
    idle: BTreeSet<(Instant, GroupId)>,
    /// When waiters run out of patience.
    patience: BTreeSet<(Instant, Waiter)>,
    /// A server's first contacts of SMC-R under way, by where the client comes from.
    first_contacts: Shares<IpAddr, MAX_ALL_FIRST_CONTACTS, MAX_FIRST_CONTACTS>,
    outputs: VecDeque<Output>,
    last_group: u32,
    last_waiter: u64,
}

#[derive(Debug)]
struct Group {
    /// The key that it was created for.
    key: Key,
    /// Those under which it is found: one per active link with SMC-R, else the same.
    keys: Vec<Key>,
    /// The server's table of the peer's buffers has no place left.
    is_full: bool,
    state: State,
    /// Seats taken, by established connections and by set-ups.
    seats: usize,
    terms: Option<Terms>,
    expires: Option<Instant>,
    /// Why it ends, once that is known.
    cause: Option<Cause>,
    /// The peer has said since that it has no group with us, or another process has said so in its
    /// name. So the connections stay; but no other is put into it, and it is not kept idle.
    is_doubtful: bool,
}

/// Everything of one key.
#[derive(Debug, Default)]
struct Slot {
    /// Groups that were created for this key and are not removed.
    groups: usize,
    /// Active and idle groups, the oldest first.
    usable: Vec<GroupId>,
    /// Set-ups that are creating a group.
    creators: usize,
    waiting: VecDeque<(Waiter, Intent)>,
    /// We have ended a group of this key, and the peer was not told because there were others.
    is_untold: bool,
}

/// A set-up that waits for a creator.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    key: Key,
    /// Until when it waits for the creator that is at work now.
    deadline: Instant,
    /// Until when it waits for creators at all.
    limit: Instant,
}

impl Registry {
    /// A registry without groups.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A set-up asks for its link group.
    ///
    /// Once it has a [`Seat`] it has to [`leave`](Self::leave) when its connection ends or does
    /// not come about.
    pub fn enter(&mut self, now: Instant, key: Key, intent: Intent) -> Admission {
        let seat = match intent {
            Intent::Create => Some(Ok(self.create(key))),
            _ => self.admit(key, intent),
        };
        match seat {
            Some(seat) => Admission::Now(seat),
            None => Admission::Wait(self.wait(now, key, intent)),
        }
    }

    /// The first connection of a new group is established: from now on others may join.
    ///
    /// To be called when the client has sent CONFIRM, or the server has processed it. Both steps,
    /// success of the first contact and opening the group to others, are this one call.
    ///
    /// # Errors
    ///
    /// [`Terminated`] when the group was ended meanwhile; the connection cannot be used then and
    /// still has to leave.
    pub fn establish(&mut self, group: GroupId, terms: Terms) -> Result<(), Terminated> {
        let Some(record) = self.groups.get_mut(&group) else {
            return Err(Terminated);
        };
        if record.state.establish().is_err() {
            return Err(Terminated);
        }
        record.terms = Some(terms);
        let (origin, keys) = (record.key, record.keys.clone());
        self.count_out(origin);
        for key in keys {
            self.list(key, group);
        }
        self.settle(origin);
        Ok(())
    }

    /// The links of an SMC-R group have changed: from now on it is found under these keys, one per
    /// active link, and under no other.
    ///
    /// Without a key it is terminated ([`Cause::LinksDown`]): nobody could use it.
    pub fn set_keys(&mut self, group: GroupId, keys: Vec<Key>) {
        let Some(record) = self.groups.get_mut(&group) else {
            return;
        };
        if keys.is_empty() {
            self.terminate(group, Cause::LinksDown);
            return;
        }
        let is_listed = matches!(record.state, State::Active | State::Idle);
        let before = std::mem::replace(&mut record.keys, keys.clone());
        if !is_listed {
            return;
        }
        for key in before.iter().filter(|key| !keys.contains(key)) {
            self.unlist(*key, group);
        }
        for key in keys.into_iter().filter(|key| !before.contains(key)) {
            self.list(key, group);
        }
    }

    /// Says whether the table of an SMC-R group for the peer's buffers is full. A server then
    /// starts a new group instead of joining this one; a client follows its server.
    pub fn set_full(&mut self, group: GroupId, is_full: bool) {
        let Some(record) = self.groups.get_mut(&group) else {
            return;
        };
        record.is_full = is_full;
        if !is_full {
            for key in record.keys.clone() {
                self.settle(key);
            }
        }
    }

    /// A connection ends, or its set-up failed.
    ///
    /// In a group that was not established yet this is the failure of the first contact.
    pub fn leave(&mut self, now: Instant, group: GroupId) {
        let Some(record) = self.groups.get_mut(&group) else {
            return;
        };
        record.seats = record.seats.saturating_sub(1);
        if record.seats > 0 {
            return;
        }
        let (key, before) = (record.key, record.state);
        match record.state.empty() {
            Ok(State::Idle) if record.is_doubtful => self.expire(group),
            Ok(State::Idle) => {
                let at = now.checked_add(key.idle_lifetime()).unwrap_or(now);
                record.expires = Some(at);
                self.idle.insert((at, group));
            }
            Ok(_) => {
                let cause = record.cause.unwrap_or(Cause::FirstContactFailed);
                if before == State::Pending {
                    // First, so that the next creator's group counts as one that is left.
                    self.creator_left(key);
                }
                self.remove(group, cause);
            }
            Err(_) => {}
        }
    }

    /// A set-up no longer waits.
    ///
    /// A seat that it was given in an [`Output::Ready`] still to be polled is vacated; one that was
    /// polled has to be [left](Self::leave) instead.
    pub fn cancel(&mut self, now: Instant, waiter: Waiter) {
        if let Some(Waiting { key, deadline, .. }) = self.waiters.remove(&waiter) {
            self.patience.remove(&(deadline, waiter));
            if let Some(slot) = self.keys.get_mut(&key) {
                slot.waiting.retain(|(other, _)| *other != waiter);
            }
            self.tidy(key);
            return;
        }
        let mut given = None;
        self.outputs.retain(|output| match output {
            Output::Ready {
                waiter: ready,
                seat,
            } if *ready == waiter => {
                given = seat.ok();
                false
            }
            _ => true,
        });
        if let Some(seat) = given {
            self.leave(now, seat.group());
        }
    }

    /// A set-up that joined the group was declined with the out-of-sync bit: the peer does not have
    /// the group.
    ///
    /// A server puts no other connection into it, and it ends with its last one. Its connections
    /// stay, because any process with a TCP connection can send such a DECLINE in the peer's name.
    /// Those that the peer has really lost learn of it by their abort flags, their links and TCP.
    pub fn out_of_sync(&mut self, group: GroupId) {
        let active = self.groups.get_mut(&group);
        if let Some(record) = active.filter(|record| record.state == State::Active) {
            record.is_doubtful = true;
            record.cause = Some(Cause::OutOfSync);
        }
    }

    /// Ends one group.
    pub fn terminate(&mut self, group: GroupId, cause: Cause) {
        let Some(record) = self.groups.get_mut(&group) else {
            return;
        };
        let (key, before) = (record.key, record.state);
        let Ok(after) = record.state.terminate() else {
            return;
        };
        record.cause = Some(cause);
        for key in record.keys.clone() {
            self.unlist(key, group);
        }
        if after == State::Gone {
            self.remove(group, cause);
        } else {
            self.outputs
                .push_back(Output::Terminate { group, key, cause });
        }
        if before == State::Pending {
            self.creator_left(key);
        }
    }

    /// The peer has told that it has no SMC-D group with our device any more
    /// ([`PeerEvent::Shutdown`](crate::device::PeerEvent::Shutdown)).
    ///
    /// Idle groups end. One that is being created, or has connections, may be newer than the event,
    /// which names no group and takes another way than the handshake: it stays, and so do its
    /// connections. Those that the peer has really ended learn of it by their abort flags and by
    /// TCP.
    pub fn peer_shutdown(&mut self, device: DeviceIndex, peer: Gid) {
        let Some(slot) = self.keys.get(&Key::Direct { device, peer }) else {
            return;
        };
        for group in slot.usable.clone() {
            match self.groups.get_mut(&group) {
                Some(record) if record.state == State::Active => record.is_doubtful = true,
                _ => self.terminate(group, Cause::PeerGone),
            }
        }
    }

    /// Ends all SMC-D groups with a peer whose device went away.
    pub fn peer_gone(&mut self, device: DeviceIndex, peer: Gid) {
        self.terminate_where(Cause::PeerGone, |key| {
            key.device() == Some(device) && key.peer() == Some(peer)
        });
    }

    /// Ends all SMC-D groups of a device of ours that went away. An SMC-R group may live on over
    /// links of other devices.
    pub fn device_gone(&mut self, device: DeviceIndex) {
        self.terminate_where(Cause::DeviceGone, |key| key.device() == Some(device));
    }

    /// Ends all groups.
    pub fn shutdown(&mut self) {
        self.terminate_where(Cause::Shutdown, |_| true);
    }

    /// Tells that time has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(due) = self.idle.first().copied().filter(|(at, _)| *at <= now) {
            self.idle.remove(&due);
            self.expire(due.1);
        }
        while let Some(due) = self.patience.first().copied().filter(|(at, _)| *at <= now) {
            self.patience.remove(&due);
            self.lose_patience(now, due.1);
        }
    }

    /// The next thing to do, until `None`.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When [`handle_timeout`](Self::handle_timeout) wants to be called at the latest.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let idle = self.idle.first().map(|(at, _)| *at);
        let patience = self.patience.first().map(|(at, _)| *at);
        idle.into_iter().chain(patience).min()
    }

    /// All groups in the order of their identifiers, for tools.
    #[must_use]
    pub fn snapshots(&self) -> Vec<Snapshot> {
        let mut all: Vec<_> = self
            .groups
            .iter()
            .map(|(id, group)| group.snapshot(*id))
            .collect();
        all.sort_unstable_by_key(|snapshot| snapshot.id);
        all
    }

    /// One group, for tools.
    #[must_use]
    pub fn snapshot(&self, group: GroupId) -> Option<Snapshot> {
        self.groups.get(&group).map(|record| record.snapshot(group))
    }

    /// When a set-up that waits will have waited long enough for the creator that is at work now;
    /// `None` once it has its answer.
    #[must_use]
    pub fn deadline(&self, waiter: Waiter) -> Option<Instant> {
        self.waiters.get(&waiter).map(|waiting| waiting.deadline)
    }

    /// Set-ups that wait for others.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiters.len()
    }

    /// Nothing is kept about anybody.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.groups.is_empty()
            && self.keys.is_empty()
            && self.waiters.is_empty()
            && self.idle.is_empty()
            && self.patience.is_empty()
            && self.first_contacts.is_empty()
    }

    /// Joins or creates. `None`: another set-up is creating the group, and has to be waited for.
    fn admit(&mut self, key: Key, intent: Intent) -> Option<Result<Seat, NoGroup>> {
        if let Some(seat) = self.join(key, intent) {
            return Some(Ok(seat));
        }
        // A server's SMC-D group is no more than a number, and the creator may be a silent process
        // that has named the peer's GID.
        let waits = intent == Intent::Join || matches!(key, Key::Rdma { .. });
        if waits && self.keys.get(&key).is_some_and(|slot| slot.creators > 0) {
            return None;
        }
        Some(match intent {
            Intent::Join => Err(NoGroup::Missing),
            Intent::JoinOrCreate | Intent::Create => self.create_within_limit(key),
        })
    }

    /// Takes a seat in the newest group that has room: if the peer ever lost a group, that was an
    /// older one.
    fn join(&mut self, key: Key, intent: Intent) -> Option<Seat> {
        for group in self.keys.get(&key)?.usable.iter().rev() {
            let Some(record) = self.groups.get_mut(group) else {
                continue;
            };
            let Some(terms) = record.terms else { continue };
            // How full a group may be is the server's decision; its client just follows.
            if (intent == Intent::JoinOrCreate && !record.has_room())
                || record.state.join().is_err()
            {
                continue;
            }
            record.seats = record.seats.saturating_add(1);
            if let Some(at) = record.expires.take() {
                self.idle.remove(&(at, *group));
            }
            return Some(Seat::Joined {
                group: *group,
                terms,
            });
        }
        None
    }

    /// Creates a group as a server. The client may be one that never confirms, and until it is
    /// found out it takes a link and a buffer.
    fn create_within_limit(&mut self, key: Key) -> Result<Seat, NoGroup> {
        match key.source() {
            Some(from) if !self.first_contacts.has_capacity(&from) => Err(NoGroup::Full),
            _ => Ok(self.create(key)),
        }
    }

    fn create(&mut self, key: Key) -> Seat {
        let group = self.free_id();
        self.groups.insert(
            group,
            Group {
                key,
                keys: vec![key],
                is_full: false,
                state: State::Pending,
                seats: 1,
                terms: None,
                expires: None,
                cause: None,
                is_doubtful: false,
            },
        );
        let slot = self.keys.entry(key).or_default();
        slot.groups = slot.groups.saturating_add(1);
        slot.creators = slot.creators.saturating_add(1);
        if let Some(from) = key.source() {
            self.first_contacts.take(from);
        }
        Seat::Created(group)
    }

    fn wait(&mut self, now: Instant, key: Key, intent: Intent) -> Waiter {
        self.last_waiter = self.last_waiter.wrapping_add(1);
        let waiter = Waiter(self.last_waiter);
        let deadline = now.checked_add(CREATOR_PATIENCE).unwrap_or(now);
        let limit = deadline.checked_add(CREATOR_PATIENCE).unwrap_or(deadline);
        let waiting = Waiting {
            key,
            deadline,
            limit,
        };
        self.waiters.insert(waiter, waiting);
        self.patience.insert((deadline, waiter));
        self.keys
            .entry(key)
            .or_default()
            .waiting
            .push_back((waiter, intent));
        waiter
    }

    fn creator_left(&mut self, key: Key) {
        self.count_out(key);
        self.settle(key);
    }

    /// A set-up is creating a group no more.
    fn count_out(&mut self, key: Key) {
        if let Some(slot) = self.keys.get_mut(&key) {
            slot.creators = slot.creators.saturating_sub(1);
        }
        if let Some(from) = key.source() {
            self.first_contacts.release(&from);
        }
    }

    /// Lets waiters go on, in the order they came, as far as that is possible now.
    fn settle(&mut self, key: Key) {
        while let Some((waiter, intent)) = self
            .keys
            .get(&key)
            .and_then(|slot| slot.waiting.front().copied())
        {
            let Some(seat) = self.admit(key, intent) else {
                break;
            };
            if let Some(slot) = self.keys.get_mut(&key) {
                slot.waiting.pop_front();
            }
            self.answer(waiter, seat);
        }
        self.tidy(key);
    }

    /// The creator takes too long for this set-up, which becomes a creator itself. The others wait
    /// for it in turn, as long as that is within their limits.
    fn lose_patience(&mut self, now: Instant, waiter: Waiter) {
        let Some(Waiting {
            key,
            deadline,
            limit,
        }) = self.waiters.get(&waiter).copied()
        else {
            return;
        };
        let Some(slot) = self.keys.get_mut(&key) else {
            return;
        };
        let Some(at) = slot.waiting.iter().position(|(other, _)| *other == waiter) else {
            return;
        };
        let seat = match slot.waiting.remove(at) {
            Some((_, Intent::JoinOrCreate | Intent::Create)) => {
                let seat = self.create_within_limit(key);
                // Those at their limits come together, and would prolong nothing.
                if seat.is_ok() && deadline < limit {
                    self.prolong(now, key);
                }
                seat
            }
            Some((_, Intent::Join)) | None => Err(NoGroup::Missing),
        };
        self.answer(waiter, seat);
        self.tidy(key);
    }

    /// Another creator begins: those that could be creators themselves wait for it.
    fn prolong(&mut self, now: Instant, key: Key) {
        let Some(slot) = self.keys.get(&key) else {
            return;
        };
        let until = now.checked_add(CREATOR_PATIENCE).unwrap_or(now);
        for (waiter, _) in slot
            .waiting
            .iter()
            .filter(|(_, intent)| *intent != Intent::Join)
        {
            let Some(waiting) = self.waiters.get_mut(waiter) else {
                continue;
            };
            self.patience.remove(&(waiting.deadline, *waiter));
            waiting.deadline = until.min(waiting.limit);
            self.patience.insert((waiting.deadline, *waiter));
        }
    }

    fn answer(&mut self, waiter: Waiter, seat: Result<Seat, NoGroup>) {
        if let Some(waiting) = self.waiters.remove(&waiter) {
            self.patience.remove(&(waiting.deadline, waiter));
        }
        self.outputs.push_back(Output::Ready { waiter, seat });
    }

    fn expire(&mut self, group: GroupId) {
        let Some(record) = self.groups.get_mut(&group) else {
            return;
        };
        if record.state.expire().is_err() {
            return;
        }
        let cause = record.cause.unwrap_or(Cause::Idle);
        for key in record.keys.clone() {
            self.unlist(key, group);
        }
        self.remove(group, cause);
    }

    fn terminate_where(&mut self, cause: Cause, which: impl Fn(&Key) -> bool) {
        let mut groups: Vec<_> = self
            .groups
            .iter()
            .filter(|(_, group)| which(&group.key))
            .map(|(id, _)| *id)
            .collect();
        groups.sort_unstable();
        for group in groups {
            self.terminate(group, cause);
        }
    }

    fn remove(&mut self, group: GroupId, cause: Cause) {
        let Some(record) = self.groups.remove(&group) else {
            return;
        };
        if let Some(at) = record.expires {
            self.idle.remove(&(at, group));
        }
        let key = record.key;
        self.outputs
            .push_back(Output::Removed { group, key, cause });
        let Some(slot) = self.keys.get_mut(&key) else {
            return;
        };
        slot.groups = slot.groups.saturating_sub(1);
        slot.is_untold |= cause.is_local();
        if let (Key::Direct { device, peer }, 0, true) = (key, slot.groups, slot.is_untold) {
            slot.is_untold = false;
            self.outputs.push_back(Output::TellPeer { device, peer });
        }
        self.tidy(key);
    }

    /// Lets set-ups find the group under this key, and those in that wait for one.
    fn list(&mut self, key: Key, group: GroupId) {
        let slot = self.keys.entry(key).or_default();
        if !slot.usable.contains(&group) {
            slot.usable.push(group);
        }
        self.settle(key);
    }

    fn unlist(&mut self, key: Key, group: GroupId) {
        if let Some(slot) = self.keys.get_mut(&key) {
            slot.usable.retain(|other| *other != group);
        }
        self.tidy(key);
    }

    /// Forgets a key that nothing belongs to any more.
    fn tidy(&mut self, key: Key) {
        let is_empty = |slot: &Slot| {
            slot.groups == 0
                && slot.usable.is_empty()
                && slot.creators == 0
                && slot.waiting.is_empty()
        };
        if self.keys.get(&key).is_some_and(is_empty) {
            self.keys.remove(&key);
        }
    }

    /// The next identifier that is not in use. Group numbers grow by 256, so that the low byte of
    /// a link user ID can hold a link number.
    fn free_id(&mut self) -> GroupId {
        loop {
            self.last_group = self.last_group.wrapping_add(GROUP_STEP);
            let id = GroupId(self.last_group.to_be_bytes());
            if self.last_group != 0 && !self.groups.contains_key(&id) {
                return id;
            }
        }
    }
}

impl Group {
    /// Whether a server may put another connection into it.
    fn has_room(&self) -> bool {
        let limit = self.terms.and_then(|terms| terms.max_connections);
        !self.is_full
            && !self.is_doubtful
            && limit.is_none_or(|limit| u32::try_from(self.seats).is_ok_and(|n| n < limit))
    }

    fn snapshot(&self, id: GroupId) -> Snapshot {
        Snapshot {
            id,
            key: self.key,
            state: self.state,
            connections: self.seats,
            terms: self.terms,
        }
    }
}

/// How long a group without connections is kept.
pub const IDLE_LIFETIME: Duration = Duration::from_secs(600);

/// How long a client keeps an SMC-R group without connections: longer than its server, which is
/// the one to decide.
pub const CLIENT_IDLE_LIFETIME: Duration = Duration::from_secs(610);

/// How long a set-up waits for a creator of its group, and at most twice as long for one creator
/// after the other. Well below the six seconds that a client waits for ACCEPT, so that stalled
/// creators cost no other set-up its connection.
pub const CREATOR_PATIENCE: Duration = Duration::from_secs(2);

/// First contacts of SMC-R that a server has under way with clients of one IPv4 address, or of 64
/// bits of IPv6: a quarter of the links that a device has room for if nothing else is said.
pub const MAX_FIRST_CONTACTS: usize = 32;

/// First contacts of SMC-R that a server has under way with all clients: half of those links. An
/// address has no more of them than are left free, so that a few addresses do not keep others out.
pub const MAX_ALL_FIRST_CONTACTS: usize = 64;

const GROUP_STEP: u32 = 0x100;
