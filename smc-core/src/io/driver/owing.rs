//! Connections for which the device was too busy, and when it is asked again.

use std::time::{Duration, Instant};

use hashbrown::HashMap;

use crate::io::conn::{Asked, ConnKey};

/// Connections that wait for a busy device.
///
/// A device is asked again soon at first, then ever less often, and not for longer than
/// [`PATIENCE`]: what keeps it busy may be a peer that means harm.
#[derive(Debug, Default)]
pub(super) struct Owing(HashMap<ConnKey, Wait>);

#[derive(Debug)]
struct Wait {
    /// Since when the device has taken nothing of the connection.
    since: Instant,
    /// Where the connection had written to then.
    written: u64,
    pause: Duration,
    /// When it is asked again, if `is_open`.
    at: Instant,
    is_open: bool,
}

impl Wait {
    fn new(written: u64, now: Instant) -> Self {
        Self {
            since: now,
            written,
            pause: SOON,
            at: now + SOON,
            is_open: true,
        }
    }

    /// Whether the connection may still want the answer to when the device was asked last.
    fn is_recent(&self, now: Instant) -> bool {
        self.is_open || now <= self.at + RECENT
    }
}

impl Owing {
    /// The device has refused something of a connection, which has `written` up to there.
    pub(super) fn add(&mut self, key: ConnKey, written: u64, now: Instant) {
        match self.0.get_mut(&key) {
            Some(wait) if wait.written == written && wait.is_recent(now) => wait.is_open = true,
            _ => {
                self.0.insert(key, Wait::new(written, now));
            }
        }
    }

    /// Takes the connections for which the device may be asked again, and whether it had its time.
    pub(super) fn due(&mut self, now: Instant) -> Vec<(ConnKey, bool)> {
        let mut due = Vec::new();
        self.0.retain(|key, wait| {
            if wait.is_open && wait.at <= now {
                due.push((*key, now.duration_since(wait.since) >= PATIENCE));
                wait.is_open = false;
                wait.pause = (wait.pause * 2).min(SELDOM);
                wait.at = now + wait.pause;
            }
            wait.is_recent(now)
        });
        due
    }

    /// What the device has answered.
    pub(super) fn answered(&mut self, key: ConnKey, asked: Asked, now: Instant) {
        let Some(wait) = self.0.get_mut(&key) else {
            return;
        };
        match asked {
            // The writer may have asked for more meanwhile.
            Asked::Taken => {
                let is_open = wait.is_open;
                *wait = Wait::new(wait.written, now);
                wait.is_open = is_open;
            }
            Asked::Refused => wait.is_open = true,
            Asked::Nothing => {}
        }
    }

    pub(super) fn remove(&mut self, key: ConnKey) {
        self.0.remove(&key);
    }

    /// When the device has to be asked next.
    pub(super) fn next(&self) -> Option<Instant> {
        let open = self.0.values().filter(|wait| wait.is_open);
        open.map(|wait| wait.at).min()
    }
}

/// How soon a busy device is asked again, at first and at last.
const SOON: Duration = Duration::from_millis(1);
const SELDOM: Duration = Duration::from_millis(64);
/// For how long a device may take nothing of a connection. None is known that is busy for a second.
const PATIENCE: Duration = Duration::from_secs(10);
/// How soon a writer that was woken comes back with what the device refuses.
const RECENT: Duration = Duration::from_secs(1);
