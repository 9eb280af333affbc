//! The client's completion of SMC-D, from ACCEPT to CONFIRM.

use std::time::Instant;

use smc_wire::clc::{self, AcceptConfirm, Body, DirectEnd, FirstContact, Step};
use smc_wire::size::SizeCode;
use smc_wire::types::{Chid, DeclineCode, DmbToken, Gid, GroupId, Release};

use super::{AcceptInfo, ClientState, ExpectOpening};
use crate::device::DeviceError;
use crate::error::{PeerMisbehaved, SetupStep};
use crate::proto::group::{GroupKey, GroupTerms, Member};
use crate::proto::handshake::engine::{
    Common, Failure, Next, group_terminated, next_smaller, no_group, not_registered, of_device,
    step_timed_out, unexpected_done,
};
use crate::proto::handshake::{
    ClientOffer, DirectDevice, DirectPath, Established, HandshakeConfig, PeerAccess, PeerBuffer,
    Role, Transport, Work, WorkDone,
};

/// The device that the server means, and a seat in the link group.
pub(super) fn chosen(
    accepted: AcceptInfo,
    offer: &ClientOffer,
    end: &DirectEnd,
    common: &mut Common,
) -> Next<ClientState> {
    let device = if accepted.version.is_v2() {
        let device = offer.v2_device(end.chid);
        device.ok_or(PeerMisbehaved::SelectedUnofferedDevice)?
    } else {
        let device = offer.v1_device();
        device.ok_or_else(|| Failure::decline(DeclineCode::MODEUNSUPP))?
    };
    let chosen = DirectChoice {
        accepted,
        device,
        peer: end.gid,
        buffer: PeerBuffer::new(end.dmb, end.dmbe_index, end.size),
        peer_group: end.group,
    };
    common.work(Work::Reach {
        device: device.index,
        peer: end.gid,
    });
    Ok(Some(ClientState::Direct(DirectClientState::Reach(
        ExpectReach { chosen },
    ))))
}

#[derive(Debug)]
pub(super) enum DirectClientState {
    Reach(ExpectReach),
    Group(ExpectGroup),
    Buffer(ExpectBuffer),
    Attachment(ExpectAttachment),
}

impl DirectClientState {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Reach(_) => "reachability",
            Self::Group(_) => "link group",
            Self::Buffer(_) => "buffer",
            Self::Attachment(_) => "attachment",
        }
    }

    pub(super) fn deadline(&self) -> Instant {
        match self {
            Self::Reach(ExpectReach { chosen })
            | Self::Group(ExpectGroup { chosen })
            | Self::Buffer(ExpectBuffer { chosen, .. })
            | Self::Attachment(ExpectAttachment { chosen, .. }) => chosen.accepted.deadline,
        }
    }

    pub(super) fn done(self, done: WorkDone, common: &mut Common) -> Next<ClientState> {
        match (self, done) {
            (Self::Reach(state), WorkDone::Reached(Ok(()))) => Ok(Some(state.handle(common))),
            (Self::Reach(state), WorkDone::Reached(Err(error))) => {
                let code = state.chosen.accepted.unreachable();
                Err(Failure::decline(of_device(code, SetupStep::Reach, error)))
            }
            (Self::Group(state), WorkDone::Entered(Ok(member))) => state.handle(member, common),
            (Self::Group(_), WorkDone::Entered(Err(why))) => {
                Err(Failure::decline(no_group(DeclineCode::SYNCERR, why)))
            }
            (Self::Buffer(state), WorkDone::Registered(Ok(token))) => state.handle(token, common),
            (Self::Buffer(state), WorkDone::Registered(Err(error))) => {
                match next_smaller(&error, state.size) {
                    Some(size) => Ok(Some(state.in_group.register(state.chosen, size, common))),
                    None => Err(Failure::decline(not_registered(error))),
                }
            }
            (Self::Attachment(state), WorkDone::Attached(result)) => {
                let short = DeviceError::Invalid("mapping is shorter than the buffer");
                let access = match result {
                    Ok(len) if len >= state.chosen.buffer.end() => PeerAccess::Attached,
                    // The server has used the connection and ended.
                    Err(error) if common.is_confirmed && error.is_peer_gone() => PeerAccess::Lost,
                    // A mapping that does not hold the element is no better than none.
                    failed => {
                        let error = failed.err().unwrap_or(short);
                        let (code, step) = (DeclineCode::MEM, SetupStep::Attach);
                        return Err(Failure::decline(of_device(code, step, error)));
                    }
                };
                confirm(state.chosen, state.in_group, state.local, access, common)
            }
            _ => unexpected_done(),
        }
    }

    pub(super) fn timeout(self) -> Failure {
        Failure::decline(match self {
            Self::Reach(state) => {
                step_timed_out(state.chosen.accepted.unreachable(), SetupStep::Reach)
            }
            Self::Group(_) => step_timed_out(DeclineCode::INTERR, SetupStep::Enter),
            Self::Buffer(_) => step_timed_out(DeclineCode::MEM, SetupStep::Register),
            Self::Attachment(_) => step_timed_out(DeclineCode::MEM, SetupStep::Attach),
        })
    }

    pub(super) fn terminated(self) -> Next<ClientState> {
        match self {
            Self::Reach(_) | Self::Group(_) => Ok(Some(ClientState::Direct(self))),
            Self::Buffer(_) | Self::Attachment(_) => Err(Failure::decline(group_terminated())),
        }
    }
}

