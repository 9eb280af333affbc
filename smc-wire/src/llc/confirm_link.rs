//! CONFIRM LINK: the first message on a link, in both directions
//! (RFC 7609 appendix A.3).

use zerocopy::IntoBytes;

use super::header::{NO_EYECATCHER, emit_header};
use super::message::{emit_parts, layout};
use super::{Dialect, Header, MESSAGE_LEN, MessageType, Step, raw};
use crate::types::{LinkNumber, LinkUid, Mac, Qpn, RoceGid};
use crate::{DecodeError, EmitError};

/// A received CONFIRM LINK.
#[derive(Debug, Clone, Copy)]
pub struct ConfirmLinkView<'a> {
    header: Header,
    raw: &'a raw::ConfirmLink,
}

impl<'a> ConfirmLinkView<'a> {
    pub(super) fn parse(header: Header, bytes: &'a [u8]) -> Result<Self, DecodeError> {
        Ok(Self {
            header,
            raw: layout(MessageType::ConfirmLink, bytes)?,
        })
    }

    /// The header.
    #[must_use]
    pub const fn header(&self) -> &Header {
        &self.header
    }

    /// The contents without reserved fields.
    #[must_use]
    pub const fn to_repr(&self) -> ConfirmLink {
        ConfirmLink {
            dialect: self.header.dialect(),
            step: self.header.step(),
            no_eyecatcher: self.header.flags() & NO_EYECATCHER,
            mac: self.raw.mac,
            gid: self.raw.gid,
            qpn: Qpn::from_be_bytes(self.raw.qpn),
            link: LinkNumber(self.raw.link),
            user_id: LinkUid(self.raw.user_id.get()),
            max_links: self.raw.max_links,
            max_connections: self.raw.max_connections,
        }
    }
}

/// Contents of CONFIRM LINK: who the sender is on this link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConfirmLink {
    /// Version and byte order.
    pub dialect: Dialect,
    /// Request (server) or response (client).
    pub step: Step,
    /// The two "no RMBE eyecatcher" bits. A sender sets both ([`Self::NO_EYECATCHER`]); Linux
    /// demands at least one of them on the first link.
    pub no_eyecatcher: u8,
    /// MAC of the sender's port.
    pub mac: Mac,
    /// GID of the sender on this link.
    pub gid: RoceGid,
    /// Queue pair of the sender.
    pub qpn: Qpn,
    /// Number of the link, assigned by the server.
    pub link: LinkNumber,
    /// The sender's own name for the link, informational.
    pub user_id: LinkUid,
    /// Links the sender supports in a link group.
    pub max_links: u8,
    /// Connections per link group; v2.1 only, zero otherwise.
    pub max_connections: u8,
}

impl ConfirmLink {
    /// Both "no RMBE eyecatcher" bits.
    pub const NO_EYECATCHER: u8 = NO_EYECATCHER;

    /// Bytes the message takes: 44.
    #[must_use]
    pub const fn encoded_len(&self) -> usize {
        MESSAGE_LEN
    }

    /// Writes the message to the start of `buffer` and returns its length.
    ///
    /// # Errors
    ///
    /// [`EmitError::BufferTooSmall`] below 44 bytes.
    pub fn emit(&self, buffer: &mut [u8]) -> Result<usize, EmitError> {
        const KIND: MessageType = MessageType::ConfirmLink;
        let flags = self.step.flag() | (self.no_eyecatcher & NO_EYECATCHER);
        let raw = raw::ConfirmLink {
            header: emit_header(KIND, self.dialect, flags, 0, MESSAGE_LEN)?,
            mac: self.mac,
            gid: self.gid,
            qpn: self.qpn.to_be_bytes(),
            link: self.link.0,
            user_id: self.user_id.0.into(),
            max_links: self.max_links,
            max_connections: self.max_connections,
            reserved: [0; 8],
        };
        emit_parts(KIND.kind(), buffer, &[raw.as_bytes()])
    }
}
