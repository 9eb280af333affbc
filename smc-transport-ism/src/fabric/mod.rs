//! Fabrics: memory that several peers share, and a way to interrupt a peer.
//!
//! A fabric assigns a device its exclusive slot, wakes devices, and reports which of them are gone.
//! For that it relies on the operating system and not on the contents of the shared memory.

mod address;
mod directory;
mod ivshmem;
mod notifier;

pub use address::FabricAddress;
pub use ivshmem::{Server, ServerBuilder};

use std::fmt::Debug;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use smc_core::device::DeviceError;

use crate::shared::{FabricMemory, Tag};

/// One device's end of a fabric.
pub(crate) trait FabricOps: Send + Sync + Debug {
    /// The shared memory.
    fn memory(&self) -> &Arc<FabricMemory>;

    /// The port number that the fabric uses for the device, if this differs from its slot.
    fn port(&self) -> u16 {
        0
    }

    /// Whether the device sends heartbeats, because its end would not be detected otherwise.
    fn has_heartbeat(&self) -> bool {
        false
    }

    /// The device has taken its slot under this tag.
    fn joined(&self, _tag: Tag) {}

    /// Ensures that a peer can be notified and that its end is detected.
    fn connect_peer(&self, peer: Tag) -> Result<(), ConnectError>;

    /// Wakes the device of a slot without blocking. A device that cannot be woken is gone, or is
    /// notified again by the server.
    fn notify(&self, peer: Tag);

    /// Passes peers whose process or machine has ended to `each`, without blocking.
    fn poll_events(&self, each: &mut dyn FnMut(Tag)) -> Result<(), DeviceError>;

    /// The device is about to sleep.
    fn arm(&self) {}

    /// Becomes readable when [`FabricOps::poll_events`] has work, or the device was notified.
    fn doorbell(&self) -> BorrowedFd<'_>;

    /// Whether a device is known to have ended, even if the shared memory does not state it.
    fn is_dead(&self, peer: Tag) -> bool {
        self.memory().is_dead(peer)
    }
}

/// Why a peer cannot be connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ConnectError {
    /// It has ended.
    Dead,
    /// It is overloaded; a retry may succeed.
    Busy,
    Failed(DeviceError),
}

impl From<DeviceError> for ConnectError {
    fn from(error: DeviceError) -> Self {
        Self::Failed(error)
    }
}
