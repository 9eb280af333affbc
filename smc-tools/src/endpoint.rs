//! The endpoint of commands that carry data of other programs.

use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use smc::device::Device;
use smc::wire::types::Eid;
use smc::{Endpoint, Policy, Stream, Target};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{sleep, timeout};

use crate::processes::refused_directory;

/// Arguments of the endpoint.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct EndpointArgs {
    /// Whether streams are SMC
    #[arg(long, value_enum, default_value_t = PolicyName::Prefer)]
    policy: PolicyName,

    /// An RDMA device, for SMC-R between hosts: `smc devices` lists them
    #[arg(long, value_name = "DEVICE")]
    rdma: Option<String>,

    /// With --rdma: offer SMC-R over IPv6 as well, which servers of kernels decline
    #[arg(long, requires = "rdma")]
    rdma_ipv6: bool,

    /// A UEID; repeated for up to four. With --rdma it is SMC-TOOLS unless set: both ends need one
    /// EID in common
    #[arg(long, value_name = "EID")]
    ueid: Vec<Eid>,

    /// Without the system EID, which endpoints have in common unless they switch it off
    #[arg(long)]
    no_seid: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PolicyName {
    /// SMC where possible, else TCP
    Prefer,
    /// SMC or an error; clients without it are closed
    Require,
    /// TCP
    Never,
}

impl EndpointArgs {
    /// Whether an RDMA device is asked for.
    pub(crate) const fn has_rdma_device(&self) -> bool {
        self.rdma.is_some()
    }

    /// Builds the endpoint, on the runtime of the calling task.
    pub(crate) fn build(&self) -> Result<Endpoint> {
        let mut builder = smc::tokio().context("cannot open the loop device")?;
        builder = builder.policy(match self.policy {
            PolicyName::Prefer => Policy::Prefer,
            PolicyName::Require => Policy::Require,
            PolicyName::Never => Policy::Never,
        });
        builder = builder.seid(!self.no_seid).rdma_ipv6(self.rdma_ipv6);
        builder = self
            .ueid
            .iter()
            .fold(builder, |builder, eid| builder.ueid(*eid));
        if let Some(name) = &self.rdma {
            builder = builder.device(rdma_device(Some(name))?);
            if self.ueid.is_empty() {
                builder = builder.ueid(DEFAULT_UEID.parse().context("the default UEID")?);
            }
            #[cfg(feature = "syn-option")]
            {
                use smc::Local;
                use smc::negotiate::{Chain, Negotiation};

                let option = smc_negotiate_syn::SynOption::open()
                    .context("other hosts cannot be found to support SMC: see `smc setup`")?;
                let links: [Arc<dyn Negotiation>; 2] = [Arc::new(Local::new()), Arc::new(option)];
                builder = builder.negotiation(Arc::new(Chain::new(links)));
            }
        }
        builder.build().context("cannot make an endpoint")
    }
}

#[cfg(feature = "rdma")]
pub(crate) fn rdma_device(name: Option<&str>) -> Result<Arc<dyn Device>> {
    let name = match name {
        Some(name) => name.to_owned(),
        None => {
            let mut devices = smc_transport_rdma::probe()?.into_iter();
            devices
                .find(|device| device.usable.is_ok())
                .context("no usable RDMA device; `smc devices` reports why")?
                .name
        }
    };
    Ok(Arc::new(smc_transport_rdma::RdmaDevice::open(&name)?))
}

#[cfg(not(feature = "rdma"))]
pub(crate) fn rdma_device(_name: Option<&str>) -> Result<Arc<dyn Device>> {
    anyhow::bail!(
        "built without SMC-R: build smc-tools with `--features rdma`, which takes cmake and libclang"
    )
}

/// Closes an endpoint whose streams have ended, so that peers have their last data and nothing
/// stays in the runtime directory.
pub(crate) async fn close(endpoint: Endpoint) {
    let _late = timeout(CLOSING, endpoint.close()).await;
    let devices: Vec<_> = endpoint.devices().map(Arc::downgrade).collect();
    drop(endpoint);
    // Tasks of the runtime have the devices, and end on other threads.
    for _ in 0..CLOSING.as_millis() {
        if devices.iter().all(|device| device.strong_count() == 0) {
            break;
        }
        sleep(Duration::from_millis(1)).await;
    }
}

/// A target as it is reported.
pub(crate) fn name(target: &Target) -> String {
    match target {
        Target::Addr(addr) => addr.to_string(),
        Target::Name(host, port) => format!("{host}:{port}"),
        _ => format!("{target:?}"),
    }
}

/// A listener for streams that reports the clients that its policy refuses.
pub(crate) struct Listener {
    listener: smc::Listener,
    command: &'static str,
    refused: u64,
}

impl Listener {
    /// Reports why clients cannot find that it supports SMC, if so.
    pub(crate) fn new(listener: smc::Listener, command: &'static str) -> Self {
        let why = listener.unpublished().map(ToString::to_string);
        if let Some(why) = why.or_else(refused_directory) {
            let line = format_args!("clients of this host will connect by TCP: {why}");
            report(command, line);
        }
        Self {
            listener,
            command,
            refused: 0,
        }
    }

    /// The next stream, and the client's address, which a stream that was reset has no more. Cancel
    /// safe.
    pub(crate) async fn accept(&mut self) -> io::Result<(Stream, SocketAddr)> {
        loop {
            match timeout(REFUSED_INTERVAL, self.listener.accept()).await {
                Ok(accepted) => return accepted,
                Err(_elapsed) => self.report_refused(),
            }
        }
    }

    fn report_refused(&mut self) {
        let refused = self.listener.refused();
        if let (true, Some((peer, why))) = (refused.count > self.refused, refused.last) {
            let new = refused.count - self.refused;
            report(
                self.command,
                format_args!(
                    "{new} clients refused because --policy requires SMC, the last one {peer}: {why}"
                ),
            );
        }
        self.refused = refused.count;
    }
}

/// The signals that ask a command to end.
pub(crate) struct Ending {
    interrupt: Signal,
    terminate: Signal,
}

impl Ending {
    /// From now on these signals do not end the process by themselves.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// Waits for the next one. Cancel safe.
    pub(crate) async fn wait(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// A line on standard error. That it is closed is no reason to end.
pub(crate) fn report(command: &str, line: impl std::fmt::Display) {
    let _closed = writeln!(io::stderr(), "{command}: {line}");
}

/// The UEID with an RDMA device, unless there is another.
const DEFAULT_UEID: &str = "SMC-TOOLS";
/// How long an endpoint without streams may take to close.
const CLOSING: Duration = Duration::from_secs(2);
/// How often a listener looks for clients that were refused.
const REFUSED_INTERVAL: Duration = Duration::from_secs(1);
