//! UNIX sockets as addresses: streams between ends that support SMC, and with ends that do not.

#![cfg(all(feature = "tokio", feature = "smol"))]
#![allow(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use futures_lite::future::{poll_once, yield_now};
use futures_lite::{AsyncReadExt as _, AsyncWriteExt as _};
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketType};
use rustix::process::{getegid, geteuid, getpid};
use smc::{
    ConnectOptions, Domain, Error, FallbackCause, ListenOptions, LoopDevice, Policy, Stream,
    UnixAddr,
};
use smc_core::wire::clc::Decline;
use smc_core::wire::types::{DeclineCode, OsType, Version};
use smc_testkit::on::{self, On};
use smc_testkit::process::is_alone;
use smc_testkit::resources::limit_descriptors;
use smc_testkit::unix::marked_client;
use smc_testkit::user::{is_root, run_as};
use smc_testkit::wait;

#[path = "support/unix.rs"]
mod support;

use support::{Place, connect_pair, exchange};

/// What a listener with SMC has in place of the last slash of its path.
const SPELLING: &str = "/././/./";

#[test]
fn two_endpoints_have_smc_over_a_path_and_over_an_abstract_name() {
    for on in On::ALL {
        let place = Place::new();
        on.run(async {
            let [client, server] = [(); 2].map(|()| place.endpoint(on));
            for at in [place.path(), place.abstract_name()] {
                let listener = server.bind_unix(&at).unwrap();
                assert!(listener.unpublished().is_none());
                let addr = UnixAddr::from_path(&at).unwrap();
                assert_eq!(listener.local_addr().unwrap(), addr);
                for _ in 0..3 {
                    let mut streams = connect_pair(&client, &listener, &at).await;
                    for stream in &streams {
                        assert!(stream.mode().is_smc(), "{}", stream.mode());
                        let peer = stream.peer_cred().unwrap();
                        let own = (geteuid().as_raw(), getegid().as_raw());
                        assert_eq!((peer.uid(), peer.gid()), own);
                        assert_eq!(peer.pid(), Some(getpid().as_raw_nonzero().get()));
                        let error = stream.peer_addr().unwrap_err();
                        assert_eq!(error.kind(), ErrorKind::Unsupported);
                    }
                    exchange(&mut streams).await;
                    let [client, mut server] = streams;
                    assert_eq!(client.peer_unix_addr().unwrap(), addr);
                    assert_eq!(server.local_unix_addr().unwrap(), addr);
                    assert!(client.local_unix_addr().unwrap().is_unnamed());
                    assert!(server.peer_unix_addr().unwrap().is_unnamed());
                    drop(client);
                    assert_eq!(server.read(&mut [0; 8]).await.unwrap(), 0);
                }
            }
        });
    }
}

/// A client without SMC does not send before the listener does, and a listener without SMC neither:
/// nothing of a handshake is in what they read.
#[test]
fn an_ordinary_client_and_an_ordinary_listener_work() {
    for on in On::ALL {
        let place = Place::new();
        on.run(async {
            let endpoint = place.endpoint(on);
            for at in [place.path(), place.abstract_name()] {
                let addr: net::SocketAddr =
                    (&UnixAddr::from_path(&at).unwrap()).try_into().unwrap();
                let listener = endpoint.bind_unix(&at).unwrap();
                let mut ordinary = net::UnixStream::connect_addr(&addr).unwrap();
                let (mut stream, peer) = listener.accept().await.unwrap();
                assert!(peer.is_unnamed());
                assert!(!stream.mode().is_smc());
                stream.write_all(b"banner").await.unwrap();
                let mut banner = [0; 6];
                ordinary.read_exact(&mut banner).unwrap();
                assert_eq!(&banner, b"banner");
                ordinary.write_all(b"quit").unwrap();
                drop(ordinary);
                let mut rest = Vec::new();
                stream.read_to_end(&mut rest).await.unwrap();
                assert_eq!(rest, b"quit");
                drop(listener);

                let _removed = std::fs::remove_file(&at);
                let mut bound = None;
                // The task of the listener may have the socket for a moment.
                wait::until(
                    || {
                        bound = net::UnixListener::bind_addr(&addr).ok();
                        bound.is_some()
                    },
                    || format!("{} is free", at.display()),
                );
                let ordinary = bound.unwrap();
                let mut stream = endpoint.connect_unix(&at).await.unwrap();
                let (mut accepted, _) = ordinary.accept().unwrap();
                accepted.write_all(b"banner").unwrap();
                stream.read_exact(&mut banner).await.unwrap();
                assert_eq!(&banner, b"banner");
                let reason = stream.fallback_reason().unwrap();
                assert!(
                    matches!(reason.cause, FallbackCause::NotAnnounced { .. }),
                    "{reason}"
                );
                let required = ConnectOptions::new().policy(Policy::Require);
                let error = endpoint
                    .connect_unix_with(&at, &required)
                    .await
                    .unwrap_err();
                assert!(matches!(error, Error::Declined(_)), "{error}");
                drop(ordinary);
                let _removed = std::fs::remove_file(&at);
            }
        });
    }
}

