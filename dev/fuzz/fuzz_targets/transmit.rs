//! The data path of SMC-R between two honest ends, as the unit tests simulate it, with posts in any
//! stage, busy devices and links that fail at any moment: each byte arrives once and in order.

#![no_main]

use libfuzzer_sys::fuzz_target;
use smc_core::device::SENDS_MAX;
use smc_core::proto::conn::rdma::*;
// The paths of the included module begin in `smc_core`.
use smc_core::proto;
use smc_testkit::Rng;
use smc_wire::cdc::{CdcR, ProducerFlags, StateFlags};
use smc_wire::cursor::{Cursor, Ring};
use smc_wire::types::AlertToken;

#[allow(dead_code, reason = "the tests of smc-core use the rest")]
#[path = "../../../smc-core/src/proto/conn/rdma/tests/simulation.rs"]
mod simulation;

use simulation::{ConnSimulation, Plan};

const C: StateFlags = StateFlags::CLOSED;
const A: StateFlags = StateFlags::ABORTED;
const BLOCKED: ProducerFlags = ProducerFlags::WRITER_BLOCKED;
const VALIDATION: ProducerFlags = ProducerFlags::FAILOVER_VALIDATION;

fuzz_target!(|data: &[u8]| {
    let Some((sizes, script)) = data.split_first_chunk::<4>() else {
        return;
    };
    let mut rng = Rng::from_bytes(script);
    let plan = if rng.chance(800) {
        Plan::Close
    } else {
        Plan::Abort
    };
    let [staging, elements] = [&sizes[..2], &sizes[2..]].map(|of| [0, 1].map(|at| size(of[at])));
    let mut simulation = ConnSimulation::with_sizes(rng, plan, staging, elements);
    // Faults end with the input.
    simulation.faults = u32::try_from(script.len()).unwrap_or(u32::MAX);
    simulation.run(0);
});

/// Lengths of rings: short ones wrap around often.
fn size(byte: u8) -> u32 {
    match byte {
        0..128 => 1 + u32::from(byte),
        _ => 32 * u32::from(byte),
    }
}

fn ring(size: u32) -> Ring {
    Ring::new(size).expect("not zero")
}

fn token() -> AlertToken {
    AlertToken::new(7).expect("not zero")
}
