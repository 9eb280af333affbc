//! Two links: what happens when one of them fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_lite::{AsyncReadExt, AsyncWriteExt, future};
use smc_core::wire::cdc::{CdcR, ProducerFlags};

use crate::interceptor::Interceptor;
use smc_testkit::streams::{connect, patterned, transfer};
use smc_testkit::world::{RdmaWorld, SERVER, eid, is_smcr, rdma_pair};

#[test]
fn a_second_link_is_added_in_the_background() {
    let world = RdmaWorld::new(20);
    let hosts = world.hosts_with_two_links();
    world.block_on(async {
        let (mut ours, mut theirs) = hosts.pair().await;
        transfer(&mut ours, &mut theirs, 1000).await;
        world.sleep(Duration::from_secs(1)).await;
        for device in &hosts.devices {
            assert_eq!(device.connected_links(), 1, "{device:?}");
        }
        transfer(&mut ours, &mut theirs, 1000).await;
    });
}

#[test]
fn a_port_that_goes_down_in_mid_transfer_costs_no_byte() {
    for seed in 21..41 {
        let world = RdmaWorld::new(seed);
        let hosts = world.hosts_with_two_links();
        world.block_on(async {
            let (mut ours, mut theirs) = hosts.pair().await;
            assert!(is_smcr(&ours));
            world.sleep(Duration::from_secs(1)).await;
            let data = patterned(4_000_000);
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

#[test]
fn messages_that_wait_in_the_receive_queue_of_the_failed_link_cost_no_byte() {
    for which in [0, 1] {
        let world = RdmaWorld::new(44);
        let (a0, a1) = (world.device("a0", 1), world.device("a1", 3));
        let devices = [world.device("b0", 2), world.device("b1", 4)];
        let (interceptors, both) = Interceptor::pair(&devices);
        let client = world.endpoint(&[&a0, &a1]);
        let server = world.endpoint_on(both, |builder| builder.ueid(eid()));
        world.block_on(async {
            let listener = server.bind(SERVER).await.expect("a free port");
            let first = connect(&client, &listener).await;
            world.sleep(Duration::from_secs(1)).await;
            // Connections are on both links in turn.
            let second = connect(&client, &listener).await;
            let (mut ours, mut theirs) = [first, second].into_iter().nth(which).expect("two");
            transfer(&mut ours, &mut theirs, 1000).await;

            let has_moved = Arc::new(AtomicU32::new(0));
            let may_pass = Arc::clone(&has_moved);
            interceptors[which].keep_until(move || may_pass.load(Ordering::Relaxed) > 0);
            let moved = Arc::clone(&has_moved);
            interceptors[1 - which].set_filter(move |message| {
                let is_validation = |cdc: CdcR| {
                    cdc.producer_flags
                        .contains(ProducerFlags::FAILOVER_VALIDATION)
                };
                if CdcR::parse(message).is_ok_and(is_validation) {
                    moved.fetch_add(1, Ordering::Relaxed);
                }
                vec![message.to_vec()]
            });
            // Each has arrived, and none is handed out.
            let data = patterned(10_000);
            for part in data.chunks(1000) {
                ours.write_all(part).await.expect("writes");
                world.sleep(Duration::from_millis(1)).await;
            }
            [&a0, &a1][which].set_port_active(1, false);
            let mut got = vec![0; data.len()];
            theirs.read_exact(&mut got).await.expect("reads");
            assert!(got == data);
            assert_eq!(has_moved.load(Ordering::Relaxed), 1);
            transfer(&mut theirs, &mut ours, 100_000).await;
        });
    }
}

#[test]
fn a_reader_that_does_not_repeat_its_window_is_asked_for_it() {
    for which in [0, 1] {
        let world = RdmaWorld::new(42);
        let devices = [world.device("a0", 1), world.device("a1", 3)];
        let (b0, b1) = (world.device("b0", 2), world.device("b1", 4));
        let (interceptors, both) = Interceptor::pair(&devices);
        let client = world.endpoint_on(both, |builder| builder.ueid(eid()));
        let server = world.endpoint_with(&[&b0, &b1], |builder| builder.recv_buffer(16 * 1024));
        world.block_on(async {
            let listener = server.bind(SERVER).await.expect("a free port");
            let first = connect(&client, &listener).await;
            world.sleep(Duration::from_secs(1)).await;
            // Connections are on both links in turn.
            let second = connect(&client, &listener).await;
            let (mut ours, mut theirs) = [first, second].into_iter().nth(which).expect("two");
            // As Linux, the reader says nothing behind its validation.
            for interceptor in &interceptors {
                let mut moved = Vec::new();
                interceptor.set_filter(move |message| {
                    if let Ok(cdc) = CdcR::parse(message) {
                        let flags = cdc.producer_flags;
                        if flags.contains(ProducerFlags::FAILOVER_VALIDATION) {
                            moved.push(cdc.token);
                        } else if let Some(at) = moved.iter().position(|of| *of == cdc.token) {
                            moved.swap_remove(at);
                            return Vec::new();
                        }
                    }
                    vec![message.to_vec()]
                });
            }
            let data = patterned(3_000_000);
            let mut got = vec![0; data.len()];
            let reading = async {
                // The ring is full, and the network fails before the data is read.
                world.sleep(Duration::from_secs(1)).await;
                devices[which].set_port_cut(1, true);
                theirs.read_exact(&mut got).await.expect("reads");
            };
            let writing = async { ours.write_all(&data).await.expect("writes") };
            let moving = async {
                future::zip(writing, reading).await;
            };
            let timeout = async {
                world.sleep(Duration::from_secs(120)).await;
                panic!("the stream stands still");
            };
            future::or(moving, timeout).await;
            assert!(got == data);
        });
    }
}

#[test]
fn a_peer_that_may_hold_data_back_is_asked_to_push_until_it_has_closed() {
    let world = RdmaWorld::new(43);
    let devices = [world.device("a0", 1), world.device("a1", 3)];
    let (b0, b1) = (world.device("b0", 2), world.device("b1", 4));
    let (interceptors, both) = Interceptor::pair(&devices);
    let client = world.endpoint_on(both, |builder| builder.ueid(eid()));
    let server = world.endpoint(&[&b0, &b1]);
    let wishes = Arc::new(AtomicU32::new(0));
    for interceptor in &interceptors {
        let wishes = Arc::clone(&wishes);
        interceptor.set_filter(move |message| {
            let asks = |cdc: CdcR| cdc.producer_flags.contains(ProducerFlags::UPDATE_REQUESTED);
            if CdcR::parse(message).is_ok_and(asks) {
                wishes.fetch_add(1, Ordering::Relaxed);
            }
            vec![message.to_vec()]
        });
    }
    let wishes = || wishes.swap(0, Ordering::Relaxed);
    world.block_on(async {
        let (mut ours, mut theirs) = rdma_pair(&client, &server).await;
        world.sleep(Duration::from_secs(10)).await;
        transfer(&mut theirs, &mut ours, 1000).await;
        assert_eq!(wishes(), 0, "no connection has moved");

        devices[0].set_port_active(1, false);
        world.sleep(Duration::from_secs(10)).await;
        let idle = wishes();
        assert!((5..15).contains(&idle), "{idle} in ten seconds");
        // An answer may be held back, so there is no waiting for the slow pace.
        transfer(&mut theirs, &mut ours, 1000).await;
        world.sleep(Duration::from_millis(100)).await;
        assert!(wishes() > 0);

        ours.close().await.expect("closes");
        drop(ours);
        world.sleep(Duration::from_secs(1)).await;
        wishes();
        world.sleep(Duration::from_secs(20)).await;
        assert_eq!(wishes(), 0, "there is nothing that it could push");
    });
}
