//! Unauthenticated channels: no HELLO was received yet.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Channels that wait for HELLO. A peer sends it in the call in which it connects, so it comes at
/// once unless the peer is malicious or was stopped.
#[derive(Debug)]
pub(super) struct PendingChannels<S> {
    /// By number, so the first one waits for longest.
    channels: BTreeMap<u64, Channel<S>>,
}

#[derive(Debug)]
struct Channel<S> {
    socket: S,
    uid: u32,
    until: Instant,
}

impl<S> Default for PendingChannels<S> {
    fn default() -> Self {
        Self {
            channels: BTreeMap::new(),
        }
    }
}

impl<S> PendingChannels<S> {
    /// Adds a channel of this user. Above the limit it removes and returns the oldest channel of
    /// the user with most channels, so that a user cannot displace a user with fewer.
    #[must_use]
    pub(super) fn add(&mut self, id: u64, uid: u32, socket: S, now: Instant) -> Option<S> {
        let until = now + HELLO_WITHIN;
        let channel = Channel { socket, uid, until };
        self.channels.insert(id, channel);
        if self.channels.len() <= MAX_PENDING {
            return None;
        }
        let mut by_user: BTreeMap<u32, usize> = BTreeMap::new();
        for channel in self.channels.values() {
            *by_user.entry(channel.uid).or_default() += 1;
        }
        let most = by_user.values().max();
        let has_most = |channel: &Channel<S>| by_user.get(&channel.uid) == most;
        let oldest = self.channels.iter().find(|(_, channel)| has_most(channel));
        let id = oldest.map(|(id, _)| *id);
        id.and_then(|id| self.remove(id))
    }

    /// Removes the oldest channel of this user.
    pub(super) fn remove_oldest(&mut self, uid: u32) -> Option<S> {
        let mut channels = self.channels.iter();
        let oldest = channels.find(|(_, channel)| channel.uid == uid);
        let id = oldest.map(|(id, _)| *id);
        id.and_then(|id| self.remove(id))
    }

    pub(super) fn remove(&mut self, id: u64) -> Option<S> {
        self.channels.remove(&id).map(|channel| channel.socket)
    }

    /// Removes a channel on which HELLO has not come in time.
    pub(super) fn remove_expired(&mut self, now: Instant) -> Option<S> {
        let first = self.channels.first_entry()?;
        (first.get().until <= now).then(|| first.remove().socket)
    }

    /// Time until the next channel expires.
    pub(super) fn time_left(&self, now: Instant) -> Option<Duration> {
        let (_, first) = self.channels.first_key_value()?;
        Some(first.until.saturating_duration_since(now))
    }
}

/// Time limit for HELLO.
const HELLO_WITHIN: Duration = Duration::from_secs(1);

/// Upper limit of pending channels.
const MAX_PENDING: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_channel_of_the_user_with_most_is_removed_first() {
        let now = Instant::now();
        let mut pending = PendingChannels::default();
        let full = MAX_PENDING as u64;
        assert!((0..full).all(|id| pending.add(id, 1, id, now).is_none()));
        // Of the same user, and then of another one.
        assert_eq!(pending.add(full, 1, full, now), Some(0));
        for id in full + 1..full + 33 {
            assert_eq!(pending.add(id, 2, id, now), Some(id - full));
        }
        // Both have as many now.
        assert_eq!(pending.add(1000, 2, 1000, now), Some(full + 1));
        assert_eq!(pending.add(1001, 1, 1001, now), Some(33));
        // One channel of a third one stays, however many the others open.
        assert_eq!(pending.add(1002, 3, 1002, now), Some(34));
        for id in 2000..2100 {
            assert!(pending.add(id, (id % 2) as u32 + 1, id, now).is_some());
        }
        assert_eq!(pending.remove(1002), Some(1002));
    }

    #[test]
    fn hello_has_to_come_within_a_second() {
        let now = Instant::now();
        let at = |milliseconds| now + Duration::from_millis(milliseconds);
        let mut pending = PendingChannels::default();
        assert_eq!(pending.time_left(now), None);
        assert_eq!(pending.add(1, 1, "first", now), None);
        assert_eq!(pending.add(2, 1, "second", at(500)), None);
        assert_eq!(pending.remove_expired(at(999)), None);
        assert_eq!(pending.remove_expired(at(1000)), Some("first"));
        assert_eq!(pending.remove_expired(at(1000)), None);
        assert_eq!(
            pending.time_left(at(1000)),
            Some(Duration::from_millis(500))
        );
        assert_eq!(pending.remove_expired(at(2000)), Some("second"));
    }
}
