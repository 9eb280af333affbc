//! TCP Fast Open (RFC 7413): a connection whose SYN has the first data.

use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::executor::{Core, Group};
use super::net::Net;
use super::socket::VirtualSocket;

/// How a SYN with data reaches the listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SynDelivery {
    /// Its data is taken, if the listener takes any.
    Once,
    /// Its cookie is refused: the data follows TCP's handshake.
    WithoutCookie,
    /// It is lost. The next one comes a second later and has no data, as of Linux.
    AfterLoss,
    /// It arrives a second time, so long after the first one. If the server's socket is closed by
    /// then, the listener has another connection, which is reset when the client learns of it.
    Twice(Duration),
}

/// A SYN that waits for data.
pub(super) struct Syn {
    pub(super) core: Arc<Core>,
    pub(super) net: Weak<Net>,
    /// Of the client and of the listener.
    pub(super) ends: [SocketAddr; 2],
    pub(super) theirs: Arc<VirtualSocket>,
    pub(super) delivery: SynDelivery,
}

impl Syn {
    /// Sends it. `data` is on its way to the server's socket, and arrives with it.
    pub(super) fn send(self, client: Weak<VirtualSocket>, data: Vec<u8>, arrival: Duration) {
        let core = Arc::clone(&self.core);
        let name = format!("SYN of {}", self.ends[0]);
        core.spawn(
            name,
            Group::ALL,
            Box::pin(self.travel(client, data, arrival)),
        );
    }

    async fn travel(self, client: Weak<VirtualSocket>, data: Vec<u8>, arrival: Duration) {
        let Self {
            core,
            net,
            ends,
            theirs,
            delivery,
        } = self;
        let mut time = arrival.saturating_sub(core.elapsed());
        if delivery == SynDelivery::AfterLoss {
            time += RETRANSMISSION;
        }
        core.timer(core.now() + time).await;
        let listener = net.upgrade().and_then(|net| net.listener(ends[1]));
        let Some(takes_data) = listener.map(|listener| listener.has_fast_open()) else {
            if let Some(client) = client.upgrade() {
                client.refuse();
            }
            return;
        };
        let has_data = matches!(delivery, SynDelivery::Once | SynDelivery::Twice(_));
        let is_early = takes_data && has_data;
        if theirs.is_reset() {
            // The client has ended meanwhile.
            drop(theirs);
            if is_early {
                arrive_again(&core, &net, ends, &data).await;
            }
            return;
        }
        let server = Arc::downgrade(&theirs);
        if is_early {
            offer(&net, ends[1], theirs);
            one_way(&core).await;
            establish(&client);
        } else {
            one_way(&core).await;
            establish(&client);
            one_way(&core).await;
            offer(&net, ends[1], theirs);
        }
        if let SynDelivery::Twice(after) = delivery {
            core.timer(core.now() + after).await;
            // A socket that knows the connection ignores its SYN.
            if is_early && server.strong_count() == 0 {
                arrive_again(&core, &net, ends, &data).await;
            }
        }
    }
}

fn establish(client: &Weak<VirtualSocket>) {
    if let Some(client) = client.upgrade() {
        client.establish();
    }
}

/// Gives a connection to the listener, or resets it.
fn offer(net: &Weak<Net>, at: SocketAddr, socket: Arc<VirtualSocket>) {
    let listener = net.upgrade().and_then(|net| net.listener(at));
    let is_taken = listener.is_some_and(|listener| listener.offer(Arc::clone(&socket)));
    if !is_taken {
        socket.reset();
    }
}

/// A SYN of a connection that its client does not know any more, nor the server.
async fn arrive_again(core: &Arc<Core>, net: &Weak<Net>, ends: [SocketAddr; 2], data: &[u8]) {
    let listener = net.upgrade().and_then(|net| net.listener(ends[1]));
    if !listener.is_some_and(|listener| listener.has_fast_open()) {
        return;
    }
    let (sender, theirs) = VirtualSocket::pair(core, ends);
    let Some(arrival) = sender.send_packet(data) else {
        return;
    };
    core.timer(core.now() + arrival.saturating_sub(core.elapsed()))
        .await;
    offer(net, ends[1], theirs);
    // The SYN-ACK, and the answer to it.
    one_way(core).await;
    one_way(core).await;
    sender.reset();
}

async fn one_way(core: &Arc<Core>) {
    core.timer(core.now() + core.options.latency).await;
}

/// The longest data of a SYN.
pub(super) const DATA_MAX: usize = 1400;

/// After which a SYN that was not acknowledged is sent again.
const RETRANSMISSION: Duration = Duration::from_secs(1);
