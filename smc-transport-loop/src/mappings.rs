//! How many pieces of memory may be mapped because of the peers of a device, and which user may
//! have how many of them.

use std::sync::{Arc, OnceLock};

use smc_core::device::{Charge, DeviceError, MemoryAccount};
use smc_core::mutex::Mutex;
use smc_core::quota::FairShares;
use smc_core::quota::Permit;
use smc_core::quota::mappings;
use smc_ipc::is_own_user;

use crate::pool::resident_len;

/// Counts mappings against the limit of the device, and those of each user, beside the quota of
/// the process.
///
/// Where peers may be of other users, half of all are for those: one of them has a quarter of all
/// at most, and no more than the others leave free.
#[derive(Debug)]
pub(crate) struct Mappings {
    taken: Mutex<Taken>,
    account: MemoryAccount,
}

#[derive(Debug)]
struct Taken {
    of_own: usize,
    max_of_own: usize,
    of_others: FairShares<u32>,
}

impl Mappings {
    pub(crate) fn new(max: usize, has_others: bool, account: MemoryAccount) -> Arc<Self> {
        let for_others = if has_others { max / 2 } else { 0 };
        let taken = Taken {
            of_own: 0,
            max_of_own: max - for_others,
            of_others: FairShares::new(for_others, max / 4),
        };
        Arc::new(Self {
            taken: Mutex::new(taken),
            account,
        })
    }

    /// Takes one for memory that a peer of this user has as well, until it is dropped.
    pub(crate) fn take(self: &Arc<Self>, user: u32) -> Result<MappingPermit, DeviceError> {
        let of_process = take_of_process(user)?;
        let other = (!is_own_user(user)).then_some(user);
        let mut taken = self.taken.lock();
        let may_take = match &other {
            None => taken.of_own < taken.max_of_own,
            Some(user) => taken.of_others.has_capacity(user),
        };
        if !may_take {
            return Err(DeviceError::Exhausted);
        }
        match other {
            None => taken.of_own += 1,
            Some(user) => taken.of_others.take(user),
        }
        drop(taken);
        Ok(MappingPermit {
            mappings: Arc::clone(self),
            other,
            charge: OnceLock::new(),
            _of_process: of_process,
        })
    }
}

/// Takes one of the process only, for a buffer that is made for a peer of this user: those of a
/// device are limited as buffers.
pub(crate) fn take_of_process(user: u32) -> Result<Permit, DeviceError> {
    mappings::take(user).map_err(|_share| DeviceError::Exhausted)
}

/// One mapping of the limit.
#[derive(Debug)]
pub(crate) struct MappingPermit {
    mappings: Arc<Mappings>,
    /// The user of the peer, if it is not the own one.
    pub(crate) other: Option<u32>,
    charge: OnceLock<Charge>,
    _of_process: Permit,
}

impl MappingPermit {
    /// Memory of a peer of this length is going to be written: as much of it as the peer keeps of
    /// an unused buffer may stay charged to this process.
    pub(crate) fn charge(&self, len: usize) {
        let account = &self.mappings.account;
        self.charge
            .get_or_init(|| account.charge_anyway(resident_len(len)));
    }

    /// Charges so many bytes, if the memory limit leaves as much.
    pub(crate) fn charge_within_limit(&self, bytes: usize) -> Result<(), DeviceError> {
        let charge = self.mappings.account.charge(bytes)?;
        let _set_once = self.charge.set(charge);
        Ok(())
    }
}

impl Drop for MappingPermit {
    fn drop(&mut self) {
        let mut taken = self.mappings.taken.lock();
        match &self.other {
            None => taken.of_own = taken.of_own.saturating_sub(1),
            Some(user) => taken.of_others.release(user),
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::geteuid;

    use super::*;

    /// Takes as many as there are for a user.
    fn fill(mappings: &Arc<Mappings>, user: u32) -> Vec<MappingPermit> {
        std::iter::from_fn(|| mappings.take(user).ok()).collect()
    }

    #[test]
    fn users_have_shares_of_the_mappings() {
        let own = geteuid().as_raw();
        let (one, another) = (own + 1, own + 2);
        let mappings = Mappings::new(64, true, MemoryAccount::default());
        let (of_one, of_own) = (fill(&mappings, one), fill(&mappings, own));
        assert_eq!((of_one.len(), of_own.len()), (16, 32));
        assert_eq!(fill(&mappings, another).len(), 8, "some stay free");
        drop(of_one);
        assert_eq!(fill(&mappings, another).len(), 16, "all were given back");
    }

    #[test]
    fn the_own_user_has_all_mappings_where_there_is_no_other() {
        let mappings = Mappings::new(64, false, MemoryAccount::default());
        assert_eq!(fill(&mappings, geteuid().as_raw()).len(), 64);
    }
}
