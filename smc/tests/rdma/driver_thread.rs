//! Endpoints whose drivers do not depend on the runtime of the application.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_lite::{AsyncReadExt as _, AsyncWriteExt as _};
use smc::runtime::{
    Acceptor, BeforeConnect, BeforeListen, NetworkInterface, NetworkRoute, PnetEntry, Runtime,
    Socket, SocketOptions, Task, Timer, Watch,
};
use smc_core::device::{
    Device, DeviceError, Doorbell, Event, Identity, Limits, MemoryLimit, Operations,
};
use smc_core::error::{CloseReason, Error};
use smc_core::proto::links::LinkState;
use smc_testkit::memory_rdma::MemoryRdma;
use smc_testkit::runtime::EndingRuntime;
use smc_testkit::streams::{expect_error, transfer_both_ways};
use smc_testkit::world::{RdmaWorld, is_smcr, rdma_pair};

/// Longer than a link may be silent, and than its peer waits for the answer to a test.
const BUSY_TIME: Duration = Duration::from_secs(120);

#[test]
fn a_runtime_that_is_busy_loses_its_links() {
    let world = RdmaWorld::new(800);
    let (a, b) = (world.device("a0", 1), world.device("b0", 2));
    let busy = BusyRuntime::new(world.runtime().handle());
    let client = world.endpoint_with(&[&a], |builder| builder.runtime(busy.clone()));
    let server = world.endpoint(&[&b]);
    world.block_on(async {
        let (mut ours, mut theirs) = rdma_pair(&client, &server).await;
        transfer_both_ways(&mut ours, &mut theirs, 10_000).await;
        busy.set_busy(true);
        world.sleep(BUSY_TIME).await;
        expect_error(&mut theirs, ErrorKind::ConnectionAborted).await;
        busy.set_busy(false);
        expect_error(&mut ours, ErrorKind::ConnectionAborted).await;
    });
}

#[test]
fn with_a_driver_thread_links_live_while_the_runtime_is_busy() {
    let world = RdmaWorld::new(801);
    let (a, b) = (world.device("a0", 1), world.device("b0", 2));
    let busy = BusyRuntime::new(world.runtime().handle());
    let client = world.endpoint_with(&[&a], |builder| {
        builder.runtime(busy.clone()).driver_thread(true)
    });
    let server = world.endpoint(&[&b]);
    world.block_on(async {
        let (mut ours, mut theirs) = rdma_pair(&client, &server).await;
        assert!(is_smcr(&ours));
        transfer_both_ways(&mut ours, &mut theirs, 10_000).await;
        busy.set_busy(true);
        world.sleep(BUSY_TIME).await;
        for endpoint in [&client, &server] {
            let groups = endpoint.rdma_groups();
            let links = groups.iter().flat_map(|group| &group.links);
            let states: Vec<_> = links.map(|link| link.state).collect();
            assert_eq!(states, [LinkState::Active]);
        }
        busy.set_busy(false);
        transfer_both_ways(&mut ours, &mut theirs, 10_000).await;
        drop((ours, theirs));
        client.close().await;
        assert!(busy.has_thread());
        drop(client);
        world.sleep(Duration::from_secs(1)).await;
        assert!(!busy.has_thread());
    });
}

#[test]
fn a_driver_thread_ends_when_streams_have_outlived_their_endpoint() {
    let world = RdmaWorld::new(802);
    let (a, b) = (world.device("a0", 1), world.device("b0", 2));
    let busy = BusyRuntime::new(world.runtime().handle());
    let client = world.endpoint_with(&[&a], |builder| {
        builder.runtime(busy.clone()).driver_thread(true)
    });
    let server = world.endpoint(&[&b]);
    world.block_on(async {
        let (mut ours, mut theirs) = rdma_pair(&client, &server).await;
        drop(client);
        world.sleep(BUSY_TIME).await;
        assert!(busy.has_thread());
        transfer_both_ways(&mut ours, &mut theirs, 10_000).await;
        drop((ours, theirs));
        // Longer than a group may take to end.
        world.sleep(Duration::from_secs(5)).await;
        assert!(!busy.has_thread());
    });
}

#[test]
fn drivers_on_a_thread_end_with_the_runtime_of_their_endpoint() {
    let world = RdmaWorld::new(804);
    let (a, b) = (world.device("a0", 1), world.device("b0", 2));
    let ending = world.runtime().ending();
    let apart = BusyRuntime::with_thread(ending.clone(), world.runtime().handle());
    let client = world.endpoint_with(&[&a], |builder| builder.runtime(apart).driver_thread(true));
    let server = world.endpoint(&[&b]);
    world.block_on(async {
        let (mut ours, mut theirs) = rdma_pair(&client, &server).await;
        theirs.write_all(b"before").await.expect("writes");
        world.sleep(Duration::from_secs(1)).await;
        ending.end();
        world.sleep(Duration::from_secs(1)).await;
        ours.read_exact(&mut [0; 6]).await.expect("has arrived");
        let error = ours.read(&mut [0]).await.expect_err("nothing would wake");
        let cause = error.get_ref().and_then(|cause| cause.downcast_ref());
        assert!(matches!(cause, Some(Error::Closed(CloseReason::Runtime))));
    });
}

