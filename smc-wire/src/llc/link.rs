//! Messages about one link: CONFIRM LINK, TEST LINK and DELETE LINK (RFC 7609 appendix A.3), and
//! ANNOUNCE CREDITS.

use core::fmt;

use zerocopy::IntoBytes;

use super::header::{ALL_LINKS, NO_EYECATCHER, ORDERLY, emit};
use super::{ByteOrder, Class, Dialect, Header, MessageType};
use crate::codes::{known_values, named_code};
use crate::layout::Show::Reserved;
use crate::layout::part;
use crate::types::{LinkAuthentication, LinkNumber, LinkUid, Mac, Qpn, RoceGid};
use crate::{DecodeError, EmitError};

part! {
    /// Contents of CONFIRM LINK, the first message on a link, in both directions: the sender's end
    /// of this link.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct ConfirmLink {
        /// Version and byte order.
        pub dialect: Dialect,
        /// Request (server) or response (client).
        pub class: Class,
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
        /// On the first link of a group with
        /// [`Features::AUTHENTICATION`](crate::types::Features::AUTHENTICATION), zero otherwise.
        pub authentication: LinkAuthentication,
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
            header.class(),
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
        let flags = self.class.flag() | (self.no_eyecatcher & Self::NO_EYECATCHER);
        let raw = self.raw();
        emit(KIND, self.dialect, flags, &[raw.as_bytes()], buffer)
    }
}

part! {
    /// Contents of TEST LINK, which checks whether the peer answers.
    ///
    /// A response is the request with another [`class`](Self::class), reserved bytes and byte order
    /// included, because the protocol asks for the whole message to be returned.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct TestLink {
        /// Version and byte order; those of the requester in a response.
        pub dialect: Dialect,
        /// Request or response.
        pub class: Class,
    }
    40 bytes {
        /// Chosen by the requester; Linux sends zeros and does not compare them.
        pub user_data: [u8; 16],
        /// Zero in a request; returned as received.
        pub reserved as "reserved_20": [u8; 24] => Reserved,
    }
}

impl TestLink {
    pub(super) fn parse(header: &Header, bytes: &[u8]) -> Result<Self, DecodeError> {
        let (raw, _) = header.body::<Self>(bytes)?;
        Ok(Self::from_raw(raw, header.dialect(), header.class()))
    }

    /// A request.
    #[must_use]
    pub const fn request(dialect: Dialect, user_data: [u8; 16]) -> Self {
        Self {
            dialect,
            class: Class::Request,
            user_data,
            reserved: [0; 24],
        }
    }

    /// The response to this request.
    #[must_use]
    pub const fn response(self) -> Self {
        Self {
            class: Class::Response,
            ..self
        }
    }

    /// Writes the message to the start of `buffer` and returns its length.
    ///
    /// # Errors
    ///
    /// [`EmitError::BufferTooSmall`] below 44 bytes.
    pub fn emit(&self, buffer: &mut [u8]) -> Result<usize, EmitError> {
        const KIND: MessageType = MessageType::TestLink;
        let raw = self.raw();
        emit(
            KIND,
            self.dialect,
            self.class.flag(),
            &[raw.as_bytes()],
            buffer,
        )
    }
}

part! {
    /// Contents of ANNOUNCE CREDITS, which grants receive credits of its link
    /// (docs/spec/extensions.md#receive-credits). There is no response.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct AnnounceCredits {
        /// Byte order of the length field.
        pub order: ByteOrder,
    }
    40 bytes {
        /// Messages that the peer may send besides those that it may send already.
        pub credits: u16,
        zero reserved_6: [u8; 38],
    }
}

impl AnnounceCredits {
    pub(super) fn parse(header: &Header, bytes: &[u8]) -> Result<Self, DecodeError> {
        let (raw, _) = header.body::<Self>(bytes)?;
        Ok(Self::from_raw(raw, header.dialect().order()))
    }

