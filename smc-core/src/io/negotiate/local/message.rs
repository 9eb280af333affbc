//! Messages between clients and listeners, one per packet.
//!
//! | to the listener | kind | then |
//! |---|---|---|
//! | HELLO | 0x01 | `SMCL`, version 1, number of the namespace 8 |
//! | ANNOUNCE | 0x02 | id 8, socket cookie 8, client address, server address, PROPOSAL |
//! | WITHDRAW | 0x03 | id 8 |
//! | PROVE | 0x04 | id 8, nonce 16, IP address |
//!
//! | to the client | kind | then |
//! |---|---|---|
//! | REFUSED | 0x81 | id 8 |
//! | MEET | 0x82 | id 8, port 2 |
//! | PROVEN | 0x83 | id 8, IP address |
//!
//! Numbers are little-endian. An IP address is its length, 4 or 16, and its bytes; an address is
//! an IP address and a port. Everything else than exactly this is an error that ends the channel.

use std::net::{IpAddr, SocketAddr};

use super::netns::NetNs;

/// Something a client tells a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ToListener<'a> {
    /// Where the client lives. The first message of a channel, and only that.
    Hello { netns: NetNs },
    /// A connection is about to be made. Carries a [`Token`](super::token::Token).
    Announce(Announce<'a>),
    /// An announcement is taken back; its token is gone.
    Withdraw { id: u64 },
    /// Prove that this IP address leads from the client's network namespace to the listener's.
    Prove {
        id: u64,
        nonce: [u8; NONCE_LEN],
        to: IpAddr,
    },
}

/// An announced connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Announce<'a> {
    pub(super) id: u64,
    /// `SO_COOKIE` of the client's socket.
    pub(super) cookie: u64,
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    pub(super) proposal: &'a [u8],
}

/// Something a listener tells a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ToClient {
    /// An announcement or proof will not be answered otherwise.
    Refused { id: u64 },
    /// For the proof, connect to this port and send the nonce.
    Meet { id: u64, port: u16 },
    /// The nonce arrived from this address.
    Proven { id: u64, from: IpAddr },
}

/// Longest PROPOSAL that is announced, far beyond what the format allows for.
pub(super) const MAX_PROPOSAL: usize = 2048;

/// Longest message.
pub(super) const MAX_LEN: usize = MAX_PROPOSAL + 64;

/// Bytes that nobody can guess.
pub(super) const NONCE_LEN: usize = 16;

impl<'a> ToListener<'a> {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        match *self {
            Self::Hello { netns } => {
                out.push(HELLO);
                out.extend(MAGIC);
                out.extend(netns.0.to_le_bytes());
            }
            Self::Announce(announce) => {
                out.push(ANNOUNCE);
                out.extend(announce.id.to_le_bytes());
                out.extend(announce.cookie.to_le_bytes());
                put_addr(&mut out, announce.from);
                put_addr(&mut out, announce.to);
                out.extend(announce.proposal);
            }
            Self::Withdraw { id } => {
                out.push(WITHDRAW);
                out.extend(id.to_le_bytes());
            }
            Self::Prove { id, nonce, to } => {
                out.push(PROVE);
                out.extend(id.to_le_bytes());
                out.extend(nonce);
                put_ip(&mut out, to);
            }
        }
        out
    }

    pub(super) fn parse(packet: &'a [u8]) -> Option<Self> {
        let mut rest = Reader(packet);
        let message = match rest.byte()? {
            HELLO => {
                (rest.array()? == MAGIC).then_some(())?;
                Self::Hello {
                    netns: NetNs(rest.number()?),
                }
            }
            ANNOUNCE => Self::Announce(Announce {
                id: rest.number()?,
                cookie: rest.number()?,
                from: rest.addr()?,
                to: rest.addr()?,
                proposal: rest.all(MAX_PROPOSAL)?,
            }),
            WITHDRAW => Self::Withdraw { id: rest.number()? },
            PROVE => Self::Prove {
                id: rest.number()?,
                nonce: rest.array()?,
                to: rest.ip()?,
            },
            _ => return None,
        };
        rest.0.is_empty().then_some(message)
    }
}

impl ToClient {
    pub(super) fn encode(self) -> Vec<u8> {
        let mut out = Vec::with_capacity(32);
        match self {
            Self::Refused { id } => {
                out.push(REFUSED);
                out.extend(id.to_le_bytes());
            }
            Self::Meet { id, port } => {
                out.push(MEET);
                out.extend(id.to_le_bytes());
                out.extend(port.to_le_bytes());
            }
            Self::Proven { id, from } => {
                out.push(PROVEN);
                out.extend(id.to_le_bytes());
                put_ip(&mut out, from);
            }
        }
        out
    }

