//! What both sides have in common: the inbox, the outputs, and the ends a handshake can come to.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};

use smc_wire::EmitError;
use smc_wire::clc::{AcceptConfirm, ClcType, Decline, Message};
use smc_wire::size::SizeCode;
use smc_wire::types::{DeclineCode, Version};

use super::message_buffer::MessageBuffer;
use super::{Established, Fallback, HandshakeConfig, HandshakeOutput, Machine, Work, WorkDone};
use crate::device::DeviceError;
use crate::error::{CloseReason, Error, FallbackCause, FallbackReason, SetupStep};
use crate::proto::group::{GroupId, NoGroup};

/// A machine over the states of one side.
#[derive(Debug)]
pub(super) struct Engine<S> {
    pub(super) common: Common,
    /// A failed handshake stays failed; `None` has come to its end.
    state: Result<Option<S>, Error>,
}

/// The states of one side, each of which knows what it waits for.
pub(super) trait HandshakeState: Sized + Debug + Send {
    /// The message that may come now, besides DECLINE.
    fn message_type(&self) -> Option<ClcType>;

    /// What is waited for, in a word.
    fn name(&self) -> &'static str;

    /// When waiting ends.
    fn deadline(&self) -> Instant;

    /// Whether the peer may be done with TCP already: that it closes is no failure then.
    fn outlives_tcp(&self) -> bool;

    fn message(self, now: Instant, message: Message, common: &mut Common) -> Next<Self>;

    fn done(self, now: Instant, done: WorkDone, common: &mut Common) -> Next<Self>;

    fn timeout(self, common: &mut Common) -> Next<Self>;

    fn terminated(self, common: &mut Common) -> Next<Self>;
}

/// The next state, or none at the end.
pub(super) type Next<S> = Result<Option<S>, Failure>;

/// An end without a connection.
#[derive(Debug)]
pub(super) enum Failure {
    /// We decline and fall back.
    Decline(Box<FallbackReason>),
    /// The peer declined; we fall back.
    PeerDeclined(Decline),
    /// Nothing can be saved.
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

/// What a state works with.
#[derive(Debug)]
pub(super) struct Common {
    pub(super) config: Arc<HandshakeConfig>,
    /// Version of a DECLINE sent now.
    pub(super) version: Version,
    /// The group of our seat, if we have one.
    pub(super) group: Option<GroupId>,
    /// The peer may decline at the same time as we.
    pub(super) crossing_possible: bool,
    /// The peer has our CONFIRM, before it is sent.
    pub(super) is_confirmed: bool,
    /// The peer has closed TCP while the handshake could do without it.
    closed: Option<Error>,
    buffer: MessageBuffer,
    outputs: VecDeque<HandshakeOutput>,
}

impl Common {
    pub(super) fn new(config: Arc<HandshakeConfig>, version: Version) -> Self {
        Self {
            config,
            version,
            group: None,
            crossing_possible: false,
            is_confirmed: false,
            closed: None,
            buffer: MessageBuffer::default(),
            outputs: VecDeque::new(),
        }
    }

    pub(super) fn send(&mut self, bytes: Vec<u8>) {
        self.outputs.push_back(HandshakeOutput::Send(bytes));
    }

    pub(super) fn send_message(&mut self, message: &AcceptConfirm) -> Result<(), Failure> {
        let bytes = emitted(message.encoded_len(), |buffer| message.emit(buffer)).ok_or(
            Failure::Abort(Error::Bug("handshake message cannot be written")),
        )?;
        self.send(bytes);
        Ok(())
    }

    pub(super) fn work(&mut self, work: Work) {
        self.outputs.push_back(HandshakeOutput::Work(work));
    }

    pub(super) fn discard(&mut self) {
        self.group = None;
        self.outputs.push_back(HandshakeOutput::Discard);
    }

    pub(super) fn establish(&mut self, established: Established) {
        self.outputs
            .push_back(HandshakeOutput::Established(Box::new(established)));
    }

    /// Whether the peer has closed TCP.
    pub(super) fn is_closed(&self) -> bool {
        self.closed.is_some()
    }

