//! Handshakes of two client hosts with one server host; each host has one registry of link groups.
//! The target chooses when bytes arrive, what work gives and how time passes.

mod hosts;

pub use hosts::Setting;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use smc_core::device::{DeviceError, LinkAddress};
use smc_core::proto::group::{
    DeviceIndex, EnterResult, GroupEndCause, GroupId, GroupKey, Intent, LinkGroupInfo, Member,
    Registry, RegistryOutput, Waiter,
};
use smc_core::proto::handshake::{
    ClientProposal, EarlyConfirm, EarlyData, Established, Handshake, HandshakeConfig,
    HandshakeOutput, LocalRmb, RmbError, TcpPath, Work, WorkDone,
};
use smc_core::proto::links::{Authentications, FirstLinkError, LinkChoice, RkeyError, RtokenError};
use smc_wire::clc::{DirectEnd, EarlyRdmaEnd, Message};
use smc_wire::size::SizeCode;
use smc_wire::types::{
    AlertToken, AuthenticationCode, DmbToken, Features, LinkNumber, Nonce, Rkey, RmbAddr,
};

/// The index of the first client's host, and of the client's side of a connection.
pub const CLIENT: usize = 0;
/// The index of the server's host, and of the server's side of a connection.
pub const SERVER: usize = 1;
/// The index of the second client's host.
pub const OTHER_CLIENT: usize = 2;

/// Connections of one input.
pub const CONNECTIONS_MAX: usize = 6;

/// How a handshake has ended.
#[derive(Debug)]
pub enum Outcome {
    /// Over SMC.
    Smc(Box<Established>),
    /// The stream stays TCP.
    Tcp,
    /// The connection is closed.
    Failed,
}

/// The hosts and their connections.
#[derive(Debug)]
pub struct World {
    setting: Setting,
    hosts: [Host; 3],
    connections: Vec<Connection>,
    now: Instant,
    /// The last number of a buffer, queue pair or key.
    last_number: u32,
    /// Lengths of buffers.
    buffers: HashMap<DmbToken, usize>,
    /// What servers take once: buffers, and numbers of codes.
    taken: HashSet<u64>,
    /// Messages that were sent, for targets that repeat them.
    pub sent: Vec<Vec<u8>>,
}

#[derive(Debug)]
struct Host {
    config: Arc<HandshakeConfig>,
    path: TcpPath,
    registry: Registry,
    /// The link of each group.
    links: HashMap<GroupId, GroupLink>,
}

/// The only link of a group.
#[derive(Clone, Copy, Debug)]
struct GroupLink {
    device: DeviceIndex,
    local: LinkAddress,
    /// Once it is connected.
    peer: Option<LinkAddress>,
    authenticates: bool,
}

/// One connection. A side without a machine is the target itself.
#[derive(Debug)]
struct Connection {
    /// The host of the client's side.
    client: usize,
    sides: [Option<Side>; 2],
    /// Nothing was changed or lost and no time has passed: the sides have to agree.
    is_undisturbed: bool,
    /// It has received bytes that no machine has sent as they are, and so any data.
    is_forged: bool,
}

#[derive(Debug)]
struct Side {
    machine: Handshake,
    early: Option<EarlyWork>,
    /// Work that has not been done.
    work: Option<Work>,
    waiter: Option<Waiter>,
    member: Option<GroupId>,
    outcome: Option<Outcome>,
    /// Early data that the server has taken, by its first byte.
    early_data: Option<u8>,
    /// Bytes that this side has sent and the other one has not received.
    outgoing: VecDeque<u8>,
}

/// The work of a client before it sends an early CONFIRM.
#[derive(Debug)]
struct EarlyWork {
    key: GroupKey,
    member: Option<Member>,
    buffer: Option<(SizeCode, DmbToken)>,
    rmb: Option<LocalRmb>,
}

impl Host {
    /// Joins a group that is established.
    fn join_now(&mut self, now: Instant, key: GroupKey) -> Option<Member> {
        match self.registry.enter(now, key, Intent::Join) {
            EnterResult::Now(member) => member.ok(),
            EnterResult::Wait(waiter) => {
                self.registry.cancel(waiter);
                None
            }
        }
    }
}

