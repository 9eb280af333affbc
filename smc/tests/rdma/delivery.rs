//! What of the data that was written arrives when a stream, an endpoint or a process ends.

use std::io::ErrorKind;
use std::net::Shutdown;
use std::sync::Arc;
use std::time::Duration;

use futures_lite::future::{poll_once, zip};
use futures_lite::{AsyncReadExt, AsyncWriteExt, pin};
use smc::{Builder, Endpoint, Stream};
use smc_testkit::memory_rdma::MemoryRdma;
use smc_testkit::streams::{connect, expect_rest, patterned};
use smc_testkit::world::{RdmaHosts, RdmaWorld, SERVER, rdma_pair};

/// Two hosts whose buffers hold a part of what is written: 64 KiB each.
fn narrow(world: &RdmaWorld) -> (Arc<MemoryRdma>, Endpoint, Endpoint) {
    let (a, b) = (world.device("a0", 1), world.device("b0", 2));
    let narrow = |builder: Builder| builder.recv_buffer(64 * 1024).send_buffer(64 * 1024);
    let client = world.endpoint_with(&[&a], narrow);
    let server = world.endpoint_with(&[&b], narrow);
    (a, client, server)
}

/// What arrives before the end, and the end.
async fn read_slowly(world: &RdmaWorld, stream: &mut Stream) -> (Vec<u8>, std::io::Result<()>) {
    let (mut got, mut buf) = (Vec::new(), [0; 10_000]);
    loop {
        world.sleep(Duration::from_millis(1)).await;
        match stream.read(&mut buf).await {
            Ok(0) => return (got, Ok(())),
            Ok(count) => got.extend_from_slice(&buf[..count]),
            Err(error) => return (got, Err(error)),
        }
    }
}

#[test]
fn a_process_that_ends_after_it_shut_down_has_lost_nothing() {
    // The acknowledgement comes sooner and later than the peer reads.
    for latency in [1, 50, 400, 5_000] {
        for len in [1, 1_000, 100_000, 300_000] {
            let world = RdmaWorld::new(80);
            let time = Duration::from_micros(latency);
            world.network().set_latency(time, Duration::ZERO);
            let (device, client, server) = narrow(&world);
            world.block_on(async {
                let (mut ours, mut theirs) = rdma_pair(&client, &server).await;
                let data = patterned(len);
                let writing = async {
                    ours.write_all(&data).await.expect("writes");
                    ours.close().await.expect("delivers");
                    device.leave();
                };
                let ((), (got, end)) = zip(writing, read_slowly(&world, &mut theirs)).await;
                assert!(got == data, "{latency} us: {} of {len} bytes", got.len());
                end.expect("ends in order");
            });
        }
    }
}

#[test]
fn shutting_down_waits_for_a_peer_that_does_not_read() {
    let world = RdmaWorld::new(81);
    let (_device, client, server) = narrow(&world);
    world.block_on(async {
        let (mut ours, mut theirs) = rdma_pair(&client, &server).await;
        let data = patterned(100_000);
        ours.write_all(&data).await.expect("writes");
        {
            let closing = ours.close();
            pin!(closing);
            for _ in 0..10 {
                assert!(poll_once(&mut closing).await.is_none());
                world.sleep(Duration::from_secs(1)).await;
            }
        }
        // Given up waiting, it is shut down all the same.
        let late = ours.write(b"late").await.expect_err("is shut down");
        assert_eq!(late.kind(), ErrorKind::BrokenPipe);
        let (closed, (got, end)) = zip(ours.close(), read_slowly(&world, &mut theirs)).await;
        closed.expect("delivers");
        end.expect("ends in order");
        assert!(got == data);
        ours.close().await.expect("is no error twice");
    });
}

#[test]
fn shutting_down_fails_when_the_peer_does_not_take_everything() {
    let world = RdmaWorld::new(82);
    let (device, client, server) = narrow(&world);
    world.block_on(async {
        let listener = server.bind(SERVER).await.expect("a free port");
        let (mut ours, theirs) = connect(&client, &listener).await;
        ours.write_all(&patterned(100_000)).await.expect("writes");
        let resetting = async {
            world.sleep(Duration::from_secs(1)).await;
            drop(theirs);
        };
        let (closed, ()) = zip(ours.close(), resetting).await;
        let kind = closed.expect_err("is reset").kind();
        assert_eq!(kind, ErrorKind::ConnectionReset);

        let (mut ours, _theirs) = connect(&client, &listener).await;
        ours.write_all(&patterned(100_000)).await.expect("writes");
        let losing = async {
            world.sleep(Duration::from_secs(1)).await;
            device.remove();
        };
        let (closed, ()) = zip(ours.close(), losing).await;
        let kind = closed.expect_err("is aborted").kind();
        assert_eq!(kind, ErrorKind::ConnectionAborted);
    });
}

#[test]
fn shutting_down_succeeds_with_data_that_arrives_over_another_link() {
    for delay in [0, 3, 6, 9, 12, 20, 200] {
        let world = RdmaWorld::new(83);
        let hosts = world.hosts_with_two_links();
        world.block_on(async {
            let (mut ours, mut theirs) = hosts.pair().await;
            world.sleep(Duration::from_secs(1)).await;
            ours.write_all(b"last").await.expect("writes");
            let failing = async {
                world.sleep(Duration::from_micros(delay)).await;
                hosts.devices[0].set_port_active(1, false);
            };
            // The peer sends no CDC by itself.
            zip(ours.close(), failing).await.0.expect("delivers");
            hosts.devices[2].leave();
            expect_rest(&mut theirs, b"last").await;
        });
    }
}

