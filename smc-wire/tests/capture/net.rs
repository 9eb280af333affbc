//! Link layer, IPv4, IPv6, TCP and UDP headers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::pcap::LinkType;

/// An IP packet that may hold something of SMC.
#[derive(Debug)]
pub(crate) struct Packet<'a> {
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
    pub(crate) payload: Payload<'a>,
}

#[derive(Debug)]
pub(crate) enum Payload<'a> {
    Tcp(Segment<'a>),
    /// From the BTH to the ICRC, both included.
    Roce(&'a [u8]),
}

#[derive(Debug)]
pub(crate) struct Segment<'a> {
    pub(crate) src_port: u16,
    pub(crate) dst_port: u16,
    pub(crate) seq: u32,
    pub(crate) syn: bool,
    pub(crate) ack: bool,
    pub(crate) options: &'a [u8],
    pub(crate) data: &'a [u8],
}

const ROCE_V2_PORT: u16 = 4791;

/// Takes one frame apart; the error is the reason why it is of no interest.
pub(crate) fn parse(link: LinkType, frame: &[u8]) -> Result<Packet<'_>, &'static str> {
    const SHORT: &str = "frame too short";
    let (ethertype, rest) = match link {
        LinkType::Ethernet => {
            let mut rest = frame.get(12..).ok_or(SHORT)?;
            let mut ethertype = be16(rest, 0).ok_or(SHORT)?;
            // 802.1Q and 802.1ad tags, possibly several.
            while matches!(ethertype, 0x8100 | 0x88A8 | 0x9100) {
                rest = rest.get(4..).ok_or(SHORT)?;
                ethertype = be16(rest, 0).ok_or(SHORT)?;
            }
            (ethertype, rest.get(2..).ok_or(SHORT)?)
        }
        LinkType::Cooked => (be16(frame, 14).ok_or(SHORT)?, frame.get(16..).ok_or(SHORT)?),
        LinkType::Cooked2 => (be16(frame, 0).ok_or(SHORT)?, frame.get(20..).ok_or(SHORT)?),
        LinkType::Raw => match frame.first().ok_or(SHORT)? >> 4 {
            4 => (0x0800, frame),
            6 => (0x86DD, frame),
            _ => return Err("not IP"),
        },
    };
    match ethertype {
        0x0800 => ipv4(rest).ok_or(SHORT)?,
        0x86DD => ipv6(rest).ok_or(SHORT)?,
        // RoCEv1: a GRH has the shape of an IPv6 header.
        0x8915 => {
            let (src, dst) = ipv6_addresses(rest).ok_or(SHORT)?;
            let length = usize::from(be16(rest, 4).ok_or(SHORT)?);
            let payload = rest.get(40..).and_then(|r| r.get(..length)).ok_or(SHORT)?;
            Ok(Packet {
                src,
                dst,
                payload: Payload::Roce(payload),
            })
        }
        _ => Err("neither IP nor RoCE"),
    }
}

fn ipv4(packet: &[u8]) -> Option<Result<Packet<'_>, &'static str>> {
    let header_length = usize::from(packet.first()? & 0x0F) * 4;
    // Zero: segmentation was left to the device, so the header does not know.
    let total = match usize::from(be16(packet, 2)?) {
        0 => packet.len(),
        total => total.min(packet.len()),
    };
    if be16(packet, 6)? & 0x3FFF != 0 {
        return Some(Err("IPv4 fragment"));
    }
    let src = IpAddr::V4(Ipv4Addr::from(be32(packet, 12)?));
    let dst = IpAddr::V4(Ipv4Addr::from(be32(packet, 16)?));
    transport(src, dst, *packet.get(9)?, packet.get(header_length..total)?)
}

fn ipv6(packet: &[u8]) -> Option<Result<Packet<'_>, &'static str>> {
    let (src, dst) = ipv6_addresses(packet)?;
    let mut next = *packet.get(6)?;
    let length = usize::from(be16(packet, 4)?);
    let rest = packet.get(40..)?;
    let mut rest = rest.get(..length.min(rest.len()))?;
    loop {
        match next {
            // Hop-by-hop, routing and destination options: length in units of 8 without the first.
            0 | 43 | 60 => {
                next = *rest.first()?;
                rest = rest.get((usize::from(*rest.get(1)?) + 1) * 8..)?;
            }
            44 => return Some(Err("IPv6 fragment")),
            _ => return transport(src, dst, next, rest),
        }
    }
}

fn ipv6_addresses(packet: &[u8]) -> Option<(IpAddr, IpAddr)> {
    let address = |at: usize| {
        let octets: [u8; 16] = packet.get(at..at + 16)?.try_into().ok()?;
        Some(IpAddr::V6(Ipv6Addr::from(octets)))
    };
    Some((address(8)?, address(24)?))
}

fn transport(
    src: IpAddr,
    dst: IpAddr,
    protocol: u8,
    bytes: &[u8],
) -> Option<Result<Packet<'_>, &'static str>> {
    let payload = match protocol {
        6 => {
            let header_length = usize::from(bytes.get(12)? >> 4) * 4;
            let flags = *bytes.get(13)?;
            Payload::Tcp(Segment {
                src_port: be16(bytes, 0)?,
                dst_port: be16(bytes, 2)?,
                seq: be32(bytes, 4)?,
                syn: flags & 0x02 != 0,
                ack: flags & 0x10 != 0,
                options: bytes.get(20..header_length)?,
                data: bytes.get(header_length..)?,
            })
        }
        17 if be16(bytes, 2)? == ROCE_V2_PORT => {
            let length = usize::from(be16(bytes, 4)?).min(bytes.len());
            Payload::Roce(bytes.get(8..length)?)
        }
        _ => return Some(Err("neither TCP nor RoCEv2")),
    };
    Some(Ok(Packet { src, dst, payload }))
}

pub(crate) fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

pub(crate) fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// The same bits as a signed number, so that a difference in a circle of numbers gets a sign.
pub(crate) fn signed(value: u32) -> i32 {
    i32::from_ne_bytes(value.to_ne_bytes())
}
