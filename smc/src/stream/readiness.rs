//! Waiting for either direction.

use std::future::{Future, poll_fn};
use std::io;
use std::ops::BitOr;
use std::pin::pin;
use std::task::Poll;

use super::read::Reader;
use super::wait::LockedHalf;
use super::write::Writer;

/// The directions to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interest(u8);

impl Interest {
    /// Reading.
    pub const READABLE: Self = Self(1);
    /// Writing.
    pub const WRITABLE: Self = Self(2);

    /// Whether reading is of interest.
    #[must_use]
    pub const fn is_readable(self) -> bool {
        self.0 & 1 != 0
    }

    /// Whether writing is of interest.
    #[must_use]
    pub const fn is_writable(self) -> bool {
        self.0 & 2 != 0
    }
}

impl BitOr for Interest {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The directions that are ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Readiness {
    /// A read returns data, the end, or an error.
    pub readable: bool,
    /// A write accepts data or returns an error.
    pub writable: bool,
}

/// Waits until one of the directions of interest is ready.
pub(crate) async fn wait(
    interest: Interest,
    read: &LockedHalf<Reader>,
    write: &LockedHalf<Writer>,
) -> io::Result<Readiness> {
    let mut reading = pin!(read.ready());
    let mut writing = pin!(write.ready());
    poll_fn(|cx| {
        let mut ready = Readiness {
            readable: false,
            writable: false,
        };
        if interest.is_readable() {
            ready.readable = reading.as_mut().poll(cx)?.is_ready();
        }
        if interest.is_writable() {
            ready.writable = writing.as_mut().poll(cx)?.is_ready();
        }
        if ready.readable || ready.writable {
            Poll::Ready(Ok(ready))
        } else {
            Poll::Pending
        }
    })
    .await
}
