//! A negotiation that follows a script: what becomes of offers, and what listeners are told.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use smc_core::io::negotiate::{
    Candidate, Client, Delivery, Negotiation, Offer, Published, Verdict, Withdrawn,
};
use smc_core::io::runtime::{Runtime, Socket, Timer, Unconnected};

/// A negotiation under orders.
#[derive(Clone, Debug)]
pub(crate) struct Scripted {
    orders: Orders,
    seen: Arc<Seen>,
}

#[derive(Clone, Debug)]
struct Orders {
    delivery: Delivery,
    withdrawn: Withdrawn,
    /// Nobody can answer any more after this time.
    lost_after: Option<Duration>,
    /// Nobody is found at the address, or nobody takes an offer.
    finds: Finds,
    verdict: Option<Verdict>,
}

/// Where the way of an offer ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finds {
    Nobody,
    SomebodyWithoutInterest,
    Listener,
}

#[derive(Debug, Default)]
struct Seen {
    proposal: Mutex<Option<Vec<u8>>>,
    offers: AtomicUsize,
    dismissed: AtomicUsize,
}

impl Scripted {
    /// PROPOSALs are delivered, and from then on as told by `withdrawn`.
    pub(crate) fn delivered(withdrawn: Withdrawn) -> Self {
        Self::client(Delivery::Delivered, withdrawn)
    }

    pub(crate) fn client(delivery: Delivery, withdrawn: Withdrawn) -> Self {
        let orders = Orders {
            delivery,
            withdrawn,
            lost_after: None,
            finds: Finds::Listener,
            verdict: None,
        };
        Self {
            orders,
            seen: Arc::default(),
        }
    }

    /// Listeners are told this; `None` stands for the PROPOSAL that was offered last.
    pub(crate) fn server(verdict: impl Into<Option<Verdict>>) -> Self {
        let mut scripted = Self::delivered(Withdrawn::Taken);
        scripted.orders.verdict = verdict.into();
        scripted
    }

    pub(crate) fn lost_after(mut self, time: Duration) -> Self {
        self.orders.lost_after = Some(time);
        self
    }

    pub(crate) fn finds(mut self, finds: Finds) -> Self {
        self.orders.finds = finds;
        self
    }

    /// What was offered last.
    pub(crate) fn offered(&self) -> Option<Vec<u8>> {
        self.seen.proposal.lock().unwrap().clone()
    }

    /// Offers that were not taken back.
    pub(crate) fn offers(&self) -> usize {
        self.seen.offers.load(Ordering::SeqCst)
    }

    /// Connections that a listener wanted no verdict about.
    pub(crate) fn dismissed(&self) -> usize {
        self.seen.dismissed.load(Ordering::SeqCst)
    }
}

impl Negotiation for Scripted {
    fn client(&self, runtime: &Arc<dyn Runtime>) -> Arc<dyn Client> {
        Arc::new(ScriptedClient {
            scripted: self.clone(),
            runtime: Arc::clone(runtime),
        })
    }

    fn publish(
        &self,
        _runtime: &Arc<dyn Runtime>,
        _at: SocketAddr,
        _listener: Option<BorrowedFd<'_>>,
    ) -> io::Result<Arc<dyn Published>> {
        Ok(Arc::new(self.clone()))
    }
}

impl Published for Scripted {
    fn verdict(&self, _socket: &dyn Socket, _peer: SocketAddr) -> Verdict {
        let offered = || Verdict::Clc {
            proposal: self.offered(),
        };
        self.orders.verdict.clone().unwrap_or_else(offered)
    }

    fn dismiss(&self, _socket: &dyn Socket, _peer: SocketAddr) -> Verdict {
        self.seen.dismissed.fetch_add(1, Ordering::SeqCst);
        Verdict::Plain
    }
}

#[derive(Clone, Debug)]
struct ScriptedClient {
    scripted: Scripted,
    runtime: Arc<dyn Runtime>,
}

#[async_trait]
impl Client for ScriptedClient {
    async fn look_up(&self, _to: SocketAddr) -> Option<Box<dyn Candidate>> {
        let is_found = self.scripted.orders.finds != Finds::Nobody;
        is_found.then(|| Box::new(self.clone()) as Box<dyn Candidate>)
    }
}

impl Candidate for ScriptedClient {
    fn offer(&self, _socket: &Unconnected<'_>, proposal: &[u8]) -> Option<Box<dyn Offer>> {
        let Scripted { orders, seen } = &self.scripted;
        if orders.finds != Finds::Listener {
            return None;
        }
        *seen.proposal.lock().unwrap() = Some(proposal.to_vec());
        seen.offers.fetch_add(1, Ordering::SeqCst);
        let timer = |time| self.runtime.timer(self.runtime.now() + time);
        Some(Box::new(ScriptedOffer {
            lost: orders.lost_after.map(timer),
            orders: orders.clone(),
            seen: Arc::clone(seen),
        }))
    }
}

struct ScriptedOffer {
    orders: Orders,
    lost: Option<Timer>,
    seen: Arc<Seen>,
}

impl Offer for ScriptedOffer {
    fn connected(&mut self, _socket: &dyn Socket) -> Delivery {
        self.orders.delivery
    }

    fn withdraw(&mut self) -> Withdrawn {
        self.orders.withdrawn
    }

    fn poll_lost(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(lost) = &mut self.lost else {
            return Poll::Pending;
        };
        let lost = lost.as_mut().poll(cx);
        if lost.is_ready() {
            // Stays so, as a timer need not.
            self.lost = Some(Box::pin(std::future::ready(())));
        }
        lost
    }
}

impl std::fmt::Debug for ScriptedOffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ScriptedOffer").finish_non_exhaustive()
    }
}

impl Drop for ScriptedOffer {
    fn drop(&mut self) {
        self.seen.offers.fetch_sub(1, Ordering::SeqCst);
    }
}
