//! The registry of an endpoint's link groups (docs/spec/link-groups.md).
//!
//! Here is the whole way of a set-up into a group: it joins one, creates one, or waits for another
//! set-up that is creating one. How groups end is in `ends`, the limits of first contacts in
//! `first_contacts`.

mod ends;
mod first_contacts;

pub use ends::{CLIENT_IDLE_LIFETIME, IDLE_LIFETIME};
pub use first_contacts::{ALL_FIRST_CONTACTS_MAX, FIRST_CONTACTS_MAX};

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use hashbrown::HashMap;

use super::{
    EnterResult, GroupEndCause, GroupId, GroupKey, GroupLinks, GroupTerms, Intent, LinkGroupInfo,
    Member, NoGroup, RegistryOutput, Terminated, Waiter,
};
use crate::proto::Role;
use crate::proto::table::transitions;
use first_contacts::FirstContacts;

transitions! {
    /// States of a link group.
    pub enum GroupState {
        /// Its first connection is being set up; no other connection may use it.
        Pending = "PENDING",
        /// The group has connections.
        Active = "ACTIVE",
        /// The last connection has left; a new one may still join.
        Idle = "IDLE",
        /// The group was terminated; its connections are being closed.
        Terminating = "TERMINATING",
        /// The group is removed.
        Removed = "REMOVED",
    }

    /// The first connection, and with it the group, is established.
    establish(Pending => Active);
    /// Another connection joins.
    join(Active | Idle => Active);
    /// The last connection leaves.
    empty(Pending | Terminating => Removed, Active => Idle);
    /// The lifetime of an idle group is over. It is cut short if the peer denies the group, if
    /// another SMC-D group with the peer is left, or if its links are needed for another peer.
    expire(Idle => Removed);
    /// The peer or the local device is gone, the last link is lost or deleted, or the endpoint
    /// shuts down.
    terminate(Pending | Active => Terminating, Idle => Removed);
}

/// The link groups of an endpoint. The default is a registry without groups.
///
/// Mutators are [`enter`](Self::enter), [`establish`](Self::establish),
/// [`set_links`](Self::set_links), [`links_closed`](Self::links_closed), [`leave`](Self::leave),
/// [`cancel`](Self::cancel), the `terminate` and `shutdown` methods, the `handle_peer_*` and
/// `handle_device_*` methods, [`handle_out_of_sync`](Self::handle_out_of_sync) and
/// [`expire_longest_idle`](Self::expire_longest_idle), which look at all groups, and
/// [`handle_timeout`](Self::handle_timeout). After each of them drain
/// [`poll_output`](Self::poll_output), then read [`poll_timeout`](Self::poll_timeout). Each call
/// costs time in proportion to the groups it affects; a short lock around the registry, never held
/// while waiting, is enough for sharing.
#[derive(Debug, Default)]
pub struct Registry {
    groups: HashMap<GroupId, GroupEntry>,
    keys: HashMap<GroupKey, KeyEntry>,
    waiters: HashMap<Waiter, SetupWait>,
    timers: BTreeSet<(Instant, RegistryTimer)>,
    /// First contacts in progress whose key has a source: those of SMC-R at a server.
    first_contacts: FirstContacts,
    outputs: VecDeque<RegistryOutput>,
    last_group: u32,
    /// Groups created so far.
    created: u64,
    last_waiter: u64,
}

