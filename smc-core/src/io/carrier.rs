//! What carries the messages of a handshake: its TCP connection, or a way beside it.

use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::busy_poll::{BusyPoll, PollStep};
use super::conn::PeerLocality;
use super::deadlines::Deadline;
use super::endpoint::EndpointInner;
use super::negotiate::{Credentials, SideChannel, Withdrawn};
use super::runtime::{Runtime, Socket};
use crate::proto::handshake::Role;

/// The way of one handshake.
pub(super) enum Carrier<'a> {
    Tcp(&'a dyn Socket),
    SideChannel(SideChannelCarrier<'a>),
}

/// A way beside TCP, which only processes of one host have.
pub(super) struct SideChannelCarrier<'a> {
    side_channel: &'a mut dyn SideChannel,
    locality: PeerLocality,
    /// Something was sent that the other side may not have noticed.
    sent: bool,
    /// A client's, until it has heard something: bytes on it come from a plain server.
    plain: Option<&'a dyn Socket>,
    /// A client's: until when it waits for a sign of the server. A server's: when it gives one.
    timer: Option<Deadline>,
    /// A client's: the progress that it has seen, from when on TCP is looked at, too.
    progress: Option<u64>,
    busy_poll: BusyPoll,
    endpoint: &'a EndpointInner,
}

impl<'a> Carrier<'a> {
    /// For a client whose PROPOSAL was delivered.
    pub(super) fn client(
        endpoint: &'a EndpointInner,
        side_channel: &'a mut dyn SideChannel,
        plain: &'a dyn Socket,
    ) -> Self {
        Self::beside(
            endpoint,
            side_channel,
            PeerLocality::SameHost(Role::Client),
            Some(plain),
        )
    }

    /// For a server that such a client came to.
    pub(super) fn server(
        endpoint: &'a EndpointInner,
        side_channel: &'a mut dyn SideChannel,
    ) -> Self {
        Self::beside(
            endpoint,
            side_channel,
            PeerLocality::SameHost(Role::Server),
            None,
        )
    }

    fn beside(
        endpoint: &'a EndpointInner,
        side_channel: &'a mut dyn SideChannel,
        locality: PeerLocality,
        plain: Option<&'a dyn Socket>,
    ) -> Self {
        Self::SideChannel(SideChannelCarrier {
            side_channel,
            locality,
            sent: false,
            plain,
            timer: None,
            progress: None,
            busy_poll: BusyPoll::new(endpoint.config.polling),
            endpoint,
        })
    }

    /// What the way says about the other side.
    pub(super) fn locality(&self) -> PeerLocality {
        match self {
            Self::Tcp(_) => PeerLocality::Unknown,
            Self::SideChannel(beside) => beside.locality,
        }
    }

    /// A server's client, where the way shows which process that is.
    pub(super) fn credentials(&self) -> Option<Credentials> {
        match self {
            Self::Tcp(_) => None,
            Self::SideChannel(beside) => beside.side_channel.credentials(),
        }
    }

    /// Sends a message, until the time given.
    pub(super) async fn send(
        &mut self,
        runtime: &dyn Runtime,
        until: Instant,
        message: &[u8],
    ) -> io::Result<()> {
        let socket = match self {
            Self::Tcp(socket) => socket,
            Self::SideChannel(beside) => {
                beside.sent = true;
                return beside.side_channel.send(message);
            }
        };
        let mut timer = None;
        let mut rest = message;
        poll_fn(|cx| {
            while !rest.is_empty() {
                match socket.poll_write(cx, &[IoSlice::new(rest)]) {
                    Poll::Ready(Ok(count)) => rest = rest.get(count..).unwrap_or_default(),
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Pending => {
                        let timer = timer.get_or_insert_with(|| runtime.timer(until));
                        let late = timer.as_mut().poll(cx);
                        return late.map(|()| Err(io::ErrorKind::TimedOut.into()));
                    }
                }
            }
            Poll::Ready(Ok(()))
        })
        .await
    }

    /// Has the other side notice what was sent.
    pub(super) fn flush(&mut self) {
        if let Self::SideChannel(beside) = self {
            if std::mem::take(&mut beside.sent) {
                beside.side_channel.flush();
            }
        }
    }