    fn fail<S>(&mut self, failure: Failure) -> Result<Option<S>, Error> {
        let failure = match (failure, self.closed.take()) {
            // There is no TCP to fall back to.
            (Failure::Decline(_), Some(error)) => Failure::Abort(error),
            (failure, _) => failure,
        };
        match failure {
            Failure::Decline(reason) => {
                let mut decline = Decline::new(self.version, reason.local, self.config.os);
                if let Some(rdma) = &self.config.rdma {
                    decline.peer_id = rdma.peer_id;
                }
                if let Some(bytes) = emitted(decline.encoded_len(), |buffer| decline.emit(buffer)) {
                    self.send(bytes);
                }
                self.fall_back(*reason, self.crossing_possible);
                Ok(None)
            }
            Failure::PeerDeclined(decline) => {
                if let (true, Some(group)) = (decline.out_of_sync, self.group) {
                    self.outputs.push_back(HandshakeOutput::OutOfSync(group));
                }
                self.fall_back(FallbackReason::peer_declined(decline.diagnosis), false);
                Ok(None)
            }
            Failure::Abort(error) => {
                self.outputs.clear();
                self.outputs
                    .push_back(HandshakeOutput::Abort(error.clone()));
                Err(error)
            }
        }
    }

    fn fall_back(&mut self, reason: FallbackReason, crossing_possible: bool) {
        self.outputs.push_back(HandshakeOutput::Fallback(Fallback {
            reason,
            crossing_possible,
        }));
    }
}

impl<S: HandshakeState> Engine<S> {
    pub(super) fn new(common: Common, start: impl FnOnce(&mut Common) -> Next<S>) -> Self {
        let mut engine = Self {
            common,
            state: Ok(None),
        };
        engine.state = match start(&mut engine.common) {
            Ok(next) => Ok(next),
            Err(failure) => engine.common.fail(failure),
        };
        engine
    }

    /// Lets the state handle something, which consumes it.
    fn step(&mut self, handle: impl FnOnce(S, &mut Common) -> Next<S>) {
        let lost = Err(Error::Bug("handshake state lost in a step"));
        self.state = match std::mem::replace(&mut self.state, lost) {
            Ok(Some(state)) => match handle(state, &mut self.common) {
                Ok(next) => Ok(next),
                Err(failure) => self.common.fail(failure),
            },
            ended => ended,
        };
    }

    /// The message that may come now, if any.
    fn expected(&self) -> Option<ClcType> {
        let expected = self.live().and_then(S::message_type)?;
        self.common.closed.is_none().then_some(expected)
    }

    fn live(&self) -> Option<&S> {
        self.state.as_ref().ok().and_then(Option::as_ref)
    }
}

impl<S: HandshakeState> Machine for Engine<S> {
    fn handle_bytes(&mut self, now: Instant, bytes: &[u8]) -> usize {
        let Some(expected) = self.expected() else {
            return 0;
        };
        let (taken, result) = self.common.buffer.take(bytes, expected);
        match result {
            Ok(None) => {}
            Ok(Some(message)) => self.step(|state, common| match Message::parse(&message)? {
                Message::Decline(decline) => Err(Failure::PeerDeclined(decline)),
                message => state.message(now, message, common),
            }),
            Err(error) => self.step(|_, _| Err(Failure::Abort(error))),
        }
        taken
    }

    fn handle_closed(&mut self) {
        let error = Error::Closed(CloseReason::DuringHandshake);
        if self.live().is_some_and(S::outlives_tcp) {
            self.common.closed = Some(error);
        } else {
            self.handle_io_error(error);
        }
    }

    fn handle_io_error(&mut self, error: Error) {
        // An outcome that was not polled yet has not happened: what goes before it failed.
        if self.live().is_some() || (self.state.is_ok() && !self.common.outputs.is_empty()) {
            self.state = self.common.fail(Failure::Abort(error));
        }
    }

    fn handle_confirmed(&mut self) {
        self.common.is_confirmed = true;
    }

