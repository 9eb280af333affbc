//! The interface of endpoints and streams as far as it follows that of std, tokio and async-io.

#![cfg(all(feature = "tokio", feature = "smol"))]
#![allow(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr};

use futures_lite::future::zip;
use smc_testkit::on::On;
use smc_testkit::streams::ping_pong;
use smc_testkit::world::World;

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
