//! A span of shared memory, and the copies between it and private memory.

use std::any::Any;
use std::fmt;
use std::io::IoSlice;
use std::ptr::NonNull;
use std::sync::Arc;

use smc_ipc::passed::PeerMemory;

#[cfg(smc_loom)]
use super::shadow;
use super::sync::{AtomicU64, Ordering, compiler_fence};

/// A span of memory that other processes may read and write concurrently.
///
/// Clones refer to the same memory; the memory lives until the last clone is dropped.
#[derive(Clone)]
pub struct Region {
    start: NonNull<u8>,
    len: usize,
    /// Dropped before the memory, whose address may then be reused.
    #[cfg(smc_loom)]
    shadow: Arc<shadow::Shadow>,
    owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the memory belongs to `owner`, which is Send + Sync and is kept alive by every clone;
// all access goes through copies and atomics that tolerate concurrent writers.
unsafe impl Send for Region {}
// SAFETY: as above; no method hands out a reference to the bytes except the unsafe `slice`.
unsafe impl Sync for Region {}

impl Region {
    /// Fresh zeroed memory of this process, for devices whose two ends live in one process.
    ///
    /// `len` is in bytes; the start is aligned to 8.
    #[must_use]
    pub fn anonymous(len: usize) -> Self {
        // The allocator returns zeroed pages that were not touched yet.
        let words = Box::leak(vec![0_u64; len.div_ceil(8)].into_boxed_slice());
        let words = NonNull::from(words);
        let owner = Arc::new(Words(words));
        // SAFETY: the memory is in the heap, aligned as its words are, and freed by `owner`, which
        // has no other reference.
        unsafe { Self::from_raw_parts(words.cast(), len, owner) }
    }

    /// A region over memory that a provider mapped.
    ///
    /// `owner` is dropped with the last clone and has to unmap the memory then.
    ///
    /// # Safety
    ///
    /// For as long as `owner` lives, `start..start + len` must be valid for reads and writes, must
    /// not be accessed by this process other than through atomics, raw copies or regions, and must
    /// not be able to disappear (a memory file has to be sealed against shrinking first). `start`
    /// must be aligned to 8, and `len` at most `isize::MAX`.
    pub unsafe fn from_raw_parts(
        start: NonNull<u8>,
        len: usize,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        Self {
            start,
            len,
            owner,
            #[cfg(smc_loom)]
            shadow: shadow::Shadow::of(start),
        }
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the region has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first byte, for providers that hand the span to an operating system or a device.
    #[must_use]
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.start
    }

    /// A part of the region that shares its memory and its lifetime.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`] when `at + len` passes the end.
    pub fn part(&self, at: usize, len: usize) -> Result<Self, OutOfBounds> {
        let start = self.at(at, len)?;
        Ok(Self {
            start,
            len,
            owner: Arc::clone(&self.owner),
            #[cfg(smc_loom)]
            shadow: Arc::clone(&self.shadow),
        })
    }

    /// The same memory, with a `lease` that is dropped together with the last clone of the result.
    #[must_use]
    pub fn leased<T: Any + Send + Sync>(&self, lease: T) -> Self {
        Self {
            owner: Arc::new((lease, Arc::clone(&self.owner))),
            ..self.clone()
        }
    }

    /// The same memory, which a process of this user, another than the own one, has as well. With
    /// the last clone of the result it is dropped [by another thread](PeerMemory), and after it the
    /// `permit`, if there is one: a part of a limit on the memory for that user. Without one the
    /// memory counts as a descriptor that waits to be closed.
    #[must_use]
    pub fn shared_with(self, user: u32, permit: Option<Arc<dyn Any + Send + Sync>>) -> Self {
        let owner: Arc<dyn Any + Send + Sync> = match permit {
            Some(permit) => Arc::new(PeerMemory::bounded((self.owner, permit), user)),
            None => Arc::new(PeerMemory::new(self.owner, user)),
        };
        Self { owner, ..self }
    }

