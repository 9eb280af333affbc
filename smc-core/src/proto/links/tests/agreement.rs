//! The state that both sides have to agree on.

use super::world::{CLIENT, SERVER, Side, World, key_of};
use super::*;

impl World {
    /// Both sides have the same links, and all keys of each other on all of them.
    pub(super) fn assert_agreed(&self) {
        let links = |side: Side| {
            let group = &self.hosts[side].group;
            let active = group.links().filter(|link| link.state == LinkState::Active);
            let mut active: Vec<_> = active
                .map(|link| {
                    let (local, peer) = (link.local.unwrap().qpn, link.peer.unwrap().qpn);
                    let pair = if side == SERVER {
                        (local, peer)
                    } else {
                        (peer, local)
                    };
                    (link.number, pair, link.id)
                })
                .collect();
            active.sort();
            active
        };
        let pairs = |side| {
            let links = links(side).into_iter();
            links
                .map(|(number, pair, _)| (number, pair))
                .collect::<Vec<_>>()
        };
        assert_eq!(pairs(SERVER), pairs(CLIENT), "same links");
        assert!(!pairs(SERVER).is_empty());
        for side in [SERVER, CLIENT] {
            let (us, peer) = (&self.hosts[side].group, &self.hosts[1 - side].group);
            assert_eq!(us.links().count(), links(side).len(), "no half links");
            // The peer may not have received DELETE RKEY.
            let (mut known, mut perhaps) = (0, us.local_rmbs.undeleted);
            for (rmb, found) in &us.local_rmbs.rmbs {
                if found.announced != rmbs::RmbAnnouncement::Yes || found.is_released {
                    // Its confirmation has failed, and no side has deleted it yet.
                    perhaps += usize::from(found.announced == rmbs::RmbAnnouncement::Unconfirmed);
                    continue;
                }
                known += 1;
                for ((_, _, ours), (_, _, theirs)) in links(side).iter().zip(links(1 - side)) {
                    let device = us.link(*ours).unwrap().device;
                    let (rkey, addr) = key_of(side, *rmb, device.0);
                    let id = peer.rtokens.find(theirs, rkey);
                    let id = id.unwrap_or_else(|| panic!("{rmb:?} of {side} unknown on {ours}"));
                    assert_eq!(peer.rtoken(id, theirs), Some((rkey, addr)));
                }
            }
            let len = peer.rtokens.len();
            let all = known..=known + perhaps;
            assert!(
                all.contains(&len),
                "nothing else is in the table: {len}, {all:?}"
            );
        }
    }
}
