//! The text of every cause.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use smc_ipc::Domain;
use smc_wire::types::Version;

use super::*;
use crate::Error;
use crate::proto::Role;

/// An enum whose variants are listed.
trait Variants {
    const ALL: &'static [&'static str];

    fn name(&self) -> &'static str;
}

/// Lists the variants of an enum. Without `_`: a new variant does not compile before it is listed,
/// and has no row then.
macro_rules! variants {
    ($type:ident { $($pattern:pat => $name:literal,)+ }) => {
        impl Variants for $type {
            const ALL: &'static [&'static str] = &[$($name),+];

            fn name(&self) -> &'static str {
                match self {
                    $($pattern => $name),+
                }
            }
        }
    };
}

variants! { FallbackCause {
    Self::Code(_) => "Code",
    Self::PeerDeclined(_) => "PeerDeclined",
    Self::Policy => "Policy",
    Self::NoNegotiation => "NoNegotiation",
    Self::NoDefaultDevice(_) => "NoDefaultDevice",
    Self::NoDevice => "NoDevice",
    Self::OtherHost => "OtherHost",
    Self::NoCommonEid => "NoCommonEid",
    Self::NotAnnounced { .. } => "NotAnnounced",
    Self::NoSynOption => "NoSynOption",
    Self::NotOffered => "NotOffered",
    Self::NoAnswer { .. } => "NoAnswer",
    Self::BackOff => "BackOff",
    Self::PlainServer => "PlainServer",
    Self::ListenerGone => "ListenerGone",
    Self::Refused(_) => "Refused",
    Self::Withdrawn => "Withdrawn",
    Self::User { .. } => "User",
    Self::NotOwner { .. } => "NotOwner",
    Self::Full(_) => "Full",
    Self::Directory(_) => "Directory",
    Self::NotProven => "NotProven",
    Self::Os(_) => "Os",
    Self::Device { .. } => "Device",
    Self::TimedOut(_) => "TimedOut",
    Self::NoGroup(_) => "NoGroup",
    Self::GroupTerminated => "GroupTerminated",
    Self::Rkey(_) => "Rkey",
    Self::Rtoken(_) => "Rtoken",
    Self::ConfirmLink(_) => "ConfirmLink",
} }

variants! { Refusal {
    Self::Unknown => "Unknown",
    Self::Policy => "Policy",
    Self::User { .. } => "User",
    Self::Full => "Full",
    Self::Descriptors => "Descriptors",
    Self::Identity => "Identity",
} }

variants! { SetupStep {
    Self::Reach => "Reach",
    Self::Enter => "Enter",
    Self::Register => "Register",
    Self::Attach => "Attach",
    Self::OpenLink => "OpenLink",
    Self::ConfirmRkey => "ConfirmRkey",
    Self::BindPeer => "BindPeer",
    Self::ConnectLink => "ConnectLink",
    Self::ConfirmLink => "ConfirmLink",
} }

variants! { NoGroup {
    Self::Missing => "Missing",
    Self::Full => "Full",
} }

variants! { RkeyError {
    Self::TimedOut => "TimedOut",
    Self::Refused => "Refused",
    Self::NoTurn => "NoTurn",
    Self::NoKey => "NoKey",
    Self::Undeleted => "Undeleted",
    Self::Ended => "Ended",
} }

variants! { RtokenError {
    Self::TableFull => "TableFull",
    Self::NotAnnounced => "NotAnnounced",
    Self::InUse => "InUse",
    Self::OtherElement => "OtherElement",
    Self::NotAuthentic => "NotAuthentic",
    Self::Ended => "Ended",
} }

variants! { FirstLinkError {
    Self::TimedOut => "TimedOut",
    Self::Eyecatchers => "Eyecatchers",
    Self::NotAuthentic => "NotAuthentic",
    Self::LinkDown => "LinkDown",
} }

