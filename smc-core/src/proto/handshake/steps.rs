//! The steps of a handshake in their order, and the work that it requests from the shell.

use std::time::Duration;

use smc_wire::clc::ClcType;
use smc_wire::size::SizeCode;
use smc_wire::types::{AlertToken, DmbToken, Gid, Rkey, RmbAddr};

use super::HandshakeTimeouts;
use crate::device::{DeviceError, LinkAddress, RdmaAddress, Route};
use crate::error::{Phase, SetupStep};
use crate::proto::group::{
    DeviceIndex, GroupId, GroupKey, GroupTerms, Intent, Member, NoGroup, Terminated,
};
use crate::proto::links::{
    Authentications, FirstLinkError, HandshakeHash, LinkChoice, LlcTerms, PeerRmb, RkeyError,
    RtokenError,
};

use Action::{Begin, SendConfirm};

/// An entry of the order: the begin of a step, or what a client does between two of them.
#[derive(Clone, Copy, Debug)]
pub(super) enum Action {
    Begin(&'static Step),
    SendConfirm,
}

/// SMC-D, client: from ACCEPT to the connection.
pub(super) const CLIENT_DIRECT: &[Action] = &[
    Begin(&REACH),
    Begin(&ENTER),
    Begin(&REGISTER),
    Begin(&ATTACH),
    SendConfirm,
    Begin(&ESTABLISH),
];

/// SMC-D, server: from PROPOSAL, or the device that failed, to the connection.
pub(super) const SERVER_DIRECT: &[Action] = &[
    Begin(&REACH),
    Begin(&ENTER),
    Begin(&REGISTER),
    Begin(&CLAIM),
    Begin(&CONFIRM),
    Begin(&ESTABLISH),
    Begin(&ATTACH_LAST),
];

/// SMC-R, client.
pub(super) const CLIENT_RDMA: &[Action] = &[
    Begin(&ENTER),
    Begin(&OPEN_LINK),
    Begin(&PREPARE_RMB),
    Begin(&BIND_CLIENT),
    Begin(&CONNECT_LINK),
    Begin(&CONFIRM_RKEY),
    SendConfirm,
    Begin(&CONFIRM_LINK),
    Begin(&ESTABLISH),
];

/// SMC-R, server.
pub(super) const SERVER_RDMA: &[Action] = &[
    Begin(&ENTER),
    Begin(&OPEN_LINK),
    Begin(&PREPARE_RMB),
    Begin(&CONFIRM_RKEY),
    Begin(&BIND_EARLY),
    Begin(&CONFIRM),
    Begin(&BIND_FIRST),
    Begin(&BIND_LAST),
    Begin(&CONNECT_LINK),
    Begin(&CONFIRM_LINK),
    Begin(&ESTABLISH),
];

/// One step. Where several steps wait for the same, the circumstances differ.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) name: &'static str,
    pub(super) awaits: Awaits,
    pub(super) when: When,
    pub(super) on_error: OnError,
    pub(super) on_timeout: OnTimeout,
    pub(super) on_terminated: OnTerminated,
    pub(super) tcp: TcpEnd,
}

/// The event that a step waits for: a message, or the outcome of the [`Work`](super::Work) of that
/// name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Awaits {
    Proposal,
    Accept,
    /// CONFIRM, after ACCEPT is sent.
    Confirm,
    Reach,
    Enter,
    Register,
    Claim,
    Attach,
    OpenLink,
    PrepareRmb,
    ConfirmRkey,
    BindPeer,
    ConnectLink,
    ConfirmLink,
    /// A DECLINE of the peer, for the reason that this side has to decline.
    LateDecline,
    EstablishGroup,
}

/// The connections that have a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    Always,
    /// Connections that create a link group.
    FirstContact,
    /// Connections that join a link group.
    Reuse,
    /// Those of them whose PROPOSAL has an early CONFIRM for SMC-R.
    EarlyReuse,
    /// Those of them whose PROPOSAL has one for SMC-D that is to be taken once only.
    EarlyClaim,
    /// Those of them whose peer's end comes in a CONFIRM.
    LateReuse,
    /// Connections over a device that maps the peer's buffer.
    Nocopy,
}

/// The time that a step has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StepTimeout {
    /// [`HandshakeTimeouts::message`].
    Message,
    /// [`HandshakeTimeouts::work`], together with the steps before it that have this timeout.
    Work,
    /// [`HandshakeTimeouts::confirm_link`].
    ConfirmLink,
    /// [`HandshakeTimeouts::late_decline`], or for a client
    /// [`HandshakeTimeouts::late_server_decline`].
    LateDecline,
}

/// The reaction to work that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnError {
    /// This side declines. A server that has not sent ACCEPT tries its next device.
    Decline,
    /// The peer uses the connection already, which is established and ends behind its data.
    Advance,
}