#[test]
fn a_process_that_ends_after_a_drop_has_lost_what_the_send_buffer_holds_at_most() {
    let world = RdmaWorld::new(84);
    let (device, client, server) = narrow(&world);
    world.block_on(async {
        let (mut ours, mut theirs) = rdma_pair(&client, &server).await;
        let data = patterned(120_000);
        ours.write_all(&data).await.expect("writes");
        drop(ours);
        device.leave();
        let (got, end) = read_slowly(&world, &mut theirs).await;
        assert!(data.starts_with(&got) && got.len() + 64 * 1024 >= data.len());
        assert!(got.len() < data.len(), "nothing was left to be lost");
        let cut = theirs.write_all(&patterned(200_000)).await;
        assert!(end.is_err() || cut.is_err(), "the peer gets an error");
    });
}

/// The last bytes are on their way for a while, but once they are there the peer may take its time.
#[test]
fn closing_waits_for_delivery_and_not_for_the_peer_to_read() {
    for latency in [50, 20_000] {
        let world = RdmaWorld::new(79);
        world
            .network()
            .set_latency(Duration::from_micros(latency), Duration::ZERO);
        let RdmaHosts { client, server, .. } = world.hosts();
        world.block_on(async {
            let (mut ours, mut theirs) = rdma_pair(&client, &server).await;
            let data = patterned(10_000);
            ours.write_all(&data).await.expect("writes");
            drop(ours);
            let ((), took) = world.timed(client.close()).await;
            assert!(took < Duration::from_secs(3), "{took:?}");
            expect_rest(&mut theirs, &data).await;
        });
    }
}

/// Shut down and still held: what is in the send buffer arrives, and then the end.
#[test]
fn closing_waits_for_streams_that_were_shut_down() {
    for latency in [1, 50, 5_000] {
        let world = RdmaWorld::new(85);
        let time = Duration::from_micros(latency);
        world.network().set_latency(time, Duration::ZERO);
        let (_device, client, server) = narrow(&world);
        world.block_on(async {
            let (mut ours, mut theirs) = rdma_pair(&client, &server).await;
            let data = patterned(100_000);
            ours.write_all(&data).await.expect("writes");
            ours.shutdown_how(Shutdown::Write).expect("shuts down");
            let (got, end) = zip(client.close(), read_slowly(&world, &mut theirs))
                .await
                .1;
            assert!(got == data, "{latency} us: {} bytes", got.len());
            end.expect("ends in order");
        });
    }
}

#[test]
fn the_time_to_close_runs_on_when_waiting_is_given_up() {
    let world = RdmaWorld::new(86);
    let (_device, client, server) = narrow(&world);
    world.block_on(async {
        let (mut ours, _theirs) = rdma_pair(&client, &server).await;
        ours.write_all(&patterned(100_000)).await.expect("writes");
        let begin = world.elapsed();
        {
            let closing = ours.close();
            pin!(closing);
            assert!(poll_once(&mut closing).await.is_none());
        }
        world.sleep(Duration::from_secs(100)).await;
        let late = ours.close().await.expect_err("the peer does not read");
        assert_eq!(late.kind(), ErrorKind::TimedOut);
        let took = world.elapsed() - begin;
        assert!(took < Duration::from_secs(121), "{took:?}");
        // It begins again when it was over.
        let late = ours.close().await.expect_err("the peer does not read");
        assert_eq!(late.kind(), ErrorKind::TimedOut);
        let took = world.elapsed() - begin;
        assert!(took > Duration::from_secs(239), "{took:?}");
    });
}

#[test]
fn the_send_queue_is_what_the_peer_has_not_acknowledged() {
    let world = RdmaWorld::new(90);
    let (device, client, server) = narrow(&world);
    world.block_on(async {
        let (mut ours, mut theirs) = rdma_pair(&client, &server).await;
        assert_eq!(ours.send_queue_len().expect("is known"), 0);
        device.hold_completions(true);
        ours.write_all(&patterned(1000)).await.expect("writes");
        world.sleep(Duration::from_secs(1)).await;
        assert_eq!(theirs.recv_queue_len().expect("is known"), 1000);
        assert_eq!(ours.send_queue_len().expect("is known"), 1000);
        device.hold_completions(false);
        world.sleep(Duration::from_secs(1)).await;
        assert_eq!(ours.send_queue_len().expect("is known"), 0, "is delivered");
        // More than the peer has space for.
        ours.write_all(&patterned(100_000)).await.expect("writes");
        world.sleep(Duration::from_secs(1)).await;
        let received = theirs.recv_queue_len().expect("is known");
        assert_eq!(received, 64 * 1024);
        let left = ours.send_queue_len().expect("is known");
        assert_eq!(left, 101_000 - received);
        theirs
            .read_exact(&mut vec![0; 101_000])
            .await
            .expect("reads");
        world.sleep(Duration::from_secs(1)).await;
        assert_eq!(ours.send_queue_len().expect("is known"), 0);
        assert_eq!(theirs.recv_queue_len().expect("is known"), 0);
    });
}
