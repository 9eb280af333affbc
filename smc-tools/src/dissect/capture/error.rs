use std::fmt;
use std::io;

/// Why a capture cannot be read, or not be read any further.
#[derive(Debug)]
pub(crate) struct CaptureError {
    /// Where in the file, in bytes.
    pub(crate) offset: u64,
    /// What is wrong there.
    pub(crate) fault: Fault,
}

impl fmt::Display for CaptureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.offset {
            0 => write!(f, "{}", self.fault),
            offset => write!(f, "{} (at byte {offset})", self.fault),
        }
    }
}

impl std::error::Error for CaptureError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.fault {
            Fault::Io(error) => Some(error),
            _ => None,
        }
    }
}

/// The cause inside a [`CaptureError`].
#[derive(Debug)]
pub(crate) enum Fault {
    /// The operating system returned an error.
    Io(io::Error),
    /// A file of no bytes.
    Empty,
    /// The first bytes are not those of a capture.
    NotACapture { magic: [u8; 4] },
    /// A capture, but compressed.
    Compressed,
    /// The file ends within its header.
    HeaderCut { got: usize },
    /// The file ends within a record or block.
    RecordCut {
        frame: u64,
        needed: usize,
        got: usize,
    },
    /// A record or block claims to be longer than any can be.
    RecordTooLong { frame: u64, len: usize },
    /// A packet that belongs to an interface without description.
    NoSuchInterface { frame: u64, interface: u32 },
    /// Something does not parse.
    Malformed(&'static str),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "{error}"),
            Self::Empty => write!(f, "the file is empty"),
            Self::NotACapture {
                magic: [a, b, c, d],
            } => {
                write!(
                    f,
                    "not a pcap or pcapng file: it begins with {a:02x}{b:02x}{c:02x}{d:02x}"
                )
            }
            Self::Compressed => write!(f, "the file is compressed: decompress it first"),
            Self::HeaderCut { got } => {
                write!(
                    f,
                    "the file header is cut off: the file ends after {got} bytes"
                )
            }
            Self::RecordCut { frame, needed, got } => {
                write!(
                    f,
                    "the file ends within frame {frame}: {got} of {needed} bytes are there"
                )
            }
            Self::RecordTooLong { frame, len } => {
                write!(
                    f,
                    "frame {frame} claims to have {len} bytes: the file is damaged"
                )
            }
            Self::NoSuchInterface { frame, interface } => {
                write!(
                    f,
                    "frame {frame} is of interface {interface}, which is not described"
                )
            }
            Self::Malformed(what) => write!(f, "malformed {what}"),
        }
    }
}
