//! Set-ups that wait for another one to create their group.

use super::*;

#[test]
fn joiners_wait_for_the_creator_and_get_in_with_its_success() {
    let mut f = RegistryFixture::with_links();
    let group = f.create(PEER);
    let second = f.wait(PEER, Intent::JoinOrCreate);
    let third = f.wait(PEER, Intent::JoinOrCreate);
    assert_eq!(f.outputs(), []);
    assert_eq!(f.connections(group), 1, "a waiter has no result yet");

    f.registry.establish(group, terms()).unwrap();
    let result = Ok(Member::Joined {
        group,
        terms: terms(),
    });
    assert_eq!(
        f.outputs(),
        [
            RegistryOutput::Ready {
                waiter: second,
                result
            },
            RegistryOutput::Ready {
                waiter: third,
                result
            }
        ]
    );
    assert_eq!(f.connections(group), 3);
    assert_eq!(f.registry.poll_timeout(), None);
}

#[test]
fn after_a_failed_first_contact_the_next_one_becomes_creator() {
    let mut f = RegistryFixture::with_links();
    let first = f.create(PEER);
    let second = f.wait(PEER, Intent::JoinOrCreate);
    let third = f.wait(PEER, Intent::JoinOrCreate);

    f.leave(first);
    let outputs = f.outputs();
    let [
        RegistryOutput::Ready {
            waiter,
            result: Ok(Member::Created(next)),
        },
        RegistryOutput::Removed {
            group,
            cause: GroupEndCause::FirstContactFailed,
            ..
        },
    ] = outputs[..]
    else {
        panic!("{outputs:?}")
    };
    assert_eq!((group, waiter), (first, second));

    f.registry.establish(next, terms()).unwrap();
    let result = Ok(Member::Joined {
        group: next,
        terms: terms(),
    });
    assert_eq!(
        f.outputs(),
        [RegistryOutput::Ready {
            waiter: third,
            result
        }]
    );
}

#[test]
fn no_wait_for_a_stalled_creator_exceeds_its_timeout() {
    let mut f = RegistryFixture::with_links();
    let stalled = f.create(PEER);
    let server = f.wait(PEER, Intent::JoinOrCreate);
    let client = f.wait(PEER, Intent::Join);
    assert_eq!(f.registry.poll_timeout(), Some(f.now + CREATOR_TIMEOUT));

    f.advance(CREATOR_TIMEOUT);
    let outputs = f.outputs();
    let [
        RegistryOutput::Ready {
            waiter: one,
            result: Ok(Member::Created(own)),
        },
        RegistryOutput::Ready {
            waiter: two,
            result: Err(NoGroup::Missing),
        },
    ] = outputs[..]
    else {
        panic!("{outputs:?}")
    };
    assert_eq!((one, two), (server, client));
    assert_ne!(own, stalled);

    // Both may still come about; the newer one is joined.
    f.registry.establish(stalled, terms()).unwrap();
    f.registry.establish(own, terms()).unwrap();
    assert_eq!(f.join(PEER), own);
}

#[test]
fn client_that_waits_for_a_group_is_not_made_its_creator() {
    let mut f = RegistryFixture::new();
    let group = f.create(PEER);
    let waiter = f.wait(PEER, Intent::Join);
    f.leave(group);
    assert!(f.outputs().contains(&RegistryOutput::Ready {
        waiter,
        result: Err(NoGroup::Missing)
    }));
}

#[test]
fn waiters_beyond_the_limit_get_a_group_of_their_own() {
    let mut f = RegistryFixture::with_links();
    let group = f.create(PEER);
    let waiters: Vec<_> = (0..3).map(|_| f.wait(PEER, Intent::JoinOrCreate)).collect();
    f.registry
        .establish(
            group,
            GroupTerms {
                max_connections: Some(2),
                ..terms()
            },
        )
        .unwrap();
    let outputs = f.outputs();
    assert!(
        matches!(outputs[0], RegistryOutput::Ready { waiter, result: Ok(Member::Joined { .. }) }
        if waiter == waiters[0])
    );
    assert!(
        matches!(outputs[1], RegistryOutput::Ready { waiter, result: Ok(Member::Created(_)) }
        if waiter == waiters[1])
    );
    assert_eq!(outputs.len(), 2, "the third waits for the second group");
    assert_eq!(f.registry.waiting(), 1);
}