#[test]
fn where_the_handshake_fails_the_stream_is_plain_and_nothing_is_lost() {
    for on in On::ALL {
        let place = Place::new();
        on.run(async {
            let without_device = on.endpoint().build().unwrap();
            let never = place.builder(on).policy(Policy::Never).build().unwrap();
            let smc = place.endpoint(on);
            // Another fabric: the devices cannot reach each other.
            let apart = Place::new().endpoint(on);
            let at = place.path();
            for (client, server) in [
                (&without_device, &smc),
                (&smc, &without_device),
                (&never, &smc),
                (&smc, &never),
                (&apart, &smc),
                (&smc, &apart),
            ] {
                let listener = server.bind_unix(&at).unwrap();
                let mut streams = connect_pair(client, &listener, &at).await;
                assert!(streams.iter().all(|stream| !stream.mode().is_smc()));
                assert!(
                    streams
                        .iter()
                        .all(|stream| stream.fallback_reason().is_some())
                );
                exchange(&mut streams).await;
                drop(listener);
                std::fs::remove_file(&at).unwrap();
            }
        });
    }
}

/// As at start, or as one that is stopped: the system accepts for it.
#[test]
fn at_a_listener_that_does_not_answer_the_stream_is_plain() {
    let place = Place::new();
    On::Smol.run(async {
        let at = place.path();
        let server = place.endpoint(On::Smol);
        let listening = server.bind_unix(&at).unwrap();
        let copy = listening.unix_fd().unwrap().try_clone_to_owned().unwrap();
        // The name of the socket still has the mark.
        drop(listening);
        let listener = net::UnixListener::from(copy);
        let client = place.endpoint(On::Smol);
        let mut stream = client.connect_unix(&at).await.unwrap();
        let reason = stream.fallback_reason().unwrap();
        assert!(
            matches!(reason.cause, FallbackCause::NoAnswer { .. }),
            "{reason}"
        );
        stream.write_all(b"hello").await.unwrap();
        drop(stream);
        // The first connection has the PROPOSAL.
        let (mut first, _) = listener.accept().unwrap();
        first.set_nonblocking(false).unwrap();
        let mut proposal = Vec::new();
        let _reset = first.read_to_end(&mut proposal);
        assert!(proposal.starts_with(&[0xe2, 0xd4, 0xc3]));
        let (mut second, _) = listener.accept().unwrap();
        second.set_nonblocking(false).unwrap();
        let mut word = String::new();
        second.read_to_string(&mut word).unwrap();
        assert_eq!(word, "hello");
    });
}

#[test]
fn a_client_that_is_silent_after_its_mark_delays_no_other() {
    let place = Place::new();
    On::Smol.run(async {
        let at = place.path();
        let endpoint = place.endpoint(On::Smol);
        let listener = endpoint.bind_unix(&at).unwrap();
        let _silent = marked_client(&SocketAddrUnix::new(&at).unwrap()).unwrap();
        let mut streams = connect_pair(&endpoint, &listener, &at).await;
        assert!(streams[0].mode().is_smc());
        exchange(&mut streams).await;
    });
}

