//! Reports of an endpoint on its connections, link groups and devices, for tools.

pub use super::candidates::{CandidateInfo, CandidateTransport, Exclusion};
pub use super::links::RdmaGroupInfo;
pub use super::stats::{
    ByRole, DeviceStats, DirectionStats, FallbackCount, LinkQueueInfo, PhaseStats, QueueStats,
    SIZE_CLASSES, Stats,
};
pub use crate::proto::Role;
pub use crate::proto::conn::ConnState;
pub use crate::proto::group::{
    DeviceIndex, GroupId, GroupKey, GroupState, GroupTerms, LinkGroupInfo,
};
pub use crate::proto::handshake::DeviceExclusion;
pub use crate::proto::links::{GroupType, LinkId, LinkInfo, LinkState};

use smc_wire::cdc::{ProducerFlags, StateFlags};
use smc_wire::cursor::Cursor;
use smc_wire::types::{Chid, Gid};

use super::listener::Refused;
use super::stream::Mode;
use crate::address::Address;
use crate::error::FallbackCause;

/// A stream of an endpoint: SMC, or TCP after a fallback.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConnectionInfo {
    /// A number that no other stream of this process has.
    pub id: u64,
    /// The role of this side.
    pub role: Role,
    /// Its mode. The mode TCP has the reason.
    pub mode: Mode,
    /// The local address of the TCP connection or UNIX socket.
    pub local: Option<Address>,
    /// The peer's address.
    pub peer: Address,
    /// The state of the SMC connection; `None` for TCP.
    pub smc: Option<SmcInfo>,
}

/// The state of an SMC connection, as `smcss --debug` shows it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SmcInfo {
    /// Its state.
    pub state: ConnState,
    /// Its link group.
    pub group: GroupId,
    /// SMC-D: the GID of the local device.
    pub gid: Option<Gid>,
    /// SMC-R: its link in the group.
    pub link: Option<LinkId>,
    /// The token by which the peer names this end: of the receive buffer with SMC-D, the alert
    /// token with SMC-R.
    pub token: u64,
    /// The peer's token, where it is known.
    pub peer_token: Option<u64>,
    /// Size of the local receive buffer in bytes, with what is not for data: see
    /// [`Stream::recv_buffer_size`](crate::Stream::recv_buffer_size).
    pub recv_buffer: usize,
    /// SMC-R: size in bytes of the send buffer, from which the device reads.
    pub send_buffer: Option<usize>,
    /// Size of the peer's ring in bytes.
    pub peer_buffer: usize,
    /// How far the peer has written, and what this side has told it to have read.
    pub received: Cursors,
    /// How far this side has written, and what the peer has told it to have read.
    pub sent: Cursors,
    /// The flags that this side has published.
    pub flags: Flags,
    /// The flags that the peer has published.
    pub peer_flags: Flags,
    /// Counters of the application's reads.
    pub reads: DirectionStats,
    /// Counters of the application's writes.
    pub writes: DirectionStats,
}

/// The two cursors of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cursors {
    /// The end of the data.
    pub producer: Cursor,
    /// The start of the data.
    pub consumer: Cursor,
}

/// The flags of one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Flags {
    /// The flags of the writing half.
    pub producer: ProducerFlags,
    /// The flags of the connection's state.
    pub state: StateFlags,
}

/// The words that one side of an SMC connection has published.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PublishedWords {
    pub(crate) producer: Cursor,
    pub(crate) consumer: Cursor,
    pub(crate) flags: Flags,
}

/// A device of an endpoint.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// Its name.
    pub name: String,
    /// SMC-D or SMC-R, with what identifies it there.
    pub kind: DeviceKind,
    /// The PNET ID, if it has one.
    pub pnet_id: Option<String>,
    /// It was removed or reset.
    pub is_gone: bool,
    /// SMC connections on it.
    pub connections: usize,
}

/// The kind of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceKind {
    /// SMC-D.
    #[non_exhaustive]
    Direct {
        /// Its GID.
        gid: Gid,
        /// The fabric.
        chid: Chid,
    },
    /// SMC-R.
    Rdma,
}

/// A listener of an endpoint.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ListenerInfo {
    /// The address listened on.
    pub local: Address,
    /// Why clients cannot find that it supports SMC, if so.
    pub unpublished: Option<FallbackCause>,
    /// Streams that wait for [`Listener::accept`](crate::Listener::accept).
    pub ready: usize,
    /// The clients that were closed because the policy requires SMC.
    pub refused: Refused,
}
