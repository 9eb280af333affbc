//! The codes by which a stream is TCP.

use std::io;

use smc::{Error, FallbackReason, Stream};
use smc_core::wire::types::DeclineCode;

/// The codes of why a stream is TCP; its mode has to report the same.
///
/// # Panics
///
/// If the stream contradicts itself.
pub fn reason(stream: &Stream) -> Option<Codes> {
    let reason = stream.fallback_reason();
    assert_eq!(stream.mode().fallback_reason(), reason);
    assert_eq!(stream.mode().is_smc(), reason.is_none());
    assert_eq!(stream.state().is_some(), reason.is_none());
    reason.map(Codes::from)
}

/// The codes of a reason, the local one and the peer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "there are these two")]
pub struct Codes {
    /// What this end has found.
    pub local: DeclineCode,
    /// What the peer has declined with.
    pub peer: Option<DeclineCode>,
}

impl Codes {
    /// This end has declined.
    #[must_use]
    pub const fn local(local: DeclineCode) -> Self {
        Self { local, peer: None }
    }

    /// The peer has declined.
    #[must_use]
    pub const fn peer_declined(peer: DeclineCode) -> Self {
        Self {
            local: DeclineCode::PEERDECL,
            peer: Some(peer),
        }
    }
}

impl From<FallbackReason> for Codes {
    fn from(reason: FallbackReason) -> Self {
        Self {
            local: reason.local,
            peer: reason.peer,
        }
    }
}

/// The codes of an error that states that SMC was required.
///
/// # Panics
///
/// If it states something else.
pub fn codes(error: &Error) -> Codes {
    match error {
        Error::Declined(reason) => reason.clone().into(),
        other => panic!("not declined, but {other}"),
    }
}

/// The kind that callers see.
pub fn kind(error: Error) -> io::ErrorKind {
    io::Error::from(error).kind()
}