#[test]
fn clients_of_another_user_that_hold_handshakes_leave_descriptors_to_the_process() {
    if !is_root("connect as another user") || !is_alone() {
        return;
    }
    let limit = 4096;
    limit_descriptors(limit);
    let place = Place::new();
    let endpoint = place.endpoint(On::Smol);
    let name = |n| format!("{}-{n}", place.path().display());
    let paths: Vec<_> = (0..3)
        .map(|n| PathBuf::from(format!("\0{}", name(n))))
        .collect();
    On::Smol.run(async {
        let listeners: Vec<_> = paths
            .iter()
            .map(|at| endpoint.bind_unix(at).unwrap())
            .collect();
        let mut clients = run_as(990, || {
            let clients = (0..1350).map(|number| {
                let second = format!("{}\0smc", name(number % 3));
                let second = SocketAddrUnix::new_abstract_name(second.as_bytes()).unwrap();
                let mut client = marked_client(&second).unwrap();
                client.set_nonblocking(true).unwrap();
                client.write_all(&[0xe2]).unwrap();
                client
            });
            clients.collect::<Vec<_>>()
        })
        .unwrap();
        // A client beyond the share is closed: it reads the end, or a reset.
        let share = usize::try_from(limit / 8).unwrap();
        for _ in 0..300 {
            clients.retain_mut(|client| {
                let read = client.read(&mut [0]);
                read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
            });
            if clients.len() <= share {
                break;
            }
            smol::Timer::after(Duration::from_millis(10)).await;
        }
        assert!(clients.len() <= share, "{} are held", clients.len());
        for (listener, at) in listeners.iter().zip(&paths) {
            let mut streams = connect_pair(&endpoint, listener, at).await;
            assert!(streams[0].mode().is_smc());
            exchange(&mut streams).await;
        }
    });
}

/// Each user can listen at a free abstract name, also at the second one of a service without SMC.
#[test]
fn a_second_socket_with_a_full_backlog_delays_no_client() {
    let place = Place::new();
    On::Smol.run(async {
        let at = place.abstract_name();
        let addr = net::SocketAddr::try_from(&UnixAddr::from_path(&at).unwrap()).unwrap();
        let service = net::UnixListener::bind_addr(&addr).unwrap();
        let second = format!("{}\0smc", &at.to_str().unwrap()[1..]);
        let second = SocketAddrUnix::new_abstract_name(second.as_bytes()).unwrap();
        let squatter = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        rustix::net::bind(&squatter, &second).unwrap();
        rustix::net::listen(&squatter, 0).unwrap();
        let waiting = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        rustix::net::connect(&waiting, &second).unwrap();
        let stream = place.endpoint(On::Smol).connect_unix(&at).await.unwrap();
        assert!(!stream.mode().is_smc());
        assert!(service.accept().is_ok());
    });
}

/// A client needs no SMC for it, and has any name that the system allows.
#[test]
fn a_client_whose_path_fills_all_space_is_accepted_as_any_other() {
    for on in On::ALL {
        let place = Place::new();
        on.run(async {
            let at = place.path();
            let endpoint = place.endpoint(on);
            let listener = endpoint.bind_unix(&at).unwrap();
            let directory = place.directory.path().to_str().unwrap();
            let long = format!("{directory}/{}", "x".repeat(107 - directory.len()));
            assert_eq!(long.len(), 108);
            let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None);
            let socket = socket.unwrap();
            rustix::net::bind(&socket, &SocketAddrUnix::new(&long).unwrap()).unwrap();
            rustix::net::connect(&socket, &SocketAddrUnix::new(&at).unwrap()).unwrap();
            let (stream, peer) = listener.accept().await.unwrap();
            assert!(peer.is_unnamed());
            assert!(stream.peer_unix_addr().unwrap().is_unnamed());
            assert!(!format!("{stream:?}").is_empty());
            let mut streams = connect_pair(&endpoint, &listener, &at).await;
            assert!(streams[1].mode().is_smc());
            exchange(&mut streams).await;
        });
    }
}

/// Closing what was passed can take as long as its owner likes.
#[test]
fn nothing_can_be_passed_over_a_unix_stream() {
    let place = Place::new();
    let probe = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    if !smc_ipc::passed::refuse_descriptors(&probe) {
        println!("skipped: why: the kernel is older than 6.16");
        return;
    }
    On::Smol.run(async {
        let endpoint = place.endpoint(On::Smol);
        for at in [place.path(), place.abstract_name()] {
            let listener = endpoint.bind_unix(&at).unwrap();
            let addr = net::SocketAddr::try_from(&UnixAddr::from_path(&at).unwrap()).unwrap();
            let ordinary = net::UnixStream::connect_addr(&addr).unwrap();
            let passed = smc_ipc::channel::send(&ordinary, b"x", &[probe.as_fd()]);
            assert_eq!(passed, Err(rustix::io::Errno::PERM));
            drop(listener);
            let _removed = std::fs::remove_file(&at);
            let mut service = None;
            // A task of the listener has its socket until it ends.
            let bound = || {
                service = net::UnixListener::bind_addr(&addr).ok();
                service.is_some()
            };
            on::until(bound, || "the name stays in use".to_owned()).await;
            let _stream = endpoint.connect_unix(&at).await.unwrap();
            let (accepted, _) = service.unwrap().accept().unwrap();
            let passed = smc_ipc::channel::send(&accepted, b"x", &[probe.as_fd()]);
            assert_eq!(passed, Err(rustix::io::Errno::PERM));
            let _removed = std::fs::remove_file(&at);
        }
    });
}

