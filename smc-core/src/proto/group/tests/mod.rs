mod rdma;
mod simulation;
mod waiting;

use std::time::{Duration, Instant};

use smc_wire::types::{Eid, Features, Gid, Release, Version};

use super::*;

const PEER: Gid = Gid::native(0xbeef);
const OTHER: Gid = Gid::native(0xcafe);

/// A registry with a virtual clock that collects its outputs.
struct RegistryFixture {
    registry: Registry,
    now: Instant,
    key: fn(Gid) -> GroupKey,
}

impl RegistryFixture {
    fn new() -> Self {
        Self {
            registry: Registry::default(),
            now: Instant::now(),
            key,
        }
    }

    /// With groups of SMC-R, whose creators are waited for.
    fn with_links() -> Self {
        Self {
            key: |_| rdma::server_key(1),
            ..Self::new()
        }
    }

    fn enter(&mut self, peer: Gid, intent: Intent) -> EnterResult {
        self.registry.enter(self.now, (self.key)(peer), intent)
    }

    /// Enters as a server and expects to be the creator.
    fn create(&mut self, peer: Gid) -> GroupId {
        match self.enter(peer, Intent::JoinOrCreate) {
            EnterResult::Now(Ok(Member::Created(group))) => group,
            other => panic!("not the creator: {other:?}"),
        }
    }

    /// Enters as a server and expects to join.
    fn join(&mut self, peer: Gid) -> GroupId {
        match self.enter(peer, Intent::JoinOrCreate) {
            EnterResult::Now(Ok(Member::Joined { group, .. })) => group,
            other => panic!("did not join: {other:?}"),
        }
    }

    /// Enters as a client whose server made a new group.
    fn create_another(&mut self, peer: Gid) -> GroupId {
        match self.enter(peer, Intent::Create) {
            EnterResult::Now(Ok(Member::Created(group))) => group,
            other => panic!("not a creator: {other:?}"),
        }
    }

    /// A group with one connection.
    fn established(&mut self, peer: Gid) -> GroupId {
        let group = self.create(peer);
        self.registry.establish(group, terms()).unwrap();
        group
    }

    fn wait(&mut self, peer: Gid, intent: Intent) -> Waiter {
        match self.enter(peer, intent) {
            EnterResult::Wait(waiter) => waiter,
            other => panic!("does not wait: {other:?}"),
        }
    }

    fn leave(&mut self, group: GroupId) {
        self.registry.leave(self.now, group);
    }

    /// The last member leaves, and the links of the group are closed.
    fn close(&mut self, group: GroupId) {
        self.leave(group);
        self.registry.links_closed(group);
    }

    fn advance(&mut self, by: Duration) {
        self.now += by;
        self.registry.handle_timeout(self.now);
    }

    fn outputs(&mut self) -> Vec<RegistryOutput> {
        std::iter::from_fn(|| self.registry.poll_output()).collect()
    }

    fn connections(&self, group: GroupId) -> usize {
        self.registry.group_info(group).unwrap().connections
    }
}

fn key(peer: Gid) -> GroupKey {
    GroupKey::Direct {
        device: DeviceIndex(0),
        peer,
    }
}

fn removed(group: GroupId, cause: GroupEndCause) -> RegistryOutput {
    let key = key(PEER);
    RegistryOutput::Removed { group, key, cause }
}

const TELL_PEER: RegistryOutput = RegistryOutput::NotifyPeer {
    device: DeviceIndex(0),
    peer: PEER,
};

fn terms() -> GroupTerms {
    GroupTerms {
        version: Version::V2,
        release: Release::V2_1,
        eid: Some(Eid::ueid("EXAMPLE").unwrap()),
        os: OsType::NONE,
        host: HostName::BLANK,
        max_connections: None,
        vendor_features: Features::empty(),
    }
}

#[test]
fn first_connection_creates_and_the_next_ones_join() {
    let mut f = RegistryFixture::new();
    let group = f.create(PEER);
    f.registry.establish(group, terms()).unwrap();
    assert_eq!(f.join(PEER), group);
    assert_eq!(f.join(PEER), group);
    assert_eq!(f.connections(group), 3);
    assert_ne!(
        f.create(OTHER),
        group,
        "another peer has a group of its own"
    );
}

