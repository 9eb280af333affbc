//! The client's side of the handshake.

mod direct;
mod rdma;

use std::sync::Arc;
use std::time::Instant;

use smc_wire::clc::{AcceptConfirm, Body, ClcType, Message};
use smc_wire::types::{DeclineCode, Eid, FeatureMask, HostName, OsType, Release, Version};

use super::engine::{
    Common, Engine, Failure, HandshakeState, Next, after, delegate_machine, unexpected_done,
};
use super::offer::{ClientOffer, features};
use super::{Established, HandshakeConfig, TcpPath, WorkDone};
use crate::error::{Error, PeerMisbehaved, Phase};
use crate::proto::group::Intent;

/// The client's side of the handshake (docs/spec/handshake.md#client).
///
/// To be made when the TCP connection is there and it is known that the server speaks SMC; if it
/// does not, the stream is TCP without a handshake, for the reason
/// [`DeclineCode::PEERNOSMC`](smc_wire::types::DeclineCode::PEERNOSMC).
#[derive(Debug)]
pub struct Client(Engine<ClientState>);

impl Client {
    /// Searches for devices and sends the PROPOSAL, or a DECLINE if there is nothing to offer.
    #[must_use]
    pub fn new(now: Instant, config: Arc<HandshakeConfig>, path: &TcpPath) -> Self {
        let offer = ClientOffer::new(&config, path);
        Self(Engine::new(common(config), |common| {
            let offer = Arc::new(offer.map_err(|code| match code {
                DeclineCode::NOSMCDEV => Failure::decline(common.config.no_offer_cause(path)),
                code => Failure::decline(code),
            })?);
            common.send(offer.bytes().to_vec());
            Ok(Some(expect_accept(now, offer, common)))
        }))
    }

    /// Goes on after the PROPOSAL has reached the server on another way than TCP.
    ///
    /// Such a client sends nothing before it has received a message: that the server answers is
    /// the proof that it speaks SMC.
    #[must_use]
    pub fn announced(now: Instant, config: Arc<HandshakeConfig>, offer: Arc<ClientOffer>) -> Self {
        Self(Engine::new(common(config), |common| {
            Ok(Some(expect_accept(now, offer, common)))
        }))
    }
}

delegate_machine!(Client);

/// Before the server has shown its version, a DECLINE has the one that we could have used.
fn common(config: Arc<HandshakeConfig>) -> Common {
    let version = if config.is_v2_capable() {
        Version::V2
    } else {
        Version::V1
    };
    Common::new(config, version)
}

fn expect_accept(now: Instant, offer: Arc<ClientOffer>, common: &Common) -> ClientState {
    let deadline = after(now, common.config.timeouts.message);
    ClientState::Accept(Box::new(ExpectAccept { offer, deadline }))
}

#[derive(Debug)]
enum ClientState {
    Accept(Box<ExpectAccept>),
    Direct(direct::DirectClientState),
    Rdma(Box<rdma::RdmaClientState>),
    Opening(ExpectOpening),
}

impl HandshakeState for ClientState {
    fn message_type(&self) -> Option<ClcType> {
        match self {
            Self::Accept(_) => Some(ClcType::Accept),
            Self::Rdma(state) => state.may_be_declined().then_some(ClcType::Decline),
            _ => None,
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Accept(_) => "ACCEPT",
            Self::Direct(state) => state.name(),
            Self::Rdma(state) => state.name(),
            Self::Opening(_) => "opening of the link group",
        }
    }

    fn deadline(&self) -> Instant {
        match self {
            Self::Accept(state) => state.deadline,
            Self::Direct(state) => state.deadline(),
            Self::Rdma(state) => state.deadline(),
            Self::Opening(state) => state.deadline,
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
            (Self::Accept(state), Message::Accept(accept)) => state.handle(now, &accept, common),
            _ => Err(PeerMisbehaved::UnexpectedMessage.into()),
        }
    }

