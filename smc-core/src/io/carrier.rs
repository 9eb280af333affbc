//! What carries the messages of a handshake: its TCP connection, or a way beside it.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::task::{Context, Poll};
use std::time::Instant;

use super::negotiate::Aside;
use super::runtime::{Runtime, Socket};
use super::spin::{Spin, Step};

/// The way of one handshake.
pub(super) enum Carrier<'a> {
    Tcp(&'a dyn Socket),
    Aside {
        aside: &'a mut dyn Aside,
        /// Something was sent that the other side may not have noticed.
        sent: bool,
        /// A client's, until it has heard something: bytes on it come from a plain server.
        plain: Option<&'a dyn Socket>,
        spin: Spin,
    },
}

impl Carrier<'_> {
    /// Sends a message, until the time given.
    pub(super) async fn send(
        &mut self,
        runtime: &dyn Runtime,
        until: Instant,
        message: &[u8],
    ) -> io::Result<()> {
        let socket = match self {
            Self::Tcp(socket) => socket,
            Self::Aside { aside, sent, .. } => {
                *sent = true;
                return aside.send(message);
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
        if let Self::Aside { aside, sent, .. } = self {
            if std::mem::take(sent) {
                aside.flush();
            }
        }
    }

    /// Reads what comes; 0 at the end.
    pub(super) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let (aside, plain, spin) = match self {
            Self::Tcp(socket) => return socket.poll_read(cx, buf),
            Self::Aside {
                aside, plain, spin, ..
            } => (aside, plain, spin),
        };
        loop {
            match aside.try_read(buf) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => {
                    *plain = None;
                    spin.hit();
                    return Poll::Ready(read);
                }
            }
            match spin.miss() {
                Step::Again => {}
                Step::Yield => {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Step::Park => break,
            }
        }
        if plain.is_some_and(|socket| socket.poll_readable(cx).is_ready()) {
            // Perhaps it is what follows an answer.
            *plain = None;
            return match aside.try_read(buf) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Ready(Ok(0)),
                read => Poll::Ready(read),
            };
        }
        let read = aside.poll_read(cx, buf);
        if read.is_ready() {
            *plain = None;
        }
        read
    }
}
