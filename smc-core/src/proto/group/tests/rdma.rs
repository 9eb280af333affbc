//! Groups of SMC-R: several keys, full tables, and the two lifetimes.

use std::collections::BTreeSet;

use smc_wire::types::{Mac, MtuCode, PeerId, Psn, Qpn, RoceGid};

use super::*;
use crate::device::{LinkAddress, LinkFailure};
use crate::proto::Role;

fn gid(host: u8) -> RoceGid {
    RoceGid::from_ipv4([10, 9, 0, host].into())
}

pub(super) fn server_key(host: u8) -> GroupKey {
    GroupKey::Rdma {
        role: Role::Server,
        version: Version::V2,
        peer: PeerId::new(7, Mac::new([2; 6])),
        gid: gid(host),
        mac: None,
        vlan: 0,
        client: Some([10, 9, 0, host].into()),
        authenticates: false,
        qpn: None,
    }
}

fn client_key(host: u8, qpn: u32) -> GroupKey {
    GroupKey::Rdma {
        role: Role::Client,
        version: Version::V2,
        peer: PeerId::new(7, Mac::new([2; 6])),
        gid: gid(host),
        mac: None,
        vlan: 0,
        client: None,
        authenticates: false,
        qpn: Qpn::new(qpn),
    }
}

/// The key of the group of `server_key(1)`, by a link to this host.
fn server_key_at(host: u8) -> GroupKey {
    server_key(1).with_link(&end(host, 0))
}

/// The peer's end of a link.
pub(super) fn end(host: u8, qpn: u32) -> LinkAddress {
    LinkAddress {
        gid: gid(host),
        mac: Mac::ZERO,
        qpn: Qpn::new(qpn).unwrap(),
        psn: Psn::default(),
        mtu: MtuCode::MTU_1024,
    }
}

impl RegistryFixture {
    fn set_links<const N: usize>(&mut self, group: GroupId, ends: [LinkAddress; N]) {
        let ends = ends.to_vec();
        let links = GroupLinks {
            ends,
            ..GroupLinks::default()
        };
        self.registry.set_links(group, &links);
    }

    fn set_full(&mut self, group: GroupId, end: LinkAddress, is_full: bool) {
        let ends = vec![end];
        self.registry.set_links(
            group,
            &GroupLinks {
                ends,
                is_full,
                ..GroupLinks::default()
            },
        );
    }

    fn open(&mut self, key: GroupKey, intent: Intent) -> GroupId {
        match self.registry.enter(self.now, key, intent) {
            EnterResult::Now(Ok(Member::Created(group))) => {
                self.registry.establish(group, terms()).unwrap();
                group
            }
            other => panic!("not the creator: {other:?}"),
        }
    }

    fn joins(&mut self, key: GroupKey, intent: Intent) -> Option<GroupId> {
        match self.registry.enter(self.now, key, intent) {
            EnterResult::Now(Ok(Member::Joined { group, .. })) => Some(group),
            EnterResult::Now(Ok(Member::Created(group))) => {
                self.close(group);
                None
            }
            EnterResult::Now(Err(_)) => None,
            EnterResult::Wait(_) => panic!("no set-up is creating it"),
        }
    }
}

#[test]
fn a_client_finds_its_group_by_the_servers_queue_pair() {
    let mut f = RegistryFixture::new();
    let group = f.open(client_key(1, 0x12), Intent::Create);
    assert_eq!(f.joins(client_key(1, 0x12), Intent::Join), Some(group));
    assert_eq!(f.joins(client_key(1, 0x13), Intent::Join), None);
    assert_eq!(f.joins(client_key(2, 0x12), Intent::Join), None);
    assert_eq!(
        f.joins(server_key(1), Intent::Join),
        None,
        "the other direction has groups of its own"
    );
}

