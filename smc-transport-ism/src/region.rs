//! Mappings of memory that other processes and machines may write.
//!
//! The only file of the crate with `unsafe` in it.

#![allow(
    unsafe_code,
    reason = "mmap of a fabric's memory, registers of a device, calls of VFIO and asynchronous I/O"
)]

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::path::Path;
use std::ptr::NonNull;

use rustix::fs::fstat;
use rustix::io::Errno;
use smc_core::device::DeviceError;
use smc_core::mem::Region;
use smc_core::mem::sync::AtomicU64;

/// Maps a part of a file or device, which must not become shorter: the fabrics check that before
/// the call. The offset is a multiple of the page size.
pub(crate) fn map(file: impl AsFd, offset: u64, len: usize) -> Result<Region, DeviceError> {
    // SAFETY: the caller guarantees that the mapped range stays, and accesses it by the region
    // only.
    let region = unsafe { Region::map(file, offset, len) };
    region.map_err(|error| DeviceError::os("map the fabric's memory", &error))
}

/// Length in bytes of a group of words: two cache lines.
pub(crate) const WORDS_LEN: usize = 128;

/// A group of words of a region, with one check of its bounds.
#[cfg(not(smc_loom))]
pub(crate) type Words<'a> = &'a [AtomicU64; WORDS_LEN / 8];

/// The words from byte offset `at`; `None` unless all are inside and aligned.
#[cfg(not(smc_loom))]
#[inline]
pub(crate) fn words(region: &Region, at: usize) -> Option<Words<'_>> {
    const { assert!(size_of::<AtomicU64>() == 8, "words of the memory itself") };
    // The last word: those before it are inside as well, and have the same alignment.
    let last = at.checked_add(WORDS_LEN - 8)?;
    region.word(last).ok()?;
    // SAFETY: inside of the mapping, as just checked.
    let words = unsafe { region.as_ptr().add(at) };
    // SAFETY: all of them are inside of the mapping, which lives as long as `region`, and aligned;
    // mapped memory is initialised. Atomics may be shared with writers in other processes.
    Some(unsafe { words.cast().as_ref() })
}

/// The same for models, whose atomics are not in the memory itself.
#[cfg(smc_loom)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Words<'a> {
    region: &'a Region,
    at: usize,
}

#[cfg(smc_loom)]
pub(crate) fn words(region: &Region, at: usize) -> Option<Words<'_>> {
    region.word(at.checked_add(WORDS_LEN - 8)?).ok()?;
    Some(Words { region, at })
}

#[cfg(smc_loom)]
impl std::ops::Index<usize> for Words<'_> {
    type Output = AtomicU64;

    fn index(&self, index: usize) -> &AtomicU64 {
        assert!(index < WORDS_LEN / 8, "no such word");
        self.region
            .word(self.at + index * 8)
            .expect("`words` checked the last one")
    }
}

/// Registers of a PCI device, mapped into this process.
#[derive(Debug)]
pub(crate) struct Registers {
    bar: Region,
    at: usize,
}

impl Registers {
    /// Registers of 32 bits from offset `at` of a mapping, up to its end.
    pub(crate) fn new(bar: Region, at: usize) -> Self {
        Self { bar, at }
    }

    /// Reads the register at an offset, which must be a multiple of 4; `None` outside.
    pub(crate) fn read(&self, offset: usize) -> Option<u32> {
        let register = self.register(offset)?;
        // SAFETY: in bounds and aligned as checked. The device determines the value; a read of the
        // registers that this crate uses has no side effect.
        Some(unsafe { register.read_volatile() })
    }

    /// Writes the register at an offset, which must be a multiple of 4; nothing happens outside.
    pub(crate) fn write(&self, offset: usize, value: u32) {
        if let Some(register) = self.register(offset) {
            // SAFETY: in bounds and aligned as checked; the device takes any value, and does
            // nothing to the memory of this process for it.
            unsafe { register.write_volatile(value) };
        }
    }

    fn register(&self, offset: usize) -> Option<NonNull<u32>> {
        let at = self.at.checked_add(offset)?;
        let is_inside = at % 4 == 0 && at.checked_add(4)? <= self.bar.len();
        // SAFETY: inside of the mapping, which lives as long as `self`.
        is_inside.then(|| unsafe { self.bar.as_ptr().add(at) }.cast())
    }
}

