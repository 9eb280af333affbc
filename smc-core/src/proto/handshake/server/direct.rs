//! The server's way through SMC-D: a device that reaches the client's, ACCEPT, CONFIRM.

use std::time::Instant;

use smc_wire::clc::{self, AcceptConfirm, Body, ClcType, DirectEnd, FirstContact, Step};
use smc_wire::size::SizeCode;
use smc_wire::types::{Chid, DeclineCode, DmbToken, FeatureMask, GroupId, Release};

use super::{State, Walk};
use crate::device::DeviceError;
use crate::error::{Error, PeerMisbehaved, Phase, SetupStep};
use crate::proto::group::{Intent, Key, Seat, Terms};
use crate::proto::handshake::engine::{
    Common, Failure, Next, after, group_terminated, no_group, not_registered, smaller, unasked,
};
use crate::proto::handshake::offer::features;
use crate::proto::handshake::select::DirectCandidate;
use crate::proto::handshake::{
    Config, DirectPath, Done, Established, PeerAccess, PeerBuffer, Role, Transport, Work,
};

/// Asks whether the device reaches the client's.
pub(super) fn tried(walk: Walk, candidate: DirectCandidate, common: &mut Common) -> State {
    common.work(Work::Reach {
        device: candidate.device.index,
        peer: candidate.peer,
    });
    State::Direct(Box::new(Expect::Reach(ExpectReach { walk, candidate })))
}

#[derive(Debug)]
pub(super) enum Expect {
    Reach(ExpectReach),
    Seat(ExpectSeat),
    Buffer(ExpectBuffer),
    Confirm(ExpectConfirm),
    Opening(ExpectOpening),
    Attachment(ExpectAttachment),
}

