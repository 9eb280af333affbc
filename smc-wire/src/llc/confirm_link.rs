//! CONFIRM LINK: the first message on a link, in both directions
//! (RFC 7609 appendix A.3).

use zerocopy::IntoBytes;

use super::header::{NO_EYECATCHER, emit};
use super::{Dialect, Header, MessageType, Step};
use crate::layout::part;
use crate::types::{LinkNumber, LinkUid, Mac, Qpn, RoceGid};
use crate::{DecodeError, EmitError};

part! {
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
    }
    40 bytes {
        /// MAC of the sender's port.
        pub mac: Mac,
        /// GID of the sender on this link.
        pub gid: RoceGid,
        /// Queue pair of the sender.
        pub qpn as "qp_number": Qpn,
        /// Number of the link, assigned by the server.
        pub link as "link_number": LinkNumber,
        /// The sender's own name for the link, informational.
        pub user_id as "link_user_id": LinkUid,
        /// Links the sender supports in a link group.
        pub max_links: u8,
        /// Connections per link group; v2.1 only, zero otherwise.
        pub max_connections: u8,
        zero reserved_36: [u8; 8],
    }
}

impl ConfirmLink {
    /// Both "no RMBE eyecatcher" bits.
    pub const NO_EYECATCHER: u8 = NO_EYECATCHER.mask;

    pub(super) fn parse(header: &Header, bytes: &[u8]) -> Result<Self, DecodeError> {
        let (raw, _) = header.body::<Self>(bytes)?;
        let no_eyecatcher = header.flags(NO_EYECATCHER);
        Ok(Self::from_raw(
            raw,
            header.dialect(),
            header.step(),
            no_eyecatcher,
        ))
    }

    /// Writes the message to the start of `buffer` and returns its length.
    ///
    /// # Errors
    ///
    /// [`EmitError::BufferTooSmall`] below 44 bytes.
    pub fn emit(&self, buffer: &mut [u8]) -> Result<usize, EmitError> {
        const KIND: MessageType = MessageType::ConfirmLink;
        let flags = self.step.flag() | (self.no_eyecatcher & Self::NO_EYECATCHER);
        let raw = self.raw();
        emit(KIND, self.dialect, flags, &[raw.as_bytes()], buffer)
    }
}
