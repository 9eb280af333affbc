//! The streams that a listener accepts.

use std::io;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream as AsyncIterator;

use super::TcpStream;
use crate::incoming::poll_incoming;
use crate::listener::Listener;
use crate::stream::Stream;

/// The streams that a listener accepts: [`TcpListener::incoming`](super::TcpListener::incoming) and
/// [`UnixListener::incoming`](super::UnixListener::incoming).
///
/// After an error it goes on, as [`Listener::accept`] does. It ends when the listener does, as when
/// its endpoint was closed, after one error. Of the tasks that wait by [`Listener::poll_accept`] or
/// this, the last one is woken.
#[derive(Clone, Debug)]
pub struct Incoming<'a, S = TcpStream> {
    listener: &'a Listener,
    has_ended: bool,
    streams: PhantomData<fn() -> S>,
}

impl<'a, S> Incoming<'a, S> {
    pub(super) fn new(listener: &'a Listener) -> Self {
        Self {
            listener,
            has_ended: false,
            streams: PhantomData,
        }
    }
}

impl<S: From<Stream>> AsyncIterator for Incoming<'_, S> {
    type Item = io::Result<S>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        poll_incoming(this.listener, &mut this.has_ended, cx)
    }
}
