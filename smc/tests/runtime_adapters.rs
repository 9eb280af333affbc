//! The same scenarios on every runtime adapter.

#![cfg(any(feature = "tokio", feature = "smol"))]
#![allow(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_lite::FutureExt;
use rustix::event::{EventfdFlags, eventfd};
use smc_core::runtime::{Acceptor, Runtime, Socket, SocketOptions};
use smc_testkit::port::HeldPort;

macro_rules! scenarios {
    ($($name:ident)*) => {
        #[cfg(feature = "tokio")]
        mod on_tokio {
            $(#[test] fn $name() { super::tokio_runs(super::$name) })*
        }
        #[cfg(feature = "smol")]
        mod on_smol {
            $(#[test] fn $name() { super::smol_runs(super::$name) })*
        }
    };
}

scenarios! {
    bytes_go_both_ways
    the_address_is_known_before_the_connection
    a_refusal_of_the_hook_is_the_result
    no_listener_is_connection_refused
    a_given_local_address_is_used
    end_of_stream_behind_a_short_read_is_seen
    a_full_socket_waits_and_loses_nothing
    peeking_consumes_nothing
    readable_means_that_there_is_something
    options_read_back
    ports_do_not_run_out
    a_watch_reports_every_round
    a_watch_leaves_the_descriptor_alone
    timers_and_tasks_run
    an_own_thread_runs_tasks_while_this_one_is_blocked
    an_own_thread_survives_a_panic_and_ends_with_its_runtime
    literals_and_names_resolve
    both_families_listen
}

async fn bytes_go_both_ways(rt: Arc<dyn Runtime>) {
    let (client, server) = pair(&*rt).await;
    write_all(&*client, b"hello, ", b"world").await;
    assert_eq!(read_exactly(&*server, 12).await, b"hello, world");
    write_all(&*server, b"", b"and back").await;
    assert_eq!(read_exactly(&*client, 8).await, b"and back");

    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read(&*server, 10).await.unwrap(), b"");
    write_all(&*server, b"still", b" open").await;
    assert_eq!(read_exactly(&*client, 10).await, b"still open");
}

async fn the_address_is_known_before_the_connection(rt: Arc<dyn Runtime>) {
    for at in [
        SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        (Ipv6Addr::LOCALHOST, 0).into(),
    ] {
        let acceptor = rt
            .bind(at, &SocketOptions::default(), &mut |_| Ok(()))
            .unwrap();
        let to = acceptor.local_addr().unwrap();
        let mut announced = None;
        let client = rt
            .connect(to, &SocketOptions::default(), &mut |socket| {
                assert!(socket.fd.is_some());
                announced = Some(socket.local);
                Ok(())
            })
            .await
            .unwrap();
        let (server, peer) = accept(&*acceptor).await;
        assert_eq!(announced, Some(peer));
        assert_eq!(client.local_addr().unwrap(), peer);
        assert_eq!(server.peer_addr().unwrap(), peer);
        assert_eq!(server.local_addr().unwrap(), client.peer_addr().unwrap());
    }
}

async fn a_refusal_of_the_hook_is_the_result(rt: Arc<dyn Runtime>) {
    let acceptor = rt
        .bind(loopback(), &SocketOptions::default(), &mut |_| Ok(()))
        .unwrap();
    let to = acceptor.local_addr().unwrap();
    let refused = rt
        .connect(to, &SocketOptions::default(), &mut |_| {
            Err(io::Error::other("no"))
        })
        .await
        .unwrap_err();
    assert_eq!(refused.to_string(), "no");
    assert!(poll_once(|cx| acceptor.poll_accept(cx)).is_pending());
}

async fn no_listener_is_connection_refused(rt: Arc<dyn Runtime>) {
    let port = HeldPort::of(Ipv4Addr::LOCALHOST).unwrap();
    let refused = rt
        .connect(port.addr(), &SocketOptions::default(), &mut |_| Ok(()))
        .await;
    assert_eq!(
        refused.unwrap_err().kind(),
        io::ErrorKind::ConnectionRefused
    );
}

async fn a_given_local_address_is_used(rt: Arc<dyn Runtime>) {
    let acceptor = rt
        .bind(loopback(), &SocketOptions::default(), &mut |_| Ok(()))
        .unwrap();
    let to = acceptor.local_addr().unwrap();
    let mut options = SocketOptions::default();
    options.local = Some((Ipv4Addr::new(127, 0, 0, 9), 0).into());
    let first = rt.connect(to, &options, &mut |_| Ok(())).await.unwrap();
    assert_eq!(
        first.local_addr().unwrap().ip(),
        Ipv4Addr::new(127, 0, 0, 9)
    );

    options.local = Some((Ipv4Addr::UNSPECIFIED, 0).into());
    let mut announced = None;
    let any = rt
        .connect(to, &options, &mut |socket| {
            announced = Some(socket.local);
            Ok(())
        })
        .await
        .unwrap();
    assert_eq!(announced, Some(any.local_addr().unwrap()));

    // The port of a live connection cannot be had for the same destination.
    options.local = Some(first.local_addr().unwrap());
    let taken = rt.connect(to, &options, &mut |_| Ok(())).await.unwrap_err();
    assert_eq!(taken.kind(), io::ErrorKind::AddrNotAvailable);
}

async fn end_of_stream_behind_a_short_read_is_seen(rt: Arc<dyn Runtime>) {
    let (client, server) = pair(&*rt).await;
    write_all(&*client, b"last", b" words").await;
    drop(client);
    assert_eq!(read(&*server, 100).await.unwrap(), b"last words");
    assert_eq!(read(&*server, 100).await.unwrap(), b"");
}

async fn a_full_socket_waits_and_loses_nothing(rt: Arc<dyn Runtime>) {
    let (client, server) = pair(&*rt).await;
    let data: Vec<u8> = (0..8_000_000_u32)
        .map(|n| n as u8 ^ (n >> 8) as u8)
        .collect();
    let sent = data.clone();
    let (done, finished) = std::sync::mpsc::channel();
    rt.spawn(Box::pin(async move {
        let (left, right) = sent.split_at(3_000_001);
        write_all(&*client, left, right).await;
        done.send(()).unwrap();
    }));
    assert_eq!(read_exactly(&*server, data.len()).await, data);
    finished.recv().unwrap();
    assert_eq!(read(&*server, 1).await.unwrap(), b"");
}

async fn peeking_consumes_nothing(rt: Arc<dyn Runtime>) {
    let (client, server) = pair(&*rt).await;
    write_all(&*client, b"SMC", b"").await;
    for _ in 0..2 {
        let mut buf = [0; 16];
        let n = poll_fn(|cx| server.poll_peek(cx, &mut buf)).await.unwrap();
        assert_eq!(&buf[..n], b"SMC");
    }
    let mut buf = [0; 16];
    assert_eq!(server.try_read(&mut buf).unwrap(), 3);
    assert_eq!(
        server.try_read(&mut buf).unwrap_err().kind(),
        io::ErrorKind::WouldBlock
    );
}

async fn readable_means_that_there_is_something(rt: Arc<dyn Runtime>) {
    let (client, server) = pair(&*rt).await;
    poll_fn(|cx| client.poll_writable(cx)).await.unwrap();
    write_all(&*client, b"12345678", b"").await;
    assert_eq!(read_exactly(&*server, 8).await, b"12345678");
    assert!(poll_once(|cx| server.poll_readable(cx)).is_pending());
    write_all(&*client, b"x", b"").await;
    poll_fn(|cx| server.poll_readable(cx)).await.unwrap();
    assert_eq!(read(&*server, 10).await.unwrap(), b"x");
    drop(client);
    poll_fn(|cx| server.poll_readable(cx)).await.unwrap();
}

async fn options_read_back(rt: Arc<dyn Runtime>) {
    let (client, _server) = pair(&*rt).await;
    client.set_nodelay(true).unwrap();
    assert!(client.nodelay().unwrap());
    client.set_linger(Some(Duration::from_secs(3))).unwrap();
    assert_eq!(client.linger().unwrap(), Some(Duration::from_secs(3)));
    client.set_linger(None).unwrap();
    assert_eq!(client.linger().unwrap(), None);
    client.set_keepalive(true).unwrap();
    assert!(client.take_error().unwrap().is_none());
    assert!(client.fd().is_some());
}

async fn ports_do_not_run_out(rt: Arc<dyn Runtime>) {
    let acceptor = rt
        .bind(loopback(), &SocketOptions::default(), &mut |_| Ok(()))
        .unwrap();
    let to = acceptor.local_addr().unwrap();
    for _ in 0..500 {
        drop(
            rt.connect(to, &SocketOptions::default(), &mut |_| Ok(()))
                .await
                .unwrap(),
        );
        drop(accept(&*acceptor).await);
    }
}

async fn a_watch_reports_every_round(rt: Arc<dyn Runtime>) {
    let eventfd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
    let watch = rt.watch(eventfd.as_fd()).unwrap();
    assert!(poll_once(|cx| watch.poll_readable(cx)).is_pending());
    let ring = || rustix::io::write(&eventfd, &1_u64.to_ne_bytes()).unwrap();
    let drain = || while rustix::io::read(&eventfd, &mut [0; 8]).is_ok() {};
    for _ in 0..100 {
        ring();
        in_time(&*rt, poll_fn(|cx| watch.poll_readable(cx)))
            .await
            .unwrap();
        // One that comes before the caller has read belongs to this round.
        ring();
        drain();
    }
    // Notified by another thread while waiting.
    let other = eventfd.try_clone().unwrap();
    let thread = std::thread::spawn(move || rustix::io::write(other, &1_u64.to_ne_bytes()));
    while rustix::io::read(&eventfd, &mut [0; 8]).is_err() {
        in_time(&*rt, poll_fn(|cx| watch.poll_readable(cx)))
            .await
            .unwrap();
    }
    thread.join().unwrap().unwrap();
}

async fn a_watch_leaves_the_descriptor_alone(rt: Arc<dyn Runtime>) {
    let eventfd = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    drop(rt.watch(eventfd.as_fd()).unwrap());
    assert!(
        !rustix::fs::fcntl_getfl(&eventfd)
            .unwrap()
            .contains(rustix::fs::OFlags::NONBLOCK)
    );
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    assert!(rt.watch(file.as_fd()).is_err(), "files have no readiness");
}

async fn timers_and_tasks_run(rt: Arc<dyn Runtime>) {
    let start = rt.now();
    rt.timer(start).await;
    let later = start + Duration::from_millis(20);
    rt.timer(later).await;
    assert!(rt.now() >= later);

    let count = Arc::new(AtomicU32::new(0));
    let (done, finished) = std::sync::mpsc::channel();
    for _ in 0..10 {
        let (count, done, rt2) = (count.clone(), done.clone(), rt.clone());
        rt.spawn(Box::pin(async move {
            rt2.timer(rt2.now()).await;
            count.fetch_add(1, Ordering::Relaxed);
            done.send(()).unwrap();
        }));
    }
    drop(done);
    while finished.try_recv() != Err(std::sync::mpsc::TryRecvError::Disconnected) {
        futures_lite::future::yield_now().await;
    }
    assert_eq!(count.load(Ordering::Relaxed), 10);
}

async fn an_own_thread_runs_tasks_while_this_one_is_blocked(rt: Arc<dyn Runtime>) {
    let own = rt.on_own_thread().unwrap();
    let eventfd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
    let watch = own.watch(eventfd.as_fd()).unwrap();
    let (done, finished) = std::sync::mpsc::channel();
    let timers = own.clone();
    own.spawn(Box::pin(async move {
        timers.timer(timers.now() + Duration::from_millis(1)).await;
        poll_fn(|cx| watch.poll_readable(cx)).await.unwrap();
        let name = std::thread::current().name().map(str::to_owned);
        done.send(name).unwrap();
    }));
    rustix::io::write(&eventfd, &1_u64.to_ne_bytes()).unwrap();
    // Not awaited: nothing else runs on this thread.
    let name = finished.recv_timeout(Duration::from_secs(20)).unwrap();
    assert_eq!(name.as_deref(), Some("smc-driver"));
}

async fn an_own_thread_survives_a_panic_and_ends_with_its_runtime(rt: Arc<dyn Runtime>) {
    use std::sync::mpsc::{RecvTimeoutError, channel};

    let own = rt.on_own_thread().unwrap();
    own.spawn(Box::pin(async {
        panic!("of a task, as the test wants it")
    }));
    let (left, is_dropped) = channel::<()>();
    let (done, finished) = channel();
    own.spawn(Box::pin(async move {
        done.send(()).unwrap();
        std::future::pending::<()>().await;
        drop(left);
    }));
    finished.recv_timeout(Duration::from_secs(20)).unwrap();
    drop(own);
    let end = is_dropped.recv_timeout(Duration::from_secs(20));
    assert_eq!(end, Err(RecvTimeoutError::Disconnected));
}

async fn literals_and_names_resolve(rt: Arc<dyn Runtime>) {
    assert_eq!(
        rt.resolve("::1", 7).await.unwrap(),
        [SocketAddr::from((Ipv6Addr::LOCALHOST, 7))]
    );
    let local = rt.resolve("localhost", 9).await.unwrap();
    assert!(
        local
            .iter()
            .all(|addr| addr.ip().is_loopback() && addr.port() == 9)
    );
    assert!(!local.is_empty());
    assert!(rt.resolve("no such name", 1).await.is_err());
}

async fn both_families_listen(rt: Arc<dyn Runtime>) {
    let mut options = SocketOptions::default();
    options.only_v6 = Some(false);
    options.reuse_port = true;
    options.backlog = Some(4);
    let acceptor = rt
        .bind((Ipv6Addr::UNSPECIFIED, 0).into(), &options, &mut |_| Ok(()))
        .unwrap();
    let again = rt
        .bind(acceptor.local_addr().unwrap(), &options, &mut |_| Ok(()))
        .unwrap();
    drop(again);
    let port = acceptor.local_addr().unwrap().port();
    let to = (Ipv4Addr::LOCALHOST, port).into();
    let client = rt
        .connect(to, &SocketOptions::default(), &mut |_| Ok(()))
        .await
        .unwrap();
    let (_server, peer) = accept(&*acceptor).await;
    assert_eq!(peer.port(), client.local_addr().unwrap().port());
}

async fn pair(rt: &dyn Runtime) -> (Arc<dyn Socket>, Arc<dyn Socket>) {
    let acceptor = rt
        .bind(loopback(), &SocketOptions::default(), &mut |_| Ok(()))
        .unwrap();
    let to = acceptor.local_addr().unwrap();
    let client = rt
        .connect(to, &SocketOptions::default(), &mut |_| Ok(()))
        .await
        .unwrap();
    (client, accept(&*acceptor).await.0)
}

async fn accept(acceptor: &dyn Acceptor) -> (Arc<dyn Socket>, SocketAddr) {
    poll_fn(|cx| acceptor.poll_accept(cx)).await.unwrap()
}

async fn read(socket: &dyn Socket, max: usize) -> io::Result<Vec<u8>> {
    let mut buf = vec![0; max];
    let n = poll_fn(|cx| socket.poll_read(cx, &mut buf)).await?;
    buf.truncate(n);
    Ok(buf)
}

async fn read_exactly(socket: &dyn Socket, len: usize) -> Vec<u8> {
    let mut all = Vec::new();
    while all.len() < len {
        let more = read(socket, len - all.len()).await.unwrap();
        assert!(
            !more.is_empty(),
            "end of stream after {} of {len} bytes",
            all.len()
        );
        all.extend(more);
    }
    all
}

async fn write_all(socket: &dyn Socket, mut first: &[u8], mut second: &[u8]) {
    while !first.is_empty() || !second.is_empty() {
        let bufs = [IoSlice::new(first), IoSlice::new(second)];
        let n = poll_fn(|cx| socket.poll_write(cx, &bufs)).await.unwrap();
        let from_first = n.min(first.len());
        first = &first[from_first..];
        second = &second[n - from_first..];
    }
}

async fn in_time<T>(rt: &dyn Runtime, done: impl Future<Output = T>) -> T {
    let late = async {
        rt.timer(rt.now() + Duration::from_secs(20)).await;
        panic!("nothing happened");
    };
    done.or(late).await
}

fn poll_once<T>(mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
    poll(&mut Context::from_waker(Waker::noop()))
}

fn loopback() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

#[cfg(feature = "tokio")]
fn tokio_runs<F: Future<Output = ()>>(scenario: fn(Arc<dyn Runtime>) -> F) {
    use smc::runtime::tokio::TokioRuntime;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async { scenario(Arc::new(TokioRuntime::current().unwrap())).await });
}

#[cfg(feature = "smol")]
fn smol_runs<F: Future<Output = ()>>(scenario: fn(Arc<dyn Runtime>) -> F) {
    use smc::runtime::smol::SmolRuntime;
    let executor = Arc::new(smol::Executor::new());
    let runtime = Arc::new(SmolRuntime::with_executor(executor.clone()));
    smol::block_on(executor.run(scenario(runtime)));
    smol::block_on(scenario(Arc::new(SmolRuntime::new())));
}
