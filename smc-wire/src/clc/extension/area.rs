//! Where extensions are in a message: their number, the headers that regions have in reserved
//! bytes, and the end of the message (docs/spec/extensions.md#placement).

use core::mem::offset_of;

use zerocopy::network_endian::U16;

use super::generic::{Extension, Walk, varint};
use super::{ExtensionType, Extensions};
use crate::bounded::Bounded;
use crate::clc::header::{
    CONNECTION_TYPE, ClcType, FIRST_CONTACT, HEADER_LEN, Header, LENGTH_AT, TRAILER_LEN,
};
use crate::clc::proposal::AFTER_BASE;
use crate::clc::{
    AcceptConfirm, AcceptKind, DirectEnd, FirstContact, Proposal, SmcdArea, Terms, V2Extension,
};
use crate::error::{DecodeError, DecodeErrorKind, EmitError, MessageKind};
use crate::layout::Show::{self, Reserved};
use crate::layout::{DEC, Layout, Raw, hex_digits, layouts};
use crate::pretty::Value;
use crate::types::Features;
use crate::writer::{invalid, wire_length};

layouts! {
    /// Reserved bytes at the end of the [`SmcdArea`]: number of extensions, and the header of the
    /// IP area.
    pub(crate) struct SmcdAreaEnd: 20 {
        reserved_60: [u8; 11] => Reserved,
        extension_count: U16 => DEC,
        reserved_73: [u8; 4] => Reserved,
        extension_type: u8 => EXTENSION_TYPE,
        extension_length: [u8; 2] => EXTENSION_LENGTH,
    }

    /// Reserved bytes in the [`V2Extension`] and in [`FirstContact`]: end of the header.
    pub(crate) struct HeaderEnd: 2 {
        extension_type: u8 => EXTENSION_TYPE,
        extension_length: u8 => EXTENSION_LENGTH,
    }

    /// Reserved bytes at the end of the [`V2Extension`]: header of what continues it.
    pub(crate) struct V2ExtensionEnd: 12 {
        reserved_28: [u8; 5] => Reserved,
        reserved_33: [u8; 4] => Reserved,
        continuation_type: u8 => EXTENSION_TYPE,
        continuation_length: [u8; 2] => EXTENSION_LENGTH,
    }

    /// Reserved bytes before the first-contact parts for SMC-R: number of extensions.
    pub(crate) struct RdmaV2End: 8 {
        reserved_96: [u8; 4] => Reserved,
        extension_count: U16 => DEC,
        reserved_102: [u8; 2] => Reserved,
    }

    /// Reserved bytes of [`DirectEnd`]: number of extensions.
    pub(crate) struct DirectEndReserved: 2 {
        extension_count: U16 => DEC,
    }

    /// Reserved bytes at the end of [`FirstContact`]: header of the GID list.
    pub(crate) struct FirstContactEnd: 8 {
        reserved_44: [u8; 1] => Reserved,
        reserved_45: [u8; 4] => Reserved,
        gid_list_type: u8 => EXTENSION_TYPE,
        gid_list_length: [u8; 2] => EXTENSION_LENGTH,
    }
}

/// The type of an extension in either form.
pub(crate) const EXTENSION_TYPE: Show = Show::Value(|bytes| {
    let kind = ExtensionType::new(value(bytes));
    Value::Code {
        value: kind.get().into(),
        digits: hex_digits(bytes.len()),
        name: kind.name(),
    }
});

/// The payload length of an extension in either form.
pub(crate) const EXTENSION_LENGTH: Show = Show::Value(|bytes| Value::Unsigned(value(bytes).into()));

fn value(bytes: &[u8]) -> u16 {
    varint::split(bytes).map_or(0, |(value, _)| value)
}

