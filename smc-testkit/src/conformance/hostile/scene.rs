//! The scene of an attack: a victim with a peer that keeps to the rules, and one that does not.

#![allow(clippy::unwrap_used, reason = "a stream that fails fails the check")]

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use futures::channel::mpsc::{UnboundedReceiver, unbounded};
use futures_lite::future::{or, zip};
use futures_lite::{AsyncReadExt as _, AsyncWriteExt as _};
use smc::{Listener, Stream};
use smc_core::device::{Device, Direct as _};
use smc_core::runtime::Runtime;
use smc_wire::types::{DmbToken, Gid};

use super::super::fixture::{Fixture, Stop, Verdict, ensure, fail, run};
use super::super::panic_text;
use super::attacker::{Attacker, Target};
use crate::on::in_time;
use crate::streams::{patterned, ping_pong, transfer_both_ways};
use crate::wait::TIMEOUT;
use crate::world::{Host, ScriptedDevice, World, exchange_to_end, join_smc};

/// The victim survives an attack, which is repeated until the good streams have moved a number of
/// bytes.
pub(super) fn survive(
    fixture: &mut Fixture<'_>,
    attack: fn(&mut Attacker<'_>) -> Verdict,
) -> Verdict {
    let provider = fixture.provider;
    let world = World::real();
    let host = |device: &Arc<dyn Device>| {
        world.host_on(ScriptedDevice::around(Arc::clone(device)), |builder| {
            builder.recv_buffer(RING).close_timeout(CLOSE)
        })
    };
    let (victim, good) = (
        host(fixture.local().device()),
        host(fixture.third()?.device()),
    );
    let peer = fixture.take_peer()?;
    let state = Arc::new(State::default());
    let (begin, begun) = mpsc::channel();
    let (invite, invited) = unbounded();
    thread::scope(|scope| {
        let hosts = scope.spawn(|| {
            let scenario = hosts(&world, &victim, &good, &state, begin, invited);
            // Nothing is left to be found out behind an attack that has failed.
            let failed = wait_until(&world, || state.has_failed.load(Ordering::SeqCst));
            let scenario = in_time(3 * TIMEOUT, or(scenario, failed));
            run(provider, world.run(scenario));
        });
        let attacked = begun.recv().map_or_else(
            |_| fail("the hosts do not begin"),
            |target| {
                let invite = move |at| drop(invite.unbounded_send(at));
                let attacker = Attacker::with_node(provider, peer, target);
                let mut attacker = attacker.with_invite(Box::new(invite));
                let outcome = repeat(&mut attacker, attack, &state);
                state.has_failed.store(outcome.is_err(), Ordering::SeqCst);
                // Its device stays until the hosts have ended: connections end without that.
                Ok((attacker, outcome))
            },
        );
        state.is_over.store(true, Ordering::SeqCst);
        match (hosts.join(), attacked) {
            (Ok(()), attacked) => attacked?.1,
            (Err(panic), Ok((_, Err(Stop::Fail(why))))) => {
                fail(format!("{why}; hosts: {}", panic_text(&*panic)))
            }
            (Err(panic), _) => fail(format!("hosts: {}", panic_text(&*panic))),
        }
    })
}

/// What the attack and the hosts know of each other.
#[derive(Debug, Default)]
struct State {
    /// Rounds of the good streams.
    rounds: AtomicUsize,
    /// Streams of the victim with the hostile peer.
    open: AtomicUsize,
    is_over: AtomicBool,
    has_failed: AtomicBool,
}

impl State {
    /// Waits for rounds of the good streams; gives how long they took.
    fn work_for(&self, rounds: usize, mut meanwhile: impl FnMut() -> Verdict) -> Result<f64, Stop> {
        let (begin, from) = (Instant::now(), self.rounds.load(Ordering::SeqCst));
        while self.rounds.load(Ordering::SeqCst) - from < rounds {
            ensure!(begin.elapsed() < TIMEOUT, "the good streams stand still");
            meanwhile()?;
        }
        let done = self.rounds.load(Ordering::SeqCst) - from;
        Ok(done as f64 / begin.elapsed().as_secs_f64())
    }
}

/// One pass after the other while the good streams work, one at least.
fn repeat(
    attacker: &mut Attacker<'_>,
    attack: fn(&mut Attacker<'_>) -> Verdict,
    state: &State,
) -> Verdict {
    let pause = || {
        sleep(Duration::from_millis(1));
        Ok(())
    };
    let before = state.work_for(ROUNDS, pause)?;
    let during = state.work_for(ROUNDS, || match attacker.has_device() {
        true => attack(attacker),
        false => pause(),
    })?;
    println!("rounds of the good streams in a second: {before:.0} before, {during:.0} during");
    Ok(())
}

/// The victim with its good peer, and what it does for a hostile one.
async fn hosts(
    world: &World,
    victim: &Host,
    good: &Host,
    state: &Arc<State>,
    begin: mpsc::Sender<Target>,
    invited: UnboundedReceiver<SocketAddr>,
) {
    let (listener, _) = victim.listen().await;
    let (for_all, address) = victim.listen().await;
    let mut bulk = join_smc(good, &listener).await;
    let mut words = join_smc(good, &listener).await;
    let target = Target {
        address,
        victim: victim.device.gid(),
        others: [buffers(victim), buffers(good)].concat(),
    };
    begin.send(target).unwrap();
    let serving = zip(
        accept(world.rt(), for_all, state),
        connect(world.rt(), victim, invited, state),
    );
    or(
        async { serving.await.0 },
        work(&mut bulk, &mut words, state),
    )
    .await;
    // Of the hostile peer nothing is left, though its device is there.
    let open = || state.open.load(Ordering::SeqCst);
    let ended = world
        .within(TIMEOUT, wait_until(world, || open() == 0))
        .await;
    assert!(
        ended.is_some(),
        "{} streams of the hostile peer do not end",
        open()
    );
    let mut next = join_smc(good, &listener).await;
    transfer_both_ways(&mut next.0, &mut next.1, 1000).await;
    for pair in [bulk, words, next] {
        exchange_to_end(pair).await;
    }
    drop(listener);
    world.only_idle_groups_left([victim, good]).await;
}

/// The buffers of a host's connections.
fn buffers(host: &Host) -> Vec<(Gid, DmbToken)> {
    let connections = host.endpoint.connections();
    let tokens = connections
        .iter()
        .filter_map(|conn| Some(conn.smc.as_ref()?.token));
    tokens
        .map(|token| (host.device.gid(), DmbToken(token)))
        .collect()
}

/// The good streams: numbered data that is checked, round by round, until it is over.
async fn work(bulk: &mut (Stream, Stream), words: &mut (Stream, Stream), state: &State) {
    let (mut data, mut read) = (patterned(PART), vec![0; PART]);
    while !state.is_over.load(Ordering::SeqCst) {
        let round = state.rounds.load(Ordering::SeqCst);
        data[..size_of::<usize>()].copy_from_slice(&round.to_ne_bytes());
        let (from, to) = &mut *bulk;
        let moved = zip(from.write_all(&data), to.read_exact(&mut read));
        let ((sent, received), ()) = zip(moved, ping_pong(words)).await;
        sent.unwrap();
        received.unwrap();
        assert!(read == data, "round {round} is another one");
        state.rounds.fetch_add(1, Ordering::SeqCst);
    }
}

/// Serves all clients.
async fn accept(rt: &Arc<dyn Runtime>, listener: Listener, state: &Arc<State>) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        serve(rt, stream, state);
    }
}

