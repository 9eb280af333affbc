//! The offer of an endpoint in its handshakes, and what it knows of a TCP connection.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use smc_wire::size::SizeCode;
use smc_wire::types::{Chid, Eid, FeatureMask, Features, Gid, HostName, OsType, PnetId, Release};

use super::{EarlyDataPolicy, RdmaConfig};
use crate::error::FallbackCause;
use crate::proto::group::DeviceIndex;

/// Capabilities and identity of this host, the same for all handshakes.
#[derive(Clone, Debug)]
pub struct HandshakeConfig {
    /// SMC-D devices in order of preference.
    pub devices: Vec<DirectDevice>,
    /// The configuration of SMC-R.
    pub rdma: Option<RdmaConfig>,
    /// Own UEIDs, most preferred first; at most eight are offered.
    pub ueids: Vec<Eid>,
    /// The system EID of the endpoint, `None` if disabled. It is that of the first device that has
    /// one, else [`DEFAULT_SEID`]: one for all devices, because hosts with and without native ISM
    /// could not meet otherwise.
    pub seid: Option<Eid>,
    /// PNET IDs of all network interfaces that are up. A client offers devices without PNET ID and
    /// those with one of these.
    pub pnet_ids: Vec<PnetId>,
    /// Name of the host, sent at first contact.
    pub host: HostName,
    /// Operating system, sent at first contact and with DECLINE.
    pub os: OsType,
    /// Highest release to offer or accept.
    pub release: Release,
    /// Own feature mask, from release v2.1 on.
    pub features: FeatureMask,
    /// Own features beyond the released protocol, from release v2.1 on. Peers that have none ignore
    /// them (docs/spec/extensions.md#features).
    pub vendor_features: Features,
    /// The policy for early data of clients; none is taken without one.
    pub early_data: Option<Arc<EarlyDataPolicy>>,
    /// Size of the receive buffer to register for SMC-D; less if memory is short or a device has a
    /// limit.
    pub buffer: SizeCode,
    /// The same for SMC-R, where it is pinned.
    pub rmb: SizeCode,
    /// Whether SMC-D v1 is offered and accepted. It needs native devices and a PNET ID that
    /// device and interface share.
    pub v1: bool,
    /// How long to wait for what.
    pub timeouts: HandshakeTimeouts,
}

impl HandshakeConfig {
    /// A host with these devices, the default SEID, no UEID, and SMC v2.1.
    #[must_use]
    pub fn new(devices: Vec<DirectDevice>) -> Self {
        Self {
            devices,
            rdma: None,
            ueids: Vec::new(),
            seid: Some(DEFAULT_SEID),
            pnet_ids: Vec::new(),
            host: HostName::BLANK,
            os: OsType::LINUX,
            release: Release::V2_1,
            features: FeatureMask::EMULATED_ISM,
            vendor_features: Features::empty(),
            early_data: None,
            buffer: SizeCode::LINUX_DEFAULT,
            rmb: SizeCode::LINUX_DEFAULT,
            v1: false,
            timeouts: HandshakeTimeouts::default(),
        }
    }

    /// The own feature mask in a handshake of this release; before v2.1 the field is reserved.
    pub(super) fn features_for(&self, release: Release) -> FeatureMask {
        if release >= Release::V2_1 {
            self.features
        } else {
            FeatureMask::empty()
        }
    }

    /// The own features beyond the released protocol in a handshake of this release.
    pub(super) fn vendor_features_for(&self, release: Release) -> Features {
        if release >= Release::V2_1 {
            self.vendor_features
        } else {
            Features::empty()
        }
    }

    /// The features that the PROPOSAL of a client may state.
    pub(super) fn client_features(&self) -> Features {
        let own = self.vendor_features_for(self.release);
        match self.rdma.as_ref().is_some_and(|rdma| rdma.offers_ipv6) {
            true => own,
            false => own.difference(Features::RDMA_IPV6),
        }
    }

    pub(super) fn has_devices(&self) -> bool {
        !self.devices.is_empty() || self.rdma.is_some()
    }

