//! The client's completion of SMC-R, from ACCEPT to the confirmed link.

use std::time::Instant;

use smc_wire::Bounded;
use smc_wire::clc::{self, AcceptConfirm, Body, FirstContact, GidList, RdmaEnd, Step as Message};
use smc_wire::size::SizeCode;
use smc_wire::types::{DeclineCode, GroupId, PeerId, Release};

use super::{AcceptInfo, ClientState, ExpectOpening, Stated};
use crate::device::{LinkAddress, Route};
use crate::error::{FallbackReason, SetupStep};
use crate::proto::group::{GroupKey, GroupTerms, Intent, Member};
use crate::proto::handshake::engine::{
    Common, Failure, Next, after, group_terminated, no_group, of_device, step_timed_out,
    unexpected_done,
};
use crate::proto::handshake::rdma::{
    not_confirmed, not_opened, own_end, peer_link, peer_rmb, unknown_rkey, without_rmb,
};
use crate::proto::handshake::{
    ClientOffer, ConfirmFailure, Established, HandshakeConfig, LinkChoice, LinkTerms, LocalRmb,
    PeerRmb, RdmaConfig, RdmaPath, RdmaPort, Role, Transport, Work, WorkDone,
};

/// The port that the server was told of, and a seat in the link group.
pub(super) fn chosen(
    accepted: AcceptInfo,
    offer: &ClientOffer,
    end: &RdmaEnd,
    common: &mut Common,
) -> Next<ClientState> {
    let port = offer.rdma_port(accepted.version);
    let port = port.ok_or_else(|| Failure::decline(DeclineCode::MODEUNSUPP))?;
    let route = route(&accepted, port, end).map_err(Failure::decline)?;
    let terms = link_terms(&accepted).map_err(Failure::decline)?;
    let chosen = RdmaChoice {
        peer: peer_link(end)?,
        peer_rmb: peer_rmb(end)?,
        peer_id: end.peer_id,
        port: port.clone(),
        route,
        terms,
        accepted,
    };
    common.work(Work::Enter {
        key: chosen.key(),
        intent: chosen.accepted.intent(),
    });
    Ok(Some(RdmaClientState::of(chosen, Step::Group)))
}

/// How the server is reached. That both sides agree on it is checked at first contact only.
fn route(accepted: &AcceptInfo, port: &RdmaPort, end: &RdmaEnd) -> Result<Route, DeclineCode> {
    let route = port.route(accepted.version, end.gid);
    match (accepted.stated, route) {
        (Some(Stated { is_direct, .. }), _) if is_direct => Ok(Route::Direct),
        (Some(_), None) => Err(DeclineCode::NOROUTE),
        (Some(_), Some(Route::Direct)) => Err(DeclineCode::NOINDIRECT),
        (_, route) => Ok(route.unwrap_or(Route::Direct)),
    }
}

/// The limits of the new link group (docs/spec/handshake.md#negotiation).
fn link_terms(accepted: &AcceptInfo) -> Result<LinkTerms, DeclineCode> {
    let fixed = LinkTerms::fixed(accepted.version);
    let Some(stated) = accepted.stated else {
        return Ok(fixed);
    };
    if stated.release < Release::V2_1 {
        return Ok(fixed);
    }
    if stated.max_conns < RdmaConfig::MIN_CONNS {
        return Err(DeclineCode::MAXCONNERR);
    }
    if !(1..=RdmaConfig::MAX_LINKS).contains(&stated.max_links) {
        return Err(DeclineCode::MAXLINKERR);
    }
    Ok(LinkTerms {
        release: stated.release,
        max_conns: stated.max_conns,
        max_links: stated.max_links,
        ..fixed
    })
}

/// What the server chose.
#[derive(Debug)]
struct RdmaChoice {
    accepted: AcceptInfo,
    /// The port that we have offered. A link that exists may use another one.
    port: RdmaPort,
    peer: LinkAddress,
    peer_rmb: PeerRmb,
    peer_id: PeerId,
    route: Route,
    terms: LinkTerms,
}

impl RdmaChoice {
    fn key(&self) -> GroupKey {
        let version = self.accepted.version;
        GroupKey::Rdma {
            role: Role::Client,
            version,
            peer: self.peer_id,
            gid: self.peer.gid,
            mac: (!version.is_v2()).then_some(self.peer.mac),
            vlan: 0,
            client: None,
            qpn: Some(self.peer.qpn),
        }
    }

