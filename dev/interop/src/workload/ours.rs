//! The userspace stack, made blocking for the scripts.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use smc::Builder;
use smc::info::{GroupType, RdmaGroupInfo};
use smc::{Endpoint, Mode, Stream};
use smc_core::device::Device;
use smc_core::negotiate::Negotiation;
use smc_negotiate_syn::SynOption;
use smc_transport_rdma::RdmaDevice;
use smc_wire::types::{Eid, Features};
use smol::block_on;

use super::Carrier;
use super::connection::{Connection, Listener};
use super::run::emit;
use crate::protocol::{Event, Job, OurFeatures, SocketMode};

/// An endpoint of the userspace stack.
pub(crate) struct Ours {
    endpoint: Endpoint,
}

impl Ours {
    pub(crate) fn new(job: &Job) -> Result<Self> {
        let endpoint = endpoint(Builder::smol(), job)?;
        let watched = endpoint.clone();
        thread::spawn(move || watch(&watched));
        Ok(Self { endpoint })
    }

    pub(crate) fn connect(&self, to: SocketAddr) -> Result<Box<dyn Connection>> {
        let stream = block_on(self.endpoint.connect(to));
        let stream = stream.with_context(|| format!("connect to {to}"))?;
        Ok(Box::new(OurStream(Arc::new(stream))))
    }

    pub(crate) fn listen(&self, at: SocketAddr) -> Result<Box<dyn Listener>> {
        let listener = block_on(self.endpoint.bind(at));
        Ok(Box::new(
            listener.with_context(|| format!("listen at {at}"))?,
        ))
    }

    /// Ends in order and gives what is left though nothing should be.
    pub(crate) fn end(&self) -> Vec<String> {
        block_on(self.endpoint.close());
        let connections = self.endpoint.connections();
        let groups = self.endpoint.rdma_groups();
        let connections = connections.iter().filter(|conn| conn.smc.is_some());
        let connections = connections.map(|conn| format!("{conn:?}"));
        let groups = groups.iter().map(describe);
        connections
            .chain(groups)
            .map(|left| format!("left over: {left}"))
            .collect()
    }
}

/// An endpoint as the job wants it.
pub(super) fn endpoint(builder: Builder, job: &Job) -> Result<Endpoint> {
    let mut builder = builder
        .negotiation(negotiation()?)
        .max_links(job.max_links)
        .test_link(Some(Duration::from_secs(job.test_link)))
        .driver_thread(job.has_driver_thread)
        .rdma_ipv6(job.offers_ipv6);
    builder = builder
        .vendor_features(features(job.features))
        .fast_open(job.features >= OurFeatures::FastOpen);
    if let Some(limit) = job.memory {
        builder = builder.memory_limit(limit);
    }
    for eid in &job.ueids {
        builder = builder.ueid(Eid::ueid(eid).context("user EID")?);
    }
    for device in devices(job)? {
        builder = builder.device(device);
    }
    Ok(builder.build()?)
}

/// What the vendor options of an endpoint state, but for fast open.
pub(crate) fn features(ours: OurFeatures) -> Features {
    let each = [
        (
            OurFeatures::SingleLink,
            Features::SINGLE_LINK
                | Features::AUTHENTICATION
                | Features::RDMA_IPV6
                | Features::RECEIVE_CREDITS,
        ),
        (OurFeatures::EarlyConfirm, Features::EARLY_CONFIRM),
        (OurFeatures::EarlyData, Features::EARLY_DATA),
    ];
    let included = each.into_iter().filter(|(from, _)| *from <= ours);
    included.map(|(_, features)| features).collect()
}

/// What carries a stream of this mode.
pub(super) fn carrier(mode: &Mode) -> io::Result<Carrier> {
    let (mode, reason) = match mode {
        Mode::SmcR { .. } => (SocketMode::SmcR, None),
        Mode::SmcD { .. } => (SocketMode::SmcD, None),
        Mode::Tcp { reason, .. } => (SocketMode::Tcp, Some(reason)),
        other => return Err(io::Error::other(format!("unknown mode: {other}"))),
    };
    Ok(Carrier {
        mode,
        reason: reason.map_or(0, |reason| reason.local.0),
        peer_reason: reason
            .and_then(|reason| reason.peer)
            .map_or(0, |code| code.0),
    })
}

