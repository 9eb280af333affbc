//! Listeners that do not answer: their clients have TCP, and SMC again when they go on.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::future::poll_fn;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::{DrivenDevice, builder, device, local, socket_path, start};
use futures_lite::future::block_on;
use futures_lite::{AsyncReadExt as _, AsyncWriteExt as _};
use rustix::net::{SocketAddrUnix, accept, bind};
use rustix::process::{Resource, getrlimit};
use smc::{Domain, Endpoint, Mode, Stream};
use smc_core::device::{DeviceError, Direct as _};
use smc_core::error::FallbackCause;
use smc_testkit::on::{On, in_time};
use smc_testkit::process::{Child, Role};
use smc_testkit::resources::limit_descriptors;
use smc_testkit::streams::{expect, listen};
use smc_testkit::unix::{connect_to, seqpacket};
use smc_testkit::wait::until;
use smc_wire::types::Gid;
use tempfile::TempDir;

/// What happens to a call that opens a channel to a device whose socket has no space for
/// connections. Returns its result, and how often its task has run.
fn reach_full(make_space: impl FnOnce(&OwnedFd) + Send) -> (Result<(), DeviceError>, usize) {
    let dir = TempDir::new().unwrap();
    let ours = DrivenDevice::in_dir(dir.path());
    let full = Gid::new(0x1111, 0x2222);
    let at = socket_path(dir.path(), full);
    let listener = seqpacket();
    bind(&listener, &SocketAddrUnix::new(&at).unwrap()).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let _first = connect_to(&at);
    let (polls, has_ended) = (AtomicUsize::new(0), AtomicBool::new(false));
    let result = thread::scope(|scope| {
        scope.spawn(|| {
            while !has_ended.load(Ordering::Relaxed) {
                ours.wait_within(Duration::from_millis(10), |_| false);
            }
        });
        scope.spawn(|| {
            // Each attempt takes two runs of the task at most, and its delay one.
            let is_waiting = || polls.load(Ordering::Relaxed) > 4;
            until(is_waiting, || "the task does not wait".to_owned());
            make_space(&listener);
        });
        let mut reach = ours.device.reach(full);
        let result = block_on(poll_fn(|cx| {
            polls.fetch_add(1, Ordering::Relaxed);
            reach.as_mut().poll(cx)
        }));
        has_ended.store(true, Ordering::Relaxed);
        result
    });
    (result, polls.into_inner())
}

#[test]
fn a_device_without_space_for_connections_is_asked_few_times() {
    let (result, polls) = reach_full(|_| {});
    match result.unwrap_err() {
        DeviceError::Unreachable { why, .. } => assert_eq!(why, "it does not accept connections"),
        other => panic!("{other:?}"),
    }
    // As many attempts or fewer.
    assert!(polls < 60, "the task has run {polls} times");
}

#[test]
fn a_device_that_has_space_for_connections_again_is_reached() {
    let (result, _) = reach_full(|listener| drop(accept(listener).unwrap()));
    assert_eq!(result, Ok(()));
}

/// What helpers do.
#[test]
fn helper_process() {
    let Some(role) = Role::current() else { return };
    match role.name() {
        "echo" => On::Smol.run(echo(role)),
        other => panic!("no role {other}"),
    }
}

/// Sends back what its clients send. Reports its port; executes commands.
async fn echo(role: Role) {
    let endpoint = builder(On::Smol, true, role.dir()).build().unwrap();
    let listener = listen(&endpoint).await;
    role.send(listener.local_addr().unwrap().port());
    let orders = orders(&role);
    let serve = async {
        loop {
            if let Ok((stream, _)) = listener.accept().await {
                smol::spawn(send_back(stream)).detach();
            }
        }
    };
    // On the one thread of the endpoint's tasks.
    futures_lite::future::or(serve, smol::spawn(follow(role, orders))).await;
}

async fn send_back(mut stream: Stream) {
    let mut buf = [0; 100];
    while let Ok(count @ 1..) = stream.read(&mut buf).await {
        if stream.write_all(&buf[..count]).await.is_err() {
            return;
        }
    }
}

/// The lines of the test; a thread waits for them.
fn orders(role: &Role) -> smol::channel::Receiver<String> {
    let (sender, orders) = smol::channel::unbounded();
    let role = role.clone();
    thread::spawn(move || {
        while let Some(order) = role.recv() {
            let _ended = sender.try_send(order);
        }
    });
    orders
}

async fn follow(role: Role, orders: smol::channel::Receiver<String>) {
    let allowed = getrlimit(Resource::Nofile).current.unwrap();
    while let Ok(order) = orders.recv().await {
        match order.as_str() {
            "without descriptors" => {
                // Descriptors below are always open.
                limit_descriptors(3);
                role.send("done");
            }
            "with descriptors" => {
                limit_descriptors(allowed);
                role.send("done");
            }
            "be busy" => {
                role.send("done");
                // Until the test ends it.
                while orders.is_empty() {
                    thread::sleep(Duration::from_millis(5));
                }
            }
            _ => {}
        }
    }
}

/// How a listener is prevented from answering, and continued.
struct Interruption {
    loses_buffers: bool,
    begin: fn(&mut Child),
    end: fn(&mut Child),
}

const STOPPED: Interruption = Interruption {
    loses_buffers: false,
    begin: |helper| helper.stop(),
    end: |helper| helper.resume(),
};

