use std::future::{pending, poll_fn};
use std::io::IoSlice;
use std::sync::Mutex;
use std::task::Poll;

use super::*;

const AT: &str = "127.0.0.1:80";

#[test]
fn time_jumps_to_the_next_timer() {
    let runtime = VirtualRuntime::new(1);
    let handle = runtime.handle();
    let start = handle.now();
    let order = Arc::new(Mutex::new(Vec::new()));
    for seconds in [3, 1, 2] {
        let (order, timer) = (Arc::clone(&order), handle.timer(start + secs(seconds)));
        handle.spawn(Box::pin(async move {
            timer.await;
            order.lock().unwrap().push(seconds);
        }));
    }
    runtime.run_for(secs(10));
    assert_eq!(*order.lock().unwrap(), [1, 2, 3]);
    assert!(runtime.elapsed() >= secs(10) && runtime.elapsed() < secs(11));
}

#[test]
fn a_timer_in_the_past_completes_at_once() {
    let runtime = VirtualRuntime::new(1);
    let handle = runtime.handle();
    runtime.run_for(secs(1));
    let past = handle.now() - secs(1);
    runtime.block_on(handle.timer(past));
    assert!(runtime.elapsed() < secs(2));
}

#[test]
fn a_deadlock_names_who_waits_and_for_what() {
    let runtime = VirtualRuntime::new(1);
    let handle = runtime.handle();
    let acceptor = handle
        .bind(addr(AT), &SocketOptions::default(), &mut |_| Ok(()))
        .unwrap();
    runtime.spawn_named("server", async move {
        let _ = poll_fn(|cx| acceptor.poll_accept(cx)).await;
    });
    runtime.spawn_named("dreamer", pending());
    let stall = runtime.try_block_on(pending::<()>()).unwrap_err();
    let text = stall.to_string();
    assert!(matches!(stall, Stall::Deadlock { .. }));
    for part in ["main", "server (accepts at 127.0.0.1:80)", "dreamer"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn a_task_that_never_rests_is_found() {
    let runtime = VirtualRuntime::with_options(1, Options::default().with_max_steps(100));
    let stall = runtime.try_block_on(poll_fn::<(), _>(|cx| {
        cx.waker().wake_by_ref();
        Poll::Pending
    }));
    assert!(matches!(stall, Err(Stall::Endless { .. })));
}

#[test]
fn who_polls_the_clock_gets_on() {
    let runtime = VirtualRuntime::new(1);
    let handle = runtime.handle();
    let end = handle.now() + Duration::from_millis(1);
    runtime.block_on(poll_fn(|cx| {
        cx.waker().wake_by_ref();
        if handle.now() >= end {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }));
    while handle.now() < end + Duration::from_micros(10) {}
}

#[test]
fn the_seed_decides_the_order_of_tasks() {
    let order = |seed| {
        let runtime = VirtualRuntime::new(seed);
        let order = Arc::new(Mutex::new(Vec::new()));
        for number in 0..20 {
            let order = Arc::clone(&order);
            runtime.spawn_named("task", async move { order.lock().unwrap().push(number) });
        }
        runtime.run_for(secs(1));
        Arc::try_unwrap(order).unwrap().into_inner().unwrap()
    };
    assert_eq!(order(1), order(1));
    assert_ne!(order(1), order(2));
}

#[test]
fn dropping_the_runtime_drops_its_tasks() {
    let runtime = VirtualRuntime::new(1);
    let (handle, outer) = (runtime.handle(), Arc::new(()));
    let (inner, held) = (runtime.handle(), Arc::clone(&outer));
    handle.spawn(Box::pin(async move {
        inner.timer(inner.now() + secs(1)).await;
        drop(held);
    }));
    runtime.run_for(Duration::from_millis(1));
    assert_eq!(Arc::strong_count(&outer), 2);
    drop(runtime);
    assert_eq!(Arc::strong_count(&outer), 1);
    handle.spawn(Box::pin(pending()));
}

#[test]
fn bytes_take_their_time_and_keep_their_order() {
    let options = Options::default()
        .with_latency(Duration::from_millis(5), Duration::from_millis(20))
        .with_fragment(3);
    let runtime = VirtualRuntime::with_options(3, options);
    let (client, server) = connected(&runtime);
    let sent: Vec<u8> = (0..=255).collect();
    let data = sent.clone();
    runtime.spawn_named("writer", async move {
        let mut rest = &data[..];
        while !rest.is_empty() {
            let bufs = [IoSlice::new(rest)];
            let count = poll_fn(|cx| client.poll_write(cx, &bufs)).await.unwrap();
            assert!((1..=3).contains(&count));
            rest = &rest[count..];
        }
        client.shutdown(std::net::Shutdown::Write).unwrap();
        pending::<()>().await;
    });
    let start = runtime.elapsed();
    let got = runtime.block_on(read_to_end(&server)).unwrap();
    assert_eq!(got, sent);
    assert!(runtime.elapsed() - start >= Duration::from_millis(5));
}

#[test]
fn a_full_connection_makes_writers_wait() {
    let runtime = VirtualRuntime::with_options(1, Options::default().with_capacity(10));
    let (client, server) = connected(&runtime);
    let bufs = [IoSlice::new(&[7; 25])];
    assert_eq!(client.try_write(&bufs).unwrap(), 10);
    assert_eq!(
        client.try_write(&bufs).unwrap_err().kind(),
        io::ErrorKind::WouldBlock
    );
    runtime.spawn_named("reader", async move {
        let mut buf = [0; 4];
        assert_eq!(
            poll_fn(|cx| server.poll_peek(cx, &mut buf)).await.unwrap(),
            4
        );
        assert_eq!(
            poll_fn(|cx| server.poll_read(cx, &mut buf)).await.unwrap(),
            4
        );
        pending::<()>().await;
    });
    runtime
        .block_on(poll_fn(|cx| client.poll_writable(cx)))
        .unwrap();
    assert_eq!(client.try_write(&bufs).unwrap(), 4);
}

#[test]
fn closing_with_unread_bytes_resets() {
    let runtime = VirtualRuntime::new(1);
    let (client, server) = connected(&runtime);
    client.try_write(&[IoSlice::new(b"unread")]).unwrap();
    drop(server);
    let error = runtime.block_on(read_to_end(&client)).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    let error = client.try_write(&[IoSlice::new(b"more")]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
}

#[test]
fn closing_in_order_is_an_end_of_stream() {
    let runtime = VirtualRuntime::new(1);
    let (client, server) = connected(&runtime);
    server.try_write(&[IoSlice::new(b"bye")]).unwrap();
    drop(server);
    assert_eq!(runtime.block_on(read_to_end(&client)).unwrap(), b"bye");
    // The first write finds out, the second knows.
    client.try_write(&[IoSlice::new(b"hello?")]).unwrap();
    client.try_write(&[IoSlice::new(b"hello?")]).unwrap_err();
}

#[test]
fn a_cut_connection_is_reset_for_both() {
    let runtime = VirtualRuntime::new(1);
    let (client, server) = connected(&runtime);
    assert_eq!(runtime.cut(addr(AT)), 1);
    for socket in [&client, &server] {
        let error = runtime.block_on(read_to_end(socket)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }
}

#[test]
fn a_reset_loses_what_has_not_arrived() {
    let options = Options::default().with_latency(Duration::from_millis(5), Duration::ZERO);
    let runtime = VirtualRuntime::with_options(1, options);
    let (client, server) = connected(&runtime);
    client.try_write(&[IoSlice::new(b"first")]).unwrap();
    runtime.run_for(Duration::from_millis(6));
    client.try_write(&[IoSlice::new(b"second")]).unwrap();
    client.set_linger(Some(Duration::ZERO)).unwrap();
    drop(client);
    assert_eq!(server.try_read(&mut [0; 100]).unwrap(), 5);
    runtime.run_for(Duration::from_millis(6));
    let error = server.try_read(&mut [0; 100]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
}

#[test]
fn a_truncated_connection_ends_behind_what_is_kept() {
    for is_client in [true, false] {
        let runtime = VirtualRuntime::new(1);
        runtime.truncate_next(addr(AT), is_client, 3);
        let copy = runtime.copy_next(addr(AT));
        let (client, server) = connected(&runtime);
        let (hit, other) = if is_client {
            (client, server)
        } else {
            (server, client)
        };
        hit.try_write(&[IoSlice::new(b"lost")]).unwrap();
        hit.try_write(&[IoSlice::new(b"lost")]).unwrap_err();
        other.try_write(&[IoSlice::new(b"whole")]).unwrap();
        other.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(runtime.block_on(read_to_end(&other)).unwrap(), b"los");
        assert_eq!(runtime.block_on(read_to_end(&hit)).unwrap(), b"whole");
        assert!(copy.lock().unwrap().is_empty(), "is for the next one");
        let (client, _server) = connected(&runtime);
        client.try_write(&[IoSlice::new(b"seen")]).unwrap();
        assert_eq!(*copy.lock().unwrap(), b"seen");
    }
}

#[test]
fn a_host_that_has_ended_listens_no_more() {
    let runtime = VirtualRuntime::new(1);
    let handle = runtime.handle();
    let options = SocketOptions::default();
    let (client, _server) = connected(&runtime);
    let _listener = handle.bind(addr(AT), &options, &mut |_| Ok(())).unwrap();
    runtime.end_host(addr(AT).ip());
    let error = runtime.block_on(read_to_end(&client)).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    let mut before = |_: &smc_core::runtime::Unconnected<'_>| Ok(());
    let attempt = handle.connect(addr(AT), &options, &mut before);
    let error = runtime.block_on(attempt).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
}

#[test]
fn a_paused_runtime_runs_no_task_until_it_is_resumed() {
    let runtime = VirtualRuntime::new(1);
    let paused = runtime.ending();
    let count = Arc::new(Mutex::new(0));
    let (counted, clock) = (Arc::clone(&count), Arc::clone(&paused));
    paused.spawn(Box::pin(async move {
        loop {
            clock.timer(clock.now() + secs(1)).await;
            *counted.lock().unwrap() += 1;
        }
    }));
    runtime.run_for(Duration::from_millis(2500));
    paused.pause();
    runtime.run_for(secs(10));
    assert_eq!(*count.lock().unwrap(), 2);
    assert_eq!(runtime.task_count(), 1);
    paused.resume();
    runtime.run_for(Duration::from_millis(1500));
    assert_eq!(
        *count.lock().unwrap(),
        4,
        "the timer that was missed, and one more"
    );
}

#[test]
fn timers_are_late_when_the_clock_jumps() {
    let runtime = VirtualRuntime::new(1);
    let handle = runtime.handle();
    let start = handle.now();
    let timer = handle.timer(start + secs(1));
    runtime.jump(secs(60));
    runtime.block_on(timer);
    assert!(handle.now() - start >= secs(60));
}

#[test]
fn without_a_listener_no_connection() {
    let runtime = VirtualRuntime::new(1);
    let handle = runtime.handle();
    let options = SocketOptions::default();
    let mut before = |_: &smc_core::runtime::Unconnected<'_>| Ok(());
    let attempt = handle.connect(addr(AT), &options, &mut before);
    let error = runtime.block_on(attempt).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);

    let _first = handle.bind(addr(AT), &options, &mut |_| Ok(())).unwrap();
    let error = handle
        .bind(addr(AT), &options, &mut |_| Ok(()))
        .unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
}

#[test]
fn the_second_connection_with_fast_open_has_data_in_its_syn() {
    let network = FastOpen::new();
    let client = network.connect().unwrap();
    assert_eq!(
        client.peer_addr().unwrap_err().kind(),
        io::ErrorKind::NotConnected
    );
    network.runtime.run_for(secs(1));
    assert!(network.try_accept().is_none());

    let before = network.runtime.elapsed();
    client.try_write(&[IoSlice::new(b"first")]).unwrap();
    let full = client.try_write(&[IoSlice::new(b"more")]).unwrap_err();
    assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
    let server = network.accept();
    let mut data = [0; 8];
    assert_eq!(server.try_read(&mut data).unwrap(), 5);
    let took = network.runtime.elapsed() - before;
    assert_eq!(took.as_millis(), LATENCY.as_millis());
    network.runtime.run_for(LATENCY);
    assert_eq!(client.peer_addr().unwrap(), addr(AT));
    assert_eq!(client.try_write(&[IoSlice::new(b"more")]).unwrap(), 4);
}

#[test]
fn data_follows_where_that_of_a_syn_is_not_taken() {
    let cases = [
        (SynDelivery::WithoutCookie, LATENCY * 3),
        (SynDelivery::AfterLoss, LATENCY * 3 + secs(1)),
    ];
    for (delivery, after) in cases {
        let network = FastOpen::new();
        let sender = network.runtime.deliver_next_syn(addr(AT), delivery);
        let client = network.connect().unwrap();
        assert_eq!(sender.get(), Some(&client.local_addr().unwrap()));
        let before = network.runtime.elapsed();
        client.try_write(&[IoSlice::new(b"first")]).unwrap();
        let server = network.accept();
        let took = network.runtime.elapsed() - before;
        assert_eq!(took.as_millis(), after.as_millis());
        assert_eq!(server.try_read(&mut [0; 8]).unwrap(), 5);
    }
}

#[test]
fn a_syn_that_arrives_twice_is_a_second_connection_once_the_first_one_is_closed() {
    for is_closed in [false, true] {
        let network = FastOpen::new();
        let delivery = SynDelivery::Twice(secs(2));
        let _sender = network.runtime.deliver_next_syn(addr(AT), delivery);
        let client = network.connect().unwrap();
        client.try_write(&[IoSlice::new(b"first")]).unwrap();
        let mut server = Some(network.accept());
        server.as_ref().unwrap().try_read(&mut [0; 8]).unwrap();
        if is_closed {
            server = None;
        }
        network.runtime.run_for(secs(3));
        let second = network.try_accept();
        assert_eq!(second.is_some(), is_closed);
        if let Some(second) = second {
            assert_eq!(second.peer_addr().unwrap(), client.local_addr().unwrap());
            assert_eq!(second.try_read(&mut [0; 8]).unwrap(), 5);
            let error = second.try_read(&mut [0; 8]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        }
        drop(server);
    }
}

#[test]
fn a_syn_arrives_although_its_client_has_ended() {
    let network = FastOpen::new();
    let client = network.connect().unwrap();
    client.try_write(&[IoSlice::new(b"first")]).unwrap();
    drop(client);
    let server = network.accept();
    assert_eq!(server.try_read(&mut [0; 8]).unwrap(), 5);
    network.runtime.run_for(LATENCY * 3);
    let error = server.try_read(&mut [0; 8]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
}

#[test]
fn a_syn_with_data_is_refused_without_a_listener() {
    let mut network = FastOpen::new();
    let client = network.connect().unwrap();
    network.acceptor = None;
    client.try_write(&[IoSlice::new(b"first")]).unwrap();
    let writable = poll_fn(|cx| client.poll_writable(cx));
    network.runtime.block_on(writable).unwrap();
    let error = client.try_read(&mut [0; 8]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
}

/// A client that has the cookie of a listener.
struct FastOpen {
    runtime: VirtualRuntime,
    acceptor: Option<Arc<dyn Acceptor>>,
}

const LATENCY: Duration = Duration::from_millis(5);

impl FastOpen {
    fn new() -> Self {
        let options = Options::default().with_latency(LATENCY, Duration::ZERO);
        let runtime = VirtualRuntime::with_options(1, options);
        let bound = runtime
            .handle()
            .bind(addr(AT), &Self::options(), &mut |_| Ok(()));
        let network = Self {
            runtime,
            acceptor: Some(bound.unwrap()),
        };
        let first = network.connect().unwrap();
        assert_eq!(first.peer_addr().unwrap(), addr(AT));
        let _server = network.accept();
        network
    }

    fn options() -> SocketOptions {
        let mut options = SocketOptions::default();
        options.fast_open = true;
        options
    }

    fn connect(&self) -> io::Result<Arc<dyn Socket>> {
        let handle = self.runtime.handle();
        let options = Self::options();
        let mut before = |_: &smc_core::runtime::Unconnected<'_>| Ok(());
        self.runtime
            .block_on(handle.connect(addr(AT), &options, &mut before))
    }

    fn accept(&self) -> Arc<dyn Socket> {
        let acceptor = self.acceptor.as_ref().unwrap();
        let accepting = poll_fn(|cx| acceptor.poll_accept(cx));
        self.runtime.block_on(accepting).unwrap().0
    }

    fn try_accept(&self) -> Option<Arc<dyn Socket>> {
        let acceptor = self.acceptor.as_ref().unwrap();
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        match acceptor.poll_accept(&mut cx) {
            Poll::Ready(accepted) => Some(accepted.unwrap().0),
            Poll::Pending => None,
        }
    }
}

#[test]
fn names_resolve_if_they_are_known() {
    let runtime = VirtualRuntime::new(1);
    let handle = runtime.handle();
    let found = |name| runtime.block_on(handle.resolve(name, 80));
    assert_eq!(found("localhost").unwrap(), [addr(AT), addr("[::1]:80")]);
    assert_eq!(found("10.0.0.7").unwrap(), [addr("10.0.0.7:80")]);
    found("nowhere.example").unwrap_err();
}

#[test]
fn descriptors_cannot_be_watched() {
    use std::os::fd::AsFd;
    let handle = VirtualRuntime::new(1).handle();
    let error = handle.watch(io::stdin().as_fd()).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::Unsupported);
}

fn connected(runtime: &VirtualRuntime) -> (Arc<dyn Socket>, Arc<dyn Socket>) {
    let handle = runtime.handle();
    let options = SocketOptions::default();
    let acceptor = handle.bind(addr(AT), &options, &mut |_| Ok(())).unwrap();
    runtime.block_on(async {
        let mut seen = None;
        let mut before = |socket: &smc_core::runtime::Unconnected<'_>| {
            seen = Some(socket.local);
            Ok(())
        };
        let client = handle
            .connect(addr(AT), &options, &mut before)
            .await
            .unwrap();
        let (server, peer) = poll_fn(|cx| acceptor.poll_accept(cx)).await.unwrap();
        assert_eq!(Some(peer), seen);
        assert_eq!(client.local_addr().unwrap(), peer);
        (client, server)
    })
}

async fn read_to_end(socket: &Arc<dyn Socket>) -> io::Result<Vec<u8>> {
    let mut all = Vec::new();
    loop {
        let mut buf = [0; 100];
        let count = poll_fn(|cx| socket.poll_read(cx, &mut buf)).await?;
        if count == 0 {
            return Ok(all);
        }
        all.extend_from_slice(&buf[..count]);
    }
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn addr(text: &str) -> SocketAddr {
    text.parse().unwrap()
}
