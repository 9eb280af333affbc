//! CONFIRM LINK: the first message on a link, in both directions
//! (RFC 7609 appendix A.3).

use zerocopy::IntoBytes;

use super::header::{NO_EYECATCHER, emit};
use super::{Dialect, Header, MessageType, RejectReason, Step, raw};
use crate::types::{LinkNumber, LinkUid, Mac, Qpn, RoceGid};
use crate::{DecodeError, EmitError};

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

    pub(super) fn parse(header: &Header, bytes: &[u8]) -> Result<Self, DecodeError> {
        let (raw, _) = header.body::<raw::ConfirmLink>(bytes)?;
        Ok(Self {
            dialect: header.dialect(),
            step: header.step(),
            no_eyecatcher: header.flags(NO_EYECATCHER),
            mac: raw.mac,
            gid: raw.gid,
            qpn: Qpn::from_be_bytes(raw.qp_number),
            link: LinkNumber(raw.link_number),
            user_id: LinkUid(raw.link_user_id.get()),
            max_links: raw.max_links,
            max_connections: raw.max_connections,
        })
    }

    /// Writes the message to the start of `buffer` and returns its length.
    ///
    /// # Errors
    ///
    /// [`EmitError::BufferTooSmall`] below 44 bytes.
    pub fn emit(&self, buffer: &mut [u8]) -> Result<usize, EmitError> {
        let flags = self.step.flag() | (self.no_eyecatcher & NO_EYECATCHER);
        let raw = raw::ConfirmLink {
            mac: self.mac,
            gid: self.gid,
            qp_number: self.qpn.to_be_bytes(),
            link_number: self.link.0,
            link_user_id: self.user_id.0.into(),
            max_links: self.max_links,
            max_connections: self.max_connections,
            reserved_36: [0; 8],
        };
        let (reason, body) = (RejectReason::NONE, [raw.as_bytes()]);
        emit(
            MessageType::ConfirmLink,
            self.dialect,
            flags,
            reason,
            &body,
            buffer,
        )
    }
}
