//! A client's offer: its slot, and the handshake on it.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use smc_core::error::{FallbackCause, OsError};
use smc_core::negotiate::{Credentials, Delivery, Offer, SideChannel, Withdrawn};
use smc_core::runtime::{Runtime, Socket};

use super::LocalClient;
use super::channel::SlotOffer;
use crate::early::{CachedHandshake, EarlyConfirm};
use crate::mailbox::{Direction, MAX_ANSWER, MAX_EARLY, OfferState};
use crate::netns::{NetNs, canonical};

/// A connection that was announced to one listener or more.
#[derive(Debug)]
pub(crate) struct LocalOffer {
    /// The offers that are pending; only the one that was taken, as soon as that is known.
    pub(super) announced: Vec<SlotOffer>,
    pub(super) outcome: Option<Withdrawn>,
    /// Bytes of the answer that were read.
    pub(super) read_len: usize,
    /// The early CONFIRM, in case of the expected answer.
    pub(super) early: Option<EarlyConfirm>,
    /// Whether the answer that was read is the expected one.
    pub(super) is_confirmed: bool,
    /// Why one of the listeners does not answer.
    pub(super) cause: Option<FallbackCause>,
    pub(super) runtime: Arc<dyn Runtime>,
    pub(super) since: Instant,
    /// The connection, if it was announced to another user: that user has to have got it.
    pub(super) connection: Option<Connection>,
    /// The address that was announced, if that of the connection may be another one.
    pub(super) from: Option<SocketAddr>,
}

/// The connection that was announced.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) client: LocalClient,
    pub(super) netns: NetNs,
    pub(super) to: SocketAddr,
    pub(super) from: SocketAddr,
    /// The owner of the listening socket when it was announced.
    pub(super) owner: u32,
}

impl LocalOffer {
    /// The first message of the listener that has taken the offer, as far as it was read. Empty if
    /// it is longer than `buf`, or none was read.
    fn answer<'a>(&self, buf: &'a mut [u8]) -> &'a [u8] {
        let ([taker], Some(answer)) = (&*self.announced, buf.get_mut(..self.read_len)) else {
            return &[];
        };
        match taker.slot.read(Direction::FromListener, 0, answer) {
            Some(count) if count > 0 && taker.state() == OfferState::Taken => answer,
            _ => &[],
        }
    }

    /// Whether the answer, as far as it was read, is the expected one.
    fn is_answer_expected(&self) -> bool {
        // The listener may have written a part of it only.
        let has_length = |early: &&EarlyConfirm| early.accept.len() == self.read_len;
        let early = self.early.as_ref().filter(has_length);
        early.is_some_and(|early| early.expects(self.answer(&mut [0; MAX_EARLY])))
    }

    /// Whether the connection has reached a socket of the listener's user at its address, as far as
    /// the kernel reports it: a packet filter may have redirected it, or the port may have changed
    /// hands.
    fn has_arrived(&self) -> Option<bool> {
        let Connection {
            client,
            netns,
            to,
            from,
            owner,
        } = self.connection.as_ref()?;
        client.has_local_peer(*netns, *to, *from, *owner)
    }

    /// Whether the connection is known to be the announced one.
    fn is_of(&self, socket: &dyn Socket) -> bool {
        let is_at = |from| socket.local_addr().is_ok_and(|it| canonical(it) == from);
        self.from.is_none_or(is_at)
    }

    /// The stream is TCP, whether a listener has taken the offer for another connection or not.
    fn give_up(&mut self, cause: FallbackCause) -> Delivery {
        self.withdraw_all();
        self.announced.clear();
        self.outcome = Some(Withdrawn::Free);
        self.cause = Some(cause);
        Delivery::Plain
    }

    fn withdraw_all(&mut self) -> Withdrawn {
        if let Some(outcome) = self.outcome {
            return outcome;
        }
        let mut outcome = Withdrawn::Free;
        for announced in &self.announced {
            if !announced.withdraw() && announced.state() == OfferState::Taken {
                outcome = Withdrawn::Taken;
            }
        }
        self.outcome = Some(outcome);
        outcome
    }

    /// The announcement that was taken, if that is known. Removes those that cannot be taken.
    fn taker(&mut self) -> Option<&SlotOffer> {
        let taker = self
            .announced
            .iter()
            .position(|announced| announced.state() == OfferState::Taken);
        if let Some(taker) = taker {
            // No other listener gets this connection.
            self.announced.swap(0, taker);
            self.announced.truncate(1);
            return self.announced.first();
        }
        let cause = &mut self.cause;
        self.announced.retain(|announced| {
            let channel = &announced.exchange.channel;
            match announced.state() {
                // A listener that has ended may have answered before.
                OfferState::Offered | OfferState::Claimed
                    if channel.has_ended() && announced.withdraw() =>
                {
                    *cause = Some(channel.end_cause());
                    false
                }
                OfferState::Offered | OfferState::Claimed => true,
                // It was taken meanwhile.
                OfferState::Taken => true,
                OfferState::Cancelled | OfferState::Withdrawn => {
                    *cause = Some(FallbackCause::Refused(announced.slot.refusal()));
                    false
                }
            }
        });
        None
    }
}

