//! One request to the kernel, and its replies.

use std::io;

use netlink_packet_core::{
    NLM_F_DUMP, NLM_F_REQUEST, NetlinkDeserializable, NetlinkMessage, NetlinkPayload,
    NetlinkSerializable,
};
use netlink_sys::{Socket, SocketAddr};

/// All replies to a request for a list.
pub(crate) fn dump<T: Payload>(protocol: isize, request: T) -> io::Result<Vec<T>> {
    let socket = send(protocol, request, NLM_F_REQUEST | NLM_F_DUMP)?;
    let mut replies = Vec::new();
    while receive(&socket, &mut replies)? == Next::More {}
    Ok(replies)
}

/// The replies to a request for one thing. An error of the kernel has its number.
pub(crate) fn get<T: Payload>(protocol: isize, request: T) -> io::Result<Vec<T>> {
    let socket = send(protocol, request, NLM_F_REQUEST)?;
    let mut replies = Vec::new();
    receive(&socket, &mut replies)?;
    Ok(replies)
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    More,
    Done,
}

/// Receives one datagram. A message that cannot be parsed, as of a newer kernel, is left out.
fn receive<T: Payload>(socket: &Socket, replies: &mut Vec<T>) -> io::Result<Next> {
    let (datagram, _) = socket.recv_from_full()?;
    let mut rest = datagram.as_slice();
    while let Some((message, next)) = split(rest) {
        rest = next;
        let parsed = NetlinkMessage::<T>::deserialize(message);
        match parsed.map(|message| message.payload) {
            Ok(NetlinkPayload::InnerMessage(reply)) => replies.push(reply),
            Ok(NetlinkPayload::Done(_)) => return Ok(Next::Done),
            Ok(NetlinkPayload::Error(error)) => return Err(error.to_io()),
            _ => {}
        }
    }
    Ok(Next::More)
}

/// The first message of a datagram, and the others.
fn split(datagram: &[u8]) -> Option<(&[u8], &[u8])> {
    let len = u32::from_ne_bytes(*datagram.first_chunk()?);
    let len = usize::try_from(len).ok()?;
    let message = datagram.get(..len).filter(|message| !message.is_empty())?;
    let next = datagram.get(len.next_multiple_of(4)..);
    Some((message, next.unwrap_or_default()))
}
