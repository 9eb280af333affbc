//! The device traits: the interface of a transport, over which streams run.
//!
//! A [`Device`] has an identity, the operations of its transport ([`Operations`]), a queue of
//! events ([`Device::drain`]) and a doorbell to wait on ([`Device::doorbell`]). SMC-D devices
//! implement [`Direct`]: peers own buffers (DMBs) and move data into each other's. SMC-R devices
//! implement [`Rdma`]: links are queue pairs, and data is written into registered memory of the
//! peer. Optional abilities are `Option<&dyn Trait>`, so a device has all of one or nothing of it.
//!
//! A task waits for a device in one order: **drain, arm, drain, park** on the doorbell. The second
//! drain prevents lost wake-ups: an event before [`Device::arm`] is found by it, an event after it
//! rings the doorbell.
//!
//! Set-up calls are async; [`Direct::move_data`], [`Device::drain`] and [`Device::arm`] never
//! block. Dropping a returned object releases it. `smc-testkit` has the conformance suite that
//! every device should pass.
//!
//! A device has exactly one consumer: a device object serves one endpoint at a time, and building
//! a second one with it fails.

mod dmb_count;
mod error;
mod event;
mod memory;
mod nocopy;
mod rdma;

pub use dmb_count::{DmbCount, DmbPermit};
pub use error::{DeviceError, SubmitError};
pub use event::{Event, PeerEvent};
#[doc(hidden)]
pub use memory::TrimMemory;
pub use memory::{Charge, MemoryAccount, MemoryLimit};
pub use nocopy::{Attachment, Nocopy, PeerEvents};
pub use rdma::{
    Access, Inbound, Link, LinkAddress, LinkCounters, LinkFailure, MESSAGE_MAX, Mr, OpId,
    PendingLink, Piece, ProtectionDomain, RECEIVES_MIN, Rdma, RdmaAddress, RoceKind, Route,
    SENDS_MAX, SHORT_LEN, Write,
};

use std::any::Any;
use std::fmt::Debug;
use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use async_trait::async_trait;
use atomic_waker::AtomicWaker;
use smc_ipc::Credentials;
use smc_wire::types::{Chid, DmbToken, Eid, Gid, PnetId};

use crate::error::OsError;
use crate::mem::Region;

/// A transport device.
pub trait Device: Send + Sync + Debug + Any {
    /// Name and physical network, for selection, logs and tools.
    fn identity(&self) -> &Identity;

    /// The device's limits.
    fn limits(&self) -> Limits;

    /// The operations of its transport: SMC-D or SMC-R.
    fn operations(&self) -> Operations<'_>;

    /// Passes all events since the last call to `sink`, without blocking.
    ///
    /// The work per call is proportional to the number of events, not of objects. A drain that
    /// reports an event may undo an earlier [`Device::arm`]; an empty drain must not.
    ///
    /// # Errors
    ///
    /// The reason why the device no longer works; it is not drained again.
    fn drain(&self, sink: &mut dyn FnMut(Event)) -> Result<(), DeviceError>;

    /// As [`Device::drain`], for a caller that calls it again and again instead of waiting for the
    /// doorbell: events that ring the doorbell may be left to `drain`. A device that can find the
    /// others without a system call implements it.
    ///
    /// # Errors
    ///
    /// As [`Device::drain`].
    fn poll(&self, sink: &mut dyn FnMut(Event)) -> Result<(), DeviceError> {
        self.drain(sink)
    }

    /// Requests that the next event rings the doorbell. An [`Event::Completed`] need not, unless
    /// [`Rdma::arm_completions`] was called.
    ///
    /// Earlier events may not ring, so drain once more before parking.
    ///
    /// # Errors
    ///
    /// As [`Device::drain`].
    fn arm(&self) -> Result<(), DeviceError>;

    /// The object to wait on.
    fn doorbell(&self) -> Doorbell<'_>;

