//! The device that carries the SMC streams, and what its endpoint needs besides.

use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::FileTypeExt as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use smc::Builder;
use smc::Endpoint;
use smc::runtime::smol::SmolRuntime;
use smc::runtime::tokio::TokioRuntime;
use smc_negotiate_local::Local;
use smc_transport_ism::{IsmDevice, Place};
use smc_transport_loop::LoopDevice;

use super::{Args, Carrier, Runtime};

/// An endpoint as the arguments want it.
pub(super) struct Carried {
    pub(super) endpoint: Endpoint,
    /// Where its listeners have to be.
    pub(super) host: IpAddr,
    /// The device is removed when it has no user any more.
    is_gone: Box<dyn Fn() -> bool + Send>,
}

impl Carried {
    pub(super) fn open(args: &Args) -> Result<Self> {
        let builder = match args.runtime {
            Runtime::Smol => Builder::new().runtime(Arc::new(SmolRuntime::new())),
            Runtime::Tokio => Builder::new().runtime(Arc::new(TokioRuntime::current()?)),
        };
        let builder = builder.negotiation(Arc::new(Local::new()));
        let builder = match args.buffer {
            Some(len) => builder
                .recv_buffer(usize::try_from(len)?)
                .send_buffer(usize::try_from(len)?),
            None => builder,
        };
        match args.transport {
            Carrier::Loop => open_loop(args, builder),
            Carrier::Ism => open_ism(args, builder),
            Carrier::Rdma => open_rdma(args, builder),
        }
    }

    /// Waits until the last words of connections are sent and the device has taken its name back,
    /// which happens in tasks that end with the process.
    pub(super) async fn part(self) {
        self.endpoint.close().await;
        drop(self.endpoint);
        let until = Instant::now() + TIMEOUT;
        while !(self.is_gone)() && Instant::now() < until {
            std::thread::sleep(Duration::from_micros(100));
            futures_lite::future::yield_now().await;
        }
    }
}

fn open_loop(args: &Args, builder: Builder) -> Result<Carried> {
    let device = LoopDevice::builder().nocopy(!args.copy).build();
    let device = Arc::new(device.context("cannot open the loop device")?);
    let going = Arc::downgrade(&device);
    Ok(Carried {
        endpoint: builder.device(device).build()?,
        host: Ipv4Addr::LOCALHOST.into(),
        is_gone: Box::new(move || going.strong_count() == 0),
    })
}

fn open_ism(args: &Args, builder: Builder) -> Result<Carried> {
    let path = args.fabric.as_ref().context("no fabric was named")?;
    let is_socket = fs_err::metadata(path).is_ok_and(|found| found.file_type().is_socket());
    let place = if is_socket {
        Place::server(path)
    } else {
        Place::directory(path).with_nocopy(!args.copy)
    };
    let device = Arc::new(
        IsmDevice::builder(place)
            .build()
            .context("cannot open the ISM device")?,
    );
    let going = Arc::downgrade(&device);
    Ok(Carried {
        endpoint: builder.device(device).build()?,
        host: Ipv4Addr::LOCALHOST.into(),
        is_gone: Box::new(move || going.strong_count() == 0),
    })
}

#[cfg(feature = "rdma")]
fn open_rdma(args: &Args, builder: Builder) -> Result<Carried> {
    use anyhow::bail;
    use smc_core::device::{Device as _, RoceKind};
    use smc_core::negotiate::Assume;
    use smc_transport_rdma::RdmaDevice;

    let name = match &args.device {
        Some(name) => name.clone(),
        None => {
            let usable = smc_transport_rdma::probe()?
                .into_iter()
                .find(|device| device.usable.is_ok());
            usable
                .context("no usable RDMA device; `smc devices` reports why")?
                .name
        }
    };
    let device = Arc::new(RdmaDevice::open(&name)?);
    let Some(rdma) = device.fabric().rdma() else {
        bail!("{name} is no RDMA device");
    };
    let addresses = rdma.addresses();
    let address = addresses
        .iter()
        .filter(|address| address.kind == RoceKind::V2)
        .find_map(|address| address.gid.ipv4())
        .with_context(|| format!("{name} has no RoCE v2 GID with an IPv4 address"))?;
    let going = Arc::downgrade(&device);
    // Both ends are this program, so they know of each other.
    let builder = builder
        .device(device)
        .negotiation(Arc::new(Assume::new()))
        .ueid("SMC-DEMO".parse()?);
    Ok(Carried {
        endpoint: builder.build()?,
        host: address.into(),
        is_gone: Box::new(move || going.strong_count() == 0),
    })
}

#[cfg(not(feature = "rdma"))]
fn open_rdma(_args: &Args, _builder: Builder) -> Result<Carried> {
    anyhow::bail!(
        "built without SMC-R: build smc-tools with `--features rdma`, which takes cmake and libclang"
    )
}

/// How long parting may take.
const TIMEOUT: Duration = Duration::from_secs(1);
