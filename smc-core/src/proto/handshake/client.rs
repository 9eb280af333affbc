use std::sync::Arc;
use std::time::Instant;

use smc_wire::clc::{self, AcceptConfirm, Body, ClcType, DirectEnd, FirstContact, Message, Step};
use smc_wire::size::SizeCode;
use smc_wire::types::{
    Chid, DeclineCode, DmbToken, Eid, FeatureMask, Gid, GroupId, HostName, OsType, Release, Version,
};

use super::engine::{
    Common, Engine, Expect, Failure, Next, after, delegate_machine, register_code, smaller, unasked,
};
use super::offer::{Offer, features};
use super::{
    Config, DirectDevice, DirectPath, Done, Established, Path, PeerBuffer, Role, Transport, Work,
};
use crate::error::{Error, How, PeerMisbehaved, Phase};
use crate::proto::group::{Intent, Key, Seat, Terms};

/// The client's side of the handshake (behaviour of set-up, client ladder).
///
/// To be made when the TCP connection is there and it is known that the server speaks SMC; if it
/// does not, the stream is TCP without a handshake, for the reason
/// [`DeclineCode::PEERNOSMC`](smc_wire::types::DeclineCode::PEERNOSMC).
#[derive(Debug)]
pub struct Client(Engine<State>);

impl Client {
    /// Searches for devices and sends the PROPOSAL, or a DECLINE if there is nothing to offer.
    #[must_use]
    pub fn new(now: Instant, config: Arc<Config>, path: &Path) -> Self {
        let offer = Offer::new(&config, path);
        Self(Engine::new(common(config), |common| {
            let offer = offer.map_err(Failure::Decline)?;
            common.send(offer.bytes().to_vec());
            Ok(Some(expect_accept(now, offer, common)))
        }))
    }

    /// Goes on after the PROPOSAL has reached the server on another way than TCP.
    ///
    /// Such a client sends nothing before it has received a message: that the server answers is
    /// the proof that it speaks SMC.
    #[must_use]
    pub fn announced(now: Instant, config: Arc<Config>, offer: Offer) -> Self {
        Self(Engine::new(common(config), |common| {
            Ok(Some(expect_accept(now, offer, common)))
        }))
    }
}

delegate_machine!(Client);

/// Before the server has shown its version, a DECLINE has the one that we could have used.
fn common(config: Arc<Config>) -> Common {
    let version = if config.is_v2_capable() {
        Version::V2
    } else {
        Version::V1
    };
    Common::new(config, version)
}

fn expect_accept(now: Instant, offer: Offer, common: &Common) -> State {
    let deadline = after(now, common.config.timeouts.message);
    State::Accept(ExpectAccept { offer, deadline })
}

#[derive(Debug)]
enum State {
    Accept(ExpectAccept),
    Seat(ExpectSeat),
    Buffer(ExpectBuffer),
    Attachment(ExpectAttachment),
    Opening(ExpectOpening),
}

impl Expect for State {
    fn message_type(&self) -> Option<ClcType> {
        match self {
            Self::Accept(_) => Some(ClcType::Accept),
            _ => None,
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Accept(_) => "ACCEPT",
            Self::Seat(_) => "link group",
            Self::Buffer(_) => "buffer",
            Self::Attachment(_) => "attachment",
            Self::Opening(_) => "opening of the link group",
        }
    }

    fn deadline(&self) -> Instant {
        match self {
            Self::Accept(state) => state.deadline,
            Self::Seat(state) => state.chosen.deadline,
            Self::Buffer(state) => state.chosen.deadline,
            Self::Attachment(state) => state.chosen.deadline,
            Self::Opening(state) => state.deadline,
        }
    }

    fn message(self, now: Instant, message: Message<'_>, common: &mut Common) -> Next<Self> {
        match (self, message) {
            (Self::Accept(state), Message::Accept(accept)) => {
                state.handle(now, &accept.to_repr(), common)
            }
            _ => Err(PeerMisbehaved::UnexpectedMessage.into()),
        }
    }