/// The reaction to a timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnTimeout {
    /// This side declines, and tries no other device.
    Decline,
    /// As [`OnError::Advance`].
    Advance,
    /// Fatal: the TCP connection is closed.
    Abort,
}

/// The reaction to the termination of the link group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnTerminated {
    /// As [`OnError::Decline`].
    Decline,
    /// The outcome of the step is awaited. This side is no member yet; or the step fails for that
    /// reason; or the peer may have used the connection, which ends with the group.
    Wait,
}

/// The meaning of the end of the TCP connection during a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TcpEnd {
    /// A failure.
    Failure,
    /// The peer, and its application, may have finished.
    Allowed,
}

/// Makes the rows. The columns are those of [`Step`].
macro_rules! steps {
    ($($step:ident: $name:literal, $awaits:ident, $when:ident, $on_error:ident, $on_timeout:ident,
       $on_terminated:ident, $tcp:ident;)+) => {
        $(pub(super) const $step: Step = Step {
            name: $name,
            awaits: Awaits::$awaits,
            when: When::$when,
            on_error: OnError::$on_error,
            on_timeout: OnTimeout::$on_timeout,
            on_terminated: OnTerminated::$on_terminated,
            tcp: TcpEnd::$tcp,
        };)+
    };
}

#[rustfmt::skip]
steps! {
    // Step       name             awaits          when          error    timeout  end      TCP ends
    PROPOSAL:     "PROPOSAL",      Proposal,       Always,       Decline, Abort,   Wait,    Failure;
    ACCEPT:       "ACCEPT",        Accept,         Always,       Decline, Abort,   Wait,    Failure;
    CONFIRM:      "CONFIRM",       Confirm,        Always,       Decline, Abort,   Wait,    Failure;
    REACH:        "reachability",  Reach,          Always,       Decline, Decline, Wait,    Failure;
    ENTER:        "link group",    Enter,          Always,       Decline, Decline, Wait,    Failure;
    REGISTER:     "buffer",        Register,       Always,       Decline, Decline, Decline, Failure;
    CLAIM:        "client's DMB",  Claim,          EarlyClaim,   Advance, Decline, Decline, Failure;
    ATTACH:       "attachment",    Attach,         Nocopy,       Decline, Decline, Decline, Failure;
    ATTACH_LAST:  "attachment",    Attach,         Nocopy,       Advance, Advance, Wait,    Failure;
    OPEN_LINK:    "queue pair",    OpenLink,       FirstContact, Decline, Decline, Decline, Failure;
    PREPARE_RMB:  "buffer",        PrepareRmb,     Always,       Decline, Decline, Decline, Failure;
    CONFIRM_RKEY: "CONFIRM RKEY",  ConfirmRkey,    Reuse,        Decline, Decline, Decline, Failure;
    BIND_CLIENT:  "peer's buffer", BindPeer,       Always,       Decline, Decline, Decline, Failure;
    BIND_FIRST:   "peer's buffer", BindPeer,       FirstContact, Decline, Decline, Decline, Failure;
    BIND_EARLY:   "peer's buffer", BindPeer,       EarlyReuse,   Decline, Decline, Decline, Failure;
    BIND_LAST:    "peer's buffer", BindPeer,       LateReuse,    Advance, Abort,   Wait,    Failure;
    CONNECT_LINK: "queue pair up", ConnectLink,    FirstContact, Decline, Decline, Decline, Failure;
    CONFIRM_LINK: "CONFIRM LINK",  ConfirmLink,    FirstContact, Decline, Decline, Wait,    Allowed;
    LATE_DECLINE: "late DECLINE",  LateDecline,    Always,       Decline, Decline, Wait,    Failure;
    ESTABLISH:    "establishment", EstablishGroup, FirstContact, Advance, Abort,   Wait,    Failure;
}

impl Step {
    /// The step that a failure or a timeout is reported for, if this side declines.
    pub(super) const fn setup_step(&self) -> SetupStep {
        match self.awaits {
            Awaits::Reach => SetupStep::Reach,
            Awaits::Register | Awaits::PrepareRmb => SetupStep::Register,
            Awaits::Claim | Awaits::Attach => SetupStep::Attach,
            Awaits::OpenLink => SetupStep::OpenLink,
            Awaits::ConfirmRkey => SetupStep::ConfirmRkey,
            Awaits::BindPeer => SetupStep::BindPeer,
            Awaits::ConnectLink => SetupStep::ConnectLink,
            Awaits::ConfirmLink | Awaits::LateDecline => SetupStep::ConfirmLink,
            Awaits::Enter
            | Awaits::EstablishGroup
            | Awaits::Proposal
            | Awaits::Accept
            | Awaits::Confirm => SetupStep::Enter,
        }
    }

