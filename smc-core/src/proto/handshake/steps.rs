//! What a handshake waits for, and in which order.

use std::time::Duration;

use smc_wire::clc::ClcType;

use super::HandshakeTimeouts;
use crate::error::{Phase, SetupStep};

/// SMC-D, client: from ACCEPT to the connection.
pub(super) const CLIENT_DIRECT: &[&Step] = &[
    &REACH,
    &ENTER,
    &REGISTER,
    &ATTACH,
    &SEND_CONFIRM,
    &ESTABLISH,
];

/// SMC-D, server: from PROPOSAL, or the device that failed, to the connection.
pub(super) const SERVER_DIRECT: &[&Step] = &[
    &REACH,
    &ENTER,
    &REGISTER,
    &CONFIRM,
    &ESTABLISH,
    &ATTACH_LAST,
];

/// SMC-R, client.
pub(super) const CLIENT_RDMA: &[&Step] = &[
    &ENTER,
    &OPEN_LINK,
    &PREPARE_RMB,
    &BIND_CLIENT,
    &CONNECT_LINK,
    &CONFIRM_RKEY,
    &SEND_CONFIRM,
    &CONFIRM_LINK,
    &ESTABLISH,
];

/// SMC-R, server.
pub(super) const SERVER_RDMA: &[&Step] = &[
    &ENTER,
    &OPEN_LINK,
    &PREPARE_RMB,
    &CONFIRM_RKEY,
    &CONFIRM,
    &BIND_FIRST,
    &BIND_LAST,
    &CONNECT_LINK,
    &CONFIRM_LINK,
    &ESTABLISH,
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
    pub(super) tcp: Tcp,
}

/// What a step waits for: a message, or the outcome of the [`Work`](super::Work) of that name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Awaits {
    Proposal,
    Accept,
    /// CONFIRM, after ACCEPT is sent.
    Confirm,
    /// Nothing: CONFIRM is sent.
    Nothing,
    Reach,
    Enter,
    Register,
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
    /// Those that create a link group.
    FirstContact,
    /// Those that join one.
    Reuse,
    /// Those over a device that maps the peer's buffer.
    Nocopy,
}

/// The time that a step has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Clock {
    /// [`HandshakeTimeouts::message`].
    Message,
    /// [`HandshakeTimeouts::work`], together with the steps before it that have this clock.
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
    Lost,
}

/// The reaction to a timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnTimeout {
    /// This side declines, and tries no other device.
    Decline,
    /// As [`OnError::Lost`].
    Lost,
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

/// The role of the TCP connection during a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tcp {
    /// Its end is a failure.
    Needed,
    /// The peer, and its application, may have finished.
    MayEnd,
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
            tcp: Tcp::$tcp,
        };)+
    };
}

#[rustfmt::skip]
steps! {
    // Step       name             awaits          when          error    timeout  end      TCP
    PROPOSAL:     "PROPOSAL",      Proposal,       Always,       Decline, Abort,   Wait,    Needed;
    ACCEPT:       "ACCEPT",        Accept,         Always,       Decline, Abort,   Wait,    Needed;
    CONFIRM:      "CONFIRM",       Confirm,        Always,       Decline, Abort,   Wait,    Needed;
    SEND_CONFIRM: "nothing",       Nothing,        Always,       Decline, Abort,   Wait,    Needed;
    REACH:        "reachability",  Reach,          Always,       Decline, Decline, Wait,    Needed;
    ENTER:        "link group",    Enter,          Always,       Decline, Decline, Wait,    Needed;
    REGISTER:     "buffer",        Register,       Always,       Decline, Decline, Decline, Needed;
    ATTACH:       "attachment",    Attach,         Nocopy,       Decline, Decline, Decline, Needed;
    ATTACH_LAST:  "attachment",    Attach,         Nocopy,       Lost,    Lost,    Wait,    Needed;
    OPEN_LINK:    "queue pair",    OpenLink,       FirstContact, Decline, Decline, Decline, Needed;
    PREPARE_RMB:  "buffer",        PrepareRmb,     Always,       Decline, Decline, Decline, Needed;
    CONFIRM_RKEY: "CONFIRM RKEY",  ConfirmRkey,    Reuse,        Decline, Decline, Decline, Needed;
    BIND_CLIENT:  "peer's buffer", BindPeer,       Always,       Decline, Decline, Decline, Needed;
    BIND_FIRST:   "peer's buffer", BindPeer,       FirstContact, Decline, Decline, Decline, Needed;
    BIND_LAST:    "peer's buffer", BindPeer,       Reuse,        Lost,    Abort,   Wait,    Needed;
    CONNECT_LINK: "queue pair up", ConnectLink,    FirstContact, Decline, Decline, Decline, Needed;
    CONFIRM_LINK: "CONFIRM LINK",  ConfirmLink,    FirstContact, Decline, Decline, Wait,    MayEnd;
    LATE_DECLINE: "late DECLINE",  LateDecline,    Always,       Decline, Decline, Wait,    Needed;
    ESTABLISH:    "establishment", EstablishGroup, FirstContact, Lost,    Abort,   Wait,    Needed;
}

impl Step {
    /// The step that a failure or a timeout is reported for, if this side declines.
    pub(super) const fn setup_step(&self) -> SetupStep {
        match self.awaits {
            Awaits::Reach => SetupStep::Reach,
            Awaits::Register | Awaits::PrepareRmb => SetupStep::Register,
            Awaits::Attach => SetupStep::Attach,
            Awaits::OpenLink => SetupStep::OpenLink,
            Awaits::ConfirmRkey => SetupStep::ConfirmRkey,
            Awaits::BindPeer => SetupStep::BindPeer,
            Awaits::ConnectLink => SetupStep::ConnectLink,
            Awaits::ConfirmLink | Awaits::LateDecline => SetupStep::ConfirmLink,
            Awaits::Enter
            | Awaits::EstablishGroup
            | Awaits::Proposal
            | Awaits::Accept
            | Awaits::Confirm
            | Awaits::Nothing => SetupStep::Enter,
        }
    }

    /// The phase that a timeout is reported for, if nothing can be saved.
    pub(super) const fn phase(&self) -> Phase {
        self.awaits.facts().0
    }

    pub(super) const fn clock(&self) -> Clock {
        self.awaits.facts().1
    }

    /// The message that may come now; a DECLINE may come in its place. While the peer waits for
    /// messages on the link it can only decline.
    pub(super) const fn message_type(&self) -> Option<ClcType> {
        self.awaits.facts().2
    }
}

impl Awaits {
    /// The phase, the time and the message of a step that waits for this.
    const fn facts(self) -> (Phase, Clock, Option<ClcType>) {
        let decline = Some(ClcType::Decline);
        match self {
            Self::Proposal => (Phase::Proposal, Clock::Message, Some(ClcType::Proposal)),
            Self::Accept => (Phase::Accept, Clock::Message, Some(ClcType::Accept)),
            Self::Confirm => (Phase::Confirm, Clock::Message, Some(ClcType::Confirm)),
            Self::Nothing
            | Self::Reach
            | Self::Enter
            | Self::Register
            | Self::Attach
            | Self::OpenLink
            | Self::PrepareRmb
            | Self::BindPeer
            | Self::ConnectLink
            | Self::EstablishGroup => (Phase::Group, Clock::Work, None),
            Self::ConfirmRkey => (Phase::Group, Clock::Work, decline),
            Self::ConfirmLink => (Phase::Group, Clock::ConfirmLink, decline),
            Self::LateDecline => (Phase::Group, Clock::LateDecline, decline),
        }
    }
}

impl Clock {
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
