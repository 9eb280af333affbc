//! The rules that every SMC-R device has to keep.
//!
//! Both devices are the same piece of hardware, or soft-RoCE, opened twice.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use smc_core::device::{Device, Rdma, RdmaAddress, RoceKind, Route};
use smc_testkit::conformance::{Effort, Pair, Provider, Skip};
use smc_transport_rdma::{Builder, RdmaDevice, probe};

struct Verbs;

#[async_trait]
impl Provider for Verbs {
    async fn pair(&self) -> Result<Pair, Skip> {
        pair(|builder| builder)
    }

    async fn pair_with_links(&self, links: usize) -> Result<Pair, Skip> {
        let links = u32::try_from(links).map_err(|error| Skip::new(error.to_string()))?;
        pair(|builder| builder.links(links))
    }

    fn effort(&self) -> Effort {
        // A sender gives up after a second or so, and everything is slow in emulation. A quarter of
        // this a receiver stays asleep, which soft-RoCE bears for some ten seconds.
        Effort::default()
            .with_rounds(300)
            .with_timeout(Duration::from_secs(20))
    }
}

fn pair(settings: impl Fn(Builder) -> Builder) -> Result<Pair, Skip> {
    let reports = probe().map_err(|why| Skip::new(format!("no RDMA device: {why}")))?;
    let name = reports.into_iter().find(|report| report.usable.is_ok());
    let name = name
        .ok_or_else(|| Skip::new("no RDMA device that can be used"))?
        .name;
    let device = || {
        let device = settings(RdmaDevice::builder(&name)).open();
        device
            .map(Arc::new)
            .map_err(|why| Skip::new(why.to_string()))
    };
    let (ours, peer) = (device()?, device()?);
    let at = address(&ours).ok_or_else(|| Skip::new("its address went away"))?;
    let pair = Pair::new(ours, peer).with_kill(drop::<Arc<dyn Device>>);
    Ok(pair.with_link_between(at.clone(), at, Route::SameSubnet))
}

fn address(device: &RdmaDevice) -> Option<RdmaAddress> {
    let mut addresses = device.addresses().into_iter();
    addresses.find(|at| at.kind == RoceKind::V2 && at.gid.ipv4().is_some())
}

smc_testkit::rdma_conformance_suite!(Verbs);