    /// Why there is no device to offer.
    pub(super) fn no_offer_cause(&self, path: &TcpPath) -> FallbackCause {
        let mut devices = self.devices.iter();
        match devices.all(|device| path.is_within_reach(device.chid)) {
            true => FallbackCause::NoDevice,
            false => FallbackCause::OtherHost,
        }
    }

    /// The device for SMC-D v1 on this interface, if it is requested and there is one.
    pub(super) fn v1_device(&self, path: &TcpPath) -> Option<&DirectDevice> {
        let pnet_id = path.interface.as_ref()?.pnet_id?;
        self.devices
            .iter()
            .filter(|_| self.v1 && !path.vlan_unknown)
            .find(|device| !device.chid.is_emulated() && device.pnet_id == Some(pnet_id))
    }
}

/// Properties of an SMC-D device that a handshake uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectDevice {
    /// Which one it is.
    pub index: DeviceIndex,
    /// Its address.
    pub gid: Gid,
    /// Its fabric.
    pub chid: Chid,
    /// Its physical network, if it was given one.
    pub pnet_id: Option<PnetId>,
    /// Whether the peer's buffer can be mapped; it is attached then.
    pub nocopy: bool,
    /// Largest buffer it can register.
    pub max_buffer: SizeCode,
}

impl DirectDevice {
    /// A device without PNET ID, with nocopy and without a limit on the buffer size.
    #[must_use]
    pub const fn new(index: DeviceIndex, gid: Gid, chid: Chid) -> Self {
        Self {
            index,
            gid,
            chid,
            pnet_id: None,
            nocopy: true,
            max_buffer: SizeCode::MAX,
        }
    }
}

/// Properties of the TCP connection of one handshake.
///
/// The default, nothing special, is right for SMC-D v2 between processes of one host.
#[derive(Clone, Debug, Default)]
pub struct TcpPath {
    /// An IPsec policy applies to the connection.
    pub ipsec: bool,
    /// The VLAN of the connection could not be determined.
    pub vlan_unknown: bool,
    /// VLAN of the connection, 0 without.
    pub vlan: u16,
    /// The local address of the TCP connection; IPv4 is never given as IPv6. SMC-R v2 is possible
    /// only with it.
    pub local: Option<IpAddr>,
    /// The peer's address of the TCP connection.
    pub peer: Option<IpAddr>,
    /// The peer is a process of this host, whatever the addresses are.
    pub same_host: bool,
    /// The network interface that the connection runs over.
    ///
    /// A server needs it for the subnet check of version 1. Without it the check is taken as
    /// passed: the host has no better information, and a decline then names the missing device,
    /// which is the reason that matters. SMC-D v1 itself is possible only with it.
    pub interface: Option<Interface>,
}

impl TcpPath {
    /// A connection over this interface.
    #[must_use]
    pub fn over(interface: Interface) -> Self {
        Self {
            interface: Some(interface),
            ..Self::default()
        }
    }

    /// Sets the addresses of the TCP connection.
    #[must_use]
    pub fn with_addresses(mut self, local: IpAddr, peer: IpAddr) -> Self {
        self.local = Some(local.to_canonical());
        self.peer = Some(peer.to_canonical());
        self
    }

    /// Whether devices of this fabric may be at both ends. The one of loopback devices does not
    /// reach beyond the host: a peer with another address can only have copied a GID.
    pub(super) fn is_within_reach(&self, chid: Chid) -> bool {
        let is_own = |ip: IpAddr| ip.is_loopback() || ip.is_unspecified();
        let may_be_own = match (self.local, self.peer) {
            (Some(local), Some(peer)) => local == peer || is_own(peer),
            _ => true,
        };
        chid != Chid::LOOPBACK || self.same_host || may_be_own
    }
}

/// A network interface as SMC v1 sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// Its subnets, that of the connection's local address first. Link-local IPv6 addresses do not
    /// belong here.
    pub subnets: Vec<Subnet>,
    /// Its physical network, if it was given one.
    pub pnet_id: Option<PnetId>,
    /// Name of the lowest device below it, such as `eth0`, or its own. Without PNET ID it decides
    /// which RDMA ports belong to it.
    pub name: Option<String>,
}