    fn link(&self) -> LinkChoice {
        if self.accepted.is_first_contact {
            return LinkChoice::First;
        }
        LinkChoice::Named {
            qpn: self.peer.qpn,
            gid: self.peer.gid,
            mac: (!self.accepted.version.is_v2()).then_some(self.peer.mac),
        }
    }

    /// What holds for the new group.
    fn group_terms(&self) -> GroupTerms {
        let Self {
            accepted, terms, ..
        } = self;
        let mut all = GroupTerms::new(accepted.version, terms.release, accepted.eid);
        all.max_connections = Some(terms.max_conns.into());
        match accepted.stated {
            Some(stated) => all.with_peer(stated.os, stated.host),
            None => all,
        }
    }
}

#[derive(Debug)]
pub(super) struct RdmaClientState {
    chosen: RdmaChoice,
    step: Step,
}

/// What is waited for.
#[derive(Debug)]
enum Step {
    /// The registry decides on the link group.
    Group,
    /// First contact: the device makes the queue pair.
    Link(InGroup),
    /// A receive buffer.
    Rmb(InGroup, SizeCode),
    /// The server's buffer is entered in the table.
    Binding(Ready),
    /// First contact: the queue pair is connected.
    Connecting(Ready),
    /// Reuse: the keys of the local buffer are announced to the server.
    Rkey(Ready),
    /// First contact, CONFIRM is sent: CONFIRM LINK over the new link.
    Confirming(Ready, Instant),
    /// It has failed: the server may have declined for the same reason.
    Late(Box<FallbackReason>, Instant),
}

/// Our place in the link group.
#[derive(Debug, Clone, Copy)]
struct InGroup {
    group: GroupId,
    terms: GroupTerms,
}

/// With a receive buffer.
#[derive(Debug, Clone, Copy)]
struct Ready {
    in_group: InGroup,
    local: LocalRmb,
}

impl RdmaClientState {
    fn of(chosen: RdmaChoice, step: Step) -> ClientState {
        ClientState::Rdma(Box::new(Self { chosen, step }))
    }

    /// Whether the server may decline now, of all it can do on TCP.
    pub(super) fn may_be_declined(&self) -> bool {
        matches!(
            self.step,
            Step::Rkey(_) | Step::Confirming(..) | Step::Late(..)
        )
    }

    /// The server, and its application, may have finished before its message arrives.
    pub(super) fn outlives_tcp(&self) -> bool {
        matches!(self.step, Step::Confirming(..))
    }