/// A look that waits finds it; it would be repeated without end if the byte were not in the stream.
#[test]
fn an_urgent_byte_is_data_in_its_place() {
    for on in [On::Tokio, On::Smol] {
        let place = Place::new();
        on.run(async {
            let endpoint = place.endpoint(on);
            let listener = endpoint.bind_unix(place.path()).unwrap();
            let client = net::UnixStream::connect(place.path()).unwrap();
            let (mut stream, _) = listener.accept().await.unwrap();
            rustix::net::send(&client, b"x", SendFlags::OOB).unwrap();
            assert_eq!(stream.peek(&mut [0; 8]).await.unwrap(), 1);
            let mut urgent = [0; 1];
            stream.read_exact(&mut urgent).await.unwrap();
            assert_eq!(&urgent, b"x");
        });
    }
}

#[test]
fn a_client_is_shown_under_no_name_but_its_own() {
    let place = Place::new();
    On::Smol.run(async {
        let at = place.path();
        let listener = place.endpoint(On::Smol).bind_unix(&at).unwrap();
        let name = format!("{}\0smc", at.display());
        let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        let bound = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
        rustix::net::bind(&socket, &bound).unwrap();
        rustix::net::connect(&socket, &SocketAddrUnix::new(&at).unwrap()).unwrap();
        let (stream, peer) = listener.accept().await.unwrap();
        assert_eq!(peer.as_abstract_name(), Some(name.as_bytes()));
        assert_eq!(stream.peer_unix_addr().unwrap(), peer);
    });
}

/// As one that has inherited the socket.
#[test]
fn a_program_without_smc_that_speaks_first_at_a_marked_socket_is_a_plain_peer() {
    let place = Place::new();
    let marked = format!("{}{SPELLING}app.sock", place.directory.path().display());
    let service = net::UnixListener::bind(marked).unwrap();
    let served = thread::spawn(move || {
        let (mut first, _) = service.accept().unwrap();
        first.write_all(b"220 a banner of a service\n").unwrap();
        let (mut second, _) = service.accept().unwrap();
        second.write_all(b"220 a banner of a service\n").unwrap();
        let mut said = String::new();
        second.read_to_string(&mut said).unwrap();
        said
    });
    On::Smol.run(async {
        let endpoint = place.endpoint(On::Smol);
        let mut stream = endpoint.connect_unix(place.path()).await.unwrap();
        let reason = stream.fallback_reason().unwrap();
        assert!(
            matches!(reason.cause, FallbackCause::PlainServer),
            "{reason}"
        );
        let mut banner = [0; 26];
        stream.read_exact(&mut banner).await.unwrap();
        assert!(banner.starts_with(b"220 "));
        stream.write_all(b"quit").await.unwrap();
        stream.close().await.unwrap();
    });
    assert_eq!(served.join().unwrap(), "quit");
}

#[test]
fn a_second_socket_of_another_user_gets_no_stream() {
    if !is_root("have a socket of another user") {
        return;
    }
    let place = Place::new();
    On::Smol.run(async {
        let at = place.abstract_name();
        let addr = net::SocketAddr::try_from(&UnixAddr::from_path(&at).unwrap()).unwrap();
        let service = net::UnixListener::bind_addr(&addr).unwrap();
        let second = format!("{}\0smc", &at.to_str().unwrap()[1..]);
        let second = net::SocketAddr::from_abstract_name(second).unwrap();
        let other = run_as(990, || net::UnixListener::bind_addr(&second).unwrap()).unwrap();
        let stream = place.endpoint(On::Smol).connect_unix(&at).await.unwrap();
        assert!(!stream.mode().is_smc());
        assert!(service.accept().is_ok());
        let (mut refused, _) = other.accept().unwrap();
        assert_eq!(refused.read(&mut [0; 8]).unwrap(), 0);
    });
}

