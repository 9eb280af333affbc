//! How many sockets without a connection are kept, and for how long, on a virtual clock.

use std::future::poll_fn;
use std::io::IoSlice;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use rustix::process::geteuid;
use smc_testkit::process::is_alone;
use smc_testkit::runtime::VirtualRuntime;

use super::*;
use crate::address::UnixAddr;
use crate::lifetime::Deadlines;
use crate::negotiate::Credentials;
use crate::peer_descriptors::Source;
use crate::runtime::{Runtime, Socket, SocketOptions, Unconnected};

/// A virtual host with a listener and a client.
struct Host {
    runtime: VirtualRuntime,
    handle: Arc<dyn Runtime>,
    kept: Arc<KeptSockets>,
    deadlines: Arc<Deadlines>,
}

/// Two ends of a connection.
struct Pair {
    client: Arc<dyn Socket>,
    server: Arc<dyn Socket>,
}

impl Host {
    fn new() -> Self {
        let runtime = VirtualRuntime::new(1);
        let handle = runtime.handle();
        let deadlines = Deadlines::new(&handle, &Arc::default());
        Self {
            kept: KeptSockets::new(&deadlines),
            runtime,
            handle,
            deadlines,
        }
    }

    fn now(&self) -> Instant {
        self.handle.now()
    }

    fn pass(&self, millis: u64) {
        self.runtime.run_for(Duration::from_millis(millis));
    }

    fn pair(&self) -> Pair {
        let options = SocketOptions::default();
        let at = "127.0.0.1:80".parse().unwrap();
        let acceptor = self.handle.bind(at, &options, &mut |_| Ok(())).unwrap();
        self.runtime.block_on(async {
            let mut before = |_: &Unconnected<'_>| Ok(());
            let connecting = self.handle.connect(at, &options, &mut before);
            let client = connecting.await.unwrap();
            let (server, _) = poll_fn(|cx| acceptor.poll_accept(cx)).await.unwrap();
            Pair { client, server }
        })
    }

    /// Has a listener keep a socket, and nothing else. `None` if it does not.
    fn keep(
        &self,
        kept: &Arc<KeptSockets>,
        server: Arc<dyn Socket>,
        source: Option<Source>,
        since: Instant,
    ) -> Option<Weak<dyn Socket>> {
        let weak = Arc::downgrade(&server);
        let client = KnownClient {
            addr: UnixAddr::unnamed().into(),
            process: own_process(),
            source,
            since,
        };
        kept.add(server, client).then_some(weak)
    }

    fn poll_next(&self, expiry: &mut Expiry) -> Poll<NextConnection> {
        let mut cx = Context::from_waker(Waker::noop());
        self.kept.poll_next(&mut cx, expiry)
    }

    /// Starts a task of the listener that takes no connection, as while too many wait.
    fn start_expiry(&self) {
        let (kept, mut expiry) = (Arc::clone(&self.kept), Expiry::default());
        self.runtime.spawn_named("listener", async move {
            poll_fn::<(), _>(|cx| {
                kept.poll_expiry(cx, &mut expiry);
                Poll::Pending
            })
            .await;
        });
    }

    fn idle(&self) -> Arc<IdleSockets> {
        IdleSockets::new(&self.handle)
    }
}

impl Pair {
    fn send(&self, bytes: &[u8]) {
        assert_eq!(
            self.client.try_write(&[IoSlice::new(bytes)]).unwrap(),
            bytes.len()
        );
    }
}

fn own_process() -> Credentials {
    let (socket, _other) = UnixStream::pair().unwrap();
    Credentials::of_peer(&socket).unwrap()
}

/// An abstract name leads to the same place for as long as the process runs.
fn name(name: &str) -> UnixAddr {
    UnixAddr::from_abstract_name(name).unwrap()
}

fn connected(to: &UnixAddr, since: Instant) -> ConnectedSocket {
    ConnectedSocket {
        to: to.clone(),
        listener: own_process(),
        since,
        destination: Destination::of(to),
    }
}

fn is_open(socket: &Weak<dyn Socket>) -> bool {
    socket.strong_count() > 0
}

/// Other users than that of this test.
fn another(number: u32) -> Option<Source> {
    Some(Source::User(geteuid().as_raw() + 1000 + number))
}

#[test]
fn a_listener_takes_a_proposal_until_two_seconds_after_it_has_accepted_the_client() {
    for (before, after, is_taken) in [(1500, 400, true), (1500, 600, false), (0, 2100, false)] {
        let host = Host::new();
        let since = host.now();
        let pair = host.pair();
        host.pass(before);
        let server = Arc::clone(&pair.server);
        let kept = host.keep(&host.kept, server, None, since).unwrap();
        let mut expiry = Expiry::default();
        assert!(host.poll_next(&mut expiry).is_pending());
        host.pass(after);
        pair.send(b"late");
        host.pass(1);
        let next = host.poll_next(&mut expiry);
        assert_eq!(next.is_ready(), is_taken, "{before} {after}");
        drop((pair, next));
        assert!(!is_open(&kept));
    }
    let host = Host::new();
    let (since, pair) = (host.now(), host.pair());
    host.pass(2000);
    let server = pair.server;
    assert!(host.keep(&host.kept, server, None, since).is_none());
}

#[test]
fn a_proposal_that_was_sent_in_time_is_not_taken_too_late() {
    let host = Host::new();
    let since = host.now();
    let pair = host.pair();
    let server = Arc::clone(&pair.server);
    host.keep(&host.kept, server, None, since).unwrap();
    pair.send(b"in time");
    host.pass(2000);
    assert!(host.poll_next(&mut Expiry::default()).is_pending());
}

