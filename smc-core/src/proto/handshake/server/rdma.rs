//! The server's way through SMC-R: a port that reaches the client, ACCEPT, CONFIRM, the confirmed
//! link.

use std::time::Instant;

use smc_wire::clc::{self, AcceptConfirm, Body, ClcType, FirstContact, RdmaEnd, Step as Message};
use smc_wire::size::SizeCode;
use smc_wire::types::{DeclineCode, FeatureMask, GroupId, PeerId, Release};

use super::{State, Walk};
use crate::device::{LinkAddress, Route};
use crate::error::{Error, FallbackReason, PeerMisbehaved, Phase, SetupStep};
use crate::proto::group::{Intent, NoGroup, Seat, Terms};
use crate::proto::handshake::engine::{
    Common, Failure, Next, after, group_terminated, no_group, of_device, too_late, unasked,
};
use crate::proto::handshake::offer::features;
use crate::proto::handshake::rdma::{
    not_confirmed, not_opened, own_end, peer_link, peer_rmb, unknown_rkey, without_rmb,
};
use crate::proto::handshake::select::RdmaCandidate;
use crate::proto::handshake::{
    Config, ConfirmFailure, Done, Established, LinkChoice, LocalRmb, PeerRmb, RdmaPath, Role,
    Transport, Work,
};

/// Asks for a seat in the link group.
pub(super) fn tried(walk: Walk, candidate: Box<RdmaCandidate>, common: &mut Common) -> State {
    common.work(Work::Enter {
        key: candidate.key(),
        intent: Intent::JoinOrCreate,
    });
    Expect::of(candidate, Step::Seat(walk))
}

#[derive(Debug)]
pub(super) struct Expect {
    candidate: Box<RdmaCandidate>,
    step: Step,
}

/// What is waited for.
#[derive(Debug)]
enum Step {
    /// The registry decides on the link group: join, create, or wait for another creator.
    Seat(Walk),
    /// First contact: the device makes the queue pair.
    Link(Walk, Seat),
    /// A receive buffer.
    Rmb(Walk, Seat, SizeCode),
    /// Reuse: the client hears of the keys of our buffer before it hears ACCEPT.
    Rkey(Walk, Seat, LocalRmb),
    /// ACCEPT is out; the client completes its side.
    Confirm(Accepted, Instant),
    /// The client's buffer is entered in the table.
    Binding(Pending, Instant),
    /// First contact: the queue pair is connected.
    Connecting(Pending, Instant),
    /// First contact: CONFIRM LINK over the new link.
    Confirming(Pending, Instant),
    /// It has failed: the client may have declined for the same reason.
    Late(Box<FallbackReason>, Instant),
    /// The link is confirmed; others may join.
    Opening(Pending, Instant),
}

/// What ACCEPT says.
#[derive(Debug)]
struct Accepted {
    seat: Seat,
    local: LocalRmb,
}

/// A connection that only lacks our own last steps.
#[derive(Debug)]
struct Pending {
    accepted: Accepted,
    terms: Terms,
    features: FeatureMask,
    peer: LinkAddress,
    peer_rmb: PeerRmb,
}

impl Expect {
    fn of(candidate: Box<RdmaCandidate>, step: Step) -> State {
        State::Rdma(Box::new(Self { candidate, step }))
    }

    pub(super) fn message_type(&self) -> Option<ClcType> {
        match self.step {
            Step::Confirm(..) => Some(ClcType::Confirm),
            // Nothing else makes sense of what the client could send now.
            Step::Rkey(..) | Step::Confirming(..) | Step::Late(..) => Some(ClcType::Decline),
            _ => None,
        }
    }

    /// The client may be ready, and its application too, before we hear of it.
    pub(super) fn outlives_tcp(&self) -> bool {
        matches!(self.step, Step::Confirming(..))
    }