/// The features in the vendor fields of a PROPOSAL of version 2, read where they are, also in a
/// message that ends early.
pub(crate) fn proposal_features(bytes: &[u8]) -> Features {
    const OUI_AT: usize = AFTER_BASE + offset_of!(Raw<SmcdArea>, vendor_oui);
    const OPTIONS_AT: usize = AFTER_BASE + offset_of!(Raw<SmcdArea>, vendor_options);
    match (array(bytes, OUI_AT), array(bytes, OPTIONS_AT)) {
        (Some(oui), Some(options)) => Features::from_proposal(oui, options),
        _ => Features::empty(),
    }
}

/// The features that an ACCEPT or CONFIRM of version 2 states, read where they are: in the
/// first-contact parts, or else in the first extension.
pub(crate) fn accept_features(bytes: &[u8], is_rdma: bool, is_first_contact: bool) -> Features {
    const OPTIONS_AT: usize = offset_of!(Raw<FirstContact>, vendor_options);
    let rest = bytes.get(AcceptConfirm::parts_at(is_rdma)..);
    let rest = rest.unwrap_or_default();
    let options = match rest {
        // Release 0 has no vendor options.
        [_, os_and_release, ..] if is_first_contact && os_and_release & 0x0f != 0 => {
            array(rest, OPTIONS_AT)
        }
        _ if is_first_contact => None,
        _ => Extension::split(rest)
            .filter(|(first, _)| first.kind == ExtensionType::FEATURES)
            .and_then(|(first, _)| first.payload.try_into().ok()),
    };
    options.map_or(Features::empty(), |options| {
        Features::from_vendor_options(u32::from_be_bytes(options))
    })
}

