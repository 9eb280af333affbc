//! The server's way through SMC-R: a port that reaches the client, ACCEPT, CONFIRM, the confirmed
//! link.

use std::time::Instant;

use smc_wire::clc::{self, AcceptConfirm, Body, ClcType, FirstContact, RdmaEnd, Step as Message};
use smc_wire::size::SizeCode;
use smc_wire::types::{DeclineCode, FeatureMask, GroupId, PeerId, Release};

use super::{DeviceScan, ServerState};
use crate::device::{LinkAddress, Route};
use crate::error::{Error, FallbackReason, PeerMisbehaved, Phase, SetupStep};
use crate::proto::group::{GroupTerms, Intent, Member, NoGroup};
use crate::proto::handshake::engine::{
    Common, Failure, Next, after, group_terminated, no_group, of_device, step_timed_out,
    unexpected_done,
};
use crate::proto::handshake::offer::features;
use crate::proto::handshake::rdma::{
    not_confirmed, not_opened, own_end, peer_link, peer_rmb, unknown_rkey, without_rmb,
};
use crate::proto::handshake::select::RdmaCandidate;
use crate::proto::handshake::{
    ConfirmFailure, Established, HandshakeConfig, LinkChoice, LocalRmb, PeerRmb, RdmaPath, Role,
    Transport, Work, WorkDone,
};

/// Asks for a seat in the link group.
pub(super) fn try_candidate(
    scan: DeviceScan,
    candidate: Box<RdmaCandidate>,
    common: &mut Common,
) -> ServerState {
    common.work(Work::Enter {
        key: candidate.key(),
        intent: Intent::JoinOrCreate,
    });
    RdmaServerState::of(candidate, Step::Group(scan))
}

#[derive(Debug)]
pub(super) struct RdmaServerState {
    candidate: Box<RdmaCandidate>,
    step: Step,
}

/// What is waited for.
#[derive(Debug)]
enum Step {
    /// The registry decides on the link group: join, create, or wait for another creator.
    Group(DeviceScan),
    /// First contact: the device makes the queue pair.
    Link(DeviceScan, Member),
    /// A receive buffer.
    Rmb(DeviceScan, Member, SizeCode),
    /// Reuse: the keys of the local buffer are announced to the client before ACCEPT.
    Rkey(DeviceScan, Member, LocalRmb),
    /// ACCEPT is out; the client completes its side.
    Confirm(SentAccept, Instant),
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
struct SentAccept {
    member: Member,
    local: LocalRmb,
}

/// A connection that only lacks our own last steps.
#[derive(Debug)]
struct Pending {
    accepted: SentAccept,
    terms: GroupTerms,
    features: FeatureMask,
    peer: LinkAddress,
    peer_rmb: PeerRmb,
}

impl RdmaServerState {
    fn of(candidate: Box<RdmaCandidate>, step: Step) -> ServerState {
        ServerState::Rdma(Box::new(Self { candidate, step }))
    }

    pub(super) fn message_type(&self) -> Option<ClcType> {
        match self.step {
            Step::Confirm(..) => Some(ClcType::Confirm),
            // Nothing else makes sense of what the client could send now.
            Step::Rkey(..) | Step::Confirming(..) | Step::Late(..) => Some(ClcType::Decline),
            _ => None,
        }
    }

    /// The client, and its application, may have finished before its message arrives.
    pub(super) fn outlives_tcp(&self) -> bool {
        matches!(self.step, Step::Confirming(..))
    }

