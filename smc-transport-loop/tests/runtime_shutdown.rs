//! Endpoints and streams whose runtime has ended.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::future::{Future, poll_fn};
use std::io::{self, ErrorKind};
use std::pin::pin;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use common::World;
use futures_lite::{AsyncReadExt as _, AsyncWriteExt as _};
use smc::runtime::tokio::TokioRuntime;
use smc::{Endpoint, Error, Listener, Stream};
use smc_testkit::on::{On, in_time};
use smc_testkit::streams::{connect_smc, expect, listen, ping_pong};
use tokio::runtime::Runtime;

/// A runtime that ends. An executor of smol does not as long as an endpoint holds it.
struct Ending(Runtime);

impl Ending {
    fn all() -> [Self; 2] {
        [On::TokioAlone, On::Tokio].map(|on| Self(on.tokio()))
    }

    fn endpoint(&self, world: &World) -> Endpoint {
        let runtime = TokioRuntime::new(self.0.handle().clone());
        world.builder().runtime(Arc::new(runtime)).build().unwrap()
    }

    fn run<T>(&self, work: impl Future<Output = T>) -> T {
        self.0.block_on(bounded(work))
    }
}

/// Streams of an endpoint on a runtime that has ended, and its peer on one that goes on.
struct Left {
    endpoint: Endpoint,
    listener: Listener,
    ours: Stream,
    theirs: Stream,
    peer: Endpoint,
}

impl Left {
    /// Before the end.
    fn new(ending: &Ending, world: &World) -> Self {
        let (endpoint, peer) = (ending.endpoint(world), world.endpoint());
        ending.run(async {
            let listener = listen(&endpoint).await;
            let (theirs, ours) = connect_smc(&peer, &listener).await;
            let mut both = (theirs, ours);
            ping_pong(&mut both).await;
            let (theirs, ours) = both;
            Self {
                endpoint,
                listener,
                ours,
                theirs,
                peer,
            }
        })
    }
}

fn each(mut scenario: impl FnMut(Ending, World)) {
    for nocopy in [true, false] {
        for ending in Ending::all() {
            scenario(ending, World::new(On::Smol, nocopy));
        }
    }
}

fn bounded<T>(work: impl Future<Output = T>) -> impl Future<Output = T> {
    in_time(Duration::from_secs(60), work)
}

fn names_the_runtime(error: &io::Error) -> bool {
    error.to_string().contains("runtime")
}

fn is_misuse<T>(made: Result<T, Error>) -> bool {
    match made {
        Err(error @ Error::Misuse(_)) => names_the_runtime(&error.into()),
        _ => false,
    }
}

#[test]
fn an_endpoint_whose_runtime_has_ended_makes_no_streams() {
    each(|ending, world| {
        let left = Left::new(&ending, &world);
        drop(ending);
        smol::block_on(bounded(async {
            let server = left.peer.bind("127.0.0.1:0").await.unwrap();
            let at = server.local_addr().unwrap();
            assert!(is_misuse(left.endpoint.connect(at).await.map(drop)));
            assert!(is_misuse(left.endpoint.bind("127.0.0.1:0").await));
            let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            assert!(is_misuse(left.endpoint.listen_on(socket)));
            for _ in 0..2 {
                let error = left.listener.accept().await.unwrap_err();
                assert!(names_the_runtime(&error), "{error}");
                // What loops around `accept` take for the end of one client are other kinds.
                assert_eq!(error.kind(), ErrorKind::InvalidInput);
            }
        }));
    });
}

#[test]
fn a_stream_whose_runtime_has_ended_reads_what_is_there_and_does_not_wait() {
    each(|ending, world| {
        let Left {
            mut ours,
            mut theirs,
            ..
        } = Left::new(&ending, &world);
        drop(ending);
        smol::block_on(bounded(async {
            theirs.write_all(b"late").await.unwrap();
            let mut word = [0; 4];
            expect(&mut ours, b"late").await;
            for error in [
                ours.read(&mut word).await.unwrap_err(),
                ours.peek(&mut word).await.unwrap_err(),
                ours.readable().await.unwrap_err(),
            ] {
                assert!(names_the_runtime(&error), "{error}");
                assert_eq!(error.kind(), ErrorKind::ConnectionAborted);
            }
            ours.write_all(b"late").await.unwrap();
            theirs.read_exact(&mut word).await.unwrap();
            // The peer does not read: there is space for a while.
            let error = loop {
                match ours.write(&[0; 64 * 1024]).await {
                    Ok(_) => {}
                    Err(error) => break error,
                }
            };
            assert!(names_the_runtime(&error), "{error}");
            // The end of stream is published nevertheless.
            ours.close().await.unwrap();
            let mut rest = Vec::new();
            theirs.read_to_end(&mut rest).await.unwrap();
            theirs.close().await.unwrap();
            assert_eq!(ours.read(&mut word).await.unwrap(), 0);
        }));
    });
}

#[test]
fn waiting_tasks_are_woken_when_the_runtime_ends() {
    each(|ending, world| {
        let Left {
            mut ours,
            theirs,
            listener,
            endpoint,
            peer,
        } = Left::new(&ending, &world);
        let waiting = [
            wait(async move { ours.read(&mut [0; 8]).await.unwrap_err() }),
            wait(async move { listener.accept().await.unwrap_err() }),
        ];
        drop(ending);
        for task in waiting {
            let error = task.join().unwrap();
            assert!(names_the_runtime(&error), "{error}");
        }
        drop((theirs, endpoint, peer));
    });
}

/// Waits on a thread of its own; returns when it does.
fn wait<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> thread::JoinHandle<T> {
    let (asleep, sleeps) = mpsc::channel();
    let task = thread::spawn(move || {
        smol::block_on(bounded(async {
            let mut work = pin!(work);
            poll_fn(|cx| {
                let polled = work.as_mut().poll(cx);
                let _sent_once = asleep.send(());
                polled
            })
            .await
        }))
    });
    sleeps.recv().unwrap();
    task
}

#[test]
fn closing_an_endpoint_whose_runtime_has_ended_does_not_wait() {
    each(|ending, world| {
        let Left {
            endpoint,
            ours,
            mut theirs,
            ..
        } = Left::new(&ending, &world);
        drop(ending);
        drop(ours);
        smol::block_on(bounded(async {
            endpoint.close().await;
            assert_eq!(theirs.read(&mut [0; 8]).await.unwrap(), 0);
        }));
    });
}