#[derive(Debug)]
struct GroupEntry {
    /// Its number in the order of creation.
    number: u64,
    /// The key for which it was created.
    key: GroupKey,
    /// The keys under which it is found: one per active link with SMC-R, else the same key.
    keys: Vec<GroupKey>,
    /// Links of SMC-R by which it is found. A client's also include former ones: a server that has
    /// not detected the failure of a link may still name it, which has to be distinguished from a
    /// server of an unknown group.
    links: GroupLinks,
    state: GroupState,
    /// Number of members: established connections and set-ups.
    members: usize,
    terms: Option<GroupTerms>,
    expires: Option<Instant>,
    /// Why it ends, once that is known.
    cause: Option<GroupEndCause>,
    /// The peer, or a process using its identity, has stated that it has no such group. The
    /// connections stay, but no other may join, and the group is not kept idle.
    is_suspect: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum RegistryTimer {
    /// Expiry of an idle group.
    Idle(GroupId),
    /// Deadline of a waiting set-up.
    Wait(Waiter),
}

/// All groups of one key.
#[derive(Debug, Default)]
struct KeyEntry {
    /// Groups that were created for this key and are not removed.
    groups: usize,
    /// Active and idle groups by their numbers, the oldest first.
    usable: BTreeMap<u64, GroupId>,
    /// Set-ups that are creating a group.
    creators: usize,
    waiting: VecDeque<(Waiter, Intent)>,
    /// A group of this key was ended by this side, and the peer was not notified because there were
    /// others.
    owes_notification: bool,
}

/// A set-up that waits for a creator.
#[derive(Clone, Copy, Debug)]
struct SetupWait {
    key: GroupKey,
    /// End of the wait for the present creator.
    deadline: Instant,
    /// End of the wait for all creators together.
    limit: Instant,
}

impl Registry {
    /// A set-up requests its link group.
    ///
    /// After it has become a [`Member`], it has to [`leave`](Self::leave) when its connection ends
    /// or its set-up fails.
    pub fn enter(&mut self, now: Instant, key: GroupKey, intent: Intent) -> EnterResult {
        let result = match intent {
            Intent::Create => Some(Ok(self.create(key))),
            _ => self.join_or_create(key, intent),
        };
        match result {
            Some(result) => EnterResult::Now(result),
            None => EnterResult::Wait(self.wait(now, key, intent)),
        }
    }

    /// A set-up stops waiting. After [`RegistryOutput::Ready`] it has to [`leave`](Self::leave)
    /// instead.
    pub fn cancel(&mut self, waiter: Waiter) {
        let Some(SetupWait { key, deadline, .. }) = self.waiters.remove(&waiter) else {
            return;
        };
        self.timers.remove(&(deadline, RegistryTimer::Wait(waiter)));
        if let Some(entry) = self.keys.get_mut(&key) {
            entry.waiting.retain(|(other, _)| *other != waiter);
        }
        self.remove_if_unused(key);
    }

    /// The first connection of a new group is established: from now on others may join.
    ///
    /// To be called when the client has sent CONFIRM, or the server has processed it. This one call
    /// records the success of the first contact and opens the group to others.
    ///
    /// # Errors
    /// [`Terminated`] when the group was ended meanwhile; the connection cannot be used then and
    /// still has to leave.
    pub fn establish(&mut self, group: GroupId, terms: GroupTerms) -> Result<(), Terminated> {
        let Some(entry) = self.groups.get_mut(&group) else {
            return Err(Terminated);
        };
        if entry.state.establish().is_err() {
            return Err(Terminated);
        }
        entry.terms = Some(terms);
        let (origin, keys) = (entry.key, entry.keys.clone());
        self.remove_creator(origin);
        if let Some(source) = origin.source() {
            self.first_contacts.succeed(source);
        }
        for key in keys {
            self.add_usable(key, group);
        }
        self.admit_waiters(origin);
        Ok(())
    }

    /// The links of an SMC-R group, or the space for buffers of the peer, have changed.
    ///
    /// From now on the group is found by the active links, and as a client also by its last ones.
    /// One whose peer is unresponsive ends with its last connection.
    /// While it is full, a server creates a new group instead of joining this one; a client follows
    /// its server.
    pub fn set_links(&mut self, group: GroupId, links: &GroupLinks) {
        let Some(entry) = self.groups.get_mut(&group) else {
            return;
        };
        let before = std::mem::take(&mut entry.keys);
        entry.set_links(links);
        if entry.is_suspect && entry.state == GroupState::Idle {
            entry.keys = before;
            return self.expire(group);
        }
        let keys = entry.keys.clone();
        if !matches!(entry.state, GroupState::Active | GroupState::Idle) {
            return;
        }
        for key in before.into_iter().filter(|key| !keys.contains(key)) {
            self.remove_usable(key, group);
        }
        for key in keys {
            self.add_usable(key, group);
        }
    }

