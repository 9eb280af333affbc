//! The provider surface: what a transport has to offer so that streams can run over it.
//!
//! A [`Device`] says who it is, what it can do ([`Fabric`]), hands out what happened
//! ([`Device::drain`]) and how to wait for more ([`Device::doorbell`]). SMC-D devices implement
//! [`Direct`]: peers own buffers (DMBs) and move data into each other's. SMC-R devices implement
//! [`Rdma`]: links are queue pairs, and data is written into registered memory of the peer.
//! Optional abilities are `Option<&dyn Trait>`, so a device has all of one or nothing of it.
//!
//! Whoever waits for a device does so in one order: **drain, arm, drain, park** on the doorbell.
//! The second drain is what makes a lost wake-up impossible: an event that came before
//! [`Device::arm`] is found by it, an event that comes after rings the doorbell.
//!
//! Set-up calls are async; [`Direct::move_data`], [`Device::drain`] and [`Device::arm`] never
//! block. Dropping what a call returned releases it. `smc-testkit` has the conformance suite that
//! every device should pass.
//!
//! A device has exactly one consumer: a device object serves one endpoint at a time, and building
//! a second one with it fails.

mod error;
mod event;
mod memory;
mod nocopy;
mod rdma;

pub use error::{DeviceError, SubmitError};
pub use event::{Event, PeerEvent};
pub(crate) use memory::TrimMemory;
pub use memory::{Charge, MemoryAccount, MemoryLimit};
pub use nocopy::{Attachment, Nocopy, PeerEvents};
pub use rdma::{
    Access, Inbound, Link, LinkAddress, LinkCounters, LinkFailure, MESSAGE_MAX, Mr, OpId,
    PendingLink, Piece, ProtectionDomain, Rdma, RdmaAddress, RoceKind, Route, SENDS_MAX, SHORT_LEN,
    Write,
};

use std::any::Any;
use std::fmt::Debug;
use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use async_trait::async_trait;
use atomic_waker::AtomicWaker;
use smc_wire::types::{Chid, DmbToken, Eid, Gid, PnetId};

use crate::error::OsError;
use crate::io::negotiate::Credentials;
use crate::mem::Region;

/// A transport device.
pub trait Device: Send + Sync + Debug + Any {
    /// Name and physical network, for selection, logs and tools.
    fn identity(&self) -> &Identity;

    /// What the device can carry.
    fn limits(&self) -> Limits;

    /// The kind of fabric with its operations.
    fn fabric(&self) -> Fabric<'_>;

    /// Hands everything that happened since the last call to `sink`, without blocking.
    ///
    /// Work per call is in proportion to what happened, not to what exists. A drain that hands out
    /// something may take back an earlier [`Device::arm`]; one that finds nothing must not.
    ///
    /// # Errors
    ///
    /// A device that can no longer work says why; it is not drained again.
    fn drain(&self, sink: &mut dyn FnMut(Event)) -> Result<(), DeviceError>;

    /// Asks that the next event rings the doorbell. An [`Event::Sent`] need not, unless that was
    /// asked for ([`Rdma::arm_sent`]).
    ///
    /// Events that came before may not ring, so drain once more before parking.
    ///
    /// # Errors
    ///
    /// As [`Device::drain`].
    fn arm(&self) -> Result<(), DeviceError>;

    /// What to wait on.
    fn doorbell(&self) -> Doorbell<'_>;

    /// Says what the device has to charge its memory to: buffers of ours as long as they are
    /// registered, and what is kept of them later. Called by the endpoint that the device is given
    /// to, before it has any; a [`MemoryAccount`] keeps it. Registering fails with [`DeviceError::OverLimit`] when there is
    /// not as much left. A device whose memory is not that of this process has nothing to charge.
    ///
    /// What peers' buffers take of this process is charged for each connection by the endpoint.
    fn limit_memory(&self, limit: &MemoryLimit) {
        let _ = limit;
    }

    /// Gives memory back that is only kept for later.
    fn trim_memory(&self) {}
}

/// The operations of a device by kind of fabric.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Fabric<'a> {
    /// SMC-D: data moves directly into the peer's buffer.
    Direct(&'a dyn Direct),
    /// SMC-R: queue pairs, with RDMA writes into the peer's memory.
    Rdma(&'a dyn Rdma),
}

impl<'a> Fabric<'a> {
    /// The SMC-D surface, if this is an SMC-D device.
    #[must_use]
    pub fn direct(self) -> Option<&'a dyn Direct> {
        match self {
            Self::Direct(direct) => Some(direct),
            Self::Rdma(_) => None,
        }
    }

    /// The SMC-R surface, if this is an SMC-R device.
    #[must_use]
    pub fn rdma(self) -> Option<&'a dyn Rdma> {
        match self {
            Self::Rdma(rdma) => Some(rdma),
            Self::Direct(_) => None,
        }
    }
}

