//! What goes wrong, and that it is repaired in the end.

use std::sync::Arc;
use std::time::Duration;

use smc_core::device::{DeviceError, LinkFailure};
use smc_core::wire::types::Qpn;
use smc_testkit::Rng;
use smc_testkit::memory_rdma::{Loss, Lost, MemoryRdma, RdmaWire};

use super::hosts::Hosts;
use super::plan::{Hardship, Plan};
use crate::world::World;

pub(super) fn all(hosts: &Arc<Hosts>, plan: &Plan, world: &World) {
    let rng = Rng::new(plan.rng.clone().bits() ^ 3);
    let (count, wire) = (plan.faults, world.wire.clone());
    match plan.hardship {
        Hardship::None => {}
        Hardship::Survivable => {
            hosts.spawn(async move |hosts| one_at_a_time(&hosts, rng, count).await)
        }
        Hardship::Anything => {
            hosts.spawn(async move |hosts| anything(&hosts, rng, count, wire).await);
        }
    }
}

/// Takes one of two links at a time, and waits until all is well again.
async fn one_at_a_time(hosts: &Hosts, mut rng: Rng, count: usize) {
    for _ in 0..count {
        hosts
            .sleep(Duration::from_micros(rng.below(30_000) as u64))
            .await;
        if !hosts.has_two_links() {
            hosts
                .until("second links", Duration::from_secs(30), || {
                    hosts.has_two_links()
                })
                .await;
        }
        let device = &hosts.hosts[rng.below(2)].devices[rng.below(2)];
        let time = Duration::from_micros(rng.below(3_000_000) as u64);
        match rng.below(6) {
            0 => {
                device.set_port_active(1, false);
                hosts.sleep(time).await;
            }
            1 => {
                device.set_port_cut(1, true);
                hosts.sleep(time).await;
                device.set_port_cut(1, false);
            }
            2 => {
                let cause = failure(&mut rng);
                each_link(device, |link| device.fail_link(link, cause));
                hosts.sleep(time).await;
            }
            3 | 4 => {
                let loss = loss(&mut rng);
                each_link(device, |link| device.set_loss(link, Some(loss)));
                hosts.sleep(time).await;
                each_link(device, |link| device.set_loss(link, None));
            }
            _ => {
                each_link(device, |link| device.set_cut(link, true));
                hosts.sleep(time).await;
                each_link(device, |link| device.set_cut(link, false));
            }
        }
        // What was lost before it was repaired may show later. Then a port that comes up makes
        // everybody look for a second link.
        hosts.sleep(Duration::from_secs(40)).await;
        device.set_port_active(1, false);
        hosts.sleep(Duration::from_secs(20)).await;
        device.set_port_active(1, true);
        hosts
            .until("second links again", Duration::from_secs(30), || {
                hosts.has_two_links()
            })
            .await;
    }
}

/// Whatever comes to mind, several things at a time.
async fn anything(hosts: &Hosts, mut rng: Rng, count: usize, wire: RdmaWire) {
    for _ in 0..count {
        hosts
            .sleep(Duration::from_micros(rng.below(30_000) as u64))
            .await;
        let side = rng.below(2);
        let host = &hosts.hosts[side];
        let device = &host.devices[rng.below(host.devices.len())];
        match rng.below(14) {
            0 | 1 => device.set_port_active(1, false),
            2 => device.set_port_cut(1, true),
            3 => {
                let cause = failure(&mut rng);
                one_link(device, &mut rng, |link| device.fail_link(link, cause));
            }
            4 | 5 => {
                let loss = loss(&mut rng);
                one_link(device, &mut rng, |link| device.set_loss(link, Some(loss)));
            }
            6 => one_link(device, &mut rng, |link| device.set_cut(link, true)),
            7 => wire.cut(),
            8 => wire.pause(),
            9 => device.hold_completions(true),
            10 => {
                let errors = [DeviceError::NoMemory, DeviceError::Exhausted];
                let errors = (0..rng.below(6)).map(|at| errors[at % 2].clone());
                device.refuse_registrations(errors);
            }
            11 => device.set_max_links(device.links().len()),
            12 if rng.chance(300) => device.remove(),
            _ => each_link(device, |link| device.fail_link(link, LinkFailure::Flushed)),
        }
        if rng.chance(400) {
            hosts
                .sleep(Duration::from_micros(rng.below(4_000_000) as u64))
                .await;
            repair(hosts, &wire);
        }
    }
    hosts
        .sleep(Duration::from_micros(rng.below(6_000_000) as u64))
        .await;
    repair(hosts, &wire);
}

fn repair(hosts: &Hosts, wire: &RdmaWire) {
    wire.mend();
    wire.resume();
    for device in hosts.hosts.iter().flat_map(|host| &host.devices) {
        device.hold_completions(false);
        device.set_port_cut(1, false);
        device.set_max_links(1024);
        each_link(device, |link| {
            device.set_loss(link, None);
            device.set_cut(link, false);
        });
        device.set_port_active(1, true);
    }
}

fn each_link(device: &MemoryRdma, what: impl Fn(Qpn)) {
    for link in device.links() {
        what(link.local.qpn);
    }
}

fn one_link(device: &MemoryRdma, rng: &mut Rng, what: impl Fn(Qpn)) {
    let links = device.links();
    if let Some(link) = links.get(rng.below(links.len())) {
        what(link.local.qpn);
    }
}

fn loss(rng: &mut Rng) -> Loss {
    let what = [Lost::Everything, Lost::Message, Lost::Answer][rng.below(3)];
    Loss::of(what).after(rng.below(30))
}

fn failure(rng: &mut Rng) -> LinkFailure {
    [
        LinkFailure::RetryExceeded,
        LinkFailure::Flushed,
        LinkFailure::PortDown,
        LinkFailure::Device("made up"),
    ][rng.below(4)]
}
