//! The state machine of a handshake, for both roles.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use smc_wire::clc::{self, Decline, Extensions, Message};
use smc_wire::size::SizeCode;
use smc_wire::types::{Features, Version};
use smc_wire::{DecodeError, EmitError};

use super::attempt::{DeviceAttempt, Ends};
use super::device_scan::DeviceScan;
use super::early::{ReceivedEarly, RefusedEarly, SentEarly};
use super::steps::{
    Action, Awaits, LATE_DECLINE, OnError, OnTerminated, OnTimeout, Step, StepTimeout, TcpEnd, When,
};
use super::{
    ClientProposal, DeclineCause, Established, Fallback, HandshakeConfig, PeerAccess, RmbError,
    TcpPath, Work, WorkDone,
};
use crate::device::DeviceError;
use crate::error::{CloseReason, Error, FallbackReason, PeerMisbehaved, SetupStep};
use crate::proto::group::{GroupId, Intent, Member};
use crate::proto::links::{FirstLinkError, HandshakeHash};
use crate::proto::{Role, after};

/// One side of a handshake; see the [module](super) for the contract.
#[derive(Debug)]
pub struct Handshake {
    pub(super) config: Arc<HandshakeConfig>,
    pub(super) role_state: RoleState,
    /// The present step; none at the end.
    step: Option<&'static Step>,
    /// What follows.
    pub(super) rest: &'static [Action],
    deadline: Instant,
    /// The time of the last input.
    now: Instant,
    /// From the choice of a device on.
    pub(super) attempt: Option<DeviceAttempt>,
    /// Version of a DECLINE sent now.
    pub(super) version: Version,
    /// The peer may decline at the same time as this side.
    pub(super) crossing_possible: bool,
    /// The peer has the CONFIRM, before it is sent.
    is_confirmed: bool,
    /// The server has taken the early CONFIRM that was sent with the PROPOSAL.
    pub(super) is_early_taken: bool,
    has_failed: bool,
    /// The reason of a DECLINE that is put off, as a DECLINE of the peer may be under way.
    late: Option<Box<FallbackReason>>,
    /// The peer has closed TCP while the handshake could do without it.
    closed: Option<Error>,
    buffer: MessageBuffer,
    /// What was sent and received, if SMC-R is possible; but for a client's PROPOSAL without early
    /// CONFIRM.
    messages: Vec<u8>,
    /// See [`Handshake::take_received`].
    received: Option<clc::ClcType>,
    outputs: VecDeque<HandshakeOutput>,
}

/// State that only one of the sides has.
#[derive(Debug)]
pub(super) enum RoleState {
    Client {
        /// What was offered, if anything was.
        proposal: Option<Arc<ClientProposal>>,
        /// Sent with the PROPOSAL.
        early: Option<SentEarly>,
    },
    Server {
        path: TcpPath,
        /// From PROPOSAL to ACCEPT.
        scan: Option<Box<DeviceScan>>,
        /// The early CONFIRM for SMC-R, until it is used or refused.
        early: Option<RefusedEarly>,
    },
}

/// A requested action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HandshakeOutput {
    /// Send this message before anything that follows: on the side channel if it has delivered the
    /// PROPOSAL, otherwise on the TCP connection.
    Send(Vec<u8>),
    /// A server: these are the first bytes of the stream, received with the PROPOSAL. Put them into
    /// the local receive buffer, as if the peer had written them, before anything that follows.
    EarlyData(Vec<u8>),
    /// A server: the early CONFIRM in the PROPOSAL is not taken, and must not be when the PROPOSAL
    /// comes again: [`LinkGroup::refuse_early`](crate::proto::links::LinkGroup::refuse_early) of
    /// each link group, before anything that follows.
    RefuseEarly(RefusedEarly),
    /// Do this and report with [`Handshake::handle_done`].
    Work(Work),
    /// Release what work has acquired so far; another device is tried.
    Discard,
    /// The peer states that it does not have the link group:
    /// [`Registry::handle_out_of_sync`](crate::proto::group::Registry::handle_out_of_sync).
    OutOfSync(GroupId),
    /// The connection is established. The handshake sends and receives nothing more.
    Established(Box<Established>),
    /// The stream stays TCP.
    Fallback(Fallback),
    /// The connection failed; close it.
    Abort(Error),
}

