//! Clients that use their streams, and clients that are a nuisance.

use std::io::IoSlice;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_lite::{AsyncReadExt, future};
use smc::{ConnectOptions, Stream};
use smc_core::runtime::{Runtime, Socket, SocketOptions};
use smc_testkit::Rng;
use smc_testkit::model::{self, Rules};
use smc_testkit::streams::patterned;

use super::hosts::{Hosts, address};
use super::plan::Plan;

/// Sets all streams up, uses and closes them.
pub(super) fn all(hosts: &Arc<Hosts>, plan: &Plan) {
    let mut rng = Rng::new(plan.rng.clone().bits() ^ 1);
    for side in 0..2 {
        for _ in 0..plan.streams[side] {
            let (rng, spread) = (rng.fork(), plan.spread);
            hosts.spawn(async move |hosts| one(&hosts, spread, side, rng).await);
        }
    }
}

async fn one(hosts: &Hosts, spread: Duration, side: usize, mut rng: Rng) {
    let client = &hosts.hosts[side].endpoint;
    let to = address(1 - side);
    let spread = rng.below(spread.as_micros() as usize + 1);
    hosts.sleep(Duration::from_micros(spread as u64)).await;
    let begin = hosts.runtime.now();
    // The first bytes of some streams come with the connect.
    let early = match rng.chance(500) {
        true => patterned(rng.below(300)),
        false => Vec::new(),
    };
    let options = ConnectOptions::new().early_data(&*early);
    if rng.chance(50) {
        // Vanishes in the middle of it.
        let timeout = Duration::from_micros(rng.below(2000) as u64);
        let connected = async { client.connect_with(to, &options).await.ok() };
        let given_up = async {
            hosts.sleep(timeout).await;
            None
        };
        if let Some(stream) = future::or(connected, given_up).await {
            drop(stream);
        }
        return;
    }
    let connected = client.connect_with(to, &options).await;
    let took = hosts.runtime.now() - begin;
    let most = if hosts.is_strict {
        Duration::from_millis(4500)
    } else {
        Duration::from_secs(30)
    };
    assert!(took < most, "set-up took {took:?}");
    let stream = match connected {
        Ok(stream) => stream,
        Err(error) => {
            assert!(!hosts.is_strict, "set-up failed: {error}");
            return;
        }
    };
    let local = stream.local_addr().expect("has an address");
    let accepted = &hosts.hosts[1 - side].accepted;
    let met = future::or(async { Some(accepted.take(local).await) }, async {
        hosts.sleep(Duration::from_secs(20)).await;
        None
    });
    let Some(mut other) = met.await else {
        assert!(
            !hosts.is_strict,
            "no listener accepts a stream: {}",
            stream.mode()
        );
        return expect_end(hosts, stream).await;
    };
    if stream.mode().is_smc() != other.mode().is_smc() {
        assert!(
            !hosts.is_strict,
            "{} here, {} there",
            stream.mode(),
            other.mode()
        );
        let (smc, tcp) = if stream.mode().is_smc() {
            (stream, other)
        } else {
            (other, stream)
        };
        expect_end(hosts, smc).await;
        drop(tcp);
        return;
    }
    let is_smc = stream.mode().is_smc();
    let may_be_tcp = !hosts.is_strict || hosts.is_survivable;
    assert!(is_smc || may_be_tcp, "{}", stream.mode());
    let mut received = vec![0; early.len()];
    match other.read_exact(&mut received).await {
        Ok(()) => assert_eq!(received, early, "{}", other.mode()),
        Err(error) => {
            assert!(!hosts.is_strict, "{error}");
            return;
        }
    }
    let rules = Rules::relaxed().with_timeout(Duration::from_secs(200));
    let rules = match hosts.is_strict {
        true => rules,
        false => rules.with_aborts(),
    };
    let outcome = model::run(rng.bits(), &hosts.runtime, (stream, other), rules).await;
    if let Err(violation) = outcome {
        panic!("{violation}\n{}", hosts.describe());
    }
}