/// What the server chose.
#[derive(Debug)]
pub(super) struct DirectChoice {
    accepted: AcceptInfo,
    device: DirectDevice,
    peer: Gid,
    buffer: PeerBuffer,
    peer_group: GroupId,
}

/// The device reports whether it reaches the server's, and that this is a device of the server.
#[derive(Debug)]
pub(super) struct ExpectReach {
    chosen: DirectChoice,
}

impl ExpectReach {
    fn handle(self, common: &mut Common) -> ClientState {
        let Self { chosen } = self;
        common.work(Work::Enter {
            key: GroupKey::Direct {
                device: chosen.device.index,
                peer: chosen.peer,
            },
            intent: chosen.accepted.intent(),
        });
        ClientState::Direct(DirectClientState::Group(ExpectGroup { chosen }))
    }
}

/// The registry decides on the link group.
#[derive(Debug)]
pub(super) struct ExpectGroup {
    chosen: DirectChoice,
}

/// Our place in the link group.
#[derive(Debug, Clone, Copy)]
struct InGroup {
    group: GroupId,
    terms: GroupTerms,
}

impl ExpectGroup {
    fn handle(self, member: Member, common: &mut Common) -> Next<ClientState> {
        let Self { chosen } = self;
        let terms = match member {
            Member::Joined { terms, .. } if !chosen.accepted.is_first_contact => terms,
            Member::Created(_) if chosen.accepted.is_first_contact => chosen.accepted.terms(),
            _ => return unexpected_done(),
        };
        common.group = Some(member.group());
        // The server has to have memory for it as well, and has said how much it spends on a buffer.
        let size = chosen.device.max_buffer.min(chosen.buffer.size);
        let size = size.min(common.config.buffer);
        let in_group = InGroup {
            group: member.group(),
            terms,
        };
        Ok(Some(in_group.register(chosen, size, common)))
    }
}

impl InGroup {
    fn register(self, chosen: DirectChoice, size: SizeCode, common: &mut Common) -> ClientState {
        common.work(Work::Register {
            device: chosen.device.index,
            peer: chosen.peer,
            size,
            peer_size: chosen.buffer.size,
        });
        ClientState::Direct(DirectClientState::Buffer(ExpectBuffer {
            chosen,
            in_group: self,
            size,
        }))
    }
}

/// The device registers our receive buffer.
#[derive(Debug)]
pub(super) struct ExpectBuffer {
    chosen: DirectChoice,
    in_group: InGroup,
    size: SizeCode,
}

