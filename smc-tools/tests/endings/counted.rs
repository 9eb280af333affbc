//! The same ending again and again: not one connection may be lost.
//!
//! A round is two connections, the second of them in the link group of the first; with a busy
//! listener it is one. The rounds of a test are divided among its fabrics.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::path::Path;
use std::thread;
use std::time::Duration;

use futures_lite::future::yield_now;
use futures_lite::{AsyncReadExt as _, AsyncWriteExt as _, FutureExt as _};
use smc::info::GroupState;
use smc::{Endpoint, Stream};

use crate::process::{Process, TIMEOUT};
use crate::rounds;
use crate::script::{End, Part, Step, pattern};
use smc_testkit::on::{On, in_time};
use smc_testkit::streams::listen;

use crate::world::Fabric;

const SHORT: usize = 5;
const LONG: usize = 100_000;

/// A scenario on each runtime, and on the other fabrics.
macro_rules! on_all {
    ($scenario:ident, $tokio:ident on [$($on:ident),*], $smol:ident, $others:ident) => {
        #[test]
        fn $tokio() {
            $($scenario(On::$on, Fabric::LOOP, rounds());)*
        }

        #[test]
        fn $smol() {
            $scenario(On::Smol, Fabric::LOOP, rounds());
        }

        #[test]
        fn $others() {
            let others = Fabric::all().filter(|fabric| *fabric != Fabric::LOOP);
            let on = |number: usize| On::ALL[number % 3];
            divided(others, |number, fabric, rounds| $scenario(on(number), fabric, rounds));
        }
    };
}

mod clients_that_end_after_their_last_write_are_accepted {
    use super::*;

    /// Processes: each connects twice, the second time in the link group of the first.
    fn processes(on: On, fabric: Fabric, rounds: u64) {
        counted(on, fabric, rounds, async |endpoint, dir| {
            let listener = listen(endpoint).await;
            let part = client(on, fabric, dir, listener.local_addr().unwrap(), 2);
            for round in 0..rounds {
                let client = Process::start(&part);
                for which in 0..2 {
                    let accepted = within(listener.accept()).await;
                    let Some(accepted) = accepted else {
                        panic!(
                            "round {round}: connection {which} is lost: {:?}",
                            client.finish()
                        );
                    };
                    let what = format!("round {round}, connection {which}");
                    let (stream, _) = accepted.unwrap();
                    if !stream.mode().is_smc() {
                        panic!("{what}: {}: {:?}", stream.mode(), client.finish());
                    }
                    expect(stream, 0, 0..SHORT, &what).await;
                }
                assert!(client.finish().unwrap().status.success());
            }
        });
    }

    fn client(on: On, fabric: Fabric, dir: &Path, to: SocketAddr, streams: usize) -> Part {
        Part {
            on,
            fabric,
            dir: dir.to_owned(),
            to: Some(to.to_string()),
            before: 0,
            steps: [Step::Open, Step::Write(SHORT), Step::Drop].repeat(streams),
            end: End::Return,
        }
    }

    /// Endpoints of one process, each with a runtime that is shut down after the last write.
    fn endpoints(on: On, fabric: Fabric, rounds: u64) {
        counted(on, fabric, rounds, async |endpoint, dir| {
            let listener = listen(endpoint).await;
            let at = listener.local_addr().unwrap();
            for round in 0..rounds {
                let place = dir.to_owned();
                let client = thread::spawn(move || write_and_end(on, fabric, &place, at, 2));
                for which in 0..2 {
                    let accepted = within(listener.accept()).await;
                    let accepted =
                        accepted.unwrap_or_else(|| panic!("round {round}: {which} is lost"));
                    let what = format!("round {round}, connection {which}");
                    expect(accepted.unwrap().0, 0, 0..SHORT, &what).await;
                }
                client.join().unwrap();
            }
        });
    }

    /// The listener's executor does something else while a client, a process or an endpoint of this
    /// one, completes the handshake.
    fn busy(on: On, fabric: Fabric, rounds: u64) {
        counted(on, fabric, rounds, async |endpoint, dir| {
            let listener = listen(endpoint).await;
            let at = listener.local_addr().unwrap();
            for round in 0..rounds {
                let part = client(on, fabric, dir, at, 1);
                let process = (round % 2 == 0).then(|| Process::start(&part));
                let place = dir.to_owned();
                let thread = (round % 2 == 1)
                    .then(|| thread::spawn(move || write_and_end(on, fabric, &place, at, 1)));
                // Long enough for everything that the client does, from the time on when the
                // listener has answered.
                let millis = if round % 100 == 0 { 1000 } else { 20 };
                let busy = keep_busy(endpoint.clone(), Duration::from_millis(millis));
                let accepted = match on {
                    // On the one thread of its executor; dropping the task ends it.
                    On::Smol => {
                        let _busy = smol::spawn(busy);
                        within(listener.accept()).await
                    }
                    _ => {
                        within(listener.accept())
                            .or(async { match busy.await {} })
                            .await
                    }
                };
                let accepted = accepted.unwrap_or_else(|| panic!("round {round} is lost"));
                expect(accepted.unwrap().0, 0, 0..SHORT, &format!("round {round}")).await;
                if let Some(thread) = thread {
                    thread.join().unwrap();
                }
                if let Some(process) = process {
                    assert!(process.finish().unwrap().status.success());
                }
            }
        });
    }

    /// Blocks its thread for so long whenever a link group is being established.
    async fn keep_busy(endpoint: Endpoint, time: Duration) -> Infallible {
        loop {
            let mut groups = endpoint.link_groups().into_iter();
            if groups.any(|group| group.state == GroupState::Pending) {
                thread::sleep(time);
            }
            yield_now().await;
        }
    }