/// Connects where it is asked to.
async fn connect(
    rt: &Arc<dyn Runtime>,
    host: &Host,
    mut invited: UnboundedReceiver<SocketAddr>,
    state: &Arc<State>,
) {
    while let Some(at) = invited.next().await {
        if let Ok(stream) = host.endpoint.connect(at).await {
            serve(rt, stream, state);
        }
    }
    std::future::pending().await
}

/// Sends back what comes, in a task of its own.
fn serve(rt: &Arc<dyn Runtime>, mut stream: Stream, state: &Arc<State>) {
    state.open.fetch_add(1, Ordering::SeqCst);
    let state = Arc::clone(state);
    rt.spawn(Box::pin(async move {
        // However it ends.
        let _ended = echo(&mut stream).await;
        drop(stream);
        state.open.fetch_sub(1, Ordering::SeqCst);
    }));
}

async fn echo(stream: &mut Stream) -> std::io::Result<()> {
    let mut bytes = vec![0; 4096];
    loop {
        let count = stream.read(&mut bytes).await?;
        if count == 0 {
            return Ok(());
        }
        stream.write_all(&bytes[..count]).await?;
    }
}

async fn wait_until(world: &World, is_so: impl Fn() -> bool) {
    while !is_so() {
        world.sleep(Duration::from_millis(1)).await;
    }
}

/// Rounds of the good streams before and during an attack.
const ROUNDS: usize = 100;

/// How long a connection waits for a peer that has ended sending, and never closes: less than the
/// time in which nothing may be left.
const CLOSE: Duration = Duration::from_secs(5);

/// Receive buffers: several fit into the memory of any fabric.
const RING: usize = 1 << 16;

/// Bytes of a round.
const PART: usize = 60_000;
