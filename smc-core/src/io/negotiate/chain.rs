//! Several negotiations at once.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use async_trait::async_trait;

use super::{Candidate, Client, Early, Negotiation, Offer, Precedent, Published, Verdict};
use crate::io::runtime::{Runtime, Socket, Unconnected};

/// Asks several negotiations in order.
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
    ) -> io::Result<Arc<dyn Published>> {
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
    async fn look_up(&self, to: SocketAddr) -> Option<Box<dyn Candidate>> {
        let mut found = Vec::new();
        for client in &self.0 {
            found.extend(client.look_up(to).await);
        }
        (!found.is_empty()).then(|| Box::new(Candidates(found)) as Box<dyn Candidate>)
    }
}

#[derive(Debug)]
struct Candidates(Vec<Box<dyn Candidate>>);

impl Candidate for Candidates {
    fn offer(
        &self,
        socket: &Unconnected<'_>,
        proposal: &[u8],
        early: Option<&Early>,
    ) -> Option<Box<dyn Offer>> {
        self.0
            .iter()
            .find_map(|candidate| candidate.offer(socket, proposal, early))
    }

    fn precedent(&self) -> Option<Precedent> {
        self.0.iter().find_map(|candidate| candidate.precedent())
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
        verdicts
            .find(|verdict| !matches!(verdict, Verdict::Plain))
            .unwrap_or(Verdict::Plain)
    }

    /// Tells all of them.
    fn dismiss(&self, socket: &dyn Socket, peer: SocketAddr) -> Verdict {
        let verdicts = self
            .0
            .iter()
            .map(|published| published.dismiss(socket, peer));
        verdicts.fold(Verdict::Plain, |first, next| match first {
            Verdict::Plain => next,
            clc => clc,
        })
    }
}
