//! Guards that a reader holds.

use smc::ReadGuard;

use super::oracle::Oracle;
use crate::Rng;

/// Guards with their positions. Their bytes are checked again when they are dropped.
pub(super) struct RetainedGuards<'o> {
    oracle: &'o Oracle,
    side: usize,
    guards: Vec<(u64, ReadGuard)>,
}

impl<'o> RetainedGuards<'o> {
    pub(super) fn new(oracle: &'o Oracle, side: usize) -> Self {
        Self {
            oracle,
            side,
            guards: Vec::new(),
        }
    }

    /// Keeps a guard of what was read at `at`, as it is, in two parts, or as bytes.
    pub(super) fn take(&mut self, at: u64, mut guard: ReadGuard, rng: &mut Rng) {
        if rng.chance(300) {
            let len = rng.below(guard.len() + 1);
            let first = guard.split_to(len);
            self.guards.push((at, first));
            self.guards.push((at + len as u64, guard));
        } else if rng.chance(200) {
            let bytes = guard.into_bytes();
            self.oracle.released(self.side, at, &bytes);
        } else {
            self.guards.push((at, guard));
        }
    }

    /// Drops any one; false if there was none.
    pub(super) fn release_one(&mut self, rng: &mut Rng) -> bool {
        if self.guards.is_empty() {
            return false;
        }
        let (at, guard) = self.guards.swap_remove(rng.below(self.guards.len()));
        self.oracle.released(self.side, at, &guard);
        true
    }
}

impl Drop for RetainedGuards<'_> {
    fn drop(&mut self) {
        for (at, guard) in self.guards.drain(..).rev() {
            self.oracle.released(self.side, at, &guard);
        }
    }
}