impl World {
    /// Hosts that have these devices.
    pub fn new(setting: Setting) -> Self {
        let now = Instant::now();
        let host = |of: usize| Host {
            config: Arc::new(hosts::config(of, setting)),
            path: hosts::path(of, SERVER, setting),
            registry: Registry::default(),
            links: HashMap::new(),
        };
        Self {
            setting,
            hosts: [host(CLIENT), host(SERVER), host(OTHER_CLIENT)],
            connections: Vec::new(),
            now,
            last_number: 0,
            buffers: HashMap::new(),
            sent: Vec::new(),
            taken: HashSet::new(),
        }
    }

    /// The number of connections that were opened.
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Opens a connection of a client, with a machine at its side, at the server's or at both.
    pub fn open(&mut self, client: usize, has_machine: [bool; 2]) {
        if self.connections.len() == CONNECTIONS_MAX {
            return;
        }
        let from = &self.hosts[client];
        let machine = Handshake::client(self.now, Arc::clone(&from.config), &from.path);
        self.add(client, has_machine, Side::new(machine));
    }

    /// As [`World::open`] with machines at both sides, and an early CONFIRM if the client has a
    /// link group that takes it, with early data of this length.
    pub fn open_early(&mut self, client: usize, size: SizeCode, len: usize) {
        if self.connections.len() == CONNECTIONS_MAX {
            return;
        }
        self.last_number += 1;
        let number = self.last_number;
        let token = DmbToken(0xd3b0_0000 + u64::from(number));
        let host = &mut self.hosts[client];
        let infos = host.registry.group_infos();
        let found = infos
            .iter()
            .find_map(|group| match (group.key, group.terms) {
                (GroupKey::Direct { device, peer }, Some(terms))
                    if terms.vendor_features.contains(Features::EARLY_CONFIRM) =>
                {
                    Some((group.key, device, peer))
                }
                _ => None,
            });
        let Some((key, device, peer)) = found else {
            return;
        };
        let Some(member) = host.join_now(self.now, key) else {
            return;
        };
        let (config, path) = (Arc::clone(&host.config), &host.path);
        let proposal = ClientProposal::new(&config, path).expect("there is a device");
        let device = &config.devices[device.0];
        let end = DirectEnd {
            gid: device.gid,
            chid: device.chid,
            dmb: token,
            dmbe_index: 0,
            size,
            group: member.group(),
        };
        let (now, proposal) = (self.now, Arc::new(proposal));
        let early = EarlyConfirm::Direct { peer, end };
        let data = early_data(number, len);
        let machine = Handshake::client_with_early_confirm(
            now,
            Arc::clone(&config),
            proposal,
            early,
            Some(&data),
        );
        self.buffers.insert(token, size.byte_len());
        let mut side = Side::new(machine);
        side.member = Some(member.group());
        side.early = Some(EarlyWork {
            key,
            member: Some(member),
            buffer: Some((size, token)),
            rmb: None,
        });
        self.add(client, [true, true], side);
    }

    /// As [`World::open_early`] over SMC-R, with early data of this length.
    pub fn open_early_rdma(&mut self, client: usize, len: usize) {
        if self.connections.len() == CONNECTIONS_MAX {
            return;
        }
        self.last_number += 1;
        let number = self.last_number;
        let host = &mut self.hosts[client];
        let infos = host.registry.group_infos();
        let takes = |group: &&LinkGroupInfo| {
            let features = group.terms.map(|terms| terms.vendor_features);
            matches!(group.key, GroupKey::Rdma { .. })
                && features.is_some_and(|it| it.contains(Features::EARLY_DATA))
        };
        let Some(key) = infos.iter().find(takes).map(|group| group.key) else {
            return;
        };
        let Some(member) = host.join_now(self.now, key) else {
            return;
        };
        let Some(link) = host.links.get(&member.group()).copied() else {
            host.registry.leave(self.now, member.group());
            return;
        };
        let rmb = local_rmb(link, number, SizeCode::LINUX_DEFAULT);
        let config = Arc::clone(&host.config);
        let proposal = ClientProposal::new(&config, &host.path).expect("there is a port");
        let data = early_data(number, len);
        let authentication = rmb.authentication.and_then(|all| all.of(Features::empty()));
        let early = EarlyConfirm::Rdma {
            key,
            end: EarlyRdmaEnd {
                end: rmb.end(&config),
                link: LinkNumber(1),
            },
            authentication: authentication.expect("there is a code"),
        };
        let (now, proposal) = (self.now, Arc::new(proposal));
        let machine = Handshake::client_with_early_confirm(
            now,
            Arc::clone(&config),
            proposal,
            early,
            Some(&data),
        );
        let mut side = Side::new(machine);
        side.member = Some(member.group());
        side.early = Some(EarlyWork {
            key,
            member: Some(member),
            buffer: None,
            rmb: Some(rmb),
        });
        self.add(client, [true, true], side);
    }

