//! Identifiers that are a fixed number of bytes, or a number.

/// Declares an identifier: its name, its length and the name of its constructor.
macro_rules! wire_id {
    ($(#[$meta:meta])* $name:ident[$len:literal], $new:ident) => {
        $(#[$meta])*
        #[derive(
            Debug,
            Clone,
            Copy,
            PartialEq,
            Eq,
            Hash,
            PartialOrd,
            Ord,
            zerocopy::FromBytes,
            zerocopy::IntoBytes,
            zerocopy::Immutable,
            zerocopy::KnownLayout,
            zerocopy::Unaligned,
        )]
        #[repr(transparent)]
        pub struct $name([u8; $len]);

        impl $name {
            /// All bytes zero: not given.
            pub const ZERO: Self = Self([0; $len]);

            /// From the bytes in wire order.
            #[must_use]
            pub const fn $new(bytes: [u8; $len]) -> Self {
                Self(bytes)
            }

            /// The bytes in wire order.
            #[must_use]
            pub const fn as_bytes(&self) -> &[u8; $len] {
                &self.0
            }

            /// True for all zero, which means "not given".
            #[must_use]
            pub fn is_zero(self) -> bool {
                self == Self::ZERO
            }
        }
    };
}

/// Declares an identifier that is a number: its name, its type and how it prints.
macro_rules! wire_number {
    ($(#[$meta:meta])* $name:ident($repr:ty), $format:literal) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
        pub struct $name(pub $repr);

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(f, $format, self.0)
            }
        }
    };
}

pub(super) use {wire_id, wire_number};
