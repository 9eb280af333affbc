//! What is left when a runtime ends. Alone in its process, as it counts all descriptors there.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use futures_lite::future::block_on;
use smc::Stream;
use support::{On, World, connect, descriptors_at_most, open_fds};

#[test]
fn a_runtime_that_ends_leaves_nothing_of_its_connections() {
    let mut most = None;
    for _ in 0..4 {
        let world = World::new(On::Tokio, true);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let half: Stream = runtime.block_on(async {
            let (client, server) = (world.endpoint(), world.endpoint());
            let listener = server.bind("127.0.0.1:0").await.unwrap();
            let (near, far) = connect(&client, &listener).await;
            // Waits for the last word of the other one, which outlives the runtime.
            drop(near);
            far
        });
        drop(runtime);
        drop(half);
        match most {
            Some(most) => block_on(descriptors_at_most(most)),
            // What the first round has made for the process stays.
            None => most = Some(open_fds()),
        }
    }
}
