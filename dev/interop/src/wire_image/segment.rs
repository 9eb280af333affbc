//! TCP segments of a capture, and their options.

use std::iter;
use std::net::SocketAddr;

use anyhow::{Result, ensure};
use smc_wire::option;

use crate::capture::{Packet, be16};

/// The header of a TCP segment.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    pub(super) sequence: u32,
    pub(super) is_syn: bool,
    pub(super) options: Vec<u8>,
    /// Bytes of data.
    pub(super) len: usize,
}

impl Segment {
    pub(super) fn of_frame(frame: &[u8]) -> Option<Self> {
        let packet = Packet::of_frame(frame).filter(|packet| packet.protocol == TCP)?;
        let tcp = packet.contents;
        let header = usize::from(tcp.get(12)? >> 4) * 4;
        Some(Self {
            from: SocketAddr::new(packet.from, be16(tcp, 0)?),
            to: SocketAddr::new(packet.to, be16(tcp, 2)?),
            sequence: u32::from_be_bytes(*tcp.get(4..)?.first_chunk()?),
            is_syn: tcp.get(13)? & SYN != 0,
            options: tcp.get(20..header)?.to_vec(),
            len: packet.len.checked_sub(header)?,
        })
    }

    /// Whether it is the SYN that a kernel knows: with the SMC option, and without data.
    pub(super) fn check_syn(&self) -> Result<()> {
        ensure!(option::find(&self.options).is_some(), "no SMC option");
        let is_fast_open =
            |option: &[u8]| matches!(option, [FAST_OPEN, ..] | [option::KIND, _, 0xf9, 0x89, ..]);
        ensure!(!self.options().any(is_fast_open), "TCP Fast Open");
        ensure!(self.len == 0, "{} bytes of data", self.len);
        Ok(())
    }

    /// The options without the time.
    pub(super) fn normal_options(&self) -> Vec<u8> {
        let options = self.options().map(|option| match option {
            [TIMESTAMPS, ..] => &[TIMESTAMPS],
            _ => option,
        });
        options.flatten().copied().collect()
    }

    /// The options, each with its kind and length.
    fn options(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = &*self.options;
        iter::from_fn(move || {
            let len = match rest {
                [END | NOP, ..] => 1,
                [_, len, ..] => usize::from(*len).max(1),
                _ => rest.len(),
            };
            let (option, behind) = rest.split_at_checked(len).unwrap_or((rest, &[]));
            rest = behind;
            (!option.is_empty()).then_some(option)
        })
    }
}

// Kinds of TCP options (RFC 9293, RFC 7323, RFC 7413 with appendix A).

const END: u8 = 0;
const NOP: u8 = 1;
pub(super) const TIMESTAMPS: u8 = 8;
pub(super) const FAST_OPEN: u8 = 34;

const TCP: u8 = 6;

/// The flag of a SYN.
const SYN: u8 = 0x02;