    on_all! { processes, processes_tokio on [Tokio], processes_smol, processes_on_other_fabrics }

    on_all! { endpoints, endpoints_tokio on [Tokio, TokioAlone], endpoints_smol, endpoints_on_other_fabrics }

    #[test]
    fn with_a_busy_listener_on_tokio() {
        divided(Fabric::all(), |_, fabric, rounds| {
            busy(On::TokioAlone, fabric, rounds)
        });
    }

    #[test]
    fn with_a_busy_listener_on_smol() {
        divided(Fabric::all(), |_, fabric, rounds| {
            busy(On::Smol, fabric, rounds)
        });
    }
}

mod clients_of_servers_that_end_after_their_last_write_read_everything {
    use super::*;

    async fn read_twice(endpoint: &Endpoint, at: &str, round: u64) {
        for which in 0..2 {
            let what = format!("round {round}, connection {which}");
            let connected = within(endpoint.connect(at)).await;
            let connected = connected.unwrap_or_else(|| panic!("{what}: connect hangs"));
            let stream = connected.unwrap_or_else(|error| panic!("{what}: {error}"));
            expect(stream, 1, 0..LONG, &what).await;
        }
    }

    fn processes(on: On, fabric: Fabric, rounds: u64) {
        counted(on, fabric, rounds, async |endpoint, dir| {
            let part = Part {
                on,
                fabric,
                dir: dir.to_owned(),
                to: None,
                before: 0,
                steps: [Step::Open, Step::Write(LONG), Step::Drop].repeat(2),
                end: End::Return,
            };
            for round in 0..rounds {
                let mut server = Process::start(&part);
                let at = server.address();
                read_twice(endpoint, &at, round).await;
                assert!(server.finish().unwrap().status.success());
            }
        });
    }

    fn endpoints(on: On, fabric: Fabric, rounds: u64) {
        counted(on, fabric, rounds, async |endpoint, dir| {
            for round in 0..rounds {
                let place = dir.to_owned();
                let (address_tx, address_rx) = std::sync::mpsc::channel();
                let server = thread::spawn(move || {
                    on.run_unbounded(async {
                        let endpoint = fabric.endpoint(on, &place);
                        let listener = listen(&endpoint).await;
                        address_tx.send(listener.local_addr().unwrap()).unwrap();
                        for _ in 0..2 {
                            let (mut stream, _) = listener.accept().await.unwrap();
                            write(&mut stream, 1, LONG).await;
                        }
                    });
                });
                let at = address_rx.recv().unwrap();
                read_twice(endpoint, &at.to_string(), round).await;
                server.join().unwrap();
            }
        });
    }

    on_all! { processes, processes_tokio on [Tokio], processes_smol, processes_on_other_fabrics }

    on_all! { endpoints, endpoints_tokio on [Tokio, TokioAlone], endpoints_smol, endpoints_on_other_fabrics }
}

/// Divides the rounds of a test among fabrics, which are passed with their number and rounds.
fn divided(fabrics: impl Iterator<Item = Fabric>, scenario: impl Fn(usize, Fabric, u64)) {
    let fabrics: Vec<_> = fabrics.collect();
    let rounds = rounds().div_ceil(fabrics.len() as u64);
    for (number, fabric) in fabrics.into_iter().enumerate() {
        scenario(number, fabric, rounds);
    }
}

/// A scenario of so many rounds with an endpoint on a fabric of its own, which is in the directory.
fn counted(on: On, fabric: Fabric, rounds: u64, scenario: impl AsyncFnOnce(&Endpoint, &Path)) {
    let dir = tempfile::tempdir().unwrap();
    let time = TIMEOUT + Duration::from_secs(2 * rounds);
    on.run_unbounded(in_time(time, async {
        let endpoint = fabric.endpoint(on, dir.path());
        scenario(&endpoint, dir.path()).await;
    }));
    println!("{on}, {fabric:?}: {rounds} of {rounds} rounds");
}

/// A client whose endpoint and runtime end after the last write.
fn write_and_end(on: On, fabric: Fabric, dir: &Path, to: SocketAddr, streams: usize) {
    on.run_unbounded(async {
        let endpoint: Endpoint = fabric.endpoint(on, dir);
        for _ in 0..streams {
            let mut stream = endpoint.connect(to).await.unwrap();
            assert!(stream.mode().is_smc());
            write(&mut stream, 0, SHORT).await;
        }
    });
}

async fn write(stream: &mut Stream, side: u8, len: usize) {
    let data: Vec<u8> = (0..len).map(|at| pattern(side, at)).collect();
    stream.write_all(&data).await.unwrap();
}

/// Reads these bytes, and then the end of the stream.
async fn expect(mut stream: Stream, side: u8, bytes: std::ops::Range<usize>, what: &str) {
    assert!(stream.mode().is_smc(), "{what}: {}", stream.mode());
    let mut read = Vec::new();
    let ended = within(stream.read_to_end(&mut read)).await;
    match ended {
        None => panic!("{what}: the stream does not end after {} bytes", read.len()),
        Some(Err(error)) => panic!("{what}: {error} after {} bytes", read.len()),
        Some(Ok(_)) => assert!(
            read.iter().copied().eq(bytes.map(|at| pattern(side, at))),
            "{what}: {} bytes",
            read.len()
        ),
    }
}

/// `None` if it hangs.
async fn within<T>(future: impl Future<Output = T>) -> Option<T> {
    let late = async {
        smol::Timer::after(TIMEOUT / 4).await;
        None
    };
    async { Some(future.await) }.or(late).await
}
