//! Link groups: two of them in the simulated network of the unit tests, with ports that come and
//! go, slow and failing devices, lost links, and messages that no link group has sent.

#![no_main]

use std::collections::BTreeSet;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use smc_core::device::{LinkFailure, RoceKind};
use smc_core::proto::links::*;
// The paths of the included modules begin in `smc_core`.
use smc_core::{device, proto};
use smc_fuzz::Input;
use smc_wire::llc::DeleteLinkReason;
use smc_wire::types::{Rkey, RmbAddr};

#[allow(dead_code, reason = "the tests of smc-core use the rest")]
#[path = "../../../smc-core/src/proto/links/tests/summary.rs"]
mod summary;
#[allow(dead_code, reason = "the tests of smc-core use the rest")]
#[path = "../../../smc-core/src/proto/links/tests/world.rs"]
mod world;

use world::{CLIENT, SERVER, World, peer_rmb};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let setting = input.byte();
    let terms = match setting & 3 {
        0 => LlcTerms::V1,
        1 => LlcTerms::V2,
        _ => LlcTerms::v2_1(1 + (setting >> 2 & 1), 255),
    };
    let config = LlcConfig {
        rkeys_in_flight: 1 + usize::from(setting >> 3 & 1),
        test_link: (setting & 16 != 0).then_some(10 * SECOND),
        ..LlcConfig::default()
    };
    let kind = if terms.dialect.is_v2() {
        RoceKind::V2
    } else {
        RoceKind::V1
    };
    let ports = [1 + input.below(3), 1 + input.below(3)];
    let mut world = World::new(ports, kind, config);
    if setting & 32 != 0 {
        let ports = world.hosts.iter_mut().flat_map(|host| &mut host.ports);
        ports.for_each(|port| port.device /= 2);
    }
    world.contact(terms);
    let is_confirmed = setting & 64 == 0;
    if is_confirmed {
        world.confirm();
        world.establish();
    }
    let mut run = Run {
        world,
        tokens: Default::default(),
        sent: Vec::new(),
        is_honest: is_confirmed,
    };
    while !input.is_empty() {
        run.step(&mut input);
        run.check();
    }
    run.finish();
});

struct Run {
    world: World,
    /// RMBs of the peer that local connections use.
    tokens: [Vec<RtokenId>; 2],
    /// Messages that were sent.
    sent: Vec<Vec<u8>>,
    /// The first link was confirmed, each message is that of a link group, and no link has failed
    /// on one side only.
    is_honest: bool,
}

impl Run {
    fn step(&mut self, input: &mut Input<'_>) {
        let step = input.byte();
        let side = usize::from(step >> 7);
        let now = self.world.now;
        let link = LinkId(u32::from(step >> 4 & 7));
        let exists = self.world.hosts[side].group.link(link).is_some();
        match step & 15 {
            0 => self.world.advance(10 * MS),
            1 => self.world.advance(u32::from(input.byte()) * 25 * MS),
            2 => {
                let at = input.below(self.world.hosts[side].ports.len());
                let up = input.flag();
                self.world.set_port(side, at, up);
            }
            3 | 4 => self
                .world
                .confirm_rkey(side, u64::from(input.byte() & 31) + 1),
            5 => self
                .world
                .delete_rkey(side, u64::from(input.byte() & 31) + 1),
            6 => {
                let group = &mut self.world.hosts[side].group;
                let (key, addr) = (Rkey(input.byte().into()), RmbAddr(0));
                self.tokens[side].extend(group.add_rtoken(link, &peer_rmb(key, addr)));
            }
            7 => {
                if let Some(id) = self.tokens[side].pop() {
                    self.world.with(side, |group| group.release_rtoken(id));
                }
            }
            8 if exists => {
                self.is_honest = false;
                let failure = input.choose(&[
                    LinkFailure::RetryExceeded,
                    LinkFailure::Flushed,
                    LinkFailure::PortDown,
                    LinkFailure::Device("as the input states"),
                ]);
                self.world
                    .with(side, |group| group.handle_link_down(now, link, failure));
            }
            9 => {
                let is_connected = |qp: &world::Qp| qp.peer.is_some();
                if self.world.hosts[side]
                    .qps
                    .get(&link)
                    .is_some_and(is_connected)
                {
                    self.world.cut(side, link);
                }
            }
            10 | 11 if !self.sent.is_empty() => {
                self.forge(side);
                let message = &self.sent[input.below(self.sent.len())];
                let message = input.changed(message);
                self.world
                    .with(side, |group| group.handle_message(now, link, &message));
            }
            12 => {
                self.forge(side);
                let len = 44 * (1 + usize::from(input.byte() & 7));
                let mut message = vec![0; len];
                let given = input.bytes(len);
                message[..given.len()].copy_from_slice(given);
                self.world
                    .with(side, |group| group.handle_message(now, link, &message));
            }
            13 => {
                let host = &mut self.world.hosts[side];
                let device = input.below(3);
                match input.below(5) {
                    0 => drop(host.unmappable.insert(device)),
                    1 => drop(host.unmappable.remove(&device)),
                    2 => host.stop_time = u32::from(input.byte()) * MS,
                    3 => host.move_time = u32::from(input.byte()) * 40 * MS,
                    _ => host.map_time = u32::from(input.byte()) * 40 * MS,
                }
            }
            14 => match input.below(8) {
                0 => self.end(side, true),
                1 => self.end(side, false),
                2 => self.world.with(side, |group| group.confirm_link(now)),
                3 => self.world.with(side, |group| group.establish(now)),
                _ => {
                    let tag = OpTag(input.byte().into());
                    self.is_honest = false;
                    self.world
                        .with(side, |group| group.handle_completed(now, link, tag));
                }
            },
            _ => self
                .world
                .with(side, |group| group.handle_received(now, link)),
        }
    }

