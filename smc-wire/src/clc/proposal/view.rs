//! The borrowed form of PROPOSAL.

use super::parts::{ExtensionHead, IpAreaView, V2ExtensionView};
use super::regions::{Regions, bad_value, prefixes_len};
use super::repr::{Proposal, SmcdArea};
use crate::clc::header::{ClcType, Header, check_trailer};
use crate::clc::{frame, raw};
use crate::error::{DecodeError, MessageKind};
use crate::types::{Chid, IsmGid, Mac, Offer, PeerId, RoceGid};

/// Offset of the SMC-D area, and the base of the IP area offset.
const AFTER_BASE: usize = 40;
/// End of the SMC-D area.
const AFTER_SMCD_AREA: usize = 80;
/// The largest IP area offset: the SMC-D area and no more.
const MAX_IP_AREA_OFFSET: usize = 40;

/// A received PROPOSAL, checked (docs/spec/clc.md#proposal).
///
/// All regions that the accessors show lie inside of the message. Nothing was checked that is a
/// matter of negotiation rather than of form.
#[derive(Debug, Clone, Copy)]
pub struct ProposalView<'a> {
    header: Header,
    bytes: &'a [u8],
    base: &'a raw::ProposalBase,
    smcd: Option<&'a raw::SmcdArea>,
    ip: Option<IpAreaView<'a>>,
    ext: Option<V2ExtensionView<'a>>,
}

