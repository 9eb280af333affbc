//! Local ports of clients, in a network namespace with few of them.

#![cfg(feature = "tokio")]

#[path = "support/network_namespace.rs"]
mod network_namespace;

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;

use rustix::net::{AddressFamily, SocketType};
use smc::error::FallbackCause;
use smc::runtime::tokio::TokioRuntime;
use smc::{Builder, Domain, Endpoint, Listener, Stream};
use smc_core::mutex::Mutex;
use smc_core::runtime::{Runtime, SocketOptions};

use network_namespace::in_network_namespace;

/// The ports that clients may use: so many that draws do not find the last ones.
const PORTS: std::ops::RangeInclusive<u16> = 40_000..=43_999;

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Runs `test` on a thread in a network namespace with these ports for clients. Says why if that
/// cannot be.
fn with_few_ports(test: impl AsyncFnOnce() + Send + 'static) {
    // The library reads the range with the first connect of a process.
    let _one_at_a_time = ONE_AT_A_TIME.lock();
    in_network_namespace(move || {
        set_port_range(*PORTS.start(), *PORTS.end());
        // What is left of ended connections stays.
        set("tcp_tw_reuse", "0");
        set("tcp_max_tw_buckets", "100000");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.expect("tokio starts").block_on(async {
            read_range().await;
            test().await;
        });
    });
}

/// Has the library read the range, by a connect that is refused.
async fn read_range() {
    let nowhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
    let runtime = TokioRuntime::current().expect("it runs");
    let options = SocketOptions::default();
    let refused = runtime.connect(nowhere, &options, &mut |_| Ok(())).await;
    refused.expect_err("nothing listens there");
}

fn set(name: &str, value: &str) {
    let file = format!("/proc/sys/net/ipv4/{name}");
    std::fs::write(file, value).expect("root sets it");
}

fn set_port_range(first: u16, last: u16) {
    set("ip_local_port_range", &format!("{first} {last}"));
}

fn endpoint(dir: &Path) -> Endpoint {
    let builder = smc::add_defaults(Builder::tokio(), Domain::directory(dir)).expect("a device");
    builder.build().expect("an endpoint")
}

/// Where connections of others go.
struct Plain(TcpListener);

impl Plain {
    fn new() -> Self {
        Self(TcpListener::bind((Ipv4Addr::LOCALHOST, 50_000)).expect("it is free"))
    }

    /// A connection that has just ended, from a port that `connect` chooses: TIME-WAIT is left.
    fn end_one(&self) {
        let to = self.0.local_addr().expect("it has one");
        drop(TcpStream::connect(to).expect("it listens"));
        drop(self.0.accept().expect("it is connected"));
    }

    /// The same from this port, of a socket that was bound explicitly. Returns whether it was free.
    fn end_one_from(&self, port: u16) -> bool {
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None);
        let socket = socket.expect("a socket");
        let from = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        if rustix::net::bind(&socket, &from).is_err() {
            return false;
        }
        let to = self.0.local_addr().expect("it has one");
        rustix::net::connect(&socket, &to).expect("it listens");
        drop(socket);
        drop(self.0.accept().expect("it is connected"));
        true
    }
}

#[test]
fn clients_connect_although_sockets_of_others_have_all_ports() {
    with_few_ports(async || {
        let plain = Plain::new();
        // Without SO_REUSEADDR, as other programs have them.
        PORTS.for_each(|_| plain.end_one());
        let dir = tempfile::tempdir().expect("a directory");
        let (client, server) = (endpoint(dir.path()), endpoint(dir.path()));
        let listener = server.bind("127.0.0.1:50001").await.expect("it is free");
        let to = listener.local_addr().expect("it has one");
        for _ in 0..20 {
            let stream = client
                .connect(to)
                .await
                .expect("as a plain TCP client connects");
            let accepted = listener.accept().await.expect("it is accepted");
            let mode = stream.mode();
            assert!(mode.is_smc() || !kernel_has_port_ranges(), "{mode}");
            drop((stream, accepted));
        }
    });
}

#[test]
fn clients_find_the_last_ports_that_no_other_socket_was_bound_to() {
    with_few_ports(async || {
        const LEFT: u16 = 4;
        let plain = Plain::new();
        let bound = PORTS.filter(|port| port % 1000 != 500);
        bound.for_each(|port| assert!(plain.end_one_from(port)));
        let dir = tempfile::tempdir().expect("a directory");
        let (client, server) = (endpoint(dir.path()), endpoint(dir.path()));
        let listener = server.bind("127.0.0.1:50001").await.expect("it is free");
        let to = listener.local_addr().expect("it has one");
        let mut open = Vec::new();
        for _ in 0..LEFT {
            let stream = client.connect(to).await.expect("a port is left");
            assert!(stream.mode().is_smc(), "{}", stream.mode());
            open.push((stream, listener.accept().await.expect("it is accepted")));
        }
    });
}

