//! Client against server in memory, under a virtual clock, with devices that answer as configured.

mod client;
mod crossing;
mod early_confirm;
mod early_data;
mod fuzz;
mod hosts;
mod messages;
mod pair;
mod rdma;
mod server;
mod socket_reuse;

use std::cell::RefCell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use smc_wire::clc::{AcceptConfirm, Body, Decline, Message, Proposal};
use smc_wire::size::SizeCode;
use smc_wire::types::{Chid, DeclineCode, DmbToken, Eid, Gid, HostName};

use super::*;
use crate::device::DeviceError;
use crate::error::{Error, FallbackCause, FallbackReason, SetupStep};
use crate::proto::group::{self, DeviceIndex, EnterResult, Member, NoGroup, Registry, Waiter};
use crate::proto::links::{FirstLinkError, LlcTerms, RkeyError, RtokenError};
use hosts::*;
use messages::*;

/// How a handshake ended.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    Smc(Box<Established>),
    Tcp(Fallback),
    Failed(Error),
}

/// The state that the devices of both sides share: buffers by token.
#[derive(Debug, Default)]
struct TestFabric {
    buffers: HashMap<DmbToken, usize>,
    /// What a server takes once: buffers, or numbers of codes of SMC-R.
    taken: HashSet<u64>,
    last_token: u64,
}

/// The link groups of one endpoint, and the answers for its set-ups.
#[derive(Debug, Default)]
struct Groups {
    registry: Registry,
    answers: HashMap<Waiter, Result<Member, NoGroup>>,
    /// SMC-R: the one link of each group.
    links: HashMap<group::GroupId, rdma::GroupLink>,
    terminated: Vec<group::GroupId>,
}

impl Groups {
    fn drain(&mut self) {
        while let Some(output) = self.registry.poll_output() {
            match output {
                group::RegistryOutput::Ready {
                    waiter,
                    result: member,
                } => {
                    self.answers.insert(waiter, member);
                }
                group::RegistryOutput::Terminate { group, .. } => self.terminated.push(group),
                group::RegistryOutput::Removed { .. }
                | group::RegistryOutput::NotifyPeer { .. } => {}
            }
        }
    }

    fn connections(&self) -> usize {
        self.registry
            .group_infos()
            .iter()
            .map(|group| group.connections)
            .sum()
    }
}

/// Faults of one side.
#[derive(Debug, Default)]
struct Faults {
    /// Devices that reach no peer.
    unreachable: Vec<DeviceIndex>,
    /// Errors of the next registrations, by device.
    register: HashMap<DeviceIndex, VecDeque<DeviceError>>,
    claim: Option<DeviceError>,
    attach: Option<Result<usize, DeviceError>>,
    /// Outcomes of the next pieces of SMC-R work, before they succeed.
    rdma: VecDeque<WorkDone>,
    /// Work of this kind is never done.
    stall: Option<&'static str>,
}

/// One side of a connection with everything it works with.
#[derive(Debug)]
struct HandshakeSide {
    machine: Handshake,
    groups: Rc<RefCell<Groups>>,
    fabric: Rc<RefCell<TestFabric>>,
    faults: Faults,
    /// A buffer that exists: what a registration of this size brings.
    registered: Option<(SizeCode, DmbToken)>,
    sent: Vec<u8>,
    /// An RMB that an early CONFIRM has named: what preparing one brings, once it is taken.
    prepared: Option<LocalRmb>,
    /// The early data of the client.
    early_data: Vec<u8>,
    works: Vec<Work>,
    discards: usize,
    member: Option<group::GroupId>,
    waiter: Option<Waiter>,
    outcome: Option<Outcome>,
}

impl HandshakeSide {
    fn new(machine: Handshake) -> Self {
        Self::with_groups(machine, Rc::default(), Rc::default())
    }