    fn add(&mut self, client: usize, has_machine: [bool; 2], side: Side) {
        let path = hosts::path(SERVER, client, self.setting);
        let config = Arc::clone(&self.hosts[SERVER].config);
        let server = Side::new(Handshake::server(self.now, config, path));
        self.connections.push(Connection {
            client,
            sides: [
                Some(side).filter(|_| has_machine[0]),
                Some(server).filter(|_| has_machine[1]),
            ],
            is_undisturbed: has_machine == [true, true],
            is_forged: false,
        });
        let at = self.connections.len() - 1;
        self.settle(at, CLIENT);
        self.settle(at, SERVER);
    }

    /// Passes bytes that the other side has sent to a side.
    pub fn deliver(&mut self, at: usize, to: usize, most: usize) {
        let Some(from) = &mut self.connections[at].sides[1 - to] else {
            return;
        };
        let count = most.min(from.outgoing.len());
        let bytes: Vec<_> = from.outgoing.iter().copied().take(count).collect();
        let taken = self.receive(at, to, &bytes);
        if let Some(from) = &mut self.connections[at].sides[1 - to] {
            from.outgoing.drain(..taken);
        }
    }

    /// Passes bytes that no machine has sent to a side.
    pub fn inject(&mut self, at: usize, to: usize, bytes: &[u8]) {
        let is_copy = self.sent.iter().any(|sent| sent == bytes);
        let connection = &mut self.connections[at];
        connection.is_undisturbed = false;
        connection.is_forged |= !is_copy;
        self.receive(at, to, bytes);
    }

    fn receive(&mut self, at: usize, to: usize, bytes: &[u8]) -> usize {
        let now = self.now;
        let Some(side) = &mut self.connections[at].sides[to] else {
            return 0;
        };
        let wanted = side.machine.bytes_needed();
        let taken = side.machine.handle_bytes(now, bytes);
        assert!(taken <= bytes.len(), "more than there was");
        assert!(wanted > 0 || taken == 0, "bytes behind the handshake");
        self.settle(at, to);
        taken
    }

    /// Does the work that a side has asked for; `fault` chooses the result, 0 is success.
    pub fn work(&mut self, at: usize, of: usize, fault: u8) {
        let Some(side) = &mut self.connections[at].sides[of] else {
            return;
        };
        let Some(work) = side.work.take() else {
            return;
        };
        if fault != 0 {
            self.connections[at].is_undisturbed = false;
        }
        if let Some(done) = self.result(at, of, &work, fault) {
            let now = self.now;
            if let Some(side) = &mut self.connections[at].sides[of] {
                side.machine.handle_done(now, done);
            }
        }
        self.drain(self.host_of(at, of));
        self.settle(at, of);
    }

    /// The other end closes the TCP connection.
    pub fn close(&mut self, at: usize, of: usize) {
        self.connections[at].is_undisturbed = false;
        if let Some(side) = &mut self.connections[at].sides[of] {
            side.machine.handle_closed();
        }
        self.settle(at, of);
    }

    /// An established connection ends at one side.
    pub fn end(&mut self, at: usize, of: usize) {
        let Some(side) = &mut self.connections[at].sides[of] else {
            return;
        };
        if side.outcome.is_some() {
            self.release(at, of);
        }
    }

