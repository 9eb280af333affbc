//! Memory that a peer may write at any time.
//!
//! This is the only place of the crate with `unsafe` in it. A [`Region`] is a span of bytes that
//! may be shared with another process, which can change any byte at any moment, also when it is
//! buggy or hostile. So a region is never borrowed as `&[u8]`: it offers copies, and loads and
//! stores of whole words. Copied bytes are private and can be checked before they are used.

#![allow(
    unsafe_code,
    reason = "the one module that touches shared memory through pointers"
)]

pub mod sync;

mod bit_set;
mod copy;
mod element;
mod mapped;
#[cfg(smc_loom)]
mod shadow;
mod wake_flag;

pub use bit_set::{BitSet, take_bits};
#[doc(hidden)]
pub use copy::{CopyMode, HAS_NON_TEMPORAL};
#[doc(hidden)]
pub use element::RingWriter;
pub use element::{Element, HEADER_LEN, TrustPeers};
pub(crate) use mapped::WipedOnFork;
pub use mapped::{MemoryError, check_file_size, memory_file};
pub use wake_flag::WakeFlag;

use std::any::Any;
use std::fmt;
use std::io::IoSlice;
use std::ptr::NonNull;
use std::sync::Arc;

use smc_ipc::passed::PeerMemory;
use sync::{AtomicU64, Ordering};

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
    /// must be aligned to 8.
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
        unsafe { copy::into_region(data, to) };
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
        unsafe { copy::non_temporal_into_region(data, to) };
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
        unsafe { copy::out_of_region(from, to) };
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
    /// this is a promise about the peer: see [`TrustPeers`].
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
    fn at(&self, at: usize, len: usize) -> Result<NonNull<u8>, OutOfBounds> {
        match at.checked_add(len) {
            // SAFETY: `at <= self.len`, so the result stays within or one past the allocation.
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

/// Longest copy, in bytes, that [`Region::copy_in`] makes word by word: two CDC blocks.
pub const WORDWISE_MAX: usize = 64;

#[cfg(test)]
mod tests;

#[cfg(test)]
#[cfg(smc_loom)]
mod models;
