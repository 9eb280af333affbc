//! Whole streams over SMC-R: endpoints on in-memory RDMA devices, with virtual time.

mod closing;
mod crowds;
mod declines;
mod failover;
mod groups;
mod hostile;
mod links;
mod meddler;
mod memory;
mod set_ups;
mod simulation;
mod streams;
mod world;
