//! ivshmem: memory that QEMU shows to guests as a PCI device, and processes of the host.
//!
//! A server makes the memory, and gives each machine or process that connects a number, which is
//! its slot, and an eventfd for each of the others. A guest sees the memory as BAR 2 of the device,
//! and rings by writing to a register in BAR 0.

mod client;
mod guest;
mod pci;
mod poll;
mod protocol;
mod server;

pub(crate) use client::Client;
pub(crate) use guest::Guest;
pub use server::{Server, ServerBuilder};

use std::time::Duration;

/// How often those show that they are alive whose end nobody would tell: guests and the server.
const BEAT: Duration = Duration::from_secs(1);
/// For how long they may fail to.
const SILENCE: Duration = Duration::from_secs(15);
