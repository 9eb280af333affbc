//! A listener with a backlog of connections leaves turns to timers of its executor.

#![cfg(all(feature = "smol", feature = "tokio"))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::{SocketAddr, TcpStream};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use smc::error::Refusal;
use smc::negotiate::{Candidate, Negotiation, Published, Verdict};
use smc::runtime::{Runtime, Socket};
use smc::{Builder, FallbackCause, Listener};

/// Peers whose connections take long to be judged, as those of a client that sends many packets.
#[derive(Debug)]
struct Slow;

#[async_trait::async_trait]
impl Negotiation for Slow {
    async fn look_up(
        &self,
        _runtime: &Arc<dyn Runtime>,
        _to: SocketAddr,
    ) -> Result<Candidate, FallbackCause> {
        Err(FallbackCause::NoNegotiation)
    }

    fn publish(
        &self,
        _runtime: &Arc<dyn Runtime>,
        _at: SocketAddr,
        _listener: Option<BorrowedFd<'_>>,
    ) -> Result<Arc<dyn Published>, FallbackCause> {
        Ok(Arc::new(Self))
    }
}

impl Published for Slow {
    fn verdict(&self, _socket: &dyn Socket, _peer: SocketAddr) -> Verdict {
        std::thread::sleep(Duration::from_millis(5));
        Verdict::Plain(FallbackCause::NoNegotiation)
    }

    fn dismiss(&self, socket: &dyn Socket, peer: SocketAddr, _why: Refusal) -> Verdict {
        self.verdict(socket, peer)
    }
}

/// Connections that are there before the first one is accepted.
const BACKLOG: u32 = 60;

/// Turns that a timer of the same executor gets while the backlog is judged, which takes 300 ms:
/// without a pause of the listener it is one or two.
const TURNS_MIN: u32 = 5;

async fn accept_all(listener: &Listener, done: &AtomicBool) {
    let at = listener.local_addr().unwrap();
    let clients: Vec<_> = (0..BACKLOG).map(|_| TcpStream::connect(at)).collect();
    for _ in 0..BACKLOG {
        listener.accept().await.unwrap();
    }
    assert!(clients.iter().all(Result::is_ok));
    done.store(true, Ordering::Release);
}

async fn count_turns(timer: impl AsyncFn(), done: &AtomicBool) -> u32 {
    let turns = AtomicU32::new(0);
    while !done.load(Ordering::Acquire) {
        timer().await;
        turns.fetch_add(1, Ordering::Relaxed);
    }
    turns.into_inner()
}

#[test]
fn timers_run_between_connections_that_take_long_on_tokio() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let turns = runtime.block_on(async {
        let endpoint = Builder::tokio()
            .negotiation(Arc::new(Slow))
            .build()
            .unwrap();
        let listener = endpoint.bind("127.0.0.1:0").await.unwrap();
        let done = AtomicBool::new(false);
        let turns = count_turns(
            async || tokio::time::sleep(Duration::from_millis(1)).await,
            &done,
        );
        tokio::join!(turns, accept_all(&listener, &done)).0
    });
    assert!(turns >= TURNS_MIN, "{turns} turns");
}

#[test]
fn timers_run_between_connections_that_take_long_on_smol() {
    let executor = Arc::new(smol::Executor::new());
    let turns = smol::block_on(executor.run(async {
        let runtime = smc::runtime::smol::SmolRuntime::with_executor(executor.clone());
        let endpoint = Builder::new()
            .runtime(Arc::new(runtime))
            .negotiation(Arc::new(Slow))
            .build()
            .unwrap();
        let listener = endpoint.bind("127.0.0.1:0").await.unwrap();
        let done = AtomicBool::new(false);
        let timer = async || {
            smol::Timer::after(Duration::from_millis(1)).await;
        };
        let turns = count_turns(timer, &done);
        smol::future::zip(turns, accept_all(&listener, &done))
            .await
            .0
    }));
    assert!(turns >= TURNS_MIN, "{turns} turns");
}