    /// While the device works on the answer: lets the client see that.
    pub(super) fn publish_progress(&mut self, cx: &mut Context<'_>) {
        match self {
            Self::SideChannel(beside)
                if matches!(beside.locality, PeerLocality::SameHost(Role::Server)) =>
            {
                beside.publish_progress(cx);
            }
            _ => {}
        }
    }

    /// Whether the other side has our CONFIRM already, by its answer that was read.
    pub(super) fn is_confirmed(&self) -> bool {
        match self {
            Self::Tcp(_) => false,
            Self::SideChannel(beside) => beside.side_channel.is_confirmed(),
        }
    }

    /// Reads what comes; 0 at the end.
    pub(super) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        match self {
            Self::Tcp(socket) => socket.poll_read(cx, buf),
            Self::SideChannel(beside) => beside.poll_read(cx, buf),
        }
    }
}

impl SideChannelCarrier<'_> {
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        let read = self.poll_side_channel(cx, buf);
        if read.is_ready() {
            self.plain = None;
            self.busy_poll.hit();
        }
        read
    }

    fn poll_side_channel(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            if let Some(read) = self.read(buf) {
                return Poll::Ready(read);
            }
            match self.busy_poll.miss() {
                PollStep::Again => {}
                PollStep::Yield => {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                PollStep::Park => break,
            }
        }
        match self.watch(cx) {
            AnswerState::None => self.side_channel.poll_read(cx, buf),
            // Perhaps it is what follows an answer.
            AnswerState::Plain => Poll::Ready(self.read(buf).unwrap_or(Ok(0))),
            AnswerState::Silent => match self.side_channel.withdraw() {
                Withdrawn::Free => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
                // The answer has come this moment, or there is no other way than to wait for it.
                Withdrawn::Taken => {
                    self.plain = None;
                    self.side_channel.poll_read(cx, buf)
                }
            },
        }
    }

    fn read(&mut self, buf: &mut [u8]) -> Option<io::Result<usize>> {
        match self.side_channel.try_read(buf) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            read => Some(read),
        }
    }

    /// Whether an answer is still to be expected.
    fn watch(&mut self, cx: &mut Context<'_>) -> AnswerState {
        let Some(socket) = self.plain else {
            return AnswerState::None;
        };
        let EndpointInner {
            runtime,
            deadlines,
            config,
            ..
        } = self.endpoint;
        // Hardly ever there is anything on TCP: at first it is not looked at.
        let first = PLAIN_CHECK_DELAY.min(config.answer_timeout);
        loop {
            if self.progress.is_some() && socket.poll_readable(cx).is_ready() {
                return AnswerState::Plain;
            }
            let timer = self
                .timer
                .get_or_insert_with(|| deadlines.at(runtime.now() + first));
            if Pin::new(&mut *timer).poll(cx).is_pending() {
                return AnswerState::None;
            }
            // A task that is late was kept from running, and so the server may have been.
            let is_late = timer.is_overdue(LATE);
            let progress = self.side_channel.progress();
            let wait = match self.progress.replace(progress) {
                Some(before) if before == progress && !is_late => return AnswerState::Silent,
                Some(_) => config.answer_timeout,
                None => config.answer_timeout - first,
            };
            self.timer = Some(deadlines.at(runtime.now() + wait));
        }
    }

    fn publish_progress(&mut self, cx: &mut Context<'_>) {
        let EndpointInner {
            runtime, deadlines, ..
        } = self.endpoint;
        loop {
            let next = self
                .timer
                .get_or_insert_with(|| deadlines.at(runtime.now() + PROGRESS_INTERVAL));
            if Pin::new(next).poll(cx).is_pending() {
                return;
            }
            self.side_channel.publish_progress();
            self.timer = None;
        }
    }
}

/// What a client has seen of the server besides an answer.
enum AnswerState {
    None,
    /// Something has come on TCP, where nothing should.
    Plain,
    /// Nothing for too long a time.
    Silent,
}

/// By how much a task is late that does not run as it should.
const LATE: Duration = Duration::from_millis(20);

/// How often a server shows that it works. Clients wait several times as long for a sign of it.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(40);

/// How long a client waits for an answer before it looks at TCP, too. That costs system calls, and
/// whoever is announced to answers.
const PLAIN_CHECK_DELAY: Duration = Duration::from_millis(10);
