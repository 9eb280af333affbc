//! Two links: what happens when one of them dies.

use std::time::Duration;

use futures_lite::{AsyncReadExt, AsyncWriteExt, future};
use smc_testkit::memory_rdma::MemoryRdma;
use std::sync::Arc;

use crate::world::{World, connect, is_smcr, listen, pattern, transfer};

/// Two hosts with two devices each.
pub(crate) struct Hosts {
    pub(crate) client: smc_core::io::Endpoint,
    pub(crate) server: smc_core::io::Endpoint,
    /// a0, b0, a1, b1.
    pub(crate) devices: [Arc<MemoryRdma>; 4],
}

pub(crate) fn two_links(world: &World) -> Hosts {
    let devices = [
        world.device("a0", 1),
        world.device("b0", 2),
        world.device("a1", 3),
        world.device("b1", 4),
    ];
    let [a0, b0, a1, b1] = &devices;
    Hosts {
        client: world.endpoint(&[a0, a1]),
        server: world.endpoint(&[b0, b1]),
        devices,
    }
}

#[test]
fn a_second_link_is_added_in_the_background() {
    let world = World::new(20);
    let hosts = two_links(&world);
    world.block_on(async {
        let listener = listen(&hosts.server).await;
        let (mut ours, mut theirs) = connect(&hosts.client, &listener).await;
        transfer(&mut ours, &mut theirs, 1000).await;
        world.sleep(Duration::from_secs(1)).await;
        for device in &hosts.devices {
            assert_eq!(device.links().len(), 1, "{device:?}");
        }
        transfer(&mut ours, &mut theirs, 1000).await;
    });
}

#[test]
fn a_port_that_goes_down_in_mid_transfer_costs_no_byte() {
    for seed in 21..41 {
        let world = World::new(seed);
        let hosts = two_links(&world);
        world.block_on(async {
            let listener = listen(&hosts.server).await;
            let (mut ours, mut theirs) = connect(&hosts.client, &listener).await;
            assert!(is_smcr(&ours));
            world.sleep(Duration::from_secs(1)).await;
            let data = pattern(4_000_000);
            let mut got = vec![0; data.len()];
            let failing = async {
                world.sleep(Duration::from_micros(seed * 37)).await;
                let which = usize::try_from(seed % 2).expect("small");
                hosts.devices[which].set_port_active(1, false);
            };
            let moving = future::zip(ours.write_all(&data), theirs.read_exact(&mut got));
            let ((sent, received), ()) = future::zip(moving, failing).await;
            sent.expect("writes");
            received.expect("reads");
            assert!(got == data, "seed {seed}");
            transfer(&mut theirs, &mut ours, 100_000).await;
        });
    }
}
