//! A slot under loom: every order of steps of a client and a listener, every value that a load may
//! see.

use loom::thread;
use smc_core::mem::sync::model::{Mutation, check, with};

use super::*;

#[test]
fn an_offer_is_taken_with_its_answer_or_withdrawn() {
    takes(None, None);
}

#[test]
#[should_panic(expected = "the addresses of another offer")]
fn an_offer_without_release_comes_before_its_addresses() {
    takes(Some(Mutation::NoRelease), None);
}

#[test]
#[should_panic(expected = "the addresses of another offer")]
fn an_offer_read_without_acquire_comes_before_its_addresses() {
    takes(None, Some(Mutation::NoAcquire));
}

#[test]
#[should_panic(expected = "taken before the answer")]
fn an_answer_without_release_comes_late() {
    takes(None, Some(Mutation::NoRelease));
}

#[test]
#[should_panic(expected = "taken before the answer")]
fn an_answer_read_without_acquire_comes_late() {
    takes(Some(Mutation::NoAcquire), None);
}

#[test]
fn an_offer_is_refused_with_its_reason_or_withdrawn() {
    refuses(None);
}

#[test]
#[should_panic(expected = "a refusal without its reason")]
fn a_refusal_without_release_comes_before_its_reason() {
    refuses(Some(Mutation::NoRelease));
}

#[test]
fn an_offer_that_is_claimed_has_the_addresses_of_its_generation() {
    offers_again(None, None);
}

#[test]
#[should_panic(expected = "the addresses of another offer")]
fn an_offer_without_release_has_the_addresses_before() {
    offers_again(Some(Mutation::NoRelease), None);
}

#[test]
#[should_panic(expected = "the addresses of another offer")]
fn an_offer_read_without_acquire_has_the_addresses_before() {
    offers_again(None, Some(Mutation::NoAcquire));
}

#[test]
fn a_client_that_waits_reads_the_answer_or_is_notified() {
    waits(None, None);
}

#[test]
#[should_panic(expected = "neither read nor notified")]
fn a_client_without_fence_waits_for_good() {
    waits(Some(Mutation::NoFence), None);
}

#[test]
#[should_panic(expected = "neither read nor notified")]
fn a_listener_without_fence_leaves_the_client_waiting() {
    waits(None, Some(Mutation::NoFence));
}

/// The listener takes an offer and answers, while the client makes it and gives up.
fn takes(offering: Option<Mutation>, listening: Option<Mutation>) {
    check(move || {
        let [client, listener] = slots();
        let listener = thread::spawn(move || {
            with(listening, || {
                let Some((generation, found)) = listener.offered() else {
                    return false;
                };
                if !listener.claim(generation) {
                    return false;
                }
                assert_eq!(found, announcement(2), "the addresses of another offer");
                let mut message = [0; MESSAGE.len() + 1];
                let read = listener.read(Direction::FromClient, 0, &mut message);
                assert_eq!(read, Some(MESSAGE.len()));
                assert_eq!(message[..MESSAGE.len()], *MESSAGE);
                listener.write(Direction::FromListener, ANSWER).unwrap();
                listener.take(generation)
            })
        });
        let is_withdrawn = with(offering, || {
            let generation = client.offer(announcement(2), MESSAGE, None).unwrap();
            let is_withdrawn = client.withdraw(generation);
            if !is_withdrawn {
                assert_eq!(client.state(generation), OfferState::Taken);
                let mut answer = [0; ANSWER.len() + 1];
                let read = client.read(Direction::FromListener, 0, &mut answer);
                assert_eq!(read, Some(ANSWER.len()), "taken before the answer");
                assert_eq!(answer[..ANSWER.len()], *ANSWER);
            }
            is_withdrawn
        });
        assert_eq!(listener.join().unwrap(), !is_withdrawn, "two results");
    });
}

/// The listener refuses an offer that the client withdraws.
fn refuses(listening: Option<Mutation>) {
    check(move || {
        let [client, listener] = slots();
        let generation = client.offer(announcement(2), MESSAGE, None).unwrap();
        let listener =
            thread::spawn(move || with(listening, || listener.refuse(generation, Refusal::Policy)));
        let is_withdrawn = client.withdraw(generation);
        if !is_withdrawn {
            assert_eq!(client.state(generation), OfferState::Cancelled);
            let reason = client.refusal();
            assert_eq!(reason, Refusal::Policy, "a refusal without its reason");
        }
        assert_eq!(listener.join().unwrap(), !is_withdrawn, "two results");
    });
}

/// The client withdraws its offer and uses the slot for the next one, while the listener claims
/// what it finds there.
fn offers_again(offering: Option<Mutation>, listening: Option<Mutation>) {
    check(move || {
        let [client, listener] = slots();
        let second = client.offer(announcement(2), MESSAGE, None).unwrap();
        let listener = thread::spawn(move || {
            with(listening, || {
                let (generation, found) = listener.offered()?;
                listener.claim(generation).then_some((generation, found))
            })
        });
        let third = with(offering, || {
            client.withdraw(second);
            // A slot whose offer was claimed is not free before the listener has closed it.
            let is_free = client.state(second) == OfferState::Cancelled;
            is_free.then(|| client.offer(announcement(3), MESSAGE, None).unwrap())
        });
        let claimed = listener.join().unwrap();
        if let Some((generation, found)) = claimed {
            let number = if Some(generation) == third { 3 } else { 2 };
            assert_eq!(
                found,
                announcement(number),
                "the addresses of another offer"
            );
        }
    });
}

