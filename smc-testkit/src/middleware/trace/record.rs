//! The records of a traced device.

use std::fmt;
use std::sync::Arc;

use smc_core::device::{
    Access, DeviceError, Event, LinkAddress, OpId, PeerEvent, Signal, SubmitError,
};
use smc_wire::types::{DmbToken, Gid, Qpn, Rkey, RmbAddr, RoceGid};

/// One thing that happened at a device. `Display` is one line.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Record {
    /// The device's name.
    pub device: Arc<str>,
    /// What happened.
    pub what: What,
}

/// What happened at a device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum What {
    /// [`Direct::reach`](smc_core::device::Direct::reach) ended.
    #[non_exhaustive]
    Reached {
        /// Whom it was about.
        peer: Gid,
        /// How it ended.
        result: Result<(), DeviceError>,
    },
    /// [`Direct::register`](smc_core::device::Direct::register) ended.
    #[non_exhaustive]
    Registered {
        /// The device that may write.
        peer: Gid,
        /// Length asked for, in bytes.
        len: usize,
        /// The token, or why there is none.
        result: Result<DmbToken, DeviceError>,
    },
    /// A buffer was dropped.
    Unregistered(DmbToken),
    /// A buffer was armed.
    BufferArmed(DmbToken),
    /// [`Direct::move_data`](smc_core::device::Direct::move_data) was called.
    #[non_exhaustive]
    Moved {
        /// The device that owns the buffer.
        peer: Gid,
        /// Into which buffer.
        to: DmbToken,
        /// Offset in bytes.
        at: u32,
        /// Length of all slices, in bytes.
        len: usize,
        /// Whether the peer was to be notified.
        signal: Signal,
        /// Whether it was taken.
        result: Result<(), SubmitError>,
    },
    /// [`Nocopy::attach`](smc_core::device::Nocopy::attach) ended.
    #[non_exhaustive]
    Attached {
        /// Whose buffer.
        peer: Gid,
        /// Which buffer.
        token: DmbToken,
        /// How it ended.
        result: Result<(), DeviceError>,
    },
    /// An attachment was dropped.
    Detached(DmbToken),
    /// [`Attachment::signal`](smc_core::device::Attachment::signal) was called.
    #[non_exhaustive]
    Signalled {
        /// Which buffer.
        token: DmbToken,
        /// Whether a peer was notified.
        result: Result<(), SubmitError>,
    },
    /// [`PeerEvents::signal_event`](smc_core::device::PeerEvents::signal_event) was called.
    #[non_exhaustive]
    EventSent {
        /// To whom.
        peer: Gid,
        /// What.
        event: PeerEvent,
        /// Whether it was sent.
        result: Result<(), SubmitError>,
    },
    /// [`ProtectionDomain::open_link`](smc_core::device::ProtectionDomain::open_link) ended.
    #[non_exhaustive]
    Opened {
        /// At which address.
        at: RoceGid,
        /// The local end, or why there is none.
        result: Result<LinkAddress, DeviceError>,
    },
    /// [`PendingLink::connect`](smc_core::device::PendingLink::connect) ended.
    #[non_exhaustive]
    Connected {
        /// The local queue pair.
        link: Qpn,
        /// The other end.
        peer: LinkAddress,
        /// How it ended.
        result: Result<(), DeviceError>,
    },
    /// A link was closed ([`Link::close`](smc_core::device::Link::close)).
    Closed(Qpn),
    /// A link was dropped, connected or not.
    Released(Qpn),
    /// [`ProtectionDomain::register`](smc_core::device::ProtectionDomain::register) ended.
    #[non_exhaustive]
    MemoryRegistered {
        /// Length of the memory in bytes.
        len: usize,
        /// What it is for.
        access: Access,
        /// Key and address, or why there is none.
        result: Result<(Rkey, RmbAddr), DeviceError>,
    },
    /// A registration was dropped.
    MemoryReleased(Rkey),
    /// [`Link::post`](smc_core::device::Link::post) was called.
    #[non_exhaustive]
    Posted {
        /// The local queue pair.
        link: Qpn,
        /// The name of the post.
        op: OpId,
        /// Where its writes go, with their lengths in bytes.
        writes: Vec<(Rkey, RmbAddr, u64)>,
        /// The message.
        message: Vec<u8>,
        /// Whether it was taken.
        result: Result<(), SubmitError>,
    },
    /// [`Device::drain`](smc_core::device::Device::drain) reported an event.
    Reported(Event),
    /// [`Device::drain`](smc_core::device::Device::drain) failed.
    DrainFailed(DeviceError),
    /// [`Device::arm`](smc_core::device::Device::arm) was called.
    Armed,
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.device)?;
        match &self.what {
            What::Reached { peer, result } => {
                write!(f, "reach {peer}{}", ResultSuffix(result))
            }
            What::Registered { peer, len, result } => {
                write!(f, "register {len} bytes for {peer}")?;
                match result {
                    Ok(token) => write!(f, ": {token}"),
                    Err(error) => write!(f, ": {error}"),
                }
            }
            What::Unregistered(token) => write!(f, "unregister {token}"),
            What::BufferArmed(token) => write!(f, "arm {token}"),
            What::Moved {
                peer,
                to,
                at,
                len,
                signal,
                result,
            } => {
                let signal = if *signal == Signal::Yes {
                    " and signal"
                } else {
                    ""
                };
                write!(
                    f,
                    "move {len} bytes to {to} of {peer} at {at}{signal}{}",
                    ResultSuffix(result)
                )
            }
            What::Attached {
                peer,
                token,
                result,
            } => {
                write!(f, "attach {token} of {peer}{}", ResultSuffix(result))
            }
            What::Detached(token) => write!(f, "detach {token}"),
            What::Signalled { token, result } => {
                write!(f, "signal {token}{}", ResultSuffix(result))
            }
            What::EventSent {
                peer,
                event,
                result,
            } => {
                write!(f, "send {event:?} to {peer}{}", ResultSuffix(result))
            }
            What::Opened { at, result } => {
                write!(f, "open link at {at}")?;
                match result {
                    Ok(local) => write!(f, ": {}", local.qpn),
                    Err(error) => write!(f, ": {error}"),
                }
            }
            What::Connected { link, peer, result } => {
                let (gid, qpn) = (peer.gid, peer.qpn);
                write!(
                    f,
                    "connect {link} to {qpn} at {gid}{}",
                    ResultSuffix(result)
                )
            }
            What::Closed(link) => write!(f, "close {link}"),
            What::Released(link) => write!(f, "release {link}"),
            What::MemoryRegistered {
                len,
                access,
                result,
            } => {
                write!(f, "register {len} bytes, {access:?}")?;
                match result {
                    Ok((rkey, addr)) => write!(f, ": {rkey} at {addr}"),
                    Err(error) => write!(f, ": {error}"),
                }
            }
            What::MemoryReleased(rkey) => write!(f, "unregister {rkey}"),
            What::Posted {
                link,
                op,
                writes,
                message,
                result,
            } => {
                write!(f, "post {} on {link}:", op.0)?;
                for (rkey, addr, len) in writes {
                    write!(f, " {len} bytes to {rkey} at {addr},")?;
                }
                write!(f, " {}{}", ShownMessage(message), ResultSuffix(result))
            }
            What::Reported(Event::Received { link, message }) => {
                write!(f, "<- {link} received {}", ShownMessage(message.as_bytes()))
            }
            What::Reported(Event::Completed { link, op }) => {
                write!(f, "<- {link} completed {}", op.0)
            }
            What::Reported(Event::LinkDown { link, cause }) => {
                write!(f, "<- {link} down: {cause}")
            }
            What::Reported(Event::Signalled(token)) => write!(f, "<- signalled {token}"),
            What::Reported(Event::PeerGone(gid)) => write!(f, "<- peer {gid} gone"),
            What::Reported(Event::Peer { from, event }) => write!(f, "<- {event:?} from {from}"),
            What::Reported(event) => write!(f, "<- {event:?}"),
            What::DrainFailed(error) => write!(f, "<- {error}"),
            What::Armed => write!(f, "arm"),
        }
    }
}

/// Nothing if it went well.
struct ResultSuffix<'a, E>(&'a Result<(), E>);

impl<E: fmt::Display> fmt::Display for ResultSuffix<'_, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0
            .as_ref()
            .map_or_else(|error| write!(f, ": {error}"), |()| Ok(()))
    }
}

/// The kind of a message is in its first byte.
struct ShownMessage<'a>(&'a [u8]);

impl fmt::Display for ShownMessage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [] => f.write_str("empty message"),
            [kind, ..] => write!(f, "message {kind:#04x} of {} bytes", self.0.len()),
        }
    }
}