#[test]
fn a_cancelled_waiter_is_no_member_unless_it_is_one_already() {
    let mut f = RegistryFixture::with_links();
    let group = f.create(PEER);
    let early = f.wait(PEER, Intent::JoinOrCreate);
    let late = f.wait(PEER, Intent::JoinOrCreate);
    f.registry.cancel(early);
    assert_eq!(f.registry.waiting(), 1);

    f.registry.establish(group, terms()).unwrap();
    assert_eq!(f.connections(group), 2);
    // Too late: it is a member of the group, and has to leave.
    f.registry.cancel(late);
    assert_eq!(f.connections(group), 2);
    let result = Ok(Member::Joined {
        group,
        terms: terms(),
    });
    let waiter = late;
    assert_eq!(f.outputs(), [RegistryOutput::Ready { waiter, result }]);
    f.leave(group);
    assert_eq!(f.connections(group), 1);
}

#[test]
fn no_setup_waits_for_the_creator_of_a_group_without_links() {
    let mut f = RegistryFixture::new();
    // Any process may have begun it in the name of the peer.
    let silent = f.create(PEER);
    let own = f.established(PEER);
    assert_ne!(own, silent);
    assert_eq!(f.join(PEER), own);
    f.leave(silent);
    assert_eq!(
        f.outputs(),
        [removed(silent, GroupEndCause::FirstContactFailed)]
    );
    assert_eq!(f.connections(own), 2);
}

#[test]
fn when_a_creator_stalls_one_of_those_that_wait_creates_and_the_others_join_it() {
    let mut f = RegistryFixture::with_links();
    f.create(PEER);
    let waiters: Vec<_> = (0..50)
        .map(|_| f.wait(PEER, Intent::JoinOrCreate))
        .collect();
    f.advance(CREATOR_TIMEOUT);
    let outputs = f.outputs();
    let [
        RegistryOutput::Ready {
            waiter,
            result: Ok(Member::Created(group)),
        },
    ] = outputs[..]
    else {
        panic!("{outputs:?}")
    };
    assert_eq!(waiter, waiters[0], "they take over in the order they came");
    f.advance(CREATOR_TIMEOUT / 2);
    assert_eq!(f.outputs(), []);
    f.registry.establish(group, terms()).unwrap();
    assert_eq!(f.connections(group), 50);
    assert_eq!(f.registry.poll_timeout(), None);
}

#[test]
fn a_second_stalled_creator_is_waited_for_once() {
    let mut f = RegistryFixture::with_links();
    f.create(PEER);
    f.wait(PEER, Intent::JoinOrCreate);
    f.advance(CREATOR_TIMEOUT / 2);
    let waiters = [(); 3].map(|()| f.wait(PEER, Intent::JoinOrCreate));
    let created = |f: &mut RegistryFixture| {
        let outputs = f.outputs().into_iter();
        let created = outputs.map(|output| match output {
            RegistryOutput::Ready {
                waiter,
                result: Ok(Member::Created(_)),
            } => waiter,
            other => panic!("{other:?}"),
        });
        created.collect::<Vec<_>>()
    };
    f.advance(CREATOR_TIMEOUT / 2);
    assert_eq!(created(&mut f).len(), 1);
    for waiter in waiters {
        let deadline = f.registry.deadline(waiter);
        assert_eq!(deadline, Some(f.now + CREATOR_TIMEOUT));
    }
    f.advance(CREATOR_TIMEOUT);
    assert_eq!(created(&mut f), [waiters[0]]);
    // The limit of the others.
    f.advance(CREATOR_TIMEOUT / 2);
    assert_eq!(created(&mut f), waiters[1..]);
    assert_eq!(f.registry.poll_timeout(), None);
}
