//! What only a client does: the offer, and the check of ACCEPT.

use std::sync::Arc;
use std::time::Instant;

use smc_wire::clc::{AcceptConfirm, Body, DirectEnd, FirstContact, RdmaEnd};
use smc_wire::types::{FeatureMask, Release, Version};

use super::attempt::{Attempt, DirectEnds, Ends, RdmaEnds};
use super::machine::{Failure, Side};
use super::offer::features;
use super::ports::LinkLimits;
use super::steps::{ACCEPT, CLIENT_DIRECT, CLIENT_RDMA};
use super::{
    ClientOffer, DeclineCause, Handshake, HandshakeConfig, PeerBuffer, RdmaConfig, Role, TcpPath,
};
use crate::device::Route;
use crate::error::{FallbackReason, PeerMisbehaved};
use crate::proto::group::{GroupKey, Intent};

impl Handshake {
    /// The client's side (docs/spec/handshake.md#client): searches for devices and sends the
    /// PROPOSAL, or a DECLINE if there is nothing to offer.
    ///
    /// To be made when the TCP connection is there and it is known that the server supports SMC; if
    /// it does not, the stream is TCP without a handshake.
    #[must_use]
    pub fn client(now: Instant, config: Arc<HandshakeConfig>, path: &TcpPath) -> Self {
        let offer = ClientOffer::new(&config, path).map(Arc::new);
        Self::offering(now, config, offer)
    }

    /// As [`Handshake::client`] with an offer that exists, or the reason why there is none.
    #[must_use]
    pub fn offering(
        now: Instant,
        config: Arc<HandshakeConfig>,
        offer: Result<Arc<ClientOffer>, FallbackReason>,
    ) -> Self {
        let mut handshake = Self::of_client(now, config, offer.clone().ok());
        match offer {
            Ok(offer) => handshake.send(offer.bytes().to_vec()),
            Err(reason) => handshake.conclude(Err(Failure::decline(reason))),
        }
        handshake
    }

    /// Goes on after the PROPOSAL has reached the server on a side channel.
    ///
    /// Such a client sends nothing before it has received a message: that the server answers is
    /// the proof that it supports SMC.
    #[must_use]
    pub fn announced(now: Instant, config: Arc<HandshakeConfig>, offer: Arc<ClientOffer>) -> Self {
        Self::of_client(now, config, Some(offer))
    }

    fn of_client(
        now: Instant,
        config: Arc<HandshakeConfig>,
        offer: Option<Arc<ClientOffer>>,
    ) -> Self {
        // Before the server has shown its version, a DECLINE has the one that was offered.
        let version = match config.is_v2_capable() {
            true => Version::V2,
            false => Version::V1,
        };
        let side = Side::Client(offer);
        let mut handshake = Self::new(now, config, side, version);
        let begun = handshake.begin(&ACCEPT);
        handshake.conclude(begun);
        handshake
    }

    /// The server's choice.
    pub(super) fn handle_accept(&mut self, accept: &AcceptConfirm) -> Result<(), Failure> {
        let Side::Client(Some(offer)) = &self.side else {
            return Err(PeerMisbehaved::UnexpectedMessage.into());
        };
        self.version = accept.version();
        let offered = offer.types(self.version);
        let is_offered = match accept.body {
            Body::D(_) => offered.has_d(),
            Body::R(_) => offered.has_r(),
        };
        if !is_offered {
            return Err(Failure::decline(DeclineCause::NOT_OFFERED));
        }
        // Not a release that could be confirmed.
        let stated = accept.first_contact();
        if stated.is_some_and(|stated| stated.release > offer.release) {
            return Err(Failure::decline(DeclineCause::RELEASE));
        }
        let attempt = match &accept.body {
            Body::D(end) => direct_attempt(accept, end, offer, &self.config)?,
            Body::R(end) => rdma_attempt(accept, end, offer, &self.config)?,
        };
        self.rest = match attempt.ends {
            Ends::Direct(_) => CLIENT_DIRECT,
            Ends::Rdma(_) => CLIENT_RDMA,
        };
        self.attempt = Some(attempt);
        self.advance()
    }
}

