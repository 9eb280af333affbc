//! The types that fields have: their bytes on the wire and how the printer shows them.

use core::fmt::Debug;
use core::net::{Ipv4Addr, Ipv6Addr};

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Show::{self, Code};
use super::{BYTES, Bits, DEC, HEX, MTU_BITS};
use crate::cdc::{ByteOrder, ProducerFlags, StateFlags};
use crate::cursor::Cursor;
use crate::llc::DeleteLinkReason;
use crate::pretty::Value;
use crate::types::{
    AlertToken, Chid, DeclineCode, DmbToken, Eid, FeatureMask, GroupId, HostName, IsmGid,
    LinkAuthentication, LinkNumber, LinkUid, Mac, MtuCode, PeerId, Psn, Qpn, Rkey, RmbAddr,
    RoceGid,
};

/// A type of fields.
pub(crate) trait FieldType: Copy {
    /// Its bytes on the wire.
    type Raw: Copy + Debug + FromBytes + IntoBytes + Immutable + KnownLayout + Unaligned;
    /// How the printer shows it.
    const SHOW: Show;

    fn from_raw(raw: Self::Raw) -> Self;
    fn to_raw(self) -> Self::Raw;
}

/// Shows the bytes as a type that [`Value`] knows.
macro_rules! typed {
    ($value:expr) => {
        Show::Value(|bytes| FromBytes::read_from_bytes(bytes).map_or(Value::Bytes(bytes), $value))
    };
}

/// Type, bytes on the wire, notation, and the conversions.
macro_rules! fields {
    ($($type:ty: $raw:ty => $show:expr, |$in:ident| $from:expr, |$out:ident| $to:expr;)+) => {$(
        impl FieldType for $type {
            type Raw = $raw;
            const SHOW: Show = $show;

            fn from_raw($in: $raw) -> Self {
                $from
            }

            fn to_raw(self) -> $raw {
                let $out = self;
                $to
            }
        }
    )+};
}

fields! {
    u8: u8 => DEC, |raw| raw, |value| value;
    u16: U16 => DEC, |raw| raw.get(), |value| value.into();
    u32: U32 => HEX, |raw| raw.get(), |value| value.into();
    Ipv4Addr: [u8; 4] => typed!(|address: [u8; 4]| Value::Ipv4(address.into())),
        |raw| raw.into(), |value| value.octets();
    Ipv6Addr: [u8; 16] => typed!(|address: [u8; 16]| Value::Ipv6(address.into())),
        |raw| raw.into(), |value| value.octets();

    Mac: Self => typed!(Value::Mac), |raw| raw, |value| value;
    PeerId: Self => typed!(Value::PeerId), |raw| raw, |value| value;
    RoceGid: Self => typed!(Value::Gid), |raw| raw, |value| value;
    Eid: Self => typed!(Value::Eid), |raw| raw, |value| value;
    HostName: Self => Show::Value(|bytes| Value::Text(bytes)), |raw| raw, |value| value;

    Qpn: [u8; 3] => HEX, |raw| Self::from_be_bytes(raw), |value| value.to_be_bytes();
    Psn: [u8; 3] => HEX, |raw| Self::from_be_bytes(raw), |value| value.to_be_bytes();
    Rkey: U32 => HEX, |raw| Self(raw.get()), |value| value.0.into();
    RmbAddr: U64 => HEX, |raw| Self(raw.get()), |value| value.0.into();
    AlertToken: U32 => HEX, |raw| Self::from_wire(raw.get()), |value| value.get().into();
    LinkAuthentication: Self => BYTES, |raw| raw, |value| value;
    LinkNumber: u8 => DEC, |raw| Self(raw), |value| value.0;
    LinkUid: U32 => HEX, |raw| Self(raw.get()), |value| value.0.into();

    IsmGid: U64 => HEX, |raw| Self(raw.get()), |value| value.0.into();
    Chid: U16 => CHID, |raw| Self(raw.get()), |value| value.0.into();
    DmbToken: U64 => HEX, |raw| Self(raw.get()), |value| value.0.into();
    GroupId: [u8; 4] => HEX, |raw| Self(raw), |value| value.0;

    DeclineCode: U32 => Code(|code| Self(u32::try_from(code).ok()?).name()),
        |raw| Self(raw.get()), |value| value.0.into();
    DeleteLinkReason: U32 => Code(|reason| Self(u32::try_from(reason).ok()?).name()),
        |raw| Self(raw.get()), |value| value.0.into();
    FeatureMask: U16 => HEX,
        |raw| Self::from_bits_retain(raw.get()), |value| value.bits().into();
    MtuCode: u8 => Show::Bits(&[Bits::reserved("reserved_mtu_bits", 0xf0), MTU_BITS]),
        |raw| Self::from_low_nibble(raw), |value| value.code();

    Cursor: [u8; 6] => Show::Cursor,
        |raw| ByteOrder::Big.cursor(raw), |value| ByteOrder::Big.cursor_bytes(value);
    ProducerFlags: u8 => Show::Bits(Self::LAYOUT), |raw| Self::from_bits_retain(raw), |value| value.bits();
    StateFlags: u8 => Show::Bits(Self::LAYOUT), |raw| Self::from_bits_retain(raw), |value| value.bits();
}

impl<const N: usize> FieldType for [u8; N] {
    type Raw = Self;
    const SHOW: Show = BYTES;

    fn from_raw(raw: Self) -> Self {
        raw
    }

    fn to_raw(self) -> Self {
        self
    }
}

const CHID: Show = Code(|value| match u16::try_from(value).map(Chid) {
    Ok(Chid::NONE) => Some("none"),
    Ok(Chid::LOOPBACK) => Some("loopback"),
    Ok(chid) if chid.is_emulated() => Some("emulated"),
    _ => None,
});
