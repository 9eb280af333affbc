//! The interface of endpoints and streams as far as it follows that of std, tokio and async-io.

#![cfg(all(feature = "tokio", feature = "smol"))]
#![allow(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{BufMut as _, BytesMut};
use futures_lite::future::{yield_now, zip};
use futures_lite::{AsyncReadExt as _, AsyncWriteExt as _};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::BindToDevice;
use rustix::net::sockopt;
use smc::error::{CloseReason, Phase};
use smc::{ConnectOptions, Error, ListenOptions, Policy, Stream, TcpKeepalive};
use smc_testkit::on::On;
use smc_testkit::port::HeldPort;
use smc_testkit::streams::{
    check_pattern, expect, expect_error, pair, patterned, ping_pong, read_all,
};
use smc_testkit::world::{World, connect_pair_smc};

/// Longer than anything takes here that does not wait for a timeout.
const TIMEOUT: Duration = Duration::from_millis(200);

mod targets {
    use super::*;

    #[test]
    fn several_addresses_are_tried_in_order_until_one_connects() {
        for world in World::both() {
            let (refusing, _held) = world.own_address();
            world.block_on(async {
                let (client, server) = (world.host("client"), world.host("server"));
                let (listener, at) = server.listen().await;
                let connecting = client.endpoint.connect([refusing, at]);
                let (stream, accepted) = zip(connecting, listener.accept()).await;
                let mut streams = (stream.unwrap(), accepted.unwrap().0);
                assert_eq!(streams.0.peer_addr().unwrap(), at);
                ping_pong(&mut streams).await;

                let error = client.endpoint.connect(&[refusing][..]).await.unwrap_err();
                assert_eq!(io::Error::from(error).kind(), ErrorKind::ConnectionRefused);
            });
        }
    }

    #[test]
    fn a_listener_takes_the_first_address_that_is_free() {
        On::Smol.run(async {
            let endpoint = On::Smol.endpoint().build().unwrap();
            let first = endpoint.bind("127.0.0.1:0").await.unwrap();
            let taken = first.local_addr().unwrap();
            let free = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
            let second = endpoint.bind(vec![taken, free]).await.unwrap();
            assert_ne!(second.local_addr().unwrap(), taken);
        });
    }
}

mod options {
    use super::*;

    #[test]
    fn a_connect_with_a_timeout_ends_when_the_handshake_is_not_answered() {
        let world = World::new();
        let client = world.host("client");
        let (acceptor, at) = world.raw_listener();
        world.block_on(async {
            let begin = world.now();
            let options = ConnectOptions::new().timeout(TIMEOUT);
            let server = async {
                let raw = acceptor.accept().await;
                raw.message().await;
                raw
            };
            let connecting = client.endpoint.connect_with(at, &options);
            let (connected, raw) = zip(connecting, server).await;
            let error = connected.unwrap_err();
            assert_eq!(error, Error::TimedOut(Phase::Connect));
            assert_eq!(error.to_string(), "timed out waiting for the connection");
            assert_eq!(io::Error::from(error).kind(), ErrorKind::TimedOut);
            assert!(world.has_taken(begin, TIMEOUT));
            drop(raw);
            world.nothing_left([&client]).await;
        });
    }

    #[test]
    fn a_connect_in_time_has_no_timeout_afterwards() {
        for world in World::both() {
            world.between_hosts(async |client, server| {
                let (listener, at) = server.listen().await;
                for time in [TIMEOUT, Duration::MAX] {
                    let options = ConnectOptions::new().timeout(time);
                    let connecting = client.endpoint.connect_with(at, &options);
                    let (stream, accepted) = zip(connecting, listener.accept()).await;
                    let mut streams = (stream.unwrap(), accepted.unwrap().0);
                    world.sleep(TIMEOUT).await;
                    ping_pong(&mut streams).await;
                }
            });
        }
    }

