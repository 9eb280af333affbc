//! A process that offers the GID of another one's device.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::io::IoSlice;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use common::{Helper, Role};
use futures_lite::future::{self, block_on, zip};
use futures_lite::{AsyncReadExt as _, AsyncWriteExt as _};
use smc::{Builder, Domain, Endpoint, FallbackCause, Listener, Stream};
use smc_core::device::{
    Device, DeviceError, Direct, Dmb, Doorbell, Event, Fabric, Identity, Limits, Nocopy, Signal,
    SubmitError,
};
use smc_core::error::SetupStep;
use smc_core::wire::types::{Chid, DeclineCode, DmbToken, Gid};
use smc_negotiate_local::Local;
use smc_transport_loop::LoopDevice;

/// What helpers do.
#[test]
fn helper_process() {
    let Some(role) = Role::current() else { return };
    let device = Arc::new(Impostor {
        inner: device(&role.dir),
        claimed: role.recv_gid(),
    });
    let endpoint = endpoint(&role.dir, device);
    let stream = block_on(async {
        match role.name.as_str() {
            "client" => {
                let at: SocketAddr = role.recv().unwrap().parse().unwrap();
                endpoint.connect(at).await.unwrap()
            }
            "listener" => {
                let listener = endpoint.bind("127.0.0.1:0").await.unwrap();
                role.send(listener.local_addr().unwrap());
                listener.accept().await.unwrap().0
            }
            other => panic!("no role {other}"),
        }
    });
    role.send(stream.fallback_reason().unwrap());
    assert_eq!(role.recv(), None);
}

/// A device of this process that announces the GID of another one.
#[derive(Debug)]
struct Impostor {
    inner: Arc<LoopDevice>,
    claimed: Gid,
}

impl Device for Impostor {
    fn identity(&self) -> &Identity {
        self.inner.identity()
    }

    fn limits(&self) -> Limits {
        self.inner.limits()
    }

    fn fabric(&self) -> Fabric<'_> {
        Fabric::Direct(self)
    }

    fn drain(&self, sink: &mut dyn FnMut(Event)) -> Result<(), DeviceError> {
        self.inner.drain(sink)
    }

    fn arm(&self) -> Result<(), DeviceError> {
        self.inner.arm()
    }

    fn doorbell(&self) -> Doorbell<'_> {
        self.inner.doorbell()
    }
}

#[async_trait]
impl Direct for Impostor {
    fn gid(&self) -> Gid {
        self.claimed
    }

    fn chid(&self) -> Chid {
        self.inner.chid()
    }

    async fn reach(&self, peer: Gid) -> Result<(), DeviceError> {
        self.inner.reach(peer).await
    }

    async fn register(&self, peer: Gid, len: usize) -> Result<Arc<dyn Dmb>, DeviceError> {
        self.inner.register(peer, len).await
    }

