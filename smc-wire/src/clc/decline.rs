//! DECLINE: no SMC on this connection.

use zerocopy::FromBytes;
use zerocopy::network_endian::U32;

use super::frame;
use super::header::{
    ClcType, Eyecatcher, HEADER_LEN, Header, LENGTH_AT, OUT_OF_SYNC, TRAILER_LEN, start,
};
use crate::error::{DecodeError, EmitError, MessageKind};
use crate::layout::{Bits, Layout, OS_BITS, Raw, Show, part};
use crate::types::{DeclineCode, OsType, PeerId, Version};

part! {
    /// DECLINE: the sender continues with plain TCP (docs/spec/clc.md#decline; RFC 7609 appendix
    /// A.2).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Decline {
        /// Version of the message.
        pub version: Version,
        /// The receiver reused a link group that the sender does not have; it has to be terminated.
        pub out_of_sync: bool,
        /// Operating system of the sender; [`OsType::NONE`] in version 1.
        pub os: OsType,
    }
    16 bytes {
        /// The sender's peer ID; zero for SMC-D.
        pub peer_id: PeerId,
        /// Why.
        pub diagnosis: DeclineCode,
        given os_type: u8 => OS_TYPE,
        zero reserved_21: [u8; 3],
    }
    then {
        /// Further diagnoses of the 44-byte form (version 2, Linux sends zeros); `None` in the
        /// 28-byte form (version 1, and an early form of version 2).
        pub extra: Option<[u32; 4]>,
    }
}

const OS_TYPE: Show = Show::Bits(&[OS_BITS, Bits::reserved("reserved_20", 0x0f)]);

impl Decline {
    /// Length of the version-1 form in bytes.
    pub const LEN_V1: usize = HEADER_LEN + <Self as Layout>::LEN + TRAILER_LEN;
    /// Length of the version-2 form in bytes.
    pub const LEN_V2: usize = Self::LEN_V1 + size_of::<[U32; 4]>();

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

    /// Reads a DECLINE that takes up all of `bytes`.
    ///
    /// Lenient where senders differ: 28 and 44 bytes are taken in either version, and neither the
    /// trailer nor the type bits of the header are checked.
    ///
    /// # Errors
    ///
    /// A malformed header, another message, or another length.
    pub fn parse(bytes: &[u8]) -> Result<Self, DecodeError> {
        Self::read(&frame::exact_of(bytes, &[ClcType::Decline])?, bytes)
    }

    pub(super) fn read(header: &Header, bytes: &[u8]) -> Result<Self, DecodeError> {
        const MESSAGE: MessageKind = MessageKind::Decline;
        let with_extra = match usize::from(header.length) {
            Self::LEN_V1 => false,
            Self::LEN_V2 => true,
            _ => return Err(MESSAGE.bad_value("length", LENGTH_AT, "28 or 44", header.length)),
        };
        let truncated = MESSAGE.truncated("message", header.length.into(), bytes.len());
        let body = bytes.get(HEADER_LEN..).unwrap_or_default();
        let (raw, rest) = Raw::<Self>::ref_from_prefix(body).map_err(|_| truncated)?;
        let extra = if with_extra {
            let (extra, _) = <[U32; 4]>::ref_from_prefix(rest).map_err(|_| truncated)?;
            Some(extra.map(U32::get))
        } else {
            None
        };
        let (version, os) = (header.version, OsType::from_high_nibble(raw.os_type));
        Ok(Self::from_raw(
            raw,
            version,
            OUT_OF_SYNC.is_set(header.flags),
            os,
            extra,
        ))
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
        let flags = OUT_OF_SYNC.when(self.out_of_sync);
        let kind = (Eyecatcher::Smcr, ClcType::Decline);
        let mut out = start(kind, (self.version, flags), length, buffer)?;
        out.put(&self.raw(self.os.code() << 4))?;
        if let Some(extra) = self.extra {
            out.put(&extra.map(U32::new))?;
        }
        out.put(&Eyecatcher::Smcr.to_bytes())?;
        Ok(length)
    }
}
