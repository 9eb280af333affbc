//! Warnings that are written once, and not too many of them: a peer that causes one with each
//! connection, ever new ones as well, fills no log.

#[cfg(feature = "tracing")]
use std::collections::VecDeque;
#[cfg(feature = "tracing")]
use std::hash::Hash;
use std::net::{IpAddr, SocketAddr};
#[cfg(feature = "tracing")]
use std::time::{Duration, Instant};

#[cfg(feature = "tracing")]
use hashbrown::HashSet;
#[cfg(feature = "tracing")]
use smc_wire::types::DeclineCode;

use crate::error::{Error, FallbackReason};
#[cfg(feature = "tracing")]
use crate::error::{FallbackCause, Refusal};
#[cfg(feature = "tracing")]
use crate::mutex::Mutex;

/// The other end of a connection, as far as warnings distinguish it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Destination {
    /// The address of a server.
    Server(SocketAddr),
    /// The address of a client, whose port is another one each time.
    Client(IpAddr),
}

/// The warnings about peers that an endpoint has written.
#[derive(Debug, Default)]
pub(crate) struct Warned {
    #[cfg(feature = "tracing")]
    written: Mutex<Written>,
}

/// Those of an endpoint.
#[cfg(feature = "tracing")]
#[derive(Debug, Default)]
struct Written {
    seen: Recent<Warning>,
    /// When the first one of this period was written.
    begin: Option<Instant>,
    /// In this period.
    count: u32,
    left_out: u64,
}

/// What becomes of a warning.
#[cfg(feature = "tracing")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// It is written, after a line about so many that were not since the one before.
    Written { left_out: u64 },
    /// It is the first one of this period that is left out.
    LeftOut,
    /// It was written before, or is left out.
    Silent,
}

/// What a warning is about.
#[cfg(feature = "tracing")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Warning {
    Fallback(Destination, DeclineCode, Option<DeclineCode>),
    Refused(IpAddr, DeclineCode, Option<DeclineCode>),
    Full(IpAddr),
    Violation(Destination),
}

#[cfg(feature = "tracing")]
impl Warned {
    /// A stream stays TCP: a warning, unless that was to be expected or was reported.
    pub(crate) fn fallback(&self, to: Destination, reason: &FallbackReason) {
        let warning = Warning::Fallback(to, reason.local, reason.peer);
        if !is_expected(&reason.cause) && self.is_due(warning) {
            warn!("stream stays TCP", reason = reason);
        } else {
            debug!("stream stays TCP", reason = reason);
        }
    }

    /// A client is closed: the policy requires SMC.
    pub(crate) fn refused(&self, peer: SocketAddr, reason: &FallbackReason) {
        let warning = Warning::Refused(peer.ip(), reason.local, reason.peer);
        if self.is_due(warning) {
            warn!("client is refused: SMC is required", reason = reason);
        } else {
            debug!("client is refused: SMC is required", reason = reason);
        }
    }

    /// A set-up has failed, or a connection has ended with an error.
    pub(crate) fn failed(&self, what: &'static str, with: Destination, cause: &Error) {
        match cause {
            Error::Bug(_) => error!("defect of this library", step = what, cause = cause),
            Error::PeerMisbehaved(_) | Error::Malformed(_) => {
                if self.is_due(Warning::Violation(with)) {
                    warn!("peer violated the protocol", step = what, cause = cause);
                } else {
                    debug!("peer violated the protocol", step = what, cause = cause);
                }
            }
            _ => debug!("ended with an error", step = what, cause = cause),
        }
    }

    /// A client is closed: there are too many handshakes.
    pub(crate) fn full(&self, peer: SocketAddr) {
        if self.is_due(Warning::Full(peer.ip())) {
            warn!("client is refused: too many handshakes");
        } else {
            debug!("client is refused: too many handshakes");
        }
    }

    /// Whether a warning is to be written. Warns of those that are not because of their number.
    fn is_due(&self, warning: Warning) -> bool {
        let verdict = self.written.lock().judge(warning, Instant::now());
        match verdict {
            Verdict::Written { left_out: 0 } => true,
            Verdict::Written { left_out } => {
                warn!("warnings were left out", count = left_out);
                true
            }
            Verdict::LeftOut => {
                warn!("too many warnings: further ones are left out for a minute");
                false
            }
            Verdict::Silent => false,
        }
    }
}