/// An end without a connection.
#[derive(Debug)]
pub(super) enum Failure {
    /// This side declines and falls back.
    Decline(Box<FallbackReason>),
    /// The peer declined; this side falls back.
    PeerDeclined(Decline),
    /// Fatal: the TCP connection is closed.
    Abort(Error),
}

impl Failure {
    pub(super) fn decline(reason: impl Into<FallbackReason>) -> Self {
        Self::Decline(Box::new(reason.into()))
    }
}

impl<E: Into<Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Abort(error.into())
    }
}

impl Handshake {
    pub(super) fn new(
        now: Instant,
        config: Arc<HandshakeConfig>,
        role_state: RoleState,
        version: Version,
    ) -> Self {
        Self {
            config,
            role_state,
            step: None,
            rest: &[],
            deadline: now,
            now,
            attempt: None,
            version,
            crossing_possible: false,
            is_confirmed: false,
            is_early_taken: false,
            has_failed: false,
            late: None,
            closed: None,
            buffer: MessageBuffer::default(),
            messages: Vec::new(),
            received: None,
            outputs: VecDeque::new(),
        }
    }

    /// The role of this side.
    #[must_use]
    pub fn role(&self) -> Role {
        match self.role_state {
            RoleState::Client { .. } => Role::Client,
            RoleState::Server { .. } => Role::Server,
        }
    }

    /// Bytes received, at most [`bytes_needed`](Self::bytes_needed) at a time. Returns how
    /// many were taken; the rest is not part of the handshake.
    pub fn handle_bytes(&mut self, now: Instant, bytes: &[u8]) -> usize {
        let Some((step, expected)) = self.expected() else {
            return 0;
        };
        self.now = now;
        let vendor_features = self.config.vendor_features;
        let peek = match vendor_features.contains(Features::EARLY_DATA) {
            true => clc::Frame::peek_extended,
            false => clc::Frame::peek,
        };
        let (taken, result) = self.buffer.take(bytes, expected, peek);
        let result = match result {
            Ok(None) => return taken,
            Ok(Some(message)) => {
                self.record(&message);
                Message::parse_extended(&message)
                    .map_err(Failure::from)
                    .and_then(|(message, extensions)| {
                        self.handle_message(step, message, &extensions)
                    })
            }
            Err(error) => Err(Failure::Abort(error)),
        };
        self.conclude(result);
        taken
    }

    /// The peer closed the connection.
    pub fn handle_closed(&mut self) {
        self.handle_read_error(Error::Closed(CloseReason::DuringHandshake));
    }

    /// Reading failed: TCP has ended, with this error.
    pub fn handle_read_error(&mut self, error: Error) {
        if self.step.is_some_and(|step| step.tcp == TcpEnd::Allowed) {
            self.closed = Some(error);
        } else {
            self.handle_io_error(error);
        }
    }

    /// Writing failed; the machine aborts with this error.
    pub fn handle_io_error(&mut self, error: Error) {
        // An outcome that was not polled yet has not happened: what goes before it failed.
        if self.step.is_some() || (!self.has_failed && !self.outputs.is_empty()) {
            self.conclude(Err(Failure::Abort(error)));
        }
    }

    /// The peer has the CONFIRM already: it was given in advance, for the ACCEPT that was received
    /// last. Of meaning to a client of SMC-D alone.
    pub fn handle_confirmed(&mut self) {
        self.is_confirmed = true;
    }

    /// Whether a client has sent early data with its PROPOSAL. The server may have it, as long as
    /// it has not declined.
    #[must_use]
    pub fn has_sent_early_data(&self) -> bool {
        let early = match &self.role_state {
            RoleState::Client { early, .. } => early.as_ref(),
            RoleState::Server { .. } => None,
        };
        early.is_some_and(|early| early.data > 0)
    }

    /// Whether the server has taken the early CONFIRM that was sent with the PROPOSAL.
    #[must_use]
    pub fn is_early_taken(&self) -> bool {
        self.is_early_taken
    }