const WITHOUT_DESCRIPTORS: Interruption = Interruption {
    loses_buffers: true,
    begin: |helper| {
        helper.send("without descriptors");
        assert_eq!(helper.recv(), "done");
    },
    end: |helper| {
        helper.send("with descriptors");
        assert_eq!(helper.recv(), "done");
    },
};

const BUSY: Interruption = Interruption {
    loses_buffers: false,
    begin: |helper| {
        helper.send("be busy");
        assert_eq!(helper.recv(), "done");
    },
    end: |helper| helper.send("go on"),
};

#[test]
fn a_stopped_listener_is_tcp_and_smc_again_when_it_goes_on() {
    is_tcp_and_smc_again(&STOPPED, true);
}

#[test]
fn a_listener_that_was_stopped_before_the_first_connection_is_the_same() {
    is_tcp_and_smc_again(&STOPPED, false);
}

#[test]
fn many_clients_of_a_stopped_listener_are_tcp() {
    let dir = TempDir::new().unwrap();
    let mut helper = start("echo", &dir);
    let port: u16 = helper.parse();
    On::Tokio.run(async {
        let client = client(dir.path());
        let connect = || async { client.connect(("127.0.0.1", port)).await.unwrap() };
        exchange(connect().await, true).await;
        exchange(connect().await, true).await;
        (STOPPED.begin)(&mut helper);
        // More memory than fits the channel to a process that does not read.
        let connecting = futures::future::join_all((0..CLIENTS).map(|_| connect()));
        // None waits for the listener.
        let streams = in_time(RECOVERY, connecting).await;
        assert!(streams.iter().all(|stream| !stream.mode().is_smc()));
    });
    helper.resume();
    helper.finish();
}

/// Fewer than TCP connections that may wait to be accepted.
const CLIENTS: usize = 900;

#[test]
fn a_listener_without_descriptors_is_tcp_and_smc_again_when_it_has_some() {
    is_tcp_and_smc_again(&WITHOUT_DESCRIPTORS, true);
}

#[test]
fn a_listener_that_never_had_a_descriptor_to_spare_is_the_same() {
    is_tcp_and_smc_again(&WITHOUT_DESCRIPTORS, false);
}

#[test]
fn a_listener_whose_executor_is_busy_is_tcp_and_smc_again_when_it_is_not() {
    is_tcp_and_smc_again(&BUSY, true);
}

fn is_tcp_and_smc_again(interruption: &Interruption, is_known: bool) {
    let dir = TempDir::new().unwrap();
    let mut helper = start("echo", &dir);
    let port: u16 = helper.parse();
    On::Tokio.run(async {
        let client = client(dir.path());
        let connect = || async { client.connect(("127.0.0.1", port)).await.unwrap() };
        if is_known {
            exchange(connect().await, true).await;
            exchange(connect().await, true).await;
        }
        (interruption.begin)(&mut helper);
        let mut first = connect().await;
        let within = Duration::from_millis(200);
        assert_eq!(cause(&first), FallbackCause::NoAnswer { within });
        // Its bytes are for the application at the other end, and no handshake.
        first.write_all(b"at once").await.unwrap();
        let mut others = Vec::new();
        let mut has_waited = false;
        while !has_waited && others.len() < 20 {
            let mut other = connect().await;
            other.write_all(b"at once").await.unwrap();
            match cause(&other) {
                FallbackCause::BackOff => has_waited = true,
                FallbackCause::NoAnswer { .. } => {}
                other => panic!("{other}"),
            }
            others.push(other);
        }
        assert!(has_waited, "each connection has waited");
        (interruption.end)(&mut helper);
        for stream in others.iter_mut().chain([&mut first]) {
            expect(stream, b"at once").await;
        }
        // Until the listener is queried again. A device that had no descriptor has lost those of
        // buffers that were passed to it meanwhile, and connections that use one of them end.
        let mut in_a_row = 0;
        let begin = Instant::now();
        let mut last = String::new();
        while in_a_row < 3 {
            assert!(begin.elapsed() < RECOVERY, "not SMC again: {last}");
            let stream = connect().await;
            last = stream.mode().to_string();
            let is_smc = stream.mode().is_smc();
            let has_answered = try_exchange(stream).await.is_ok();
            assert!(has_answered || interruption.loses_buffers, "{is_smc}");
            in_a_row = match is_smc && has_answered {
                true => in_a_row + 1,
                false => 0,
            };
            smol::Timer::after(Duration::from_millis(10)).await;
        }
    });
    helper.finish();
}

/// A bound against hanging; a listener gets a request every two seconds at least.
const RECOVERY: Duration = Duration::from_secs(60);

/// An endpoint that waits for as long as the test for anything but an answer, and for that as long
/// as by default.
fn client(dir: &Path) -> Endpoint {
    let device = device(dir).build().unwrap();
    On::Tokio
        .builder()
        .negotiation(local(Domain::directory(dir)))
        .device(Arc::new(device))
        .handshake_timeout(Duration::from_secs(600))
        .build()
        .unwrap()
}

async fn exchange(stream: Stream, is_smc: bool) {
    assert_eq!(stream.mode().is_smc(), is_smc, "{}", stream.mode());
    try_exchange(stream).await.unwrap();
}

async fn try_exchange(mut stream: Stream) -> std::io::Result<()> {
    stream.write_all(b"hello").await?;
    let mut received = [0; 5];
    stream.read_exact(&mut received).await?;
    assert_eq!(&received, b"hello");
    Ok(())
}

fn cause(stream: &Stream) -> FallbackCause {
    match stream.mode() {
        Mode::Tcp { reason, .. } => reason.cause.clone(),
        mode => panic!("{mode}"),
    }
}
