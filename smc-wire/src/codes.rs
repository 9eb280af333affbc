//! Codes on the wire: how many bits they have, which values are known, and what these mean.

use core::fmt;

/// Declares a number of four bits: its name and that of its accessor.
macro_rules! nibble {
    ($(#[$meta:meta])* $type:ident, $get:ident) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
        pub struct $type(u8);

        impl $type {
            /// `None` for what does not fit into four bits.
            #[must_use]
            pub const fn new(number: u8) -> Option<Self> {
                if number > 0x0f {
                    None
                } else {
                    Some(Self(number))
                }
            }

            /// The number in the low four bits of a byte.
            #[must_use]
            pub const fn from_low_nibble(byte: u8) -> Self {
                Self(byte & 0x0f)
            }

            /// The number in the high four bits of a byte.
            #[must_use]
            pub const fn from_high_nibble(byte: u8) -> Self {
                Self(byte >> 4)
            }

            /// The number, 0..=15.
            #[must_use]
            pub const fn $get(self) -> u8 {
                self.0
            }
        }
    };
}

/// The known values of a code and their names; other values are kept.
macro_rules! known_values {
    ($type:ident { $($(#[$doc:meta])* $constant:ident = $value:literal $name:literal,)+ }) => {
        impl $type {
            $($(#[$doc])* pub const $constant: Self = Self($value);)+

            /// What the value means, if it is one of those above.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some($name),)+
                    _ => None,
                }
            }
        }
    };
}

/// An enumeration of messages by the codes of their type byte; the first code is the one to send.
macro_rules! message_types {
    (
        $(#[$meta:meta])*
        pub enum $name:ident, $from:ident, $code:ident {
            $($(#[$doc:meta])* $variant:ident = $first:literal $(| $more:literal)?,)+
        }
    ) => {
        $(#[$meta])*
        pub enum $name { $($(#[$doc])* $variant,)+ }

        impl $name {
            /// From the type byte of a message; `None` for values that no message has.
            #[must_use]
            pub const fn $from(byte: u8) -> Option<Self> {
                match byte {
                    $($first $(| $more)? => Some(Self::$variant),)+
                    _ => None,
                }
            }

            /// The type byte, in version 1 if the message has one there.
            #[must_use]
            pub const fn $code(self) -> u8 {
                match self {
                    $(Self::$variant => $first,)+
                }
            }

            /// The same message in the vocabulary of errors.
            #[must_use]
            pub const fn kind(self) -> $crate::MessageKind {
                match self {
                    $(Self::$variant => $crate::MessageKind::$variant,)+
                }
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str(self.kind().name())
            }
        }
    };
}

/// Writes a code in hex, followed by its name if it has one.
pub(crate) fn named_code(
    f: &mut fmt::Formatter<'_>,
    code: u32,
    name: Option<&'static str>,
) -> fmt::Result {
    write!(f, "{code:#010x}")?;
    match name {
        Some(name) => write!(f, " ({name})"),
        None => Ok(()),
    }
}

pub(crate) use {known_values, message_types, nibble};
