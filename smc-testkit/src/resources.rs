//! What the test's own process has, and its limits.

use std::fs::{read_dir, read_link, read_to_string};
use std::os::fd::AsFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::fstat;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::process::{Role, program};
use crate::wait::until;

/// From now on this process can have no descriptors with this number or above (`RLIMIT_NOFILE`).
/// Open descriptors stay open. The limit can be raised again.
///
/// # Panics
///
/// If `end` is more than the hard limit, or other tests run in this process: see
/// [`is_alone`](crate::process::is_alone).
pub fn limit_descriptors(end: u64) {
    limit(Resource::Nofile, end);
}

/// From now on this process can make no file longer than this (`RLIMIT_FSIZE`).
///
/// # Panics
///
/// If `bytes` is more than the hard limit, or other tests run in this process.
pub fn limit_file_size(bytes: u64) {
    limit(Resource::Fsize, bytes);
}

fn limit(resource: Resource, value: u64) {
    assert!(
        Role::current().is_some(),
        "a limit of the process would be one of all tests in it"
    );
    let limit = Rlimit {
        current: Some(value),
        maximum: getrlimit(resource).maximum,
    };
    setrlimit(resource, limit).expect("not above the hard limit");
}

/// Descriptors that this process has open.
///
/// # Panics
///
/// Without `/proc`.
#[must_use]
pub fn open_descriptors() -> usize {
    // The descriptor for other processes stays, and is counted from the beginning.
    let _program = program();
    read_dir("/proc/self/fd").expect("/proc").count()
}

/// Descriptors that this process has open and whose target in `/proc` contains `name`, such as
/// `[eventfd]` or the name of a memory file.
///
/// # Panics
///
/// Without `/proc`.
#[must_use]
pub fn open_descriptors_of(name: &str) -> usize {
    let links = read_dir("/proc/self/fd").expect("/proc").flatten();
    links
        .filter_map(|entry| read_link(entry.path()).ok())
        .filter(|target| target.to_string_lossy().contains(name))
        .count()
}

/// What the descriptors of this process refer to, as text for a failed test.
///
/// # Panics
///
/// Without `/proc`.
#[must_use]
pub fn list_descriptors() -> String {
    let descriptors = read_dir("/proc/self/fd").expect("/proc").flatten();
    let targets: Vec<_> = descriptors
        .filter_map(|entry| read_link(entry.path()).ok())
        .collect();
    format!("{targets:?}")
}

/// Waits until this process has at most so many descriptors open: some are closed by another
/// thread.
///
/// # Panics
///
/// If that takes too long.
pub fn wait_for_descriptors(most: usize) {
    until(
        || open_descriptors() <= most,
        || {
            format!(
                "{} descriptors are open instead of {most}: {}",
                open_descriptors(),
                list_descriptors()
            )
        },
    );
}

/// Mappings of memory files of the library in this process.
///
/// # Panics
///
/// Without `/proc`.
#[must_use]
pub fn memory_mappings() -> usize {
    let maps = read_to_string("/proc/self/maps").expect("/proc");
    maps.lines()
        .filter(|line| line.contains("/memfd:smc"))
        .count()
}

/// Whether a memory file is mapped in this process.
///
/// # Panics
///
/// Without `/proc`.
pub fn is_mapped(memory: impl AsFd) -> bool {
    let inode = fstat(memory).expect("a descriptor").st_ino.to_string();
    let maps = read_to_string("/proc/self/maps").expect("/proc");
    let is_of_memory = |line: &str| {
        line.contains("/memfd:") && line.split_whitespace().nth(4) == Some(inode.as_str())
    };
    maps.lines().any(is_of_memory)
}

/// Held by a test that counts what the whole process has, so that it runs alone.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
