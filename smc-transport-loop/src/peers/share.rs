//! How many peers a user may have.

use rustix::process::{Resource, geteuid, getrlimit};

/// How many peers there are.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PeerCounts {
    /// Of the user in question.
    pub(super) same_user: usize,
    /// Of all users but the own one.
    pub(super) other_users: usize,
}

/// Whether a process of this user may be one more peer. Peers of the own user have at most half of
/// the descriptors of this process, those of another user an eighth, and those of all other users a
/// quarter.
pub(super) fn has_quota(uid: u32, peers: PeerCounts) -> bool {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    has_quota_within(limit, uid, peers)
}

pub(super) fn is_own(uid: u32) -> bool {
    uid == geteuid().as_raw()
}

fn has_quota_within(descriptors: u64, uid: u32, peers: PeerCounts) -> bool {
    let most = usize::try_from(descriptors).unwrap_or(usize::MAX) / DESCRIPTORS_PER_PEER;
    let part = |share: usize| (most / share).max(1);
    if is_own(uid) {
        peers.same_user < part(2)
    } else {
        peers.same_user < part(8) && peers.other_users < part(4)
    }
}

/// A channel in each direction, and an eventfd for each.
const DESCRIPTORS_PER_PEER: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_a_share_of_the_descriptors() {
        let own = geteuid().as_raw();
        let (other, another) = (own + 1, own + 2);
        let peers = 256;
        let has_quota = |uid, counts| has_quota_within(1024, uid, counts);
        let counts = |same_user, other_users| PeerCounts {
            same_user,
            other_users,
        };
        assert!(has_quota(own, counts(peers / 2 - 1, peers)));
        assert!(!has_quota(own, counts(peers / 2, 0)));
        assert!(has_quota(other, counts(peers / 8 - 1, peers / 8)));
        assert!(!has_quota(other, counts(peers / 8, peers / 8)));
        assert!(has_quota(another, counts(0, peers / 4 - 1)));
        assert!(!has_quota(another, counts(0, peers / 4)));
    }
}
