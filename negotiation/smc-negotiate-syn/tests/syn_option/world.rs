//! Sockets, negotiations and what is on the wire.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use futures_lite::FutureExt;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};
use smc::runtime::tokio::TokioRuntime;
use smc_core::negotiate::{Delivery, Negotiation, Published, Verdict};
use smc_core::runtime::{Acceptor, Runtime, Socket, SocketOptions, Unconnected};
use smc_negotiate_syn::SynOption;

/// A runtime with real sockets.
pub(crate) struct World {
    pub(crate) rt: Arc<dyn Runtime>,
}

/// Runs a scenario that has a minute.
pub(crate) fn run<F: Future<Output = ()>>(scenario: impl FnOnce(World) -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let rt: Arc<dyn Runtime> = Arc::new(TokioRuntime::new(runtime.handle().clone()));
    let late = rt.timer(rt.now() + Duration::from_secs(60));
    let late = async {
        late.await;
        panic!("the scenario does not end");
    };
    runtime.block_on(scenario(World { rt }).or(late));
}

impl World {
    /// A listener with SMC if the negotiation allows it.
    pub(crate) fn server(&self, negotiation: &dyn Negotiation, at: &str) -> Server {
        let mut prepare = |socket: &Unconnected<'_>| {
            negotiation.prepare(socket);
            Ok(())
        };
        let options = SocketOptions::default();
        let at = at.parse().unwrap();
        let acceptor = self.rt.bind(at, &options, &mut prepare).unwrap();
        let at = acceptor.local_addr().unwrap();
        let published = negotiation.publish(&self.rt, at, acceptor.fd()).unwrap();
        Server {
            acceptor,
            published,
        }
    }

    /// Connects as an endpoint does, and returns how it would go on.
    pub(crate) async fn dial(&self, option: &SynOption, to: SocketAddr) -> Dialled {
        let candidate = option.look_up(&self.rt, to).await.unwrap();
        let mut offer = None;
        let socket = self
            .rt
            .connect(to, &SocketOptions::default(), &mut |socket| {
                offer = candidate.offer(socket, b"", None).ok();
                Ok(())
            })
            .await
            .unwrap();
        let delivery = offer.unwrap().connected(&*socket);
        Dialled { socket, delivery }
    }

    /// Connects without any negotiation.
    pub(crate) async fn dial_plain(&self, to: SocketAddr) -> Arc<dyn Socket> {
        let options = SocketOptions::default();
        let socket = self.rt.connect(to, &options, &mut |_| Ok(())).await;
        socket.unwrap()
    }
}

/// A connection of a client, and how it goes on.
pub(crate) struct Dialled {
    pub(crate) socket: Arc<dyn Socket>,
    pub(crate) delivery: Delivery,
}

pub(crate) struct Server {
    pub(crate) acceptor: Arc<dyn Acceptor>,
    pub(crate) published: Arc<dyn Published>,
}

impl Server {
    pub(crate) fn at(&self) -> SocketAddr {
        self.acceptor.local_addr().unwrap()
    }

    pub(crate) async fn accept(&self) -> (Arc<dyn Socket>, Speaks) {
        let (socket, peer) = poll_fn(|cx| self.acceptor.poll_accept(cx)).await.unwrap();
        let speaks = match self.published.verdict(&*socket, peer) {
            Verdict::Plain(_) => Speaks::Plain,
            Verdict::Clc => Speaks::Clc,
            verdict => panic!("{verdict:?}"),
        };
        (socket, speaks)
    }
}

/// How a listener sees a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Speaks {
    Plain,
    Clc,
}

/// What is on the wire of this network namespace.
pub(crate) struct Sniffer(OwnedFd);

/// A segment of a TCP handshake.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Syn {
    pub(crate) is_answer: bool,
    pub(crate) options: Vec<u8>,
}

impl Sniffer {
    pub(crate) fn start() -> Self {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let all = Some(rustix::net::eth::ALL);
        Self(rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, flags, all).unwrap())
    }

    /// The SYN and SYN-ACK segments to or from a port since it started.
    pub(crate) fn handshakes(&self, port: u16) -> Vec<Syn> {
        let mut found = Vec::new();
        let mut frame = vec![0; 70_000];
        while let Ok((len, _)) = rustix::net::recv(&self.0, &mut *frame, RecvFlags::empty()) {
            found.extend(handshake(&frame[..len], port));
        }
        // Over loopback each frame passes twice, on its way out and on its way in.
        found.dedup();
        found
    }
}

fn handshake(frame: &[u8], port: u16) -> Option<Syn> {
    let ip = &frame[14..];
    let tcp = match ip[0] >> 4 {
        4 if ip[9] == 6 => &ip[20..],
        6 if ip[6] == 6 => &ip[40..],
        _ => return None,
    };
    let ports = [[tcp[0], tcp[1]], [tcp[2], tcp[3]]].map(u16::from_be_bytes);
    let len = usize::from(tcp[12] >> 4) * 4;
    let is_syn = tcp[13] & 0x02 != 0 && ports.contains(&port);
    is_syn.then(|| Syn {
        is_answer: tcp[13] & 0x10 != 0,
        options: tcp[20..len].to_vec(),
    })
}
