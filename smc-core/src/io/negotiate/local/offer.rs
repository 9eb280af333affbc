//! A client's offer: its card, and the handshake on it.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use super::board::{State, Voice};
use super::channel::Announced;
use super::client::LocalClient;
use super::netns::NetNs;
use crate::error::FallbackCause;
use crate::io::negotiate::{
    CachedHandshake, Delivery, EarlyConfirm, Offer, SideChannel, Withdrawn,
};
use crate::io::runtime::{Runtime, Socket};

/// A connection that was announced to one listener or more.
#[derive(Debug)]
pub(super) struct LocalOffer {
    /// To whom, unless they refused it or are gone; only to the one who has taken it, as soon as
    /// that is known.
    announced: Vec<Announced>,
    outcome: Option<Withdrawn>,
    /// Bytes of the answer that were read.
    heard: usize,
    /// What was confirmed already, in case of the expected answer.
    early: Option<EarlyConfirm>,
    /// Whether what was read is that answer.
    is_confirmed: bool,
    /// Why one of them does not answer.
    cause: Option<FallbackCause>,
    runtime: Arc<dyn Runtime>,
    since: Instant,
    /// Announced to another user, who has to have got it.
    connection: Option<Connection>,
}

/// The connection that was announced.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) client: LocalClient,
    pub(super) netns: NetNs,
    pub(super) to: SocketAddr,
    pub(super) from: SocketAddr,
}

impl LocalOffer {
    pub(super) fn new(
        announced: Vec<Announced>,
        early: Option<EarlyConfirm>,
        runtime: Arc<dyn Runtime>,
        since: Instant,
        connection: Option<Connection>,
    ) -> Self {
        Self {
            announced,
            outcome: None,
            heard: 0,
            early,
            is_confirmed: false,
            cause: None,
            runtime,
            since,
            connection,
        }
    }

    /// The first message of the one who has taken the offer, as far as it was read.
    fn answer(&self) -> Option<Vec<u8>> {
        let [taker] = &*self.announced else {
            return None;
        };
        let mut answer = vec![0; self.heard];
        let count = taker.card.hear(Voice::Listener, 0, &mut answer)?;
        (count > 0 && taker.state() == State::Taken).then_some(answer)
    }

    /// Whether the answer, as far as it was read, is the expected one.
    fn is_answer_expected(&self) -> bool {
        let answers =
            |early: &EarlyConfirm| self.answer().is_some_and(|answer| early.answers(&answer));
        self.early.as_ref().is_some_and(answers)
    }

    /// Whether the connection has got to a socket at its address, as far as the kernel can say: a
    /// packet filter may have led it elsewhere.
    fn has_arrived(&self) -> Option<bool> {
        let connection = self.connection.as_ref()?;
        let client = &connection.client;
        client.is_here(connection.netns, connection.to, connection.from)
    }

    fn take_back(&mut self) -> Withdrawn {
        if let Some(outcome) = self.outcome {
            return outcome;
        }
        let mut outcome = Withdrawn::Free;
        for announced in &self.announced {
            if !announced.withdraw() && announced.state() == State::Taken {
                outcome = Withdrawn::Taken;
            }
        }
        self.outcome = Some(outcome);
        outcome
    }

    /// The one who has taken the offer, if that is known. Forgets those who cannot.
    fn taker(&mut self) -> Option<&Announced> {
        let taker = self
            .announced
            .iter()
            .position(|announced| announced.state() == State::Taken);
        if let Some(taker) = taker {
            // Nobody else gets this connection any more.
            self.announced.swap(0, taker);
            self.announced.truncate(1);
            return self.announced.first();
        }
        let cause = &mut self.cause;
        self.announced.retain(|announced| {
            let channel = &announced.conversation.channel;
            match announced.state() {
                // One that died may have answered before.
                State::Offered | State::Claimed if channel.is_dead() && announced.withdraw() => {
                    *cause = Some(channel.end_cause());
                    false
                }
                State::Offered | State::Claimed => true,
                // This moment.
                State::Taken => true,
                State::Void | State::Withdrawn => {
                    *cause = Some(FallbackCause::Refused(announced.card.refusal()));
                    false
                }
            }
        });
        None
    }
}

impl Offer for LocalOffer {
    /// A listener of another user gets the stream only if the connection is with a socket here. When it
    /// was announced there was none with these addresses but the listening one.
    fn connected(&mut self, _socket: &dyn Socket) -> Delivery {
        if self.connection.is_none() {
            return Delivery::Delivered;
        }
        let mut has_arrived = self.has_arrived();
        if has_arrived != Some(true) && self.take_back() == Withdrawn::Taken {
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
            _ => {
                self.announced.clear();
                self.outcome = Some(Withdrawn::Free);
                self.cause = Some(FallbackCause::NotProven);
                Delivery::Plain
            }
        }
    }

    fn withdraw(&mut self) -> Withdrawn {
        self.take_back()
    }

    fn cause(&self) -> FallbackCause {
        self.cause.clone().unwrap_or(FallbackCause::PlainServer)
    }

    fn side_channel(&mut self) -> Option<&mut dyn SideChannel> {
        Some(self)
    }
}

impl SideChannel for LocalOffer {
    fn progress(&self) -> u64 {
        let each = self.announced.iter().map(Announced::progress);
        each.fold(0, u64::wrapping_add)
    }

    fn withdraw(&mut self) -> Withdrawn {
        let outcome = self.take_back();
        if outcome == Withdrawn::Free {
            let now = self.runtime.now();
            let pauses = self
                .announced
                .iter()
                .map(|it| it.conversation.channel.pause());
            pauses.for_each(|pause| pause.begin(self.since, now));
        }
        outcome
    }

    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        if self.is_confirmed {
            if self.early.as_ref().is_some_and(|early| early.says(message)) {
                return Ok(());
            }
            // The listener has the stream, and hears nothing else any more.
            for announced in &self.announced {
                announced.conversation.channel.set_cached_handshake(None);
            }
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        let answer = self.answer();
        let taker = self.taker().ok_or(io::ErrorKind::NotConnected)?;
        let cached_handshake = answer.and_then(|answer| CachedHandshake::new(&answer, message));
        taker
            .conversation
            .channel
            .set_cached_handshake(cached_handshake);
        taker.card.say(Voice::Client, message)
    }

    fn flush(&mut self) {
        if let Some(taker) = self.taker() {
            taker.ring();
        }
    }

    fn is_confirmed(&self) -> bool {
        self.is_confirmed
    }

    fn try_read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let heard = self.heard;
        let Some(taker) = self.taker() else {
            return match self.announced.is_empty() {
                true => Ok(0),
                false => Err(io::ErrorKind::WouldBlock.into()),
            };
        };
        // Looked at first: a listener that ends has said before what it had to say.
        let is_dead = taker.conversation.channel.is_dead();
        match taker.card.hear(Voice::Listener, heard, buf) {
            Some(count) => {
                if heard == 0 && count > 0 {
                    taker.conversation.channel.pause().end();
                }
                self.heard += count;
                self.is_confirmed = self.is_answer_expected();
                Ok(count)
            }
            None if is_dead => Ok(0),
            None => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        loop {
            let mut news = false;
            for announced in &self.announced {
                // Rings that came earlier are taken in before the next one is asked for.
                news |= announced.conversation.poll_news(cx).is_ready();
                announced.card.wait_for(Voice::Listener);
            }
            match self.try_read(buf) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return Poll::Ready(read),
            }
            if !news {
                return Poll::Pending;
            }
        }
    }
}
