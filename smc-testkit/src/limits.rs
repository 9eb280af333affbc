//! Resource limits of the test's own process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// From now on this process can have no descriptors with this number or above (`RLIMIT_NOFILE`). Those
/// that are open stay. The limit can be raised again.
///
/// # Panics
///
/// If `end` is more than the hard limit.
pub fn limit_descriptors(end: u64) {
    let limit = Rlimit {
        current: Some(end),
        maximum: getrlimit(Resource::Nofile).maximum,
    };
    setrlimit(Resource::Nofile, limit).expect("not above the hard limit");
}
