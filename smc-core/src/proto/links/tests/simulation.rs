//! Thousands of exchanges at random, with links and ports that fail and answers that are omitted:
//! whatever happens, both sides end up with the same links and keys, every request has an outcome,
//! no RMB that the peer knows counts as deleted, and nothing is stuck.

use std::collections::{BTreeMap, BTreeSet};

use super::failover::{OF_A_LINK, OF_A_PORT};
use super::world::key_of;
use super::*;
use crate::device::RoceKind;

#[test]
fn simulation_v2() {
    simulate(1..=40, LlcTerms::v2_1(2, 255));
}

#[test]
fn simulation_v1() {
    simulate(100..=130, LlcTerms::V1);
}

fn simulate(seeds: std::ops::RangeInclusive<u64>, terms: LlcTerms) {
    let mut total = Tally::default();
    let mut lived = 0;
    let runs = seeds.clone().count();
    for seed in seeds {
        let tally = LinkSimulation::new(seed, terms).run(600);
        total.confirmed += tally.confirmed;
        total.failed += tally.failed;
        total.moves += tally.moves;
        total.added += tally.added;
        total.undeleted += tally.undeleted;
        lived += usize::from(tally.is_whole);
    }
    // Otherwise it would prove little.
    assert!(
        lived > runs / 3,
        "{lived} of {runs} groups lived to the end"
    );
    assert!(total.confirmed > 1_000, "{total:?}");
    assert!(total.moves > 100 && total.added > 100, "{total:?}");
    assert!(total.undeleted > 100, "{total:?}");
}

/// The events of a run, counted.
#[derive(Debug, Default)]
struct Tally {
    confirmed: usize,
    failed: usize,
    moves: usize,
    added: usize,
    undeleted: usize,
    /// The group lived until it was shut down.
    is_whole: bool,
}

struct LinkSimulation {
    world: World,
    seed: u64,
    /// The state of each RMB of each side.
    rmbs: [BTreeMap<u64, RmbState>; 2],
    /// RMBs that the peer of each side may still know.
    undeleted: [BTreeSet<u64>; 2],
    last_rmb: u64,
    /// Number of active links of each side.
    links: [usize; 2],
    tally: Tally,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum RmbState {
    Confirming,
    Confirmed,
    Failed,
    Deleting,
}

impl LinkSimulation {
    fn new(seed: u64, terms: LlcTerms) -> Self {
        let config = LlcConfig {
            rkeys_in_flight: 1 + (seed % 4) as usize,
            test_link: Some(10 * SECOND),
            ..LlcConfig::default()
        };
        let ports = [1 + (seed % 3) as usize, 1 + (seed / 3 % 3) as usize];
        let kind = match terms.dialect.is_v2() {
            true => RoceKind::V2,
            false => RoceKind::V1,
        };
        let mut world = World::new(ports, kind, config);
        if seed / 9 % 2 == 1 {
            // Two ports to a device.
            for port in world.hosts.iter_mut().flat_map(|host| &mut host.ports) {
                port.device /= 2;
            }
        }
        world.seed(seed);
        world.contact(terms);
        world.latency = (MS / 100, 3 * MS);
        if seed % 2 == 1 {
            world.retry_time = 3_800 * MS;
        }
        world.confirm();
        world.establish();
        Self {
            world,
            seed,
            rmbs: Default::default(),
            undeleted: Default::default(),
            last_rmb: 0,
            links: [0; 2],
            tally: Tally::default(),
        }
    }

