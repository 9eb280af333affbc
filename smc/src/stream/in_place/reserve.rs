//! Memory to write into before it is sent.

use std::fmt;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::task::{Context, Poll, ready};

use super::super::super::copy_mode::LONG_COPY_MIN;
use super::super::write::{DirectWriter, Writer};
use super::PRIVATE_MAX;
use crate::error::Error;

/// Memory for the next bytes of a stream, which [`Reservation::commit`] sends.
///
/// It is one contiguous piece. [`Stream::reserve_exact`](super::super::Stream::reserve_exact)
/// returns exactly the requested length,
/// [`reserve_at_least`](super::super::Stream::reserve_at_least) a length between two bounds, and
/// [`reserve`](super::super::Stream::reserve) the available length: down to one byte where the ring
/// of the peer ends or has little space.
///
/// **Where it is.** Over a device that maps the peer's buffer (SMC-D with nocopy) it is the peer's
/// memory: [`Reservation::write_at`] and [`io::Write`] write bytes where the peer will read them. A
/// reservation that would wrap around in the ring is a private buffer with the same interface,
/// which committing copies. So it is without nocopy, with SMC-R and on TCP, where it has at most 64
/// KiB unless a larger minimum was requested.
///
/// **As a slice.** A peer can write its memory at any time, so it must not be borrowed as `&mut
/// [u8]`, unless the endpoint trusts its peers ([`TrustPeers`](crate::mem::TrustPeers)).
/// [`Reservation::as_mut_slice`] borrows it if they are trusted, and otherwise a private buffer
/// that is copied once when it is committed.
///
/// **Nothing is sent implicitly.** Dropping a reservation writes nothing, and the next one is at
/// the same place. Bytes that were not written have no particular value; they may be those of
/// earlier reservations.
///
/// ```
/// # async fn send(stream: &mut smc::Stream) -> std::io::Result<()> {
/// use std::io::Write as _;
///
/// let mut space = stream.reserve_exact(64).await?;
/// write!(space, "{:>8}\n", 42)?;
/// let len = space.written();
/// space.commit(len).await
/// # }
/// ```
pub struct Reservation<'a> {
    half: &'a mut Writer,
    len: usize,
    /// Written through `io::Write`.
    written: usize,
    /// Something was written in place.
    is_touched: bool,
    buffer: Buffer,
}

/// Where the bytes are until they are committed.
enum Buffer {
    /// In the peer's memory.
    InPlace,
    /// In private memory, of which `done` bytes were sent.
    Private { bytes: Box<[u8]>, done: usize },
}

impl<'a> Reservation<'a> {
    /// Waits for a reservation of `min` to `max` bytes.
    pub(crate) async fn wait(half: &'a mut Writer, min: usize, max: usize) -> io::Result<Self> {
        let space = poll_fn(|cx| half.poll_space(cx, min, max)).await?;
        Ok(Self::new(half, space))
    }

    /// As [`Reservation::wait`] for use in a poll function.
    #[inline]
    pub(crate) fn poll(
        half: &'a mut Writer,
        cx: &mut Context<'_>,
        min: usize,
        max: usize,
    ) -> Poll<io::Result<Self>> {
        let space = ready!(half.poll_space(cx, min, max))?;
        Poll::Ready(Ok(Self::new(half, space)))
    }

    fn new(half: &'a mut Writer, ReservedSpace { len, is_in_place }: ReservedSpace) -> Self {
        let buffer = if is_in_place {
            Buffer::InPlace
        } else {
            Buffer::private(half, len)
        };
        Self {
            half,
            len,
            written: 0,
            is_touched: false,
            buffer,
        }
    }

