//! UNIX sockets that serve several connections, one after the other.

#![cfg(all(feature = "tokio", feature = "smol"))]
#![allow(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::fs::{self, Permissions};
use std::io::{self, ErrorKind, Write as _};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net;
use std::path::Path;
use std::pin::pin;
use std::time::Duration;

use futures_lite::future::{poll_once, zip};
use futures_lite::{AsyncReadExt as _, AsyncWriteExt as _};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, geteuid, getpid, pidfd_getfd, pidfd_open};
use smc::{ConnectOptions, Endpoint, ListenOptions, Policy, Stream, UnixListener};
use smc_core::wire::types::Features;
use smc_testkit::on::{self, On};
use smc_testkit::process::is_alone;
use smc_testkit::resources::{list_descriptors, open_descriptors_of};
use smc_testkit::user::run_as;

#[path = "support/unix.rs"]
mod support;

use support::{Place, connect_pair, exchange};

/// The sockets that were used again, by a client and by a server.
fn reuses(client: &Endpoint, server: &Endpoint) -> (u64, u64) {
    let [client, server] = [client, server].map(|endpoint| endpoint.stats().socket_reuses);
    (client.client, server.server)
}

/// Closes in order, the client first.
async fn close([client, mut server]: [Stream; 2]) {
    drop(client);
    assert_eq!(server.read(&mut [0; 8]).await.unwrap(), 0);
}

/// A connection from its begin to its end.
async fn round(client: &Endpoint, listener: &UnixListener, to: &Path) {
    let mut streams = connect_pair(client, listener, to).await;
    assert!(streams[0].mode().is_smc(), "{}", streams[0].mode());
    exchange(&mut streams).await;
    close(streams).await;
}

/// Connections until one has used a socket again: an end may see the close of the other one too
/// late for the next connection.
async fn rounds_until_reuse([client, server]: [&Endpoint; 2], listener: &UnixListener, to: &Path) {
    let before = reuses(client, server);
    for _ in 0..1000 {
        round(client, listener, to).await;
        if reuses(client, server) != before {
            assert_eq!(reuses(client, server), (before.0 + 1, before.1 + 1));
            return;
        }
    }
    panic!("no socket is used again");
}

/// Duplicates of the sockets of this process that are a client's end, or a listener's, as another
/// process that plays this role has them.
fn sockets(of_client: bool) -> Vec<net::UnixStream> {
    let pidfd = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
    let marked = |addr: io::Result<net::SocketAddr>| {
        let addr = addr.ok();
        let name = addr.as_ref().and_then(|addr| addr.as_abstract_name());
        name.is_some_and(|name| name.starts_with(b"smc-client\0"))
    };
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc/self/fd").unwrap() {
        let number = entry.unwrap().file_name().into_string().unwrap();
        let number = number.parse().unwrap();
        let Ok(fd) = pidfd_getfd(&pidfd, number, PidfdGetfdFlags::empty()) else {
            continue;
        };
        if rustix::net::sockopt::socket_domain(&fd) != Ok(rustix::net::AddressFamily::UNIX) {
            continue;
        }
        let socket = net::UnixStream::from(fd);
        let own = match of_client {
            true => socket.local_addr(),
            false => socket.peer_addr(),
        };
        if marked(own) {
            found.push(socket);
        }
    }
    found
}

#[test]
fn connections_one_after_the_other_have_one_socket() {
    for on in On::ALL {
        let place = Place::new();
        on.run(async {
            let [client, server] = [(); 2].map(|()| place.endpoint(on));
            for at in [place.path(), place.abstract_name()] {
                let listener = server.bind_unix(&at).unwrap();
                for _ in 0..10 {
                    rounds_until_reuse([&client, &server], &listener, &at).await;
                }
            }
        });
    }
}

/// A client that closes after its server signals nothing. Its next PROPOSAL does.
#[test]
fn a_server_that_has_closed_first_answers_the_next_proposal_without_a_timer() {
    let place = Place::new();
    On::TokioAlone.run(async {
        let (client, server, at, listener) = place.ends(On::TokioAlone);
        rounds_until_reuse([&client, &server], &listener, &at).await;
        tokio::time::pause();
        for _ in 0..10 {
            let before = tokio::time::Instant::now();
            let [mut one, mut other] = connect_pair(&client, &listener, &at).await;
            // Not later than a timer would: the test has a virtual clock.
            assert_eq!(before.elapsed(), Duration::ZERO);
            one.close().await.unwrap();
            assert_eq!(other.read(&mut [0; 8]).await.unwrap(), 0);
            drop(other);
            tokio::task::yield_now().await;
            drop(one);
        }
    });
}

