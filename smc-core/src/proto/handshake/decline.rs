//! The diagnosis codes of DECLINE (docs/spec/fallback.md#codes). Nothing else in this crate names
//! one.

use smc_wire::types::{DeclineCode, Version};

use super::RmbError;
use crate::device::DeviceError;
use crate::error::{FallbackCause, FallbackReason, SetupStep};
use crate::proto::Role;
use crate::proto::group::NoGroup;
use crate::proto::links::{FirstLinkError, RkeyError, RtokenError};

/// Why this side does not use SMC for a connection.
#[derive(Clone, Debug)]
pub(crate) enum DeclineCause {
    /// A cause outside of the handshake.
    NoHandshake(FallbackCause),

    /// A rule is not met: one of the constants below.
    Rule(DeclineCode),

    // Outcomes of the search for a device.
    /// None was found, possibly because of this.
    NoDevice(SearchedDevices, Option<FallbackCause>),

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

impl DeclineCause {
    // Rules for the connection.
    /// An IPsec policy applies to it.
    pub(crate) const IPSEC: Self = Self::Rule(DeclineCode::IPSEC);
    /// Its VLAN is unknown.
    pub(crate) const VLAN_UNKNOWN: Self = Self::Rule(DeclineCode::GETVLANERR);
    /// The ends are in different IP subnets.
    pub(crate) const OTHER_SUBNET: Self = Self::Rule(DeclineCode::DIFFPREFIX);

    // Rules for PROPOSAL.
    /// The subnets of the interface are unknown, and version 1 would need them.
    pub(crate) const NO_SUBNETS: Self = Self::Rule(DeclineCode::CNFERR);
    /// The PROPOSAL cannot be written.
    pub(crate) const UNWRITABLE: Self = Self::Rule(DeclineCode::INTERR);
    /// It offers nothing.
    pub(crate) const NOTHING_OFFERED: Self = Self::Rule(DeclineCode::PEERNOSMC);
    /// It lacks the extension of version 2.
    pub(crate) const NO_V2_EXTENSION: Self = Self::Rule(DeclineCode::NOV2EXT);
    /// It lacks the SMC-D extension of version 2.
    pub(crate) const NO_DIRECT_EXTENSION: Self = Self::Rule(DeclineCode::NOV2DEXT);
    /// It has no EID for the offered type.
    pub(crate) const NO_EID: Self = Self::Rule(DeclineCode::NOUEID);
    /// Only SMC-D v2 is left, and there is no device for it.
    pub(crate) const NO_DEVICE_FOR_V2: Self = Self::Rule(DeclineCode::NOISM2SUPP);

    // Rules for ACCEPT and CONFIRM.
    /// The server chose a type or version that was not offered.
    pub(crate) const UNOFFERED_CHOICE: Self = Self::Rule(DeclineCode::MODEUNSUPP);
    /// The release is higher than offered, or differs from ACCEPT.
    pub(crate) const RELEASE: Self = Self::Rule(DeclineCode::RELEASEERR);
    /// The number of connections per link group is out of range, or differs from ACCEPT.
    pub(crate) const MAX_CONNS: Self = Self::Rule(DeclineCode::MAXCONNERR);
    /// The number of links per link group is out of range, or differs from ACCEPT.
    pub(crate) const MAX_LINKS: Self = Self::Rule(DeclineCode::MAXLINKERR);
    /// CONFIRM does not repeat the features beyond the released protocol that ACCEPT states.
    pub(crate) const FEATURES: Self = Self::Rule(DeclineCode::RELEASEERR);
    /// No route leads to the server's GID.
    pub(crate) const NO_ROUTE: Self = Self::Rule(DeclineCode::NOROUTE);
    /// The server needs a router, and the client does not.
    pub(crate) const OTHER_ROUTE: Self = Self::Rule(DeclineCode::NOINDIRECT);
}

/// The devices that were searched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SearchedDevices {
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
            FallbackCause::NoDevice
            | FallbackCause::NoDefaultDevice(_)
            | FallbackCause::OtherHost => DeclineCode::NOSMCDEV,
            _ => DeclineCode::PEERNOSMC,
        },
        DeclineCause::Rule(code) => *code,

        DeclineCause::NoDevice(SearchedDevices::Any, _) => DeclineCode::NOSMCDEV,
        DeclineCause::NoDevice(SearchedDevices::Rdma, _) => DeclineCode::NOSMCRDEV,
        DeclineCause::NoDevice(SearchedDevices::Direct(version), _) => no_direct_device(*version),

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
            DeclineCause::Rule(_)
            | DeclineCause::NoDevice(_, None)
            | DeclineCause::Rmb(_, RmbError::NoLink) => FallbackCause::Code(code),
        };
        Self::because(code, cause)
    }
}
