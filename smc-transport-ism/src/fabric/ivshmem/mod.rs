//! ivshmem: memory that QEMU shows to guests as a PCI device, and processes of the host.
//!
//! A server makes the memory, and gives each machine or process that connects a number, and an
//! eventfd for each of the others. The slot is the number modulo the count of slots: numbers are
//! not given twice, because QEMU crashes if the number of somebody who went comes back. A guest sees the memory as BAR 2 of the device,
//! and rings by writing to a register in BAR 0.

mod client;
mod guest;
mod pci;
mod poll;
mod protocol;
mod server;
mod vfio;

pub(crate) use client::Client;
pub(crate) use guest::Guest;
pub use server::{Server, ServerBuilder};

use std::time::Duration;

use smc_core::device::DeviceError;

use crate::shared::Room;

/// The slot of the device that the server gave a number.
fn slot_of(room: &Room, port: u16) -> u16 {
    port % room.slots()
}

/// What is told of a fabric whose server has ended.
const SERVER_GONE: DeviceError = DeviceError::Gone("the ivshmem server has ended");
/// How often those show that they are alive whose end nobody would tell: guests and the server.
const BEAT: Duration = Duration::from_secs(1);
/// For how long they may fail to.
const SILENCE: Duration = Duration::from_secs(15);
