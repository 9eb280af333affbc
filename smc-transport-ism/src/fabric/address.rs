//! Which fabric a device belongs to.

use std::path::PathBuf;
use std::sync::Arc;

use smc_core::device::DeviceError;

use super::FabricOps;
use super::directory::Directory;
use super::ivshmem::{Guest, IvshmemClient};
use crate::shared::FabricOptions;

/// Where a device finds its fabric.
#[derive(Clone, Debug)]
pub struct FabricAddress {
    kind: Kind,
    /// For a new fabric.
    len: usize,
    options: FabricOptions,
}

#[derive(Clone, Debug)]
enum Kind {
    Directory(PathBuf),
    Server(PathBuf),
    Pci(Option<String>),
}

impl FabricAddress {
    fn new(kind: Kind) -> Self {
        Self {
            kind,
            len: LEN,
            options: FabricOptions::default(),
        }
    }

    /// A fabric of processes, in a directory: a file of memory, and a socket for each device.
    ///
    /// The first device creates both, for the own user alone; so does the first one after all have
    /// gone. Containers have to mount the same directory; it is best on a file system in memory
    /// (tmpfs), such as `/dev/shm`.
    #[must_use]
    pub fn directory(path: impl Into<PathBuf>) -> Self {
        Self::new(Kind::Directory(path.into()))
    }

    /// An ivshmem fabric, for a process of the host: where its [`Server`](crate::Server) listens.
    #[must_use]
    pub fn server(path: impl Into<PathBuf>) -> Self {
        Self::new(Kind::Server(path.into()))
    }

    /// An ivshmem fabric, for a process in a guest: the first ivshmem device on the PCI bus that no
    /// other process uses, and whose server has not ended.
    ///
    /// A device whose driver is vfio-pci, which needs a virtual IOMMU, has an interrupt; the
    /// process must be allowed to open its group in `/dev/vfio`. Any other device must be bound to
    /// no driver: the process must be allowed to write to its files in sysfs, as root is, and a
    /// thread polls for notifications while the device sleeps.
    #[must_use]
    pub fn guest() -> Self {
        Self::new(Kind::Pci(None))
    }

    /// The same for the ivshmem device with a certain address, such as `0000:00:04.0`.
    #[must_use]
    pub fn pci(address: impl Into<String>) -> Self {
        Self::new(Kind::Pci(Some(address.into())))
    }

    /// Memory of a new fabric in bytes; 64 MiB if not given.
    ///
    /// All of it is allocated when the fabric is created: a page that is missing later would kill
    /// the processes that use it. It is shared by all buffers of all devices. Has an effect for
    /// [`FabricAddress::directory`] only.
    #[must_use]
    pub fn with_len(mut self, bytes: usize) -> Self {
        self.len = bytes;
        self
    }

    /// Maximum number of devices on a new fabric, up to 1024; 64 if not given. Has an effect for
    /// [`FabricAddress::directory`] only.
    #[must_use]
    pub fn with_devices(mut self, devices: u16) -> Self {
        self.options.slots = devices;
        self
    }

    /// Whether devices of a new fabric write in place in their peers' buffers
    /// ([`smc_core::device::Nocopy`]); false if not given. A flag in the memory states it, so all
    /// devices of a fabric agree. Has an effect for [`FabricAddress::directory`] only.
    #[must_use]
    pub fn with_nocopy(mut self, on: bool) -> Self {
        self.options.nocopy = on;
        self
    }

    /// Opens the fabric. Returns the slot that the device may take.
    pub(crate) fn open(&self) -> Result<(Arc<dyn FabricOps>, u16), DeviceError> {
        match &self.kind {
            Kind::Directory(path) => {
                let (directory, slot) = Directory::open(path, self.len, self.options)?;
                Ok((Arc::new(directory), slot))
            }
            Kind::Server(path) => {
                let (client, slot) = IvshmemClient::connect(path)?;
                Ok((Arc::new(client), slot))
            }
            Kind::Pci(address) => {
                let (guest, slot) = Guest::open(address.as_deref())?;
                Ok((Arc::new(guest), slot))
            }
        }
    }
}

/// Memory of a new fabric.
pub(crate) const LEN: usize = 64 << 20;
