//! Several negotiations at once.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use async_trait::async_trait;

use super::{Candidate, Negotiated, Negotiation, Published};
use crate::error::{FallbackCause, Refusal};
use crate::runtime::{Runtime, Socket, Unconnected};

/// Uses several negotiations in order.
///
/// A client makes its offer through the first one that has an answer for the address and the
/// socket; a listener is published through all of them, and the first verdict other than
/// [`Negotiated::Plain`] counts. One that has an answer for every address, such as
/// [`Assume`](super::Assume) or the TCP option, belongs at the end.
#[derive(Clone, Debug)]
pub struct Chain {
    negotiations: Vec<Arc<dyn Negotiation>>,
}

impl Chain {
    /// A chain of these.
    #[must_use]
    pub fn new(negotiations: impl IntoIterator<Item = Arc<dyn Negotiation>>) -> Self {
        Self {
            negotiations: negotiations.into_iter().collect(),
        }
    }
}

#[async_trait]
impl Negotiation for Chain {
    async fn look_up(
        &self,
        runtime: &Arc<dyn Runtime>,
        to: SocketAddr,
    ) -> Result<Candidate, FallbackCause> {
        let mut found = Vec::new();
        let mut causes = Vec::new();
        for negotiation in &self.negotiations {
            match negotiation.look_up(runtime, to).await {
                Ok(candidate) => found.push(candidate),
                Err(cause) => causes.push(cause),
            }
        }
        match found.is_empty() {
            true => Err(first(&causes)),
            false => Ok(any_of(found)),
        }
    }

    fn prepare(&self, socket: &Unconnected<'_>) {
        let all = self.negotiations.iter();
        all.for_each(|negotiation| negotiation.prepare(socket));
    }

    /// Publishes where that is possible.
    ///
    /// # Errors
    ///
    /// The first one, if it is possible nowhere.
    fn publish(
        &self,
        runtime: &Arc<dyn Runtime>,
        at: SocketAddr,
        listener: Option<BorrowedFd<'_>>,
    ) -> Result<Arc<dyn Published>, FallbackCause> {
        let mut all = Vec::new();
        let mut failed = None;
        for negotiation in &self.negotiations {
            match negotiation.publish(runtime, at, listener) {
                Ok(published) => all.push(published),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        match failed {
            Some(error) if all.is_empty() => Err(error),
            _ => Ok(Arc::new(PublishedMany(all))),
        }
    }
}

/// A candidate that makes the first offer of these that is possible.
fn any_of(candidates: Vec<Candidate>) -> Candidate {
    let needs_address = candidates.iter().any(Candidate::needs_address);
    let is_same_host = candidates.iter().any(Candidate::is_same_host);
    let mut numbered = candidates.iter().enumerate();
    let expecting = numbered.find_map(|(index, it)| Some((index, it.expected_handshake()?)));
    let (expecting, expected) = expecting.unzip();
    let made = Candidate::new(move |socket, proposal, buffer| {
        let mut causes = Vec::new();
        for (index, candidate) in candidates.iter().enumerate() {
            // The buffer was registered for the handshake that this one expects.
            let buffer = buffer.filter(|_| expecting == Some(index));
            match candidate.offer(socket, proposal, buffer) {
                Ok(offer) => return Ok(offer),
                Err(cause) => causes.push(cause),
            }
        }
        Err(first(&causes))
    });
    let mut made = made.expecting(expected);
    (made.needs_address, made.is_same_host) = (needs_address, is_same_host);
    made
}

#[derive(Debug)]
struct PublishedMany(Vec<Arc<dyn Published>>);

impl Published for PublishedMany {
    fn negotiated(&self, socket: &dyn Socket, peer: SocketAddr) -> Negotiated {
        let mut causes = Vec::new();
        for published in &self.0 {
            match published.negotiated(socket, peer) {
                Negotiated::Plain(cause) => causes.push(cause),
                other => return other,
            }
        }
        Negotiated::Plain(first(&causes))
    }

    /// Calls all of them.
    fn dismiss(&self, socket: &dyn Socket, peer: SocketAddr, why: Refusal) -> Negotiated {
        let verdicts = self
            .0
            .iter()
            .map(|published| published.dismiss(socket, peer, why));
        let plain = Negotiated::Plain(FallbackCause::Policy);
        verdicts.fold(plain, |first, next| match first {
            Negotiated::Plain(_) => next,
            clc => clc,
        })
    }
}

/// The first cause other than a peer without SMC support.
fn first(causes: &[FallbackCause]) -> FallbackCause {
    let is_unusual = |cause: &&FallbackCause| {
        !matches!(
            cause,
            FallbackCause::NotAnnounced { .. }
                | FallbackCause::NotOffered
                | FallbackCause::NoNegotiation
        )
    };
    let found = causes.iter().find(is_unusual).or_else(|| causes.first());
    found.cloned().unwrap_or_else(FallbackCause::not_announced)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::Mutex;

    use smc_wire::size::SizeCode;
    use smc_wire::types::{DmbToken, Gid};

    use super::super::ExpectedHandshake;
    use super::*;

    type Offers = Arc<Mutex<Vec<(Gid, Option<DmbToken>)>>>;

    /// A candidate that expects a handshake with this GID, and refuses all offers.
    fn refusing(gid: Gid, offers: &Offers) -> Candidate {
        let offers = Arc::clone(offers);
        let candidate = Candidate::new(move |_, _, buffer| {
            let mut offers = offers.lock().expect("no test panics here");
            offers.push((gid, buffer));
            Err(FallbackCause::BackOff)
        });
        candidate.expecting(Some(ExpectedHandshake {
            client: gid,
            server: gid,
            process: None,
            size: SizeCode::MIN,
            server_size: SizeCode::MIN,
        }))
    }

    #[test]
    fn a_buffer_is_confirmed_only_for_the_handshake_that_it_was_registered_for() {
        let offers = Offers::default();
        let gids = [1, 2].map(|lo| Gid::new(0, lo));
        let candidate = any_of(gids.map(|gid| refusing(gid, &offers)).into());
        let expected = candidate
            .expected_handshake()
            .map(|expected| expected.client);
        assert_eq!(expected, Some(gids[0]));
        let socket = Unconnected::new((Ipv4Addr::LOCALHOST, 1).into(), None);
        let buffer = DmbToken(7);
        assert!(candidate.offer(&socket, b"", Some(buffer)).is_err());
        let offers = offers.lock().expect("no test panics here");
        assert_eq!(*offers, [(gids[0], Some(buffer)), (gids[1], None)]);
    }
}
