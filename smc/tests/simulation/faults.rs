//! What goes wrong at devices and TCP connections, and that it is repaired in the end.

use std::future::poll_fn;
use std::io::IoSlice;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use smc_core::device::{DeviceError, LinkFailure, Rdma};
use smc_core::runtime::{Socket, SocketOptions};
use smc_core::wire::clc::Message;
use smc_core::wire::types::Qpn;
use smc_testkit::memory_rdma::{Loss, Lost, MemoryRdma};
use smc_testkit::middleware::Faults;
use smc_testkit::runtime;

use super::connections::Violation;
use super::hosts::{Host, PORT, address};
use super::run::Run;
use super::schedule::{Action, End, LinkFault, PortFault, SynDelivery};

impl Run {
    pub(crate) fn fault(self: &Arc<Self>, action: &Action) {
        let network = self.networks.runtime();
        match *action {
            Action::Terminate { host } => {
                if let Some(host) = self.host(host) {
                    host.endpoint.shutdown();
                }
            }
            Action::CutTcp { host } => {
                network.cut_host(address(host.into()));
            }
            Action::Truncate { host, end, len } => {
                let to = SocketAddr::new(address(host.into()), PORT);
                network.truncate_next(to, end == End::Client, len.into());
            }
            Action::Replay {
                from,
                to,
                copies,
                len,
                time,
            } => self.work(async move |run| {
                let ends = [address(from.into()), address(to.into())];
                let to = SocketAddr::new(ends[1], PORT);
                let copy = run.networks.runtime().copy_next(to);
                run.sleep(time).await;
                let sent = copy.lock().expect("is not poisoned").clone();
                // Of what the client has sent, the first message.
                let message_len = sent.get(5..7).map_or(0, |field| {
                    usize::from(u16::from_be_bytes([field[0], field[1]]))
                });
                let message = sent.get(..message_len).unwrap_or_default();
                if names_buffer_without_data(message) {
                    return;
                }
                let len = message.len().min(len.into());
                for _ in 0..copies {
                    run.replay(to, &sent[..len]).await;
                }
            }),
            Action::Syn {
                host,
                delivery,
                time,
            } => {
                let delivery = match delivery {
                    SynDelivery::WithoutCookie => runtime::SynDelivery::WithoutCookie,
                    SynDelivery::AfterLoss => runtime::SynDelivery::AfterLoss,
                    SynDelivery::Twice => {
                        runtime::SynDelivery::Twice(Duration::from_micros(time.into()))
                    }
                };
                let to = SocketAddr::new(address(host.into()), PORT);
                let _client = network.deliver_next_syn(to, delivery);
            }
            Action::StripOption { host, syn } => {
                let to = SocketAddr::new(address(host.into()), PORT);
                let client = network.deliver_next_syn(to, runtime::SynDelivery::Once);
                self.networks.options.lose(client, syn);
            }
            Action::NoMemory {
                host,
                device,
                after,
                count,
            } => {
                if let Some(host) = self.host(host) {
                    if let Some(fault) = host.fault(device) {
                        let errors = [DeviceError::NoMemory, DeviceError::Exhausted];
                        let error = errors[usize::from(after) % 2].clone();
                        fault.fail_allocations(after.into(), count.into(), error);
                    }
                }
            }
            Action::Slow {
                host,
                device,
                delayed,
                spurious,
                busy,
            } => {
                if let Some(host) = self.host(host) {
                    let faults = Faults::default()
                        .with_delayed(delayed)
                        .with_spurious(spurious)
                        .with_busy(busy.min(900));
                    if let Some(fault) = host.fault(device) {
                        fault.set(faults);
                    }
                }
            }
            Action::Remove { host, device } => {
                if let Some(host) = self.host(host) {
                    host.remove_device(device);
                }
            }
            Action::Port { host, port, fault } => self.port_fault(host, port, fault),
            Action::Link {
                host,
                link,
                fault,
                after,
            } => {
                if let Some(host) = self.host(host) {
                    let links = links_of(&host);
                    if let Some((device, qpn)) = links.get(usize::from(link)) {
                        break_link(device, *qpn, fault, after);
                    }
                }
            }
            Action::Network { stops } => match stops {
                true => self.networks.rdma().network().pause(),
                false => self.networks.rdma().network().cut(),
            },
            Action::Repair => self.repair(),
            Action::Failover {
                host,
                port,
                fault,
                after,
                time,
            } => self.work(async move |run| {
                if let Some(host) = run.host(host) {
                    let done = run.fail_over(&host, port, fault, after, time).await;
                    done.unwrap_or_else(|violation| run.violate(violation));
                }
            }),
            _ => {}
        }
    }

