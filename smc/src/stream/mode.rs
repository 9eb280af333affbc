//! The mode of a stream: SMC-D, SMC-R or TCP.

use std::fmt;
use std::sync::Arc;

use smc_wire::types::{Chid, Eid, Features, Gid, Release, RoceGid, Version};

use crate::address::Address;
use crate::error::FallbackReason;

/// The mode of a stream: SMC-D, SMC-R or TCP.
///
/// ```
/// # fn report(stream: &smc::Stream) {
/// use smc::Mode;
///
/// match stream.mode() {
///     Mode::SmcD { nocopy, .. } => println!("shared memory, mapped here: {nocopy}"),
///     Mode::SmcR { .. } => println!("RDMA"),
///     Mode::Tcp { reason, .. } => println!("TCP: {reason}"),
///     other => println!("{other}"),
/// }
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mode {
    /// SMC-D: data moves directly into the peer's memory.
    #[non_exhaustive]
    SmcD {
        /// Version of the handshake.
        version: Version,
        /// Release within version 2.
        release: Release,
        /// Whether the peer's buffer is mapped for writing, so that data is copied only once. The
        /// other direction depends on the peer's device.
        nocopy: bool,
        /// Name of the local device.
        device: Arc<str>,
        /// The fabric.
        chid: Chid,
        /// The peer's device.
        peer: Gid,
        /// The EID both ends agreed on; `None` in version 1.
        eid: Option<Eid>,
        /// Features beyond the released protocol, as of [`Mode::SmcR`].
        vendor_features: Features,
    },
    /// SMC-R: RDMA writes into the peer's memory.
    #[non_exhaustive]
    SmcR {
        /// Version of the handshake.
        version: Version,
        /// Release within version 2.
        release: Release,
        /// Name of the local device of the connection's first link.
        device: Arc<str>,
        /// GID of the local end.
        local: RoceGid,
        /// GID of the peer's end.
        peer: RoceGid,
        /// The EID both ends agreed on; `None` in version 1.
        eid: Option<Eid>,
        /// Features beyond the released protocol: those that both ends have agreed on for the link
        /// group, and of early CONFIRM and early data what this stream has used.
        vendor_features: Features,
    },
    /// Plain TCP.
    #[non_exhaustive]
    Tcp {
        /// Why it is not SMC.
        reason: FallbackReason,
    },
    /// A plain UNIX socket.
    #[non_exhaustive]
    Unix {
        /// Why it is not SMC.
        reason: FallbackReason,
    },
}

impl Mode {
    /// Whether the stream is SMC, of either kind.
    #[must_use]
    pub fn is_smc(&self) -> bool {
        matches!(self, Self::SmcD { .. } | Self::SmcR { .. })
    }

    /// Whether the first bytes of the stream were sent with the PROPOSAL, and taken.
    pub(super) fn has_early_data(&self) -> bool {
        match self {
            Self::SmcD {
                vendor_features, ..
            }
            | Self::SmcR {
                vendor_features, ..
            } => vendor_features.contains(Features::EARLY_DATA),
            _ => false,
        }
    }

    /// Why the stream is TCP or a plain UNIX socket; `None` when it is SMC.
    #[must_use]
    pub fn fallback_reason(&self) -> Option<FallbackReason> {
        match self {
            Self::Tcp { reason } | Self::Unix { reason } => Some(reason.clone()),
            Self::SmcD { .. } | Self::SmcR { .. } => None,
        }
    }

    /// That of a stream without SMC between sockets of this kind.
    pub(crate) fn without_smc(peer: &Address, reason: FallbackReason) -> Self {
        match peer {
            Address::Tcp(_) => Self::Tcp { reason },
            Address::Unix(_) => Self::Unix { reason },
        }
    }
}

impl Mode {
    /// Such as `SMC-D v2.1`, or `TCP 0x03000000` without the cause.
    pub(super) fn write_short(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SmcD {
                version, release, ..
            } => write_version(f, 'D', *version, *release),
            Self::SmcR {
                version, release, ..
            } => write_version(f, 'R', *version, *release),
            Self::Tcp { reason } => write_codes(f, "TCP", reason),
            Self::Unix { reason } => write_codes(f, "UNIX", reason),
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SmcD {
                version,
                release,
                nocopy,
                device,
                vendor_features,
                ..
            } => {
                write_version(f, 'D', *version, *release)?;
                let how = if *nocopy { "nocopy" } else { "copy" };
                write!(f, " {how} on {device}")?;
                write_features(f, *vendor_features)
            }
            Self::SmcR {
                version,
                release,
                device,
                peer,
                vendor_features,
                ..
            } => {
                write_version(f, 'R', *version, *release)?;
                write!(f, " on {device} to {peer}")?;
                write_features(f, *vendor_features)
            }
            Self::Tcp { reason } => write!(f, "TCP {reason}"),
            Self::Unix { reason } => write!(f, "UNIX {reason}"),
        }
    }
}

fn write_features(f: &mut fmt::Formatter<'_>, features: Features) -> fmt::Result {
    match features.is_empty() {
        true => Ok(()),
        false => write!(f, " with {features}"),
    }
}

fn write_codes(f: &mut fmt::Formatter<'_>, socket: &str, reason: &FallbackReason) -> fmt::Result {
    write!(f, "{socket} {:#010x}", reason.local.0)?;
    match reason.peer {
        Some(peer) => write!(f, "/{:#010x}", peer.0),
        None => Ok(()),
    }
}

/// Such as `SMC-D v2.1`.
fn write_version(
    f: &mut fmt::Formatter<'_>,
    kind: char,
    version: Version,
    release: Release,
) -> fmt::Result {
    write!(f, "SMC-{kind} v{}", version.get())?;
    if version.is_v2() {
        write!(f, ".{}", release.get())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_features_of_a_stream_are_shown_of_either_kind() {
        let both = |vendor_features| {
            let direct = Mode::SmcD {
                version: Version::V2,
                release: Release::V2_1,
                nocopy: true,
                device: "loop".into(),
                chid: Chid(0xFFFF),
                peer: Gid::new(1, 2),
                eid: None,
                vendor_features,
            };
            let rdma = Mode::SmcR {
                version: Version::V2,
                release: Release::V2_1,
                device: "rxe0".into(),
                local: RoceGid::from_ipv4([10, 0, 0, 1].into()),
                peer: RoceGid::from_ipv4([10, 0, 0, 2].into()),
                eid: None,
                vendor_features,
            };
            [direct, rdma].map(|mode| mode.to_string())
        };
        assert_eq!(
            both(Features::empty()),
            [
                "SMC-D v2.1 nocopy on loop",
                "SMC-R v2.1 on rxe0 to ::ffff:10.0.0.2"
            ]
        );
        assert_eq!(
            both(Features::EARLY_CONFIRM | Features::EARLY_DATA),
            [
                "SMC-D v2.1 nocopy on loop with EARLY_CONFIRM | EARLY_DATA",
                "SMC-R v2.1 on rxe0 to ::ffff:10.0.0.2 with EARLY_CONFIRM | EARLY_DATA"
            ]
        );
    }
}