    fn with_groups(
        machine: Handshake,
        groups: Rc<RefCell<Groups>>,
        fabric: Rc<RefCell<TestFabric>>,
    ) -> Self {
        Self {
            machine,
            groups,
            fabric,
            faults: Faults::default(),
            registered: None,
            sent: Vec::new(),
            prepared: None,
            early_data: Vec::new(),
            works: Vec::new(),
            discards: 0,
            member: None,
            waiter: None,
            outcome: None,
        }
    }

    /// Applies all outputs of the machine. Returns whether there was one.
    fn settle(&mut self, now: Instant) -> bool {
        let mut any = false;
        loop {
            let answer = self
                .waiter
                .and_then(|w| self.groups.borrow_mut().answers.remove(&w));
            if let Some(member) = answer {
                self.waiter = None;
                self.member = member.ok().map(|member| member.group());
                self.machine.handle_done(now, WorkDone::Entered(member));
            }
            let Some(output) = self.machine.poll_output() else {
                return any;
            };
            any = true;
            assert_eq!(
                self.outcome, None,
                "nothing follows the outcome, but {output:?}"
            );
            match output {
                HandshakeOutput::Send(bytes) => self.sent.extend(bytes),
                HandshakeOutput::EarlyData(bytes) => self.early_data = bytes,
                HandshakeOutput::RefuseEarly(early) => self.refuse_early(&early),
                HandshakeOutput::Work(work) => {
                    self.works.push(work.clone());
                    if let Some(done) = self.work(now, work) {
                        self.machine.handle_done(now, done);
                    }
                }
                HandshakeOutput::Discard => {
                    self.discards += 1;
                    self.release(now);
                }
                HandshakeOutput::OutOfSync(group) => {
                    let mut groups = self.groups.borrow_mut();
                    groups.registry.handle_out_of_sync(group);
                    groups.drain();
                }
                HandshakeOutput::Established(established) => {
                    self.end(now, Outcome::Smc(established))
                }
                HandshakeOutput::Fallback(fallback) => self.end(now, Outcome::Tcp(fallback)),
                HandshakeOutput::Abort(error) => self.end(now, Outcome::Failed(error)),
            }
        }
    }

    fn work(&mut self, now: Instant, work: Work) -> Option<WorkDone> {
        if self.faults.stall == Some(name(&work)) {
            return None;
        }
        Some(match work {
            Work::Reach { device, peer } => {
                let why = "as configured";
                let is_out = self.faults.unreachable.contains(&device);
                WorkDone::Reached(if is_out {
                    Err(DeviceError::Unreachable { peer, why })
                } else {
                    Ok(())
                })
            }
            Work::Enter { key, intent } => {
                let mut groups = self.groups.borrow_mut();
                let admission = groups.registry.enter(now, key, intent);
                groups.drain();
                match admission {
                    EnterResult::Now(member) => {
                        self.member = member.ok().map(|member| member.group());
                        WorkDone::Entered(member)
                    }
                    EnterResult::Wait(waiter) => {
                        self.waiter = Some(waiter);
                        return None;
                    }
                }
            }
            Work::Register { device, size, .. } => {
                match self
                    .faults
                    .register
                    .get_mut(&device)
                    .and_then(VecDeque::pop_front)
                {
                    Some(error) => WorkDone::Registered(Err(error)),
                    None => {
                        self.give_back_named();
                        let known = self.registered.take_if(|(of, _)| *of == size);
                        let new = || self.fabric.borrow_mut().buffer(size.byte_len());
                        WorkDone::Registered(Ok(known.map_or_else(new, |(_, token)| token)))
                    }
                }
            }
            Work::Claim { token, .. } => {
                let mut fabric = self.fabric.borrow_mut();
                let is_there = fabric.buffers.contains_key(&token);
                let unknown = DeviceError::Invalid("no such buffer, or of another connection");
                WorkDone::Claimed(match self.faults.claim.take() {
                    Some(error) => Err(error),
                    None if is_there && fabric.taken.insert(token.0) => Ok(()),
                    None => Err(unknown),
                })
            }
            Work::Attach { token, .. } => WorkDone::Attached(match self.faults.attach.take() {
                Some(result) => result,
                None => {
                    let len = self.fabric.borrow().buffers.get(&token).copied();
                    len.ok_or(DeviceError::Invalid("unknown token"))
                }
            }),
            Work::EstablishGroup { group, terms } => {
                let mut groups = self.groups.borrow_mut();
                let result = groups.registry.establish(group, terms);
                groups.drain();
                WorkDone::GroupEstablished(result)
            }
            work => self.rdma_work(&work),
        })
    }

