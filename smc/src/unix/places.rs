//! Limits the UNIX sockets without a connection that this process keeps, of both roles: each is a
//! descriptor.

use std::sync::LazyLock;

use crate::peer_descriptors::Source;
use crate::quota::{Permit, UserQuota, descriptors};

/// Counts one whose other end is of this source, until the permit is dropped: half of the limit for
/// the own user, an eighth for another one. `None` if that has them.
pub(super) fn take(limit: usize, source: Option<Source>) -> Option<Permit> {
    let other = match source {
        Some(Source::User(user)) => Some(user),
        // At a UNIX socket there are no others.
        Some(Source::Address(_)) | None => None,
    };
    TAKEN.take_for(limit, other, 1).ok()
}

/// The limit. Looking it up is a system call.
pub(super) fn limit() -> usize {
    (descriptors::limit() / DESCRIPTORS_SHARE).min(SOCKETS_MAX)
}

static TAKEN: LazyLock<UserQuota> = LazyLock::new(|| {
    UserQuota::new(
        "share of idle sockets of the own user",
        "share of idle sockets of another user",
    )
});

const SOCKETS_MAX: usize = 1024;

/// The part of the descriptors of the process that they may take.
const DESCRIPTORS_SHARE: usize = 8;
