//! Admission control of a listener's set-ups.
//!
//! A handshake takes a place, whose number is a setting of the endpoint. Set-ups without a place
//! wait in order of arrival; their number is bounded as well. Of both, a quarter is reserved for
//! clients of the own user, and of the rest one source, which is an address of a network or another
//! user of this host, has no more than are left free. Plain TCP connections need no place.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};

use crate::mutex::Mutex;
use crate::peer_descriptors::Source;
use crate::quota::FairShares;

/// The places of one listener.
#[derive(Debug)]
pub(super) struct AdmissionControl {
    state: Mutex<AdmissionState>,
    max_places: usize,
    pub(super) max_waiting: usize,
}

#[derive(Debug)]
struct AdmissionState {
    last: u64,
    /// Without a place, the oldest first.
    waiting: BTreeMap<u64, Waiting>,
    places: usize,
    /// The entries of `waiting`, and the places, that sources have.
    waiting_shares: FairShares<Source>,
    place_shares: FairShares<Source>,
}

#[derive(Debug)]
struct Waiting {
    source: Option<Source>,
    /// Set once the set-up waits for a place.
    waker: Option<Waker>,
}

impl AdmissionControl {
    pub(super) fn new(max_places: usize, max_waiting: usize) -> Arc<Self> {
        let (max_places, max_waiting) = (max_places.max(1), max_waiting.max(1));
        let shares = |max| FairShares::new(max_of_sources(max), usize::MAX);
        Arc::new(Self {
            state: Mutex::new(AdmissionState {
                last: 0,
                waiting: BTreeMap::new(),
                places: 0,
                waiting_shares: shares(max_waiting),
                place_shares: shares(max_places),
            }),
            max_places,
            max_waiting,
        })
    }

    /// Whether another set-up may enter.
    pub(super) fn is_open(&self) -> bool {
        self.state.lock().waiting.len() < self.max_waiting
    }

    /// Admits a set-up, to wait for a place. `None` if too many of this source wait already.
    pub(super) fn enter(self: &Arc<Self>, source: Option<Source>) -> Option<AdmissionPermit> {
        let mut state = self.state.lock();
        if let Some(source) = source {
            if !state.waiting_shares.has_capacity(&source) {
                return None;
            }
            state.waiting_shares.take(source);
        }
        state.last += 1;
        let id = state.last;
        let waker = None;
        state.waiting.insert(id, Waiting { source, waker });
        drop(state);
        Some(AdmissionPermit {
            admission: Arc::clone(self),
            id,
            source,
        })
    }

    /// Grants free places to the oldest waiting set-ups, after one was released. The caller wakes
    /// them without the lock.
    fn grant(&self, state: &mut AdmissionState) -> Vec<Waker> {
        let mut wakers = Vec::new();
        while state.places < self.max_places {
            let mut waiting = state.waiting.iter();
            let next = waiting.find(|(_, next)| {
                next.waker.is_some() && self.has_place(state, next.source.as_ref())
            });
            let Some(id) = next.map(|(id, _)| *id) else {
                break;
            };
            wakers.extend(state.take_place(id));
        }
        wakers
    }

    /// Whether a set-up of this source may have a place.
    fn has_place(&self, state: &AdmissionState, source: Option<&Source>) -> bool {
        state.places < self.max_places
            && source.is_none_or(|source| state.place_shares.has_capacity(source))
    }
}

impl AdmissionState {
    /// Gives a waiting set-up a place. Returns its waker.
    fn take_place(&mut self, id: u64) -> Option<Waker> {
        let Waiting { source, waker } = self.waiting.remove(&id)?;
        self.places += 1;
        if let Some(source) = source {
            self.waiting_shares.release(&source);
            self.place_shares.take(source);
        }
        waker
    }
}

/// The permit of an admitted set-up. Dropping it releases its place.
#[derive(Debug)]
pub(super) struct AdmissionPermit {
    admission: Arc<AdmissionControl>,
    id: u64,
    source: Option<Source>,
}

impl AdmissionPermit {
    /// Waits for a place.
    pub(super) async fn wait_for_place(&mut self) {
        poll_fn(|cx| {
            let mut state = self.admission.state.lock();
            // Others with a waker were granted what they may have when it was released.
            if self.admission.has_place(&state, self.source.as_ref()) {
                state.take_place(self.id);
            }
            match state.waiting.get_mut(&self.id) {
                Some(waiting) => {
                    waiting.waker = Some(cx.waker().clone());
                    Poll::Pending
                }
                None => Poll::Ready(()),
            }
        })
        .await;
    }
}

