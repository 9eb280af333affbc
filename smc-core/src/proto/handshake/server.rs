//! What only a server does: the choice of a device, and the check of CONFIRM.

use std::sync::Arc;
use std::time::Instant;

use smc_wire::clc::{AcceptConfirm, Body, Proposal};
use smc_wire::types::{Eid, Release, Version};

use super::attempt::{Attempt, DirectEnds, Ends, RdmaEnds};
use super::machine::{Failure, Side};
use super::offer::features;
use super::select::{DeviceCandidate, DirectCandidate, RdmaCandidate, Selection};
use super::steps::{PROPOSAL, SERVER_DIRECT, SERVER_RDMA};
use super::{DeclineCause, Handshake, HandshakeConfig, PeerBuffer, Role, TcpPath};
use crate::error::{FallbackCause, FallbackReason, PeerMisbehaved};
use crate::proto::group::{GroupKey, Intent};

impl Handshake {
    /// The server's side (docs/spec/handshake.md#server): waits for the PROPOSAL.
    ///
    /// To be made for an accepted connection whose client is known to support SMC. A PROPOSAL that
    /// came on a side channel is given to [`handle_bytes`](Self::handle_bytes) as well, which
    /// must take all of it.
    #[must_use]
    pub fn server(now: Instant, config: Arc<HandshakeConfig>, path: TcpPath) -> Self {
        let side = Side::Server { path, scan: None };
        let mut handshake = Self::new(now, config, side, Version::V1);
        let begun = handshake.begin(&PROPOSAL);
        handshake.conclude(begun);
        handshake
    }

    /// The client's offer.
    pub(super) fn handle_proposal(&mut self, proposal: Proposal) -> Result<(), Failure> {
        self.version = match proposal.version.is_v2() {
            true => Version::V2,
            false => Version::V1,
        };
        let Side::Server { path, scan } = &mut self.side else {
            return Err(PeerMisbehaved::UnexpectedMessage.into());
        };
        let selection = Selection::new(proposal, &self.config, std::mem::take(path));
        let selection = selection.map_err(|cause| {
            let mut reason = FallbackReason::from(cause);
            if !self.config.has_devices() {
                reason.cause = FallbackCause::NoDevice;
            }
            Failure::decline(reason)
        })?;
        *scan = Some(Box::new(selection));
        self.try_next_device()
    }

    /// Begins an attempt with the next device that the offer allows.
    pub(super) fn try_next_device(&mut self) -> Result<(), Failure> {
        let Side::Server {
            scan: Some(scan), ..
        } = &mut self.side
        else {
            return Ok(());
        };
        let candidate = scan.next(&self.config).map_err(Failure::decline)?;
        let (steps, attempt) = match candidate {
            DeviceCandidate::Direct(candidate) => (
                SERVER_DIRECT,
                direct_attempt(&candidate, scan.release, &self.config),
            ),
            DeviceCandidate::Rdma(candidate) => (
                SERVER_RDMA,
                rdma_attempt(*candidate, scan.release, &self.config),
            ),
        };
        self.rest = steps;
        self.attempt = Some(attempt);
        self.advance()
    }

    /// The client's completion.
    pub(super) fn handle_confirm(&mut self, confirm: &AcceptConfirm) -> Result<(), Failure> {
        let Some(attempt) = &mut self.attempt else {
            return Err(PeerMisbehaved::UnexpectedMessage.into());
        };
        if confirm.version().is_v2() != attempt.version.is_v2() {
            return Err(PeerMisbehaved::UnexpectedMessage.into());
        }
        let is_first_contact = attempt.is_first_contact();
        let stated = confirm.first_contact();
        match (&mut attempt.ends, &confirm.body) {
            (Ends::Direct(ends), Body::D(end)) => {
                if stated.is_some_and(|stated| stated.release != attempt.release) {
                    return Err(Failure::decline(DeclineCause::RELEASE));
                }
                ends.peer_buffer = Some(PeerBuffer::new(end.dmb, end.dmbe_index, end.size));
            }
            (Ends::Rdma(ends), Body::R(end)) => {
                // CONFIRM repeats what ACCEPT says (docs/spec/handshake.md#confirm-checks).
                if let Some(stated) = stated.filter(|_| is_first_contact) {
                    let unlike = match ends.limits {
                        _ if stated.release != attempt.release => Some(DeclineCause::RELEASE),
                        Some(limits) if stated.max_conns != limits.conns => {
                            Some(DeclineCause::MAX_CONNS)
                        }
                        Some(limits) if stated.max_links != limits.links => {
                            Some(DeclineCause::MAX_LINKS)
                        }
                        _ => None,
                    };
                    if let Some(cause) = unlike {
                        return Err(Failure::decline(cause));
                    }
                }
                ends.set_peer(end)?;
            }
            _ => return Err(PeerMisbehaved::UnexpectedMessage.into()),
        }
        attempt.peer_host = stated.map(|stated| (stated.os, stated.host));
        self.advance()
    }
}

/// SMC-D with a device that may reach the client's.
fn direct_attempt(
    candidate: &DirectCandidate,
    release: Release,
    config: &HandshakeConfig,
) -> Attempt {
    let DirectCandidate {
        device,
        peer,
        version,
        eid,
        ..
    } = *candidate;
    let key = GroupKey::Direct {
        device: device.index,
        peer,
    };
    let ends = Ends::Direct(DirectEnds::new(device, peer));
    Attempt {
        size: config.buffer.min(device.max_buffer),
        ..attempt(version, eid, release, key, ends, config)
    }
}

/// SMC-R with a port that reaches the client.
fn rdma_attempt(candidate: RdmaCandidate, release: Release, config: &HandshakeConfig) -> Attempt {
    let (version, eid, key) = (candidate.version, candidate.eid, candidate.key());
    let ends = RdmaEnds {
        route: candidate.route,
        limits: candidate.limits,
        proposed: Some((candidate.gid, candidate.mac)),
        port: candidate.port,
        local: None,
        peer: None,
    };
    Attempt {
        size: config.rmb,
        ..attempt(
            version,
            eid,
            release,
            key,
            Ends::Rdma(Box::new(ends)),
            config,
        )
    }
}

fn attempt(
    version: Version,
    eid: Option<Eid>,
    release: Release,
    key: GroupKey,
    ends: Ends,
    config: &HandshakeConfig,
) -> Attempt {
    let release = match version.is_v2() {
        true => release,
        false => Release::V2_0,
    };
    Attempt {
        role: Role::Server,
        version,
        eid,
        release,
        features: features(config, release),
        peer_host: None,
        key,
        intent: Intent::JoinOrCreate,
        member: None,
        size: config.buffer,
        ends,
    }
}
