//! What one guest does with several ivshmem devices: the rules for devices, and those for streams.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use async_trait::async_trait;
use futures_lite::future::zip;
use smc::runtime::smol::SmolRuntime;
use smc::{Builder, Endpoint};
use smc_core::negotiate::Assume;
use smc_core::runtime::Runtime;
use smc_testkit::conformance::{self, Effort, Pair, Provider, Skip};
use smc_testkit::model::{self, Rules};
use smc_transport_ism::{FabricAddress, IsmDevice};

use super::RECV_BUFFER;

/// Devices of this machine's PCI bus.
struct Guest;

impl Guest {
    fn pair_of(max_dmbs: usize) -> Result<Pair, Skip> {
        let device = || {
            let device = IsmDevice::builder(FabricAddress::guest())
                .max_dmbs(max_dmbs)
                .build();
            device
                .map(Arc::new)
                .map_err(|error| Skip::new(error.to_string()))
        };
        Ok(Pair::new(device()?, device()?)
            .with_third(device()?)
            .with_kill(drop))
    }
}

#[async_trait]
impl Provider for Guest {
    async fn pair(&self) -> Result<Pair, Skip> {
        Self::pair_of(1920)
    }

    async fn pair_with_limit(&self, dmbs: usize) -> Result<Pair, Skip> {
        Self::pair_of(dmbs)
    }

    fn effort(&self) -> Effort {
        Effort::default()
            .with_rounds(ROUNDS)
            .with_timeout(Duration::from_secs(60))
    }
}

/// Runs both. Whether all rules are kept is the result.
pub(super) fn run() -> Result<bool> {
    let report = conformance::run_all(&Guest);
    let lines = report.to_string();
    let count = |what: &str| lines.lines().filter(|line| line.starts_with(what)).count();
    println!(
        "rules for devices: {} kept, {} do not apply",
        count("ok"),
        count("skipped")
    );
    let is_ours = |line: &&str| !line.starts_with("ok") && !line.contains("has no nocopy");
    lines
        .lines()
        .filter(is_ours)
        .for_each(|line| println!("{line}"));
    smol::block_on(streams())?;
    println!("rules for streams: kept with {SEEDS} seeds");
    // Where nothing could be tried nothing is known.
    Ok(report.is_passed() && count("ok") > 0)
}

async fn streams() -> Result<()> {
    let endpoint = || -> Result<Endpoint> {
        let device = IsmDevice::builder(FabricAddress::guest()).build()?;
        let builder = Builder::smol().negotiation(Arc::new(Assume::new()));
        let builder = builder.recv_buffer(RECV_BUFFER).device(Arc::new(device));
        Ok(builder.build()?)
    };
    let (client, server) = (endpoint()?, endpoint()?);
    let listener = server.bind("127.0.0.1:0").await?;
    let runtime: Arc<dyn Runtime> = Arc::new(SmolRuntime::new());
    let rules = Rules::relaxed().with_timeout(Duration::from_secs(100));
    for seed in 0..SEEDS {
        let at = listener.local_addr()?;
        let (connected, accepted) = zip(client.connect(at), listener.accept()).await;
        let pair = (connected?, accepted?.0);
        ensure!(pair.0.mode().is_smc(), "{}", pair.0.mode());
        let outcome = model::run(seed, &runtime, pair, rules).await;
        outcome.map_err(|violation| anyhow::anyhow!("{violation}"))?;
    }
    Ok(())
}

/// Of each race; an emulated CPU is slow, and there is one.
const ROUNDS: u32 = 150;

const SEEDS: u64 = 20;
