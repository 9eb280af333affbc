//! A guest's end of an ivshmem fabric.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use smc_core::device::DeviceError;
use smc_ipc::doorbell::Doorbell;

use super::pci::Pci;
use super::poll::Poller;
use super::{SERVER_GONE, slot_of};
use crate::fabric::{ConnectError, FabricOps};
use crate::shared::{FabricMemory, Tag};

/// A guest's end of an ivshmem fabric.
///
/// The server communicates with the guest through the memory only: it marks ended devices there.
#[derive(Debug)]
pub(crate) struct Guest {
    memory: Arc<FabricMemory>,
    doorbell: Arc<Doorbell>,
    poller: Poller,
    pci: Pci,
}

impl Guest {
    /// Opens the device with this address, or the first one whose fabric can be used.
    pub(crate) fn open(address: Option<&str>) -> Result<(Self, u16), DeviceError> {
        Pci::open(address, Self::start)
    }

    fn start(pci: Pci) -> Result<(Self, u16), DeviceError> {
        let memory = Arc::new(FabricMemory::open(pci.memory.clone())?);
        if memory.has_server_ended() {
            return Err(SERVER_GONE);
        }
        let slot = slot_of(&memory, pci.id);
        let doorbell = Arc::new(Doorbell::new()?);
        let interrupt = pci.interrupt();
        if let Some(interrupt) = interrupt {
            doorbell.set().watch_edges(interrupt, NOTIFICATION)?;
        }
        let must_poll = interrupt.is_none();
        let poller = Poller::start(Arc::clone(&memory), slot, Arc::clone(&doorbell), must_poll)?;
        let guest = Self {
            memory,
            doorbell,
            poller,
            pci,
        };
        Ok((guest, slot))
    }
}

impl FabricOps for Guest {
    fn memory(&self) -> &Arc<FabricMemory> {
        &self.memory
    }

    fn port(&self) -> u16 {
        self.pci.id
    }

    fn has_heartbeat(&self) -> bool {
        true
    }

    fn connect_peer(&self, _: Tag) -> Result<(), ConnectError> {
        Ok(())
    }

    fn notify(&self, peer: Tag) {
        let Some(port) = self.memory.port(peer.slot) else {
            return;
        };
        if port == self.pci.id {
            self.doorbell.notify_self();
        } else if slot_of(&self.memory, port) == peer.slot {
            self.pci.notify(port);
        }
    }

    fn poll_events(&self, _: &mut dyn FnMut(Tag)) -> Result<(), DeviceError> {
        self.doorbell.poll(|_| {})?;
        if self.poller.is_server_gone() {
            return Err(SERVER_GONE);
        }
        Ok(())
    }

    fn arm(&self) {
        self.poller.arm();
    }

    fn doorbell(&self) -> BorrowedFd<'_> {
        self.doorbell.as_fd()
    }
}

/// The id of the interrupt.
const NOTIFICATION: u64 = 0;