    #[test]
    fn the_socket_of_a_connect_is_seen_before_it_is_bound() {
        for on in On::ALL {
            on.run(async {
                let endpoint = on.endpoint().build().unwrap();
                let listener = endpoint.bind("127.0.0.1:0").await.unwrap();
                let at = listener.local_addr().unwrap();
                let calls = Arc::new(AtomicUsize::new(0));
                let seen = Arc::clone(&calls);
                let options = ConnectOptions::new().socket(move |socket| {
                    let local: SocketAddr = rustix::net::getsockname(socket)?.try_into()?;
                    assert_eq!(local.port(), 0);
                    seen.fetch_add(1, Ordering::Relaxed);
                    Ok(sockopt::set_tcp_user_timeout(socket, 4321)?)
                });
                let connecting = endpoint.connect_with(at, &options);
                let (stream, accepted) = zip(connecting, listener.accept()).await;
                let mut streams = (stream.unwrap(), accepted.unwrap().0);
                let fd = streams.0.tcp_fd().unwrap();
                assert_eq!(sockopt::tcp_user_timeout(fd).unwrap(), 4321);
                assert!(calls.load(Ordering::Relaxed) > 0);
                ping_pong(&mut streams).await;

                // Another address of this host, which takes a look-up of the route by this device.
                let listener = endpoint.bind("127.0.0.2:0").await.unwrap();
                let at = listener.local_addr().unwrap();
                let options = ConnectOptions::new()
                    .socket(|socket| Ok(setsockopt(&socket, BindToDevice, &"lo".into())?));
                let connecting = endpoint.connect_with(at, &options);
                let (stream, accepted) = zip(connecting, listener.accept()).await;
                ping_pong(&mut (stream.unwrap(), accepted.unwrap().0)).await;
            });
        }
    }

    #[test]
    fn an_error_of_the_function_that_sees_the_socket_is_that_of_the_call() {
        On::Smol.run(async {
            let endpoint = On::Smol.endpoint().build().unwrap();
            let options = ListenOptions::new().socket(|_| Err(io::Error::other("no listener")));
            let error = endpoint.bind_with("127.0.0.1:0", &options).await;
            assert_eq!(error.unwrap_err().to_string(), "no listener");

            let port = HeldPort::of(Ipv4Addr::LOCALHOST).unwrap();
            let options = ConnectOptions::new().socket(|_| Err(io::Error::other("no client")));
            let error = endpoint.connect_with(port.addr(), &options).await;
            assert_eq!(error.unwrap_err().to_string(), "no client");
        });
    }

    #[test]
    fn a_runtime_without_sockets_of_the_system_does_not_call_the_function() {
        let world = World::new();
        world.between_hosts(async |client, server| {
            let options = ListenOptions::new().socket(|_| panic!("a socket"));
            let at = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
            let listener = server.endpoint.bind_with(at, &options).await.unwrap();
            let options = ConnectOptions::new().socket(|_| panic!("a socket"));
            let at = listener.local_addr().unwrap();
            let connecting = client.endpoint.connect_with(at, &options);
            let (stream, accepted) = zip(connecting, listener.accept()).await;
            ping_pong(&mut (stream.unwrap(), accepted.unwrap().0)).await;
        });
    }

    #[test]
    fn options_of_a_listener_are_those_of_its_socket() {
        for on in On::ALL {
            on.run(async {
                let endpoint = on.endpoint().build().unwrap();
                for only in [true, false] {
                    let options = ListenOptions::new()
                        .backlog(7)
                        .reuse_port(true)
                        .only_v6(only)
                        .socket(|socket| Ok(sockopt::set_socket_oobinline(socket, true)?));
                    let at = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
                    let listener = endpoint.bind_with(at, &options).await.unwrap();
                    let fd = listener.tcp_fd().unwrap();
                    assert_eq!(sockopt::ipv6_v6only(fd).unwrap(), only);
                    assert!(sockopt::socket_reuseport(fd).unwrap());
                    assert!(sockopt::socket_reuseaddr(fd).unwrap());
                    assert!(sockopt::socket_oobinline(fd).unwrap());

                    let to = SocketAddr::from((Ipv4Addr::LOCALHOST, port(&listener)));
                    let connected = zip(endpoint.connect(to), async {
                        match only {
                            true => None,
                            false => Some(listener.accept().await.unwrap()),
                        }
                    });
                    assert_eq!(connected.await.0.is_ok(), !only);
                }
            });
        }
    }

    fn port(listener: &smc::Listener) -> u16 {
        listener.local_addr().unwrap().port()
    }

    #[test]
    fn options_that_come_too_late_for_a_listening_socket_are_misuse() {
        On::Smol.run(async {
            let endpoint = On::Smol.endpoint().build().unwrap();
            let bound = || std::net::TcpListener::bind("[::1]:0").unwrap();
            for only in [true, false] {
                let socket = bound();
                let is_same = only == sockopt::ipv6_v6only(&socket).unwrap();
                let options = ListenOptions::new().only_v6(only);
                let listener = endpoint.listen_on_with(socket, &options);
                assert_eq!(listener.is_ok(), is_same, "{listener:?}");
            }
            let options = ListenOptions::new().socket(|_| Ok(()));
            let error = endpoint.listen_on_with(bound(), &options).unwrap_err();
            assert!(matches!(error, Error::Misuse(_)), "{error}");
        });
    }
}

