//! The memory devices keep all the rules, with and without nocopy, and hostile peers harm none.

use std::sync::Arc;

use async_trait::async_trait;
use smc_core::device::{Device, Limits};
use smc_testkit::conformance::{Pair, Provider, Skip};
use smc_testkit::memory_device::MemFabric;

struct Memory {
    nocopy: bool,
}

impl Memory {
    fn pair_on(&self, fabric: &MemFabric) -> Pair {
        let local = fabric.device("mem0");
        let removed = Arc::clone(&local);
        Pair::new(local, fabric.device("mem1"))
            .with_third(fabric.device("mem2"))
            .with_kill(drop::<Arc<dyn Device>>)
            .with_removal(move |_| removed.remove())
    }

    fn fabric(&self) -> MemFabric {
        MemFabric::new(0x5eed).with_nocopy(self.nocopy)
    }
}

#[async_trait]
impl Provider for Memory {
    async fn pair(&self) -> Result<Pair, Skip> {
        Ok(self.pair_on(&self.fabric()))
    }

    async fn pair_with_limit(&self, dmbs: usize) -> Result<Pair, Skip> {
        Ok(self.pair_on(&self.fabric().with_limits(Limits::new(dmbs, 1 << 20))))
    }
}

mod copy {
    smc_testkit::conformance_suite!(super::Memory { nocopy: false });
}

mod nocopy {
    smc_testkit::conformance_suite!(super::Memory { nocopy: true });
}

#[cfg(feature = "runtimes")]
mod hostile_copy {
    smc_testkit::hostile_suite!(super::Memory { nocopy: false });
}

#[cfg(feature = "runtimes")]
mod hostile_nocopy {
    smc_testkit::hostile_suite!(super::Memory { nocopy: true });
}
