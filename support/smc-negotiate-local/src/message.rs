//! Messages between clients and listeners, one per packet.
//!
//! | to the listener | kind | then |
//! |---|---|---|
//! | HELLO | 0x01 | `SMCL`, version 4, number of the namespace 8; with the file of the mailbox |
//! | NOTIFY | 0x02 | number of a slot 8 |
//! | PROVE | 0x04 | id 8, nonce 16, IP address |
//!
//! | to the client | kind | then |
//! |---|---|---|
//! | REFUSED | 0x81 | id 8 |
//! | PROBE_PORT | 0x82 | id 8, port 2 |
//! | PROVEN | 0x83 | id 8, IP address |
//! | NOTIFY | 0x84 | number of a slot 8 |
//! | CLOSE | 0x85 | why the channel is ended 1, user 4 |
//!
//! Numbers are little-endian. An IP address is its length, 4 or 16, and its bytes. Any other packet
//! is an error that ends the channel. Connections are announced in the
//! [`mailbox`](super::mailbox); NOTIFY reports that a slot has changed.

use std::net::IpAddr;

use smc_core::error::Refusal;

use crate::netns::NetNs;

/// A message from a client to a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ToListener {
    /// The client's network namespace. The first message of a channel, and only that.
    Hello { netns: NetNs },
    /// The client has written something for which the listener waits.
    Notify { slot: u64 },
    /// Prove that the listener is reachable at this IP address from the client's network namespace.
    Prove {
        id: u64,
        nonce: [u8; NONCE_LEN],
        to: IpAddr,
    },
}

/// A message from a listener to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ToClient {
    Refused {
        id: u64,
    },
    /// To probe, connect to this port and send the nonce.
    ProbePort {
        id: u64,
        port: u16,
    },
    /// The nonce arrived from this address.
    Proven {
        id: u64,
        from: IpAddr,
    },
    /// The listener has written something for which the client waits.
    Notify {
        slot: u64,
    },
    /// The listener ends the channel and refuses all offers in its mailbox.
    Close {
        refusal: Refusal,
    },
}

pub(super) const MAX_LEN: usize = 64;

/// Messages that were there together, so that the queue may have been full, which loses
/// notifications: all waiting tasks are woken then. A queue holds several times as many.
pub(super) const MANY: usize = 16;

/// Length of a random nonce.
pub(super) const NONCE_LEN: usize = 16;

impl ToListener {
    pub(super) fn encode(self) -> Vec<u8> {
        match self {
            Self::Hello { netns } => [&[HELLO][..], &MAGIC, &netns.0.to_le_bytes()].concat(),
            Self::Notify { slot } => [&[NOTIFY][..], &slot.to_le_bytes()].concat(),
            Self::Prove { id, nonce, to } => {
                [&[PROVE][..], &id.to_le_bytes(), &nonce, &bytes_of(to)].concat()
            }
        }
    }

