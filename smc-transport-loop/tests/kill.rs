//! A peer that is killed at a random point: other peers go on, nothing hangs, nothing stays.
//!
//! `SMC_KILL_ROUNDS` is the number of rounds, 25 if not given; `SMC_KILL_SEED` repeats a run.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[macro_use]
mod support;

use std::env;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures_lite::{AsyncReadExt as _, AsyncWriteExt as _};
use smc::{Domain, Endpoint, Stream};
use smc_testkit::Rng;
use smc_transport_loop::LoopDevice;
use support::{On, builder, descriptors_at_most, open_fds, wait_until_ready};

#[test]
fn a_peer_killed_at_random_points() {
    if let Ok(peer) = env::var(PEER) {
        On::Tokio.run(be_the_peer(peer));
        return;
    }
    let rounds = number("SMC_KILL_ROUNDS").unwrap_or(25);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let seed = number("SMC_KILL_SEED").unwrap_or_else(|| u64::from(now.subsec_nanos()));
    println!("SMC_KILL_SEED={seed} SMC_KILL_ROUNDS={rounds}");
    let dir = tempfile::tempdir().unwrap();
    On::Tokio.run(survive(rounds, seed, dir.path()));
    // The name of a peer that was killed before it connected is removed by the next device.
    drop(
        LoopDevice::builder()
            .domain(Domain::directory(dir.path()))
            .build()
            .unwrap(),
    );
    let left: Vec<_> = dir
        .path()
        .read_dir()
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    let names = left
        .iter()
        .filter(|path| path.extension().is_some_and(|name| name == "sock"));
    assert_eq!(names.count(), 0, "left behind: {left:?}");
}

/// Serves one peer after the other while each is killed, and a well-behaved one all the time.
async fn survive(rounds: u64, seed: u64, dir: &Path) {
    let endpoint = builder(On::Tokio, true, dir).build().unwrap();
    let listener = endpoint.bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let serving = async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(echo(stream));
        }
    };
    let serving = tokio::spawn(serving);
    let witness = builder(On::Tokio, true, dir).build().unwrap();
    let mut steady = witness.connect(addr).await.unwrap();
    assert!(steady.mode().is_smc());
    ping(&mut steady).await;
    let fds = open_fds();
    let mut random = Rng::new(seed);
    for round in 0..rounds {
        let delay = Duration::from_micros(random.bits() % 60_000);
        let mut peer = start_peer(&format!("{addr} {}", dir.display()));
        if round % 8 == 0 {
            // Before it has sent anything.
            peer.kill().unwrap();
        } else {
            wait_until_ready(&mut peer);
            tokio::time::sleep(delay).await;
            peer.kill().unwrap();
        }
        peer.wait().unwrap();
        ping(&mut steady).await;
        let only_ours = || endpoint.connections().len() == 1;
        let until = Instant::now() + Duration::from_secs(20);
        while !only_ours() {
            assert!(
                Instant::now() < until,
                "round {round}: {:?} hang",
                endpoint
                    .connections()
                    .iter()
                    .map(|conn| conn.state.name())
                    .collect::<Vec<_>>(),
            );
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(witness.connections().len(), 1);
    }
    drop(steady);
    serving.abort();
    descriptors_at_most(fds).await;
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
    stream.write_all(b"still there?").await.unwrap();
    stream.read_exact(&mut [0; 12]).await.unwrap();
}

/// The process that is killed: connects, exchanges data, closes, without end.
async fn be_the_peer(arguments: String) {
    let (addr, dir) = arguments.split_once(' ').unwrap();
    let endpoint = builder(On::Tokio, true, Path::new(dir)).build().unwrap();
    println!("ready");
    loop {
        let mut chats = Vec::new();
        for size in [1, 100, 5_000, 600_000] {
            chats.push(tokio::spawn(chat(endpoint.clone(), addr.to_owned(), size)));
        }
        for chat in chats {
            // Whatever happens to a chat, the next ones follow.
            let _any = chat.await;
        }
    }
}

async fn chat(endpoint: Endpoint, addr: String, size: usize) -> std::io::Result<()> {
    let mut stream = endpoint.connect(addr).await?;
    let data = vec![7; size];
    for _ in 0..20 {
        stream.write_all(&data).await?;
        stream.read_exact(&mut vec![0; size / 2]).await?;
    }
    Ok(())
}

fn start_peer(arguments: &str) -> Child {
    Command::new(env::current_exe().unwrap())
        .args(["--exact", "a_peer_killed_at_random_points", "--nocapture"])
        .env(PEER, arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn number(name: &str) -> Option<u64> {
    env::var(name)
        .ok()
        .map(|text| text.parse().expect("a number"))
}

/// Makes this program the peer; its arguments.
const PEER: &str = "SMC_KILL_PEER";