#[test]
fn a_thousand_connections_take_no_more_descriptors_than_one() {
    if !is_alone() {
        return;
    }
    for on in On::ALL {
        let place = Place::new();
        on.run(async {
            let (client, _server, at, listener) = place.ends(on);
            round(&client, &listener, &at).await;
            let before = open_descriptors_of("socket");
            for _ in 0..1000 {
                round(&client, &listener, &at).await;
                // An end can see the other one's close too late for the next connection.
                let open = open_descriptors_of("socket");
                assert!(open <= before + 20, "{}", list_descriptors());
            }
            // Both ends close a socket that is not used.
            let has_closed = || open_descriptors_of("socket") + 2 <= before;
            on::until(has_closed, list_descriptors).await;
            round(&client, &listener, &at).await;
        });
    }
}

/// After an end that has not closed its stream, or has reset it, or whose application has asked for
/// the descriptor, the socket is not used again.
#[test]
fn only_a_connection_that_both_ends_have_closed_in_order_leaves_its_socket() {
    for on in On::ALL {
        let place = Place::new();
        on.run(async {
            let (client, server, at, listener) = place.ends(on);
            let pair = async || connect_pair(&client, &listener, &at).await;

            // The server is slower.
            let [first, mut open] = pair().await;
            drop(first);
            let mut second = pair().await;
            exchange(&mut second).await;
            assert_eq!(reuses(&client, &server), (0, 0));
            assert_eq!(open.read(&mut [0; 8]).await.unwrap(), 0);
            // One end is closed for writing only.
            second[0].close().await.unwrap();
            let mut third = pair().await;
            exchange(&mut third).await;
            assert_eq!(reuses(&client, &server), (0, 0));
            drop((open, second, third));
            rounds_until_reuse([&client, &server], &listener, &at).await;

            type End = fn([Stream; 2]);
            let ends: [(&str, End); 5] = [
                ("unread data", |[mut client, server]| {
                    let written = futures_lite::future::block_on(client.write(b"unread"));
                    assert_eq!(written.unwrap(), 6);
                    drop(server);
                }),
                ("reset", |[client, server]| {
                    client.set_zero_linger().unwrap();
                    drop((client, server));
                }),
                ("descriptor of the client", |[client, server]| {
                    assert!(client.tcp_fd().is_some());
                    drop((client, server));
                }),
                ("descriptor of the server", |[client, server]| {
                    assert!(server.tcp_fd().is_some());
                    drop((client, server));
                }),
                ("option of the socket", |[client, server]| {
                    client.set_keepalive(true).unwrap();
                    drop((client, server));
                }),
            ];
            for (name, end) in ends {
                // Until no socket is idle.
                let mut used = Vec::new();
                let before = loop {
                    let before = reuses(&client, &server);
                    used.push(pair().await);
                    if reuses(&client, &server) == before {
                        break before;
                    }
                };
                end(used.pop().unwrap());
                let next = pair().await;
                assert_eq!(reuses(&client, &server), before, "{name}");
                assert!(next[0].mode().is_smc(), "{name}: {}", next[0].mode());
                drop(next);
                used.into_iter().for_each(drop);
            }
        });
    }
}

#[test]
fn a_listener_that_is_dropped_takes_its_sockets_along() {
    for on in On::ALL {
        let place = Place::new();
        on.run(async {
            let [client, server] = [(); 2].map(|()| place.endpoint(on));
            for at in [place.path(), place.abstract_name()] {
                let before = reuses(&client, &server);
                let listener = server.bind_unix(&at).unwrap();
                round(&client, &listener, &at).await;
                drop(listener);
                // A task of the listener has its socket until it ends.
                let refused = loop {
                    match poll_once(client.connect_unix(&at)).await {
                        Some(Err(refused)) => break refused,
                        _ => smol::Timer::after(Duration::from_millis(1)).await,
                    };
                };
                assert_eq!(
                    io::Error::from(refused).kind(),
                    ErrorKind::ConnectionRefused
                );
                let _removed = fs::remove_file(&at);
                let listener = server.bind_unix(&at).unwrap();
                round(&client, &listener, &at).await;
                assert_eq!(reuses(&client, &server), before);
                rounds_until_reuse([&client, &server], &listener, &at).await;
            }
        });
    }
}

