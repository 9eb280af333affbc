//! What can go wrong when bytes become messages and messages become bytes.
//!
//! [`DecodeError`] is a small `Copy` value: the message, the field, its byte offset and the cause.
//! It carries no allocated text, so it can be counted, compared in tests and logged without cost.

use core::fmt;

use thiserror::Error;

/// Declares the messages and their names in the protocol documents.
macro_rules! message_kinds {
    ($($(#[$doc:meta])* $variant:ident $name:literal,)+) => {
        /// The message a [`DecodeError`] or an [`EmitError`] is about.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum MessageKind { $($(#[$doc])* $variant,)+ }

        impl MessageKind {
            /// The name used by the protocol documents, for example `ADD LINK`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }
    };
}

message_kinds! {
    /// The experimental TCP option of SYN and SYN/ACK.
    TcpOption "TCP option",
    /// The eight bytes every CLC message begins with.
    ClcHeader "CLC header",
    /// CLC PROPOSAL.
    Proposal "PROPOSAL",
    /// CLC ACCEPT.
    Accept "ACCEPT",
    /// CLC CONFIRM.
    Confirm "CONFIRM",
    /// CLC DECLINE.
    Decline "DECLINE",
    /// The first four bytes of every LLC message.
    LlcHeader "LLC header",
    /// LLC CONFIRM LINK.
    ConfirmLink "CONFIRM LINK",
    /// LLC ADD LINK.
    AddLink "ADD LINK",
    /// LLC ADD LINK CONTINUATION (v1).
    AddLinkCont "ADD LINK CONT",
    /// LLC DELETE LINK.
    DeleteLink "DELETE LINK",
    /// LLC REQUEST ADD LINK (v2).
    RequestAddLink "REQUEST ADD LINK",
    /// LLC CONFIRM RKEY.
    ConfirmRkey "CONFIRM RKEY",
    /// LLC CONFIRM RKEY CONTINUATION (v1).
    ConfirmRkeyCont "CONFIRM RKEY CONT",
    /// LLC TEST LINK.
    TestLink "TEST LINK",
    /// LLC DELETE RKEY.
    DeleteRkey "DELETE RKEY",
    /// LLC ANNOUNCE CREDITS (an extension of v2).
    AnnounceCredits "ANNOUNCE CREDITS",
    /// CDC message of SMC-R (44 bytes on a queue pair).
    CdcR "CDC (SMC-R)",
    /// CDC block of SMC-D (32 bytes at the start of a DMB element).
    CdcD "CDC (SMC-D)",
}

/// The errors that most parsers have.
impl MessageKind {
    /// The bytes end before the message does.
    pub(crate) const fn truncated(
        self,
        field: &'static str,
        needed: usize,
        got: usize,
    ) -> DecodeError {
        DecodeError::new(self, field, 0, DecodeErrorKind::Truncated { needed, got })
    }

    /// A field has a value that is not legal there.
    pub(crate) fn bad_value(
        self,
        field: &'static str,
        offset: usize,
        expected: &'static str,
        got: impl Into<u64>,
    ) -> DecodeError {
        let got = got.into();
        let kind = DecodeErrorKind::Value { expected, got };
        DecodeError::new(self, field, offset, kind)
    }

    /// A length is not the only one that agrees with the contents.
    pub(crate) fn bad_length(
        self,
        field: &'static str,
        offset: usize,
        expected: usize,
        got: impl Into<usize>,
    ) -> DecodeError {
        let got = got.into();
        let kind = DecodeErrorKind::Length { expected, got };
        DecodeError::new(self, field, offset, kind)
    }
}

impl fmt::Display for MessageKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Bytes that are not the message they claim to be: which message, which field, where, and why.
///
/// ```
/// use smc_wire::clc::Message;
///
/// let error = Message::parse(b"GET / HTTP/1.1\r\n").unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "CLC header: eyecatcher at offset 0: expected SMCR or SMCD in EBCDIC, got 47455420",
/// );
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Error)]
#[error("{message}: {field} at offset {offset}: {kind}")]
pub struct DecodeError {
    /// The message being decoded.
    pub message: MessageKind,
    /// The field at fault, in the words of the protocol documents.
    pub field: &'static str,
    /// Offset of that field in bytes from the start of the message.
    pub offset: usize,
    /// What is wrong with it.
    pub kind: DecodeErrorKind,
}

impl DecodeError {
    /// Puts an error together from its parts.
    #[must_use]
    pub const fn new(
        message: MessageKind,
        field: &'static str,
        offset: usize,
        kind: DecodeErrorKind,
    ) -> Self {
        Self {
            message,
            field,
            offset,
            kind,
        }
    }
}

/// The cause inside a [`DecodeError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Error)]
#[non_exhaustive]
pub enum DecodeErrorKind {
    /// The bytes end before the message does.
    #[error("expected at least {needed} bytes, got {got}")]
    Truncated {
        /// Bytes needed from the start of the message.
        needed: usize,
        /// Bytes there are.
        got: usize,
    },
    /// The length does not equal the one that the contents ask for.
    #[error("expected {expected}, got {got}")]
    Length {
        /// The only length that agrees with the contents.
        expected: usize,
        /// The length found.
        got: usize,
    },
    /// The length is below the shortest legal one.
    #[error("expected at least {minimum}, got {got}")]
    LengthBelow {
        /// The shortest legal length.
        minimum: usize,
        /// The length found.
        got: usize,
    },
    /// The length is above the longest legal one.
    #[error("expected at most {maximum}, got {got}")]
    LengthAbove {
        /// The longest legal length.
        maximum: usize,
        /// The length found.
        got: usize,
    },
    /// A field holds a value that the protocol does not allow there.
    #[error("expected {expected}, got {got:#x}")]
    Value {
        /// What would be legal, as a short phrase.
        expected: &'static str,
        /// The value found.
        got: u64,
    },
    /// A count is above its maximum.
    #[error("expected at most {max}, got {got}")]
    TooMany {
        /// The largest legal count.
        max: usize,
        /// The count found.
        got: usize,
    },
    /// An offset or a count puts a region outside of the message.
    #[error("expected to end by offset {limit}, got {end}")]
    OutOfBounds {
        /// Where the region would end, in bytes from the start of the message.
        end: usize,
        /// Where it has to end at the latest.
        limit: usize,
    },
    /// The message does not begin with one of the two eyecatchers (`E2D4C3D9`, `E2D4C3C4`).
    #[error("expected SMCR or SMCD in EBCDIC, got {:08x}", u32::from_be_bytes(*got))]
    Eyecatcher {
        /// The bytes found; zero for bytes that have not arrived yet.
        got: [u8; 4],
    },
    /// The last four bytes are neither of the two eyecatchers.
    #[error("expected SMCR or SMCD in EBCDIC, got {:08x}", u32::from_be_bytes(*got))]
    Trailer {
        /// The bytes found.
        got: [u8; 4],
    },
}

/// A message that cannot be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Error)]
#[non_exhaustive]
pub enum EmitError {
    /// The caller's buffer is shorter than the message.
    #[error("{message}: needs {needed} bytes, buffer has {got}")]
    BufferTooSmall {
        /// The message being written.
        message: MessageKind,
        /// Bytes the message takes.
        needed: usize,
        /// Bytes the buffer has.
        got: usize,
    },
    /// The fields contradict each other, so that no peer could read them back.
    #[error("{message}: {field}: {reason}")]
    Invalid {
        /// The message being written.
        message: MessageKind,
        /// The field at fault.
        field: &'static str,
        /// What is wrong, as a short clause.
        reason: &'static str,
    },
}
