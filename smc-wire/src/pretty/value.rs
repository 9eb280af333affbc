//! Values of fields.

use core::fmt;
use core::net::{Ipv4Addr, Ipv6Addr};

use crate::cursor::Cursor;
use crate::types::text::{trim_padding, write_printable};
use crate::types::{Eid, Mac, PeerId, RoceGid};

/// The value of a field. `Display` gives the usual notation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Value<'a> {
    /// A count or a position, shown in decimal.
    Unsigned(u64),
    /// An opaque number, shown with a fixed number of hex digits.
    Hex {
        /// The number.
        value: u64,
        /// Hex digits, so that leading zeros appear.
        digits: u8,
    },
    /// A code out of a list; shown in hex, followed by its name.
    Code {
        /// The number.
        value: u64,
        /// Hex digits.
        digits: u8,
        /// Its meaning, if one is assigned.
        name: Option<&'static str>,
    },
    /// A code that stands for a number of bytes.
    Size {
        /// The code.
        code: u8,
        /// What it stands for.
        bytes: u64,
    },
    /// One bit.
    Flag(bool),
    /// A cursor.
    Cursor(Cursor),
    /// Bytes without a known inner structure.
    Bytes(&'a [u8]),
    /// Characters, padded with blanks; what is not printable ASCII appears as a dot.
    Text(&'a [u8]),
    /// A MAC address.
    Mac(Mac),
    /// A RoCE GID, shown as an IPv6 address.
    Gid(RoceGid),
    /// A peer ID.
    PeerId(PeerId),
    /// An enterprise ID.
    Eid(Eid),
    /// An IPv4 address.
    Ipv4(Ipv4Addr),
    /// An IPv6 address.
    Ipv6(Ipv6Addr),
}

impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Unsigned(value) => write!(f, "{value}"),
            Self::Hex { value, digits }
            | Self::Code {
                value,
                digits,
                name: None,
            } => hex_number(f, value, digits),
            Self::Code {
                value,
                digits,
                name: Some(name),
            } => {
                hex_number(f, value, digits)?;
                write!(f, " ({name})")
            }
            Self::Size { code, bytes } => write!(f, "{code} ({bytes} bytes)"),
            Self::Flag(value) => f.write_str(if value { "yes" } else { "no" }),
            Self::Cursor(cursor) => cursor.fmt(f),
            Self::Bytes(bytes) => HexBytes(bytes).fmt(f),
            Self::Text(bytes) => quoted(f, bytes),
            Self::Mac(mac) => mac.fmt(f),
            Self::Gid(gid) => gid.fmt(f),
            Self::PeerId(id) => id.fmt(f),
            Self::Eid(eid) => quoted(f, eid.as_bytes()),
            Self::Ipv4(address) => address.fmt(f),
            Self::Ipv6(address) => address.fmt(f),
        }
    }
}

/// `0x` and a fixed number of digits.
fn hex_number(f: &mut fmt::Formatter<'_>, value: u64, digits: u8) -> fmt::Result {
    let digits = usize::from(digits);
    write!(f, "0x{value:0digits$x}")
}

/// Text in quotes without its padding.
fn quoted(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    use fmt::Write as _;

    f.write_char('"')?;
    write_printable(f, trim_padding(bytes))?;
    f.write_char('"')
}

/// Bytes as hex digits without separators.
pub(super) struct HexBytes<'a>(pub(super) &'a [u8]);

impl fmt::Display for HexBytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
