//! One request to the kernel, and its replies.

use std::io;

use netlink_packet_core::{
    NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkDeserializable, NetlinkMessage,
    NetlinkPayload, NetlinkSerializable,
};
use netlink_sys::{Socket, SocketAddr};

/// All replies to a request for a list. A list that changes while the kernel makes it is requested
/// again.
pub(crate) fn dump<T: Payload + Clone>(protocol: isize, request: &T) -> io::Result<Vec<T>> {
    for _ in 0..DUMPS_MAX {
        let connection = Connection::open(protocol)?;
        connection.send(request.clone(), NLM_F_REQUEST | NLM_F_DUMP)?;
        let mut list = List::default();
        for _ in 0..DATAGRAMS_MAX {
            list.add(&connection.receive()?)?;
            if list.is_complete {
                break;
            }
        }
        if !list.is_complete {
            return Err(io::Error::other(format!(
                "a list of the kernel has more than {DATAGRAMS_MAX} messages"
            )));
        }
        if !list.is_interrupted {
            return Ok(list.replies);
        }
    }
    Err(io::Error::other(format!(
        "a list of the kernel has changed during {DUMPS_MAX} requests for it"
    )))
}

/// Messages of a protocol of netlink.
pub(crate) trait Payload: NetlinkSerializable + NetlinkDeserializable {}

impl<T: NetlinkSerializable + NetlinkDeserializable> Payload for T {}

/// A socket for one request after the other.
pub(crate) struct Connection(Socket);

impl Connection {
    /// Opens a socket of a protocol.
    pub(crate) fn open(protocol: isize) -> io::Result<Self> {
        let socket = Socket::new(protocol)?;
        // Binds it as well. Nothing but the kernel can send to it then.
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Self(socket))
    }

    /// The replies to a request for one thing. An error of the kernel has its number.
    pub(crate) fn get<T: Payload>(&self, request: T) -> io::Result<Vec<T>> {
        self.send(request, NLM_F_REQUEST)?;
        let mut list = List::default();
        list.add(&self.receive()?)?;
        Ok(list.replies)
    }

    fn send<T: Payload>(&self, request: T, flags: u16) -> io::Result<()> {
        let mut message =
            NetlinkMessage::new(Default::default(), NetlinkPayload::InnerMessage(request));
        message.header.flags = flags;
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.0.send(&bytes, MSG_DONTWAIT)?;
        Ok(())
    }

    /// The next replies. The first ones are there when the request was sent, and the others are
    /// made by the call that receives them.
    fn receive(&self) -> io::Result<Vec<u8>> {
        let mut datagram = Vec::with_capacity(DATAGRAM_MAX);
        let len = self.0.recv(&mut datagram, MSG_DONTWAIT | MSG_TRUNC)?;
        match len == datagram.len() {
            true => Ok(datagram),
            false => Err(io::Error::other(format!(
                "a message of the kernel has {len} bytes, more than {DATAGRAM_MAX}"
            ))),
        }
    }
}

/// The replies to a request so far.
struct List<T> {
    replies: Vec<T>,
    is_complete: bool,
    /// It has changed meanwhile, so that entries may be missing.
    is_interrupted: bool,
}

impl<T> Default for List<T> {
    fn default() -> Self {
        Self {
            replies: Vec::new(),
            is_complete: false,
            is_interrupted: false,
        }
    }
}

impl<T: Payload> List<T> {
    /// Adds a datagram. A message that cannot be parsed, as of a newer kernel, is left out.
    fn add(&mut self, datagram: &[u8]) -> io::Result<()> {
        let mut rest = datagram;
        while let Some((message, next)) = split(rest) {
            rest = next;
            let Ok(message) = NetlinkMessage::<T>::deserialize(message) else {
                continue;
            };
            self.is_interrupted |= message.header.flags & NLM_F_DUMP_INTR != 0;
            match message.payload {
                NetlinkPayload::InnerMessage(reply) => self.replies.push(reply),
                NetlinkPayload::Done(done) if done.code < 0 => {
                    return Err(io::Error::from_raw_os_error(done.code.saturating_neg()));
                }
                NetlinkPayload::Done(_) => self.is_complete = true,
                NetlinkPayload::Error(error) => return Err(error.to_io()),
                _ => {}
            }
        }
        Ok(())
    }
}

