//! The same ending again and again: not one connection may be lost.

use std::future::Future;
use std::net::SocketAddr;
use std::path::Path;
use std::thread;
use std::time::Duration;

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
            $($scenario(On::$on, Fabric::LOOP);)*
        }

        #[test]
        fn $smol() {
            $scenario(On::Smol, Fabric::LOOP);
        }

        #[test]
        fn $others() {
            for fabric in Fabric::all().filter(|fabric| *fabric != Fabric::LOOP) {
                $scenario(On::Tokio, fabric);
            }
        }
    };
}

mod clients_that_end_after_their_last_write_are_accepted {
    use super::*;

    /// Processes: each connects twice, the second time in the link group of the first.
    fn processes(on: On, fabric: Fabric) {
        counted(on, fabric, async |endpoint, dir, rounds| {
            let listener = listen(endpoint).await;
            let part = Part {
                on,
                fabric,
                dir: dir.to_owned(),
                to: Some(listener.local_addr().unwrap().to_string()),
                before: 0,
                steps: [Step::Open, Step::Write(SHORT), Step::Drop].repeat(2),
                end: End::Return,
            };
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
                    expect(accepted.unwrap().0, 0, 0..SHORT, &what).await;
                }
                assert!(client.finish().unwrap().status.success());
            }
        });
    }

    /// Endpoints of one process, each with a runtime that is shut down after the last write.
    fn endpoints(on: On, fabric: Fabric) {
        counted(on, fabric, async |endpoint, dir, rounds| {
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

    /// The listener's executor does something else while a client completes the handshake.
    fn busy(fabric: Fabric) {
        let dir = tempfile::tempdir().unwrap();
        let rounds = rounds(2).min(1000);
        On::TokioAlone.run_unbounded(bounded(2 * rounds, async {
            let endpoint = fabric.endpoint(On::TokioAlone, dir.path());
            let listener = listen(&endpoint).await;
            let at = listener.local_addr().unwrap();
            for round in 0..rounds {
                let place = dir.path().to_owned();
                let client =
                    thread::spawn(move || write_and_end(On::TokioAlone, fabric, &place, at, 1));
                // Long enough for everything that the client does, from the time on when the listener
                // has answered.
                let millis = if round % 100 == 0 { 1000 } else { 20 };
                let busy = async {
                    loop {
                        let mut groups = endpoint.link_groups().into_iter();
                        if groups.any(|group| group.state == GroupState::Pending) {
                            thread::sleep(Duration::from_millis(millis));
                        }
                        tokio::task::yield_now().await;
                    }
                };
                let accepted = within(listener.accept()).or(busy).await;
                let accepted = accepted.unwrap_or_else(|| panic!("round {round} is lost"));
                expect(accepted.unwrap().0, 0, 0..SHORT, &format!("round {round}")).await;
                client.join().unwrap();
            }
        }));
    }

    on_all! { processes, processes_tokio on [Tokio], processes_smol, processes_on_other_fabrics }

    on_all! { endpoints, endpoints_tokio on [Tokio, TokioAlone], endpoints_smol, endpoints_on_other_fabrics }

    #[test]
    fn with_a_busy_listener() {
        for fabric in Fabric::all() {
            busy(fabric);
        }
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

    fn processes(on: On, fabric: Fabric) {
        counted(on, fabric, async |endpoint, dir, rounds| {
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

    fn endpoints(on: On, fabric: Fabric) {
        counted(on, fabric, async |endpoint, dir, rounds| {
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

/// A scenario of some rounds with an endpoint on a fabric of its own, which is in the directory.
fn counted(on: On, fabric: Fabric, scenario: impl AsyncFnOnce(&Endpoint, &Path, u64)) {
    let dir = tempfile::tempdir().unwrap();
    let rounds = rounds(if fabric == Fabric::LOOP { 100 } else { 15 });
    on.run_unbounded(bounded(rounds, async {
        let endpoint = fabric.endpoint(on, dir.path());
        scenario(&endpoint, dir.path(), rounds).await;
    }));
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

/// A scenario of so many rounds must not hang.
async fn bounded(rounds: u64, scenario: impl Future<Output = ()>) {
    in_time(TIMEOUT + Duration::from_secs(rounds), scenario).await;
}
