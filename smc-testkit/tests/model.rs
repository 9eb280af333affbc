//! Streams over memory devices on the virtual runtime, used at random and judged by the model.
//!
//! `SMC_MODEL_SEEDS` is the number of seeds (500 if not given), `SMC_MODEL_SEED` a single one to
//! run again; `SMC_MODEL_TRACE` prints what happens at the devices meanwhile.

#![allow(unsafe_code, reason = "the promise about peers is an unsafe function")]

use std::env;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use futures_lite::future::try_zip;
use smc::{Builder, Stream};
use smc_core::device::Device;
use smc_core::mem::TrustPeers;
use smc_core::negotiate::Assume;
use smc_core::runtime::Runtime;
use smc_testkit::Rng;
use smc_testkit::memory_device::{MemDevice, MemFabric};
use smc_testkit::middleware::{Fault, Faults, Trace};
use smc_testkit::model::{self, End, Rules, Tally, Violation};
use smc_testkit::runtime::{Options, VirtualRuntime};
use smc_testkit::streams;

#[test]
fn streams_keep_the_rules_whatever_the_seed() {
    if let Some(seed) = number("SMC_MODEL_SEED") {
        for apart in [false, true] {
            let tally = run(seed, apart).unwrap_or_else(|violation| panic!("{violation}"));
            println!("seed {seed}: {tally:?}");
        }
        return;
    }
    let seeds = number("SMC_MODEL_SEEDS").unwrap_or(500);
    total(0..seeds, false);
    // Where the ends do not know of each other, as in different processes.
    total(0..seeds / 5, true);
}

fn total(seeds: Range<u64>, apart: bool) {
    let mut total = Tally::default();
    for seed in seeds.clone() {
        let tally = run(seed, apart).unwrap_or_else(|violation| {
            panic!("{violation}\nagain: SMC_MODEL_SEED={seed} cargo test --test model")
        });
        total.operations += tally.operations;
        total.bytes += tally.bytes;
        total.ends += tally.ends;
        total.resets += tally.resets;
        total.aborts += tally.aborts;
        total.cancelled += tally.cancelled;
    }
    println!("{seeds:?}: {total:?}");
    assert!(
        total.ends > 0 && total.resets > 0 && total.cancelled > 0,
        "{total:?}"
    );
}

/// What a seed decides about the machine that the streams run on.
#[derive(Debug)]
struct Machine {
    nocopy: bool,
    faults: Option<Faults>,
    /// Without devices the streams are TCP.
    is_tcp: bool,
    /// When one of the devices is removed.
    removal: Option<Duration>,
    polling: Duration,
    /// What can be in place is.
    is_trusting: bool,
    buffers: [usize; 2],
    options: Options,
}

impl Machine {
    fn new(rng: &mut Rng) -> Self {
        let faults = match rng.below(16) {
            0..=3 => Some(Faults::default().with_delayed(300).with_spurious(50)),
            4..=7 => Some(Faults::default().with_delayed(100).with_busy(100)),
            8 => Some(Faults::default().with_unreachable(300).with_exhausted(300)),
            9 => Some(Faults::default().with_exhausted(300).with_unattachable(500)),
            _ => None,
        };
        let latency = Duration::from_micros(rng.bits() % 100);
        let options = Options::default().with_latency(latency, latency);
        Self {
            nocopy: rng.chance(500),
            faults,
            is_tcp: rng.chance(100),
            removal: rng
                .chance(60)
                .then(|| Duration::from_micros(rng.bits() % 3000)),
            // Polling checks the real clock as well; most runs are without.
            polling: Duration::from_micros(if rng.chance(50) { 5 } else { 0 }),
            is_trusting: rng.chance(500),
            buffers: [0, 1].map(|_| 1 << rng.between(14, 16)),
            options: if rng.chance(500) {
                options
            } else {
                options.with_fragment(500)
            },
        }
    }

