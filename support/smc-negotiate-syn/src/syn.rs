//! The option in a SYN that the kernel has kept.

use smc_wire::option;

/// Whether the TCP options of this segment have the SMC option; it begins with its IP header.
pub(super) fn has_option(segment: &[u8]) -> bool {
    tcp_options(segment).is_some_and(|options| option::find(options).is_some())
}

fn tcp_options(segment: &[u8]) -> Option<&[u8]> {
    let (version, low) = (segment.first()? >> 4, segment.first()? & 15);
    let tcp = match version {
        4 => segment.get(usize::from(low) * 4..)?,
        6 => tcp_in_v6(segment)?,
        _ => return None,
    };
    let len = usize::from(tcp.get(DATA_OFFSET)? >> 4) * 4;
    tcp.get(TCP_LEN..len)
}

fn tcp_in_v6(segment: &[u8]) -> Option<&[u8]> {
    let mut next = *segment.get(6)?;
    let mut rest = segment.get(40..)?;
    // Bounded by the segment: each header has eight bytes at least.
    while next != TCP {
        let (following, len) = match (next, rest) {
            (HOP_BY_HOP | ROUTING | DESTINATION, [following, len, ..]) => {
                (*following, (usize::from(*len) + 1) * 8)
            }
            (FRAGMENT, [following, ..]) => (*following, 8),
            (AUTHENTICATION, [following, len, ..]) => (*following, (usize::from(*len) + 2) * 4),
            _ => return None,
        };
        next = following;
        rest = rest.get(len..)?;
    }
    Some(rest)
}

/// Length of a TCP header without options.
const TCP_LEN: usize = 20;
/// Where a TCP header has its length, in the upper half of the byte.
const DATA_OFFSET: usize = 12;

/// Numbers of headers (RFC 8200 section 4, RFC 4302).
const HOP_BY_HOP: u8 = 0;
const TCP: u8 = 6;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const DESTINATION: u8 = 60;

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(options: &[u8]) -> Vec<u8> {
        let mut tcp = vec![0; TCP_LEN];
        tcp[DATA_OFFSET] = u8::try_from((TCP_LEN + options.len()) * 4).unwrap();
        tcp.extend(options);
        tcp
    }

    fn v4(tcp: &[u8]) -> Vec<u8> {
        let mut ip = vec![0; 20];
        ip[0] = 0x45;
        [ip.as_slice(), tcp].concat()
    }

    fn v6(next: u8, headers: &[u8], tcp: &[u8]) -> Vec<u8> {
        let mut ip = vec![0; 40];
        (ip[0], ip[6]) = (0x60, next);
        [ip.as_slice(), headers, tcp].concat()
    }

    #[test]
    fn it_is_found_behind_both_kinds_of_header() {
        let with = tcp(&option::ALIGNED);
        let without = tcp(&[2, 4, 5, 180]);
        assert!(has_option(&v4(&with)));
        assert!(!has_option(&v4(&without)));
        assert!(has_option(&v6(TCP, &[], &with)));
        assert!(!has_option(&v6(TCP, &[], &without)));
        let mut headers = vec![0; 24];
        (headers[0], headers[1]) = (DESTINATION, 0);
        (headers[8], headers[9]) = (TCP, 1);
        assert!(has_option(&v6(HOP_BY_HOP, &headers, &with)));
    }

    #[test]
    fn no_bytes_at_all_make_it_fail() {
        for segment in [
            v4(&tcp(&option::ALIGNED)),
            v6(TCP, &[], &tcp(&option::ALIGNED)),
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
