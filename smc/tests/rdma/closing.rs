//! Ends of connections whose link fails in the middle of it, and ends of endpoints.

use std::io::ErrorKind;
use std::net::Shutdown;
use std::time::Duration;

use futures_lite::future::zip;
use futures_lite::{AsyncReadExt, AsyncWriteExt};
use smc::{Builder, Endpoint, Stream};
use smc_core::wire::llc::{Class, MessageType};
use smc_core::wire::types::Features;

use crate::interceptor::{Interceptor, recorded};
use smc_testkit::process::is_alone;
use smc_testkit::resources::limit_descriptors;
use smc_testkit::streams::{
    connect, expect_error, expect_rest, expect_rest_and_error, expect_write_error, patterned,
    read_all, transfer, transfer_both_ways,
};
use smc_testkit::world::{RdmaHosts, RdmaWorld, SERVER, eid, rdma_pair};

/// The state when the link fails, and the events after that.
#[derive(Clone, Copy, Debug)]
enum Case {
    LocalShutDown,
    PeerShutDown,
    BothShutDown,
    LocalClosed,
    LocalClosedPeerShutDown,
    PeerClosed,
    LocalAborted,
    LocalShutDownForBoth,
    LocalShutDownForBothPeerClosed,
}

const CASES: [Case; 9] = [
    Case::LocalShutDown,
    Case::PeerShutDown,
    Case::BothShutDown,
    Case::LocalClosed,
    Case::LocalClosedPeerShutDown,
    Case::PeerClosed,
    Case::LocalAborted,
    Case::LocalShutDownForBoth,
    Case::LocalShutDownForBothPeerClosed,
];

#[test]
fn an_end_survives_the_failure_of_its_link_in_every_state() {
    for case in CASES {
        // The failure comes before, while and after the message is on its way.
        for delay in [0, 3, 6, 9, 12, 20] {
            let world = RdmaWorld::new(70);
            let hosts = world.hosts_with_two_links();
            world.block_on(async {
                let (ours, theirs) = hosts.pair().await;
                world.sleep(Duration::from_secs(1)).await;
                let delay = Duration::from_micros(delay);
                end(&world, &hosts, case, delay, ours, theirs).await;
                world.sleep(Duration::from_secs(5)).await;
                for endpoint in [&hosts.client, &hosts.server] {
                    assert!(endpoint.connections().is_empty(), "{case:?} {delay:?}");
                    for group in endpoint.rdma_groups() {
                        assert_eq!(group.connections, 0, "{case:?} {delay:?}");
                    }
                }
            });
        }
    }
}

async fn end(
    world: &RdmaWorld,
    hosts: &RdmaHosts,
    case: Case,
    delay: Duration,
    mut ours: Stream,
    mut theirs: Stream,
) {
    let fail = async || {
        world.sleep(delay).await;
        hosts.devices[0].set_port_active(1, false);
    };
    match case {
        Case::LocalShutDown => {
            ours.write_all(b"last").await.expect("writes");
            ours.shutdown_how(Shutdown::Write).expect("shuts down");
            fail().await;
            expect_rest(&mut theirs, b"last").await;
            theirs.write_all(b"words").await.expect("writes");
            drop(theirs);
            expect_rest(&mut ours, b"words").await;
        }
        Case::PeerShutDown => {
            theirs.shutdown_how(Shutdown::Write).expect("shuts down");
            fail().await;
            expect_rest(&mut ours, b"").await;
            ours.write_all(b"last").await.expect("writes");
            ours.close().await.expect("shuts down");
            expect_rest(&mut theirs, b"last").await;
        }
        Case::BothShutDown => {
            ours.shutdown_how(Shutdown::Write).expect("shuts down");
            theirs.shutdown_how(Shutdown::Write).expect("shuts down");
            fail().await;
            expect_rest(&mut ours, b"").await;
            expect_rest(&mut theirs, b"").await;
        }
        Case::LocalClosed => {
            ours.write_all(&patterned(100_000)).await.expect("writes");
            drop(ours);
            fail().await;
            expect_rest(&mut theirs, &patterned(100_000)).await;
        }
        Case::LocalClosedPeerShutDown => {
            theirs.shutdown_how(Shutdown::Write).expect("shuts down");
            ours.write_all(b"last").await.expect("writes");
            drop(ours);
            fail().await;
            expect_rest(&mut theirs, b"last").await;
        }
        Case::PeerClosed => {
            drop(theirs);
            fail().await;
            expect_rest(&mut ours, b"").await;
        }
        Case::LocalAborted => {
            theirs.write_all(b"unread").await.expect("writes");
            world.sleep(Duration::from_millis(1)).await;
            drop(ours);
            fail().await;
            expect_error(&mut theirs, ErrorKind::ConnectionReset).await;
        }
        Case::LocalShutDownForBoth => {
            ours.write_all(b"last").await.expect("writes");
            ours.shutdown_how(Shutdown::Both).expect("shuts down");
            fail().await;
            expect_rest(&mut theirs, b"last").await;
            expect_write_error(&mut theirs, ErrorKind::BrokenPipe).await;
            ours.close().await.expect("delivers");
        }
        Case::LocalShutDownForBothPeerClosed => {
            ours.shutdown_how(Shutdown::Both).expect("shuts down");
            drop(theirs);
            fail().await;
            ours.close().await.expect("delivers");
        }
    }
}