#[test]
fn a_path_leads_to_the_listener_that_is_there_now() {
    for on in On::ALL {
        let place = Place::new();
        on.run(async {
            let [client, server] = [(); 2].map(|()| place.endpoint(on));
            let at = place.path();
            let one = server.bind_unix(&at).unwrap();
            round(&client, &one, &at).await;
            let beside = place.directory.path().join("beside.sock");
            let other = server.bind_unix(&beside).unwrap();
            fs::rename(&beside, &at).unwrap();
            round(&client, &other, &at).await;
            assert_eq!(reuses(&client, &server), (0, 0));
            rounds_until_reuse([&client, &server], &other, &at).await;
            drop(one);
        });
    }
}

#[test]
fn a_client_that_may_no_longer_connect_does_not() {
    let scenario = || {
        let place = Place::new();
        On::TokioAlone.run(async {
            let (client, _server, at, listener) = place.ends(On::TokioAlone);
            round(&client, &listener, &at).await;
            fs::set_permissions(&at, Permissions::from_mode(0o000)).unwrap();
            let refused = client.connect_unix(&at).await.unwrap_err();
            assert_eq!(io::Error::from(refused).kind(), ErrorKind::PermissionDenied);
            fs::set_permissions(&at, Permissions::from_mode(0o600)).unwrap();
            round(&client, &listener, &at).await;
        });
    };
    // To root everything is permitted.
    match geteuid().is_root() {
        true => run_as(990, scenario).unwrap(),
        false => scenario(),
    }
}

#[test]
fn connects_with_options_of_their_own_use_no_socket_again() {
    for on in On::ALL {
        let place = Place::new();
        on.run(async {
            let (client, server, at, listener) = place.ends(on);
            for options in [
                ConnectOptions::new().early_data(*b"request"),
                ConnectOptions::new().socket(|_| Ok(())),
                ConnectOptions::new().policy(Policy::Never),
            ] {
                let before = reuses(&client, &server);
                round(&client, &listener, &at).await;
                let connecting = client.connect_unix_with(&at, &options);
                let (stream, accepted) = zip(connecting, listener.accept()).await;
                assert_eq!(reuses(&client, &server), before);
                drop((stream.unwrap(), accepted.unwrap()));
                use_up_idle_sockets(&client, &listener, &at).await;
            }
        });
    }
}

/// Resets every socket that is idle.
async fn use_up_idle_sockets(client: &Endpoint, listener: &UnixListener, to: &Path) {
    loop {
        let before = client.stats().socket_reuses;
        let [one, other] = connect_pair(client, listener, to).await;
        one.set_zero_linger().unwrap();
        drop((one, other));
        if client.stats().socket_reuses == before {
            return;
        }
    }
}

#[test]
fn both_ends_have_to_agree() {
    for on in On::ALL {
        for (of_client, of_server) in [(false, true), (true, false)] {
            let place = Place::new();
            on.run(async {
                let built = |is_on| place.builder(on).socket_reuse(is_on).build().unwrap();
                let (client, server) = (built(of_client), built(of_server));
                let at = place.path();
                let listener = server.bind_unix(&at).unwrap();
                for _ in 0..3 {
                    round(&client, &listener, &at).await;
                }
                assert_eq!(reuses(&client, &server), (0, 0));
            });
        }
    }
}

#[test]
fn a_plain_stream_leaves_no_socket() {
    for on in On::ALL {
        let place = Place::new();
        on.run(async {
            let client = place.endpoint(on);
            let server = place.builder(on).policy(Policy::Never).build().unwrap();
            let at = place.path();
            let listener = server.bind_unix(&at).unwrap();
            for _ in 0..3 {
                let mut streams = connect_pair(&client, &listener, &at).await;
                assert!(!streams[0].mode().is_smc());
                exchange(&mut streams).await;
                close(streams).await;
            }
            assert_eq!(reuses(&client, &server), (0, 0));
        });
    }
}

/// A connection after a listener has answered before it was asked: it has accepted a stream of
/// which the client wants nothing.
async fn round_after_another(client: &Endpoint, listener: &UnixListener, to: &Path) {
    let mut accepted = pin!(listener.accept());
    let (client, server) = zip(client.connect_unix(to), accepted.as_mut()).await;
    let (mut client, mut server) = (client.unwrap(), server.unwrap().0);
    assert!(client.mode().is_smc(), "{}", client.mode());
    client.write_all(b"request").await.unwrap();
    let mut request = [0; 7];
    if server.read_exact(&mut request).await.is_err() {
        server = listener.accept().await.unwrap().0;
        server.read_exact(&mut request).await.unwrap();
    }
    assert_eq!(&request, b"request");
    close([client, server]).await;
}

