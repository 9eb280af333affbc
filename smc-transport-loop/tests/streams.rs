//! Streams over loop devices, each end with an endpoint and a device of its own.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[macro_use]
mod common;

use std::io::{ErrorKind, IoSlice, IoSliceMut, Read as _, Write as _};
use std::net::Shutdown;
use std::time::Duration;

use futures_lite::future::zip;
use futures_lite::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _};
use smc::Interest;
use smc::error::CloseReason;
use smc::{Error, Mode, Policy, Stream};
use smc_testkit::on::until;
use smc_testkit::streams::{
    check_pattern, connect, connect_smc, expect, expect_error, expect_rest, expect_write_error,
    listen, pair, pattern, patterned, transfer,
};

use common::World;

scenarios! {
    echo_of_small_messages
    a_long_stream_both_ways_at_once
    half_close_then_the_answer
    dropping_with_unread_data_resets_the_peer
    dropping_in_order_is_end_of_stream
    zero_linger_resets
    vectored_writes_and_reads
    peeking_takes_nothing
    buffered_reads
    trying_never_waits
    halves_in_two_tasks
    a_dropped_write_half_shuts_down_unless_forgotten
    a_slow_reader_blocks_the_writer
    readiness_of_either_direction
    shutting_down_reading
    more_connections_join_the_group
    plain_clients_and_smc_clients_on_one_listener
    policies
    a_peer_that_maps_buffers_and_one_that_does_not_exchange_data
    a_write_after_the_own_shutdown_names_it
    a_stream_reports_that_its_own_endpoint_was_shut_down
    options_of_the_tcp_socket_read_back
}

async fn echo_of_small_messages(world: World) {
    let (mut client, mut server) = world.pair().await;
    for stream in [&client, &server] {
        match stream.mode() {
            Mode::SmcD {
                nocopy,
                version,
                release,
                ..
            } => {
                assert_eq!(*nocopy, world.nocopy);
                assert_eq!((version.get(), release.get()), (2, 1));
            }
            mode => panic!("{mode}"),
        }
    }
    for i in 0..1000_usize {
        let message = [pattern(i); 14];
        client.write_all(&message).await.unwrap();
        let mut received = [0; 14];
        server.read_exact(&mut received).await.unwrap();
        server.write_all(&received).await.unwrap();
        client.read_exact(&mut received).await.unwrap();
        assert_eq!(received, message);
    }
}

async fn a_long_stream_both_ways_at_once(world: World) {
    const LEN: usize = 20_000_000;
    let (client, server) = world.pair().await;
    zip(
        both_ways(client, LEN, 4_001),
        both_ways(server, LEN, 70_001),
    )
    .await;
}

/// Sends and checks the pattern at once, in pieces of `piece` bytes.
async fn both_ways(stream: Stream, len: usize, piece: usize) {
    let (mut from, mut to) = stream.into_split();
    let sending = async {
        let mut at = 0;
        while at < len {
            let bytes: Vec<u8> = (at..len.min(at + piece)).map(pattern).collect();
            to.write_all(&bytes).await.unwrap();
            at += bytes.len();
        }
        to.close().await.unwrap();
    };
    let receiving = async {
        let mut buf = vec![0; piece];
        let mut at = 0;
        loop {
            let count = from.read(&mut buf).await.unwrap();
            if count == 0 {
                break;
            }
            check_pattern(at, &buf[..count]);
            at += count;
        }
        assert_eq!(at, len);
    };
    zip(sending, receiving).await;
}

async fn half_close_then_the_answer(world: World) {
    let (mut client, mut server) = world.pair().await;
    client.write_all(b"question").await.unwrap();
    client.close().await.unwrap();
    client.close().await.unwrap();
    let refused = client.write(b"more").await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::BrokenPipe);

    expect_rest(&mut server, "question").await;
    server.write_all(b"answer").await.unwrap();
    drop(server);
    expect_rest(&mut client, "answer").await;
}

async fn dropping_with_unread_data_resets_the_peer(world: World) {
    let (mut client, server) = world.pair().await;
    client.write_all(b"never read").await.unwrap();
    drop(server);
    expect_error(&mut client, ErrorKind::ConnectionReset).await;
    expect_write_error(&mut client, ErrorKind::ConnectionReset).await;
}