#[test]
fn a_client_of_another_user_is_plain() {
    if !is_root("connect as another user") {
        return;
    }
    let place = Place::new();
    let endpoint = place.endpoint(On::Smol);
    let at = place.abstract_name();
    let listener = endpoint.bind_unix(&at).unwrap();
    // Root has a device in the directory; user 990 has not.
    let client = run_as(990, || {
        let mine = tempfile::tempdir().unwrap();
        let domain = Domain::directory(mine.path());
        let device = LoopDevice::builder().domain(domain).build().unwrap();
        let client = On::Smol.endpoint().device(Arc::new(device)).build();
        let client = On::Smol.run(async { client.unwrap().connect_unix(&at).await.unwrap() });
        (client, mine)
    });
    let (client, _mine) = client.unwrap();
    On::Smol.run(async {
        let server = listener.accept().await.unwrap().0;
        assert_eq!(server.peer_cred().unwrap().uid(), 990);
        let mut streams = [client, server];
        assert!(streams.iter().all(|stream| !stream.mode().is_smc()));
        exchange(&mut streams).await;
    });
}

#[test]
fn paths_and_options_that_no_socket_can_have_are_refused() {
    let place = Place::new();
    On::Smol.run(async {
        let endpoint = place.endpoint(On::Smol);
        let long = "x".repeat(108);
        for path in ["", "a\0b", &long] {
            let error = io::Error::from(endpoint.bind_unix(path).unwrap_err());
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            let error = io::Error::from(endpoint.connect_unix(path).await.unwrap_err());
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
        }
        let at = place.path();
        let options = ListenOptions::new().reuse_port(true);
        let error = endpoint.bind_unix_with(&at, &options).unwrap_err();
        assert!(matches!(error, Error::Misuse(_)), "{error}");
        let options = ConnectOptions::new().local(([127, 0, 0, 1], 0).into());
        let error = endpoint.connect_unix_with(&at, &options).await.unwrap_err();
        assert!(matches!(error, Error::Misuse(_)), "{error}");
        let error = io::Error::from(endpoint.connect_unix(&at).await.unwrap_err());
        assert_eq!(error.kind(), ErrorKind::NotFound);
        let _listener = endpoint.bind_unix(&at).unwrap();
        let error = io::Error::from(endpoint.bind_unix(&at).unwrap_err());
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
    });
}

#[test]
fn a_path_that_is_too_long_for_the_mark_is_plain_with_a_reason() {
    let place = Place::new();
    On::Tokio.run(async {
        let endpoint = place.endpoint(On::Tokio);
        let directory = place.directory.path().to_str().unwrap();
        let at = format!("{directory}/{}", "x".repeat(106 - directory.len()));
        let listener = endpoint.bind_unix(&at).unwrap();
        assert!(listener.unpublished().is_some());
        let mut streams = connect_pair(&endpoint, &listener, Path::new(&at)).await;
        assert!(!streams[1].mode().is_smc());
        exchange(&mut streams).await;
    });
}

#[test]
fn a_socket_that_listens_already_is_taken_over() {
    let place = Place::new();
    On::Tokio.run(async {
        let endpoint = place.endpoint(On::Tokio);
        let at = place.path();
        for (spelling, is_smc) in [("/", false), ("/././/./", true)] {
            let directory = place.directory.path().display();
            let bound = net::UnixListener::bind(format!("{directory}{spelling}app.sock"));
            let listener = endpoint.listen_on_unix(bound.unwrap()).unwrap();
            assert_eq!(listener.unpublished().is_none(), is_smc);
            let mut streams = connect_pair(&endpoint, &listener, &at).await;
            assert_eq!(streams[0].mode().is_smc(), is_smc, "{}", streams[0].mode());
            exchange(&mut streams).await;
            drop(listener);
            std::fs::remove_file(&at).unwrap();
        }
    });
}

#[test]
fn tools_see_the_addresses() {
    let place = Place::new();
    On::Tokio.run(async {
        let endpoint = place.endpoint(On::Tokio);
        let at = place.path();
        let listener = endpoint.bind_unix(&at).unwrap();
        let _streams = connect_pair(&endpoint, &listener, &at).await;
        let shown = at.display().to_string();
        let listeners = endpoint.listener_infos();
        assert_eq!(listeners[0].local.to_string(), shown);
        let ends = endpoint.connections().into_iter().map(|info| {
            let local = info.local.unwrap().to_string();
            (local, info.peer.to_string())
        });
        let mut ends: Vec<_> = ends.collect();
        ends.sort();
        assert_eq!(ends, [("*".into(), shown.clone()), (shown, "*".into())]);
    });
}

