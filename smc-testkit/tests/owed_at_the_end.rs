//! Streams whose runtime ends while updates to their peers are pending.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::future::Future;
use std::io::ErrorKind;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use futures_lite::future::{or, poll_once, zip};
use futures_lite::{AsyncReadExt as _, AsyncWriteExt as _};
use smc::Builder;
use smc::{Endpoint, Stream};
use smc_core::device::{Device, RdmaAddress, RoceKind};
use smc_core::negotiate::Assume;
use smc_core::runtime::Runtime;
use smc_core::wire::types::{Mac, MtuCode, RoceGid};
use smc_testkit::memory_device::MemFabric;
use smc_testkit::memory_rdma::{RdmaNetwork, RdmaOptions};
use smc_testkit::middleware::{Fault, Faults};
use smc_testkit::runtime::{EndingRuntime, VirtualRuntime};
use smc_testkit::streams::read_all;

/// A client whose runtime ends, with a device whose busy state the test sets, and its server. The
/// client's endpoint stays, and so does its device: the server is not notified that it is gone.
struct Scene {
    runtime: VirtualRuntime,
    ending: Arc<EndingRuntime>,
    busy: Arc<Fault>,
    client: Endpoint,
    server: Endpoint,
}

impl Scene {
    fn smcd(nocopy: bool) -> Self {
        let fabric = MemFabric::new(1).with_nocopy(nocopy);
        let devices = [fabric.device("mem0") as _, fabric.device("mem1") as _];
        Self::on(VirtualRuntime::new(1), devices)
    }

    fn smcr() -> Self {
        let runtime = VirtualRuntime::new(1);
        let network = RdmaNetwork::with_clock(1, runtime.handle());
        let device = |last| {
            let ip = Ipv4Addr::new(10, 0, 0, last);
            runtime.add_interface("v0", ip.into(), 24);
            let (gid, mac) = (RoceGid::from_ipv4(ip), Mac::new([2, 0, 0, 0, 0, last]));
            let address = RdmaAddress::new(gid, RoceKind::V2, mac, MtuCode::MTU_1024);
            let options = RdmaOptions::default().with_address(address.with_interface("v0", 0));
            network.device_with(&format!("rdma{last}"), options)
        };
        let devices = [device(1) as _, device(2) as _];
        Self::on(runtime, devices)
    }

    fn on(runtime: VirtualRuntime, [ours, theirs]: [Arc<dyn Device>; 2]) -> Self {
        let ending = runtime.ending();
        let busy = Fault::new(ours, 1, Faults::default());
        let endpoint = |runtime: Arc<dyn Runtime>, device: Arc<dyn Device>| {
            let builder: Builder = Builder::new().runtime(runtime).device(device);
            builder
                .negotiation(Arc::new(Assume::new()))
                .ueid("TEST-EID".parse().unwrap())
                .recv_buffer(LEN)
                .send_buffer(LEN)
                .build()
                .unwrap()
        };
        let client = endpoint(
            Arc::clone(&ending) as _,
            Arc::clone(&busy) as Arc<dyn Device>,
        );
        let server = endpoint(runtime.handle(), theirs);
        Self {
            runtime,
            ending,
            busy,
            client,
            server,
        }
    }

    async fn pair(&self) -> (Stream, Stream) {
        let at = (Ipv4Addr::new(10, 0, 0, 2), 80);
        let listener = self.server.bind(at).await.unwrap();
        let connecting = async { self.client.connect(at).await.unwrap() };
        let accepting = async { listener.accept().await.unwrap().0 };
        let (mut stream, mut peer) = zip(connecting, accepting).await;
        assert!(stream.mode().is_smc() && peer.mode().is_smc());
        stream.write_all(b"early").await.unwrap();
        peer.read_exact(&mut [0; 5]).await.unwrap();
        peer.write_all(b"early").await.unwrap();
        stream.read_exact(&mut [0; 5]).await.unwrap();
        (stream, peer)
    }

    fn set_busy(&self, is_busy: bool) {
        let busy = if is_busy { 1000 } else { 0 };
        self.busy.set(Faults::default().with_busy(busy));
    }

    async fn sleep(&self, time: Duration) {
        let clock = self.runtime.handle();
        clock.timer(clock.now() + time).await;
    }

    async fn within_a_minute<T>(&self, work: impl Future<Output = T>) -> T {
        let late = async {
            self.sleep(Duration::from_secs(60)).await;
            panic!("the peer waits without end");
        };
        or(work, late).await
    }
}

#[test]
fn an_end_of_stream_pending_at_a_busy_device_is_published_when_the_runtime_ends() {
    for nocopy in [true, false] {
        let scene = Scene::smcd(nocopy);
        scene.runtime.block_on(async {
            let (mut stream, mut peer) = scene.pair().await;
            let ending = async {
                stream.write_all(b"last").await.unwrap();
                scene.sleep(Duration::from_millis(1)).await;
                scene.set_busy(true);
                drop(stream);
                scene.set_busy(false);
                scene.ending.end();
            };
            let reading = scene.within_a_minute(read_all(&mut peer));
            let ((), (got, end)) = zip(ending, reading).await;
            assert_eq!(got, b"last");
            end.expect("ends in order");
        });
    }
}