async fn dropping_in_order_is_end_of_stream(world: World) {
    let (mut client, mut server) = world.pair().await;
    server.write_all(b"the last words").await.unwrap();
    drop(server);
    // What was written before is read, and the end again and again.
    expect_rest(&mut client, b"the last words").await;
    assert_eq!(client.read(&mut [0; 8]).await.unwrap(), 0);
    // What is written now would not be read.
    let error = client.write(b"refused").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    assert_eq!(error.to_string(), "connection closed by peer");
    let reason = Error::from(client.try_write(b"refused").unwrap_err());
    assert_eq!(reason, Error::Closed(CloseReason::Peer));
}

async fn zero_linger_resets(world: World) {
    let (mut client, server) = world.pair().await;
    server.set_zero_linger().unwrap();
    drop(server);
    expect_error(&mut client, ErrorKind::ConnectionReset).await;
}

async fn vectored_writes_and_reads(world: World) {
    let (mut client, mut server) = world.pair().await;
    let parts = [
        IoSlice::new(b"one "),
        IoSlice::new(b""),
        IoSlice::new(b"two"),
    ];
    assert_eq!(client.write_vectored(&parts).await.unwrap(), 7);
    let (mut a, mut b) = ([0; 3], [0; 10]);
    server.readable().await.unwrap();
    let mut parts = [IoSliceMut::new(&mut a), IoSliceMut::new(&mut b)];
    assert_eq!(server.read_vectored(&mut parts).await.unwrap(), 7);
    assert_eq!((&a, &b[..4]), (b"one", &b" two"[..]));
}

async fn peeking_takes_nothing(world: World) {
    let (mut client, mut server) = world.pair().await;
    client.write_all(b"look").await.unwrap();
    let mut buf = [0; 8];
    for _ in 0..3 {
        assert_eq!(server.peek(&mut buf).await.unwrap(), 4);
    }
    assert_eq!(server.read(&mut buf).await.unwrap(), 4);
    assert_eq!(&buf[..4], b"look");
}

async fn buffered_reads(world: World) {
    let (mut client, mut server) = world.pair().await;
    let writing = async {
        for i in 0..50_000 {
            client
                .write_all(format!("line {i}\n").as_bytes())
                .await
                .unwrap();
        }
        client.close().await.unwrap();
    };
    let reading = async {
        let mut i = 0;
        let mut begun = String::new();
        loop {
            let mut line = String::new();
            if server.read_line(&mut line).await.unwrap() == 0 {
                break;
            }
            assert_eq!(begun + &line, format!("line {i}\n"));
            i += 1;
            begun = String::new();
            if i % 1000 == 0 && i < 50_000 {
                // Buffered and direct reads see one stream.
                let mut direct = [0; 3];
                server.read_exact(&mut direct).await.unwrap();
                begun.push_str(std::str::from_utf8(&direct).unwrap());
            }
        }
        assert_eq!(i, 50_000);
    };
    zip(writing, reading).await;
}

async fn trying_never_waits(world: World) {
    let (client, server) = world.pair().await;
    let mut buf = [0; 4096];
    let empty = server.try_read(&mut buf).unwrap_err();
    assert_eq!(empty.kind(), ErrorKind::WouldBlock);
    let mut written = 0;
    let full = loop {
        match client.try_write(&[7; 4096]) {
            Ok(count) => written += count,
            Err(error) => break error,
        }
    };
    assert_eq!(full.kind(), ErrorKind::WouldBlock);
    assert_eq!(
        Some(written),
        server.recv_buffer_size(),
        "every byte of the ring is used"
    );
    assert_eq!(client.peer_recv_buffer_size(), server.recv_buffer_size());
    let mut read = Vec::new();
    while let Ok(count) = server.try_read_buf(&mut read) {
        assert!(count > 0);
        read.reserve(10_000);
    }
    assert_eq!(read.len(), written);
    client.writable().await.unwrap();
    let parts = [IoSlice::new(b"ab"), IoSlice::new(b"c")];
    assert_eq!(client.try_write_vectored(&parts).unwrap(), 3);
    server.readable().await.unwrap();
    assert_eq!(server.try_read(&mut buf).unwrap(), 3);
}

async fn halves_in_two_tasks(world: World) {
    let (client, server) = world.pair().await;
    let (from, to) = server.into_split();
    let copying = async {
        futures_lite::io::copy(from, to).await.unwrap();
    };
    zip(copying, both_ways(client, 3_000_000, 10_007)).await;
}

