//! The client's completion of SMC-D, from ACCEPT to CONFIRM.

use std::time::Instant;

use smc_wire::clc::{self, AcceptConfirm, Body, DirectEnd, FirstContact, Step};
use smc_wire::size::SizeCode;
use smc_wire::types::{Chid, DeclineCode, DmbToken, Gid, GroupId, Release};

use super::{Accepted, ExpectOpening, State};
use crate::device::DeviceError;
use crate::error::{PeerMisbehaved, SetupStep};
use crate::proto::group::{Key, Seat, Terms};
use crate::proto::handshake::engine::{
    Common, Failure, Next, group_terminated, no_group, not_registered, of_device, smaller,
    too_late, unasked,
};
use crate::proto::handshake::{
    Config, DirectDevice, DirectPath, Done, Established, Offer, PeerAccess, PeerBuffer, Role,
    Transport, Work,
};

/// The device that the server means, and a seat in the link group.
pub(super) fn chosen(
    accepted: Accepted,
    offer: &Offer,
    end: &DirectEnd,
    common: &mut Common,
) -> Next<State> {
    let device = if accepted.version.is_v2() {
        let device = offer.v2_device(end.chid);
        device.ok_or(PeerMisbehaved::SelectedUnofferedDevice)?
    } else {
        let device = offer.v1_device();
        device.ok_or_else(|| Failure::decline(DeclineCode::MODEUNSUPP))?
    };
    let chosen = Chosen {
        accepted,
        device,
        peer: end.gid,
        buffer: PeerBuffer::new(end.dmb, end.dmbe_index, end.size),
        peer_group: end.group,
    };
    common.work(Work::Enter {
        key: Key::Direct {
            device: device.index,
            peer: end.gid,
        },
        intent: chosen.accepted.intent(),
    });
    Ok(Some(State::Direct(Expect::Seat(ExpectSeat { chosen }))))
}

#[derive(Debug)]
pub(super) enum Expect {
    Seat(ExpectSeat),
    Buffer(ExpectBuffer),
    Attachment(ExpectAttachment),
}

impl Expect {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Seat(_) => "link group",
            Self::Buffer(_) => "buffer",
            Self::Attachment(_) => "attachment",
        }
    }

    pub(super) fn deadline(&self) -> Instant {
        match self {
            Self::Seat(ExpectSeat { chosen })
            | Self::Buffer(ExpectBuffer { chosen, .. })
            | Self::Attachment(ExpectAttachment { chosen, .. }) => chosen.accepted.deadline,
        }
    }

    pub(super) fn done(self, done: Done, common: &mut Common) -> Next<State> {
        match (self, done) {
            (Self::Seat(state), Done::Entered(Ok(seat))) => state.handle(seat, common),
            (Self::Seat(_), Done::Entered(Err(why))) => {
                Err(Failure::decline(no_group(DeclineCode::SYNCERR, why)))
            }
            (Self::Buffer(state), Done::Registered(Ok(token))) => state.handle(token, common),
            (Self::Buffer(state), Done::Registered(Err(error))) => {
                match smaller(&error, state.size) {
                    Some(size) => Ok(Some(state.seated.register(state.chosen, size, common))),
                    None => Err(Failure::decline(not_registered(error))),
                }
            }
            (Self::Attachment(state), Done::Attached(result)) => {
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
                confirm(state.chosen, state.seated, state.local, access, common)
            }
            _ => unasked(),
        }
    }

    pub(super) fn timeout(self) -> Failure {
        Failure::decline(match self {
            Self::Seat(_) => too_late(DeclineCode::INTERR, SetupStep::Enter),
            Self::Buffer(_) => too_late(DeclineCode::MEM, SetupStep::Register),
            Self::Attachment(_) => too_late(DeclineCode::MEM, SetupStep::Attach),
        })
    }

    pub(super) fn terminated(self) -> Next<State> {
        match self {
            Self::Seat(_) => Ok(Some(State::Direct(self))),
            Self::Buffer(_) | Self::Attachment(_) => Err(Failure::decline(group_terminated())),
        }
    }
}