    /// The phase that a timeout is reported for, if nothing can be saved.
    pub(super) const fn phase(&self) -> Phase {
        self.awaits.properties().0
    }

    pub(super) const fn timeout(&self) -> StepTimeout {
        self.awaits.properties().1
    }

    /// The message that may come now; a DECLINE may come in its place. While the peer waits for
    /// messages on the link it can only decline; so it can while a server connects the first link.
    pub(super) const fn message_type(&self) -> Option<ClcType> {
        match (self.awaits, self.when) {
            (Awaits::BindPeer | Awaits::ConnectLink, When::FirstContact) => Some(ClcType::Decline),
            (awaits, _) => awaits.properties().2,
        }
    }
}

impl Awaits {
    /// The phase, the timeout and the message of a step that waits for this.
    const fn properties(self) -> (Phase, StepTimeout, Option<ClcType>) {
        let decline = Some(ClcType::Decline);
        match self {
            Self::Proposal => (
                Phase::Proposal,
                StepTimeout::Message,
                Some(ClcType::Proposal),
            ),
            Self::Accept => (Phase::Accept, StepTimeout::Message, Some(ClcType::Accept)),
            Self::Confirm => (Phase::Confirm, StepTimeout::Message, Some(ClcType::Confirm)),
            Self::Reach
            | Self::Enter
            | Self::Register
            | Self::Claim
            | Self::Attach
            | Self::OpenLink
            | Self::PrepareRmb
            | Self::BindPeer
            | Self::ConnectLink
            | Self::EstablishGroup => (Phase::Group, StepTimeout::Work, None),
            Self::ConfirmRkey => (Phase::Group, StepTimeout::Work, decline),
            Self::ConfirmLink => (Phase::Group, StepTimeout::ConfirmLink, decline),
            Self::LateDecline => (Phase::Group, StepTimeout::LateDecline, decline),
        }
    }
}

impl StepTimeout {
    pub(super) const fn time(self, timeouts: &HandshakeTimeouts, is_client: bool) -> Duration {
        match self {
            Self::Message => timeouts.message,
            Self::Work => timeouts.work,
            Self::ConfirmLink => timeouts.confirm_link,
            Self::LateDecline if is_client => timeouts.late_server_decline,
            Self::LateDecline => timeouts.late_decline,
        }
    }
}

/// Work that takes time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// Ask the device whether it reaches the peer ([`Direct::reach`](crate::device::Direct)), and
    /// check that the peer's device belongs to the process at the other end of the handshake, where
    /// both processes are known. Nothing is given to the peer's device before. Answer:
    /// [`WorkDone::Reached`].
    Reach {
        /// The local device.
        device: DeviceIndex,
        /// The peer's device.
        peer: Gid,
    },
    /// Become a member of a link group ([`Registry::enter`](crate::proto::group::Registry::enter)).
    /// Answer: [`WorkDone::Entered`].
    Enter {
        /// Which group.
        key: GroupKey,
        /// How.
        intent: Intent,
    },
    /// Register a receive buffer that the peer may write
    /// ([`Direct::register`](crate::device::Direct)). Answer: [`WorkDone::Registered`].
    Register {
        /// The local device.
        device: DeviceIndex,
        /// The device that may write.
        peer: Gid,
        /// How large it has to be.
        size: SizeCode,
        /// The longest buffer that the peer has for this side. Its pages are charged to the process
        /// that writes them, so there has to be memory for both.
        peer_size: SizeCode,
    },
    /// A server: check that the client's buffer is registered for the local device and was not
    /// named by another connection, also one that has ended, and let no other one claim it. Answer:
    /// [`WorkDone::Claimed`].
    Claim {
        /// The local device.
        device: DeviceIndex,
        /// The peer's device.
        peer: Gid,
        /// The buffer.
        token: DmbToken,
    },
    /// Map the peer's buffer ([`Nocopy::attach`](crate::device::Nocopy)). Answer:
    /// [`WorkDone::Attached`].
    Attach {
        /// The local device.
        device: DeviceIndex,
        /// The peer's device.
        peer: Gid,
        /// The buffer.
        token: DmbToken,
    },
    /// SMC-R, first contact: make the queue pair of the group's first link
    /// ([`ProtectionDomain::open_link`](crate::device::ProtectionDomain::open_link)). Answer:
    /// [`WorkDone::LinkOpened`].
    OpenLink {
        /// The new group.
        group: GroupId,
        /// The device.
        device: DeviceIndex,
        /// Which of its addresses.
        address: RdmaAddress,
    },
    /// SMC-R: get a receive buffer (RMB) and a staging ring, register the RMB on all links of the
    /// group, and reserve an alert token. From the answer on, messages with that token have to be
    /// taken. Answer: [`WorkDone::RmbPrepared`].
    PrepareRmb {
        /// The group.
        group: GroupId,
        /// The link that the connection will use.
        link: LinkChoice,
        /// How large it has to be.
        size: SizeCode,
        /// At a server the number of the early CONFIRM in the PROPOSAL, for the code of ACCEPT
        /// ([`AuthenticatedPart::InUse`](crate::proto::links::AuthenticatedPart)).
        early: u64,
    },
    /// SMC-R, reuse: announce to the peer the keys of the RMB just prepared (CONFIRM RKEY). Answer:
    /// [`WorkDone::RkeyConfirmed`].
    ConfirmRkey,
    /// SMC-R: enter the peer's RMB in the table of the group. Answer: [`WorkDone::PeerBound`].
    BindPeer {
        /// The RMB.
        rmb: PeerRmb,
        /// Bytes of early data at its start, which this side has sent with the PROPOSAL.
        sent: usize,
    },
    /// SMC-R, first contact: connect the queue pair
    /// ([`PendingLink::connect`](crate::device::PendingLink)). Answer: [`WorkDone::LinkConnected`].
    ConnectLink {
        /// The new group.
        group: GroupId,
        /// The peer's end.
        peer: LinkAddress,
        /// Whether packets between the ends pass a router.
        route: Route,
        /// The terms that the group has to keep to.
        terms: LlcTerms,
    },
    /// SMC-R, first contact: the CONFIRM LINK exchange over the new link, with its own timeout.
    /// Answer: [`WorkDone::LinkConfirmed`].
    ConfirmLink {
        /// The new group.
        group: GroupId,
        /// Of the messages of this handshake, if the group authenticates
        /// ([`LinkGroup::first_handshake`](crate::proto::links::LinkGroup::first_handshake)).
        messages: Option<HandshakeHash>,
    },
    /// Establish the new link group: further connections may join it from then on
    /// ([`Registry::establish`](crate::proto::group::Registry::establish)). Answer:
    /// [`WorkDone::GroupEstablished`].
    EstablishGroup {
        /// The group.
        group: GroupId,
        /// The agreed values.
        terms: GroupTerms,
    },
}

