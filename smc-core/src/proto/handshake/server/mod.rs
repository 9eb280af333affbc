//! The server's side of the handshake.

mod direct;
mod rdma;

use std::sync::Arc;
use std::time::Instant;

use smc_wire::clc::{ClcType, Message, Proposal};
use smc_wire::types::{DeclineCode, Version};

use super::engine::{
    Common, Engine, Expect, Failure, Next, after, delegate_machine, too_late, unasked,
};
use super::select::{Candidate, Selection};
use super::{Config, Done, Path};
use crate::error::{Error, FallbackCause, FallbackReason, PeerMisbehaved, Phase, SetupStep};

/// The server's side of the handshake (docs/spec/handshake.md#server).
///
/// To be made for an accepted connection whose client is known to speak SMC.
#[derive(Debug)]
pub struct Server(Engine<State>);

impl Server {
    /// Waits for the PROPOSAL.
    ///
    /// A PROPOSAL that came on another way than TCP is given to
    /// [`handle_bytes`](super::Machine::handle_bytes) as well, which must take all of it.
    #[must_use]
    pub fn new(now: Instant, config: Arc<Config>, path: Path) -> Self {
        let deadline = after(now, config.timeouts.message);
        Self(Engine::new(Common::new(config, Version::V1), |_| {
            let state = ExpectProposal { path, deadline };
            Ok(Some(State::Proposal(Box::new(state))))
        }))
    }
}

delegate_machine!(Server);

#[derive(Debug)]
enum State {
    Proposal(Box<ExpectProposal>),
    Direct(Box<direct::Expect>),
    Rdma(Box<rdma::Expect>),
}

impl Expect for State {
    fn message_type(&self) -> Option<ClcType> {
        match self {
            Self::Proposal(_) => Some(ClcType::Proposal),
            Self::Direct(state) => state.message_type(),
            Self::Rdma(state) => state.message_type(),
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Proposal(_) => "PROPOSAL",
            Self::Direct(state) => state.name(),
            Self::Rdma(state) => state.name(),
        }
    }

    fn deadline(&self) -> Instant {
        match self {
            Self::Proposal(state) => state.deadline,
            Self::Direct(state) => state.deadline(),
            Self::Rdma(state) => state.deadline(),
        }
    }

    fn outlives_tcp(&self) -> bool {
        match self {
            Self::Rdma(state) => state.outlives_tcp(),
            _ => false,
        }
    }

    fn message(self, now: Instant, message: Message, common: &mut Common) -> Next<Self> {
        match (self, message) {
            (Self::Proposal(state), Message::Proposal(proposal)) => {
                state.handle(now, proposal, common)
            }
            (Self::Direct(state), Message::Confirm(confirm)) => {
                state.confirmed(now, &confirm, common)
            }
            (Self::Rdma(state), Message::Confirm(confirm)) => {
                state.confirmed(now, &confirm, common)
            }
            _ => Err(PeerMisbehaved::UnexpectedMessage.into()),
        }
    }

    fn done(self, now: Instant, done: Done, common: &mut Common) -> Next<Self> {
        match self {
            Self::Proposal(_) => unasked(),
            Self::Direct(state) => state.done(now, done, common),
            Self::Rdma(state) => state.done(now, done, common),
        }
    }

    fn timeout(self, common: &mut Common) -> Next<Self> {
        match self {
            Self::Proposal(_) => Err(Error::TimedOut(Phase::Proposal).into()),
            Self::Direct(state) => state.timeout(common),
            Self::Rdma(state) => Err(state.timeout()),
        }
    }

    fn terminated(self, common: &mut Common) -> Next<Self> {
        match self {
            Self::Proposal(_) => Ok(Some(self)),
            Self::Direct(state) => state.terminated(common),
            Self::Rdma(state) => state.terminated(common),
        }
    }
}

/// The client speaks first.
#[derive(Debug)]
struct ExpectProposal {
    path: Path,
    deadline: Instant,
}

impl ExpectProposal {
    fn handle(self, now: Instant, proposal: Proposal, common: &mut Common) -> Next<State> {
        common.version = if proposal.version.is_v2() {
            Version::V2
        } else {
            Version::V1
        };
        let config = &common.config;
        let selection = Selection::new(proposal, config, self.path);
        let selection = selection.map_err(|code| match config.has_devices() {
            true => Failure::decline(code),
            false => Failure::decline(FallbackReason::because(code, FallbackCause::NoDevice)),
        })?;
        let deadline = after(now, common.config.timeouts.work);
        Walk {
            selection: Box::new(selection),
            deadline,
        }
        .next(common)
    }
}

/// The walk through the devices, which has to come to an end before the client loses patience.
#[derive(Debug)]
struct Walk {
    /// In a box, as it goes from state to state and has all of the PROPOSAL.
    selection: Box<Selection>,
    deadline: Instant,
}

impl Walk {
    fn next(mut self, common: &mut Common) -> Next<State> {
        let candidate = self.selection.next(&common.config);
        Ok(Some(match candidate.map_err(Failure::decline)? {
            Candidate::Direct(candidate) => direct::tried(self, candidate, common),
            Candidate::Rdma(candidate) => rdma::tried(self, candidate, common),
        }))
    }

    /// A device that was reachable could not be used after all.
    fn failed(mut self, reason: impl Into<FallbackReason>, common: &mut Common) -> Next<State> {
        self.selection.remember(reason);
        common.discard();
        self.next(common)
    }

    /// There is no time for more.
    fn late(&self, code: DeclineCode, step: SetupStep) -> Failure {
        Failure::decline(self.selection.give_up(too_late(code, step)))
    }
}
