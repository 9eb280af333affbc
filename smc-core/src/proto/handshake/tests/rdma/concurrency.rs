//! Two hosts that set up thousands of connections with each other in both directions, while work
//! stalls and fails, TCP connections close, and link groups end.

use super::*;
use crate::proto::group::{CLIENT_IDLE_LIFETIME, CREATOR_TIMEOUT, GroupEndCause, GroupId};

#[test]
fn concurrent_setups_lose_no_membership_and_no_wait_is_endless() {
    for seed in 1..=4 {
        SetupSimulation::new(seed).run(1_500);
    }
}

struct SetupSimulation {
    random: u64,
    now: Instant,
    hosts: [Rc<RefCell<Groups>>; 2],
    connections: Vec<Connection>,
    /// How many came to an end, by outcome: SMC, TCP, failed.
    ends: [usize; 3],
}

struct Connection {
    pair: Pair,
    /// The host of the client, then that of the server.
    hosts: [usize; 2],
    started: Instant,
    /// Since when each side waits for a creator.
    waiting: [Option<Instant>; 2],
}

impl SetupSimulation {
    fn new(seed: u64) -> Self {
        Self {
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            now: Instant::now(),
            hosts: [Rc::default(), Rc::default()],
            connections: Vec::new(),
            ends: [0; 3],
        }
    }

    fn run(mut self, steps: usize) {
        for step in 0..steps {
            self.step();
            if step % 16 == 0 {
                self.check();
            }
        }
        while !self.connections.is_empty() {
            self.advance(Duration::from_millis(500));
            self.check();
            self.sweep(1);
        }
        self.now += CLIENT_IDLE_LIFETIME;
        for host in &self.hosts {
            let mut groups = host.borrow_mut();
            groups.registry.handle_timeout(self.now);
            groups.drain();
            assert_eq!(groups.registry.group_infos(), []);
            assert_eq!(groups.registry.waiting(), 0);
            assert_eq!(groups.registry.poll_timeout(), None);
        }
        let [smc, tcp, failed] = self.ends;
        assert!(
            smc > 500 && tcp > 50 && failed > 10,
            "{smc} SMC, {tcp} TCP, {failed} failed"
        );
    }

    fn step(&mut self) {
        match self.below(20) {
            0..=8 => self.start(),
            9..=13 => {
                if let Some(at) = self.pick() {
                    self.connections[at].settle(self.now);
                }
            }
            14 => {
                let by = Duration::from_millis(self.below(800));
                self.advance(by);
            }
            15 if self.below(4) == 0 => {
                if let Some(at) = self.pick() {
                    let pair = &mut self.connections[at].pair;
                    let side = [&mut pair.client, &mut pair.server];
                    let [client, server] = side;
                    let side = if self.random & 1 == 0 { client } else { server };
                    side.machine.handle_closed();
                    side.settle(self.now);
                }
            }
            16 if self.below(8) == 0 => self.terminate(),
            17..=18 => self.sweep(3),
            _ => {}
        }
    }

    /// A connection in either direction, usually without anything special.
    fn start(&mut self) {
        let client = usize::try_from(self.below(2)).unwrap();
        let hosts = [client, 1 - client];
        // Both directions are between the same addresses; only the roles differ.
        let groups = hosts.map(|host| Rc::clone(&self.hosts[host]));
        let mut pair = Pair::at(
            self.now,
            (rdma_host(CLIENT), path(CLIENT)),
            (rdma_host(SERVER), path(SERVER)),
            groups,
        );
        let side = if self.below(2) == 0 {
            &mut pair.client
        } else {
            &mut pair.server
        };
        match self.below(12) {
            0 => {
                let kinds = [
                    "enter",
                    "open link",
                    "prepare",
                    "bind",
                    "connect",
                    "confirm rkey",
                    "confirm link",
                    "establish",
                ];
                let at = usize::try_from(self.below(kinds.len() as u64)).unwrap();
                side.faults.stall = Some(kinds[at]);
            }
            1 => {
                let refused = || DeviceError::Invalid("as told");
                let faults = [
                    WorkDone::LinkOpened(Err(refused())),
                    WorkDone::RmbPrepared(Err(RmbError::NoLink)),
                    WorkDone::RmbPrepared(Err(DeviceError::NoMemory.into())),
                    WorkDone::PeerBound(Err(RtokenError::TableFull)),
                    WorkDone::LinkConnected(Err(refused())),
                    WorkDone::RkeyConfirmed(Err(RkeyError::TimedOut)),
                    WorkDone::LinkConfirmed(Err(FirstLinkError::TimedOut)),
                    WorkDone::LinkConfirmed(Err(FirstLinkError::Eyecatchers)),
                ];
                let at = usize::try_from(self.below(faults.len() as u64)).unwrap();
                side.faults.rdma.push_back(faults[at].clone());
            }
            _ => {}
        }
        self.connections.push(Connection {
            pair,
            hosts,
            started: self.now,
            waiting: [None; 2],
        });
    }

