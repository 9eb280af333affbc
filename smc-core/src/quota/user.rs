//! The quota of a user: what the peers that it runs may take of a limit of this process.
//!
//! Half is for processes of the own user. Another user has an eighth, all other users a quarter, of
//! which one of them has no more than are left free ([`FairShares`]). The rest is for the
//! application.
//!
//! A child process of `fork` begins with what its parent has counted, as it has all of that too.

use smc_ipc::is_own_user;

use crate::error::Limit;
use crate::mutex::Mutex;
use crate::quota::FairShares;

/// The use of one limit, by user.
#[derive(Debug)]
pub struct UserQuota {
    /// Names of the shares, of the own user and of another one.
    of_own: &'static str,
    of_another: &'static str,
    taken: Mutex<Taken>,
}

impl UserQuota {
    /// Nothing is taken. The names are those of the shares in errors.
    #[must_use]
    pub fn new(of_own: &'static str, of_another: &'static str) -> Self {
        Self {
            of_own,
            of_another,
            taken: Mutex::new(Taken::new()),
        }
    }

    /// Counts `count` of `limit` for a peer that runs as `user`, until the permit is dropped. Does
    /// not wait.
    ///
    /// A first user gets them however low the limit is.
    ///
    /// # Errors
    ///
    /// The share of one user, if this one would have more, or more than the others leave free.
    pub fn take(&'static self, limit: usize, user: u32, count: usize) -> Result<Permit, Limit> {
        let other = (!is_own_user(user)).then_some(user);
        self.take_for(limit, other, count)
    }

    /// As [`UserQuota::take`] for another user, or for the own one (`None`): for callers that have
    /// compared them already.
    ///
    /// # Errors
    ///
    /// As of [`UserQuota::take`].
    pub fn take_for(
        &'static self,
        limit: usize,
        other: Option<u32>,
        count: usize,
    ) -> Result<Permit, Limit> {
        let taken = self.taken.lock().take(limit, other, count);
        taken.map_err(|share| {
            let name = other.map_or(self.of_own, |_| self.of_another);
            Limit::new(name, u64::try_from(share).unwrap_or(u64::MAX))
        })?;
        Ok(Permit {
            quota: self,
            other,
            count,
        })
    }
}

/// A part of the limit that is counted to a user.
#[derive(Debug)]
pub struct Permit {
    quota: &'static UserQuota,
    /// The user, if it is not the own one.
    other: Option<u32>,
    count: usize,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.quota.taken.lock().release(self.other, self.count);
    }
}

#[derive(Debug)]
struct Taken {
    of_own: usize,
    of_others: FairShares<u32>,
}

impl Taken {
    fn new() -> Self {
        Self {
            of_own: 0,
            of_others: FairShares::new(0, 0),
        }
    }

    /// The share of one user, on failure.
    fn take(&mut self, limit: usize, other: Option<u32>, count: usize) -> Result<(), usize> {
        let Some(user) = other else {
            let (has, half) = (self.of_own.saturating_add(count), (limit / 2).max(count));
            if has > half {
                return Err(half);
            }
            self.of_own = has;
            return Ok(());
        };
        self.of_others.take_of_limit(limit, &user, count)
    }

    fn release(&mut self, other: Option<u32>, count: usize) {
        match other {
            None => self.of_own = self.of_own.saturating_sub(count),
            Some(user) => (0..count).for_each(|_| self.of_others.release(&user)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use rustix::process::geteuid;

    use super::*;

    /// Takes as many as there are for a user; returns their number.
    fn fill(taken: &mut Taken, other: Option<u32>, count: usize) -> usize {
        let take = || taken.take(1024, other, count).ok();
        std::iter::from_fn(take).count() * count
    }

    #[test]
    fn a_user_has_a_share_of_the_limit() {
        let mut taken = Taken::new();
        assert_eq!(fill(&mut taken, Some(1), 4), 1024 / 8);
        assert_eq!(fill(&mut taken, Some(2), 4), 1024 / 16, "some stay free");
        assert_eq!(fill(&mut taken, Some(3), 1), 1024 / 32);
        assert_eq!(fill(&mut taken, None, 4), 1024 / 2, "whatever others have");
        assert_eq!(taken.take(1024, Some(1), 1), Err(1024 / 8));
        taken.release(Some(1), 1024 / 8);
        assert_eq!(fill(&mut taken, Some(2), 4), 48, "all were given back");
        taken.release(None, 1024 / 2);
        assert_eq!(fill(&mut taken, None, 1), 1024 / 2);
    }

    #[test]
    fn what_several_parts_of_a_process_take_is_counted_together() {
        let mut taken = Taken::new();
        let of_devices = 4 * 16;
        for _ in 0..16 {
            taken.take(1024, Some(1), 4).unwrap();
        }
        let of_listeners = fill(&mut taken, Some(1), 1);
        assert_eq!(of_devices + of_listeners, 1024 / 8);
    }

    #[test]
    fn a_limit_that_is_lowered_counts_at_once() {
        let mut taken = Taken::new();
        for _ in 0..16 {
            taken.take(1024, Some(1), 1).unwrap();
        }
        assert!(taken.take(128, Some(1), 1).is_err());
        assert!(taken.take(1024, Some(1), 1).is_ok());
    }

    #[test]
    fn a_first_user_has_what_it_needs_however_low_the_limit_is() {
        for other in [None, Some(1)] {
            let mut taken = Taken::new();
            assert!(taken.take(4, other, 4).is_ok());
            assert!(taken.take(4, other, 4).is_err());
        }
    }

    #[test]
    fn a_permit_gives_back_what_it_counts() {
        static QUOTA: LazyLock<UserQuota> = LazyLock::new(|| UserQuota::new("own", "another"));
        let another = geteuid().as_raw() + 1;
        let permit = QUOTA.take(64, another, 8).unwrap();
        let refused = QUOTA.take(64, another, 1).unwrap_err();
        assert_eq!((refused.name, refused.value), ("another", 8));
        drop(permit);
        assert!(QUOTA.take(64, another, 8).is_ok());
    }
}
