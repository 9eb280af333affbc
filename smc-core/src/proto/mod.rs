//! The protocol as machines without input and output.
//!
//! Nothing in here opens a socket, looks at a clock, waits, or touches shared memory. Each machine
//! takes what happened as a value together with the time (`handle_*(now, ..)`, one mutation per
//! call), then is drained with `poll_output()` until `None`, then asked with `poll_timeout()` when
//! it wants to be called again. Work that takes time is an output; its result comes back as an
//! input. Time never goes back. No input from a peer can make a machine panic.

#![forbid(unsafe_code)]
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

pub mod conn;
pub mod group;
pub mod handshake;
pub mod links;
pub mod table;