/// Reasons, and what they say.
fn rows() -> Vec<(FallbackReason, &'static str)> {
    use FallbackCause as Cause;

    let denied = |operation| OsError::new(operation, &io::Error::from_raw_os_error(EACCES));
    let over_limit = DeviceError::OverLimit {
        needed: 4096,
        left: 1000,
        limit: Limit::new("memory limit", 1024),
    };
    let missing = Domain::directory("/proc/no/such").open(Path::new("/proc/no/such"));
    let missing = missing.expect_err("no directory can be made in /proc");
    let step = |cause: DeclineCause| FallbackReason::from(cause);
    let not_announced = |paths: &[&str]| Cause::NotAnnounced {
        searched: paths.iter().map(PathBuf::from).collect(),
    };
    let not_owner = |owner| Cause::NotOwner { uid: 990, owner };
    let cause = |cause: Cause| FallbackReason::from(cause);
    let because = FallbackReason::because;
    vec![
        // Codes of the protocol.
        (
            FallbackReason::local(DeclineCode::IPSEC),
            "0x03020000 an IPsec policy applies to the connection",
        ),
        (
            FallbackReason::peer_declined(DeclineCode::MAX_DMB),
            "0x05000000/0x030d0000 peer declined: the device cannot register more buffers",
        ),
        (
            FallbackReason::peer_declined(DeclineCode(0x1234)),
            "0x05000000/0x00001234 peer declined",
        ),
        // Configuration.
        (cause(Cause::Policy), "0x03060000 policy is to use TCP"),
        (
            cause(Cause::NoNegotiation),
            "0x03010000 endpoint has no negotiation to find out whether peers support SMC",
        ),
        (
            cause(Cause::NoDefaultDevice(Arc::new(Error::misuse(
                "it is used",
            )))),
            "0x03030000 default endpoint has no device: misuse: it is used",
        ),
        (
            cause(Cause::NoDevice),
            "0x03030000 endpoint has no device that works",
        ),
        (
            cause(Cause::OtherHost),
            "0x03030000 endpoint has no device for peers of other hosts",
        ),
        (
            because(DeclineCode::NOSMCDDEV, Cause::NoCommonEid),
            "0x03030001 no EID in common",
        ),
        // Listeners that are not found, or are not trusted.
        (
            cause(not_announced(&["/run/smc-0", "/tmp/smc-0"])),
            "0x03010000 no SMC listener is announced at this address \
             in /run/smc-0, /tmp/smc-0",
        ),
        (
            cause(Cause::not_announced()),
            "0x03010000 no SMC listener is announced at this address",
        ),
        (
            cause(Cause::NoSynOption),
            "0x03010000 peer does not support SMC: no option in its SYN",
        ),
        (
            cause(Cause::User { uid: 1000 }),
            "0x03010000 user 1000 is not allowed",
        ),
        (
            cause(not_owner(Some(0))),
            "0x03010000 listening socket belongs to user 0 and is announced by user 990",
        ),
        (
            cause(not_owner(None)),
            "0x03010000 listening socket is announced by user 990, and its owner is not known",
        ),
        (
            cause(Cause::NotProven),
            "0x03010000 address is not proven to lead to the listener",
        ),
        // Offers without an answer.
        (
            cause(Cause::NotOffered),
            "0x03010000 client made no offer for this connection, or withdrew it",
        ),
        (
            cause(Cause::NoAnswer {
                within: Duration::from_millis(200),
            }),
            "0x03010000 listener has not answered within 200ms",
        ),
        (
            cause(Cause::BackOff),
            "0x03010000 listener has not answered lately",
        ),
        (
            cause(Cause::PlainServer),
            "0x03010000 peer does not support SMC: data instead of an answer",
        ),
        (
            cause(Cause::ListenerGone),
            "0x03010000 listener has ended before it answered",
        ),
        (
            cause(Cause::Withdrawn),
            "0x03010000 client has withdrawn its offer",
        ),
        // Refused offers.
        (
            cause(Cause::Refused(Refusal::Unknown)),
            "0x03010000 listener refused the offer: no reason given",
        ),
        (
            cause(Cause::Refused(Refusal::Policy)),
            "0x03010000 listener refused the offer: policy is to use TCP",
        ),
        (
            cause(Cause::Refused(Refusal::User { uid: 1000 })),
            "0x03010000 listener refused the offer: user 1000 is not allowed",
        ),
        (
            cause(Cause::Refused(Refusal::Full)),
            "0x03010000 listener refused the offer: listener has its maximum of clients",
        ),
        (
            cause(Cause::Refused(Refusal::Descriptors)),
            "0x03010000 listener refused the offer: no descriptor left",
        ),
        (
            cause(Cause::Refused(Refusal::Identity)),
            "0x03010000 listener refused the offer: connection is not the one that was announced",
        ),
        // Limits and the operating system.
        (
            cause(Cause::Full(Limit::new("limit of handshakes that wait", 7))),
            "0x03010000 too many: limit of handshakes that wait is 7",
        ),
        (
            cause(Cause::Os(
                denied("connect to the listener's socket").at("/run/smc-0/l"),
            )),
            "0x03010000 connect to the listener's socket /run/smc-0/l: \
             permission denied (os error 13)",
        ),
        (
            cause(Cause::Directory(missing)),
            "0x03010000 runtime directory /proc/no/such cannot be used: \
             open: no such file or directory (os error 2)",
        ),
        // Steps of the set-up.
        (
            step(DeclineCause::Device(
                Version::V2,
                SetupStep::Register,
                over_limit,
            )),
            "0x01010000 register the receive buffer: \
             4096 bytes are needed and 1000 are left: memory limit is 1024",
        ),
        (
            step(DeclineCause::Device(
                Version::V2,
                SetupStep::OpenLink,
                denied("open device").into(),
            )),
            "0x09990000 make the queue pair: open device: permission denied (os error 13)",
        ),
        (
            step(DeclineCause::TimedOut(Version::V2, SetupStep::Reach)),
            "0x03030007 reach the peer's device: timed out",
        ),
        (
            step(DeclineCause::TimedOut(Version::V2, SetupStep::Enter)),
            "0x09990000 enter the link group: timed out",
        ),
        (
            step(DeclineCause::TimedOut(Version::V2, SetupStep::Attach)),
            "0x01010000 map the peer's receive buffer: timed out",
        ),
        (
            step(DeclineCause::TimedOut(Version::V2, SetupStep::ConfirmRkey)),
            "0x09990003 announce the rkey: timed out",
        ),
        (
            step(DeclineCause::TimedOut(Version::V2, SetupStep::BindPeer)),
            "0x09990000 store the peer's rkey: timed out",
        ),
        (
            step(DeclineCause::TimedOut(Version::V2, SetupStep::ConnectLink)),
            "0x09990002 connect the queue pair: timed out",
        ),
        (
            step(DeclineCause::TimedOut(Version::V2, SetupStep::ConfirmLink)),
            "0x02010000 confirm the link: timed out",
        ),
        // Link groups.
        (
            step(DeclineCause::NoGroup(Role::Client, NoGroup::Missing)),
            "0x04000000 no link group to join",
        ),
        (
            step(DeclineCause::NoGroup(Role::Server, NoGroup::Full)),
            "0x01010000 too many first contacts under way",
        ),
        (
            step(DeclineCause::GroupTerminated),
            "0x030a0000 link group was terminated",
        ),
        (
            step(DeclineCause::Rkey(RkeyError::TimedOut)),
            "0x09990003 peer did not confirm the rkey in time",
        ),
        (
            step(DeclineCause::Rkey(RkeyError::Refused)),
            "0x09990003 peer refused the rkey",
        ),
        (
            step(DeclineCause::Rkey(RkeyError::NoTurn)),
            "0x09990003 rkey could not be announced in time",
        ),
        (
            step(DeclineCause::Rkey(RkeyError::NoKey)),
            "0x09990003 link of the handshake has failed, or has no key for the RMB",
        ),
        (
            step(DeclineCause::Rkey(RkeyError::Undeleted)),
            "0x09990003 too many deletions of rkeys are unanswered or wait",
        ),
        (
            step(DeclineCause::Rkey(RkeyError::Ended)),
            "0x09990003 link group has ended",
        ),
        (
            step(DeclineCause::Rtoken(RtokenError::TableFull)),
            "0x09990001 table of the peer's buffers is full",
        ),
        (
            step(DeclineCause::Rtoken(RtokenError::NotAnnounced)),
            "0x09990001 peer has not announced its buffer by CONFIRM RKEY",
        ),
        (
            step(DeclineCause::Rtoken(RtokenError::InUse)),
            "0x09990001 peer's buffer is that of another connection",
        ),
        (
            step(DeclineCause::Rtoken(RtokenError::OtherElement)),
            "0x09990001 peer's buffer has one element, with number 1",
        ),
        (
            step(DeclineCause::Rtoken(RtokenError::NotAuthentic)),
            "0x09990001 message that names the peer's buffer is not authentic",
        ),
        (
            step(DeclineCause::Rtoken(RtokenError::Ended)),
            "0x09990001 link group has ended",
        ),
        (
            step(DeclineCause::FirstLink(FirstLinkError::TimedOut)),
            "0x02010000 CONFIRM LINK did not come in time",
        ),
        (
            step(DeclineCause::FirstLink(FirstLinkError::Eyecatchers)),
            "0x03050000 peer requires eyecatchers in its buffers",
        ),
        (
            step(DeclineCause::FirstLink(FirstLinkError::NotAuthentic)),
            "0x02010000 CONFIRM LINK is not that of a peer with the same handshake messages",
        ),
        (
            step(DeclineCause::FirstLink(FirstLinkError::LinkDown)),
            "0x02010000 link went down",
        ),
    ]
}

