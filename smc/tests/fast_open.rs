//! PROPOSALs of SMC-D in the SYN, in a network namespace where servers may take data in it.

#![cfg(all(feature = "tokio", feature = "smol"))]
#![allow(clippy::unwrap_used, reason = "a helper of a test fails the test")]

#[path = "support/network_namespace.rs"]
mod network_namespace;

use std::fs::{read_to_string, write};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use futures_lite::AsyncReadExt as _;
use futures_lite::future::zip;
use smc::{ConnectOptions, Domain, Endpoint, ListenOptions, LoopDevice};
use smc_core::error::FallbackCause;
use smc_core::negotiate::{
    Assume, Candidate, Delivery, Negotiated, Negotiation, Offer, Published, Withdrawn,
};
use smc_core::runtime::{Runtime, Socket};
use smc_testkit::on::On;
use smc_testkit::streams::{expect, transfer_both_ways};

use network_namespace::in_network_namespace;

/// Runs `test` where servers may take data in SYNs. Says why if that cannot be.
fn with_fast_open(test: impl FnOnce() + Send + 'static) {
    in_network_namespace(|| match write("/proc/sys/net/ipv4/tcp_fastopen", "3") {
        Ok(()) => test(),
        Err(error) => println!("skipped: why: cannot allow TCP Fast Open: {error}"),
    });
}

/// Connections whose SYN had data that the server has taken.
fn taken_from_syns() -> u64 {
    let all = read_to_string("/proc/thread-self/net/netstat").unwrap();
    let lines: Vec<_> = all
        .lines()
        .filter(|line| line.starts_with("TcpExt:"))
        .collect();
    let [names, values] = lines[..] else {
        panic!("{all}")
    };
    let mut counts = names.split(' ').zip(values.split(' '));
    let (_, count) = counts
        .find(|(name, _)| *name == "TCPFastOpenPassive")
        .unwrap();
    count.parse().unwrap()
}

async fn connect(client: &Endpoint, server: &Endpoint, fast_open: [bool; 2]) {
    let options = ListenOptions::new().max_early_data(4096);
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let listener = server.bind_with(any, &options).await.unwrap();
    let to = listener.local_addr().unwrap();
    let before = taken_from_syns();
    for number in 0..6 {
        let options = ConnectOptions::new().early_data(*b"request");
        let accepting = async {
            let (mut theirs, _) = listener.accept().await.unwrap();
            expect(&mut theirs, b"request").await;
            theirs
        };
        let (ours, mut theirs) = zip(client.connect_with(to, &options), accepting).await;
        let mut ours = ours.unwrap();
        assert!(ours.mode().is_smc(), "{}", ours.mode());
        assert_eq!(ours.early_data_accepted(), number > 0, "{number}");
        transfer_both_ways(&mut ours, &mut theirs, 100_000).await;
    }
    // The first one has no precedent, and the next one may have to fetch the cookie.
    let taken = taken_from_syns() - before;
    match fast_open {
        [true, true] => assert!((4..6).contains(&taken), "{taken}"),
        _ => assert_eq!(taken, 0),
    }
}

fn endpoint(on: On, dir: &Path, negotiation: impl Negotiation, fast_open: bool) -> Endpoint {
    let domain = Domain::directory(dir);
    let device = LoopDevice::builder().domain(domain).build().unwrap();
    let builder = on.endpoint().device(Arc::new(device));
    let builder = builder.negotiation(Arc::new(negotiation));
    builder.fast_open(fast_open).build().unwrap()
}

#[test]
fn the_proposal_is_data_of_the_syn_where_both_ends_have_fast_open() {
    // A runtime with one thread, which is in the namespace.
    for on in [On::TokioAlone, On::Smol] {
        for fast_open in [[true, true], [true, false], [false, true]] {
            with_fast_open(move || {
                let place = tempfile::tempdir().unwrap();
                on.run(async {
                    let [client, server] = fast_open
                        .map(|fast_open| endpoint(on, place.path(), Assume::new(), fast_open));
                    connect(&client, &server, fast_open).await;
                });
            });
        }
    }
}

/// A network that removes the SMC option of one SYN, or SYN-ACK, once that is set.
#[derive(Clone, Debug, Default)]
struct Middlebox {
    is_removing: Arc<AtomicBool>,
}

impl Middlebox {
    fn remove_next(&self) {
        self.is_removing.store(true, Ordering::Relaxed);
    }

    fn has_removed(&self) -> bool {
        self.is_removing.swap(false, Ordering::Relaxed)
    }
}

