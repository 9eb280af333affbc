//! Identifiers that are a fixed number of bytes.

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

pub(super) use wire_id;