/// The number of extensions in a message with this header, those of regions included. 0 without
/// features, for then the bytes are reserved.
pub(crate) fn count(header: &Header, bytes: &[u8]) -> u16 {
    let is_rdma = header.flags & CONNECTION_TYPE.mask == 0;
    let (features, at) = match header.kind {
        _ if !header.version.is_v2() => return 0,
        ClcType::Proposal => (proposal_features(bytes), PROPOSAL_COUNT_AT),
        ClcType::Accept | ClcType::Confirm => {
            let is_first_contact = FIRST_CONTACT.is_set(header.flags);
            let features = accept_features(bytes, is_rdma, is_first_contact);
            (features, accept_count_at(is_rdma))
        }
        ClcType::Decline => return 0,
    };
    match array(bytes, at) {
        Some(count) if !features.is_empty() => u16::from_be_bytes(count),
        _ => 0,
    }
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

/// End of the SMC-D area of a PROPOSAL.
const AFTER_SMCD_AREA: usize = AFTER_BASE + SmcdArea::LEN;
const PROPOSAL_COUNT_AT: usize =
    AFTER_SMCD_AREA - SmcdAreaEnd::LEN + offset_of!(SmcdAreaEnd, extension_count);

/// Where the header of the IP area has its type.
const PROPOSAL_TYPE_AT: usize =
    AFTER_SMCD_AREA - SmcdAreaEnd::LEN + offset_of!(SmcdAreaEnd, extension_type);

const fn accept_count_at(is_rdma: bool) -> usize {
    const RDMA: usize =
        AcceptConfirm::parts_at(true) - RdmaV2End::LEN + offset_of!(RdmaV2End, extension_count);
    const DIRECT: usize = HEADER_LEN + offset_of!(Raw<DirectEnd>, reserved_26);
    if is_rdma { RDMA } else { DIRECT }
}

impl Proposal {
    /// Where this message has extensions; `None` without features.
    pub(in crate::clc) fn area(&self) -> Option<Area> {
        let smcd = self.smcd.filter(|_| self.version.is_v2())?;
        if smcd.vendor_features().is_empty() {
            return None;
        }
        let (kind, ip_len) = match &self.ip {
            Some(ip) => (ExtensionType::IP_AREA, ip.encoded_len()),
            None => (ExtensionType::PADDING, 0),
        };
        let mut headers = Bounded::new();
        let _ = headers.push(RegionHeader::long(kind, PROPOSAL_TYPE_AT, ip_len));
        if let Some(ext) = &self.ext {
            const HEAD: usize = offset_of!(Raw<V2Extension>, reserved_4);
            const END: usize = offset_of!(Raw<V2Extension>, reserved_28);
            const HEAD_LEN: usize = END + offset_of!(V2ExtensionEnd, reserved_33)
                - offset_of!(Raw<V2Extension>, smcd_v2_offset);
            const TAIL: usize = END + offset_of!(V2ExtensionEnd, continuation_type);
            let at = |offset| {
                AFTER_SMCD_AREA
                    .saturating_add(ip_len)
                    .saturating_add(offset)
            };
            let tail_len = ext.encoded_len().saturating_sub(V2Extension::LEN);
            let (v2, more) = (ExtensionType::V2_EXTENSION, ExtensionType::CONTINUATION);
            let _ = headers.push(RegionHeader::short(v2, at(HEAD), HEAD_LEN));
            let _ = headers.push(RegionHeader::long(more, at(TAIL), tail_len));
        }
        Some(Area {
            message: MessageKind::Proposal,
            count_at: PROPOSAL_COUNT_AT,
            headers,
            start: self.encoded_len().saturating_sub(TRAILER_LEN),
            max_len: Self::MAX_EXTENDED_LEN,
            needs_features: false,
        })
    }
}

impl AcceptConfirm {
    /// Where this message has extensions; `None` in version 1, and if there are first-contact parts
    /// without features, or without the GID list that an SMC-R CONFIRM has.
    pub(in crate::clc) fn area(&self) -> Option<Area> {
        let Terms::V2 { first_contact, .. } = &self.terms else {
            return None;
        };
        let is_rdma = self.body.is_rdma();
        let mut headers = Bounded::new();
        if let Some(parts) = first_contact {
            const HEAD: usize = offset_of!(Raw<FirstContact>, reserved_2);
            const END: usize = offset_of!(Raw<FirstContact>, reserved_44);
            const PAYLOAD: usize = offset_of!(Raw<FirstContact>, host);
            const LEN: usize = FirstContact::LEN - PAYLOAD;
            const LEN_BEFORE_LIST: usize = END + offset_of!(FirstContactEnd, reserved_45) - PAYLOAD;
            const LIST: usize = END + offset_of!(FirstContactEnd, gid_list_type);
            let needs_list = is_rdma && self.kind == AcceptKind::Confirm;
            if parts.vendor_features().is_empty() || parts.gids.is_some() != needs_list {
                return None;
            }
            let at = |offset| Self::parts_at(is_rdma).saturating_add(offset);
            let (first, list) = (ExtensionType::FIRST_CONTACT, ExtensionType::GID_LIST);
            let len = if needs_list { LEN_BEFORE_LIST } else { LEN };
            let _ = headers.push(RegionHeader::short(first, at(HEAD), len));
            if needs_list {
                let list_len = parts.encoded_len(is_rdma).saturating_sub(FirstContact::LEN);
                let _ = headers.push(RegionHeader::long(list, at(LIST), list_len));
            }
        }
        Some(Area {
            message: self.kind.message_kind(),
            count_at: accept_count_at(is_rdma),
            headers,
            start: self.encoded_len().saturating_sub(TRAILER_LEN),
            max_len: Self::MAX_KEEP,
            needs_features: first_contact.is_none(),
        })
    }
}

/// Where a message has extensions.
pub(in crate::clc) struct Area {
    message: MessageKind,
    count_at: usize,
    /// Headers of the regions, which lie in reserved bytes.
    headers: Bounded<RegionHeader, 3>,
    /// Where the regions end and other extensions begin.
    start: usize,
    /// Bytes of a message that receivers keep.
    max_len: usize,
    /// The message has no vendor options: an extension has the features.
    needs_features: bool,
}

impl Area {
    /// The extensions of a message, which have this number, headers of regions included.
    pub(in crate::clc) fn read<'a>(
        &self,
        count: u16,
        header: &Header,
        bytes: &'a [u8],
    ) -> Result<Extensions<'a>, DecodeError> {
        let (maximum, got) = (self.max_len, usize::from(header.length));
        if got > maximum {
            let kind = DecodeErrorKind::LengthAbove { maximum, got };
            return Err(DecodeError::new(self.message, "length", LENGTH_AT, kind));
        }
        for header in &self.headers {
            header.check(self.message, bytes)?;
        }
        let Some(left) = usize::from(count).checked_sub(self.headers.len()) else {
            let (field, expected) = ("number of extensions", "one for each header");
            return Err(self
                .message
                .bad_value(field, self.count_at, expected, count));
        };
        let limit = bytes.len().saturating_sub(TRAILER_LEN);
        Extensions::read(Walk::new(self.message, bytes, (self.start, limit), left))
    }

    /// Whether these extensions can be written.
    pub(in crate::clc) fn check(&self, extensions: &Extensions<'_>) -> Result<(), EmitError> {
        if self.needs_features && extensions.features.unwrap_or_default().is_empty() {
            let reason = "neither in vendor options nor in an extension";
            return Err(invalid(self.message, "features", reason));
        }
        extensions.check(self.message)?;
        let after_start = extensions.encoded_len().saturating_add(TRAILER_LEN);
        if self.start.saturating_add(after_start) > self.max_len {
            return Err(invalid(
                self.message,
                "extensions",
                "more than receivers keep",
            ));
        }
        Ok(())
    }

    /// Writes number and headers for these extensions into a message that has all the rest.
    pub(in crate::clc) fn write(&self, extensions: &Extensions<'_>, message: &mut [u8]) {
        let count = extensions.count().saturating_add(self.headers.len());
        put(message, self.count_at, &wire_length(count).to_be_bytes());
        for header in &self.headers {
            put(message, header.type_at, header.bytes().as_slice());
        }
    }
}

