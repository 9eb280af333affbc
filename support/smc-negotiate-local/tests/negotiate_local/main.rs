//! Local negotiation with real sockets, processes, users and network namespaces.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails the test")]

mod hostile;
mod listeners;
mod namespaces;
mod processes;
mod raw;
mod scenarios;
mod users;

use std::fs;
use std::future::poll_fn;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_lite::FutureExt as _;
use rustix::net::{AddressFamily, SocketType, sockopt};
use smc::Domain;
use smc::runtime::smol::SmolRuntime;
use smc::runtime::tokio::TokioRuntime;
use smc_core::error::{FallbackCause, Limit, Refusal};
use smc_core::negotiate::{Candidate, Negotiated, Negotiation, Offer, SideChannel};
use smc_core::runtime::{Runtime, SocketOptions, Unconnected};
use smc_negotiate_local::Local;
use smc_testkit::negotiation::{Connection, Server};
use smc_testkit::on::{On, in_time};
use smc_testkit::process::{Child, ENTRY, Role, command, command_by};
use smc_testkit::user::is_root;

/// What other processes do.
#[test]
fn helper_process() {
    let Some(role) = Role::current() else { return };
    match role.name() {
        "inspects" => processes::inspects(&role),
        "announces" => processes::announces(&role),
        "dials" => processes::dials(&role),
        "listens" => processes::listens(&role),
        "impersonates" => processes::impersonates(&role),
        "forges" => processes::forges(&role),
        "floods" => hostile::flood(&role),
        "serves" => processes::serves(&role),
        other => panic!("no role {other}"),
    }
}

/// What stands for a PROPOSAL: negotiation does not look into it.
const PROPOSAL: &[u8] = b"\xe2\xd4\xc3\xd9 proposal";

/// Runs a scenario on every runtime, with a directory of its own.
fn run<F: Future<Output = ()>>(scenario: impl Fn(World) -> F) {
    run_once(TempDir::new(), &scenario);
    let executor = Arc::new(smol::Executor::new());
    let dir = TempDir::new();
    let world = World::new(SmolRuntime::with_executor(executor.clone()), dir.clone());
    smol::block_on(executor.run(in_time(MINUTE, scenario(world))));
}

/// Runs a scenario with a listener and a client of this process on every runtime.
fn run_pair<F: Future<Output = ()>>(scenario: impl Fn(World, Server, Local) -> F) {
    let scenario = &scenario;
    run(|world| async move {
        let (server, client) = (world.server("127.0.0.1:0"), world.client());
        scenario(world, server, client).await;
    });
}

/// Runs a scenario in a directory that all users may enter, as root. If this process is not root's,
/// prints that it is skipped, and what it needs root for.
fn run_shared<F: Future<Output = ()>>(to: &str, scenario: impl Fn(World) -> F) {
    if is_root(to) {
        run(|world| {
            let open = fs::Permissions::from_mode(0o1777);
            fs::set_permissions(&world.dir.path, open).unwrap();
            scenario(world)
        });
    }
}

/// Runs a scenario on one runtime.
fn run_once<F: Future<Output = ()>>(dir: TempDir, scenario: impl FnOnce(World) -> F) {
    let runtime = On::TokioAlone.tokio();
    // Kept here: a scenario that uses a part of its world drops the rest at once.
    let world = World::new(TokioRuntime::new(runtime.handle().clone()), dir.clone());
    runtime.block_on(in_time(MINUTE, scenario(world)));
}

