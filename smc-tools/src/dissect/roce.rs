//! RoCE: LLC and CDC messages in the SENDs of reliable connections.
//!
//! RDMA WRITEs, acknowledgements and all other traffic are ignored. Which queue pairs belong to SMC
//! is not written anywhere in a packet, so a SEND is taken for SMC if it looks like a message, or
//! if an earlier one to the same queue pair was one.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;

use smc_wire::llc;

use super::link::Datagram;
use super::message::{Address, Cut, Family, Mark, Message};
use super::take_oldest;

/// All queue pairs of a capture.
#[derive(Debug, Default)]
pub(super) struct QueuePairs {
    table: HashMap<(IpAddr, IpAddr, u32), QueuePair>,
}

impl QueuePairs {
    /// Takes a packet; a message that it completes is appended to `found`.
    pub(super) fn packet(&mut self, mark: Mark, packet: &Datagram<'_>, found: &mut Vec<Message>) {
        let Some(send) = Send::parse(packet) else {
            return;
        };
        let key = (packet.src, packet.dst, send.queue_pair);
        if !self.table.contains_key(&key) && self.table.len() >= MAX_QUEUE_PAIRS {
            take_oldest(&mut self.table, MAX_QUEUE_PAIRS / 4, |flow| flow.last_used);
        }
        let flow = self.table.entry(key).or_default();
        flow.last_used = mark.frame;
        let Some(whole) = flow.assemble(&send) else {
            return;
        };
        let first = whole.bytes.first().copied().unwrap_or(0);
        if !flow.is_smc && !looks_like_smc(&whole) {
            return;
        }
        let cut = whole.cut();
        flow.is_smc |= cut.is_none();
        flow.learn(&whole.bytes);
        let retransmission = flow.seen.repeats(send.sequence, &whole.bytes);
        let src = match flow.sender {
            Some(number) => Address::QueuePair(packet.src, number),
            None => Address::Host(packet.src),
        };
        found.push(Message {
            mark,
            src,
            dst: Address::QueuePair(packet.dst, send.queue_pair),
            family: if first == CDC {
                Family::Cdc
            } else {
                Family::Llc
            },
            is_answer: false,
            bytes: whole.bytes,
            cut,
            retransmission,
        });
    }
}

/// Queue pairs that are remembered at a time.
const MAX_QUEUE_PAIRS: usize = 1 << 14;
/// More than one message's worth is another protocol.
const MAX_MESSAGE: usize = llc::MAX_MESSAGE_LEN;
/// SENDs that are remembered for telling retransmissions. A sender repeats what is not yet
/// acknowledged, and SMC keeps far fewer messages than this under way.
const MAX_SEEN: usize = 256;
/// First byte of a CDC message.
const CDC: u8 = 0xFE;
/// Length of CDC, of all LLC messages of version 1, and of most of version 2.
const USUAL_LEN: usize = llc::MESSAGE_LEN;

/// What is known of the packets one host sends to one queue pair.
#[derive(Debug, Default)]
struct QueuePair {
    is_smc: bool,
    /// The sender's queue pair, which packets do not name.
    sender: Option<u32>,
    /// The start of a message of several packets, behind the sequence number of its continuation.
    partial: Option<(u32, Whole)>,
    seen: Seen,
    last_used: u64,
}

impl QueuePair {
    /// CONFIRM LINK is the first message on a link, and names the sender's queue pair.
    fn learn(&mut self, message: &[u8]) {
        if let Ok(llc::Message::ConfirmLink(view)) = llc::Message::parse(message) {
            self.sender = Some(view.qpn.get());
        }
    }

    /// Puts the packets of one SEND together; gives the message when it is complete.
    fn assemble(&mut self, send: &Send<'_>) -> Option<Whole> {
        let partial = self.partial.take();
        let mut whole = match send.part {
            Part::First | Part::Only => Whole::default(),
            // A packet is missing, or this one is repeated: the message cannot be put together.
            Part::Middle | Part::Last => partial.filter(|(next, _)| *next == send.sequence)?.1,
        };
        // Behind a packet that was cut, the bytes would be in the wrong place.
        if whole.bytes.len() == whole.len {
            whole.bytes.extend_from_slice(send.bytes);
        }
        whole.len = whole.len.saturating_add(send.len);
        match send.part {
            Part::Only => Some(whole),
            _ if whole.len > MAX_MESSAGE => None,
            Part::Last => Some(whole),
            Part::First | Part::Middle => {
                self.partial = Some((send.sequence.wrapping_add(1) & NUMBER_MASK, whole));
                None
            }
        }
    }
}