mod halves {
    use super::*;

    /// Calls what a stream and its halves have in common.
    macro_rules! check_options {
        ($($end:expr),+) => {$({
            let end = $end;
            assert_eq!(end.state().is_some(), end.mode().is_smc());
            assert_eq!(end.recv_buffer_size().is_some(), end.mode().is_smc());
            assert_eq!(end.peer_recv_buffer_size().is_some(), end.mode().is_smc());
            assert!(end.tcp_fd().is_some());
            for on in [true, false] {
                end.set_nodelay(on).unwrap();
                assert_eq!(end.nodelay().unwrap(), on);
                end.set_keepalive(on).unwrap();
                assert_eq!(end.keepalive().unwrap(), on);
                end.set_quickack(on).unwrap();
                // The system may have changed it again.
                end.quickack().unwrap();
            }
            for linger in [Some(Duration::from_secs(3)), None] {
                end.set_linger(linger).unwrap();
                assert_eq!(end.linger().unwrap(), linger);
            }
            end.set_ttl(61).unwrap();
            assert_eq!(end.ttl().unwrap(), 61);

            let before = end.tcp_keepalive().unwrap();
            let time = TcpKeepalive::new().with_time(Duration::from_millis(41_500));
            end.set_tcp_keepalive(&time).unwrap();
            assert!(end.keepalive().unwrap());
            let after = end.tcp_keepalive().unwrap();
            assert_eq!(after.time, Some(Duration::from_secs(42)));
            assert_eq!((after.interval, after.retries), (before.interval, before.retries));
            let all = TcpKeepalive::new()
                .with_time(Duration::from_secs(43))
                .with_interval(Duration::from_secs(7))
                .with_retries(5);
            end.set_tcp_keepalive(&all).unwrap();
            assert_eq!(end.tcp_keepalive().unwrap(), all);
            end.set_tcp_keepalive(&before).unwrap();

            assert!(end.take_error().unwrap().is_none());
        })+};
    }

    async fn check_all_ends((mut stream, mut peer): (Stream, Stream)) {
        check_options!(&stream);
        let (reading, writing) = stream.split();
        check_options!(&reading, &writing);
        let (reading, writing) = stream.into_split();
        check_options!(&reading, &writing);
        reading.set_zero_linger().unwrap();
        assert_eq!(writing.linger().unwrap(), Some(Duration::ZERO));
        writing.forget();
        drop(reading);
        expect_error(&mut peer, ErrorKind::ConnectionReset).await;
    }

    #[test]
    fn options_are_the_same_on_a_stream_and_on_its_halves() {
        World::real().between_hosts(async |client, server| {
            check_all_ends(connect_pair_smc(&client, &server).await).await;
        });
        On::Smol.run(async {
            let endpoint = On::Smol.endpoint().build().unwrap();
            let streams = pair(&endpoint, &endpoint).await;
            assert!(!streams.0.mode().is_smc());
            check_all_ends(streams).await;
        });
    }

    #[test]
    fn an_error_is_taken_once_from_either_half() {
        let world = World::new();
        world.between_hosts(async |client, server| {
            let (ours, theirs) = connect_pair_smc(&client, &server).await;
            theirs.set_zero_linger().unwrap();
            drop(theirs);
            world.sleep(TIMEOUT).await;
            let (reading, writing) = ours.into_split();
            let error = reading.take_error().unwrap().unwrap();
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
            assert!(writing.take_error().unwrap().is_none());
        });
    }
}

mod shared {
    use super::*;

    /// More than fits any buffer here.
    const LEN: usize = 3_000_000;

    /// One task writes a stream that another one reads, and the peer returns everything.
    async fn read_and_write_at_once((ours, theirs): (Stream, Stream)) {
        let echo = async {
            let count = futures_lite::io::copy(&theirs, &theirs).await.unwrap();
            (&theirs).close().await.unwrap();
            count
        };
        let sent = patterned(LEN);
        let write = async {
            (&ours).write_all(&sent).await.unwrap();
            (&ours).close().await.unwrap();
        };
        let read = async {
            let (read, end) = read_all(&mut &ours).await;
            end.unwrap();
            read
        };
        let (echoed, ((), read)) = zip(echo, zip(write, read)).await;
        assert_eq!(echoed, LEN as u64);
        assert!(read == sent, "{} bytes", read.len());
    }

