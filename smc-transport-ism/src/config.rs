//! How a device is set up.

use smc_core::device::{DeviceError, Identity, Limits};
use smc_core::random::{emulated_gid, is_emulated_gid};
use smc_wire::size::SizeCode;
use smc_wire::types::{Gid, PnetId};

use crate::device::IsmDevice;
use crate::fabric::FabricAddress;
use crate::node::Node;
use crate::random;

/// Options of an [`IsmDevice`]; see [`IsmDevice::builder`].
#[derive(Clone, Debug)]
pub struct Builder {
    address: FabricAddress,
    identity: Identity,
    gid: Option<Gid>,
    max_dmbs: usize,
    max_dmb_size: SizeCode,
}

impl Builder {
    pub(crate) fn new(address: FabricAddress) -> Self {
        Self {
            address,
            identity: Identity::new("ism"),
            gid: None,
            max_dmbs: MAX_DMBS,
            max_dmb_size: SizeCode::LINUX_MAX_D,
        }
    }

    /// The name for logs and tools; `ism` if not given.
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

    /// The GID, of which both halves must not be zero; 128 random bits if not given.
    ///
    /// A second device with the same GID is refused by the fabric.
    #[must_use]
    pub fn gid(mut self, gid: Gid) -> Self {
        self.gid = Some(gid);
        self
    }

    /// Buffers that can be registered at a time; 1920 if not given, as for ISM hardware. The memory
    /// of the fabric may be used up before.
    #[must_use]
    pub fn max_dmbs(mut self, buffers: usize) -> Self {
        self.max_dmbs = buffers;
        self
    }

    /// Size of the longest buffer; 1 MiB if not given, the longest that Linux makes for SMC-D.
    #[must_use]
    pub fn max_dmb_size(mut self, size: SizeCode) -> Self {
        self.max_dmb_size = size;
        self
    }

    /// Opens the fabric, creates it if necessary, and takes a slot there.
    ///
    /// May block for some milliseconds while another device does the same.
    ///
    /// # Errors
    ///
    /// [`DeviceError::NotPermitted`] when the address is not safe to use, or another device has the
    /// GID; [`DeviceError::Invalid`] when the memory there is too small, has not been laid out, or
    /// is of another version, and for invalid options; [`DeviceError::Exhausted`] when
    /// the fabric has no slot left; else the error of the system call.
    pub fn build(self) -> Result<IsmDevice, DeviceError> {
        if self.max_dmbs == 0 {
            return Err(DeviceError::Invalid("a device without buffers"));
        }
        let gid = match self.gid {
            Some(gid) if is_emulated_gid(gid) => gid,
            Some(_) => return Err(DeviceError::Invalid("a GID with a half of zero")),
            None => emulated_gid().map_err(random::failed)?,
        };
        let (fabric, slot) = self.address.open()?;
        let limits = Limits::new(self.max_dmbs, self.max_dmb_size.byte_len());
        let node = Node::join(fabric, slot, gid, limits)?;
        Ok(IsmDevice::new(self.identity, node))
    }
}

/// DMBs of ISM hardware.
const MAX_DMBS: usize = 1920;