    pub(super) fn name(&self) -> &'static str {
        match self.step {
            Step::Seat(_) => "link group",
            Step::Link(..) => "queue pair",
            Step::Rmb(..) => "buffer",
            Step::Rkey(..) => "CONFIRM RKEY",
            Step::Confirm(..) => "CONFIRM",
            Step::Binding(..) => "place for the peer's buffer",
            Step::Connecting(..) => "connected queue pair",
            Step::Confirming(..) => "CONFIRM LINK",
            Step::Late(..) => "late DECLINE",
            Step::Opening(..) => "opening of the link group",
        }
    }

    pub(super) fn deadline(&self) -> Instant {
        match &self.step {
            Step::Seat(walk) | Step::Link(walk, _) | Step::Rmb(walk, ..) | Step::Rkey(walk, ..) => {
                walk.deadline
            }
            Step::Confirm(_, deadline)
            | Step::Binding(_, deadline)
            | Step::Connecting(_, deadline)
            | Step::Confirming(_, deadline)
            | Step::Late(_, deadline)
            | Step::Opening(_, deadline) => *deadline,
        }
    }

    pub(super) fn confirmed(
        self,
        now: Instant,
        confirm: &AcceptConfirm,
        common: &mut Common,
    ) -> Next<State> {
        let (Step::Confirm(accepted, _), Body::R(end)) = (self.step, &confirm.body) else {
            return Err(PeerMisbehaved::UnexpectedMessage.into());
        };
        let candidate = self.candidate;
        if confirm.version().is_v2() != candidate.version.is_v2() {
            return Err(PeerMisbehaved::UnexpectedMessage.into());
        }
        let stated = confirm.first_contact();
        check_limits(&candidate, &accepted, stated).map_err(Failure::decline)?;
        let pending = Pending {
            terms: accepted.terms(&candidate, stated),
            features: stated.map(|stated| stated.features).unwrap_or_default(),
            peer: peer_end(&candidate, end)?,
            peer_rmb: peer_rmb(end)?,
            accepted,
        };
        common.work(Work::BindPeer {
            group: pending.group(),
            rmb: pending.peer_rmb,
        });
        let deadline = after(now, common.config.timeouts.work);
        Ok(Some(Self::of(candidate, Step::Binding(pending, deadline))))
    }

    pub(super) fn done(self, now: Instant, done: Done, common: &mut Common) -> Next<State> {
        let Self { candidate, step } = self;
        match (step, done) {
            (Step::Seat(walk), Done::Entered(Ok(seat))) => {
                Ok(Some(seated(walk, candidate, seat, common)))
            }
            (Step::Seat(walk), Done::Entered(Err(why))) => {
                let code = match why {
                    NoGroup::Full => DeclineCode::MEM,
                    NoGroup::Missing => DeclineCode::INTERR,
                };
                walk.failed(no_group(code, why), common)
            }
            (Step::Link(walk, seat), Done::LinkOpened(Ok(_))) => {
                let size = common.config.rmb;
                Ok(Some(prepare(walk, candidate, seat, size, common)))
            }
            (Step::Link(walk, _), Done::LinkOpened(Err(error))) => {
                walk.failed(not_opened(error), common)
            }
            (Step::Rmb(walk, seat, _), Done::RmbPrepared(Ok(local))) => {
                if seat.is_first_contact() {
                    return accept(now, candidate, Accepted { seat, local }, walk, common);
                }
                let group = seat.group();
                common.work(Work::ConfirmRkey { group });
                Ok(Some(Self::of(candidate, Step::Rkey(walk, seat, local))))
            }
            (Step::Rmb(walk, seat, size), Done::RmbPrepared(Err(error))) => {
                match without_rmb(error, size, DeclineCode::NOACTLINK) {
                    Ok(size) => Ok(Some(prepare(walk, candidate, seat, size, common))),
                    Err(reason) => walk.failed(reason, common),
                }
            }
            (Step::Rkey(walk, seat, local), Done::RkeyConfirmed(Ok(()))) => {
                accept(now, candidate, Accepted { seat, local }, walk, common)
            }
            (Step::Rkey(walk, ..), Done::RkeyConfirmed(Err(failure))) => {
                walk.failed(unknown_rkey(failure), common)
            }
            (Step::Binding(pending, deadline), Done::PeerBound(Ok(()))) => {
                bound(candidate, pending, deadline, common)
            }
            (Step::Binding(pending, _), Done::PeerBound(Err(_))) => {
                if pending.accepted.seat.is_first_contact() {
                    return Err(Failure::decline(DeclineCode::ERR_RTOK));
                }
                // The client is in SMC mode already, and its data may have arrived: nothing can be
                // sent to it, and the connection ends behind that.
                common.establish(pending.finish(&candidate));
                Ok(None)
            }
            (Step::Connecting(pending, _), Done::LinkConnected(Ok(()))) => {
                // From here on the client may decline whenever we do.
                common.crossing_possible = true;
                common.work(Work::ConfirmLink {
                    group: pending.group(),
                });
                let deadline = after(now, common.config.timeouts.confirm_link);
                let step = Step::Confirming(pending, deadline);
                Ok(Some(Self::of(candidate, step)))
            }
            (Step::Connecting(..), Done::LinkConnected(Err(error))) => {
                let (code, step) = (DeclineCode::ERR_RDYLNK, SetupStep::ConnectLink);
                Err(Failure::decline(of_device(code, step, error)))
            }
            (Step::Confirming(pending, _), Done::LinkConfirmed(Ok(()))) => {
                common.work(Work::Open {
                    group: pending.group(),
                    terms: pending.terms,
                });
                let deadline = after(now, common.config.timeouts.work);
                Ok(Some(Self::of(candidate, Step::Opening(pending, deadline))))
            }
            (Step::Confirming(..), Done::LinkConfirmed(Err(failure))) => {
                unconfirmed(now, candidate, failure, common)
            }
            // What was asked for before it came to an end.
            (Step::Late(reason, deadline), Done::LinkConfirmed(_)) => {
                Ok(Some(Self::of(candidate, Step::Late(reason, deadline))))
            }
            // If the group was terminated meanwhile the client may have used the connection before
            // that, and the connection ends together with the group.
            (Step::Opening(pending, _), Done::Opened(_)) => {
                common.establish(pending.finish(&candidate));
                Ok(None)
            }
            _ => unasked(),
        }
    }

    pub(super) fn timeout(self) -> Failure {
        match self.step {
            Step::Seat(walk) => walk.late(DeclineCode::INTERR, SetupStep::Enter),
            Step::Link(walk, _) => walk.late(DeclineCode::INTERR, SetupStep::OpenLink),
            Step::Rmb(walk, ..) => walk.late(DeclineCode::MEM, SetupStep::Register),
            Step::Rkey(walk, ..) => walk.late(DeclineCode::ERR_REGBUF, SetupStep::ConfirmRkey),
            Step::Confirm(..) => Error::TimedOut(Phase::Confirm).into(),
            Step::Binding(pending, _) if !pending.accepted.seat.is_first_contact() => {
                Error::TimedOut(Phase::Group).into()
            }
            Step::Binding(..) => {
                Failure::decline(too_late(DeclineCode::INTERR, SetupStep::BindPeer))
            }
            Step::Connecting(..) => {
                Failure::decline(too_late(DeclineCode::ERR_RDYLNK, SetupStep::ConnectLink))
            }
            Step::Confirming(..) => {
                Failure::decline(too_late(DeclineCode::TIMEOUT_CL, SetupStep::ConfirmLink))
            }
            Step::Late(reason, _) => Failure::Decline(reason),
            Step::Opening(..) => Error::TimedOut(Phase::Group).into(),
        }
    }

    pub(super) fn terminated(self, common: &mut Common) -> Next<State> {
        match self.step {
            Step::Link(walk, _) | Step::Rmb(walk, ..) | Step::Rkey(walk, ..) => {
                walk.failed(group_terminated(), common)
            }
            // The client waits for CONFIRM LINK, and for a DECLINE.
            Step::Binding(pending, _) | Step::Connecting(pending, _)
                if pending.accepted.seat.is_first_contact() =>
            {
                Err(Failure::decline(group_terminated()))
            }
            // Until CONFIRM comes the client may decline and go on with TCP. It may also have
            // confirmed, sent its data and ended: whatever is awaited tells which.
            step => Ok(Some(Self::of(self.candidate, step))),
        }
    }
}

