//! The owners of a device's queue pairs.

use std::sync::{Arc, Weak};

use hashbrown::HashMap;
use smc_wire::types::Qpn;

use crate::proto::links::LinkId;

/// The group and the link of each queue pair, by its number. A device may use a number again as
/// soon as the queue pair is destroyed, before its former owner has removed it.
pub(crate) struct LinkOwners<G>(HashMap<Qpn, (Weak<G>, LinkId)>);

impl<G> Default for LinkOwners<G> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<G> LinkOwners<G> {
    pub(crate) fn insert(&mut self, qpn: Qpn, group: Weak<G>, link: LinkId) {
        // A cancelled set-up leaves its link in the table.
        self.0.retain(|_, (group, _)| group.strong_count() > 0);
        self.0.insert(qpn, (group, link));
    }

    /// Removes a link, unless its number is that of another one now.
    pub(crate) fn remove(&mut self, qpn: Qpn, group: &Weak<G>, link: LinkId) {
        let is_owner = |(of, id): &(Weak<G>, LinkId)| Weak::ptr_eq(of, group) && *id == link;
        if self.0.get(&qpn).is_some_and(is_owner) {
            self.0.remove(&qpn);
        }
    }

    pub(crate) fn get(&self, qpn: Qpn) -> Option<(Arc<G>, LinkId)> {
        let (group, link) = self.0.get(&qpn)?;
        Some((group.upgrade()?, *link))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_that_is_removed_twice_leaves_a_later_one_of_the_same_number() {
        let (first, second) = (Arc::new(1), Arc::new(2));
        let [earlier, later] = [&first, &second].map(Arc::downgrade);
        let mut owners = LinkOwners::default();
        let (qpn, link) = (Qpn::default(), LinkId(1));
        owners.insert(qpn, earlier.clone(), link);
        owners.remove(qpn, &earlier, link);
        for (group, id) in [(&later, link), (&later, LinkId(2))] {
            owners.insert(qpn, group.clone(), id);
            owners.remove(qpn, &earlier, link);
            assert_eq!(owners.get(qpn), Some((Arc::clone(&second), id)));
        }
        // Of one group as well.
        owners.remove(qpn, &later, link);
        assert!(owners.get(qpn).is_some());
        owners.remove(qpn, &later, LinkId(2));
        assert!(owners.get(qpn).is_none());
    }
}
