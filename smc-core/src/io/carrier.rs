//! What carries the messages of a handshake: its TCP connection, or a way beside it.

use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::conn::Kinship;
use super::deadlines::Deadline;
use super::endpoint::Inner;
use super::negotiate::Aside;
use super::runtime::{Runtime, Socket};
use super::spin::{Spin, Step};

/// The way of one handshake.
pub(super) enum Carrier<'a> {
    Tcp(&'a dyn Socket),
    Aside(Beside<'a>),
}

/// A way beside TCP, which only processes of one host have.
pub(super) struct Beside<'a> {
    aside: &'a mut dyn Aside,
    kinship: Kinship,
    /// Something was sent that the other side may not have noticed.
    sent: bool,
    /// A client's, until it has heard something: bytes on it come from a plain server.
    plain: Option<&'a dyn Socket>,
    /// When TCP is looked at, too. Hardly ever there is anything.
    patience: Option<Deadline>,
    spin: Spin,
    endpoint: &'a Inner,
}

impl<'a> Carrier<'a> {
    /// For a client whose PROPOSAL was delivered.
    pub(super) fn client(
        endpoint: &'a Inner,
        aside: &'a mut dyn Aside,
        plain: &'a dyn Socket,
    ) -> Self {
        Self::beside(endpoint, aside, Kinship::Client, Some(plain))
    }

    /// For a server that such a client came to.
    pub(super) fn server(endpoint: &'a Inner, aside: &'a mut dyn Aside) -> Self {
        Self::beside(endpoint, aside, Kinship::Server, None)
    }

    fn beside(
        endpoint: &'a Inner,
        aside: &'a mut dyn Aside,
        kinship: Kinship,
        plain: Option<&'a dyn Socket>,
    ) -> Self {
        Self::Aside(Beside {
            aside,
            kinship,
            sent: false,
            plain,
            patience: None,
            spin: Spin::new(endpoint.config.polling),
            endpoint,
        })
    }

    /// What the way says about the other side.
    pub(super) fn kinship(&self) -> Kinship {
        match self {
            Self::Tcp(_) => Kinship::Stranger,
            Self::Aside(beside) => beside.kinship,
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
            Self::Aside(beside) => {
                beside.sent = true;
                return beside.aside.send(message);
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
        if let Self::Aside(beside) = self {
            if std::mem::take(&mut beside.sent) {
                beside.aside.flush();
            }
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
            Self::Aside(beside) => beside.poll_read(cx, buf),
        }
    }
}

impl Beside<'_> {
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        let read = self.poll_aside(cx, buf);
        if read.is_ready() {
            self.plain = None;
            self.spin.hit();
        }
        read
    }

    fn poll_aside(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        loop {
            if let Some(read) = self.read(buf) {
                return Poll::Ready(read);
            }
            match self.spin.miss() {
                Step::Again => {}
                Step::Yield => {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Step::Park => break,
            }
        }
        if self.is_plain(cx) {
            // Perhaps it is what follows an answer.
            return Poll::Ready(self.read(buf).unwrap_or(Ok(0)));
        }
        self.aside.poll_read(cx, buf)
    }

    fn read(&mut self, buf: &mut [u8]) -> Option<io::Result<usize>> {
        match self.aside.try_read(buf) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            read => Some(read),
        }
    }

    /// Whether something has come on TCP, where nothing should.
    fn is_plain(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(socket) = self.plain else {
            return false;
        };
        let Inner {
            runtime, deadlines, ..
        } = self.endpoint;
        let patience = self
            .patience
            .get_or_insert_with(|| deadlines.at(runtime.now() + PATIENCE));
        if Pin::new(patience).poll(cx).is_pending() {
            return false;
        }
        socket.poll_readable(cx).is_ready()
    }
}

/// How long a client waits for an answer before it looks at TCP, too. That costs system calls, and
/// whoever is announced to answers.
const PATIENCE: Duration = Duration::from_millis(10);