    /// Handles the expiry of timers.
    pub fn handle_timeout(&mut self, now: Instant) {
        while self.poll_timeout().is_some_and(|at| at <= now) {
            match self.timers.pop_first() {
                Some((_, RegistryTimer::Idle(group))) => self.expire(group),
                Some((_, RegistryTimer::Wait(waiter))) => self.handle_wait_timeout(now, waiter),
                None => return,
            }
        }
    }

    /// The next action, until `None`.
    pub fn poll_output(&mut self) -> Option<RegistryOutput> {
        self.outputs.pop_front()
    }

    /// Latest time of the next call of [`handle_timeout`](Self::handle_timeout).
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// End of the wait of a set-up for the present creator; `None` after the wait has ended.
    #[must_use]
    pub fn deadline(&self, waiter: Waiter) -> Option<Instant> {
        self.waiters.get(&waiter).map(|waiting| waiting.deadline)
    }

    /// Number of waiting set-ups.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiters.len()
    }

    /// All groups in the order of their identifiers, for diagnostic tools.
    #[must_use]
    pub fn group_infos(&self) -> Vec<LinkGroupInfo> {
        let mut all: Vec<_> = self
            .groups
            .iter()
            .map(|(id, group)| group.group_info(*id))
            .collect();
        all.sort_unstable_by_key(|snapshot| snapshot.id);
        all
    }

    /// One group, for diagnostic tools.
    #[must_use]
    pub fn group_info(&self, group: GroupId) -> Option<LinkGroupInfo> {
        self.groups.get(&group).map(|entry| entry.group_info(group))
    }

