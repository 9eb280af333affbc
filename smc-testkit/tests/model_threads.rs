//! The model on real threads: what a virtual runtime never interleaves.
//!
//! `SMC_MODEL_SEEDS` is the number of seeds (200 if not given). A failure depends on timing, so
//! its seed alone does not bring it back.

#![allow(unsafe_code, reason = "the promise about peers is an unsafe function")]

use std::env;
use std::sync::Arc;
use std::time::Duration;

use smc::runtime::tokio::TokioRuntime;
use smc::{Builder, Error};
use smc_core::mem::TrustPeers;
use smc_core::negotiate::Assume;
use smc_core::runtime::Runtime;
use smc_testkit::Rng;
use smc_testkit::memory_device::MemFabric;
use smc_testkit::middleware::{Fault, Faults};
use smc_testkit::model::{self, Rules, Violation};
use smc_testkit::streams;

#[test]
fn streams_keep_the_rules_on_threads() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build()
        .expect("a runtime");
    let seeds = env::var("SMC_MODEL_SEEDS").ok();
    let seeds = seeds.map_or(200, |text| text.parse().expect("a number"));
    for seed in 0..seeds {
        let outcome = runtime.block_on(run(seed)).expect("a connection");
        outcome.unwrap_or_else(|violation| panic!("{violation}"));
    }
}

async fn run(seed: u64) -> Result<Result<(), Violation>, Error> {
    let mut rng = Rng::new(seed);
    let fabric = MemFabric::new(rng.bits()).with_nocopy(rng.chance(500));
    let faults = Faults::default().with_delayed(100).with_busy(50);
    let faults = rng.chance(300).then_some(faults);
    let polling = Duration::from_micros([0, 50][rng.below(2)]);
    let is_trusting = rng.chance(500);
    let mut endpoint = |name: &str| {
        let builder = Builder::tokio()
            .negotiation(Arc::new(Assume::new()))
            .recv_buffer(1 << rng.between(14, 16))
            .polling(polling);
        let builder = if is_trusting {
            // SAFETY: both ends are streams of smc in this test.
            builder.trust_peers(unsafe { TrustPeers::new() })
        } else {
            builder
        };
        let device = fabric.device(name);
        match faults {
            Some(faults) => builder.device(Fault::new(device, rng.bits(), faults)),
            None => builder.device(device),
        }
        .build()
    };
    let (client, server) = (endpoint("mem0")?, endpoint("mem1")?);
    let pair = streams::pair(&client, &server).await;
    assert!(pair.0.mode().is_smc(), "{}", pair.0.mode());
    let runtime = TokioRuntime::current().expect("called on a runtime");
    let rules = Rules::relaxed().with_timeout(Duration::from_secs(20));
    let runtime: Arc<dyn Runtime> = Arc::new(runtime);
    Ok(model::run(seed, &runtime, pair, rules).await.map(|_| ()))
}
