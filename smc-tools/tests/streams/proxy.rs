//! `smc proxy` between ordinary TCP programs.

use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use smc_testkit::port::HeldPort;
use smc_testkit::wait::{TIMEOUT, until};
use socket2::SockRef;

use crate::process::{Process, World, data, echo, reverse, tcp_client, tcp_server};

const CLIENTS: u32 = 50;
const LEN: usize = 300_000;

/// A proxy beside the client, and one beside the server.
struct Chain {
    near: Process,
    far: Process,
    /// Where the client connects to.
    address: String,
}

impl Chain {
    fn new(world: &World, server: &str, options: &str) -> Self {
        let (far, between) = world.proxy(&format!(
            "--listen smc:127.0.0.1:0 --to {server} -v {options}"
        ));
        let (near, address) = world.proxy(&format!(
            "--listen tcp:127.0.0.1:0 --to {between} -v {options}"
        ));
        Self { near, far, address }
    }
}

#[test]
fn fifty_connections_at_once_go_over_smc_between_ordinary_programs() {
    let world = World::new();
    for serve in [echo, reverse] {
        let server = format!("tcp:{}", tcp_server(serve));
        let mut chain = Chain::new(&world, &server, "");
        // None is used before all are connected.
        let clients: Vec<_> = (0..CLIENTS).map(|_| tcp_client(&chain.address)).collect();
        let clients: Vec<_> = clients
            .into_iter()
            .zip(1..)
            .map(|(client, seed)| thread::spawn(move || exchange(client, seed)))
            .collect();
        for (client, seed) in clients.into_iter().zip(1..) {
            let mut received = client.join().unwrap();
            if received != data(seed, LEN) {
                received.reverse();
            }
            assert!(received == data(seed, LEN), "connection {seed}");
        }
        for proxy in [&mut chain.near, &mut chain.far] {
            let mut has_smc = false;
            for _ in 0..CLIENTS {
                let line = proxy.line_with("bytes there");
                // On a machine that is short of CPU time, set-ups may run into their timeouts.
                has_smc |= line.contains("SMC-D v2.1");
                let wanted = format!("{LEN} bytes there, {LEN} back");
                assert!(
                    line.contains(&wanted) && line.ends_with("complete"),
                    "{line}"
                );
            }
            assert!(has_smc, "all connections are TCP");
            proxy.signal(Signal::SIGTERM);
            assert_eq!(proxy.end(), (Some(0), String::new()));
        }
    }
}

/// Sends everything and the end, and receives everything.
fn exchange(client: TcpStream, seed: u32) -> Vec<u8> {
    let mut received = Vec::new();
    thread::scope(|scope| {
        scope.spawn(|| {
            (&client).write_all(&data(seed, LEN)).unwrap();
            client.shutdown(Shutdown::Write).unwrap();
        });
        (&client).read_to_end(&mut received).unwrap();
    });
    received
}

#[test]
fn an_answer_arrives_although_the_server_reads_no_more() {
    let world = World::new();
    // It answers before the client has sent its end, and closes when the client has.
    let answer = |mut stream: TcpStream| {
        stream.write_all(&data(1, LEN)).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        stream.read_to_end(&mut Vec::new()).unwrap();
    };
    let chain = Chain::new(&world, &format!("tcp:{}", tcp_server(answer)), "");
    let mut client = tcp_client(&chain.address);
    let mut received = Vec::new();
    client.read_to_end(&mut received).unwrap();
    assert!(received == data(1, LEN));
    client.write_all(&data(2, LEN)).unwrap();
    drop(client);
    for proxy in [&chain.near, &chain.far] {
        let line = proxy.line_with("bytes there");
        assert!(
            line.contains(&format!("{LEN} bytes there, {LEN} back")),
            "{line}"
        );
        assert!(line.ends_with("complete"), "{line}");
    }
}

