//! The client's device search and its PROPOSAL.

use smc_wire::Bounded;
use smc_wire::clc::{Device, DirectExtension, IpArea, Ipv6Prefix, Proposal, SmcdArea, V2Extension};
use smc_wire::types::{
    Chid, DeclineCode, Eid, FeatureMask, Gid, IsmGid, Mac, Offer as Types, PeerId, Release,
    RoceGid, Version,
};

use super::engine::emitted;
use super::{Config, DirectDevice, Interface, Path, Subnet};

/// What a client offers on one connection: the outcome of its device search, and the PROPOSAL.
///
/// Usually [`Client::new`](super::Client::new) makes and sends it. Where the PROPOSAL reaches the
/// server by another way than TCP, make it first and hand it to
/// [`Client::announced`](super::Client::announced).
#[derive(Clone, Debug)]
pub struct Offer {
    v1: Option<DirectDevice>,
    /// Devices offered in version 2, all with different CHIDs.
    v2: Vec<DirectDevice>,
    release: Release,
    bytes: Vec<u8>,
}

impl Offer {
    /// Searches for devices and makes the PROPOSAL.
    ///
    /// # Errors
    ///
    /// The reason why there is nothing to offer. It is sent as a DECLINE in the place of the
    /// PROPOSAL, if the server expects one on TCP.
    pub fn new(config: &Config, path: &Path) -> Result<Self, DeclineCode> {
        if path.ipsec {
            return Err(DeclineCode::IPSEC);
        }
        let native = config.v1_device(path).copied();
        let ip = path
            .interface
            .as_ref()
            .filter(|_| native.is_some())
            .and_then(ip_area);
        let v1 = native.filter(|_| ip.is_some());
        let listed = listed_devices(config, v1.as_ref());
        if v1.is_none() && listed.is_empty() {
            return Err(match native {
                Some(_) => DeclineCode::CNFERR,
                None => DeclineCode::NOSMCDEV,
            });
        }

        let direct = direct_extension(config, &listed);
        let proposal = Proposal {
            version: Version::V2,
            v1: Types::of(false, v1.is_some()),
            v2: Types::D,
            peer_id: PeerId::ZERO,
            gid: RoceGid::ZERO,
            mac: Mac::ZERO,
            smcd: Some(SmcdArea {
                gid: v1.map_or(IsmGid::ZERO, |device| device.gid.hi()),
                chid: v1.map_or(Chid::NONE, |device| device.chid),
                ..SmcdArea::default()
            }),
            ip,
            ext: Some(v2_extension(config, direct)),
        };
        let bytes = emitted(proposal.encoded_len(), |buffer| proposal.emit(buffer))
            .ok_or(DeclineCode::INTERR)?;
        let v2 = v1
            .into_iter()
            .chain(listed)
            .filter(|device| !device.chid.is_none())
            .collect();
        Ok(Self {
            v1,
            v2,
            release: config.release,
            bytes,
        })
    }

    /// The PROPOSAL.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn release(&self) -> Release {
        self.release
    }

    /// The device that the server means in an ACCEPT of version 1.
    pub(super) fn v1_device(&self) -> Option<DirectDevice> {
        self.v1
    }

    /// The device that the server means in an ACCEPT of version 2.
    pub(super) fn v2_device(&self, chid: Chid) -> Option<DirectDevice> {
        self.v2.iter().copied().find(|device| device.chid == chid)
    }
}

/// Devices for the GID list: on a network that the host is connected to, one per CHID, and not
/// the native one, which has its own place.
fn listed_devices(config: &Config, native: Option<&DirectDevice>) -> Vec<DirectDevice> {
    let mut room = DirectExtension::default();
    let mut listed = Vec::<DirectDevice>::new();
    for device in &config.devices {
        let is_connected = device
            .pnet_id
            .is_none_or(|id| config.pnet_ids.contains(&id));
        let is_known = native
            .into_iter()
            .chain(&listed)
            .any(|other| other.chid == device.chid);
        if device.chid.is_none() || !is_connected || is_known {
            continue;
        }
        if room.push_device(wire(device)).is_ok() {
            listed.push(*device);
        }
    }
    listed
}

fn direct_extension(config: &Config, listed: &[DirectDevice]) -> DirectExtension {
    let mut direct = DirectExtension {
        seid: config.seid.unwrap_or(Eid::ZERO),
        ..DirectExtension::default()
    };
    for device in listed {
        // There is room: the list was made by pushing the same devices.
        let _fits = direct.push_device(wire(device));
    }
    direct
}

fn v2_extension(config: &Config, direct: DirectExtension) -> V2Extension {
    V2Extension {
        release: config.release,
        has_seid: config.seid.is_some(),
        gid: RoceGid::ZERO,
        max_conns: 0,
        max_links: 0,
        features: features(config, config.release),
        ueids: Bounded::from_iter_lossy(config.ueids.iter().copied()),
        direct: Some(direct),
    }
}

/// The IP area of version 1: the subnet of the local address (IPv4), or up to eight prefixes.
fn ip_area(interface: &Interface) -> Option<IpArea> {
    if let Subnet::V4(address, len) = *interface.subnets.first()? {
        return Some(IpArea::v4(address & mask_v4(len), len));
    }
    let prefixes = interface.subnets.iter().filter_map(|subnet| match *subnet {
        Subnet::V6(address, prefix_len) => Some(Ipv6Prefix {
            prefix: address & mask_v6(prefix_len),
            prefix_len,
        }),
        Subnet::V4(..) => None,
    });
    Some(IpArea::v6(Bounded::from_iter_lossy(prefixes)))
}

/// Whether a server's interface is in one of the client's subnets: same length and same prefix.
pub(super) fn is_same_subnet(area: &IpArea, interface: &Interface) -> bool {
    interface.subnets.iter().any(|subnet| match *subnet {
        Subnet::V4(address, len) => {
            let mask = mask_v4(len);
            area.prefixes.is_empty()
                && area.prefix_len == len
                && area.subnet & mask == address & mask
        }
        Subnet::V6(address, len) => area.prefixes.iter().any(|offered| {
            let mask = mask_v6(len);
            offered.prefix_len == len && offered.prefix & mask == address & mask
        }),
    })
}

/// Features go with release v2.1; before, the field is reserved.
pub(super) fn features(config: &Config, release: Release) -> FeatureMask {
    if release >= Release::V2_1 {
        config.features
    } else {
        FeatureMask::empty()
    }
}

fn wire(device: &DirectDevice) -> Device {
    Device {
        gid: device.gid,
        chid: device.chid,
    }
}

fn mask_v4(len: u8) -> core::net::Ipv4Addr {
    core::net::Ipv4Addr::from_bits(!u32::MAX.checked_shr(len.into()).unwrap_or(0))
}

fn mask_v6(len: u8) -> core::net::Ipv6Addr {
    core::net::Ipv6Addr::from_bits(!u128::MAX.checked_shr(len.into()).unwrap_or(0))
}

/// The address that a peer's device has in messages of version 1: 64 bits.
pub(super) fn v1_gid(gid: Gid) -> Gid {
    Gid::from(gid.hi())
}
