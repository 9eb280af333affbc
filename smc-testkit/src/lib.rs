//! For authors of SMC transports.
#![forbid(unsafe_code)]

pub mod conformance;
pub mod memory_device;
pub mod middleware;
mod rng;
pub mod runtime;

pub use rng::Rng;
