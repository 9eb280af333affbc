//! The async runtime of endpoints: the traits, and adapters for tokio and smol.
//!
//! Both adapters can be on at once; no default is guessed.

#[cfg(any(feature = "tokio", feature = "smol"))]
mod connect;
#[cfg(any(feature = "tokio", feature = "smol"))]
mod net;
#[cfg(any(feature = "tokio", feature = "smol"))]
mod own_thread;
#[cfg(feature = "smol")]
pub mod smol;
#[cfg(feature = "tokio")]
pub mod tokio;

pub use smc_core::runtime::*;
