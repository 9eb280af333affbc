//! Fabrics: memory that several peers share, and a way to interrupt a peer.
//!
//! A fabric gives a device its slot, which nobody else has at the same time, wakes devices, and
//! tells which of them are gone, by what the operating system knows and not by what the shared
//! memory says.

mod directory;
mod doorbell;
mod ivshmem;
mod place;
mod notifier;

pub use ivshmem::{Server, ServerBuilder};
pub use place::Place;

use std::fmt::Debug;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use smc_core::device::DeviceError;

use crate::shared::{Room, Tag};

/// One device's end of a fabric.
pub(crate) trait Fabric: Send + Sync + Debug {
    /// The shared memory.
    fn room(&self) -> &Arc<Room>;

    /// What the fabric calls the device, where that is not its slot.
    fn port(&self) -> u16 {
        0
    }

    /// Whether the device shows that it is alive, because its end would not be noticed.
    fn beats(&self) -> bool {
        false
    }

    /// The device has taken its slot under this tag.
    fn joined(&self, tag: Tag);

    /// Makes sure that a peer can be rung and that its death is noticed.
    fn meet(&self, peer: Tag) -> Result<(), Unmet>;

    /// Wakes the device of a slot. Never waits; whoever cannot be woken is gone, or will be told.
    fn ring(&self, peer: Tag);

    /// Hands what happened to `each`, without waiting.
    fn look(&self, each: &mut dyn FnMut(News)) -> Result<(), DeviceError>;

    /// The device is about to sleep.
    fn arm(&self) {}

    /// Becomes readable when there is something for [`Fabric::look`], or the device was rung.
    fn doorbell(&self) -> BorrowedFd<'_>;

    /// Whether a device is known to have ended, although the shared memory may say otherwise.
    fn is_dead(&self, peer: Tag) -> bool;
}

/// Something that a fabric noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// A peer's process or machine has ended.
    Left(Tag),
}

/// Why a peer cannot be met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unmet {
    /// It has ended.
    Dead,
    /// It is there, but has too much to do; it may help to try again.
    Busy,
    Failed(DeviceError),
}