#[test]
fn a_client_that_finds_no_port_to_announce_is_tcp_at_once_and_the_next_one_is_smc() {
    with_few_ports(async || {
        const CHOSEN: usize = 8;
        let plain = Plain::new();
        // `connect` can share ports with what `connect` chose, but `bind` has none, and draws do
        // not find them.
        (0..CHOSEN).for_each(|_| plain.end_one());
        let mut bound = 0;
        for port in PORTS {
            let is_free = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
            if is_free && plain.end_one_from(port) {
                bound += 1;
            }
        }
        assert!(bound + 2 * CHOSEN >= PORTS.len(), "{bound}");
        let dir = tempfile::tempdir().expect("a directory");
        let (client, server) = (endpoint(dir.path()), endpoint(dir.path()));
        let listener = server.bind("127.0.0.1:50001").await.expect("it is free");
        let to = listener.local_addr().expect("it has one");
        let _open = connect_without_port(&client, &listener, 2).await;
        set_port_range(*PORTS.start(), 44_099);
        let stream = client.connect(to).await.expect("a port is left");
        assert!(stream.mode().is_smc(), "{}", stream.mode());
    });
}

#[test]
fn a_client_that_gets_another_port_than_it_has_announced_is_tcp_at_once() {
    if !kernel_has_port_ranges() {
        return println!("skipped: why: needs Linux 6.3");
    }
    with_few_ports(async || {
        let plain = Plain::new();
        let dir = tempfile::tempdir().expect("a directory");
        let (client, server) = (endpoint(dir.path()), endpoint(dir.path()));
        let listener = server.bind("127.0.0.1:50001").await.expect("it is free");
        let to = listener.local_addr().expect("it has one");
        let first = client.connect(to).await.expect("ports are left");
        assert!(first.mode().is_smc(), "{}", first.mode());
        // From here on draws are of the range that was.
        (1..PORTS.len()).for_each(|_| plain.end_one());
        set_port_range(45_000, 45_099);
        for stream in connect_without_port(&client, &listener, 2).await {
            let from = stream.local_addr().expect("it has one");
            assert!(!PORTS.contains(&from.port()), "{from}");
        }
    });
}

#[test]
fn a_connect_to_the_only_port_that_the_client_can_get_is_refused() {
    with_few_ports(async || {
        let port = *PORTS.start();
        set_port_range(port, port);
        let runtime = TokioRuntime::current().expect("it runs");
        for ip in [Ipv4Addr::LOCALHOST, Ipv4Addr::UNSPECIFIED] {
            for unbound in [false, true] {
                let mut options = SocketOptions::default();
                options.unbound = unbound;
                let to = SocketAddr::from((ip, port));
                let connected = runtime.connect(to, &options, &mut |_| Ok(())).await;
                let error = connected.expect_err("there is no listener, or it would be the client");
                assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{to}");
            }
        }
    });
}

/// So many streams that are TCP, as no port was found, with an answer of the listener that was not
/// waited for. A draw can find one of the last ports: such a stream is SMC, and stays open.
async fn connect_without_port(client: &Endpoint, listener: &Listener, count: usize) -> Vec<Stream> {
    const DRAWN_MAX: usize = 5;
    let to = listener.local_addr().expect("it has one");
    let (mut found, mut drawn) = (Vec::new(), Vec::new());
    while found.len() < count {
        let stream = client.connect(to).await;
        let stream = stream.expect("as a plain TCP client connects");
        let accepted = listener.accept().await.expect("it is accepted");
        match stream.fallback_reason() {
            Some(reason) => {
                assert!(matches!(reason.cause, FallbackCause::Os(_)), "{reason:?}");
                found.push(stream);
            }
            None => drawn.push(stream),
        }
        drawn.push(accepted.0);
        assert!(drawn.len() <= count + 2 * DRAWN_MAX, "draws find ports");
    }
    found
}

/// Whether `connect` can take one port (`IP_LOCAL_PORT_RANGE`).
fn kernel_has_port_ranges() -> bool {
    let release = rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned();
    let mut numbers = release
        .split('.')
        .filter_map(|part| part.parse::<u32>().ok());
    let version = (numbers.next(), numbers.next());
    version >= (Some(6), Some(3))
}
