//! How a device is set up.

use std::path::PathBuf;

use smc_core::device::{DeviceError, Identity, Limits};
use smc_core::io::negotiate::runtime_dir::RuntimeDirs;
use smc_wire::size::SizeCode;
use smc_wire::types::PnetId;

use crate::device::LoopDevice;
use crate::policy::Policy;
use crate::pool::Keep;

/// Options of a [`LoopDevice`]; see [`LoopDevice::builder`].
#[derive(Clone, Debug)]
pub struct Builder {
    name: String,
    pnet_id: Option<PnetId>,
    runtime_dir: Option<PathBuf>,
    users: Vec<u32>,
    nocopy: bool,
    limits: Limits,
    keep: Keep,
    max_mappings: usize,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            name: "loop".into(),
            pnet_id: None,
            runtime_dir: None,
            users: Vec::new(),
            nocopy: true,
            limits: Limits::new(MAX_DMBS, MAX_DMB_LEN),
            keep: Keep {
                buffers: POOL_BUFFERS,
                bytes: POOL_BYTES,
            },
            max_mappings: MAX_MAPPINGS,
        }
    }
}

impl Builder {
    /// The name for logs and tools; `loop` if not given.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// The physical network that the device counts as a part of; none if not given.
    #[must_use]
    pub fn pnet_id(mut self, pnet_id: PnetId) -> Self {
        self.pnet_id = Some(pnet_id);
        self
    }

    /// The directory where devices find each other; those of [`RuntimeDirs::from_env`] if not given.
    ///
    /// It is made if need be, for the own user alone; directories above it are not. It must belong
    /// to the own user, to root or to one of [`allow_users`](Self::allow_users), and others must not
    /// be able to change it; only if other users are allowed may it be writable for all, with the
    /// sticky bit set.
    #[must_use]
    pub fn runtime_dir(mut self, path: impl Into<PathBuf>) -> Self {
        self.runtime_dir = Some(path.into());
        self
    }

    /// Users, by number, whose processes may be peers beside those of the own user.
    ///
    /// Both sides have to allow each other. Processes of users that have no number here, such as
    /// those of a container with a user namespace of its own, cannot be allowed.
    #[must_use]
    pub fn allow_users(mut self, users: impl IntoIterator<Item = u32>) -> Self {
        self.users = users.into_iter().collect();
        self
    }

    /// Whether streams write in place, into the mapped buffers of peers
    /// ([`smc_core::device::Nocopy`]), or by way of
    /// [`move_data`](smc_core::device::Direct::move_data); true if not given.
    ///
    /// Concerns what this device writes, and nothing else: the peer's device may be set otherwise.
    #[must_use]
    pub fn nocopy(mut self, on: bool) -> Self {
        self.nocopy = on;
        self
    }

    /// Buffers that can be registered at a time; 16,384 if not given, which is also the most for
    /// one peer.
    #[must_use]
    pub fn max_dmbs(mut self, buffers: usize) -> Self {
        self.limits.max_dmbs = buffers;
        self
    }

    /// Size of the longest buffer; 16 MiB if not given.
    #[must_use]
    pub fn max_dmb_size(mut self, size: SizeCode) -> Self {
        self.limits.max_dmb_len = size.byte_len();
        self
    }

    /// How many unused buffers are kept per peer for its next connections, and how many bytes of
    /// memory in all; 256 and 16 MiB if not given. With 0 none are kept. Of a long buffer only the
    /// first 64 KiB are kept in memory, so no more than that count.
    #[must_use]
    pub fn pool(mut self, buffers: usize, bytes: usize) -> Self {
        self.keep = Keep { buffers, bytes };
        self
    }

    /// How many pieces of memory may be mapped because of peers, over all peers; 30,000 if not
    /// given.
    ///
    /// That is one for each of their buffers, and two for each peer. When there are as many, new
    /// peers are refused, and what known ones register cannot be used
    /// ([`DeviceError::Exhausted`]). A process has 65,530 mappings unless the system is told
    /// otherwise (`vm.max_map_count`); those of own buffers
    /// ([`max_dmbs`](Self::max_dmbs)), of other devices and of all the rest have to fit too.
    #[must_use]
    pub fn max_mappings(mut self, mappings: usize) -> Self {
        self.max_mappings = mappings;
        self
    }

    /// Makes the device and publishes it in the runtime directory.
    ///
    /// Without [`runtime_dir`](Self::runtime_dir) it succeeds also if no directory can be used:
    /// streams are TCP then, and [`LoopDevice::runtime_dir`] says why. It is tried again every
    /// second.
    ///
    /// Does not wait for other processes; makes a handful of system calls, one more for each device
    /// in the directory.
    ///
    /// # Errors
    ///
    /// [`DeviceError::RuntimeDir`] when the directory that was given cannot be used,
    /// [`DeviceError::Invalid`] for a limit of no buffers, else what the system refused.
    pub fn build(self) -> Result<LoopDevice, DeviceError> {
        if self.limits.max_dmbs == 0 {
            return Err(DeviceError::Invalid("a device without buffers"));
        }
        let identity = match self.pnet_id {
            Some(pnet_id) => Identity::new(self.name).with_pnet_id(pnet_id),
            None => Identity::new(self.name),
        };
        let policy = Policy::new(self.users);
        let is_given = self.runtime_dir.is_some();
        let dirs = self
            .runtime_dir
            .map_or_else(RuntimeDirs::from_env, RuntimeDirs::at)
            .allow_users(policy.others().iter().copied());
        let device = LoopDevice::with_parts(
            identity,
            self.limits,
            self.nocopy,
            self.keep,
            self.max_mappings,
            dirs,
            policy,
        )?;
        match device.runtime_dir() {
            Err(error) if is_given => Err(error.into()),
            _ => Ok(device),
        }
    }
}

const MAX_DMBS: usize = 16_384;
const MAX_DMB_LEN: usize = 16 << 20;
const MAX_MAPPINGS: usize = 30_000;
const POOL_BUFFERS: usize = 256;
const POOL_BYTES: usize = 16 << 20;