    /// Time passes, no further than to the next timer that is due.
    pub fn pass(&mut self, most: Duration) {
        let next = self.next_timeout().unwrap_or(self.now);
        self.now = next.max(self.now).min(self.now + most);
        for connection in &mut self.connections {
            connection.is_undisturbed = false;
        }
        for host in [CLIENT, SERVER, OTHER_CLIENT] {
            self.hosts[host].registry.handle_timeout(self.now);
            self.drain(host);
        }
        for at in 0..self.connections.len() {
            for of in [CLIENT, SERVER] {
                let now = self.now;
                if let Some(side) = &mut self.connections[at].sides[of] {
                    side.machine.handle_timeout(now);
                    let next = side.machine.poll_timeout();
                    assert!(next.is_none_or(|next| next > now), "a timer stands still");
                    self.settle(at, of);
                }
            }
        }
    }

    /// Something happens to the groups of a host.
    pub fn disturb(&mut self, host: usize, what: u8) {
        for connection in &mut self.connections {
            connection.is_undisturbed = false;
        }
        let registry = &mut self.hosts[host].registry;
        let infos = registry.group_infos();
        let group = infos.get(usize::from(what >> 3) % infos.len().max(1));
        let device = DeviceIndex(0);
        match (what & 7, group) {
            (0, Some(group)) => registry.terminate(group.id, GroupEndCause::Shutdown),
            (1, Some(group)) => registry.handle_out_of_sync(group.id),
            (2, Some(group)) => {
                if let Some(peer) = group.key.peer() {
                    registry.handle_peer_gone(device, peer);
                }
            }
            (3, Some(group)) => {
                if let Some(peer) = group.key.peer() {
                    registry.handle_peer_shutdown(device, peer);
                }
            }
            (4, _) => registry.handle_device_gone(device),
            (5, _) => drop(registry.expire_longest_idle(|_| true)),
            (6, _) => registry.shutdown(),
            _ => {}
        }
        self.drain(host);
    }

    /// Lets all time pass that anything waits for, and ends what was established. Each machine has
    /// one outcome then and no registry has a group.
    pub fn finish(mut self) {
        // Four waits of a machine, and the waits for creators of groups.
        for _ in 0..8 * (CONNECTIONS_MAX + 1) {
            if self.sides().all(|side| side.outcome.is_some()) {
                break;
            }
            self.pass(Duration::from_secs(3600));
        }
        assert!(
            self.sides().all(|side| side.outcome.is_some()),
            "a machine does not end: {self:#?}"
        );
        self.check_agreement();
        for at in 0..self.connections.len() {
            self.release(at, CLIENT);
            self.release(at, SERVER);
        }
        for _ in 0..4 * CONNECTIONS_MAX {
            self.pass(Duration::from_secs(3600));
        }
        for host in &self.hosts {
            assert_eq!(host.registry.group_infos(), [], "groups are left");
            assert_eq!(host.registry.waiting(), 0, "set-ups are left");
            assert_eq!(host.registry.poll_timeout(), None, "timers are left");
        }
    }

    /// No early data is delivered twice, and none that the client takes for accepted is lost.
    fn check_early_data(&self) {
        let mut delivered = HashSet::new();
        for connection in &self.connections {
            let [client, server] = connection.sides.each_ref().map(Option::as_ref);
            let is_smc = |side: &&Side| matches!(side.outcome, Some(Outcome::Smc(_)));
            let data = server.filter(is_smc).and_then(|server| server.early_data);
            if let Some(byte) = data.filter(|_| !connection.is_forged) {
                assert!(delivered.insert(byte), "delivered twice: {self:#?}");
            }
            if let (Some(client), true) = (client, connection.is_undisturbed) {
                let accepted = match &client.outcome {
                    Some(Outcome::Smc(established)) => {
                        established.vendor_features.contains(Features::EARLY_DATA)
                    }
                    _ => continue,
                };
                assert_eq!(accepted, data.is_some());
            }
        }
    }