    fn run(mut self, steps: usize) -> Tally {
        for _ in 0..steps {
            self.step();
            self.collect();
            if self.world.hosts.iter().any(|host| host.group.has_ended()) {
                break;
            }
        }
        // Ports come back, and everything has its time.
        for side in [SERVER, CLIENT] {
            for device in 0..self.world.hosts[side].ports.len() {
                if !self.world.hosts[side].ports[device].up {
                    self.world.set_port(side, device, true);
                }
            }
        }
        self.world.advance(100 * SECOND);
        self.collect();
        self.check();
        if self.has_ended() {
            return self.tally;
        }
        self.world.assert_agreed();
        // All keys go again.
        for side in [SERVER, CLIENT] {
            for rmb in self.rmbs[side].clone().into_keys() {
                self.delete(side, rmb);
            }
        }
        self.world.advance(100 * SECOND);
        self.collect();
        self.check();
        if self.has_ended() {
            return self.tally;
        }
        self.world.assert_agreed();
        for side in [SERVER, CLIENT] {
            assert_eq!(self.rmbs[side], BTreeMap::new(), "seed {}", self.seed);
            let [group, peer] = [side, 1 - side].map(|side| &self.world.hosts[side].group);
            let undeleted = peer.local_rmbs.undeleted;
            let left = group.rtokens.len();
            assert!(
                (1..=1 + undeleted).contains(&left),
                "that of the first connection, and what the peer could not delete"
            );
        }
        let reason = DeleteLinkReason::PROGRAM;
        let now = self.world.now;
        let first = (self.seed % 2) as usize;
        self.world.with(first, |group| group.end(now, true, reason));
        self.world.advance(30 * SECOND);
        for host in &self.world.hosts {
            assert!(host.group.has_ended());
            assert_eq!(host.group.poll_timeout(), None);
        }
        self.tally.is_whole = true;
        self.tally
    }

    /// Whether the group has ended; if so, on both sides.
    fn has_ended(&self) -> bool {
        let ended = [0, 1].map(|side| self.world.hosts[side].group.has_ended());
        assert_eq!(ended[0], ended[1], "seed {}", self.seed);
        ended[0]
    }

    fn step(&mut self) {
        let side = self.world.below(2) as usize;
        match self.world.below(100) {
            0..=44 => {
                if self.rmbs[side].len() < 200 {
                    self.last_rmb += 1;
                    self.rmbs[side].insert(self.last_rmb, RmbState::Confirming);
                    self.world.confirm_rkey(side, self.last_rmb);
                }
            }
            45..=74 => {
                let len = self.rmbs[side].len() as u64;
                if len > 0 {
                    let at = self.world.below(len) as usize;
                    let rmb = *self.rmbs[side].keys().nth(at).unwrap();
                    self.delete(side, rmb);
                }
            }
            75..=76 => {
                // A port comes or goes, but never the last one.
                let ports = &self.world.hosts[side].ports;
                let up = ports.iter().filter(|port| port.up).count();
                let at = self.world.below(ports.len() as u64) as usize;
                let is_up = self.world.hosts[side].ports[at].up;
                if !is_up || up > 1 {
                    self.world.set_port(side, at, !is_up);
                }
            }
            77 => {
                // A link stops working, if there is another one that works.
                let active = self.active(side);
                if active.len() > 1 && !self.has_cut(side) {
                    let at = self.world.below(active.len() as u64) as usize;
                    self.world.cut(side, active[at].id);
                }
            }
            78 => self.fail(side),
            79 => self.world.hosts[side].omitted = 1,
            80..=97 => {
                let by = self.world.below(5_000) as u32;
                self.world.advance(by * (MS / 1000) * 10);
            }
            _ => {
                let by = self.world.below(15) as u32;
                self.world.advance(by * SECOND);
            }
        }
        let pause = self.pause();
        self.world.advance(pause);
    }

    /// A device reports a failure of a link, if there is another one that helps.
    fn fail(&mut self, side: usize) {
        let failures = OF_A_LINK.into_iter().chain(OF_A_PORT);
        let at = self.world.below(failures.clone().count() as u64) as usize;
        let failure = failures.clone().nth(at).unwrap();
        let active = self.active(side);
        let [one, two] = active[..] else { return };
        if self.has_cut(side) {
            return;
        }
        let mac = |link: LinkInfo| link.local.unwrap().mac;
        let is_same_port = one.device == two.device && mac(one) == mac(two);
        if is_same_port && OF_A_PORT.contains(&failure) {
            return;
        }
        let now = self.world.now;
        self.world
            .with(side, |group| group.handle_link_down(now, one.id, failure));
        let has_ended = self.world.hosts[side].group.has_ended();
        assert!(!has_ended, "seed {}: {failure}", self.seed);
    }