#[test]
fn what_a_server_has_written_is_kept_if_it_ends_before_its_accept_is_read() {
    let on = On::TokioAlone;
    let place = Arc::new(Place::new());
    let at = place.path();
    let [(bound, is_bound), (proposed, is_proposed)] = [(); 2].map(|()| mpsc::channel());
    let server = {
        let (place, at) = (Arc::clone(&place), at.clone());
        thread::spawn(move || {
            on.run(async {
                let listener = place.endpoint(on).bind_unix(&at).unwrap();
                bound.send(()).unwrap();
                for waits in [false, true] {
                    if waits {
                        is_proposed.recv().unwrap();
                    }
                    let (mut stream, _) = listener.accept().await.unwrap();
                    assert!(stream.mode().is_smc(), "{}", stream.mode());
                    stream.write_all(b"hello").await.unwrap();
                }
            });
        })
    };
    is_bound.recv().unwrap();
    on.run(async {
        let client = place.endpoint(on);
        let read = async |mut stream: Stream| {
            let mut text = String::new();
            stream.read_to_string(&mut text).await.unwrap();
            text
        };
        assert_eq!(read(client.connect_unix(&at).await.unwrap()).await, "hello");
        // As far as it comes without an answer.
        let mut connecting = pin!(client.connect_unix(&at));
        for _ in 0..3 {
            assert!(poll_once(&mut connecting).await.is_none());
        }
        proposed.send(()).unwrap();
        server.join().unwrap();
        assert_eq!(read(connecting.await.unwrap()).await, "hello");
    });
}

#[test]
fn data_behind_the_decline_of_a_client_is_the_streams() {
    for policy in [Policy::Prefer, Policy::Never] {
        let place = Place::new();
        On::Smol.run(async {
            let at = place.path();
            let endpoint = place.builder(On::Smol).policy(policy).build().unwrap();
            let listener = endpoint.bind_unix(&at).unwrap();
            let mut client = marked_client(&SocketAddrUnix::new(&at).unwrap()).unwrap();
            let decline = Decline::new(Version::V2, DeclineCode::MEM, OsType::LINUX);
            let mut bytes = vec![0; decline.encoded_len()];
            decline.emit(&mut bytes).unwrap();
            bytes.extend_from_slice(b"data");
            client.write_all(&bytes).unwrap();
            drop(client);
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).await.unwrap();
            assert_eq!(text, "data", "{policy:?}");
        });
    }
}

/// Closes at any time after those of the peers, which signal a part of them.
#[test]
fn connections_that_are_closed_on_other_threads_at_any_time_end() {
    for on in On::ALL {
        let place = Place::new();
        on.run(async {
            let (client, server, at, listener) = place.ends(on);
            for round in 0..60_u64 {
                let mut ours = Vec::new();
                for _ in 0..=round % 7 {
                    let [stream, theirs] = connect_pair(&client, &listener, &at).await;
                    thread::spawn(move || drop(theirs));
                    ours.push(stream);
                }
                // From none to more than the time in which a close is looked for.
                thread::sleep(Duration::from_micros(round * 60));
                drop(ours);
                let ended = || server.connections().is_empty() && client.connections().is_empty();
                on::until(ended, || format!("a connection stays in round {round}")).await;
            }
        });
    }
}

/// On one thread: a driver on another one may be handling the connection, and so have it for a
/// moment longer.
#[test]
fn the_buffer_of_a_connection_that_both_ends_have_dropped_is_free_for_the_next_one() {
    let (on, place) = (On::TokioAlone, Place::new());
    on.run(async {
        let [client, server] = [(); 2].map(|()| {
            let domain = Domain::directory(place.directory.path().join("smc"));
            let device = LoopDevice::builder().domain(domain).max_dmbs(1);
            let device = Arc::new(device.build().unwrap());
            on.endpoint().device(device).build().unwrap()
        });
        let at = place.path();
        let listener = server.bind_unix(&at).unwrap();
        for _ in 0..20 {
            let [ours, theirs] = connect_pair(&client, &listener, &at).await;
            assert!(theirs.mode().is_smc(), "{}", theirs.mode());
            // Closed by the server first. Its driver looks for the client's close then, and no
            // event tells it of that later.
            drop(theirs);
            for _ in 0..8 {
                yield_now().await;
            }
            drop(ours);
        }
    });
}
