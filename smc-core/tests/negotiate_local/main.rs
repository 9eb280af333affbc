//! Local negotiation with real sockets, processes, users and network namespaces.

#![cfg(feature = "runtime-tokio")]
#![allow(clippy::unwrap_used, reason = "a helper of a test fails the test")]

mod child;
mod hostile;
mod namespaces;
mod processes;
mod scenarios;

use std::fs;
use std::future::poll_fn;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_lite::FutureExt;
use rustix::net::{AddressFamily, SocketType};
use smc_core::io::negotiate::{Candidate, Client, Local, Negotiation, Offer, Published, Verdict};
use smc_core::io::runtime::tokio::TokioRuntime;
use smc_core::io::runtime::{Acceptor, Runtime, Socket, SocketOptions, Unconnected};

/// What stands for a PROPOSAL: negotiation does not look into it.
const PROPOSAL: &[u8] = b"\xe2\xd4\xc3\xd9 proposal";

/// Runs a scenario on every runtime, with a directory of its own.
fn run<F: Future<Output = ()>>(scenario: impl Fn(World) -> F) {
    run_once(TempDir::new(), &scenario);
    #[cfg(feature = "runtime-smol")]
    {
        use smc_core::io::runtime::smol::SmolRuntime;
        let executor = Arc::new(smol::Executor::new());
        let world = World::new(SmolRuntime::with_executor(executor.clone()), TempDir::new());
        smol::block_on(executor.run(in_time(world, scenario)));
    }
}

/// Runs a scenario on one runtime.
fn run_once<F: Future<Output = ()>>(dir: TempDir, scenario: impl FnOnce(World) -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let world = World::new(TokioRuntime::new(runtime.handle().clone()), dir);
    runtime.block_on(in_time(world, scenario));
}

async fn in_time<F: Future<Output = ()>>(world: World, scenario: impl FnOnce(World) -> F) {
    let late = world.rt.timer(world.rt.now() + Duration::from_secs(60));
    let late = async {
        late.await;
        panic!("the scenario does not end");
    };
    scenario(world).or(late).await;
}

struct World {
    rt: Arc<dyn Runtime>,
    dir: TempDir,
}

impl World {
    fn new(rt: impl Runtime, dir: TempDir) -> Self {
        Self {
            rt: Arc::new(rt),
            dir,
        }
    }

    fn local(&self) -> Local {
        Local::new().with_directory(&self.dir.path)
    }

    fn client(&self) -> Arc<dyn Client> {
        self.local().client(&self.rt)
    }

    fn server(&self, at: &str) -> Server {
        self.server_with(
            at.parse().unwrap(),
            &SocketOptions::default(),
            &self.local(),
        )
    }

    fn server_with(&self, at: SocketAddr, options: &SocketOptions, local: &Local) -> Server {
        let acceptor = self.rt.bind(at, options, &mut |_| Ok(())).unwrap();
        let at = acceptor.local_addr().unwrap();
        let published = local.publish(&self.rt, at, acceptor.fd()).unwrap();
        Server {
            acceptor,
            published,
        }
    }

    /// Looks up, offers and connects as an endpoint does.
    async fn dial(&self, client: &dyn Client, to: SocketAddr) -> Dialled {
        let candidate = client.look_up(to).await;
        let mut offer = None;
        let socket = self
            .rt
            .connect(to, &SocketOptions::default(), &mut |socket| {
                offer = candidate.as_ref().and_then(|c| c.offer(socket, PROPOSAL));
                Ok(())
            })
            .await
            .unwrap();
        Dialled { socket, offer }
    }

    /// Names in the directory.
    fn names(&self) -> Vec<String> {
        names(&self.dir.path)
    }
}

struct Dialled {
    socket: Arc<dyn Socket>,
    offer: Option<Box<dyn Offer>>,
}

struct Server {
    acceptor: Arc<dyn Acceptor>,
    published: Arc<dyn Published>,
}

impl Server {
    fn at(&self) -> SocketAddr {
        self.acceptor.local_addr().unwrap()
    }

    fn port(&self) -> u16 {
        self.at().port()
    }

    async fn accept(&self) -> Verdict {
        self.accept_stream().await.1
    }

    async fn accept_stream(&self) -> (Arc<dyn Socket>, Verdict) {
        let (socket, peer) = poll_fn(|cx| self.acceptor.poll_accept(cx)).await.unwrap();
        let verdict = self.published.verdict(&*socket, peer);
        (socket, verdict)
    }
}

fn clc(proposal: &[u8]) -> Verdict {
    Verdict::Clc {
        proposal: Some(proposal.to_vec()),
    }
}

/// Offers a connection that is never made; the port and the offer.
fn announce_only(candidate: &dyn Candidate) -> Option<(u16, Box<dyn Offer>)> {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &loopback(0)).unwrap();
    let local: SocketAddr = rustix::net::getsockname(&socket)
        .unwrap()
        .try_into()
        .unwrap();
    let socket = Unconnected::new(local, Some(socket.as_fd()));
    Some((local.port(), candidate.offer(&socket, PROPOSAL)?))
}

fn is_lost(offer: &mut dyn Offer) -> bool {
    poll_once(|cx| offer.poll_lost(cx)).is_ready()
}

async fn until_lost(offer: &mut dyn Offer) {
    poll_fn(|cx| offer.poll_lost(cx)).await;
}

fn poll_once<T>(mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
    poll(&mut Context::from_waker(Waker::noop()))
}

fn loopback(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

/// A directory of this user alone.
struct TempDir {
    path: PathBuf,
    /// Whether it goes when this is dropped.
    own: bool,
}

impl TempDir {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("smc-negotiate-{}-{count}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        Self { path, own: true }
    }

    /// One that somebody else looks after.
    fn of_parent(path: &str) -> Self {
        Self {
            path: path.into(),
            own: false,
        }
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        if self.own {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
