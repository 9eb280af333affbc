//! Mappings of memory that other processes and machines may write.
//!
//! The only file of the crate with `unsafe` in it.

#![allow(unsafe_code, reason = "mmap of a fabric's memory")]

use std::any::Any;
use std::fmt;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use smc_core::device::DeviceError;
use smc_core::mem::{OutOfBounds, Region};

/// The memory of a fabric, mapped into this process; unmapped when dropped.
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is a span of memory that belongs to this object alone within the process; it
// is accessed through regions only, which are made for concurrent writers.
unsafe impl Send for Mapping {}
// SAFETY: as above; no method gives a reference to the bytes.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of a file or device, which must be known to have them for good:
    /// the fabrics check that before they come here.
    pub(crate) fn of(file: impl AsFd, len: usize) -> Result<Arc<Self>, DeviceError> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses a free address, so nothing that exists is touched.
        let start =
            unsafe { mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, file, 0) };
        let start = start.map_err(|error| os("map the fabric's memory", error))?;
        let start = NonNull::new(start.cast()).ok_or(DeviceError::NoMemory)?;
        Ok(Arc::new(Self { start, len }))
    }

    /// All of the memory, as a region that keeps the mapping alive.
    pub(crate) fn region(self: &Arc<Self>) -> Region {
        self.lend(0, self.len, ())
            .expect("a mapping is as long as itself")
    }

    /// A part of the memory; `lease` is dropped together with the last clone of it.
    pub(crate) fn lend<T: Any + Send + Sync>(
        self: &Arc<Self>,
        at: usize,
        len: usize,
        lease: T,
    ) -> Result<Region, OutOfBounds> {
        let owner = Arc::new((lease, Arc::clone(self)));
        // SAFETY: the memory stays mapped while `owner` lives, since that owns the mapping; `of`
        // was told that it cannot disappear. Mappings start on a page, and this process reaches
        // the memory through regions only.
        let all = unsafe { Region::from_raw_parts(self.start, self.len, owner) };
        all.part(at, len)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the span was mapped by `of` and belongs to this object; regions own an `Arc` of
        // it, so none is left.
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

/// An operating system error, with lack of memory told apart.
pub(crate) fn os(what: &'static str, error: Errno) -> DeviceError {
    match error {
        Errno::NOMEM | Errno::NOSPC => DeviceError::NoMemory,
        _ => DeviceError::os(what, &error.into()),
    }
}
