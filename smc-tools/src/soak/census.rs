//! What processes have of the system.

use std::fmt;

use anyhow::{Context as _, Result};
use fs_err as fs;

/// What a process has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Census {
    pub(super) descriptors: usize,
    /// Mappings of memory that is shared with other processes.
    pub(super) shared_mappings: usize,
    pub(super) threads: usize,
}

impl Census {
    /// Of a process of this user.
    pub(super) fn take(pid: u32) -> Result<Self> {
        let count = |what: &str| -> Result<usize> {
            Ok(fs::read_dir(format!("/proc/{pid}/{what}"))?.count())
        };
        let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
        Ok(Self {
            descriptors: count("fd").context("descriptors")?,
            shared_mappings: shared_mappings(&maps),
            threads: count("task").context("threads")?,
        })
    }

    fn max(self, other: Self) -> Self {
        Self {
            descriptors: self.descriptors.max(other.descriptors),
            shared_mappings: self.shared_mappings.max(other.shared_mappings),
            threads: self.threads.max(other.threads),
        }
    }

    /// Whether it is hardly more of anything.
    fn is_within(self, limit: Self) -> bool {
        let limit = Self {
            descriptors: limit.descriptors + SLACK,
            shared_mappings: limit.shared_mappings + SLACK,
            threads: limit.threads + SLACK,
        };
        self.max(limit) == limit
    }
}

impl fmt::Display for Census {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} descriptors, {} shared mappings, {} threads",
            self.descriptors, self.shared_mappings, self.threads
        )
    }
}

fn shared_mappings(maps: &str) -> usize {
    // "ADDRESSES rw-s OFFSET ..."
    let permissions = maps.lines().filter_map(|line| line.split(' ').nth(1));
    permissions.filter(|is| is.ends_with('s')).count()
}

/// What a process had at first, when it was idle.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Baseline {
    most: Census,
    taken: u32,
}

impl Baseline {
    /// Whether a process that is idle has hardly more than it had after the first epochs, in which
    /// runtimes start their threads.
    pub(super) fn accepts(&self, census: Census) -> bool {
        self.taken < EPOCHS || census.is_within(self.most)
    }

    pub(super) fn add(&mut self, census: Census) {
        if self.taken < EPOCHS {
            self.most = self.most.max(census);
            self.taken += 1;
        }
    }

    pub(super) fn most(&self) -> Census {
        self.most
    }
}

/// What may be kept of a peer that was lost a moment ago: what is lost with each fault exceeds it
/// after some epochs.
const SLACK: usize = 8;

/// After which a process has all threads that it needs.
const EPOCHS: u32 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_process_has_what_it_has() {
        let before = Census::take(std::process::id()).unwrap();
        assert!(before.descriptors >= 3 && before.threads >= 1, "{before}");
    }

    #[test]
    fn mappings_of_others_are_not_counted() {
        let maps = "\
7f00-7f01 r-xp 00000000 00:01 5 /usr/lib/libc.so.6
7f01-7f02 rw-s 00000000 00:01 6 /memfd:smc (deleted)
7f02-7f03 r--s 00000000 00:01 7 /dev/shm/x/ism
";
        assert_eq!(shared_mappings(maps), 2);
    }

    #[test]
    fn growth_after_the_first_epochs_is_not_accepted() {
        let census = |descriptors| Census {
            descriptors,
            shared_mappings: 1,
            threads: 4,
        };
        let mut baseline = Baseline::default();
        for descriptors in [10, 12, 11] {
            assert!(baseline.accepts(census(descriptors)));
            baseline.add(census(descriptors));
        }
        assert!(baseline.accepts(census(12 + SLACK)));
        assert!(!baseline.accepts(census(13 + SLACK)));
        let more_threads = Census {
            threads: 5 + SLACK,
            ..census(1)
        };
        assert!(!baseline.accepts(more_threads));
        assert_eq!(baseline.most(), census(12));
    }
}
