//! Many connections at a time.

use std::time::Duration;

use futures_lite::{AsyncReadExt, AsyncWriteExt, future};
use smc_testkit::streams::{
    connect, connect_many, expect, expect_rest, join_all, patterned, transfer,
};
use smc_testkit::world::are_kept;
use smc_testkit::world::{RdmaHosts, RdmaWorld, SERVER};

#[test]
fn fifty_busy_connections_share_one_link_fairly() {
    let world = RdmaWorld::new(80);
    let RdmaHosts { client, server, .. } = world.hosts();
    world.block_on(async {
        let listener = server.bind(SERVER).await.expect("a free port");
        let mut streams = connect_many(&client, &listener, 50).await;
        let data = patterned(200_000);
        let begin = world.elapsed();
        let ends = std::cell::RefCell::new(Vec::new());
        let all = streams.iter_mut().map(|(ours, theirs)| {
            let (data, ends, world) = (&data, &ends, &world);
            async move {
                let mut got = vec![0; data.len()];
                let moving = future::zip(ours.write_all(data), theirs.read_exact(&mut got));
                let (sent, received) = moving.await;
                sent.expect("writes");
                received.expect("reads");
                assert!(got == *data);
                ends.borrow_mut().push(world.elapsed() - begin);
            }
        });

        join_all(all).await;
        let ends = ends.borrow();
        let (first, last) = (ends[0], ends[ends.len() - 1]);
        // One after the other would be fifty times.
        assert!(last < first * 6, "{first:?} to {last:?}");
    });
}

#[test]
fn a_writer_that_waits_for_space_delays_no_other() {
    let world = RdmaWorld::new(81);
    let RdmaHosts { client, server, .. } = world.hosts();
    world.block_on(async {
        let listener = server.bind(SERVER).await.expect("a free port");
        let (mut blocked, mut lazy) = connect(&client, &listener).await;
        let (mut ours, mut theirs) = connect(&client, &listener).await;
        let data = patterned(2_000_000);
        let writing = blocked.write_all(&data);
        let meanwhile = async {
            // The other connections, set-ups and the tests of the link go on.
            for _ in 0..5 {
                transfer(&mut ours, &mut theirs, 100_000).await;
                let (mut more, mut others) = connect(&client, &listener).await;
                transfer(&mut more, &mut others, 1000).await;
                world.sleep(Duration::from_secs(60)).await;
            }
            expect(&mut lazy, &data).await;
        };
        let (written, ()) = future::zip(writing, meanwhile).await;
        written.expect("writes");
    });
}

#[test]
fn hosts_that_connect_to_each_other_for_the_first_time_at_the_same_time() {
    for seed in 82..92 {
        let world = RdmaWorld::new(seed);
        let RdmaHosts {
            client: a,
            server: b,
            ..
        } = world.hosts();
        world.block_on(async {
            let theirs = b.bind(SERVER).await.expect("a free port");
            let ours = a.bind("10.0.0.1:4000").await.expect("a free port");
            let there = async { a.connect(SERVER).await.expect("connects") };
            let back = async { b.connect("10.0.0.1:4000").await.expect("connects") };
            let accept = async {
                let accept_theirs = async { theirs.accept().await.expect("accepts").0 };
                let accept_ours = async { ours.accept().await.expect("accepts").0 };
                future::zip(accept_theirs, accept_ours).await
            };
            let ((mut there, mut back), (mut theirs, mut ours)) =
                future::zip(future::zip(there, back), accept).await;
            for stream in [&there, &back, &theirs, &ours] {
                assert!(stream.mode().is_smc(), "{}", stream.mode());
            }
            transfer(&mut there, &mut theirs, 10_000).await;
            transfer(&mut back, &mut ours, 10_000).await;
            assert_eq!((a.link_groups().len(), b.link_groups().len()), (2, 2));
        });
    }
}

#[test]
fn data_that_comes_before_confirm_is_read_is_not_lost() {
    // TCP is much slower than the link.
    let options = smc_testkit::runtime::Options::default()
        .with_latency(Duration::from_millis(20), Duration::ZERO);
    let world = RdmaWorld::with_options(93, options);
    let RdmaHosts { client, server, .. } = world.hosts();
    world.block_on(async {
        let listener = server.bind(SERVER).await.expect("a free port");
        // First contact is confirmed over the link; the second one not.
        let _first = connect(&client, &listener).await;
        for len in [1, 5000, 65_536] {
            let connecting = async {
                let mut stream = client.connect(SERVER).await.expect("connects");
                stream.write_all(&patterned(len)).await.expect("writes");
                stream
            };
            let accepting = async { listener.accept().await.expect("accepts").0 };
            let (stream, mut accepted) = future::zip(connecting, accepting).await;
            expect(&mut accepted, patterned(len)).await;
            drop(stream);
        }
        // Even an end may come that early.
        let connecting = async {
            let mut stream = client.connect(SERVER).await.expect("connects");
            stream.write_all(b"hello").await.expect("writes");
        };
        let accepting = async { listener.accept().await.expect("accepts").0 };
        let ((), mut accepted) = future::zip(connecting, accepting).await;
        expect_rest(&mut accepted, b"hello").await;
    });
}

#[test]
fn more_connections_than_a_table_has_places_use_several_groups() {
    let world = RdmaWorld::new(94);
    let RdmaHosts { client, server, .. } = world.hosts();
    world.block_on(async {
        let listener = server.bind(SERVER).await.expect("a free port");
        let mut streams = connect_many(&client, &listener, 600).await;
        assert!(
            streams
                .iter()
                .all(|(ours, theirs)| { ours.mode().is_smc() && theirs.mode().is_smc() })
        );
        assert_eq!(server.link_groups().len(), 3);
        for (ours, theirs) in &mut streams {
            transfer(ours, theirs, 10).await;
        }
        drop(streams);
        world.sleep(Duration::from_secs(2)).await;
        let groups = [server.rdma_groups(), client.rdma_groups()].concat();
        assert!(groups.iter().all(|group| group.connections == 0));
        assert!(are_kept(&groups, true), "{groups:?}");
    });
}

#[test]
fn closing_more_streams_than_a_link_has_places_waits_for_nothing_else() {
    for count in [15, 16, 17, 18, 20, 31, 33, 40] {
        let world = RdmaWorld::new(82);
        let (a, b) = (world.device("a0", 1), world.device("b0", 2));
        let (client, server) = (world.endpoint(&[&a]), world.endpoint(&[&b]));
        world.block_on(async {
            let listener = server.bind(SERVER).await.expect("a free port");
            let mut streams = connect_many(&client, &listener, count).await;
            // The other end does not read, and says nothing.
            world.sleep(Duration::from_secs(1)).await;
            let begin = world.elapsed();
            // All that are there are reported together.
            a.hold_completions(true);
            let release = async {
                world.sleep(Duration::from_millis(1)).await;
                a.hold_completions(false);
            };
            let all = streams.iter_mut().map(|(ours, _)| async move {
                ours.write_all(b"last").await.expect("writes");
                ours.close().await.expect("shuts down");
            });

            future::zip(join_all(all), release).await;
            let took = world.elapsed() - begin;
            assert!(took < Duration::from_secs(1), "{count} streams: {took:?}");
        });
    }
}