#[test]
fn both_ends_dropped_with_more_to_send_than_fits_come_to_their_ends() {
    let world = RdmaWorld::new(71);
    let RdmaHosts { client, server, .. } =
        world.hosts_with(|builder| builder.recv_buffer(64 * 1024));
    world.block_on(async {
        let (mut ours, mut theirs) = rdma_pair(&client, &server).await;
        // More than the peer's buffer, so that it stays in the local one.
        ours.write_all(&patterned(200_000)).await.expect("writes");
        theirs.write_all(&patterned(200_000)).await.expect("writes");
        drop((ours, theirs));
        world.sleep(Duration::from_secs(1)).await;
        assert!(client.connections().is_empty() && server.connections().is_empty());
    });
}

#[test]
fn a_stream_that_is_dropped_first_delivers_although_the_peer_is_talking() {
    let world = RdmaWorld::new(72);
    let RdmaHosts { client, server, .. } =
        world.hosts_with(|builder| builder.recv_buffer(64 * 1024));
    world.block_on(async {
        let (mut ours, mut theirs) = rdma_pair(&client, &server).await;
        ours.write_all(&patterned(150_000)).await.expect("writes");
        drop(ours);
        // This data is no longer read, and the peer is notified behind the data.
        let mut written = 0;
        while let Ok(count) = theirs.write(&patterned(10_000)).await {
            written += count;
            if written >= 150_000 {
                break;
            }
        }
        let mut got = Vec::new();
        let end = theirs.read_to_end(&mut got).await;
        assert!(got == patterned(150_000), "{} bytes", got.len());
        assert_eq!(
            end.expect_err("is reset").kind(),
            ErrorKind::ConnectionReset
        );
        drop(theirs);
        world.sleep(Duration::from_secs(1)).await;
        assert!(client.connections().is_empty() && server.connections().is_empty());
    });
}

#[test]
fn closing_a_stream_to_a_peer_that_does_not_read_takes_the_close_timeout_and_loses_nothing() {
    let world = RdmaWorld::new(76);
    let timeout = Duration::from_secs(7);
    let RdmaHosts { client, server, .. } =
        world.hosts_with(|builder| builder.recv_buffer(64 * 1024).close_timeout(timeout));
    world.block_on(async {
        let (mut ours, mut theirs) = rdma_pair(&client, &server).await;
        let data = patterned(150_000);
        ours.write_all(&data).await.expect("writes");
        for _ in 0..2 {
            let begin = world.elapsed();
            let error = ours.close().await.expect_err("the peer does not read");
            assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
            assert_eq!((world.elapsed() - begin).as_secs(), 7);
        }
        let mut got = Vec::new();
        let (closed, read) = zip(ours.close(), theirs.read_to_end(&mut got)).await;
        closed.expect("delivers");
        read.expect("reads");
        assert!(got == data);
    });
}