#[test]
fn client_without_first_contact_needs_a_group() {
    let mut f = RegistryFixture::new();
    assert_eq!(
        f.enter(PEER, Intent::Join),
        EnterResult::Now(Err(NoGroup::Missing))
    );

    // The group of a connection in the other direction is still being set up: its CONFIRM is on
    // the way, so this is not out of sync.
    let group = f.create(PEER);
    let waiter = f.wait(PEER, Intent::Join);
    f.registry.establish(group, terms()).unwrap();
    let result = Ok(Member::Joined {
        group,
        terms: terms(),
    });
    assert_eq!(f.outputs(), [RegistryOutput::Ready { waiter, result }]);
}

#[test]
fn first_contact_of_a_client_makes_a_group_beside_an_existing_one() {
    let mut f = RegistryFixture::new();
    let old = f.create(PEER);
    f.registry.establish(old, terms()).unwrap();
    let EnterResult::Now(Ok(Member::Created(new))) = f.enter(PEER, Intent::Create) else {
        panic!("a first contact never waits")
    };
    assert_eq!(f.join(PEER), old, "the new one is not ready yet");
    f.registry.establish(new, terms()).unwrap();
    assert_eq!(f.join(PEER), new);
}

#[test]
fn a_full_group_is_left_alone_by_servers_only() {
    let mut f = RegistryFixture::new();
    let group = f.create(PEER);
    let full = GroupTerms {
        max_connections: Some(2),
        ..terms()
    };
    f.registry.establish(group, full).unwrap();
    assert_eq!(f.join(PEER), group);
    let next = f.create(PEER);
    assert_ne!(next, group);
    assert_eq!(
        f.enter(PEER, Intent::Join),
        EnterResult::Now(Ok(Member::Joined { group, terms: full })),
        "the server counts, its client follows"
    );
}

#[test]
fn an_idle_group_exists_for_600_seconds_unless_a_connection_joins() {
    let mut f = RegistryFixture::new();
    let group = f.create(PEER);
    f.registry.establish(group, terms()).unwrap();
    f.leave(group);
    assert_eq!(
        f.registry.group_info(group).unwrap().state,
        GroupState::Idle
    );
    assert_eq!(f.registry.poll_timeout(), Some(f.now + IDLE_LIFETIME));

    f.advance(IDLE_LIFETIME - Duration::from_secs(1));
    assert_eq!(f.join(PEER), group);
    assert_eq!(f.registry.poll_timeout(), None);
    f.advance(IDLE_LIFETIME);
    assert_eq!(f.outputs(), []);

    f.leave(group);
    f.advance(IDLE_LIFETIME);
    assert_eq!(
        f.outputs(),
        [removed(group, GroupEndCause::Idle), TELL_PEER]
    );
    assert_eq!(f.registry.group_infos(), []);
}

#[test]
fn a_server_that_declares_each_connection_a_first_contact_gets_one_idle_group() {
    let mut f = RegistryFixture::new();
    for _ in 0..20 {
        let group = f.create_another(PEER);
        f.registry.establish(group, terms()).unwrap();
        f.leave(group);
        assert_eq!(f.registry.group_infos().len(), 1);
    }
    // Groups with connections stay.
    let used: Vec<_> = (0..3).map(|_| f.create_another(PEER)).collect();
    for group in &used {
        f.registry.establish(*group, terms()).unwrap();
    }
    f.outputs();
    f.leave(used[1]);
    assert_eq!(f.outputs(), [removed(used[1], GroupEndCause::Idle)]);
    f.leave(used[0]);
    f.leave(used[2]);
    f.outputs();
    assert_eq!(f.registry.group_infos().len(), 1);
    f.advance(IDLE_LIFETIME);
    assert!(f.outputs().contains(&TELL_PEER));
    assert!(f.registry.is_empty());
}