const MINUTE: Duration = Duration::from_secs(60);

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
        Local::in_domain(Domain::directory(&self.dir.path))
    }

    /// In the directory as one that users share.
    fn shared(&self, users: &[u32]) -> Local {
        Local::in_domain(Domain::shared(&self.dir.path, users.iter().copied()))
    }

    fn client(&self) -> Local {
        self.local()
    }

    fn server(&self, at: &str) -> Server {
        self.server_with(
            at.parse().unwrap(),
            &SocketOptions::default(),
            &self.local(),
        )
    }

    fn server_with(&self, at: SocketAddr, options: &SocketOptions, local: &Local) -> Server {
        Server::publish(&self.rt, at, options, local)
    }

    /// Looks up, offers and connects as an endpoint does.
    async fn dial(&self, client: &dyn Negotiation, to: SocketAddr) -> Connection {
        Connection::dial(&self.rt, client, to, PROPOSAL).await
    }

    /// Connects with this client, whom the listener recognises.
    async fn assert_announced(&self, client: &Local, server: &Server) {
        let _connection = self.dial(client, server.at()).await;
        assert_eq!(server.accept_one().await, announced());
    }

    /// Lets other tasks run for a moment.
    async fn pause(&self) {
        self.rt
            .timer(self.rt.now() + Duration::from_millis(1))
            .await;
    }

    async fn until(&self, is_so: impl Fn() -> bool) {
        while !is_so() {
            self.pause().await;
        }
    }

    /// Names in the directory.
    fn names(&self) -> Vec<String> {
        names(&self.dir.path)
    }
}

/// Listeners of [`World`].
trait Accepts {
    fn port(&self) -> u16;

    /// What the next connection is, and ends its handshake.
    async fn accept_one(&self) -> Accepted;

    /// The next connection, which has a side channel, with the bytes that its client has written.
    async fn accept_side_channel(&self) -> (Box<dyn SideChannel>, Vec<u8>);
}

impl Accepts for Server {
    fn port(&self) -> u16 {
        self.at().port()
    }

    async fn accept_one(&self) -> Accepted {
        Accepted::of(&mut self.accept().await.1)
    }

    async fn accept_side_channel(&self) -> (Box<dyn SideChannel>, Vec<u8>) {
        match self.accept().await.1 {
            Negotiated::SideChannel(mut side_channel) => {
                let received = read_available(&mut *side_channel);
                (side_channel, received)
            }
            verdict => panic!("{verdict:?}"),
        }
    }
}

/// How a listener sees a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Accepted {
    Plain,
    OnTcp,
    /// It is announced, and the client has written these bytes.
    SideChannel(Vec<u8>),
}

impl Accepted {
    fn of(verdict: &mut Negotiated) -> Self {
        match verdict {
            Negotiated::Plain(_) => Self::Plain,
            Negotiated::Clc => Self::OnTcp,
            Negotiated::SideChannel(side_channel) => {
                Self::SideChannel(read_available(&mut **side_channel))
            }
        }
    }
}

fn announced() -> Accepted {
    Accepted::SideChannel(PROPOSAL.to_vec())
}

/// The bytes that can be read now.
fn read_available(side_channel: &mut dyn SideChannel) -> Vec<u8> {
    let mut all = Vec::new();
    let mut part = [0; 100];
    while let Ok(count @ 1..) = side_channel.try_read(&mut part) {
        all.extend(&part[..count]);
    }
    all
}

/// Reads so many bytes, or all until the end.
async fn read_exact(side_channel: &mut dyn SideChannel, count: usize) -> Vec<u8> {
    let mut all = Vec::new();
    while all.len() < count {
        let mut part = [0; 100];
        let len = (count - all.len()).min(part.len());
        match poll_fn(|cx| side_channel.poll_read(cx, &mut part[..len])).await {
            Ok(0) => break,
            read => all.extend(&part[..read.unwrap()]),
        }
    }
    all
}

/// Sends a message and notifies the other side.
fn send(side_channel: &mut dyn SideChannel, message: &[u8]) {
    side_channel.send(message).unwrap();
    side_channel.flush();
}

/// An offer of a connection that was not made.
#[derive(Debug)]
struct Announced {
    offer: Box<dyn Offer>,
    /// Keeps the port, and can make the connection.
    socket: OwnedFd,
}