impl Drop for AdmissionPermit {
    fn drop(&mut self) {
        let wakers = {
            let mut state = self.admission.state.lock();
            // A place may have been granted before the set-up was polled again.
            let is_waiting = state.waiting.remove(&self.id).is_some();
            let shares = match is_waiting {
                true => &mut state.waiting_shares,
                false => &mut state.place_shares,
            };
            if let Some(source) = self.source {
                shares.release(&source);
            }
            if is_waiting {
                return;
            }
            state.places -= 1;
            self.admission.grant(&mut state)
        };
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// Of so many, those that all sources together can have. The rest is for clients of the own user.
fn max_of_sources(max: usize) -> usize {
    let reserved = max.div_ceil(4);
    max.saturating_sub(reserved).max(1)
}

#[cfg(test)]
mod tests {
    use futures_lite::future::{block_on, poll_once};

    use std::net::Ipv4Addr;

    use super::*;
    use crate::negotiate::Credentials;

    fn address(last: u8) -> Option<Source> {
        Some(Source::of_address(Ipv4Addr::new(10, 0, 0, last).into()))
    }

    fn client(uid: u32) -> Option<Source> {
        let own = Credentials::own();
        let mut client = own;
        client.uid = uid;
        Source::of_client(Some(client), uid == own.uid, Ipv4Addr::LOCALHOST.into())
    }

    #[test]
    fn a_client_without_credentials_is_not_one_of_the_own_user() {
        let [one, other] = [1, 2].map(|last| Ipv4Addr::new(10, 0, 0, last).into());
        let of_client = |is_own, address| Source::of_client(None, is_own, address);
        assert_eq!(of_client(false, one), Some(Source::of_address(one)));
        assert_ne!(of_client(false, one), of_client(false, other));
        assert_eq!(of_client(true, one), None);
    }

    fn try_place(permit: &mut AdmissionPermit) -> bool {
        block_on(poll_once(permit.wait_for_place())).is_some()
    }

    /// Lets sources take places in turn until none gets a further one; returns their permits.
    fn fill(admission: &Arc<AdmissionControl>, sources: &[Option<Source>]) -> Vec<AdmissionPermit> {
        let mut placed = Vec::new();
        loop {
            let before = placed.len();
            for source in sources {
                let permit = admission.enter(*source);
                placed.extend(permit.and_then(|mut it| try_place(&mut it).then_some(it)));
            }
            if placed.len() == before {
                return placed;
            }
        }
    }

    #[test]
    fn one_source_has_half_of_the_places() {
        let admission = AdmissionControl::new(8, 100);
        let mut all: Vec<_> = (0..4)
            .map(|_| admission.enter(address(1)).unwrap())
            .collect();
        let placed = all
            .iter_mut()
            .filter_map(|one| try_place(one).then_some(()));
        assert_eq!(placed.count(), 3);
        let mut others: Vec<_> = [2, 2, 2, 3, 4]
            .map(|last| admission.enter(address(last)).unwrap())
            .into();
        let placed = others.iter_mut().map(try_place).collect::<Vec<_>>();
        assert_eq!(placed, [true, true, false, true, false]);
        // The next place is granted to the oldest permit below the limit.
        drop(all.remove(0));
        assert!(!try_place(&mut all[2]));
        assert!(try_place(&mut others[4]));
        drop(others);
        assert!(try_place(&mut all[2]));
    }

    /// Sources that take all they get leave places to a further one, and to the own user.
    #[test]
    fn places_and_the_waiting_line_stay_free_for_the_own_user_and_for_another_source() {
        let own = client(Credentials::own().uid);
        let user = |n| client(Credentials::own().uid + n);
        for sources in [
            vec![user(1), user(2)],
            vec![address(1), address(2)],
            vec![user(1), user(2), address(1), address(2), address(3)],
        ] {
            let admission = AdmissionControl::new(256, 1024);
            let mut placed = fill(&admission, &sources);
            // Nor do those that wait fill the line.
            let waiting = |source: &Option<Source>| {
                let source = *source;
                std::iter::from_fn(|| admission.enter(source)).collect::<Vec<_>>()
            };
            let _waiting: Vec<_> = sources.iter().flat_map(waiting).collect();
            assert!(admission.is_open());
            let mut another = admission.enter(user(9)).unwrap();
            assert!(try_place(&mut another), "{sources:?}");
            placed.push(another);
            for _ in 0..64 {
                let mut permit = admission.enter(own).unwrap();
                assert!(try_place(&mut permit), "{sources:?}");
                placed.push(permit);
            }
        }
    }

    /// However many addresses there are, the own user has a quarter.
    #[test]
    fn very_many_sources_leave_a_quarter_to_the_own_user() {
        let admission = AdmissionControl::new(256, 1024);
        let sources: Vec<_> = (0..=255).map(address).collect();
        let placed = fill(&admission, &sources);
        assert_eq!(placed.len(), 192);
        let own = client(Credentials::own().uid);
        let mut all: Vec<_> = (0..64).map(|_| admission.enter(own).unwrap()).collect();
        assert!(all.iter_mut().all(try_place));
    }

    /// In any order of arrivals, polls and ends: no set-up waits that could have a place. So a poll
    /// has to look at its own set-up only.
    #[test]
    fn no_setup_waits_while_it_could_have_a_place() {
        let own = client(Credentials::own().uid);
        let sources = [own, address(1), address(2), address(3)];
        let admission = AdmissionControl::new(6, 64);
        let (mut permits, mut random) = (Vec::new(), 1_u64);
        let mut waited = 0;
        for _ in 0..10_000 {
            random = random.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
            let choice = usize::try_from(random >> 33).unwrap();
            let at = (choice >> 8) % permits.len().max(1);
            match choice % 3 {
                0 => permits.extend(admission.enter(sources[(choice >> 4) % 4])),
                1 if at < permits.len() => waited += usize::from(!try_place(&mut permits[at])),
                2 if at < permits.len() => drop(permits.swap_remove(at)),
                _ => {}
            }
            let state = admission.state.lock();
            let mut polled = state.waiting.values().filter(|it| it.waker.is_some());
            assert!(!polled.any(|it| admission.has_place(&state, it.source.as_ref())));
        }
        assert!(waited > 100, "{waited}");
    }

    #[test]
    fn loopback_addresses_are_one_source() {
        let of = |address: &str| Source::of_address(address.parse().unwrap());
        assert_eq!(of("127.0.0.1"), of("127.3.2.1"));
        assert_eq!(of("::ffff:127.0.0.1"), of("127.0.0.1"));
        assert_ne!(of("10.0.0.1"), of("127.0.0.1"));
    }

    #[test]
    fn a_granted_place_of_a_dropped_permit_is_granted_again() {
        let admission = AdmissionControl::new(1, 100);
        let mut all: Vec<_> = (0..3)
            .map(|last| admission.enter(address(last)).unwrap())
            .collect();
        let placed = all.iter_mut().map(try_place).collect::<Vec<_>>();
        assert_eq!(placed, [true, false, false]);
        drop(all.remove(0));
        drop(all.remove(0));
        assert!(try_place(&mut all[0]));
        drop(all);
        let state = admission.state.lock();
        assert_eq!((state.places, state.waiting.len()), (0, 0));
        assert!(state.place_shares.is_empty() && state.waiting_shares.is_empty());
    }

    #[test]
    fn waiting_setups_are_bounded_and_one_source_has_half() {
        let admission = AdmissionControl::new(1, 4);
        let enter = |last| admission.enter(address(last));
        let _first = [enter(1).unwrap(), enter(1).unwrap()];
        assert!(enter(1).is_none());
        let _second = enter(2).unwrap();
        assert!(enter(3).is_none());
        // The rest is for the own user.
        assert!(admission.is_open());
        let _own = admission.enter(client(Credentials::own().uid)).unwrap();
        assert!(!admission.is_open());
    }

    #[test]
    fn clients_of_the_own_user_may_have_all_places() {
        let admission = AdmissionControl::new(4, 4);
        let own = client(Credentials::own().uid);
        let mut all = [(); 4].map(|()| admission.enter(own).unwrap());
        assert!(all.iter_mut().all(try_place));
    }

    #[test]
    fn another_user_has_half_of_the_places() {
        let other = Credentials::own().uid + 1;
        let admission = AdmissionControl::new(6, 10);
        let mut all = [(); 4].map(|()| admission.enter(client(other)).unwrap());
        assert_eq!(all.each_mut().map(try_place), [true, true, false, false]);
        let mut rest = [client(other + 1), address(1)].map(|from| admission.enter(from).unwrap());
        assert!(rest.iter_mut().all(try_place));
        let more = [(); 3].map(|()| admission.enter(client(other)));
        assert_eq!(more.each_ref().map(Option::is_some), [true, true, false]);
        assert!(admission.enter(address(1)).is_some());
    }

    #[test]
    fn a_network_of_version_6_is_one_source() {
        let admission = AdmissionControl::new(1, 3);
        let enter = |address: &str| {
            let address = address.parse().unwrap();
            admission.enter(Some(Source::of_address(address)))
        };
        let _one = enter("2001:db8::1");
        let second = enter("2001:db8::2");
        assert!(second.is_none());
        let other = enter("2001:db8:0:1::1");
        assert!(other.is_some());
    }
}
