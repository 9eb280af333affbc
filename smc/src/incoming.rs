//! The streams of a listener, as a stream of futures.

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream as AsyncIterator;

use super::listener::Listener;
use super::stream::Stream;

/// The streams that a [`Listener`] accepts, as [`futures_core::Stream`]:
/// [`Listener::into_incoming`].
///
/// It has no end. After an error it goes on, as [`Listener::accept`] does.
pub struct Incoming<S = Stream> {
    listener: Listener,
    stream: PhantomData<fn() -> S>,
}

impl<S> Incoming<S> {
    pub(crate) fn new(listener: Listener) -> Self {
        Self {
            listener,
            stream: PhantomData,
        }
    }

    /// The listener.
    #[must_use]
    pub fn get_ref(&self) -> &Listener {
        &self.listener
    }
}

impl<S: From<Stream>> AsyncIterator for Incoming<S> {
    type Item = io::Result<S>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let accepted = self.listener.poll_accept(cx);
        accepted.map(|accepted| Some(accepted.map(|(stream, _peer)| stream.into())))
    }
}

impl<S> fmt::Debug for Incoming<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Incoming").field(&self.listener).finish()
    }
}
