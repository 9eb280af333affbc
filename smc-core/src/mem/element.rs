//! One DMB element: the CDC block of 32 bytes, then the payload ring.

use smc_wire::cdc::{CdcD, ConsumerWord, ProducerWord};
use smc_wire::cursor::Ring;

use super::sync::{AtomicU64, Ordering};
use super::{CopyMode, OutOfBounds, Region};

/// A receive buffer element, shared by both sides.
///
/// Bytes 0 to 31 hold the CDC block that the writing side keeps up to date, the rest is the ring.
/// Offsets into the ring are counts of a cursor, always less than [`Element::ring_len`].
#[derive(Clone, Debug)]
pub struct Element {
    region: Region,
    ring: Ring,
}

impl Element {
    /// Wraps a region as an element.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`] when it is too short for a CDC block and one byte, not aligned to 8, or
    /// longer than a ring can be.
    pub fn new(region: Region) -> Result<Self, OutOfBounds> {
        region.word(ConsumerWord::OFFSET)?;
        let ring_len = u32::try_from(region.len().saturating_sub(HEADER_LEN)).ok();
        let ring = ring_len.and_then(Ring::new).ok_or(OutOfBounds {
            at: HEADER_LEN,
            len: 1,
            size: region.len(),
        })?;
        Ok(Self { region, ring })
    }

    /// The memory as a whole.
    #[must_use]
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Bytes of payload that fit.
    #[must_use]
    pub fn ring_len(&self) -> usize {
        usize::try_from(self.ring.size()).unwrap_or(usize::MAX)
    }

    /// The word with the producer cursor (bytes 8 to 15).
    #[must_use]
    pub fn producer(&self) -> &AtomicU64 {
        self.word(ProducerWord::OFFSET)
    }

    /// The word with the consumer cursor and all flags (bytes 16 to 23).
    #[must_use]
    pub fn consumer(&self) -> &AtomicU64 {
        self.word(ConsumerWord::OFFSET)
    }

    /// Copies `data` into the ring at offset `at`, with wrap-around.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`] when `at` is not inside the ring or the data is longer than the ring.
    #[inline]
    pub fn write(&self, at: usize, data: &[u8]) -> Result<(), OutOfBounds> {
        self.write_with(CopyMode::Temporal, at, data)
    }

    /// As [`Element::write`], by stores of this kind.
    #[doc(hidden)]
    #[inline(always)]
    pub fn write_with(&self, mode: CopyMode, at: usize, data: &[u8]) -> Result<(), OutOfBounds> {
        let (first, second) = data.split_at(self.until_end(at, data.len())?);
        let copy = match mode {
            CopyMode::Temporal => Region::copy_in,
            CopyMode::NonTemporal => Region::copy_in_non_temporal,
        };
        copy(&self.region, HEADER_LEN + at, first)?;
        if second.is_empty() {
            Ok(())
        } else {
            copy(&self.region, HEADER_LEN, second)
        }
    }

    /// Copies bytes out of the ring from offset `at`, with wrap-around.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`] when `at` is not inside the ring or `to` is longer than the ring.
    #[inline]
    pub fn read(&self, at: usize, to: &mut [u8]) -> Result<(), OutOfBounds> {
        let split = self.until_end(at, to.len())?;
        let (first, second) = to.split_at_mut(split);
        self.region.copy_out(HEADER_LEN + at, first)?;
        if second.is_empty() {
            Ok(())
        } else {
            self.region.copy_out(HEADER_LEN, second)
        }
    }

    /// Borrows up to `len` bytes in place from offset `at`, not past the end of the ring.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`] when `at` is not inside the ring or `len` is longer than the ring.
    #[doc(hidden)]
    #[inline]
    pub fn slice(&self, at: usize, len: usize, _: TrustPeers) -> Result<&[u8], OutOfBounds> {
        let len = self.until_end(at, len)?;
        // SAFETY: the caller of `TrustPeers::new` promised that peers do not change bytes between
        // publishing them and being notified that they were read. The callers of this method are
        // between the two: `fill_buf`, whose borrow of the stream ends before it moves its consumer
        // cursor, and guards, behind which the cursor is not moved, which also keep the buffer from
        // being reused.
        unsafe { self.region.slice(HEADER_LEN + at, len) }
    }