    /// Whether no group is left.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.groups.is_empty()
            && self.keys.is_empty()
            && self.waiters.is_empty()
            && self.timers.is_empty()
            && self.first_contacts.is_empty()
    }

    /// Joins or creates. `None`: another set-up is creating the group, and has to be waited for.
    fn join_or_create(&mut self, key: GroupKey, intent: Intent) -> Option<Result<Member, NoGroup>> {
        if let Some(member) = self.join(key, intent) {
            return Some(Ok(member));
        }
        // A server's SMC-D group uses no resources but a number, and the creator may be a process
        // that sends nothing and has named the GID of the peer.
        let waits = intent == Intent::Join || matches!(key, GroupKey::Rdma { .. });
        if waits && self.keys.get(&key).is_some_and(|entry| entry.creators > 0) {
            return None;
        }
        Some(match intent {
            Intent::Join => Err(NoGroup::Missing),
            Intent::JoinOrCreate | Intent::Create => self.create_within_limit(key),
        })
    }

    fn join(&mut self, key: GroupKey, intent: Intent) -> Option<Member> {
        let group = self.joinable(key, intent)?;
        let entry = self.groups.get_mut(&group)?;
        let terms = entry.terms?;
        entry.state.join().ok()?;
        entry.members = entry.members.saturating_add(1);
        if let Some(at) = entry.expires.take() {
            self.timers.remove(&(at, RegistryTimer::Idle(group)));
        }
        Some(Member::Joined { group, terms })
    }

    /// The values negotiated for the group that a client would join now.
    #[must_use]
    pub fn terms(&self, key: GroupKey) -> Option<GroupTerms> {
        let group = self.joinable(key, Intent::Join)?;
        self.groups.get(&group)?.terms
    }

    /// The newest group with free capacity: if the peer ever lost a group, it was an older one.
    fn joinable(&self, key: GroupKey, intent: Intent) -> Option<GroupId> {
        let mut usable = self.keys.get(&key)?.usable.values().rev().copied();
        usable.find(|group| {
            self.groups.get(group).is_some_and(|entry| {
                // Only the server limits the connections of a group; its client follows.
                let has_capacity = intent != Intent::JoinOrCreate || entry.has_capacity();
                entry.terms.is_some() && has_capacity && entry.state.clone().join().is_ok()
            })
        })
    }

    /// Creates a group as a server, within the limits of first contacts: the client of SMC-R may
    /// never confirm, and until the timeout it uses a link and a buffer.
    fn create_within_limit(&mut self, key: GroupKey) -> Result<Member, NoGroup> {
        match key.source() {
            Some(source) if !self.first_contacts.has_capacity(source) => Err(NoGroup::Full),
            _ => Ok(self.create(key)),
        }
    }

    fn create(&mut self, key: GroupKey) -> Member {
        let group = self.free_id();
        self.created = self.created.wrapping_add(1);
        self.groups.insert(
            group,
            GroupEntry {
                number: self.created,
                key,
                keys: vec![key],
                links: GroupLinks::default(),
                state: GroupState::Pending,
                members: 1,
                terms: None,
                expires: None,
                cause: None,
                is_suspect: false,
            },
        );
        let entry = self.keys.entry(key).or_default();
        entry.groups = entry.groups.saturating_add(1);
        entry.creators = entry.creators.saturating_add(1);
        if let Some(source) = key.source() {
            self.first_contacts.begin(source);
        }
        Member::Created(group)
    }

    fn wait(&mut self, now: Instant, key: GroupKey, intent: Intent) -> Waiter {
        self.last_waiter = self.last_waiter.wrapping_add(1);
        let waiter = Waiter(self.last_waiter);
        let deadline = now.checked_add(CREATOR_TIMEOUT).unwrap_or(now);
        let limit = deadline.checked_add(CREATOR_TIMEOUT).unwrap_or(deadline);
        let waiting = SetupWait {
            key,
            deadline,
            limit,
        };
        self.waiters.insert(waiter, waiting);
        self.timers.insert((deadline, RegistryTimer::Wait(waiter)));
        self.keys
            .entry(key)
            .or_default()
            .waiting
            .push_back((waiter, intent));
        waiter
    }

    /// Admits waiting set-ups, in the order of arrival, as far as that is possible now.
    fn admit_waiters(&mut self, key: GroupKey) {
        while let Some((waiter, intent)) = self
            .keys
            .get(&key)
            .and_then(|entry| entry.waiting.front().copied())
        {
            let Some(result) = self.join_or_create(key, intent) else {
                break;
            };
            if let Some(entry) = self.keys.get_mut(&key) {
                entry.waiting.pop_front();
            }
            self.finish_wait(waiter, result);
        }
        self.remove_if_unused(key);
    }

    /// The creator takes too long for this set-up, which becomes a creator itself. The others wait
    /// for the new creator, within their limits.
    fn handle_wait_timeout(&mut self, now: Instant, waiter: Waiter) {
        let Some(SetupWait {
            key,
            deadline,
            limit,
        }) = self.waiters.get(&waiter).copied()
        else {
            return;
        };
        let Some(entry) = self.keys.get_mut(&key) else {
            return;
        };
        let Some(at) = entry.waiting.iter().position(|(other, _)| *other == waiter) else {
            return;
        };
        let result = match entry.waiting.remove(at) {
            Some((_, Intent::JoinOrCreate | Intent::Create)) => {
                let result = self.create_within_limit(key);
                // Set-ups at their limit time out together, and would extend nothing.
                if result.is_ok() && deadline < limit {
                    self.extend_waits(now, key);
                }
                result
            }
            Some((_, Intent::Join)) | None => Err(NoGroup::Missing),
        };
        self.finish_wait(waiter, result);
        self.remove_if_unused(key);
    }

    /// A new creator begins: waiting set-ups that may be creators themselves wait for it.
    fn extend_waits(&mut self, now: Instant, key: GroupKey) {
        let Some(entry) = self.keys.get(&key) else {
            return;
        };
        let until = now.checked_add(CREATOR_TIMEOUT).unwrap_or(now);
        for (waiter, _) in entry
            .waiting
            .iter()
            .filter(|(_, intent)| *intent != Intent::Join)
        {
            let Some(waiting) = self.waiters.get_mut(waiter) else {
                continue;
            };
            let timer = RegistryTimer::Wait(*waiter);
            self.timers.remove(&(waiting.deadline, timer));
            waiting.deadline = until.min(waiting.limit);
            self.timers.insert((waiting.deadline, timer));
        }
    }

    fn finish_wait(&mut self, waiter: Waiter, result: Result<Member, NoGroup>) {
        if let Some(waiting) = self.waiters.remove(&waiter) {
            let timer = RegistryTimer::Wait(waiter);
            self.timers.remove(&(waiting.deadline, timer));
        }
        self.outputs
            .push_back(RegistryOutput::Ready { waiter, result });
    }

    /// A set-up no longer creates a group.
    fn remove_creator(&mut self, key: GroupKey) {
        if let Some(entry) = self.keys.get_mut(&key) {
            entry.creators = entry.creators.saturating_sub(1);
        }
    }

    /// Makes the group available under this key, and adds set-ups that wait for one.
    fn add_usable(&mut self, key: GroupKey, group: GroupId) {
        if let Some(entry) = self.groups.get(&group) {
            let key_entry = self.keys.entry(key).or_default();
            key_entry.usable.insert(entry.number, group);
        }
        self.admit_waiters(key);
    }

    fn remove_usable(&mut self, key: GroupKey, group: GroupId) {
        let entry = self.groups.get(&group);
        if let (Some(entry), Some(key_entry)) = (entry, self.keys.get_mut(&key)) {
            key_entry.usable.remove(&entry.number);
        }
        self.remove_if_unused(key);
    }

    /// Removes a key without groups and set-ups.
    fn remove_if_unused(&mut self, key: GroupKey) {
        let is_empty = |entry: &KeyEntry| {
            entry.groups == 0
                && entry.usable.is_empty()
                && entry.creators == 0
                && entry.waiting.is_empty()
        };
        if self.keys.get(&key).is_some_and(is_empty) {
            self.keys.remove(&key);
        }
    }

    /// The next identifier that is not in use. Group numbers grow by 256, so that the low byte of a
    /// link user ID can contain a link number.
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

