//! Tasks of an endpoint that have work without end leave turns to timers of its executor: a
//! listener with a backlog of connections, and the driver of a device whose peers send without end.

#![cfg(all(feature = "smol", feature = "tokio"))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::{SocketAddr, TcpStream};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use smc::device::{Device, DeviceError, Doorbell, Event, Identity, Limits, Operations};
use smc::error::Refusal;
use smc::negotiate::{Candidate, Negotiated, Negotiation, Published};
use smc::runtime::{Runtime, Socket};
use smc::{Builder, FallbackCause, Listener};
use smc_testkit::memory_device::{MemDevice, MemFabric};
use smc_wire::types::DmbToken;

/// Peers whose connections take long to be judged, as those of a client that sends many packets.
#[derive(Debug)]
struct Slow;

#[async_trait::async_trait]
impl Negotiation for Slow {
    async fn look_up(
        &self,
        _runtime: &Arc<dyn Runtime>,
        _to: SocketAddr,
    ) -> Result<Candidate, FallbackCause> {
        Err(FallbackCause::NoNegotiation)
    }

    fn publish(
        &self,
        _runtime: &Arc<dyn Runtime>,
        _at: SocketAddr,
        _listener: Option<BorrowedFd<'_>>,
    ) -> Result<Arc<dyn Published>, FallbackCause> {
        Ok(Arc::new(Self))
    }
}

impl Published for Slow {
    fn negotiated(&self, _socket: &dyn Socket, _peer: SocketAddr) -> Negotiated {
        std::thread::sleep(Duration::from_millis(5));
        Negotiated::Plain(FallbackCause::NoNegotiation)
    }

    fn dismiss(&self, socket: &dyn Socket, peer: SocketAddr, _why: Refusal) -> Negotiated {
        self.negotiated(socket, peer)
    }
}

/// Connections that are there before the first one is accepted.
const BACKLOG: u32 = 60;

/// Turns that a timer of the same executor gets while the backlog is judged, or the device is
/// drained, which takes 300 ms: without a pause of the listener or driver it is one or two.
const TURNS_MIN: u32 = 5;

async fn accept_all(listener: &Listener, done: &AtomicBool) {
    let at = listener.local_addr().unwrap();
    let clients: Vec<_> = (0..BACKLOG).map(|_| TcpStream::connect(at)).collect();
    for _ in 0..BACKLOG {
        listener.accept().await.unwrap();
    }
    assert!(clients.iter().all(Result::is_ok));
    done.store(true, Ordering::Release);
}

async fn count_turns(timer: impl AsyncFn(), done: &AtomicBool) -> u32 {
    let turns = AtomicU32::new(0);
    while !done.load(Ordering::Acquire) {
        timer().await;
        turns.fetch_add(1, Ordering::Relaxed);
    }
    turns.into_inner()
}

#[test]
fn timers_run_between_connections_that_take_long_on_tokio() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let turns = runtime.block_on(async {
        let endpoint = Builder::tokio()
            .negotiation(Arc::new(Slow))
            .build()
            .unwrap();
        let listener = endpoint.bind("127.0.0.1:0").await.unwrap();
        let done = AtomicBool::new(false);
        let turns = count_turns(
            async || tokio::time::sleep(Duration::from_millis(1)).await,
            &done,
        );
        tokio::join!(turns, accept_all(&listener, &done)).0
    });
    assert!(turns >= TURNS_MIN, "{turns} turns");
}

#[test]
fn timers_run_between_connections_that_take_long_on_smol() {
    let executor = Arc::new(smol::Executor::new());
    let turns = smol::block_on(executor.run(async {
        let runtime = smc::runtime::smol::SmolRuntime::with_executor(executor.clone());
        let endpoint = Builder::new()
            .runtime(Arc::new(runtime))
            .negotiation(Arc::new(Slow))
            .build()
            .unwrap();
        let listener = endpoint.bind("127.0.0.1:0").await.unwrap();
        let done = AtomicBool::new(false);
        let timer = async || {
            smol::Timer::after(Duration::from_millis(1)).await;
        };
        let turns = count_turns(timer, &done);
        smol::future::zip(turns, accept_all(&listener, &done))
            .await
            .0
    }));
    assert!(turns >= TURNS_MIN, "{turns} turns");
}

/// A device with an event in each of its first drains, which take long.
#[derive(Debug)]
struct Busy {
    inner: Arc<MemDevice>,
    drains: AtomicU32,
    done: AtomicBool,
}

/// Drains of a busy device. They take 300 ms.
const DRAINS: u32 = 300;

impl Busy {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            inner: MemFabric::new(1).device("busy"),
            drains: AtomicU32::new(0),
            done: AtomicBool::new(false),
        })
    }
}

impl Device for Busy {
    fn identity(&self) -> &Identity {
        self.inner.identity()
    }

    fn limits(&self) -> Limits {
        self.inner.limits()
    }

    fn operations(&self) -> Operations<'_> {
        self.inner.operations()
    }

    fn drain(&self, sink: &mut dyn FnMut(Event)) -> Result<(), DeviceError> {
        if self.drains.fetch_add(1, Ordering::Relaxed) < DRAINS {
            std::thread::sleep(Duration::from_millis(1));
            sink(Event::Signalled(DmbToken(1)));
            return Ok(());
        }
        self.done.store(true, Ordering::Release);
        self.inner.drain(sink)
    }

    fn arm(&self) -> Result<(), DeviceError> {
        self.inner.arm()
    }

    fn doorbell(&self) -> Doorbell<'_> {
        self.inner.doorbell()
    }
}

#[test]
fn timers_run_between_drains_of_a_device_whose_peers_send_without_end_on_tokio() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let turns = runtime.block_on(async {
        let device = Busy::new();
        let builder = Builder::tokio().device(device.clone());
        let _endpoint = builder.build().unwrap();
        let timer = async || tokio::time::sleep(Duration::from_millis(1)).await;
        count_turns(timer, &device.done).await
    });
    assert!(turns >= TURNS_MIN, "{turns} turns");
}

#[test]
fn timers_run_between_drains_of_a_device_whose_peers_send_without_end_on_smol() {
    let executor = Arc::new(smol::Executor::new());
    let turns = smol::block_on(executor.run(async {
        let runtime = smc::runtime::smol::SmolRuntime::with_executor(executor.clone());
        let device = Busy::new();
        let builder = Builder::new().runtime(Arc::new(runtime));
        let _endpoint = builder.device(device.clone()).build().unwrap();
        let timer = async || {
            smol::Timer::after(Duration::from_millis(1)).await;
        };
        count_turns(timer, &device.done).await
    }));
    assert!(turns >= TURNS_MIN, "{turns} turns");
}
