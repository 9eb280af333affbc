//! The protocol state machines, without I/O.
//!
//! Code in this module opens no socket, reads no clock, never waits, and does not access shared
//! memory. A machine receives each event as a value (`handle_*`, one mutation per call), together
//! with the current time where it matters. After each call the caller of `handshake`, `links` and
//! `group` drains `poll_output()` until it returns `None`, and reads `poll_timeout()` for the time
//! of the next call; calls of `conn` return what there is to send. An operation that takes time is
//! an output, and its result is an input. Time must not go back. Input from a peer never causes a
//! panic.

#![forbid(unsafe_code)]
#![allow(
    clippy::exhaustive_enums,
    clippy::exhaustive_structs,
    reason = "no stable interface: the shell in the crate `smc` has to handle every case"
)]
#![cfg_attr(
    not(test),
    deny(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::as_conversions,
        clippy::disallowed_methods,
        clippy::disallowed_types,
        clippy::panic,
        clippy::unwrap_used
    )
)]

use std::time::{Duration, Instant};

pub mod conn;
pub mod group;
pub mod handshake;
pub mod links;
pub mod table;

/// `now + wait`, as far as the clock goes.
fn after(now: Instant, wait: Duration) -> Instant {
    now.checked_add(wait).unwrap_or(now)
}

/// Which side of the TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The side that connected.
    Client,
    /// The side that listened.
    Server,
}

impl Role {
    /// That of the other side.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}
