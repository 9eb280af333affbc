//! Mappings of memory that other processes may write, and a system call about sockets.
//!
//! The only file of the crate with `unsafe` in it.

#![allow(unsafe_code, reason = "atomics in shared memory, and an ioctl")]

use std::any::Any;
use std::io::IoSlice;
#[cfg(not(smc_loom))]
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
#[cfg(not(smc_loom))]
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use rustix::io::Errno;
use rustix::ioctl::{Getter, Opcode, ioctl};
use smc_core::device::{Charge, DeviceError};
use smc_core::mem::sync::AtomicU64;
use smc_core::mem::{OutOfBounds, Region};
use smc_ipc::is_own_user;

use crate::mappings::MappingPermit;

/// Shared memory mapped into this process. It is unmapped when dropped, by another thread if a peer
/// of another user has it.
#[derive(Debug)]
pub(crate) struct Mapping {
    region: Region,
    /// Counts the memory of a peer.
    permit: Option<Arc<MappingPermit>>,
    /// What is charged for it while another thread is to unmap it.
    last_charge: Option<Arc<OnceLock<Charge>>>,
}

impl Mapping {
    /// A fresh zeroed memory file, sealed so that it keeps its length, and its mapping, which has
    /// the permit until it ends. The peer that is to have the file is of this user.
    pub(crate) fn create<T: Any + Send + Sync>(
        len: usize,
        permit: T,
        user: u32,
    ) -> Result<(Arc<Self>, OwnedFd), DeviceError> {
        let other = (!is_own_user(user)).then_some(user);
        let (region, file) = Region::shared(NAME, len)?;
        Ok((Self::new(region.leased(permit), None, other), file))
    }

    /// New zeroed memory for a device that is its own peer.
    pub(crate) fn anonymous(len: usize) -> Result<Arc<Self>, DeviceError> {
        Ok(Self::new(Region::pages(len)?, None, None))
    }

    /// Maps a memory file that a peer made, if [that is safe](Region::adopt).
    pub(crate) fn adopt(
        file: BorrowedFd<'_>,
        len: usize,
        permit: MappingPermit,
    ) -> Result<Arc<Self>, DeviceError> {
        let other = permit.other;
        Ok(Self::new(Region::adopt(file, len)?, Some(permit), other))
    }

    fn new(region: Region, permit: Option<MappingPermit>, other: Option<u32>) -> Arc<Self> {
        let permit = permit.map(Arc::new);
        let last_charge = other.map(|_| Arc::default());
        let region = match other {
            Some(user) => {
                let counted = (permit.clone(), last_charge.clone());
                region.shared_with(user, Some(Arc::new(counted)))
            }
            None => region,
        };
        Arc::new(Self {
            region,
            permit,
            last_charge,
        })
    }

    /// This process uses the memory no more. Charged for it is this until it is unmapped, if
    /// another thread does that.
    pub(crate) fn set_last_charge(&self, charge: Charge) {
        if let Some(last_charge) = &self.last_charge {
            let _once = last_charge.set(charge);
        }
    }

    /// This process writes the memory, or has: it is charged for it then, if it is a peer's.
    pub(crate) fn charge(&self) {
        if let Some(permit) = &self.permit {
            permit.charge(self.len());
        }
    }

    /// The memory as a region, which keeps the mapping; `lease` is dropped together with its last
    /// clone.
    pub(crate) fn leased<T: Any + Send + Sync>(self: &Arc<Self>, lease: T) -> Region {
        self.region.leased((lease, Arc::clone(self)))
    }

    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.region.len()
    }

    /// Writes the slices one behind the other from offset `at`.
    pub(crate) fn write(&self, at: usize, data: &[IoSlice<'_>]) -> Result<(), OutOfBounds> {
        self.region.copy_in_all(at, data)
    }

    /// Makes the first `used` bytes zero.
    pub(crate) fn zero(&self, used: usize) -> Result<(), OutOfBounds> {
        self.region.zero(0, used.min(self.len()))
    }
}

/// Eight words of a region, one cache line, looked up once.
#[derive(Debug)]
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

/// Whether there is something that was sent on a UNIX socket and not read, also by a peer that has
/// shut down. False if the system does not report it.
pub(crate) fn has_unread(socket: impl AsFd) -> bool {
    // SAFETY: the call of this number writes one `int`.
    let bytes = unsafe { Getter::<SIOCOUTQ, i32>::new() };
    // SAFETY: the call writes to the value in `bytes` only, and changes nothing else.
    let bytes = unsafe { ioctl(socket, bytes) };
    bytes.is_ok_and(|bytes| bytes > 0)
}

/// Bytes in the send queue of a socket.
const SIOCOUTQ: Opcode = if cfg!(any(target_arch = "powerpc", target_arch = "powerpc64")) {
    0x4004_7473
} else {
    0x5411
};

pub(crate) fn os(what: &'static str, error: Errno) -> DeviceError {
    DeviceError::os(what, &error.into())
}

/// Bytes that a connection may have used of a buffer that is used again: the common DMB size of 64
/// KiB, which is zeroed faster than a new file is made.
pub(crate) const RESIDENT_LEN: usize = if cfg!(smc_loom) { 1 << 12 } else { 1 << 16 };

/// Shown in `/proc/PID/maps`.
const NAME: &str = "smc-dmb";
