//! From a frame to what may carry SMC: a TCP segment, or a RoCE packet.
//!
//! Works on frames that were cut at the snap length too: what is missing is counted, not guessed.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use etherparse::{EtherType, LaxNetSlice, LaxSlicedPacket, TransportSlice, ether_type};

use super::capture::LinkType;

/// What a frame carries, if it may have to do with SMC.
#[derive(Debug)]
pub(super) enum Packet<'a> {
    Tcp(Segment<'a>),
    Roce(Datagram<'a>),
}

/// A TCP segment.
#[derive(Debug)]
pub(super) struct Segment<'a> {
    pub(super) src: SocketAddr,
    pub(super) dst: SocketAddr,
    pub(super) sequence: u32,
    pub(super) acknowledgment: u32,
    pub(super) syn: bool,
    pub(super) ack: bool,
    pub(super) options: &'a [u8],
    pub(super) payload: &'a [u8],
    /// Bytes of payload that were on the wire behind the captured ones.
    pub(super) missing: usize,
}

/// A RoCE packet from the base transport header on, invariant CRC included.
#[derive(Debug)]
pub(super) struct Datagram<'a> {
    pub(super) src: IpAddr,
    pub(super) dst: IpAddr,
    pub(super) bytes: &'a [u8],
    /// Bytes that were on the wire behind the captured ones.
    pub(super) missing: usize,
}

/// Takes a frame apart. `missing` bytes of it were not captured.
///
/// `None` for anything that cannot carry SMC, IP fragments included.
pub(super) fn packet(link: LinkType, data: &[u8], missing: usize) -> Option<Packet<'_>> {
    let (kind, mut data) = match link {
        ETHERNET => (be16(data, 12)?, data.get(14..)?),
        // Packet type (2), address type (2), address length (2), address (8), protocol (2).
        LINUX_SLL => (be16(data, 14)?, data.get(16..)?),
        // Protocol (2), reserved (2), interface (4), address type (2), packet type (1), address
        // length (1), address (8).
        LINUX_SLL2 => (be16(data, 0)?, data.get(20..)?),
        // An address family whose number depends on the system; the IP version is sufficient.
        NULL | LOOP => return ip(data.get(4..)?, missing),
        RAW | RAW_12 | RAW_14 | IPV4 | IPV6 => return ip(data, missing),
        _ => return None,
    };
    let mut kind = EtherType(kind);
    for _ in 0..MAX_TAGS {
        match kind {
            ether_type::IPV4 | ether_type::IPV6 => return ip(data, missing),
            ROCE_V1 => return roce_v1(data, missing),
            ether_type::VLAN_TAGGED_FRAME
            | ether_type::PROVIDER_BRIDGING
            | ether_type::VLAN_DOUBLE_TAGGED_FRAME => {
                kind = EtherType(be16(data, 2)?);
                data = data.get(4..)?;
            }
            _ => return None,
        }
    }
    None
}

/// Whether frames of this link type can be read.
pub(super) fn is_supported(link: LinkType) -> bool {
    matches!(
        link,
        NULL | ETHERNET | RAW | RAW_12 | RAW_14 | LOOP | LINUX_SLL | LINUX_SLL2 | IPV4 | IPV6
    )
}

const NULL: LinkType = LinkType(0);
const ETHERNET: LinkType = LinkType(1);
const RAW: LinkType = LinkType(101);
/// Two numbers that raw IP has on some systems.
const RAW_12: LinkType = LinkType(12);
const RAW_14: LinkType = LinkType(14);
const LOOP: LinkType = LinkType(108);
pub(super) const LINUX_SLL: LinkType = LinkType(113);
const LINUX_SLL2: LinkType = LinkType(276);
const IPV4: LinkType = LinkType(228);
const IPV6: LinkType = LinkType(229);
/// UDP port of RoCE v2.
const ROCE_V2_PORT: u16 = 4791;
/// Ethertype of RoCE v1.
const ROCE_V1: EtherType = EtherType(0x8915);
/// Tags in front of a frame; two are usual.
const MAX_TAGS: usize = 8;

fn ip(bytes: &[u8], missing: usize) -> Option<Packet<'_>> {
    let packet = LaxSlicedPacket::from_ip(bytes).ok()?;
    let (src, dst): (IpAddr, IpAddr);
    let declared = match packet.net.as_ref()? {
        LaxNetSlice::Ipv4(v4) => {
            let header = v4.header();
            src = header.source_addr().into();
            dst = header.destination_addr().into();
            usize::from(header.total_len())
        }
        LaxNetSlice::Ipv6(v6) => {
            let header = v6.header();
            src = header.source_addr().into();
            dst = header.destination_addr().into();
            match header.payload_length() {
                0 => 0,
                len => usize::from(len) + IPV6_HEADER,
            }
        }
        LaxNetSlice::Arp(_) => return None,
    };
    // Large offloaded segments have no length of their own: there the frame's has to do.
    let missing = match declared {
        0 => missing,
        len => len.saturating_sub(bytes.len()),
    };
    match packet.transport? {
        TransportSlice::Tcp(tcp) => {
            // The accessors of the slice borrow from the slice, not from the frame.
            let whole = tcp.slice();
            let (header, payload) = whole.split_at_checked(usize::from(tcp.data_offset()) * 4)?;
            Some(Packet::Tcp(Segment {
                src: SocketAddr::new(src, tcp.source_port()),
                dst: SocketAddr::new(dst, tcp.destination_port()),
                sequence: tcp.sequence_number(),
                acknowledgment: tcp.acknowledgment_number(),
                syn: tcp.syn(),
                ack: tcp.ack(),
                options: header.get(TCP_HEADER..)?,
                payload,
                missing,
            }))
        }
        TransportSlice::Udp(udp) if udp.destination_port() == ROCE_V2_PORT => {
            let bytes = udp.payload();
            let declared = usize::from(udp.length()).checked_sub(UDP_HEADER);
            let missing = match declared {
                Some(len) => len.saturating_sub(bytes.len()),
                None => missing,
            };
            Some(Packet::Roce(Datagram {
                src,
                dst,
                bytes,
                missing,
            }))
        }
        _ => None,
    }
}

const IPV6_HEADER: usize = 40;
const TCP_HEADER: usize = 20;
const UDP_HEADER: usize = 8;
/// Next header value of a base transport header behind a global route header.
const NEXT_IS_BTH: u8 = 0x1B;

/// A RoCE v1 packet: a global route header, which is laid out as an IPv6 header, then the base
/// transport header.
fn roce_v1(data: &[u8], missing: usize) -> Option<Packet<'_>> {
    let (header, rest) = data.split_at_checked(IPV6_HEADER)?;
    if header.first()? >> 4 != 6 || *header.get(6)? != NEXT_IS_BTH {
        return None;
    }
    let address = |at: usize| -> Option<IpAddr> {
        let bytes: [u8; 16] = header.get(at..)?.first_chunk().copied()?;
        Some(Ipv6Addr::from(bytes).to_canonical())
    };
    // Frames shorter than Ethernet's minimum are padded: the header knows how long the packet is.
    let declared = usize::from(be16(header, 4)?);
    let (bytes, missing) = match rest.get(..declared) {
        Some(_) if declared == 0 => (rest, missing),
        Some(bytes) => (bytes, 0),
        None => (rest, declared - rest.len()),
    };
    Some(Packet::Roce(Datagram {
        src: address(8)?,
        dst: address(24)?,
        bytes,
        missing,
    }))
}

fn be16(data: &[u8], at: usize) -> Option<u16> {
    data.get(at..)?
        .first_chunk()
        .copied()
        .map(u16::from_be_bytes)
}
