//! Who may be a peer.

use rustix::process::geteuid;

/// The users whose processes are served.
#[derive(Clone, Debug)]
pub(crate) struct Policy {
    own: u32,
    others: Vec<u32>,
}

impl Policy {
    /// Serves the own user, and `others`.
    pub(crate) fn new(others: Vec<u32>) -> Self {
        let own = geteuid().as_raw();
        Self {
            own,
            others: others.into_iter().filter(|uid| *uid != own).collect(),
        }
    }

    pub(crate) fn allows(&self, uid: u32) -> bool {
        uid == self.own || self.others.contains(&uid)
    }

    pub(crate) fn is_own(&self, uid: u32) -> bool {
        uid == self.own
    }

    pub(crate) fn others(&self) -> &[u32] {
        &self.others
    }

    pub(crate) fn has_others(&self) -> bool {
        !self.others.is_empty()
    }
}