#[test]
fn a_listener_that_takes_no_connections_closes_each_socket_at_its_age() {
    let host = Host::new();
    host.start_expiry();
    let (pairs, begin) = ([(); 2].map(|()| host.pair()), host.now());
    let [younger, older] = pairs.map(|pair| pair.server);
    host.pass(1000);
    let younger = host.keep(&host.kept, younger, None, host.now()).unwrap();
    host.pass(100);
    // It was in use meanwhile.
    let older = host.keep(&host.kept, older, None, begin).unwrap();
    for (passed, is_older_open, is_younger_open) in [
        (850, true, true),
        (100, false, true),
        (900, false, true),
        (100, false, false),
    ] {
        host.pass(passed);
        let open = [is_open(&older), is_open(&younger)];
        assert_eq!(open, [is_older_open, is_younger_open]);
    }
}

#[test]
fn clients_are_read_in_the_order_of_their_proposals_and_late_ones_closed_beside_them() {
    let host = Host::new();
    let begin = host.now();
    let silent = host.keep(&host.kept, host.pair().server, None, begin);
    host.pass(1000);
    let pairs = [(); 3].map(|()| host.pair());
    for pair in &pairs {
        let server = Arc::clone(&pair.server);
        host.keep(&host.kept, server, None, host.now()).unwrap();
    }
    for (number, pair) in pairs.iter().enumerate() {
        pair.send(&[u8::try_from(number).unwrap()]);
        host.pass(10);
    }
    host.pass(1000);
    let mut expiry = Expiry::default();
    for number in 0..3 {
        let Poll::Ready(next) = host.poll_next(&mut expiry) else {
            panic!("{number} is not read");
        };
        assert_eq!(next.received, [number]);
        assert!(!is_open(silent.as_ref().unwrap()));
    }
}

#[test]
fn the_sockets_of_a_process_are_bounded_by_user() {
    if !is_alone() {
        return;
    }
    let host = Host::new();
    host.start_expiry();
    let limit = places::limit();
    let listeners = [&host.deadlines; 2].map(KeptSockets::new);
    let keep = |listener: usize, source| {
        host.keep(&listeners[listener], host.pair().server, source, host.now())
    };
    let fill = |source, share: usize| -> Vec<_> {
        let all = (0..share).map(|_| keep(0, source).unwrap()).collect();
        assert!(keep(1, source).is_none(), "all listeners are counted");
        all
    };
    let of_one = fill(another(1), limit / 8);
    let of_own = fill(None, limit / 2);
    let to = name("bounded");
    let idle = host.idle();
    assert!(!idle.add(host.pair().client, connected(&to, host.now())));
    // One more of a user closes the oldest one of this user.
    for (source, all) in [(another(1), &of_one), (None, &of_own)] {
        assert!(all.iter().all(is_open));
        assert!(keep(0, source).is_some());
        assert!(!is_open(&all[0]));
        assert!(all[1..].iter().all(is_open));
    }
    assert!(keep(1, another(2)).is_some(), "another user has a share");
    listeners[0].close_all();
    assert!(of_own.iter().chain(&of_one).all(|socket| !is_open(socket)));

    // A client: the oldest one to the same address.
    let sockets = (0..limit / 2).map(|_| {
        let socket = host.pair().client;
        let weak = Arc::downgrade(&socket);
        assert!(idle.add(socket, connected(&to, host.now())));
        weak
    });
    let sockets: Vec<_> = sockets.collect();
    let other = name("another");
    assert!(!idle.add(host.pair().client, connected(&other, host.now())));
    assert!(idle.add(host.pair().client, connected(&to, host.now())));
    assert!(!is_open(&sockets[0]));
    assert!(sockets[1..].iter().all(is_open));
    assert!(idle.close_all());
    assert!(idle.add(host.pair().client, connected(&other, host.now())));
    idle.end();
}

#[test]
fn a_client_uses_and_keeps_a_socket_for_a_second() {
    let host = Host::new();
    let (idle, to) = (host.idle(), name("used"));
    let begin = host.now();
    let [one, other] = [(); 2].map(|()| host.pair().client);
    let weak = [&one, &other].map(Arc::downgrade);
    host.pass(500);
    assert!(idle.add(one, connected(&to, host.now())));
    host.pass(100);
    assert!(idle.add(other, connected(&name("earlier"), begin)));
    host.pass(300);
    assert!(weak.iter().all(is_open));
    host.pass(200);
    assert_eq!(weak.each_ref().map(is_open), [true, false]);
    let (socket, connected) = idle.take(&to).unwrap();
    assert!(idle.add(socket, connected.clone()));
    host.pass(500);
    assert!(!is_open(&weak[0]));
    assert!(!idle.add(host.pair().client, connected));
    assert!(idle.take(&to).is_none());
}

#[test]
fn after_a_late_answer_no_socket_is_kept_for_a_while() {
    let host = Host::new();
    let (idle, to) = (host.idle(), name("late"));
    let add = |to: &UnixAddr| idle.add(host.pair().client, connected(to, host.now()));
    assert!(add(&to));
    idle.avoid(&to);
    assert!(idle.take(&to).is_none());
    assert!(!add(&to));
    assert!(add(&name("on time")));
    host.pass(9900);
    assert!(!add(&to));
    host.pass(200);
    assert!(add(&to));
}

#[test]
fn idle_sockets_end_with_their_runtime() {
    let host = Host::new();
    let (idle, to) = (host.idle(), name("ending"));
    let (one, other) = (host.pair().client, host.pair().client);
    let (weak, since) = (Arc::downgrade(&one), host.now());
    assert!(idle.add(one, connected(&to, since)));
    drop(host);
    assert!(!is_open(&weak));
    assert!(!idle.add(other, connected(&to, since)));
}
