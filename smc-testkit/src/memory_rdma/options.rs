//! Options of the RDMA device in memory.

use smc_core::device::{Limits, RdmaAddress};

/// What a [`MemoryRdma`](super::MemoryRdma) is made of.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RdmaOptions {
    /// The GID table; all ports are active at first. If it is empty, addresses are made up.
    pub addresses: Vec<RdmaAddress>,
    /// Registrations at a time, and the longest one in bytes; 4096 and 64 MiB by default.
    pub limits: Limits,
    /// Queue pairs at a time; 1024 by default.
    pub max_links: usize,
    /// Receive buffers of each link; 128 by default.
    pub receives: u32,
}

impl Default for RdmaOptions {
    fn default() -> Self {
        Self {
            addresses: Vec::new(),
            limits: Limits::new(4096, 64 << 20),
            max_links: 1024,
            receives: 128,
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
}

setters! {
    RdmaOptions {
        /// Sets the limits of registrations.
        fn with_limits(limits: Limits);
        /// Sets the number of queue pairs.
        fn with_max_links(max_links: usize);
        /// Sets the number of receive buffers of each link.
        fn with_receives(receives: u32);
    }
}