#[cfg(feature = "tracing")]
impl Written {
    fn judge(&mut self, warning: Warning, now: Instant) -> Verdict {
        if self.seen.contains(&warning) {
            return Verdict::Silent;
        }
        let is_over = |begin: Instant| now.saturating_duration_since(begin) >= PERIOD;
        if self.begin.is_none_or(is_over) {
            (self.begin, self.count) = (Some(now), 0);
        }
        if self.count == WARNINGS_MAX {
            // Not in the set, so that it is written when it comes again later.
            self.left_out = self.left_out.saturating_add(1);
            return match self.left_out {
                1 => Verdict::LeftOut,
                _ => Verdict::Silent,
            };
        }
        self.count += 1;
        self.seen.insert(warning);
        let left_out = std::mem::take(&mut self.left_out);
        Verdict::Written { left_out }
    }
}

#[cfg(not(feature = "tracing"))]
impl Warned {
    pub(crate) fn fallback(&self, _to: Destination, _reason: &FallbackReason) {}

    pub(crate) fn refused(&self, _peer: SocketAddr, _reason: &FallbackReason) {}

    pub(crate) fn failed(&self, _what: &'static str, _with: Destination, _cause: &Error) {}

    pub(crate) fn full(&self, _peer: SocketAddr) {}
}

/// Whether the settings of this end ask for TCP, or the peer has no SMC at all.
#[cfg(feature = "tracing")]
const fn is_expected(cause: &FallbackCause) -> bool {
    matches!(
        cause,
        FallbackCause::Policy
            | FallbackCause::OtherHost
            | FallbackCause::NotAnnounced { .. }
            | FallbackCause::NoSynOption
            | FallbackCause::NotOffered
            | FallbackCause::PlainServer
            | FallbackCause::Refused(Refusal::Policy)
    )
}

/// A set of bounded size, from which the oldest entry is removed.
#[cfg(feature = "tracing")]
#[derive(Debug)]
pub(crate) struct Recent<T> {
    entries: HashSet<T>,
    /// The same, the oldest first.
    order: VecDeque<T>,
}

#[cfg(feature = "tracing")]
impl<T> Default for Recent<T> {
    fn default() -> Self {
        Self {
            entries: HashSet::new(),
            order: VecDeque::new(),
        }
    }
}

#[cfg(feature = "tracing")]
impl<T: Copy + Eq + Hash> Recent<T> {
    fn contains(&self, entry: &T) -> bool {
        self.entries.contains(entry)
    }

    /// Returns whether the entry is new.
    pub(crate) fn insert(&mut self, entry: T) -> bool {
        if !self.entries.insert(entry) {
            return false;
        }
        if self.order.len() == RECENT_MAX {
            if let Some(oldest) = self.order.pop_front() {
                self.entries.remove(&oldest);
            }
        }
        self.order.push_back(entry);
        true
    }
}

/// Entries of a set, each some tens of bytes long: an endpoint has more peers than that only if
/// they are clients from everywhere.
#[cfg(feature = "tracing")]
const RECENT_MAX: usize = 1024;

/// Warnings of an endpoint in a period.
#[cfg(feature = "tracing")]
const WARNINGS_MAX: u32 = 60;
#[cfg(feature = "tracing")]
const PERIOD: Duration = Duration::from_secs(60);

#[cfg(all(test, feature = "tracing"))]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_new_once_and_again_when_1024_others_have_come() {
        let mut recent = Recent::default();
        assert!(recent.insert(0));
        assert!(!recent.insert(0));
        for entry in 1..RECENT_MAX {
            assert!(recent.insert(entry));
        }
        assert!(!recent.insert(0));
        assert!(recent.insert(RECENT_MAX));
        assert!(recent.insert(0));
        assert_eq!(recent.entries.len(), RECENT_MAX);
        assert_eq!(recent.order.len(), RECENT_MAX);
    }

    #[test]
    fn warnings_of_ever_new_addresses_are_bounded_and_counted() {
        let mut written = Written::default();
        let begin = Instant::now();
        let of = |number: u32| Warning::Full(IpAddr::from(number.to_be_bytes()));
        for number in 0..WARNINGS_MAX {
            let verdict = written.judge(of(number), begin);
            assert_eq!(verdict, Verdict::Written { left_out: 0 });
            assert_eq!(written.judge(of(number), begin), Verdict::Silent);
        }
        let later = begin + PERIOD / 2;
        assert_eq!(written.judge(of(1000), later), Verdict::LeftOut);
        for number in 1001..3000 {
            assert_eq!(written.judge(of(number), later), Verdict::Silent);
        }
        let next = begin + PERIOD;
        assert_eq!(written.judge(of(0), next), Verdict::Silent, "as before");
        let verdict = written.judge(of(1000), next);
        assert_eq!(verdict, Verdict::Written { left_out: 2000 });
        let verdict = written.judge(of(1001), next);
        assert_eq!(verdict, Verdict::Written { left_out: 0 });
    }
}
