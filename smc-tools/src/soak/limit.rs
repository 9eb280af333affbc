//! Limits of the process that are low for some time.

use std::time::Instant;

use anyhow::{Context as _, Result};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};

/// What is limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Limited {
    Descriptors,
    /// Address space, so that no memory file is mapped and no thread is started. What is allocated
    /// comes from a heap that has space: the standard library ends a process that cannot allocate.
    Memory,
}

/// A limit of this process.
pub(super) struct Limit {
    what: Limited,
    /// The soft and the hard limit that it was started with.
    limits: (u64, u64),
    /// Until then there is nothing to spare.
    lowered_until: Option<Instant>,
}

impl Limit {
    pub(super) fn new(what: Limited) -> Result<Self> {
        Ok(Self {
            what,
            limits: getrlimit(what.resource())?,
            lowered_until: None,
        })
    }

    /// Leaves little at least until then.
    pub(super) fn lower(&mut self, until: Instant) -> Result<()> {
        self.lowered_until = self.lowered_until.max(Some(until));
        let (soft, hard) = self.limits;
        let left = self.what.in_use()? + self.what.spare();
        Ok(setrlimit(self.what.resource(), soft.min(left), hard)?)
    }

    /// Ends it, at this time only if it is not to last longer.
    pub(super) fn restore(&mut self, at: Option<Instant>) -> Result<()> {
        if at.is_some() && self.lowered_until > at {
            return Ok(());
        }
        if self.lowered_until.take().is_some() {
            let (soft, hard) = self.limits;
            setrlimit(self.what.resource(), soft, hard)
                .with_context(|| format!("cannot raise the limit of {:?} again", self.what))?;
        }
        Ok(())
    }
}

impl Limited {
    fn resource(self) -> Resource {
        match self {
            Self::Descriptors => Resource::RLIMIT_NOFILE,
            Self::Memory => Resource::RLIMIT_AS,
        }
    }

    fn in_use(self) -> Result<u64> {
        Ok(match self {
            Self::Descriptors => fs_err::read_dir("/proc/self/fd")?.count() as u64,
            Self::Memory => {
                let status = fs_err::read_to_string("/proc/self/status")?;
                let mut lines = status.lines();
                let size = lines.find_map(|line| line.strip_prefix("VmSize:"));
                let size = size.and_then(|size| size.trim().strip_suffix(" kB"));
                size.context("no VmSize")?.parse::<u64>()? * 1024
            }
        })
    }

    fn spare(self) -> u64 {
        match self {
            Self::Descriptors => 4,
            Self::Memory => 256 << 10,
        }
    }
}

/// Has the heap grow, so that allocations take no more memory of the system. The process has
/// [`HEAP`] in its environment.
pub(super) fn grow_heap() {
    let blocks: Vec<Vec<u8>> = (0..HEAP_BLOCKS)
        .map(|_| Vec::with_capacity(HEAP_BLOCK))
        .collect();
    drop(std::hint::black_box(blocks));
}

/// Environment of a process with a heap of its own that is not given back (glibc): one for all
/// threads, which long buffers come from as well.
pub(super) const HEAP: &[(&str, &str)] = &[
    ("MALLOC_ARENA_MAX", "1"),
    ("MALLOC_TRIM_THRESHOLD_", "1073741824"),
    ("MALLOC_MMAP_THRESHOLD_", "33554432"),
];

const HEAP_BLOCKS: usize = 1024;
const HEAP_BLOCK: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_use_is_below_the_limit() {
        for what in [Limited::Descriptors, Limited::Memory] {
            let (soft, _) = getrlimit(what.resource()).unwrap();
            let in_use = what.in_use().unwrap();
            assert!((1..=soft).contains(&in_use), "{what:?}: {in_use} of {soft}");
        }
    }
}
