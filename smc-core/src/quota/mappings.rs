//! Limits the memory mappings that the peers of this process make it hold, by user.
//!
//! One [`UserQuota`](super::UserQuota) for all listeners and devices, as they take from one limit
//! (`vm.max_map_count`). A process that has reached it can no longer allocate memory.

use std::fs::read_to_string;
use std::sync::LazyLock;

use crate::error::Limit;
use crate::quota::{Permit, UserQuota};

/// Counts a mapping to a user, until the permit is dropped. Does not wait.
///
/// # Errors
///
/// As of [`UserQuota::take`].
pub fn take(user: u32) -> Result<Permit, Limit> {
    QUOTA.take(*MAX_MAP_COUNT, user, 1)
}

static QUOTA: LazyLock<UserQuota> = LazyLock::new(|| {
    UserQuota::new(
        "share of mappings of the own user",
        "share of mappings of another user",
    )
});

/// The limit of the system, or its default if that cannot be read.
static MAX_MAP_COUNT: LazyLock<usize> = LazyLock::new(|| {
    let limit = read_to_string("/proc/sys/vm/max_map_count");
    let limit = limit.ok().and_then(|text| text.trim().parse().ok());
    limit.unwrap_or(DEFAULT_MAX_MAP_COUNT)
});

const DEFAULT_MAX_MAP_COUNT: usize = 65_530;
