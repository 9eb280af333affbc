//! pcapng: sections, interfaces, and the three kinds of packet block.

use std::io::Read;

use pcap_parser::{
    Block, InterfaceDescriptionBlock, Linktype, OptionCode, build_ts_resolution, parse_block_be,
    parse_block_le,
};

use super::time::Clock;
use super::{Fault, Frame, Input, MAX_RECORD, Timestamp, missing};

/// Type of a section header block, the same in both byte orders.
pub(super) const SECTION_HEADER: [u8; 4] = [0x0A, 0x0D, 0x0D, 0x0A];

/// The section that is being read.
#[derive(Debug)]
pub(super) struct Section {
    big_endian: bool,
    interfaces: Vec<Interface>,
}

impl Section {
    /// Reads the section header whose first four bytes have been read.
    pub(super) fn new<R: Read>(input: &mut Input<R>) -> Result<Self, Fault> {
        let mut section = Self {
            big_endian: false,
            interfaces: Vec::new(),
        };
        match section.load(input, 0) {
            Ok(_) => Ok(section),
            Err(Fault::RecordCut { got, .. }) => Err(Fault::HeaderCut { got }),
            Err(fault) => Err(fault),
        }
    }

    /// The next packet block as a frame.
    pub(super) fn next_frame<'a, R: Read>(
        &mut self,
        input: &'a mut Input<R>,
        number: u64,
    ) -> Result<Option<Frame<'a>>, (u64, Fault)> {
        loop {
            input.next_record();
            let offset = input.offset;
            match self.load(input, number).map_err(|fault| (offset, fault))? {
                Loaded::End => return Ok(None),
                Loaded::Other => {}
                Loaded::Packet => break,
            }
        }
        let offset = input.offset;
        self.frame(&input.record, number)
            .map(Some)
            .map_err(|fault| (offset, fault))
    }

    /// Reads one block, and takes in what it states about the section. Blocks that do not matter
    /// here are skipped, whatever their length.
    fn load<R: Read>(&mut self, input: &mut Input<R>, frame: u64) -> Result<Loaded, Fault> {
        let cut = |got| Fault::RecordCut {
            frame,
            needed: MIN_BLOCK,
            got,
        };
        // Type, length, and in a section header the byte order: no block is shorter than 12 bytes.
        if !input.fill(MIN_BLOCK)? {
            return match input.record.len() {
                0 => Ok(Loaded::End),
                got => Err(cut(got)),
            };
        }
        let word = |at: usize| -> [u8; 4] {
            let bytes = input
                .record
                .get(at..at + 4)
                .and_then(|bytes| bytes.try_into().ok());
            bytes.unwrap_or_default()
        };
        let kind = word(0);
        if kind == SECTION_HEADER {
            self.big_endian = match word(8) {
                [0x1A, 0x2B, 0x3C, 0x4D] => true,
                [0x4D, 0x3C, 0x2B, 0x1A] => false,
                _ => return Err(Fault::Malformed("byte order in the section header")),
            };
            self.interfaces.clear();
        }
        let kind = if kind == SECTION_HEADER {
            u32::from_le_bytes(kind)
        } else {
            self.u32(kind)
        };
        let len = self.u32(word(4)) as usize;
        if len < MIN_BLOCK || len % 4 != 0 {
            return Err(Fault::Malformed("block length"));
        }
        if !matches!(
            kind,
            SECTION | INTERFACE | OLD_PACKET | SIMPLE_PACKET | PACKET
        ) {
            let rest = (len - MIN_BLOCK) as u64;
            return match input.skip(rest)? {
                true => Ok(Loaded::Other),
                false => Err(Fault::RecordCut {
                    frame,
                    needed: len,
                    got: MIN_BLOCK,
                }),
            };
        }
        if len > MAX_RECORD {
            return Err(Fault::RecordTooLong { frame, len });
        }
        if !input.fill(len)? {
            return Err(Fault::RecordCut {
                frame,
                needed: len,
                got: input.record.len(),
            });
        }
        match kind {
            SECTION => Ok(Loaded::Other),
            INTERFACE => {
                let Some(Block::InterfaceDescription(block)) = self.parse(&input.record) else {
                    return Err(Fault::Malformed("interface description"));
                };
                let interface = Interface::new(&block, self.big_endian);
                self.interfaces.push(interface);
                Ok(Loaded::Other)
            }
            _ => Ok(Loaded::Packet),
        }
    }

    fn frame<'a>(&self, record: &'a [u8], number: u64) -> Result<Frame<'a>, Fault> {
        let packet = self
            .packet(record)
            .ok_or(Fault::Malformed("packet block"))?;
        let index = packet.interface;
        let Some(interface) = usize::try_from(index)
            .ok()
            .and_then(|at| self.interfaces.get(at))
        else {
            return Err(Fault::NoSuchInterface {
                frame: number,
                interface: index,
            });
        };
        // Only simple packets have no length of their own: they end at the snap length.
        let data = match packet.time {
            None if interface.snap_length != 0 => packet
                .data
                .get(..interface.snap_length as usize)
                .unwrap_or(packet.data),
            _ => packet.data,
        };
        Ok(Frame {
            number,
            time: packet
                .time
                .map(|ticks| Timestamp::ng(ticks, interface.clock)),
            link: interface.link,
            data,
            missing: missing(packet.original, data.len()),
        })
    }

    fn packet<'a>(&self, record: &'a [u8]) -> Option<Packet<'a>> {
        let kind = self.u32(record.first_chunk().copied()?);
        if kind == OLD_PACKET {
            return self.old_packet(record);
        }
        match self.parse(record)? {
            Block::EnhancedPacket(block) => Some(Packet {
                interface: block.if_id,
                time: Some(u64::from(block.ts_high) << 32 | u64::from(block.ts_low)),
                original: block.origlen,
                data: block
                    .data
                    .get(..block.caplen as usize)
                    .unwrap_or(block.data),
            }),
            Block::SimplePacket(block) => Some(Packet {
                interface: 0,
                time: None,
                original: block.origlen,
                data: block
                    .data
                    .get(..block.origlen as usize)
                    .unwrap_or(block.data),
            }),
            _ => None,
        }
    }

    /// The obsolete packet block, which old tools still write: interface (2), drops (2), time (8),
    /// captured length (4), original length (4), data.
    fn old_packet<'a>(&self, record: &'a [u8]) -> Option<Packet<'a>> {
        let (head, data) = record.get(8..)?.split_at_checked(20)?;
        let word = |at: usize| {
            head.get(at..)?
                .first_chunk()
                .copied()
                .map(|word| self.u32(word))
        };
        let interface: [u8; 2] = head.first_chunk().copied()?;
        let captured = usize::try_from(word(12)?).ok()?;
        Some(Packet {
            interface: u32::from(match self.big_endian {
                true => u16::from_be_bytes(interface),
                false => u16::from_le_bytes(interface),
            }),
            time: Some(u64::from(word(4)?) << 32 | u64::from(word(8)?)),
            original: word(16)?,
            data: data.get(..captured)?,
        })
    }

    fn parse<'a>(&self, record: &'a [u8]) -> Option<Block<'a>> {
        let parse = if self.big_endian {
            parse_block_be
        } else {
            parse_block_le
        };
        parse(record).ok().map(|(_, block)| block)
    }

    fn u32(&self, bytes: [u8; 4]) -> u32 {
        match self.big_endian {
            true => u32::from_be_bytes(bytes),
            false => u32::from_le_bytes(bytes),
        }
    }
}

