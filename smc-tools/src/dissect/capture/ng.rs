//! pcapng: sections, interfaces, and the three kinds of packet block.

use std::io::Read;

use super::time::Clock;
use super::{Fault, Frame, Input, LinkType, Order, Timestamp, missing};

/// Type of a section header block, the same in both byte orders.
pub(super) const SECTION_HEADER: [u8; 4] = [0x0A, 0x0D, 0x0D, 0x0A];

/// Interfaces of a section, which stay in memory until it ends.
const MAX_INTERFACES: usize = 1 << 16;

/// The section that is being read.
#[derive(Debug)]
pub(super) struct Section {
    order: Order,
    interfaces: Vec<Interface>,
}

impl Section {
    /// Reads the section header whose first four bytes have been read.
    pub(super) fn new<R: Read>(input: &mut Input<R>) -> Result<Self, Fault> {
        let mut section = Self {
            order: Order::Little,
            interfaces: Vec::new(),
        };
        input.fill(MIN_BLOCK)?;
        section.block(input)?;
        Ok(section)
    }

    /// Reads up to the next packet block; false at the end of the file.
    pub(super) fn load<R: Read>(&mut self, input: &mut Input<R>) -> Result<bool, Fault> {
        while input.begin(MIN_BLOCK)? {
            if self.block(input)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Reads the rest of a block, takes in what it states about the section, and gives whether it
    /// is a packet. Blocks that do not matter here are skipped, whatever their length.
    fn block<R: Read>(&mut self, input: &mut Input<R>) -> Result<bool, Fault> {
        if input.record.starts_with(&SECTION_HEADER) {
            self.order = match input.record.get(8..12) {
                Some([0x1A, 0x2B, 0x3C, 0x4D]) => Order::Big,
                Some([0x4D, 0x3C, 0x2B, 0x1A]) => Order::Little,
                _ => return Err(Fault::Malformed("byte order in the section header")),
            };
            self.interfaces.clear();
        }
        let word = |at| self.order.u32(&input.record, at);
        let (Some(kind), Some(len)) = (word(0), word(4)) else {
            return Err(Fault::Malformed("block header"));
        };
        let len = len as usize;
        if len < MIN_BLOCK || len % 4 != 0 {
            return Err(Fault::Malformed("block length"));
        }
        let is_packet = matches!(kind, OLD_PACKET | SIMPLE_PACKET | PACKET);
        if !is_packet && !matches!(kind, SECTION | INTERFACE) {
            input.skip(len)?;
            return Ok(false);
        }
        input.check_len(len)?;
        input.fill(len)?;
        if kind == INTERFACE {
            let body = body(self.order, &input.record);
            let interface = body.and_then(|body| Interface::parse(self.order, body));
            let fault = Fault::Malformed("interface description");
            if self.interfaces.len() == MAX_INTERFACES {
                return Err(Fault::Malformed("number of interfaces of a section"));
            }
            self.interfaces.push(interface.ok_or(fault)?);
        }
        Ok(is_packet)
    }

    pub(super) fn frame<'a>(&self, record: &'a [u8], number: u64) -> Result<Frame<'a>, Fault> {
        let packet = self
            .packet(record)
            .ok_or(Fault::Malformed("packet block"))?;
        let index = packet.interface;
        let Some(interface) = self.interfaces.get(index as usize) else {
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

    /// The three kinds have in common that the data comes last, except for options.
    fn packet<'a>(&self, record: &'a [u8]) -> Option<Packet<'a>> {
        let order = self.order;
        let body = body(order, record)?;
        if order.u32(record, 0)? == SIMPLE_PACKET {
            let original = order.u32(body, 0)?;
            let data = body.get(4..)?;
            return Some(Packet {
                interface: 0,
                time: None,
                original,
                data: data.get(..original as usize).unwrap_or(data),
            });
        }
        // Interface (4), time (8), captured length (4), original length (4), data. The obsolete
        // packet block, which old tools still write, has drops in the other half of the interface.
        let interface = match order.u32(record, 0)? {
            OLD_PACKET => order.u16(body, 0)?.into(),
            _ => order.u32(body, 0)?,
        };
        Some(Packet {
            interface,
            time: Some(order.ticks(body, 4)?),
            original: order.u32(body, 16)?,
            data: body.get(20..)?.get(..order.u32(body, 12)? as usize)?,
        })
    }
}

/// What is between the two lengths of a block, if they agree.
fn body(order: Order, record: &[u8]) -> Option<&[u8]> {
    let (rest, _) = record.split_last_chunk::<4>()?;
    let is_whole = order.u32(record, rest.len())? == order.u32(record, 4)?;
    rest.get(8..).filter(|_| is_whole)
}

/// Type, length, and the length again or, in a section header, the byte order.
const MIN_BLOCK: usize = 12;
const SECTION: u32 = 0x0A0D_0D0A;
const INTERFACE: u32 = 0x0000_0001;
const OLD_PACKET: u32 = 0x0000_0002;
const SIMPLE_PACKET: u32 = 0x0000_0003;
const PACKET: u32 = 0x0000_0006;

struct Packet<'a> {
    interface: u32,
    /// In ticks of the interface's clock; a simple packet has none.
    time: Option<u64>,
    original: u32,
    data: &'a [u8],
}

#[derive(Debug)]
struct Interface {
    link: LinkType,
    snap_length: u32,
    clock: Clock,
}

impl Interface {
    /// Link type (2), reserved (2), snap length (4), options.
    fn parse(order: Order, body: &[u8]) -> Option<Self> {
        let (mut per_second, mut offset) = (None, 0);
        let mut options = body.get(8..)?;
        // Code (2), length (2), value, padding.
        while let Some((code, len)) = order.u16(options, 0).zip(order.u16(options, 2)) {
            let len = usize::from(len);
            let value = options.get(4..4 + len)?;
            match (code, value) {
                (END_OF_OPTIONS, _) => break,
                (TIME_RESOLUTION, [binary, ..]) if binary & 0x80 != 0 => {
                    per_second = 1u64.checked_shl(u32::from(binary & 0x7F));
                }
                (TIME_RESOLUTION, [decimal, ..]) => {
                    per_second = 10u64.checked_pow(u32::from(*decimal));
                }
                (TIME_OFFSET, value) => {
                    offset = order.i64(value, 0).unwrap_or(0);
                }
                _ => {}
            }
            options = options
                .get(4 + len.next_multiple_of(4)..)
                .unwrap_or_default();
        }
        Some(Self {
            link: LinkType(order.u16(body, 0)?.into()),
            snap_length: order.u32(body, 4)?,
            clock: Clock {
                per_second: per_second.unwrap_or(1_000_000),
                offset,
            },
        })
    }
}

const END_OF_OPTIONS: u16 = 0;
const TIME_RESOLUTION: u16 = 9;
const TIME_OFFSET: u16 = 14;