/// What to wait on until a device has news.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Doorbell<'a> {
    /// Becomes readable. Draining makes it unreadable again.
    Fd(BorrowedFd<'a>),
    /// Woken from a thread of this process.
    Waker(&'a AtomicWaker),
    /// The device cannot call: drain it again and again.
    Spin,
}

/// The SMC-D surface of a device.
#[async_trait]
pub trait Direct: Send + Sync + Debug {
    /// Own address: 64 bits for ISM devices, 128 bits for emulated ones.
    fn gid(&self) -> Gid;

    /// The fabric the device is attached to. Only devices of equal CHID can talk. Emulated ISM
    /// devices have 0xFF00 to 0xFFFF.
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
    /// [`DeviceError::Unreachable`] when no such device is on the fabric, or it refuses us.
    async fn reach(&self, peer: Gid) -> Result<(), DeviceError>;

    /// The process behind a device that was reached, as the operating system says; `None` where the
    /// fabric does not know. A client whose handshake runs beside TCP has to be that process.
    fn process(&self, peer: Gid) -> Option<Credentials> {
        let _ = peer;
        None
    }

    /// What this process lacked, descriptors or memory, when a peer's device could not be let in, if
    /// that was a moment ago. The peer knows only that it was refused.
    fn shortage(&self) -> Option<OsError> {
        None
    }

    /// Makes a zeroed buffer of `len` bytes that `peer`, and nobody else, may write.
    ///
    /// When this returns, the peer can already move data to the token or attach it: the token is
    /// sent to the peer right afterwards. `len` is one of the DMB sizes, 2^(14 + n).
    ///
    /// # Errors
    ///
    /// [`DeviceError::Exhausted`] when the device has no buffer left, [`DeviceError::NoMemory`]
    /// when a smaller one might still do, [`DeviceError::Unreachable`], and others.
    async fn register(&self, peer: Gid, len: usize) -> Result<Arc<dyn Dmb>, DeviceError>;

    /// Writes into a peer's buffer, without blocking.
    ///
    /// Aligned 8-byte words of an aligned write of up to 32 bytes arrive each in one piece and in
    /// ascending order; that is how a CDC block is written. Calls take effect in order. With
    /// [`Signal::Yes`] the peer's device reports [`Event::Signalled`] for that buffer, after the
    /// data is there, at least if the owner armed the buffer before ([`Dmb::arm`]).
    ///
    /// # Errors
    ///
    /// [`SubmitError`]; nothing was written then.
    fn move_data(
        &self,
        to: DmbToken,
        at: u32,
        data: &[IoSlice<'_>],
        signal: Signal,
    ) -> Result<(), SubmitError>;

    /// Whether a peer's buffer is still registered, as far as the fabric tells. Until it is not, what
    /// was written there is charged to this process.
    fn is_offered(&self, token: DmbToken) -> bool {
        let _ = token;
        false
    }

    /// The ability to map the peer's buffer, where the fabric has it.
    fn nocopy(&self) -> Option<&dyn Nocopy> {
        None
    }

    /// The ability to send events to a peer's device, where the fabric has it.
    fn peer_events(&self) -> Option<&dyn PeerEvents> {
        None
    }
}

/// A receive buffer of ours that one peer can write. Dropping it unregisters it.
pub trait Dmb: Send + Sync + Debug {
    /// What the peer has to name to write into it. Not guessable where peers are not trusted.
    fn token(&self) -> DmbToken;

    /// The memory, all of it, aligned to 8.
    fn region(&self) -> &Region;

    /// Asks that the next write with [`Signal::Yes`] is reported by [`Device::drain`].
    ///
    /// Writes that came before may not be reported, so look at the memory again afterwards: a
    /// write is either seen by that look or reported. Devices that report every signal have
    /// nothing to do.
    fn arm(&self) {}

    /// Says that nothing beyond the first `len` bytes was read here, nor written by the peer, if
    /// its word holds.
    ///
    /// Called before the buffer is dropped, perhaps. A device that gives the memory to the same
    /// peer again need not zero more than that, and no other pages are resident on behalf of this
    /// process; without this it zeroes all.
    fn set_used(&self, len: usize) {
        let _ = len;
    }
}

/// Whether a write tells the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a signal is given or not")]
pub enum Signal {
    /// The owner of the buffer is told after the data has arrived.
    Yes,
    /// Only the data is written.
    No,
}

/// Who a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Identity {
    /// For logs and tools, such as `loop0`.
    pub name: String,
    /// The physical network the device belongs to, if it was given one.
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

/// What a device can carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Buffers that can be registered at a time.
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
