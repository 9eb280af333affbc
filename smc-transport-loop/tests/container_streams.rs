//! Streams between containers: mount, network and process namespaces of their own, joined by a
//! virtual wire for TCP, that share nothing but the runtime directory.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use common::builder;
use futures_lite::AsyncWriteExt as _;
use futures_lite::future::zip;
use smc_testkit::on::On;
use smc_testkit::process::{Child, Role, command_by};
use smc_testkit::streams::{expect_rest, patterned};

#[test]
fn containers_exchange_data_over_shared_memory_and_plain_clients_over_tcp() {
    if let Some(role) = Role::current() {
        return act(&role);
    }
    let Some(wire) = Wire::new() else {
        println!("skipped: this user cannot make network namespaces");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let mut server = wire.start(0, "serve", dir.path());
    assert_eq!(server.recv(), "ready");
    for role in ["exchange", "exchange on TCP", "exchange"] {
        wire.start(1, role, dir.path()).finish();
    }
}

fn act(role: &Role) {
    match role.name() {
        "serve" => On::Tokio.run(serve(role)),
        "exchange" => On::Smol.run(exchange(role.dir())),
        "exchange on TCP" => exchange_on_tcp(),
        other => panic!("no role {other}"),
    }
}

async fn serve(role: &Role) {
    let endpoint = builder(On::Tokio, true, role.dir()).build().unwrap();
    let listener = endpoint.bind(SERVER).await.unwrap();
    role.send("ready");
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        tokio::spawn(async move {
            let (from, to) = stream.into_split();
            futures_lite::io::copy(from, to).await.unwrap();
        });
    }
}

async fn exchange(dir: &Path) {
    let endpoint = builder(On::Smol, true, dir).build().unwrap();
    let stream = endpoint.connect(SERVER).await.unwrap();
    assert!(stream.mode().is_smc(), "{}", stream.mode());
    let sent = patterned(3_000_000);
    let (mut from, mut to) = stream.into_split();
    let sending = async {
        to.write_all(&sent).await.unwrap();
        to.close().await.unwrap();
    };
    zip(sending, expect_rest(&mut from, &sent)).await;
}

fn exchange_on_tcp() {
    let mut stream = TcpStream::connect(SERVER).unwrap();
    stream.write_all(b"plain").unwrap();
    let mut received = [0; 5];
    stream.read_exact(&mut received).unwrap();
    assert_eq!(&received, b"plain");
}

/// Two network namespaces with a virtual wire between them, removed when dropped.
struct Wire([String; 2]);

impl Wire {
    fn new() -> Option<Self> {
        let id = std::process::id();
        let names = [format!("smc-{id}-a"), format!("smc-{id}-b")];
        let wire = Self(names);
        let [a, b] = &wire.0;
        let (va, vb) = ("smcveth0", "smcveth1");
        let steps = [
            format!("netns add {a}"),
            format!("netns add {b}"),
            format!("link add {va} netns {a} type veth peer name {vb} netns {b}"),
            format!("-n {a} addr add 10.213.7.1/24 dev {va}"),
            format!("-n {b} addr add 10.213.7.2/24 dev {vb}"),
            format!("-n {a} link set {va} up"),
            format!("-n {b} link set {vb} up"),
        ];
        let done = steps.iter().all(|step| {
            let output = Command::new("ip").args(step.split(' ')).output();
            output.is_ok_and(|output| output.status.success())
        });
        done.then_some(wire)
    }

    /// Starts this program with a role in a container.
    fn start(&self, container: usize, role: &str, dir: &Path) -> Child {
        let mut launcher = vec!["ip", "netns", "exec", &self.0[container]];
        launcher.extend([
            "unshare",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
        ]);
        Child::spawn(command_by(&launcher, NAME), role, dir.display())
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        for name in &self.0 {
            // It may never have been made.
            let _best_effort = Command::new("ip").args(["netns", "del", name]).output();
        }
    }
}

const SERVER: &str = "10.213.7.1:7007";

const NAME: &str = "containers_exchange_data_over_shared_memory_and_plain_clients_over_tcp";
