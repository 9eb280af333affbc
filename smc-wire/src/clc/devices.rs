//! The devices behind a GID list.

use super::proposal::{DirectExtension, GidEntry};
use crate::types::{Chid, Gid, IsmGid};

/// An SMC-D device that a client offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OfferedDevice {
    /// Its GID: 64 bits if native, 128 bits if emulated.
    pub gid: Gid,
    /// Its fabric.
    pub chid: Chid,
}

impl DirectExtension {
    /// Appends a device to the GID list, as two entries if it is emulated.
    ///
    /// # Errors
    ///
    /// Gives the device back, and leaves the list as it was, if the eight entries do not suffice
    /// or if a native device has an extended GID.
    pub fn push_device(&mut self, device: OfferedDevice) -> Result<(), OfferedDevice> {
        let chid = device.chid;
        let [high, low] = [device.gid.hi(), device.gid.lo()].map(|gid| GidEntry { gid, chid });
        let mut entries = self.entries;
        entries.push(high).map_err(|_| device)?;
        if chid.is_emulated() {
            entries.push(low).map_err(|_| device)?;
        } else if low.gid != IsmGid::ZERO {
            return Err(device);
        }
        self.entries = entries;
        Ok(())
    }

    /// The devices of the GID list.
    ///
    /// An emulated device takes two consecutive entries with one CHID, first the high and then the
    /// low half of its GID (docs/spec/clc.md#smc-d-v2-extension). An emulated entry that no entry
    /// of the same CHID follows is skipped.
    pub fn devices(&self) -> impl Iterator<Item = OfferedDevice> + '_ {
        let mut entries = self.entries.iter().peekable();
        core::iter::from_fn(move || {
            loop {
                let &GidEntry { gid, chid } = entries.next()?;
                if !chid.is_emulated() {
                    let gid = gid.into();
                    return Some(OfferedDevice { gid, chid });
                }
                if let Some(low) = entries.next_if(|next| next.chid == chid) {
                    let gid = Gid::new(gid.0, low.gid.0);
                    return Some(OfferedDevice { gid, chid });
                }
            }
        })
    }
}