    fn done(self, _now: Instant, done: Done, common: &mut Common) -> Next<Self> {
        match (self, done) {
            (Self::Seat(state), Done::Entered(Ok(seat))) => state.handle(seat, common),
            (Self::Seat(_), Done::Entered(Err(_))) => Err(Failure::Decline(DeclineCode::SYNCERR)),
            (Self::Buffer(state), Done::Registered(Ok(token))) => state.handle(token, common),
            (Self::Buffer(state), Done::Registered(Err(error))) => {
                match smaller(&error, state.size) {
                    Some(size) => Ok(Some(state.seated.register(state.chosen, size, common))),
                    None => Err(Failure::Decline(register_code(&error))),
                }
            }
            (Self::Attachment(state), Done::Attached(result)) => {
                // A mapping that does not hold the element is no better than none.
                match result.is_ok_and(|len| len >= state.chosen.buffer.end()) {
                    true => confirm(state.chosen, state.seated, state.local, true, common),
                    false => Err(Failure::Decline(DeclineCode::MEM)),
                }
            }
            (Self::Opening(state), Done::Opened(Ok(()))) => {
                common.establish(state.established);
                Ok(None)
            }
            (Self::Opening(_), Done::Opened(Err(_))) => Err(Error::Closed(How::Aborted).into()),
            _ => unasked(),
        }
    }

    fn timeout(self, _common: &mut Common) -> Next<Self> {
        Err(match self {
            Self::Accept(_) => Error::TimedOut(Phase::Accept).into(),
            Self::Seat(_) => Failure::Decline(DeclineCode::INTERR),
            Self::Buffer(_) | Self::Attachment(_) => Failure::Decline(DeclineCode::MEM),
            Self::Opening(_) => Error::TimedOut(Phase::Group).into(),
        })
    }

    fn terminated(self, _common: &mut Common) -> Next<Self> {
        match self {
            Self::Accept(_) | Self::Seat(_) => Ok(Some(self)),
            Self::Buffer(_) | Self::Attachment(_) => Err(Failure::Decline(DeclineCode::NOACTLINK)),
            Self::Opening(_) => Err(Error::Closed(How::Aborted).into()),
        }
    }
}

/// PROPOSAL is out; the server chooses.
#[derive(Debug)]
struct ExpectAccept {
    offer: Offer,
    deadline: Instant,
}

/// What the server chose.
#[derive(Debug)]
struct Chosen {
    device: DirectDevice,
    peer: Gid,
    version: Version,
    eid: Option<Eid>,
    /// Release, features, OS and host name that the server states at first contact.
    first_contact: Option<Stated>,
    /// The first-contact flag, which version 1 has without the parts.
    is_first_contact: bool,
    buffer: PeerBuffer,
    peer_group: GroupId,
    deadline: Instant,
}

#[derive(Debug, Clone, Copy)]
struct Stated {
    release: Release,
    features: FeatureMask,
    os: OsType,
    host: HostName,
}

impl ExpectAccept {
    fn handle(self, now: Instant, accept: &AcceptConfirm, common: &mut Common) -> Next<State> {
        let is_v2 = accept.version().is_v2();
        common.version = if is_v2 { Version::V2 } else { Version::V1 };
        // SMC-R is not offered in either version.
        let Body::D(end) = accept.body else {
            return Err(Failure::Decline(DeclineCode::MODEUNSUPP));
        };
        let (device, peer) = match accept.terms {
            clc::Terms::V1 { .. } => {
                let device = self.offer.v1_device();
                (
                    device.ok_or(Failure::Decline(DeclineCode::MODEUNSUPP))?,
                    end.gid,
                )
            }
            clc::Terms::V2 { .. } => {
                let device = self.offer.v2_device(end.chid);
                (
                    device.ok_or(PeerMisbehaved::SelectedUnofferedDevice)?,
                    end.gid,
                )
            }
        };
        let first_contact = accept.first_contact().map(|parts| Stated {
            release: parts.release,
            features: parts.features & features(&common.config, parts.release),
            os: parts.os,
            host: parts.host,
        });
        // Not a release that we could confirm.
        if first_contact.is_some_and(|stated| stated.release > self.offer.release()) {
            return Err(Failure::Decline(DeclineCode::RELEASEERR));
        }
        let chosen = Chosen {
            device,
            peer,
            version: common.version,
            eid: accept.eid(),
            first_contact,
            is_first_contact: accept.is_first_contact(),
            buffer: PeerBuffer::new(end.dmb, end.dmbe_index, end.size),
            peer_group: end.group,
            deadline: after(now, common.config.timeouts.work),
        };
        common.work(Work::Enter {
            key: Key::Direct {
                device: device.index,
                peer,
            },
            intent: if chosen.is_first_contact {
                Intent::Create
            } else {
                Intent::Join
            },
        });
        Ok(Some(State::Seat(ExpectSeat { chosen })))
    }
}

