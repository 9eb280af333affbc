//! Negotiations with a fixed answer.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use async_trait::async_trait;

use super::{Candidate, Delivery, Negotiated, Negotiation, Offer, Published, Withdrawn};
use crate::error::{FallbackCause, Refusal};
use crate::runtime::{Runtime, Socket};

/// All peers support SMC, by configuration of both ends.
///
/// A peer without this configuration reads the PROPOSAL as data, and a server that expects CLC
/// rejects a client that begins with other bytes. Use it for endpoints and listeners that connect
/// only to each other.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Assume;

impl Assume {
    /// All peers support SMC.
    #[must_use]
    pub fn new() -> Self {
        Self
    }
}

#[async_trait]
impl Negotiation for Assume {
    async fn look_up(
        &self,
        _runtime: &Arc<dyn Runtime>,
        _to: SocketAddr,
    ) -> Result<Candidate, FallbackCause> {
        let assume = *self;
        Ok(Candidate::new(move |_, _, _| Ok(Box::new(assume))))
    }

    fn publish(
        &self,
        _runtime: &Arc<dyn Runtime>,
        _at: SocketAddr,
        _listener: Option<BorrowedFd<'_>>,
    ) -> Result<Arc<dyn Published>, FallbackCause> {
        Ok(Arc::new(*self))
    }
}

impl Offer for Assume {
    fn connected(&mut self, _socket: &dyn Socket) -> Delivery {
        Delivery::OnTcp
    }

    fn withdraw(&mut self) -> Withdrawn {
        Withdrawn::Taken
    }
}

impl Published for Assume {
    fn negotiated(&self, _socket: &dyn Socket, _peer: SocketAddr) -> Negotiated {
        Negotiated::Clc
    }

    fn dismiss(&self, socket: &dyn Socket, peer: SocketAddr, _why: Refusal) -> Negotiated {
        self.negotiated(socket, peer)
    }
}

/// No peer supports SMC: all connections are plain TCP, with the same cause. What an endpoint
/// without a negotiation has.
#[derive(Clone, Debug)]
pub struct Never {
    cause: FallbackCause,
}

impl Never {
    /// No peer supports SMC, with the cause [`FallbackCause::NoNegotiation`].
    #[must_use]
    pub fn new() -> Self {
        Self::because(FallbackCause::NoNegotiation)
    }

    /// No peer supports SMC, with this cause.
    #[must_use]
    pub fn because(cause: FallbackCause) -> Self {
        Self { cause }
    }
}

impl Default for Never {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl Negotiation for Never {
    async fn look_up(
        &self,
        _runtime: &Arc<dyn Runtime>,
        _to: SocketAddr,
    ) -> Result<Candidate, FallbackCause> {
        Err(self.cause.clone())
    }

    fn publish(
        &self,
        _runtime: &Arc<dyn Runtime>,
        _at: SocketAddr,
        _listener: Option<BorrowedFd<'_>>,
    ) -> Result<Arc<dyn Published>, FallbackCause> {
        Ok(Arc::new(self.clone()))
    }
}

impl Published for Never {
    fn negotiated(&self, _socket: &dyn Socket, _peer: SocketAddr) -> Negotiated {
        Negotiated::Plain(self.cause.clone())
    }
}