impl Interface {
    /// An interface with these subnets.
    #[must_use]
    pub fn new(subnets: Vec<Subnet>, pnet_id: Option<PnetId>) -> Self {
        Self {
            subnets,
            pnet_id,
            name: None,
        }
    }

    /// Sets the name.
    #[must_use]
    pub fn with_name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }
}

/// An address of an interface with the length of its network part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subnet {
    /// IPv4 address and significant bits.
    V4(Ipv4Addr, u8),
    /// IPv6 address and significant bits.
    V6(Ipv6Addr, u8),
}

impl Subnet {
    /// The subnet of an address, with this many significant bits.
    #[must_use]
    pub const fn new(address: IpAddr, bits: u8) -> Self {
        match address {
            IpAddr::V4(address) => Self::V4(address, bits),
            IpAddr::V6(address) => Self::V6(address, bits),
        }
    }

    /// The address.
    #[must_use]
    pub const fn address(&self) -> IpAddr {
        match *self {
            Self::V4(address, _) => IpAddr::V4(address),
            Self::V6(address, _) => IpAddr::V6(address),
        }
    }

    /// Whether the address belongs to it.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        match (*self, address) {
            (Self::V4(own, len), IpAddr::V4(other)) => {
                let mask = mask_v4(len);
                own & mask == other & mask
            }
            (Self::V6(own, len), IpAddr::V6(other)) => {
                let mask = mask_v6(len);
                own & mask == other & mask
            }
            _ => false,
        }
    }
}

pub(super) fn mask_v4(len: u8) -> Ipv4Addr {
    Ipv4Addr::from_bits(!u32::MAX.checked_shr(len.into()).unwrap_or(0))
}

pub(super) fn mask_v6(len: u8) -> Ipv6Addr {
    Ipv6Addr::from_bits(!u128::MAX.checked_shr(len.into()).unwrap_or(0))
}

/// How long to wait for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandshakeTimeouts {
    /// For PROPOSAL, ACCEPT and CONFIRM each.
    pub message: Duration,
    /// For all device work between two messages together. Has to be shorter than `message`, so
    /// that the peer receives a DECLINE instead of running into its own timeout, which is fatal.
    pub work: Duration,
    /// For the CONFIRM LINK exchange of SMC-R, which has its own timeout: only a guard against
    /// work that never ends.
    pub confirm_link: Duration,
    /// Server: for a DECLINE of the client after that exchange has failed.
    pub late_decline: Duration,
    /// Client: for the server's DECLINE, likewise. It has to come first: a server of Linux takes a
    /// client's DECLINE in this phase for data.
    pub late_server_decline: Duration,
}

impl Default for HandshakeTimeouts {
    fn default() -> Self {
        Self {
            message: CLC_TIMEOUT,
            work: WORK_TIMEOUT,
            confirm_link: CONFIRM_LINK_TIMEOUT,
            late_decline: LATE_DECLINE_TIMEOUT,
            late_server_decline: LATE_SERVER_DECLINE_TIMEOUT,
        }
    }
}

/// The time for each message, fixed by the protocol's other implementations.
pub const CLC_TIMEOUT: Duration = Duration::from_secs(6);

/// The time for device work between two messages: long enough for two creator timeouts of the
/// link group registry and for slow devices, and short of [`CLC_TIMEOUT`].
pub const WORK_TIMEOUT: Duration = Duration::from_secs(5);

/// The guard for the CONFIRM LINK exchange, longer than the four seconds that clients wait.
pub const CONFIRM_LINK_TIMEOUT: Duration = Duration::from_secs(6);

/// The time for a DECLINE that is late, fixed by the protocol's other implementations.
pub const LATE_DECLINE_TIMEOUT: Duration = Duration::from_secs(1);

/// The time for a late DECLINE of a server. Linux sends it 5 s after its CONFIRM LINK: 2 s for the
/// response, 1 s for a DECLINE of the client, and 2 s until the queue pair is destroyed. A client
/// waits 4 s for CONFIRM LINK before.
pub const LATE_SERVER_DECLINE_TIMEOUT: Duration = Duration::from_secs(3);

/// The system EID of hosts without a native ISM device.
pub const DEFAULT_SEID: Eid = Eid::from_bytes(*b"IBM-DEF-ISMSEID00000000000000000");
