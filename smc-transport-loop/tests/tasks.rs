//! Streams and listeners among several tasks: which tasks are woken, and fairness.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[macro_use]
mod common;

use std::future::{Future as _, poll_fn};
use std::io::ErrorKind;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use futures_lite::future::{poll_once, yield_now, zip};
use futures_lite::{AsyncReadExt as _, AsyncWriteExt as _, FutureExt as _, pin};
use smc::Interest;
use smc::{Endpoint, Policy, Stream};
use smc_testkit::middleware::{Fault, Faults};
use smc_testkit::on::until;
use smc_testkit::streams::{connect, expect, expect_error, expect_rest, listen, pair};

use common::World;

scenarios! {
    two_tasks_in_accept_both_get_a_stream
    shutting_down_reading_wakes_waiting_tasks
    any_number_of_tasks_wait_for_a_plain_stream
    any_number_of_tasks_peek_at_an_smc_stream
    any_number_of_tasks_peek_at_a_plain_stream
    tasks_that_wait_in_different_ways_are_all_woken
    a_setup_that_fails_at_the_other_end_last_is_noticed
    a_listener_need_not_wait_for_a_client_that_has_been_there
    a_client_that_cannot_do_what_it_has_confirmed_tries_again
    a_stream_that_always_has_data_gives_others_a_turn
}

/// An endpoint with a device that fails now and then.
fn faulty(world: &World, seed: u64, faults: Faults) -> Endpoint {
    let device = Arc::new(common::device(world.dir()).build().unwrap());
    let endpoint = common::without_device(world.on, world.dir());
    endpoint
        .device(Fault::new(device, seed, faults))
        .build()
        .unwrap()
}

async fn two_tasks_in_accept_both_get_a_stream(world: World) {
    let server = world.endpoint();
    let listener = listen(&server).await;
    let addr = listener.local_addr().unwrap();
    let (first, second) = (listener.accept(), listener.accept());
    pin!(first);
    pin!(second);
    // Both sleep, then two connections come before either is polled again.
    assert!(poll_once(&mut first).await.is_none() && poll_once(&mut second).await.is_none());
    let _clients = [
        TcpStream::connect(addr).unwrap(),
        TcpStream::connect(addr).unwrap(),
    ];
    let (first, second) = zip(first, second).await;
    first.unwrap();
    second.unwrap();
}

async fn shutting_down_reading_wakes_waiting_tasks(world: World) {
    let (client, _server) = world.pair().await;
    let waiting = client.readable();
    pin!(waiting);
    assert!(poll_once(&mut waiting).await.is_none());
    client.shutdown_how(Shutdown::Read).unwrap();
    waiting.await.unwrap();
    assert_eq!(client.try_read(&mut [0; 1]).unwrap(), 0);
}

async fn any_number_of_tasks_wait_for_a_plain_stream(world: World) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = world
        .endpoint()
        .connect(listener.local_addr().unwrap())
        .await
        .unwrap();
    assert!(!client.mode().is_smc());
    let (mut server, _) = listener.accept().unwrap();
    let (first, second, third) = (client.readable(), client.readable(), client.readable());
    pin!(first);
    pin!(second);
    {
        // One that gives up waiting does not keep the others from being woken.
        pin!(third);
        assert!(poll_once(&mut third).await.is_none());
        assert!(poll_once(&mut first).await.is_none());
        assert!(poll_once(&mut second).await.is_none());
    }
    std::io::Write::write_all(&mut server, b"x").unwrap();
    let (first, second) = zip(first, second).await;
    first.unwrap();
    second.unwrap();
}

/// Two ends of a stream that is SMC, or else plain TCP.
async fn ends(world: &World, is_smc: bool) -> (Stream, Stream) {
    if is_smc {
        return world.pair().await;
    }
    let plain = || world.builder().policy(Policy::Never).build().unwrap();
    pair(&plain(), &plain()).await
}

async fn any_number_of_tasks_peek_at_an_smc_stream(world: World) {
    two_that_peek(ends(&world, true).await).await;
}

async fn any_number_of_tasks_peek_at_a_plain_stream(world: World) {
    two_that_peek(ends(&world, false).await).await;
}

async fn two_that_peek((stream, mut peer): (Stream, Stream)) {
    let peek = async || {
        let mut buf = [0; 4];
        assert_eq!(stream.peek(&mut buf).await.unwrap(), 4);
        buf
    };
    let (first, second) = (peek(), peek());
    pin!(first);
    pin!(second);
    {
        // One that gives up waiting does not keep the others from being woken.
        let third = peek();
        pin!(third);
        assert!(poll_once(&mut first).await.is_none());
        assert!(poll_once(&mut third).await.is_none());
        assert!(poll_once(&mut second).await.is_none());
    }
    let writing = async { peer.write_all(b"abcd").await.unwrap() };
    let (woken, ()) = zip(zip(first, second), writing).await;
    assert_eq!(woken, (*b"abcd", *b"abcd"));
}