/// Calls VFIO with the structure that `linux/vfio.h` has for this number.
///
/// # Safety
///
/// `T` must be that structure.
unsafe fn vfio<T>(fd: BorrowedFd<'_>, number: u32, argument: &mut T) -> rustix::io::Result<i32> {
    // SAFETY: descriptors of VFIO take the number with this structure, as the caller guarantees,
    // and access nothing else; others refuse it without access to the argument.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), number as _, std::ptr::from_mut(argument)) };
    errno(result)
}

/// Puts a group into a container.
pub(crate) fn vfio_set_container(
    group: BorrowedFd<'_>,
    container: &OwnedFd,
) -> rustix::io::Result<()> {
    // SAFETY: `VFIO_GROUP_SET_CONTAINER` reads the number of a descriptor.
    unsafe { vfio(group, VFIO + 4, &mut container.as_raw_fd()) }.map(drop)
}

/// Gives a container an IOMMU of type 1, which virtual ones count as.
pub(crate) fn vfio_set_iommu(container: BorrowedFd<'_>) -> rustix::io::Result<()> {
    let iommu: libc::c_ulong = 1;
    // SAFETY: `VFIO_SET_IOMMU` has the type in place of a pointer.
    let set = unsafe { libc::ioctl(container.as_raw_fd(), (VFIO + 2) as _, iommu) };
    errno(set).map(drop)
}

