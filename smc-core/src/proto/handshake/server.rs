//! The part of a handshake that only a server has: the choice of a device, and the check of
//! CONFIRM.

use std::sync::Arc;
use std::time::Instant;

use smc_wire::clc::{AcceptConfirm, Body, Extensions, FirstContact, Proposal};
use smc_wire::types::{Features, Version};

use super::attempt::Ends;
use super::client::authenticated;
use super::device_scan::DeviceScan;
use super::early::{ReceivedEarly, ReceivedRdmaEnd};
use super::machine::{Failure, RoleState};
use super::steps::{PROPOSAL, SERVER_DIRECT, SERVER_RDMA};
use super::{DeclineCause, Handshake, HandshakeConfig, PeerBuffer, TcpPath};
use crate::error::{FallbackCause, FallbackReason, PeerMisbehaved};

impl Handshake {
    /// The server's side (docs/spec/handshake.md#server): waits for the PROPOSAL.
    ///
    /// To be made for an accepted connection whose client is known to support SMC. A PROPOSAL that
    /// came on a side channel is given to [`handle_bytes`](Self::handle_bytes) as well, which
    /// must take all of it.
    #[must_use]
    pub fn server(now: Instant, config: Arc<HandshakeConfig>, path: TcpPath) -> Self {
        let role_state = RoleState::Server {
            path,
            scan: None,
            early: None,
        };
        let mut handshake = Self::new(now, config, role_state, Version::V1);
        let begun = handshake.begin(&PROPOSAL);
        handshake.conclude(begun);
        handshake
    }

    /// The client's offer, and its early CONFIRM.
    pub(super) fn handle_proposal(
        &mut self,
        proposal: Proposal,
        early: ReceivedEarly,
    ) -> Result<(), Failure> {
        self.version = match proposal.version.is_v2() {
            true => Version::V2,
            false => Version::V1,
        };
        let RoleState::Server {
            path,
            scan,
            early: unused,
        } = &mut self.role_state
        else {
            return Err(PeerMisbehaved::UnexpectedMessage.into());
        };
        *unused = early.rdma.map(ReceivedRdmaEnd::refused);
        let begun = DeviceScan::new(proposal, early, &self.config, std::mem::take(path));
        let begun = begun.map_err(|cause| {
            let mut reason = FallbackReason::from(cause);
            if !self.config.has_devices() {
                reason.cause = FallbackCause::NoDevice;
            }
            Failure::decline(reason)
        })?;
        *scan = Some(Box::new(begun));
        self.try_next_device()
    }

    /// Begins an attempt with the next device that the offer allows.
    pub(super) fn try_next_device(&mut self) -> Result<(), Failure> {
        let RoleState::Server {
            scan: Some(scan), ..
        } = &mut self.role_state
        else {
            return Ok(());
        };
        let attempt = scan.next(&self.config).map_err(Failure::decline)?;
        self.rest = match attempt.ends {
            Ends::Direct(_) => SERVER_DIRECT,
            Ends::Rdma(_) => SERVER_RDMA,
        };
        self.attempt = Some(attempt);
        self.advance()
    }

    /// The client's completion.
    pub(super) fn handle_confirm(
        &mut self,
        confirm: &AcceptConfirm,
        extensions: &Extensions<'_>,
    ) -> Result<(), Failure> {
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
                ends.set_peer(end, authenticated(extensions, 0))?;
            }
            _ => return Err(PeerMisbehaved::UnexpectedMessage.into()),
        }
        let features = stated.map_or(Features::empty(), FirstContact::vendor_features);
        // Not by the client: it would take part in a group without a key, or at a GID that it
        // does not know as one, which is not the group that it has agreed on.
        let needed = Features::AUTHENTICATION | Features::RDMA_IPV6;
        let lacks = attempt.vendor_features.difference(features);
        if is_first_contact && lacks.intersects(needed) {
            return Err(Failure::decline(DeclineCause::FEATURES));
        }
        attempt.peer_host = stated.map(|stated| (stated.os, stated.host));
        attempt.vendor_features &= features;
        // The client waits for CONFIRM LINK, and declines if that does not come.
        self.crossing_possible |= is_first_contact && matches!(attempt.ends, Ends::Rdma(_));
        self.advance()
    }
}