/// The client waits for an answer, which the listener writes before it closes its direction.
fn waits(waiting: Option<Mutation>, listening: Option<Mutation>) {
    check(move || {
        let [client, listener] = slots();
        let generation = client.offer(announcement(2), MESSAGE, None).unwrap();
        assert!(listener.claim(generation));
        let listener = thread::spawn(move || {
            with(listening, || {
                listener.write(Direction::FromListener, ANSWER).unwrap();
                assert!(listener.take(generation), "the client has not withdrawn");
                listener.needs_wake(Direction::FromListener)
            })
        });
        let mut answer = [0; ANSWER.len()];
        let mut read = || {
            client
                .read(Direction::FromListener, 0, &mut answer)
                .is_some()
        };
        let has_read = with(waiting, || {
            read() || {
                client.request_wake(Direction::FromListener);
                read()
            }
        });
        let is_notified = listener.join().unwrap();
        assert!(has_read || is_notified, "neither read nor notified");
    });
}

/// A client that stores anything, while the listener does all that it does with an offer. No step
/// panics or leaves the slot, whatever it returns.
#[test]
fn a_listener_tolerates_a_client_that_stores_anything() {
    for words in [
        [STATE, CLIENT_WRITTEN],
        [EARLY_LEN, LISTENER_WRITTEN],
        [REFUSAL, LISTENER_WAITS],
    ] {
        hostile(words, |listener, generation| {
            let found = listener.offered().map_or(generation, |(found, _)| found);
            if let Some(early) = listener.early() {
                assert!(early.accept.len().max(early.confirm.len()) <= MAX_EARLY);
            }
            let is_claimed = listener.claim(found);
            let end = EXPECTED_ACCEPT - CLIENT_DATA;
            for at in [0, end - 1, usize::MAX] {
                let read = listener.read(Direction::FromClient, at, &mut [0; 3]);
                let most = end.saturating_sub(at).min(3);
                assert!(read.unwrap_or(0) <= most, "{read:?} bytes at {at}");
            }
            let _may_be_full = listener.write(Direction::FromListener, ANSWER);
            listener.request_wake(Direction::FromClient);
            listener.needs_wake(Direction::FromListener);
            let is_taken = listener.take(found);
            assert!(is_claimed || !is_taken, "taken without a claim");
            listener.close(Direction::FromListener);
        });
    }
}

/// A listener that stores anything, while the client makes an offer and reads the answer.
#[test]
fn a_client_tolerates_a_listener_that_stores_anything() {
    for words in [
        [STATE, LISTENER_WRITTEN],
        [CLIENT_WRITTEN, REFUSAL],
        [CLIENT_WAITS, REFUSAL],
    ] {
        hostile(words, |client, _| {
            // It fails if the listener has stored that the slot is full.
            let offered = client.offer(announcement(2), MESSAGE, None);
            for at in [0, MAX_ANSWER - 1, usize::MAX] {
                let read = client.read(Direction::FromListener, at, &mut [0; 3]);
                let most = MAX_ANSWER.saturating_sub(at).min(3);
                assert!(read.unwrap_or(0) <= most, "{read:?} bytes at {at}");
            }
            client.request_wake(Direction::FromListener);
            if let Some(generation) = offered {
                client.state(generation);
                client.refusal();
                client.withdraw(generation);
            }
            client.close(Direction::FromClient);
        });
    }
}

/// One side stores values in two words, one after the other, while the other side does its steps
/// with the offer of this generation.
fn hostile(words: [usize; 2], steps: fn(&Slot, Generation)) {
    for value in [0, END, END - 1, u64::MAX] {
        check(move || {
            let [slot, hostile] = slots();
            let generation = slot.offer(announcement(2), MESSAGE, None).unwrap();
            let hostile = thread::spawn(move || {
                for at in words {
                    hostile.word(at).store(value, Ordering::Release);
                }
            });
            steps(&slot, generation);
            hostile.join().unwrap();
        });
    }
}

/// A slot as both sides see it, whose first offer was taken, and which has all words and bytes.
fn slots() -> [Slot; 2] {
    let region = Region::anonymous(SLOT_LEN);
    let [client, listener] = [(); 2].map(|()| Slot {
        region: region.clone(),
        number: 0,
    });
    for at in (0..COOKIE).step_by(8) {
        client.word(at);
    }
    let generation = client.offer(announcement(1), MESSAGE, None).unwrap();
    listener.request_wake(Direction::FromClient);
    assert!(client.needs_wake(Direction::FromClient));
    assert!(listener.claim(generation));
    listener.write(Direction::FromListener, ANSWER).unwrap();
    assert!(listener.take(generation));
    listener.close(Direction::FromListener);
    [client, listener]
}

/// That of the connection with this number.
fn announcement(number: u16) -> Announcement {
    let at = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    Announcement {
        cookie: number.into(),
        from: at(40_000 + number),
        to: at(80 + number),
    }
}

/// Of lengths that are not copied in words, so that unordered copies are found.
const MESSAGE: &[u8] = b"ask";
const ANSWER: &[u8] = b"reply";
