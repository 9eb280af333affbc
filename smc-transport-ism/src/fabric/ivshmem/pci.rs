//! An ivshmem device of a guest, accessed by sysfs, or by VFIO if its driver is vfio-pci.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{CWD, FlockOperation, Mode, OFlags, flock, fstat, openat};
use rustix::io::Errno;
use smc_core::device::DeviceError;
use smc_core::mem::Region;

use super::vfio::Vfio;
use crate::region::{Registers, map, os_at};

/// An ivshmem device.
#[derive(Debug)]
pub(super) struct Pci {
    registers: Access,
    pub(super) memory: Region,
    /// The number that the server has assigned to the machine.
    pub(super) id: u16,
}

/// The access to the registers.
#[derive(Debug)]
enum Access {
    Sysfs {
        registers: Registers,
        /// Locked, so that no other process has the device.
        _lock: OwnedFd,
    },
    Vfio(Vfio),
}

impl Pci {
    /// Opens a device by its address, such as `0000:00:04.0`, and calls `start`; without an
    /// address, uses the first ivshmem device that no process uses and that `start` accepts.
    pub(super) fn open<T>(
        address: Option<&str>,
        start: impl Fn(Self) -> Result<T, DeviceError>,
    ) -> Result<T, DeviceError> {
        if let Some(address) = address {
            if address.contains('/') {
                return Err(DeviceError::Invalid("address of a PCI device"));
            }
            return start(Self::open_at(&Path::new(PCI_DEVICES).join(address))?);
        }
        let entries = fs::read_dir(PCI_DEVICES);
        let entries = entries
            .map_err(|error| DeviceError::os_at("list PCI devices in", PCI_DEVICES, &error))?;
        let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
        paths.sort();
        let mut last = DeviceError::Gone("no ivshmem device on the PCI bus");
        for path in paths.iter().filter(|path| is_ivshmem(path)) {
            match Self::open_at(path).and_then(&start) {
                Ok(started) => return Ok(started),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Notifies the machine or process with a number.
    pub(super) fn notify(&self, id: u16) {
        let value = u32::from(id) << 16;
        match &self.registers {
            Access::Sysfs { registers, .. } => registers.write(DOORBELL, value),
            Access::Vfio(vfio) => vfio.write(DOORBELL, value),
        }
    }

    /// The eventfd of the device's interrupt, if it has one.
    pub(super) fn interrupt(&self) -> Option<&Arc<OwnedFd>> {
        match &self.registers {
            Access::Sysfs { .. } => None,
            Access::Vfio(vfio) => Some(&vfio.interrupt),
        }
    }

    fn open_at(path: &Path) -> Result<Self, DeviceError> {
        if !is_ivshmem(path) {
            return Err(DeviceError::Invalid("this is not an ivshmem device"));
        }
        if let Some(vfio) = Vfio::open(path)? {
            return Ok(Self {
                memory: vfio.memory.clone(),
                id: id_of(vfio.read(ID))?,
                registers: Access::Vfio(vfio),
            });
        }
        let enabled = fs::write(path.join("enable"), "1");
        enabled.map_err(|error| DeviceError::os_at("enable PCI device", path, &error))?;
        let (lock, memory) = map_bar(&path.join("resource2"))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                return Err(DeviceError::NotPermitted(
                    "another process has the ivshmem device".into(),
                ));
            }
            Err(error) => return Err(os_at("lock ivshmem device", path, error)),
        }
        let (_, registers) = map_bar(&path.join("resource0"))?;
        let registers = Registers::new(registers, start_in_page(path)?);
        Ok(Self {
            memory,
            id: id_of(registers.read(ID))?,
            registers: Access::Sysfs {
                registers,
                _lock: lock,
            },
        })
    }
}

/// Negative while QEMU has no number from its server.
fn id_of(register: Option<u32>) -> Result<u16, DeviceError> {
    let id = register.and_then(|id| u16::try_from(id).ok());
    id.ok_or(DeviceError::Gone("the ivshmem device has no number"))
}

/// Maps a BAR. Its length does not change while the device exists.
fn map_bar(path: &PathBuf) -> Result<(OwnedFd, Region), DeviceError> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::SYNC;
    let file = openat(CWD, path, flags, Mode::empty());
    let file = file.map_err(|error| os_at("open PCI device", path, error))?;
    let stat = fstat(&file).map_err(|error| os_at("inspect PCI device", path, error))?;
    let len = usize::try_from(stat.st_size).unwrap_or(0);
    let bar = map(&file, 0, len.next_multiple_of(PAGE))?;
    Ok((file, bar))
}

/// A short BAR need not begin at the start of its page.
fn start_in_page(path: &Path) -> Result<usize, DeviceError> {
    let bars = fs::read_to_string(path.join("resource"));
    let bars = bars.map_err(|error| DeviceError::os_at("inspect PCI device", path, &error))?;
    let start = bars.split_whitespace().next();
    let start = start.and_then(|start| usize::from_str_radix(start.strip_prefix("0x")?, 16).ok());
    start
        .map(|start| start % PAGE)
        .ok_or(DeviceError::Invalid("PCI device without registers"))
}

fn is_ivshmem(path: &Path) -> bool {
    let is = |file: &str, number: &str| {
        fs::read_to_string(path.join(file)).is_ok_and(|text| text.trim() == number)
    };
    is("vendor", VENDOR) && is("device", DEVICE)
}

const PCI_DEVICES: &str = "/sys/bus/pci/devices";
const VENDOR: &str = "0x1af4";
const DEVICE: &str = "0x1110";
/// Offsets of registers.
const ID: usize = 8;
const DOORBELL: usize = 12;
const PAGE: usize = 4096;
