//! Local ports of clients, in a network namespace with few of them.

#![cfg(feature = "tokio")]

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::Command;
use std::thread;

use nix::sched::{CloneFlags, unshare};
use smc::{Builder, Domain};

/// The ports that clients may use.
const PORTS: std::ops::RangeInclusive<u16> = 40_000..=40_009;

/// Runs `test` on a thread in a network namespace with these ports for clients. Says why if that
/// cannot be.
fn with_few_ports(test: impl FnOnce() + Send + 'static) {
    let run = move || {
        if let Err(error) = unshare(CloneFlags::CLONE_NEWNET) {
            return println!("skipped: why: cannot make a network namespace: {error}");
        }
        let mut up = Command::new("ip");
        match up.args(["link", "set", "lo", "up"]).status() {
            Ok(status) if status.success() => {}
            other => return println!("skipped: why: needs iproute2: {other:?}"),
        }
        let range = format!("{} {}", PORTS.start(), PORTS.end());
        let file = "/proc/sys/net/ipv4/ip_local_port_range";
        std::fs::write(file, range).expect("root sets the range");
        test();
    };
    thread::spawn(run).join().expect("the scenario passes");
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

#[test]
fn clients_connect_although_sockets_of_others_have_all_ports() {
    with_few_ports(|| {
        let plain = TcpListener::bind((Ipv4Addr::LOCALHOST, 50_000)).expect("it is free");
        let to = plain.local_addr().expect("it has one");
        // One connection from each port, without SO_REUSEADDR, as other programs have them.
        let other = |_| TcpStream::connect(to).expect("it listens");
        let taken: Vec<_> = PORTS.map(other).collect();
        let dir = tempfile::tempdir().expect("a directory");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.expect("tokio starts").block_on(async {
            let build = || {
                let domain = Domain::directory(dir.path());
                let builder = smc::add_defaults(Builder::tokio(), domain).expect("a device");
                builder.build().expect("an endpoint")
            };
            let (client, server) = (build(), build());
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
        drop(taken);
    });
}
