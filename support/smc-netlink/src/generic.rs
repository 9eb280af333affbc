//! Messages of generic netlink families.

use std::fmt::Debug;

use netlink_packet_core::{
    DecodeError, NetlinkDeserializable, NetlinkHeader, NetlinkSerializable, NlasIterator,
};

/// A message of any family: a command, and attributes by their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) family: u16,
    pub(crate) command: u8,
    pub(crate) attributes: Vec<(u16, Vec<u8>)>,
}

impl Message {
    /// A request without attributes.
    pub(crate) fn request(family: u16, command: u8) -> Self {
        Self {
            family,
            command,
            attributes: Vec::new(),
        }
    }

    pub(crate) fn bytes(&self, kind: u16) -> Option<&[u8]> {
        let found = self.attributes.iter().find(|(number, _)| *number == kind);
        found.map(|(_, value)| value.as_slice())
    }

    /// A text, up to its zero.
    pub(crate) fn text(&self, kind: u16) -> Option<String> {
        let text = self.bytes(kind)?.split(|byte| *byte == 0).next()?;
        Some(String::from_utf8_lossy(text).into_owned())
    }
}

impl NetlinkSerializable for Message {
    fn message_type(&self) -> u16 {
        self.family
    }

    fn buffer_len(&self) -> usize {
        HEADER_LEN
    }

    fn serialize(&self, buffer: &mut [u8]) {
        buffer.copy_from_slice(&[self.command, VERSION, 0, 0]);
    }
}

impl NetlinkDeserializable for Message {
    type Error = DecodeError;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, DecodeError> {
        let short = || DecodeError::from("a message of a generic family without header");
        let (header_bytes, attributes) = payload.split_at_checked(HEADER_LEN).ok_or_else(short)?;
        let attributes = NlasIterator::new(attributes).map(|attribute| {
            let attribute = attribute?;
            Ok((attribute.kind(), attribute.value().to_vec()))
        });
        Ok(Self {
            family: header.message_type,
            command: header_bytes.first().copied().unwrap_or(0),
            attributes: attributes.collect::<Result<_, DecodeError>>()?,
        })
    }
}

/// Command, version, and two reserved bytes.
const HEADER_LEN: usize = 4;

const VERSION: u8 = 1;
