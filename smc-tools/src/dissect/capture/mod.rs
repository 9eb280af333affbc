//! Captures: pcap (both byte orders, micro- and nanoseconds) and pcapng, read frame by frame.
//!
//! One record is in memory at a time, and its size is bounded, whatever the file claims.

mod error;
mod ng;
#[cfg(test)]
mod tests;
mod time;

use std::io::{self, Read};

pub(super) use self::error::{CaptureError, Fault};
use self::ng::Section;
pub(super) use self::time::Timestamp;

/// One captured frame.
#[derive(Debug)]
pub(super) struct Frame<'a> {
    /// Counted from 1, over all interfaces.
    pub(super) number: u64,
    /// When it was captured, if the file contains it.
    pub(super) time: Option<Timestamp>,
    /// What the bytes begin with.
    pub(super) link: LinkType,
    /// The bytes that were captured.
    pub(super) data: &'a [u8],
    /// How many bytes of the frame were not captured (snap length).
    pub(super) missing: usize,
}

/// Reads the frames of one capture.
#[derive(Debug)]
pub(super) struct Reader<R> {
    input: Input<R>,
    format: Format,
    frames: u64,
}

impl<R: Read> Reader<R> {
    /// Reads the header of the capture.
    ///
    /// # Errors
    ///
    /// [`CaptureError`] when this is not a capture or its header is cut short.
    pub(super) fn new(input: R) -> Result<Self, CaptureError> {
        let mut input = Input {
            inner: input,
            record: Vec::new(),
            offset: 0,
        };
        let fail = |fault| CaptureError { offset: 0, fault };
        input.fill(4).map_err(fail)?;
        let magic = match *input.record.as_slice() {
            [] => return Err(fail(Fault::Empty)),
            [a, b, c, d] => [a, b, c, d],
            _ => {
                return Err(fail(Fault::HeaderCut {
                    got: input.record.len(),
                }));
            }
        };
        let format = match magic {
            ng::SECTION_HEADER => Format::Ng(Section::new(&mut input).map_err(fail)?),
            _ => Format::Classic(Classic::new(&mut input, magic).map_err(fail)?),
        };
        Ok(Self {
            input,
            format,
            frames: 0,
        })
    }

    /// The next frame, or `None` at the end of the file.
    ///
    /// # Errors
    ///
    /// [`CaptureError`] when the file is damaged or ends within a record; nothing can be read
    /// behind that place.
    pub(super) fn next_frame(&mut self) -> Result<Option<Frame<'_>>, CaptureError> {
        let number = self.frames.saturating_add(1);
        let found = match &mut self.format {
            Format::Classic(classic) => classic.next_frame(&mut self.input, number),
            Format::Ng(section) => section.next_frame(&mut self.input, number),
        };
        match found {
            Ok(frame) => {
                self.frames = number;
                Ok(frame)
            }
            Err((offset, fault)) => Err(CaptureError { offset, fault }),
        }
    }
}

/// The largest record that is read. Wireshark itself stops at 256 KiB for almost all link types; a
/// larger length in a file means that the file is damaged.
const MAX_RECORD: usize = 16 << 20;

#[derive(Debug)]
enum Format {
    Classic(Classic),
    Ng(Section),
}

/// A file, and the record that is being read from it.
#[derive(Debug)]
struct Input<R> {
    inner: R,
    record: Vec<u8>,
    /// Where the record begins in the file.
    offset: u64,
}

impl<R: Read> Input<R> {
    /// Begins a new record behind the present one.
    fn next_record(&mut self) {
        self.offset = self.offset.saturating_add(self.record.len() as u64);
        self.record.clear();
    }

    /// Reads until the record has `len` bytes or the file ends. The buffer grows with what is
    /// there, not with what was asked for.
    fn fill(&mut self, len: usize) -> Result<bool, Fault> {
        let wanted = len.saturating_sub(self.record.len());
        if wanted > 0 {
            let mut limited = self.inner.by_ref().take(wanted as u64);
            limited.read_to_end(&mut self.record).map_err(Fault::Io)?;
        }
        Ok(self.record.len() >= len)
    }

    /// Reads `len` bytes and forgets them.
    fn skip(&mut self, len: u64) -> Result<bool, Fault> {
        let mut limited = self.inner.by_ref().take(len);
        let skipped = io::copy(&mut limited, &mut io::sink()).map_err(Fault::Io)?;
        self.offset = self.offset.saturating_add(skipped);
        Ok(skipped == len)
    }
}

