//! The sockets of the kernel's SMC, which `smcss` shows (`sock_diag(7)`, `linux/smc_diag.h`).

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use netlink_packet_core::{DecodeError, NetlinkDeserializable, NetlinkHeader, NetlinkSerializable};
use netlink_sys::protocols::NETLINK_SOCK_DIAG;

use crate::attributes::{Attributes, text};
use crate::request;

/// A socket of the family `AF_SMC`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "a message of the kernel")]
pub struct SmcSocket {
    /// The number of its state, as `smc_core::proto::conn::ConnState` has them; 10 for a listener.
    pub state: u8,
    /// What carries its data, or would.
    pub mode: SmcMode,
    /// Its application receives no more.
    pub is_read_shut_down: bool,
    /// Its application sends no more.
    pub is_write_shut_down: bool,
    /// The local address of the TCP connection. That of any address is always one of IPv4: the
    /// kernel does not state which of both it is.
    pub local: SocketAddr,
    /// The peer's address; unspecified without a peer.
    pub peer: SocketAddr,
    /// The network interface that it is bound to, or 0.
    pub interface: u32,
    /// Its owner.
    pub uid: u32,
    /// Its number in `/proc/PID/fd`.
    pub inode: u64,
    /// Buffers and cursors, if it is connected by SMC.
    pub connection: Option<SmcConnection>,
    /// SMC-R: its link.
    pub rdma: Option<RdmaLink>,
    /// SMC-D: its buffers' names.
    pub direct: Option<DirectLink>,
}

/// What carries the data of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "a message of the kernel")]
pub enum SmcMode {
    /// SMC-R.
    Rdma,
    /// SMC-D.
    Direct,
    /// TCP.
    Tcp {
        /// The local reason.
        reason: u32,
        /// The diagnosis of the peer; 0 if it has not declined.
        peer: u32,
    },
    /// A mode of a newer kernel, by its number.
    Other(u8),
}

/// Buffers and cursors of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "a message of the kernel")]
pub struct SmcConnection {
    /// The token by which the peer names this end.
    pub token: u32,
    /// Size of the send buffer.
    pub send_buffer: u32,
    /// Size of the receive buffer.
    pub recv_buffer: u32,
    /// Size of the peer's receive buffer.
    pub peer_buffer: u32,
    /// The cursors that the peer has sent.
    pub received: RingCursors,
    /// The cursors that this end has sent.
    pub sent: RingCursors,
    /// Flags of the peer: those of the producer, then those of the state.
    pub peer_flags: [u8; 2],
    /// Flags of this end.
    pub flags: [u8; 2],
    /// Wrap and count of the send buffer, up to which it is filled, was sent, and was confirmed.
    pub send_cursors: [(u16, u32); 3],
}

/// Wrap and count of the cursors of one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "a message of the kernel")]
pub struct RingCursors {
    /// The end of the data.
    pub producer: (u16, u32),
    /// The start of the data.
    pub consumer: (u16, u32),
}

/// The link of a connection of SMC-R.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "a message of the kernel")]
pub struct RdmaLink {
    /// Its number in the group.
    pub id: u8,
    /// The RDMA device.
    pub device: String,
    /// The port of the device.
    pub port: u8,
    /// The GID of this end.
    pub gid: String,
    /// The GID of the peer.
    pub peer_gid: String,
    /// This end is the client of the group.
    pub is_client: bool,
}

/// The names of the buffers of a connection of SMC-D.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "a message of the kernel")]
pub struct DirectLink {
    /// The link group.
    pub group: u32,
    /// The GID of this end.
    pub gid: u64,
    /// The GID of the peer.
    pub peer_gid: u64,
    /// The token of the buffer of this end.
    pub token: u64,
    /// The token of the peer's buffer.
    pub peer_token: u64,
}

/// The sockets of this thread's network namespace, in the kernel's order. Takes no privilege.
///
/// # Errors
///
/// `ENOENT` when the kernel has no `AF_SMC`, or its module `smc_diag` is not loaded;
/// `EPROTONOSUPPORT` when it has no socket diagnostics at all.
pub fn smc_sockets() -> io::Result<Vec<SmcSocket>> {
    let messages = request::dump(NETLINK_SOCK_DIAG, &SockDiagMessage::default())?;
    Ok(messages
        .iter()
        .filter_map(SockDiagMessage::socket)
        .collect())
}

