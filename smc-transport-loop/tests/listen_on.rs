//! Listeners on sockets that listen already, as a service manager passes them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[macro_use]
mod common;

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;

use futures_lite::{AsyncReadExt as _, AsyncWriteExt as _};
use rustix::net::{AddressFamily, SocketType, sockopt};
use smc::ListenOptions;
use smc::{Endpoint, Error};
use smc_testkit::streams::{connect_smc, expect};
use smc_testkit::unix::listen_at;

use common::World;

scenarios! {
    clients_get_smc_from_a_socket_that_was_passed
    clients_that_came_before_are_plain_tcp
    a_socket_that_two_endpoints_serve_gives_smc_by_both
    a_socket_in_use_elsewhere_goes_on_listening
    the_backlog_can_be_changed
    sockets_that_cannot_be_listened_on_are_refused
}

async fn clients_get_smc_from_a_socket_that_was_passed(world: World) {
    let (client, server) = (world.endpoint(), world.endpoint());
    for at in ["127.0.0.1:0", "0.0.0.0:0", "[::1]:0"] {
        // A blocking one, as service managers pass them.
        let passed = TcpListener::bind(at).unwrap();
        let addr = passed.local_addr().unwrap();
        let listener = server.listen_on(passed).unwrap();
        assert_eq!(listener.local_addr().unwrap(), addr);
        for _ in 0..2 {
            let (mut ours, mut theirs) = connect_smc(&client, &listener).await;
            ours.write_all(b"hello").await.unwrap();
            expect(&mut theirs, b"hello").await;
        }
    }
}

async fn a_socket_that_two_endpoints_serve_gives_smc_by_both(world: World) {
    let (client, one, other) = (world.endpoint(), world.endpoint(), world.endpoint());
    let passed = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = passed.local_addr().unwrap();
    let first = one.listen_on(passed.try_clone().unwrap()).unwrap();
    let second = other.listen_on(passed).unwrap();
    for _ in 0..100 {
        // Either of them accepts it.
        let stream = client.connect(addr).await.unwrap();
        assert!(stream.mode().is_smc(), "{}", stream.mode());
    }
    drop((first, second));
}

async fn clients_that_came_before_are_plain_tcp(world: World) {
    let (client, server) = (world.endpoint(), world.endpoint());
    let passed = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = passed.local_addr().unwrap();
    let mut plain = TcpStream::connect(addr).unwrap();
    let mut early = client.connect(addr).await.unwrap();
    assert!(!early.mode().is_smc());
    plain.write_all(b"one").unwrap();
    early.write_all(b"two").await.unwrap();
    let listener = server.listen_on(passed).unwrap();
    for word in [b"one", b"two"] {
        let (mut stream, _) = listener.accept().await.unwrap();
        assert!(!stream.mode().is_smc());
        expect(&mut stream, word).await;
        stream.write_all(b"yes").await.unwrap();
    }
    let mut answer = [0; 3];
    plain.read_exact(&mut answer).unwrap();
    early.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"yes");
    connect_smc(&client, &listener).await;
}

async fn a_socket_in_use_elsewhere_goes_on_listening(world: World) {
    let (client, server) = (world.endpoint(), world.endpoint());
    let ours = TcpListener::bind("127.0.0.1:0").unwrap();
    // The service manager keeps the socket, and passes it again when the service has ended.
    for round in 0..2 {
        let listener = server.listen_on(ours.try_clone().unwrap()).unwrap();
        for _ in 0..round {
            let (early, _) = listener.accept().await.unwrap();
            assert!(!early.mode().is_smc());
        }
        connect_smc(&client, &listener).await;
        drop(listener);
        // The next listener accepts it. The former one may still be ending, and does not answer.
        let stream = client.connect(ours.local_addr().unwrap()).await.unwrap();
        assert!(!stream.mode().is_smc());
    }
}

async fn the_backlog_can_be_changed(world: World) {
    let (client, server) = (world.endpoint(), world.endpoint());
    let passed = TcpListener::bind("127.0.0.1:0").unwrap();
    let options = options(|options| options.backlog = Some(3));
    let listener = server.listen_on_with(passed, &options).unwrap();
    connect_smc(&client, &listener).await;
}

async fn sockets_that_cannot_be_listened_on_are_refused(world: World) {
    let server = world.endpoint();
    let socket = |family| rustix::net::socket(family, SocketType::STREAM, None).unwrap();
    let refused = |fd: OwnedFd| is_misuse(&server, fd, &ListenOptions::default());
    assert!(refused(socket(AddressFamily::INET)).contains("listen"));
    let unix = listen_at(world.dir().join("unix"));
    assert!(refused(unix).contains("TCP"));

    let reuse = options(|options| options.reuse_port = true);
    let alone = TcpListener::bind("127.0.0.1:0").unwrap();
    assert!(is_misuse(&server, alone.into(), &reuse).contains("SO_REUSEPORT"));
    let shared = socket(AddressFamily::INET);
    sockopt::set_socket_reuseport(&shared, true).unwrap();
    let at = std::net::SocketAddrV4::new([127, 0, 0, 1].into(), 0);
    rustix::net::bind(&shared, &at).unwrap();
    rustix::net::listen(&shared, 10).unwrap();
    let listener = server.listen_on_with(shared.into(), &reuse).unwrap();
    connect_smc(&world.endpoint(), &listener).await;
}

fn options(change: impl FnOnce(&mut ListenOptions)) -> ListenOptions {
    let mut options = ListenOptions::default();
    change(&mut options);
    options
}

fn is_misuse(server: &Endpoint, fd: OwnedFd, options: &ListenOptions) -> String {
    match server.listen_on_with(fd.into(), options) {
        Err(error @ Error::Misuse(_)) => {
            let text = error.to_string();
            assert_eq!(std::io::Error::from(error).kind(), ErrorKind::InvalidInput);
            text
        }
        other => panic!("{other:?}"),
    }
}