    pub(super) fn name(&self) -> &'static str {
        match self.step {
            Step::Group(_) => "link group",
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
            Step::Group(scan)
            | Step::Link(scan, _)
            | Step::Rmb(scan, ..)
            | Step::Rkey(scan, ..) => scan.deadline,
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
    ) -> Next<ServerState> {
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

    pub(super) fn done(
        self,
        now: Instant,
        done: WorkDone,
        common: &mut Common,
    ) -> Next<ServerState> {
        let Self { candidate, step } = self;
        match (step, done) {
            (Step::Group(scan), WorkDone::Entered(Ok(member))) => {
                Ok(Some(entered(scan, candidate, member, common)))
            }
            (Step::Group(scan), WorkDone::Entered(Err(why))) => {
                let code = match why {
                    NoGroup::Full => DeclineCode::MEM,
                    NoGroup::Missing => DeclineCode::INTERR,
                };
                scan.candidate_failed(no_group(code, why), common)
            }
            (Step::Link(scan, member), WorkDone::LinkOpened(Ok(_))) => {
                let size = common.config.rmb;
                Ok(Some(prepare(scan, candidate, member, size, common)))
            }
            (Step::Link(scan, _), WorkDone::LinkOpened(Err(error))) => {
                scan.candidate_failed(not_opened(error), common)
            }
            (Step::Rmb(scan, member, _), WorkDone::RmbPrepared(Ok(local))) => {
                if member.is_first_contact() {
                    return accept(now, candidate, SentAccept { member, local }, scan, common);
                }
                let group = member.group();
                common.work(Work::ConfirmRkey { group });
                Ok(Some(Self::of(candidate, Step::Rkey(scan, member, local))))
            }
            (Step::Rmb(scan, member, size), WorkDone::RmbPrepared(Err(error))) => {
                match without_rmb(error, size, DeclineCode::NOACTLINK) {
                    Ok(size) => Ok(Some(prepare(scan, candidate, member, size, common))),
                    Err(reason) => scan.candidate_failed(reason, common),
                }
            }
            (Step::Rkey(scan, member, local), WorkDone::RkeyConfirmed(Ok(()))) => {
                accept(now, candidate, SentAccept { member, local }, scan, common)
            }
            (Step::Rkey(scan, ..), WorkDone::RkeyConfirmed(Err(failure))) => {
                scan.candidate_failed(unknown_rkey(failure), common)
            }
            (Step::Binding(pending, deadline), WorkDone::PeerBound(Ok(()))) => {
                bound(candidate, pending, deadline, common)
            }
            (Step::Binding(pending, _), WorkDone::PeerBound(Err(_))) => {
                if pending.accepted.member.is_first_contact() {
                    return Err(Failure::decline(DeclineCode::ERR_RTOK));
                }
                // The client is in SMC mode already, and its data may have arrived: nothing can be
                // sent to it, and the connection ends behind that.
                common.establish(pending.finish(&candidate));
                Ok(None)
            }
            (Step::Connecting(pending, _), WorkDone::LinkConnected(Ok(()))) => {
                // From here on the client may decline whenever we do.
                common.crossing_possible = true;
                common.work(Work::ConfirmLink {
                    group: pending.group(),
                });
                let deadline = after(now, common.config.timeouts.confirm_link);
                let step = Step::Confirming(pending, deadline);
                Ok(Some(Self::of(candidate, step)))
            }
            (Step::Connecting(..), WorkDone::LinkConnected(Err(error))) => {
                let (code, step) = (DeclineCode::ERR_RDYLNK, SetupStep::ConnectLink);
                Err(Failure::decline(of_device(code, step, error)))
            }
            (Step::Confirming(pending, _), WorkDone::LinkConfirmed(Ok(()))) => {
                common.work(Work::Open {
                    group: pending.group(),
                    terms: pending.terms,
                });
                let deadline = after(now, common.config.timeouts.work);
                Ok(Some(Self::of(candidate, Step::Opening(pending, deadline))))
            }
            (Step::Confirming(..), WorkDone::LinkConfirmed(Err(failure))) => {
                unconfirmed(now, candidate, failure, common)
            }
            // What was asked for before it came to an end.
            (Step::Late(reason, deadline), WorkDone::LinkConfirmed(_)) => {
                Ok(Some(Self::of(candidate, Step::Late(reason, deadline))))
            }
            // If the group was terminated meanwhile the client may have used the connection before
            // that, and the connection ends together with the group.
            (Step::Opening(pending, _), WorkDone::Opened(_)) => {
                common.establish(pending.finish(&candidate));
                Ok(None)
            }
            _ => unexpected_done(),
        }
    }

    pub(super) fn timeout(self) -> Failure {
        match self.step {
            Step::Group(scan) => scan.timed_out(DeclineCode::INTERR, SetupStep::Enter),
            Step::Link(scan, _) => scan.timed_out(DeclineCode::INTERR, SetupStep::OpenLink),
            Step::Rmb(scan, ..) => scan.timed_out(DeclineCode::MEM, SetupStep::Register),
            Step::Rkey(scan, ..) => scan.timed_out(DeclineCode::ERR_REGBUF, SetupStep::ConfirmRkey),
            Step::Confirm(..) => Error::TimedOut(Phase::Confirm).into(),
            Step::Binding(pending, _) if !pending.accepted.member.is_first_contact() => {
                Error::TimedOut(Phase::Group).into()
            }
            Step::Binding(..) => {
                Failure::decline(step_timed_out(DeclineCode::INTERR, SetupStep::BindPeer))
            }
            Step::Connecting(..) => Failure::decline(step_timed_out(
                DeclineCode::ERR_RDYLNK,
                SetupStep::ConnectLink,
            )),
            Step::Confirming(..) => Failure::decline(step_timed_out(
                DeclineCode::TIMEOUT_CL,
                SetupStep::ConfirmLink,
            )),
            Step::Late(reason, _) => Failure::Decline(reason),
            Step::Opening(..) => Error::TimedOut(Phase::Group).into(),
        }
    }

    pub(super) fn terminated(self, common: &mut Common) -> Next<ServerState> {
        match self.step {
            Step::Link(scan, _) | Step::Rmb(scan, ..) | Step::Rkey(scan, ..) => {
                scan.candidate_failed(group_terminated(), common)
            }
            // The client waits for CONFIRM LINK, and for a DECLINE.
            Step::Binding(pending, _) | Step::Connecting(pending, _)
                if pending.accepted.member.is_first_contact() =>
            {
                Err(Failure::decline(group_terminated()))
            }
            // Until CONFIRM comes the client may decline and go on with TCP. It may also have
            // confirmed, sent its data and ended: whatever is awaited tells which.
            step => Ok(Some(Self::of(self.candidate, step))),
        }
    }
}

fn entered(
    scan: DeviceScan,
    candidate: Box<RdmaCandidate>,
    member: Member,
    common: &mut Common,
) -> ServerState {
    common.group = Some(member.group());
    if !member.is_first_contact() {
        let size = common.config.rmb;
        return prepare(scan, candidate, member, size, common);
    }
    common.work(Work::OpenLink {
        group: member.group(),
        port: candidate.port.device,
        address: candidate.port.address.clone(),
    });
    RdmaServerState::of(candidate, Step::Link(scan, member))
}

fn prepare(
    scan: DeviceScan,
    candidate: Box<RdmaCandidate>,
    member: Member,
    size: SizeCode,
    common: &mut Common,
) -> ServerState {
    common.work(Work::PrepareRmb {
        group: member.group(),
        link: if member.is_first_contact() {
            LinkChoice::First
        } else {
            LinkChoice::Assign
        },
        size,
    });
    RdmaServerState::of(candidate, Step::Rmb(scan, member, size))
}

/// Everything is there: tell the client.
fn accept(
    now: Instant,
    candidate: Box<RdmaCandidate>,
    accepted: SentAccept,
    scan: DeviceScan,
    common: &mut Common,
) -> Next<ServerState> {
    let release = scan.selection.release;
    common.send_message(&accepted.accept_message(&candidate, release, &common.config))?;
    let deadline = after(now, common.config.timeouts.message);
    Ok(Some(RdmaServerState::of(
        candidate,
        Step::Confirm(accepted, deadline),
    )))
}

/// The client has to repeat what ACCEPT says (docs/spec/handshake.md#confirm-checks).
fn check_limits(
    candidate: &RdmaCandidate,
    accepted: &SentAccept,
    stated: Option<&FirstContact>,
) -> Result<(), DeclineCode> {
    let Some(stated) = stated.filter(|_| accepted.member.is_first_contact()) else {
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
) -> Next<ServerState> {
    if !pending.accepted.member.is_first_contact() {
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
    Ok(Some(RdmaServerState::of(candidate, step)))
}

fn unconfirmed(
    now: Instant,
    candidate: Box<RdmaCandidate>,
    failure: ConfirmFailure,
    common: &Common,
) -> Next<ServerState> {
    let (reason, may_be_late) = not_confirmed(failure);
    if !may_be_late || common.is_closed() {
        return Err(Failure::decline(reason));
    }
    let deadline = after(now, common.config.timeouts.late_decline);
    let step = Step::Late(Box::new(reason), deadline);
    Ok(Some(RdmaServerState::of(candidate, step)))
}

impl SentAccept {
    fn accept_message(
        &self,
        candidate: &RdmaCandidate,
        release: Release,
        config: &HandshakeConfig,
    ) -> AcceptConfirm {
        let is_first_contact = self.member.is_first_contact();
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
    fn terms(&self, candidate: &RdmaCandidate, stated: Option<&FirstContact>) -> GroupTerms {
        if let Member::Joined { terms, .. } = self.member {
            return terms;
        }
        let mut terms = GroupTerms::new(candidate.version, candidate.terms.release, candidate.eid);
        terms.max_connections = Some(candidate.terms.max_conns.into());
        match stated {
            Some(stated) => terms.with_peer(stated.os, stated.host),
            None => terms,
        }
    }
}

impl Pending {
    fn group(&self) -> GroupId {
        self.accepted.member.group()
    }

    fn finish(self, candidate: &RdmaCandidate) -> Established {
        let SentAccept { member, local } = self.accepted;
        Established {
            role: Role::Server,
            version: candidate.version,
            release: self.terms.release,
            features: self.features,
            eid: candidate.eid,
            group: member.group(),
            first_contact: member.is_first_contact(),
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