impl GroupEntry {
    /// Whether a server may add another connection.
    fn has_capacity(&self) -> bool {
        let limit = self.terms.and_then(|terms| terms.max_connections);
        !self.links.is_full
            && !self.is_suspect
            && limit.is_none_or(|limit| u32::try_from(self.members).is_ok_and(|n| n < limit))
    }

    fn set_links(&mut self, links: &GroupLinks) {
        self.links.is_full = links.is_full;
        self.is_suspect |= links.is_unresponsive;
        let ends = &mut self.links.ends;
        let is_client = matches!(self.key, GroupKey::Rdma { role, .. } if role == Role::Client);
        ends.retain(|end| is_client && !links.ends.contains(end));
        ends.extend(&links.ends);
        ends.drain(..ends.len().saturating_sub(LINKS_MAX));
        let keys = ends.iter().map(|end| self.key.with_link(end));
        self.keys = keys.collect();
    }

    fn group_info(&self, id: GroupId) -> LinkGroupInfo {
        LinkGroupInfo {
            id,
            key: self.key,
            state: self.state,
            connections: self.members,
            terms: self.terms,
        }
    }
}

/// How long a set-up waits for one creator of its group; it waits at most twice as long for two
/// creators in sequence. Well below the six seconds that a client waits for ACCEPT, so that stalled
/// creators cost no other set-up its connection.
pub const CREATOR_TIMEOUT: Duration = Duration::from_secs(2);

/// Most links by which a client's group is found, including failed ones.
const LINKS_MAX: usize = 4;

const GROUP_STEP: u32 = 0x100;