#[test]
fn closing_an_endpoint_returns_when_the_peer_has_made_room_for_the_rest() {
    let world = RdmaWorld::new(77);
    let RdmaHosts { client, server, .. } =
        world.hosts_with(|builder| builder.recv_buffer(64 * 1024));
    world.block_on(async {
        let (mut ours, mut theirs) = rdma_pair(&client, &server).await;
        // More than the peer's buffer, and less than the local one.
        let data = patterned(100_000);
        ours.write_all(&data).await.expect("writes");
        drop(ours);
        let begin = world.elapsed();
        let mut got = vec![0; 65_536];
        let reading = async {
            world.sleep(Duration::from_millis(100)).await;
            theirs.read_exact(&mut got).await.expect("reads");
        };
        zip(client.close(), reading).await;
        let took = world.elapsed() - begin;
        assert!(took < Duration::from_secs(5), "{took:?}");
        theirs.read_to_end(&mut got).await.expect("reads the rest");
        assert!(got == data);
    });
}

#[test]
fn a_peer_that_has_read_everything_and_closes_first_has_it() {
    let world = RdmaWorld::new(78);
    let (a, b) = (world.device("a0", 1), world.device("b0", 2));
    let (client, server) = (world.endpoint(&[&a]), world.endpoint(&[&b]));
    world.block_on(async {
        let (mut ours, mut theirs) = rdma_pair(&client, &server).await;
        // Too little for the peer to send its consumer cursor.
        ours.write_all(b"ping").await.expect("writes");
        a.hold_completions(true);
        let answering = async {
            expect_rest(&mut theirs, b"ping").await;
            theirs.close().await.expect("shuts down");
            drop(theirs);
            world.sleep(Duration::from_millis(1)).await;
            a.hold_completions(false);
        };
        let (closed, ()) = zip(ours.close(), answering).await;
        closed.expect("the peer has read it");
    });
}

#[test]
fn closing_an_endpoint_delivers_what_was_written() {
    let world = RdmaWorld::new(73);
    let RdmaHosts { client, server, .. } = world.hosts();
    world.block_on(async {
        let (mut ours, mut theirs) = rdma_pair(&client, &server).await;
        let data = patterned(250_000);
        ours.write_all(&data).await.expect("writes");
        drop(ours);
        let reading = async {
            let mut got = Vec::new();
            theirs.read_to_end(&mut got).await.expect("reads");
            drop(theirs);
            got
        };
        let ((), got) = zip(client.close(), reading).await;
        assert!(got == data);
        assert!(client.rdma_groups().is_empty());
        world.sleep(Duration::from_secs(1)).await;
        assert!(server.rdma_groups().is_empty());
    });
}

#[test]
fn a_peer_that_closes_without_a_word_ends_in_order() {
    // TCP is quicker or slower than the link.
    for latency in [1, 50, 400, 100_000] {
        let world = RdmaWorld::new(74);
        world
            .network()
            .set_latency(Duration::from_micros(latency), Duration::ZERO);
        let RdmaHosts { client, server, .. } = world.hosts();
        world.block_on(async {
            let listener = server.bind(SERVER).await.expect("a free port");
            let (mut ours, theirs) = connect(&client, &listener).await;
            drop(theirs);
            assert_eq!(ours.read(&mut [0; 1]).await.expect("ends in order"), 0);
            let (ours, mut theirs) = connect(&client, &listener).await;
            drop(ours);
            assert_eq!(theirs.read(&mut [0; 1]).await.expect("ends in order"), 0);
        });
    }
}

#[test]
fn a_half_open_timeout_ends_a_connection_without_cdc() {
    let world = RdmaWorld::new(75);
    let RdmaHosts { client, server, .. } = world.hosts();
    world.block_on(async {
        let listener = server.bind(SERVER).await.expect("a free port");
        let (mut ours, theirs) = connect(&client, &listener).await;
        let address = ours.local_addr().expect("has an address");
        let begin = world.elapsed();
        let mut buf = [0; 1];
        let reading = ours.read(&mut buf);
        let cutting = async {
            world.sleep(Duration::from_millis(1)).await;
            assert_eq!(world.runtime().cut(address), 1);
        };
        let (read, ()) = zip(reading, cutting).await;
        assert_eq!(
            read.expect_err("is aborted").kind(),
            ErrorKind::ConnectionAborted
        );
        let took = world.elapsed() - begin;
        assert!(
            took > Duration::from_secs(1) && took < Duration::from_secs(10),
            "{took:?}"
        );
        drop(theirs);
        // A side that has sent its message needs no TCP any more.
        let (mut ours, mut theirs) = connect(&client, &listener).await;
        transfer_both_ways(&mut ours, &mut theirs, 1).await;
        world
            .runtime()
            .cut(ours.local_addr().expect("has an address"));
        world.sleep(Duration::from_secs(20)).await;
        transfer_both_ways(&mut ours, &mut theirs, 1000).await;
    });
}