impl Offer for LocalOffer {
    /// A listener of another user gets the stream only if the connection is with a socket here.
    /// When it was announced there was none with these addresses but the listening one.
    fn connected(&mut self, socket: &dyn Socket) -> Delivery {
        if !self.is_of(socket) {
            return self.give_up(no_port());
        }
        if self.connection.is_none() {
            return Delivery::Delivered;
        }
        let mut has_arrived = self.has_arrived();
        if has_arrived != Some(true) && self.withdraw_all() == Withdrawn::Taken {
            // A listener accepts a connection before it takes the offer.
            has_arrived = self.has_arrived();
        }
        match (has_arrived, self.outcome) {
            (Some(true), None | Some(Withdrawn::Taken)) => Delivery::Delivered,
            // Taken, and perhaps rightly: it can be neither this stream nor TCP.
            (None, Some(Withdrawn::Taken)) => {
                self.announced.clear();
                Delivery::Delivered
            }
            _ => self.give_up(FallbackCause::NotProven),
        }
    }

    fn withdraw(&mut self) -> Withdrawn {
        self.withdraw_all()
    }

    fn cause(&self) -> FallbackCause {
        self.cause.clone().unwrap_or(FallbackCause::PlainServer)
    }

    fn side_channel(&mut self) -> Option<&mut dyn SideChannel> {
        Some(self)
    }
}

/// The connection comes from a port that could not be announced.
pub(super) fn no_port() -> FallbackCause {
    let in_use = io::ErrorKind::AddrInUse.into();
    OsError::new("take a local port", &in_use).into()
}

impl SideChannel for LocalOffer {
    /// The process that has taken the offer: a message is read from that one only.
    fn credentials(&self) -> Option<Credentials> {
        let [taker] = &*self.announced else {
            return None;
        };
        Some(taker.exchange.channel.process)
    }

    fn progress(&self) -> u64 {
        let each = self.announced.iter().map(SlotOffer::progress);
        each.fold(0, u64::wrapping_add)
    }

    fn withdraw(&mut self) -> Withdrawn {
        let outcome = self.withdraw_all();
        if outcome == Withdrawn::Free {
            let now = self.runtime.now();
            let backoffs = self.announced.iter().map(|it| &it.exchange.channel.backoff);
            backoffs.for_each(|backoff| backoff.extend(self.since, now));
        }
        outcome
    }

    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        if self.is_confirmed {
            if self
                .early
                .as_ref()
                .is_some_and(|early| early.is_same_confirm(message))
            {
                return Ok(());
            }
            // The listener has the stream, and reads no further message.
            for announced in &self.announced {
                announced.exchange.channel.set_cached_handshake(None);
            }
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        let mut buf = [0; MAX_ANSWER];
        let answer = self.answer(&mut buf);
        let taker = self.taker().ok_or(io::ErrorKind::NotConnected)?;
        let process = taker.exchange.channel.process;
        let cached_handshake = CachedHandshake::new(answer, message, process);
        taker
            .exchange
            .channel
            .set_cached_handshake(cached_handshake);
        taker.slot.write(Direction::FromClient, message)
    }

    fn flush(&mut self) {
        if let Some(taker) = self.taker() {
            taker.notify();
        }
    }

    fn is_confirmed(&self) -> bool {
        self.is_confirmed
    }

    fn try_read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let read_len = self.read_len;
        let Some(taker) = self.taker() else {
            return match self.announced.is_empty() {
                true => Ok(0),
                false => Err(io::ErrorKind::WouldBlock.into()),
            };
        };
        // Loaded first: a listener writes all its messages before it ends.
        let has_ended = taker.exchange.channel.has_ended();
        match taker.slot.read(Direction::FromListener, read_len, buf) {
            Some(count) => {
                if read_len == 0 && count > 0 {
                    taker.exchange.channel.backoff.reset();
                }
                self.read_len += count;
                self.is_confirmed = self.is_answer_expected();
                Ok(count)
            }
            None if has_ended => Ok(0),
            None => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        loop {
            let mut was_notified = false;
            for announced in &self.announced {
                // Earlier notifications are taken before the next one is requested.
                was_notified |= announced.exchange.poll_message(cx).is_ready();
                announced.slot.request_wake(Direction::FromListener);
            }
            match self.try_read(buf) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return Poll::Ready(read),
            }
            if !was_notified {
                return Poll::Pending;
            }
        }
    }
}
