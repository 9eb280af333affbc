//! The SMC-R operations of a device: queue pairs and registered memory.

use std::fmt::Debug;
use std::net::IpAddr;
use std::sync::Arc;

use async_trait::async_trait;
use smc_wire::types::{Mac, MtuCode, Psn, Qpn, Rkey, RmbAddr, RoceGid};

use super::{DeviceError, SubmitError};
use crate::mem::Region;

/// The SMC-R operations of a device.
///
/// Links are reliable connected queue pairs. Their events are reported by
/// [`Device::drain`](super::Device::drain), under the number of the queue pair:
/// [`Event::Received`](super::Event::Received), [`Event::Completed`](super::Event::Completed),
/// [`Event::LinkDown`](super::Event::LinkDown). A change of the active ports is an
/// [`Event::AddressesChanged`](super::Event::AddressesChanged).
#[async_trait]
pub trait Rdma: Send + Sync + Debug {
    /// The addresses under which links can be opened now: those of active ports, in the order of
    /// the device's GID table. Empty while no port is active.
    fn addresses(&self) -> Vec<RdmaAddress>;

    /// Allocates a protection domain. Each link group has one of its own on each of its devices, so
    /// that no peer can write into memory that is registered for another one.
    ///
    /// It exists until it, its links and its registrations are dropped.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Exhausted`] when the device has none left, and others.
    async fn protection_domain(&self) -> Result<Arc<dyn ProtectionDomain>, DeviceError>;

    /// The counters of the hardware for its ports, for all programs together: names, as
    /// `1/rcvd_rnr_err` for port 1, and values. None unless implemented. May read files.
    fn hardware_counters(&self) -> Vec<(String, u64)> {
        Vec::new()
    }

    /// Requests that the next [`Event::Completed`](super::Event::Completed) rings the doorbell, as
    /// well.
    ///
    /// A completion of a send is seldom urgent: the next drain, for a received message, finds it.
    /// So [`Device::arm`](super::Device::arm) need not cover it, and a task that waits for send
    /// capacity calls this. As with `arm`, earlier completions may not ring, so drain once more
    /// before parking.
    ///
    /// A device that rings for every event has nothing to do.
    ///
    /// # Errors
    ///
    /// As [`Device::drain`](super::Device::drain).
    fn arm_completions(&self) -> Result<(), DeviceError> {
        Ok(())
    }
}

/// Links and the memory that their peers can write.
#[async_trait]
pub trait ProtectionDomain: Send + Sync + Debug {
    /// Makes a queue pair at one of the [addresses](Rdma::addresses) of the device.
    ///
    /// Dropping the result destroys it.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Exhausted`] when the device has no queue pair left,
    /// [`DeviceError::Invalid`] for an address it does not have (any more), and others.
    async fn open_link(&self, at: &RdmaAddress) -> Result<Box<dyn PendingLink>, DeviceError>;

    /// Registers memory, so that links of this domain can write from it and, with
    /// [`Access::RemoteWrite`], their peers can write into it.
    ///
    /// The memory stays alive and registered until the result is dropped.
    ///
    /// # Errors
    ///
    /// [`DeviceError::NoMemory`] when it cannot be pinned (a smaller buffer might still do),
    /// [`DeviceError::Exhausted`] when the device has no registration left, and others.
    async fn register(&self, memory: &Region, access: Access) -> Result<Arc<dyn Mr>, DeviceError>;
}

/// An address of a device: an entry of its GID table, on an active port.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RdmaAddress {
    /// The GID.
    pub gid: RoceGid,
    /// The RoCE version of its packets.
    pub kind: RoceKind,
    /// MAC of the port's network interface.
    pub mac: Mac,
    /// Largest packet payload that the port can send now.
    pub mtu: MtuCode,
    /// Number of the port, from 1.
    pub port: u8,
    /// The network interface of the GID, such as `eth0`.
    pub interface: Option<String>,
    /// VLAN of that interface, 0 without.
    pub vlan: u16,
}

impl RdmaAddress {
    /// An address on port 1, without interface and VLAN.
    #[must_use]
    pub const fn new(gid: RoceGid, kind: RoceKind, mac: Mac, mtu: MtuCode) -> Self {
        Self {
            gid,
            kind,
            mac,
            mtu,
            port: 1,
            interface: None,
            vlan: 0,
        }
    }