/// Without the agreement that RMBs stay announced.
fn deletes_keys(builder: Builder) -> Builder {
    builder.vendor_features(Features::empty())
}

/// How long closing takes after both ends of a stream were dropped at the same time.
async fn close_after_a_stream(world: &RdmaWorld, client: &Endpoint, server: &Endpoint) -> Duration {
    let listener = server.bind(SERVER).await.expect("a free port");
    let (mut ours, mut theirs) = connect(client, &listener).await;
    transfer(&mut ours, &mut theirs, 1000).await;
    drop((ours, theirs));
    let begin = world.elapsed();
    client.close().await;
    world.elapsed() - begin
}

#[test]
fn a_peer_that_deletes_its_keys_is_answered_before_the_group_ends() {
    for latency in [1, 50, 400, 20_000] {
        let world = RdmaWorld::new(76);
        let time = Duration::from_micros(latency);
        world.network().set_latency(time, Duration::ZERO);
        let a = world.device("a0", 1);
        let b = Interceptor::new(world.device("b0", 2));
        let client = world.endpoint_with(&[&a], deletes_keys);
        let server = world.endpoint_on(vec![b.clone()], |builder| builder.ueid(eid()));
        world.block_on(async {
            let messages = recorded(&b, |_, _| true);
            let took = close_after_a_stream(&world, &client, &server).await;
            assert!(took < time * 20 + Duration::from_millis(50), "{took:?}");
            world.sleep(Duration::from_secs(1)).await;
            let messages = messages.lock().expect("the lock is not poisoned");
            let at = |what| messages.iter().position(|said| *said == what);
            let answer = at((MessageType::DeleteRkey, Class::Response));
            let end = at((MessageType::DeleteLink, Class::Request));
            assert!(answer.is_some() && answer < end, "{messages:?}");
        });
    }
}

#[test]
fn a_peer_that_never_deletes_its_keys_is_not_waited_for_without_end() {
    let world = RdmaWorld::new(77);
    let a = Interceptor::new(world.device("a0", 1));
    let b = world.device("b0", 2);
    let client = world.endpoint_on(vec![a.clone()], |builder| deletes_keys(builder.ueid(eid())));
    let server = world.endpoint(&[&b]);
    world.block_on(async {
        let deletes = (MessageType::DeleteRkey, Class::Request);
        let _messages = recorded(&a, move |kind, class| (kind, class) != deletes);
        let took = close_after_a_stream(&world, &client, &server).await;
        let second = Duration::from_secs(1);
        assert!(took >= second && took < second * 3 / 2, "{took:?}");
    });
}

#[test]
fn connections_that_are_in_use_do_not_hold_up_the_end() {
    let world = RdmaWorld::new(78);
    let RdmaHosts { client, server, .. } = world.hosts();
    world.block_on(async {
        let (mut ours, mut theirs) = rdma_pair(&client, &server).await;
        transfer(&mut ours, &mut theirs, 1000).await;
        let ((), took) = world.timed(client.close()).await;
        assert!(took < Duration::from_millis(100), "{took:?}");
        expect_error(&mut theirs, ErrorKind::ConnectionReset).await;
    });
}

