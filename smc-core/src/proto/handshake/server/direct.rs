//! The server's way through SMC-D: a device that reaches the client's, ACCEPT, CONFIRM.

use std::time::Instant;

use smc_wire::clc::{self, AcceptConfirm, Body, ClcType, DirectEnd, FirstContact, Step};
use smc_wire::size::SizeCode;
use smc_wire::types::{Chid, DeclineCode, DmbToken, FeatureMask, GroupId, Release};

use super::{DeviceScan, ServerState};
use crate::device::DeviceError;
use crate::error::{Error, PeerMisbehaved, Phase, SetupStep};
use crate::proto::group::{GroupKey, GroupTerms, Intent, Member};
use crate::proto::handshake::engine::{
    Common, Failure, Next, after, group_terminated, next_smaller, no_group, not_registered,
    unexpected_done,
};
use crate::proto::handshake::offer::features;
use crate::proto::handshake::select::DirectCandidate;
use crate::proto::handshake::{
    DirectPath, Established, HandshakeConfig, PeerAccess, PeerBuffer, Role, Transport, Work,
    WorkDone,
};

/// Asks whether the device reaches the client's.
pub(super) fn try_candidate(
    scan: DeviceScan,
    candidate: DirectCandidate,
    common: &mut Common,
) -> ServerState {
    common.work(Work::Reach {
        device: candidate.device.index,
        peer: candidate.peer,
    });
    ServerState::Direct(Box::new(DirectServerState::Reach(ExpectReach {
        scan,
        candidate,
    })))
}

#[derive(Debug)]
pub(super) enum DirectServerState {
    Reach(ExpectReach),
    Group(ExpectServerGroup),
    Buffer(ExpectServerBuffer),
    Confirm(ExpectConfirm),
    Opening(ExpectServerOpening),
    Attachment(ExpectServerAttachment),
}

impl DirectServerState {
    pub(super) fn message_type(&self) -> Option<ClcType> {
        match self {
            Self::Confirm(_) => Some(ClcType::Confirm),
            _ => None,
        }
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Reach(_) => "reachability",
            Self::Group(_) => "link group",
            Self::Buffer(_) => "buffer",
            Self::Confirm(_) => "CONFIRM",
            Self::Opening(_) => "opening of the link group",
            Self::Attachment(_) => "attachment",
        }
    }

    pub(super) fn deadline(&self) -> Instant {
        match self {
            Self::Reach(ExpectReach { scan, .. })
            | Self::Group(ExpectServerGroup { scan, .. })
            | Self::Buffer(ExpectServerBuffer { scan, .. }) => scan.deadline,
            Self::Confirm(state) => state.deadline,
            Self::Opening(state) => state.deadline,
            Self::Attachment(state) => state.deadline,
        }
    }

    pub(super) fn confirmed(
        self,
        now: Instant,
        confirm: &AcceptConfirm,
        common: &mut Common,
    ) -> Next<ServerState> {
        match self {
            Self::Confirm(state) => state.handle(now, confirm, common),
            _ => Err(PeerMisbehaved::UnexpectedMessage.into()),
        }
    }

    pub(super) fn done(
        self,
        now: Instant,
        done: WorkDone,
        common: &mut Common,
    ) -> Next<ServerState> {
        match (self, done) {
            (Self::Reach(state), WorkDone::Reached(result)) => state.handle(result, common),
            (Self::Group(state), WorkDone::Entered(Ok(member))) => {
                Ok(Some(state.handle(member, common)))
            }
            (Self::Group(state), WorkDone::Entered(Err(why))) => state
                .scan
                .candidate_failed(no_group(DeclineCode::INTERR, why), common),
            (Self::Buffer(state), WorkDone::Registered(Ok(token))) => {
                state.handle(now, token, common)
            }
            (Self::Buffer(state), WorkDone::Registered(Err(error))) => {
                match next_smaller(&error, state.size) {
                    Some(size) => Ok(Some(state.retry(size, common))),
                    None => state.scan.candidate_failed(not_registered(error), common),
                }
            }
            // If the group was terminated meanwhile the client may have used the connection before
            // that, and the connection ends together with the group.
            (Self::Opening(state), WorkDone::Opened(_)) => state.handle(common),
            (Self::Attachment(state), WorkDone::Attached(result)) => {
                let access = match result {
                    Ok(len) if len < state.established.peer_end() => {
                        return Err(PeerMisbehaved::BadBuffer.into());
                    }
                    Ok(_) => PeerAccess::Attached,
                    Err(_) => PeerAccess::Lost,
                };
                common.establish(state.established.finish(access));
                Ok(None)
            }
            _ => unexpected_done(),
        }
    }

    pub(super) fn timeout(self, common: &mut Common) -> Next<ServerState> {
        Err(match self {
            Self::Reach(state) => state
                .scan
                .timed_out(DeclineCode::NOSMCD2DEV, SetupStep::Reach),
            Self::Group(state) => state.scan.timed_out(DeclineCode::INTERR, SetupStep::Enter),
            Self::Buffer(state) => state.scan.timed_out(DeclineCode::MEM, SetupStep::Register),
            Self::Confirm(_) => Error::TimedOut(Phase::Confirm).into(),
            Self::Opening(_) => Error::TimedOut(Phase::Group).into(),
            Self::Attachment(state) => {
                common.establish(state.established.finish(PeerAccess::Lost));
                return Ok(None);
            }
        })
    }

    pub(super) fn terminated(self, common: &mut Common) -> Next<ServerState> {
        match self {
            Self::Reach(_) | Self::Group(_) => Ok(Some(ServerState::Direct(Box::new(self)))),
            Self::Buffer(state) => state.scan.candidate_failed(group_terminated(), common),
            // The client may have confirmed already. It has used the connection then, perhaps, and
            // the connection ends together with the group.
            Self::Confirm(_) | Self::Opening(_) | Self::Attachment(_) => {
                Ok(Some(ServerState::Direct(Box::new(self))))
            }
        }
    }
}