    /// Sets the limit that the device charges its memory to: local buffers while they are
    /// registered, and pooled memory of former ones. The endpoint calls this before it registers a
    /// buffer; a [`MemoryAccount`] stores the limit. Registering fails with
    /// [`DeviceError::OverLimit`] when less is left. A device that has no memory of this process
    /// charges nothing.
    ///
    /// The endpoint charges peers' buffers to this process for each connection.
    fn limit_memory(&self, limit: &MemoryLimit) {
        let _ = limit;
    }

    /// Releases pooled memory.
    fn trim_memory(&self) {}
}

/// The operations of a device, by transport.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Operations<'a> {
    /// SMC-D: data moves directly into the peer's buffer.
    Direct(&'a dyn Direct),
    /// SMC-R: queue pairs, with RDMA writes into the peer's memory.
    Rdma(&'a dyn Rdma),
}

impl<'a> Operations<'a> {
    /// The SMC-D operations, if this is an SMC-D device.
    #[must_use]
    pub fn direct(self) -> Option<&'a dyn Direct> {
        match self {
            Self::Direct(direct) => Some(direct),
            Self::Rdma(_) => None,
        }
    }

    /// The SMC-R operations, if this is an SMC-R device.
    #[must_use]
    pub fn rdma(self) -> Option<&'a dyn Rdma> {
        match self {
            Self::Rdma(rdma) => Some(rdma),
            Self::Direct(_) => None,
        }
    }
}