    /// Whether both are the same entry of a GID table. RoCE version 1 has the same GID in each VLAN
    /// of a port.
    #[must_use]
    pub fn is_same_entry(&self, other: &Self) -> bool {
        let entry = |of: &Self| (of.gid, of.kind, of.port, of.vlan);
        entry(self) == entry(other)
    }

    /// Whether packets of this address get to a GID, as far as both say: in RoCEv2 both stand for
    /// IPv4 addresses or both for IPv6 addresses.
    #[must_use]
    pub fn is_of_family(&self, gid: RoceGid) -> bool {
        let both = self.gid.ip().zip(gid.ip());
        let is_same = |(one, two): (IpAddr, IpAddr)| one.is_ipv4() == two.is_ipv4();
        self.kind == RoceKind::V1 || both.is_some_and(is_same)
    }

    /// Sets the network interface.
    #[must_use]
    pub fn with_interface(mut self, name: impl Into<String>, vlan: u16) -> Self {
        self.interface = Some(name.into());
        self.vlan = vlan;
        self
    }

    /// Sets the port.
    #[must_use]
    pub fn with_port(mut self, port: u8) -> Self {
        self.port = port;
        self
    }
}

/// The encapsulation of a GID's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_enums, reason = "there are two kinds of RoCE")]
pub enum RoceKind {
    /// Ethernet frames, within a subnet (SMC-R version 1).
    V1,
    /// UDP, routable (SMC-R version 2).
    V2,
}

/// One end of a link, as exchanged in the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_structs, reason = "the protocol's own list")]
pub struct LinkAddress {
    /// GID of the queue pair.
    pub gid: RoceGid,
    /// MAC of its port.
    pub mac: Mac,
    /// The queue pair.
    pub qpn: Qpn,
    /// Its first packet sequence number.
    pub psn: Psn,
    /// Path MTU: the local one before the peer's is known, then the smaller of both.
    pub mtu: MtuCode,
}

/// A queue pair that is not connected yet.
#[async_trait]
pub trait PendingLink: Send + Sync + Debug {
    /// The local end, to be sent to the peer.
    fn local(&self) -> LinkAddress;

    /// Connects to the peer's end. When this returns, messages of the peer are received, and
    /// messages can be posted.
    ///
    /// The path MTU is the smaller one of both ends.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Invalid`] for an address that cannot be reached, and others. The queue pair
    /// is destroyed then.
    async fn connect(
        self: Box<Self>,
        peer: LinkAddress,
        route: Route,
    ) -> Result<Arc<dyn Link>, DeviceError>;
}

/// Whether a router is between the ends of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_enums, reason = "one flag on the wire")]
pub enum Route {
    /// Same subnet: hop limit 1.
    SameSubnet,
    /// Over a gateway: hop limit 64.
    Gateway,
}

/// A connected queue pair. Dropping it destroys it; outstanding posts may or may not arrive.
pub trait Link: Send + Sync + Debug {
    /// Its number, which identifies its events.
    fn qpn(&self) -> Qpn;