    fn active(&self, side: usize) -> Vec<LinkInfo> {
        let links = self.world.hosts[side].group.links();
        links
            .filter(|link| link.state == LinkState::Active)
            .collect()
    }

    /// Whether a link does not work, and that is still to be noticed.
    fn has_cut(&self, side: usize) -> bool {
        let mut active = self.active(side).into_iter();
        active.any(|link| self.world.is_cut(side, link.id))
    }

    fn pause(&mut self) -> Duration {
        let micros = self.world.below(400) as u32;
        micros * (MS / 1000)
    }

    fn delete(&mut self, side: usize, rmb: u64) {
        if self.rmbs[side][&rmb] != RmbState::Deleting {
            // Outputs that were seen before the deletion count.
            self.collect();
            self.rmbs[side].insert(rmb, RmbState::Deleting);
            self.world.delete_rkey(side, rmb);
        }
    }

    fn collect(&mut self) {
        for side in [SERVER, CLIENT] {
            for output in std::mem::take(&mut self.world.hosts[side].seen) {
                match output {
                    LinkGroupOutput::RkeyConfirmed { rmb, result } => {
                        let state = self.rmbs[side].get_mut(&rmb.0).expect("known");
                        assert_eq!(*state, RmbState::Confirming, "one outcome: {rmb:?}");
                        if result.is_ok() {
                            *state = RmbState::Confirmed;
                            self.tally.confirmed += 1;
                        } else {
                            *state = RmbState::Failed;
                            self.tally.failed += 1;
                        }
                    }
                    LinkGroupOutput::RkeyDeleted { rmb, is_answered } => {
                        match self.rmbs[side].remove(&rmb.0) {
                            Some(state) => {
                                assert_eq!(state, RmbState::Deleting, "{rmb:?} of {side}")
                            }
                            None => {
                                let is_late = is_answered && self.undeleted[side].remove(&rmb.0);
                                assert!(is_late, "{rmb:?} of {side}");
                            }
                        }
                        if is_answered {
                            self.assert_deleted(side, rmb);
                        } else {
                            self.tally.undeleted += 1;
                            self.undeleted[side].insert(rmb.0);
                        }
                    }
                    LinkGroupOutput::Send { message, .. } => {
                        assert!((44..=8192).contains(&message.len()));
                    }
                    LinkGroupOutput::Move { .. } => self.tally.moves += 1,
                    LinkGroupOutput::Links(links) => {
                        let count = links.ends.len();
                        let before = std::mem::replace(&mut self.links[side], count);
                        self.tally.added += count.saturating_sub(before);
                    }
                    _ => {}
                }
            }
        }
    }

    /// The peer does not know an RMB any more.
    fn assert_deleted(&self, side: usize, rmb: RmbId) {
        let [group, peer] = [side, 1 - side].map(|side| &self.world.hosts[side].group);
        if group.end.is_some() {
            return;
        }
        let devices = 0..self.world.hosts[side].ports.len();
        let mut keys = devices.map(|device| key_of(side, rmb, device).0);
        let is_known = |key| {
            peer.links()
                .any(|on| peer.rtokens.find(on.id, key).is_some())
        };
        assert!(!keys.any(is_known), "seed {}: {rmb:?} of {side}", self.seed);
    }

    /// Nothing is under way any more.
    fn check(&self) {
        for side in [SERVER, CLIENT] {
            let group = &self.world.hosts[side].group;
            let waits =
                |state: &RmbState| matches!(state, RmbState::Confirming | RmbState::Deleting);
            let waiting = self.rmbs[side].iter().find(|(_, state)| waits(state));
            assert_eq!(waiting, None, "seed {}, side {side}", self.seed);
            if group.has_ended() {
                continue;
            }
            assert!(group.flow.is_none(), "{:?}", group.flow);
            assert!(group.local_rmbs.requests.is_empty());
            assert!(group.pending.add.is_none() && group.pending.deletes.is_empty());
            assert!(!group.pending.request && group.pending.deferred.is_none());
        }
    }
}
