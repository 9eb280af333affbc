//! The promise that reading in place takes.

#![allow(unsafe_code, reason = "the promise about peers is an unsafe function")]

use smc_core::mem::TrustPeers;

/// For endpoints whose only peer is the other process of a measurement.
pub(super) fn trust_peer() -> TrustPeers {
    // SAFETY: both ends are this program, and find each other in a directory that was made for
    // them, that only this user can read, and whose name no other process knows. The peer's streams
    // are of smc, which writes bytes of a ring only while they are free.
    unsafe { TrustPeers::new() }
}
