//! Runtimes and fabrics.

use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use smc::Endpoint;
use smc_core::Domain;
use smc_core::device::Device;
use smc_core::negotiate::{Assume, Negotiation};
use smc_negotiate_local::Local;
use smc_testkit::on::On;
use smc_transport_ism::{FabricAddress, IsmDevice};
use smc_transport_loop::LoopDevice;

/// What carries a connection, and how its ends find out about each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Fabric {
    pub(crate) device: Kind,
    /// The peer's buffer is mapped.
    pub(crate) nocopy: bool,
    /// The handshake runs on the TCP connection, not beside it.
    pub(crate) on_tcp: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    Loop,
    Ism,
}

impl Fabric {
    pub(crate) const LOOP: Self = Self {
        device: Kind::Loop,
        nocopy: true,
        on_tcp: false,
    };

    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let devices = [Kind::Loop, Kind::Ism].into_iter();
        devices.flat_map(|device| {
            [(true, false), (false, false), (true, true), (false, true)].map(|(nocopy, on_tcp)| {
                Self {
                    device,
                    nocopy,
                    on_tcp,
                }
            })
        })
    }

    /// An endpoint on the fabric in a directory.
    pub(crate) fn endpoint(self, on: On, dir: &Path) -> Endpoint {
        let negotiation: Arc<dyn Negotiation> = match self.on_tcp {
            true => Arc::new(Assume::new()),
            false => Arc::new(Local::in_domain(Domain::directory(dir))),
        };
        let endpoint = on
            .endpoint()
            .device(self.device(dir))
            .negotiation(negotiation)
            .build();
        endpoint.unwrap()
    }

    fn device(self, dir: &Path) -> Arc<dyn Device> {
        match self.device {
            Kind::Loop => {
                let builder = LoopDevice::builder()
                    .domain(Domain::directory(dir))
                    .nocopy(self.nocopy);
                Arc::new(builder.build().unwrap())
            }
            Kind::Ism => {
                let place = FabricAddress::directory(dir.join("fabric"))
                    .with_nocopy(self.nocopy)
                    .with_len(64 << 20);
                Arc::new(IsmDevice::builder(place).build().unwrap())
            }
        }
    }
}
