//! Two ends on whatever RDMA devices there are.

#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "each test file uses a part of it, and only in tests"
)]

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_lite::future::block_on;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use smc_core::device::{
    Access, Device, Doorbell, Event, Link, Mr, ProtectionDomain, Rdma, RdmaAddress, RoceKind, Route,
};
use smc_core::mem::Region;
use smc_transport_rdma::{Builder, RdmaDevice};

/// Devices for the two ends: the first that can be used, opened twice.
pub(crate) fn devices() -> Option<(RdmaDevice, RdmaDevice)> {
    let usable: Vec<String> = match smc_transport_rdma::probe() {
        Ok(reports) => {
            for report in &reports {
                if let Err(why) = &report.usable {
                    println!("{}: {why}", report.name);
                }
            }
            let usable = reports.into_iter().filter(|report| report.usable.is_ok());
            usable.map(|report| report.name).collect()
        }
        Err(why) => {
            println!("skipped: no RDMA device: {why}");
            return None;
        }
    };
    let Some(name) = usable.first() else {
        println!("skipped: no RDMA device that can be used");
        return None;
    };
    // Links between two devices of one host would depend on its routes.
    Some((builder(name).open().unwrap(), builder(name).open().unwrap()))
}

/// Settings of a device, as this test file is about.
pub(crate) fn builder(name: &str) -> Builder {
    let builder = RdmaDevice::builder(name);
    match env!("CARGO_CRATE_NAME") {
        "verbs_links_one_span" => builder.contiguous_receives(),
        _ => builder,
    }
}

/// An address for SMC-R version 2.
pub(crate) fn address(device: &RdmaDevice) -> RdmaAddress {
    let mut addresses = device.addresses().into_iter();
    let fits = |at: &RdmaAddress| at.kind == RoceKind::V2 && at.gid.ipv4().is_some();
    addresses.find(fits).unwrap()
}

/// An end of a link.
pub(crate) struct End {
    pub(crate) device: Arc<RdmaDevice>,
    pub(crate) link: Arc<dyn Link>,
    pub(crate) memory: Arc<dyn Mr>,
    events: Mutex<Vec<Event>>,
}

impl End {
    /// Waits, in the order that every consumer keeps, until an event fits.
    pub(crate) fn wait(&self, what: &str, fits: impl Fn(&Event) -> bool) -> Event {
        let deadline = Instant::now() + LIMIT;
        loop {
            self.drain();
            self.device.arm().unwrap();
            // Completions of posts ring for those alone who wait for them.
            self.device.arm_completions().unwrap();
            self.drain();
            let mut events = self.events.lock().unwrap();
            if let Some(at) = events.iter().position(&fits) {
                return events.remove(at);
            }
            assert!(Instant::now() < deadline, "no {what}, but {events:?}");
            drop(events);
            self.park(Duration::from_secs(1));
        }
    }

    /// As `wait`, for a device that may be gone afterwards.
    pub(crate) fn wait_raw(&self, what: &str, fits: impl Fn(&Event) -> bool) {
        let deadline = Instant::now() + LIMIT;
        loop {
            let mut events = self.events.lock().unwrap();
            let _gone = self.device.drain(&mut |event| events.push(event));
            if let Some(at) = events.iter().position(&fits) {
                events.remove(at);
                return;
            }
            assert!(Instant::now() < deadline, "no {what}, but {events:?}");
            drop(events);
            let _gone = (self.device.arm(), self.device.arm_completions());
            self.park(Duration::from_millis(100));
        }
    }

    /// Waits for an event of any kind.
    pub(crate) fn wait_some(&self) {
        self.device_arm();
        self.device.arm_completions().unwrap();
        self.drain();
        if self.events.lock().unwrap().is_empty() {
            assert!(self.park(LIMIT), "no event");
        }
    }

    pub(crate) fn device_arm(&self) {
        self.device.arm().unwrap();
    }

    /// Hands over what happened until now.
    pub(crate) fn events(&self) -> Vec<Event> {
        self.drain();
        std::mem::take(&mut *self.events.lock().unwrap())
    }

    fn drain(&self) {
        self.device.drain_into(&mut self.events.lock().unwrap());
    }

    /// Sleeps until the doorbell rings; returns whether it did.
    pub(crate) fn park(&self, limit: Duration) -> bool {
        let Doorbell::Fd(fd) = self.device.doorbell() else {
            unreachable!("the doorbell is a descriptor");
        };
        let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
        let limit = Timespec::try_from(limit).unwrap();
        poll(&mut fds, Some(&limit)).unwrap() > 0
    }
}

/// Draining into a list.
pub(crate) trait DrainInto {
    fn drain_into(&self, events: &mut Vec<Event>);
}

impl DrainInto for RdmaDevice {
    fn drain_into(&self, events: &mut Vec<Event>) {
        self.drain(&mut |event| events.push(event)).unwrap();
    }
}

/// Two ends of one link, each with some registered memory.
pub(crate) fn pair(a: Arc<RdmaDevice>, b: Arc<RdmaDevice>) -> (End, End) {
    block_on(async {
        let (of_a, of_b) = (domain(&a).await, domain(&b).await);
        let near = of_a.open_link(&address(&a)).await.unwrap();
        let far = of_b.open_link(&address(&b)).await.unwrap();
        let (to_near, to_far) = (near.local(), far.local());
        let near = near.connect(to_far, Route::SameSubnet).await.unwrap();
        let far = far.connect(to_near, Route::SameSubnet).await.unwrap();
        (end(a, &*of_a, near).await, end(b, &*of_b, far).await)
    })
}

pub(crate) async fn domain(device: &RdmaDevice) -> Arc<dyn ProtectionDomain> {
    device.protection_domain().await.unwrap()
}

async fn end(device: Arc<RdmaDevice>, domain: &dyn ProtectionDomain, link: Arc<dyn Link>) -> End {
    let region = Region::anonymous(MEMORY);
    let memory = domain.register(&region, Access::RemoteWrite).await;
    let memory = memory.unwrap();
    End {
        device,
        link,
        memory,
        events: Mutex::default(),
    }
}

/// Bytes of memory of an end.
pub(crate) const MEMORY: usize = 1 << 16;

/// Far more than anything here takes, also in emulation.
const LIMIT: Duration = Duration::from_secs(60);
