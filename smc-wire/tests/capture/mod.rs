//! Enough of pcap, Ethernet, IP, TCP and RoCEv2 to take SMC messages out of a capture.
//!
//! Nothing here uses the crate under test, so that a capture's message boundaries are found
//! independently of it.

#![allow(
    dead_code,
    reason = "shared by several test binaries, none of which uses all of it"
)]

mod net;
mod pcap;
mod roce;
mod tcp;

use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// One SMC message of a capture.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    /// 1-based number of the frame that completed the message.
    pub(crate) frame: usize,
    /// Who sent it.
    pub(crate) src: IpAddr,
    /// Who was to receive it.
    pub(crate) dst: IpAddr,
    /// The message, without anything around it.
    pub(crate) bytes: Vec<u8>,
}

/// Everything of SMC in one capture.
#[derive(Debug, Default)]
pub(crate) struct Capture {
    /// CLC messages, in stream order per direction.
    pub(crate) clc: Vec<Found>,
    /// LLC messages (received RDMA SENDs that are no CDC), RC retransmissions left out.
    pub(crate) llc: Vec<Found>,
    /// CDC messages of SMC-R, RC retransmissions left out.
    pub(crate) cdc: Vec<Found>,
    /// What the TCP directions carried that was not CLC, one entry per direction.
    pub(crate) application: Vec<Found>,
    /// The TCP options of each SYN and SYN/ACK.
    pub(crate) syn_options: Vec<Found>,
    /// RDMA WRITE packets.
    pub(crate) write_packets: usize,
    /// Frames that hold nothing for us, with the reason.
    pub(crate) skipped: Vec<(usize, &'static str)>,
}

impl Capture {
    /// Reads and takes apart one capture file.
    pub(crate) fn open(path: &Path) -> Self {
        let file = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        Self::from_bytes(&file)
    }

    /// Takes apart the contents of a capture file.
    pub(crate) fn from_bytes(file: &[u8]) -> Self {
        let (link, frames) = pcap::read(file);
        let mut capture = Self::default();
        let mut streams = tcp::Streams::default();
        let mut sends = roce::Sends::default();
        for frame in &frames {
            let packet = match net::parse(link, &frame.data) {
                Ok(packet) => packet,
                Err(why) => {
                    capture.skipped.push((frame.number, why));
                    continue;
                }
            };
            let (src, dst) = (packet.src, packet.dst);
            let found = |bytes| Found {
                frame: frame.number,
                src,
                dst,
                bytes,
            };
            match packet.payload {
                net::Payload::Tcp(segment) => {
                    if segment.syn {
                        capture.syn_options.push(found(segment.options.to_vec()));
                    }
                    streams.push(frame.number, src, dst, &segment);
                }
                net::Payload::Roce(bytes) => match sends.push(frame.number, src, dst, bytes) {
                    roce::Outcome::Send => {}
                    roce::Outcome::Write => capture.write_packets += 1,
                    roce::Outcome::Skipped(why) => capture.skipped.push((frame.number, why)),
                },
            }
        }
        let (cdc, llc) = sends
            .finish()
            .into_iter()
            .partition(|found| found.bytes.starts_with(&[0xFE]));
        (capture.cdc, capture.llc) = (cdc, llc);
        for stream in streams.finish() {
            capture.add_stream(&stream);
        }
        capture.clc.sort_by_key(|found| found.frame);
        capture
    }

    fn add_stream(&mut self, stream: &tcp::Stream) {
        let (messages, rest) = if stream.may_use_clc {
            split_clc(&stream.bytes)
        } else {
            (Vec::new(), 0)
        };
        let found = |start: usize, end: usize| Found {
            frame: stream.frame_of(end),
            src: stream.src,
            dst: stream.dst,
            bytes: stream.bytes[start..end].to_vec(),
        };
        self.clc
            .extend(messages.into_iter().map(|(start, end)| found(start, end)));
        if rest < stream.bytes.len() {
            self.application.push(found(rest, stream.bytes.len()));
        }
    }
}

/// Finds the CLC messages at the start of one direction of a TCP connection: their ranges, and
/// where the application's bytes begin.
fn split_clc(stream: &[u8]) -> (Vec<(usize, usize)>, usize) {
    const EYECATCHERS: [[u8; 4]; 2] = [[0xE2, 0xD4, 0xC3, 0xD9], [0xE2, 0xD4, 0xC3, 0xC4]];
    const DECLINE: u8 = 4;
    let mut messages = Vec::new();
    let mut at = 0;
    while let Some(header) = stream.get(at..at + 8) {
        let length = usize::from(u16::from_be_bytes([header[5], header[6]]));
        let is_clc = EYECATCHERS
            .iter()
            .any(|eyecatcher| header.starts_with(eyecatcher));
        // The last condition: a message whose end the capture lacks.
        if !is_clc || length < 8 || at + length > stream.len() {
            break;
        }
        messages.push((at, at + length));
        at += length;
        if header[4] == DECLINE {
            break;
        }
    }
    (messages, at)
}

/// The folder of the captures.
pub(crate) fn vectors_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors")
}

/// All captures, sorted by name.
pub(crate) fn captures() -> Vec<(String, PathBuf)> {
    let dir = vectors_dir();
    let mut found: Vec<_> = std::fs::read_dir(&dir)
        .unwrap_or_else(|e| panic!("{}: {e}", dir.display()))
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            if path.extension()? != "pcap" {
                return None;
            }
            Some((path.file_stem()?.to_string_lossy().into_owned(), path))
        })
        .collect();
    found.sort();
    found
}
