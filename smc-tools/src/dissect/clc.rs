//! TCP connections: the SMC option in SYN and SYN/ACK, and the CLC messages that follow.
//!
//! CLC stands at the start of each direction, if at all. A direction that begins with something
//! else is of no interest, and neither is anything behind the handshake or a DECLINE.

use std::collections::HashMap;
use std::net::SocketAddr;

use smc_wire::option;

use super::link::Segment;
use super::message::{Address, Cut, Family, Mark, Message};
use super::stream::{Full, Stream};
use super::take_oldest;

/// All TCP connections of a capture.
#[derive(Debug, Default)]
pub(super) struct Connections {
    table: HashMap<(SocketAddr, SocketAddr), Connection>,
    /// Bytes that they hold.
    memory: usize,
}

impl Connections {
    /// Takes a segment; messages that it completes are appended to `found`.
    pub(super) fn segment(&mut self, mark: Mark, segment: &Segment<'_>, found: &mut Vec<Message>) {
        let ends = ordered(segment.src, segment.dst);
        if !self.table.contains_key(&ends) {
            if segment.payload.is_empty() && !segment.syn {
                return;
            }
            self.evict(MAX_CONNECTIONS, found);
        }
        let connection = self.table.entry(ends);
        let connection = connection.or_insert_with(|| Connection::new(ends, mark));
        connection.last_used = mark;
        let before = connection.memory();
        connection.segment(mark, segment, found);
        let after = connection.memory();
        self.memory = self.memory.saturating_sub(before).saturating_add(after);
        while self.memory > MAX_MEMORY && self.table.len() >= FEW {
            self.evict(self.table.len(), found);
        }
    }

    /// Where there are so many, gives up a quarter.
    fn evict(&mut self, most: usize, found: &mut Vec<Message>) {
        if self.table.len() >= most {
            self.give_up(most / 4, found);
        }
    }

    /// Gives up those that were used least recently.
    fn give_up(&mut self, count: usize, found: &mut Vec<Message>) {
        for mut old in take_oldest(&mut self.table, count, |it| it.last_used) {
            self.memory = self.memory.saturating_sub(old.memory());
            old.finish(found);
        }
    }

    /// The capture is over: what is incomplete will stay so. Ends some of the connections, those
    /// that were used least recently first; false if there were none.
    pub(super) fn finish_some(&mut self, found: &mut Vec<Message>) -> bool {
        if self.table.is_empty() {
            return false;
        }
        let first = found.len();
        self.give_up(ENDED_AT_A_TIME, found);
        if let Some(rest) = found.get_mut(first..) {
            rest.sort_by_key(|message| (message.mark, message.src));
        }
        true
    }
}

/// Connections that are remembered at a time.
const MAX_CONNECTIONS: usize = 1 << 16;
/// Bytes that they all hold: a direction of which all segments come holds a message at most.
const MAX_MEMORY: usize = 256 << 20;
/// Connections whose own bounds are enough.
const FEW: usize = 64;
/// Messages of a direction: a handshake has two, and whatever has more is none.
const MESSAGES_MAX: u8 = 8;
/// Connections that end at a time when the capture is over.
const ENDED_AT_A_TIME: usize = 4096;
/// How much of a direction whose SYN was not seen is searched for the start of a handshake.
const MAX_SEARCH: usize = 16 << 10;

#[derive(Debug)]
struct Connection {
    halves: [Half; 2],
    last_used: Mark,
}

impl Connection {
    fn new((low, high): (SocketAddr, SocketAddr), mark: Mark) -> Self {
        Self {
            halves: [Half::new(low, high), Half::new(high, low)],
            last_used: mark,
        }
    }

    fn segment(&mut self, mark: Mark, segment: &Segment<'_>, found: &mut Vec<Message>) {
        if segment.syn {
            self.syn(mark, segment, found);
        }
        let (half, peer) = self.direction(segment.src);
        if half.is_over {
            return;
        }
        // The data of a SYN comes behind the sequence number that the SYN itself takes.
        let sequence = segment.sequence.wrapping_add(u32::from(segment.syn));
        let taken = half
            .stream
            .insert(mark, sequence, segment.payload, segment.missing);
        half.drain(peer.has_declined, found);
        if taken == Err(Full) {
            half.finish(peer.has_declined, found);
        }
    }