impl Expect {
    pub(super) fn message_type(&self) -> Option<ClcType> {
        match self {
            Self::Confirm(_) => Some(ClcType::Confirm),
            _ => None,
        }
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Reach(_) => "reachability",
            Self::Seat(_) => "link group",
            Self::Buffer(_) => "buffer",
            Self::Confirm(_) => "CONFIRM",
            Self::Opening(_) => "opening of the link group",
            Self::Attachment(_) => "attachment",
        }
    }

    pub(super) fn deadline(&self) -> Instant {
        match self {
            Self::Reach(ExpectReach { walk, .. })
            | Self::Seat(ExpectSeat { walk, .. })
            | Self::Buffer(ExpectBuffer { walk, .. }) => walk.deadline,
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
    ) -> Next<State> {
        match self {
            Self::Confirm(state) => state.handle(now, confirm, common),
            _ => Err(PeerMisbehaved::UnexpectedMessage.into()),
        }
    }

    pub(super) fn done(self, now: Instant, done: Done, common: &mut Common) -> Next<State> {
        match (self, done) {
            (Self::Reach(state), Done::Reached(result)) => state.handle(result, common),
            (Self::Seat(state), Done::Entered(Ok(seat))) => Ok(Some(state.handle(seat, common))),
            (Self::Seat(state), Done::Entered(Err(why))) => state
                .walk
                .failed(no_group(DeclineCode::INTERR, why), common),
            (Self::Buffer(state), Done::Registered(Ok(token))) => state.handle(now, token, common),
            (Self::Buffer(state), Done::Registered(Err(error))) => {
                match smaller(&error, state.size) {
                    Some(size) => Ok(Some(state.retry(size, common))),
                    None => state.walk.failed(not_registered(error), common),
                }
            }
            // If the group was terminated meanwhile the client may have used the connection before
            // that, and the connection ends together with the group.
            (Self::Opening(state), Done::Opened(_)) => state.handle(common),
            (Self::Attachment(state), Done::Attached(result)) => {
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
            _ => unasked(),
        }
    }

    pub(super) fn timeout(self, common: &mut Common) -> Next<State> {
        Err(match self {
            Self::Reach(state) => state.walk.late(DeclineCode::NOSMCD2DEV, SetupStep::Reach),
            Self::Seat(state) => state.walk.late(DeclineCode::INTERR, SetupStep::Enter),
            Self::Buffer(state) => state.walk.late(DeclineCode::MEM, SetupStep::Register),
            Self::Confirm(_) => Error::TimedOut(Phase::Confirm).into(),
            Self::Opening(_) => Error::TimedOut(Phase::Group).into(),
            Self::Attachment(state) => {
                common.establish(state.established.finish(PeerAccess::Lost));
                return Ok(None);
            }
        })
    }

    pub(super) fn terminated(self, common: &mut Common) -> Next<State> {
        match self {
            Self::Reach(_) | Self::Seat(_) => Ok(Some(State::Direct(Box::new(self)))),
            Self::Buffer(state) => state.walk.failed(group_terminated(), common),
            // The client may have confirmed already. It has used the connection then, perhaps, and
            // the connection ends together with the group.
            Self::Confirm(_) | Self::Opening(_) | Self::Attachment(_) => {
                Ok(Some(State::Direct(Box::new(self))))
            }
        }
    }
}

/// The device says whether it reaches the client's.
#[derive(Debug)]
pub(super) struct ExpectReach {
    walk: Walk,
    candidate: DirectCandidate,
}

impl ExpectReach {
    fn handle(self, reached: Result<(), DeviceError>, common: &mut Common) -> Next<State> {
        let Self {
            mut walk,
            candidate,
        } = self;
        let is_usable = match reached {
            Ok(()) => walk.selection.claim(&candidate),
            Err(error) => {
                walk.selection.unreached(error);
                false
            }
        };
        if !is_usable {
            return walk.next(common);
        }
        common.work(Work::Enter {
            key: Key::Direct {
                device: candidate.device.index,
                peer: candidate.peer,
            },
            intent: Intent::JoinOrCreate,
        });
        Ok(Some(State::Direct(Box::new(Expect::Seat(ExpectSeat {
            walk,
            candidate,
        })))))
    }
}

/// The registry decides on the link group: join, create, or wait for another creator.
#[derive(Debug)]
pub(super) struct ExpectSeat {
    walk: Walk,
    candidate: DirectCandidate,
}

impl ExpectSeat {
    fn handle(self, seat: Seat, common: &mut Common) -> State {
        let Self { walk, candidate } = self;
        common.group = Some(seat.group());
        let size = common.config.buffer.min(candidate.device.max_buffer);
        ExpectBuffer {
            walk,
            candidate,
            seat,
            size,
        }
        .retry(size, common)
    }
}

/// The device registers our receive buffer.
#[derive(Debug)]
pub(super) struct ExpectBuffer {
    walk: Walk,
    candidate: DirectCandidate,
    seat: Seat,
    size: SizeCode,
}

impl ExpectBuffer {
    fn retry(mut self, size: SizeCode, common: &mut Common) -> State {
        self.size = size;
        let DirectCandidate { device, peer, .. } = self.candidate;
        common.work(Work::Register {
            device: device.index,
            peer,
            size,
            // A client's buffer is no larger than the server's.
            peer_size: size,
        });
        State::Direct(Box::new(Expect::Buffer(self)))
    }

    fn handle(self, now: Instant, token: DmbToken, common: &mut Common) -> Next<State> {
        let Self {
            walk,
            candidate,
            seat,
            size,
        } = self;
        let release = walk.selection.release;
        let accepted = Accepted {
            candidate,
            seat,
            size,
            token,
            release,
        };
        common.send_message(&accepted.accept_message(&common.config))?;
        let deadline = after(now, common.config.timeouts.message);
        let state = ExpectConfirm { accepted, deadline };
        Ok(Some(State::Direct(Box::new(Expect::Confirm(state)))))
    }
}

/// What ACCEPT says.
#[derive(Debug)]
struct Accepted {
    candidate: DirectCandidate,
    seat: Seat,
    size: SizeCode,
    token: DmbToken,
    /// Negotiated in this handshake; a group that exists keeps its own.
    release: Release,
}

impl Accepted {
    fn accept_message(&self, config: &Config) -> AcceptConfirm {
        let DirectCandidate { device, eid, .. } = self.candidate;
        let is_first_contact = self.seat.is_first_contact();
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
                group: self.seat.group(),
            }),
        }
    }

    /// What holds for the group, now that the client has stated who it is.
    fn terms(&self, stated: Option<&FirstContact>) -> Terms {
        if let Seat::Joined { terms, .. } = self.seat {
            return terms;
        }
        let DirectCandidate { version, eid, .. } = self.candidate;
        let release = if version.is_v2() {
            self.release
        } else {
            Release::V2_0
        };
        let terms = Terms::new(version, release, eid);
        match stated {
            Some(stated) => terms.with_peer(stated.os, stated.host),
            None => terms,
        }
    }
}

/// ACCEPT is out; the client completes its side.
#[derive(Debug)]
pub(super) struct ExpectConfirm {
    accepted: Accepted,
    deadline: Instant,
}

impl ExpectConfirm {
    fn handle(self, now: Instant, confirm: &AcceptConfirm, common: &mut Common) -> Next<State> {
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
        let state = ExpectOpening {
            established,
            deadline,
        };
        match state.established.accepted.seat {
            Seat::Created(group) => {
                common.work(Work::Open { group, terms });
                Ok(Some(State::Direct(Box::new(Expect::Opening(state)))))
            }
            Seat::Joined { .. } => state.handle(common),
        }
    }
}

/// A connection that only lacks our own last steps.
#[derive(Debug)]
struct Pending {
    accepted: Accepted,
    terms: Terms,
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
        let Accepted {
            candidate,
            seat,
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
            group: seat.group(),
            first_contact: seat.is_first_contact(),
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
pub(super) struct ExpectOpening {
    established: Pending,
    deadline: Instant,
}

impl ExpectOpening {
    fn handle(self, common: &mut Common) -> Next<State> {
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
        let state = ExpectAttachment {
            established,
            deadline,
        };
        Ok(Some(State::Direct(Box::new(Expect::Attachment(state)))))
    }
}

/// The device maps the client's buffer.
#[derive(Debug)]
pub(super) struct ExpectAttachment {
    established: Pending,
    deadline: Instant,
}
