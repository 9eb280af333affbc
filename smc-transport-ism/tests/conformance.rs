//! The rules that every SMC-D device has to keep, on the file fabric and in both modes.

use std::sync::Arc;

use async_trait::async_trait;
use smc_testkit::conformance::{Pair, Provider, Skip};
use smc_transport_ism::{IsmDevice, Place};
use tempfile::TempDir;

/// Devices of one process, over files and sockets as between processes.
struct Files {
    nocopy: bool,
}

impl Files {
    fn pair_of(&self, max_dmbs: usize) -> Result<Pair, Skip> {
        let dir = TempDir::new().map_err(|error| Skip::new(error.to_string()))?;
        let place = Place::directory(dir.path())
            .with_len(8 << 20)
            .with_nocopy(self.nocopy);
        let device = || {
            let builder = IsmDevice::builder(place.clone()).max_dmbs(max_dmbs);
            Arc::new(builder.build().expect("a private directory serves"))
        };
        let pair = Pair::new(device(), device());
        Ok(pair.with_third(device()).with_kill(drop).keeping(dir))
    }
}

#[async_trait]
impl Provider for Files {
    async fn pair(&self) -> Result<Pair, Skip> {
        self.pair_of(1920)
    }

    async fn pair_with_limit(&self, dmbs: usize) -> Result<Pair, Skip> {
        self.pair_of(dmbs)
    }
}

mod nocopy {
    smc_testkit::conformance_suite!(super::Files { nocopy: true });
}

mod copy {
    smc_testkit::conformance_suite!(super::Files { nocopy: false });
}
