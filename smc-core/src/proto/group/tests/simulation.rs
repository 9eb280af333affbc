use std::collections::BTreeMap;

use smc_wire::types::{Mac, PeerId, Qpn, RoceGid};

use super::*;
use crate::device::LinkFailure;
use crate::proto::Role;

/// A seeded schedule of thousands of set-ups with failures, stalls, cancellations and peers that
/// go away. After every step, and at the end, nothing may be lost.
#[test]
fn simulation_loses_no_connection_and_no_wait_is_endless() {
    for seed in 1..=20 {
        RegistrySimulation::new(seed).run(3_000);
    }
}

struct RegistrySimulation {
    f: RegistryFixture,
    random: u64,
    /// Each member: its group, and whether it is still the creator of it.
    members: Vec<(GroupId, bool)>,
    waiting: BTreeMap<Waiter, Instant>,
    /// Groups that were removed, with links that are still open.
    closing: Vec<GroupId>,
}

impl RegistrySimulation {
    fn new(seed: u64) -> Self {
        let random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        Self {
            f: RegistryFixture::new(),
            random,
            members: Vec::new(),
            waiting: BTreeMap::new(),
            closing: Vec::new(),
        }
    }

    fn run(mut self, steps: usize) {
        for step in 0..steps {
            self.step();
            if step % 32 == 0 {
                self.check();
            }
        }
        // All set-ups finish and leave.
        while !self.members.is_empty() || !self.waiting.is_empty() {
            for (group, _) in std::mem::take(&mut self.members) {
                self.f.leave(group);
            }
            self.collect();
            self.f.advance(Duration::from_millis(500));
            self.collect();
            self.check();
        }
        self.f.advance(CLIENT_IDLE_LIFETIME);
        self.collect();
        self.close_links(usize::MAX);
        assert_eq!(self.f.registry.group_infos(), []);
        assert_eq!(self.f.registry.waiting(), 0);
        assert_eq!(self.f.registry.poll_timeout(), None);
        assert!(self.f.registry.is_empty(), "something is left behind");
    }

    fn step(&mut self) {
        if self.below(4) == 0 {
            self.close_links(2);
        }
        match self.below(17) {
            0..=5 => {
                let key = self.key();
                // A client never decides by itself.
                let intent = match key {
                    GroupKey::Rdma {
                        role: Role::Client, ..
                    } => Intent::Create,
                    _ => Intent::JoinOrCreate,
                };
                self.enter(key, intent);
            }
            6 => {
                let key = self.key();
                self.enter(key, Intent::Join);
            }
            7 => {
                let key = self.key();
                self.enter(key, Intent::Create);
            }
            8..=10 => self.establish(),
            11 | 12 => {
                if let Some(at) = self.pick(self.members.len()) {
                    let (group, _) = self.members.swap_remove(at);
                    self.f.leave(group);
                }
            }
            13 => {
                if let Some(at) = self.pick(self.waiting.len()) {
                    let waiter = *self.waiting.keys().nth(at).unwrap();
                    self.waiting.remove(&waiter);
                    self.f.registry.cancel(waiter);
                }
            }
            14 => {
                let by = Duration::from_millis(self.below(1_500));
                self.f.advance(by);
            }
            15 => self.change_links(),
            _ => match self.below(20) {
                0 => {
                    let peer = Gid::native(1 + self.below(4));
                    self.f.registry.handle_peer_gone(DeviceIndex(0), peer);
                }
                3..=6 => {
                    let peer = Gid::native(1 + self.below(4));
                    self.f.registry.handle_peer_shutdown(DeviceIndex(0), peer);
                    // No connection and no set-up ends by that.
                    for output in self.f.outputs() {
                        assert!(
                            matches!(output, RegistryOutput::Removed { .. }),
                            "{output:?}"
                        );
                    }
                }
                1 => self.f.advance(IDLE_LIFETIME),
                2 => {
                    if let Some(at) = self.pick(self.members.len()) {
                        self.f.registry.terminate(
                            self.members[at].0,
                            GroupEndCause::LinksLost(LinkFailure::Flushed),
                        );
                    }
                }
                7..=9 => {
                    if let Some(at) = self.pick(self.members.len()) {
                        self.f.registry.handle_out_of_sync(self.members[at].0);
                        assert_eq!(self.f.outputs(), []);
                    }
                }
                _ => {}
            },
        }
        self.collect();
    }

    /// One of a few peers, by SMC-D or by SMC-R in either role.
    fn key(&mut self) -> GroupKey {
        let peer = u8::try_from(1 + self.below(3)).unwrap();
        match self.below(3) {
            0 => key(Gid::native(peer.into())),
            1 => rdma_key(Role::Server, peer, None),
            _ => {
                let qpn = u32::try_from(self.below(3)).unwrap();
                rdma_key(Role::Client, peer, Qpn::new(qpn))
            }
        }
    }