    /// Writes the message to the start of `buffer` and returns its length.
    ///
    /// # Errors
    ///
    /// [`EmitError::BufferTooSmall`] below 44 bytes.
    pub fn emit(&self, buffer: &mut [u8]) -> Result<usize, EmitError> {
        let (kind, dialect) = (MessageType::AnnounceCredits, Dialect::V2(self.order));
        emit(kind, dialect, 0, &[self.raw().as_bytes()], buffer)
    }
}

part! {
    /// Contents of DELETE LINK, which takes down one link or the whole link group.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct DeleteLink {
        /// Version and byte order.
        pub dialect: Dialect,
        /// Request or response.
        pub class: Class,
        /// The whole link group is terminated; there is no response to that.
        pub all: bool,
        /// Connections have been moved away or are gone, nothing is lost.
        pub orderly: bool,
    }
    40 bytes {
        /// The link to delete; [`LinkNumber::NONE`] together with [`all`](Self::all).
        pub link as "link_number": LinkNumber,
        /// Why (request), or how it went (response).
        pub reason: DeleteLinkReason,
        zero reserved_9: [u8; 35],
    }
}

impl DeleteLink {
    pub(super) fn parse(header: &Header, bytes: &[u8]) -> Result<Self, DecodeError> {
        let (raw, _) = header.body::<Self>(bytes)?;
        let (all, orderly) = (header.has(ALL_LINKS), header.has(ORDERLY));
        Ok(Self::from_raw(
            raw,
            header.dialect(),
            header.class(),
            all,
            orderly,
        ))
    }

    /// A request to terminate the link group.
    #[must_use]
    pub const fn all(dialect: Dialect, orderly: bool, reason: DeleteLinkReason) -> Self {
        Self {
            dialect,
            class: Class::Request,
            all: true,
            orderly,
            link: LinkNumber::NONE,
            reason,
        }
    }

    /// The response to this request: [`DeleteLinkReason::DONE`] or
    /// [`DeleteLinkReason::UNKNOWN_LINK`], everything else as it came.
    #[must_use]
    pub const fn response(self, result: DeleteLinkReason) -> Self {
        Self {
            class: Class::Response,
            reason: result,
            ..self
        }
    }

    /// Writes the message to the start of `buffer` and returns its length.
    ///
    /// # Errors
    ///
    /// [`EmitError::BufferTooSmall`] below 44 bytes.
    pub fn emit(&self, buffer: &mut [u8]) -> Result<usize, EmitError> {
        const KIND: MessageType = MessageType::DeleteLink;
        let flags = self.class.flag() | ALL_LINKS.when(self.all) | ORDERLY.when(self.orderly);
        let raw = self.raw();
        emit(KIND, self.dialect, flags, &[raw.as_bytes()], buffer)
    }
}

/// Reason of a DELETE LINK request, result of a response; unknown values are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeleteLinkReason(pub u32);

known_values!(DeleteLinkReason {
    /// Response: done.
    DONE = 0 "done",
    /// Request: the path is lost.
    PATH_LOST = 0x0001_0000 "path lost",
    /// Request: the operator ends it.
    OPERATOR = 0x0002_0000 "operator initiated termination",
    /// Request: the program ends it, for example an idle link group.
    PROGRAM = 0x0003_0000 "program initiated termination",
    /// Request: the peer violated the LLC protocol.
    PROTOCOL_VIOLATION = 0x0004_0000 "LLC protocol violation",
    /// Request: an asymmetric link is no longer needed.
    ASYMMETRIC_UNNEEDED = 0x0005_0000 "asymmetric link no longer needed",
    /// Response: there is no link of that number.
    UNKNOWN_LINK = 0x0010_0000 "unknown link number",
    /// Response: there is no such link group.
    UNKNOWN_GROUP = 0x0020_0000 "unknown link group",
});

impl fmt::Display for DeleteLinkReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        named_code(f, self.0, self.name())
    }
}
