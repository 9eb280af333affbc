//! The schedule of a seed. Each seed has some kinds of events and leaves the others out, so that
//! one kind does not hide what another one does (swarm testing).

use smc_testkit::Rng;

use super::effects::LINKS_TIME;
use super::schedule::{
    Action, End, Event, HostSetting, LinkFault, Network, Policy, PortFault, Ports, Schedule,
    Setting, SynDelivery,
};

/// The schedule of a seed.
pub(crate) fn generate(seed: u64) -> Schedule {
    let mut rng = Rng::new(seed ^ 0x5eed);
    let hardship = match rng.below(10) {
        0..=2 => Hardship::None,
        3 => Hardship::Survivable,
        _ => Hardship::Anything,
    };
    let hosts = hosts(&mut rng, hardship);
    let network = network(&mut rng);
    let swarm = Swarm::new(&mut rng);
    // Small pieces, and many connections, take long with much data.
    let scales = match swarm.many || network.fragment > 0 {
        true => [40, 300, 3000, 3000],
        false => [40, 3000, 20_000, 100_000],
    };
    let mut generator = Generator {
        hosts: hosts.len(),
        span: [200, 20_000, 500_000, 5_000_000][rng.below(4)],
        scale: scales[rng.below(4)],
        swarm,
        rng: rng.fork(),
        events: Vec::new(),
    };
    generator.connections(hardship);
    generator.faults(hardship);
    let mut events = generator.events;
    events.sort_by_key(|event| event.at);
    let setting = Setting {
        seed,
        network,
        hosts,
    };
    Schedule { setting, events }
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hardship {
    /// Nothing that a stream may notice.
    None,
    /// One link of two at a time: no stream may notice.
    Survivable,
    /// Anything.
    Anything,
}

/// The features of connections that a seed has.
struct Swarm {
    early: bool,
    policies: bool,
    give_up: bool,
    model: bool,
    resets: bool,
    many: bool,
}

impl Swarm {
    fn new(rng: &mut Rng) -> Self {
        Self {
            early: rng.chance(500),
            policies: rng.chance(200),
            give_up: rng.chance(250),
            model: rng.chance(120),
            resets: rng.chance(300),
            many: rng.chance(10),
        }
    }
}

fn hosts(rng: &mut Rng, hardship: Hardship) -> Vec<HostSetting> {
    let is_survivable = hardship == Hardship::Survivable;
    let count = match is_survivable {
        true => rng.between(2, 3),
        false => [2, 2, 2, 2, 2, 3, 3, 4, 5][rng.below(9)],
    };
    // SMC-D, SMC-R, both, or as it comes.
    let kind = if is_survivable { 1 } else { rng.below(4) };
    let all_features = rng.chance(600);
    let fast_open = rng.chance(400);
    let memory = match hardship {
        Hardship::Anything if rng.chance(80) => rng.between(1, 400) as u32,
        _ => 0,
    };
    let max_links = match is_survivable {
        true => 2,
        false => [0, 1, 1, 2][rng.below(4)],
    };
    let (receive, send) = ([16, 16, 64][rng.below(3)], [16, 64, 256][rng.below(3)]);
    let one_port = rng.below(2 * count);
    let host = |number: usize, rng: &mut Rng| {
        let ports = [Ports::One, Ports::TwoDevices, Ports::OneDevice];
        let ports = match is_survivable {
            // One of the hosts may have a single port; its groups are asymmetric then.
            true if number == one_port => Ports::One,
            true => ports[rng.between(1, 2)],
            false => ports[rng.below(3)],
        };
        let (direct, rdma) = match kind {
            0 => (true, Ports::None),
            1 => (false, ports),
            2 => (true, ports),
            _ => (
                rng.chance(500),
                if rng.chance(500) { ports } else { Ports::None },
            ),
        };
        let features = match rng.below(10) {
            _ if all_features => u16::MAX,
            0..=2 => 0,
            3..=6 => u16::MAX,
            _ => (rng.bits() >> 20) as u16,
        };
        HostSetting {
            direct,
            rdma,
            features,
            max_links,
            max_conns: if is_survivable {
                0
            } else {
                [0, 0, 16][rng.below(3)]
            },
            rkeys_in_flight: [0, 1, 4][rng.below(3)],
            receive,
            send,
            memory,
            early: [0, 200, 4096][rng.below(3)],
            fast_open: fast_open && rng.chance(850),
        }
    };
    (0..count).map(|number| host(number, rng)).collect()
}

fn network(rng: &mut Rng) -> Network {
    Network {
        tcp: [1, 50, 300][rng.below(3)],
        rdma: [1, 5, 100][rng.below(3)],
        setup: [0, 0, 400][rng.below(3)],
        fragment: [0, 0, 0, 7][rng.below(4)],
        nocopy: rng.chance(500),
    }
}

struct Generator {
    rng: Rng,
    hosts: usize,
    /// Microseconds within which most happens.
    span: usize,
    /// Most bytes of an operation.
    scale: usize,
    swarm: Swarm,
    events: Vec<Event>,
}

impl Generator {
    fn add(&mut self, at: usize, action: Action) {
        self.events.push(Event::new(at as u64, action));
    }

    fn host(&mut self) -> u8 {
        self.rng.below(self.hosts) as u8
    }

    /// Two hosts.
    fn pair(&mut self) -> (u8, u8) {
        let from = self.rng.below(self.hosts);
        let to = (from + 1 + self.rng.below(self.hosts - 1)) % self.hosts;
        (from as u8, to as u8)
    }

    fn connections(&mut self, hardship: Hardship) {
        let mut first = 0;
        if hardship == Hardship::Survivable {
            // Link groups in all directions.
            for from in 0..self.hosts as u8 {
                for to in (0..self.hosts as u8).filter(|to| *to != from) {
                    self.connect(0, first, from, to, 0);
                    first += 1;
                }
            }
        }
        let count = match self.swarm.many {
            true => self.rng.between(20, 100) as u8,
            false => self.rng.between(1, 6) as u8,
        };
        for conn in first..first + count {
            let (from, to) = self.pair();
            let at = self.rng.below(self.span);
            let has_model = self.swarm.model && !self.swarm.many;
            let model = match has_model && self.rng.chance(500) {
                true => self.rng.bits() >> 32 | 1,
                false => 0,
            };
            self.connect(at, conn, from, to, model);
            if model == 0 {
                self.operations(at, conn);
            }
        }
    }

    fn connect(&mut self, at: usize, conn: u8, from: u8, to: u8, model: u64) {
        let (rng, swarm) = (&mut self.rng, &self.swarm);
        let policies = [Policy::Prefer, Policy::Require, Policy::Never];
        let policy = policies[if swarm.policies { rng.below(3) } else { 0 }];
        let early = match swarm.early && rng.chance(500) {
            true => rng.below(300) as u16,
            false => 0,
        };
        let give_up = match swarm.give_up && rng.chance(300) {
            true => rng.between(1, 2000) as u32,
            false => 0,
        };
        let action = Action::Connect {
            conn,
            from,
            to,
            early,
            policy,
            give_up,
            model,
        };
        self.add(at, action);
    }

    fn operations(&mut self, from: usize, conn: u8) {
        let mut at = from;
        for _ in 0..self.rng.below(8) {
            at += self.rng.below(self.span / 4 + 1);
            let rng = &mut self.rng;
            let end = End::BOTH[rng.below(2)];
            let action = match rng.below(12) {
                0..=5 => {
                    let len = rng.between(1, self.scale) as u32;
                    Action::Write { conn, end, len }
                }
                6..=9 => {
                    let len = rng.between(1, self.scale) as u32;
                    Action::Read { conn, end, len }
                }
                10 => Action::Shutdown { conn, end },
                _ => {
                    let resets = self.swarm.resets && rng.chance(500);
                    Action::Close { conn, end, resets }
                }
            };
            self.add(at, action);
        }
    }

    fn faults(&mut self, hardship: Hardship) {
        let kinds: &[Kind] = match hardship {
            Hardship::None => &HARMLESS,
            Hardship::Survivable => &[fail_over],
            Hardship::Anything => &HARMFUL,
        };
        let mut kinds = kinds.to_vec();
        if hardship != Hardship::Survivable {
            kinds.retain(|_| self.rng.chance(300));
        }
        if hardship == Hardship::Anything {
            let harmless = HARMLESS.into_iter().filter(|_| self.rng.chance(150));
            kinds.extend(harmless.collect::<Vec<_>>());
        }
        if kinds.is_empty() {
            return;
        }
        let first = match hardship {
            Hardship::Survivable => LINKS_TIME as usize,
            _ => 0,
        };
        for _ in 0..self.rng.between(1, 6) {
            let at = first + self.rng.below(self.span + self.span / 2);
            let kind = kinds[self.rng.below(kinds.len())];
            let action = kind(self);
            self.add(at, action);
        }
    }
}

type Kind = fn(&mut Generator) -> Action;

/// Events that no stream may notice.
const HARMLESS: [Kind; 5] = [
    |generator| Action::Slow {
        host: generator.host(),
        device: generator.rng.below(3) as u8,
        delayed: [0, 300, 700][generator.rng.below(3)],
        spurious: [0, 100][generator.rng.below(2)],
        busy: [0, 100, 500][generator.rng.below(3)],
    },
    |generator| {
        let (from, to) = generator.pair();
        Action::Replay {
            from,
            to,
            copies: generator.rng.between(1, 3) as u8,
            len: [usize::MAX, generator.rng.below(300)][generator.rng.below(2)] as u16,
            time: generator.rng.below(generator.span) as u32,
        }
    },
    |generator| Action::Syn {
        host: generator.host(),
        delivery: [
            SynDelivery::WithoutCookie,
            SynDelivery::AfterLoss,
            SynDelivery::Twice,
            SynDelivery::Twice,
        ][generator.rng.below(4)],
        time: generator.rng.below(generator.span) as u32,
    },
    |generator| Action::Pause {
        host: generator.host(),
        time: generator.rng.below(150_000) as u32,
    },
    |generator| Action::Jump {
        time: generator.rng.below(150_000) as u32,
    },
];

/// Events that end set-ups and streams.
const HARMFUL: [Kind; 16] = [
    |generator| Action::Unlisten {
        host: generator.host(),
        time: generator.rng.below(generator.span) as u32,
    },
    |generator| Action::Terminate {
        host: generator.host(),
    },
    |generator| Action::Restart {
        host: generator.host(),
        is_killed: false,
        time: generator.rng.below(generator.span) as u32,
    },
    |generator| Action::Restart {
        host: generator.host(),
        is_killed: true,
        time: generator.rng.below(generator.span) as u32,
    },
    |generator| Action::Jump {
        time: generator.rng.below(20_000_000) as u32,
    },
    |generator| Action::Pause {
        host: generator.host(),
        time: generator.rng.below(8_000_000) as u32,
    },
    |generator| Action::CutTcp {
        host: generator.host(),
    },
    |generator| Action::Truncate {
        host: generator.host(),
        end: End::BOTH[generator.rng.below(2)],
        len: generator.rng.below(400) as u16,
    },
    |generator| Action::StripOption {
        host: generator.host(),
        syn: generator.rng.chance(500),
    },
    |generator| Action::NoMemory {
        host: generator.host(),
        device: generator.rng.below(3) as u8,
        after: generator.rng.below(12) as u16,
        count: [1, 1, 2, 100][generator.rng.below(4)],
    },
    |generator| Action::NoMemory {
        host: generator.host(),
        device: 0,
        after: generator.rng.below(6) as u16,
        count: 1,
    },
    |generator| Action::Remove {
        host: generator.host(),
        device: generator.rng.below(3) as u8,
    },
    |generator| Action::Port {
        host: generator.host(),
        port: generator.rng.below(2) as u8,
        fault: [
            PortFault::Down,
            PortFault::Cut,
            PortFault::HoldsCompletions,
            PortFault::Lags,
            PortFault::NoLinks,
        ][generator.rng.below(5)],
    },
    |generator| Action::Link {
        host: generator.host(),
        link: generator.rng.below(4) as u8,
        fault: LINK_FAULTS[generator.rng.below(7)],
        after: generator.rng.below(30) as u8,
    },
    |generator| Action::Network {
        stops: generator.rng.chance(500),
    },
    |_| Action::Repair,
];

fn fail_over(generator: &mut Generator) -> Action {
    Action::Failover {
        host: generator.host(),
        port: generator.rng.below(2) as u8,
        fault: LINK_FAULTS[generator.rng.below(10)],
        after: generator.rng.below(30) as u8,
        time: generator.rng.below(3_000_000) as u32,
    }
}

/// Those of a link alone first.
const LINK_FAULTS: [LinkFault; 10] = [
    LinkFault::LosesAll,
    LinkFault::LosesMessages,
    LinkFault::LosesAnswers,
    LinkFault::Cut,
    LinkFault::RetryExceeded,
    LinkFault::Flushed,
    LinkFault::QueuePair,
    LinkFault::PortDown,
    LinkFault::PortCut,
    LinkFault::PeersLag,
];