#[test]
fn a_reset_is_passed_on_and_is_no_end_of_stream() {
    let world = World::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = format!("tcp:{}", listener.local_addr().unwrap());
    let chain = Chain::new(&world, &server, "");
    let mut client = tcp_client(&chain.address);
    client.write_all(b"a part").unwrap();
    let mut accepted = listener.accept().unwrap().0;
    accepted.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut part = [0; 6];
    accepted.read_exact(&mut part).unwrap();
    let linger = SockRef::from(&client).set_linger(Some(Duration::ZERO));
    linger.unwrap();
    drop(client);
    let end = accepted.read(&mut part);
    assert_eq!(end.unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[test]
fn a_proxy_that_is_killed_resets_connections_of_the_other() {
    let world = World::new();
    let server = format!("tcp:{}", tcp_server(echo));
    let mut chain = Chain::new(&world, &server, "");
    let mut client = tcp_client(&chain.address);
    let mut byte = [7];
    client.write_all(&byte).unwrap();
    client.read_exact(&mut byte).unwrap();
    chain.far.kill();
    let end = client.read(&mut byte);
    assert_eq!(end.unwrap_err().kind(), ErrorKind::ConnectionReset);
    chain.near.line_with("from the server");
}

#[test]
fn a_proxy_that_is_asked_to_end_waits_for_its_connections() {
    let world = World::new();
    let server = format!("tcp:{}", tcp_server(echo));
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut chain = Chain::new(&world, &server, "--grace 60");
        let mut client = tcp_client(&chain.address);
        let mut byte = [7];
        client.write_all(&byte).unwrap();
        client.read_exact(&mut byte).unwrap();
        for proxy in [&chain.near, &chain.far] {
            proxy.signal(signal);
            proxy.line_with("ending: 1 connections");
        }
        // It accepts no more.
        let address = chain.address.strip_prefix("tcp:").unwrap();
        let refused = TcpStream::connect(address).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        assert!(exchange(client, 1) == data(1, LEN));
        for proxy in [&mut chain.near, &mut chain.far] {
            assert_eq!(proxy.status().code(), Some(0));
            proxy.line_with("complete");
        }
    }
    let mut left = fs::read_dir(world.dir.path().join("run")).unwrap();
    assert!(left.next().is_none());
}

#[test]
fn a_client_that_is_connected_when_the_proxy_is_asked_to_end_is_served() {
    let world = World::new();
    let server = format!("tcp:{}", tcp_server(echo));
    for _ in 0..8 {
        let (mut proxy, address) = world.proxy(&format!(
            "--listen tcp:127.0.0.1:0 --to {server} --grace 60"
        ));
        // The kernel makes the connection while the proxy is stopped.
        proxy.signal(Signal::SIGSTOP);
        let client = tcp_client(&address);
        proxy.signal(Signal::SIGTERM);
        proxy.signal(Signal::SIGCONT);
        assert!(exchange(client, 1) == data(1, LEN));
        assert_eq!(proxy.status().code(), Some(0));
    }
}

/// Each one ends at once, so that the limit of connections is never reached.
#[test]
fn clients_that_go_on_connecting_do_not_keep_a_proxy_from_ending() {
    let world = World::new();
    let held = HeldPort::of(Ipv4Addr::LOCALHOST).unwrap();
    for (grace, has_second_signal) in [("0", false), ("60", true)] {
        let (mut proxy, address) = world.proxy(&format!(
            "--listen tcp:127.0.0.1:0 --to tcp:{} --max-connections 100000 --grace {grace}",
            held.addr()
        ));
        let address = address.strip_prefix("tcp:").unwrap().to_owned();
        let connecting = thread::spawn(move || {
            let mut count = 0;
            while TcpStream::connect(&address).is_ok() {
                count += 1;
                thread::sleep(Duration::from_millis(5));
            }
            count
        });
        proxy.line_with("cannot connect");
        proxy.signal(Signal::SIGTERM);
        if has_second_signal {
            proxy.signal(Signal::SIGINT);
        }
        assert_eq!(proxy.status().code(), Some(0));
        assert!(connecting.join().unwrap() > 0);
    }
}

#[test]
fn connections_that_last_longer_than_the_grace_are_reset() {
    let world = World::new();
    let server = format!("tcp:{}", tcp_server(echo));
    // At the end of the grace, or at a second signal.
    for (grace, has_second_signal) in [("0", false), ("60", true)] {
        let mut chain = Chain::new(&world, &server, &format!("--grace {grace}"));
        let mut client = tcp_client(&chain.address);
        let mut byte = [7];
        client.write_all(&byte).unwrap();
        client.read_exact(&mut byte).unwrap();
        chain.near.signal(Signal::SIGTERM);
        if has_second_signal {
            chain.near.line_with("ending: 1 connections");
            chain.near.signal(Signal::SIGTERM);
        }
        let end = client.read(&mut byte);
        assert_eq!(end.unwrap_err().kind(), ErrorKind::ConnectionReset);
        let (code, lines) = chain.near.end();
        assert_eq!(code, Some(0));
        assert!(lines.contains("1 connections were cut off"), "{lines}");
        chain.far.line_with("from the client");
    }
}

#[test]
fn clients_beyond_the_limit_wait_and_the_limit_is_reported() {
    let world = World::new();
    let server = format!("tcp:{}", tcp_server(echo));
    let (proxy, address) = world.proxy(&format!(
        "--listen tcp:127.0.0.1:0 --to {server} -vv --max-connections 1"
    ));
    let first = tcp_client(&address);
    proxy.line_with("1 connections, the limit of --max-connections");
    let mut second = tcp_client(&address);
    second.write_all(b"waits").unwrap();
    assert!(exchange(first, 1) == data(1, LEN));
    let mut received = [0; 5];
    second.read_exact(&mut received).unwrap();
    assert_eq!(&received, b"waits");
    // The first one had ended before the second one was connected.
    for wanted in ["connected", "complete", "connected"] {
        proxy.line_with(wanted);
    }
}

#[test]
fn clients_that_reset_before_they_are_accepted_are_no_failure() {
    let world = World::new();
    let server = format!("tcp:{}", tcp_server(echo));
    for listen in ["tcp", "smc"] {
        let (mut proxy, address) = world.proxy(&format!(
            "--listen {listen}:127.0.0.1:0 --to {server} -v --max-connections 1"
        ));
        let address = address.strip_prefix("smc:").unwrap_or(&address);
        let first = tcp_client(address);
        proxy.line_with("the limit of --max-connections");
        // It is accepted when the first one has ended.
        let reset = tcp_client(address);
        let linger = SockRef::from(&reset).set_linger(Some(Duration::ZERO));
        linger.unwrap();
        drop(reset);
        assert!(exchange(first, 1) == data(1, LEN));
        assert!(exchange(tcp_client(address), 2) == data(2, LEN));
        proxy.signal(Signal::SIGTERM);
        let (code, lines) = proxy.end();
        assert_eq!(code, Some(0));
        assert!(!lines.contains("cannot accept"), "{lines}");
        assert!(lines.contains("from the client"), "{lines}");
    }
}

#[test]
fn a_server_that_is_not_there_is_reported_and_its_client_is_reset() {
    let world = World::new();
    let held = HeldPort::of(Ipv4Addr::LOCALHOST).unwrap();
    let to = format!("tcp:{}", held.addr());
    let (proxy, address) = world.proxy(&format!("--listen tcp:127.0.0.1:0 --to {to}"));
    let mut client = tcp_client(&address);
    let end = client.read(&mut [0]);
    assert_eq!(end.unwrap_err().kind(), ErrorKind::ConnectionReset);
    proxy.line_with(&format!("cannot connect to {to}: Connection refused"));
}

#[test]
fn an_idle_connection_of_many_is_served_while_another_one_is_stuck() {
    let world = World::new();
    let server = format!("tcp:{}", tcp_server(echo));
    let chain = Chain::new(&world, &server, "");
    let stuck = tcp_client(&chain.address);
    let mut other = tcp_client(&chain.address);
    let (progress, written) = channel();
    let mut to = stuck.try_clone().unwrap();
    // Nothing reads what comes back, so this stops at some time, and ends with the test.
    thread::spawn(
        move || {
            while to.write_all(&[0; 65536]).is_ok() && progress.send(()).is_ok() {}
        },
    );
    let mut count = 0;
    let is_far = || {
        count += written.try_iter().count();
        count > 16
    };
    until(is_far, || "nothing is written".to_owned());
    let mut byte = [7];
    other.write_all(&byte).unwrap();
    other.read_exact(&mut byte).unwrap();
    drop(stuck);
}

/// The body that a proxy answers at this path, and the status of the response.
fn get(at: &str, path: &str) -> (String, String) {
    let mut stream = tcp_client(at);
    let request = format!("GET {path} HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    (head.lines().next().unwrap().to_owned(), body.to_owned())
}

/// Where a proxy answers scrapes.
fn metrics_at(proxy: &Process) -> String {
    let line = proxy.line_with("metrics at http://");
    let at = line.split_once("http://").unwrap().1;
    at.strip_suffix("/metrics").unwrap().to_owned()
}

#[test]
fn connections_and_bytes_are_counted_for_prometheus() {
    let world = World::new();
    let server = format!("tcp:{}", tcp_server(echo));
    let chain = Chain::new(&world, &server, "--metrics 127.0.0.1:0");
    let near = &metrics_at(&chain.near);
    let metrics = || get(near, "/metrics").1;
    let has = |line: &str| metrics().lines().any(|other| other == line);

    let mut client = tcp_client(&chain.address);
    client.write_all(&data(1, 1000)).unwrap();
    let mut received = vec![0; 1000];
    client.read_exact(&mut received).unwrap();
    assert!(has("smc_proxy_connections_open 1"), "{}", metrics());
    let sent = r#"smc_bytes_total{endpoint="proxy",device="loop",direction="sent"} 1000"#;
    assert!(has(sent), "{}", metrics());
    assert_metrics_are_described(&metrics());
    drop(client);
    until(|| has("smc_proxy_connections_open 0"), metrics);
    assert!(has(r#"smc_proxy_connections_total{end="complete"} 1"#));
    for direction in ["there", "back"] {
        let line = format!(r#"smc_proxy_bytes_total{{direction="{direction}"}} 1000"#);
        assert!(has(&line), "{}", metrics());
    }
    assert!(get(near, "/").0.contains("404"));

    // Clients that send nothing keep no connection from being carried.
    let silent: Vec<_> = (0..20).map(|_| tcp_client(near)).collect();
    let mut client = tcp_client(&chain.address);
    client.write_all(b"!").unwrap();
    client.read_exact(&mut [0]).unwrap();
    drop(silent);
    assert!(has("smc_proxy_connections_open 1"), "{}", metrics());
}

/// Each metric has a help text and is in the manual, and the dashboard has no others.
fn assert_metrics_are_described(text: &str) {
    let manual = include_str!("../../../docs/operating.md");
    let rows = manual
        .lines()
        .filter_map(|line| line.strip_prefix("| `smc_"));
    let rows: Vec<_> = rows.filter_map(|row| row.split('`').next()).collect();
    let kinds = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let names: Vec<_> = kinds.filter_map(|line| line.split(' ').next()).collect();
    assert!(names.len() > 10, "{text}");
    for name in names {
        assert!(text.contains(&format!("# HELP {name} ")), "{name}: {text}");
        assert!(rows.contains(&name.trim_start_matches("smc_")), "{name}");
    }
    let dashboard = include_str!("../../../examples/deploy/grafana.json");
    let is_in_name = |c: char| c == '_' || c.is_ascii_lowercase();
    for rest in dashboard.split("smc_").skip(1) {
        let name = rest.split(|c| !is_in_name(c)).next().unwrap();
        assert!(rows.contains(&name), "smc_{name}");
    }
}

#[test]
fn a_proxy_without_connections_ends_at_once_and_leaves_no_name_behind() {
    for options in ["", "--metrics 127.0.0.1:0"] {
        let world = World::new();
        let (mut proxy, _) = world.proxy(&format!(
            "--listen smc:127.0.0.1:0 --to tcp:127.0.0.1:9 {options}"
        ));
        let names = || {
            let entries = fs::read_dir(world.dir.path().join("run")).unwrap();
            entries
                .map(|entry| entry.unwrap().file_name())
                .collect::<Vec<_>>()
        };
        until(|| !names().is_empty(), || "no names".to_owned());
        proxy.signal(Signal::SIGTERM);
        assert_eq!(proxy.status().code(), Some(0));
        assert_eq!(names(), Vec::<std::ffi::OsString>::new(), "{options}");
    }
}

#[test]
fn clients_that_send_no_request_keep_no_scrape_from_being_answered() {
    let world = World::new();
    let server = tcp_server(echo);
    let (proxy, _) = world.proxy(&format!(
        "--listen tcp:127.0.0.1:0 --to tcp:{server} --metrics 127.0.0.1:0"
    ));
    let at = &metrics_at(&proxy);
    let silent: Vec<_> = (0..200).map(|_| tcp_client(at)).collect();
    for _ in 0..3 {
        assert!(get(at, "/metrics").0.contains("200"));
    }
    for mut client in silent {
        // Or a reset.
        let ended = client.read(&mut [0; 1]).map_err(|error| error.kind());
        assert!(
            matches!(ended, Ok(0) | Err(ErrorKind::ConnectionReset)),
            "{ended:?}"
        );
    }
}