#[test]
fn a_device_that_is_added_while_the_runtime_ends_is_refused() {
    let world = RdmaWorld::new(805);
    let ending = world.runtime().ending();
    let apart = BusyRuntime::with_thread(ending.clone(), world.runtime().handle());
    let builder = smc::Builder::new().runtime(apart).driver_thread(true);
    let endpoint = builder.build().expect("is built");
    let device = Arc::new(EndsRuntime(world.device("a0", 1), ending));
    let added = endpoint.add_device(device);
    assert!(matches!(added, Err(Error::Misuse(_))), "{added:?}");
}

/// A device with which the runtime ends, once an endpoint begins to use it.
#[derive(Debug)]
struct EndsRuntime(Arc<MemoryRdma>, Arc<EndingRuntime>);

impl Device for EndsRuntime {
    fn identity(&self) -> &Identity {
        self.0.identity()
    }

    fn limits(&self) -> Limits {
        self.0.limits()
    }

    fn operations(&self) -> Operations<'_> {
        self.0.operations()
    }

    fn drain(&self, sink: &mut dyn FnMut(Event)) -> Result<(), DeviceError> {
        self.0.drain(sink)
    }

    fn arm(&self) -> Result<(), DeviceError> {
        self.0.arm()
    }

    fn doorbell(&self) -> Doorbell<'_> {
        self.0.doorbell()
    }

    fn limit_memory(&self, limit: &MemoryLimit) {
        self.0.limit_memory(limit);
        self.1.end();
    }
}

#[test]
fn a_runtime_without_threads_refuses_a_driver_thread() {
    let world = RdmaWorld::new(803);
    let builder = smc::Builder::new().runtime(world.runtime().handle());
    let error = builder.driver_thread(true).build().expect_err("no thread");
    assert_eq!(io::Error::from(error).kind(), ErrorKind::Unsupported);
}

/// The runtime of an application that may be busy: its tasks do not run then.
#[derive(Debug)]
struct BusyRuntime {
    inner: Arc<dyn Runtime>,
    busy: Arc<Busy>,
    /// What drivers get.
    apart: Arc<dyn Runtime>,
    thread: Mutex<Option<Weak<Self>>>,
}

#[derive(Debug, Default)]
struct Busy {
    is_busy: AtomicBool,
    waiting: Mutex<Vec<Waker>>,
}

impl BusyRuntime {
    fn new(inner: Arc<dyn Runtime>) -> Arc<Self> {
        Self::with_thread(Arc::clone(&inner), inner)
    }

    fn with_thread(inner: Arc<dyn Runtime>, apart: Arc<dyn Runtime>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            busy: Arc::default(),
            apart,
            thread: Mutex::default(),
        })
    }

    fn set_busy(&self, is_busy: bool) {
        self.busy.is_busy.store(is_busy, Ordering::Relaxed);
        let waiting = std::mem::take(&mut *self.busy.waiting.lock().expect("no panic"));
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Whether the runtime of the drivers is in use.
    fn has_thread(&self) -> bool {
        let thread = self.thread.lock().expect("no panic");
        thread
            .as_ref()
            .is_some_and(|thread| thread.strong_count() > 0)
    }
}

#[async_trait]
impl Runtime for BusyRuntime {
    fn now(&self) -> Instant {
        self.inner.now()
    }

    fn timer(&self, at: Instant) -> Timer {
        self.inner.timer(at)
    }

    fn spawn(&self, mut task: Task) {
        let busy = Arc::clone(&self.busy);
        self.inner.spawn(Box::pin(std::future::poll_fn(move |cx| {
            if busy.is_busy.load(Ordering::Relaxed) {
                let mut waiting = busy.waiting.lock().expect("no panic");
                waiting.push(cx.waker().clone());
                return Poll::Pending;
            }
            task.as_mut().poll(cx)
        })));
    }

    async fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        self.inner.resolve(host, port).await
    }

    async fn connect(
        &self,
        to: SocketAddr,
        options: &SocketOptions,
        before: &mut BeforeConnect<'_>,
    ) -> io::Result<Arc<dyn Socket>> {
        self.inner.connect(to, options, before).await
    }

    fn bind(
        &self,
        at: SocketAddr,
        options: &SocketOptions,
        before: &mut BeforeListen<'_>,
    ) -> io::Result<Arc<dyn Acceptor>> {
        self.inner.bind(at, options, before)
    }

    fn watch(&self, fd: BorrowedFd<'_>) -> io::Result<Box<dyn Watch>> {
        self.inner.watch(fd)
    }

    /// Another one that is never busy.
    fn on_own_thread(&self) -> io::Result<Arc<dyn Runtime>> {
        let thread = Self::new(Arc::clone(&self.apart));
        *self.thread.lock().expect("no panic") = Some(Arc::downgrade(&thread));
        Ok(thread)
    }

    fn interfaces(&self) -> Vec<NetworkInterface> {
        self.inner.interfaces()
    }

    fn pnet_table(&self) -> Vec<PnetEntry> {
        self.inner.pnet_table()
    }

    fn unprotected_mtu(&self, from: IpAddr, to: IpAddr) -> Option<u32> {
        self.inner.unprotected_mtu(from, to)
    }

    fn route(&self, from: IpAddr, to: IpAddr, by: Option<u32>) -> Option<NetworkRoute> {
        self.inner.route(from, to, by)
    }
}
