//! Proving that an address leads from one network namespace to another.
//!
//! The client chooses a secret and asks on the channel. The listener binds a port of the address in
//! question, which works only if it is an address of its own, and names the port. The client
//! connects to it over TCP and sends the secret; the listener says where it came from. If that is
//! the client's own address, packets between the two addresses travel between these two namespaces,
//! and nobody changes addresses on the way.

use std::future::{Future, poll_fn};
use std::io::IoSlice;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use super::channel::{Channel, Conversation};
use super::message::{NONCE_LEN, ToClient, ToListener};
use super::netns::canonical;
use crate::io::runtime::{Acceptor, Runtime, Socket, SocketOptions};
use crate::random;

/// Asks the listener behind `channel` to prove that `to` is its address.
pub(super) async fn ask(runtime: &dyn Runtime, channel: &Arc<Channel>, to: IpAddr) -> bool {
    within(runtime, CLIENT_PATIENCE, ask_now(runtime, channel, to))
        .await
        .flatten()
        .is_some()
}

async fn ask_now(runtime: &dyn Runtime, channel: &Arc<Channel>, to: IpAddr) -> Option<()> {
    let nonce: [u8; NONCE_LEN] = random::bytes().ok()?;
    let conversation = Conversation::new(channel.clone());
    channel
        .send(ToListener::Prove {
            id: conversation.id,
            nonce,
            to,
        })
        .ok()?;
    let Some(ToClient::Meet { port, .. }) = conversation.news().await else {
        return None;
    };
    let meeting = SocketAddr::new(to, port);
    let socket = runtime
        .connect(meeting, &SocketOptions::default(), &mut |_| Ok(()))
        .await
        .ok()?;
    let sent = poll_fn(|cx| socket.poll_write(cx, &[IoSlice::new(&nonce)]))
        .await
        .ok()?;
    let Some(ToClient::Proven { from, .. }) = conversation.news().await else {
        return None;
    };
    let unchanged = canonical(socket.local_addr().ok()?).ip() == from;
    (sent == NONCE_LEN && unchanged).then_some(())
}

/// Waits at the meeting point for the secret; who sent it.
pub(super) async fn answer(
    runtime: &dyn Runtime,
    meeting: &dyn Acceptor,
    nonce: [u8; NONCE_LEN],
) -> Option<IpAddr> {
    let met = async {
        // Somebody else may come by, but it is not worth waiting for many of them.
        for _ in 0..STRANGERS {
            let (socket, peer) = poll_fn(|cx| meeting.poll_accept(cx)).await.ok()?;
            if read_nonce(&*socket).await == Some(nonce) {
                return Some(canonical(peer).ip());
            }
        }
        None
    };
    within(runtime, LISTENER_PATIENCE, met).await.flatten()
}

async fn read_nonce(socket: &dyn Socket) -> Option<[u8; NONCE_LEN]> {
    let mut nonce = [0; NONCE_LEN];
    let mut at = 0;
    while let Some(rest) = nonce.get_mut(at..).filter(|rest| !rest.is_empty()) {
        match poll_fn(|cx| socket.poll_read(cx, rest)).await {
            Ok(0) | Err(_) => return None,
            Ok(n) => at += n,
        }
    }
    Some(nonce)
}

/// What `future` says, unless it takes longer than `limit`.
async fn within<T>(
    runtime: &dyn Runtime,
    limit: Duration,
    future: impl Future<Output = T>,
) -> Option<T> {
    let mut future = pin!(future);
    let mut timer = runtime.timer(runtime.now() + limit);
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => timer.as_mut().poll(cx).map(|()| None),
    })
    .await
}

/// How long a client waits for a proof. Only the first connection to an address waits.
const CLIENT_PATIENCE: Duration = Duration::from_millis(500);

/// How long a listener keeps the meeting point open.
const LISTENER_PATIENCE: Duration = Duration::from_secs(1);

/// Connections to a meeting point that are looked at.
const STRANGERS: u32 = 4;