async fn a_dropped_write_half_shuts_down_unless_forgotten(world: World) {
    let (mut client, server) = world.pair().await;
    let (read, write) = server.into_split();
    drop(write);
    assert_eq!(client.read(&mut [0; 1]).await.unwrap(), 0);
    client.write_all(b"still read").await.unwrap();
    read.readable().await.unwrap();
    assert_eq!(read.try_read(&mut [0; 20]).unwrap(), 10);

    let (mut client, server) = world.pair().await;
    let (read, write) = server.into_split();
    write.forget();
    let empty = client.try_read(&mut [0; 1]).unwrap_err();
    assert_eq!(empty.kind(), ErrorKind::WouldBlock);
    client.write_all(b"x").await.unwrap();
    read.readable().await.unwrap();

    let (mut client, server) = world.pair().await;
    let (_, other) = world.pair().await;
    let (read, write) = server.into_split();
    let (other_read, _other_write) = other.into_split();
    let error = other_read.reunite(write).unwrap_err();
    let mut server = read.reunite(error.1).unwrap();
    server.write_all(b"one again").await.unwrap();
    client.read_exact(&mut [0; 9]).await.unwrap();
}

async fn a_slow_reader_blocks_the_writer(world: World) {
    const LEN: usize = 5_000_000;
    let (mut client, mut server) = world.pair().await;
    let bytes = patterned(LEN);
    let writing = async {
        client.write_all(&bytes).await.unwrap();
        client.close().await.unwrap();
    };
    let reading = async {
        let mut at = 0;
        let mut buf = [0; 1999];
        loop {
            for _ in 0..3 {
                futures_lite::future::yield_now().await;
            }
            let count = server.read(&mut buf).await.unwrap();
            if count == 0 {
                break;
            }
            check_pattern(at, &buf[..count]);
            at += count;
        }
        assert_eq!(at, LEN);
    };
    zip(writing, reading).await;
}

async fn readiness_of_either_direction(world: World) {
    let (mut client, server) = world.pair().await;
    let ready = server
        .ready(Interest::READABLE | Interest::WRITABLE)
        .await
        .unwrap();
    assert!(ready.writable && !ready.readable);
    let waiting = server.ready(Interest::READABLE);
    let writing = client.write_all(b"x");
    let (ready, _) = zip(waiting, writing).await;
    assert!(ready.unwrap().readable);
    // Any number of tasks may wait.
    let all = zip(server.readable(), zip(server.readable(), server.writable()));
    all.await.0.unwrap();
}

async fn shutting_down_reading(world: World) {
    let (mut client, mut server) = world.pair().await;
    server.shutdown_how(Shutdown::Read).unwrap();
    assert_eq!(server.read(&mut [0; 1]).await.unwrap(), 0);
    server.write_all(b"still written").await.unwrap();
    client.read_exact(&mut [0; 13]).await.unwrap();
    server.shutdown_how(Shutdown::Both).unwrap();
    assert_eq!(client.read(&mut [0; 1]).await.unwrap(), 0);
    let error = client.write(b"unsent").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
}

async fn more_connections_join_the_group(world: World) {
    let (client, server) = (world.endpoint(), world.endpoint());
    let listener = listen(&server).await;
    let mut streams = Vec::new();
    for count in 1..=5 {
        streams.push(connect(&client, &listener).await);
        for endpoint in [&client, &server] {
            assert_eq!(endpoint.link_groups().len(), 1);
            assert_eq!(endpoint.link_groups()[0].connections, count);
            assert_eq!(endpoint.connections().len(), count);
        }
    }
    for (client, mut server) in streams.drain(..) {
        drop(client);
        assert_eq!(server.read(&mut [0; 1]).await.unwrap(), 0);
    }
    let left = || client.connections().len() + server.connections().len();
    until(
        || left() == 0,
        || format!("{} connections are left", left()),
    )
    .await;
    assert_eq!(
        client.link_groups()[0].connections,
        0,
        "the group stays for a while"
    );
}

async fn plain_clients_and_smc_clients_on_one_listener(world: World) {
    let (client, server) = (world.endpoint(), world.endpoint());
    let listener = listen(&server).await;
    let addr = listener.local_addr().unwrap();
    for _ in 0..3 {
        let _streams = connect_smc(&client, &listener).await;

        // A plain client of a protocol in which the server speaks first.
        let mut plain = std::net::TcpStream::connect(addr).unwrap();
        let (mut accepted, peer) = listener.accept().await.unwrap();
        assert_eq!(peer, plain.local_addr().unwrap());
        let reason = accepted.fallback_reason().unwrap();
        assert_eq!(reason.to_string().split(' ').next(), Some("0x03010000"));
        accepted.write_all(b"220 ready").await.unwrap();
        let mut greeting = [0; 9];
        plain.read_exact(&mut greeting).unwrap();
        assert_eq!(&greeting, b"220 ready");
        plain.write_all(b"HELO").unwrap();
        expect(&mut accepted, b"HELO").await;
    }
}

