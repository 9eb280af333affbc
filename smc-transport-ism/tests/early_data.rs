//! Early data over fabrics: the PROPOSAL on TCP has the first bytes of the stream.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::net::SocketAddr;
use std::sync::Arc;

use futures_lite::future::zip;
use smc::{ConnectOptions, Endpoint, ListenOptions, Listener, Stream};
use smc_core::negotiate::Assume;
use smc_testkit::on::On;
use smc_testkit::streams::{expect, patterned, transfer_both_ways};
use support::{Kind, World};

/// As guests have it: nothing but TCP and the fabric.
fn endpoint(world: &World, on: On) -> Endpoint {
    let builder = world.builder(on).negotiation(Arc::new(Assume::new()));
    builder.recv_buffer(16 << 10).build().unwrap()
}

async fn connect(client: &Endpoint, listener: &Listener, data: &[u8]) -> [Stream; 2] {
    let options = ConnectOptions::new().early_data(data);
    let to = listener.local_addr().unwrap();
    let accepting = async {
        let (mut theirs, _) = listener.accept().await.unwrap();
        expect(&mut theirs, data).await;
        theirs
    };
    let (ours, theirs) = zip(client.connect_with(to, &options), accepting).await;
    [ours.unwrap(), theirs]
}

#[test]
fn data_arrives_with_the_proposal_of_all_connections_but_the_first() {
    for (kind, nocopy) in [Kind::Directory, Kind::Server]
        .into_iter()
        .flat_map(|kind| [(kind, false), (kind, true)])
    {
        for on in On::ALL {
            let world = World::new(kind, nocopy);
            on.run(async {
                let [client, server] = [(); 2].map(|()| endpoint(&world, on));
                let any = SocketAddr::from(([127, 0, 0, 1], 0));
                let options = ListenOptions::new().max_early_data(ConnectOptions::MAX_EARLY_DATA);
                let listener = server.bind_with(any, &options).await.unwrap();
                for (number, len) in [64, 1, 64, 4096, 16_351, 64].into_iter().enumerate() {
                    let data = patterned(len);
                    let [mut ours, mut theirs] = connect(&client, &listener, &data).await;
                    assert!(ours.mode().is_smc(), "{}", ours.mode());
                    let is_taken = number > 0;
                    assert_eq!(ours.early_data_accepted(), is_taken, "{number}");
                    assert_eq!(theirs.is_early(), is_taken, "{number}");
                    // Several times around the ring.
                    transfer_both_ways(&mut ours, &mut theirs, 100_000).await;
                }
            });
        }
    }
}
