//! Endpoints in pairs, on either runtime.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::future::Future;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::Child;
use std::sync::Arc;
use std::time::Duration;

use futures_lite::FutureExt as _;
use futures_lite::future::zip;
use smc::{Builder, Domain, Endpoint, Listener, Stream};
use smc_negotiate_local::Local;
use smc_transport_loop::LoopDevice;
use tempfile::TempDir;

/// A runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum On {
    Tokio,
    Smol,
}

impl On {
    pub(crate) fn run(self, scenario: impl Future<Output = ()>) {
        let bounded = async {
            let late = async {
                async_io::Timer::after(Duration::from_secs(120)).await;
                panic!("the scenario hangs");
            };
            scenario.or(late).await;
        };
        match self {
            Self::Smol => smol::block_on(bounded),
            Self::Tokio => tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()
                .unwrap()
                .block_on(bounded),
        }
    }

    pub(crate) fn endpoint(self) -> Builder {
        let builder = match self {
            Self::Tokio => Builder::tokio(),
            Self::Smol => Builder::smol(),
        };
        // However busy this machine is.
        builder.answer_timeout(Duration::from_secs(60))
    }
}

/// A runtime, a runtime directory of its own and a kind of device.
#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) on: On,
    pub(crate) nocopy: bool,
    dir: Arc<TempDir>,
}

impl World {
    pub(crate) fn new(on: On, nocopy: bool) -> Self {
        Self {
            on,
            nocopy,
            dir: Arc::new(tempfile::tempdir().unwrap()),
        }
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn builder(&self) -> Builder {
        builder(self.on, self.nocopy, self.dir())
    }

    pub(crate) fn endpoint(&self) -> Endpoint {
        self.builder().build().unwrap()
    }

    /// Two endpoints with one stream between them: the client's and the server's end.
    pub(crate) async fn pair(&self) -> (Stream, Stream) {
        let (client, server) = (self.endpoint(), self.endpoint());
        let listener = server.bind("127.0.0.1:0").await.unwrap();
        connect(&client, &listener).await
    }
}

pub(crate) fn builder(on: On, nocopy: bool, dir: &Path) -> Builder {
    let device = LoopDevice::builder()
        .domain(Domain::directory(dir))
        .nocopy(nocopy)
        .build()
        .unwrap();
    on.endpoint()
        .negotiation(local(Domain::directory(dir)))
        .device(Arc::new(device))
}

/// Negotiation between the processes of a domain.
pub(crate) fn local(domain: Domain) -> Arc<Local> {
    Arc::new(Local::in_domain(domain))
}

/// A new stream between an endpoint and a listener: the client's and the server's end.
pub(crate) async fn connect(client: &Endpoint, listener: &Listener) -> (Stream, Stream) {
    let addr = listener.local_addr().unwrap();
    let (connected, accepted) = zip(client.connect(addr), listener.accept()).await;
    (connected.unwrap(), accepted.unwrap().0)
}

/// Byte `i` of a recognisable stream.
pub(crate) fn pattern(i: usize) -> u8 {
    ((7 * i + 13 * (i >> 8)) & 255) as u8
}

/// Reads a child's output until it says that it is ready.
pub(crate) fn wait_until_ready(child: &mut Child) {
    let output = BufReader::new(child.stdout.take().unwrap());
    let ready = output
        .lines()
        .any(|line| line.is_ok_and(|line| line == "ready"));
    assert!(ready, "the child ended before it was ready");
}

/// Descriptors that this process has open.
pub(crate) fn open_fds() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Waits until no more than these descriptors are open: some are closed on another thread.
pub(crate) async fn descriptors_at_most(most: usize) {
    for _ in 0..60_000 {
        if open_fds() <= most {
            return;
        }
        async_io::Timer::after(Duration::from_millis(1)).await;
    }
    panic!("{} descriptors are open instead of {most}", open_fds());
}

/// Mappings of shared memory files of this process.
pub(crate) fn shared_mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("/memfd:")).count()
}

/// Runs a scenario on both runtimes, with mapped buffers and with moved data.
#[allow(unused_macros, reason = "not every test file has scenarios")]
macro_rules! scenarios {
    ($($name:ident)+) => {
        mod tokio_nocopy { $( #[test] fn $name() { $crate::run($crate::support::On::Tokio, true, |world| super::$name(world)); } )+ }
        mod tokio_copy { $( #[test] fn $name() { $crate::run($crate::support::On::Tokio, false, |world| super::$name(world)); } )+ }
        mod smol_nocopy { $( #[test] fn $name() { $crate::run($crate::support::On::Smol, true, |world| super::$name(world)); } )+ }
        mod smol_copy { $( #[test] fn $name() { $crate::run($crate::support::On::Smol, false, |world| super::$name(world)); } )+ }
    };
}