    fn rules(&self) -> Rules {
        let is_busy = self.faults.is_some_and(|faults| faults.busy > 0);
        match (is_busy, self.removal) {
            (_, Some(_)) => Rules::relaxed().with_aborts(),
            (true, None) => Rules::relaxed(),
            (false, None) => Rules::exact(),
        }
    }
}

fn run(seed: u64, apart: bool) -> Result<Tally, Violation> {
    let mut rng = Rng::new(seed);
    let mut machine = Machine::new(&mut rng);
    machine.removal = machine.removal.filter(|_| !apart);
    let runtime = VirtualRuntime::with_options(rng.bits(), machine.options);
    let fabric = MemFabric::new(rng.bits()).with_nocopy(machine.nocopy);
    let devices = [0, 1].map(|side| fabric.device(&format!("mem{side}")));
    let mut endpoint = |side: usize| {
        let builder = Builder::new()
            .runtime(runtime.handle())
            .negotiation(Arc::new(Assume::new()))
            .recv_buffer(machine.buffers[side])
            .polling(machine.polling);
        let builder = if machine.is_trusting {
            // SAFETY: both ends are streams of smc in this test.
            builder.trust_peers(unsafe { TrustPeers::new() })
        } else {
            builder
        };
        let mut device: Arc<dyn Device> = Arc::<MemDevice>::clone(&devices[side]);
        if env::var_os("SMC_MODEL_TRACE").is_some() {
            device = Trace::new(device, |record| println!("{record}"));
        }
        if let Some(mut faults) = machine.faults {
            if side == 1 {
                // A server attaches after CONFIRM: too late to decline, the connection ends.
                faults = faults.with_unattachable(0);
            }
            device = Fault::new(device, rng.bits(), faults);
        }
        let builder = if machine.is_tcp {
            builder
        } else {
            builder.device(device)
        };
        builder.build().expect("all settings make sense")
    };
    let (client, server) = (endpoint(0), endpoint(1));
    let handle = runtime.handle();
    let outcome = runtime.try_block_on(async {
        let pair = streams::pair(&client, &server).await;
        let modes = (pair.0.mode(), pair.1.mode());
        assert_eq!(modes.0.is_smc(), modes.1.is_smc(), "seed {seed}: {modes:?}");
        let may_decline = machine.removal.is_some() || machine.faults.is_some();
        assert!(
            may_decline || modes.0.is_smc() != machine.is_tcp,
            "seed {seed}: {modes:?}"
        );
        // Not before: a handshake that fails half-way leaves a client alone, which is right.
        if let Some(time) = machine.removal {
            let (timer, victim) = (handle.timer(handle.now() + time), Arc::clone(&devices[0]));
            handle.spawn(Box::pin(async move {
                timer.await;
                victim.remove();
            }));
        }
        if apart {
            return run_apart(seed, &handle, pair, machine.rules()).await;
        }
        model::run(seed, &handle, pair, machine.rules()).await
    });
    let tally = outcome.unwrap_or_else(|stall| panic!("seed {seed}: {stall}"))?;
    // What both ends have closed leaves nothing behind.
    runtime.run_for(Duration::from_secs(1));
    let left = [&client, &server].map(|endpoint| {
        endpoint
            .connections()
            .iter()
            .filter_map(|conn| Some(conn.smc.as_ref()?.state.to_string()))
            .collect::<Vec<_>>()
    });
    assert!(
        left.iter().all(Vec::is_empty),
        "seed {seed} leaves {left:?} on {machine:?}"
    );
    Ok(tally)
}

/// Each end for itself.
async fn run_apart(
    seed: u64,
    runtime: &Arc<dyn Runtime>,
    (first, second): (Stream, Stream),
    rules: Rules,
) -> Result<Tally, Violation> {
    let first = model::run_end(seed, runtime, first, End::First, rules);
    let second = model::run_end(seed, runtime, second, End::Second, rules);
    let (first, second) = try_zip(first, second).await?;
    model::compare(seed, &first, &second)
}

fn number(name: &str) -> Option<u64> {
    env::var(name)
        .ok()
        .map(|text| text.parse().expect("a number"))
}
