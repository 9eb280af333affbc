//! The server's side of the handshake.

mod direct;
mod rdma;

use std::sync::Arc;
use std::time::Instant;

use smc_wire::clc::{ClcType, Message, Proposal};
use smc_wire::types::{DeclineCode, Version};

use super::engine::{
    Common, Engine, Failure, HandshakeState, Next, after, delegate_machine, step_timed_out,
    unexpected_done,
};
use super::select::{DeviceCandidate, Selection};
use super::{HandshakeConfig, TcpPath, WorkDone};
use crate::error::{Error, FallbackCause, FallbackReason, PeerMisbehaved, Phase, SetupStep};

/// The server's side of the handshake (docs/spec/handshake.md#server).
///
/// To be made for an accepted connection whose client is known to speak SMC.
#[derive(Debug)]
pub struct Server(Engine<ServerState>);

impl Server {
    /// Waits for the PROPOSAL.
    ///
    /// A PROPOSAL that came on another way than TCP is given to
    /// [`handle_bytes`](super::Machine::handle_bytes) as well, which must take all of it.
    #[must_use]
    pub fn new(now: Instant, config: Arc<HandshakeConfig>, path: TcpPath) -> Self {
        let deadline = after(now, config.timeouts.message);
        Self(Engine::new(Common::new(config, Version::V1), |_| {
            let state = ExpectProposal { path, deadline };
            Ok(Some(ServerState::Proposal(Box::new(state))))
        }))
    }
}

delegate_machine!(Server);

#[derive(Debug)]
enum ServerState {
    Proposal(Box<ExpectProposal>),
    Direct(Box<direct::DirectServerState>),
    Rdma(Box<rdma::RdmaServerState>),
}

impl HandshakeState for ServerState {
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

    fn done(self, now: Instant, done: WorkDone, common: &mut Common) -> Next<Self> {
        match self {
            Self::Proposal(_) => unexpected_done(),
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
    path: TcpPath,
    deadline: Instant,
}

impl ExpectProposal {
    fn handle(self, now: Instant, proposal: Proposal, common: &mut Common) -> Next<ServerState> {
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
        DeviceScan {
            selection: Box::new(selection),
            deadline,
        }
        .next(common)
    }
}

/// The scan of the devices, which has to end before the client's time-out.
#[derive(Debug)]
struct DeviceScan {
    /// In a box, as it goes from state to state and has all of the PROPOSAL.
    selection: Box<Selection>,
    deadline: Instant,
}

impl DeviceScan {
    fn next(mut self, common: &mut Common) -> Next<ServerState> {
        let candidate = self.selection.next(&common.config);
        Ok(Some(match candidate.map_err(Failure::decline)? {
            DeviceCandidate::Direct(candidate) => direct::try_candidate(self, candidate, common),
            DeviceCandidate::Rdma(candidate) => rdma::try_candidate(self, candidate, common),
        }))
    }

    /// A device that was reachable could not be used after all.
    fn candidate_failed(
        mut self,
        reason: impl Into<FallbackReason>,
        common: &mut Common,
    ) -> Next<ServerState> {
        self.selection.record_reason(reason);
        common.discard();
        self.next(common)
    }

    /// There is no time for more.
    fn timed_out(&self, code: DeclineCode, step: SetupStep) -> Failure {
        Failure::decline(self.selection.final_reason(step_timed_out(code, step)))
    }
}