    /// A client that waits for work: the server has the CONFIRM, and may use the connection.
    fn may_be_in_use(&self) -> bool {
        self.is_confirmed || self.is_early_taken
    }

    /// The requested work is done. A result of other work is a bug of the caller and aborts.
    pub fn handle_done(&mut self, now: Instant, done: WorkDone) {
        self.now = now;
        if let Some(step) = self.step {
            let result = self.handle_work(step, done);
            self.conclude(result);
        }
    }

    /// The link group that [`WorkDone::Entered`] brought was terminated
    /// ([`group::RegistryOutput::Terminate`](crate::proto::group::RegistryOutput::Terminate)).
    pub fn handle_terminated(&mut self) {
        let on_terminated = self.step.map(|step| step.on_terminated);
        // Otherwise the connection ends together with the group, behind what the server wrote.
        if on_terminated == Some(OnTerminated::Decline) && !self.may_be_in_use() {
            let result = self.decline(DeclineCause::GroupTerminated);
            self.conclude(result);
        }
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.now = now;
        let Some(step) = self.step.filter(|_| self.deadline <= now) else {
            return;
        };
        let result = match step.on_timeout {
            OnTimeout::Abort => Err(Error::TimedOut(step.phase()).into()),
            OnTimeout::Advance => self.advance(),
            OnTimeout::Decline => Err(self.timed_out(step.setup_step())),
        };
        self.conclude(result);
    }

    /// How many bytes to read at most; zero while the machine waits for something else or is at
    /// its end.
    #[must_use]
    pub fn bytes_needed(&self) -> usize {
        match self.expected() {
            Some(_) => self.buffer.bytes_needed(),
            None => 0,
        }
    }

    /// The next thing to do, until `None`.
    pub fn poll_output(&mut self) -> Option<HandshakeOutput> {
        self.outputs.pop_front()
    }