/// Another implementation can send anything on a socket that is idle, at either end.
#[test]
fn what_is_sent_on_an_idle_socket_ends_that_socket_alone() {
    if !is_alone() {
        return;
    }
    for on in On::ALL {
        let begin = async |of_client| {
            let place = Place::new();
            let (client, server, at, listener) = place.ends(on);
            round(&client, &listener, &at).await;
            let mut peers = sockets(of_client);
            assert_eq!(peers.len(), 1);
            (place, client, server, listener, peers.remove(0))
        };
        for bytes in [&[0xff; 300][..], &[0xe2, 0xd4]] {
            on.run(async {
                let (place, client, server, listener, mut peer) = begin(true).await;
                peer.write_all(bytes).unwrap();
                drop(peer);
                // A part of a message, which the PROPOSAL makes a wrong one.
                round(&client, &listener, &place.path()).await;
                let failed = || server.stats().errors.server == 1;
                on::until(failed, || "the bytes have no effect".to_owned()).await;
                assert_eq!(reuses(&client, &server), (0, 0));
            });
            on.run(async {
                let (place, client, server, listener, mut peer) = begin(false).await;
                peer.write_all(bytes).unwrap();
                drop(peer);
                round_after_another(&client, &listener, &place.path()).await;
                assert_eq!(reuses(&client, &server).0, 0);
                assert_eq!(client.stats().errors.client, 0);
            });
        }
    }
}

/// A listener whose process has stopped does not keep a client from another one that accepts at the
/// same socket.
#[test]
fn a_listener_that_does_not_go_on_is_left_for_another_one_at_the_socket() {
    let place = Place::new();
    let at = place.path();
    let directory = place.directory.path().display();
    let bound = net::UnixListener::bind(format!("{directory}/././/./app.sock")).unwrap();
    let stopped = On::TokioAlone.tokio();
    On::Smol.run(async {
        let within = Duration::from_millis(50);
        let client = place.builder(On::Smol).answer_timeout(within);
        let client = client.build().unwrap();
        let (one, first) = stopped.block_on(async {
            let server = place.endpoint(On::TokioAlone);
            let listener = server.listen_on_unix(bound.try_clone().unwrap()).unwrap();
            rounds_until_reuse([&client, &server], &listener, &at).await;
            (listener, server)
        });
        let server = place.endpoint(On::Smol);
        let other = server.listen_on_unix(bound).unwrap();
        // And it keeps no socket for a while, as this could be the first one again.
        for _ in 0..10 {
            round(&client, &other, &at).await;
            assert_eq!(reuses(&client, &server), (1, 0));
        }
        assert_eq!(first.stats().errors.server, 0);
        drop(one);
    });
}

/// The client's end is held open by a duplicate, as by another implementation that closes none.
#[test]
fn a_listener_whose_streams_are_not_accepted_closes_its_sockets() {
    if !is_alone() {
        return;
    }
    for on in On::ALL {
        let place = Place::new();
        on.run(async {
            let [client, server] = [(); 2].map(|()| place.endpoint(on));
            let at = place.path();
            let options = ListenOptions::new().backlog(1);
            let listener = server.bind_unix_with(&at, &options).unwrap();
            let streams = connect_pair(&client, &listener, &at).await;
            let held = sockets(true);
            assert_eq!(held.len(), 1);
            // It has no space for others while this one waits.
            let waiting = client.connect_unix(&at).await.unwrap();
            close(streams).await;
            assert_eq!(sockets(false).len(), 2);
            on::until(|| sockets(false).len() == 1, list_descriptors).await;
            drop((waiting, held));
        });
    }
}

#[test]
fn the_end_of_an_endpoint_closes_its_sockets() {
    if !is_alone() {
        return;
    }
    for on in On::ALL {
        let place = Place::new();
        on.run(async {
            let (client, server, at, listener) = place.ends(on);
            round(&client, &listener, &at).await;
            client.close().await;
            let closed = || sockets(true).is_empty() && sockets(false).is_empty();
            on::until(closed, list_descriptors).await;
            // A listener closes its ends with its endpoint, too.
            let client = place.endpoint(on);
            round(&client, &listener, &at).await;
            server.close().await;
            on::until(|| sockets(false).is_empty(), list_descriptors).await;
        });
    }
}

#[test]
fn the_feature_is_stated_with_the_others() {
    let place = Place::new();
    On::Smol.run(async {
        let client = place.endpoint(On::Smol);
        let server = place.endpoint(On::Smol);
        let at = place.path();
        let listener = server.bind_unix(&at).unwrap();
        let [client, _server] = connect_pair(&client, &listener, &at).await;
        let smc::Mode::SmcD {
            vendor_features, ..
        } = client.mode()
        else {
            panic!("{}", client.mode());
        };
        assert!(vendor_features.contains(Features::SOCKET_REUSE));
    });
}
