//! For authors of SMC transports.
#![forbid(unsafe_code)]

pub mod conformance;
pub mod memory_device;
pub mod middleware;
pub mod model;
mod rng;
pub mod runtime;

pub use rng::Rng;
