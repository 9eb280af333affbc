use smc_core::device::{Limits, RdmaAddress, SENDS_MAX};
use smc_wire::types::PnetId;

/// What a [`MemoryRdma`](super::MemoryRdma) is made of.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RdmaOptions {
    /// The GID table; all ports are active at first. If it is empty, addresses are made up.
    pub addresses: Vec<RdmaAddress>,
    /// Network interface of addresses that are made up.
    pub interface: Option<String>,
    /// The physical network.
    pub pnet_id: Option<PnetId>,
    /// Registrations at a time, and the longest one in bytes; 4096 and 64 MiB by default.
    pub limits: Limits,
    /// Queue pairs at a time; 1024 by default.
    pub max_links: usize,
    /// Receive buffers of each link; 128 by default.
    pub receives: u32,
    /// Posts that each link takes before the first is reported; [`SENDS_MAX`] by default.
    pub sends: usize,
}

impl Default for RdmaOptions {
    fn default() -> Self {
        Self {
            addresses: Vec::new(),
            interface: None,
            pnet_id: None,
            limits: Limits::new(4096, 64 << 20),
            max_links: 1024,
            receives: 128,
            sends: SENDS_MAX,
        }
    }
}

impl RdmaOptions {
    /// Adds an entry to the GID table. Its port becomes one of the device.
    #[must_use]
    pub fn with_address(mut self, address: RdmaAddress) -> Self {
        self.addresses.push(address);
        self
    }

    /// Sets the network interface of made-up addresses.
    #[must_use]
    pub fn with_interface(mut self, name: impl Into<String>) -> Self {
        self.interface = Some(name.into());
        self
    }

    /// Sets the physical network.
    #[must_use]
    pub fn with_pnet_id(mut self, pnet_id: PnetId) -> Self {
        self.pnet_id = Some(pnet_id);
        self
    }

    /// Sets the limits of registrations.
    #[must_use]
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets the number of queue pairs.
    #[must_use]
    pub fn with_max_links(mut self, max_links: usize) -> Self {
        self.max_links = max_links;
        self
    }

    /// Sets the number of receive buffers of each link.
    #[must_use]
    pub fn with_receives(mut self, receives: u32) -> Self {
        self.receives = receives;
        self
    }

    /// Sets how many posts each link takes before the first is reported.
    #[must_use]
    pub fn with_sends(mut self, sends: usize) -> Self {
        self.sends = sends;
        self
    }
}
