//! Negotiations that know the answer beforehand.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use async_trait::async_trait;

use super::{
    Candidate, Client, Delivery, EarlyConfirm, Negotiation, Offer, Published, Verdict, Withdrawn,
};
use crate::error::FallbackCause;
use crate::io::runtime::{Runtime, Socket, Unconnected};

/// Everybody speaks SMC: both ends were told so.
///
/// A peer that was not told reads the PROPOSAL as data, and a server that expects CLC does not
/// understand a client that begins with anything else. Give it to endpoints and listeners that
/// only talk to each other.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Assume;

impl Assume {
    /// Everybody speaks SMC.
    #[must_use]
    pub fn new() -> Self {
        Self
    }
}

impl Negotiation for Assume {
    fn client(&self, _runtime: &Arc<dyn Runtime>) -> Arc<dyn Client> {
        Arc::new(*self)
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

#[async_trait]
impl Client for Assume {
    async fn look_up(&self, _to: SocketAddr) -> Result<Box<dyn Candidate>, FallbackCause> {
        Ok(Box::new(*self))
    }
}

impl Candidate for Assume {
    fn offer(
        &self,
        _socket: &Unconnected<'_>,
        _proposal: &[u8],
        _early: Option<&EarlyConfirm>,
    ) -> Result<Box<dyn Offer>, FallbackCause> {
        Ok(Box::new(*self))
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
    fn verdict(&self, _socket: &dyn Socket, _peer: SocketAddr) -> Verdict {
        Verdict::Clc
    }

    fn dismiss(&self, socket: &dyn Socket, peer: SocketAddr) -> Verdict {
        self.verdict(socket, peer)
    }
}

/// Nobody speaks SMC: all connections are plain TCP.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Never;

impl Never {
    /// Nobody speaks SMC.
    #[must_use]
    pub fn new() -> Self {
        Self
    }
}

impl Negotiation for Never {
    fn client(&self, _runtime: &Arc<dyn Runtime>) -> Arc<dyn Client> {
        Arc::new(*self)
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

#[async_trait]
impl Client for Never {
    async fn look_up(&self, _to: SocketAddr) -> Result<Box<dyn Candidate>, FallbackCause> {
        Err(FallbackCause::not_announced())
    }
}

impl Published for Never {
    fn verdict(&self, _socket: &dyn Socket, _peer: SocketAddr) -> Verdict {
        Verdict::Plain(FallbackCause::NotOffered)
    }
}
