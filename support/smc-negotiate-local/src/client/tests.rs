use std::fmt;
use std::future::pending;
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use async_trait::async_trait;
use rustix::net::sockopt::socket_cookie;
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use smc_core::runtime::{
    Acceptor, BeforeConnect, BeforeListen, Socket, SocketOptions, Task, Timer, Watch,
};
use smc_ipc::channel::{Received, receive};
use smc_ipc::passed::PeerSocket;
use smc_testkit::unix::{fill, listen_at};
use smc_testkit::wait::until;
use tempfile::TempDir;

use super::*;
use crate::directory::Scope;
use crate::message::{MAX_LEN, ToClient};
use crate::sock_diag::TCP_LISTEN;

/// A runtime that runs nothing: a scenario polls what was spawned. Its clock goes on by a
/// millisecond each time it is read.
struct Recorder {
    begin: Instant,
    milliseconds: AtomicU64,
    /// Timers, none of which ends.
    timers: AtomicU64,
    tasks: Mutex<Vec<Task>>,
}

/// Of a descriptor that is always readable.
#[derive(Debug)]
struct Readable;

impl Recorder {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            begin: Instant::now(),
            milliseconds: AtomicU64::new(0),
            timers: AtomicU64::new(0),
            tasks: Mutex::default(),
        })
    }

    fn advance(&self, time: Duration) {
        let milliseconds = time.as_millis().try_into().unwrap();
        self.milliseconds.fetch_add(milliseconds, Ordering::Relaxed);
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").finish_non_exhaustive()
    }
}

