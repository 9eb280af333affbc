//! What an established handshake passes to the connection.

use smc_wire::size::SizeCode;
use smc_wire::types::{Chid, DmbToken, Eid, Gid, HostName, Release, Version};

use super::{LocalRmb, PeerRmb};
use crate::device::{LinkAddress, Route};
use crate::error::FallbackReason;
use crate::proto::group::{DeviceIndex, GroupId};

/// Which side of the TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The side that connected.
    Client,
    /// The side that listened.
    Server,
}

/// The result of a successful handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Established {
    /// Version of the handshake.
    pub version: Version,
    /// Release within version 2; v2.0 in version 1.
    pub release: Release,
    /// Negotiated EID; none in version 1.
    pub eid: Option<Eid>,
    /// The link group.
    pub group: GroupId,
    /// Whether this connection made the group.
    pub first_contact: bool,
    /// Name of the peer's host, blank if it gave none.
    pub peer_host: HostName,
    /// The transport of the data.
    pub transport: Transport,
}

/// The transport of a connection's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// SMC-D.
    Direct(DirectPath),
    /// SMC-R.
    Rdma(RdmaPath),
}

/// The two ends of an SMC-D connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectPath {
    /// The local device.
    pub device: DeviceIndex,
    /// The fabric.
    pub chid: Chid,
    /// The peer's device.
    pub peer: Gid,
    /// The local receive buffer, registered by [`Work::Register`](super::Work::Register).
    pub local: DmbToken,
    /// Size of the local receive buffer.
    pub local_size: SizeCode,
    /// The peer's receive buffer, which this side writes.
    pub peer_buffer: PeerBuffer,
    /// How it is written.
    pub access: PeerAccess,
}

/// How the peer's buffer of an SMC-D connection is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerAccess {
    /// In place: it was attached by [`Work::Attach`](super::Work::Attach).
    Attached,
    /// The device moves data there.
    Moved,
    /// Not at all: it could not be attached after the peer had everything that it needs to use the
    /// connection. What the peer has written until then is in the local buffer.
    Lost,
}

/// The two ends of an SMC-R connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RdmaPath {
    /// The local device.
    pub device: DeviceIndex,
    /// The local end of the link that the connection uses.
    pub link: LinkAddress,
    /// The peer's end.
    pub peer: LinkAddress,
    /// The local receive buffer, prepared by [`Work::PrepareRmb`](super::Work::PrepareRmb).
    pub local: LocalRmb,
    /// The peer's receive buffer, which this side writes.
    pub peer_rmb: PeerRmb,
    /// Whether packets between the ends pass a router.
    pub route: Route,
}

/// The peer's receive buffer: one element of a DMB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerBuffer {
    /// Names the DMB.
    pub token: DmbToken,
    /// Number of the element in it, from 0.
    pub index: u8,
    /// Size of the element.
    pub size: SizeCode,
}

impl PeerBuffer {
    pub(super) const fn new(token: DmbToken, index: u8, size: SizeCode) -> Self {
        Self { token, index, size }
    }

    /// Where the element begins in the DMB, in bytes.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.size.byte_len().saturating_mul(usize::from(self.index))
    }

    /// Where the element ends in the DMB, in bytes.
    #[must_use]
    pub fn end(&self) -> usize {
        self.offset().saturating_add(self.size.byte_len())
    }
}

/// The reason of the fallback, and whether a crossing DECLINE is possible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fallback {
    /// The local reason, and the peer's if it declined.
    pub reason: FallbackReason,
    /// The peer may have sent a DECLINE at the same time: pass what is received next through
    /// [`CrossingDecline`](super::CrossingDecline).
    ///
    /// That takes two sides that both wait for something else than the other's message on TCP,
    /// which only happens while the first link of SMC-R is confirmed; never with SMC-D.
    pub crossing_possible: bool,
}
