//! Set-ups that wait for another one to create their group.

use std::time::{Duration, Instant};

use super::{Registry, RegistryTimer};
use crate::proto::group::{GroupKey, Intent, Member, NoGroup, RegistryOutput, Waiter};

/// A set-up that waits for a creator.
#[derive(Clone, Copy, Debug)]
pub(super) struct SetUpWait {
    key: GroupKey,
    /// End of the wait for the present creator.
    deadline: Instant,
    /// End of the wait for all creators together.
    limit: Instant,
}

impl Registry {
    /// A set-up stops waiting. After [`RegistryOutput::Ready`] it has to [`leave`](Self::leave)
    /// instead.
    pub fn cancel(&mut self, waiter: Waiter) {
        let Some(SetUpWait { key, deadline, .. }) = self.waiters.remove(&waiter) else {
            return;
        };
        self.timers.remove(&(deadline, RegistryTimer::Wait(waiter)));
        if let Some(entry) = self.keys.get_mut(&key) {
            entry.waiting.retain(|(other, _)| *other != waiter);
        }
        self.remove_if_unused(key);
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

    pub(super) fn wait(&mut self, now: Instant, key: GroupKey, intent: Intent) -> Waiter {
        self.last_waiter = self.last_waiter.wrapping_add(1);
        let waiter = Waiter(self.last_waiter);
        let deadline = now.checked_add(CREATOR_TIMEOUT).unwrap_or(now);
        let limit = deadline.checked_add(CREATOR_TIMEOUT).unwrap_or(deadline);
        let waiting = SetUpWait {
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
    pub(super) fn admit_waiters(&mut self, key: GroupKey) {
        while let Some((waiter, intent)) = self
            .keys
            .get(&key)
            .and_then(|entry| entry.waiting.front().copied())
        {
            let Some(result) = self.admit(key, intent) else {
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
    pub(super) fn handle_wait_timeout(&mut self, now: Instant, waiter: Waiter) {
        let Some(SetUpWait {
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
}

/// How long a set-up waits for one creator of its group; it waits at most twice as long for two
/// creators in sequence. Well below the six seconds that a client waits for ACCEPT, so that stalled
/// creators cost no other set-up its connection.
pub const CREATOR_TIMEOUT: Duration = Duration::from_secs(2);