    /// Messages follow that no link group has sent to this side.
    fn forge(&mut self, side: usize) {
        self.is_honest = false;
        self.world.hosts[side].has_forged_peer = true;
    }

    fn end(&mut self, side: usize, in_order: bool) {
        let now = self.world.now;
        let reason = DeleteLinkReason::PROGRAM;
        self.world
            .with(side, |group| group.end(now, in_order, reason));
    }

    /// What holds after each step.
    fn check(&mut self) {
        for host in &mut self.world.hosts {
            let group = &host.group;
            assert!(
                group.links().count() <= 3,
                "at most one beyond the two of a group"
            );
            assert!(group.rtokens() <= RTOKENS_MAX);
            assert!(host.seen.len() < 10_000, "outputs without end");
            host.seen.clear();
        }
        for (.., message) in self.world.log.drain(..) {
            assert!((44..=8192).contains(&message.len()));
            summary::summary(SERVER, &message);
            if self.sent.len() < 64 {
                self.sent.push(message);
            }
        }
    }

    /// Ports come back and everything has its time; then the groups agree, and come to an end.
    fn finish(&mut self) {
        for side in [SERVER, CLIENT] {
            let host = &mut self.world.hosts[side];
            host.unmappable.clear();
            (host.stop_time, host.move_time, host.map_time) = (Duration::ZERO, MS, MS);
            for at in 0..host.ports.len() {
                if !self.world.hosts[side].ports[at].up {
                    self.world.set_port(side, at, true);
                }
            }
        }
        self.world.advance(200 * SECOND);
        self.check();
        let [server, client] = [SERVER, CLIENT].map(|side| &self.world.hosts[side].group);
        let has_tests = self.world.cut.is_empty();
        if self.is_honest && has_tests && !server.is_ending() && !client.is_ending() {
            assert_eq!(
                ends(server, false),
                ends(client, true),
                "the groups do not agree"
            );
        }
        for side in [SERVER, CLIENT] {
            self.end(side, false);
        }
        self.world.advance(10 * SECOND);
        for host in &self.world.hosts {
            assert!(host.group.has_ended(), "{:#?}", host.group);
            assert_eq!(host.group.poll_timeout(), None);
            assert!(host.qps.is_empty(), "queue pairs are left");
        }
    }
}

/// The queue pairs of the active links: this side's first, or the peer's.
fn ends(group: &LinkGroup, is_mirrored: bool) -> BTreeSet<(u32, u32)> {
    let active = group.links().filter(|link| link.state == LinkState::Active);
    let pairs = active.filter_map(|link| {
        let (local, peer) = (link.local?.qpn.get(), link.peer?.qpn.get());
        Some(if is_mirrored {
            (peer, local)
        } else {
            (local, peer)
        })
    });
    pairs.collect()
}
