//! The reliable-connection packets of RoCE: SEND messages in the order of their packet sequence
//! numbers, put together and without retransmissions.
//!
//! A packet that overtakes a lost one is in a capture although its receiver threw it away, and
//! appears again later. Sorting by sequence number yields what the receiver saw.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use super::Found;
use super::net::{be32, signed};

/// What one packet brought.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Outcome {
    /// A SEND or a part of one.
    Send,
    /// A packet of an RDMA WRITE.
    Write,
    /// Nothing for SMC.
    Skipped(&'static str),
}

/// SENDs of all queue pairs of a capture.
#[derive(Debug, Default)]
pub(crate) struct Sends {
    flows: HashMap<Flow, Vec<Epoch>>,
}

/// Sender, receiver, and queue pair of the receiver.
type Flow = (IpAddr, IpAddr, u32);

/// The life of one queue pair; its number may be used again with other sequence numbers.
#[derive(Debug)]
struct Epoch {
    base: u32,
    /// By distance from `base`.
    packets: BTreeMap<i32, Packet>,
}

#[derive(Debug, PartialEq, Eq)]
struct Packet {
    frame: usize,
    part: Part,
    payload: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    First,
    Middle,
    Last,
    Only,
}

impl Sends {
    /// Takes a packet from BTH to ICRC.
    pub(crate) fn push(
        &mut self,
        frame: usize,
        src: IpAddr,
        dst: IpAddr,
        packet: &[u8],
    ) -> Outcome {
        const BTH: usize = 12;
        const ICRC: usize = 4;
        const LIMIT: &str = "packet too short";
        let Some(bth) = packet.get(..BTH) else {
            return Outcome::Skipped(LIMIT);
        };
        let padding = usize::from(bth[1] >> 4 & 0x3);
        let queue_pair = be32(bth, 4).expect("twelve bytes") & 0x00FF_FFFF;
        let psn = be32(bth, 8).expect("twelve bytes") & 0x00FF_FFFF;
        // Immediate data or an rkey to invalidate take four bytes more.
        let (part, more) = match bth[0] {
            0x00 => (Part::First, 0),
            0x01 => (Part::Middle, 0),
            0x02 => (Part::Last, 0),
            0x03 | 0x16 => (Part::Last, 4),
            0x04 => (Part::Only, 0),
            0x05 | 0x17 => (Part::Only, 4),
            0x06..=0x0B => return Outcome::Write,
            0x11 => return Outcome::Skipped("acknowledgement"),
            _ => return Outcome::Skipped("opcode of no interest"),
        };
        let end = packet.len().checked_sub(ICRC + padding);
        let Some(payload) = end.and_then(|end| packet.get(BTH + more..end)) else {
            return Outcome::Skipped(LIMIT);
        };
        let packet = Packet {
            frame,
            part,
            payload: payload.to_vec(),
        };
        let epochs = self.flows.entry((src, dst, queue_pair)).or_default();
        for epoch in epochs.iter_mut().rev() {
            let at = distance(epoch.base, psn);
            if at.abs() > Epoch::REACH {
                continue;
            }
            match epoch.packets.get(&at) {
                None => {
                    epoch.packets.insert(at, packet);
                    return Outcome::Send;
                }
                Some(known) if known.part == part && known.payload == packet.payload => {
                    return Outcome::Skipped("retransmission");
                }
                Some(_) => {}
            }
        }
        epochs.push(Epoch {
            base: psn,
            packets: BTreeMap::from([(0, packet)]),
        });
        Outcome::Send
    }

    /// All messages, each with the frame at which it and all before it were there.
    pub(crate) fn finish(self) -> Vec<Found> {
        let mut all = Vec::new();
        for ((src, dst, _), epochs) in self.flows {
            for epoch in epochs {
                let messages = epoch.messages().into_iter();
                all.extend(messages.map(|(frame, bytes)| Found {
                    frame,
                    src,
                    dst,
                    bytes,
                }));
            }
        }
        all.sort_by_key(|found| found.frame);
        all
    }
}

impl Epoch {
    /// Sequence numbers further apart than this belong to different queue pairs.
    const REACH: i32 = 1 << 16;

    fn messages(self) -> Vec<(usize, Vec<u8>)> {
        let mut messages = Vec::new();
        let mut reached = 0;
        // Next distance and bytes so far of a message in several packets.
        let mut partial: Option<(i32, Vec<u8>)> = None;
        for (at, packet) in self.packets {
            reached = reached.max(packet.frame);
            let begun = partial.take().filter(|(next, _)| *next == at);
            match (packet.part, begun) {
                (Part::Only, _) => messages.push((reached, packet.payload)),
                (Part::First, _) => partial = Some((at + 1, packet.payload)),
                (Part::Middle, Some((_, mut bytes))) => {
                    bytes.extend(packet.payload);
                    partial = Some((at + 1, bytes));
                }
                (Part::Last, Some((_, mut bytes))) => {
                    bytes.extend(packet.payload);
                    messages.push((reached, bytes));
                }
                // Its beginning is not in the capture.
                (Part::Middle | Part::Last, None) => {}
            }
        }
        messages
    }
}

/// How far `to` is ahead of `from` in the circle of 24-bit numbers.
fn distance(from: u32, to: u32) -> i32 {
    signed(to.wrapping_sub(from) << 8) >> 8
}