    /// Bytes that can be written and committed.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no space, because none was requested or all was committed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether data is written directly into the peer's memory.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        matches!(self.buffer, Buffer::InPlace)
    }

    /// Bytes written through [`io::Write`], in sequence.
    #[must_use]
    pub fn written(&self) -> usize {
        self.written
    }

    /// Copies `data` to `offset`.
    ///
    /// # Errors
    ///
    /// [`Error::Misuse`] (`InvalidInput`) when it passes the end; nothing is copied then.
    pub fn write_at(&mut self, offset: usize, data: &[u8]) -> io::Result<()> {
        let end = offset.checked_add(data.len());
        let Some(end) = end.filter(|end| *end <= self.len) else {
            let (count, len) = (data.len(), self.len);
            let what = format!(
                "write of {count} bytes at {offset} passes the end of the reservation of {len} bytes"
            );
            return Err(Error::Misuse(what.into()).into());
        };
        match &mut self.buffer {
            // Behind a full reservation the ring may end, so there is no offset to write at.
            Buffer::InPlace if data.is_empty() => {}
            Buffer::InPlace => {
                self.is_touched = true;
                self.half.in_place()?.put_at(offset, data)?;
            }
            Buffer::Private { bytes, .. } => bytes[offset..end].copy_from_slice(data),
        }
        Ok(())
    }

    /// Fills the reservation in pieces of up to 16 KiB: `make` gets the offset of each piece, in
    /// order, and memory for it with bytes of no particular value.
    ///
    /// For long data this is the fastest way in place. The pieces are private memory that stays in
    /// the cache of this CPU, and go to the peer's memory by the same copies as those of a write.
    /// Stores of one's own ([`Reservation::as_mut_slice`]) have to fetch each line from the cache
    /// of the peer's CPU first.
    ///
    /// ```
    /// # async fn send(stream: &mut smc::Stream) -> std::io::Result<()> {
    /// let mut space = stream.reserve_exact(64_000).await?;
    /// space.fill_with(|_offset, piece| piece.fill(7))?;
    /// space.commit(64_000).await
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Reservation::write_at`].
    pub fn fill_with(&mut self, mut make: impl FnMut(usize, &mut [u8])) -> io::Result<()> {
        let mut own = match self.is_in_place() {
            true => std::mem::take(self.half.scratch()),
            false => Box::default(),
        };
        if self.is_in_place() && own.len() < PIECE {
            own = vec![0; PIECE].into();
        }
        let mut at = 0;
        while at < self.len {
            let end = self.len.min(at + PIECE);
            match &mut self.buffer {
                Buffer::InPlace => {
                    let piece = &mut own[..end - at];
                    make(at, piece);
                    self.write_at(at, &own[..end - at])?;
                }
                Buffer::Private { bytes, .. } => make(at, &mut bytes[at..end]),
            }
            at = end;
        }
        if self.is_in_place() {
            *self.half.scratch() = own;
        }
        Ok(())
    }

    /// The memory itself: the peer's if it is mapped and trusted, otherwise a private buffer.
    ///
    /// Data of [`Reservation::write_at`] is in it. May be called again at any time.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        let is_trusted = |writer: &mut DirectWriter| writer.is_trusted();
        if self.is_in_place() && !self.half.in_place().is_ok_and(is_trusted) {
            self.leave_place();
        }
        match &mut self.buffer {
            Buffer::InPlace => match self.half.in_place() {
                Ok(writer) => writer.reserved_mut(self.len),
                Err(_) => &mut [],
            },
            Buffer::Private { bytes, .. } => &mut bytes[..self.len],
        }
    }

    /// Switches to a private buffer, with the data written so far.
    #[inline(never)]
    fn leave_place(&mut self) {
        let mut buffer = Buffer::private(self.half, self.len);
        if let (true, Buffer::Private { bytes, .. }) = (self.is_touched, &mut buffer) {
            if let Ok(writer) = self.half.in_place() {
                writer.copy_reserved(&mut bytes[..self.len]);
            }
        }
        self.buffer = buffer;
    }

    /// Sends the first `len` bytes, and drops the rest of the reservation.
    ///
    /// In place that is one or two stores and does not wait. A private buffer is sent as by
    /// `write_all`, which may wait where a device is busy or a socket is full.
    ///
    /// **Cancellation.** Dropped before it is ready, it has sent nothing over SMC; over TCP it may
    /// have sent a part, as `write_all`.
    ///
    /// # Errors
    ///
    /// [`Error::Misuse`] (`InvalidInput`) when `len` is more than [`Reservation::len`], and nothing
    /// is sent then; otherwise as writing.
    pub async fn commit(mut self, len: usize) -> io::Result<()> {
        poll_fn(|cx| self.poll_commit(cx, len)).await
    }

    /// As [`Reservation::commit`] for use in a poll function; to be called again with the same
    /// `len` until it is ready. Then the reservation is empty.
    ///
    /// # Errors
    ///
    /// As [`Reservation::commit`].
    pub fn poll_commit(&mut self, cx: &mut Context<'_>, len: usize) -> Poll<io::Result<()>> {
        if len > self.len {
            let what = format!("{len} bytes are committed, and {} were reserved", self.len);
            return Poll::Ready(Err(Error::Misuse(what.into()).into()));
        }
        match &mut self.buffer {
            Buffer::InPlace => self.half.commit_reserved(len)?,
            Buffer::Private { bytes, done } => {
                while *done < len {
                    let rest = IoSlice::new(&bytes[*done..len]);
                    match ready!(self.half.poll_write(cx, &[rest]))? {
                        0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                        count => *done += count,
                    }
                }
                *done = 0;
            }
        }
        self.len = 0;
        self.written = 0;
        Poll::Ready(Ok(()))
    }
}

/// Writes in sequence from the start; writes nothing where the reservation is full.
impl io::Write for Reservation<'_> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let count = data.len().min(self.len - self.written);
        self.write_at(self.written, &data[..count])?;
        self.written += count;
        Ok(count)
    }

    /// Does nothing: only committing sends.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if let Buffer::Private { bytes, .. } = &mut self.buffer {
            let bytes = std::mem::take(bytes);
            if bytes.len() <= PRIVATE_MAX {
                // For the next one.
                *self.half.scratch() = bytes;
            }
        }
    }
}

impl fmt::Debug for Reservation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation")
            .field("len", &self.len)
            .field("is_in_place", &self.is_in_place())
            .field("written", &self.written)
            .finish_non_exhaustive()
    }
}

/// Bytes that [`Reservation::fill_with`] makes at a time: a long copy, in the faster mode, that
/// fits the first-level cache.
const PIECE: usize = LONG_COPY_MIN;

/// The space of a reservation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReservedSpace {
    pub(crate) len: usize,
    /// In the peer's memory.
    pub(crate) is_in_place: bool,
}

impl ReservedSpace {
    /// A private buffer, with `space` for its content.
    pub(crate) fn private(space: usize, min: usize, max: usize) -> Self {
        Self {
            len: max.min(space.min(PRIVATE_MAX).max(min)),
            is_in_place: false,
        }
    }
}

impl Buffer {
    #[inline(never)]
    fn private(half: &mut Writer, len: usize) -> Self {
        let mut bytes = std::mem::take(half.scratch());
        if bytes.len() < len {
            bytes = vec![0; len].into();
        }
        Self::Private { bytes, done: 0 }
    }
}
