//! How the TCP connection under a stream ends.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[macro_use]
mod common;

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::Arc;

use common::World;
use futures_lite::AsyncWriteExt as _;
use smc::{Endpoint, Listener};
use smc_core::negotiate::Assume;
use smc_testkit::on::until;
use smc_testkit::streams::{connect_smc, expect_rest, listen};

scenarios! {
    between_processes_of_one_host_it_ends_by_rst
    after_a_handshake_on_tcp_it_ends_by_fin
}

/// So nothing is left of it.
async fn between_processes_of_one_host_it_ends_by_rst(world: World) {
    let (client, server) = (world.endpoint(), world.endpoint());
    let listener = listen(&server).await;
    if !has_table(&listener) {
        return;
    }
    for client_is_first in [true, false] {
        let ends = close_both(&client, &listener, client_is_first).await;
        let is_gone = || {
            let states = ends.states();
            assert!(!states.contains(&TIME_WAIT), "{states:?}");
            states.is_empty()
        };
        until(is_gone, || format!("{:?}", ends.states())).await;
    }
}

/// As a reset could discard a part of the handshake: one end is in TIME_WAIT.
async fn after_a_handshake_on_tcp_it_ends_by_fin(world: World) {
    let on_tcp = || world.builder().negotiation(Arc::new(Assume::new()));
    let (client, server) = (on_tcp().build().unwrap(), on_tcp().build().unwrap());
    let listener = listen(&server).await;
    if !has_table(&listener) {
        return;
    }
    for client_is_first in [true, false] {
        let ends = close_both(&client, &listener, client_is_first).await;
        let is_in_time_wait = || ends.states().contains(&TIME_WAIT);
        until(is_in_time_wait, || format!("{:?}", ends.states())).await;
    }
}

/// Makes a stream and closes both of its ends in order.
async fn close_both(client: &Endpoint, listener: &Listener, client_is_first: bool) -> Ends {
    let (mut first, mut second) = connect_smc(client, listener).await;
    let ends = Ends {
        client: first.local_addr().unwrap(),
        server: second.local_addr().unwrap(),
    };
    if !client_is_first {
        std::mem::swap(&mut first, &mut second);
    }
    first.write_all(b"request").await.unwrap();
    first.close().await.unwrap();
    expect_rest(&mut second, b"request").await;
    second.write_all(b"answer").await.unwrap();
    second.close().await.unwrap();
    expect_rest(&mut first, b"answer").await;
    drop(first);
    drop(second);
    ends
}

/// The addresses of a connection.
#[derive(Debug)]
struct Ends {
    client: SocketAddr,
    server: SocketAddr,
}

impl Ends {
    /// The states of the sockets of the connection that are still there. No other connection has
    /// the same addresses while the listener is there.
    fn states(&self) -> Vec<u8> {
        let sockets = sockets().into_iter().filter(|(local, peer, _)| {
            let ends = [*local, *peer];
            ends == [self.client, self.server] || ends == [self.server, self.client]
        });
        sockets.map(|(_, _, state)| state).collect()
    }
}

/// Whether the system lists the sockets of this network namespace; if not, says so.
fn has_table(listener: &Listener) -> bool {
    let at = listener.local_addr().unwrap();
    let has_table = sockets().iter().any(|(local, ..)| *local == at);
    if !has_table {
        println!("skipped: why: the system does not list its sockets");
    }
    has_table
}

/// Local address, peer's address and state of the sockets of this network namespace.
fn sockets() -> Vec<(SocketAddr, SocketAddr, u8)> {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap_or_default();
    table.lines().filter_map(socket).collect()
}

/// A line such as `0: 0100007F:1F90 00000000:0000 0A ...`.
fn socket(line: &str) -> Option<(SocketAddr, SocketAddr, u8)> {
    let mut columns = line.split_whitespace().skip(1);
    let mut address = || {
        let (ip, port) = columns.next()?.split_once(':')?;
        let ip = u32::from_str_radix(ip, 16).ok()?.to_ne_bytes();
        let port = u16::from_str_radix(port, 16).ok()?;
        Some(SocketAddrV4::new(Ipv4Addr::from(ip), port).into())
    };
    let (local, peer) = (address()?, address()?);
    let state = u8::from_str_radix(columns.next()?, 16).ok()?;
    Some((local, peer, state))
}

/// As the system numbers it.
const TIME_WAIT: u8 = 6;
