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
mod memory;
mod networks;
mod relayed;
mod setups;
mod single_link;
mod slow_receivers;
mod spare;
mod streams;
