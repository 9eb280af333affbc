//! What is left when a runtime ends. Alone in its process, as it counts all descriptors there.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::World;
use smc::Stream;
use smc_testkit::on::On;
use smc_testkit::resources::{open_descriptors, wait_for_descriptors};

#[test]
fn a_runtime_that_ends_leaves_nothing_of_its_connections() {
    let mut most = None;
    for _ in 0..4 {
        let world = World::new(On::Tokio, true);
        let runtime = On::TokioAlone.tokio();
        let half: Stream = runtime.block_on(async {
            let (near, far) = world.pair().await;
            // Waits for the last word of the other one, which outlives the runtime.
            drop(near);
            far
        });
        drop(runtime);
        drop(half);
        match most {
            Some(most) => wait_for_descriptors(most),
            // What the first round has made for the process stays.
            None => most = Some(open_descriptors()),
        }
    }
}
