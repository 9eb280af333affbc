//! Test fabrics, and pairs of endpoints on them.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use smc::Builder;
use smc::{Domain, Endpoint, Stream};
use smc_core::device::{Device, Event};
use smc_negotiate_local::Local;
use smc_testkit::on::On;
use smc_testkit::streams;
use smc_testkit::wait::until;
use smc_transport_ism::{FabricAddress, IsmDevice, Server};
use tempfile::TempDir;

/// The kind of a fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Directory,
    Server,
}

/// A fabric for one test, in a temporary directory.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) kind: Kind,
    pub(crate) nocopy: bool,
    len: usize,
    pub(crate) server: Option<Serving>,
    dir: TempDir,
}

impl World {
    pub(crate) fn new(kind: Kind, nocopy: bool) -> Self {
        Self::with_len(kind, nocopy, 32 << 20)
    }

    pub(crate) fn with_len(kind: Kind, nocopy: bool, len: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let server = (kind == Kind::Server).then(|| {
            let server = Server::builder(dir.path().join("ivshmem.sock"));
            Serving::start(server.len(len).nocopy(nocopy).bind().unwrap())
        });
        Self {
            kind,
            nocopy,
            len,
            server,
            dir,
        }
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn fabric_address(&self) -> FabricAddress {
        fabric_address(&self.address())
            .with_nocopy(self.nocopy)
            .with_len(self.len)
    }

    /// The path by which another process opens this fabric.
    pub(crate) fn address(&self) -> PathBuf {
        self.dir().join(match self.kind {
            Kind::Directory => "fabric",
            Kind::Server => "ivshmem.sock",
        })
    }

    pub(crate) fn device(&self) -> IsmDevice {
        IsmDevice::builder(self.fabric_address()).build().unwrap()
    }

    pub(crate) fn builder(&self, on: On) -> Builder {
        builder(on, self.dir()).device(Arc::new(self.device()))
    }

    pub(crate) fn endpoint(&self, on: On) -> Endpoint {
        self.builder(on).build().unwrap()
    }

    /// Two endpoints with one stream between them: the client's and the server's end.
    pub(crate) async fn pair(&self, on: On) -> (Stream, Stream) {
        streams::pair(&self.endpoint(on), &self.endpoint(on)).await
    }
}

/// The fabric at an address, as [`World::address`] gives it.
pub(crate) fn fabric_address(address: &Path) -> FabricAddress {
    match address.extension() {
        Some(_) => FabricAddress::server(address),
        None => FabricAddress::directory(address),
    }
}

/// Options of an endpoint without devices.
pub(crate) fn builder(on: On, dir: &Path) -> Builder {
    let local = Local::in_domain(Domain::directory(dir));
    on.endpoint().negotiation(Arc::new(local))
}

/// A server with its thread.
#[derive(Debug)]
pub(crate) struct Serving {
    server: Arc<Server>,
    thread: Option<JoinHandle<()>>,
}

impl Serving {
    pub(crate) fn start(server: Server) -> Self {
        let server = Arc::new(server);
        let running = Arc::clone(&server);
        let thread = std::thread::spawn(move || running.run().unwrap());
        Self {
            server,
            thread: Some(thread),
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.server.stop();
        self.thread.take().unwrap().join().unwrap();
    }
}

/// Drains a device, as its driver would, until it has reported the expected event.
pub(crate) fn await_event(device: &IsmDevice, wanted: impl Fn(&Event) -> bool) {
    let is_reported = || {
        let mut seen = false;
        device.drain(&mut |event| seen |= wanted(&event)).unwrap();
        seen
    };
    until(is_reported, || "the event never comes".to_owned());
}

/// Runs a scenario on both kinds of fabric, in both modes, and on both runtimes.
#[allow(unused_macros, reason = "not every test file has scenarios")]
macro_rules! scenarios {
    ($($name:ident)+) => {
        mod directory_copy { $( #[test] fn $name() { $crate::run(smc_testkit::on::On::Tokio, $crate::support::Kind::Directory, false, super::$name); } )+ }
        mod directory_nocopy { $( #[test] fn $name() { $crate::run(smc_testkit::on::On::Smol, $crate::support::Kind::Directory, true, super::$name); } )+ }
        mod server_copy { $( #[test] fn $name() { $crate::run(smc_testkit::on::On::Smol, $crate::support::Kind::Server, false, super::$name); } )+ }
        mod server_nocopy { $( #[test] fn $name() { $crate::run(smc_testkit::on::On::Tokio, $crate::support::Kind::Server, true, super::$name); } )+ }
    };
}
