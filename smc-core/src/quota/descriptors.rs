//! Limits the descriptors of this process that its peers take up, by user.
//!
//! One [`UserQuota`](super::UserQuota) for all listeners and devices, as they take from one limit
//! (`RLIMIT_NOFILE`).

use std::sync::LazyLock;

use rustix::process::{Resource, getrlimit};

use crate::error::Limit;
use crate::quota::{Permit, UserQuota};

/// Counts `count` descriptors for a peer that runs as `user`, until the permit is dropped. Does not
/// wait.
///
/// # Errors
///
/// As of [`UserQuota::take`].
pub fn take(user: u32, count: usize) -> Result<Permit, Limit> {
    QUOTA.take(limit(), user, count)
}

/// The limit, as it is now.
#[must_use]
pub fn limit() -> usize {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(limit).unwrap_or(usize::MAX)
}

static QUOTA: LazyLock<UserQuota> = LazyLock::new(|| {
    UserQuota::new(
        "share of descriptors of the own user",
        "share of descriptors of another user",
    )
});