    /// When [`handle_timeout`](Self::handle_timeout) has to be called at the latest.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.step.map(|_| self.deadline)
    }

    /// The name of the present step, for logs; `None` when the machine is at its end.
    #[must_use]
    pub fn state(&self) -> Option<&'static str> {
        self.step.map(|step| step.name)
    }

    /// The type of the message that was received last, once, for logs.
    pub fn take_received(&mut self) -> Option<clc::ClcType> {
        self.received.take()
    }

    // ---- Inputs of a step ----------------------------------------------------------------------

    /// The message that may come now, if any. None follows an ACCEPT that has taken an early
    /// CONFIRM: the server uses the connection, and may have ended TCP.
    fn expected(&self) -> Option<(&'static Step, clc::ClcType)> {
        let is_over = self.closed.is_some() || self.is_early_taken;
        let step = self.step.filter(|_| !is_over)?;
        Some((step, step.message_type()?))
    }

    fn handle_message(
        &mut self,
        step: &'static Step,
        message: Message,
        extensions: &Extensions<'_>,
    ) -> Result<(), Failure> {
        self.received = Some(message.kind());
        match (step.awaits, message) {
            (_, Message::Decline(decline)) => Err(Failure::PeerDeclined(decline)),
            (Awaits::Proposal, Message::Proposal(proposal)) => {
                self.handle_proposal(proposal, ReceivedEarly::of(extensions))
            }
            (Awaits::Accept, Message::Accept(accept)) => self.handle_accept(&accept, extensions),
            (Awaits::Confirm, Message::Confirm(confirm)) => {
                self.handle_confirm(&confirm, extensions)
            }
            _ => Err(PeerMisbehaved::UnexpectedMessage.into()),
        }
    }

    fn handle_work(&mut self, step: &'static Step, done: WorkDone) -> Result<(), Failure> {
        let may_be_in_use = self.may_be_in_use();
        let Some(attempt) = &mut self.attempt else {
            return Err(UNEXPECTED.into());
        };
        let DeviceAttempt {
            role,
            version,
            intent,
            member,
            size,
            ends,
            ..
        } = attempt;
        let (role, version) = (*role, *version);
        let cause = match (step.awaits, done, ends) {
            (Awaits::Reach, WorkDone::Reached(reached), _) => {
                return self.handle_reached(reached);
            }
            (Awaits::Enter, WorkDone::Entered(Ok(membership)), _)
                if is_intended(*intent, membership) =>
            {
                *member = Some(membership);
                return self.advance();
            }
            (Awaits::Register, WorkDone::Registered(Ok(token)), Ends::Direct(ends)) => {
                ends.local = Some(token);
                return self.advance();
            }
            (Awaits::Claim, WorkDone::Claimed(claimed), _) => {
                attempt.handle_claimed(claimed);
                return self.advance();
            }
            (Awaits::PrepareRmb, WorkDone::RmbPrepared(Ok(rmb)), Ends::Rdma(ends)) => {
                ends.local = Some(rmb);
                return self.advance();
            }
            (Awaits::Register, WorkDone::Registered(Err(error)), _)
            | (Awaits::PrepareRmb, WorkDone::RmbPrepared(Err(RmbError::Device(error))), _)
                if shrink(size, &error) =>
            {
                return self.begin(step);
            }
            (Awaits::Attach, WorkDone::Attached(attached), Ends::Direct(ends)) => {
                let end = ends.peer_buffer.map_or(usize::MAX, |buffer| buffer.end());
                let is_lost = step.on_error == OnError::Advance;
                match attached {
                    Ok(len) if len >= end => {
                        ends.access = PeerAccess::Attached;
                        return self.advance();
                    }
                    Ok(_) if is_lost => return Err(PeerMisbehaved::BadBuffer.into()),
                    // The server has used the connection and ended.
                    Err(error) if is_lost || (may_be_in_use && error.is_peer_gone()) => {
                        return self.advance();
                    }
                    // A mapping that is too short for the element counts as a failed one.
                    failed => {
                        let short = DeviceError::Invalid("mapping is shorter than the buffer");
                        let error = failed.err().unwrap_or(short);
                        DeclineCause::Device(version, step.setup_step(), error)
                    }
                }
            }
            // Work that was requested before the end.
            (Awaits::LateDecline, WorkDone::LinkConfirmed(_), _) => return Ok(()),
            (Awaits::ConfirmLink, WorkDone::LinkConfirmed(Err(error)), _) => {
                return self.handle_unconfirmed(error);
            }
            // If the group was terminated meanwhile the peer may have used the connection before
            // that, and the connection ends together with the group.
            (Awaits::EstablishGroup, WorkDone::GroupEstablished(_), _)
            | (Awaits::OpenLink, WorkDone::LinkOpened(Ok(_)), _)
            | (Awaits::ConfirmRkey, WorkDone::RkeyConfirmed(Ok(())), _)
            | (Awaits::BindPeer, WorkDone::PeerBound(Ok(())), _)
            | (Awaits::ConnectLink, WorkDone::LinkConnected(Ok(())), _)
            | (Awaits::ConfirmLink, WorkDone::LinkConfirmed(Ok(())), _) => return self.advance(),
            (Awaits::BindPeer, WorkDone::PeerBound(Err(error)), _) => match step.on_error {
                OnError::Advance => return self.advance(),
                OnError::Decline => DeclineCause::Rtoken(error),
            },
            (Awaits::Enter, WorkDone::Entered(Err(why)), _) => DeclineCause::NoGroup(role, why),
            (Awaits::Register, WorkDone::Registered(Err(error)), _)
            | (Awaits::OpenLink, WorkDone::LinkOpened(Err(error)), _)
            | (Awaits::ConnectLink, WorkDone::LinkConnected(Err(error)), _) => {
                DeclineCause::Device(version, step.setup_step(), error)
            }
            (Awaits::PrepareRmb, WorkDone::RmbPrepared(Err(error)), _) => {
                DeclineCause::Rmb(role, error)
            }
            (Awaits::ConfirmRkey, WorkDone::RkeyConfirmed(Err(error)), _) => {
                DeclineCause::Rkey(error)
            }
            _ => return Err(UNEXPECTED.into()),
        };
        self.decline(cause)
    }

    /// Whether the peer's device is reached. A server tries its next one if not.
    fn handle_reached(&mut self, reached: Result<(), DeviceError>) -> Result<(), Failure> {
        let RoleState::Server {
            scan: Some(scan), ..
        } = &mut self.role_state
        else {
            return match reached {
                Ok(()) => self.advance(),
                Err(error) => Err(Failure::decline(DeclineCause::Device(
                    self.version,
                    SetupStep::Reach,
                    error,
                ))),
            };
        };
        let is_usable = match reached {
            Ok(()) => scan.claim(),
            Err(error) => {
                scan.handle_unreachable(error);
                false
            }
        };
        match is_usable {
            true => self.advance(),
            false => self.try_next_device(),
        }
    }

    /// The first link is not confirmed. The peer may have declined for the same reason.
    fn handle_unconfirmed(&mut self, error: FirstLinkError) -> Result<(), Failure> {
        let reason = FallbackReason::from(DeclineCause::FirstLink(error));
        // Its message has come, and is refused.
        let is_refused = matches!(
            error,
            FirstLinkError::Eyecatchers | FirstLinkError::NotAuthentic
        );
        if is_refused || self.closed.is_some() {
            return Err(Failure::decline(reason));
        }
        self.late = Some(Box::new(reason));
        self.begin(&LATE_DECLINE)
    }

    fn timed_out(&mut self, step: SetupStep) -> Failure {
        if let Some(reason) = self.late.take() {
            return Failure::Decline(reason);
        }
        let version = self.attempt.as_ref().map_or(self.version, |it| it.version);
        let cause = DeclineCause::TimedOut(version, step);
        Failure::decline(match &self.role_state {
            // There is no time for another device.
            RoleState::Server {
                scan: Some(scan), ..
            } => scan.final_reason(cause),
            _ => cause.into(),
        })
    }

    // ---- From step to step ---------------------------------------------------------------------

    /// Begins the next step that the connection has. Behind the last one it is established.
    pub(super) fn advance(&mut self) -> Result<(), Failure> {
        while let [action, rest @ ..] = self.rest {
            self.rest = rest;
            let attempt = self.attempt.as_ref();
            let has_step = |step: &Step| attempt.is_none_or(|attempt| attempt.has_step(step.when));
            match action {
                Action::Begin(step) if has_step(step) => return self.begin(step),
                Action::Begin(_) => {}
                Action::SendConfirm if self.is_early_taken => {}
                Action::SendConfirm => {
                    self.send_accept_or_confirm(clc::AcceptKind::Confirm)?;
                }
            }
        }
        let attempt = self.attempt.as_ref();
        let established = attempt.and_then(DeviceAttempt::established).ok_or(BUG)?;
        self.step = None;
        self.outputs
            .push_back(HandshakeOutput::Established(Box::new(established)));
        Ok(())
    }

    /// Of PROPOSAL and of all messages so far.
    fn hash(&self) -> HandshakeHash {
        let proposal = match &self.role_state {
            RoleState::Client {
                proposal: Some(proposal),
                early: None,
            } => proposal.bytes(),
            RoleState::Client { .. } | RoleState::Server { .. } => &[],
        };
        HandshakeHash::of(&[proposal, &self.messages])
    }

    pub(super) fn record(&mut self, message: &[u8]) {
        if self.config.rdma.is_some() {
            self.messages.extend_from_slice(message);
        }
    }

    pub(super) fn begin(&mut self, step: &'static Step) -> Result<(), Failure> {
        let (timeout, before) = (step.timeout(), self.step.map(Step::timeout));
        if timeout != StepTimeout::Work || before != Some(StepTimeout::Work) {
            let is_client = self.role() == Role::Client;
            let time = timeout.time(&self.config.timeouts, is_client);
            self.deadline = after(self.now, time);
        }
        self.step = Some(step);
        if step.when == When::EarlyReuse {
            let attempt = self.attempt.as_mut();
            attempt.map_or(Ok(()), DeviceAttempt::take_early_rdma)?;
            // Its number is taken with it.
            self.take_unused_early();
        }
        match step.awaits {
            Awaits::Proposal | Awaits::Accept | Awaits::LateDecline => return Ok(()),
            Awaits::Confirm => {
                let scan = match &mut self.role_state {
                    RoleState::Server { scan, .. } => scan.take(),
                    RoleState::Client { .. } => None,
                };
                if let Some(attempt) = &mut self.attempt {
                    attempt.take_early_direct();
                    let data = scan.and_then(|scan| scan.into_early_data());
                    let taken = attempt.take_early_data(data, &self.config);
                    let output = taken.map(HandshakeOutput::EarlyData);
                    self.outputs.extend(output);
                }
                self.refuse_early();
                self.send_accept_or_confirm(clc::AcceptKind::Accept)?;
                let attempt = self.attempt.as_ref();
                return match attempt.is_some_and(DeviceAttempt::has_early_confirm) {
                    true => self.advance(),
                    false => Ok(()),
                };
            }
            // From here on the peer may decline whenever this side does.
            Awaits::ConfirmLink => self.crossing_possible = true,
            _ => {}
        }
        let attempt = self.attempt.as_ref();
        let messages = || self.hash();
        let work = attempt.and_then(|attempt| attempt.work(step.awaits, messages));
        self.outputs
            .push_back(HandshakeOutput::Work(work.ok_or(BUG)?));
        Ok(())
    }

    /// A server that goes on without the early CONFIRM refuses it.
    fn refuse_early(&mut self) {
        let early = self.take_unused_early();
        self.outputs.extend(early.map(HandshakeOutput::RefuseEarly));
    }

    fn take_unused_early(&mut self) -> Option<RefusedEarly> {
        match &mut self.role_state {
            RoleState::Server { early, .. } => early.take(),
            RoleState::Client { .. } => None,
        }
    }

    /// Sends ACCEPT or CONFIRM.
    fn send_accept_or_confirm(&mut self, kind: clc::AcceptKind) -> Result<(), Failure> {
        let attempt = self.attempt.as_ref();
        let bytes = attempt.and_then(|attempt| {
            let (message, extensions) =
                (attempt.message(kind, &self.config)?, attempt.extensions());
            emitted(message.extended_len(&extensions), |buffer| {
                message.emit_extended(&extensions, buffer)
            })
        });
        let bytes = bytes.ok_or(Error::Bug("handshake message cannot be written"))?;
        self.record(&bytes);
        self.send(bytes);
        Ok(())
    }

    pub(super) fn send(&mut self, bytes: Vec<u8>) {
        self.outputs.push_back(HandshakeOutput::Send(bytes));
    }

    /// The attempt has failed. A server that has not sent ACCEPT tries the next device.
    fn decline(&mut self, cause: DeclineCause) -> Result<(), Failure> {
        let RoleState::Server {
            scan: Some(scan), ..
        } = &mut self.role_state
        else {
            return Err(Failure::decline(cause));
        };
        scan.record_reason(cause);
        self.attempt = None;
        self.outputs.push_back(HandshakeOutput::Discard);
        self.try_next_device()
    }

    /// Ends the handshake if it has failed.
    pub(super) fn conclude(&mut self, result: Result<(), Failure>) {
        let Err(failure) = result else {
            return;
        };
        self.step = None;
        self.refuse_early();
        let failure = match (failure, self.closed.take()) {
            // There is no TCP to fall back to.
            (Failure::Decline(_), Some(error)) => Failure::Abort(error),
            // The server may use the connection already.
            (Failure::Decline(reason), None) if self.is_early_taken => {
                Failure::Abort(Error::Declined(*reason))
            }
            (failure, _) => failure,
        };
        let fallback = match failure {
            Failure::Decline(reason) => {
                let mut decline = Decline::new(self.version, reason.local, self.config.os);
                if let Some(rdma) = &self.config.rdma {
                    decline.peer_id = rdma.peer_id;
                }
                if let Some(bytes) = emitted(decline.encoded_len(), |buffer| decline.emit(buffer)) {
                    self.send(bytes);
                }
                Fallback {
                    reason: *reason,
                    crossing_possible: self.crossing_possible,
                }
            }
            Failure::PeerDeclined(decline) => {
                let group = self.attempt.as_ref().and_then(DeviceAttempt::group);
                if let (true, Some(group)) = (decline.out_of_sync, group) {
                    self.outputs.push_back(HandshakeOutput::OutOfSync(group));
                }
                Fallback {
                    reason: FallbackReason::peer_declined(decline.diagnosis),
                    crossing_possible: false,
                }
            }
            Failure::Abort(error) => {
                self.has_failed = true;
                self.outputs.clear();
                self.outputs.push_back(HandshakeOutput::Abort(error));
                return;
            }
        };
        self.outputs.push_back(HandshakeOutput::Fallback(fallback));
    }
}

