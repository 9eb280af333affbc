//! The devices behind a GID list.

use core::fmt;
use core::iter::Peekable;

use super::proposal::{DirectExtension, GidEntry};
use crate::types::{Chid, Gid};

/// An SMC-D device that a client offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Device {
    /// Its GID: 64 bits if native, 128 bits if emulated.
    pub gid: Gid,
    /// Its fabric.
    pub chid: Chid,
}

impl Device {
    /// Entries that the device takes in a GID list: 1 if native, 2 if emulated.
    #[must_use]
    pub const fn entries(&self) -> usize {
        if self.chid.is_emulated() { 2 } else { 1 }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on CHID {}", self.gid, self.chid)
    }
}

/// Iterates over the devices of a GID list.
///
/// An emulated device takes two consecutive entries with one CHID, first the high and then the low
/// half of its GID (docs/spec/clc.md#smc-d-v2-extension). An emulated entry that no entry of the
/// same CHID follows is skipped.
#[derive(Debug, Clone)]
pub struct Devices<I: Iterator<Item = GidEntry>> {
    entries: Peekable<I>,
}

impl<I: Iterator<Item = GidEntry>> Devices<I> {
    /// Over the devices of these entries.
    pub fn new(entries: impl IntoIterator<IntoIter = I>) -> Self {
        Self {
            entries: entries.into_iter().peekable(),
        }
    }
}

impl<I: Iterator<Item = GidEntry>> Iterator for Devices<I> {
    type Item = Device;

    fn next(&mut self) -> Option<Device> {
        loop {
            let GidEntry { gid, chid } = self.entries.next()?;
            if !chid.is_emulated() {
                return Some(Device {
                    gid: gid.into(),
                    chid,
                });
            }
            if let Some(low) = self.entries.next_if(|next| next.chid == chid) {
                return Some(Device {
                    gid: Gid::new(gid.0, low.gid.0),
                    chid,
                });
            }
        }
    }
}

impl DirectExtension {
    /// Appends a device to the GID list, as two entries if it is emulated.
    ///
    /// # Errors
    ///
    /// Gives the device back, and leaves the list as it was, if the eight entries do not suffice
    /// or if a native device has an extended GID.
    pub fn push_device(&mut self, device: Device) -> Result<(), Device> {
        let high = GidEntry {
            gid: device.gid.hi(),
            chid: device.chid,
        };
        let low = GidEntry {
            gid: device.gid.lo(),
            chid: device.chid,
        };
        let mut entries = self.entries;
        if device.chid.is_emulated() {
            entries.push(high).map_err(|_| device)?;
            entries.push(low).map_err(|_| device)?;
        } else if device.gid.lo().0 == 0 {
            entries.push(high).map_err(|_| device)?;
        } else {
            return Err(device);
        }
        self.entries = entries;
        Ok(())
    }

    /// The devices of the GID list.
    pub fn devices(&self) -> impl Iterator<Item = Device> + Clone + '_ {
        Devices::new(self.entries.iter().copied())
    }
}
