//! DECLINE: no SMC on this connection.

use core::fmt;

use zerocopy::FromBytes;
use zerocopy::network_endian::U32;

use super::header::{ClcType, Eyecatcher, Header, raw_header};
use super::writer::{Writer, wire_length};
use super::{frame, raw};
use crate::error::{DecodeError, DecodeErrorKind, EmitError, MessageKind};
use crate::types::{DeclineCode, OsType, PeerId, Version};

/// DECLINE: the sender continues with plain TCP (docs/spec/clc.md#decline; RFC 7609 appendix A.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decline {
    /// Version of the message.
    pub version: Version,
    /// The receiver reused a link group that the sender does not have; it has to be terminated.
    pub out_of_sync: bool,
    /// The sender's peer ID; zero for SMC-D.
    pub peer_id: PeerId,
    /// Why.
    pub diagnosis: DeclineCode,
    /// Operating system of the sender; [`OsType::NONE`] in version 1.
    pub os: OsType,
    /// Further diagnoses of the 44-byte form (version 2, Linux sends zeros); `None` in the 28-byte
    /// form (version 1, and an early form of version 2).
    pub extra: Option<[u32; 4]>,
}

impl Decline {
    /// Length of the version-1 form in bytes.
    pub const LEN_V1: usize = 28;
    /// Length of the version-2 form in bytes.
    pub const LEN_V2: usize = 44;

    /// A DECLINE in the form that Linux requires for this version, without peer ID.
    ///
    /// The operating system travels in version 2 only. The out-of-sync flag is set for
    /// [`DeclineCode::SYNCERR`].
    #[must_use]
    pub fn new(version: Version, diagnosis: DeclineCode, os: OsType) -> Self {
        Self {
            version,
            out_of_sync: diagnosis == DeclineCode::SYNCERR,
            peer_id: PeerId::ZERO,
            diagnosis,
            os: if version.is_v2() { os } else { OsType::NONE },
            extra: version.is_v2().then_some([0; 4]),
        }
    }

    /// Reads a received DECLINE. Shorthand for [`DeclineView::parse`] and
    /// [`DeclineView::to_repr`].
    ///
    /// # Errors
    ///
    /// As [`DeclineView::parse`].
    pub fn parse(bytes: &[u8]) -> Result<Self, DecodeError> {
        DeclineView::parse(bytes).map(|view| view.to_repr())
    }

    /// Length of the message in bytes: 28 or 44.
    #[must_use]
    pub const fn encoded_len(&self) -> usize {
        match self.extra {
            None => Self::LEN_V1,
            Some(_) => Self::LEN_V2,
        }
    }

    /// Writes the message to the start of `buffer` and returns its length.
    ///
    /// The two low type bits are zero, because older Linux kernels reject other values.
    ///
    /// # Errors
    ///
    /// [`EmitError::BufferTooSmall`].
    pub fn emit(&self, buffer: &mut [u8]) -> Result<usize, EmitError> {
        let length = self.encoded_len();
        let mut out = Writer::new(MessageKind::Decline, length, buffer)?;
        let flags = if self.out_of_sync {
            Header::OUT_OF_SYNC
        } else {
            0
        };
        out.put(&raw::Decline {
            header: raw_header(
                Eyecatcher::Smcr,
                ClcType::Decline,
                wire_length(length),
                self.version,
                flags,
            ),
            peer_id: self.peer_id,
            diagnosis: self.diagnosis.0.into(),
            os: self.os.code() << 4,
            reserved: [0; 3],
        })?;
        if let Some(extra) = self.extra {
            out.put(&extra.map(U32::new))?;
        }
        out.put(&Eyecatcher::Smcr.to_bytes())?;
        Ok(length)
    }
}

impl fmt::Display for Decline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DECLINE {} {}", self.version, self.diagnosis)?;
        if self.out_of_sync {
            f.write_str(" out of sync")?;
        }
        Ok(())
    }
}

/// A received DECLINE, checked.
#[derive(Debug, Clone, Copy)]
pub struct DeclineView<'a> {
    header: Header,
    bytes: &'a [u8],
    raw: &'a raw::Decline,
    extra: Option<&'a [U32; 4]>,
}

impl<'a> DeclineView<'a> {
    /// Reads a DECLINE that takes up all of `bytes`.
    ///
    /// Lenient where senders differ: 28 and 44 bytes are taken in either version, and neither the
    /// trailer nor the type bits of the header are looked at.
    ///
    /// # Errors
    ///
    /// A malformed header, another message, or another length.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        Self::new(frame::exact_of(bytes, &[ClcType::Decline])?, bytes)
    }

    pub(super) fn new(header: Header, bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let fail =
            |field, offset, kind| DecodeError::new(MessageKind::Decline, field, offset, kind);
        let with_extra = match usize::from(header.length) {
            Decline::LEN_V1 => false,
            Decline::LEN_V2 => true,
            _ => {
                let got = header.length.into();
                let kind = DecodeErrorKind::Value {
                    expected: "28 or 44",
                    got,
                };
                return Err(fail("length", 5, kind));
            }
        };
        let truncated = DecodeErrorKind::Truncated {
            needed: header.length.into(),
            got: bytes.len(),
        };
        let truncated = fail("message", 0, truncated);
        let (raw, rest) = raw::Decline::ref_from_prefix(bytes).map_err(|_| truncated)?;
        let extra = if with_extra {
            let (extra, _) = <[U32; 4]>::ref_from_prefix(rest).map_err(|_| truncated)?;
            Some(extra)
        } else {
            None
        };
        Ok(Self {
            header,
            bytes,
            raw,
            extra,
        })
    }

    /// The common header.
    #[must_use]
    pub const fn header(&self) -> &Header {
        &self.header
    }

    /// The bytes of the message.
    #[must_use]
    pub const fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The contents without reserved fields.
    #[must_use]
    pub fn to_repr(&self) -> Decline {
        Decline {
            version: self.header.version,
            out_of_sync: self.header.out_of_sync(),
            peer_id: self.raw.peer_id,
            diagnosis: DeclineCode(self.raw.diagnosis.get()),
            os: OsType::from_high_nibble(self.raw.os),
            extra: self.extra.map(|extra| extra.map(U32::get)),
        }
    }
}