/// A message, or the start of one.
#[derive(Debug, Default)]
struct Whole {
    bytes: Vec<u8>,
    /// Bytes on the wire.
    len: usize,
}

impl Whole {
    fn cut(&self) -> Option<Cut> {
        let got = self.bytes.len();
        (got < self.len).then_some(Cut {
            got,
            of: Some(self.len),
        })
    }
}

/// Whether a SEND is likely to be an LLC or CDC message: a known type, and a length that agrees.
fn looks_like_smc(whole: &Whole) -> bool {
    let [kind, rest @ ..] = whole.bytes.as_slice() else {
        return false;
    };
    let length_agrees = match *kind {
        CDC | 0x01..=0x04 | 0x06..=0x09 => rest
            .first()
            .is_some_and(|len| usize::from(*len) == whole.len),
        // Version 2. Linux writes the length in its own byte order.
        0x21 | 0x22 | 0x24..=0x27 | 0x29 => rest.first_chunk().is_some_and(|len| {
            whole.len == usize::from(u16::from_be_bytes(*len))
                || whole.len == usize::from(u16::from_le_bytes(*len))
        }),
        _ => return false,
    };
    length_agrees || whole.len == USUAL_LEN
}

/// The last SENDs to a queue pair: sequence number, and a hash of the bytes, because sequence
/// numbers come round again.
#[derive(Debug, Default)]
struct Seen(VecDeque<(u32, u64)>);

impl Seen {
    /// Whether this SEND was seen before; remembers it if not.
    fn repeats(&mut self, sequence: u32, bytes: &[u8]) -> bool {
        let mut hasher = DefaultHasher::new();
        bytes.hash(&mut hasher);
        let this = (sequence, hasher.finish());
        if self.0.contains(&this) {
            return true;
        }
        if self.0.len() >= MAX_SEEN {
            self.0.pop_front();
        }
        self.0.push_back(this);
        false
    }
}

/// A SEND packet of a reliable connection.
struct Send<'a> {
    part: Part,
    queue_pair: u32,
    sequence: u32,
    /// The payload, as far as it was captured.
    bytes: &'a [u8],
    /// Length of the payload on the wire.
    len: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    First,
    Middle,
    Last,
    Only,
}

impl<'a> Send<'a> {
    /// Reads the base transport header; `None` if the packet is no SEND.
    fn parse(packet: &Datagram<'a>) -> Option<Self> {
        let (header, rest) = packet.bytes.split_first_chunk::<BTH>()?;
        let [opcode, flags, ..] = *header;
        let number = |at: usize| Some(u32::from_be_bytes(*header.get(at..)?.first_chunk()?));
        let (part, extra) = match opcode {
            0x00 => (Part::First, 0),
            0x01 => (Part::Middle, 0),
            0x02 => (Part::Last, 0),
            // With immediate data, and with an rkey to invalidate: four bytes more.
            0x03 | 0x16 => (Part::Last, 4),
            0x04 => (Part::Only, 0),
            0x05 | 0x17 => (Part::Only, 4),
            _ => return None,
        };
        let version = flags & 0x0F;
        if version != 0 {
            return None;
        }
        let padding = usize::from(flags >> 4 & 0x03);
        let payload = rest.get(extra..).unwrap_or_default();
        let on_wire = rest.len().checked_add(packet.missing)?;
        let len = on_wire.checked_sub(extra + padding + ICRC)?;
        Some(Self {
            part,
            queue_pair: number(4)? & NUMBER_MASK,
            sequence: number(8)? & NUMBER_MASK,
            bytes: payload.get(..len).unwrap_or(payload),
            len,
        })
    }
}

/// Bytes of the base transport header.
const BTH: usize = 12;
/// Bytes of the invariant CRC behind the payload.
const ICRC: usize = 4;
/// Numbers of queue pairs and packets have 24 bits.
const NUMBER_MASK: u32 = 0x00FF_FFFF;
