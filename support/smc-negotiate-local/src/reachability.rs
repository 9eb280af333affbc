//! Probes of whether an address leads from one network namespace to another.
//!
//! The client sends a nonce on the channel. The listener binds a port of the address, which works
//! only if it is an address of its own, and sends the port. The client connects to it over TCP and
//! sends the nonce; the listener reports the source address. If that is the client's own address,
//! packets between the two addresses travel between these two namespaces, without address
//! translation.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io::IoSlice;
use std::net::{IpAddr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use smc_core::random;
use smc_core::runtime::{Acceptor, Runtime, Socket, SocketOptions};

use crate::client::{ClientChannel, Exchange};
use crate::message::{NONCE_LEN, ToClient, ToListener};
use crate::netns::canonical;

/// Asks the listener behind `channel` to prove that `to` is its address.
pub(super) async fn probe(runtime: &dyn Runtime, channel: &Arc<ClientChannel>, to: IpAddr) -> bool {
    within(runtime, CLIENT_TIMEOUT, run_probe(runtime, channel, to))
        .await
        .flatten()
        .is_some()
}

async fn run_probe(runtime: &dyn Runtime, channel: &Arc<ClientChannel>, to: IpAddr) -> Option<()> {
    let nonce: [u8; NONCE_LEN] = random::bytes().ok()?;
    let exchange = Exchange::new(channel.clone());
    channel
        .send(ToListener::Prove {
            id: exchange.id,
            nonce,
            to,
        })
        .ok()?;
    let Some(ToClient::ProbePort { port, .. }) = exchange.next_message().await else {
        return None;
    };
    let probe_addr = SocketAddr::new(to, port);
    let socket = runtime
        .connect(probe_addr, &SocketOptions::default(), &mut |_| Ok(()))
        .await
        .ok()?;
    let sent = poll_fn(|cx| socket.poll_write(cx, &[IoSlice::new(&nonce)]))
        .await
        .ok()?;
    let Some(ToClient::Proven { from, .. }) = exchange.next_message().await else {
        return None;
    };
    let unchanged = canonical(socket.local_addr().ok()?).ip() == from;
    (sent == NONCE_LEN && unchanged).then_some(())
}

/// Waits on the probe socket for the nonce; returns the address that sent it.
pub(super) async fn accept_probe(
    runtime: &dyn Runtime,
    acceptor: &dyn Acceptor,
    nonce: [u8; NONCE_LEN],
) -> Option<IpAddr> {
    let mut reads: VecDeque<Pin<Box<dyn Future<Output = Option<IpAddr>> + Send>>> = VecDeque::new();
    let mut all = 0;
    let probed = poll_fn(|cx| {
        // Any process may connect and send nothing, so all are read at once. The oldest has had
        // the most time.
        for accepted in 1..=MAX_CONNECTIONS {
            match acceptor.poll_accept(cx) {
                Poll::Ready(Ok((socket, peer))) => reads.push_back(Box::pin(async move {
                    let read = read_nonce(&*socket).await;
                    (read == Some(nonce)).then(|| canonical(peer).ip())
                })),
                Poll::Ready(Err(_)) => return Poll::Ready(None),
                Poll::Pending => break,
            }
            all += 1;
            if all > MAX_ALL_CONNECTIONS {
                return Poll::Ready(None);
            }
            if accepted == MAX_CONNECTIONS {
                cx.waker().wake_by_ref();
            }
        }
        reads.drain(..reads.len().saturating_sub(MAX_CONNECTIONS));
        let mut from = None;
        reads.retain_mut(|read| match read.as_mut().poll(cx) {
            Poll::Ready(read) => {
                from = from.or(read);
                false
            }
            Poll::Pending => true,
        });
        from.map_or(Poll::Pending, |from| Poll::Ready(Some(from)))
    });
    within(runtime, LISTENER_TIMEOUT, probed).await.flatten()
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

/// The output of `future`, unless it takes longer than `limit`.
pub(super) async fn within<T>(
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

/// How long a client waits for a probe. Only the first connection to an address waits.
const CLIENT_TIMEOUT: Duration = Duration::from_millis(500);

/// How long a listener keeps the probe socket open.
const LISTENER_TIMEOUT: Duration = Duration::from_secs(1);

/// Connections to a probe socket that are read at a time.
const MAX_CONNECTIONS: usize = 16;

/// Connections to a probe socket in all. One client is to connect.
const MAX_ALL_CONNECTIONS: usize = 256;

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use smc_testkit::runtime::VirtualRuntime;

    use super::*;

    #[test]
    fn connections_that_send_nothing_do_not_keep_a_nonce_from_being_read() {
        let world = VirtualRuntime::new(1);
        let runtime = &*world.handle();
        let options = SocketOptions::default();
        let to = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 5000);
        let listener = runtime.bind(to, &options, &mut |_| Ok(())).unwrap();
        let nonce = [7; NONCE_LEN];
        let from = world.block_on(async {
            let mut sockets = Vec::new();
            for _ in 0..=2 * MAX_CONNECTIONS {
                sockets.push(
                    runtime
                        .connect(to, &options, &mut |_| Ok(()))
                        .await
                        .unwrap(),
                );
            }
            let last = sockets.last().unwrap();
            let sent = poll_fn(|cx| last.poll_write(cx, &[IoSlice::new(&nonce)])).await;
            assert_eq!(sent.unwrap(), NONCE_LEN);
            accept_probe(runtime, &*listener, nonce).await
        });
        assert_eq!(from, Some(Ipv4Addr::LOCALHOST.into()));
    }
}