/// The result of [`Work`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkDone {
    /// Of [`Work::Reach`].
    Reached(Result<(), DeviceError>),
    /// Of [`Work::Enter`].
    Entered(Result<Member, NoGroup>),
    /// Of [`Work::Register`]: the token of the buffer.
    Registered(Result<DmbToken, DeviceError>),
    /// Of [`Work::Claim`].
    Claimed(Result<(), DeviceError>),
    /// Of [`Work::Attach`]: the length of the mapped buffer in bytes.
    Attached(Result<usize, DeviceError>),
    /// Of [`Work::OpenLink`]: the local end.
    LinkOpened(Result<LinkAddress, DeviceError>),
    /// Of [`Work::PrepareRmb`].
    RmbPrepared(Result<LocalRmb, RmbError>),
    /// Of [`Work::ConfirmRkey`].
    RkeyConfirmed(Result<(), RkeyError>),
    /// Of [`Work::BindPeer`].
    PeerBound(Result<(), RtokenError>),
    /// Of [`Work::ConnectLink`].
    LinkConnected(Result<(), DeviceError>),
    /// Of [`Work::ConfirmLink`].
    LinkConfirmed(Result<(), FirstLinkError>),
    /// Of [`Work::EstablishGroup`].
    GroupEstablished(Result<(), Terminated>),
}

/// The local receive buffer of one SMC-R connection, and the link that the connection uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LocalRmb {
    /// The device of the link.
    pub device: DeviceIndex,
    /// The local end of the link.
    pub link: LinkAddress,
    /// Key of the RMB on this link.
    pub rkey: Rkey,
    /// Address of the RMB on this link.
    pub addr: RmbAddr,
    /// Names the connection in messages to this side.
    pub token: AlertToken,
    /// Size of the element, which may be less than was requested.
    pub size: SizeCode,
    /// Number of the element in the RMB, from 1.
    pub index: u8,
    /// For the message that names the RMB to the peer, where the link group exists and has a key
    /// ([`LinkGroup::authenticate`](crate::proto::links::LinkGroup::authenticate)).
    pub authentication: Option<Authentications>,
    /// The peer's end of the link, where the link group exists.
    pub peer: Option<LinkAddress>,
}

/// Why there is no receive buffer for a connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RmbError {
    /// The group has no active link, or not the one that the server has named.
    #[error("link group has no such active link")]
    NoLink,
    /// The device could not register the memory.
    #[error(transparent)]
    Device(#[from] DeviceError),
}