/// The device says whether it reaches the client's.
#[derive(Debug)]
pub(super) struct ExpectReach {
    scan: DeviceScan,
    candidate: DirectCandidate,
}

impl ExpectReach {
    fn handle(self, reached: Result<(), DeviceError>, common: &mut Common) -> Next<ServerState> {
        let Self {
            mut scan,
            candidate,
        } = self;
        let is_usable = match reached {
            Ok(()) => scan.selection.claim(&candidate),
            Err(error) => {
                scan.selection.handle_unreachable(error);
                false
            }
        };
        if !is_usable {
            return scan.next(common);
        }
        common.work(Work::Enter {
            key: GroupKey::Direct {
                device: candidate.device.index,
                peer: candidate.peer,
            },
            intent: Intent::JoinOrCreate,
        });
        Ok(Some(ServerState::Direct(Box::new(
            DirectServerState::Group(ExpectServerGroup { scan, candidate }),
        ))))
    }
}

/// The registry decides on the link group: join, create, or wait for another creator.
#[derive(Debug)]
pub(super) struct ExpectServerGroup {
    scan: DeviceScan,
    candidate: DirectCandidate,
}

impl ExpectServerGroup {
    fn handle(self, member: Member, common: &mut Common) -> ServerState {
        let Self { scan, candidate } = self;
        common.group = Some(member.group());
        let size = common.config.buffer.min(candidate.device.max_buffer);
        ExpectServerBuffer {
            scan,
            candidate,
            member,
            size,
        }
        .retry(size, common)
    }
}

/// The device registers our receive buffer.
#[derive(Debug)]
pub(super) struct ExpectServerBuffer {
    scan: DeviceScan,
    candidate: DirectCandidate,
    member: Member,
    size: SizeCode,
}

impl ExpectServerBuffer {
    fn retry(mut self, size: SizeCode, common: &mut Common) -> ServerState {
        self.size = size;
        let DirectCandidate { device, peer, .. } = self.candidate;
        common.work(Work::Register {
            device: device.index,
            peer,
            size,
            // A client's buffer is no larger than the server's.
            peer_size: size,
        });
        ServerState::Direct(Box::new(DirectServerState::Buffer(self)))
    }

    fn handle(self, now: Instant, token: DmbToken, common: &mut Common) -> Next<ServerState> {
        let Self {
            scan,
            candidate,
            member,
            size,
        } = self;
        let release = scan.selection.release;
        let accepted = SentAccept {
            candidate,
            member,
            size,
            token,
            release,
        };
        common.send_message(&accepted.accept_message(&common.config))?;
        let deadline = after(now, common.config.timeouts.message);
        let state = ExpectConfirm { accepted, deadline };
        Ok(Some(ServerState::Direct(Box::new(
            DirectServerState::Confirm(state),
        ))))
    }
}

/// What ACCEPT says.
#[derive(Debug)]
struct SentAccept {
    candidate: DirectCandidate,
    member: Member,
    size: SizeCode,
    token: DmbToken,
    /// Negotiated in this handshake; a group that exists keeps its own.
    release: Release,
}

impl SentAccept {
    fn accept_message(&self, config: &HandshakeConfig) -> AcceptConfirm {
        let DirectCandidate { device, eid, .. } = self.candidate;
        let is_first_contact = self.member.is_first_contact();
        let first_contact = is_first_contact.then(|| FirstContact {
            features: features(config, self.release),
            ..FirstContact::new(self.release, config.os, config.host)
        });
        let (terms, chid) = match eid {
            Some(eid) => (clc::Terms::V2 { eid, first_contact }, device.chid),
            None => (
                clc::Terms::V1 {
                    first_contact: is_first_contact,
                },
                Chid::NONE,
            ),
        };
        AcceptConfirm {
            step: Step::Accept,
            terms,
            body: Body::D(DirectEnd {
                gid: device.gid,
                chid,
                dmb: self.token,
                dmbe_index: 0,
                size: self.size,
                group: self.member.group(),
            }),
        }
    }

