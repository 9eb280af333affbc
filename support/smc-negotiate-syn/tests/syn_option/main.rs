//! Negotiation by TCP option on a real kernel, with its eBPF program.
//!
//! Needs root. Each test runs in a process of its own, in a cgroup, a network namespace and a bpf
//! file system of its own (`lab`), so nothing on the machine is touched.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails the test")]

mod endpoints;
mod handshakes;
mod installing;
mod lab;
mod world;