/// Whether the membership in a link group is the requested one.
fn is_intended(intent: Intent, member: Member) -> bool {
    match intent {
        Intent::JoinOrCreate => true,
        Intent::Join => !member.is_first_contact(),
        Intent::Create => member.is_first_contact(),
    }
}

/// Collects the bytes of one message and never takes a byte behind it.
#[derive(Debug, Default)]
struct MessageBuffer {
    bytes_kept: Vec<u8>,
    frame: Option<clc::Frame>,
    /// Bytes of the message that were taken, kept or not.
    taken: usize,
}

impl MessageBuffer {
    /// Missing bytes of the message, or of its header while its length is not known.
    fn bytes_needed(&self) -> usize {
        let end = self.frame.map_or(clc::HEADER_LEN, |frame| frame.length());
        end.saturating_sub(self.taken)
    }

    /// Takes bytes up to the end of the message. Returns their number, and the message when it is
    /// complete.
    fn take(
        &mut self,
        mut bytes: &[u8],
        expected: clc::ClcType,
        peek: Peek,
    ) -> (usize, Result<Option<Vec<u8>>, Error>) {
        let before = bytes.len();
        let result = loop {
            let (now, rest) = bytes
                .split_at_checked(self.bytes_needed())
                .unwrap_or((bytes, &[]));
            bytes = rest;
            self.store(now);
            match self.frame {
                Some(_) if self.bytes_needed() == 0 => {
                    break Ok(Some(std::mem::take(self).bytes_kept));
                }
                Some(_) => break Ok(None),
                None => match self.parse_header(expected, peek) {
                    Ok(true) => {}
                    Ok(false) => break Ok(None),
                    Err(error) => break Err(error),
                },
            }
        };
        (before.saturating_sub(bytes.len()), result)
    }

