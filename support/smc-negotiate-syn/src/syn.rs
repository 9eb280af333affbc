//! The option in a SYN that the kernel has kept.

use etherparse::{LaxSlicedPacket, TransportSlice};
use smc_wire::option;

/// Whether the TCP options of this segment have the SMC option; it begins with its IP header.
pub(super) fn has_option(segment: &[u8]) -> bool {
    // Data behind the headers is not kept.
    let packet = LaxSlicedPacket::from_ip(segment);
    match packet.map(|packet| packet.transport) {
        Ok(Some(TransportSlice::Tcp(tcp))) => option::find(tcp.options()).is_some(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use etherparse::IpNumber;

    use super::*;

    fn tcp(options: &[u8]) -> Vec<u8> {
        let mut tcp = vec![0; 20];
        tcp[12] = u8::try_from((tcp.len() + options.len()) * 4).unwrap();
        tcp.extend(options);
        tcp
    }

    fn v4(tcp: &[u8]) -> Vec<u8> {
        let mut ip = vec![0; 20];
        (ip[0], ip[9]) = (0x45, IpNumber::TCP.0);
        [ip.as_slice(), tcp].concat()
    }

    fn v6(next: IpNumber, headers: &[u8], tcp: &[u8]) -> Vec<u8> {
        let mut ip = vec![0; 40];
        (ip[0], ip[6]) = (0x60, next.0);
        [ip.as_slice(), headers, tcp].concat()
    }

    #[test]
    fn it_is_found_behind_both_kinds_of_header() {
        let with = tcp(&option::ALIGNED);
        let without = tcp(&[2, 4, 5, 180]);
        assert!(has_option(&v4(&with)));
        assert!(!has_option(&v4(&without)));
        assert!(has_option(&v6(IpNumber::TCP, &[], &with)));
        assert!(!has_option(&v6(IpNumber::TCP, &[], &without)));
        let mut headers = vec![0; 24];
        (headers[0], headers[1]) = (IpNumber::IPV6_DESTINATION_OPTIONS.0, 0);
        (headers[8], headers[9]) = (IpNumber::TCP.0, 1);
        assert!(has_option(&v6(
            IpNumber::IPV6_HEADER_HOP_BY_HOP,
            &headers,
            &with
        )));
    }

    #[test]
    fn no_bytes_at_all_make_it_fail() {
        for segment in [
            v4(&tcp(&option::ALIGNED)),
            v6(IpNumber::TCP, &[], &tcp(&option::ALIGNED)),
        ] {
            for len in 0..segment.len() {
                assert!(!has_option(&segment[..len]), "{len} bytes");
            }
            for at in 0..segment.len() {
                for byte in [0, 0x0f, 0x7f, 0xff] {
                    let mut bent = segment.clone();
                    bent[at] = byte;
                    let _ = has_option(&bent);
                }
            }
        }
    }
}