    /// Posts writes into the peer's memory and a message behind them, as one chain, without
    /// blocking.
    ///
    /// The peer receives the message, as a solicited one, after the data of the writes is in its
    /// memory. Its completion is reported as [`Event::Completed`](super::Event::Completed) with
    /// `op`, in the order of the posts; until then the source memory must stay unchanged and
    /// registered.
    ///
    /// A link accepts at least [`SENDS_MAX`] posts, with up to two writes each, before the first
    /// completion.
    ///
    /// # Errors
    ///
    /// [`SubmitError::WouldBlock`] when the send queue is full, [`SubmitError::OutOfBounds`] for a
    /// message over [`MESSAGE_MAX`] bytes or a piece outside of its memory,
    /// [`SubmitError::PeerGone`] on a link that is down. Nothing is sent then.
    fn post(&self, op: OpId, writes: &[Write<'_>], message: &[u8]) -> Result<(), SubmitError>;

    /// Moves the queue pair to its error state: it sends and receives nothing more, and no more
    /// events follow.
    fn close(&self);

    /// Receive buffers, each of which is posted again as soon as the message in it was taken. A
    /// peer with receive credits sends no more than that before it gets some back.
    fn receives(&self) -> u32 {
        RECEIVES_MIN
    }

    /// The counters of the queue pair.
    fn counters(&self) -> LinkCounters {
        LinkCounters::default()
    }
}

/// Registered memory.
pub trait Mr: Send + Sync + Debug {
    /// The memory.
    fn region(&self) -> &Region;

    /// The key that a peer needs to write into it.
    fn rkey(&self) -> Rkey;

    /// The address that a peer uses for the first byte. It need not be the memory's own address,
    /// and better does not reveal it.
    fn addr(&self) -> RmbAddr;

    /// For a downcast by the device that made it.
    fn as_any(&self) -> &dyn std::any::Any;
}

/// The use of registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_enums, reason = "the two uses SMC-R has")]
pub enum Access {
    /// Local links write from it.
    Local,
    /// Peers write into it.
    RemoteWrite,
}

/// One RDMA WRITE: up to two pieces of local memory that become one span of the peer's memory.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_structs, reason = "arguments of one operation")]
pub struct Write<'a> {
    /// The local memory, registered in the protection domain of the link.
    pub from: &'a dyn Mr,
    /// The first piece.
    pub first: Piece,
    /// The second piece, of length 0 if there is none.
    pub second: Piece,
    /// Key of the peer's memory.
    pub rkey: Rkey,
    /// The address in the peer's address space.
    pub to: RmbAddr,
}

/// A span of registered memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_structs, reason = "a span")]
pub struct Piece {
    /// Offset of its first byte.
    pub at: u32,
    /// Its length in bytes.
    pub len: u32,
}

/// Identifies a post; chosen by the caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(clippy::exhaustive_structs, reason = "a plain number")]
pub struct OpId(pub u64);

/// Counters of a queue pair, as far as the device has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkCounters {
    /// Sent messages that the peer had no receive buffer for (RNR).
    pub rnr: Option<u64>,
    /// The lowest number of free local receive buffers so far.
    pub receives_low: Option<u32>,
}

/// A message that a link received.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "short or long")]
pub enum Inbound {
    /// A message of the usual size.
    Short([u8; SHORT_LEN]),
    /// A message of another size.
    Long(Box<[u8]>),
}

impl Inbound {
    /// Wraps a message as received by the device.
    #[must_use]
    pub fn new(message: &[u8]) -> Self {
        match message.try_into() {
            Ok(short) => Self::Short(short),
            Err(_) => Self::Long(message.into()),
        }
    }

    /// The message.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Short(bytes) => bytes,
            Self::Long(bytes) => bytes,
        }
    }
}

/// Why a link went down, and whether other links are affected.
///
/// Connections move to another link of their group: after most failures to any, even one between
/// the same two ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LinkFailure {
    /// The peer did not acknowledge in all retries.
    #[error("peer does not acknowledge")]
    RetryExceeded,
    /// The peer had no receive buffer in all retries.
    #[error("peer has no receive buffer")]
    RnrExceeded,
    /// The peer's device refused a write: key, address or length are invalid.
    #[error("peer refused a write")]
    RemoteAccess,
    /// The queue pair went to its error state, by this side or by the device.
    #[error("queue pair was flushed")]
    Flushed,
    /// Another failure of this link alone, such as a request that the device could not execute, or
    /// posts that do not complete.
    #[error("queue pair failed: {0}")]
    QueuePair(&'static str),
    /// The port is not active, or the GID of the link is gone: other links at the same port of the
    /// same device are unusable.
    #[error("port went down")]
    PortDown,
    /// The device was removed, or reported that it or the queue pair has failed: other links at the
    /// same port of the same device are unusable.
    #[error("device failed: {0}")]
    Device(&'static str),
}

/// Outstanding posts that a link accepts: CDC and LLC messages together.
pub const SENDS_MAX: usize = 16;

/// Receive buffers that a link has at least.
pub const RECEIVES_MIN: u32 = 48;

/// Usual size of a message in bytes.
pub const SHORT_LEN: usize = smc_wire::llc::MESSAGE_LEN;

/// Longest message in bytes (SMC-R version 2).
pub const MESSAGE_MAX: usize = 8192;