/// Opens a device of a group by its address.
pub(crate) fn vfio_device(group: BorrowedFd<'_>, address: &CStr) -> rustix::io::Result<OwnedFd> {
    // SAFETY: `VFIO_GROUP_GET_DEVICE_FD` reads a string up to its end.
    let fd = unsafe { libc::ioctl(group.as_raw_fd(), (VFIO + 6) as _, address.as_ptr()) };
    let fd = errno(fd)?;
    // SAFETY: the call has created this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Offset and length of a region of a device.
pub(crate) fn vfio_region(device: BorrowedFd<'_>, index: u32) -> rustix::io::Result<(u64, u64)> {
    /// As `struct vfio_region_info`.
    #[derive(Default)]
    #[repr(C)]
    struct Info {
        argsz: u32,
        flags: u32,
        index: u32,
        cap_offset: u32,
        size: u64,
        offset: u64,
    }
    let mut info = Info {
        argsz: 32,
        index,
        ..Info::default()
    };
    // SAFETY: `VFIO_DEVICE_GET_REGION_INFO` writes at most `argsz` bytes of the structure.
    unsafe { vfio(device, VFIO + 8, &mut info) }?;
    Ok((info.offset, info.size))
}

/// Connects the first MSI-X interrupt of a device to an eventfd.
pub(crate) fn vfio_set_interrupt(
    device: BorrowedFd<'_>,
    eventfd: &OwnedFd,
) -> rustix::io::Result<()> {
    /// As `struct vfio_irq_set` with one descriptor.
    #[repr(C)]
    struct Set {
        argsz: u32,
        flags: u32,
        index: u32,
        start: u32,
        count: u32,
        eventfd: i32,
    }
    let mut set = Set {
        argsz: 24,
        // The data is an eventfd, for the interrupt to trigger.
        flags: 1 << 2 | 1 << 5,
        // MSI-X.
        index: 2,
        start: 0,
        count: 1,
        eventfd: eventfd.as_raw_fd(),
    };
    // SAFETY: `VFIO_DEVICE_SET_IRQS` reads at most `argsz` bytes of the structure.
    unsafe { vfio(device, VFIO + 10, &mut set) }.map(drop)
}

/// A context of asynchronous I/O (`io_setup(2)`), for polls that complete at once.
#[derive(Debug)]
pub(crate) struct AioContext(libc::c_ulong);

impl AioContext {
    /// With capacity for at least this many completions.
    pub(crate) fn new(completions: u32) -> rustix::io::Result<Self> {
        let mut context: libc::c_ulong = 0;
        // SAFETY: `io_setup` writes the number of a new context to the variable.
        let made = unsafe { libc::syscall(libc::SYS_io_setup, completions, &raw mut context) };
        errno(made)?;
        Ok(Self(context))
    }

    /// Submits a poll of a readable descriptor, whose completion adds 1 to `eventfd`. Never blocks;
    /// `AGAIN` if there is no space for another completion.
    pub(crate) fn submit(
        &self,
        ready: BorrowedFd<'_>,
        eventfd: BorrowedFd<'_>,
    ) -> rustix::io::Result<()> {
        /// As `struct iocb`.
        #[derive(Default)]
        #[repr(C)]
        struct Request {
            data: u64,
            key_and_flags: [u32; 2],
            opcode: u16,
            priority: i16,
            fd: i32,
            events: u64,
            len: u64,
            offset: i64,
            reserved: u64,
            flags: u32,
            eventfd: i32,
        }
        let mut request = Request {
            // `IOCB_CMD_POLL` for input.
            opcode: 5,
            fd: ready.as_raw_fd(),
            events: 1,
            // `IOCB_FLAG_RESFD`.
            flags: 1,
            eventfd: eventfd.as_raw_fd(),
            ..Request::default()
        };
        let mut requests = [&raw mut request];
        let count: libc::c_long = 1;
        // SAFETY: `io_submit` reads one address of a request, and the request; it writes a key
        // there. A poll has no buffer that it would access later.
        let submitted =
            unsafe { libc::syscall(libc::SYS_io_submit, self.0, count, requests.as_mut_ptr()) };
        errno(submitted).map(drop)
    }

    /// Removes completions, to make space for others.
    pub(crate) fn reap(&self) {
        /// As `struct io_event`.
        type Completion = [u64; 4];
        let mut completions: [Completion; COMPLETIONS] = [[0; 4]; COMPLETIONS];
        let (least, most): (libc::c_long, usize) = (0, COMPLETIONS);
        let forever = std::ptr::null_mut::<libc::timespec>();
        // SAFETY: `io_getevents` writes at most `COMPLETIONS` completions. It does not block,
        // because the minimum is zero.
        let _taken = unsafe {
            libc::syscall(
                libc::SYS_io_getevents,
                self.0,
                least,
                most,
                completions.as_mut_ptr(),
                forever,
            )
        };
    }
}

impl Drop for AioContext {
    fn drop(&mut self) {
        let context = self.0;
        let destroy = move || {
            // SAFETY: the context was made by `new`, and its only user has just been dropped.
            unsafe { libc::syscall(libc::SYS_io_destroy, context) }
        };
        // The call takes some 30 ms, which must not block an executor, unless no thread can be
        // created: a context that remains uses up a limit of the whole system.
        if std::thread::Builder::new().spawn(destroy).is_err() {
            destroy();
        }
    }
}

/// The result of a system call that returns -1 for an error.
fn errno<T: Copy + Into<libc::c_long>>(result: T) -> rustix::io::Result<T> {
    if result.into() >= 0 {
        return Ok(result);
    }
    let error = std::io::Error::last_os_error();
    Err(Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

/// A new zeroed memory file, sealed so that it keeps its length.
pub(crate) fn memory_file(len: usize) -> Result<OwnedFd, DeviceError> {
    Ok(smc_core::mem::memory_file(NAME, len)?)
}

/// Maps a memory file that another process created, if that is safe; see [`Region::adopt`].
pub(crate) fn adopt(file: impl AsFd) -> Result<Region, DeviceError> {
    let stat = fstat(&file).map_err(|error| os("inspect memory file", error))?;
    let len = usize::try_from(stat.st_size).unwrap_or(0);
    Ok(Region::adopt(file.as_fd(), len)?)
}

pub(crate) fn os(what: &'static str, error: Errno) -> DeviceError {
    DeviceError::os(what, &error.into())
}

/// The same, with the path of the operation.
pub(crate) fn os_at(what: &'static str, path: &Path, error: Errno) -> DeviceError {
    DeviceError::os_at(what, path, &error.into())
}

/// The first number of VFIO's calls: `_IO(';', 100)`.
const VFIO: u32 = 0x3b64;

/// Completions that are removed at a time.
const COMPLETIONS: usize = 64;

/// Shown in `/proc/PID/maps`.
const NAME: &str = "smc-ism";
