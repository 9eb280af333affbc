//! Fallback is complete: whatever the other end of a TCP connection does instead of its part of
//! the handshake, and whatever a device refuses, comes to one of three ends. The stream is TCP and
//! states why, with every byte of the application's data; or the connection fails with the kind of
//! error that fits, and a listener's application never sees it; or it is SMC. In all of them
//! nothing is left behind.
//!
//! The other end is a [`Raw`](smc_testkit::world::Raw) TCP socket that follows a script. Every row
//! of a table runs under a virtual clock, there once more with all reads and writes cut into pieces
//! of one byte, and, unless it waits for a timeout, over real sockets.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails the test")]

mod fallback_table;

mod announced;
mod client;
mod concurrency;
mod confirm;
mod devices;
mod idle;
mod interruptions;
mod local;
mod peer_death;
mod plain;
mod policies;
mod selection;
mod server;
mod side_channel;
