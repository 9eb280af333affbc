//! Counts the descriptors of this process that its peers use.
//!
//! One [account](crate::account) for all listeners and devices, as they take from one limit
//! (`RLIMIT_NOFILE`).

use std::sync::LazyLock;

use rustix::process::{Resource, getrlimit};

use crate::account::{Account, Permit};
use crate::error::Limit;

/// Counts `count` descriptors for a peer that runs as `user`, until the permit is dropped. Does not
/// wait.
///
/// # Errors
///
/// As of [`Account::take`].
pub fn take(user: u32, count: usize) -> Result<Permit, Limit> {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    ACCOUNT.take(usize::try_from(limit).unwrap_or(usize::MAX), user, count)
}

static ACCOUNT: LazyLock<Account> = LazyLock::new(|| {
    Account::new(
        "share of descriptors of the own user",
        "share of descriptors of another user",
    )
});