/// The other end does not exist, or does not support SMC: that shows before long.
async fn expect_end(hosts: &Hosts, mut stream: Stream) {
    let is_smc = stream.mode().is_smc();
    let ended = future::or(
        async {
            let read = stream.read(&mut [0; 64]).await;
            Some(read)
        },
        async {
            hosts.sleep(Duration::from_secs(20)).await;
            None
        },
    );
    match ended.await {
        Some(read) => assert!(
            !is_smc || read.is_err(),
            "reads {read:?} from a removed peer"
        ),
        None => panic!(
            "{} stays open although the peer is gone\n{}",
            stream.mode(),
            hosts.describe()
        ),
    }
}

/// Clients that do not play along.
pub(super) fn nuisances(hosts: &Arc<Hosts>, plan: &Plan) {
    let mut rng = Rng::new(plan.rng.clone().bits() ^ 2);
    for number in 0..plan.nuisances {
        let (rng, spread) = (rng.fork(), plan.spread);
        // Each listens for a moment, and several may do so at a time.
        let port = 5000 + number as u16;
        hosts.spawn(async move |hosts| nuisance(&hosts, spread, port, rng).await);
    }
}

async fn nuisance(hosts: &Hosts, spread: Duration, port: u16, mut rng: Rng) {
    let spread = rng.below(spread.as_micros() as usize + 1);
    hosts.sleep(Duration::from_micros(spread as u64)).await;
    let side = rng.below(2);
    let proposal = receive_proposal(hosts, side, port).await;
    let server = address(1 - side);
    let Some(socket) = open(&*hosts.runtime, server).await else {
        return;
    };
    let part = match rng.below(3) {
        0 => 0,
        1 => rng.below(proposal.len()),
        // It has the name of an honest client and stops after ACCEPT.
        _ => proposal.len(),
    };
    send(&*socket, &proposal[..part]).await;
    let timeout = Duration::from_millis(rng.below(12_000) as u64);
    hosts.sleep(timeout).await;
    drop(socket);
    // What the server may have made of it.
    hosts.sleep(Duration::from_secs(1)).await;
}

/// A PROPOSAL as this host sends it.
async fn receive_proposal(hosts: &Hosts, side: usize, port: u16) -> Vec<u8> {
    let at = SocketAddr::new(address(1 - side).ip(), port);
    let listener = hosts
        .runtime
        .bind(at, &SocketOptions::default(), &mut |_| Ok(()))
        .expect("a free port");
    let client = &hosts.hosts[side].endpoint;
    let connecting = async {
        let _fails = client.connect(at).await;
    };
    let accepting = async {
        let (socket, _) = std::future::poll_fn(|cx| listener.poll_accept(cx))
            .await
            .expect("accepts");
        let mut proposal = vec![0; 1024];
        let mut len = 0;
        while len < 7 || len < usize::from(u16::from_be_bytes([proposal[5], proposal[6]])) {
            let read = std::future::poll_fn(|cx| socket.poll_read(cx, &mut proposal[len..])).await;
            match read {
                Ok(count @ 1..) => len += count,
                _ => break,
            }
        }
        drop(socket);
        proposal.truncate(len);
        proposal
    };
    let ((), proposal) = future::zip(connecting, accepting).await;
    proposal
}

async fn open(runtime: &dyn Runtime, to: SocketAddr) -> Option<Arc<dyn Socket>> {
    let options = SocketOptions::default();
    runtime.connect(to, &options, &mut |_| Ok(())).await.ok()
}

async fn send(socket: &dyn Socket, mut rest: &[u8]) {
    while !rest.is_empty() {
        let wrote = std::future::poll_fn(|cx| socket.poll_write(cx, &[IoSlice::new(rest)]));
        match wrote.await {
            Ok(count) => rest = &rest[count..],
            Err(_) => return,
        }
    }
}
