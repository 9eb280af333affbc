//! A negotiation that follows a script: results of offers, and verdicts for listeners.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use smc::FallbackCause;
use smc_core::error::Refusal;
use smc_core::negotiate::{
    Candidate, Delivery, Negotiated, Negotiation, Offer, Published, SideChannel, Withdrawn,
};
use smc_core::runtime::{Runtime, Socket, Timer};

use super::side_channel::SideChannelPipe;

/// A negotiation under orders.
#[derive(Clone, Debug)]
pub struct Scripted {
    orders: Orders,
    seen: Arc<Seen>,
}

#[derive(Clone, Debug)]
struct Orders {
    delivery: Delivery,
    withdrawn: Withdrawn,
    /// No answer can come after this time.
    lost_after: Option<Duration>,
    /// No listener is found at the address, or none takes an offer.
    finds: Finds,
}

/// Where the way of an offer ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "tests choose one of them")]
pub enum Finds {
    /// No listener is announced.
    Nothing,
    /// The listener takes no offer.
    NoInterest,
    /// The listener takes the offer.
    Listener,
}

#[derive(Debug, Default)]
struct Seen {
    proposal: Mutex<Option<Vec<u8>>>,
    /// A listener's end of the side channel, until it is taken.
    far: Mutex<Option<SideChannelPipe>>,
    offers: AtomicUsize,
    dismissed: AtomicUsize,
}

impl Scripted {
    /// PROPOSALs are delivered, and from then on as configured by `withdrawn`.
    #[must_use]
    pub fn delivered(withdrawn: Withdrawn) -> Self {
        Self::client(Delivery::Delivered, withdrawn)
    }

    /// Offers are delivered like this.
    #[must_use]
    pub fn client(delivery: Delivery, withdrawn: Withdrawn) -> Self {
        let orders = Orders {
            delivery,
            withdrawn,
            lost_after: None,
            finds: Finds::Listener,
        };
        Self {
            orders,
            seen: Arc::default(),
        }
    }

    /// Listeners get each offer that was made here, and the verdict that everything else is plain.
    #[must_use]
    pub fn server() -> Self {
        Self::delivered(Withdrawn::Taken)
    }

    /// The next connection of a listener supports CLC on this way.
    #[must_use]
    pub fn server_beside(far: SideChannelPipe) -> Self {
        let scripted = Self::server();
        *scripted.seen.far.lock().expect(INTACT) = Some(far);
        scripted
    }

    /// It becomes known after this time that no answer can come.
    #[must_use]
    pub fn lost_after(mut self, time: impl Into<Option<Duration>>) -> Self {
        self.orders.lost_after = time.into();
        self
    }

    /// Where the way of an offer ends.
    #[must_use]
    pub fn finds(mut self, finds: Finds) -> Self {
        self.orders.finds = finds;
        self
    }

    /// What was offered last.
    pub fn offered(&self) -> Option<Vec<u8>> {
        self.seen.proposal.lock().expect(INTACT).clone()
    }

    /// The listener's end of the way on which the last offer was made. It is taken only once.
    pub fn far(&self) -> Option<SideChannelPipe> {
        self.seen.far.lock().expect(INTACT).take()
    }

    /// Offers that were not taken back.
    pub fn offers(&self) -> usize {
        self.seen.offers.load(Ordering::SeqCst)
    }

    /// Connections that a listener wanted no verdict about.
    pub fn dismissed(&self) -> usize {
        self.seen.dismissed.load(Ordering::SeqCst)
    }
}

#[async_trait]
impl Negotiation for Scripted {
    async fn look_up(
        &self,
        runtime: &Arc<dyn Runtime>,
        _to: SocketAddr,
    ) -> Result<Candidate, FallbackCause> {
        let (scripted, runtime) = (self.clone(), Arc::clone(runtime));
        match self.orders.finds {
            Finds::Nothing => Err(nothing_announced()),
            _ => Ok(Candidate::new(move |_, proposal, _| {
                scripted.offer(&runtime, proposal)
            })),
        }
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

impl Published for Scripted {
    fn negotiated(&self, _socket: &dyn Socket, _peer: SocketAddr) -> Negotiated {
        match self.far() {
            Some(far) => Negotiated::SideChannel(Box::new(far)),
            None => Negotiated::Plain(FallbackCause::NotOffered),
        }
    }

    fn dismiss(&self, _socket: &dyn Socket, _peer: SocketAddr, _why: Refusal) -> Negotiated {
        self.seen.dismissed.fetch_add(1, Ordering::SeqCst);
        Negotiated::Plain(FallbackCause::Policy)
    }
}

impl Scripted {
    fn offer(
        &self,
        runtime: &Arc<dyn Runtime>,
        proposal: &[u8],
    ) -> Result<Box<dyn Offer>, FallbackCause> {
        let Self { orders, seen } = self;
        if orders.finds != Finds::Listener {
            return Err(nothing_announced());
        }
        let (near, far) = SideChannelPipe::pair();
        near.deliver(proposal);
        *seen.proposal.lock().expect(INTACT) = Some(proposal.to_vec());
        *seen.far.lock().expect(INTACT) = Some(far);
        seen.offers.fetch_add(1, Ordering::SeqCst);
        Ok(Box::new(ScriptedOffer {
            near,
            lost: orders.lost_after.map(|time| {
                let at = runtime.now() + time;
                (at, runtime.timer(at))
            }),
            runtime: Arc::clone(runtime),
            orders: orders.clone(),
            seen: Arc::clone(seen),
        }))
    }
}

struct ScriptedOffer {
    orders: Orders,
    near: SideChannelPipe,
    /// When nothing can come any more.
    lost: Option<(Instant, Timer)>,
    runtime: Arc<dyn Runtime>,
    seen: Arc<Seen>,
}

impl Offer for ScriptedOffer {
    fn connected(&mut self, _socket: &dyn Socket) -> Delivery {
        self.orders.delivery
    }

    fn withdraw(&mut self) -> Withdrawn {
        self.orders.withdrawn
    }

    fn side_channel(&mut self) -> Option<&mut dyn SideChannel> {
        Some(self)
    }
}

impl SideChannel for ScriptedOffer {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.near.send(message)
    }

    fn flush(&mut self) {
        self.near.flush();
    }

    fn withdraw(&mut self) -> Withdrawn {
        self.orders.withdrawn
    }

    fn try_read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let lost = self.lost.as_ref();
        let is_lost = lost.is_some_and(|(at, _)| *at <= self.runtime.now());
        match self.near.try_read(buf) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && is_lost => Ok(0),
            read => read,
        }
    }

    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        let read = self.near.poll_read(cx, buf);
        let Some((at, timer)) = self.lost.as_mut().filter(|_| read.is_pending()) else {
            return read;
        };
        let is_lost = *at <= self.runtime.now() || timer.as_mut().poll(cx).is_ready();
        match is_lost {
            true => Poll::Ready(Ok(0)),
            false => Poll::Pending,
        }
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

fn nothing_announced() -> FallbackCause {
    FallbackCause::NotAnnounced {
        searched: Arc::default(),
    }
}

const INTACT: &str = "no call panics while it holds the lock";
