//! Whole streams over SMC-R: endpoints on in-memory RDMA devices, with virtual time.

mod closing;
mod concurrency;
mod credits;
mod declines;
mod delivery;
mod driver_thread;
mod early;
mod failover;
mod fast_open;
mod forged;
mod groups;
mod hostile;
mod interceptor;
mod ipv6;
mod links;
#[cfg(feature = "tracing")]
#[path = "../tracing/log.rs"]
#[allow(dead_code, reason = "other tests use more of it")]
#[allow(clippy::unwrap_used, reason = "a helper of a test fails the test")]
mod log;
mod memory;
mod networks;
mod relayed;
mod setups;
mod single_link;
mod slow_receivers;
mod spare;
mod streams;
