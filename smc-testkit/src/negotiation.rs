//! Both ends of a negotiation, without the handshake that follows.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::fmt;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;

use smc_core::negotiate::{Delivery, Negotiated, Negotiation, Offer, Published};
use smc_core::runtime::{Acceptor, Runtime, Socket, SocketOptions, Unconnected};

/// A listener with SMC.
#[derive(Debug)]
#[expect(clippy::exhaustive_structs, reason = "tests take it apart")]
pub struct Server {
    /// Its TCP socket.
    pub acceptor: Arc<dyn Acceptor>,
    /// What negotiation has made of it.
    pub published: Arc<dyn Published>,
}

impl Server {
    /// Binds and publishes a listener as an endpoint does.
    ///
    /// # Panics
    ///
    /// If either fails.
    pub fn publish(
        rt: &Arc<dyn Runtime>,
        at: SocketAddr,
        options: &SocketOptions,
        negotiation: &dyn Negotiation,
    ) -> Self {
        let acceptor = rt.bind(at, options, &mut |socket| {
            negotiation.prepare(socket);
            Ok(())
        });
        let acceptor = acceptor.unwrap();
        let at = acceptor.local_addr().unwrap();
        let published = negotiation.publish(rt, at, acceptor.fd()).unwrap();
        Self {
            acceptor,
            published,
        }
    }

    /// Where it listens.
    ///
    /// # Panics
    ///
    /// If the system does not tell.
    pub fn at(&self) -> SocketAddr {
        self.acceptor.local_addr().unwrap()
    }

    /// The next connection, and the verdict about it.
    ///
    /// # Panics
    ///
    /// If it cannot be accepted.
    pub async fn accept(&self) -> (Arc<dyn Socket>, Negotiated) {
        let (socket, peer) = poll_fn(|cx| self.acceptor.poll_accept(cx)).await.unwrap();
        let verdict = self.published.negotiated(&*socket, peer);
        (socket, verdict)
    }
}

/// A connection of a client, with the offer that was made for it.
#[expect(clippy::exhaustive_structs, reason = "tests take it apart")]
pub struct Connection {
    /// Its TCP socket.
    pub socket: Arc<dyn Socket>,
    /// `None` if no listener was found, or none takes an offer.
    pub offer: Option<Box<dyn Offer>>,
}

impl Connection {
    /// Looks up, offers and connects as an endpoint does.
    ///
    /// # Panics
    ///
    /// If nothing listens there.
    pub async fn dial(
        rt: &Arc<dyn Runtime>,
        negotiation: &dyn Negotiation,
        to: SocketAddr,
        message: &[u8],
    ) -> Self {
        let candidate = negotiation.look_up(rt, to).await;
        let mut offer = None;
        let mut announce = |socket: &Unconnected<'_>| {
            let candidate = candidate.as_ref().ok();
            offer = candidate.and_then(|candidate| candidate.offer(socket, message, None).ok());
            Ok(())
        };
        let socket = rt
            .connect(to, &SocketOptions::default(), &mut announce)
            .await;
        let socket = socket.unwrap();
        Self { socket, offer }
    }

    /// How the client goes on.
    ///
    /// # Panics
    ///
    /// Without an offer.
    pub fn connected(&mut self) -> Delivery {
        self.offer.as_mut().unwrap().connected(&*self.socket)
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_offered = self.offer.is_some();
        f.debug_struct("Connection")
            .field("is_offered", &is_offered)
            .finish_non_exhaustive()
    }
}
