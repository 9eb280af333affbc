//! The rules that every SMC-D device has to keep, for both modes, and what hostile peers can do.

use std::sync::Arc;

use async_trait::async_trait;
use smc_core::Domain;
use smc_testkit::conformance::{Pair, Provider, Skip};
use smc_transport_loop::LoopDevice;
use tempfile::TempDir;

/// Devices of one process, over sockets as between processes.
struct Loop {
    nocopy: bool,
}

impl Loop {
    fn pair_of(&self, max_dmbs: usize) -> Result<Pair, Skip> {
        let dir = TempDir::new().map_err(|error| Skip::new(error.to_string()))?;
        let device = || {
            let builder = LoopDevice::builder()
                .domain(Domain::directory(dir.path()))
                .nocopy(self.nocopy);
            Arc::new(
                builder
                    .max_dmbs(max_dmbs)
                    .build()
                    .expect("a private directory serves"),
            )
        };
        let pair = Pair::new(device(), device());
        Ok(pair.with_third(device()).with_kill(drop).keeping(dir))
    }
}

#[async_trait]
impl Provider for Loop {
    async fn pair(&self) -> Result<Pair, Skip> {
        self.pair_of(16_384)
    }

    async fn pair_with_limit(&self, dmbs: usize) -> Result<Pair, Skip> {
        self.pair_of(dmbs)
    }
}

mod nocopy {
    smc_testkit::conformance_suite!(super::Loop { nocopy: true });
}

mod copy {
    smc_testkit::conformance_suite!(super::Loop { nocopy: false });
}

mod hostile_nocopy {
    smc_testkit::hostile_suite!(super::Loop { nocopy: true });
}

mod hostile_copy {
    smc_testkit::hostile_suite!(super::Loop { nocopy: false });
}