    pub(super) fn name(&self) -> &'static str {
        match self.step {
            Step::Group => "link group",
            Step::Link(_) => "queue pair",
            Step::Rmb(..) => "buffer",
            Step::Binding(_) => "place for the peer's buffer",
            Step::Connecting(_) => "connected queue pair",
            Step::Rkey(_) => "CONFIRM RKEY",
            Step::Confirming(..) => "CONFIRM LINK",
            Step::Late(..) => "late DECLINE",
        }
    }

    pub(super) fn deadline(&self) -> Instant {
        match self.step {
            Step::Confirming(_, deadline) | Step::Late(_, deadline) => deadline,
            _ => self.chosen.accepted.deadline,
        }
    }

    pub(super) fn done(
        self,
        now: Instant,
        done: WorkDone,
        common: &mut Common,
    ) -> Next<ClientState> {
        let Self { chosen, step } = self;
        match (step, done) {
            (Step::Group, WorkDone::Entered(Ok(member))) => entered(chosen, member, common),
            (Step::Group, WorkDone::Entered(Err(why))) => {
                Err(Failure::decline(no_group(DeclineCode::SYNCERR, why)))
            }
            (Step::Link(in_group), WorkDone::LinkOpened(Ok(_))) => {
                let size = common.config.rmb;
                Ok(Some(prepare(chosen, in_group, size, common)))
            }
            (Step::Link(_), WorkDone::LinkOpened(Err(error))) => {
                Err(Failure::decline(not_opened(error)))
            }
            (Step::Rmb(in_group, _), WorkDone::RmbPrepared(Ok(local))) => {
                common.work(Work::BindPeer {
                    group: in_group.group,
                    rmb: chosen.peer_rmb,
                });
                let ready = Ready { in_group, local };
                Ok(Some(Self::of(chosen, Step::Binding(ready))))
            }
            (Step::Rmb(in_group, size), WorkDone::RmbPrepared(Err(error))) => {
                let size = without_rmb(error, size, DeclineCode::NOSRVLINK);
                let size = size.map_err(Failure::decline)?;
                Ok(Some(prepare(chosen, in_group, size, common)))
            }
            (Step::Binding(ready), WorkDone::PeerBound(Ok(()))) => {
                Ok(Some(connect(chosen, ready, common)))
            }
            (Step::Binding(_), WorkDone::PeerBound(Err(_))) => {
                Err(Failure::decline(DeclineCode::ERR_RTOK))
            }
            (Step::Connecting(ready), WorkDone::LinkConnected(Ok(()))) => {
                confirm(now, chosen, ready, common)
            }
            (Step::Connecting(_), WorkDone::LinkConnected(Err(error))) => {
                let (code, step) = (DeclineCode::ERR_RDYLNK, SetupStep::ConnectLink);
                Err(Failure::decline(of_device(code, step, error)))
            }
            (Step::Rkey(ready), WorkDone::RkeyConfirmed(Ok(()))) => {
                confirm(now, chosen, ready, common)
            }
            (Step::Rkey(_), WorkDone::RkeyConfirmed(Err(failure))) => {
                Err(Failure::decline(unknown_rkey(failure)))
            }
            (Step::Confirming(ready, _), WorkDone::LinkConfirmed(Ok(()))) => {
                Ok(Some(open(now, chosen, ready, common)))
            }
            (Step::Confirming(..), WorkDone::LinkConfirmed(Err(failure))) => {
                unconfirmed(now, chosen, failure, common)
            }
            // What was asked for before it came to an end.
            (Step::Late(reason, deadline), WorkDone::LinkConfirmed(_)) => {
                Ok(Some(Self::of(chosen, Step::Late(reason, deadline))))
            }
            _ => unexpected_done(),
        }
    }

    pub(super) fn timeout(self) -> Failure {
        Failure::decline(match self.step {
            Step::Group => step_timed_out(DeclineCode::INTERR, SetupStep::Enter),
            Step::Link(_) => step_timed_out(DeclineCode::INTERR, SetupStep::OpenLink),
            Step::Binding(_) => step_timed_out(DeclineCode::INTERR, SetupStep::BindPeer),
            Step::Rmb(..) => step_timed_out(DeclineCode::MEM, SetupStep::Register),
            Step::Connecting(_) => step_timed_out(DeclineCode::ERR_RDYLNK, SetupStep::ConnectLink),
            Step::Rkey(_) => step_timed_out(DeclineCode::ERR_REGBUF, SetupStep::ConfirmRkey),
            Step::Confirming(..) => step_timed_out(DeclineCode::TIMEOUT_CL, SetupStep::ConfirmLink),
            Step::Late(reason, _) => *reason,
        })
    }

    pub(super) fn terminated(self) -> Next<ClientState> {
        match self.step {
            // CONFIRM LINK fails, unless it came before: then the server may have sent data.
            Step::Group | Step::Confirming(..) | Step::Late(..) => {
                Ok(Some(ClientState::Rdma(Box::new(self))))
            }
            _ => Err(Failure::decline(group_terminated())),
        }
    }
}

fn entered(chosen: RdmaChoice, member: Member, common: &mut Common) -> Next<ClientState> {
    let group = member.group();
    common.group = Some(group);
    match (member, chosen.accepted.intent()) {
        (Member::Joined { terms, .. }, Intent::Join) => {
            let size = common.config.rmb;
            Ok(Some(prepare(
                chosen,
                InGroup { group, terms },
                size,
                common,
            )))
        }
        (Member::Created(_), Intent::Create) => {
            let terms = chosen.group_terms();
            common.work(Work::OpenLink {
                group,
                port: chosen.port.device,
                address: chosen.port.address.clone(),
            });
            let step = Step::Link(InGroup { group, terms });
            Ok(Some(RdmaClientState::of(chosen, step)))
        }
        _ => unexpected_done(),
    }
}

fn prepare(
    chosen: RdmaChoice,
    in_group: InGroup,
    size: SizeCode,
    common: &mut Common,
) -> ClientState {
    common.work(Work::PrepareRmb {
        group: in_group.group,
        link: chosen.link(),
        size,
    });
    RdmaClientState::of(chosen, Step::Rmb(in_group, size))
}

