//! Two hosts, a seed, and everything at once: set-ups in both directions, streams used at random,
//! clients that stall or vanish, and faults of every kind. See `plan` for what a seed decides, and
//! `hosts` for what has to hold at the end.
//!
//! `SMC_SIM_SEEDS` sets how many seeds are run, `SMC_SIM_FIRST` the first of them.

mod accepted_streams;
mod clients;
mod faults;
mod hosts;
mod plan;

use std::env;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use futures_lite::future;

use hosts::Hosts;
use plan::{Hardship, Plan};
use smc_testkit::world::RdmaWorld;

#[test]
fn whatever_happens_streams_keep_their_promises_and_nothing_is_left() {
    let first = number("SMC_SIM_FIRST").unwrap_or(0);
    let last = first + number("SMC_SIM_SEEDS").unwrap_or(SEEDS);
    let next = AtomicU64::new(first);
    let workers = thread::available_parallelism().map_or(1, Into::into);
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= last {
                        break;
                    }
                    run(seed);
                }
            });
        }
    });
}

/// One life of two hosts.
fn run(seed: u64) {
    let _name = Name(seed);
    let plan = Plan::new(seed);
    let world = RdmaWorld::with_options(seed, plan.options);
    world.network().set_latency(plan.latency, plan.jitter);
    world.network().set_setup_time(plan.setup_time);
    let hosts = Hosts::new(&world, &plan);
    let life = async {
        hosts.listen().await;
        if plan.hardship == Hardship::Survivable {
            hosts.warm_up().await;
        }
        clients::all(&hosts, &plan);
        clients::nuisances(&hosts, &plan);
        faults::all(&hosts, &plan, &world);
        hosts.join().await;
        hosts.check_rest().await;
        hosts.close().await;
    };
    world.block_on(future::or(life, async {
        world.sleep(LIFETIME).await;
        panic!("no end after {LIFETIME:?}: {}", hosts.describe());
    }));
}

/// Tells which seed it was.
struct Name(u64);

impl Drop for Name {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!(
                "seed {}; repeat with SMC_SIM_FIRST={0} SMC_SIM_SEEDS=1",
                self.0
            );
        }
    }
}

fn number(variable: &str) -> Option<u64> {
    env::var(variable).ok()?.parse().ok()
}

/// Unoptimised code takes its time.
const SEEDS: u64 = if cfg!(debug_assertions) { 100 } else { 300 };

/// Far more than all that may have to be waited for.
const LIFETIME: Duration = Duration::from_secs(3000);
