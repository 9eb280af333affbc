//! Attributes of messages, by their numbers.

use netlink_packet_core::{DecodeError, NlasIterator};

/// The attributes behind a header.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Attributes(pub(crate) Vec<(u16, Vec<u8>)>);

impl Attributes {
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, DecodeError> {
        let attributes = NlasIterator::new(bytes).map(|attribute| {
            let attribute = attribute?;
            Ok((attribute.kind(), attribute.value().to_vec()))
        });
        attributes.collect::<Result<_, DecodeError>>().map(Self)
    }

    pub(crate) fn bytes(&self, kind: u16) -> Option<&[u8]> {
        let found = self.0.iter().find(|(number, _)| *number == kind);
        found.map(|(_, value)| value.as_slice())
    }

    /// A text, up to its zero.
    pub(crate) fn text(&self, kind: u16) -> Option<String> {
        self.bytes(kind).map(text)
    }
}

/// A text, up to its zero.
pub(crate) fn text(bytes: &[u8]) -> String {
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}