    pub(super) fn parse(packet: &[u8]) -> Option<Self> {
        let mut rest = Reader(packet);
        let message = match rest.byte()? {
            HELLO => {
                (rest.array()? == MAGIC).then_some(())?;
                Self::Hello {
                    netns: NetNs(rest.number()?),
                }
            }
            NOTIFY => Self::Notify {
                slot: rest.number()?,
            },
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
        match self {
            Self::Refused { id } => [&[REFUSED][..], &id.to_le_bytes()].concat(),
            Self::ProbePort { id, port } => {
                [&[PROBE_PORT][..], &id.to_le_bytes(), &port.to_le_bytes()].concat()
            }
            Self::Proven { id, from } => {
                [&[PROVEN][..], &id.to_le_bytes(), &bytes_of(from)].concat()
            }
            Self::Notify { slot } => [&[NOTIFY_CLIENT][..], &slot.to_le_bytes()].concat(),
            Self::Close { refusal } => {
                let (why, uid) = match refusal {
                    Refusal::User { uid } => (CLOSE_USER, uid),
                    Refusal::Full => (CLOSE_FULL, 0),
                    Refusal::Descriptors => (CLOSE_DESCRIPTORS, 0),
                    _ => (0, 0),
                };
                [&[CLOSE, why][..], &uid.to_le_bytes()].concat()
            }
        }
    }

    pub(super) fn parse(packet: &[u8]) -> Option<Self> {
        let mut rest = Reader(packet);
        let message = match rest.byte()? {
            REFUSED => Self::Refused { id: rest.number()? },
            PROBE_PORT => Self::ProbePort {
                id: rest.number()?,
                port: u16::from_le_bytes(rest.array()?),
            },
            PROVEN => Self::Proven {
                id: rest.number()?,
                from: rest.ip()?,
            },
            NOTIFY_CLIENT => Self::Notify {
                slot: rest.number()?,
            },
            CLOSE => {
                let why = rest.byte()?;
                let uid = u32::from_le_bytes(rest.array()?);
                Self::Close {
                    refusal: match why {
                        CLOSE_USER => Refusal::User { uid },
                        CLOSE_FULL => Refusal::Full,
                        CLOSE_DESCRIPTORS => Refusal::Descriptors,
                        _ => Refusal::Unknown,
                    },
                }
            }
            _ => return None,
        };
        rest.0.is_empty().then_some(message)
    }

    /// The slot or probe that it is about; probes have numbers beyond those of slots. `None` if it
    /// is about the channel.
    pub(super) fn id(self) -> Option<u64> {
        match self {
            Self::Refused { id }
            | Self::ProbePort { id, .. }
            | Self::Proven { id, .. }
            | Self::Notify { slot: id } => Some(id),
            Self::Close { .. } => None,
        }
    }
}

fn bytes_of(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => [&[4][..], &ip.octets()].concat(),
        IpAddr::V6(ip) => [&[16][..], &ip.octets()].concat(),
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    fn byte(&mut self) -> Option<u8> {
        self.array().map(|[byte]| byte)
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
}

/// `SMCL` and the version of these messages.
const MAGIC: [u8; 5] = *b"SMCL\x04";

const HELLO: u8 = 0x01;
const NOTIFY: u8 = 0x02;
const PROVE: u8 = 0x04;
const REFUSED: u8 = 0x81;
const PROBE_PORT: u8 = 0x82;
const PROVEN: u8 = 0x83;
const NOTIFY_CLIENT: u8 = 0x84;
const CLOSE: u8 = 0x85;

/// Reasons of CLOSE; 0 is without a reason.
const CLOSE_USER: u8 = 1;
const CLOSE_FULL: u8 = 2;
const CLOSE_DESCRIPTORS: u8 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that these messages survive the trip, and nothing else does.
    fn check<M: Copy + PartialEq + std::fmt::Debug>(
        all: &[M],
        encode: impl Fn(M) -> Vec<u8>,
        parse: impl Fn(&[u8]) -> Option<M>,
    ) {
        for message in all {
            let packet = encode(*message);
            assert_eq!(parse(&packet), Some(*message));
            assert!((0..packet.len()).all(|len| parse(&packet[..len]).is_none()));
            assert_eq!(parse(&[&packet[..], b"x"].concat()), None);
        }
        assert_eq!(parse(b"\xff\xff\xff"), None);
    }

    #[test]
    fn messages_survive_the_trip_and_nothing_else_does() {
        let (netns, nonce) = (NetNs(0xf000_0001), [9; NONCE_LEN]);
        let to = "10.0.0.1".parse().unwrap();
        let all = [
            ToListener::Hello { netns },
            ToListener::Notify { slot: 77 },
            ToListener::Prove { id: 1, nonce, to },
        ];
        check(&all, ToListener::encode, ToListener::parse);
    }

    #[test]
    fn answers_survive_the_trip_and_nothing_else_does() {
        let from = "::1".parse().unwrap();
        let of_user = Refusal::User { uid: 1000 };
        let refusals = [of_user, Refusal::Full, Refusal::Descriptors];
        let mut all = vec![
            ToClient::Refused { id: 5 },
            ToClient::ProbePort { id: 6, port: 80 },
            ToClient::Proven { id: 7, from },
            ToClient::Notify { slot: 3 },
        ];
        all.extend(refusals.map(|refusal| ToClient::Close { refusal }));
        check(&all, ToClient::encode, ToClient::parse);
    }
}
