//! Mapped memory: files that other processes can map too, and anonymous pages of this process.

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs, ftruncate,
    memfd_create,
};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use rustix::process::{Resource, getrlimit};

use super::Region;

impl Region {
    /// Fresh zeroed memory in a file that can be passed to another process, which
    /// [adopts](Self::adopt) it. The file's length never changes.
    ///
    /// `name` shows in `/proc/PID/maps`. `len` is in bytes, more than none.
    ///
    /// # Errors
    ///
    /// [`MemoryError::Os`].
    pub fn shared(name: &str, len: usize) -> Result<(Self, OwnedFd), MemoryError> {
        let file = memory_file(name, len)?;
        // SAFETY: the file was just sealed against shrinking.
        let region = unsafe { Self::map(&file, 0, len) };
        Ok((region.map_err(|error| MemoryError::os(MAP, error))?, file))
    }

    /// Fresh zeroed pages of this process, which can be returned to the system one by one.
    ///
    /// # Errors
    ///
    /// [`MemoryError::Os`].
    pub fn pages(len: usize) -> Result<Self, MemoryError> {
        // SAFETY: the kernel chooses a free address, so nothing that exists is touched.
        let start =
            unsafe { mmap_anonymous(std::ptr::null_mut(), len, READ_WRITE, MapFlags::SHARED) };
        let region = start.and_then(|start| Mapping::region(start, len));
        region.map_err(|error| MemoryError::os(MAP, error))
    }

    /// Fresh zeroed memory of this process, as [`anonymous`](Self::anonymous), where a lack of it
    /// is an error and not the end of the process. It has its pages for itself, so that what a
    /// device needs of them, such as being kept out of child processes, concerns nothing else.
    ///
    /// `len` is in bytes, more than none; the start is that of a page.
    ///
    /// # Errors
    ///
    /// [`MemoryError::Os`], for want of memory with `ENOMEM`.
    pub fn try_anonymous(len: usize) -> Result<Self, MemoryError> {
        // SAFETY: the kernel chooses a free address, so nothing that exists is touched.
        let start =
            unsafe { mmap_anonymous(std::ptr::null_mut(), len, READ_WRITE, MapFlags::PRIVATE) };
        let region = start.and_then(|start| Mapping::region(start, len));
        region.map_err(|error| MemoryError::os(MAP, error))
    }

    /// Has the kernel take huge pages for the region, as far as it has some (`MADV_HUGEPAGE`).
    /// Pages that exist already are not replaced at once.
    ///
    /// # Errors
    ///
    /// As `madvise(2)`: `EINVAL` from a kernel without transparent huge pages, and for memory that
    /// does not begin with a page.
    pub fn advise_huge_pages(&self) -> io::Result<()> {
        let start = self.as_ptr().as_ptr();
        // SAFETY: the region keeps these bytes mapped, and the advice changes neither them nor what
        // may be done with them.
        let advised = unsafe { madvise(start.cast(), self.len(), Advice::LinuxHugepage) };
        Ok(advised?)
    }

    /// Maps a memory file that a peer made, if that is safe.
    ///
    /// It has to be an ordinary memory file of exactly `len` bytes that can never shrink: an access
    /// past the end of a mapped file ends the process (SIGBUS).
    ///
    /// # Errors
    ///
    /// [`MemoryError::Unsafe`] for any other descriptor; else the error of the system.
    pub fn adopt(file: BorrowedFd<'_>, len: usize) -> Result<Self, MemoryError> {
        let bad = MemoryError::Unsafe;
        let failed = |error| MemoryError::os("inspect memory file", error);
        // Only memory files have seals at all.
        let seals = fcntl_get_seals(file).map_err(|_| bad("descriptor is not a memory file"))?;
        if !seals.contains(SEALS) {
            return Err(bad("memory file is not sealed"));
        }
        if seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE) {
            return Err(bad("memory file is sealed against writing"));
        }
        // Huge pages come out of a pool that can be exhausted after they were mapped.
        if fstatfs(file).map_err(failed)?.f_type != TMPFS {
            return Err(bad("memory file has pages of an unsuitable kind"));
        }
        let stat = fstat(file).map_err(failed)?;
        if u64::try_from(stat.st_size).ok() != u64::try_from(len).ok() {
            return Err(bad("memory file has the wrong length"));
        }
        // SAFETY: the file has this length and is sealed against shrinking.
        let region = unsafe { Self::map(file, 0, len) };
        region.map_err(|error| MemoryError::os(MAP, error))
    }

    /// Maps `len` bytes of a file or device from `offset`, a multiple of the page size, while a
    /// region refers to them.
    ///
    /// # Safety
    ///
    /// The file must have these bytes for all that time: an access past the end of a mapped file
    /// ends the process. Other processes may write the mapping; this process accesses it through
    /// regions only.
    ///
    /// # Errors
    ///
    /// As `mmap(2)`.
    pub unsafe fn map(file: impl AsFd, offset: u64, len: usize) -> io::Result<Self> {
        // SAFETY: the kernel chooses a free address, so nothing that exists is touched.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                len,
                READ_WRITE,
                MapFlags::SHARED,
                file,
                offset,
            )
        }?;
        Ok(Mapping::region(start, len)?)
    }
}

