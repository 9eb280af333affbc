//! PROPOSALs in SYNs, on the virtual network (docs/spec/extensions.md#fast-open).

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use smc::{Builder, ListenOptions, Listener};
use smc_core::wire::types::Features;
use smc_testkit::runtime::SynDelivery;
use smc_testkit::world::{Host, World, anywhere};

use crate::{is_taken, request};

async fn listen_at(server: &Host, at: SocketAddr) -> (Listener, SocketAddr) {
    let options = ListenOptions::new().max_early_data(4096);
    let listener = server.endpoint.bind_with(at, &options).await.unwrap();
    let at = listener.local_addr().unwrap();
    (listener, at)
}

/// SYNs to an address.
struct Syns(Vec<Arc<OnceLock<SocketAddr>>>);

impl Syns {
    fn to(world: &World, at: SocketAddr) -> Self {
        let next = |_| world.network().deliver_next_syn(at, SynDelivery::Once);
        Self((0..10).map(next).collect())
    }

    /// How many of them had data.
    fn with_data(&self) -> usize {
        self.0.iter().filter(|syn| syn.get().is_some()).count()
    }
}

fn with_fast_open(builder: Builder) -> Builder {
    builder.fast_open(true)
}

#[test]
fn the_third_connection_to_an_address_has_its_proposal_in_the_syn() {
    let world = World::new();
    let [client, server] = ["client", "server"].map(|name| world.host_with(name, with_fast_open));
    world.block_on(async {
        let (listener, at) = listen_at(&server, anywhere()).await;
        let syns = Syns::to(&world, at);
        // There is a precedent for the second one, and a cookie for the third one.
        for (number, count) in [0, 0, 1, 2].into_iter().enumerate() {
            let streams = request(&client.endpoint, at, &listener).await;
            assert_eq!(syns.with_data(), count);
            assert_eq!(is_taken(&streams), number > 0);
        }
    });
}

/// How the server that comes after the first one at the address is configured.
type Successor = (&'static str, fn(Builder) -> Builder);

#[test]
fn no_proposal_is_in_a_syn_to_a_server_that_has_agreed_to_none() {
    let successors: [Successor; 2] = [
        ("no features", |builder| {
            builder.vendor_features(Features::empty())
        }),
        ("no fast open", |builder| builder.fast_open(false)),
    ];
    for (what, successor) in successors {
        let world = World::new();
        let [client, server] =
            ["client", "server"].map(|name| world.host_with(name, with_fast_open));
        let next = world.host_with("next", successor);
        world.block_on(async {
            let (listener, at) = listen_at(&server, anywhere()).await;
            let syns = Syns::to(&world, at);
            for _ in 0..4 {
                drop(request(&client.endpoint, at, &listener).await);
            }
            assert_eq!(syns.with_data(), 2);
            drop(listener);
            server.endpoint.close().await;
            let (listener, _) = listen_at(&next, at).await;
            // SMC-D does not tell the client that its link group has no other end.
            drop(request(&client.endpoint, at, &listener).await);
            assert!(syns.with_data() <= 3, "{what}");
            let before = syns.with_data();
            for _ in 0..4 {
                drop(request(&client.endpoint, at, &listener).await);
            }
            assert_eq!(syns.with_data(), before, "{what}");
        });
    }
}