/// What the server chose.
#[derive(Debug)]
pub(super) struct Chosen {
    accepted: Accepted,
    device: DirectDevice,
    peer: Gid,
    buffer: PeerBuffer,
    peer_group: GroupId,
}

/// The registry decides on the link group.
#[derive(Debug)]
pub(super) struct ExpectSeat {
    chosen: Chosen,
}

/// Our place in the link group.
#[derive(Debug, Clone, Copy)]
struct Seated {
    group: GroupId,
    terms: Terms,
}

impl ExpectSeat {
    fn handle(self, seat: Seat, common: &mut Common) -> Next<State> {
        let Self { chosen } = self;
        let terms = match seat {
            Seat::Joined { terms, .. } if !chosen.accepted.is_first_contact => terms,
            Seat::Created(_) if chosen.accepted.is_first_contact => chosen.accepted.terms(),
            _ => return unasked(),
        };
        common.group = Some(seat.group());
        // The server has to have memory for it as well, and has said how much it spends on a buffer.
        let size = chosen.device.max_buffer.min(chosen.buffer.size);
        let size = size.min(common.config.buffer);
        let seated = Seated {
            group: seat.group(),
            terms,
        };
        Ok(Some(seated.register(chosen, size, common)))
    }
}

impl Seated {
    fn register(self, chosen: Chosen, size: SizeCode, common: &mut Common) -> State {
        common.work(Work::Register {
            device: chosen.device.index,
            peer: chosen.peer,
            size,
            peer_size: chosen.buffer.size,
        });
        State::Direct(Expect::Buffer(ExpectBuffer {
            chosen,
            seated: self,
            size,
        }))
    }
}

/// The device registers our receive buffer.
#[derive(Debug)]
pub(super) struct ExpectBuffer {
    chosen: Chosen,
    seated: Seated,
    size: SizeCode,
}

/// Our receive buffer.
#[derive(Debug, Clone, Copy)]
struct Local {
    token: DmbToken,
    size: SizeCode,
}

impl ExpectBuffer {
    fn handle(self, token: DmbToken, common: &mut Common) -> Next<State> {
        let Self {
            chosen,
            seated,
            size,
        } = self;
        let local = Local { token, size };
        if !chosen.device.nocopy {
            return confirm(chosen, seated, local, PeerAccess::Moved, common);
        }
        common.work(Work::Attach {
            device: chosen.device.index,
            peer: chosen.peer,
            token: chosen.buffer.token,
        });
        Ok(Some(State::Direct(Expect::Attachment(ExpectAttachment {
            chosen,
            seated,
            local,
        }))))
    }
}

/// The device maps the server's buffer.
#[derive(Debug)]
pub(super) struct ExpectAttachment {
    chosen: Chosen,
    seated: Seated,
    local: Local,
}

/// Everything is there: tell the server. At first contact the group is opened to others.
fn confirm(
    chosen: Chosen,
    seated: Seated,
    local: Local,
    access: PeerAccess,
    common: &mut Common,
) -> Next<State> {
    let message = confirm_message(&chosen, &seated, &local, &common.config);
    common.send_message(&message)?;

    let accepted = &chosen.accepted;
    let established = Established {
        role: Role::Client,
        version: accepted.version,
        release: seated.terms.release,
        features: accepted.features(),
        eid: accepted.eid,
        group: seated.group,
        first_contact: accepted.is_first_contact,
        peer_group: chosen.peer_group,
        peer_os: seated.terms.os,
        peer_host: seated.terms.host,
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
        group: seated.group,
        terms: seated.terms,
    });
    Ok(Some(State::Opening(ExpectOpening {
        deadline: accepted.deadline,
        established,
    })))
}

fn confirm_message(
    chosen: &Chosen,
    seated: &Seated,
    local: &Local,
    config: &Config,
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
            group: seated.group,
        }),
    }
}

impl Accepted {
    /// What holds for a new group of SMC-D.
    fn terms(&self) -> Terms {
        let release = self.stated.map_or(Release::V2_0, |stated| stated.release);
        let terms = Terms::new(self.version, release, self.eid);
        match self.stated {
            Some(stated) => terms.with_peer(stated.os, stated.host),
            None => terms,
        }
    }
}
