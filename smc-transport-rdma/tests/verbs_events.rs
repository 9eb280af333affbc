//! Events of a device when its environment changes.
//!
//! Takes a machine whose network may be changed: `SMC_RDMA_CHANGE=<netdev>:<rdma device>` names an
//! interface that may be taken down and the soft-RoCE device on it, which may be removed.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use common::{address, domain, pair};
use futures_lite::future::block_on;
use smc_core::device::{Device, DeviceError, Event, LinkFailure, Rdma};
use smc_transport_rdma::{RdmaDevice, Unusable};

// One test, since all of it happens to one device.
#[test]
fn ports_addresses_and_devices_come_and_go() {
    let Ok(subject) = std::env::var("SMC_RDMA_CHANGE") else {
        println!("skipped: no RDMA device that may be changed (SMC_RDMA_CHANGE)");
        return;
    };
    let (netdev, name) = subject.split_once(':').unwrap();
    let device = Arc::new(RdmaDevice::open(name).unwrap());
    let other = Arc::new(RdmaDevice::open(name).unwrap());

    println!("counters of the hardware");
    let counters = device.hardware_counters();
    let has_rnr = |(name, _): &(String, u64)| name == "1/rcvd_rnr_err";
    assert!(counters.iter().any(has_rnr), "{counters:?}");

    println!("an address more");
    let before = device.addresses();
    let (near, far) = pair(Arc::clone(&device), Arc::clone(&other));
    ip(&["addr", "add", "10.77.0.1/24", "dev", netdev]);
    near.wait("change", |event| *event == Event::AddressesChanged);
    let more = device.addresses();
    assert!(more.len() > before.len(), "{more:?}");
    assert!(more.iter().any(|at| {
        at.gid
            .ipv4()
            .is_some_and(|ip| ip.octets() == [10, 77, 0, 1])
    }));

    println!("and gone again, with the links on it");
    let gone = more.iter().find(|at| !before.contains(at)).unwrap().clone();
    let domain = block_on(domain(&device));
    let on_it = block_on(domain.open_link(&gone)).unwrap();
    ip(&["addr", "del", "10.77.0.1/24", "dev", netdev]);
    let cause = LinkFailure::PortDown;
    let link = on_it.local().qpn;
    near.wait("end", |event| *event == Event::LinkDown { link, cause });
    near.wait("change", |event| *event == Event::AddressesChanged);
    assert_eq!(device.addresses(), before);
    drop(on_it);

    println!("the port down");
    ip(&["link", "set", netdev, "down"]);
    let link = near.link.qpn();
    near.wait("end", |event| *event == Event::LinkDown { link, cause });
    near.wait("change", |event| *event == Event::AddressesChanged);
    assert_eq!(device.addresses(), []);
    let link = far.link.qpn();
    far.wait("end", |event| *event == Event::LinkDown { link, cause });
    let reports = smc_transport_rdma::probe().unwrap();
    let report = reports.iter().find(|report| report.name == name).unwrap();
    assert!(
        matches!(report.usable, Err(Unusable::PortDown)),
        "{report:?}"
    );

    println!("and up again");
    ip(&["link", "set", netdev, "up"]);
    near.wait("change", |event| *event == Event::AddressesChanged);
    while !device.addresses().iter().any(|at| at.gid.ipv4().is_some()) {
        near.wait("change", |event| *event == Event::AddressesChanged);
    }
    while !other.addresses().iter().any(|at| at.gid.ipv4().is_some()) {
        far.wait("change", |event| *event == Event::AddressesChanged);
    }
    let (again, _far) = pair(Arc::clone(&device), Arc::clone(&other));
    drop((near, far));

    println!("the device removed");
    let at = address(&device);
    let mut removal = Command::new("rdma")
        .args(["link", "del", name])
        .spawn()
        .unwrap();
    let link = again.link.qpn();
    let down = |event: &Event| matches!(event, Event::LinkDown { link: of, .. } if *of == link);
    again.wait_raw("end", down);
    again.wait_raw("removal", |event| *event == Event::DeviceGone);
    assert!(matches!(
        device.drain(&mut |_| {}),
        Err(DeviceError::Gone(_))
    ));
    assert!(matches!(device.arm(), Err(DeviceError::Gone(_))));
    let refused = block_on(domain.open_link(&at));
    assert!(matches!(refused, Err(DeviceError::Gone(_))), "{refused:?}");
    assert_eq!(device.addresses(), []);
    // It is destroyed when the last reference is dropped.
    drop((again, _far, domain, device, other));
    for _ in 0..600 {
        if removal.try_wait().unwrap().is_some() {
            return;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("the device is still held");
}

fn ip(args: &[&str]) {
    println!("ip {}", args.join(" "));
    assert!(Command::new("ip").args(args).status().unwrap().success());
}