    fn advance(&mut self, by: Duration) {
        self.now += by;
        for host in &self.hosts {
            let mut groups = host.borrow_mut();
            groups.registry.handle_timeout(self.now);
            groups.drain();
        }
        for connection in &mut self.connections {
            for side in [&mut connection.pair.client, &mut connection.pair.server] {
                // An answer of the registry goes before the timeout.
                side.settle(self.now);
                side.machine.handle_timeout(self.now);
            }
            connection.settle(self.now);
        }
        self.spread_terminations();
    }

    /// A peer states that a group is out of sync.
    fn terminate(&mut self) {
        let host = usize::try_from(self.below(2)).unwrap();
        let all = self.hosts[host].borrow().registry.group_infos();
        if all.is_empty() {
            return;
        }
        let at = usize::try_from(self.below(all.len() as u64)).unwrap();
        let mut groups = self.hosts[host].borrow_mut();
        groups
            .registry
            .terminate(all[at].id, GroupEndCause::OutOfSync);
        groups.drain();
        drop(groups);
        self.spread_terminations();
    }

    /// Ends everything in terminated groups.
    fn spread_terminations(&mut self) {
        loop {
            let mut ended: Vec<(usize, GroupId)> = Vec::new();
            for (host, groups) in self.hosts.iter().enumerate() {
                let terminated = std::mem::take(&mut groups.borrow_mut().terminated);
                ended.extend(terminated.into_iter().map(|group| (host, group)));
            }
            if ended.is_empty() {
                return;
            }
            for connection in &mut self.connections {
                let [client, server] = connection.hosts;
                let Pair {
                    client: here,
                    server: there,
                    ..
                } = &mut connection.pair;
                for (host, side) in [(client, here), (server, there)] {
                    let is_in = side
                        .member
                        .is_some_and(|group| ended.contains(&(host, group)));
                    match side.outcome {
                        _ if !is_in => {}
                        Some(_) => side.release(self.now),
                        None => {
                            side.machine.handle_terminated();
                            side.settle(self.now);
                        }
                    }
                }
            }
        }
    }

    /// Closes some of the connections that have come to their ends on both sides.
    fn sweep(&mut self, one_in: u64) {
        let mut at = 0;
        while at < self.connections.len() {
            let pair = &self.connections[at].pair;
            let has_ended = pair.client.outcome.is_some() && pair.server.outcome.is_some();
            if !has_ended || self.below(one_in) != 0 {
                at += 1;
                continue;
            }
            let mut connection = self.connections.swap_remove(at);
            for side in [&mut connection.pair.client, &mut connection.pair.server] {
                let kind = match side.outcome {
                    Some(Outcome::Smc(_)) => 0,
                    Some(Outcome::Tcp(_)) => 1,
                    _ => 2,
                };
                self.ends[kind] += 1;
                side.release(self.now);
            }
        }
        self.spread_terminations();
    }

    fn check(&mut self) {
        let mut members = [HashMap::new(), HashMap::new()];
        for connection in &mut self.connections {
            let sides = [&connection.pair.client, &connection.pair.server];
            for (at, side) in sides.into_iter().enumerate() {
                let host = connection.hosts[at];
                if let Some(group) = side.member {
                    *members[host].entry(group).or_insert(0) += 1;
                }
                let since = &mut connection.waiting[at];
                match side.waiter {
                    None => *since = None,
                    Some(_) => {
                        let since = *since.get_or_insert(self.now);
                        // It is notified with the timeout; the next step handles it.
                        assert!(
                            self.now <= since + CREATOR_TIMEOUT + SECOND,
                            "waits for a stalled creator"
                        );
                    }
                }
                if side.outcome.is_none() {
                    let age = self.now - connection.started;
                    assert!(age < Duration::from_secs(30), "{:?}", side.machine.state());
                }
            }
        }
        for (host, members) in members.iter_mut().enumerate() {
            let groups = self.hosts[host].borrow();
            for snapshot in groups.registry.group_infos() {
                let held = members.remove(&snapshot.id).unwrap_or(0);
                // A member that its waiter has not been told of yet.
                let given = groups
                    .answers
                    .values()
                    .filter(|member| member.is_ok_and(|member| member.group() == snapshot.id));
                assert_eq!(snapshot.connections, held + given.count(), "{snapshot:?}");
            }
            assert!(
                members.is_empty(),
                "members in groups that are gone: {members:?}"
            );
        }
    }

    fn pick(&mut self) -> Option<usize> {
        let len = self.connections.len();
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

impl Connection {
    /// Lets it get on without time passing. Ends of one side reach the other.
    fn settle(&mut self, now: Instant) {
        self.pair.now = now;
        self.pair.settle();
        let Pair {
            client,
            server,
            to_client,
            to_server,
            ..
        } = &mut self.pair;
        let has_failed = |side: &HandshakeSide| matches!(side.outcome, Some(Outcome::Failed(_)));
        if has_failed(client) && to_server.is_empty() {
            server.machine.handle_closed();
            server.settle(now);
        }
        if has_failed(server) && to_client.is_empty() {
            client.machine.handle_closed();
            client.settle(now);
        }
    }
}
