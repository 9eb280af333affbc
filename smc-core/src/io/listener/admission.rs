//! Admission control of a listener's set-ups.
//!
//! A handshake takes a place, whose number is a setting of the endpoint. Set-ups without a place
//! wait in order of arrival; their number is bounded as well. Of both, one source has half at most:
//! an address of a network, or another user of this host. Plain TCP connections need no place.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;

use crate::io::negotiate::Credentials;
use crate::source::source;

/// The places of one listener.
#[derive(Debug)]
pub(super) struct AdmissionControl {
    state: Mutex<State>,
    max_places: usize,
    max_waiting: usize,
}

#[derive(Debug, Default)]
struct State {
    last: u64,
    /// Without a place, the oldest first.
    waiting: BTreeMap<u64, Waiting>,
    places: usize,
    sources: HashMap<Source, Count>,
}

#[derive(Debug)]
struct Waiting {
    source: Option<Source>,
    /// Set once the set-up waits for a place.
    waker: Option<Waker>,
}

/// Set-ups of one source.
#[derive(Debug, Default)]
struct Count {
    waiting: usize,
    places: usize,
}

/// The source of clients that share a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Source {
    /// An IPv4 address, or the network part of an IPv6 one: a host may use any address of its
    /// network.
    Address(IpAddr),
    /// Another user of this host.
    User(u32),
}

impl Source {
    pub(super) fn of_address(address: IpAddr) -> Self {
        Self::Address(source(address))
    }

    /// Of a client with a side channel. Those of the own user may have all places.
    pub(super) fn of_client(client: Option<Credentials>) -> Option<Self> {
        let uid = client?.uid;
        (uid != Credentials::own().uid).then_some(Self::User(uid))
    }
}

impl AdmissionControl {
    pub(super) fn new(max_places: usize, max_waiting: usize) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            max_places: max_places.max(1),
            max_waiting: max_waiting.max(1),
        })
    }

    pub(super) fn max_waiting(&self) -> usize {
        self.max_waiting
    }

    /// Whether another set-up may enter.
    pub(super) fn is_open(&self) -> bool {
        self.lock().waiting.len() < self.max_waiting
    }

    /// Admits a set-up, to wait for a place. `None` if too many of this source wait already.
    pub(super) fn enter(self: &Arc<Self>, source: Option<Source>) -> Option<AdmissionPermit> {
        let mut state = self.lock();
        if let Some(source) = source {
            let count = state.sources.entry(source).or_default();
            if count.waiting >= self.max_waiting.div_ceil(2) {
                return None;
            }
            count.waiting += 1;
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

    /// Grants free places to waiting set-ups. The caller wakes them without the lock.
    fn grant(&self, state: &mut State) -> Vec<Waker> {
        let State {
            waiting,
            places,
            sources,
            ..
        } = state;
        let max_of_source = self.max_places.div_ceil(2);
        let max = self.max_places;
        let mut wakers = Vec::new();
        if *places >= max {
            return wakers;
        }
        waiting.retain(|_, next| {
            let mut count = next.source.and_then(|source| sources.get_mut(&source));
            let is_over = count
                .as_ref()
                .is_some_and(|count| count.places >= max_of_source);
            if *places >= max || is_over {
                return true;
            }
            let Some(waker) = next.waker.take() else {
                return true;
            };
            *places += 1;
            if let Some(count) = &mut count {
                count.places += 1;
                count.waiting -= 1;
            }
            wakers.push(waker);
            false
        });
        wakers
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
    pub(super) async fn place(&mut self) {
        poll_fn(|cx| {
            let (is_waiting, wakers) = {
                let mut state = self.admission.lock();
                if let Some(waiting) = state.waiting.get_mut(&self.id) {
                    waiting.waker = Some(cx.waker().clone());
                }
                let wakers = self.admission.grant(&mut state);
                (state.waiting.contains_key(&self.id), wakers)
            };
            // Except for this task, which is running.
            let others = wakers.iter().filter(|waker| !waker.will_wake(cx.waker()));
            others.for_each(Waker::wake_by_ref);
            match is_waiting {
                true => Poll::Pending,
                false => Poll::Ready(()),
            }
        })
        .await;
    }
}

impl Drop for AdmissionPermit {
    fn drop(&mut self) {
        let wakers = {
            let mut state = self.admission.lock();
            // A place may have been granted before the set-up was polled again.
            let is_waiting = state.waiting.remove(&self.id).is_some();
            if let Some(Entry::Occupied(mut count)) =
                self.source.map(|source| state.sources.entry(source))
            {
                match is_waiting {
                    true => count.get_mut().waiting -= 1,
                    false => count.get_mut().places -= 1,
                }
                if count.get().waiting == 0 && count.get().places == 0 {
                    count.remove();
                }
            }
            if !is_waiting {
                state.places -= 1;
            }
            self.admission.grant(&mut state)
        };
        wakers.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use futures_lite::future::{block_on, poll_once};

    use super::*;

    fn address(last: u8) -> Option<Source> {
        Some(Source::of_address(Ipv4Addr::new(10, 0, 0, last).into()))
    }

    fn client(uid: u32) -> Option<Source> {
        let own = Credentials::own();
        Source::of_client(Some(Credentials { uid, ..own }))
    }

    fn try_place(permit: &mut AdmissionPermit) -> bool {
        block_on(poll_once(permit.place())).is_some()
    }

    #[test]
    fn one_source_has_half_of_the_places() {
        let admission = AdmissionControl::new(4, 100);
        let mut all: Vec<_> = (0..4)
            .map(|_| admission.enter(address(1)).unwrap())
            .collect();
        let placed = all
            .iter_mut()
            .filter_map(|one| try_place(one).then_some(()));
        assert_eq!(placed.count(), 2);
        let mut others: Vec<_> = (2..5)
            .map(|last| admission.enter(address(last)).unwrap())
            .collect();
        let placed = others.iter_mut().map(try_place).collect::<Vec<_>>();
        assert_eq!(placed, [true, true, false]);
        // The next place is granted to the oldest permit below the limit.
        drop(all.remove(0));
        assert!(try_place(&mut all[1]));
        assert!(!try_place(&mut others[2]));
        drop(others.remove(0));
        assert!(try_place(&mut others[1]));
        assert!(!try_place(&mut all[2]));
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
        let state = admission.lock();
        assert_eq!((state.places, state.waiting.len()), (0, 0));
        assert!(state.sources.is_empty());
    }

    #[test]
    fn waiting_set_ups_are_bounded_and_one_source_has_half() {
        let admission = AdmissionControl::new(1, 4);
        let enter = |last| admission.enter(address(last));
        let _first = [enter(1).unwrap(), enter(1).unwrap()];
        assert!(enter(1).is_none());
        let _second = enter(2).unwrap();
        assert!(admission.is_open());
        let _third = enter(3).unwrap();
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
        let admission = AdmissionControl::new(4, 8);
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
        let admission = AdmissionControl::new(1, 2);
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