#[test]
fn the_group_that_is_idle_for_longest_ends_first() {
    let mut f = RegistryFixture::new();
    // With a direct group, which has no links to give away, and one with a connection.
    let direct = f.established(PEER);
    f.leave(direct);
    let _in_use = f.open(server_key(9), Intent::JoinOrCreate);
    let keys = [client_key(1, 0x12), server_key(2), server_key(3)];
    let intents = [Intent::Create, Intent::JoinOrCreate, Intent::JoinOrCreate];
    let mut groups = Vec::new();
    for (key, intent) in keys.into_iter().zip(intents) {
        let group = f.open(key, intent);
        f.advance(Duration::from_secs(1));
        f.leave(group);
        groups.push(group);
    }
    // A connection that comes and goes makes its group the last one.
    assert_eq!(f.joins(server_key(2), Intent::Join), Some(groups[1]));
    f.advance(Duration::from_secs(1));
    f.leave(groups[1]);
    f.outputs();
    let is_any = |_| true;
    let not_first = |group| group != groups[0];
    assert_eq!(f.registry.expire_longest_idle(not_first), Some(groups[2]));
    assert_eq!(f.registry.expire_longest_idle(is_any), Some(groups[0]));
    assert_eq!(f.registry.expire_longest_idle(is_any), Some(groups[1]));
    assert_eq!(f.registry.expire_longest_idle(is_any), None);
    let ends = f.outputs().into_iter().map(|output| match output {
        RegistryOutput::Removed { group, cause, .. } => (group, cause),
        other => panic!("unexpected: {other:?}"),
    });
    let cause = GroupEndCause::Idle;
    let expected = [2, 0, 1].map(|at: usize| (groups[at], cause));
    assert_eq!(ends.collect::<Vec<_>>(), expected);
    assert_eq!(f.joins(server_key(2), Intent::Join), None);
}

#[test]
fn a_group_is_found_under_each_of_its_keys() {
    let mut f = RegistryFixture::new();
    let group = f.open(server_key(1), Intent::JoinOrCreate);
    f.set_links(group, [end(1, 0), end(2, 0)]);
    for host in [1, 2] {
        let key = server_key_at(host);
        assert_eq!(f.joins(key, Intent::JoinOrCreate), Some(group));
    }
    // The first link is gone.
    f.set_links(group, [end(2, 0)]);
    assert_eq!(f.joins(server_key_at(1), Intent::JoinOrCreate), None);
    let key = server_key_at(2);
    assert_eq!(f.joins(key, Intent::JoinOrCreate), Some(group));
    assert_eq!(f.connections(group), 4);
}

#[test]
fn keys_of_a_group_in_the_making_count_from_its_opening_on() {
    let mut f = RegistryFixture::new();
    let result = f.registry.enter(f.now, client_key(1, 5), Intent::Create);
    let EnterResult::Now(Ok(Member::Created(group))) = result else {
        panic!("not the creator");
    };
    f.set_links(group, [end(1, 5), end(2, 6)]);
    assert_eq!(f.joins(client_key(2, 6), Intent::Join), None);
    let waiter = match f.registry.enter(f.now, client_key(1, 5), Intent::Join) {
        EnterResult::Wait(waiter) => waiter,
        other => panic!("does not wait: {other:?}"),
    };
    f.registry.establish(group, terms()).unwrap();
    let result = Ok(Member::Joined {
        group,
        terms: terms(),
    });
    assert_eq!(f.outputs(), [RegistryOutput::Ready { waiter, result }]);
    assert_eq!(f.joins(client_key(2, 6), Intent::Join), Some(group));
}

#[test]
fn a_new_key_lets_in_those_who_wait_for_it() {
    let mut f = RegistryFixture::new();
    let group = f.open(server_key(1), Intent::JoinOrCreate);
    let key = server_key_at(2);
    let creator = match f.registry.enter(f.now, key, Intent::JoinOrCreate) {
        EnterResult::Now(Ok(Member::Created(creator))) => creator,
        other => panic!("not the creator: {other:?}"),
    };
    let waiter = match f.registry.enter(f.now, key, Intent::JoinOrCreate) {
        EnterResult::Wait(waiter) => waiter,
        other => panic!("does not wait: {other:?}"),
    };
    f.set_links(group, [end(1, 0), end(2, 0)]);
    let result = Ok(Member::Joined {
        group,
        terms: terms(),
    });
    assert_eq!(f.outputs(), [RegistryOutput::Ready { waiter, result }]);
    f.leave(creator);
}

#[test]
fn a_group_without_links_is_terminated() {
    let mut f = RegistryFixture::new();
    let group = f.open(server_key(1), Intent::JoinOrCreate);
    let cause = GroupEndCause::LinksLost(LinkFailure::Flushed);
    f.registry.terminate(group, cause);
    assert_eq!(
        f.outputs(),
        [RegistryOutput::Terminate {
            group,
            key: server_key(1),
            cause
        }]
    );
    f.set_links(group, [end(1, 0)]);
    assert_eq!(f.joins(server_key(1), Intent::JoinOrCreate), None);
    f.outputs();
    f.leave(group);
    assert_eq!(
        f.outputs(),
        [RegistryOutput::Removed {
            group,
            key: server_key(1),
            cause
        }]
    );
    f.registry.links_closed(group);
    assert!(f.registry.is_empty());
}