fn seated(walk: Walk, candidate: Box<RdmaCandidate>, seat: Seat, common: &mut Common) -> State {
    common.group = Some(seat.group());
    if !seat.is_first_contact() {
        let size = common.config.rmb;
        return prepare(walk, candidate, seat, size, common);
    }
    common.work(Work::OpenLink {
        group: seat.group(),
        port: candidate.port.device,
        address: candidate.port.address.clone(),
    });
    Expect::of(candidate, Step::Link(walk, seat))
}

fn prepare(
    walk: Walk,
    candidate: Box<RdmaCandidate>,
    seat: Seat,
    size: SizeCode,
    common: &mut Common,
) -> State {
    common.work(Work::PrepareRmb {
        group: seat.group(),
        link: if seat.is_first_contact() {
            LinkChoice::First
        } else {
            LinkChoice::Assign
        },
        size,
    });
    Expect::of(candidate, Step::Rmb(walk, seat, size))
}

/// Everything is there: tell the client.
fn accept(
    now: Instant,
    candidate: Box<RdmaCandidate>,
    accepted: Accepted,
    walk: Walk,
    common: &mut Common,
) -> Next<State> {
    let release = walk.selection.release;
    common.send_message(&accepted.accept_message(&candidate, release, &common.config))?;
    let deadline = after(now, common.config.timeouts.message);
    Ok(Some(Expect::of(
        candidate,
        Step::Confirm(accepted, deadline),
    )))
}

