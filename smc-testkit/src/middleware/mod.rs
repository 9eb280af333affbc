//! Devices around devices.
//!
//! Each takes a device and is one: give it to an endpoint or to another of them instead. [`Trace`]
//! records calls of a device and what it reports, [`Fault`] makes it slow, busy and
//! unreliable within the rules, from a seed.
//!
//! ```
//! use smc_testkit::memory_device::MemFabric;
//! use smc_testkit::middleware::{Fault, Faults, Trace};
//!
//! let device = MemFabric::new(1).device("mem0");
//! let device = Fault::new(device, 7, Faults::default().with_delayed(200));
//! let device = Trace::new(device, |record| println!("{record}"));
//! # let _: std::sync::Arc<dyn smc_core::device::Device> = device;
//! ```

mod fault;
mod trace;

pub use fault::{Fault, Faults};
pub use trace::{Journal, Record, Trace, What};

use smc_core::device::{Device, Direct, Nocopy, Operations, PeerEvents, Rdma};

/// What all middleware reports of a device: what the inner one reports, with its own surface.
macro_rules! delegate_device {
    () => {
        fn identity(&self) -> &smc_core::device::Identity {
            self.inner.identity()
        }

        fn limits(&self) -> smc_core::device::Limits {
            self.inner.limits()
        }

        fn operations(&self) -> smc_core::device::Operations<'_> {
            use smc_core::device::Operations;
            match self.inner.operations() {
                Operations::Direct(_) => Operations::Direct(self),
                Operations::Rdma(_) => Operations::Rdma(self),
                other => other,
            }
        }

        fn doorbell(&self) -> smc_core::device::Doorbell<'_> {
            self.inner.doorbell()
        }

        fn limit_memory(&self, limit: &smc_core::device::MemoryLimit) {
            self.inner.limit_memory(limit);
        }

        fn trim_memory(&self) {
            self.inner.trim_memory();
        }
    };
}
use delegate_device;

/// What all middleware reports of an SMC-D surface.
macro_rules! delegate_direct {
    () => {
        fn gid(&self) -> Gid {
            direct(&*self.inner).gid()
        }

        fn chid(&self) -> smc_wire::types::Chid {
            direct(&*self.inner).chid()
        }

        fn seid(&self) -> Option<smc_wire::types::Eid> {
            direct(&*self.inner).seid()
        }

        fn process(
            &self,
            peer: Gid,
        ) -> Result<Option<smc_core::negotiate::Credentials>, DeviceError> {
            direct(&*self.inner).process(peer)
        }

        fn shortage(&self) -> Option<smc_core::error::OsError> {
            direct(&*self.inner).shortage()
        }

        fn is_registered(&self, peer: Gid, token: smc_wire::types::DmbToken) -> bool {
            direct(&*self.inner).is_registered(peer, token)
        }

        fn allows_rewind(&self) -> bool {
            direct(&*self.inner).allows_rewind()
        }

        fn nocopy(&self) -> Option<&dyn Nocopy> {
            let inner = direct(&*self.inner).nocopy();
            inner.map(|_| self as &dyn Nocopy)
        }

        fn peer_events(&self) -> Option<&dyn PeerEvents> {
            let inner = direct(&*self.inner).peer_events();
            inner.map(|_| self as &dyn PeerEvents)
        }
    };
}
use delegate_direct;

/// What all middleware reports of an SMC-R surface.
macro_rules! delegate_rdma {
    () => {
        fn addresses(&self) -> Vec<RdmaAddress> {
            rdma(&*self.inner).addresses()
        }

        fn arm_completions(&self) -> Result<(), DeviceError> {
            rdma(&*self.inner).arm_completions()
        }
    };
}
use delegate_rdma;

/// The SMC-D surface of the inner device. The middleware shows its own only if there is one.
pub(crate) fn direct(device: &dyn Device) -> &dyn Direct {
    match device.operations() {
        Operations::Direct(direct) => direct,
        _ => unreachable!("checked before the outer surface was handed out"),
    }
}

/// The SMC-R surface of the inner device.
fn rdma(device: &dyn Device) -> &dyn Rdma {
    match device.operations() {
        Operations::Rdma(rdma) => rdma,
        _ => unreachable!("checked before the outer surface was handed out"),
    }
}

pub(crate) fn nocopy(device: &dyn Device) -> &dyn Nocopy {
    direct(device)
        .nocopy()
        .expect("checked before the outer ability was handed out")
}

fn peer_events(device: &dyn Device) -> &dyn PeerEvents {
    direct(device)
        .peer_events()
        .expect("checked before the outer ability was handed out")
}

#[cfg(test)]
mod tests;
