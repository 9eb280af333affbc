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
        let socket = send(protocol, request.clone(), NLM_F_REQUEST | NLM_F_DUMP)?;
        let mut list = List::default();
        for _ in 0..DATAGRAMS_MAX {
            list.add(&receive(&socket)?)?;
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

/// The replies to a request for one thing. An error of the kernel has its number.
pub(crate) fn get<T: Payload>(protocol: isize, request: T) -> io::Result<Vec<T>> {
    let socket = send(protocol, request, NLM_F_REQUEST)?;
    let mut list = List::default();
    list.add(&receive(&socket)?)?;
    Ok(list.replies)
}

/// Messages of a protocol of netlink.
pub(crate) trait Payload: NetlinkSerializable + NetlinkDeserializable {}

impl<T: NetlinkSerializable + NetlinkDeserializable> Payload for T {}

fn send<T: Payload>(protocol: isize, request: T, flags: u16) -> io::Result<Socket> {
    let mut socket = Socket::new(protocol)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    // The first replies are there when the request was sent, and the others are made by the call
    // that receives them.
    socket.set_non_blocking(true)?;
    let mut message =
        NetlinkMessage::new(Default::default(), NetlinkPayload::InnerMessage(request));
    message.header.flags = flags;
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    socket.send(&bytes, 0)?;
    Ok(socket)
}

fn receive(socket: &Socket) -> io::Result<Vec<u8>> {
    let (datagram, _) = socket.recv_from_full()?;
    Ok(datagram)
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