#[test]
fn a_window_update_pending_at_a_busy_device_is_published_when_the_runtime_ends() {
    // The device can be used again before the end, and after it.
    for (nocopy, is_before) in [(true, true), (true, false), (false, true), (false, false)] {
        let scene = Scene::smcd(nocopy);
        scene.runtime.block_on(async {
            let (mut stream, mut peer) = scene.pair().await;
            let data: Vec<u8> = (0..10 * LEN).map(|at| (at / 7) as u8).collect();
            let writing = scene.within_a_minute(peer.write_all(&data));
            let reading = async {
                let (mut got, mut part) = (Vec::new(), vec![0; LEN]);
                while got.len() < data.len() {
                    scene.sleep(Duration::from_millis(1)).await;
                    let is_first = got.is_empty();
                    scene.set_busy(is_first);
                    let read = poll_once(stream.read(&mut part)).await;
                    if is_first && is_before {
                        scene.set_busy(false);
                    }
                    scene.ending.end();
                    match read {
                        Some(Ok(count)) => got.extend_from_slice(&part[..count]),
                        Some(Err(error)) => {
                            assert_eq!(error.kind(), ErrorKind::ConnectionAborted);
                            assert!(error.to_string().contains("runtime"), "{error}");
                        }
                        // It polls again before it would sleep.
                        None => {}
                    }
                }
                got
            };
            let (written, got) = zip(writing, scene.within_a_minute(reading)).await;
            written.unwrap();
            assert!(got == data);
        });
    }
}

#[test]
fn a_word_refused_by_a_busy_device_after_the_end_of_the_runtime_is_published_with_the_next_one() {
    for nocopy in [true, false] {
        let scene = Scene::smcd(nocopy);
        scene.runtime.block_on(async {
            let (mut stream, mut peer) = scene.pair().await;
            scene.ending.end();
            let ending = async {
                scene.sleep(Duration::from_millis(1)).await;
                scene.set_busy(true);
                let first = stream.write_all(b"first").await;
                scene.set_busy(false);
                // Where the device moves data, a busy one would have to be waited for.
                assert_eq!(first.is_ok(), nocopy, "{first:?}");
                scene.sleep(Duration::from_millis(1)).await;
                stream.write_all(b"second").await.unwrap();
                stream.close().await.unwrap();
            };
            let reading = scene.within_a_minute(read_all(&mut peer));
            let ((), (got, end)) = zip(ending, reading).await;
            let expected: &[u8] = if nocopy { b"firstsecond" } else { b"second" };
            assert_eq!(got, expected);
            end.expect("ends in order");
        });
    }
}

/// SMC-R: what was not sent by then is lost, and the peer is notified.
#[test]
fn data_in_the_send_buffer_when_the_runtime_ends_is_an_error_at_the_peer() {
    for is_dropped_first in [true, false] {
        for len in [1000, 10 * LEN] {
            let scene = Scene::smcr();
            scene.runtime.block_on(async {
                let (mut stream, mut peer) = scene.pair().await;
                let data: Vec<u8> = (0..len).map(|at| (at / 7) as u8).collect();
                // The completion of what was sent before makes space in the send buffer.
                scene.sleep(Duration::from_millis(1)).await;
                // As much as there is space for: the peer does not read.
                let mut accepted = 0;
                while accepted < len {
                    match poll_once(stream.write(&data[accepted..])).await {
                        Some(written) => accepted += written.unwrap(),
                        None => break,
                    }
                }
                let mut stream = Some(stream);
                if is_dropped_first {
                    stream = None;
                }
                scene.sleep(Duration::from_millis(10)).await;
                scene.ending.end();
                drop(stream);
                let (got, end) = scene.within_a_minute(read_all(&mut peer)).await;
                assert!(data.starts_with(&got), "{is_dropped_first} {len}");
                match end {
                    Ok(()) => assert_eq!(got.len(), accepted, "the end of the stream"),
                    Err(error) => {
                        assert!(got.len() < accepted, "{is_dropped_first} {len}: {error}");
                        let kinds = [ErrorKind::ConnectionReset, ErrorKind::ConnectionAborted];
                        assert!(kinds.contains(&error.kind()), "{error}");
                    }
                }
            });
        }
    }
}

/// SMC-R: the reader takes completions off its device itself.
#[test]
fn a_reader_whose_runtime_has_ended_goes_on_making_space() {
    let scene = Scene::smcr();
    scene.runtime.block_on(async {
        let (mut stream, mut peer) = scene.pair().await;
        scene.ending.end();
        let data = vec![7; 100 * LEN];
        let writing = scene.within_a_minute(peer.write_all(&data));
        let reading = async {
            let mut part = vec![0; LEN];
            loop {
                scene.sleep(Duration::from_millis(1)).await;
                let _some = poll_once(stream.read(&mut part)).await;
            }
        };
        or(writing, reading).await.unwrap();
    });
}

/// Of receive and send buffers.
const LEN: usize = 64 * 1024;
