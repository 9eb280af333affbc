//! The last handshakes with destinations, as far as they say what the next ones can be expected to
//! be.

use std::time::{Duration, Instant};

use hashbrown::HashMap;

use crate::address::Address;
use crate::mutex::Mutex;
use crate::negotiate::ExpectedHandshake;
use crate::proto::group::GroupKey;

/// Handshakes with listeners that take an early CONFIRM, where no side channel has told of them.
/// Those with others are not kept.
#[derive(Debug, Default)]
pub(crate) struct Precedents(Mutex<HashMap<Address, Kept>>);

/// The next handshake with a destination is expected to be like this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Precedent {
    /// SMC-D.
    Direct(ExpectedHandshake),
    /// SMC-R, with the link group.
    Rdma(GroupKey),
}

#[derive(Debug)]
struct Kept {
    precedent: Precedent,
    until: Instant,
}

impl Precedents {
    pub(crate) fn get(&self, now: Instant, to: &Address) -> Option<Precedent> {
        let known = self.0.lock();
        let kept = known.get(to).filter(|kept| now < kept.until)?;
        Some(kept.precedent)
    }

    /// Keeps a handshake in the place of that before. Of too many destinations those that have
    /// expired are forgotten, or the one that expires first: its next handshake takes a CONFIRM.
    pub(crate) fn keep(&self, now: Instant, to: &Address, precedent: Precedent) {
        let until = now + LIFETIME;
        let kept = Kept { precedent, until };
        let mut known = self.0.lock();
        if let Some(known) = known.get_mut(to) {
            *known = kept;
            return;
        }
        if known.len() >= DESTINATIONS_MAX {
            known.retain(|_, kept| now < kept.until);
        }
        if known.len() >= DESTINATIONS_MAX {
            let oldest = known.iter().min_by_key(|(_, kept)| kept.until);
            let oldest = oldest.map(|(to, _)| to.clone());
            oldest.map(|to| known.remove(&to));
        }
        known.insert(to.clone(), kept);
    }

    pub(crate) fn forget(&self, to: &Address) {
        self.0.lock().remove(to);
    }
}

const DESTINATIONS_MAX: usize = 256;

/// A precedent counts for as long as link groups stay without connections.
const LIFETIME: Duration = Duration::from_secs(600);

#[cfg(test)]
mod tests {
    use smc_wire::size::SizeCode;
    use smc_wire::types::Gid;

    use super::*;
    use crate::address::UnixAddr;

    fn handshake() -> Precedent {
        let expected = ExpectedHandshake {
            client: Gid::new(1, 2),
            server: Gid::new(3, 4),
            process: None,
            size: SizeCode::MIN,
            server_size: SizeCode::MIN,
        };
        Precedent::Direct(expected)
    }

    fn destination(number: usize) -> Address {
        UnixAddr::from_path(format!("/run/{number}"))
            .unwrap()
            .into()
    }

    #[test]
    fn the_number_of_destinations_is_bounded_and_the_last_one_is_kept() {
        let (precedents, now) = (Precedents::default(), Instant::now());
        for number in 0..2 * DESTINATIONS_MAX {
            let to = destination(number);
            precedents.keep(now, &to, handshake());
            precedents.keep(now, &to, handshake());
            assert_eq!(precedents.get(now, &to), Some(handshake()));
        }
        assert_eq!(precedents.0.lock().len(), DESTINATIONS_MAX);
    }

    #[test]
    fn the_precedent_that_expires_first_makes_place_for_another_one() {
        let (precedents, now) = (Precedents::default(), Instant::now());
        let at = |number: usize| now + Duration::from_secs(u64::try_from(number).unwrap());
        for number in 0..DESTINATIONS_MAX {
            precedents.keep(at(number), &destination(number), handshake());
        }
        // The first one is kept anew.
        let later = at(DESTINATIONS_MAX);
        precedents.keep(later, &destination(0), handshake());
        precedents.keep(later, &destination(DESTINATIONS_MAX), handshake());
        for number in 0..=DESTINATIONS_MAX {
            let kept = precedents.get(later, &destination(number));
            assert_eq!(kept.is_some(), number != 1, "{number}");
        }
    }

    #[test]
    fn a_precedent_expires_and_makes_place_for_others() {
        let (precedents, now) = (Precedents::default(), Instant::now());
        for number in 0..DESTINATIONS_MAX {
            precedents.keep(now, &destination(number), handshake());
        }
        let later = now + LIFETIME;
        assert_eq!(precedents.get(later, &destination(0)), None);
        precedents.keep(later, &destination(DESTINATIONS_MAX), handshake());
        assert_eq!(precedents.0.lock().len(), 1);
    }
}