/// A server that has not detected the failure of a link may still name it.
#[test]
fn a_client_knows_its_last_links_by_their_queue_pairs() {
    let mut f = RegistryFixture::new();
    let group = f.open(client_key(1, 1), Intent::Create);
    for qpn in 1..=6 {
        f.set_links(group, [end(1, qpn)]);
    }
    for qpn in 1..=6 {
        let found = f.joins(client_key(1, qpn), Intent::Join);
        assert_eq!(found, (qpn > 2).then_some(group), "{qpn}");
    }
    // In use again, it is the last one that is forgotten.
    f.set_links(group, [end(1, 3)]);
    for qpn in [7, 8] {
        f.set_links(group, [end(1, 3), end(1, qpn)]);
    }
    for (qpn, is_known) in [(3, true), (5, false), (6, true), (7, true), (8, true)] {
        let found = f.joins(client_key(1, qpn), Intent::Join);
        assert_eq!(found, is_known.then_some(group), "{qpn}");
    }
}

#[test]
fn a_full_table_keeps_servers_out_and_clients_not() {
    let mut f = RegistryFixture::new();
    let server = f.open(server_key(1), Intent::JoinOrCreate);
    f.set_full(server, end(1, 0), true);
    assert_eq!(f.joins(server_key(1), Intent::JoinOrCreate), None);
    f.set_full(server, end(1, 0), false);
    assert_eq!(f.joins(server_key(1), Intent::JoinOrCreate), Some(server));

    let client = f.open(client_key(1, 5), Intent::Create);
    f.set_full(client, end(1, 5), true);
    assert_eq!(f.joins(client_key(1, 5), Intent::Join), Some(client));
}

#[test]
fn an_idle_group_outlives_that_of_its_server() {
    for (key, lifetime) in [
        (server_key(1), IDLE_LIFETIME),
        (client_key(1, 5), CLIENT_IDLE_LIFETIME),
    ] {
        let mut f = RegistryFixture::new();
        let group = f.open(key, Intent::Create);
        f.leave(group);
        f.advance(lifetime - Duration::from_millis(1));
        assert_eq!(f.outputs(), []);
        f.advance(Duration::from_millis(1));
        let cause = GroupEndCause::Idle;
        assert_eq!(f.outputs(), [RegistryOutput::Removed { group, key, cause }]);
        assert!(f.registry.is_empty());
    }
}

/// The key of a server's group with a client at this address.
fn key_at(client: IpAddr, peer: u16) -> GroupKey {
    GroupKey::Rdma {
        role: Role::Server,
        version: Version::V2,
        peer: PeerId::new(peer, Mac::ZERO),
        gid: gid(1),
        mac: None,
        vlan: 0,
        client: Some(client),
        authenticates: false,
        qpn: None,
    }
}

#[test]
fn a_client_that_denies_group_after_group_gets_few_of_them() {
    let mut f = RegistryFixture::new();
    let mut groups = BTreeSet::new();
    for _ in 0..20 {
        let group = match f.registry.enter(f.now, server_key(1), Intent::JoinOrCreate) {
            EnterResult::Now(Ok(Member::Created(group))) => {
                f.registry.establish(group, terms()).unwrap();
                group
            }
            EnterResult::Now(Ok(Member::Joined { group, .. })) => group,
            other => panic!("{other:?}"),
        };
        groups.insert(group);
        f.registry.handle_out_of_sync(group);
    }
    assert_eq!(groups.len(), 5);
    let last = *groups.last().unwrap();
    assert_eq!(f.joins(server_key(1), Intent::JoinOrCreate), Some(last));
}