    #[test]
    fn a_shared_stream_is_read_and_written_at_once() {
        for world in [World::new(), World::real(), World::parallel()] {
            world.between_hosts(async |client, server| {
                read_and_write_at_once(connect_pair_smc(&client, &server).await).await;
            });
        }
        for on in On::ALL {
            on.run(async {
                let endpoint = on.endpoint().build().unwrap();
                let streams = pair(&endpoint, &endpoint).await;
                assert!(!streams.0.mode().is_smc());
                read_and_write_at_once(streams).await;
            });
        }
    }

    #[test]
    fn tasks_that_share_a_stream_are_woken_for_their_direction() {
        let world = World::new();
        world.between_hosts(async |client, server| {
            let (ours, mut theirs) = connect_pair_smc(&client, &server).await;
            let ours = Arc::new(ours);
            let completed = Arc::new(AtomicUsize::new(0));
            let (reading, has_read) = (Arc::clone(&ours), Arc::clone(&completed));
            client.endpoint.spawn(async move {
                (&*reading).read_exact(&mut [0; 8]).await.unwrap();
                has_read.fetch_add(1, Ordering::Release);
            });
            let (writing, has_written) = (Arc::clone(&ours), Arc::clone(&completed));
            client.endpoint.spawn(async move {
                (&*writing).write_all(&patterned(LEN)).await.unwrap();
                has_written.fetch_add(1, Ordering::Release);
            });
            world.sleep(TIMEOUT).await;
            assert_eq!(completed.load(Ordering::Acquire), 0, "both wait");
            theirs.write_all(b"released").await.unwrap();
            world.sleep(TIMEOUT).await;
            assert_eq!(completed.load(Ordering::Acquire), 1, "one has read");
            expect(&mut theirs, patterned(LEN)).await;
            world.sleep(TIMEOUT).await;
            assert_eq!(
                completed.load(Ordering::Acquire),
                2,
                "the other has written"
            );
        });
    }
}

mod reading {
    use super::*;

    async fn read_into_buffers((mut ours, theirs): (Stream, Stream)) {
        let (mut theirs, _writing) = theirs.into_split();
        let mut empty = BytesMut::new();
        let none = theirs.try_read_buf(&mut empty).unwrap_err();
        assert_eq!(none.kind(), ErrorKind::WouldBlock);
        assert_eq!(theirs.try_read_buf(&mut &mut [0; 0][..]).unwrap(), 0);

        ours.write_all(&patterned(300)).await.unwrap();
        while theirs.peek(&mut [0; 300]).await.unwrap() < 300 {}
        let mut start = Vec::new();
        assert_eq!(theirs.try_read_buf(&mut start).unwrap(), 64);
        assert_eq!(
            theirs.try_read_buf(&mut (&mut start).limit(10)).unwrap(),
            10
        );
        let mut rest = BytesMut::with_capacity(1000);
        rest.put_slice(b"before");
        assert_eq!(theirs.try_read_buf(&mut rest).unwrap(), 226);
        assert_eq!(&rest[..6], b"before");
        check_pattern(74, &rest[6..]);

        let data = patterned(LEN);
        let (mut sent, mut read) = (0, 0);
        while read < LEN {
            match ours.try_write(&data[sent..]) {
                Ok(count) => sent += count,
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
            let mut part = Vec::with_capacity(100_000);
            match theirs.try_read_buf(&mut part) {
                Ok(count) => assert_eq!(count, part.len()),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    yield_now().await;
                }
            }
            check_pattern(read, &part);
            read += part.len();
        }
        ours.close().await.unwrap();
        theirs.readable().await.unwrap();
        assert_eq!(theirs.try_read_buf(&mut rest).unwrap(), 0);
    }

    const LEN: usize = 1_000_000;

    #[test]
    fn what_fits_the_next_chunk_of_a_buffer_is_appended() {
        for world in World::both() {
            world.between_hosts(async |client, server| {
                read_into_buffers(connect_pair_smc(&client, &server).await).await;
            });
        }
        for on in On::ALL {
            on.run(async {
                let endpoint = on.endpoint().build().unwrap();
                read_into_buffers(pair(&endpoint, &endpoint).await).await;
            });
        }
    }
}

mod debug {
    use super::*;

    /// The text between the parentheses, of a stream and its halves.
    fn texts(mut stream: Stream) -> String {
        let text = format!("{stream:?}");
        let inner = text.strip_prefix("Stream").unwrap().to_owned();
        let (read, write) = stream.split();
        assert_eq!(format!("{read:?}"), format!("ReadHalf{inner}"));
        assert_eq!(format!("{write:?}"), format!("WriteHalf{inner}"));
        let (read, write) = stream.into_split();
        assert_eq!(format!("{read:?}"), format!("OwnedReadHalf{inner}"));
        assert_eq!(format!("{write:#?}"), format!("OwnedWriteHalf{inner}"));
        inner
    }

