//! Halves of a stream, with tokio's names.

use std::future::poll_fn;
use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::task::{Context, Poll};

use super::read::Reader;
use super::wait::LockedHalf;
use super::write::Writer;
use super::{Shared, Stream};

/// The reading half of [`Stream::split`].
pub struct ReadHalf<'a> {
    pub(super) read: &'a mut LockedHalf<Reader>,
    pub(super) shared: &'a Shared,
}

/// The writing half of [`Stream::split`].
pub struct WriteHalf<'a> {
    pub(super) write: &'a mut LockedHalf<Writer>,
    pub(super) shared: &'a Shared,
}

/// The reading half of [`Stream::into_split`].
pub struct OwnedReadHalf {
    // Dropped before the handle in `shared`, see `Stream`.
    pub(super) read: Box<LockedHalf<Reader>>,
    pub(super) shared: Arc<Shared>,
}

/// The writing half of [`Stream::into_split`]. Dropping it shuts writing down.
pub struct OwnedWriteHalf {
    pub(super) write: ShutdownOnDrop,
    pub(super) shared: Arc<Shared>,
}

impl OwnedReadHalf {
    /// Puts the halves of one stream together again.
    ///
    /// # Errors
    ///
    /// [`ReuniteError`] with both halves when they are of different streams.
    pub fn reunite(self, write: OwnedWriteHalf) -> Result<Stream, ReuniteError> {
        reunite(self, write)
    }
}

impl OwnedWriteHalf {
    pub(super) fn new(half: Box<LockedHalf<Writer>>, shared: Arc<Shared>) -> Self {
        let write = ShutdownOnDrop {
            half: Some(half),
            shutdown_on_drop: true,
        };
        Self { write, shared }
    }

    /// Puts the halves of one stream together again.
    ///
    /// # Errors
    ///
    /// [`ReuniteError`] with both halves when they are of different streams.
    pub fn reunite(self, read: OwnedReadHalf) -> Result<Stream, ReuniteError> {
        reunite(read, self)
    }

    /// Drops the half without shutting writing down.
    pub fn forget(mut self) {
        self.write.shutdown_on_drop = false;
    }
}

/// A writing half that shuts writing down when it is dropped.
pub(super) struct ShutdownOnDrop {
    half: Option<Box<LockedHalf<Writer>>>,
    shutdown_on_drop: bool,
}

impl Deref for ShutdownOnDrop {
    type Target = LockedHalf<Writer>;

    fn deref(&self) -> &Self::Target {
        self.half.as_ref().expect(NOT_TAKEN)
    }
}

impl DerefMut for ShutdownOnDrop {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.half.as_mut().expect(NOT_TAKEN)
    }
}

impl Drop for ShutdownOnDrop {
    fn drop(&mut self) {
        if let (true, Some(half)) = (self.shutdown_on_drop, &mut self.half) {
            // The error cannot be returned; the peer sees the end of the connection.
            let _unseen = half.get_mut().shutdown();
        }
    }
}

const NOT_TAKEN: &str = "only reunite takes the locked half, and it takes the write half as well";

fn reunite(read: OwnedReadHalf, mut write: OwnedWriteHalf) -> Result<Stream, ReuniteError> {
    if !Arc::ptr_eq(&read.shared, &write.shared) {
        return Err(ReuniteError(read, write));
    }
    let half = write.write.half.take();
    match half {
        Some(write) => Ok(Stream {
            read: read.read,
            write,
            shared: read.shared,
        }),
        None => Err(ReuniteError(read, write)),
    }
}

/// The halves are not of one stream; both are returned.
#[derive(Debug, thiserror::Error)]
#[error("tried to reunite halves that are not from the same stream")]
#[expect(
    clippy::exhaustive_structs,
    reason = "tokio's error has these two fields as well"
)]
pub struct ReuniteError(pub OwnedReadHalf, pub OwnedWriteHalf);

macro_rules! peek {
    ($($half:ty),+) => {$(
        impl $half {
            /// As [`Stream::peek`].
            ///
            /// # Errors
            ///
            /// As reading.
            pub async fn peek(&mut self, buf: &mut [u8]) -> io::Result<usize> {
                poll_fn(|cx| self.poll_peek(cx, buf)).await
            }

            /// As `peek` for use in a poll function.
            ///
            /// # Errors
            ///
            /// As reading.
            pub fn poll_peek(
                &mut self,
                cx: &mut Context<'_>,
                buf: &mut [u8],
            ) -> Poll<io::Result<usize>> {
                self.read.get_mut().poll_peek(cx, buf)
            }
        }
    )+};
}

peek!(ReadHalf<'_>, OwnedReadHalf);
