//! Memory files: regions that other processes can map too.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs, ftruncate,
    memfd_create,
};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::Region;

impl Region {
    /// Fresh zeroed memory in a file that can be passed to another process, which
    /// [adopts](Self::adopt) it. The file keeps its length for ever.
    ///
    /// `name` shows in `/proc/PID/maps`. `len` is in bytes, more than none.
    ///
    /// # Errors
    ///
    /// As `memfd_create(2)`, `ftruncate(2)` and `mmap(2)`.
    pub fn shared(name: &str, len: usize) -> io::Result<(Self, OwnedFd)> {
        let file = memory_file(name)?;
        let size = u64::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
        ftruncate(&file, size)?;
        fcntl_add_seals(&file, SEALS)?;
        Ok((map(&file, len)?, file))
    }

    /// Maps a memory file that a peer made, if that is safe.
    ///
    /// It has to be an ordinary memory file of exactly `len` bytes that can never shrink: touching
    /// a mapping past the end of its file would end this process.
    ///
    /// # Errors
    ///
    /// [`AdoptError::Unsafe`] for any other descriptor; else what the system refused.
    pub fn adopt(file: BorrowedFd<'_>, len: usize) -> Result<Self, AdoptError> {
        // Only memory files have seals at all.
        let seals = fcntl_get_seals(file)
            .map_err(|_| AdoptError::Unsafe("descriptor is not a memory file"))?;
        if !seals.contains(SEALS) {
            return Err(AdoptError::Unsafe("memory file is not sealed"));
        }
        if seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE) {
            return Err(AdoptError::Unsafe("memory file is sealed against writing"));
        }
        // Huge pages come out of a pool that can run dry after they were mapped.
        if fstatfs(file)?.f_type != TMPFS {
            return Err(AdoptError::Unsafe(
                "memory file has pages of an unsuitable kind",
            ));
        }
        if u64::try_from(fstat(file)?.st_size).ok() != u64::try_from(len).ok() {
            return Err(AdoptError::Unsafe("memory file has the wrong length"));
        }
        Ok(map(file, len)?)
    }
}

/// Why a memory file was not mapped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdoptError {
    /// Whoever passed it could end this process, or has made a mistake.
    #[error("{0}")]
    Unsafe(&'static str),
    /// The system refused.
    #[error("memory file cannot be mapped")]
    Os(#[from] io::Error),
}

impl From<Errno> for AdoptError {
    fn from(error: Errno) -> Self {
        Self::Os(error.into())
    }
}

fn map(file: impl AsFd, len: usize) -> io::Result<Region> {
    // SAFETY: the kernel chooses a free address, so nothing that exists is touched.
    let start = unsafe {
        mmap(
            std::ptr::null_mut(),
            len,
            ProtFlags::READ.union(ProtFlags::WRITE),
            MapFlags::SHARED,
            file,
            0,
        )
    }?;
    let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
    let owner = Arc::new(Mapping { start, len });
    // SAFETY: the memory stays mapped while `owner` lives. The file under it is sealed against
    // shrinking (`shared`, `adopt`). Mappings start on a page, and this process reaches the memory
    // through regions only.
    Ok(unsafe { Region::from_raw_parts(start, len, owner) })
}

/// Unmapped when dropped.
struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the span belongs to this object alone within the process and is accessed through regions
// only, which are made for concurrent writers.
unsafe impl Send for Mapping {}
// SAFETY: as above; no method gives a reference to the bytes.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the span was mapped by `map` and belongs to this object; regions own an `Arc` of
        // it, so none is left.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "own mapping can be unmapped");
    }
}

fn memory_file(name: &str) -> rustix::io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    match memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        // Kernels before 6.3 do not know the flag.
        Err(Errno::INVAL) => memfd_create(name, flags),
        result => result,
    }
}

/// What a memory file must be sealed against before it is mapped; SEAL keeps the set as it is.
const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

/// File system type of memory files with ordinary pages (`TMPFS_MAGIC`).
const TMPFS: rustix::fs::FsWord = 0x0102_1994;