/// A request without content, or what the kernel states of a socket.
#[derive(Clone, Debug, Default)]
struct SockDiagMessage {
    header: Vec<u8>,
    attributes: Attributes,
}

impl NetlinkSerializable for SockDiagMessage {
    fn message_type(&self) -> u16 {
        SOCK_DIAG_BY_FAMILY
    }

    fn buffer_len(&self) -> usize {
        REQUEST_LEN
    }

    fn serialize(&self, buffer: &mut [u8]) {
        buffer.fill(0);
        if let [family, _, _, attributes, ..] = buffer {
            *family = AF_SMC;
            *attributes = ALL_ATTRIBUTES;
        }
    }
}

impl NetlinkDeserializable for SockDiagMessage {
    type Error = DecodeError;

    fn deserialize(_: &NetlinkHeader, payload: &[u8]) -> Result<Self, DecodeError> {
        let short = || DecodeError::from("a message on a socket that is too short");
        let (header, attributes) = payload.split_at_checked(SOCK_DIAG_LEN).ok_or_else(short)?;
        Ok(Self {
            header: header.to_vec(),
            attributes: Attributes::parse(attributes)?,
        })
    }
}

impl SockDiagMessage {
    fn socket(&self) -> Option<SmcSocket> {
        let header = Fields(&self.header);
        let attribute = |kind| self.attributes.bytes(kind).map(Fields);
        let port = |at| header.array(at).map(u16::from_be_bytes);
        let address = |at| header.array(at).map(ip);
        let fallback = |at| attribute(FALLBACK).and_then(|fallback| fallback.u32(at));
        let shutdown = attribute(SHUTDOWN).and_then(|shutdown| shutdown.u8(0));
        let shutdown = shutdown.unwrap_or(0);
        Some(SmcSocket {
            state: header.u8(1)?,
            mode: match header.u8(2)? {
                MODE_SMCR => SmcMode::Rdma,
                MODE_SMCD => SmcMode::Direct,
                MODE_TCP => SmcMode::Tcp {
                    reason: fallback(0).unwrap_or(0),
                    peer: fallback(4).unwrap_or(0),
                },
                other => SmcMode::Other(other),
            },
            is_read_shut_down: shutdown & RCV_SHUTDOWN != 0,
            is_write_shut_down: shutdown & SEND_SHUTDOWN != 0,
            local: SocketAddr::new(address(8)?, port(4)?),
            peer: SocketAddr::new(address(24)?, port(6)?),
            interface: header.u32(40)?,
            uid: header.u32(52)?,
            inode: header.u64(56)?,
            connection: attribute(CONNECTION).and_then(connection),
            rdma: attribute(LINK_GROUP).and_then(rdma),
            direct: attribute(DMB).and_then(direct),
        })
    }
}

fn connection(of: Fields<'_>) -> Option<SmcConnection> {
    // Two reserved bytes, wrap and count.
    let cursor = |at: usize| Some((of.u16(at.checked_add(2)?)?, of.u32(at.checked_add(4)?)?));
    Some(SmcConnection {
        token: of.u32(0)?,
        send_buffer: of.u32(4)?,
        recv_buffer: of.u32(8)?,
        peer_buffer: of.u32(12)?,
        received: RingCursors {
            producer: cursor(16)?,
            consumer: cursor(24)?,
        },
        sent: RingCursors {
            producer: cursor(32)?,
            consumer: cursor(40)?,
        },
        peer_flags: of.array(48)?,
        flags: of.array(50)?,
        send_cursors: [cursor(52)?, cursor(60)?, cursor(68)?],
    })
}

fn rdma(of: Fields<'_>) -> Option<RdmaLink> {
    Some(RdmaLink {
        id: of.u8(0)?,
        device: of.text::<64>(1)?,
        port: of.u8(65)?,
        gid: of.text::<40>(66)?,
        peer_gid: of.text::<40>(106)?,
        is_client: of.u8(146)? == ROLE_CLIENT,
    })
}

fn direct(of: Fields<'_>) -> Option<DirectLink> {
    Some(DirectLink {
        group: of.u32(0)?,
        peer_gid: of.u64(8)?,
        gid: of.u64(16)?,
        token: of.u64(24)?,
        peer_token: of.u64(32)?,
    })
}