async fn tasks_that_wait_in_different_ways_are_all_woken(world: World) {
    for is_smc in [true, false] {
        let (stream, mut peer) = ends(&world, is_smc).await;
        let mut buf = [0; 4];
        let (readable, peek) = (stream.readable(), stream.peek(&mut buf));
        let ready = stream.ready(Interest::READABLE);
        let polled = poll_fn(|cx| stream.poll_read_ready(cx));
        pin!(readable);
        pin!(peek);
        pin!(ready);
        pin!(polled);
        assert!(poll_once(&mut readable).await.is_none());
        assert!(poll_once(&mut peek).await.is_none());
        assert!(poll_once(&mut ready).await.is_none());
        // Each waits as a task of its own: its waker is no other's.
        let waiting = [(); 4].map(|()| Arc::new(Counter::default()));
        let wakers = waiting.clone().map(Waker::from);
        let mut cx = wakers.each_ref().map(Context::from_waker);
        assert!(readable.as_mut().poll(&mut cx[0]).is_pending());
        assert!(peek.as_mut().poll(&mut cx[1]).is_pending());
        assert!(ready.as_mut().poll(&mut cx[2]).is_pending());
        assert!(polled.as_mut().poll(&mut cx[3]).is_pending());
        peer.write_all(b"abcd").await.unwrap();
        for (at, waiter) in waiting.iter().enumerate() {
            let is_woken = || waiter.0.load(Ordering::Acquire) > 0;
            until(is_woken, || {
                format!("is SMC: {is_smc}, number {at} is not woken")
            })
            .await;
        }
        readable.await.unwrap();
        assert_eq!(peek.await.unwrap(), 4);
        assert!(ready.await.unwrap().readable);
        polled.await.unwrap();
    }
}

/// A task that is only ever woken.
#[derive(Debug, Default)]
struct Counter(AtomicUsize);

impl Wake for Counter {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Release);
    }
}

async fn a_setup_that_fails_at_the_other_end_last_is_noticed(world: World) {
    if !world.nocopy {
        // Only what is attached can fail to be.
        return;
    }
    let server = faulty(&world, 1, Faults::default().with_unattachable(1000));
    let listener = listen(&server).await;
    // For the client set-up ends with its last message.
    let mut client = world
        .endpoint()
        .connect(listener.local_addr().unwrap())
        .await
        .unwrap();
    assert!(client.mode().is_smc());
    expect_error(&mut client, ErrorKind::ConnectionAborted).await;
}

async fn a_listener_need_not_wait_for_a_client_that_has_been_there(world: World) {
    let (client, server) = (world.endpoint(), world.endpoint());
    let listener = listen(&server).await;
    let addr = listener.local_addr().unwrap();
    // The first connection makes the link group, the second shows what the next ones come to.
    let _before = [
        connect(&client, &listener).await,
        connect(&client, &listener).await,
    ];
    for _ in 0..ATTEMPTS {
        let connecting = client.connect(addr);
        pin!(connecting);
        // Where tasks have a thread of their own it may have been answered already.
        let connected = poll_once(&mut connecting).await;
        // The client has no other turn until the server has its stream and has answered on it.
        let accepted = async { Some(listener.accept().await.unwrap().0) };
        let late = async {
            async_io::Timer::after(Duration::from_millis(200)).await;
            None
        };
        let Some(mut accepted) = accepted.or(late).await else {
            // It had to search for the listener again, which is forgotten after some milliseconds.
            let (connected, accepted) = zip(connecting, listener.accept()).await;
            assert!(connected.is_ok() && accepted.is_ok());
            continue;
        };
        accepted.write_all(b"accepts").await.unwrap();
        let mut connected = match connected {
            Some(connected) => connected.unwrap(),
            None => connecting.await.unwrap(),
        };
        expect(&mut connected, b"accepts").await;
        connected.write_all(b"thanks").await.unwrap();
        drop(connected);
        return expect_rest(&mut accepted, "thanks").await;
    }
    panic!("the listener has waited for its client each time");
}

/// How often a client may have forgotten its listener between two connections.
const ATTEMPTS: u32 = 50;

async fn a_client_that_cannot_do_what_it_has_confirmed_tries_again(world: World) {
    if !world.nocopy {
        return;
    }
    let client = faulty(&world, 7, Faults::default().with_unattachable(400));
    let server = world.endpoint();
    let listener = listen(&server).await;
    let addr = listener.local_addr().unwrap();
    let accepted = AtomicUsize::new(0);
    let serving = async {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            accepted.fetch_add(1, Ordering::Relaxed);
            // Streams of clients that gave up end here.
            let mut byte = [0; 1];
            if stream.read_exact(&mut byte).await.is_ok() {
                stream.write_all(&byte).await.unwrap();
            }
        }
    };
    let connecting = async {
        let (mut smc, mut tcp) = (0, 0);
        for byte in 0..60 {
            let mut stream = client.connect(addr).await.unwrap();
            match stream.mode().is_smc() {
                true => smc += 1,
                false => tcp += 1,
            }
            let mut echo = [0; 1];
            stream.write_all(&[byte]).await.unwrap();
            stream.read_exact(&mut echo).await.unwrap();
            assert_eq!(echo, [byte]);
        }
        (smc, tcp)
    };
    let (smc, tcp) = futures_lite::future::or(connecting, serving).await;
    assert!(smc > 0 && tcp > 0, "{smc} SMC, {tcp} TCP");
    let accepted = accepted.load(Ordering::Relaxed);
    assert!(
        accepted > 60,
        "only {accepted} connections, no connection was retried"
    );
}

async fn a_stream_that_always_has_data_gives_others_a_turn(world: World) {
    let (mut client, mut server) = world.pair().await;
    client.write_all(&vec![7; 100_000]).await.unwrap();
    let turns = AtomicUsize::new(0);
    let reading = async {
        for _ in 0..100_000 {
            server.read_exact(&mut [0; 1]).await.unwrap();
        }
        turns.load(Ordering::Relaxed)
    };
    let others = async {
        loop {
            turns.fetch_add(1, Ordering::Relaxed);
            yield_now().await;
        }
    };
    let turns = futures_lite::future::or(reading, others).await;
    assert!(
        turns >= 100_000 / 200,
        "{turns} turns of others in 100,000 reads"
    );
}