impl<'a> ProposalView<'a> {
    /// Reads a PROPOSAL that takes up all of `bytes`.
    ///
    /// Applies the length formulas of Linux exactly: the length has to be the sum of the regions
    /// that the type bits and counts announce. Beyond what Linux checks, every region has to end
    /// before the trailer. Regions may overlap, as they may for Linux.
    ///
    /// # Errors
    ///
    /// A malformed header, another message, a length that disagrees with the contents, an offset
    /// or a count out of range, or a bad trailer. All of them end the handshake in Linux.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        Self::new(frame::exact_of(bytes, &[ClcType::Proposal])?, bytes)
    }

    pub(in crate::clc) fn new(header: Header, bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let body = Regions::new(bytes);
        let (base, _) = body.at::<raw::ProposalBase>("base", 0)?;
        let ip_offset = usize::from(base.ip_area_offset.get());
        if ip_offset > MAX_IP_AREA_OFFSET {
            return Err(bad_value("IP area offset", 38, "at most 40", ip_offset));
        }
        let view = Self {
            header,
            bytes,
            base,
            smcd: None,
            ip: None,
            ext: None,
        };
        let ip_start = AFTER_BASE.saturating_add(ip_offset);
        let view = if header.version.is_v2() {
            view.with_v2_regions(&body, ip_start)?
        } else {
            view.with_v1_regions(&body, ip_start)?
        };
        check_trailer(MessageKind::Proposal, bytes)?;
        Ok(view)
    }

    fn with_v1_regions(self, body: &Regions<'a>, ip_start: usize) -> Result<Self, DecodeError> {
        if self.v1_offer().is_neither() {
            return Err(bad_value(
                "v1 type",
                7,
                "an offer",
                self.header.flags.into(),
            ));
        }
        let count = body.prefix_count(ip_start)?;
        let ip_len = size_of::<raw::IpArea>().saturating_add(prefixes_len(count));
        body.check_length(ip_start.saturating_add(ip_len))?;
        let smcd = match ip_start {
            AFTER_SMCD_AREA => Some(body.at("SMC-D area", AFTER_BASE)?.0),
            _ => None,
        };
        let ip = IpAreaView::new(body, ip_start, count)?;
        Ok(Self {
            smcd,
            ip: Some(ip),
            ..self
        })
    }

    fn with_v2_regions(self, body: &Regions<'a>, ip_start: usize) -> Result<Self, DecodeError> {
        let (v1, v2) = (self.v1_offer(), self.v2_offer());
        let (smcd, _) = body.at::<raw::SmcdArea>("SMC-D area", AFTER_BASE)?;
        if v1.has_d() && ip_start != AFTER_SMCD_AREA {
            let got = usize::from(self.base.ip_area_offset.get());
            return Err(bad_value("IP area offset", 38, "40 with SMC-D", got));
        }
        // Linux judges this byte even if nothing is offered in version 1 and no IP area exists.
        let prefix_count = body.prefix_count(ip_start)?;
        let mut length = AFTER_SMCD_AREA;
        if !v1.is_neither() {
            length = length
                .saturating_add(size_of::<raw::IpArea>())
                .saturating_add(prefixes_len(prefix_count));
        }
        let ext = match v2 {
            Offer::Neither => None,
            _ => Some(ExtensionHead::new(
                body,
                usize::from(smcd.v2_offset.get()),
                v2,
            )?),
        };
        length = length.saturating_add(ext.map_or(0, |ext| ext.encoded_len(v2)));
        body.check_length(length)?;

        let ip = match v1 {
            Offer::Neither => None,
            _ => Some(IpAreaView::new(body, ip_start, prefix_count)?),
        };
        let ext = match ext {
            Some(head) => Some(V2ExtensionView::new(body, &head, v2)?),
            None => None,
        };
        Ok(Self {
            smcd: Some(smcd),
            ip,
            ext,
            ..self
        })
    }

    /// The common header.
    #[must_use]
    pub const fn header(&self) -> &Header {
        &self.header
    }

    /// The bytes of the message.
    #[must_use]
    pub const fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// What is offered in version 1.
    #[must_use]
    pub const fn v1_offer(&self) -> Offer {
        self.header.v1_offer()
    }

    /// What is offered in version 2; nothing in a version-1 message.
    #[must_use]
    pub const fn v2_offer(&self) -> Offer {
        self.header.v2_offer()
    }

    /// Peer ID of the client, zero unless v1 SMC-R is offered.
    #[must_use]
    pub const fn peer_id(&self) -> PeerId {
        self.base.peer_id
    }

    /// RoCEv1 GID of the client, zero unless v1 SMC-R is offered.
    #[must_use]
    pub const fn gid(&self) -> RoceGid {
        self.base.gid
    }

    /// MAC of the client's port, zero unless v1 SMC-R is offered.
    #[must_use]
    pub const fn mac(&self) -> Mac {
        self.base.mac
    }

    /// Offset field of the IP area, in bytes from offset 40: 0 or 40 from real senders.
    #[must_use]
    pub const fn ip_area_offset(&self) -> u16 {
        self.base.ip_area_offset.get()
    }

    /// Offset field of the v2 extension, in bytes from offset 52; `None` without SMC-D area.
    #[must_use]
    pub fn v2_offset(&self) -> Option<u16> {
        self.smcd.map(|area| area.v2_offset.get())
    }

    /// The SMC-D area. Always there in version 2; in version 1 if the IP area leaves room for it.
    #[must_use]
    pub fn smcd(&self) -> Option<SmcdArea> {
        self.smcd.map(|area| SmcdArea {
            gid: IsmGid(area.gid.get()),
            chid: Chid(area.chid.get()),
            vendor_oui: area.vendor_oui,
            vendor_options: area.vendor_options,
        })
    }

    /// The IP area, unless nothing is offered in version 1.
    #[must_use]
    pub const fn ip(&self) -> Option<IpAreaView<'a>> {
        self.ip
    }

    /// The v2 extension, unless nothing is offered in version 2.
    #[must_use]
    pub const fn ext(&self) -> Option<V2ExtensionView<'a>> {
        self.ext
    }

    /// The contents without reserved fields and offsets.
    ///
    /// Emitting it again gives the same bytes for what real stacks send. It drops reserved bits
    /// and whatever lies between or under the regions.
    #[must_use]
    pub fn to_repr(&self) -> Proposal {
        Proposal {
            version: self.header.version,
            v1: self.v1_offer(),
            v2: self.v2_offer(),
            peer_id: self.peer_id(),
            gid: self.gid(),
            mac: self.mac(),
            smcd: self.smcd(),
            ip: self.ip.map(|ip| ip.to_repr()),
            ext: self.ext.map(|ext| ext.to_repr()),
        }
    }
}
