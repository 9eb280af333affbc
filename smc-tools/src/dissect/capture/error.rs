//! Errors of reading a capture, with file and position.

use std::io;

use thiserror::Error;

use super::super::hex::compact;

/// Why a capture cannot be read, or not be read any further.
#[derive(Debug, Error)]
#[error("{fault}{}", place(*.offset))]
pub(crate) struct CaptureError {
    /// Where in the file, in bytes.
    pub(crate) offset: u64,
    /// What is wrong there.
    pub(crate) fault: Fault,
}

impl CaptureError {
    /// An error of the system where frames come from no file.
    pub(crate) fn live(error: io::Error) -> Self {
        Self {
            offset: 0,
            fault: Fault::Io(error),
        }
    }

    /// Whether the input ended too early, and nothing else is wrong.
    pub(crate) fn is_early_end(&self) -> bool {
        matches!(
            self.fault,
            Fault::Empty | Fault::HeaderCut { .. } | Fault::RecordCut { .. }
        )
    }
}

fn place(offset: u64) -> String {
    match offset {
        0 => String::new(),
        offset => format!(" (at byte {offset})"),
    }
}

/// The cause inside a [`CaptureError`].
#[derive(Debug, Error)]
pub(crate) enum Fault {
    /// The operating system returned an error.
    #[error("{0}")]
    Io(io::Error),
    /// A file of no bytes.
    #[error("the file is empty")]
    Empty,
    /// The first bytes are not those of a capture.
    #[error("not a pcap or pcapng file: it begins with {}", compact(.magic))]
    NotACapture { magic: [u8; 4] },
    /// A capture, but compressed.
    #[error("the file is compressed: decompress it first")]
    Compressed,
    /// The file ends within its header.
    #[error("the file header is cut off: the file ends after {got} bytes")]
    HeaderCut { got: usize },
    /// The file ends within a record or block.
    #[error("the file ends within frame {frame}: {got} of {needed} bytes are there")]
    RecordCut {
        frame: u64,
        needed: usize,
        got: usize,
    },
    /// A record or block claims to be longer than any can be.
    #[error("frame {frame} claims to have {len} bytes: the file is damaged")]
    RecordTooLong { frame: u64, len: usize },
    /// A packet that belongs to an interface without description.
    #[error("frame {frame} is of interface {interface}, which is not described")]
    NoSuchInterface { frame: u64, interface: u32 },
    /// Something does not parse.
    #[error("malformed {0}")]
    Malformed(&'static str),
}
