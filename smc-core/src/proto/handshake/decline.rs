//! The diagnosis codes of DECLINE (docs/spec/fallback.md#codes). Nothing else in this crate names
//! one.

use smc_wire::types::{DeclineCode, Version};

use super::{RmbError, Role};
use crate::device::DeviceError;
use crate::error::{FallbackCause, FallbackReason, SetupStep};
use crate::proto::group::NoGroup;
use crate::proto::links::{FirstLinkError, RkeyError, RtokenError};

/// Why this side does not use SMC for a connection.
#[derive(Clone, Debug)]
pub(crate) enum DeclineCause {
    /// A cause outside of the handshake.
    NoHandshake(FallbackCause),

    // Rules for the connection.
    /// An IPsec policy applies to it.
    Ipsec,
    /// Its VLAN is unknown.
    VlanUnknown,
    /// The ends are in different IP subnets.
    OtherSubnet,

    // Rules for PROPOSAL.
    /// The subnets of the interface are unknown, and version 1 would need them.
    NoSubnets,
    /// The PROPOSAL cannot be written.
    Unwritable,
    /// It offers nothing.
    NothingOffered,
    /// It lacks the extension of version 2.
    NoV2Extension,
    /// It lacks the SMC-D extension of version 2.
    NoDirectExtension,
    /// It has no EID for the offered type.
    NoEid,
    /// Only SMC-D v2 is left, and there is no device for it.
    NoDeviceForV2,

    // Rules for ACCEPT and CONFIRM.
    /// The server chose a type or version that was not offered.
    NotOffered,
    /// The release is higher than offered, or differs from ACCEPT.
    Release,
    /// The number of connections per link group is out of range, or differs from ACCEPT.
    MaxConns,
    /// The number of links per link group is out of range, or differs from ACCEPT.
    MaxLinks,
    /// No route leads to the server's GID.
    NoRoute,
    /// The server needs a router, and the client does not.
    OtherRoute,

    // Outcomes of the search for a device.
    /// None was found, possibly because of this.
    NoDevice(Search, Option<FallbackCause>),

    // Steps of the set-up.
    /// A step of a device has failed.
    Device(Version, SetupStep, DeviceError),
    /// A step has taken too long.
    TimedOut(Version, SetupStep),
    /// No link group of this side can take the connection.
    NoGroup(Role, NoGroup),
    /// There is no RMB.
    Rmb(Role, RmbError),
    /// The peer does not know the keys of the RMB.
    Rkey(RkeyError),
    /// The peer's RMB cannot be used.
    Rtoken(RtokenError),
    /// The first link was not confirmed.
    FirstLink(FirstLinkError),
    /// The link group was terminated.
    GroupTerminated,
}

/// The devices that were searched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Search {
    Any,
    Direct(Version),
    Rdma,
}

/// The code of a cause.
pub(crate) fn decline_code(cause: &DeclineCause) -> DeclineCode {
    match cause {
        DeclineCause::NoHandshake(cause) => match cause {
            FallbackCause::Code(code) => *code,
            FallbackCause::PeerDeclined(_) => PEER_DECLINED,
            FallbackCause::Policy => DeclineCode::OPTUNSUPP,
            FallbackCause::NoDevice | FallbackCause::OtherHost => DeclineCode::NOSMCDEV,
            FallbackCause::NoNegotiation
            | FallbackCause::NoCommonEid
            | FallbackCause::NotAnnounced { .. }
            | FallbackCause::NoSynOption
            | FallbackCause::NotOffered
            | FallbackCause::NoAnswer { .. }
            | FallbackCause::BackOff
            | FallbackCause::PlainServer
            | FallbackCause::ListenerGone
            | FallbackCause::Refused(_)
            | FallbackCause::Withdrawn
            | FallbackCause::User { .. }
            | FallbackCause::NotOwner { .. }
            | FallbackCause::Full(_)
            | FallbackCause::Directory(_)
            | FallbackCause::NotProven
            | FallbackCause::Os(_)
            | FallbackCause::Device { .. }
            | FallbackCause::TimedOut(_)
            | FallbackCause::NoGroup(_)
            | FallbackCause::GroupTerminated
            | FallbackCause::Rkey(_)
            | FallbackCause::Rtoken(_)
            | FallbackCause::ConfirmLink(_) => DeclineCode::PEERNOSMC,
        },

        DeclineCause::Ipsec => DeclineCode::IPSEC,
        DeclineCause::VlanUnknown => DeclineCode::GETVLANERR,
        DeclineCause::OtherSubnet => DeclineCode::DIFFPREFIX,

        DeclineCause::NoSubnets => DeclineCode::CNFERR,
        DeclineCause::Unwritable => DeclineCode::INTERR,
        DeclineCause::NothingOffered => DeclineCode::PEERNOSMC,
        DeclineCause::NoV2Extension => DeclineCode::NOV2EXT,
        DeclineCause::NoDirectExtension => DeclineCode::NOV2DEXT,
        DeclineCause::NoEid => DeclineCode::NOUEID,
        DeclineCause::NoDeviceForV2 => DeclineCode::NOISM2SUPP,

        DeclineCause::NotOffered => DeclineCode::MODEUNSUPP,
        DeclineCause::Release => DeclineCode::RELEASEERR,
        DeclineCause::MaxConns => DeclineCode::MAXCONNERR,
        DeclineCause::MaxLinks => DeclineCode::MAXLINKERR,
        DeclineCause::NoRoute => DeclineCode::NOROUTE,
        DeclineCause::OtherRoute => DeclineCode::NOINDIRECT,

        DeclineCause::NoDevice(Search::Any, _) => DeclineCode::NOSMCDEV,
        DeclineCause::NoDevice(Search::Rdma, _) => DeclineCode::NOSMCRDEV,
        DeclineCause::NoDevice(Search::Direct(version), _) => no_direct_device(*version),

        DeclineCause::Device(version, step, error) => match (step, error) {
            (SetupStep::Register, DeviceError::Exhausted) => DeclineCode::MAX_DMB,
            (SetupStep::OpenLink, DeviceError::Exhausted) => DeclineCode::MEM,
            (SetupStep::OpenLink, error) if error.is_lack_of_memory() => DeclineCode::MEM,
            (step, _) => step_code(*step, *version),
        },
        DeclineCause::TimedOut(version, step) => step_code(*step, *version),
        DeclineCause::NoGroup(Role::Client, _) => DeclineCode::SYNCERR,
        DeclineCause::NoGroup(Role::Server, NoGroup::Full) => DeclineCode::MEM,
        DeclineCause::NoGroup(Role::Server, NoGroup::Missing) => DeclineCode::INTERR,
        DeclineCause::Rmb(Role::Client, RmbError::NoLink) => DeclineCode::NOSRVLINK,
        DeclineCause::Rmb(Role::Server, RmbError::NoLink) => DeclineCode::NOACTLINK,
        DeclineCause::Rmb(_, RmbError::Device(_)) => DeclineCode::MEM,
        DeclineCause::Rkey(_) => DeclineCode::ERR_REGBUF,
        DeclineCause::Rtoken(_) => DeclineCode::ERR_RTOK,
        DeclineCause::FirstLink(FirstLinkError::Eyecatchers) => DeclineCode::RMBE_EC,
        DeclineCause::FirstLink(_) => DeclineCode::TIMEOUT_CL,
        DeclineCause::GroupTerminated => DeclineCode::NOACTLINK,
    }
}