/// The client has to repeat what ACCEPT says (docs/spec/handshake.md#confirm-checks).
fn check_limits(
    candidate: &RdmaCandidate,
    accepted: &Accepted,
    stated: Option<&FirstContact>,
) -> Result<(), DeclineCode> {
    let Some(stated) = stated.filter(|_| accepted.seat.is_first_contact()) else {
        return Ok(());
    };
    let terms = &candidate.terms;
    if stated.release != terms.release {
        return Err(DeclineCode::RELEASEERR);
    }
    if terms.release < Release::V2_1 {
        return Ok(());
    }
    if stated.max_conns != terms.max_conns {
        return Err(DeclineCode::MAXCONNERR);
    }
    if stated.max_links != terms.max_links {
        return Err(DeclineCode::MAXLINKERR);
    }
    Ok(())
}

/// The client's end: where packets go to is what the PROPOSAL says. A client of version 2 may have
/// left the MAC out there.
fn peer_end(candidate: &RdmaCandidate, end: &RdmaEnd) -> Result<LinkAddress, PeerMisbehaved> {
    let mac = if candidate.mac.is_zero() {
        end.mac
    } else {
        candidate.mac
    };
    Ok(LinkAddress {
        gid: candidate.gid,
        mac,
        ..peer_link(end)?
    })
}

/// The client's buffer is known: now the link, or it is done.
fn bound(
    candidate: Box<RdmaCandidate>,
    pending: Pending,
    deadline: Instant,
    common: &mut Common,
) -> Next<State> {
    if !pending.accepted.seat.is_first_contact() {
        common.establish(pending.finish(&candidate));
        return Ok(None);
    }
    common.work(Work::ConnectLink {
        group: pending.group(),
        peer: pending.peer,
        route: candidate.route,
        terms: candidate.terms,
    });
    let step = Step::Connecting(pending, deadline);
    Ok(Some(Expect::of(candidate, step)))
}

fn unconfirmed(
    now: Instant,
    candidate: Box<RdmaCandidate>,
    failure: ConfirmFailure,
    common: &Common,
) -> Next<State> {
    let (reason, may_be_late) = not_confirmed(failure);
    if !may_be_late || common.is_closed() {
        return Err(Failure::decline(reason));
    }
    let deadline = after(now, common.config.timeouts.late_decline);
    let step = Step::Late(Box::new(reason), deadline);
    Ok(Some(Expect::of(candidate, step)))
}

impl Accepted {
    fn accept_message(
        &self,
        candidate: &RdmaCandidate,
        release: Release,
        config: &Config,
    ) -> AcceptConfirm {
        let is_first_contact = self.seat.is_first_contact();
        let (max_conns, max_links) = candidate.terms.stated();
        let first_contact = is_first_contact.then(|| FirstContact {
            v2_direct: candidate.route == Route::Direct,
            max_conns,
            max_links,
            features: features(config, release),
            ..FirstContact::new(release, config.os, config.host)
        });
        let terms = match candidate.eid {
            Some(eid) => clc::Terms::V2 { eid, first_contact },
            None => clc::Terms::V1 {
                first_contact: is_first_contact,
            },
        };
        let peer_id = config
            .rdma
            .as_ref()
            .map_or(PeerId::ZERO, |rdma| rdma.peer_id);
        AcceptConfirm {
            step: Message::Accept,
            terms,
            body: Body::R(own_end(&self.local, peer_id, self.local.link.mtu)),
        }
    }

    /// What holds for the group, now that the client has stated who it is.
    fn terms(&self, candidate: &RdmaCandidate, stated: Option<&FirstContact>) -> Terms {
        if let Seat::Joined { terms, .. } = self.seat {
            return terms;
        }
        let mut terms = Terms::new(candidate.version, candidate.terms.release, candidate.eid);
        terms.max_connections = Some(candidate.terms.max_conns.into());
        match stated {
            Some(stated) => terms.with_peer(stated.os, stated.host),
            None => terms,
        }
    }
}

impl Pending {
    fn group(&self) -> GroupId {
        self.accepted.seat.group()
    }

    fn finish(self, candidate: &RdmaCandidate) -> Established {
        let Accepted { seat, local } = self.accepted;
        Established {
            role: Role::Server,
            version: candidate.version,
            release: self.terms.release,
            features: self.features,
            eid: candidate.eid,
            group: seat.group(),
            first_contact: seat.is_first_contact(),
            peer_group: GroupId::default(),
            peer_os: self.terms.os,
            peer_host: self.terms.host,
            transport: Transport::Rdma(RdmaPath {
                device: local.device,
                link: local.link,
                peer: self.peer,
                local,
                peer_rmb: self.peer_rmb,
                route: candidate.route,
            }),
        }
    }
}