/// Type, length, length again.
const MIN_BLOCK: usize = 12;
const SECTION: u32 = 0x0A0D_0D0A;
const INTERFACE: u32 = 0x0000_0001;
const OLD_PACKET: u32 = 0x0000_0002;
const SIMPLE_PACKET: u32 = 0x0000_0003;
const PACKET: u32 = 0x0000_0006;

enum Loaded {
    End,
    Other,
    Packet,
}

struct Packet<'a> {
    interface: u32,
    /// In ticks of the interface's clock; a simple packet has none.
    time: Option<u64>,
    original: u32,
    data: &'a [u8],
}

#[derive(Debug)]
struct Interface {
    link: Linktype,
    snap_length: u32,
    clock: Clock,
}

impl Interface {
    fn new(block: &InterfaceDescriptionBlock<'_>, big_endian: bool) -> Self {
        // The parser reads this option as little endian in both byte orders.
        let offset = block
            .options
            .iter()
            .find(|option| option.code == OptionCode::IfTsoffset)
            .and_then(|option| option.value().first_chunk().copied())
            .map_or(0, |bytes| match big_endian {
                true => i64::from_be_bytes(bytes),
                false => i64::from_le_bytes(bytes),
            });
        let per_second = match block.if_tsresol {
            binary if binary & 0x80 != 0 => 1u64.checked_shl(u32::from(binary & 0x7F)),
            decimal => build_ts_resolution(decimal),
        };
        Self {
            link: block.linktype,
            snap_length: block.snaplen,
            clock: Clock {
                per_second: per_second.unwrap_or(1_000_000),
                offset,
            },
        }
    }
}
