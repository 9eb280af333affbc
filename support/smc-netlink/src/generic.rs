//! Messages of generic netlink families.

use netlink_packet_core::{DecodeError, NetlinkDeserializable, NetlinkHeader, NetlinkSerializable};

use crate::attributes::Attributes;

/// A message of any family: a command, and attributes by their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct GenericMessage {
    pub(crate) family: u16,
    pub(crate) command: u8,
    pub(crate) attributes: Attributes,
}

impl GenericMessage {
    /// A request without attributes.
    pub(crate) fn request(family: u16, command: u8) -> Self {
        Self {
            family,
            command,
            attributes: Attributes::default(),
        }
    }
}

impl NetlinkSerializable for GenericMessage {
    fn message_type(&self) -> u16 {
        self.family
    }

    fn buffer_len(&self) -> usize {
        GENERIC_HEADER_LEN
    }

    fn serialize(&self, buffer: &mut [u8]) {
        buffer.copy_from_slice(&[self.command, VERSION, 0, 0]);
    }
}

impl NetlinkDeserializable for GenericMessage {
    type Error = DecodeError;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, DecodeError> {
        let short = || DecodeError::from("a message of a generic family without header");
        let (header_bytes, attributes) = payload
            .split_at_checked(GENERIC_HEADER_LEN)
            .ok_or_else(short)?;
        Ok(Self {
            family: header.message_type,
            command: header_bytes.first().copied().unwrap_or(0),
            attributes: Attributes::parse(attributes)?,
        })
    }
}

/// Command, version, and two reserved bytes.
const GENERIC_HEADER_LEN: usize = 4;

const VERSION: u8 = 1;
