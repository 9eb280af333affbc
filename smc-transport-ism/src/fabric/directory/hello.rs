//! The first message of a device on a connection to another one.

use crate::shared::Tag;

/// Identifies the device that connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) from: Tag,
    pub(super) fabric: u128,
}

impl Hello {
    pub(super) fn to_bytes(self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[..4].copy_from_slice(HELLO_MAGIC);
        bytes[4..8].copy_from_slice(&self.from.generation.to_ne_bytes());
        bytes[8..10].copy_from_slice(&self.from.slot.to_ne_bytes());
        bytes[16..].copy_from_slice(&self.fabric.to_ne_bytes());
        bytes
    }

    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let rest = bytes.strip_prefix(HELLO_MAGIC)?;
        let (generation, rest) = rest.split_first_chunk()?;
        let (slot, rest) = rest.split_first_chunk()?;
        let fabric = rest.get(6..)?.try_into().ok()?;
        let from = Tag {
            slot: u16::from_ne_bytes(*slot),
            generation: u32::from_ne_bytes(*generation),
        };
        Some(Self {
            from,
            fabric: u128::from_ne_bytes(fabric),
        })
    }
}

pub(super) const LEN: usize = 32;
/// Contains the version of the message format.
const HELLO_MAGIC: &[u8; 4] = b"SMI1";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hello_round_trips() {
        let hello = Hello {
            from: Tag {
                slot: 0x0102,
                generation: 0x0304_0506,
            },
            fabric: u128::MAX / 3,
        };
        let bytes = hello.to_bytes();
        assert_eq!(Hello::parse(&bytes), Some(hello));
        assert_eq!(Hello::parse(&bytes[..LEN - 1]), None);
        assert_eq!(Hello::parse(&[0; LEN]), None);
    }
}