    /// How many of `len` bytes from `at` lie before the end of the ring.
    #[inline(always)]
    fn until_end(&self, at: usize, len: usize) -> Result<usize, OutOfBounds> {
        let size = self.ring_len();
        let outside = OutOfBounds { at, len, size };
        if at >= size || len > size {
            return Err(outside);
        }
        let (Ok(at), Ok(len)) = (u32::try_from(at), u32::try_from(len)) else {
            return Err(outside);
        };
        let [first, _] = self.ring.spans(at, len);
        usize::try_from(first.len).map_err(|_| outside)
    }

    /// The word of the CDC block at this offset.
    #[doc(hidden)]
    #[inline(always)]
    pub fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at < HEADER_LEN && at % 8 == 0, "no word of the CDC block");
        let word = self.region.word(at);
        // SAFETY: `new` checked that the region is aligned, and that it has all of the CDC block
        // and at least one byte behind it; a region never changes its length. `at` is in the block,
        // at a multiple of 8, so that the word is in bounds and aligned.
        unsafe { word.unwrap_unchecked() }
    }

    /// Clears the CDC block, before a buffer is reused for another connection.
    pub fn reset(&self) {
        for at in (0..HEADER_LEN).step_by(8) {
            self.word(at).store(0, Ordering::Release);
        }
    }
}

/// The exclusive right of the writer of a ring to borrow bytes that it has not published yet.
///
/// Made once for each connection, and not cloned.
#[doc(hidden)]
#[derive(Debug)]
pub struct RingWriter(());

impl RingWriter {
    /// The right of the caller, which has to be the only writer of the elements that it is used
    /// for.
    #[doc(hidden)]
    pub fn new() -> Self {
        Self(())
    }

    /// Borrows up to `len` free bytes of the caller's element in place from offset `at`, not past
    /// the end of the ring.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`] when `at` is not inside the ring or `len` is longer than the ring.
    #[doc(hidden)]
    #[inline]
    pub fn slice_mut<'a>(
        &'a mut self,
        element: &'a Element,
        at: usize,
        len: usize,
        _: TrustPeers,
    ) -> Result<&'a mut [u8], OutOfBounds> {
        let len = element.until_end(at, len)?;
        let start = element.region.at(HEADER_LEN + at, len)?;
        // SAFETY: in bounds as just checked, and initialised since regions start zeroed or written.
        // The bytes are free, as callers borrow free space only: the caller of `TrustPeers::new`
        // promised that peers do not touch free space of their rings. In this process the only
        // writer of the ring owns `self`, which is borrowed exclusively; a reader in this process
        // touches bytes only after they were published, and they are published after the borrow has
        // ended.
        Ok(unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), len) })
    }
}

/// A promise about peers, which allows reading and writing in place.
///
/// Memory that another process can write must not be borrowed as `&[u8]`, because Rust may assume
/// that such bytes do not change; still less as `&mut [u8]`. With this token a caller promises that
/// no peer changes them meanwhile. It goes to `Builder::trust_peers`.
///
/// | | without the token | with it |
/// |---|---|---|
/// | `fill_buf` | a copy | the peer's bytes where they are |
/// | `ReadGuard` | a copy | the same, retained |
/// | `Reservation::write_at` and `io::Write` | straight into the peer's memory | the same |
/// | `Reservation::as_mut_slice` | a private buffer, copied on commit | the peer's memory |
///
/// Nothing else changes: programs are written the same way with it and without it.
#[derive(Clone, Copy, Debug)]
pub struct TrustPeers(pub(super) ());

impl TrustPeers {
    /// Makes the promise.
    ///
    /// # Safety
    ///
    /// The token goes to `Builder::trust_peers` of the crate `smc` and to nothing else, and all
    /// peers of that endpoint must be programs that
    ///
    /// - write a byte of local buffers only while it counts as free, that is before they publish a
    ///   producer cursor behind it and after this side published a consumer cursor behind it; also
    ///   after a connection has ended, while guards of it live;
    /// - touch a byte of the buffers that this side writes only while it does not count as free,
    ///   and do not write it even then, while the connection lives.
    ///
    /// Peers of this library comply; a hostile or broken program of a permitted user may not.
    ///
    /// Nor does a peer that continues after its device was declared dead. On an ISM fabric that is
    /// a guest that is paused for 15 seconds, or a stopped process in it: its receive buffers are
    /// reused for other connections while it may still write. Over such a device the promise
    /// includes that no peer is paused for so long.
    #[must_use]
    pub unsafe fn new() -> Self {
        Self(())
    }
}

/// Length of the CDC block in bytes; the ring begins behind it.
pub const HEADER_LEN: usize = CdcD::LEN;
