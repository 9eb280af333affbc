//! TCP reassembly: out of order, overlapping and repeated segments; a gap ends the stream.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};

use super::net::{Segment, signed};

/// One direction of one TCP connection.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
    /// The bytes from the start up to the end or to the first gap.
    pub(crate) bytes: Vec<u8>,
    /// False if the handshake was captured and one of its segments lacks the SMC option.
    pub(crate) may_use_clc: bool,
    /// (end offset, frame) of each piece, ascending.
    pieces: Vec<(usize, usize)>,
}

impl Stream {
    /// The frame in which the byte before `end` came.
    pub(crate) fn frame_of(&self, end: usize) -> usize {
        self.pieces
            .iter()
            .find(|(to, _)| *to >= end)
            .map_or(0, |(_, frame)| *frame)
    }
}

/// Collects segments of all connections of a capture.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    /// Connections in order of appearance; a port pair that is used again is a new one.
    connections: Vec<Connection>,
    current: HashMap<(SocketAddr, SocketAddr), usize>,
}

#[derive(Debug, Default)]
struct Connection {
    halves: Vec<Half>,
    option_missing: bool,
}

#[derive(Debug)]
struct Half {
    src: SocketAddr,
    dst: SocketAddr,
    /// Sequence number of the first byte, if the SYN was seen.
    isn: Option<u32>,
    /// Any sequence number seen first; offsets are relative to it.
    reference: u32,
    segments: BTreeMap<i64, Vec<(usize, Vec<u8>)>>,
}

impl Streams {
    pub(crate) fn push(&mut self, frame: usize, src: IpAddr, dst: IpAddr, segment: &Segment<'_>) {
        let src = SocketAddr::new(src, segment.src_port);
        let dst = SocketAddr::new(dst, segment.dst_port);
        let key = if src < dst { (src, dst) } else { (dst, src) };
        let mut index = self.current.get(&key).copied();
        if let Some(known) = index {
            // A SYN with another sequence number: the ports are in use again.
            let reused = segment.syn
                && self.connections[known].halves.iter().any(|h| {
                    h.src == src && h.isn.is_some_and(|isn| isn != segment.seq.wrapping_add(1))
                });
            if reused {
                index = None;
            }
        }
        let index = index.unwrap_or_else(|| {
            self.connections.push(Connection::default());
            self.connections.len() - 1
        });
        self.current.insert(key, index);
        let connection = &mut self.connections[index];
        if segment.syn && !has_smc_option(segment.options) {
            connection.option_missing = true;
        }
        let first = segment.seq.wrapping_add(u32::from(segment.syn));
        let half = match connection.halves.iter().position(|h| h.src == src) {
            Some(at) => &mut connection.halves[at],
            None => {
                connection.halves.push(Half {
                    src,
                    dst,
                    isn: None,
                    reference: first,
                    segments: BTreeMap::new(),
                });
                connection.halves.last_mut().expect("just pushed")
            }
        };
        if segment.syn {
            half.isn = Some(first);
        }
        if !segment.data.is_empty() {
            let offset = i64::from(signed(first.wrapping_sub(half.reference)));
            half.segments
                .entry(offset)
                .or_default()
                .push((frame, segment.data.to_vec()));
        }
    }

    pub(crate) fn finish(self) -> Vec<Stream> {
        self.connections
            .into_iter()
            .flat_map(|connection| {
                let may_use_clc = !connection.option_missing;
                connection
                    .halves
                    .into_iter()
                    .map(move |half| half.assemble(may_use_clc))
            })
            .collect()
    }
}

impl Half {
    fn assemble(self, may_use_clc: bool) -> Stream {
        let start = match self.isn {
            Some(isn) => i64::from(signed(isn.wrapping_sub(self.reference))),
            None => self.segments.keys().next().copied().unwrap_or(0),
        };
        let mut bytes = Vec::new();
        let mut pieces = Vec::new();
        for (offset, copies) in &self.segments {
            for (frame, data) in copies {
                let have = i64::try_from(bytes.len()).expect("an i64");
                // Bytes of this segment that are there already; all of a keep-alive probe.
                let skip = have - (offset - start);
                if skip < 0 {
                    break;
                }
                let skip = usize::try_from(skip).expect("not negative");
                if let Some(new) = data.get(skip..).filter(|new| !new.is_empty()) {
                    bytes.extend_from_slice(new);
                    pieces.push((bytes.len(), *frame));
                }
            }
        }
        Stream {
            src: self.src.ip(),
            dst: self.dst.ip(),
            bytes,
            may_use_clc,
            pieces,
        }
    }
}

/// Whether kind 254 with the ExID of SMC is among the options of a SYN.
fn has_smc_option(mut options: &[u8]) -> bool {
    while let Some((&kind, rest)) = options.split_first() {
        match kind {
            0 => return false,
            1 => options = rest,
            _ => {
                let Some(&length) = rest.first() else {
                    return false;
                };
                let Some((option, tail)) = options.split_at_checked(usize::from(length).max(2))
                else {
                    return false;
                };
                if kind == 254 && option.get(2..6) == Some(&[0xE2, 0xD4, 0xC3, 0xD9]) {
                    return true;
                }
                options = tail;
            }
        }
    }
    false
}
