//! First contacts of SMC-R that a server has in progress, counted by the source of the clients.

use core::net::IpAddr;

use hashbrown::HashMap;
use smc_wire::types::GroupId;

use crate::quota::FairShares;

/// The counts. The registry decides which first contacts are counted.
#[derive(Debug)]
pub(super) struct FirstContacts {
    counted: FairShares<IpAddr>,
    /// The groups whose first contact has failed, with their source. Each counts until its links
    /// are closed.
    failed: HashMap<GroupId, IpAddr>,
}

impl Default for FirstContacts {
    fn default() -> Self {
        Self {
            counted: FairShares::new(ALL_FIRST_CONTACTS_MAX, FIRST_CONTACTS_MAX),
            failed: HashMap::new(),
        }
    }
}

impl FirstContacts {
    /// Whether another one of this source may begin.
    pub(super) fn has_capacity(&self, source: IpAddr) -> bool {
        self.counted.has_capacity(&source)
    }

    pub(super) fn begin(&mut self, source: IpAddr) {
        self.counted.take(source);
    }

    pub(super) fn succeed(&mut self, source: IpAddr) {
        self.counted.release(&source);
    }

    pub(super) fn fail(&mut self, group: GroupId, source: IpAddr) {
        self.failed.insert(group, source);
    }

    /// The links of a group are closed, or it has none.
    pub(super) fn links_closed(&mut self, group: GroupId) {
        if let Some(source) = self.failed.remove(&group) {
            self.counted.release(&source);
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.counted.is_empty() && self.failed.is_empty()
    }
}

/// First contacts of SMC-R that a server has in progress with clients of one IPv4 address, or of 64
/// bits of IPv6: a quarter of the default number of links per device.
pub const FIRST_CONTACTS_MAX: usize = 32;

/// First contacts of SMC-R that a server has in progress with all clients: half of the default
/// number of links per device. One address may use at most as many as are left free, so that a few
/// addresses do not block the others.
pub const ALL_FIRST_CONTACTS_MAX: usize = 64;