    /// Copies `data` into the region.
    ///
    /// If `at` and the length are multiples of 8, whole words are written one after the other in
    /// ascending order, each in one piece and not before what was written earlier (a store with
    /// release ordering), as long as they are few: see [`WORDWISE_MAX`]. Longer data is copied in
    /// no particular order, but after everything that was written before.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`] when the data would pass the end; nothing is written then.
    #[inline]
    pub fn copy_in(&self, at: usize, data: &[u8]) -> Result<(), OutOfBounds> {
        let to = self.at(at, data.len())?;
        if data.len() <= WORDWISE_MAX && is_word_aligned(to) && data.len() % 8 == 0 {
            for (index, chunk) in data.chunks_exact(8).enumerate() {
                let mut word = [0; 8];
                word.copy_from_slice(chunk);
                self.store(at + index * 8, u64::from_ne_bytes(word), Ordering::Release)?;
            }
            return Ok(());
        }
        // SAFETY: `at` checked that all of `data` fits behind `to`, and the region keeps it mapped.
        unsafe { into_region(data, to) };
        #[cfg(smc_loom)]
        self.shadow.written(to, data);
        Ok(())
    }

    /// Copies several slices into the region, one behind the other. If all of them are
    /// [`WORDWISE_MAX`] bytes at most, they are written like one slice.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`] when the data would pass the end; nothing is written then.
    #[inline]
    pub fn copy_in_all(&self, mut at: usize, data: &[IoSlice<'_>]) -> Result<(), OutOfBounds> {
        if let [one] = data {
            return self.copy_in(at, one);
        }
        let len = data.iter().map(|part| part.len());
        let len = len.fold(0, usize::saturating_add);
        self.at(at, len)?;
        if len <= WORDWISE_MAX {
            let mut gathered = [0; WORDWISE_MAX];
            let mut end = 0;
            for part in data {
                gathered[end..][..part.len()].copy_from_slice(part);
                end += part.len();
            }
            return self.copy_in(at, &gathered[..len]);
        }
        for part in data {
            self.copy_in(at, part)?;
            at += part.len();
        }
        Ok(())
    }

    /// As [`Region::copy_in`] for long data, by non-temporal stores where the target has them. They
    /// are ordered before later stores, but not after earlier ones.
    #[doc(hidden)]
    pub fn copy_in_non_temporal(&self, at: usize, data: &[u8]) -> Result<(), OutOfBounds> {
        let to = self.at(at, data.len())?;
        // SAFETY: `at` checked that all of `data` fits behind `to`, and the region keeps it mapped.
        unsafe { non_temporal_into_region(data, to) };
        #[cfg(smc_loom)]
        self.shadow.written(to, data);
        Ok(())
    }

    /// Copies bytes out of the region into private memory.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`] when the span passes the end; `to` is unchanged then.
    #[inline]
    pub fn copy_out(&self, at: usize, to: &mut [u8]) -> Result<(), OutOfBounds> {
        let from = self.at(at, to.len())?;
        // SAFETY: `at` checked that as much as `to` holds is behind `from`, and the region keeps it
        // mapped.
        unsafe { out_of_region(from, to) };
        #[cfg(smc_loom)]
        self.shadow.read(from, to);
        Ok(())
    }

    /// Writes zeros.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`] when the span passes the end.
    pub fn zero(&self, at: usize, len: usize) -> Result<(), OutOfBounds> {
        let to = self.at(at, len)?;
        // SAFETY: `at` checked the span; any bit pattern is valid for bytes.
        unsafe { std::ptr::write_bytes(to.as_ptr(), 0, len) };
        #[cfg(smc_loom)]
        self.shadow.zeroed(to, len);
        Ok(())
    }

    /// Loads the aligned 8-byte word at byte offset `at`.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`] when the word passes the end or is not aligned to 8.
    pub fn load(&self, at: usize, order: Ordering) -> Result<u64, OutOfBounds> {
        Ok(self.word(at)?.load(order))
    }

    /// Stores the aligned 8-byte word at byte offset `at`.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`] when the word passes the end or is not aligned to 8.
    pub fn store(&self, at: usize, value: u64, order: Ordering) -> Result<(), OutOfBounds> {
        self.word(at)?.store(value, order);
        Ok(())
    }

    /// The aligned 8-byte word at byte offset `at`, for protocols between devices.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`] when the word passes the end or is not aligned to 8.
    #[inline]
    pub fn word(&self, at: usize) -> Result<&AtomicU64, OutOfBounds> {
        let word = self.at(at, 8)?;
        if !is_word_aligned(word) {
            return Err(OutOfBounds {
                at,
                len: 8,
                size: self.len,
            });
        }
        #[cfg(smc_loom)]
        return Ok(self.shadow.word(word));
        // SAFETY: in bounds and aligned as just checked; the memory lives as long as `self`. An
        // atomic may be shared with writers in other processes.
        #[cfg(not(smc_loom))]
        Ok(unsafe { word.cast::<AtomicU64>().as_ref() })
    }

    /// Borrows bytes in place.
    ///
    /// # Safety
    ///
    /// No process may write these bytes while the borrow lives. For memory that a peer can write
    /// this is a promise about the peer: see [`TrustPeers`](super::TrustPeers).
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`] when the span passes the end.
    pub unsafe fn slice(&self, at: usize, len: usize) -> Result<&[u8], OutOfBounds> {
        let start = self.at(at, len)?;
        #[cfg(smc_loom)]
        self.shadow.borrowed(start, len);
        // SAFETY: in bounds; initialised since regions start zeroed or written; the caller promises
        // that there is no concurrent write.
        Ok(unsafe { std::slice::from_raw_parts(start.as_ptr(), len) })
    }

    #[inline]
    pub(super) fn at(&self, at: usize, len: usize) -> Result<NonNull<u8>, OutOfBounds> {
        match at.checked_add(len) {
            // SAFETY: `at <= self.len <= isize::MAX`, so the result stays within or one past the
            // allocation.
            Some(end) if end <= self.len => Ok(unsafe { self.start.add(at) }),
            _ => Err(OutOfBounds {
                at,
                len,
                size: self.len,
            }),
        }
    }
}

/// Memory of this process that regions refer to.
struct Words(NonNull<[u64]>);

// SAFETY: it is used through regions only, until the last of them drops it.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Drop for Words {
    fn drop(&mut self) {
        // SAFETY: the memory came out of a box, and the last region that referred to it is gone.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

fn is_word_aligned(at: NonNull<u8>) -> bool {
    at.as_ptr().addr() % 8 == 0
}

/// A span that does not fit its region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("span of {len} bytes at {at} does not fit a region of {size} bytes")]
#[non_exhaustive]
pub struct OutOfBounds {
    /// Requested start of the span, in bytes.
    pub at: usize,
    /// Its length in bytes.
    pub len: usize,
    /// Length of the region in bytes.
    pub size: usize,
}

/// The kind of stores that write memory which another processor reads next.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_enums,
    reason = "not in the documentation; the shell has both"
)]
pub enum CopyMode {
    /// Temporal stores, into the caches of this processor: the fastest way if both processors share
    /// a cache.
    #[default]
    Temporal,
    /// Non-temporal (streaming) stores, to memory past the caches: faster if they share none.
    NonTemporal,
}

/// Whether the target has non-temporal stores.
#[doc(hidden)]
pub const HAS_NON_TEMPORAL: bool = cfg!(target_arch = "x86_64");

/// Copies all of `data`.
///
/// # Safety
///
/// `to` is in a live region, with space for all of `data` behind it.
#[inline]
unsafe fn into_region(data: &[u8], to: NonNull<u8>) {
    if data.len() > PIECE {
        // SAFETY: as the caller promised.
        return unsafe { pieces_into_region(data, to) };
    }
    // SAFETY: as the caller promised, there is space for all of `data` behind `to`. `data` is a
    // live reference of this process and so cannot overlap memory that only regions touch. Another
    // process may read or write the destination meanwhile; a cursor, which is stored with release
    // ordering after this copy, publishes the bytes to readers.
    unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), to.as_ptr(), data.len()) };
}

/// As [`into_region`], for more than one piece.
///
/// # Safety
///
/// As there.
#[inline(never)]
unsafe fn pieces_into_region(data: &[u8], to: NonNull<u8>) {
    for (index, piece) in data.chunks(PIECE).enumerate() {
        // SAFETY: the pieces before this one are as long, and there is space for all of `data`
        // behind the first `to`.
        let to = unsafe { to.add(index * PIECE) };
        // SAFETY: as above, there is space for this piece.
        unsafe { into_region(piece, to) };
    }
}

/// Fills `to`, with bytes that later writes of a peer do not change.
///
/// # Safety
///
/// `from` is in a region that lives, with as many bytes behind it as `to` has.
#[inline]
unsafe fn out_of_region(from: NonNull<u8>, to: &mut [u8]) {
    if to.len() > PIECE {
        // SAFETY: as the caller promised.
        return unsafe { pieces_out_of_region(from, to) };
    }
    // SAFETY: as the caller promised, as much as `to` holds is behind `from`; `to` is an exclusive
    // borrow and cannot overlap. A peer that writes meanwhile can only make the copied bytes
    // arbitrary, which any `u8` may be.
    unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.as_mut_ptr(), to.len()) };
    // The compiler sees no write to the region between here and the use of the copy. It could leave
    // the copy out, and read the region again after the caller has checked what it read before.
    compiler_fence(Ordering::SeqCst);
}

/// As [`out_of_region`], for more than one piece.
///
/// # Safety
///
/// As there.
#[inline(never)]
unsafe fn pieces_out_of_region(from: NonNull<u8>, to: &mut [u8]) {
    let len = to.len();
    for (index, piece) in to.chunks_mut(PIECE).enumerate() {
        let at = index * PIECE;
        if len - at > AHEAD {
            let ahead = from.as_ptr().wrapping_add(at + AHEAD);
            prefetch(ahead, PIECE.min(len - at - AHEAD));
        }
        // SAFETY: the pieces before this one are as long, and as much as `to` holds is behind the
        // first `from`.
        let from = unsafe { from.add(at) };
        // SAFETY: as above, a piece is behind it.
        unsafe { out_of_region(from, piece) };
    }
}

/// As [`into_region`], by non-temporal stores.
///
/// # Safety
///
/// As there.
#[cfg(target_arch = "x86_64")]
unsafe fn non_temporal_into_region(data: &[u8], to: NonNull<u8>) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};

    // Whole lines are written at once.
    let (head, rest) = data.split_at(to.align_offset(LINE).min(data.len()));
    // SAFETY: `head` is the beginning of `data`, for all of which there is space.
    unsafe { into_region(head, to) };
    let rest_to = to.as_ptr().wrapping_add(head.len());
    let words = rest.chunks_exact(size_of::<__m128i>());
    let tail = words.remainder();
    for (index, word) in words.enumerate() {
        let to = rest_to.wrapping_add(index * word.len());
        // SAFETY: the chunk has the 16 bytes that are loaded, and they need no alignment.
        let word = unsafe { _mm_loadu_si128(word.as_ptr().cast()) };
        // SAFETY: this is as far behind the first `to` as the chunk is behind the start of `data`,
        // so there is space for it. It is aligned: the head ended at a line, and only whole words
        // are between that and here. Concurrent access is as in `into_region`. The fence that such
        // stores need before later ones is below.
        unsafe { _mm_stream_si128(to.cast(), word) };
    }
    if let Some(to) = NonNull::new(rest_to.wrapping_add(rest.len() - tail.len())) {
        // SAFETY: `tail` is the end of `data`, and `to` is as far behind the first one as it is
        // behind the start of `data`.
        unsafe { into_region(tail, to) };
    }
    // SAFETY: it has no requirements, and is part of every x86-64.
    unsafe { _mm_sfence() };
}

/// As [`into_region`]: the target has no other stores.
///
/// # Safety
///
/// As there.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn non_temporal_into_region(data: &[u8], to: NonNull<u8>) {
    // SAFETY: as the caller promised.
    unsafe { into_region(data, to) };
}

/// Prefetches bytes that are read soon.
#[cfg(target_arch = "x86_64")]
fn prefetch(from: *const u8, len: usize) {
    use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};

    for line in (0..len).step_by(LINE) {
        // SAFETY: a hint, which may be about any address.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(from.wrapping_add(line).cast()) };
    }
}

/// Left to the hardware prefetcher.
#[cfg(not(target_arch = "x86_64"))]
fn prefetch(_from: *const u8, _len: usize) {}

/// Longest copy, in bytes, that [`Region::copy_in`] makes word by word: two CDC blocks.
pub const WORDWISE_MAX: usize = 64;

/// Bytes that are copied at a time. The C library copies more by `rep movsb`, which some processors
/// execute at a tenth of the speed if the destination lies a few bytes behind the source within a
/// page.
pub(super) const PIECE: usize = 2048;

/// Prefetch distance in bytes, for lines of another processor or of memory.
const AHEAD: usize = 4 * PIECE;

/// Length of a cache line in bytes.
#[cfg(target_arch = "x86_64")]
const LINE: usize = 64;