    pub(super) fn parse(packet: &[u8]) -> Option<Self> {
        let mut rest = Reader(packet);
        let message = match rest.byte()? {
            REFUSED => Self::Refused { id: rest.number()? },
            MEET => Self::Meet {
                id: rest.number()?,
                port: rest.port()?,
            },
            PROVEN => Self::Proven {
                id: rest.number()?,
                from: rest.ip()?,
            },
            _ => return None,
        };
        rest.0.is_empty().then_some(message)
    }

    /// The announcement or proof that it is about.
    pub(super) fn id(self) -> u64 {
        match self {
            Self::Refused { id } | Self::Meet { id, .. } | Self::Proven { id, .. } => id,
        }
    }
}

fn put_ip(out: &mut Vec<u8>, ip: IpAddr) {
    match ip {
        IpAddr::V4(ip) => {
            out.push(4);
            out.extend(ip.octets());
        }
        IpAddr::V6(ip) => {
            out.push(16);
            out.extend(ip.octets());
        }
    }
}

fn put_addr(out: &mut Vec<u8>, addr: SocketAddr) {
    put_ip(out, addr.ip());
    out.extend(addr.port().to_le_bytes());
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    fn byte(&mut self) -> Option<u8> {
        self.array().map(|[byte]| byte)
    }

    fn port(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn number(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn ip(&mut self) -> Option<IpAddr> {
        match self.byte()? {
            4 => self.array::<4>().map(IpAddr::from),
            16 => self.array::<16>().map(IpAddr::from),
            _ => None,
        }
    }

    fn addr(&mut self) -> Option<SocketAddr> {
        Some(SocketAddr::new(self.ip()?, self.port()?))
    }

    fn all(&mut self, max: usize) -> Option<&'a [u8]> {
        let all = std::mem::take(&mut self.0);
        (all.len() <= max).then_some(all)
    }
}

/// `SMCL` and the version of these messages.
const MAGIC: [u8; 5] = *b"SMCL\x01";

const HELLO: u8 = 0x01;
const ANNOUNCE: u8 = 0x02;
const WITHDRAW: u8 = 0x03;
const PROVE: u8 = 0x04;
const REFUSED: u8 = 0x81;
const MEET: u8 = 0x82;
const PROVEN: u8 = 0x83;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_the_trip_and_nothing_else_does() {
        let announce = Announce {
            id: 7,
            cookie: 0x1234,
            from: "127.0.0.1:40000".parse().unwrap(),
            to: "[fd00::1]:80".parse().unwrap(),
            proposal: b"proposal",
        };
        let all = [
            ToListener::Hello {
                netns: NetNs(0xf000_0001),
            },
            ToListener::Announce(announce),
            ToListener::Announce(Announce {
                proposal: b"",
                ..announce
            }),
            ToListener::Withdraw { id: u64::MAX },
            ToListener::Prove {
                id: 1,
                nonce: [9; NONCE_LEN],
                to: "10.0.0.1".parse().unwrap(),
            },
        ];
        for message in all {
            let packet = message.encode();
            assert_eq!(ToListener::parse(&packet), Some(message));
            for len in 0..packet.len() {
                let shorter = ToListener::parse(&packet[..len]);
                assert!(shorter.is_none() || matches!(message, ToListener::Announce(_)));
            }
            let longer = [&packet[..], b"x"].concat();
            let parsed = ToListener::parse(&longer);
            assert!(parsed.is_none() || matches!(message, ToListener::Announce(_)));
        }
        let too_long = vec![0; MAX_PROPOSAL + 1];
        let packet = ToListener::Announce(Announce {
            proposal: &too_long,
            ..announce
        })
        .encode();
        assert_eq!(ToListener::parse(&packet), None);
    }

    #[test]
    fn answers_survive_the_trip_and_nothing_else_does() {
        let all = [
            ToClient::Refused { id: 5 },
            ToClient::Meet { id: 6, port: 80 },
            ToClient::Proven {
                id: 7,
                from: "::1".parse().unwrap(),
            },
        ];
        for message in all {
            let packet = message.encode();
            assert_eq!(ToClient::parse(&packet), Some(message));
            assert!((0..packet.len()).all(|len| ToClient::parse(&packet[..len]).is_none()));
            assert_eq!(ToClient::parse(&[&packet[..], b"x"].concat()), None);
        }
        assert_eq!(ToClient::parse(b""), None);
        assert_eq!(ToListener::parse(b"\xff\xff\xff"), None);
    }
}