    fn handle_done(&mut self, now: Instant, done: WorkDone) {
        self.step(|state, common| state.done(now, done, common));
    }

    fn handle_terminated(&mut self) {
        self.step(|state, common| state.terminated(common));
    }

    fn handle_timeout(&mut self, now: Instant) {
        if self.live().is_some_and(|state| state.deadline() <= now) {
            self.step(S::timeout);
        }
    }

    fn wants(&self) -> usize {
        match self.expected() {
            Some(_) => self.common.buffer.wants(),
            None => 0,
        }
    }

    fn poll_output(&mut self) -> Option<HandshakeOutput> {
        self.common.outputs.pop_front()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.live().map(S::deadline)
    }

    fn state(&self) -> Option<&'static str> {
        self.live().map(S::name)
    }
}

/// Makes a public type a [`Machine`] by way of its [`Engine`].
macro_rules! delegate_machine {
    ($type:ty) => {
        impl $crate::proto::handshake::Machine for $type {
            fn handle_bytes(&mut self, now: ::std::time::Instant, bytes: &[u8]) -> usize {
                self.0.handle_bytes(now, bytes)
            }

            fn handle_closed(&mut self) {
                self.0.handle_closed();
            }

            fn handle_io_error(&mut self, error: $crate::error::Error) {
                self.0.handle_io_error(error);
            }

            fn handle_confirmed(&mut self) {
                self.0.handle_confirmed();
            }

            fn handle_done(
                &mut self,
                now: ::std::time::Instant,
                done: $crate::proto::handshake::WorkDone,
            ) {
                self.0.handle_done(now, done);
            }

            fn handle_terminated(&mut self) {
                self.0.handle_terminated();
            }

            fn handle_timeout(&mut self, now: ::std::time::Instant) {
                self.0.handle_timeout(now);
            }

            fn wants(&self) -> usize {
                self.0.wants()
            }

            fn poll_output(&mut self) -> Option<$crate::proto::handshake::HandshakeOutput> {
                self.0.poll_output()
            }

            fn poll_timeout(&self) -> Option<::std::time::Instant> {
                self.0.poll_timeout()
            }

            fn state(&self) -> Option<&'static str> {
                self.0.state()
            }
        }
    };
}

pub(super) use delegate_machine;

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

/// Work was reported that was not asked for.
pub(super) fn unexpected_done<S>() -> Next<S> {
    Err(Failure::Abort(Error::Bug(
        "work was reported that the handshake did not ask for",
    )))
}

/// Why a buffer could not be registered.
pub(super) fn not_registered(error: DeviceError) -> FallbackReason {
    let code = match error {
        DeviceError::Exhausted => DeclineCode::MAX_DMB,
        _ => DeclineCode::MEM,
    };
    of_device(code, SetupStep::Register, error)
}

/// A step that a device could not do.
pub(super) fn of_device(code: DeclineCode, step: SetupStep, error: DeviceError) -> FallbackReason {
    FallbackReason::because(code, FallbackCause::Device { step, error })
}

/// A step that has taken too long.
pub(super) fn step_timed_out(code: DeclineCode, step: SetupStep) -> FallbackReason {
    FallbackReason::because(code, FallbackCause::TimedOut(step))
}

/// There is no seat in a link group.
pub(super) fn no_group(code: DeclineCode, why: NoGroup) -> FallbackReason {
    FallbackReason::because(code, FallbackCause::NoGroup(why))
}

/// The link group was terminated.
pub(super) fn group_terminated() -> FallbackReason {
    FallbackReason::because(DeclineCode::NOACTLINK, FallbackCause::GroupTerminated)
}

/// The next smaller buffer, if memory is the trouble and there is a smaller one.
pub(super) fn next_smaller(error: &DeviceError, size: SizeCode) -> Option<SizeCode> {
    if !error.is_lack_of_memory() {
        return None;
    }
    SizeCode::new(size.code().checked_sub(1)?)
}

/// `now + wait`, as far as the clock goes.
pub(super) fn after(now: Instant, wait: Duration) -> Instant {
    now.checked_add(wait).unwrap_or(now)
}
