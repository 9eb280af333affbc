//! Channels on which nothing was said yet.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Channels that wait for HELLO. A peer says it in the call in which it connects, so it takes no time
/// unless the peer means harm, or is stopped just then.
#[derive(Debug)]
pub(super) struct Waiting<S> {
    /// By number, so the first one waits for longest.
    channels: BTreeMap<u64, Channel<S>>,
}

#[derive(Debug)]
struct Channel<S> {
    socket: S,
    uid: u32,
    until: Instant,
}

impl<S> Default for Waiting<S> {
    fn default() -> Self {
        Self {
            channels: BTreeMap::new(),
        }
    }
}

impl<S> Waiting<S> {
    /// Adds a channel of this user. Returns one that has to go if there are too many: the oldest of
    /// the user who has most, so that no user's channels push out those of another one who has fewer.
    #[must_use]
    pub(super) fn add(&mut self, id: u64, uid: u32, socket: S, now: Instant) -> Option<S> {
        let until = now + HELLO_WITHIN;
        let channel = Channel { socket, uid, until };
        self.channels.insert(id, channel);
        if self.channels.len() <= MAX_WAITING {
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

    pub(super) fn remove(&mut self, id: u64) -> Option<S> {
        self.channels.remove(&id).map(|channel| channel.socket)
    }

    /// Takes out one on which HELLO has not come in time.
    pub(super) fn remove_late(&mut self, now: Instant) -> Option<S> {
        let first = self.channels.first_entry()?;
        (first.get().until <= now).then(|| first.remove().socket)
    }

    /// How long until one is late.
    pub(super) fn time_left(&self, now: Instant) -> Option<Duration> {
        let (_, first) = self.channels.first_key_value()?;
        Some(first.until.saturating_duration_since(now))
    }
}

/// How long a peer may take to say HELLO.
const HELLO_WITHIN: Duration = Duration::from_secs(1);

/// Channels that may wait at a time.
const MAX_WAITING: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_who_has_most_makes_room_for_others() {
        let now = Instant::now();
        let mut waiting = Waiting::default();
        let full = MAX_WAITING as u64;
        assert!((0..full).all(|id| waiting.add(id, 1, id, now).is_none()));
        // Of the same user, and then of another one.
        assert_eq!(waiting.add(full, 1, full, now), Some(0));
        for id in full + 1..full + 33 {
            assert_eq!(waiting.add(id, 2, id, now), Some(id - full));
        }
        // Both have as many now.
        assert_eq!(waiting.add(1000, 2, 1000, now), Some(full + 1));
        assert_eq!(waiting.add(1001, 1, 1001, now), Some(33));
        // One channel of a third one stays, however many the others open.
        assert_eq!(waiting.add(1002, 3, 1002, now), Some(34));
        for id in 2000..2100 {
            assert!(waiting.add(id, (id % 2) as u32 + 1, id, now).is_some());
        }
        assert_eq!(waiting.remove(1002), Some(1002));
    }

    #[test]
    fn hello_has_to_come_within_a_second() {
        let now = Instant::now();
        let at = |milliseconds| now + Duration::from_millis(milliseconds);
        let mut waiting = Waiting::default();
        assert_eq!(waiting.time_left(now), None);
        assert_eq!(waiting.add(1, 1, "first", now), None);
        assert_eq!(waiting.add(2, 1, "second", at(500)), None);
        assert_eq!(waiting.remove_late(at(999)), None);
        assert_eq!(waiting.remove_late(at(1000)), Some("first"));
        assert_eq!(waiting.remove_late(at(1000)), None);
        assert_eq!(
            waiting.time_left(at(1000)),
            Some(Duration::from_millis(500))
        );
        assert_eq!(waiting.remove_late(at(2000)), Some("second"));
    }
}