    /// A buffer that was named with early data is of no use if that was not taken.
    fn give_back_named(&mut self) {
        let is_of_use = self.machine.is_early_taken() || !self.machine.has_sent_early_data();
        if let Some((_, token)) = self.registered.take_if(|_| !is_of_use) {
            self.fabric.borrow_mut().buffers.remove(&token);
        }
    }

    fn end(&mut self, now: Instant, outcome: Outcome) {
        if !matches!(outcome, Outcome::Smc(_)) {
            self.give_back_named();
            self.release(now);
        }
        self.outcome = Some(outcome);
        assert_eq!(self.machine.bytes_needed(), 0);
        assert_eq!(self.machine.poll_timeout(), None);
        assert_eq!(self.machine.state(), None);
    }

    /// Ends the membership in the link group.
    fn release(&mut self, now: Instant) {
        let mut groups = self.groups.borrow_mut();
        if let Some(waiter) = self.waiter.take() {
            groups.registry.cancel(waiter);
        }
        if let Some(group) = self.member.take() {
            groups.registry.leave(now, group);
        }
        groups.drain();
    }

    /// Hands bytes to the machine, `chunk` at a time and never more than it needs. Returns how
    /// many it took.
    fn receive(&mut self, now: Instant, bytes: &[u8], chunk: usize) -> usize {
        let mut at = 0;
        while self.machine.bytes_needed() > 0 && at < bytes.len() {
            let n = self.machine.bytes_needed().min(chunk).min(bytes.len() - at);
            assert_eq!(self.machine.handle_bytes(now, &bytes[at..at + n]), n);
            at += n;
            self.settle(now);
        }
        at
    }

    fn established(&self) -> &Established {
        match &self.outcome {
            Some(Outcome::Smc(established)) => established,
            other => panic!("not established but {other:?}"),
        }
    }

    fn direct(&self) -> DirectParams {
        match self.established().transport {
            Transport::Direct(direct) => direct,
            other => panic!("not SMC-D but {other:?}"),
        }
    }

    /// The codes alone.
    fn fallback(&self) -> FallbackReason {
        match &self.outcome {
            Some(Outcome::Tcp(fallback)) => match fallback.reason.peer {
                Some(diagnosis) => peer(diagnosis),
                None => local(fallback.reason.local),
            },
            other => panic!("not fallen back but {other:?}"),
        }
    }

    /// The cause beside the codes.
    fn cause(&self) -> &FallbackCause {
        match &self.outcome {
            Some(Outcome::Tcp(fallback)) => &fallback.reason.cause,
            other => panic!("not fallen back but {other:?}"),
        }
    }

    fn error(&self) -> &Error {
        match &self.outcome {
            Some(Outcome::Failed(error)) => error,
            other => panic!("not failed but {other:?}"),
        }
    }

    /// The one DECLINE that was sent last.
    fn declined(&self) -> Decline {
        match Message::parse(&self.sent) {
            Ok(Message::Decline(decline)) => decline,
            other => panic!("no DECLINE but {other:?}"),
        }
    }

    fn take_sent(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.sent)
    }
}

/// The kind of work, for faults and for comparing sequences.
fn name(work: &Work) -> &'static str {
    match work {
        Work::Reach { .. } => "reach",
        Work::Enter { .. } => "enter",
        Work::Register { .. } => "register",
        Work::Claim { .. } => "claim",
        Work::Attach { .. } => "attach",
        Work::OpenLink { .. } => "open link",
        Work::PrepareRmb { .. } => "prepare",
        Work::ConfirmRkey => "confirm rkey",
        Work::BindPeer { .. } => "bind",
        Work::ConnectLink { .. } => "connect",
        Work::ConfirmLink { .. } => "confirm link",
        Work::EstablishGroup { .. } => "establish",
    }
}

