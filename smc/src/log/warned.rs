//! Warnings that are written once, and not too many of them: a peer that causes one with each
//! connection, ever new ones as well, fills no log.

#[cfg(feature = "tracing")]
use std::collections::VecDeque;
#[cfg(feature = "tracing")]
use std::hash::Hash;
#[cfg(all(feature = "tracing", feature = "axum08"))]
use std::io::ErrorKind;
use std::net::IpAddr;
#[cfg(feature = "tracing")]
use std::time::Instant;

#[cfg(feature = "tracing")]
use hashbrown::HashSet;
#[cfg(feature = "tracing")]
use smc_wire::types::DeclineCode;

use crate::address::Address;
use crate::error::{Error, FallbackReason};
#[cfg(feature = "tracing")]
use crate::error::{FallbackCause, Refusal};
#[cfg(feature = "tracing")]
use crate::mutex::Mutex;
#[cfg(feature = "tracing")]
use crate::quota::{LineQuota, LineVerdict};

/// The other end of a connection, as far as warnings distinguish it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Destination {
    /// The address of a server.
    Server(Address),
    /// The address of a client, whose port is another one each time. Clients of UNIX sockets have
    /// none.
    Client(Option<IpAddr>),
}

impl Destination {
    /// The server at this address.
    pub(crate) fn server(addr: &Address) -> Self {
        Self::Server(addr.clone())
    }

    /// The client with this address.
    pub(crate) fn client(addr: &Address) -> Self {
        Self::Client(ip(addr))
    }
}

fn ip(addr: &Address) -> Option<IpAddr> {
    addr.tcp().map(|addr| addr.ip())
}

/// The warnings about peers that an endpoint has written.
#[derive(Debug, Default)]
pub(crate) struct Warned {
    #[cfg(feature = "tracing")]
    written: Mutex<Written>,
}

/// The latest warnings of an endpoint, and its quota of lines.
#[cfg(feature = "tracing")]
#[derive(Debug, Default)]
struct Written {
    seen: Recent<Warning>,
    quota: LineQuota,
}

/// The subject of a warning.
#[cfg(feature = "tracing")]
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Warning {
    Fallback(Destination, DeclineCode, Option<DeclineCode>),
    Refused(Option<IpAddr>, DeclineCode, Option<DeclineCode>),
    Full(Option<IpAddr>),
    #[cfg(feature = "axum08")]
    NotAccepted(Address, ErrorKind),
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
    pub(crate) fn refused(&self, peer: &Address, reason: &FallbackReason) {
        let warning = Warning::Refused(ip(peer), reason.local, reason.peer);
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
    pub(crate) fn full(&self, peer: &Address) {
        if self.is_due(Warning::Full(ip(peer))) {
            warn!("client is refused: too many handshakes");
        } else {
            debug!("client is refused: too many handshakes");
        }
    }

    /// A listener could not accept, and goes on unless it has ended.
    #[cfg(feature = "axum08")]
    pub(crate) fn not_accepted(&self, listener: &Address, error: &std::io::Error) {
        if self.is_due(Warning::NotAccepted(listener.clone(), error.kind())) {
            warn!("accept failed", listener = listener, error = error);
        } else {
            debug!("accept failed", listener = listener, error = error);
        }
    }

    /// Whether a warning is to be written. Warns of those that are not because of their number.
    fn is_due(&self, warning: Warning) -> bool {
        let Some(verdict) = self.written.lock().add(warning, Instant::now()) else {
            return false;
        };
        match verdict {
            LineVerdict::Written { left_out: 0 } => true,
            LineVerdict::Written { left_out } => {
                warn!("warnings were left out", count = left_out);
                true
            }
            LineVerdict::FirstLeftOut => {
                warn!("too many warnings: further ones are left out for a minute");
                false
            }
            LineVerdict::LeftOut => false,
        }
    }
}

#[cfg(feature = "tracing")]
impl Written {
    /// Adds a warning: whether it is written, or `None` if it was written before.
    fn add(&mut self, warning: Warning, now: Instant) -> Option<LineVerdict> {
        if self.seen.contains(&warning) {
            return None;
        }
        let verdict = self.quota.take(now);
        // One that is left out is written when it comes again later.
        if let LineVerdict::Written { .. } = verdict {
            self.seen.insert(warning);
        }
        Some(verdict)
    }
}

#[cfg(not(feature = "tracing"))]
impl Warned {
    pub(crate) fn fallback(&self, _to: Destination, _reason: &FallbackReason) {}

    pub(crate) fn refused(&self, _peer: &Address, _reason: &FallbackReason) {}

    pub(crate) fn failed(&self, _what: &'static str, _with: Destination, _cause: &Error) {}

    pub(crate) fn full(&self, _peer: &Address) {}

    #[cfg(feature = "axum08")]
    pub(crate) fn not_accepted(&self, _listener: &Address, _error: &std::io::Error) {}
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
impl<T: Clone + Eq + Hash> Recent<T> {
    fn contains(&self, entry: &T) -> bool {
        self.entries.contains(entry)
    }

    /// Returns whether the entry is new.
    pub(crate) fn insert(&mut self, entry: T) -> bool {
        if !self.entries.insert(entry.clone()) {
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
    fn a_warning_is_written_once_and_one_that_was_left_out_when_it_comes_again() {
        let mut written = Written::default();
        let begin = Instant::now();
        let of = |number: u32| Warning::Full(Some(IpAddr::from(number.to_be_bytes())));
        for number in 0..LineQuota::MAX {
            let verdict = written.add(of(number), begin);
            assert_eq!(verdict, Some(LineVerdict::Written { left_out: 0 }));
            assert_eq!(written.add(of(number), begin), None);
        }
        let verdict = written.add(of(1000), begin);
        assert_eq!(verdict, Some(LineVerdict::FirstLeftOut));
        let next = begin + LineQuota::PERIOD;
        assert_eq!(written.add(of(0), next), None);
        let verdict = written.add(of(1000), next);
        assert_eq!(verdict, Some(LineVerdict::Written { left_out: 1 }));
    }
}