    /// Sides between which nothing was disturbed came to the same result.
    pub fn check_agreement(&self) {
        self.check_early_data();
        for connection in &self.connections {
            let [Some(client), Some(server)] = &connection.sides else {
                continue;
            };
            let outcomes = (&client.outcome, &server.outcome);
            let (Some(client), Some(server)) = outcomes else {
                continue;
            };
            if !connection.is_undisturbed {
                continue;
            }
            match (client, server) {
                (Outcome::Smc(client), Outcome::Smc(server)) => {
                    assert_eq!(client.vendor_features, server.vendor_features);
                    assert_eq!(client.version, server.version);
                    assert_eq!(client.release, server.release);
                    assert_eq!(client.first_contact, server.first_contact);
                }
                (Outcome::Tcp, Outcome::Tcp) => {}
                other => panic!("the sides do not agree: {other:?}"),
            }
        }
    }

    fn sides(&self) -> impl Iterator<Item = &Side> {
        self.connections
            .iter()
            .flat_map(|it| it.sides.iter().flatten())
    }

    fn next_timeout(&self) -> Option<Instant> {
        let machines = self.sides().map(|side| side.machine.poll_timeout());
        let registries = self.hosts.iter().map(|host| host.registry.poll_timeout());
        machines.chain(registries).flatten().min()
    }

    /// Applies the outputs of a machine.
    fn settle(&mut self, at: usize, of: usize) {
        while let Some(side) = &mut self.connections[at].sides[of] {
            let Some(output) = side.machine.poll_output() else {
                break;
            };
            assert!(
                side.outcome.is_none(),
                "nothing follows an outcome: {output:?}"
            );
            match output {
                HandshakeOutput::Send(bytes) => {
                    Message::parse_extended(&bytes).expect("what is sent is well formed");
                    side.outgoing.extend(&bytes);
                    if self.sent.len() < 32 {
                        self.sent.push(bytes);
                    }
                }
                HandshakeOutput::EarlyData(bytes) => {
                    side.early_data = bytes.first().copied();
                }
                HandshakeOutput::RefuseEarly(early) => {
                    assert_eq!(of, SERVER, "of a client");
                    let (stated, _) = early.rmb.authentication.expect("it is authenticated");
                    self.taken.insert(stated.number);
                }
                HandshakeOutput::Work(work) => {
                    let before = side.work.replace(work);
                    assert!(before.is_none() && side.waiter.is_none(), "one at a time");
                }
                HandshakeOutput::Discard => {
                    // Work that is under way is cancelled.
                    side.work = None;
                    self.release(at, of);
                }
                HandshakeOutput::OutOfSync(group) => {
                    let host = self.host_of(at, of);
                    self.hosts[host].registry.handle_out_of_sync(group);
                    self.drain(host);
                }
                HandshakeOutput::Established(established) => {
                    side.end(Outcome::Smc(established));
                }
                HandshakeOutput::Fallback(_) => {
                    side.end(Outcome::Tcp);
                    self.release(at, of);
                }
                HandshakeOutput::Abort(error) => {
                    let is_bug = matches!(error, smc_core::Error::Bug(_));
                    assert!(!is_bug, "{error}");
                    side.end(Outcome::Failed);
                    self.release(at, of);
                }
            }
        }
    }

    /// Ends the membership of a side in a group, or its wait for one.
    fn release(&mut self, at: usize, of: usize) {
        let host = self.host_of(at, of);
        let Some(side) = &mut self.connections[at].sides[of] else {
            return;
        };
        let (waiter, member) = (side.waiter.take(), side.member.take());
        let registry = &mut self.hosts[host].registry;
        if let Some(waiter) = waiter {
            registry.cancel(waiter);
        }
        if let Some(group) = member {
            registry.leave(self.now, group);
        }
        self.drain(host);
    }

    /// The host of a side.
    fn host_of(&self, at: usize, of: usize) -> usize {
        match of {
            SERVER => SERVER,
            _ => self.connections[at].client,
        }
    }