#[test]
fn a_peer_that_went_away_takes_all_its_groups_along() {
    let mut f = RegistryFixture::new();
    let used = f.create(PEER);
    f.registry.establish(used, terms()).unwrap();
    let EnterResult::Now(Ok(Member::Created(pending))) = f.enter(PEER, Intent::Create) else {
        panic!()
    };
    let other = f.create(OTHER);
    f.registry.establish(other, terms()).unwrap();

    f.registry.handle_peer_gone(DeviceIndex(0), PEER);
    let key = key(PEER);
    let cause = GroupEndCause::PeerGone;
    assert_eq!(
        f.outputs(),
        [
            RegistryOutput::Terminate {
                group: used,
                key,
                cause
            },
            RegistryOutput::Terminate {
                group: pending,
                key,
                cause
            },
        ]
    );
    assert_eq!(f.registry.establish(pending, terms()), Err(Terminated));
    f.leave(used);
    f.leave(pending);
    assert_eq!(
        f.outputs(),
        [
            RegistryOutput::Removed {
                group: used,
                key,
                cause
            },
            RegistryOutput::Removed {
                group: pending,
                key,
                cause
            }
        ]
    );
    assert_eq!(f.join(OTHER), other);
    assert_ne!(f.create(PEER), used, "the peer may come back");
}

#[test]
fn a_pending_group_that_is_terminated_makes_room_for_the_next_creator() {
    let mut f = RegistryFixture::with_links();
    let group = f.create(PEER);
    let waiter = f.wait(PEER, Intent::JoinOrCreate);
    f.registry.terminate(group, GroupEndCause::OutOfSync);
    let outputs = f.outputs();
    assert!(matches!(outputs[0], RegistryOutput::Terminate { group: ended, .. } if ended == group));
    assert!(
        matches!(outputs[1], RegistryOutput::Ready { waiter: ready, result: Ok(Member::Created(_)) }
        if ready == waiter)
    );
    // Its creator leaves later and must not count twice.
    f.leave(group);
    f.wait(PEER, Intent::JoinOrCreate);
}

#[test]
fn devices_and_endpoints_end_their_groups() {
    let mut f = RegistryFixture::new();
    let group = f.create(PEER);
    f.registry.establish(group, terms()).unwrap();
    f.leave(group);
    f.registry.handle_device_gone(DeviceIndex(1));
    assert_eq!(f.outputs(), []);
    f.registry.shutdown();
    assert_eq!(
        f.outputs(),
        [removed(group, GroupEndCause::Shutdown), TELL_PEER]
    );
}

#[test]
fn no_message_to_the_peer_about_an_idle_group_beside_one_in_use_or_being_created() {
    for is_pending in [false, true] {
        let mut f = RegistryFixture::new();
        let idle = f.established(PEER);
        let other = f.create_another(PEER);
        if !is_pending {
            f.registry.establish(other, terms()).unwrap();
        }
        f.leave(idle);
        if is_pending {
            f.advance(IDLE_LIFETIME);
        }
        assert_eq!(f.outputs(), [removed(idle, GroupEndCause::Idle)]);

        // But when there is none any more, however the last one ended.
        f.leave(other);
        f.advance(IDLE_LIFETIME);
        let cause = match is_pending {
            true => GroupEndCause::FirstContactFailed,
            false => GroupEndCause::Idle,
        };
        assert_eq!(f.outputs(), [removed(other, cause), TELL_PEER]);
        assert!(f.registry.is_empty());
    }
}

#[test]
fn no_message_to_the_peer_about_a_group_that_it_ended_itself() {
    let mut f = RegistryFixture::new();
    let group = f.established(PEER);
    f.leave(group);
    f.registry.handle_peer_gone(DeviceIndex(0), PEER);
    assert_eq!(f.outputs(), [removed(group, GroupEndCause::PeerGone)]);

    let group = f.established(PEER);
    f.leave(group);
    f.registry.handle_peer_shutdown(DeviceIndex(0), PEER);
    assert_eq!(f.outputs(), [removed(group, GroupEndCause::PeerGone)]);
}

#[test]
fn a_shutdown_of_the_peer_ends_idle_groups_and_no_others() {
    let mut f = RegistryFixture::new();
    let (idle, used) = (f.established(PEER), f.create_another(PEER));
    f.leave(idle);
    f.registry.establish(used, terms()).unwrap();
    let pending = f.create_another(PEER);
    let other = f.established(OTHER);
    f.leave(other);

    f.registry.handle_peer_shutdown(DeviceIndex(1), PEER);
    assert_eq!(f.outputs(), []);
    f.registry.handle_peer_shutdown(DeviceIndex(0), PEER);
    assert_eq!(f.outputs(), [removed(idle, GroupEndCause::PeerGone)]);
    assert_eq!(f.registry.establish(pending, terms()), Ok(()));
    assert_eq!(f.connections(used), 1);
    assert_eq!(f.join(OTHER), other);
}