#[test]
fn a_linger_time_bounds_how_long_a_dropped_stream_is_sent() {
    let close_timeout = Duration::from_secs(60);
    for (linger, expected) in [(None, 60), (Some(5), 5), (Some(1), 1), (Some(1000), 60)] {
        let world = RdmaWorld::new(79);
        let RdmaHosts { client, server, .. } =
            world.hosts_with(|builder| builder.recv_buffer(64 * 1024).close_timeout(close_timeout));
        world.block_on(async {
            let (mut ours, mut theirs) = rdma_pair(&client, &server).await;
            let data = patterned(150_000);
            ours.write_all(&data).await.expect("writes");
            let set = ours.set_linger(linger.map(Duration::from_secs));
            set.expect("sets the linger time");
            drop(ours);
            let half = Duration::from_millis(500);
            world.sleep(Duration::from_secs(expected) - half).await;
            assert_eq!(client.connections().len(), 1, "{linger:?}");
            world.sleep(2 * half).await;
            assert!(client.connections().is_empty(), "{linger:?}");
            // The peer's buffer was full.
            let sent = 64 * 1024;
            expect_rest_and_error(&mut theirs, &data[..sent], ErrorKind::ConnectionReset).await;
        });
    }
}

#[test]
fn a_linger_time_does_not_cut_off_what_the_peer_has_but_did_not_read() {
    let world = RdmaWorld::new(80);
    let RdmaHosts { client, server, .. } = world.hosts();
    world.block_on(async {
        let listener = server.bind(SERVER).await.expect("a free port");
        let mut streams = Vec::new();
        // The times end in another order than that of the drops.
        for linger in [3, 1, 2] {
            let (mut ours, theirs) = connect(&client, &listener).await;
            ours.write_all(&patterned(1000)).await.expect("writes");
            let set = ours.set_linger(Some(Duration::from_secs(linger)));
            set.expect("sets the linger time");
            streams.push(theirs);
        }
        world.sleep(Duration::from_secs(30)).await;
        for mut theirs in streams {
            expect_rest(&mut theirs, &patterned(1000)).await;
        }
    });
}

/// The peer of a stream that was dropped may read as late as it likes.
#[test]
fn a_close_that_the_peer_has_is_not_made_an_abort_by_the_close_timeout() {
    let world = RdmaWorld::new(81);
    let timeout = Duration::from_secs(7);
    let RdmaHosts { client, server, .. } =
        world.hosts_with(|builder| builder.close_timeout(timeout));
    world.block_on(async {
        let (mut ours, mut theirs) = rdma_pair(&client, &server).await;
        ours.write_all(&patterned(1000)).await.expect("writes");
        drop(ours);
        world.sleep(3 * timeout).await;
        assert!(client.connections().is_empty());
        expect_rest(&mut theirs, &patterned(1000)).await;
    });
}

#[test]
fn a_shutdown_of_both_directions_ends_a_peer_that_goes_on_writing() {
    let world = RdmaWorld::new(82);
    let RdmaHosts { client, server, .. } =
        world.hosts_with(|builder| builder.recv_buffer(64 * 1024));
    world.block_on(async {
        let (mut ours, mut theirs) = rdma_pair(&client, &server).await;
        // More than the peer's buffer, so that the end stays behind it.
        let data = patterned(150_000);
        ours.write_all(&data).await.expect("writes");
        ours.shutdown_how(Shutdown::Both).expect("shuts down");
        assert_eq!(ours.read(&mut [0; 1]).await.expect("is at the end"), 0);
        let late = ours.write(b"late").await.expect_err("is shut down");
        assert_eq!(late.kind(), ErrorKind::BrokenPipe);
        // Space for this data comes back, although it is not read; the peer is told behind the
        // data.
        let writing = async {
            theirs.write_all(&patterned(150_000)).await.expect("writes");
            let (got, end) = read_all(&mut theirs).await;
            assert!(got == data, "{} bytes", got.len());
            let error = end.expect_err("its data was not read");
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
            expect_write_error(&mut theirs, ErrorKind::ConnectionReset).await;
        };
        let (closed, ()) = zip(ours.close(), writing).await;
        closed.expect("delivers");
        drop((ours, theirs));
        world.sleep(Duration::from_secs(1)).await;
        assert!(client.connections().is_empty() && server.connections().is_empty());
    });
}

