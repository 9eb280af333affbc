//! The TCP option that announces SMC in SYN and SYN/ACK.
//!
//! An experimental option in the shared format of RFC 6994: kind 254, length 6, experiment
//! identifier "SMCR" in EBCDIC (docs/spec/tcp-option.md; RFC 7609 appendix A.1). It contains
//! "SMCR" for SMC-D as well. SMC is attempted only if both segments carried it; without it no byte
//! of CLC may ever be sent.
//!
//! ```
//! use smc_wire::option;
//!
//! let mss_then_smc = [2, 4, 0x05, 0xb4, 1, 1, 254, 6, 0xe2, 0xd4, 0xc3, 0xd9];
//! let found = option::find(&mss_then_smc).unwrap();
//! assert_eq!(found.offset, 6);
//! assert!(option::find(&[2, 4, 0x05, 0xb4]).is_none());
//! ```

use crate::error::{DecodeError, DecodeErrorKind, MessageKind};

/// Kind of experimental options (RFC 6994).
pub const KIND: u8 = 0xfe;

/// The experiment identifier, "SMCR" in EBCDIC code page 1047.
pub const EXID: [u8; 4] = [0xe2, 0xd4, 0xc3, 0xd9];

/// The option, six bytes.
pub const BYTES: [u8; 6] = [KIND, 6, 0xe2, 0xd4, 0xc3, 0xd9];

/// The option behind two NOPs, eight aligned bytes as Linux sends them.
pub const ALIGNED: [u8; 8] = [NOP, NOP, KIND, 6, 0xe2, 0xd4, 0xc3, 0xd9];

/// End of the option list.
pub(crate) const END: u8 = 0;
/// One byte of padding.
pub(crate) const NOP: u8 = 1;

/// The SMC option found in a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SmcOption<'a> {
    /// Offset of the option in the option area, in bytes.
    pub offset: usize,
    /// The whole option from its kind byte on.
    pub bytes: &'a [u8],
}

impl<'a> SmcOption<'a> {
    /// Reads the option at the start of `bytes`.
    ///
    /// Anything behind the experiment identifier is tolerated, as Linux does, as long as the
    /// option length is even.
    ///
    /// # Errors
    ///
    /// Another kind, a length that is odd or below 6, another experiment, or too few bytes.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        const MESSAGE: MessageKind = MessageKind::TcpOption;
        let truncated = |needed| MESSAGE.truncated("option", needed, bytes.len());
        let &[kind, length, ..] = bytes else {
            return Err(truncated(BYTES.len()));
        };
        if kind != KIND {
            return Err(MESSAGE.bad_value("kind", 0, "254", kind));
        }
        let (minimum, got) = (BYTES.len(), usize::from(length));
        if got < minimum {
            let kind = DecodeErrorKind::LengthBelow { minimum, got };
            return Err(DecodeError::new(MESSAGE, "length", 1, kind));
        }
        if length & 1 != 0 {
            return Err(MESSAGE.bad_value("length", 1, "an even number", length));
        }
        let option = bytes.get(..got).ok_or_else(|| truncated(got))?;
        match option {
            [_, _, exid @ ..] if exid.starts_with(&EXID) => Ok(Self {
                offset: 0,
                bytes: option,
            }),
            [_, _, a, b, c, d, ..] => {
                let (expected, got) = ("0xe2d4c3d9", u32::from_be_bytes([*a, *b, *c, *d]));
                Err(MESSAGE.bad_value("experiment identifier", 2, expected, got))
            }
            _ => Err(truncated(BYTES.len())),
        }
    }

    /// What follows the experiment identifier; empty from every known sender.
    #[must_use]
    pub fn extra(&self) -> &'a [u8] {
        self.bytes.get(BYTES.len()..).unwrap_or_default()
    }
}

/// Finds the option in the option area of a TCP header.
///
/// For segments with SYN set only. Stops at an end-of-list option and at the first
/// option that is not well-formed, as TCP stacks do.
#[must_use]
pub fn find(options: &[u8]) -> Option<SmcOption<'_>> {
    let mut rest = options;
    loop {
        let offset = options.len().saturating_sub(rest.len());
        rest = match *rest {
            [] | [END, ..] | [_] => return None,
            [NOP, ref tail @ ..] => tail,
            [_, length, ..] => {
                if let Ok(found) = SmcOption::parse(rest) {
                    return Some(SmcOption { offset, ..found });
                }
                match rest.split_at_checked(length.into()) {
                    Some((_, tail)) if length >= 2 => tail,
                    _ => return None,
                }
            }
        };
    }
}

#[cfg(test)]
mod tests;
