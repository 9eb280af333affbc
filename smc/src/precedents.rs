//! The last handshakes with destinations, as far as they say what the next ones can be expected to
//! be.

use hashbrown::HashMap;

use crate::address::UnixAddr;
use crate::mutex::Mutex;
use crate::negotiate::ExpectedHandshake;

/// Handshakes with listeners of UNIX sockets that take an early CONFIRM. Those with others are not
/// kept.
#[derive(Debug, Default)]
pub(crate) struct Precedents(Mutex<HashMap<UnixAddr, ExpectedHandshake>>);

impl Precedents {
    pub(crate) fn get(&self, to: &UnixAddr) -> Option<ExpectedHandshake> {
        self.0.lock().get(to).copied()
    }

    /// Keeps a handshake in the place of that before. Of too many destinations some other one is
    /// forgotten: its next handshake takes a CONFIRM.
    pub(crate) fn keep(&self, to: &UnixAddr, handshake: ExpectedHandshake) {
        let mut known = self.0.lock();
        if let Some(known) = known.get_mut(to) {
            *known = handshake;
            return;
        }
        if known.len() >= DESTINATIONS_MAX {
            let other = known.keys().next().cloned();
            other.map(|other| known.remove(&other));
        }
        known.insert(to.clone(), handshake);
    }

    pub(crate) fn forget(&self, to: &UnixAddr) {
        self.0.lock().remove(to);
    }
}

const DESTINATIONS_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use smc_wire::size::SizeCode;
    use smc_wire::types::Gid;

    use super::*;

    #[test]
    fn the_number_of_destinations_is_bounded_and_the_last_one_is_kept() {
        let precedents = Precedents::default();
        let handshake = ExpectedHandshake {
            client: Gid::new(1, 2),
            server: Gid::new(3, 4),
            process: None,
            size: SizeCode::MIN,
            server_size: SizeCode::MIN,
        };
        for number in 0..2 * DESTINATIONS_MAX {
            let to = UnixAddr::from_path(format!("/run/{number}")).unwrap();
            precedents.keep(&to, handshake);
            precedents.keep(&to, handshake);
            assert_eq!(precedents.get(&to), Some(handshake));
        }
        assert_eq!(precedents.0.lock().len(), DESTINATIONS_MAX);
    }
}
