//! The two hosts, and what has to hold for them.

use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use smc::{Endpoint, ListenOptions};
use smc_core::proto::links::LinkInfo;
use smc_core::runtime::Runtime;
use smc_testkit::memory_rdma::MemoryRdma;

use crate::are_kept;
use smc_core::wire::types::Features;

use super::accepted_streams::{AcceptedStreams, Event};
use super::plan::{Hardship, Plan, Ports};
use smc_testkit::world::RdmaWorld;

/// Two hosts, each of which is client and server.
pub(super) struct Hosts {
    pub(super) runtime: Arc<dyn Runtime>,
    pub(super) hosts: [Host; 2],
    pub(super) is_strict: bool,
    keeps_rkeys: bool,
    pub(super) is_survivable: bool,
    start: Instant,
    tasks: AtomicUsize,
    done: Event,
}

pub(super) struct Host {
    pub(super) endpoint: Endpoint,
    pub(super) devices: Vec<Arc<MemoryRdma>>,
    /// All ports of all devices.
    pub(super) ports: Vec<(Arc<MemoryRdma>, u8)>,
    pub(super) accepted: Arc<AcceptedStreams>,
}

impl Hosts {
    pub(super) fn new(world: &RdmaWorld, plan: &Plan) -> Arc<Self> {
        let host = |side: u8| {
            let name = ["a", "b"][usize::from(side)];
            let lasts = [1 + side, 3 + side];
            let device = |index: usize, lasts: &[u8]| {
                world.device_with_ports(&format!("{name}{index}"), lasts)
            };
            let devices = match plan.ports[usize::from(side)] {
                Ports::One => vec![device(0, &lasts[..1])],
                Ports::TwoDevices => vec![device(0, &lasts[..1]), device(1, &lasts[1..])],
                Ports::OneDevice => vec![device(0, &lasts)],
            };
            let all: Vec<_> = devices.iter().collect();
            let endpoint = world.endpoint_with(&all, |mut builder| {
                builder = builder
                    .recv_buffer(plan.recv_buffer)
                    .send_buffer(plan.send_buffer)
                    .rkeys_in_flight(plan.rkeys_in_flight)
                    .close_timeout(CLOSE_TIMEOUT)
                    // That looks at a clock of its own.
                    .polling(Duration::ZERO);
                if !plan.vendor_features[usize::from(side)] {
                    builder = builder.vendor_features(Features::empty());
                }
                if let Some(max) = plan.max_links {
                    builder = builder.max_links(max);
                }
                if let Some(max) = plan.max_conns {
                    builder = builder.max_connections_per_group(max);
                }
                builder
            });
            Host {
                endpoint,
                ports: match plan.ports[usize::from(side)] {
                    Ports::One => vec![(Arc::clone(&devices[0]), 1)],
                    _ => {
                        let last = devices.last().expect("has a device");
                        let port = 3 - u8::try_from(devices.len()).expect("one or two");
                        vec![(Arc::clone(&devices[0]), 1), (Arc::clone(last), port)]
                    }
                },
                devices,
                accepted: Arc::default(),
            }
        };
        let runtime = world.runtime().handle();
        Arc::new(Self {
            start: runtime.now(),
            runtime,
            hosts: [host(0), host(1)],
            keeps_rkeys: plan.vendor_features == [true; 2],
            is_strict: plan.hardship != Hardship::Anything,
            is_survivable: plan.hardship == Hardship::Survivable,
            tasks: AtomicUsize::new(0),
            done: Event::default(),
        })
    }

    pub(super) async fn sleep(&self, time: Duration) {
        self.runtime.timer(self.runtime.now() + time).await;
    }