    #[test]
    fn a_stream_is_one_short_line() {
        World::real().between_hosts(async |client, server| {
            let (ours, theirs) = connect_pair_smc(&client, &server).await;
            let [local, peer] = [&ours, &theirs].map(|stream| stream.local_addr().unwrap());
            assert_eq!(texts(ours), format!("(SMC-D v2.1, {local} -> {peer})"));
            assert_eq!(texts(theirs), format!("(SMC-D v2.1, {peer} -> {local})"));
        });
        On::Smol.run(async {
            let endpoint = On::Smol.endpoint().build().unwrap();
            let (ours, _theirs) = pair(&endpoint, &endpoint).await;
            let code = ours.fallback_reason().unwrap().local.0;
            let (local, peer) = (ours.local_addr().unwrap(), ours.peer_addr().unwrap());
            let text = format!("(TCP {code:#010x}, {local} -> {peer})");
            assert_eq!(texts(ours), text);
        });
    }
}

mod markers {
    use super::*;
    use std::panic::{RefUnwindSafe, UnwindSafe};

    use smc::{Endpoint, Listener, OwnedReadHalf, OwnedWriteHalf, ReadGuard, ReadHalf, WriteHalf};

    fn is_as_tokios<T: Send + Sync + Unpin + UnwindSafe + RefUnwindSafe>() {}

    #[test]
    fn types_have_the_markers_of_tokios_types() {
        is_as_tokios::<tokio::net::TcpStream>();
        is_as_tokios::<tokio::net::TcpListener>();
        is_as_tokios::<tokio::net::tcp::ReadHalf<'_>>();
        is_as_tokios::<tokio::net::tcp::WriteHalf<'_>>();
        is_as_tokios::<Endpoint>();
        is_as_tokios::<Listener>();
        is_as_tokios::<Stream>();
        is_as_tokios::<ReadHalf<'_>>();
        is_as_tokios::<WriteHalf<'_>>();
        is_as_tokios::<OwnedReadHalf>();
        is_as_tokios::<OwnedWriteHalf>();
        is_as_tokios::<ReadGuard>();
    }

    #[test]
    fn a_stream_works_after_a_panic_that_was_caught() {
        World::new().between_hosts(async |client, server| {
            let mut streams = connect_pair_smc(&client, &server).await;
            let stream = &streams.0;
            let caught = std::panic::catch_unwind(|| {
                stream.try_write(b"").unwrap();
                panic!("after a call");
            });
            caught.unwrap_err();
            ping_pong(&mut streams).await;
        });
    }
}

mod pairs {
    use super::*;

    #[test]
    fn a_pair_is_connected_and_leaves_no_listener() {
        for world in World::both() {
            world.block_on(async {
                let host = world.host("host");
                let mut streams = Stream::pair(&host.endpoint).await.unwrap();
                assert!(streams.0.mode().is_smc(), "{:?}", streams.0);
                assert_eq!(
                    streams.0.local_addr().unwrap(),
                    streams.1.peer_addr().unwrap()
                );
                assert!(host.endpoint.listener_infos().is_empty());
                ping_pong(&mut streams).await;
            });
        }
        for on in On::ALL {
            on.run(async {
                let endpoint = on.endpoint().build().unwrap();
                for _ in 0..20 {
                    let mut streams = Stream::pair(&endpoint).await.unwrap();
                    ping_pong(&mut streams).await;
                }
            });
        }
    }

    #[test]
    fn a_pair_of_ends_with_other_policies_is_an_error() {
        On::Smol.run(async {
            let is_first = AtomicUsize::new(0);
            let endpoint = On::Smol
                .endpoint()
                .policy_for(move |_| match is_first.fetch_add(1, Ordering::Relaxed) {
                    0 => Policy::Never,
                    _ => Policy::Require,
                })
                .build()
                .unwrap();
            let error = Stream::pair(&endpoint).await.unwrap_err();
            assert_eq!(error, Error::Closed(CloseReason::DuringHandshake));
        });
    }

    #[test]
    fn a_pair_of_a_closed_endpoint_is_misuse() {
        On::Smol.run(async {
            let endpoint = On::Smol.endpoint().build().unwrap();
            endpoint.close().await;
            let error = Stream::pair(&endpoint).await.unwrap_err();
            assert!(matches!(error, Error::Misuse(_)), "{error}");
        });
    }
}
