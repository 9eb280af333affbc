//! Contents of the next CDC, and the state to restore when a post is cancelled.

use smc_wire::cdc::{ProducerFlags, StateFlags};

use super::post::PostId;

/// Contents of the last CDC apart from cursors.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LastCdc {
    pub(super) sequence: u16,
    pub(super) flags: ProducerFlags,
    pub(super) state: StateFlags,
}

/// The messages to be posted apart from payload and new state flags.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Due {
    /// A failover validation, before anything else.
    pub(super) validation: bool,
    /// A CDC with all fields, which nothing delays.
    pub(super) full: bool,
    /// A CDC with the local consumer cursor.
    pub(super) update: bool,
    /// A CDC with a request for an update.
    pub(super) probe: bool,
}

impl Due {
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            validation: self.validation || other.validation,
            full: self.full || other.full,
            update: self.update || other.update,
            probe: self.probe || other.probe,
        }
    }
}

/// State before the last post.
#[derive(Clone, Copy, Debug)]
pub(super) struct Undo {
    pub(super) id: PostId,
    pub(super) posted: u64,
    pub(super) max_posted: u64,
    pub(super) last_cdc: LastCdc,
    pub(super) due: Due,
    pub(super) changes: u32,
}
