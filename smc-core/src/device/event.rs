//! Events that a device reports to its driver.

use smc_wire::types::{DmbToken, Gid, Qpn};

use super::{Inbound, LinkFailure, OpId};

/// A report of a device that is drained.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_enums,
    reason = "providers make it, and an endpoint has to handle every case"
)]
pub enum Event {
    /// The peer wrote into this local buffer and signalled. Several signals may be reported as one;
    /// a report without a write is harmless.
    Signalled(DmbToken),
    /// The peer's device went away, with all its buffers: process ended, partition reset.
    PeerGone(Gid),
    /// A peer's device sent an event ([`super::PeerEvents`]).
    Peer {
        /// The sender.
        from: Gid,
        /// The event.
        event: PeerEvent,
    },
    /// A link received a message.
    Received {
        /// The local queue pair.
        link: Qpn,
        /// The message.
        message: Inbound,
    },
    /// A post has completed: the peer's device has the message and all data written before it, and
    /// the source memory is free again.
    Completed {
        /// The local queue pair.
        link: Qpn,
        /// The post.
        op: OpId,
    },
    /// A link can no longer be used. A post that was not reported as completed may or may not have
    /// arrived; no more events of this link follow.
    LinkDown {
        /// The local queue pair.
        link: Qpn,
        /// Why.
        cause: LinkFailure,
    },
    /// The result of [`Rdma::addresses`](super::Rdma::addresses) has changed.
    AddressesChanged,
    /// The device was removed; all its connections end.
    DeviceGone,
}

/// Events between devices (ISM software events).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PeerEvent {
    /// The sender has no link group with this device any more (code 0x80).
    Shutdown,
    /// Requests an answer (code 0x83, request), which the endpoint of the device sends.
    TestRequest,
    /// The answer (code 0x83, response).
    TestResponse,
}
