//! Several negotiations at once.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use async_trait::async_trait;

use super::{
    CachedHandshake, Candidate, Client, EarlyConfirm, Negotiation, Offer, Published, Verdict,
};
use crate::error::FallbackCause;
use crate::io::runtime::{Runtime, Socket, Unconnected};

/// Uses several negotiations in order.
///
/// A client makes its offer through the first one that has an answer for the address and the
/// socket; a listener is published through all of them, and the first verdict other than
/// [`Verdict::Plain`] counts. One that has an answer for every address, such as
/// [`Assume`](super::Assume) or the TCP option, belongs at the end.
#[derive(Clone, Debug)]
pub struct Chain {
    links: Vec<Arc<dyn Negotiation>>,
}

impl Chain {
    /// A chain of these.
    #[must_use]
    pub fn new(links: impl IntoIterator<Item = Arc<dyn Negotiation>>) -> Self {
        Self {
            links: links.into_iter().collect(),
        }
    }
}

impl Negotiation for Chain {
    fn client(&self, runtime: &Arc<dyn Runtime>) -> Arc<dyn Client> {
        Arc::new(Clients(
            self.links.iter().map(|link| link.client(runtime)).collect(),
        ))
    }

    fn prepare(&self, socket: &Unconnected<'_>) {
        self.links.iter().for_each(|link| link.prepare(socket));
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
        for link in &self.links {
            match link.publish(runtime, at, listener) {
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

#[derive(Debug)]
struct Clients(Vec<Arc<dyn Client>>);

#[async_trait]
impl Client for Clients {
    async fn look_up(&self, to: SocketAddr) -> Result<Box<dyn Candidate>, FallbackCause> {
        let mut found = Vec::new();
        let mut causes = Vec::new();
        for client in &self.0 {
            match client.look_up(to).await {
                Ok(candidate) => found.push(candidate),
                Err(cause) => causes.push(cause),
            }
        }
        match found.is_empty() {
            true => Err(first(causes)),
            false => Ok(Box::new(Candidates(found))),
        }
    }
}

#[derive(Debug)]
struct Candidates(Vec<Box<dyn Candidate>>);

impl Candidate for Candidates {
    fn offer(
        &self,
        socket: &Unconnected<'_>,
        proposal: &[u8],
        early: Option<&EarlyConfirm>,
    ) -> Result<Box<dyn Offer>, FallbackCause> {
        let mut causes = Vec::new();
        for candidate in &self.0 {
            match candidate.offer(socket, proposal, early) {
                Ok(offer) => return Ok(offer),
                Err(cause) => causes.push(cause),
            }
        }
        Err(first(causes))
    }

    fn cached_handshake(&self) -> Option<CachedHandshake> {
        self.0
            .iter()
            .find_map(|candidate| candidate.cached_handshake())
    }

    fn needs_address(&self) -> bool {
        self.0.iter().any(|candidate| candidate.needs_address())
    }
}

#[derive(Debug)]
struct PublishedMany(Vec<Arc<dyn Published>>);

impl Published for PublishedMany {
    fn verdict(&self, socket: &dyn Socket, peer: SocketAddr) -> Verdict {
        let mut verdicts = self
            .0
            .iter()
            .map(|published| published.verdict(socket, peer));
        let mut causes = Vec::new();
        for verdict in &mut verdicts {
            match verdict {
                Verdict::Plain(cause) => causes.push(cause),
                other => return other,
            }
        }
        Verdict::Plain(first(causes))
    }

    /// Calls all of them.
    fn dismiss(&self, socket: &dyn Socket, peer: SocketAddr) -> Verdict {
        let verdicts = self
            .0
            .iter()
            .map(|published| published.dismiss(socket, peer));
        let plain = Verdict::Plain(FallbackCause::Policy);
        verdicts.fold(plain, |first, next| match first {
            Verdict::Plain(_) => next,
            clc => clc,
        })
    }
}

/// The first cause other than a peer without SMC support.
fn first(causes: Vec<FallbackCause>) -> FallbackCause {
    let usual = |cause: &FallbackCause| {
        matches!(
            cause,
            FallbackCause::NotAnnounced { .. } | FallbackCause::NotOffered
        )
    };
    let rest = causes
        .first()
        .cloned()
        .unwrap_or_else(FallbackCause::not_announced);
    causes
        .into_iter()
        .find(|cause| !usual(cause))
        .unwrap_or(rest)
}
