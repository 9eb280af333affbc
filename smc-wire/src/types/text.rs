//! Names: host name and PNET ID.

use core::fmt;

use super::wire_id::wire_id;

wire_id! {
    /// Host name of a peer (32 bytes, ASCII, padded with blanks), informational.
    ///
    /// Linux sends its node name and keeps a received name only if it is ASCII. A name may hold any
    /// bytes here; `Display` cuts the padding and replaces what is not printable ASCII with `.`.
    HostName[32], from_bytes
}

impl HostName {
    /// No name: all blanks.
    pub const BLANK: Self = Self([b' '; 32]);

    /// The first 32 bytes of a name, padded with blanks.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self(padded(name))
    }

    /// The name without padding, or `None` if it is not ASCII and should be ignored.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        if !self.0.is_ascii() {
            return None;
        }
        core::str::from_utf8(trim_padding(&self.0)).ok()
    }
}

impl Default for HostName {
    fn default() -> Self {
        Self::BLANK
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_printable(f, trim_padding(&self.0))
    }
}

/// Names a physical network (1 to 16 characters `A-Z`, `0-9`); never on the wire.
///
/// Upper-cased when made, so that names compare as Linux compares them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PnetId([u8; 16]);

impl PnetId {
    /// Reads a name, folding lower case to upper case; `None` if it is empty, longer than 16, or
    /// holds anything but ASCII letters and digits.
    #[must_use]
    pub fn new(name: &str) -> Option<Self> {
        let is_legal = name.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if name.is_empty() || name.len() > 16 || !is_legal {
            return None;
        }
        let mut bytes = padded(name);
        bytes.make_ascii_uppercase();
        Some(Self(bytes))
    }

    /// The name, one to sixteen characters.
    #[must_use]
    pub fn as_str(&self) -> &str {
        core::str::from_utf8(trim_padding(&self.0)).unwrap_or_default()
    }
}

impl fmt::Display for PnetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The first `N` bytes of a text, padded with blanks.
pub(super) fn padded<const N: usize>(text: &str) -> [u8; N] {
    let mut bytes = [b' '; N];
    for (to, from) in bytes.iter_mut().zip(text.bytes()) {
        *to = from;
    }
    bytes
}

/// Cuts blanks and NULs from the end.
pub(crate) fn trim_padding(bytes: &[u8]) -> &[u8] {
    let mut rest = bytes;
    while let [head @ .., b' ' | 0] = rest {
        rest = head;
    }
    rest
}

/// Writes printable ASCII as it is and a dot for every other byte.
pub(crate) fn write_printable(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    use fmt::Write as _;

    for &byte in bytes {
        let shown = if byte.is_ascii_graphic() || byte == b' ' {
            char::from(byte)
        } else {
            '.'
        };
        f.write_char(shown)?;
    }
    Ok(())
}