#[test]
fn first_contacts_of_all_addresses_are_limited_and_some_are_left_for_another_one() {
    let mut f = RegistryFixture::new();
    let enter = |f: &mut RegistryFixture, host: u8, peer: u16| {
        let key = key_at(IpAddr::from([10, 0, 0, host]), peer);
        match f.registry.enter(f.now, key, Intent::JoinOrCreate) {
            EnterResult::Now(member) => member.map(|member| member.group()),
            waits @ EnterResult::Wait(_) => panic!("{waits:?}"),
        }
    };
    let mut groups = Vec::new();
    // Three addresses with as many clients as they like.
    for peer in 0..100 {
        groups.extend((1..4).filter_map(|host| enter(&mut f, host, peer).ok()));
    }
    let each = ALL_FIRST_CONTACTS_MAX / 4;
    assert_eq!(groups.len(), 3 * each);
    groups.push(enter(&mut f, 4, 0).unwrap());
    // Very many addresses with one each.
    groups.extend((5..200).filter_map(|host| enter(&mut f, host, 0).ok()));
    assert_eq!(groups.len(), ALL_FIRST_CONTACTS_MAX);
    assert_eq!(enter(&mut f, 200, 0), Err(NoGroup::Full));
    // One that is established is none any more.
    f.registry.establish(groups[0], terms()).unwrap();
    groups.push(enter(&mut f, 200, 0).unwrap());
    groups.into_iter().for_each(|group| f.close(group));
    f.advance(IDLE_LIFETIME);
    assert!(f.registry.is_empty());
}

#[test]
fn first_contacts_of_one_address_are_limited() {
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    for (here, neighbour, there) in [
        (ip("10.0.0.1"), ip("10.0.0.1"), ip("10.0.0.2")),
        (
            ip("2001:db8::1"),
            ip("2001:db8::abcd:2"),
            ip("2001:db8:0:1::1"),
        ),
    ] {
        let mut f = RegistryFixture::new();
        let creators: Vec<_> = (0..u16::try_from(FIRST_CONTACTS_MAX).unwrap())
            .map(|peer| {
                match f
                    .registry
                    .enter(f.now, key_at(here, peer), Intent::JoinOrCreate)
                {
                    EnterResult::Now(Ok(member)) => member.group(),
                    other => panic!("{other:?}"),
                }
            })
            .collect();
        let enter = |f: &mut RegistryFixture, from, intent| {
            f.registry.enter(f.now, key_at(from, 100), intent)
        };
        let full = EnterResult::Now(Err(NoGroup::Full));
        assert_eq!(enter(&mut f, neighbour, Intent::JoinOrCreate), full);
        // One that waits becomes no member either when its time has passed.
        let first = key_at(here, 0);
        let waits = f.registry.enter(f.now, first, Intent::JoinOrCreate);
        assert!(matches!(waits, EnterResult::Wait(_)));
        f.advance(CREATOR_TIMEOUT);
        let result = Err(NoGroup::Full);
        assert!(
            matches!(f.outputs()[..], [RegistryOutput::Ready { result: told, .. }] if told == result)
        );

        let EnterResult::Now(Ok(elsewhere)) = enter(&mut f, there, Intent::JoinOrCreate) else {
            panic!("the limit is for one address");
        };
        // A group that is established has capacity for another one, and one that has failed when
        // its links are closed.
        f.registry.establish(creators[0], terms()).unwrap();
        let EnterResult::Now(Ok(next)) = enter(&mut f, here, Intent::JoinOrCreate) else {
            panic!("there is space");
        };
        assert_eq!(
            f.registry
                .enter(f.now, key_at(here, 101), Intent::JoinOrCreate),
            full
        );
        f.registry.terminate(creators[1], GroupEndCause::OutOfSync);
        assert_eq!(
            f.registry
                .enter(f.now, key_at(here, 101), Intent::JoinOrCreate),
            full
        );
        f.registry.links_closed(creators[1]);
        let EnterResult::Now(Ok(last)) =
            f.registry
                .enter(f.now, key_at(here, 101), Intent::JoinOrCreate)
        else {
            panic!("there is space");
        };
        for member in [next, elsewhere, last] {
            f.close(member.group());
        }
        creators.into_iter().for_each(|group| f.close(group));
        f.advance(IDLE_LIFETIME);
        assert!(f.registry.is_empty());
    }
}

#[test]
fn devices_of_smc_d_are_nothing_to_smc_r() {
    let mut f = RegistryFixture::new();
    f.open(server_key(1), Intent::JoinOrCreate);
    f.registry.handle_device_gone(DeviceIndex(0));
    f.registry.handle_peer_gone(DeviceIndex(0), PEER);
    assert_eq!(f.outputs(), []);
    f.registry.shutdown();
    assert_eq!(f.outputs().len(), 1);
}
