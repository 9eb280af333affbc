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
/// After an error it goes on, as [`Listener::accept`] does. It ends when the listener does, as when
/// its endpoint was closed, after one error.
pub struct Incoming<S = Stream> {
    listener: Listener,
    has_ended: bool,
    stream: PhantomData<fn() -> S>,
}

impl<S> Incoming<S> {
    pub(crate) fn new(listener: Listener) -> Self {
        Self {
            listener,
            has_ended: false,
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
        let this = self.get_mut();
        poll_incoming(&this.listener, &mut this.has_ended, cx)
    }
}

/// The next stream; after the error of a listener that has ended there is none.
pub(crate) fn poll_incoming<S: From<Stream>>(
    listener: &Listener,
    has_ended: &mut bool,
    cx: &mut Context<'_>,
) -> Poll<Option<io::Result<S>>> {
    if *has_ended {
        return Poll::Ready(None);
    }
    listener.poll_accept_any(cx).map(|accepted| {
        *has_ended = accepted.as_ref().is_err_and(is_end);
        Some(accepted.map(|(stream, _peer)| stream.into()))
    })
}

/// Whether an error of [`Listener::accept`] is that of a listener that has ended.
pub(crate) fn is_end(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::InvalidInput
}

impl<S> fmt::Debug for Incoming<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Incoming").field(&self.listener).finish()
    }
}