#[test]
fn each_reason_is_its_codes_and_its_cause() {
    for (reason, text) in rows() {
        assert_eq!(reason.to_string(), text);
    }
}

#[test]
fn each_cause_has_a_text() {
    let causes: Vec<_> = rows().into_iter().map(|(reason, _)| reason.cause).collect();
    has_all(causes.iter());
    has_all(causes.iter().filter_map(|cause| match cause {
        FallbackCause::Refused(refusal) => Some(refusal),
        _ => None,
    }));
    has_all(causes.iter().filter_map(|cause| match cause {
        FallbackCause::Device { step, .. } | FallbackCause::TimedOut(step) => Some(step),
        _ => None,
    }));
    has_all(causes.iter().filter_map(|cause| match cause {
        FallbackCause::NoGroup(error) => Some(error),
        _ => None,
    }));
    has_all(causes.iter().filter_map(|cause| match cause {
        FallbackCause::Rkey(error) => Some(error),
        _ => None,
    }));
    has_all(causes.iter().filter_map(|cause| match cause {
        FallbackCause::Rtoken(error) => Some(error),
        _ => None,
    }));
    has_all(causes.iter().filter_map(|cause| match cause {
        FallbackCause::ConfirmLink(error) => Some(error),
        _ => None,
    }));
}

/// All variants are among the values.
fn has_all<'a, T: Variants + 'a>(values: impl Iterator<Item = &'a T>) {
    let found: BTreeSet<_> = values.map(T::name).collect();
    assert_eq!(found, T::ALL.iter().copied().collect());
}

const EACCES: i32 = 13;
