//! Sockets, negotiations and what is on the wire.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};
use smc::runtime::tokio::TokioRuntime;
use smc_core::negotiate::{Delivery, Negotiated, Negotiation};
use smc_core::runtime::{Runtime, Socket, SocketOptions};
use smc_negotiate_syn::SynOption;
use smc_testkit::negotiation::{Connection, Server};
use smc_testkit::on::{On, in_time};

/// A runtime with real sockets.
pub(crate) struct World {
    pub(crate) rt: Arc<dyn Runtime>,
}

/// Runs a scenario that has a minute.
pub(crate) fn run<F: Future<Output = ()>>(scenario: impl FnOnce(World) -> F) {
    let runtime = On::TokioAlone.tokio();
    let rt: Arc<dyn Runtime> = Arc::new(TokioRuntime::new(runtime.handle().clone()));
    runtime.block_on(in_time(Duration::from_secs(60), scenario(World { rt })));
}

impl World {
    /// A listener with SMC if the negotiation allows it.
    pub(crate) fn server(&self, negotiation: &dyn Negotiation, at: &str) -> Server {
        Server::publish(
            &self.rt,
            at.parse().unwrap(),
            &SocketOptions::default(),
            negotiation,
        )
    }

    /// Connects as an endpoint does, and returns how it would go on.
    pub(crate) async fn dial(&self, option: &SynOption, to: SocketAddr) -> Dialled {
        let mut connection = Connection::dial(&self.rt, option, to, b"").await;
        let delivery = connection.connected();
        Dialled {
            socket: connection.socket,
            delivery,
        }
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

pub(crate) async fn accept(server: &Server) -> (Arc<dyn Socket>, Speaks) {
    let (socket, verdict) = server.accept().await;
    let speaks = match verdict {
        Negotiated::Plain(_) => Speaks::Plain,
        Negotiated::Clc => Speaks::Clc,
        verdict => panic!("{verdict:?}"),
    };
    (socket, speaks)
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
