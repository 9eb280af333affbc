//! A peer that is killed at a random point: other peers go on, nothing hangs, nothing stays.
//!
//! `SMC_KILL_ROUNDS` is the number of rounds, 25 if not given; `SMC_KILL_SEED` repeats a run.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::env;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use common::{builder, device};
use futures_lite::{AsyncReadExt as _, AsyncWriteExt as _};
use smc::{Endpoint, Stream};
use smc_testkit::Rng;
use smc_testkit::on::{On, until};
use smc_testkit::process::{Child, Role, command};
use smc_testkit::resources::{open_descriptors, wait_for_descriptors};
use smc_testkit::streams::listen;

#[test]
fn a_peer_killed_at_random_points() {
    if let Some(role) = Role::current() {
        return On::Tokio.run_unbounded(peer(role));
    }
    let rounds = number("SMC_KILL_ROUNDS").unwrap_or(25);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let seed = number("SMC_KILL_SEED").unwrap_or_else(|| u64::from(now.subsec_nanos()));
    println!("SMC_KILL_SEED={seed} SMC_KILL_ROUNDS={rounds}");
    let dir = tempfile::tempdir().unwrap();
    On::Tokio.run(survive(rounds, seed, dir.path()));
    // The name of a peer that was killed before it connected is removed by the next device.
    drop(device(dir.path()).build().unwrap());
    let left = common::names(dir.path());
    assert!(
        !left.iter().any(|name| name.ends_with(".sock")),
        "left behind: {left:?}"
    );
}

/// Serves one peer after the other while each is killed, and a well-behaved one all the time.
async fn survive(rounds: u64, seed: u64, dir: &Path) {
    let endpoint = builder(On::Tokio, true, dir).build().unwrap();
    let listener = listen(&endpoint).await;
    let addr = listener.local_addr().unwrap();
    let serving = async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(echo(stream));
        }
    };
    let serving = tokio::spawn(serving);
    let observer = builder(On::Tokio, true, dir).build().unwrap();
    let mut steady = observer.connect(addr).await.unwrap();
    assert!(steady.mode().is_smc());
    ping(&mut steady).await;
    let fds = open_descriptors();
    let mut random = Rng::new(seed);
    for round in 0..rounds {
        let delay = Duration::from_micros(random.bits() % 60_000);
        let mut peer = start_peer(&format!("{} {addr}", dir.display()));
        // Each eighth is killed before it has sent anything.
        if round % 8 != 0 {
            assert_eq!(peer.recv(), "ready");
            tokio::time::sleep(delay).await;
        }
        peer.kill();
        ping(&mut steady).await;
        let left = || {
            let states = endpoint
                .connections()
                .into_iter()
                .filter_map(|conn| Some(conn.smc?.state.name()));
            states.collect::<Vec<_>>()
        };
        until(
            || left().len() == 1,
            || format!("round {round}: {:?} hang", left()),
        )
        .await;
        assert_eq!(observer.connections().len(), 1);
    }
    drop(steady);
    serving.abort();
    wait_for_descriptors(fds);
}

async fn echo(stream: Stream) {
    let (mut from, mut to) = stream.into_split();
    let mut buf = vec![0; 100_000];
    loop {
        match from.read(&mut buf).await {
            Ok(0) | Err(_) => return,
            Ok(count) => {
                if to.write_all(&buf[..count]).await.is_err() {
                    return;
                }
            }
        }
    }
}

async fn ping(stream: &mut Stream) {
    stream.write_all(b"ping to peer").await.unwrap();
    stream.read_exact(&mut [0; 12]).await.unwrap();
}

/// The process that is killed: connects, exchanges data, closes, without end.
async fn peer(role: Role) {
    let addr = role.arg(1);
    let endpoint = builder(On::Tokio, true, role.dir()).build().unwrap();
    role.send("ready");
    loop {
        let mut exchanges = Vec::new();
        for size in [1, 100, 5_000, 600_000] {
            exchanges.push(tokio::spawn(exchange(
                endpoint.clone(),
                addr.to_owned(),
                size,
            )));
        }
        for exchange in exchanges {
            // Whatever happens to an exchange, the next ones follow.
            let _any = exchange.await;
        }
    }
}

async fn exchange(endpoint: Endpoint, addr: String, size: usize) -> std::io::Result<()> {
    let mut stream = endpoint.connect(addr).await?;
    let data = vec![7; size];
    for _ in 0..20 {
        stream.write_all(&data).await?;
        stream.read_exact(&mut vec![0; size / 2]).await?;
    }
    Ok(())
}

fn start_peer(arguments: &str) -> Child {
    let mut command = command("a_peer_killed_at_random_points");
    command.stderr(Stdio::null());
    Child::spawn(command, "peer", arguments)
}

fn number(name: &str) -> Option<u64> {
    env::var(name)
        .ok()
        .map(|text| text.parse().expect("a number"))
}