/// Tells the host whenever the link groups have changed, until the process ends.
fn watch(endpoint: &Endpoint) {
    let mut printed = String::new();
    loop {
        let groups = endpoint.rdma_groups();
        let texts: Vec<_> = groups.iter().map(describe).collect();
        let text = texts.join(", ");
        if text != printed {
            let used = groups.iter().find(|group| group.connections > 0);
            emit(&Event::Groups {
                kind: used.map_or(0, |group| number_of(group.kind)),
                text: text.clone(),
            });
            printed = text;
        }
        thread::sleep(LOOK_AGAIN);
    }
}

/// The number that the kernel has for it.
fn number_of(kind: GroupType) -> u8 {
    match kind {
        GroupType::Single => 1,
        GroupType::Symmetric => 2,
        GroupType::AsymmetricPeer => 3,
        GroupType::AsymmetricLocal => 4,
        _ => 0,
    }
}

/// A link group without what changes with every connection.
fn describe(group: &RdmaGroupInfo) -> String {
    let links: Vec<_> = group
        .links
        .iter()
        .map(|link| format!("{} {:?}", link.number, link.state))
        .collect();
    let is_used = if group.connections > 0 {
        "used"
    } else {
        "idle"
    };
    let (role, kind) = (group.role, group.kind);
    format!(
        "{role:?} group, {kind}, {is_used}, links: {}",
        links.join(", ")
    )
}

/// What distinguishes SMC peers from others: the option that the kernel's SMC sends, too.
fn negotiation() -> Result<Arc<dyn Negotiation>> {
    Ok(Arc::new(SynOption::open()?))
}

/// Their physical networks are in the kernel's table.
fn devices(job: &Job) -> Result<Vec<Arc<dyn Device>>> {
    job.devices
        .iter()
        .map(|name| -> Result<Arc<dyn Device>> {
            let mut builder = RdmaDevice::builder(name);
            if let Some(receives) = job.receives {
                builder = builder.receives(receives);
            }
            let device = builder.open();
            Ok(Arc::new(device.with_context(|| name.clone())?))
        })
        .collect()
}

/// A stream with several handles.
struct OurStream(Arc<Stream>);

impl Listener for smc::Listener {
    fn accept(&self) -> io::Result<Box<dyn Connection>> {
        let (stream, _) = block_on(self.accept())?;
        Ok(Box::new(OurStream(Arc::new(stream))))
    }
}

impl Connection for OurStream {
    fn block_runtime(&self, time: Duration) {
        // The one thread that runs the tasks of the endpoint.
        block_on(smol::spawn(async move { thread::sleep(time) }));
    }

    fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.0.try_read(buf) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    block_on(self.0.readable())?;
                }
                other => return other,
            }
        }
    }

    fn write(&self, buf: &[u8]) -> io::Result<usize> {
        loop {
            match self.0.try_write(buf) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    block_on(self.0.writable())?;
                }
                other => return other,
            }
        }
    }

    fn peek(&self) -> io::Result<()> {
        block_on(self.0.peek(&mut [0])).map(drop)
    }

    /// The stack never sends urgent data; the byte goes with the others.
    fn urgent(&self, byte: u8) -> io::Result<()> {
        self.write(&[byte]).map(drop)
    }

    fn finish(&self) -> io::Result<()> {
        self.0.shutdown_how(std::net::Shutdown::Write)
    }

    fn share(&self) -> io::Result<Box<dyn Connection>> {
        Ok(Box::new(Self(Arc::clone(&self.0))))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.0.peer_addr()
    }

    fn carrier(&self) -> io::Result<Carrier> {
        carrier(self.0.mode())
    }

    fn is_broken(&self, read: &io::Result<usize>) -> bool {
        read.as_ref().is_err_and(|error| {
            matches!(
                error.kind(),
                io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionAborted
            )
        })
    }
}

const LOOK_AGAIN: Duration = Duration::from_millis(50);