impl Watch for Readable {
    fn poll_readable(&self, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[async_trait]
impl Runtime for Recorder {
    fn now(&self) -> Instant {
        let milliseconds = self.milliseconds.fetch_add(1, Ordering::Relaxed);
        self.begin + Duration::from_millis(milliseconds)
    }

    fn timer(&self, _at: Instant) -> Timer {
        self.timers.fetch_add(1, Ordering::Relaxed);
        Box::pin(pending())
    }

    fn spawn(&self, task: Task) {
        self.tasks.lock().push(task);
    }

    fn watch(&self, _fd: BorrowedFd<'_>) -> io::Result<Box<dyn Watch>> {
        Ok(Box::new(Readable))
    }

    async fn resolve(&self, _host: &str, _port: u16) -> io::Result<Vec<SocketAddr>> {
        unreachable!("no host has a name here")
    }

    async fn connect(
        &self,
        _to: SocketAddr,
        _options: &SocketOptions,
        _before: &mut BeforeConnect<'_>,
    ) -> io::Result<Arc<dyn Socket>> {
        unreachable!("channels alone are opened")
    }

    fn bind(
        &self,
        _at: SocketAddr,
        _options: &SocketOptions,
        _before: &mut BeforeListen<'_>,
    ) -> io::Result<Arc<dyn Acceptor>> {
        unreachable!("channels alone are opened")
    }
}

/// A client and the directory of its listeners.
struct World {
    dir: TempDir,
    runtime: Arc<Recorder>,
    client: LocalClient,
}

impl World {
    fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let runtime = Recorder::new();
        let client = LocalClient::new(Domain::directory(dir.path()), runtime.clone());
        Self {
            dir,
            runtime,
            client,
        }
    }

    /// A socket under the name of a listener.
    fn listen(&self, port: u16) -> (Arc<ListenerEntry>, OwnedFd) {
        let entry = ListenerEntry {
            shared: false,
            port,
            scope: Scope::One(Ipv4Addr::LOCALHOST.into()),
            netns: NetNs::current().unwrap(),
            cookie: port.into(),
            salt: 1,
        };
        let socket = listen_at(self.dir.path().join(entry.to_string()));
        (Arc::new(entry), socket)
    }

    /// Opens a channel, and calls `meanwhile` while the listener is connected to.
    fn open_while(
        &self,
        entry: &Arc<ListenerEntry>,
        meanwhile: impl FnOnce(),
    ) -> Arc<ClientChannel> {
        let connect = |name: &str| {
            meanwhile();
            let mut time = ConnectTime::default();
            (self.client.domain).connect_in(self.dir.path(), name, &mut time)
        };
        let searched = Arc::default();
        let opened = (self.client).channel_by(connect, entry, &searched, entry.netns, None);
        opened.unwrap()
    }

    fn open(&self, entry: &Arc<ListenerEntry>) -> Arc<ClientChannel> {
        self.open_while(entry, || ())
    }
}

/// Whether the next client of a listener has sent HELLO.
fn has_hello(listener: &OwnedFd) -> bool {
    let client = PeerSocket::from(rustix::net::accept(listener).unwrap());
    matches!(receive(&client, &mut [0; MAX_LEN], 1), Received::Packet(..))
}

#[test]
fn a_listener_that_is_slow_to_connect_to_keeps_no_other_channel_from_being_opened() {
    let world = World::new();
    let (slow, _slow_socket) = world.listen(1);
    let (other, _other_socket) = world.listen(2);
    world.open_while(&slow, || {
        assert!(world.client.known.channels.try_lock().is_some());
        let opened = world.open(&other);
        assert!(Arc::ptr_eq(&opened, &world.open(&other)));
    });
    assert_eq!(world.client.known.channels.lock().len(), 2);
}

#[test]
fn tasks_that_connect_to_one_listener_at_the_same_time_have_one_channel() {
    let world = World::new();
    let (entry, listener) = world.listen(1);
    let mut first = None;
    let second = world.open_while(&entry, || {
        assert!(world.client.known.channels.try_lock().is_some());
        first = Some(world.open(&entry));
    });
    assert!(first.is_some_and(|first| Arc::ptr_eq(&first, &second)));
    assert_eq!(world.runtime.tasks.lock().len(), 1);
    assert!(has_hello(&listener));
    assert!(!has_hello(&listener), "of the connection that is not used");
}

#[test]
fn connections_do_not_wait_while_one_of_them_refreshes_the_route() {
    let world = World::new();
    let (entry, _socket) = world.listen(1);
    let channel = world.open(&entry);
    let to = (Ipv4Addr::LOCALHOST, 1).into();
    let candidate = LocalCandidate {
        client: world.client.clone(),
        listeners: Vec::new(),
        searched: Arc::default(),
        to,
        netns: entry.netns,
        thread: thread::current().id(),
        own_host: true,
        target: None,
        channel: None,
        cached_handshake: None,
    };
    let target = SocketInfo {
        cookie: entry.cookie,
        uid: geteuid().as_raw(),
        state: TCP_LISTEN,
        inode: 1,
    };
    let dir = Arc::from(world.dir.path());
    let cache = || (world.client).cache_route(&candidate, target, &dir, &channel);
    let is_cached = || world.client.cached_route(to).is_some();
    let wait = |time: Duration| world.runtime.advance(time);

    cache();
    assert!(is_cached());
    wait(ROUTE_LIFETIME / 2);
    assert!(!is_cached(), "the one that refreshes it");
    assert!(is_cached() && is_cached(), "others meanwhile");
    wait(ROUTE_LIFETIME / 2);
    assert!(!is_cached(), "it was not refreshed in time");
    // A task may be on another thread by then.
    thread::scope(|scope| scope.spawn(cache).join()).unwrap();
    assert!(is_cached());
}

#[test]
fn a_channel_whose_listener_sends_without_end_waits_for_the_reactor() {
    let world = World::new();
    let (entry, listener) = world.listen(1);
    let _channel = world.open(&entry);
    let listener = rustix::net::accept(&listener).unwrap();
    let mut task = world.runtime.tasks.lock().pop().unwrap();
    let flood = || fill(&listener, &ToClient::Notify { slot: 1 }.encode());
    let mut poll = || {
        let mut cx = Context::from_waker(Waker::noop());
        assert!(task.as_mut().poll(&mut cx).is_pending());
    };
    let timers = || world.runtime.timers.load(Ordering::Relaxed);
    let mut rounds = 0;
    while timers() == 0 && rounds < 1000 {
        assert_ne!(flood(), 0, "the last round has read");
        poll();
        rounds += 1;
    }
    assert_eq!(timers(), 1, "after {rounds} rounds");
    assert!(rounds > 1, "a few messages are read at once");
    flood();
    poll();
    assert_eq!(flood(), 0, "it reads before the reactor had its turn");
    assert_eq!(timers(), 1);
}

#[test]
fn the_listener_is_found_behind_an_ended_connection_between_the_same_addresses() {
    let world = World::new();
    let netns = NetNs::current().unwrap();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let to = listener.local_addr().unwrap();
    let client = TcpStream::connect(to).unwrap();
    let from = client.local_addr().unwrap();
    let uid = geteuid().as_raw();
    let target = || world.client.target(netns, to, from).unwrap();
    let has_peer = || world.client.has_local_peer(netns, to, from, uid);
    let Some(true) = has_peer() else {
        return println!("skipped: why: no sock_diag here");
    };
    // A connection that exists gets no offer.
    assert_eq!(target(), (None, false));

    // The listener's end closes first.
    drop(listener.accept().unwrap());
    assert_eq!((&client).read(&mut [0]).unwrap(), 0);
    drop(client);
    until(
        || target().1,
        || "the ended connection is not reported".to_owned(),
    );
    let found = target().0.expect("it is found all the same");
    assert_eq!(found.cookie, socket_cookie(&listener).unwrap());
    // A connection from there that is redirected elsewhere has not arrived.
    assert_eq!(has_peer(), Some(false));

    let again = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    // The client's end waits for an acknowledgement of its FIN for a moment, and another process
    // may have the port for another one.
    until(
        || bind(&again, &from).is_ok(),
        || "the client's port stays in use".to_owned(),
    );
    connect(&again, &to).unwrap();
    assert_eq!(has_peer(), Some(true));
}
