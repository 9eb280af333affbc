//! PROPOSALs of SMC-D in the SYN, in a network namespace where servers may take data in it.

#![cfg(all(feature = "tokio", feature = "smol"))]
#![allow(clippy::unwrap_used, reason = "a helper of a test fails the test")]

#[path = "support/network_namespace.rs"]
mod network_namespace;

use std::fs::{read_to_string, write};
use std::net::SocketAddr;
use std::sync::Arc;

use futures_lite::future::zip;
use smc::{ConnectOptions, Domain, Endpoint, ListenOptions, LoopDevice};
use smc_core::negotiate::Assume;
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

#[test]
fn the_proposal_is_data_of_the_syn_where_both_ends_have_fast_open() {
    // A runtime with one thread, which is in the namespace.
    for on in [On::TokioAlone, On::Smol] {
        for fast_open in [[true, true], [true, false], [false, true]] {
            with_fast_open(move || {
                let place = tempfile::tempdir().unwrap();
                on.run(async {
                    let [client, server] = fast_open.map(|fast_open| {
                        let domain = Domain::directory(place.path());
                        let device = LoopDevice::builder().domain(domain).build().unwrap();
                        let builder = on.endpoint().device(Arc::new(device));
                        let builder = builder.negotiation(Arc::new(Assume::new()));
                        builder.fast_open(fast_open).build().unwrap()
                    });
                    connect(&client, &server, fast_open).await;
                });
            });
        }
    }
}