#[async_trait]
impl Negotiation for Middlebox {
    async fn look_up(
        &self,
        _runtime: &Arc<dyn Runtime>,
        _to: SocketAddr,
    ) -> Result<Candidate, FallbackCause> {
        let network = self.clone();
        Ok(Candidate::new(move |_, _, _| Ok(Box::new(network.clone()))))
    }

    fn publish(
        &self,
        _runtime: &Arc<dyn Runtime>,
        _at: SocketAddr,
        _listener: Option<BorrowedFd<'_>>,
    ) -> Result<Arc<dyn Published>, FallbackCause> {
        Ok(Arc::new(self.clone()))
    }
}

/// The client's side: the SYN-ACK.
impl Offer for Middlebox {
    fn connected(&mut self, _socket: &dyn Socket) -> Delivery {
        match self.has_removed() {
            true => Delivery::Plain,
            false => Delivery::OnTcp,
        }
    }

    fn withdraw(&mut self) -> Withdrawn {
        Withdrawn::Taken
    }
}

/// The server's side: the SYN.
impl Published for Middlebox {
    fn negotiated(&self, _socket: &dyn Socket, _peer: SocketAddr) -> Negotiated {
        match self.has_removed() {
            true => Negotiated::Plain(FallbackCause::NoSynOption),
            false => Negotiated::Clc,
        }
    }
}

/// With a client and a server that have had connections whose SYNs had data, and the network of
/// each: what it removes does not arrive there.
fn with_middleboxes(
    test: impl AsyncFn(Endpoint, smc::Listener, [Middlebox; 2]) + Copy + Send + 'static,
) {
    for on in [On::TokioAlone, On::Smol] {
        with_fast_open(move || {
            let place = tempfile::tempdir().unwrap();
            on.run(async {
                let networks = [(); 2].map(|()| Middlebox::default());
                let [client, server] = networks
                    .clone()
                    .map(|network| endpoint(on, place.path(), network, true));
                let options = ListenOptions::new().max_early_data(4096);
                let any = SocketAddr::from(([127, 0, 0, 1], 0));
                let listener = server.bind_with(any, &options).await.unwrap();
                let to = listener.local_addr().unwrap();
                for number in 0..3 {
                    let options = request(number);
                    let connecting = client.connect_with(to, &options);
                    let (ours, theirs) = zip(connecting, listener.accept()).await;
                    expect(&mut theirs.unwrap().0, &[number; 7]).await;
                    assert!(ours.unwrap().mode().is_smc());
                }
                test(client, listener, networks).await;
            });
        });
    }
}

fn request(number: u8) -> ConnectOptions {
    ConnectOptions::new().early_data([number; 7])
}

/// The requests that the listener's application gets, up to this one.
async fn requests_until(listener: &smc::Listener, last: u8) -> Vec<u8> {
    let mut requests = Vec::new();
    while requests.last() != Some(&last) {
        let (mut theirs, _) = listener.accept().await.unwrap();
        let mut first = [0; 7];
        if theirs.read_exact(&mut first).await.is_ok() {
            requests.push(first[0]);
        }
    }
    requests
}

#[test]
fn early_data_is_not_sent_again_where_the_option_of_the_syn_ack_is_lost() {
    with_middleboxes(async |client, listener, [to_client, _]| {
        let to = listener.local_addr().unwrap();
        let before = taken_from_syns();
        to_client.remove_next();
        // The server has seen the option, and takes the request.
        client.connect_with(to, &request(3)).await.unwrap_err();
        assert_eq!(taken_from_syns() - before, 1);
        let options = request(4);
        let connecting = client.connect_with(to, &options);
        let (ours, requests) = zip(connecting, requests_until(&listener, 4)).await;
        assert!(ours.unwrap().mode().is_smc());
        assert!(requests == [3, 4] || requests == [4], "{requests:?}");
    });
}

#[test]
fn an_application_gets_no_proposal_where_the_option_of_the_syn_is_lost() {
    with_middleboxes(async |client, listener, [_, to_server]| {
        let to = listener.local_addr().unwrap();
        let before = taken_from_syns();
        to_server.remove_next();
        let (ours, theirs) = zip(client.connect(to), listener.accept()).await;
        let (mut ours, mut theirs) = (ours.unwrap(), theirs.unwrap().0);
        assert_eq!(taken_from_syns() - before, 1);
        // Of the next connection, without fast open.
        assert!(theirs.mode().is_smc(), "{}", theirs.mode());
        transfer_both_ways(&mut ours, &mut theirs, 100_000).await;
    });
}
