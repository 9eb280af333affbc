//! Whole streams over SMC-R: endpoints on in-memory RDMA devices, with virtual time.

mod failover;
mod groups;
mod streams;
mod world;
