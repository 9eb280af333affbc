//! Why a device could not be opened.

use std::io;

use rustix::io::Errno;
use smc_core::device::DeviceError;

/// Why a device could not be opened, or the devices not be listed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The library that drivers are reached by is not installed.
    #[error("libibverbs.so.1 cannot be loaded; install libibverbs1 and ibverbs-providers")]
    NoLibrary,
    /// The host has no RDMA device, or the kernel modules for them are not loaded.
    #[error("no RDMA device; is the module ib_uverbs loaded?")]
    NoDevices,
    /// There are devices, but none with this name.
    #[error("no RDMA device {name}; there are: {}", present.join(", "))]
    NotFound {
        /// The name that was asked for.
        name: String,
        /// The names of the devices that there are.
        present: Vec<String>,
    },
    /// This process may not use the device node below `/dev/infiniband`.
    #[error("no permission to use the device; its node is below /dev/infiniband: {0}")]
    NotPermitted(#[source] io::Error),
    /// Not even the buffers of one link can be registered.
    #[error("locked memory is limited to {} (ulimit -l); RDMA needs more", kib(*limit))]
    LockedMemory {
        /// The limit of this process in bytes, if it has one.
        limit: Option<u64>,
    },
    /// The device lacks what links need.
    #[error("device cannot carry SMC-R: {0}")]
    Incapable(&'static str),
    /// A call of the verbs interface failed.
    #[error("{what}: {source}")]
    Verbs {
        /// What was tried.
        what: &'static str,
        /// Its error.
        source: io::Error,
    },
}

impl OpenError {
    pub(crate) fn verbs(what: &'static str, source: io::Error) -> Self {
        Self::Verbs { what, source }
    }
}

impl From<OpenError> for DeviceError {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::NoLibrary => Self::Gone("libibverbs is not installed"),
            OpenError::NoDevices => Self::Gone("no RDMA device"),
            OpenError::NotFound { .. } => Self::Gone("no RDMA device of that name"),
            OpenError::NotPermitted(source) => {
                Self::os_at("open a device node in", "/dev/infiniband", &source)
            }
            OpenError::LockedMemory { .. } => Self::NoMemory,
            OpenError::Incapable(why) => Self::Invalid(why),
            OpenError::Verbs { what, source } => Self::os(what, &source),
        }
    }
}

fn kib(limit: Option<u64>) -> String {
    limit.map_or_else(
        || "nothing".to_owned(),
        |bytes| format!("{} KiB", bytes / 1024),
    )
}

/// The error of a failed allocation on a device: most have a limit on how many there are.
pub(crate) fn not_made(what: &'static str, error: &io::Error) -> DeviceError {
    match Errno::from_io_error(error) {
        Some(Errno::NOMEM | Errno::NOSPC | Errno::AGAIN) => DeviceError::Exhausted,
        Some(Errno::IO | Errno::NODEV) => DeviceError::Gone("it was removed"),
        _ => DeviceError::os(what, error),
    }
}
