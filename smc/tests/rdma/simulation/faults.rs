//! What goes wrong, and that it is repaired in the end.

use std::sync::Arc;
use std::time::Duration;

use smc_core::device::{DeviceError, LinkFailure, Rdma};
use smc_core::wire::types::Qpn;
use smc_testkit::Rng;
use smc_testkit::memory_rdma::{Loss, Lost, MemoryRdma, RdmaNetwork};

use super::hosts::Hosts;
use super::plan::{Hardship, Plan};
use smc_testkit::world::RdmaWorld;

pub(super) fn all(hosts: &Arc<Hosts>, plan: &Plan, world: &RdmaWorld) {
    let rng = Rng::new(plan.rng.clone().bits() ^ 3);
    let (count, network) = (plan.faults, world.network().clone());
    match plan.hardship {
        Hardship::None => {}
        Hardship::Survivable => {
            hosts.spawn(async move |hosts| one_at_a_time(&hosts, rng, count).await)
        }
        Hardship::Anything => {
            hosts.spawn(async move |hosts| anything(&hosts, rng, count, network).await);
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
        let side = rng.below(2);
        let ports = &hosts.hosts[side].ports;
        let time = Duration::from_micros(rng.below(3_000_000) as u64);
        match &ports[..] {
            [port] => one_of_a_port(hosts, &mut rng, port, time).await,
            _ => a_port(hosts, &mut rng, side, time).await,
        }
        // What was lost before it was repaired may show later. Then a port that comes up makes
        // every group look for a second link.
        hosts.sleep(Duration::from_secs(40)).await;
        let mut both = hosts.hosts.iter().filter(|host| host.ports.len() > 1);
        let (device, port) = &both.next().expect("two links").ports[0];
        device.set_port_active(*port, false);
        hosts.sleep(Duration::from_secs(20)).await;
        device.set_port_active(*port, true);
        hosts
            .until("second links again", Duration::from_secs(30), || {
                hosts.has_two_links()
            })
            .await;
    }
}

/// Takes all links of one of the two ports of a host.
async fn a_port(hosts: &Hosts, rng: &mut Rng, side: usize, time: Duration) {
    let (device, port) = &hosts.hosts[side].ports[rng.below(2)];
    let each_link = |what: &dyn Fn(Qpn)| links_of(device, *port).into_iter().for_each(what);
    match rng.below(7) {
        0 => {
            device.set_port_active(*port, false);
            hosts.sleep(time).await;
            device.set_port_active(*port, true);
        }
        1 => {
            device.set_port_cut(*port, true);
            hosts.sleep(time).await;
            device.set_port_cut(*port, false);
        }
        2 => {
            let cause = failure(rng);
            each_link(&|link| device.fail_link(link, cause));
            hosts.sleep(time).await;
        }
        3 | 4 => {
            let loss = loss(rng);
            each_link(&|link| device.set_loss(link, Some(loss)));
            hosts.sleep(time).await;
            each_link(&|link| device.set_loss(link, None));
        }
        5 => {
            // The peer's receive queues are looked at late, while the links fail.
            let peers = &hosts.hosts[1 - side].devices;
            peers.iter().for_each(|peer| peer.set_lag(true));
            hosts.sleep(time / 1000).await;
            let cause = failure(rng);
            // A link group that was created meanwhile may have one link only.
            if hosts.has_two_links() {
                each_link(&|link| device.fail_link(link, cause));
            }
            hosts.sleep(time / 100).await;
            peers.iter().for_each(|peer| peer.set_lag(false));
        }
        _ => {
            each_link(&|link| device.set_cut(link, true));
            hosts.sleep(time).await;
            each_link(&|link| device.set_cut(link, false));
        }
    }
}

/// Takes one of the links of a port that the other link has as well.
async fn one_of_a_port(
    hosts: &Hosts,
    rng: &mut Rng,
    (device, port): &(Arc<MemoryRdma>, u8),
    time: Duration,
) {
    let links = links_of(device, *port);
    let link = links[rng.below(links.len())];
    match rng.below(3) {
        0 => {
            let causes = [
                LinkFailure::RetryExceeded,
                LinkFailure::Flushed,
                LinkFailure::QueuePair("made up"),
            ];
            device.fail_link(link, causes[rng.below(3)]);
            hosts.sleep(time).await;
        }
        1 => {
            let loss = loss(rng);
            device.set_loss(link, Some(loss));
            hosts.sleep(time).await;
            device.set_loss(link, None);
        }
        _ => {
            device.set_cut(link, true);
            hosts.sleep(time).await;
            device.set_cut(link, false);
        }
    }
}

/// Whatever comes to mind, several things at a time.
async fn anything(hosts: &Hosts, mut rng: Rng, count: usize, network: RdmaNetwork) {
    for _ in 0..count {
        hosts
            .sleep(Duration::from_micros(rng.below(30_000) as u64))
            .await;
        let side = rng.below(2);
        let host = &hosts.hosts[side];
        let (device, port) = &host.ports[rng.below(host.ports.len())];
        match rng.below(15) {
            0 | 1 => device.set_port_active(*port, false),
            2 => device.set_port_cut(*port, true),
            3 => {
                let cause = failure(&mut rng);
                one_link(device, &mut rng, |link| device.fail_link(link, cause));
            }
            4 | 5 => {
                let loss = loss(&mut rng);
                one_link(device, &mut rng, |link| device.set_loss(link, Some(loss)));
            }
            6 => one_link(device, &mut rng, |link| device.set_cut(link, true)),
            7 => network.cut(),
            8 => network.pause(),
            9 => device.hold_completions(true),
            10 => {
                let errors = [DeviceError::NoMemory, DeviceError::Exhausted];
                let errors = (0..rng.below(6)).map(|at| errors[at % 2].clone());
                device.refuse_registrations(errors);
            }
            11 => device.set_max_links(device.links().len()),
            12 if rng.chance(300) => device.remove(),
            13 => device.set_lag(true),
            _ => each_link(device, |link| device.fail_link(link, LinkFailure::Flushed)),
        }
        if rng.chance(400) {
            hosts
                .sleep(Duration::from_micros(rng.below(4_000_000) as u64))
                .await;
            repair(hosts, &network);
        }
    }
    hosts
        .sleep(Duration::from_micros(rng.below(6_000_000) as u64))
        .await;
    repair(hosts, &network);
}

fn repair(hosts: &Hosts, network: &RdmaNetwork) {
    network.repair();
    network.resume();
    for (device, port) in hosts.hosts.iter().flat_map(|host| &host.ports) {
        device.hold_completions(false);
        device.set_lag(false);
        device.set_port_cut(*port, false);
        device.set_max_links(1024);
        each_link(device, |link| {
            device.set_loss(link, None);
            device.set_cut(link, false);
        });
        device.set_port_active(*port, true);
    }
}

/// The queue pairs at a port.
fn links_of(device: &MemoryRdma, port: u8) -> Vec<Qpn> {
    let addresses = device.addresses();
    let is_there = |gid| addresses.iter().any(|at| at.gid == gid && at.port == port);
    let links = device.links().into_iter().map(|link| link.local);
    let there = links.filter(|local| is_there(local.gid));
    there.map(|local| local.qpn).collect()
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
        LinkFailure::QueuePair("made up"),
    ][rng.below(5)]
}