/// What the header of a classic pcap file states about its records.
#[derive(Debug)]
struct Classic {
    order: Order,
    nanoseconds: bool,
    /// Bytes in the header of a record.
    header: usize,
    link: LinkType,
}

/// Bytes of the file header.
const CLASSIC_HEADER: usize = 24;
/// Low bits of the network field; the others contain how long the frame check sequence is.
const LINK_TYPE_BITS: u32 = 0xFFFF;

impl Classic {
    fn new<R: Read>(input: &mut Input<R>, magic: [u8; 4]) -> Result<Self, Fault> {
        let (order, nanoseconds, header) = match magic {
            [0xD4, 0xC3, 0xB2, 0xA1] => (Order::Little, false, 16),
            [0xA1, 0xB2, 0xC3, 0xD4] => (Order::Big, false, 16),
            [0x4D, 0x3C, 0xB2, 0xA1] => (Order::Little, true, 16),
            [0xA1, 0xB2, 0x3C, 0x4D] => (Order::Big, true, 16),
            // An old patched format with a longer record header.
            [0x34, 0xCD, 0xB2, 0xA1] => (Order::Little, false, 24),
            [0x1F, 0x8B, ..] | [0x28, 0xB5, 0x2F, 0xFD] => return Err(Fault::Compressed),
            _ => return Err(Fault::NotACapture { magic }),
        };
        if !input.fill(CLASSIC_HEADER)? {
            return Err(Fault::HeaderCut {
                got: input.record.len(),
            });
        }
        let network = order.u32(&input.record, 20);
        let network = network.ok_or(Fault::Malformed("file header"))?;
        Ok(Self {
            order,
            nanoseconds,
            header,
            link: LinkType(network & LINK_TYPE_BITS),
        })
    }

    fn next_frame<'a, R: Read>(
        &self,
        input: &'a mut Input<R>,
        number: u64,
    ) -> Result<Option<Frame<'a>>, (u64, Fault)> {
        input.next_record();
        let offset = input.offset;
        self.load(input, number).map_err(|fault| (offset, fault))
    }

    fn load<'a, R: Read>(
        &self,
        input: &'a mut Input<R>,
        number: u64,
    ) -> Result<Option<Frame<'a>>, Fault> {
        let cut = |needed, got| Fault::RecordCut {
            frame: number,
            needed,
            got,
        };
        if !input.fill(self.header)? {
            return match input.record.len() {
                0 => Ok(None),
                got => Err(cut(self.header, got)),
            };
        }
        let word = |at| self.order.u32(&input.record, at);
        let words = (|| Some([word(0)?, word(4)?, word(8)?, word(12)?]))();
        let Some([seconds, fraction, captured, original]) = words else {
            return Err(Fault::Malformed("record header"));
        };
        let captured = captured as usize;
        if captured > MAX_RECORD {
            return Err(Fault::RecordTooLong {
                frame: number,
                len: captured,
            });
        }
        let needed = self.header + captured;
        if !input.fill(needed)? {
            return Err(cut(needed, input.record.len()));
        }
        Ok(Some(Frame {
            number,
            time: Some(Timestamp::classic(seconds, fraction, self.nanoseconds)),
            link: self.link,
            data: input.record.get(self.header..).unwrap_or_default(),
            missing: missing(original, captured),
        }))
    }
}

/// What frames begin with, by its number in captures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LinkType(pub(super) u32);

/// The byte order of the machine that has written the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Little,
    Big,
}

impl Order {
    fn u16(self, bytes: &[u8], at: usize) -> Option<u16> {
        let bytes = *bytes.get(at..)?.first_chunk()?;
        Some(match self {
            Self::Little => u16::from_le_bytes(bytes),
            Self::Big => u16::from_be_bytes(bytes),
        })
    }

    fn u32(self, bytes: &[u8], at: usize) -> Option<u32> {
        let bytes = *bytes.get(at..)?.first_chunk()?;
        Some(match self {
            Self::Little => u32::from_le_bytes(bytes),
            Self::Big => u32::from_be_bytes(bytes),
        })
    }

    /// Two words, of which the high one comes first in either order.
    fn ticks(self, bytes: &[u8], at: usize) -> Option<u64> {
        let (high, low) = (self.u32(bytes, at)?, self.u32(bytes, at + 4)?);
        Some(u64::from(high) << 32 | u64::from(low))
    }
}

/// How much of a frame of `original` bytes was not captured.
fn missing(original: u32, captured: usize) -> usize {
    (original as usize).saturating_sub(captured)
}
