//! The description of a message part that codec and printer share.
//!
//! A layout is a `repr(C)` struct whose fields have the names that the printer shows. The codec
//! reads and writes the struct; the printer goes through [`Layout::FIELDS`], whose offsets and
//! lengths are those of the struct.

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use crate::pretty::Value;
use crate::size::SizeCode;
use crate::types::{Chid, MtuCode, OsType};

/// A part of a message with a fixed size.
pub(crate) trait Layout: FromBytes + Immutable + KnownLayout + Unaligned + 'static {
    /// The fields, by offset.
    const FIELDS: &'static [FieldLayout];
}

/// One field of a [`Layout`].
#[derive(Debug)]
pub(crate) struct FieldLayout {
    pub(crate) name: &'static str,
    pub(crate) offset: usize,
    pub(crate) len: usize,
    pub(crate) show: Show,
}

/// How the printer shows the bytes of a field.
#[derive(Debug)]
pub(crate) enum Show {
    /// As one value.
    Value(fn(&[u8]) -> Value<'_>),
    /// As a number with a name, if the number has one.
    Code(fn(u64) -> Option<&'static str>),
    /// As fields of less than a byte.
    Bits(&'static [Bits]),
    /// As a cursor in the byte order of the message.
    Cursor,
    /// As a count in the byte order of the sender, which Linux does not swap.
    Unswapped,
    /// Only if it is not zero.
    Reserved,
}

/// A field of less than a byte.
#[derive(Debug)]
pub(crate) struct Bits {
    pub(crate) name: &'static str,
    pub(crate) mask: u8,
    /// `None` for reserved bits, which are shown only if they are not zero.
    pub(crate) show: Option<fn(u8) -> Value<'static>>,
}

impl Bits {
    pub(crate) const fn new(name: &'static str, mask: u8, show: fn(u8) -> Value<'static>) -> Self {
        let show = Some(show);
        Self { name, mask, show }
    }

    pub(crate) const fn flag(name: &'static str, mask: u8) -> Self {
        Self::new(name, mask, |bit| Value::Flag(bit != 0))
    }

    pub(crate) const fn reserved(name: &'static str, mask: u8) -> Self {
        let show = None;
        Self { name, mask, show }
    }
}

/// Declares layouts: size, then name, type and [`Show`] of each field.
macro_rules! layouts {
    ($(
        $(#[$meta:meta])*
        $vis:vis struct $name:ident: $size:literal {
            $($field:ident $(as $shown:literal)?: $type:ty => $show:expr,)+
        }
    )+) => {$(
        $(#[$meta])*
        #[derive(
            Debug,
            Clone,
            Copy,
            zerocopy::FromBytes,
            zerocopy::IntoBytes,
            zerocopy::Immutable,
            zerocopy::KnownLayout,
            zerocopy::Unaligned,
        )]
        #[repr(C)]
        $vis struct $name { $(pub(crate) $field: $type,)+ }

        impl $crate::layout::Layout for $name {
            const FIELDS: &'static [$crate::layout::FieldLayout] = &[
                $($crate::layout::FieldLayout {
                    name: $crate::layout::layouts!(@name $field $($shown)?),
                    offset: core::mem::offset_of!($name, $field),
                    len: size_of::<$type>(),
                    show: $show,
                },)+
            ];
        }

        const _: () = assert!(size_of::<$name>() == $size);
    )+};
    (@name $field:ident) => { stringify!($field) };
    (@name $field:ident $shown:literal) => { $shown };
}

pub(crate) use layouts;

pub(crate) const DEC: Show = Show::Value(|bytes| Value::Unsigned(big_endian(bytes)));
pub(crate) const HEX: Show = Show::Value(|bytes| Value::Hex {
    value: big_endian(bytes),
    digits: hex_digits(bytes.len()),
});
pub(crate) const BYTES: Show = Show::Value(|bytes| Value::Bytes(bytes));
pub(crate) const TEXT: Show = Show::Value(|bytes| Value::Text(bytes));
pub(crate) const MAC: Show = Show::Value(|bytes| typed(bytes, Value::Mac));
pub(crate) const GID: Show = Show::Value(|bytes| typed(bytes, Value::Gid));
pub(crate) const PEER_ID: Show = Show::Value(|bytes| typed(bytes, Value::PeerId));
pub(crate) const EID: Show = Show::Value(|bytes| typed(bytes, Value::Eid));
pub(crate) const IPV4: Show = Show::Value(|bytes| typed(bytes, |a: [u8; 4]| Value::Ipv4(a.into())));
pub(crate) const IPV6: Show =
    Show::Value(|bytes| typed(bytes, |a: [u8; 16]| Value::Ipv6(a.into())));
pub(crate) const CHID: Show = Show::Code(|value| match u16::try_from(value).map(Chid) {
    Ok(Chid::NONE) => Some("none"),
    Ok(Chid::LOOPBACK) => Some("loopback"),
    Ok(chid) if chid.is_emulated() => Some("emulated"),
    _ => None,
});

/// The size code in the high bits of a byte.
pub(crate) const fn size_bits(name: &'static str) -> Bits {
    Bits::new(name, 0xf0, |code| Value::Size {
        code,
        bytes: SizeCode::new(code).unwrap_or_default().bytes().into(),
    })
}

/// The MTU code in the low bits of a byte.
pub(crate) const MTU_BITS: Bits = Bits::new("mtu", 0x0f, |code| {
    match MtuCode::from_low_nibble(code).bytes() {
        Some(bytes) => Value::Size {
            code,
            bytes: bytes.into(),
        },
        None => Value::Code {
            value: code.into(),
            digits: 2,
            name: None,
        },
    }
});

/// The operating system in the high bits of a byte.
pub(crate) const OS_BITS: Bits = Bits::new("os_type", 0xf0, |code| Value::Code {
    value: code.into(),
    digits: 1,
    name: OsType::new(code).and_then(OsType::name),
});

/// The release in some bits of a byte.
pub(crate) const fn release_bits(mask: u8) -> Bits {
    Bits::new("release", mask, |release| Value::Unsigned(release.into()))
}

/// Bytes as a big-endian number; the last eight of them if there are more.
pub(crate) fn big_endian(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0, |value, byte| value << 8 | u64::from(*byte))
}

/// Hex digits that show all leading zeros of a number.
pub(crate) fn hex_digits(len: usize) -> u8 {
    u8::try_from(len).unwrap_or(u8::MAX).saturating_mul(2)
}

fn typed<T: FromBytes>(bytes: &[u8], value: impl FnOnce(T) -> Value<'static>) -> Value<'_> {
    match T::read_from_bytes(bytes) {
        Ok(typed) => value(typed),
        Err(_) => Value::Bytes(bytes),
    }
}
