//! As much netlink as it takes to configure and to watch the kernel's SMC.

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto,
    socket_with,
};

/// A netlink socket.
#[derive(Debug)]
pub(crate) struct Netlink {
    fd: OwnedFd,
}

impl Netlink {
    pub(crate) fn open(protocol: Protocol) -> io::Result<Self> {
        let fd = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            Some(protocol),
        )?;
        Ok(Self { fd })
    }

    /// Sends a request and waits for its acknowledgement.
    pub(crate) fn order(&self, kind: u16, payload: &[u8]) -> io::Result<()> {
        self.request(kind, REQUEST | ACK, payload).map(drop)
    }

    /// Sends a request and gives the one message that answers it.
    pub(crate) fn ask(&self, kind: u16, payload: &[u8]) -> io::Result<Vec<u8>> {
        let answer = self.request(kind, REQUEST | ACK, payload)?.pop();
        answer.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    /// Sends a request and gives all messages that answer it.
    pub(crate) fn dump(&self, kind: u16, payload: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        self.request(kind, REQUEST | DUMP, payload)
    }

    /// Gives payloads until the kernel reports that it is done.
    fn request(&self, kind: u16, flags: u16, payload: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        let len = u32::try_from(HEADER + payload.len()).unwrap_or(u32::MAX);
        let mut message = Vec::new();
        message.extend(len.to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.extend(flags.to_ne_bytes());
        message.extend([0; 8]);
        message.extend(payload);
        let kernel = SocketAddrNetlink::new(0, 0);
        sendto(&self.fd, &message, SendFlags::empty(), &kernel)?;
        let mut all = Vec::new();
        let mut buf = vec![0; 64 * 1024];
        loop {
            let (_, len) = recv(&self.fd, buf.as_mut_slice(), RecvFlags::empty())?;
            let mut rest = &buf[..len.min(buf.len())];
            while let Some((kind, payload, next)) = split(rest) {
                match kind {
                    DONE => return Ok(all),
                    ERROR => {
                        return match payload.first_chunk().map(|code| i32::from_ne_bytes(*code)) {
                            Some(0) => Ok(all),
                            Some(code) => Err(io::Error::from_raw_os_error(-code)),
                            None => Err(io::ErrorKind::InvalidData.into()),
                        };
                    }
                    _ => all.push(payload.to_vec()),
                }
                rest = next;
            }
        }
    }
}

/// The first message of several: kind, payload, the others.
fn split(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let len = usize::try_from(u32::from_ne_bytes(*bytes.first_chunk()?)).ok()?;
    let kind = u16::from_ne_bytes(*bytes.get(4..)?.first_chunk()?);
    let payload = bytes.get(HEADER..len)?;
    let next = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
    Some((kind, payload, next))
}

/// Attributes of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attributes<'a>(pub(crate) &'a [u8]);

impl<'a> Attributes<'a> {
    pub(crate) fn find(self, wanted: u16) -> Option<&'a [u8]> {
        let mut rest = self.0;
        loop {
            let len = usize::from(u16::from_ne_bytes(*rest.first_chunk()?));
            let kind = u16::from_ne_bytes(*rest.get(2..)?.first_chunk()?) & KIND_MASK;
            let value = rest.get(4..len)?;
            if kind == wanted {
                return Some(value);
            }
            rest = rest.get(len.next_multiple_of(4)..)?;
        }
    }

    pub(crate) fn nested(self, wanted: u16) -> Option<Self> {
        self.find(wanted).map(Self)
    }

    pub(crate) fn u8(self, wanted: u16) -> Option<u8> {
        self.find(wanted)?.first().copied()
    }

    pub(crate) fn u16(self, wanted: u16) -> Option<u16> {
        Some(u16::from_ne_bytes(*self.find(wanted)?.first_chunk()?))
    }

    pub(crate) fn u32(self, wanted: u16) -> Option<u32> {
        Some(u32::from_ne_bytes(*self.find(wanted)?.first_chunk()?))
    }

    pub(crate) fn text(self, wanted: u16) -> Option<String> {
        let bytes = self.find(wanted)?;
        let end = bytes.iter().position(|byte| *byte == 0);
        let text = String::from_utf8_lossy(&bytes[..end.unwrap_or(bytes.len())]);
        Some(text.into_owned())
    }
}

/// Appends an attribute.
pub(crate) fn put(message: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let len = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
    message.extend(len.to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(value);
    message.resize(message.len().next_multiple_of(4), 0);
}

/// Appends an attribute with a text that ends in a zero.
pub(crate) fn put_text(message: &mut Vec<u8>, kind: u16, text: &str) {
    put(message, kind, &[text.as_bytes(), &[0]].concat());
}

const HEADER: usize = 16;

const ERROR: u16 = 2;
const DONE: u16 = 3;

const REQUEST: u16 = 0x1;
const ACK: u16 = 0x4;
const DUMP: u16 = 0x300;

/// Without the flags for nesting and byte order.
const KIND_MASK: u16 = 0x3fff;