/// Our receive buffer.
#[derive(Debug, Clone, Copy)]
struct Local {
    token: DmbToken,
    size: SizeCode,
}

impl ExpectBuffer {
    fn handle(self, token: DmbToken, common: &mut Common) -> Next<ClientState> {
        let Self {
            chosen,
            in_group,
            size,
        } = self;
        let local = Local { token, size };
        if !chosen.device.nocopy {
            return confirm(chosen, in_group, local, PeerAccess::Moved, common);
        }
        common.work(Work::Attach {
            device: chosen.device.index,
            peer: chosen.peer,
            token: chosen.buffer.token,
        });
        Ok(Some(ClientState::Direct(DirectClientState::Attachment(
            ExpectAttachment {
                chosen,
                in_group,
                local,
            },
        ))))
    }
}

/// The device maps the server's buffer.
#[derive(Debug)]
pub(super) struct ExpectAttachment {
    chosen: DirectChoice,
    in_group: InGroup,
    local: Local,
}

/// Everything is there: tell the server. At first contact the group is opened to others.
fn confirm(
    chosen: DirectChoice,
    in_group: InGroup,
    local: Local,
    access: PeerAccess,
    common: &mut Common,
) -> Next<ClientState> {
    let message = confirm_message(&chosen, &in_group, &local, &common.config);
    common.send_message(&message)?;

    let accepted = &chosen.accepted;
    let established = Established {
        role: Role::Client,
        version: accepted.version,
        release: in_group.terms.release,
        features: accepted.features(),
        eid: accepted.eid,
        group: in_group.group,
        first_contact: accepted.is_first_contact,
        peer_group: chosen.peer_group,
        peer_os: in_group.terms.os,
        peer_host: in_group.terms.host,
        transport: Transport::Direct(DirectPath {
            device: chosen.device.index,
            chid: chosen.device.chid,
            peer: chosen.peer,
            local: local.token,
            local_size: local.size,
            peer_buffer: chosen.buffer,
            access,
        }),
    };
    if !accepted.is_first_contact {
        common.establish(established);
        return Ok(None);
    }
    common.work(Work::Open {
        group: in_group.group,
        terms: in_group.terms,
    });
    Ok(Some(ClientState::Opening(ExpectOpening {
        deadline: accepted.deadline,
        established,
    })))
}

fn confirm_message(
    chosen: &DirectChoice,
    in_group: &InGroup,
    local: &Local,
    config: &HandshakeConfig,
) -> AcceptConfirm {
    let device = &chosen.device;
    let first_contact = chosen.accepted.stated.map(|stated| FirstContact {
        features: stated.features,
        ..FirstContact::new(stated.release, config.os, config.host)
    });
    let (terms, chid) = match chosen.accepted.eid {
        Some(eid) => (clc::Terms::V2 { eid, first_contact }, device.chid),
        None => {
            let first_contact = chosen.accepted.is_first_contact;
            (clc::Terms::V1 { first_contact }, Chid::NONE)
        }
    };
    AcceptConfirm {
        step: Step::Confirm,
        terms,
        body: Body::D(DirectEnd {
            gid: device.gid,
            chid,
            dmb: local.token,
            dmbe_index: 0,
            size: local.size,
            group: in_group.group,
        }),
    }
}

impl AcceptInfo {
    /// The code to decline with where the server's device cannot be used.
    fn unreachable(&self) -> DeclineCode {
        match self.version.is_v2() {
            true => DeclineCode::NOSMCD2DEV,
            false => DeclineCode::NOSMCDDEV,
        }
    }

    /// What holds for a new group of SMC-D.
    fn terms(&self) -> GroupTerms {
        let release = self.stated.map_or(Release::V2_0, |stated| stated.release);
        let terms = GroupTerms::new(self.version, release, self.eid);
        match self.stated {
            Some(stated) => terms.with_peer(stated.os, stated.host),
            None => terms,
        }
    }
}
