//! Finding the end of a message in a stream.

use super::header::{ClcType, Header, LENGTH_AT, TYPE_AT};
use super::{AcceptConfirm, Decline, Proposal};
use crate::error::{DecodeError, DecodeErrorKind};

/// How much of a TCP stream the next CLC message takes.
///
/// What follows a message may already be application data (after a DECLINE), so a reader peeks at
/// the header, learns the length here, and consumes exactly that many bytes.
///
/// ```
/// use smc_wire::clc::{Decline, Frame};
/// use smc_wire::types::{DeclineCode, OsType, Version};
///
/// let decline = Decline::new(Version::V2, DeclineCode::NOSMCDEV, OsType::LINUX);
/// let mut stream = [0; 64];
/// let len = decline.emit(&mut stream)?;
/// assert_eq!(Frame::peek(&stream[..5]), Ok(None));
/// let frame = Frame::peek(&stream)?.unwrap();
/// assert_eq!((frame.length(), frame.keep()), (len, len));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    header: Header,
    keep: usize,
}

impl Frame {
    /// The most bytes of a message that are worth keeping; a read buffer of this size suffices
    /// without extensions.
    pub const MAX_KEEP: usize = Proposal::MAX_LEN;

    /// Reads the header at the start of a stream without consuming it.
    ///
    /// `Ok(None)` means that fewer than eight bytes are there and those can begin a message.
    ///
    /// The length is held to a ceiling per type. A PROPOSAL has at most 652 bytes and a DECLINE 28
    /// or 44. ACCEPT and CONFIRM may be longer than anything known today: as Linux does with its
    /// own, smaller ceiling, read the whole [`length`](Self::length) and keep only the first
    /// [`keep`](Self::keep) bytes. The trailer of such a message goes unchecked.
    ///
    /// # Errors
    ///
    /// The stream does not begin with a CLC message ([`Header::parse`]), or its length is beyond
    /// what the type allows. An error for the eyecatcher comes with the first wrong byte: a server
    /// that only peeked may then treat the connection as plain TCP.
    pub fn peek(bytes: &[u8]) -> Result<Option<Self>, DecodeError> {
        Self::peek_within(bytes, Proposal::MAX_LEN)
    }

    /// As [`peek`](Self::peek), for a reader that understands [`Extensions`](super::Extensions): a
    /// PROPOSAL may have up to [`Proposal::MAX_EXTENDED_LEN`] bytes, and all of them are kept.
    ///
    /// # Errors
    ///
    /// As for `peek`.
    pub fn peek_extended(bytes: &[u8]) -> Result<Option<Self>, DecodeError> {
        Self::peek_within(bytes, Proposal::MAX_EXTENDED_LEN)
    }

    fn peek_within(bytes: &[u8], max_proposal: usize) -> Result<Option<Self>, DecodeError> {
        let header = match Header::parse(bytes) {
            Ok(header) => header,
            Err(DecodeError {
                kind: DecodeErrorKind::Truncated { .. },
                ..
            }) => return Ok(None),
            Err(error) => return Err(error),
        };
        Self::within(header, max_proposal).map(Some)
    }

    /// The limits of a message with this header.
    ///
    /// # Errors
    ///
    /// The length is beyond what the type allows.
    pub fn new(header: Header) -> Result<Self, DecodeError> {
        Self::within(header, Proposal::MAX_LEN)
    }

    fn within(header: Header, max_proposal: usize) -> Result<Self, DecodeError> {
        let got = usize::from(header.length);
        let fail = |kind| {
            Err(DecodeError::new(
                header.kind.kind(),
                "length",
                LENGTH_AT,
                kind,
            ))
        };
        let (minimum, maximum, ceiling) = match header.kind {
            ClcType::Proposal => (Proposal::MIN_LEN, Some(max_proposal), max_proposal),
            ClcType::Accept | ClcType::Confirm => {
                (AcceptConfirm::MIN_LEN, None, AcceptConfirm::MAX_KEEP)
            }
            ClcType::Decline => (Decline::LEN_V1, Some(Decline::LEN_V2), Decline::LEN_V2),
        };
        if got < minimum {
            return fail(DecodeErrorKind::LengthBelow { minimum, got });
        }
        match maximum {
            Some(maximum) if got > maximum => fail(DecodeErrorKind::LengthAbove { maximum, got }),
            _ => Ok(Self {
                header,
                keep: got.min(ceiling),
            }),
        }
    }

    /// The header of the message.
    #[must_use]
    pub const fn header(&self) -> &Header {
        &self.header
    }

    /// Bytes to consume from the stream, header and trailer included.
    #[must_use]
    pub fn length(&self) -> usize {
        usize::from(self.header.length)
    }

    /// Bytes to keep and parse; the rest of [`length`](Self::length) is to be thrown away.
    #[must_use]
    pub const fn keep(&self) -> usize {
        self.keep
    }
}

/// Splits off one whole message from the start of `bytes`.
pub(super) fn split(
    bytes: &[u8],
    max_proposal: usize,
) -> Result<(Header, &[u8], &[u8]), DecodeError> {
    let frame = Frame::within(Header::parse(bytes)?, max_proposal)?;
    let header = frame.header;
    let Some((message, rest)) = bytes.split_at_checked(frame.length()) else {
        let kind = header.kind.kind();
        return Err(kind.truncated("message", frame.length(), bytes.len()));
    };
    Ok((header, message, rest))
}

/// The header of the one message in `bytes`: all of it, or the first bytes that a reader kept.
pub(super) fn exact(bytes: &[u8], max_proposal: usize) -> Result<Header, DecodeError> {
    let frame = Frame::within(Header::parse(bytes)?, max_proposal)?;
    let header = frame.header;
    if bytes.len() == frame.length() || bytes.len() == frame.keep() {
        return Ok(header);
    }
    let (kind, length, got) = (header.kind.kind(), frame.length(), bytes.len());
    Err(if got < frame.keep() {
        kind.truncated("message", length, got)
    } else {
        kind.bad_length("message", 0, length, got)
    })
}

/// Like [`exact`], for a message that has to be of one of the given types.
pub(super) fn exact_of(bytes: &[u8], kinds: &[ClcType]) -> Result<Header, DecodeError> {
    let header = exact(bytes, Proposal::MAX_LEN)?;
    if kinds.contains(&header.kind) {
        return Ok(header);
    }
    let wanted = kinds.first().copied().unwrap_or(header.kind);
    let expected = match wanted {
        ClcType::Proposal => "1",
        ClcType::Accept | ClcType::Confirm => "2 or 3",
        ClcType::Decline => "4",
    };
    let got = header.kind.code();
    Err(wanted.kind().bad_value("type", TYPE_AT, expected, got))
}