    /// A SYN or SYN/ACK: the option, and possibly a new connection between the same ports.
    fn syn(&mut self, mark: Mark, segment: &Segment<'_>, found: &mut Vec<Message>) {
        let (half, peer) = self.direction(segment.src);
        let repeated = half.syn == Some(segment.sequence);
        if !repeated {
            let fits = half.syn.is_none() && !half.is_over && half.stream.fits(segment.sequence);
            if !fits {
                let is_answer =
                    segment.ack && peer.syn == Some(segment.acknowledgment.wrapping_sub(1));
                half.finish(peer.has_declined, found);
                *half = Half::new(half.src, half.dst);
                if !is_answer {
                    peer.finish(false, found);
                    *peer = Half::new(peer.src, peer.dst);
                }
            }
            half.syn = Some(segment.sequence);
            half.stream.anchor(segment.sequence);
        }
        if let Some(option) = option::find(segment.options) {
            found.push(Message {
                mark,
                src: Address::Tcp(segment.src),
                dst: Address::Tcp(segment.dst),
                family: Family::TcpOption,
                is_answer: segment.ack,
                bytes: option.bytes.to_vec(),
                cut: None,
                retransmission: repeated,
            });
        }
    }

    fn finish(&mut self, found: &mut Vec<Message>) {
        let [low, high] = &mut self.halves;
        low.finish(high.has_declined, found);
        high.finish(low.has_declined, found);
    }

    fn memory(&self) -> usize {
        let [low, high] = &self.halves;
        low.stream.memory().saturating_add(high.stream.memory())
    }

    /// The direction that `src` sends in, and the other one.
    fn direction(&mut self, src: SocketAddr) -> (&mut Half, &mut Half) {
        let [low, high] = &mut self.halves;
        if low.src == src {
            (low, high)
        } else {
            (high, low)
        }
    }
}

/// One direction of a connection.
#[derive(Debug)]
struct Half {
    src: SocketAddr,
    dst: SocketAddr,
    stream: Stream,
    /// Sequence number of its SYN.
    syn: Option<u32>,
    has_declined: bool,
    /// No message was seen yet.
    is_fresh: bool,
    /// No CLC message can follow.
    is_over: bool,
    /// Messages that were reported.
    reported: u8,
}

impl Half {
    fn new(src: SocketAddr, dst: SocketAddr) -> Self {
        Self {
            src,
            dst,
            stream: Stream::default(),
            syn: None,
            has_declined: false,
            is_fresh: true,
            is_over: false,
            reported: 0,
        }
    }

    /// Takes the messages that are complete, or that will not get more complete.
    fn drain(&mut self, peer_declined: bool, found: &mut Vec<Message>) {
        while !self.is_over {
            if self.reported >= MESSAGES_MAX {
                return self.close();
            }
            let front = self.stream.front();
            let next = Next::of(front);
            match next {
                Next::Other if self.stream.is_floating() && front.len() < MAX_SEARCH => return,
                Next::Other => self.close(),
                Next::Unknown if self.stream.lost() > 0 => self.close(),
                Next::Unknown => return,
                Next::Broken => {
                    self.report(CLC_HEADER, None, found);
                    self.close();
                }
                Next::Message { len } if front.len() >= len => {
                    self.complete(len, peer_declined, found);
                }
                Next::Message { len } if self.stream.lost() > 0 => self.cut(Some(len), found),
                Next::Begun if self.stream.lost() > 0 => self.cut(None, found),
                Next::Message { .. } | Next::Begun => return,
            }
        }
    }

    /// Nothing more will come: reports the rest, and checks behind the gaps.
    fn finish(&mut self, peer_declined: bool, found: &mut Vec<Message>) {
        loop {
            self.drain(peer_declined, found);
            if self.is_over {
                return;
            }
            let front = self.stream.front();
            match (Next::of(front), self.stream.gap()) {
                (Next::Message { len }, _) => self.cut(Some(len), found),
                (Next::Begun, _) => self.cut(None, found),
                (_, Some(gap)) => self.stream.advance(front.len().saturating_add(gap).max(1)),
                (_, None) => self.close(),
            }
        }
    }

