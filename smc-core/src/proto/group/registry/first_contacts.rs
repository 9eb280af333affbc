//! First contacts of SMC-R that a server has in progress, counted by the source of the clients.

use core::net::IpAddr;

use hashbrown::HashMap;

use crate::proto::group::{GroupId, GroupKey, NoGroup};
use crate::quota::FairShares;

/// The counts. Those of other groups than a server's of SMC-R have no source, and are not counted.
#[derive(Debug)]
pub(super) struct FirstContacts {
    counted: FairShares<IpAddr>,
    /// Those that have failed, with their source. Each counts until its links are closed.
    failed: HashMap<GroupId, IpAddr>,
}

impl Default for FirstContacts {
    fn default() -> Self {
        Self {
            counted: FairShares::new(MAX_ALL_FIRST_CONTACTS, MAX_FIRST_CONTACTS),
            failed: HashMap::new(),
        }
    }
}

impl FirstContacts {
    /// Whether another one may begin. The client may never confirm, and until the time-out it uses
    /// a link and a buffer.
    pub(super) fn check(&self, key: &GroupKey) -> Result<(), NoGroup> {
        match key.source() {
            Some(from) if !self.counted.has_capacity(&from) => Err(NoGroup::Full),
            _ => Ok(()),
        }
    }

    pub(super) fn begin(&mut self, key: &GroupKey) {
        if let Some(from) = key.source() {
            self.counted.take(from);
        }
    }

    pub(super) fn succeed(&mut self, key: &GroupKey) {
        if let Some(from) = key.source() {
            self.counted.release(&from);
        }
    }

    pub(super) fn fail(&mut self, group: GroupId, key: &GroupKey) {
        if let Some(from) = key.source() {
            self.failed.insert(group, from);
        }
    }

    /// The links of a group are closed, or it has none.
    pub(super) fn links_closed(&mut self, group: GroupId) {
        if let Some(from) = self.failed.remove(&group) {
            self.counted.release(&from);
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.counted.is_empty() && self.failed.is_empty()
    }
}

/// First contacts of SMC-R that a server has in progress with clients of one IPv4 address, or of 64
/// bits of IPv6: a quarter of the default number of links per device.
pub const MAX_FIRST_CONTACTS: usize = 32;

/// First contacts of SMC-R that a server has in progress with all clients: half of the default
/// number of links per device. One address may use at most as many as are left free, so that a few
/// addresses do not block the others.
pub const MAX_ALL_FIRST_CONTACTS: usize = 64;
