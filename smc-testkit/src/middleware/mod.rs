//! Devices around devices.
//!
//! Each takes a device and is one: give it to an endpoint or to another of them instead. [`Trace`]
//! tells what is asked of a device and what it reports, [`Fault`] makes it slow, busy and
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

use smc_core::device::{Device, Direct, Fabric, Nocopy, PeerEvents};

/// The SMC-D surface of the inner device. The middleware shows its own only if there is one.
fn direct(device: &dyn Device) -> &dyn Direct {
    match device.fabric() {
        Fabric::Direct(direct) => direct,
        _ => unreachable!("looked at before the outer surface was handed out"),
    }
}

fn nocopy(device: &dyn Device) -> &dyn Nocopy {
    direct(device)
        .nocopy()
        .expect("looked at before the outer ability was handed out")
}

fn peer_events(device: &dyn Device) -> &dyn PeerEvents {
    direct(device)
        .peer_events()
        .expect("looked at before the outer ability was handed out")
}

#[cfg(test)]
mod tests;