/// The address in a field that has room for one of IPv6. The kernel does not state its family; all
/// but the first four bytes of one of IPv4 are 0.
fn ip(bytes: [u8; 16]) -> IpAddr {
    match bytes {
        [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0] => Ipv4Addr::new(a, b, c, d).into(),
        bytes => Ipv6Addr::from(bytes).into(),
    }
}

/// Fields of a structure by their offsets. There is none past the end: a structure of an older
/// kernel may be shorter.
#[derive(Clone, Copy)]
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn array<const N: usize>(self, at: usize) -> Option<[u8; N]> {
        self.0.get(at..)?.first_chunk().copied()
    }

    fn u8(self, at: usize) -> Option<u8> {
        self.0.get(at).copied()
    }

    fn u16(self, at: usize) -> Option<u16> {
        self.array(at).map(u16::from_ne_bytes)
    }

    fn u32(self, at: usize) -> Option<u32> {
        self.array(at).map(u32::from_ne_bytes)
    }

    fn u64(self, at: usize) -> Option<u64> {
        self.array(at).map(u64::from_ne_bytes)
    }

    fn text<const LEN: usize>(self, at: usize) -> Option<String> {
        self.array::<LEN>(at).map(|bytes| text(&bytes))
    }
}

const AF_SMC: u8 = 43;

const SOCK_DIAG_BY_FAMILY: u16 = 20;

/// `struct smc_diag_req`.
const REQUEST_LEN: usize = 52;

/// `struct smc_diag_msg`, before the attributes.
const SOCK_DIAG_LEN: usize = 64;

// Attributes.
const CONNECTION: u16 = 1;
const LINK_GROUP: u16 = 2;
const SHUTDOWN: u16 = 3;
const DMB: u16 = 4;
const FALLBACK: u16 = 5;

/// A bit for each attribute, from the number 1 on.
const ALL_ATTRIBUTES: u8 = 0x1f;

// Modes.
const MODE_SMCR: u8 = 0;
const MODE_TCP: u8 = 1;
const MODE_SMCD: u8 = 2;

// Shutdown, as in other families.
const RCV_SHUTDOWN: u8 = 1;
const SEND_SHUTDOWN: u8 = 2;

