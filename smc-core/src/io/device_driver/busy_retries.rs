//! Connections for which the device was too busy, and when it is asked again.

use std::time::{Duration, Instant};

use hashbrown::HashMap;

use crate::io::conn::{Asked, ConnKey};

/// Connections that wait for a busy device.
///
/// A device is asked again soon at first, then ever less often. After [`BUSY_MAX`] the connection ends:
/// a hostile peer may keep the device busy. From then on the device is only asked, seldom, to take the
/// last word, for [`LAST_WORD_MAX`].
#[derive(Debug, Default)]
pub(super) struct Owing(HashMap<ConnKey, Wait>);

#[derive(Debug)]
struct Wait {
    /// The pauses before the device was asked, since it has taken something of the connection. Time
    /// in which it was not asked, as while the process was stopped, does not count.
    waited: Duration,
    has_ended: bool,
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
            waited: Duration::ZERO,
            has_ended: false,
            written,
            pause: SOON,
            at: now + SOON,
            is_open: true,
        }
    }

    fn next(&mut self, now: Instant) -> Due {
        self.waited += self.pause;
        let (due, longest) = match (self.has_ended, self.waited) {
            (false, waited) if waited < BUSY_MAX => (Due::Ask, SELDOM),
            (false, _) => {
                self.has_ended = true;
                self.waited = Duration::ZERO;
                (Due::End, SELDOM)
            }
            (true, waited) if waited < LAST_WORD_MAX => (Due::Ask, LAST_WORD_SELDOM),
            (true, _) => (Due::Forget, SELDOM),
        };
        self.is_open = due == Due::End;
        self.pause = (self.pause * 2).min(longest);
        self.at = now + self.pause;
        due
    }

    /// Whether the connection may still want the answer to when the device was asked last.
    fn is_recent(&self, now: Instant) -> bool {
        self.is_open || now <= self.at + RECENT
    }
}

/// What is due for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// The device may be asked again.
    Ask,
    /// It had its time.
    End,
    /// It had its time for the last word, too.
    Forget,
}

impl Owing {
    /// The device has refused something of a connection, which has `written` up to there.
    pub(super) fn add(&mut self, key: ConnKey, written: u64, now: Instant) {
        match self.0.get_mut(&key) {
            Some(wait) if wait.has_ended => wait.is_open = true,
            Some(wait) if wait.written == written && wait.is_recent(now) => wait.is_open = true,
            _ => {
                self.0.insert(key, Wait::new(written, now));
            }
        }
    }

    /// Takes the connections for which something is due.
    pub(super) fn due(&mut self, now: Instant) -> Vec<(ConnKey, Due)> {
        let mut due = Vec::new();
        self.0.retain(|key, wait| {
            if wait.is_open && wait.at <= now {
                due.push((*key, wait.next(now)));
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
/// For how long a device may take nothing of a connection. None is known that is busy for a second,
/// and a guest that stands still is taken for dead after 15.
const BUSY_MAX: Duration = Duration::from_secs(20);
/// For how long it may then not take the last word, and how seldom it is asked.
const LAST_WORD_MAX: Duration = Duration::from_secs(600);
const LAST_WORD_SELDOM: Duration = Duration::from_secs(10);
/// How soon a writer that was woken comes back with what the device refuses.
const RECENT: Duration = Duration::from_secs(1);
