//! Peers' buffers that connections have named in link groups with early data or fast open, where no
//! two connections have the same one (docs/spec/extensions.md#early-data).

use hashbrown::HashSet;
use smc_wire::types::{DmbToken, Gid};

use super::DeviceDriver;
use crate::mutex::Mutex;

/// The buffers by the peer's device and token. One is forgotten when the peer no longer has it: its
/// token is not used again.
#[derive(Debug, Default)]
pub(super) struct ClaimedBuffers(Mutex<Claimed>);

#[derive(Debug, Default)]
struct Claimed {
    all: HashSet<(Gid, DmbToken)>,
    /// The number at which those that no longer exist are looked for.
    look_at: usize,
}

impl ClaimedBuffers {
    /// Claims a buffer. False if that was done before.
    fn insert(
        &self,
        peer: Gid,
        token: DmbToken,
        is_registered: impl Fn(Gid, DmbToken) -> bool,
    ) -> bool {
        let mut claimed = self.0.lock();
        if claimed.all.len() >= claimed.look_at {
            claimed
                .all
                .retain(|&(peer, token)| is_registered(peer, token));
            claimed.look_at = FORGOTTEN_FROM.max(claimed.all.len().saturating_mul(2));
        }
        claimed.all.insert((peer, token))
    }
}

impl DeviceDriver {
    /// Claims a buffer that a peer has for the device. Returns whether it was not claimed before.
    pub(crate) fn claim_buffer(&self, peer: Gid, token: DmbToken) -> bool {
        let direct = self.device.operations().direct();
        let is_registered =
            |peer, token| direct.is_some_and(|direct| direct.is_registered(peer, token));
        self.claimed_buffers.insert(peer, token, is_registered)
    }
}

/// Fewer are not looked through.
const FORGOTTEN_FROM: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: Gid = Gid::new(1, 2);

    #[test]
    fn a_buffer_is_claimed_once_for_as_long_as_the_peer_has_it() {
        let claimed = ClaimedBuffers::default();
        let exists = |token: DmbToken| token.0 % 2 == 0;
        let claim = |token| claimed.insert(PEER, DmbToken(token), |_, token| exists(token));
        let tokens = 0..10 * FORGOTTEN_FROM as u64;
        for token in tokens.clone() {
            assert!(claim(token));
        }
        let all = claimed.0.lock().all.len();
        assert!(all < 8 * FORGOTTEN_FROM, "{all} are remembered");
        for token in tokens.step_by(2) {
            assert!(!claim(token), "{token} again");
        }
    }

    #[test]
    fn the_same_token_of_another_device_is_another_buffer() {
        let claimed = ClaimedBuffers::default();
        for peer in [PEER, Gid::new(3, 4)] {
            assert!(claimed.insert(peer, DmbToken(7), |_, _| true));
        }
    }
}
