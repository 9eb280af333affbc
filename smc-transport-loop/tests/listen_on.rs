//! Listeners on sockets that listen already, as a service manager passes them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[macro_use]
mod support;

use std::future::Future;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;

use futures_lite::{AsyncReadExt as _, AsyncWriteExt as _};
use rustix::net::{AddressFamily, SocketType, sockopt};
use smc::ListenOptions;
use smc::{Endpoint, Error};
use support::{On, World, connect};

scenarios! {
    clients_get_smc_from_a_socket_that_was_passed
    clients_that_came_before_are_plain_tcp
    a_socket_in_use_elsewhere_goes_on_listening
    the_backlog_can_be_changed
    sockets_that_cannot_be_listened_on_are_refused
}

fn run<F: Future<Output = ()>>(on: On, nocopy: bool, scenario: impl FnOnce(World) -> F) {
    on.run(scenario(World::new(on, nocopy)));
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
            let (mut ours, mut theirs) = connect(&client, &listener).await;
            assert!(ours.mode().is_smc() && theirs.mode().is_smc(), "{at}");
            ours.write_all(b"hello").await.unwrap();
            let mut word = [0; 5];
            theirs.read_exact(&mut word).await.unwrap();
            assert_eq!(&word, b"hello");
        }
    }
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
        let mut received = [0; 3];
        stream.read_exact(&mut received).await.unwrap();
        assert_eq!(&received, word);
        stream.write_all(b"yes").await.unwrap();
    }
    let mut answer = [0; 3];
    plain.read_exact(&mut answer).unwrap();
    early.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"yes");
    assert!(connect(&client, &listener).await.0.mode().is_smc());
}

async fn a_socket_in_use_elsewhere_goes_on_listening(world: World) {
    let (client, server) = (world.endpoint(), world.endpoint());
    let ours = TcpListener::bind("127.0.0.1:0").unwrap();
    // The service manager keeps the socket, and passes it again when the service has ended.
    for _ in 0..2 {
        let listener = server.listen_on(ours.try_clone().unwrap()).unwrap();
        assert!(connect(&client, &listener).await.0.mode().is_smc());
        drop(listener);
    }
    let stream = client.connect(ours.local_addr().unwrap()).await.unwrap();
    assert!(!stream.mode().is_smc());
}

async fn the_backlog_can_be_changed(world: World) {
    let (client, server) = (world.endpoint(), world.endpoint());
    let passed = TcpListener::bind("127.0.0.1:0").unwrap();
    let options = options(|options| options.backlog = Some(3));
    let listener = server.listen_on_with(passed, &options).unwrap();
    assert!(connect(&client, &listener).await.0.mode().is_smc());
}

async fn sockets_that_cannot_be_listened_on_are_refused(world: World) {
    let server = world.endpoint();
    let socket = |family| rustix::net::socket(family, SocketType::STREAM, None).unwrap();
    let refused = |fd: OwnedFd| is_misuse(&server, fd, &ListenOptions::default());
    assert!(refused(socket(AddressFamily::INET)).contains("listen"));
    let unix = socket(AddressFamily::UNIX);
    let path = world.dir().join("unix");
    rustix::net::bind(&unix, &rustix::net::SocketAddrUnix::new(&path).unwrap()).unwrap();
    rustix::net::listen(&unix, 1).unwrap();
    assert!(refused(unix).contains("TCP"));

    let reuse = options(|options| options.reuse_port = true);
    let alone = TcpListener::bind("127.0.0.1:0").unwrap();
    assert!(is_misuse(&server, alone.into(), &reuse).contains("SO_REUSEPORT"));
    let shared = socket(AddressFamily::INET);
    sockopt::set_socket_reuseport(&shared, true).unwrap();
    rustix::net::bind(
        &shared,
        &std::net::SocketAddrV4::new([127, 0, 0, 1].into(), 0),
    )
    .unwrap();
    rustix::net::listen(&shared, 10).unwrap();
    let listener = server.listen_on_with(shared.into(), &reuse).unwrap();
    assert!(
        connect(&world.endpoint(), &listener)
            .await
            .0
            .mode()
            .is_smc()
    );
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
