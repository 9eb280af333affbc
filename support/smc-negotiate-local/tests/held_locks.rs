//! Directories whose locks another user holds: what is looked up or published there comes later.
//!
//! A job that does not end stands for a call that waits for the lock.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::os::fd::AsFd;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket};
use rustix::process::geteuid;
use smc::Domain;
use smc::runtime::smol::SmolRuntime;
use smc_core::error::FallbackCause;
use smc_core::negotiate::{Candidate, Negotiated, Negotiation};
use smc_core::runtime::{Runtime, SocketOptions, Unconnected};
use smc_ipc::thread::{Lock, start};
use smc_negotiate_local::Local;
use smc_testkit::negotiation::{Connection, Server};
use smc_testkit::wait::TIMEOUT;
use tempfile::TempDir;

/// Runs a scenario while no other one of this program runs.
fn run<F: Future<Output = ()>>(scenario: impl FnOnce(TempDir, Local, Arc<dyn Runtime>) -> F) {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let executor = Arc::new(smol::Executor::new());
    let runtime = Arc::new(SmolRuntime::with_executor(Arc::clone(&executor)));
    let dir = TempDir::new().unwrap();
    let local = Local::in_domain(Domain::directory(dir.path()));
    smol::block_on(executor.run(scenario(dir, local, runtime)));
}

fn listen(runtime: &Arc<dyn Runtime>, local: &Local) -> Server {
    let at = "127.0.0.1:0".parse().unwrap();
    Server::publish(runtime, at, &SocketOptions::default(), local)
}

/// Holds the thread of a lock until the result is dropped.
fn hold(of: Lock) -> Sender<()> {
    let (release, released) = channel::<()>();
    // It may still be held by the last test.
    while start(of.clone(), || ()).is_err() {}
    start(of, move || assert!(released.recv().is_err())).unwrap();
    release
}

/// Offers a connection that is not made.
fn offer(candidate: &Candidate) -> Result<(), FallbackCause> {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(
        &socket,
        &"127.0.0.1:0".parse::<std::net::SocketAddr>().unwrap(),
    )
    .unwrap();
    let from = getsockname(&socket).unwrap().try_into().unwrap();
    let unconnected = Unconnected::new(from, Some(socket.as_fd()));
    candidate.offer(&unconnected, b"PROPOSAL", None).map(drop)
}

#[test]
fn a_listener_that_is_made_while_its_directory_is_held_is_found_later() {
    run(|dir, local, runtime| async move {
        let release = hold(Lock::DirectoriesBelow(dir.path().to_owned()));
        let server = listen(&runtime, &local);
        assert!(local.look_up(&runtime, server.at()).await.is_err());
        drop(release);
        let end = runtime.now() + TIMEOUT;
        loop {
            let connection = Connection::dial(&runtime, &local, server.at(), b"PROPOSAL").await;
            let (_socket, verdict) = server.accept().await;
            if matches!(verdict, Negotiated::SideChannel(_)) {
                assert!(connection.offer.is_some());
                return;
            }
            assert!(runtime.now() < end, "is not found");
        }
    });
}

#[test]
fn a_listener_is_connected_to_on_the_thread_of_its_directory() {
    run(|_dir, local, runtime| async move {
        let server = listen(&runtime, &local);
        let candidate = local.look_up(&runtime, server.at()).await.unwrap();
        let release = hold(Lock::DirectoriesOf(geteuid().as_raw()));
        let cause = offer(&candidate).unwrap_err();
        assert!(cause.to_string().contains("timed out"), "{cause}");
        drop(release);
        let end = runtime.now() + TIMEOUT;
        while let Err(cause) = offer(&candidate) {
            assert!(runtime.now() < end, "{cause}");
        }
    });
}

#[test]
fn a_channel_that_cannot_be_watched_is_closed_and_the_listener_goes_on() {
    run(|_dir, local, runtime| async move {
        let server = listen(&runtime, &local);
        let release = hold(Lock::NestedEpoll);
        let connection = Connection::dial(&runtime, &local, server.at(), b"PROPOSAL").await;
        let (_socket, verdict) = server.accept().await;
        assert!(matches!(verdict, Negotiated::Plain(_)), "{verdict:?}");
        drop((connection, release));
        let end = runtime.now() + TIMEOUT;
        loop {
            let _connection = Connection::dial(&runtime, &local, server.at(), b"PROPOSAL").await;
            let (_socket, verdict) = server.accept().await;
            if matches!(verdict, Negotiated::SideChannel(_)) {
                return;
            }
            assert!(runtime.now() < end, "stays held");
        }
    });
}