    /// Stores the known part of the message: unknown extensions at the end of a message are
    /// dropped.
    fn store(&mut self, bytes: &[u8]) {
        let keep = self.frame.map_or(clc::HEADER_LEN, |frame| frame.keep());
        let space = keep.saturating_sub(self.bytes_kept.len());
        self.bytes_kept
            .extend_from_slice(bytes.get(..space).unwrap_or(bytes));
        self.taken = self.taken.saturating_add(bytes.len());
    }

    /// Parses the length once the header is complete. Invalid bytes are rejected at the first one.
    fn parse_header(&mut self, expected: clc::ClcType, peek: Peek) -> Result<bool, Error> {
        self.frame = peek(&self.bytes_kept)?;
        match self.frame.map(|frame| frame.header().kind) {
            Some(kind) if kind == expected || kind == clc::ClcType::Decline => Ok(true),
            Some(_) => Err(PeerMisbehaved::UnexpectedMessage.into()),
            None => Ok(false),
        }
    }
}

/// Reads the header of a message, whose length is limited.
type Peek = fn(&[u8]) -> Result<Option<clc::Frame>, DecodeError>;

/// Changes to the next smaller buffer, if memory is short and a smaller size exists.
fn shrink(size: &mut SizeCode, error: &DeviceError) -> bool {
    match size.smaller().filter(|_| error.is_lack_of_memory()) {
        Some(smaller) => {
            *size = smaller;
            true
        }
        None => false,
    }
}

/// The bytes of a message. `None` if its fields contradict each other.
pub(super) fn emitted(
    len: usize,
    emit: impl FnOnce(&mut [u8]) -> Result<usize, EmitError>,
) -> Option<Vec<u8>> {
    let mut bytes = vec![0; len];
    let written = emit(&mut bytes).ok()?;
    bytes.truncate(written);
    Some(bytes)
}

const UNEXPECTED: Error = Error::Bug("work was reported that the handshake did not ask for");

const BUG: Error = Error::Bug("a step of the handshake lacks the outcome of another one");