/// The first message of a datagram, and the others.
fn split(datagram: &[u8]) -> Option<(&[u8], &[u8])> {
    let len = u32::from_ne_bytes(*datagram.first_chunk()?);
    let len = usize::try_from(len).ok()?;
    let message = datagram.get(..len).filter(|message| !message.is_empty())?;
    let next = datagram.get(len.next_multiple_of(4)..);
    Some((message, next.unwrap_or_default()))
}

/// Requests for a list that changes each time. Interfaces do not change that often.
const DUMPS_MAX: usize = 8;

/// The longest datagram. Those of lists are made to have 32 KiB at most.
const DATAGRAM_MAX: usize = 1 << 16;

/// Has `recv` return the length of a datagram that the buffer has no space for (recv(2)).
const MSG_TRUNC: i32 = 0x20;

/// Has a call fail that would have to wait (recv(2)).
const MSG_DONTWAIT: i32 = 0x40;

/// Datagrams of a list: each has several entries.
const DATAGRAMS_MAX: usize = 1 << 16;

#[cfg(test)]
mod tests {
    use netlink_packet_core::{DoneMessage, NetlinkHeader};
    use netlink_packet_route::RouteNetlinkMessage;
    use netlink_packet_route::link::LinkMessage;

    use super::*;

    type Reply = NetlinkPayload<RouteNetlinkMessage>;

    fn list(datagrams: &[(u16, Vec<Reply>)]) -> io::Result<List<RouteNetlinkMessage>> {
        let mut list = List::default();
        for (flags, replies) in datagrams {
            let mut datagram = Vec::new();
            for reply in replies {
                let mut message = NetlinkMessage::new(NetlinkHeader::default(), reply.clone());
                message.header.flags = *flags;
                message.finalize();
                let mut bytes = vec![0; message.buffer_len()];
                message.serialize(&mut bytes);
                datagram.append(&mut bytes);
            }
            list.add(&datagram)?;
        }
        Ok(list)
    }

    fn link() -> Reply {
        NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(LinkMessage::default()))
    }

    fn done(code: i32) -> Reply {
        let mut done = DoneMessage::default();
        done.code = code;
        NetlinkPayload::Done(done)
    }

    #[test]
    fn a_list_is_complete_with_its_last_message() {
        let begun = list(&[(0, vec![link(), link()]), (0, vec![link()])]).unwrap();
        assert_eq!((begun.replies.len(), begun.is_complete), (3, false));
        let ended = list(&[(0, vec![link()]), (0, vec![done(0)])]).unwrap();
        assert!(ended.is_complete && !ended.is_interrupted);
    }

    #[test]
    fn a_list_that_has_changed_meanwhile_counts_as_interrupted() {
        let datagrams = [(0, vec![link()]), (NLM_F_DUMP_INTR, vec![link(), done(0)])];
        let list = list(&datagrams).unwrap();
        assert!(list.is_complete && list.is_interrupted);
    }

    #[test]
    fn an_error_at_the_end_of_a_list_is_an_error() {
        let error = list(&[(0, vec![link(), done(-105)])]).err().unwrap();
        assert_eq!(error.raw_os_error(), Some(105));
    }

    #[test]
    fn a_message_with_a_wrong_length_ends_its_datagram() {
        let mut list = List::<RouteNetlinkMessage>::default();
        for datagram in [
            &[][..],
            &[1, 0],
            &[0; 16],
            &[0xff; 16],
            &[7, 0, 0, 0, 1, 2, 3],
        ] {
            list.add(datagram).unwrap();
        }
        assert!(list.replies.is_empty() && !list.is_complete);
    }
}
