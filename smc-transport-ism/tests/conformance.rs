//! The conformance suite for SMC-D devices, on both fabrics of a host and in both modes, and what
//! hostile peers can do.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use smc_testkit::conformance::{Pair, Provider, Skip};
use smc_transport_ism::IsmDevice;
use support::{Kind, World};

/// Devices of one process, on a fabric as between processes.
struct Fabric {
    kind: Kind,
    nocopy: bool,
}

impl Fabric {
    fn pair_of(&self, max_dmbs: usize) -> Pair {
        let mut world = World::with_len(self.kind, self.nocopy, 8 << 20);
        let device = || {
            let builder = IsmDevice::builder(world.fabric_address()).max_dmbs(max_dmbs);
            Arc::new(builder.build().unwrap())
        };
        let pair = Pair::new(device(), device())
            .with_third(device())
            .with_kill(drop);
        let serving = Mutex::new(world.server.take());
        let pair = pair.keeping(world);
        if self.kind == Kind::Directory {
            return pair;
        }
        let serving = Arc::new(serving);
        let shared = Arc::clone(&serving);
        pair.keeping(shared)
            .with_removal(move |_| drop(serving.lock().unwrap().take()))
    }
}

#[async_trait]
impl Provider for Fabric {
    async fn pair(&self) -> Result<Pair, Skip> {
        Ok(self.pair_of(1920))
    }

    async fn pair_with_limit(&self, dmbs: usize) -> Result<Pair, Skip> {
        Ok(self.pair_of(dmbs))
    }
}

mod directory_copy {
    use super::{Fabric, Kind};
    smc_testkit::conformance_suite!(Fabric {
        kind: Kind::Directory,
        nocopy: false
    });
}

mod directory_nocopy {
    use super::{Fabric, Kind};
    smc_testkit::conformance_suite!(Fabric {
        kind: Kind::Directory,
        nocopy: true
    });
}

mod server_copy {
    use super::{Fabric, Kind};
    smc_testkit::conformance_suite!(Fabric {
        kind: Kind::Server,
        nocopy: false
    });
}

mod server_nocopy {
    use super::{Fabric, Kind};
    smc_testkit::conformance_suite!(Fabric {
        kind: Kind::Server,
        nocopy: true
    });
}

mod hostile_directory_copy {
    use super::{Fabric, Kind};
    smc_testkit::hostile_suite!(Fabric {
        kind: Kind::Directory,
        nocopy: false
    });
}

mod hostile_directory_nocopy {
    use super::{Fabric, Kind};
    smc_testkit::hostile_suite!(Fabric {
        kind: Kind::Directory,
        nocopy: true
    });
}

mod hostile_server_nocopy {
    use super::{Fabric, Kind};
    smc_testkit::hostile_suite!(Fabric {
        kind: Kind::Server,
        nocopy: true
    });
}