const ROLE_CLIENT: u8 = 0;

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer with these fields, and attributes by their numbers.
    fn answer(
        state: u8,
        mode: u8,
        addresses: [[u8; 16]; 2],
        attributes: &[(u16, &[u8])],
    ) -> Vec<u8> {
        let mut bytes = vec![AF_SMC, state, mode, 0];
        bytes.extend([0x1f, 0x90, 0, 80]);
        bytes.extend(addresses.concat());
        bytes.extend(7_u32.to_ne_bytes());
        bytes.extend([0; 8]);
        bytes.extend(1000_u32.to_ne_bytes());
        bytes.extend(12345_u64.to_ne_bytes());
        for (kind, value) in attributes {
            let len = u16::try_from(value.len() + 4).unwrap();
            bytes.extend([len.to_ne_bytes(), kind.to_ne_bytes()].concat());
            bytes.extend(*value);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        bytes
    }

    fn v4(last: u8) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&[10, 0, 0, last]);
        bytes
    }

    fn parsed(bytes: &[u8]) -> Option<SmcSocket> {
        let message = SockDiagMessage::deserialize(&NetlinkHeader::default(), bytes);
        message.ok()?.socket()
    }

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    /// Wrap and count as the kernel has them.
    fn cursor((wrap, count): (u16, u32)) -> Vec<u8> {
        let (wrap, count) = (wrap.to_ne_bytes(), count.to_ne_bytes());
        [&[0; 2][..], &wrap, &count].concat()
    }

    fn connected() -> Vec<u8> {
        let mut connection = words(&[3, 65536, 131_072, 262_144]);
        for number in 1..=4 {
            connection.extend(cursor((number, u32::from(number) * 100)));
        }
        connection.extend([1, 2, 3, 4]);
        for number in 5..=7 {
            connection.extend(cursor((number, u32::from(number) * 100)));
        }
        let mut link = vec![0; 147];
        link[0] = 9;
        link[1..5].copy_from_slice(b"rxe0");
        link[65] = 1;
        link[66..69].copy_from_slice(b"::1");
        link[106..109].copy_from_slice(b"::2");
        link[146] = 1;
        let attributes: [(u16, &[u8]); 3] = [
            (SHUTDOWN, &[2]),
            (CONNECTION, &connection),
            (LINK_GROUP, &link),
        ];
        answer(20, MODE_SMCR, [v4(1), v4(2)], &attributes)
    }

    #[test]
    fn a_connection_of_smcr_has_its_buffers_cursors_and_link() {
        let socket = parsed(&connected()).unwrap();
        let connection = SmcConnection {
            token: 3,
            send_buffer: 65536,
            recv_buffer: 131_072,
            peer_buffer: 262_144,
            received: RingCursors {
                producer: (1, 100),
                consumer: (2, 200),
            },
            sent: RingCursors {
                producer: (3, 300),
                consumer: (4, 400),
            },
            peer_flags: [1, 2],
            flags: [3, 4],
            send_cursors: [(5, 500), (6, 600), (7, 700)],
        };
        let link = RdmaLink {
            id: 9,
            device: "rxe0".to_owned(),
            port: 1,
            gid: "::1".to_owned(),
            peer_gid: "::2".to_owned(),
            is_client: false,
        };
        let expected = SmcSocket {
            state: 20,
            mode: SmcMode::Rdma,
            is_read_shut_down: false,
            is_write_shut_down: true,
            local: "10.0.0.1:8080".parse().unwrap(),
            peer: "10.0.0.2:80".parse().unwrap(),
            interface: 7,
            uid: 1000,
            inode: 12345,
            connection: Some(connection),
            rdma: Some(link),
            direct: None,
        };
        assert_eq!(socket, expected);
    }

    #[test]
    fn a_connection_of_smcd_has_gids_and_tokens() {
        let mut dmb = words(&[0x400, 0]);
        dmb.extend([1_u64, 2, 3, 4].iter().flat_map(|word| word.to_ne_bytes()));
        // Later kernels have more fields.
        dmb.extend([0xff; 16]);
        let socket = parsed(&answer(1, MODE_SMCD, [v4(1), v4(2)], &[(DMB, &dmb)])).unwrap();
        let expected = DirectLink {
            group: 0x400,
            peer_gid: 1,
            gid: 2,
            token: 3,
            peer_token: 4,
        };
        assert_eq!(
            (socket.mode, socket.direct),
            (SmcMode::Direct, Some(expected))
        );
    }

    #[test]
    fn a_fallback_has_the_reasons_of_both_ends() {
        let v6 = [Ipv6Addr::LOCALHOST.octets(); 2];
        let reasons = words(&[0x0500_0000, 0x0303_0000]);
        let socket = parsed(&answer(1, MODE_TCP, v6, &[(FALLBACK, &reasons)])).unwrap();
        let expected = SmcMode::Tcp {
            reason: 0x0500_0000,
            peer: 0x0303_0000,
        };
        assert_eq!(socket.mode, expected);
        assert_eq!(socket.local.to_string(), "[::1]:8080");
        let listener = parsed(&answer(10, MODE_TCP, [[0; 16]; 2], &[])).unwrap();
        assert_eq!(listener.local.to_string(), "0.0.0.0:8080");
    }

    #[test]
    fn an_answer_that_is_cut_anywhere_has_less_or_nothing() {
        let whole = connected();
        for len in 0..whole.len() {
            let cut = parsed(&whole[..len]);
            assert!(cut.is_none() || len >= SOCK_DIAG_LEN, "{len}");
        }
        let short = answer(1, MODE_SMCR, [v4(1), v4(2)], &[(CONNECTION, &[0; 75])]);
        assert_eq!(parsed(&short).unwrap().connection, None);
    }

    #[test]
    fn the_request_is_for_all_that_there_is_on_sockets_of_the_family() {
        let mut bytes = [0xff; REQUEST_LEN];
        SockDiagMessage::default().serialize(&mut bytes);
        assert_eq!(bytes[..4], [43, 0, 0, 0x1f]);
        assert!(bytes[4..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn without_the_kernels_smc_the_error_is_that_there_is_none() {
        let asked = smc_sockets();
        if std::path::Path::new("/sys/module/smc_diag").exists() {
            println!("skipped: the kernel's SMC is loaded");
            return;
        }
        let error = asked.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound, "{error}");
    }
}
