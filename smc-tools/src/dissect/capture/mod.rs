//! Captures: pcap (both byte orders, micro- and nanoseconds) and pcapng, read frame by frame.
//!
//! One record is in memory at a time, and its size is bounded, whatever the file claims.

mod error;
mod ng;
#[cfg(test)]
mod tests;
mod time;

use std::io::{self, Read};

pub(super) use self::error::CaptureError;
use self::error::Fault;
use self::ng::Section;
pub(super) use self::time::Timestamp;

/// Where frames come from: a capture, or an interface.
pub(super) trait Frames {
    /// The next frame, or `None` at the end.
    ///
    /// # Errors
    ///
    /// [`CaptureError`] when the capture is damaged or ends within a record, or the interface is
    /// gone; nothing can be read behind that.
    fn next_frame(&mut self) -> Result<Option<Frame<'_>>, CaptureError>;
}

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
            frame: 1,
        };
        match Format::new(&mut input) {
            Ok(format) => Ok(Self { input, format }),
            Err(Fault::RecordCut { got, .. }) => Err(input.error(Fault::HeaderCut { got })),
            Err(fault) => Err(input.error(fault)),
        }
    }
}

impl<R: Read> Frames for Reader<R> {
    fn next_frame(&mut self) -> Result<Option<Frame<'_>>, CaptureError> {
        let Self { input, format } = self;
        let is_there = match format {
            Format::Classic(classic) => classic.load(input),
            Format::Ng(section) => section.load(input),
        };
        if !is_there.map_err(|fault| input.error(fault))? {
            return Ok(None);
        }
        let number = input.frame;
        input.frame = number.saturating_add(1);
        let frame = match format {
            Format::Classic(classic) => classic.frame(&input.record, number),
            Format::Ng(section) => section.frame(&input.record, number),
        };
        frame.map(Some).map_err(|fault| input.error(fault))
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

impl Format {
    fn new<R: Read>(input: &mut Input<R>) -> Result<Self, Fault> {
        if !input.begin(4)? {
            return Err(Fault::Empty);
        }
        Ok(match input.record.first_chunk() {
            Some(&ng::SECTION_HEADER) => Self::Ng(Section::new(input)?),
            magic => Self::Classic(Classic::new(input, magic.copied().unwrap_or_default())?),
        })
    }
}

/// A file, and the record that is being read from it.
#[derive(Debug)]
struct Input<R> {
    inner: R,
    record: Vec<u8>,
    /// Where the record begins in the file.
    offset: u64,
    /// Number of the next frame.
    frame: u64,
}

impl<R: Read> Input<R> {
    /// Begins a new record, of at least `len` bytes; false at the end of the file.
    fn begin(&mut self, len: usize) -> Result<bool, Fault> {
        self.offset = self.offset.saturating_add(self.record.len() as u64);
        self.record.clear();
        match self.fill(len) {
            Err(Fault::RecordCut { got: 0, .. }) => Ok(false),
            filled => filled.map(|()| true),
        }
    }

    /// Reads until the record has `len` bytes. The buffer grows with what is there, not with what
    /// was asked for.
    fn fill(&mut self, len: usize) -> Result<(), Fault> {
        let wanted = len.saturating_sub(self.record.len());
        let mut limited = self.inner.by_ref().take(wanted as u64);
        limited.read_to_end(&mut self.record).map_err(Fault::Io)?;
        match self.record.len() {
            got if got < len => Err(self.cut(len, got)),
            _ => Ok(()),
        }
    }

    /// Reads the record until it has `len` bytes, and forgets what was not read before.
    fn skip(&mut self, len: usize) -> Result<(), Fault> {
        let rest = len.saturating_sub(self.record.len()) as u64;
        let mut limited = self.inner.by_ref().take(rest);
        let skipped = io::copy(&mut limited, &mut io::sink()).map_err(Fault::Io)?;
        if skipped < rest {
            return Err(self.cut(len, self.record.len()));
        }
        self.offset = self.offset.saturating_add(skipped);
        Ok(())
    }

    fn check_len(&self, len: usize) -> Result<(), Fault> {
        match len > MAX_RECORD {
            true => Err(Fault::RecordTooLong {
                frame: self.frame,
                len,
            }),
            false => Ok(()),
        }
    }

    fn cut(&self, needed: usize, got: usize) -> Fault {
        Fault::RecordCut {
            frame: self.frame,
            needed,
            got,
        }
    }

    fn error(&self, fault: Fault) -> CaptureError {
        CaptureError {
            offset: self.offset,
            fault,
        }
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
        input.fill(CLASSIC_HEADER)?;
        let network = order.u32(&input.record, 20);
        let network = network.ok_or(Fault::Malformed("file header"))?;
        Ok(Self {
            order,
            nanoseconds,
            header,
            link: LinkType(network & LINK_TYPE_BITS),
        })
    }

    /// Reads the next record; false at the end of the file.
    fn load<R: Read>(&self, input: &mut Input<R>) -> Result<bool, Fault> {
        if !input.begin(self.header)? {
            return Ok(false);
        }
        let captured = self.order.u32(&input.record, 8);
        let captured = captured.ok_or(Fault::Malformed("record header"))? as usize;
        input.check_len(captured)?;
        input.fill(self.header + captured)?;
        Ok(true)
    }

    fn frame<'a>(&self, record: &'a [u8], number: u64) -> Result<Frame<'a>, Fault> {
        let word = |at| {
            let word = self.order.u32(record, at);
            word.ok_or(Fault::Malformed("record header"))
        };
        let data = record.get(self.header..).unwrap_or_default();
        Ok(Frame {
            number,
            time: Some(Timestamp::classic(word(0)?, word(4)?, self.nanoseconds)),
            link: self.link,
            data,
            missing: missing(word(12)?, data.len()),
        })
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
        self.big_endian(bytes, at).map(u16::from_be_bytes)
    }

    fn u32(self, bytes: &[u8], at: usize) -> Option<u32> {
        self.big_endian(bytes, at).map(u32::from_be_bytes)
    }

    fn i64(self, bytes: &[u8], at: usize) -> Option<i64> {
        self.big_endian(bytes, at).map(i64::from_be_bytes)
    }

    /// Two words, of which the high one comes first in either order.
    fn ticks(self, bytes: &[u8], at: usize) -> Option<u64> {
        let (high, low) = (self.u32(bytes, at)?, self.u32(bytes, at + 4)?);
        Some(u64::from(high) << 32 | u64::from(low))
    }

    fn big_endian<const N: usize>(self, bytes: &[u8], at: usize) -> Option<[u8; N]> {
        let mut bytes = *bytes.get(at..)?.first_chunk()?;
        if self == Self::Little {
            bytes.reverse();
        }
        Some(bytes)
    }
}

/// How much of a frame of `original` bytes was not captured.
fn missing(original: u32, captured: usize) -> usize {
    (original as usize).saturating_sub(captured)
}