/// The server's buffer is known: now the link, or the keys for it.
fn connect(chosen: RdmaChoice, ready: Ready, common: &mut Common) -> ClientState {
    let group = ready.in_group.group;
    if chosen.accepted.is_first_contact {
        common.work(Work::ConnectLink {
            group,
            peer: chosen.peer,
            route: chosen.route,
            terms: chosen.terms,
        });
        RdmaClientState::of(chosen, Step::Connecting(ready))
    } else {
        common.work(Work::ConfirmRkey { group });
        RdmaClientState::of(chosen, Step::Rkey(ready))
    }
}

/// Everything is there: tell the server. At first contact the link has yet to be confirmed.
fn confirm(
    now: Instant,
    chosen: RdmaChoice,
    ready: Ready,
    common: &mut Common,
) -> Next<ClientState> {
    let message = confirm_message(&chosen, &ready.local, &common.config);
    common.send_message(&message)?;
    if !chosen.accepted.is_first_contact {
        common.establish(established(&chosen, &ready));
        return Ok(None);
    }
    // From here on the server may decline whenever we do.
    common.crossing_possible = true;
    common.work(Work::ConfirmLink {
        group: ready.in_group.group,
    });
    let deadline = after(now, common.config.timeouts.confirm_link);
    Ok(Some(RdmaClientState::of(
        chosen,
        Step::Confirming(ready, deadline),
    )))
}

fn unconfirmed(
    now: Instant,
    chosen: RdmaChoice,
    failure: ConfirmFailure,
    common: &Common,
) -> Next<ClientState> {
    let (reason, may_be_late) = not_confirmed(failure);
    if !may_be_late || common.is_closed() {
        return Err(Failure::decline(reason));
    }
    let deadline = after(now, common.config.timeouts.late_decline);
    let step = Step::Late(Box::new(reason), deadline);
    Ok(Some(RdmaClientState::of(chosen, step)))
}

/// The link is confirmed: others may join.
fn open(now: Instant, chosen: RdmaChoice, ready: Ready, common: &mut Common) -> ClientState {
    common.work(Work::Open {
        group: ready.in_group.group,
        terms: ready.in_group.terms,
    });
    ClientState::Opening(ExpectOpening {
        deadline: after(now, common.config.timeouts.work),
        established: established(&chosen, &ready),
    })
}

fn established(chosen: &RdmaChoice, ready: &Ready) -> Established {
    let Ready { in_group, local } = ready;
    Established {
        role: Role::Client,
        version: chosen.accepted.version,
        release: in_group.terms.release,
        features: chosen.accepted.features(),
        eid: chosen.accepted.eid,
        group: in_group.group,
        first_contact: chosen.accepted.is_first_contact,
        peer_group: GroupId::default(),
        peer_os: in_group.terms.os,
        peer_host: in_group.terms.host,
        transport: Transport::Rdma(RdmaPath {
            device: local.device,
            link: local.link,
            peer: chosen.peer,
            local: *local,
            peer_rmb: chosen.peer_rmb,
            route: chosen.route,
        }),
    }
}

fn confirm_message(
    chosen: &RdmaChoice,
    local: &LocalRmb,
    config: &HandshakeConfig,
) -> AcceptConfirm {
    let (max_conns, max_links) = chosen.terms.stated();
    let first_contact = chosen.accepted.stated.map(|stated| FirstContact {
        v2_direct: chosen.route == Route::Direct,
        max_conns,
        max_links,
        features: stated.features,
        gids: Some(gids(chosen, local, config)),
        ..FirstContact::new(stated.release, config.os, config.host)
    });
    let terms = match chosen.accepted.eid {
        Some(eid) => clc::Terms::V2 { eid, first_contact },
        None => clc::Terms::V1 {
            first_contact: chosen.accepted.is_first_contact,
        },
    };
    let peer_id = config
        .rdma
        .as_ref()
        .map_or(PeerId::ZERO, |rdma| rdma.peer_id);
    let mtu = local.link.mtu.min(chosen.peer.mtu);
    AcceptConfirm {
        step: Message::Confirm,
        terms,
        body: Body::R(own_end(local, peer_id, mtu)),
    }
}

/// GIDs of ours for further links: that of this one, and an alternate.
fn gids(chosen: &RdmaChoice, local: &LocalRmb, config: &HandshakeConfig) -> GidList {
    let rdma = config.rdma.as_ref();
    let alternate = rdma.and_then(|rdma| rdma.alternate(&chosen.port));
    let alternate = alternate.map(|port| port.address.gid);
    Bounded::from_iter_lossy([local.link.gid].into_iter().chain(alternate))
}
