//! Enterprise IDs, of which two peers need a common one in version 2.

use core::fmt;
use core::str::FromStr;

use thiserror::Error;

use super::text::{padded, trim_padding, write_printable};
use super::wire_id::wire_id;

wire_id! {
    /// Enterprise ID: 32 bytes that both ends must share for version 2.
    ///
    /// A *UEID* is chosen by the administrator and made with [`ueid`](Self::ueid), which enforces
    /// the rules for names. A *SEID* belongs to a system. What a peer sent is taken as it is by
    /// [`from_bytes`](Self::from_bytes): receivers do not check characters, they compare all 32
    /// bytes, padding included. `Display` cuts the padding.
    ///
    /// ```
    /// use smc_wire::types::Eid;
    ///
    /// let eid = Eid::ueid("EXAMPLE-EID")?;
    /// assert_eq!(eid.as_bytes()[..12], *b"EXAMPLE-EID ");
    /// assert_eq!(eid.to_string(), "EXAMPLE-EID");
    /// assert!(Eid::ueid("example").is_err());
    /// # Ok::<(), smc_wire::types::EidError>(())
    /// ```
    #[derive(Default)]
    Eid[32], from_bytes
}

impl Eid {
    /// Length of an EID in bytes and the most characters a name can have.
    pub const LEN: usize = 32;

    /// Makes a UEID from a name, padding it with blanks.
    ///
    /// # Errors
    ///
    /// The name must have 1 to 32 characters out of `A-Z`, `0-9`, `.` and `-`, begin with a
    /// letter or digit, and hold no two dots in a row. The last rule is that of the Linux
    /// administration tool; the kernel itself would take such a name.
    pub fn ueid(name: &str) -> Result<Self, EidError> {
        if name.is_empty() {
            return Err(EidError::Empty);
        }
        if name.len() > Self::LEN {
            return Err(EidError::TooLong { len: name.len() });
        }
        let is_alphanumeric = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit();
        for (at, c) in name.char_indices() {
            if !is_alphanumeric(c) && c != '.' && c != '-' {
                return Err(EidError::Character { at, found: c });
            }
        }
        if name.starts_with(['.', '-']) {
            return Err(EidError::FirstCharacter);
        }
        if name.contains("..") {
            return Err(EidError::ConsecutiveDots);
        }
        Ok(Self(padded(name)))
    }
}

impl fmt::Display for Eid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_printable(f, trim_padding(&self.0))
    }
}

impl FromStr for Eid {
    type Err = EidError;

    /// Same as [`Eid::ueid`].
    fn from_str(text: &str) -> Result<Self, EidError> {
        Self::ueid(text)
    }
}

/// Why a name cannot be a UEID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Error)]
#[non_exhaustive]
pub enum EidError {
    /// There are no characters.
    #[error("EID is empty")]
    Empty,
    /// There are more than 32.
    #[error("EID has {len} characters, at most 32 are allowed")]
    TooLong {
        /// Bytes in the name.
        len: usize,
    },
    /// A character is not one of `A-Z`, `0-9`, `.`, `-`.
    #[error("EID has {found:?} at position {at}, only A-Z, 0-9, '.', '-' are allowed")]
    Character {
        /// Its position in bytes.
        at: usize,
        /// The character.
        found: char,
    },
    /// The first character is not a letter or digit.
    #[error("EID does not begin with A-Z or 0-9")]
    FirstCharacter,
    /// Two dots follow each other.
    #[error("EID has two dots in a row")]
    ConsecutiveDots,
}