#[test]
fn a_group_in_use_at_a_shutdown_of_the_peer_gets_no_more_connections_and_no_idle_time() {
    let mut f = RegistryFixture::new();
    let group = f.established(PEER);
    f.registry.handle_peer_shutdown(DeviceIndex(0), PEER);
    // The server's decision; a client follows.
    let next = f.create(PEER);
    assert_ne!(next, group);
    let EnterResult::Now(Ok(Member::Joined { group: joined, .. })) = f.enter(PEER, Intent::Join)
    else {
        panic!("the server has it");
    };
    assert_eq!(joined, group);
    f.leave(group);
    f.leave(group);
    assert_eq!(f.outputs(), [removed(group, GroupEndCause::Idle)]);
    f.registry.establish(next, terms()).unwrap();
    assert_eq!(f.join(PEER), next);
}

#[test]
fn a_group_that_the_peer_denies_keeps_its_connections_and_gets_no_others() {
    for fixture in [RegistryFixture::new, RegistryFixture::with_links] {
        let mut f = fixture();
        let group = f.established(PEER);
        // The set-up that is declined has joined.
        assert_eq!(f.join(PEER), group);
        f.registry.handle_out_of_sync(group);
        f.leave(group);
        assert_eq!(f.outputs(), []);
        assert_eq!(f.connections(group), 1);
        let next = f.established(PEER);
        assert_ne!(next, group);
        assert_eq!(f.join(PEER), next);
        f.leave(group);
        let key = (f.key)(PEER);
        let cause = GroupEndCause::OutOfSync;
        assert_eq!(f.outputs(), [RegistryOutput::Removed { group, key, cause }]);
    }
}

#[test]
fn a_peer_that_denies_group_after_group_gets_few_of_them() {
    let mut f = RegistryFixture::new();
    let mut groups = Vec::new();
    for _ in 0..20 {
        let group = match f.registry.enter(f.now, (f.key)(PEER), Intent::JoinOrCreate) {
            EnterResult::Now(Ok(Member::Created(group))) => {
                f.registry.establish(group, terms()).unwrap();
                groups.push(group);
                group
            }
            EnterResult::Now(Ok(Member::Joined { group, .. })) => group,
            other => panic!("{other:?}"),
        };
        f.registry.handle_out_of_sync(group);
    }
    assert_eq!(groups.len(), 5);
    // Another peer is not concerned.
    let other = f.established(OTHER);
    f.registry.handle_out_of_sync(other);
    assert_ne!(f.established(OTHER), other);
}

#[test]
fn an_idle_group_ends_when_the_peer_denies_it() {
    let mut f = RegistryFixture::new();
    let group = f.established(PEER);
    f.leave(group);
    assert_eq!(f.join(PEER), group);
    f.registry.handle_out_of_sync(group);
    assert_eq!(f.outputs(), []);
    f.leave(group);
    // No message to the peer, which has reported that it has no group.
    assert_eq!(f.outputs(), [removed(group, GroupEndCause::OutOfSync)]);
    assert!(f.registry.is_empty());
    // One that is being created is none that the peer could have lost.
    let pending = f.create(PEER);
    f.registry.handle_out_of_sync(pending);
    assert_eq!(f.registry.establish(pending, terms()), Ok(()));
    assert_eq!(f.join(PEER), pending);
}

#[test]
fn state_table() {
    let expected = "\
state       | establish | join   | empty   | expire  | terminate
PENDING     | ACTIVE    | -      | REMOVED | -       | TERMINATING
ACTIVE      | -         | ACTIVE | IDLE    | -       | TERMINATING
IDLE        | -         | ACTIVE | -       | REMOVED | REMOVED
TERMINATING | -         | -      | REMOVED | -       | -
REMOVED     | -         | -      | -       | -       | -
";
    assert_eq!(GroupState::table(), expected);
}