    /// Makes everything work again that was not removed or killed.
    pub(crate) fn repair(&self) {
        let network = self.networks.rdma().network();
        network.repair();
        network.resume();
        for host in self.running() {
            host.rdma.iter().for_each(|(device, _)| repair(device));
            for (device, port) in &host.ports {
                device.set_port_cut(*port, false);
                device.set_port_active(*port, true);
            }
            (0..)
                .map_while(|number| host.fault(number))
                .for_each(|fault| {
                    fault.set(Faults::default());
                    fault.fail_allocations(0, 0, DeviceError::NoMemory);
                });
        }
    }

    fn port_fault(&self, host: u8, port: u8, fault: PortFault) {
        let Some(host) = self.host(host) else {
            return;
        };
        let Some((device, port)) = host.ports.get(usize::from(port)) else {
            return;
        };
        match fault {
            PortFault::Down => device.set_port_active(*port, false),
            PortFault::Cut => device.set_port_cut(*port, true),
            PortFault::HoldsCompletions => device.hold_completions(true),
            PortFault::Lags => device.set_lag(true),
            PortFault::NoLinks => device.set_max_links(device.links().len()),
        }
    }

    /// A TCP client that sends this, and waits for what comes of it.
    async fn replay(&self, to: SocketAddr, mut rest: &[u8]) {
        let options = SocketOptions::default();
        let connected = self.runtime.connect(to, &options, &mut |_| Ok(())).await;
        let Ok(socket) = connected else {
            return;
        };
        while !rest.is_empty() {
            match write(&*socket, rest).await {
                Ok(count) => rest = &rest[count..],
                Err(_) => return,
            }
        }
        self.sleep(REPLAY_TIME).await;
    }

    /// Takes one of two links of the groups of a host for a time. All of them have two again at the
    /// end. One at a time.
    async fn fail_over(
        &self,
        host: &Host,
        port: u8,
        fault: LinkFault,
        after: u8,
        time: u32,
    ) -> Result<(), Violation> {
        let is_free = || !self.is_failing_over.swap(true, Ordering::Relaxed);
        self.until("end of a failover", LINKS_TIME * 100, is_free)
            .await?;
        let have_two_links = || self.running().iter().all(|host| host.has_two_links());
        self.until("second link", LINKS_TIME, have_two_links)
            .await?;
        let Some((device, number)) = host.ports.get(usize::from(port) % host.ports.len().max(1))
        else {
            self.is_failing_over.store(false, Ordering::Relaxed);
            return Ok(());
        };
        let of_port = links_at(device, *number);
        // The only port of a host has both links of a group.
        let is_only_port = host.ports.len() == 1;
        let hit = match is_only_port {
            true => of_port.get(..1).unwrap_or_default(),
            false => &of_port,
        };
        match fault {
            LinkFault::PortDown if !is_only_port => {
                device.set_port_active(*number, false);
                self.sleep(time).await;
                device.set_port_active(*number, true);
            }
            LinkFault::PortCut if !is_only_port => {
                device.set_port_cut(*number, true);
                self.sleep(time).await;
                device.set_port_cut(*number, false);
            }
            LinkFault::PeersLag => {
                let running = self.running();
                let others = running.iter().filter(|other| other.index != host.index);
                let peers: Vec<_> = others.flat_map(|other| &other.rdma).collect();
                peers.iter().for_each(|(peer, _)| peer.set_lag(true));
                self.sleep(time / 1000).await;
                // A link group that was made meanwhile may have one link only.
                if have_two_links() {
                    for qpn in hit {
                        device.fail_link(*qpn, LinkFailure::Flushed);
                    }
                }
                self.sleep(time / 100).await;
                peers.iter().for_each(|(peer, _)| peer.set_lag(false));
            }
            fault => {
                for qpn in hit {
                    break_link(device, *qpn, fault, after);
                }
                self.sleep(time).await;
                repair(device);
            }
        }
        // What was lost before it was repaired may show later. Then a port that comes up makes
        // every group of its host look for a second link.
        self.runtime.timer(self.runtime.now() + LOSS_TIME).await;
        for host in self.running() {
            if host.has_two_links() {
                continue;
            }
            let Some((device, port)) = host.spare_port() else {
                continue;
            };
            device.set_port_active(port, false);
            self.runtime.timer(self.runtime.now() + LOSS_TIME / 2).await;
            device.set_port_active(port, true);
        }
        self.until("second link again", LINKS_TIME, have_two_links)
            .await?;
        self.is_failing_over.store(false, Ordering::Relaxed);
        Ok(())
    }
}