/// The object to wait on for the next event of a device.
#[derive(Clone, Copy, Debug)]
#[expect(
    clippy::exhaustive_enums,
    reason = "providers make it, and an endpoint has to handle every case"
)]
pub enum Doorbell<'a> {
    /// Becomes readable. Draining makes it unreadable again.
    Fd(BorrowedFd<'a>),
    /// Woken from a thread of this process.
    Waker(&'a AtomicWaker),
}

/// The SMC-D operations of a device.
#[async_trait]
pub trait Direct: Send + Sync + Debug {
    /// The local address: 64 bits for ISM devices, 128 bits for emulated ones.
    fn gid(&self) -> Gid;

    /// The fabric the device is attached to. Only devices of equal CHID can communicate. Emulated
    /// ISM devices have 0xFF00 to 0xFFFF.
    fn chid(&self) -> Chid;

    /// The system EID, where the device defines one (native ISM). All devices of an endpoint share
    /// the first one found; without any the default SEID serves.
    fn seid(&self) -> Option<Eid> {
        None
    }

    /// Whether data can get to the device with this GID.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Unreachable`] when no such device is on the fabric, or it refuses this
    /// device.
    async fn reach(&self, peer: Gid) -> Result<(), DeviceError>;

    /// The process that owns a reached device, according to the operating system; `None` where the
    /// fabric knows no processes. In a handshake on a side channel, the process at the other end
    /// has to be this one, or there is no stream over the device: that goes for the client's device
    /// as for the listener's.
    ///
    /// # Errors
    ///
    /// [`DeviceError::PeerGone`] where the fabric knows processes, and not this one any more.
    fn process(&self, peer: Gid) -> Result<Option<Credentials>, DeviceError> {
        let _ = peer;
        Ok(None)
    }

    /// The recent failure of this process, for lack of descriptors or memory, to accept a peer's
    /// device. The peer sees only a refusal.
    fn shortage(&self) -> Option<OsError> {
        None
    }

    /// Makes a zeroed buffer of `len` bytes that `peer`, and no other device, may write.
    ///
    /// When this returns, the peer can already attach the token, and move data to it if its device
    /// has reached this one, or has a buffer for it: the token is sent to the peer right
    /// afterwards. `len` is one of the DMB sizes, 2^(14 + n).
    ///
    /// # Errors
    ///
    /// [`DeviceError::Exhausted`] when the device has no buffer left, [`DeviceError::NoMemory`]
    /// when a smaller one might still do, [`DeviceError::Unreachable`], and others.
    async fn register(&self, peer: Gid, len: usize) -> Result<Arc<dyn Dmb>, DeviceError>;

    /// Writes into a buffer of `peer`, without blocking.
    ///
    /// A token of another device is [`SubmitError::UnknownToken`], also where that device has made
    /// the buffer for this one: a peer in a handshake could name it.
    ///
    /// Aligned 8-byte words of an aligned write of up to 32 bytes arrive each in one piece and in
    /// ascending order; that is how a CDC block is written. Calls take effect in order. With
    /// [`Signal::Yes`] the peer's device reports [`Event::Signalled`] for that buffer, after the
    /// data is there, at least if the owner armed the buffer before ([`Dmb::arm`]). A call without
    /// any data tells whether the buffer exists.
    ///
    /// # Errors
    ///
    /// [`SubmitError`]; nothing was written then.
    fn move_data(
        &self,
        peer: Gid,
        to: DmbToken,
        at: u32,
        data: &[IoSlice<'_>],
        signal: Signal,
    ) -> Result<(), SubmitError>;

    /// Whether a buffer of `peer` is still registered, as far as the fabric knows, once it was
    /// attached or moved to. Until it is not, its pages are charged to this process. Where this is
    /// always false, no [early data](crate::proto::handshake::EarlyData) is taken.
    fn is_registered(&self, peer: Gid, token: DmbToken) -> bool {
        let _ = (peer, token);
        false
    }

    /// Whether the implementation of streams is this library's at each end of the fabric, and pages
    /// of a buffer take memory once they were written.
    ///
    /// If so, the writer of a ring that is empty rewinds to its start, and does not use the rest
    /// (docs/spec/data-path.md#rewind). A kernel ends a connection whose writer does so.
    fn allows_rewind(&self) -> bool {
        false
    }

    /// The operations to map the peer's buffer, where the fabric has them.
    fn nocopy(&self) -> Option<&dyn Nocopy> {
        None
    }

    /// The operations to send events to a peer's device, where the fabric has them.
    fn peer_events(&self) -> Option<&dyn PeerEvents> {
        None
    }
}

/// A local receive buffer that one peer can write. Dropping it unregisters it.
pub trait Dmb: Send + Sync + Debug {
    /// The key that the peer needs to write into it. Not guessable where peers are not trusted.
    fn token(&self) -> DmbToken;

    /// The memory, all of it, aligned to 8.
    fn region(&self) -> &Region;

    /// Requests that [`Device::drain`] reports the next write with [`Signal::Yes`].
    ///
    /// Earlier writes may not be reported, so the caller reads the memory once more afterwards: a
    /// write is either visible to that read or reported. Devices that report every signal have
    /// nothing to do.
    fn arm(&self) {}

    /// Reports that nothing beyond the first `len` bytes was read locally, nor written by the peer
    /// according to its producer cursor.
    ///
    /// May be called before the buffer is dropped. A device that reuses the memory for the same
    /// peer then zeroes only these bytes, and no other pages are resident on behalf of this
    /// process; without the call all bytes count as used.
    fn set_used(&self, len: usize) {
        let _ = len;
    }

    /// Whether its memory is that of a former buffer. For statistics.
    fn is_reused(&self) -> bool {
        false
    }
}

/// Whether a write signals the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a signal is given or not")]
pub enum Signal {
    /// The owner of the buffer is signalled after the data has arrived.
    Yes,
    /// Only the data is written, without a signal.
    No,
}

/// The identity of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Identity {
    /// For logs and tools, such as `loop0`.
    pub name: String,
    /// The physical network of the device, if configured.
    pub pnet_id: Option<PnetId>,
}

impl Identity {
    /// A device with this name and no PNET ID.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            pnet_id: None,
        }
    }

    /// Sets the PNET ID.
    #[must_use]
    pub fn with_pnet_id(mut self, pnet_id: PnetId) -> Self {
        self.pnet_id = Some(pnet_id);
        self
    }
}

/// The limits of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Maximum number of registered buffers.
    pub max_dmbs: usize,
    /// Longest buffer in bytes.
    pub max_dmb_len: usize,
}

impl Limits {
    /// Limits with the given numbers.
    #[must_use]
    pub fn new(max_dmbs: usize, max_dmb_len: usize) -> Self {
        Self {
            max_dmbs,
            max_dmb_len,
        }
    }
}