/// Memory of this process alone, which is zeroed in a child process of `fork`.
#[derive(Debug)]
pub(crate) struct WipedOnFork(Mapping);

impl WipedOnFork {
    /// Fresh zeroed memory of `len` bytes.
    ///
    /// # Errors
    ///
    /// When there is none, or the system cannot wipe it (`EINVAL`: Linux before 4.14).
    pub(crate) fn new(len: usize) -> io::Result<Self> {
        // SAFETY: the kernel chooses a free address, so nothing that exists is touched.
        let start =
            unsafe { mmap_anonymous(std::ptr::null_mut(), len, READ_WRITE, MapFlags::PRIVATE) }?;
        let mapping = Mapping::new(start, len)?;
        // SAFETY: the span was just mapped, and this process sees no difference.
        unsafe { madvise(start, len, Advice::LinuxWipeOnFork) }?;
        Ok(Self(mapping))
    }

    /// The bytes as last written by this process.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the span is mapped, zeroed by the kernel at first, and belongs to this object,
        // which is borrowed exclusively. No other process maps it. In a child process it is zeroed
        // within the call of `fork`, which the borrowing thread does not make.
        unsafe { std::slice::from_raw_parts_mut(self.0.start.as_ptr(), self.0.len) }
    }
}

/// A fresh zeroed memory file, sealed so that it keeps its length, in bytes.
///
/// # Errors
///
/// [`MemoryError::Os`].
pub fn memory_file(name: &str, len: usize) -> Result<OwnedFd, MemoryError> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = match memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        // Kernels before 6.3 do not know the flag.
        Err(Errno::INVAL) => memfd_create(name, flags),
        result => result,
    };
    let file = file.map_err(|error| MemoryError::os("create memory file", error))?;
    let size = u64::try_from(len).unwrap_or(u64::MAX);
    check_file_size(size)
        .and_then(|()| Ok(ftruncate(&file, size)?))
        .map_err(|error| MemoryError::os("size memory file", error))?;
    fcntl_add_seals(&file, SEALS).map_err(|error| MemoryError::os("seal memory file", error))?;
    Ok(file)
}

/// Whether this process may create a file of `len` bytes.
///
/// Called before a file is given a length: beyond the limit on file sizes (`RLIMIT_FSIZE`) the
/// system ends the process by SIGXFSZ.
///
/// # Errors
///
/// `EFBIG`, as the system has it for a process that ignores the signal.
pub fn check_file_size(len: u64) -> io::Result<()> {
    match getrlimit(Resource::Fsize).current {
        Some(limit) if limit < len => Err(Errno::FBIG.into()),
        _ => Ok(()),
    }
}

/// Why shared memory cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The file is unsafe to map: its sender could end this process, or made a mistake.
    #[error("{0}")]
    Unsafe(&'static str),
    /// The system call failed.
    #[error("{what}")]
    #[non_exhaustive]
    Os {
        /// The operation that has failed.
        what: &'static str,
        /// Its answer.
        #[source]
        error: io::Error,
    },
}

impl MemoryError {
    fn os(what: &'static str, error: impl Into<io::Error>) -> Self {
        Self::Os {
            what,
            error: error.into(),
        }
    }
}

impl From<MemoryError> for io::Error {
    fn from(error: MemoryError) -> Self {
        match error {
            MemoryError::Unsafe(why) => Self::new(io::ErrorKind::InvalidData, why),
            MemoryError::Os { error, .. } => error,
        }
    }
}

/// Unmapped when dropped.
#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the span belongs to this object alone within the process. It is accessed through regions
// only, which are made for concurrent writers, or through the one `WipedOnFork` that owns it.
unsafe impl Send for Mapping {}
// SAFETY: as above; no method gives a reference to the bytes.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Wraps a new mapping, which is unmapped if pointers cannot reach all of it: with 32 bits the
    /// kernel maps more than `isize::MAX` bytes.
    fn new(start: *mut c_void, len: usize) -> rustix::io::Result<Self> {
        let start = NonNull::new(start.cast()).ok_or(Errno::NOMEM)?;
        let mapping = Self { start, len };
        if isize::try_from(len).is_err() {
            return Err(Errno::NOMEM);
        }
        Ok(mapping)
    }

    /// A new mapping as a region.
    fn region(start: *mut c_void, len: usize) -> rustix::io::Result<Region> {
        let owner = Arc::new(Self::new(start, len)?);
        let start = owner.start;
        // SAFETY: the memory stays mapped while `owner` lives, and its content stays accessible:
        // pages of this process, or a file as required by `map`. Mappings start on a page, and this
        // process accesses the memory through regions only.
        Ok(unsafe { Region::from_raw_parts(start, len, owner) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the span was mapped when this was made and belongs to it; regions own an `Arc` of
        // it, so none is left.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "own mapping can be unmapped");
    }
}

/// Required seals of a memory file before it is mapped; SEAL makes the set final.
const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// File system type of memory files with ordinary pages (`TMPFS_MAGIC`).
const TMPFS: rustix::fs::FsWord = 0x0102_1994;

const MAP: &str = "map memory";
