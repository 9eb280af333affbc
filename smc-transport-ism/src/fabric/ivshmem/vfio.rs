//! An ivshmem device behind a virtual IOMMU, whose interrupt becomes an eventfd.

use std::ffi::CString;
use std::fs;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::{Errno, pread, pwrite};
use smc_core::device::DeviceError;
use smc_core::mem::Region;
use smc_ipc::doorbell::new_eventfd;

use crate::region::{
    map, os_at, vfio_device, vfio_region, vfio_set_container, vfio_set_interrupt, vfio_set_iommu,
};

/// A device bound to vfio-pci.
#[derive(Debug)]
pub(super) struct Vfio {
    device: OwnedFd,
    /// Offset of the registers in the device's file.
    registers: u64,
    pub(super) memory: Region,
    /// The eventfd of the interrupt.
    pub(super) interrupt: Arc<OwnedFd>,
    /// The device works as long as its group and container are open.
    _group: OwnedFd,
    _container: OwnedFd,
}

impl Vfio {
    /// Opens a device by its folder in sysfs; `None` if its driver is another one, or none.
    pub(super) fn open(path: &Path) -> Result<Option<Self>, DeviceError> {
        let driver = fs::read_link(path.join("driver"));
        if !driver.is_ok_and(|driver| driver.ends_with(DRIVER)) {
            return Ok(None);
        }
        let bad = DeviceError::Invalid("the PCI device is in no IOMMU group");
        let group = fs::read_link(path.join("iommu_group")).map_err(|_| bad.clone())?;
        let group = group.file_name().ok_or(bad)?;
        let address = path.file_name().unwrap_or_default();
        let address = CString::new(address.as_bytes());
        let address = address.map_err(|_| DeviceError::Invalid("address of a PCI device"))?;

        let container = open(&Path::new(VFIO_DIR).join("vfio"))?;
        // A group can be opened only once.
        let group = match open(&Path::new(VFIO_DIR).join(group)) {
            Err(DeviceError::Os(error)) if error.code() == Some(Errno::BUSY.raw_os_error()) => {
                let why = "another process has the ivshmem device";
                return Err(DeviceError::NotPermitted(why.into()));
            }
            other => other?,
        };
        let failed = |error| os_at("set up VFIO for", path, error);
        vfio_set_container(group.as_fd(), &container).map_err(failed)?;
        vfio_set_iommu(container.as_fd()).map_err(failed)?;
        let device = vfio_device(group.as_fd(), &address).map_err(failed)?;

        enable(&device).map_err(failed)?;
        let (registers, _) = vfio_region(device.as_fd(), BAR_0).map_err(failed)?;
        let (offset, len) = vfio_region(device.as_fd(), BAR_2).map_err(failed)?;
        let len = usize::try_from(len).map_err(|_| DeviceError::NoMemory)?;
        let memory = map(&device, offset, len)?;
        let interrupt = Arc::new(new_eventfd()?);
        vfio_set_interrupt(device.as_fd(), &interrupt).map_err(failed)?;
        Ok(Some(Self {
            device,
            registers,
            memory,
            interrupt,
            _group: group,
            _container: container,
        }))
    }

    /// Reads a register.
    pub(super) fn read(&self, offset: usize) -> Option<u32> {
        let mut bytes = [0; 4];
        let at = self.registers + u64::try_from(offset).ok()?;
        let count = pread(&self.device, &mut bytes[..], at).ok()?;
        (count == bytes.len()).then(|| u32::from_le_bytes(bytes))
    }

    /// Writes a register.
    pub(super) fn write(&self, offset: usize, value: u32) {
        if let Ok(offset) = u64::try_from(offset) {
            let _ = pwrite(&self.device, &value.to_le_bytes(), self.registers + offset);
        }
    }
}

/// Enables memory access of the device, and bus mastering, which message-signalled interrupts need.
fn enable(device: &OwnedFd) -> Result<(), Errno> {
    let (config, _) = vfio_region(device.as_fd(), CONFIG)?;
    let mut command = [0; 2];
    pread(device, &mut command[..], config + COMMAND)?;
    let command = u16::from_le_bytes(command) | MEMORY_ACCESS | BUS_MASTER;
    pwrite(device, &command.to_le_bytes(), config + COMMAND).map(drop)
}

fn open(path: &Path) -> Result<OwnedFd, DeviceError> {
    let opened = openat(CWD, path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    opened.map_err(|error| os_at("open VFIO device", path, error))
}

const DRIVER: &str = "vfio-pci";
const VFIO_DIR: &str = "/dev/vfio";
/// Numbers of regions.
const BAR_0: u32 = 0;
const BAR_2: u32 = 2;
const CONFIG: u32 = 7;
/// In the configuration of a PCI device: the command register and two of its bits.
const COMMAND: u64 = 4;
const MEMORY_ACCESS: u16 = 2;
const BUS_MASTER: u16 = 4;
