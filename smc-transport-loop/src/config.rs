//! How a device is set up.

use std::io::ErrorKind;

use smc_core::device::{DeviceError, Identity, Limits};
use smc_ipc::Domain;
use smc_wire::size::SizeCode;
use smc_wire::types::PnetId;

use crate::device::LoopDevice;
use crate::pool::PoolLimits;

/// Options of a [`LoopDevice`]; see [`LoopDevice::builder`].
#[derive(Clone, Debug)]
pub struct Builder {
    pub(crate) identity: Identity,
    pub(crate) domain: Domain,
    pub(crate) nocopy: bool,
    pub(crate) limits: Limits,
    pub(crate) pool_limits: PoolLimits,
    pub(crate) max_mappings: usize,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            identity: Identity::new("loop"),
            domain: Domain::default(),
            nocopy: true,
            limits: Limits::new(MAX_DMBS, MAX_DMB_LEN),
            pool_limits: PoolLimits {
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
        self.identity.name = name.into();
        self
    }

    /// The physical network that the device counts as a part of; none if not given.
    #[must_use]
    pub fn pnet_id(mut self, pnet_id: PnetId) -> Self {
        self.identity.pnet_id = Some(pnet_id);
        self
    }

    /// The processes that may be peers, and where devices find each other;
    /// [`Domain::default`](smc_core::Domain) if not given. The negotiation of the endpoint takes
    /// the same one (`smc_negotiate_local::Local::in_domain`).
    #[must_use]
    pub fn domain(mut self, domain: Domain) -> Self {
        self.domain = domain;
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

    /// How many unused buffers are pooled per peer for its next connections, and how many bytes of
    /// memory in all; 256 and 16 MiB if not given. With 0 none are pooled. A buffer of which a
    /// connection has used more than the first 64 KiB is not pooled, so no more than that count.
    #[must_use]
    pub fn pool(mut self, buffers: usize, bytes: usize) -> Self {
        self.pool_limits = PoolLimits { buffers, bytes };
        self
    }

    /// How many pieces of memory this device may map because of peers, over all peers; 30,000 if
    /// not given.
    ///
    /// That is one for each of their buffers, and two for each peer. When there are as many, new
    /// peers are refused, and what known ones register cannot be used ([`DeviceError::Exhausted`]).
    /// In a domain with other users ([`Domain::shared`]) half of them are for those, of whom one
    /// has at most half of that, and no more than the others leave free.
    ///
    /// Whatever is given, all devices and listeners of a process have one limit beside it: of the
    /// mappings that the system permits a process (`vm.max_map_count`, 65,530 unless the system is
    /// told otherwise) those for peers of the own user are at most half, those for peers of another
    /// user an eighth, and those for peers of all other users a quarter. That counts what this
    /// limit does, the buffers that the devices have registered for peers or keep in their pools
    /// ([`max_dmbs`](Self::max_dmbs), [`pool`](Self::pool)), and the memory in which connections
    /// are announced. The rest is for the application, and for connections of a device with itself.
    ///
    /// How many peers there may be follows from `RLIMIT_NOFILE`: a peer takes up to four
    /// descriptors, those of the own user at most half of all, those of another user an eighth, and
    /// those of all other users a quarter.
    #[must_use]
    pub fn max_mappings(mut self, mappings: usize) -> Self {
        self.max_mappings = mappings;
        self
    }

    /// Makes the device and publishes it in the runtime directory.
    ///
    /// Without [`domain`](Self::domain) it succeeds also if no directory can be used: streams are
    /// TCP then, and [`LoopDevice::runtime_dir`] reports why. It is tried again every second. So it
    /// is with a domain if that is not known after two seconds, while another user holds the lock
    /// of the directory.
    ///
    /// Does not wait for other processes; makes a handful of system calls, one more for each device
    /// in the directory.
    ///
    /// # Errors
    ///
    /// [`DeviceError::RuntimeDir`] when a directory of the domain that was given cannot be used,
    /// [`DeviceError::Invalid`] for a limit of no buffers, else what the system refused.
    pub fn build(self) -> Result<LoopDevice, DeviceError> {
        if self.limits.max_dmbs == 0 {
            return Err(DeviceError::Invalid("a device without buffers"));
        }
        let is_given = !self.domain.is_default();
        let device = LoopDevice::with(self)?;
        match device.runtime_dir() {
            // Otherwise it is not known yet whether the directory can be used.
            Err(error) if is_given && error.kind() != ErrorKind::TimedOut => Err(error.into()),
            _ => Ok(device),
        }
    }
}

const MAX_DMBS: usize = 16_384;
const MAX_DMB_LEN: usize = 16 << 20;
const MAX_MAPPINGS: usize = 30_000;
const POOL_BUFFERS: usize = 256;
const POOL_BYTES: usize = 16 << 20;