    /// A whole message is there.
    fn complete(&mut self, len: usize, peer_declined: bool, found: &mut Vec<Message>) {
        let kind = self.stream.front().get(CLC_TYPE).copied();
        // Once the peer has declined, only messages that were under way can follow. Anything else
        // is application data, however much it looks like CLC. A first PROPOSAL is what the peer
        // declined: the capture has them in the wrong order.
        let was_under_way = match kind {
            Some(PROPOSAL) => self.is_fresh,
            kind => matches!(kind, Some(CONFIRM | DECLINE)),
        };
        if peer_declined && !was_under_way {
            return self.close();
        }
        self.report(len, None, found);
        self.is_fresh = false;
        self.stream.advance(len);
        if kind == Some(DECLINE) {
            self.has_declined = true;
            self.close();
        }
    }

    /// Part of a message is there, and the rest will not come.
    fn cut(&mut self, of: Option<usize>, found: &mut Vec<Message>) {
        let got = self.stream.front().len();
        self.report(got, Some(Cut { got, of }), found);
        match of {
            Some(len) => self.stream.advance(len),
            None => self.close(),
        }
    }

    fn report(&mut self, len: usize, cut: Option<Cut>, found: &mut Vec<Message>) {
        self.reported += 1;
        let front = self.stream.front();
        found.push(Message {
            mark: self.stream.newest(),
            src: Address::Tcp(self.src),
            dst: Address::Tcp(self.dst),
            family: Family::Clc,
            is_answer: false,
            bytes: front.get(..len).unwrap_or(front).to_vec(),
            cut,
            retransmission: false,
        });
    }

    /// Stops looking at this direction, and gives its memory back.
    fn close(&mut self) {
        self.is_over = true;
        self.stream = Stream::default();
    }
}

/// What the next bytes of a direction are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// Too little to decide.
    Unknown,
    /// Not CLC.
    Other,
    /// A message whose length is not there yet.
    Begun,
    /// A header with a length that no message can have.
    Broken,
    /// A message of this length.
    Message { len: usize },
}

impl Next {
    fn of(front: &[u8]) -> Self {
        let known = front.len().min(EYECATCHERS[0].len());
        if !EYECATCHERS
            .iter()
            .any(|word| word.get(..known) == front.get(..known))
        {
            return Self::Other;
        }
        match *front {
            [_, _, _, _, _, high, low, _, ..] => {
                let len = usize::from(u16::from_be_bytes([high, low]));
                if len < CLC_HEADER {
                    Self::Broken
                } else {
                    Self::Message { len }
                }
            }
            [_, _, _, _, ..] => Self::Begun,
            _ => Self::Unknown,
        }
    }
}

/// "SMCR" and "SMCD" in EBCDIC.
const EYECATCHERS: [[u8; 4]; 2] = [[0xE2, 0xD4, 0xC3, 0xD9], [0xE2, 0xD4, 0xC3, 0xC4]];
/// Bytes of the header that all CLC messages have.
const CLC_HEADER: usize = 8;
/// Offset of the message type in it.
const CLC_TYPE: usize = 4;
const PROPOSAL: u8 = 1;
const CONFIRM: u8 = 3;
const DECLINE: u8 = 4;

/// The same key for both directions.
fn ordered(one: SocketAddr, other: SocketAddr) -> (SocketAddr, SocketAddr) {
    (one.min(other), one.max(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Segments of ever new connections, each with a gap before them.
    fn hold(payload: &[u8], segments: u32, count: u16) -> Connections {
        let mut connections = Connections::default();
        let mut found = Vec::new();
        let server = SocketAddr::from(([10, 0, 0, 2], 80));
        for number in 0..count {
            let client = SocketAddr::from(([10, 0, 0, 1], number));
            for at in 0..=segments {
                let segment = Segment {
                    src: client,
                    dst: server,
                    // A SYN, and then every other segment.
                    sequence: at * 2 * (payload.len() as u32 + 1),
                    acknowledgment: 0,
                    syn: at == 0,
                    ack: false,
                    options: &[],
                    payload: if at == 0 { &[] } else { payload },
                    missing: 0,
                };
                let mark = Mark {
                    frame: u64::from(number),
                    ..Mark::default()
                };
                connections.segment(mark, &segment, &mut found);
            }
        }
        connections
    }

    #[test]
    fn what_all_connections_hold_is_bounded() {
        let connections = hold(&[1; 60_000], 2, 6000);
        assert!(connections.memory <= MAX_MEMORY);
        let all = connections.table.values().map(Connection::memory);
        assert_eq!(all.sum::<usize>(), connections.memory);
        assert!((1000..6000).contains(&connections.table.len()));
        // Pieces of a byte count as well.
        assert!(hold(&[1], 4000, 1).memory > 400_000);
    }
}