impl TestFabric {
    fn buffer(&mut self, len: usize) -> DmbToken {
        self.last_token += 1;
        let token = DmbToken(0xd3b0_0000 + self.last_token);
        self.buffers.insert(token, len);
        token
    }
}

/// One side of a handshake, whose peer is the test.
struct HandshakeFixture {
    side: HandshakeSide,
    now: Instant,
}

impl HandshakeFixture {
    fn client(config: HandshakeConfig, path: &TcpPath) -> Self {
        let now = Instant::now();
        Self::of(now, Handshake::client(now, Arc::new(config), path))
    }

    fn server(config: HandshakeConfig, path: TcpPath) -> Self {
        let now = Instant::now();
        Self::of(now, Handshake::server(now, Arc::new(config), path))
    }

    fn of(now: Instant, machine: Handshake) -> Self {
        let mut side = HandshakeSide::new(machine);
        side.settle(now);
        Self { side, now }
    }

    fn receive(&mut self, bytes: &[u8]) -> usize {
        let taken = self.side.receive(self.now, bytes, usize::MAX);
        self.side.settle(self.now);
        taken
    }

    /// Receives ACCEPT or CONFIRM with a buffer that exists.
    fn receive_end(&mut self, message: &AcceptConfirm) {
        if let Body::D(end) = message.body {
            let len = end.size.byte_len();
            self.side.fabric.borrow_mut().buffers.insert(end.dmb, len);
        }
        self.receive(&accept_bytes(message));
    }

    fn done(&mut self, done: WorkDone) {
        self.side.machine.handle_done(self.now, done);
        self.side.settle(self.now);
    }

    /// The peer closes TCP.
    fn close(&mut self) {
        self.side.machine.handle_closed();
        self.side.settle(self.now);
    }

    fn wait(&mut self, wait: Duration) {
        self.now += wait;
        self.side.machine.handle_timeout(self.now);
        self.side.settle(self.now);
    }

    /// Receives a message and is expected to decline it, after the work that went well.
    fn declines(mut self, bytes: &[u8]) -> DeclineCode {
        self.receive(bytes);
        let decline = self.side.declined();
        let len = if decline.version.is_v2() { 44 } else { 28 };
        assert_eq!(self.side.sent.len(), len);
        if let Some(rdma) = &self.side.machine.config.rdma {
            assert_eq!(decline.peer_id, rdma.peer_id);
        }
        assert_eq!(self.side.fallback(), local(decline.diagnosis));
        assert!(!self.side.is_crossing_possible());
        assert_eq!(self.side.groups.borrow().registry.group_infos(), []);
        decline.diagnosis
    }
}

/// Client and server with a wire between them.
struct Pair {
    client: HandshakeSide,
    server: HandshakeSide,
    now: Instant,
    chunk: usize,
    /// Bytes in flight that no machine has requested yet.
    to_server: Vec<u8>,
    to_client: Vec<u8>,
    /// Everything the server sent, and everything the client sent.
    from_server: Vec<u8>,
    from_client: Vec<u8>,
}

impl Pair {
    fn new(client: HandshakeConfig, server: HandshakeConfig) -> Self {
        Self::with_groups(client, server, Rc::default(), Rc::default())
    }

    fn over(client: HandshakeConfig, server: HandshakeConfig, path: TcpPath) -> Self {
        let groups = [Rc::default(), Rc::default()];
        Self::with((client, path.clone()), (server, path), groups)
    }

    fn with_groups(
        client: HandshakeConfig,
        server: HandshakeConfig,
        client_groups: Rc<RefCell<Groups>>,
        server_groups: Rc<RefCell<Groups>>,
    ) -> Self {
        let groups = [client_groups, server_groups];
        let (here, there) = (TcpPath::default(), TcpPath::default());
        Self::with((client, here), (server, there), groups)
    }