    /// Links of an SMC-R group come and go, up to the last one, and its table fills up or empties.
    fn change_links(&mut self) {
        let Some(at) = self.pick(self.members.len()) else {
            return;
        };
        let group = self.members[at].0;
        let snapshot = self.f.registry.group_info(group).unwrap();
        if !matches!(snapshot.key, GroupKey::Rdma { .. }) {
            return;
        }
        let is_full = self.below(2) == 0;
        let links = self.below(8).min(3);
        if links == 0 {
            let cause = GroupEndCause::LinksLost(LinkFailure::Flushed);
            return self.f.registry.terminate(group, cause);
        }
        let ends = (0..links).map(|_| {
            let peer = u8::try_from(1 + self.below(3)).unwrap();
            let qpn = u32::try_from(self.below(3)).unwrap();
            rdma::end(peer, qpn)
        });
        let ends = ends.collect();
        self.f.registry.set_links(
            group,
            &GroupLinks {
                ends,
                is_full,
                ..GroupLinks::default()
            },
        );
    }

    fn enter(&mut self, key: GroupKey, intent: Intent) {
        match self.f.registry.enter(self.f.now, key, intent) {
            EnterResult::Now(Ok(member)) => self
                .members
                .push((member.group(), member.is_first_contact())),
            EnterResult::Now(Err(NoGroup::Full)) => assert_eq!(intent, Intent::JoinOrCreate),
            EnterResult::Now(Err(NoGroup::Missing)) => assert_eq!(intent, Intent::Join),
            EnterResult::Wait(waiter) => {
                assert_ne!(intent, Intent::Create);
                self.waiting.insert(waiter, self.f.now);
            }
        }
    }

    fn establish(&mut self) {
        let creators: Vec<_> = (0..self.members.len())
            .filter(|at| self.members[*at].1)
            .collect();
        let Some(at) = self.pick(creators.len()) else {
            return;
        };
        let (group, is_creator) = &mut self.members[creators[at]];
        *is_creator = false;
        let group = *group;
        let limit = self.below(8);
        let max_connections = (limit > 5).then_some(4);
        let result = self.f.registry.establish(
            group,
            GroupTerms {
                max_connections,
                ..terms()
            },
        );
        let state = self.f.registry.group_info(group).unwrap().state;
        assert_eq!(result.is_ok(), state == GroupState::Active);
    }

    fn close_links(&mut self, most: usize) {
        for group in self.closing.drain(..most.min(self.closing.len())) {
            self.f.registry.links_closed(group);
        }
    }

    fn collect(&mut self) {
        for output in self.f.outputs() {
            match output {
                RegistryOutput::Ready { waiter, result } => {
                    let since = self
                        .waiting
                        .remove(&waiter)
                        .expect("told once, and waiting");
                    assert!(self.f.now - since <= CREATOR_TIMEOUT * 2 + IDLE_LIFETIME);
                    if let Ok(member) = result {
                        self.members
                            .push((member.group(), member.is_first_contact()));
                    }
                }
                RegistryOutput::Terminate { group, .. } => {
                    assert!(self.members.iter().any(|(other, _)| *other == group));
                }
                RegistryOutput::Removed { group, .. } => {
                    assert!(self.members.iter().all(|(other, _)| *other != group));
                    self.closing.push(group);
                }
                RegistryOutput::NotifyPeer { device, peer } => {
                    let key = GroupKey::Direct { device, peer };
                    let left = self.f.registry.group_infos();
                    assert!(left.iter().all(|group| group.key != key), "{left:?}");
                }
            }
        }
    }

    /// Every connection is in exactly one group, and counts agree.
    fn check(&self) {
        let mut counted = BTreeMap::new();
        for (group, _) in &self.members {
            *counted.entry(*group).or_insert(0) += 1;
        }
        for snapshot in self.f.registry.group_infos() {
            let members = counted.remove(&snapshot.id).unwrap_or(0);
            assert_eq!(snapshot.connections, members, "{snapshot:?}");
            assert_eq!(
                snapshot.state == GroupState::Idle,
                members == 0,
                "{snapshot:?}"
            );
        }
        assert_eq!(
            counted,
            BTreeMap::new(),
            "members in groups that do not exist"
        );
        assert_eq!(self.f.registry.waiting(), self.waiting.len());
        for since in self.waiting.values() {
            assert!(
                self.f.now <= *since + CREATOR_TIMEOUT * 2,
                "a waiter was forgotten"
            );
        }
    }

    fn pick(&mut self, len: usize) -> Option<usize> {
        (len > 0).then(|| usize::try_from(self.below(len as u64)).unwrap())
    }

    /// xorshift64*: a schedule that is the same on every machine.
    fn below(&mut self, bound: u64) -> u64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        (self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound
    }
}

fn rdma_key(role: Role, peer: u8, qpn: Option<Qpn>) -> GroupKey {
    GroupKey::Rdma {
        role,
        version: Version::V2,
        peer: PeerId::new(u16::from(peer), Mac::ZERO),
        gid: RoceGid::from_ipv4([10, 9, 0, peer].into()),
        mac: None,
        vlan: 0,
        client: (role == Role::Server).then_some([10, 9, 0, peer].into()),
        authenticates: false,
        qpn,
    }
}
