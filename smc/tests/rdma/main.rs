//! Whole streams over SMC-R: endpoints on in-memory RDMA devices, with virtual time.

mod closing;
mod concurrency;
mod declines;
mod delivery;
mod driver_thread;
mod failover;
mod forged;
mod groups;
mod hostile;
mod interceptor;
mod links;
mod memory;
mod networks;
mod setups;
mod simulation;
mod spare;
mod streams;