    /// Applies the outputs of a registry.
    fn drain(&mut self, host: usize) {
        let of = if host == SERVER { SERVER } else { CLIENT };
        while let Some(output) = self.hosts[host].registry.poll_output() {
            match output {
                RegistryOutput::Ready { waiter, result } => {
                    let (now, at) = (self.now, self.find(host, |it| it.waiter == Some(waiter)));
                    let at = *at.first().expect("a set-up that waits");
                    if let Some(side) = &mut self.connections[at].sides[of] {
                        side.waiter = None;
                        side.member = result.ok().map(|member| member.group());
                        side.machine.handle_done(now, WorkDone::Entered(result));
                    }
                    self.settle(at, of);
                }
                RegistryOutput::Terminate { group, .. } => {
                    for at in self.find(host, |it| it.member == Some(group)) {
                        let Some(side) = &mut self.connections[at].sides[of] else {
                            continue;
                        };
                        side.machine.handle_terminated();
                        if side.outcome.is_some() {
                            self.release(at, of);
                        }
                        self.settle(at, of);
                    }
                }
                RegistryOutput::Removed { group, .. } => {
                    self.hosts[host].links.remove(&group);
                    self.hosts[host].registry.links_closed(group);
                }
                RegistryOutput::NotifyPeer { .. } => {}
            }
        }
    }

    /// The connections whose side at a host is such a one.
    fn find(&self, host: usize, is_such: impl Fn(&Side) -> bool) -> Vec<usize> {
        let of = if host == SERVER { SERVER } else { CLIENT };
        let is_at = |at: &usize| {
            let side = self.connections[*at].sides[of].as_ref();
            self.host_of(*at, of) == host && side.is_some_and(&is_such)
        };
        (0..self.connections.len()).filter(is_at).collect()
    }

    /// The result of work; none of a set-up that has to wait for another one.
    fn result(&mut self, at: usize, of: usize, work: &Work, fault: u8) -> Option<WorkDone> {
        self.last_number += 1;
        let number = self.last_number;
        let error = match fault & 3 {
            0 => DeviceError::PeerGone,
            1 => DeviceError::NoMemory,
            2 => DeviceError::Exhausted,
            _ => DeviceError::Invalid("as the input states"),
        };
        let device = if fault == 0 { Ok(()) } else { Err(error) };
        let host = self.host_of(at, of);
        let host = &mut self.hosts[host];
        Some(match *work {
            Work::Reach { .. } => WorkDone::Reached(device),
            Work::Enter { key, intent } => {
                let side = self.connections[at].sides[of].as_mut()?;
                let is_early = |early: &&mut EarlyWork| (early.key, Intent::Join) == (key, intent);
                let early = side.early.as_mut().filter(is_early);
                if let Some(member) = early.and_then(|early| early.member.take()) {
                    return Some(WorkDone::Entered(Ok(member)));
                }
                // The early work was for another group.
                if let Some(group) = side.member.take() {
                    host.registry.leave(self.now, group);
                }
                let entered = host.registry.enter(self.now, key, intent);
                match entered {
                    EnterResult::Now(result) => {
                        side.member = result.ok().map(|member| member.group());
                        WorkDone::Entered(result)
                    }
                    EnterResult::Wait(waiter) => {
                        side.waiter = Some(waiter);
                        return None;
                    }
                }
            }
            Work::Register { size, .. } => WorkDone::Registered(device.map(|()| {
                if let Some(side) = self.connections[at].sides[of].as_mut() {
                    let machine = &side.machine;
                    let is_of_use = machine.is_early_taken() || !machine.has_sent_early_data();
                    let early = side.early.as_mut();
                    match early.and_then(|early| early.buffer.take()) {
                        Some((of, token)) if is_of_use && of == size => return token,
                        Some((_, token)) => drop(self.buffers.remove(&token)),
                        None => {}
                    }
                }
                let token = DmbToken(0xd3b0_0000 + u64::from(number));
                self.buffers.insert(token, size.byte_len());
                token
            })),
            Work::Claim { token, .. } => {
                let is_there = self.buffers.contains_key(&token);
                let refused = DeviceError::Invalid("no such buffer, or of another connection");
                WorkDone::Claimed(device.and_then(|()| {
                    match is_there && self.taken.insert(token.0) {
                        true => Ok(()),
                        false => Err(refused),
                    }
                }))
            }
            Work::Attach { token, .. } => {
                let len = self.buffers.get(&token).copied();
                let unknown = DeviceError::Invalid("unknown token");
                let attached = device.and_then(|()| len.ok_or(unknown));
                WorkDone::Attached(if fault == 9 { Ok(1) } else { attached })
            }
            Work::EstablishGroup { group, terms } => {
                WorkDone::GroupEstablished(host.registry.establish(group, terms))
            }
            Work::OpenLink {
                group,
                device: on,
                ref address,
            } => WorkDone::LinkOpened(device.map(|()| {
                let link = hosts::local_link(address, number);
                let made = GroupLink {
                    device: on,
                    local: link,
                    peer: None,
                    authenticates: false,
                };
                host.links.insert(group, made);
                link
            })),
            Work::PrepareRmb {
                group,
                size,
                link: choice,
                ..
            } => {
                let side = self.connections[at].sides[of].as_mut()?;
                let early = side.early.as_mut().and_then(|early| early.rmb.take());
                if let Some(rmb) = early.filter(|_| side.machine.is_early_taken()) {
                    return Some(WorkDone::RmbPrepared(Ok(rmb)));
                }
                let link = host.links.get(&group).copied();
                let no_link = link.is_none() || fault == 9;
                WorkDone::RmbPrepared(match (device, link) {
                    (Err(_), _) | (_, None) if no_link => Err(RmbError::NoLink),
                    (Ok(()), Some(link)) => {
                        let rmb = local_rmb(link, number, size);
                        Ok(match choice {
                            LinkChoice::First => LocalRmb {
                                authentication: None,
                                ..rmb
                            },
                            _ => rmb,
                        })
                    }
                    (Err(error), _) => Err(error.into()),
                    (Ok(()), None) => Err(RmbError::NoLink),
                })
            }
            // A group takes each number once.
            Work::BindPeer { rmb, .. }
                if rmb.authentication.is_some_and(|(stated, _)| {
                    of == SERVER && !self.taken.insert(stated.number)
                }) =>
            {
                WorkDone::PeerBound(Err(RtokenError::NotAuthentic))
            }
            Work::BindPeer { .. } => WorkDone::PeerBound(match fault {
                0 => Ok(()),
                _ => Err(RtokenError::TableFull),
            }),
            Work::ConnectLink {
                group, peer, terms, ..
            } => {
                if let Some(link) = host.links.get_mut(&group) {
                    link.peer = Some(peer);
                    link.authenticates = terms.authenticates;
                }
                WorkDone::LinkConnected(device)
            }
            Work::ConfirmRkey => WorkDone::RkeyConfirmed(match fault {
                0 => Ok(()),
                _ => Err(RkeyError::Refused),
            }),
            Work::ConfirmLink { .. } => WorkDone::LinkConfirmed(match fault & 3 {
                _ if fault == 0 => Ok(()),
                1 => Err(FirstLinkError::TimedOut),
                2 => Err(FirstLinkError::Eyecatchers),
                _ => Err(FirstLinkError::LinkDown),
            }),
        })
    }
}