impl Announced {
    /// An offer from a port of this test's own.
    fn to(candidate: &Candidate) -> Option<Self> {
        Self::with(bound_to(own_address()), candidate, PROPOSAL)
    }

    fn with(socket: OwnedFd, candidate: &Candidate, message: &[u8]) -> Option<Self> {
        Self::try_with(socket, candidate, message).ok()
    }

    fn try_with(
        socket: OwnedFd,
        candidate: &Candidate,
        message: &[u8],
    ) -> Result<Self, FallbackCause> {
        let unconnected = Unconnected::new(address_of(&socket), Some(socket.as_fd()));
        let offer = candidate.offer(&unconnected, message, None)?;
        Ok(Self { offer, socket })
    }
}

/// Connects a socket that was bound, without any negotiation.
fn connect(socket: OwnedFd, to: SocketAddr) -> TcpStream {
    rustix::net::connect(&socket, &to).unwrap();
    socket.into()
}

/// A socket that is not connected yet.
fn bound_to(at: SocketAddr) -> OwnedFd {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    sockopt::set_socket_reuseaddr(&socket, true).unwrap();
    rustix::net::bind(&socket, &at).unwrap();
    socket
}

fn address_of(socket: &OwnedFd) -> SocketAddr {
    let at = rustix::net::getsockname(socket).unwrap();
    at.try_into().unwrap()
}

/// Any port of a loopback address that no other socket of this process has.
fn own_address() -> SocketAddr {
    static COUNT: AtomicU32 = AtomicU32::new(1);
    let count = COUNT.fetch_add(1, Ordering::Relaxed) % 0x1000;
    let process = std::process::id() % 0x800;
    let ip = Ipv4Addr::from_bits(0x7f00_0000 | (process + 1) << 12 | count);
    (ip, 0).into()
}

/// Whether an offer has not been answered, and still can be.
fn is_open(offer: &mut dyn Offer) -> bool {
    let read = offer.side_channel().unwrap().try_read(&mut [0; 8]);
    read.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

/// Waits until an offer cannot be answered any more.
async fn until_lost(offer: &mut dyn Offer) {
    assert_eq!(
        read_exact(offer.side_channel().unwrap(), 1).await,
        b"",
        "was answered"
    );
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
#[derive(Clone)]
struct TempDir {
    path: PathBuf,
    /// Removes it; the parent does where this is a child.
    _own: Option<Arc<tempfile::TempDir>>,
}

impl TempDir {
    fn new() -> Self {
        let own = tempfile::tempdir().unwrap();
        Self {
            path: own.path().to_owned(),
            _own: Some(Arc::new(own)),
        }
    }

    /// One that the parent removes.
    fn of_parent(path: &Path) -> Self {
        Self {
            path: path.into(),
            _own: None,
        }
    }
}

/// The user and the network namespace of a process.
enum Placement<'a> {
    Same,
    /// As this user.
    As(u32),
    /// As this user, in a user namespace in which no user has a number.
    Unmapped(u32),
    /// In this network namespace.
    In(&'a str),
}

/// Starts a process in a directory.
fn start(place: Placement<'_>, role: &str, dir: &Path, args: &str) -> Child {
    let mut command = match place {
        Placement::In(netns) => command_by(&["ip", "netns", "exec", netns], ENTRY),
        Placement::Unmapped(_) => command_by(&["unshare", "--user"], ENTRY),
        _ => command(ENTRY),
    };
    if let Placement::As(uid) | Placement::Unmapped(uid) = place {
        command.uid(uid).gid(uid);
    }
    Child::spawn(command, role, format!("{} {args}", dir.display()))
}

/// Whether the kernel answers questions about sockets: it then says where a connection goes.
fn has_sock_diag() -> bool {
    let here = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = here.local_addr().unwrap().port();
    let shown = std::process::Command::new("ss")
        .args(["-Hltn", &format!("sport = :{port}")])
        .output();
    shown.is_ok_and(|out| !out.stdout.is_empty())
}