    fn move_data(
        &self,
        to: DmbToken,
        at: u32,
        data: &[IoSlice<'_>],
        signal: Signal,
    ) -> Result<(), SubmitError> {
        self.inner.move_data(to, at, data, signal)
    }

    fn nocopy(&self) -> Option<&dyn Nocopy> {
        self.inner.nocopy()
    }
}

#[test]
fn a_process_cannot_use_the_gid_of_another_one() {
    let dir = tempfile::tempdir().unwrap();
    let (client, server) = (device(dir.path()), device(dir.path()));
    let gids = [client.gid(), server.gid()];
    let client = endpoint(dir.path(), client);
    let server = endpoint(dir.path(), server);
    in_time(async {
        let listener = server.bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let mut streams = connect_pair(&client, &listener).await;
        for claimed in gids {
            let mut impostor = Helper::start("client", dir.path());
            impostor.send(claimed);
            impostor.send(at);
            let (stream, _) = listener.accept().await.unwrap();
            assert_refused(&stream);
            impostor.recv();
            impostor.finish();
            // The owner of the GID is not affected.
            exchange(&mut streams).await;
        }
        let mut next = connect_pair(&client, &listener).await;
        exchange(&mut next).await;
        assert_eq!(server.link_groups().len(), 1);
        assert_eq!(server.link_groups()[0].connections, 2);
    });
}

#[test]
fn a_listener_cannot_use_the_gid_of_another_process() {
    let dir = tempfile::tempdir().unwrap();
    let (client, server) = (device(dir.path()), device(dir.path()));
    let gids = [client.gid(), server.gid()];
    let client = endpoint(dir.path(), client);
    let server = endpoint(dir.path(), server);
    in_time(async {
        let listener = server.bind("127.0.0.1:0").await.unwrap();
        let mut streams = connect_pair(&client, &listener).await;
        for claimed in gids {
            let mut impostor = Helper::start("listener", dir.path());
            impostor.send(claimed);
            let at: SocketAddr = impostor.recv().parse().unwrap();
            let stream = client.connect(at).await.unwrap();
            assert_refused(&stream);
            impostor.recv();
            impostor.finish();
            // The owner of the GID is not affected.
            exchange(&mut streams).await;
        }
        let mut next = connect_pair(&client, &listener).await;
        exchange(&mut next).await;
        assert_eq!(client.link_groups().len(), 1);
        assert_eq!(client.link_groups()[0].connections, 2);
    });
}

/// The device that the other end has named is not one of that process.
fn assert_refused(stream: &Stream) {
    let reason = stream.fallback_reason().expect("TCP");
    assert_eq!(reason.local, DeclineCode::NOSMCD2DEV, "{reason}");
    let FallbackCause::Device { step, error } = &reason.cause else {
        panic!("{reason}");
    };
    assert_eq!(*step, SetupStep::Reach);
    assert!(matches!(error, DeviceError::PeerMisbehaved(_)), "{reason}");
}

#[test]
fn an_endpoint_that_connects_to_itself_uses_its_own_gid() {
    let dir = tempfile::tempdir().unwrap();
    let endpoint = endpoint(dir.path(), device(dir.path()));
    in_time(async {
        let listener = endpoint.bind("127.0.0.1:0").await.unwrap();
        let mut streams = connect_pair(&endpoint, &listener).await;
        exchange(&mut streams).await;
    });
}

fn device(dir: &Path) -> Arc<LoopDevice> {
    let device = LoopDevice::builder().domain(Domain::directory(dir)).build();
    Arc::new(device.unwrap())
}

fn endpoint(dir: &Path, device: Arc<dyn Device>) -> Endpoint {
    let local = Local::in_domain(Domain::directory(dir));
    let builder = Builder::smol().negotiation(Arc::new(local));
    builder.device(device).build().unwrap()
}

/// A stream in SMC mode: the client's and the server's end.
async fn connect_pair(client: &Endpoint, listener: &Listener) -> (Stream, Stream) {
    let at = listener.local_addr().unwrap();
    let (ours, theirs) = zip(client.connect(at), listener.accept()).await;
    let (ours, theirs) = (ours.unwrap(), theirs.unwrap().0);
    assert!(ours.mode().is_smc(), "{}", ours.mode());
    (ours, theirs)
}

/// A word in each direction.
async fn exchange((ours, theirs): &mut (Stream, Stream)) {
    let mut word = [0; 4];
    ours.write_all(b"ping").await.unwrap();
    theirs.read_exact(&mut word).await.unwrap();
    theirs.write_all(b"pong").await.unwrap();
    ours.read_exact(&mut word).await.unwrap();
    assert_eq!(&word, b"pong");
}

fn in_time(scenario: impl Future<Output = ()>) {
    let late = async {
        async_io::Timer::after(Duration::from_secs(60)).await;
        panic!("the scenario hangs");
    };
    smol::block_on(future::or(scenario, late));
}