fn put(message: &mut [u8], at: usize, bytes: &[u8]) {
    let to = message.iter_mut().skip(at);
    for (to, from) in to.zip(bytes) {
        *to = *from;
    }
}

/// Header of a region: the last of the reserved bytes before its payload.
#[derive(Clone, Copy, Default)]
struct RegionHeader {
    kind: ExtensionType,
    /// Where the type is, in one byte. The payload length follows.
    type_at: usize,
    payload_len: usize,
    /// The length has the form with two bytes.
    is_long: bool,
}

impl RegionHeader {
    const fn short(kind: ExtensionType, type_at: usize, payload_len: usize) -> Self {
        let is_long = false;
        Self {
            kind,
            type_at,
            payload_len,
            is_long,
        }
    }

    const fn long(kind: ExtensionType, type_at: usize, payload_len: usize) -> Self {
        let is_long = true;
        Self {
            is_long,
            ..Self::short(kind, type_at, payload_len)
        }
    }

    fn bytes(&self) -> Bounded<u8, 3> {
        let [_, kind] = self.kind.get().to_be_bytes();
        let [high, low] = (wire_length(self.payload_len) | varint::LONG).to_be_bytes();
        Bounded::from_iter_lossy(
            [kind]
                .into_iter()
                .chain(self.is_long.then_some(high))
                .chain([low]),
        )
    }

    fn check(&self, message: MessageKind, bytes: &[u8]) -> Result<(), DecodeError> {
        let length_at = self.type_at.saturating_add(1);
        let [kind, first] = array(bytes, self.type_at).unwrap_or_default();
        if u16::from(kind) != self.kind.get() {
            let expected = self.kind.name().unwrap_or_default();
            return Err(message.bad_value("extension type", self.type_at, expected, kind));
        }
        const FIELD: &str = "extension length";
        if (first >= 0x80) != self.is_long {
            let expected = if self.is_long {
                "two bytes"
            } else {
                "one byte"
            };
            return Err(message.bad_value(FIELD, length_at, expected, first));
        }
        let got = value(bytes.get(length_at..).unwrap_or_default());
        match usize::from(got) == self.payload_len {
            true => Ok(()),
            false => Err(message.bad_length(FIELD, length_at, self.payload_len, got)),
        }
    }
}
