//! Counts the descriptors of this process that its peers use.
//!
//! One account for all listeners and devices, as they take from one limit (`RLIMIT_NOFILE`). Half
//! of the descriptors are for processes of the own user. Another user has an eighth, all other
//! users a quarter, of which one of them has no more than are left free. The rest is for what the
//! application opens.
//!
//! A child process of `fork` begins with what its parent has counted: it has those descriptors too.

use std::sync::LazyLock;

use rustix::process::{Resource, getrlimit};
use smc_ipc::is_own_user;

use crate::error::Limit;
use crate::mutex::Mutex;
use crate::shares::Shares;

/// Counts `count` descriptors for a peer that runs as `user`, until the permit is dropped. Does not
/// wait.
///
/// A first user gets them however low the limit of the process is.
///
/// # Errors
///
/// The share of one user, if this one would have more, or more than the others leave free.
pub fn take(user: u32, count: usize) -> Result<DescriptorPermit, Limit> {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let other = (!is_own_user(user)).then_some(user);
    ACCOUNT.lock().take(limit, other, count)?;
    Ok(DescriptorPermit { other, count })
}

/// Descriptors that are counted to a user.
#[derive(Debug)]
pub struct DescriptorPermit {
    /// The user, if it is not the own one.
    other: Option<u32>,
    count: usize,
}

impl Drop for DescriptorPermit {
    fn drop(&mut self) {
        ACCOUNT.lock().release(self.other, self.count);
    }
}

#[derive(Debug)]
struct Account {
    of_own: usize,
    of_others: Shares<u32>,
}

impl Account {
    fn new() -> Self {
        Self {
            of_own: 0,
            of_others: Shares::new(0, 0),
        }
    }

    fn take(&mut self, limit: u64, other: Option<u32>, count: usize) -> Result<(), Limit> {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let part = |share: usize| (limit / share).max(count);
        let (name, most, may_take) = match &other {
            None => {
                let has = self.of_own.saturating_add(count);
                (
                    "share of descriptors of the own user",
                    part(2),
                    has <= part(2),
                )
            }
            Some(user) => {
                // The limit of the process can change at any time.
                self.of_others.set_limits(part(4), part(8));
                let may_take = self.of_others.has_capacity_for(user, count);
                ("share of descriptors of another user", part(8), may_take)
            }
        };
        if !may_take {
            return Err(Limit::new(name, u64::try_from(most).unwrap_or(u64::MAX)));
        }
        match other {
            None => self.of_own = self.of_own.saturating_add(count),
            Some(user) => (0..count).for_each(|_| self.of_others.take(user)),
        }
        Ok(())
    }

    fn release(&mut self, other: Option<u32>, count: usize) {
        match other {
            None => self.of_own = self.of_own.saturating_sub(count),
            Some(user) => (0..count).for_each(|_| self.of_others.release(&user)),
        }
    }
}

static ACCOUNT: LazyLock<Mutex<Account>> = LazyLock::new(|| Mutex::new(Account::new()));

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes as many as there are for a user; returns their number.
    fn fill(account: &mut Account, other: Option<u32>, count: usize) -> usize {
        let take = || account.take(1024, other, count).ok();
        std::iter::from_fn(take).count() * count
    }

    #[test]
    fn a_user_has_a_share_of_the_descriptors() {
        let mut account = Account::new();
        assert_eq!(fill(&mut account, Some(1), 4), 1024 / 8);
        assert_eq!(fill(&mut account, Some(2), 4), 1024 / 16, "some stay free");
        assert_eq!(fill(&mut account, Some(3), 1), 1024 / 32);
        assert_eq!(
            fill(&mut account, None, 4),
            1024 / 2,
            "whatever others have"
        );
        let refused = account.take(1024, Some(1), 1).unwrap_err();
        assert_eq!(refused.value, 1024 / 8);
        account.release(Some(1), 1024 / 8);
        assert_eq!(fill(&mut account, Some(2), 4), 48, "all were given back");
        account.release(None, 1024 / 2);
        assert_eq!(fill(&mut account, None, 1), 1024 / 2);
    }

    #[test]
    fn what_several_parts_of_a_process_take_is_counted_together() {
        let mut account = Account::new();
        let of_devices = 4 * 16;
        for _ in 0..16 {
            account.take(1024, Some(1), 4).unwrap();
        }
        let of_listeners = fill(&mut account, Some(1), 1);
        assert_eq!(of_devices + of_listeners, 1024 / 8);
    }

    #[test]
    fn a_limit_that_is_lowered_counts_at_once() {
        let mut account = Account::new();
        for _ in 0..16 {
            account.take(1024, Some(1), 1).unwrap();
        }
        assert!(account.take(128, Some(1), 1).is_err());
        assert!(account.take(1024, Some(1), 1).is_ok());
    }

    #[test]
    fn a_first_user_has_what_it_needs_however_low_the_limit_is() {
        for other in [None, Some(1)] {
            let mut account = Account::new();
            assert!(account.take(4, other, 4).is_ok());
            assert!(account.take(4, other, 4).is_err());
        }
    }

    #[test]
    fn a_permit_gives_its_descriptors_back() {
        // Of no process that another test of this binary knows.
        let user = u32::MAX - 7;
        let count = || ACCOUNT.lock().of_others.count(&user);
        let permit = take(user, 3).unwrap();
        assert_eq!(count(), 3);
        drop(permit);
        assert_eq!(count(), 0);
    }
}