/// The registry decides on the link group.
#[derive(Debug)]
struct ExpectSeat {
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
            Seat::Joined { terms, .. } if !chosen.is_first_contact => terms,
            Seat::Created(_) if chosen.is_first_contact => chosen.terms(),
            _ => return unasked(),
        };
        common.group = Some(seat.group());
        let size = common.config.buffer.min(chosen.device.max_buffer);
        let seated = Seated {
            group: seat.group(),
            terms,
        };
        Ok(Some(seated.register(chosen, size, common)))
    }
}

impl Seated {
    fn register(self, chosen: Chosen, size: SizeCode, common: &mut Common) -> State {
        let (device, peer) = (chosen.device.index, chosen.peer);
        common.work(Work::Register { device, peer, size });
        State::Buffer(ExpectBuffer {
            chosen,
            seated: self,
            size,
        })
    }
}

impl Chosen {
    fn terms(&self) -> Terms {
        let release = self
            .first_contact
            .map_or(Release::V2_0, |stated| stated.release);
        let terms = Terms::new(self.version, release, self.eid);
        match self.first_contact {
            Some(stated) => terms.with_peer(stated.os, stated.host),
            None => terms,
        }
    }
}

/// The device registers our receive buffer.
#[derive(Debug)]
struct ExpectBuffer {
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
            return confirm(chosen, seated, local, false, common);
        }
        common.work(Work::Attach {
            device: chosen.device.index,
            peer: chosen.peer,
            token: chosen.buffer.token,
        });
        Ok(Some(State::Attachment(ExpectAttachment {
            chosen,
            seated,
            local,
        })))
    }
}

/// The device maps the server's buffer.
#[derive(Debug)]
struct ExpectAttachment {
    chosen: Chosen,
    seated: Seated,
    local: Local,
}

/// Everything is there: tell the server. At first contact the group is opened to others.
fn confirm(
    chosen: Chosen,
    seated: Seated,
    local: Local,
    is_attached: bool,
    common: &mut Common,
) -> Next<State> {
    let message = confirm_message(&chosen, &seated, &local, &common.config);
    common.send_message(&message)?;

    let established = Established {
        role: Role::Client,
        version: chosen.version,
        release: seated.terms.release,
        features: chosen
            .first_contact
            .map(|stated| stated.features)
            .unwrap_or_default(),
        eid: chosen.eid,
        group: seated.group,
        first_contact: chosen.is_first_contact,
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
            is_attached,
        }),
    };
    if !chosen.is_first_contact {
        common.establish(established);
        return Ok(None);
    }
    common.work(Work::Open {
        group: seated.group,
        terms: seated.terms,
    });
    Ok(Some(State::Opening(ExpectOpening {
        deadline: chosen.deadline,
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
    let first_contact = chosen.first_contact.map(|stated| FirstContact {
        v2_direct: false,
        os: config.os,
        release: stated.release,
        host: config.host,
        max_conns: 0,
        max_links: 0,
        features: stated.features,
        vendor_options: 0,
        gids: None,
    });
    let (terms, chid) = match chosen.eid {
        Some(eid) => (clc::Terms::V2 { eid, first_contact }, device.chid),
        None => {
            let first_contact = chosen.is_first_contact;
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

/// CONFIRM is sent; others may join our new link group.
#[derive(Debug)]
struct ExpectOpening {
    deadline: Instant,
    established: Established,
}
