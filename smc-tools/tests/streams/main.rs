//! `smc cat` and `smc proxy` between processes: what arrives, and how it ends.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod cat;
mod hostile;
mod process;
mod proxy;
mod shown;
mod unix;