    fn done(self, now: Instant, done: WorkDone, common: &mut Common) -> Next<Self> {
        match (self, done) {
            (Self::Direct(state), done) => state.done(done, common),
            (Self::Rdma(state), done) => state.done(now, done, common),
            // If the group was terminated meanwhile the server may have used the connection before
            // that, and the connection ends together with the group.
            (Self::Opening(state), WorkDone::Opened(_)) => {
                common.establish(state.established);
                Ok(None)
            }
            _ => unexpected_done(),
        }
    }

    fn timeout(self, _common: &mut Common) -> Next<Self> {
        Err(match self {
            Self::Accept(_) => Error::TimedOut(Phase::Accept).into(),
            Self::Direct(state) => state.timeout(),
            Self::Rdma(state) => state.timeout(),
            Self::Opening(_) => Error::TimedOut(Phase::Group).into(),
        })
    }

    fn terminated(self, _common: &mut Common) -> Next<Self> {
        match self {
            Self::Accept(_) => Ok(Some(self)),
            Self::Direct(state) => state.terminated(),
            Self::Rdma(state) => state.terminated(),
            Self::Opening(_) => Ok(Some(self)),
        }
    }
}

/// PROPOSAL is out; the server chooses.
#[derive(Debug)]
struct ExpectAccept {
    offer: Arc<ClientOffer>,
    deadline: Instant,
}

/// What ACCEPT says apart from the server's end.
#[derive(Debug)]
struct AcceptInfo {
    version: Version,
    eid: Option<Eid>,
    /// What the server states at first contact.
    stated: Option<Stated>,
    /// The first-contact flag, which version 1 has without the parts.
    is_first_contact: bool,
    deadline: Instant,
}

/// First-contact parts, with the features that we have too.
#[derive(Debug, Clone, Copy)]
struct Stated {
    release: Release,
    features: FeatureMask,
    os: OsType,
    host: HostName,
    max_conns: u8,
    max_links: u8,
    /// SMC-R: the server reaches us without a router.
    is_direct: bool,
}

impl ExpectAccept {
    fn handle(
        self,
        now: Instant,
        accept: &AcceptConfirm,
        common: &mut Common,
    ) -> Next<ClientState> {
        let is_v2 = accept.version().is_v2();
        common.version = if is_v2 { Version::V2 } else { Version::V1 };
        let stated = accept.first_contact().map(|parts| Stated {
            release: parts.release,
            features: parts.features & features(&common.config, parts.release),
            os: parts.os,
            host: parts.host,
            max_conns: parts.max_conns,
            max_links: parts.max_links,
            is_direct: parts.v2_direct,
        });
        let accepted = AcceptInfo {
            version: common.version,
            eid: accept.eid(),
            stated,
            is_first_contact: accept.is_first_contact(),
            deadline: after(now, common.config.timeouts.work),
        };
        let offered = self.offer.types(accepted.version);
        let is_offered = match accept.body {
            Body::D(_) => offered.has_d(),
            Body::R(_) => offered.has_r(),
        };
        if !is_offered {
            return Err(Failure::decline(DeclineCode::MODEUNSUPP));
        }
        // Not a release that we could confirm.
        if stated.is_some_and(|stated| stated.release > self.offer.release()) {
            return Err(Failure::decline(DeclineCode::RELEASEERR));
        }
        match &accept.body {
            Body::D(end) => direct::chosen(accepted, &self.offer, end, common),
            Body::R(end) => rdma::chosen(accepted, &self.offer, end, common),
        }
    }
}

impl AcceptInfo {
    /// Whether the link group is new is the server's decision.
    fn intent(&self) -> Intent {
        if self.is_first_contact {
            Intent::Create
        } else {
            Intent::Join
        }
    }

    fn features(&self) -> FeatureMask {
        self.stated
            .map(|stated| stated.features)
            .unwrap_or_default()
    }
}

/// CONFIRM is sent; others may join our new link group.
#[derive(Debug)]
struct ExpectOpening {
    deadline: Instant,
    established: Established,
}
