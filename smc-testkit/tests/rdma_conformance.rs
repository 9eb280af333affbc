//! The memory RDMA devices keep all the rules: without a clock, with packets that take time, and
//! as a device connected to itself.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use smc::runtime::tokio::TokioRuntime;
use smc_core::device::{Device, Limits};
use smc_testkit::conformance::{Effort, Pair, Provider, Skip};
use smc_testkit::memory_rdma::{RdmaNetwork, RdmaOptions};
use tokio::runtime::Builder;

/// Devices on which nothing takes time.
struct Instant;

impl Instant {
    fn pair_of(options: &RdmaOptions) -> Pair {
        pair_on(&RdmaNetwork::new(0x5eed), options)
    }
}

fn pair_on(network: &RdmaNetwork, options: &RdmaOptions) -> Pair {
    let device = |name| network.device_with(name, options.clone());
    let (local, cut) = (device("rdma0"), network.clone());
    let (removed, switched) = (Arc::clone(&local), Arc::clone(&local));
    Pair::new(local, device("rdma1"))
        .with_kill(drop::<Arc<dyn Device>>)
        .with_removal(move |_| removed.remove())
        .with_cut(move || cut.cut())
        .with_port_switch(move |is_active| switched.set_port_active(1, is_active))
}

#[async_trait]
impl Provider for Instant {
    async fn pair(&self) -> Result<Pair, Skip> {
        Ok(Self::pair_of(&RdmaOptions::default()))
    }

    async fn pair_with_limit(&self, registrations: usize) -> Result<Pair, Skip> {
        let limits = Limits::new(registrations, 1 << 20);
        Ok(Self::pair_of(&RdmaOptions::default().with_limits(limits)))
    }

    async fn pair_with_links(&self, links: usize) -> Result<Pair, Skip> {
        Ok(Self::pair_of(&RdmaOptions::default().with_max_links(links)))
    }
}

/// One device.
struct Alone;

#[async_trait]
impl Provider for Alone {
    async fn pair(&self) -> Result<Pair, Skip> {
        Ok(Pair::alone(RdmaNetwork::new(7).device("rdma0")))
    }
}

/// Devices with packets under way, on a thread of their own.
struct Timed;

impl Timed {
    fn pair_of(options: &RdmaOptions) -> Result<Pair, Skip> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_time()
            .build();
        let runtime = runtime.map_err(|error| Skip::new(error.to_string()))?;
        let clock = TokioRuntime::new(runtime.handle().clone());
        let network = RdmaNetwork::with_clock(0x5eed, Arc::new(clock));
        network.set_latency(Duration::from_micros(5), Duration::from_micros(100));
        network.set_retry_time(Duration::from_millis(200));
        Ok(pair_on(&network, options).keeping(runtime))
    }
}

#[async_trait]
impl Provider for Timed {
    async fn pair(&self) -> Result<Pair, Skip> {
        Self::pair_of(&RdmaOptions::default())
    }

    fn effort(&self) -> Effort {
        // Every packet takes a tick of the clock, a millisecond or more.
        Effort::default().with_rounds(200)
    }
}

mod instant {
    smc_testkit::rdma_conformance_suite!(super::Instant);
}

mod timed {
    smc_testkit::rdma_conformance_suite!(super::Timed);
}

mod alone {
    smc_testkit::rdma_conformance_suite!(super::Alone);
}