async fn policies(world: World) {
    let server = world.endpoint();
    let listener = listen(&server).await;
    let addr = listener.local_addr().unwrap();

    let never = world.builder().policy(Policy::Never).build().unwrap();
    let (stream, accepted) = connect(&never, &listener).await;
    assert!(!stream.mode().is_smc() && !accepted.mode().is_smc());

    let require = world.builder().policy(Policy::Require).build().unwrap();
    connect_smc(&require, &listener).await;
    let plain = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let error = require
        .connect(plain.local_addr().unwrap())
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Declined(_)), "{error}");
    let kind = std::io::Error::from(error).kind();
    assert_eq!(kind, ErrorKind::ConnectionRefused);

    // A listener that wants no SMC does not keep clients waiting for an answer.
    let plain_server = world.builder().policy(Policy::Never).build().unwrap();
    let plain_listener = listen(&plain_server).await;
    let waiting = world.builder().handshake_timeout(Duration::from_secs(3600));
    let (stream, _accepted) = connect(&waiting.build().unwrap(), &plain_listener).await;
    assert!(!stream.mode().is_smc());

    let by_address = world.builder().policy_for(move |to| match *to == addr {
        true => Policy::Never,
        false => Policy::Prefer,
    });
    let (stream, _accepted) = connect(&by_address.build().unwrap(), &listener).await;
    assert!(!stream.mode().is_smc());
}

async fn a_peer_that_maps_buffers_and_one_that_does_not_exchange_data(world: World) {
    let client = world.endpoint();
    let server = common::builder(world.on, !world.nocopy, world.dir())
        .build()
        .unwrap();
    let (mut ours, mut theirs) = pair(&client, &server).await;
    let maps = |stream: &Stream| match stream.mode() {
        Mode::SmcD { nocopy, .. } => *nocopy,
        mode => panic!("{mode}"),
    };
    assert_eq!((maps(&ours), maps(&theirs)), (world.nocopy, !world.nocopy));
    transfer(&mut ours, &mut theirs, 200_000).await;
    transfer(&mut theirs, &mut ours, 200_000).await;
}

async fn a_write_after_the_own_shutdown_names_it(world: World) {
    let (mut client, mut server) = world.pair().await;
    client.shutdown_how(Shutdown::Write).unwrap();
    let is_named = |error: std::io::Error| {
        assert_eq!(error.kind(), ErrorKind::BrokenPipe, "{error}");
        assert!(
            error.to_string().contains("shut down for writing"),
            "{error}"
        );
    };
    is_named(client.write(b"late").await.unwrap_err());
    assert_eq!(server.read(&mut [0; 1]).await.unwrap(), 0);
    // Whatever ends the rest of the stream, as over TCP.
    server.set_zero_linger().unwrap();
    drop(server);
    let reset = client.read(&mut [0; 1]).await.unwrap_err();
    assert_eq!(reset.kind(), ErrorKind::ConnectionReset);
    is_named(client.write(b"later").await.unwrap_err());
}

async fn a_stream_reports_that_its_own_endpoint_was_shut_down(world: World) {
    let (client, server) = (world.endpoint(), world.endpoint());
    let listener = listen(&server).await;
    let (mut ours, _theirs) = connect(&client, &listener).await;
    let (mut shut, _other) = connect(&client, &listener).await;
    shut.shutdown_how(Shutdown::Write).unwrap();
    client.shutdown();
    for failed in [
        ours.read(&mut [0; 1]).await,
        ours.write(b"late").await,
        shut.read(&mut [0; 1]).await,
    ] {
        let error = failed.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionAborted, "{error}");
        assert!(error.to_string().contains("endpoint"), "{error}");
    }
    let error = shut.write(b"late").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BrokenPipe, "{error}");
}

async fn options_of_the_tcp_socket_read_back(world: World) {
    let (client, _server) = world.pair().await;
    client.set_ttl(7).unwrap();
    assert_eq!(client.ttl().unwrap(), 7);
    assert!(!client.keepalive().unwrap());
    client.set_keepalive(true).unwrap();
    assert!(client.keepalive().unwrap());

    let (reading, writing) = client.into_split();
    assert_eq!(reading.fallback_reason(), None);
    assert_eq!(writing.fallback_reason(), None);
}
