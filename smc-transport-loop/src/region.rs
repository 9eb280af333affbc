//! Mappings of memory that other processes may write.
//!
//! The only file of the crate with `unsafe` in it.

#![allow(
    unsafe_code,
    reason = "mmap, atomics in shared memory, and one socket option"
)]

use std::any::Any;
use std::fmt;
#[cfg(not(smc_loom))]
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs, ftruncate,
    memfd_create,
};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use smc_core::device::DeviceError;
use smc_core::mem::sync::AtomicU64;
use smc_core::mem::{OutOfBounds, Region};

use crate::registry::Permit;

/// Shared memory mapped into this process; unmapped when dropped.
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
    /// Counts what is mapped for peers.
    _permit: Option<Permit>,
}

// SAFETY: the mapping is a span of memory that belongs to this object alone within the process; it
// is accessed through regions only, which are made for concurrent writers.
unsafe impl Send for Mapping {}
// SAFETY: as above; no method gives a reference to the bytes.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// A fresh zeroed memory file, sealed so that it keeps its length, and its mapping.
    pub(crate) fn create(len: usize) -> Result<(Arc<Self>, OwnedFd), DeviceError> {
        let file = memory_file().map_err(|error| os("create memory file", error))?;
        let size = u64::try_from(len).map_err(|_| DeviceError::NoMemory)?;
        ftruncate(&file, size).map_err(|error| os("size memory file", error))?;
        fcntl_add_seals(&file, SEALS).map_err(|error| os("seal memory file", error))?;
        Ok((Self::map(&file, len, None)?, file))
    }

    /// Fresh zeroed memory for a device that talks to itself.
    pub(crate) fn anonymous(len: usize) -> Result<Arc<Self>, DeviceError> {
        // SAFETY: the kernel chooses a free address, so nothing that exists is touched.
        let start =
            unsafe { mmap_anonymous(std::ptr::null_mut(), len, READ_WRITE, MapFlags::SHARED) };
        Self::from_start(start, len, None)
    }

    /// Maps a memory file that a peer made, if that is safe.
    ///
    /// It has to be an ordinary memory file of exactly `len` bytes that can never shrink: touching
    /// a mapping past the end of its file would end this process.
    pub(crate) fn adopt(
        file: BorrowedFd<'_>,
        len: usize,
        permit: Permit,
    ) -> Result<Arc<Self>, DeviceError> {
        let bad = DeviceError::PeerMisbehaved;
        // Only memory files have seals at all.
        let seals = fcntl_get_seals(file).map_err(|_| bad("descriptor is not a memory file"))?;
        if !seals.contains(SEALS) {
            return Err(bad("memory file is not sealed"));
        }
        if seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE) {
            return Err(bad("memory file is sealed against writing"));
        }
        // Huge pages come out of a pool that can run dry after they were mapped.
        let fs = fstatfs(file).map_err(|error| os("inspect memory file", error))?;
        if fs.f_type != TMPFS {
            return Err(bad("memory file has pages of an unsuitable kind"));
        }
        let stat = fstat(file).map_err(|error| os("inspect memory file", error))?;
        if u64::try_from(stat.st_size).ok() != u64::try_from(len).ok() {
            return Err(bad("memory file has the wrong length"));
        }
        Self::map(file, len, Some(permit))
    }

    /// The memory as a region that keeps the mapping alive.
    pub(crate) fn region(self: &Arc<Self>) -> Region {
        self.leased(())
    }

    /// The memory as a region; `lease` is dropped together with the last clone of it.
    pub(crate) fn leased<T: Any + Send + Sync>(self: &Arc<Self>, lease: T) -> Region {
        let owner = Arc::new((lease, Arc::clone(self)));
        // SAFETY: the memory stays mapped while `owner` lives, since that owns the mapping. The
        // file under it is sealed against shrinking (`create`, `adopt`) or anonymous. Mappings
        // start on a page, and this process reaches the memory through regions only.
        unsafe { Region::from_raw_parts(self.start, self.len, owner) }
    }

    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Makes the first `used` bytes zero, of which those beyond [`KEPT`] by [`trim`](Self::trim).
    pub(crate) fn zero(self: &Arc<Self>, used: usize) -> Result<(), OutOfBounds> {
        let used = used.min(self.len);
        self.region().zero(0, used.min(KEPT))?;
        if used > KEPT { self.trim() } else { Ok(()) }
    }

    /// Makes what is beyond [`KEPT`] zero by giving it back to the system. Writing there would make
    /// a long, hardly used buffer resident.
    pub(crate) fn trim(self: &Arc<Self>) -> Result<(), OutOfBounds> {
        let far = self.len.saturating_sub(KEPT);
        if far == 0 {
            return Ok(());
        }
        let region = self.region();
        let start = region.part(KEPT, far)?.as_ptr();
        // SAFETY: the span is a part of this mapping and starts on a page, as KEPT is a multiple
        // of the page size. Removing its pages makes it read as zeros, as another process could do
        // at any time; regions tolerate that.
        let removed = unsafe { madvise(start.as_ptr().cast(), far, Advice::LinuxRemove) };
        match removed {
            Ok(()) => Ok(()),
            Err(_) => region.zero(KEPT, far),
        }
    }

    fn map(file: impl AsFd, len: usize, permit: Option<Permit>) -> Result<Arc<Self>, DeviceError> {
        // SAFETY: the kernel chooses a free address, so nothing that exists is touched.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                len,
                READ_WRITE,
                MapFlags::SHARED,
                file,
                0,
            )
        };
        Self::from_start(start, len, permit)
    }

    fn from_start(
        start: rustix::io::Result<*mut std::ffi::c_void>,
        len: usize,
        permit: Option<Permit>,
    ) -> Result<Arc<Self>, DeviceError> {
        let start = start.map_err(|error| os("map memory", error))?;
        let start = NonNull::new(start.cast()).ok_or(DeviceError::NoMemory)?;
        Ok(Arc::new(Self {
            start,
            len,
            _permit: permit,
        }))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the span was mapped by `map` or `anonymous` and belongs to this object; regions
        // own an `Arc` of it, so none is left.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "own mapping can be unmapped");
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mapping")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

/// Eight words of a region, one cache line, looked up once.
#[cfg(not(smc_loom))]
pub(crate) struct Line {
    at: NonNull<[AtomicU64; 8]>,
    _region: Region,
}

// SAFETY: only a shared reference to atomics is ever made from the pointer; the region it points
// into is Send + Sync and kept alive.
#[cfg(not(smc_loom))]
unsafe impl Send for Line {}
// SAFETY: as above.
#[cfg(not(smc_loom))]
unsafe impl Sync for Line {}

#[cfg(not(smc_loom))]
impl Line {
    /// The words from byte offset `at`, which must be inside and aligned to 8.
    pub(crate) fn new(region: &Region, at: usize) -> Result<Self, OutOfBounds> {
        region.word(at)?;
        let part = region.part(at, size_of::<[AtomicU64; 8]>())?;
        Ok(Self {
            at: part.as_ptr().cast(),
            _region: part,
        })
    }
}

#[cfg(not(smc_loom))]
impl Deref for Line {
    type Target = [AtomicU64; 8];

    fn deref(&self) -> &[AtomicU64; 8] {
        // SAFETY: `new` checked that the words are inside the region and aligned; its memory does
        // not move and lives as long as the region, which is a field of `self`. It is initialised,
        // as all mapped memory is.
        unsafe { self.at.as_ref() }
    }
}

#[cfg(not(smc_loom))]
impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

/// The same for models, whose atomics are not in the memory itself.
#[cfg(smc_loom)]
#[derive(Debug)]
pub(crate) struct Line(Region);

#[cfg(smc_loom)]
impl Line {
    pub(crate) fn new(region: &Region, at: usize) -> Result<Self, OutOfBounds> {
        let line = Self(region.part(at, 64)?);
        // So that all words are there before threads share them.
        (0..8).try_for_each(|index| line.0.word(index * 8).map(drop))?;
        Ok(line)
    }
}

#[cfg(smc_loom)]
impl std::ops::Index<usize> for Line {
    type Output = AtomicU64;

    fn index(&self, index: usize) -> &AtomicU64 {
        self.0
            .word(index * 8)
            .expect("`new` looked up all eight words")
    }
}

/// An operating system error, with lack of memory told apart.
pub(crate) fn os(what: &'static str, error: Errno) -> DeviceError {
    match error {
        Errno::NOMEM | Errno::NOSPC => DeviceError::NoMemory,
        _ => DeviceError::os(what, &error.into()),
    }
}

fn memory_file() -> rustix::io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    match memfd_create(NAME, flags | MemfdFlags::NOEXEC_SEAL) {
        // Kernels before 6.3 do not know the flag.
        Err(Errno::INVAL) => memfd_create(NAME, flags),
        result => result,
    }
}

/// Bytes at the start of an unused buffer that may stay resident: the common DMB size of 64 KiB,
/// which is zeroed faster than its pages are given back and faulted in again. A multiple of the
/// page size.
pub(crate) const KEPT: usize = 1 << 16;

/// What a memory file must be sealed against before it is mapped; SEAL keeps the set as it is.
const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// File system type of memory files with ordinary pages (`TMPFS_MAGIC`).
const TMPFS: rustix::fs::FsWord = 0x0102_1994;

/// Shown in `/proc/PID/maps`.
const NAME: &str = "smc-dmb";
