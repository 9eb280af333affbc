//! A task that always finds a stream ready leaves turns to other tasks of its executor, whatever
//! the peer does; and clients that are not accepted leave descriptors to the process.

#![cfg(all(feature = "smol", feature = "tokio"))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::Write as _;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;

use futures_lite::future::{or, yield_now};
use futures_lite::{AsyncReadExt as _, AsyncWriteExt as _};
use smc::negotiate::Assume;
use smc::{Policy, Stream};
use smc_testkit::memory_device::MemFabric;
use smc_testkit::on::{self, On};
use smc_testkit::process::is_alone;
use smc_testkit::resources::limit_descriptors;
use smc_testkit::streams::{listen, pair};
use smc_testkit::wait::TIMEOUT;

/// Repeats a call until another task of the same executor has had its turns.
async fn with_another_task(mut call: impl AsyncFnMut()) {
    let has_ended = AtomicBool::new(false);
    let other = async {
        for _ in 0..10 {
            yield_now().await;
        }
        has_ended.store(true, Ordering::Relaxed);
        std::future::pending().await
    };
    let calls = async {
        while !has_ended.load(Ordering::Relaxed) {
            call().await;
        }
    };
    // The first one is polled first, and the other one when that waits.
    or(calls, other).await;
}

/// Runs a scenario on one thread, which a task that never waits would keep for ever.
fn in_time(on: On, scenario: impl AsyncFnOnce() + Send + 'static) {
    let (ended_tx, ended) = channel();
    thread::spawn(move || {
        on.run_unbounded(scenario());
        ended_tx.send(()).unwrap();
    });
    ended.recv_timeout(TIMEOUT).unwrap();
}

const RUNTIMES: [On; 2] = [On::TokioAlone, On::Smol];

/// A stream to a client that stays TCP and sends without end.
async fn flooded(on: On) -> Stream {
    let endpoint = on.builder().policy(Policy::Never).build().unwrap();
    let listener = listen(&endpoint).await;
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    thread::spawn(move || while client.write_all(&[7; 65536]).is_ok() {});
    listener.accept().await.unwrap().0
}

#[test]
fn reading_from_a_tcp_peer_that_sends_without_end() {
    for on in RUNTIMES {
        in_time(on, async move || {
            let mut stream = flooded(on).await;
            with_another_task(async || {
                stream.read_exact(&mut [0]).await.unwrap();
            })
            .await;
            with_another_task(async || {
                stream.peek(&mut [0]).await.unwrap();
            })
            .await;
            with_another_task(async || stream.readable().await.unwrap()).await;
        });
    }
}

#[test]
fn looking_at_data_that_is_not_consumed() {
    for on in RUNTIMES {
        in_time(on, async move || {
            let fabric = MemFabric::new(1);
            let endpoint = |name| {
                let builder = on.endpoint().device(fabric.device(name));
                builder
                    .negotiation(Arc::new(Assume::new()))
                    .build()
                    .unwrap()
            };
            let (mut near, far) = pair(&endpoint("client"), &endpoint("server")).await;
            assert!(far.mode().is_smc());
            near.write_all(&[1]).await.unwrap();
            with_another_task(async || {
                far.peek(&mut [0; 4]).await.unwrap();
            })
            .await;
            with_another_task(async || far.readable().await.unwrap()).await;
        });
    }
}

#[test]
fn clients_that_are_not_accepted_leave_descriptors_to_the_process() {
    if !is_alone() {
        return;
    }
    limit_descriptors(512);
    for on in RUNTIMES {
        on.run_unbounded(async {
            let endpoint = on.builder().policy(Policy::Never).build().unwrap();
            let listener = listen(&endpoint).await;
            let at = listener.local_addr().unwrap();
            // A sixteenth of 512.
            let most = 32;
            let clients: Vec<_> = (0..100).map(|_| TcpStream::connect(at).unwrap()).collect();
            let ready = || endpoint.listener_infos()[0].ready;
            on::until(|| ready() >= most, || format!("{} are ready", ready())).await;
            for _ in 0..100 {
                yield_now().await;
                assert!(ready() <= most, "{} of {most}", ready());
            }
            // The others were not refused.
            for _ in &clients {
                listener.accept().await.unwrap();
            }
        });
    }
}