    /// Runs a task, for which [`Hosts::join`] waits.
    pub(super) fn spawn<F>(self: &Arc<Self>, task: impl FnOnce(Arc<Self>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.tasks.fetch_add(1, Ordering::Relaxed);
        let (task, hosts) = (task(Arc::clone(self)), Arc::clone(self));
        self.runtime.spawn(Box::pin(async move {
            task.await;
            hosts.tasks.fetch_sub(1, Ordering::Relaxed);
            hosts.done.ring();
        }));
    }

    pub(super) async fn join(&self) {
        self.done
            .wait(|| self.tasks.load(Ordering::Relaxed) == 0)
            .await;
    }

    pub(super) async fn listen(&self) {
        for (side, host) in self.hosts.iter().enumerate() {
            let options = ListenOptions::new().max_early_data(200);
            let listener = host.endpoint.bind_with(address(side), &options).await;
            let listener = listener.expect("a free port");
            let accepted = Arc::clone(&host.accepted);
            self.runtime.spawn(Box::pin(async move {
                while let Ok((stream, client)) = listener.accept().await {
                    accepted.put(client, stream);
                }
            }));
        }
    }

    /// Link groups with two links in both directions.
    pub(super) async fn warm_up(&self) {
        for side in 0..2 {
            let client = &self.hosts[side].endpoint;
            let stream = client.connect(address(1 - side)).await.expect("connects");
            let local = stream.local_addr().expect("has an address");
            drop(stream);
            drop(self.hosts[1 - side].accepted.take(local).await);
        }
        self.until("second links", Duration::from_secs(5), || {
            self.has_two_links()
        })
        .await;
    }

    pub(super) fn has_two_links(&self) -> bool {
        self.hosts.iter().all(|host| {
            let groups = host.endpoint.rdma_groups();
            groups.iter().all(|group| {
                let active = group
                    .links
                    .iter()
                    .filter(|link| link.state.name() == "ACTIVE");
                active.count() == 2 && group.links.len() == 2
            })
        })
    }

    /// After everything was closed: no connections, and both sides know of the same buffers.
    pub(super) async fn check_rest(&self) {
        self.until("the end of connections", CLOSE_TIMEOUT * 3, || {
            self.hosts.iter().all(|host| {
                host.accepted.clear();
                host.endpoint.connections().is_empty()
            })
        })
        .await;
        self.until("the end of set-ups", Duration::from_secs(60), || {
            self.hosts.iter().all(|host| {
                let groups = host.endpoint.rdma_groups();
                let members = host.endpoint.link_groups();
                groups.iter().all(|group| group.connections == 0)
                    && members.iter().all(|group| group.connections == 0)
            })
        })
        .await;
        self.until("the end of keys", Duration::from_secs(120), || {
            let groups = || [0, 1].map(|side: usize| self.hosts[side].endpoint.rdma_groups());
            !self.is_strict || are_kept(&groups().concat(), self.keeps_rkeys)
        })
        .await;
        if self.is_strict {
            let of = |side: usize| self.hosts[side].endpoint.rdma_groups().len();
            assert_eq!(
                of(0),
                of(1),
                "both sides know the same groups: {}",
                self.describe()
            );
        }
    }

    /// Nothing is left.
    pub(super) async fn close(&self) {
        self.hosts[0].endpoint.close().await;
        if self.is_strict {
            // The other side has been notified.
            self.until("the peer's end of groups", Duration::from_secs(10), || {
                self.hosts[1].endpoint.rdma_groups().is_empty()
            })
            .await;
        }
        self.hosts[1].endpoint.close().await;
        self.until("the end of groups", Duration::from_secs(5), || {
            self.hosts.iter().all(|host| {
                host.endpoint.rdma_groups().is_empty() && host.endpoint.link_groups().is_empty()
            })
        })
        .await;
        self.until("the end of links", Duration::from_secs(5), || {
            let devices = || self.hosts.iter().flat_map(|host| &host.devices);
            devices().all(|device| device.links().is_empty() && device.registrations() == 0)
        })
        .await;
    }

    /// Waits until something holds.
    pub(super) async fn until(&self, what: &str, time: Duration, is_so: impl Fn() -> bool) {
        let end = self.runtime.now() + time;
        let mut pause = Duration::from_micros(100);
        while !is_so() {
            assert!(self.runtime.now() < end, "no {what}: {}", self.describe());
            self.sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(1));
        }
    }

    pub(super) fn describe(&self) -> String {
        let mut text = format!("after {:?}\n", self.runtime.now() - self.start);
        for (side, host) in self.hosts.iter().enumerate() {
            text += &format!("host {side}\n");
            for group in host.endpoint.link_groups() {
                let number = group.connections;
                text += &format!("  {} {}: {number} members\n", group.id, group.state.name());
            }
            for group in host.endpoint.rdma_groups() {
                let links = group.links.iter().map(|link| {
                    let LinkInfo {
                        number,
                        state,
                        device,
                        ..
                    } = link;
                    format!("{} {} on {device}", number.0, state.name())
                });
                let links: Vec<_> = links.collect();
                let (id, role, kind) = (group.id, group.role, group.kind);
                text += &format!(
                    "  {id} {role:?} {kind} {links:?}: {} connections, {} rtokens, {} retiring, {} kept\n",
                    group.connections, group.rtokens, group.retiring, group.kept
                );
            }
            for connection in host.endpoint.connections() {
                let smc = connection.smc.as_ref();
                let state = smc.map_or("TCP", |smc| smc.state.name());
                let local = connection.local;
                text += &format!("  {state} {local:?} to {}\n", connection.peer);
            }
            for device in &host.devices {
                let links = device.links();
                let links = links.iter().map(|link| (link.phase, link.outstanding));
                let links: Vec<_> = links.collect();
                text += &format!("  {} registrations, {links:?}\n", device.registrations());
            }
        }
        text
    }
}

/// Where a host listens.
pub(super) fn address(side: usize) -> SocketAddr {
    let last = [1, 2][side];
    (Ipv4Addr::new(10, 0, 0, last), 4000).into()
}

pub(super) const CLOSE_TIMEOUT: Duration = Duration::from_secs(60);
