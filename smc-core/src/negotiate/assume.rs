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

/// No peer supports SMC: all connections are plain TCP, with the cause
/// [`FallbackCause::NoNegotiation`]. What an endpoint without a negotiation has.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Never;

impl Never {
    /// No peer supports SMC.
    #[must_use]
    pub fn new() -> Self {
        Self
    }
}

#[async_trait]
impl Negotiation for Never {
    async fn look_up(
        &self,
        _runtime: &Arc<dyn Runtime>,
        _to: SocketAddr,
    ) -> Result<Candidate, FallbackCause> {
        Err(FallbackCause::NoNegotiation)
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

impl Published for Never {
    fn negotiated(&self, _socket: &dyn Socket, _peer: SocketAddr) -> Negotiated {
        Negotiated::Plain(FallbackCause::NoNegotiation)
    }
}