/// Each connection has data of its own.
fn early_data(number: u32, len: usize) -> EarlyData {
    let byte = number.to_le_bytes()[0];
    EarlyData {
        nonce: Nonce::from_bytes(u128::from(number).to_be_bytes()),
        bytes: vec![byte; len].into(),
    }
}

/// A buffer, with codes for the messages that name it.
fn local_rmb(link: GroupLink, number: u32, size: SizeCode) -> LocalRmb {
    let codes = [0, 1, 2].map(|byte| AuthenticationCode::from_bytes([byte; 16]));
    LocalRmb {
        device: link.device,
        link: link.local,
        rkey: Rkey(0x1000 + number),
        addr: RmbAddr(0xffff_0000_0000 + u64::from(number)),
        token: AlertToken::new(number).expect("not zero"),
        size,
        index: 1,
        authentication: link
            .authenticates
            .then(|| Authentications::new(number.into(), codes)),
        peer: link.peer,
    }
}

impl Side {
    fn new(machine: Handshake) -> Self {
        Self {
            machine,
            early: None,
            work: None,
            waiter: None,
            member: None,
            outcome: None,
            early_data: None,
            outgoing: VecDeque::new(),
        }
    }

    fn end(&mut self, outcome: Outcome) {
        self.outcome = Some(outcome);
        self.work = None;
        let machine = &self.machine;
        let waits = (
            machine.bytes_needed(),
            machine.poll_timeout(),
            machine.state(),
        );
        assert_eq!(waits, (0, None, None));
    }
}
