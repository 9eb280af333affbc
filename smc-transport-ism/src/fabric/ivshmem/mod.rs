//! ivshmem: memory that QEMU presents to guests as a PCI device, and processes of the host.
//!
//! A server creates the memory, and assigns each machine or process that connects a number, and an
//! eventfd for each of the others. The slot is the number modulo the count of slots. Numbers are
//! not reused, because QEMU crashes if the number of a client that has left appears again. A guest
//! sees the memory as BAR 2 of the device, and notifies peers by writing to a register in BAR 0.

mod client;
mod guest;
mod pci;
mod poll;
mod protocol;
mod server;
mod vfio;

pub(crate) use client::IvshmemClient;
pub(crate) use guest::Guest;
pub use server::{Server, ServerBuilder};

use std::time::Duration;

use smc_core::device::DeviceError;

use crate::shared::FabricMemory;

/// The slot of the device to which the server assigned a number.
fn slot_of(memory: &FabricMemory, port: u16) -> u16 {
    port % memory.slots()
}

/// The error of a fabric whose server has ended.
const SERVER_GONE: DeviceError = DeviceError::Gone("the ivshmem server has ended");
/// Interval of the heartbeats of guests and of the server, whose end the other side cannot detect.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);
/// Without a heartbeat for this time, a guest or server counts as dead.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(15);
