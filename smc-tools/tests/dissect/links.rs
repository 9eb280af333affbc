//! What can be in front of TCP.

use etherparse::{IpFragOffset, IpNumber, Ipv4Header, Ipv6Header, PacketBuilder, VlanId};

use crate::support::{ACCEPT, Capture, PROPOSAL, bth, hex, sides};

const NULL: u32 = 0;
const RAW: u32 = 101;
const LOOP: u32 = 108;
const SLL: u32 = 113;
const SLL2: u32 = 276;
const IPV4: u32 = 228;
const IPV6: u32 = 229;

/// The PROPOSAL as an IPv4 packet.
fn ipv4() -> Vec<u8> {
    sides().0.data(0, &hex(PROPOSAL)).split_off(14)
}

/// The PROPOSAL as an IPv6 packet.
fn ipv6() -> Vec<u8> {
    let mut packet = Vec::new();
    PacketBuilder::ip(etherparse::IpHeaders::Ipv6(
        Ipv6Header {
            source: [0xFD; 16],
            destination: [0xFE; 16],
            hop_limit: 64,
            ..Ipv6Header::default()
        },
        etherparse::Ipv6Extensions::default(),
    ))
    .tcp(40_000, 5555, 1001, 1024)
    .write(&mut packet, &hex(PROPOSAL))
    .expect("a packet");
    packet
}

/// What is found if a frame is this header and the packet.
fn found(link: u32, header: &[u8], packet: &[u8]) -> Vec<String> {
    let mut capture = Capture::new(link);
    capture.frame(&[header, packet].concat());
    let found = capture.dissect();
    let src = |message: &serde_json::Value| message["src"].as_str().map(str::to_owned);
    found
        .iter()
        .map(|message| format!("{} {}", src(message).expect("text"), message["type"]))
        .collect()
}

#[test]
fn all_link_types() {
    let (v4, v6) = (ipv4(), ipv6());
    let src4 = ["10.0.0.2:40000 \"PROPOSAL\""];
    let src6 = ["[fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd]:40000 \"PROPOSAL\""];
    let sll = |kind: [u8; 2]| [&[0, 0, 3, 4, 0, 6, 1, 2, 3, 4, 5, 6, 0, 0][..], &kind].concat();
    let sll2 = |kind: [u8; 2]| [&kind[..], &[0; 18]].concat();
    for (link, header4, header6) in [
        (RAW, vec![], vec![]),
        (12, vec![], vec![]),
        (NULL, vec![2, 0, 0, 0], vec![10, 0, 0, 0]),
        (LOOP, vec![0, 0, 0, 2], vec![0, 0, 0, 30]),
        (SLL, sll([8, 0]), sll([0x86, 0xDD])),
        (SLL2, sll2([8, 0]), sll2([0x86, 0xDD])),
    ] {
        assert_eq!(found(link, &header4, &v4), src4, "link type {link}");
        assert_eq!(found(link, &header6, &v6), src6, "link type {link}");
    }
    assert_eq!(found(IPV4, &[], &v4), src4);
    assert_eq!(found(IPV6, &[], &v6), src6);
}

#[test]
fn tags_and_padding() {
    let macs = [0; 12];
    let src = ["10.0.0.2:40000 \"PROPOSAL\""];
    for tags in [
        &[][..],
        &[0x81, 0, 0, 5],
        &[0x88, 0xA8, 0, 5, 0x81, 0, 0, 6],
        &[0x91, 0, 0, 5, 0x81, 0, 0, 6, 0x81, 0, 0, 7],
    ] {
        let header = [&macs[..], tags, &[8, 0]].concat();
        let mut packet = ipv4();
        assert_eq!(found(1, &header, &packet), src);
        packet.extend([0x55; 20]);
        assert_eq!(found(1, &header, &packet), src);
    }
    let mut frame = Vec::new();
    PacketBuilder::ethernet2([2; 6], [4; 6])
        .double_vlan(VlanId::try_new(5).unwrap(), VlanId::try_new(6).unwrap())
        .ipv4([10, 0, 0, 2], [10, 0, 0, 1], 64)
        .udp(1, 4791)
        .write(&mut frame, &bth(4, 1, 1, &hex(crate::support::CDC)))
        .unwrap();
    assert_eq!(found(1, &[], &frame), ["10.0.0.2 \"CDC\""]);
}

#[test]
fn ip_options_and_extension_headers() {
    let mut packet = ipv4();
    packet.splice(20..20, [1, 1, 1, 0]);
    packet[0] = 0x46;
    let len = u16::try_from(packet.len()).unwrap();
    packet[2..4].copy_from_slice(&len.to_be_bytes());
    assert_eq!(found(RAW, &[], &packet), ["10.0.0.2:40000 \"PROPOSAL\""]);

    let mut packet = ipv6();
    // Hop-by-hop options, then destination options, then TCP.
    packet.splice(40..40, [60, 0, 1, 4, 0, 0, 0, 0, 6, 0, 1, 4, 0, 0, 0, 0]);
    packet[6] = 0;
    let len = u16::try_from(packet.len() - 40).unwrap();
    packet[4..6].copy_from_slice(&len.to_be_bytes());
    assert_eq!(found(RAW, &[], &packet).len(), 1);
}

#[test]
fn fragments_are_passed_over() {
    let whole = ipv4();
    let (header, _) = Ipv4Header::from_slice(&whole).expect("a header");
    let mut capture = Capture::new(RAW);
    for (offset, more) in [(0, true), (80, false)] {
        let payload = if more { &whole[20..100] } else { &whole[100..] };
        let mut header = header.clone();
        header.more_fragments = more;
        header.fragment_offset = IpFragOffset::try_new(offset / 8).expect("in range");
        header.protocol = IpNumber::TCP;
        header.set_payload_len(payload.len()).expect("short");
        capture.frame(&[&header.to_bytes()[..], payload].concat());
    }
    capture.frame(&sides().1.data(0, &hex(ACCEPT)).split_off(14));
    assert_eq!(capture.summary(), ["3 ACCEPT"]);
}
