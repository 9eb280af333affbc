//! The description of a message part that codec and printer share.
//!
//! A part is declared once, in the module of its message: [`part!`] declares the value that a
//! program sees together with its bytes, [`layouts!`] bytes alone. The printer goes through
//! [`Layout::FIELDS`], whose names, offsets and lengths are those of the declaration. A field that
//! is added to a declaration is thereby read, written and shown.

mod field;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::pretty::Value;
use crate::size::SizeCode;
use crate::types::{MtuCode, OsType};

pub(crate) use field::FieldType;

/// A part of a message with a fixed size.
pub(crate) trait Layout {
    /// Its bytes.
    type Raw: FromBytes + IntoBytes + Immutable + KnownLayout + Unaligned + 'static;
    /// How many they are.
    const LEN: usize = size_of::<Self::Raw>();
    /// The fields, by offset.
    const FIELDS: &'static [FieldLayout];
}

/// The bytes of a part.
pub(crate) type Raw<T> = <T as Layout>::Raw;

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
#[derive(Debug, Clone, Copy)]
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

    pub(crate) const fn is_set(self, byte: u8) -> bool {
        byte & self.mask != 0
    }

    /// The mask if the flag is set.
    pub(crate) const fn when(self, is_set: bool) -> u8 {
        if is_set { self.mask } else { 0 }
    }
}

/// Declares the bytes of parts: size, then name, type and [`Show`] of each field.
macro_rules! layouts {
    ($(
        $(#[$meta:meta])*
        $vis:vis struct $name:ident: $size:literal {
            $($field:ident $(as $shown:literal)?: $type:ty => $show:expr,)+
        }
    )+) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, zerocopy::FromBytes, zerocopy::IntoBytes)]
        #[derive(zerocopy::Immutable, zerocopy::KnownLayout, zerocopy::Unaligned)]
        #[repr(C)]
        $vis struct $name { $(pub(crate) $field: $type,)+ }

        impl $crate::layout::Layout for $name {
            type Raw = Self;
            const FIELDS: &'static [$crate::layout::FieldLayout] = &[$(
                $crate::layout::layouts!(@field $field $(as $shown)?: $type => $show),
            )+];
        }

        const _: () = assert!(size_of::<$name>() == $size);
    )+};
    (@show $type:ty) => { <$type as FieldType>::SHOW };
    (@show $type:ty => $show:ident) => { $show };
    (@field $field:ident: $type:ty => $show:expr) => {
        $crate::layout::layouts!(@field $field as (stringify!($field)): $type => $show)
    };
    (@field $field:ident as $shown:tt: $type:ty => $show:expr) => {
        $crate::layout::FieldLayout {
            name: $shown,
            offset: core::mem::offset_of!(Self::Raw, $field),
            len: size_of::<$type>(),
            show: $show,
        }
    };
}

/// Declares a part of a message: the value, and its bytes in the order of the wire.
///
/// First come fields of the value that are in none of these bytes, such as flags of a header. The
/// bytes are
///
/// * `pub`: a field of the value, whose type is a [`FieldType`]; shown in the way of this type, or
///   in the one after `=>`,
/// * `zero`: reserved, emitted as zero,
/// * `given`: follows from something else, such as the number of elements in a list.
///
/// Names are those that the printer shows, unless another one follows after `as`. After `then` come
/// fields of the value that are made of what follows these bytes.
///
/// `from_raw` makes the value from the bytes and from the fields that are not among them, `raw`
/// the bytes from the value and from what is given.
macro_rules! part {
    (
        $(#[$meta:meta])*
        pub struct $name:ident $(<$life:lifetime>)? {
            $($(#[$outside_doc:meta])* pub $outside:ident: $outside_type:ty,)*
        }
        $size:literal bytes {$(
            $(zero $zero:ident: [u8; $len:literal])?
            $(given $given:ident $(as $given_shown:literal)?: $given_type:tt => $given_show:ident)?
            $($(#[$doc:meta])* pub $field:ident $(as $shown:literal)?: $type:ty $(=> $show:ident)?)?
        ,)+}
        $(then {$($(#[$then_doc:meta])* pub $then:ident: $then_type:ty,)*})?
    ) => {
        $(#[$meta])*
        pub struct $name $(<$life>)? {
            $($(#[$outside_doc])* pub $outside: $outside_type,)*
            $($($(#[$doc])* pub $field: $type,)?)+
            $($($(#[$then_doc])* pub $then: $then_type,)*)?
        }

        const _: () = {
            use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};
            use $crate::layout::{FieldType, FieldLayout, Layout, layouts};

            #[derive(Debug, Clone, Copy)]
            #[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
            #[repr(C)]
            pub(crate) struct Raw {$(
                $(pub(crate) $zero: [u8; $len],)?
                $(pub(crate) $given: $given_type,)?
                $(pub(crate) $field: <$type as FieldType>::Raw,)?
            )+}

            impl $(<$life>)? Layout for $name $(<$life>)? {
                type Raw = Raw;
                const FIELDS: &'static [FieldLayout] = &[$(
                    $(layouts!(@field $zero: [u8; $len] => $crate::layout::Show::Reserved),)?
                    $(layouts!(@field $given $(as $given_shown)?: $given_type => $given_show),)?
                    $(layouts!(
                        @field $field $(as $shown)?:
                            <$type as FieldType>::Raw => layouts!(@show $type $(=> $show)?)
                    ),)?
                )+];
            }

            impl $(<$life>)? $name $(<$life>)? {
                pub(crate) fn from_raw(
                    raw: &Raw,
                    $($outside: $outside_type,)*
                    $($($then: $then_type,)*)?
                ) -> Self {
                    Self {
                        $($outside,)*
                        $($($field: FieldType::from_raw(raw.$field),)?)+
                        $($($then,)*)?
                    }
                }

                pub(crate) fn raw(&self, $($($given: $given_type,)?)+) -> Raw {
                    Raw {$(
                        $($zero: [0; $len],)?
                        $($given,)?
                        $($field: FieldType::to_raw(self.$field),)?
                    )+}
                }
            }

            assert!(size_of::<Raw>() == $size);
        };
    };
}

pub(crate) use {layouts, part};

pub(crate) const DEC: Show = Show::Value(|bytes| Value::Unsigned(big_endian(bytes)));
pub(crate) const HEX: Show = Show::Value(|bytes| Value::Hex {
    value: big_endian(bytes),
    digits: hex_digits(bytes.len()),
});
pub(crate) const BYTES: Show = Show::Value(|bytes| Value::Bytes(bytes));

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