/// The code of a step that failed for a cause without a code of its own.
const fn step_code(step: SetupStep, version: Version) -> DeclineCode {
    match step {
        SetupStep::Reach => no_direct_device(version),
        SetupStep::Enter | SetupStep::OpenLink | SetupStep::BindPeer => DeclineCode::INTERR,
        SetupStep::Register | SetupStep::Attach => DeclineCode::MEM,
        SetupStep::ConfirmRkey => DeclineCode::ERR_REGBUF,
        SetupStep::ConnectLink => DeclineCode::ERR_RDYLNK,
        SetupStep::ConfirmLink => DeclineCode::TIMEOUT_CL,
    }
}

/// The code of a version in which no SMC-D device can be used.
const fn no_direct_device(version: Version) -> DeclineCode {
    match version.is_v2() {
        true => DeclineCode::NOSMCD2DEV,
        false => DeclineCode::NOSMCDDEV,
    }
}

/// The local code of a connection that the peer declined. It is never sent.
pub(crate) const PEER_DECLINED: DeclineCode = DeclineCode::PEERDECL;

impl From<DeclineCause> for FallbackReason {
    fn from(cause: DeclineCause) -> Self {
        let code = decline_code(&cause);
        let device = |step, error| FallbackCause::Device { step, error };
        let cause = match cause {
            DeclineCause::NoHandshake(FallbackCause::PeerDeclined(code)) => {
                return Self::peer_declined(code);
            }
            DeclineCause::NoHandshake(cause) | DeclineCause::NoDevice(_, Some(cause)) => cause,
            DeclineCause::Device(_, step, error) => device(step, error),
            DeclineCause::TimedOut(_, step) => FallbackCause::TimedOut(step),
            DeclineCause::NoGroup(_, why) => FallbackCause::NoGroup(why),
            DeclineCause::Rmb(_, RmbError::Device(error)) => device(SetupStep::Register, error),
            DeclineCause::Rkey(error) => FallbackCause::Rkey(error),
            DeclineCause::Rtoken(error) => FallbackCause::Rtoken(error),
            DeclineCause::FirstLink(error) => FallbackCause::ConfirmLink(error),
            DeclineCause::GroupTerminated => FallbackCause::GroupTerminated,
            DeclineCause::Ipsec
            | DeclineCause::VlanUnknown
            | DeclineCause::OtherSubnet
            | DeclineCause::NoSubnets
            | DeclineCause::Unwritable
            | DeclineCause::NothingOffered
            | DeclineCause::NoV2Extension
            | DeclineCause::NoDirectExtension
            | DeclineCause::NoEid
            | DeclineCause::NoDeviceForV2
            | DeclineCause::NotOffered
            | DeclineCause::Release
            | DeclineCause::MaxConns
            | DeclineCause::MaxLinks
            | DeclineCause::NoRoute
            | DeclineCause::OtherRoute
            | DeclineCause::NoDevice(_, None)
            | DeclineCause::Rmb(_, RmbError::NoLink) => FallbackCause::Code(code),
        };
        Self::because(code, cause)
    }
}
