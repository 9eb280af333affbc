//! Streams over a device that is too busy to signal the peer.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::future::Future;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use futures_lite::{AsyncReadExt as _, AsyncWriteExt as _};
use smc::Stream;
use smc_core::device::Device;
use smc_testkit::middleware::{Fault, Faults, Journal, Record, Trace, What};
use smc_testkit::world::{Host, ScriptedDevice, World, connect_pair_smc};

/// A stream whose writer has a device whose busy state the test sets, and what it is asked.
struct Scene {
    world: World,
    busy: Arc<Fault>,
    journal: Journal,
    client: Host,
    server: Host,
}

impl Scene {
    fn new(nocopy: bool) -> Self {
        let world = World::new().with_fabric(|fabric| fabric.with_nocopy(nocopy));
        let busy = Fault::new(Arc::new(world.device("mem0")), 1, Faults::default());
        let (traced, journal) = Trace::with_journal(Arc::clone(&busy) as Arc<dyn Device>);
        let client = world.host_on(ScriptedDevice::around(traced), |builder| builder);
        let server = world.host("mem1");
        Self {
            world,
            busy,
            journal,
            client,
            server,
        }
    }

    fn pair(&self) -> (Stream, Stream) {
        self.world
            .block_on(connect_pair_smc(&self.client, &self.server))
    }

    /// How often the device was asked to move data since this was asked last.
    fn moves(&self) -> usize {
        let moves = |record: &Record| matches!(record.what, What::Moved { .. });
        self.journal
            .take()
            .iter()
            .filter(|record| moves(record))
            .count()
    }

    async fn within_a_minute<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        self.world.within(Duration::from_secs(60), work).await
    }

    fn set_busy(&self, per_mille: u16) {
        self.busy.set(Faults::default().with_busy(per_mille));
        self.moves();
    }
}

#[test]
fn closing_ends_with_the_peers_abort_while_the_shutdown_is_not_delivered() {
    let scene = Scene::new(true);
    let (mut stream, peer) = scene.pair();
    scene.set_busy(1000);
    let (closed, took) = scene.world.block_on(async {
        let closing = async {
            let start = scene.world.now();
            (stream.close().await, scene.world.now() - start)
        };
        let aborting = async {
            scene.world.sleep(Duration::from_secs(1)).await;
            peer.set_linger(Some(Duration::ZERO)).unwrap();
            drop(peer);
        };
        futures_lite::future::zip(closing, aborting).await.0
    });
    assert_eq!(closed.unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert!(took < Duration::from_secs(2), "{took:?}");
}

#[test]
fn what_a_busy_device_has_not_announced_is_in_the_send_queue() {
    let scene = Scene::new(true);
    let (mut stream, mut peer) = scene.pair();
    scene.set_busy(1000);
    scene.world.block_on(async {
        stream.write_all(b"data").await.unwrap();
        assert_eq!(stream.send_queue_len().unwrap(), 4);
        scene.set_busy(0);
        scene.world.sleep(Duration::from_secs(1)).await;
        assert_eq!(stream.send_queue_len().unwrap(), 0);
        peer.read_exact(&mut [0; 4]).await.unwrap();
    });
}

#[test]
fn a_device_that_stays_busy_is_asked_ever_less_often_and_then_ends_the_connection() {
    let scene = Scene::new(false);
    let (mut stream, _peer) = scene.pair();
    scene.set_busy(1000);
    let writing = scene.within_a_minute(stream.write_all(b"data"));
    let written = scene.world.block_on(writing);
    let error = written.expect("the write waits without end").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    let moves = scene.moves();
    assert!((20..1000).contains(&moves), "{moves} moves");
}

#[test]
fn a_device_that_stays_busy_is_not_asked_for_ever_on_behalf_of_a_dropped_stream() {
    let scene = Scene::new(false);
    let (stream, _peer) = scene.pair();
    scene.set_busy(1000);
    drop(stream);
    scene
        .world
        .block_on(scene.world.sleep(Duration::from_secs(60)));
    assert!(scene.moves() > 0);
    scene
        .world
        .block_on(scene.world.sleep(Duration::from_secs(3600)));
    assert!(scene.moves() < 200);
    scene
        .world
        .block_on(scene.world.sleep(Duration::from_secs(3600)));
    assert_eq!(scene.moves(), 0);
}

#[test]
fn very_many_streams_at_a_busy_device_end_when_it_accepts_their_words() {
    let scene = Scene::new(false);
    let pairs: Vec<_> = (0..100).map(|_| scene.pair()).collect();
    scene.set_busy(1000);
    drop(pairs);
    let sleep = |time| scene.world.block_on(scene.world.sleep(time));
    let open = || scene.client.endpoint.connections().len();
    sleep(Duration::from_secs(1));
    assert_eq!(open(), 100);
    scene.set_busy(0);
    sleep(Duration::from_secs(1));
    assert_eq!(open(), 0);
}

#[test]
fn a_program_that_tries_again_when_writable_does_not_spin_on_a_busy_device() {
    let scene = Scene::new(false);
    let (stream, _peer) = scene.pair();
    scene.set_busy(1000);
    let mut tries = 0;
    let error = scene.world.block_on(async {
        loop {
            tries += 1;
            assert!(tries < 1000, "writable at once again and again");
            if let Err(error) = stream.writable().await {
                return error;
            }
            match stream.try_write(b"data") {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return error,
                Ok(_) => panic!("a busy device has taken data"),
            }
        }
    });
    assert_eq!(error.kind(), ErrorKind::TimedOut);
}

#[test]
fn a_device_that_is_free_again_tells_the_peer_of_a_connection_that_was_given_up() {
    let scene = Scene::new(false);
    let (mut stream, mut peer) = scene.pair();
    scene.set_busy(1000);
    scene.world.block_on(async {
        stream.write_all(b"data").await.unwrap_err();
        scene.set_busy(0);
        let mut data = [0; 4];
        let read = scene.within_a_minute(peer.read(&mut data)).await;
        let error = read.expect("the peer was never notified").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    });
}

#[test]
fn writing_for_long_is_no_sign_of_a_busy_device() {
    for nocopy in [false, true] {
        let scene = Scene::new(nocopy);
        let (mut stream, mut peer) = scene.pair();
        scene.world.block_on(async {
            for _ in 0..200 {
                for _ in 0..300 {
                    stream.write_all(b"data").await.unwrap();
                }
                peer.read_exact(&mut [0; 1200]).await.unwrap();
                scene.world.sleep(Duration::from_millis(200)).await;
            }
        });
    }
}

#[test]
fn a_device_that_is_often_busy_keeps_its_connection() {
    let scene = Scene::new(false);
    let (mut stream, mut peer) = scene.pair();
    scene.set_busy(900);
    let start = scene.world.now();
    scene.world.block_on(async {
        while scene.world.now() - start < Duration::from_secs(60) {
            stream.write_all(b"data").await.unwrap();
            peer.read_exact(&mut [0; 4]).await.unwrap();
            scene.world.sleep(Duration::from_millis(20)).await;
        }
        // Nothing is known of how long it was busy before.
        scene.world.sleep(Duration::from_secs(60)).await;
        stream.write_all(b"data").await.unwrap();
    });
}