/// SMC-D with the device that the server means.
fn direct_attempt(
    accept: &AcceptConfirm,
    end: &DirectEnd,
    offer: &ClientOffer,
    config: &HandshakeConfig,
) -> Result<Attempt, Failure> {
    let device = if accept.version().is_v2() {
        let device = offer.v2_device(end.chid);
        device.ok_or(PeerMisbehaved::SelectedUnofferedDevice)?
    } else {
        offer
            .v1
            .ok_or_else(|| Failure::decline(DeclineCause::NOT_OFFERED))?
    };
    let key = GroupKey::Direct {
        device: device.index,
        peer: end.gid,
    };
    let ends = Ends::Direct(DirectEnds {
        peer_buffer: Some(PeerBuffer::new(end.dmb, end.dmbe_index, end.size)),
        ..DirectEnds::new(device, end.gid)
    });
    Ok(Attempt {
        // The server needs memory for it as well, and has stated how much it spends on a buffer.
        size: device.max_buffer.min(end.size).min(config.buffer),
        ..attempt(accept, key, ends, config)
    })
}

/// SMC-R with the offered port.
fn rdma_attempt(
    accept: &AcceptConfirm,
    end: &RdmaEnd,
    offer: &ClientOffer,
    config: &HandshakeConfig,
) -> Result<Attempt, Failure> {
    let (version, stated) = (accept.version(), accept.first_contact());
    let port = offer.rdma_port(version);
    let port = port.ok_or_else(|| Failure::decline(DeclineCause::NOT_OFFERED))?;
    let rdma = config.rdma.as_ref();
    let own_route = rdma.and_then(|rdma| rdma.route(port, version, end.gid));
    let mut ends = RdmaEnds {
        route: route(stated, own_route).map_err(Failure::decline)?,
        limits: limits(stated).map_err(Failure::decline)?,
        port: port.clone(),
        proposed: None,
        local: None,
        peer: None,
    };
    ends.set_peer(end)?;
    let key = GroupKey::Rdma {
        role: Role::Client,
        version,
        peer: end.peer_id,
        gid: end.gid,
        mac: (!version.is_v2()).then_some(end.mac),
        vlan: 0,
        client: None,
        qpn: Some(end.qpn),
    };
    Ok(Attempt {
        size: config.rmb,
        ..attempt(accept, key, Ends::Rdma(Box::new(ends)), config)
    })
}

fn attempt(accept: &AcceptConfirm, key: GroupKey, ends: Ends, config: &HandshakeConfig) -> Attempt {
    let stated = accept.first_contact();
    let both = |stated: &FirstContact| stated.features & features(config, stated.release);
    Attempt {
        role: Role::Client,
        version: accept.version(),
        eid: accept.eid(),
        release: stated.map_or(Release::V2_0, |stated| stated.release),
        features: stated.map_or(FeatureMask::empty(), both),
        peer_host: stated.map(|stated| (stated.os, stated.host)),
        key,
        // Whether the link group is new is the server's decision.
        intent: match accept.is_first_contact() {
            true => Intent::Create,
            false => Intent::Join,
        },
        member: None,
        size: config.buffer,
        ends,
    }
}

/// How the server is reached. That both sides agree on it is checked at first contact only.
fn route(stated: Option<&FirstContact>, route: Option<Route>) -> Result<Route, DeclineCause> {
    match (stated, route) {
        (Some(stated), _) if stated.v2_direct => Ok(Route::Direct),
        (Some(_), None) => Err(DeclineCause::NO_ROUTE),
        (Some(_), Some(Route::Direct)) => Err(DeclineCause::OTHER_ROUTE),
        (_, route) => Ok(route.unwrap_or(Route::Direct)),
    }
}

/// The limits of the new link group (docs/spec/handshake.md#negotiation).
fn limits(stated: Option<&FirstContact>) -> Result<Option<LinkLimits>, DeclineCause> {
    let Some(stated) = stated.filter(|stated| stated.release >= Release::V2_1) else {
        return Ok(None);
    };
    if stated.max_conns < RdmaConfig::MIN_CONNS {
        return Err(DeclineCause::MAX_CONNS);
    }
    if !(1..=RdmaConfig::MAX_LINKS).contains(&stated.max_links) {
        return Err(DeclineCause::MAX_LINKS);
    }
    Ok(Some(LinkLimits {
        conns: stated.max_conns,
        links: stated.max_links,
    }))
}