/// Whether a PROPOSAL has an early CONFIRM of SMC-D without early data. A server may take it again
/// (docs/spec/extensions.md#early-confirm).
fn names_buffer_without_data(proposal: &[u8]) -> bool {
    Message::parse_extended(proposal)
        .is_ok_and(|(_, extensions)| extensions.direct.is_some() && extensions.early_data.is_none())
}

async fn write(socket: &dyn Socket, bytes: &[u8]) -> std::io::Result<usize> {
    poll_fn(|cx| socket.poll_write(cx, &[IoSlice::new(bytes)])).await
}

fn break_link(device: &MemoryRdma, qpn: Qpn, fault: LinkFault, after: u8) {
    let lose = |what| device.set_loss(qpn, Some(Loss::of(what).after(after.into())));
    match fault {
        LinkFault::LosesAll => lose(Lost::Everything),
        LinkFault::LosesMessages => lose(Lost::Message),
        LinkFault::LosesAnswers => lose(Lost::Answer),
        LinkFault::Cut => device.set_cut(qpn, true),
        LinkFault::RetryExceeded => device.fail_link(qpn, LinkFailure::RetryExceeded),
        LinkFault::Flushed => device.fail_link(qpn, LinkFailure::Flushed),
        _ => device.fail_link(qpn, LinkFailure::QueuePair("by the schedule")),
    }
}

fn repair(device: &MemoryRdma) {
    device.hold_completions(false);
    device.set_lag(false);
    device.set_max_links(1024);
    for link in device.links() {
        device.set_loss(link.local.qpn, None);
        device.set_cut(link.local.qpn, false);
    }
}

fn links_of(host: &Host) -> Vec<(Arc<MemoryRdma>, Qpn)> {
    let devices = host.rdma.iter().map(|(device, _)| device);
    let links = devices.flat_map(|device| {
        let links = device.links().into_iter();
        links.map(|link| (Arc::clone(device), link.local.qpn))
    });
    links.collect()
}

/// The queue pairs at a port.
fn links_at(device: &MemoryRdma, port: u8) -> Vec<Qpn> {
    let addresses = device.addresses();
    let is_there = |gid| addresses.iter().any(|at| at.gid == gid && at.port == port);
    let links = device.links().into_iter().map(|link| link.local);
    let there = links.filter(|local| is_there(local.gid));
    there.map(|local| local.qpn).collect()
}

/// For which a PROPOSAL that was sent again waits: longer than the server does.
const REPLAY_TIME: u32 = 8_000_000;

/// After which all lost posts have been noticed.
const LOSS_TIME: Duration = Duration::from_secs(40);

/// For which a group may be without its second link.
const LINKS_TIME: Duration = Duration::from_secs(30);
