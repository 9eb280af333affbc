//! A guest's end of an ivshmem fabric.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use smc_core::device::DeviceError;

use super::pci::Pci;
use super::poll::Poller;
use super::{SERVER_GONE, slot_of};
use crate::fabric::doorbell::Doorbell;
use crate::fabric::{Fabric, News, Unmet};
use crate::shared::{Room, Tag};

/// A guest's end of an ivshmem fabric.
///
/// The guest hears nothing from the server but through the memory: who has ended is marked there.
#[derive(Debug)]
pub(crate) struct Guest {
    room: Arc<Room>,
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
        let room = Arc::new(Room::find(pci.memory().clone())?);
        if room.has_keeper_ended() {
            return Err(SERVER_GONE);
        }
        let slot = slot_of(&room, pci.id());
        let doorbell = Arc::new(Doorbell::new()?);
        let must_look = match pci.interrupt() {
            Some(interrupt) => {
                doorbell.watch_edges(interrupt, RUNG)?;
                false
            }
            None => true,
        };
        let bell = Arc::clone(&doorbell);
        let poller = Poller::start(Arc::clone(&room), slot, bell, must_look)?;
        let guest = Self {
            room,
            doorbell,
            poller,
            pci,
        };
        Ok((guest, slot))
    }
}

impl Fabric for Guest {
    fn room(&self) -> &Arc<Room> {
        &self.room
    }

    fn port(&self) -> u16 {
        self.pci.id()
    }

    fn beats(&self) -> bool {
        true
    }

    fn joined(&self, _: Tag) {}

    fn meet(&self, _: Tag) -> Result<(), Unmet> {
        Ok(())
    }

    fn ring(&self, peer: Tag) {
        let Some(port) = self.room.port(peer.slot) else {
            return;
        };
        if port == self.pci.id() {
            self.doorbell.ring_own();
        } else if slot_of(&self.room, port) == peer.slot {
            self.pci.ring(port);
        }
    }

    fn look(&self, _: &mut dyn FnMut(News)) -> Result<(), DeviceError> {
        self.doorbell.rang(|_| {})?;
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

    fn is_dead(&self, peer: Tag) -> bool {
        self.room.is_dead(peer)
    }
}

/// The id of the interrupt.
const RUNG: u64 = 0;