    /// What holds for the group, now that the client has stated who it is.
    fn terms(&self, stated: Option<&FirstContact>) -> GroupTerms {
        if let Member::Joined { terms, .. } = self.member {
            return terms;
        }
        let DirectCandidate { version, eid, .. } = self.candidate;
        let release = if version.is_v2() {
            self.release
        } else {
            Release::V2_0
        };
        let terms = GroupTerms::new(version, release, eid);
        match stated {
            Some(stated) => terms.with_peer(stated.os, stated.host),
            None => terms,
        }
    }
}

/// ACCEPT is out; the client completes its side.
#[derive(Debug)]
pub(super) struct ExpectConfirm {
    accepted: SentAccept,
    deadline: Instant,
}

impl ExpectConfirm {
    fn handle(
        self,
        now: Instant,
        confirm: &AcceptConfirm,
        common: &mut Common,
    ) -> Next<ServerState> {
        let Self { accepted, .. } = self;
        let Body::D(end) = confirm.body else {
            return Err(PeerMisbehaved::UnexpectedMessage.into());
        };
        if confirm.version().is_v2() != accepted.candidate.version.is_v2() {
            return Err(PeerMisbehaved::UnexpectedMessage.into());
        }
        let stated = confirm.first_contact();
        if stated.is_some_and(|stated| stated.release != accepted.release) {
            return Err(Failure::decline(DeclineCode::RELEASEERR));
        }
        let deadline = after(now, common.config.timeouts.work);
        let terms = accepted.terms(stated);
        let established = Pending {
            terms,
            features: stated.map(|stated| stated.features).unwrap_or_default(),
            peer_buffer: PeerBuffer::new(end.dmb, end.dmbe_index, end.size),
            peer_group: end.group,
            accepted,
        };
        let state = ExpectServerOpening {
            established,
            deadline,
        };
        match state.established.accepted.member {
            Member::Created(group) => {
                common.work(Work::Open { group, terms });
                Ok(Some(ServerState::Direct(Box::new(
                    DirectServerState::Opening(state),
                ))))
            }
            Member::Joined { .. } => state.handle(common),
        }
    }
}

/// A connection that only lacks our own last steps.
#[derive(Debug)]
struct Pending {
    accepted: SentAccept,
    terms: GroupTerms,
    features: FeatureMask,
    peer_buffer: PeerBuffer,
    peer_group: GroupId,
}

impl Pending {
    /// Where the peer's element ends in its buffer, in bytes.
    fn peer_end(&self) -> usize {
        self.peer_buffer.end()
    }

    fn finish(self, access: PeerAccess) -> Established {
        let SentAccept {
            candidate,
            member,
            size,
            token,
            ..
        } = self.accepted;
        let DirectCandidate {
            device,
            peer,
            version,
            eid,
            ..
        } = candidate;
        Established {
            role: Role::Server,
            version,
            release: self.terms.release,
            features: self.features,
            eid,
            group: member.group(),
            first_contact: member.is_first_contact(),
            peer_group: self.peer_group,
            peer_os: self.terms.os,
            peer_host: self.terms.host,
            transport: Transport::Direct(DirectPath {
                device: device.index,
                chid: device.chid,
                peer,
                local: token,
                local_size: size,
                peer_buffer: self.peer_buffer,
                access,
            }),
        }
    }
}

/// CONFIRM is processed; others may join our new link group.
#[derive(Debug)]
pub(super) struct ExpectServerOpening {
    established: Pending,
    deadline: Instant,
}

impl ExpectServerOpening {
    fn handle(self, common: &mut Common) -> Next<ServerState> {
        let Self {
            established,
            deadline,
        } = self;
        let DirectCandidate { device, peer, .. } = established.accepted.candidate;
        if !device.nocopy {
            common.establish(established.finish(PeerAccess::Moved));
            return Ok(None);
        }
        let token = established.peer_buffer.token;
        common.work(Work::Attach {
            device: device.index,
            peer,
            token,
        });
        let state = ExpectServerAttachment {
            established,
            deadline,
        };
        Ok(Some(ServerState::Direct(Box::new(
            DirectServerState::Attachment(state),
        ))))
    }
}

/// The device maps the client's buffer.
#[derive(Debug)]
pub(super) struct ExpectServerAttachment {
    established: Pending,
    deadline: Instant,
}
