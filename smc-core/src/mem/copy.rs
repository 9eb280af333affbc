//! Copies between private memory and a region, of whatever length.

use std::ptr::NonNull;

use super::sync::{Ordering, compiler_fence};

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
pub(super) unsafe fn into_region(data: &[u8], to: NonNull<u8>) {
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
pub(super) unsafe fn out_of_region(from: NonNull<u8>, to: &mut [u8]) {
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
pub(super) unsafe fn non_temporal_into_region(data: &[u8], to: NonNull<u8>) {
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
pub(super) unsafe fn non_temporal_into_region(data: &[u8], to: NonNull<u8>) {
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

/// Bytes that are copied at a time. The C library copies more by `rep movsb`, which some processors
/// execute at a tenth of the speed if the destination lies a few bytes behind the source within a
/// page.
pub(super) const PIECE: usize = 2048;

/// Prefetch distance in bytes, for lines of another processor or of memory.
const AHEAD: usize = 4 * PIECE;

/// Length of a cache line in bytes.
#[cfg(target_arch = "x86_64")]
const LINE: usize = 64;