#[test]
fn a_shutdown_of_both_directions_with_unread_data_aborts() {
    let world = RdmaWorld::new(83);
    let RdmaHosts { client, server, .. } =
        world.hosts_with(|builder| builder.recv_buffer(64 * 1024));
    world.block_on(async {
        let listener = server.bind(SERVER).await.expect("a free port");
        for len in [1000, 150_000] {
            let (mut ours, mut theirs) = connect(&client, &listener).await;
            theirs.write_all(b"unread").await.expect("writes");
            let data = patterned(len);
            ours.write_all(&data).await.expect("writes");
            world.sleep(Duration::from_millis(1)).await;
            ours.shutdown_how(Shutdown::Both).expect("shuts down");
            let begin = world.elapsed();
            let error = ours.close().await.expect_err("no end follows the data");
            assert_eq!(error.kind(), ErrorKind::BrokenPipe, "{error}");
            let sent = len.min(64 * 1024);
            let kind = ErrorKind::ConnectionReset;
            expect_rest_and_error(&mut theirs, &data[..sent], kind).await;
            assert!(world.elapsed() - begin < Duration::from_secs(1));
        }
        let (mut ours, mut theirs) = connect(&client, &listener).await;
        theirs.write_all(b"unread").await.expect("writes");
        world.sleep(Duration::from_millis(1)).await;
        ours.write_all(&patterned(1000)).await.expect("writes");
        ours.shutdown_how(Shutdown::Both).expect("shuts down");
        let ((), took) = world.timed(client.close()).await;
        assert!(took < Duration::from_secs(1), "{took:?}");
    });
}

#[test]
fn a_zero_linger_time_resets_what_a_shutdown_of_both_directions_has_not_sent() {
    let world = RdmaWorld::new(84);
    let RdmaHosts { client, server, .. } =
        world.hosts_with(|builder| builder.recv_buffer(64 * 1024));
    world.block_on(async {
        let (mut ours, mut theirs) = rdma_pair(&client, &server).await;
        let data = patterned(150_000);
        ours.write_all(&data).await.expect("writes");
        ours.shutdown_how(Shutdown::Both).expect("shuts down");
        ours.set_zero_linger().expect("sets the linger time");
        drop(ours);
        world.sleep(Duration::from_secs(1)).await;
        let sent = 64 * 1024;
        expect_rest_and_error(&mut theirs, &data[..sent], ErrorKind::ConnectionReset).await;
        drop(theirs);
        world.sleep(Duration::from_secs(1)).await;
        assert!(client.connections().is_empty() && server.connections().is_empty());
    });
}

/// A hundred streams that the server has closed, with so much to send, and the client still has.
/// What does not fit into the client's buffer is sent in the background.
async fn closed_with_unsent(client: &Endpoint, server: &Endpoint, len: usize) -> Vec<Stream> {
    let listener = server.bind(SERVER).await.expect("works");
    let mut held = Vec::new();
    for _ in 0..100 {
        let (ours, mut theirs) = connect(client, &listener).await;
        theirs.write_all(&vec![7; len]).await.expect("works");
        drop(theirs);
        held.push(ours);
    }
    held
}

#[test]
fn very_many_streams_of_one_host_that_close_lose_no_data_that_is_still_to_be_sent() {
    const LEN: usize = 100_000;
    if !is_alone() {
        return;
    }
    limit_descriptors(1024);
    let world = RdmaWorld::new(80);
    let RdmaHosts { client, server, .. } =
        world.hosts_with(|builder| builder.recv_buffer(16 << 10));
    world.block_on(async {
        let mut held = closed_with_unsent(&client, &server, LEN).await;
        world.sleep(Duration::from_secs(1)).await;
        for ours in &mut held {
            expect_rest(ours, &[7; LEN]).await;
        }
    });
}

#[test]
fn a_host_that_reads_nothing_of_very_many_closed_streams_has_a_share_of_the_descriptors() {
    const LEN: usize = 100_000;
    if !is_alone() {
        return;
    }
    limit_descriptors(512);
    let world = RdmaWorld::new(81);
    let RdmaHosts { client, server, .. } =
        world.hosts_with(|builder| builder.recv_buffer(16 << 10));
    world.block_on(async {
        let mut held = closed_with_unsent(&client, &server, LEN).await;
        let open = server.connections().len();
        assert!((60..=64).contains(&open), "{open} of an eighth of 512");
        // The last one has all, and so has every one that still waits.
        expect_rest(held.last_mut().expect("the last"), &[7; LEN]).await;
    });
}