    /// Each side with its own view of the connection, and the groups of client and server.
    fn with(
        client: (HandshakeConfig, TcpPath),
        server: (HandshakeConfig, TcpPath),
        groups: [Rc<RefCell<Groups>>; 2],
    ) -> Self {
        Self::at(Instant::now(), client, server, groups)
    }

    fn at(
        now: Instant,
        client: (HandshakeConfig, TcpPath),
        server: (HandshakeConfig, TcpPath),
        [client_groups, server_groups]: [Rc<RefCell<Groups>>; 2],
    ) -> Self {
        let fabric = Rc::<RefCell<TestFabric>>::default();
        let client = Handshake::client(now, Arc::new(client.0), &client.1);
        let server = Handshake::server(now, Arc::new(server.0), server.1);
        Self::of(
            now,
            HandshakeSide::with_groups(client, client_groups, Rc::clone(&fabric)),
            HandshakeSide::with_groups(server, server_groups, fabric),
        )
    }

    fn of(now: Instant, client: HandshakeSide, server: HandshakeSide) -> Self {
        Self {
            client,
            server,
            now,
            chunk: usize::MAX,
            to_server: Vec::new(),
            to_client: Vec::new(),
            from_server: Vec::new(),
            from_client: Vec::new(),
        }
    }

    /// Runs until nothing moves any more without time passing.
    fn settle(&mut self) {
        loop {
            let mut moved = self.client.settle(self.now) | self.server.settle(self.now);
            self.from_client.extend(&self.client.sent);
            self.to_server.append(&mut self.client.sent);
            self.from_server.extend(&self.server.sent);
            self.to_client.append(&mut self.server.sent);
            let taken = self.server.receive(self.now, &self.to_server, self.chunk);
            self.to_server.drain(..taken);
            moved |= taken > 0;
            let taken = self.client.receive(self.now, &self.to_client, self.chunk);
            self.to_client.drain(..taken);
            moved |= taken > 0;
            if !moved {
                return;
            }
        }
    }

    /// As it is after [`Pair::run`].
    fn completed(mut self) -> Self {
        self.run();
        self
    }

    /// Runs until both sides have come to an end, letting time pass where nothing else helps.
    fn run(&mut self) {
        self.settle();
        while self.client.outcome.is_none() || self.server.outcome.is_none() {
            let timeouts = [&self.client, &self.server].map(|side| {
                let registry = side.groups.borrow().registry.poll_timeout();
                side.machine
                    .poll_timeout()
                    .into_iter()
                    .chain(registry)
                    .min()
            });
            let next = timeouts
                .into_iter()
                .flatten()
                .min()
                .expect("a machine waits indefinitely");
            self.now = self.now.max(next);
            for side in [&mut self.client, &mut self.server] {
                side.machine.handle_timeout(self.now);
                let mut groups = side.groups.borrow_mut();
                groups.registry.handle_timeout(self.now);
                groups.drain();
            }
            self.settle();
        }
    }

    fn client_declines(&self, code: DeclineCode) {
        assert_eq!(self.client.fallback(), local(code));
        assert_eq!(self.server.fallback(), peer(code));
    }

    fn server_declines(&self, code: DeclineCode) {
        assert_eq!(self.server.fallback(), local(code));
        assert_eq!(self.client.fallback(), peer(code));
    }

    /// The messages that the server sent.
    fn accepts(&self) -> Vec<AcceptConfirm> {
        parse_all(&self.from_server)
    }

    fn confirms(&self) -> Vec<AcceptConfirm> {
        parse_all(&self.from_client)
    }
}

fn local(code: DeclineCode) -> FallbackReason {
    FallbackReason::local(code)
}

fn peer(code: DeclineCode) -> FallbackReason {
    FallbackReason::peer_declined(code)
}

const SECOND: Duration = Duration::from_secs(1);
