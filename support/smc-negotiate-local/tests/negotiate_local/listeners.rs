//! Listeners: several on one port, one after the other, and their wildcards.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use smc_core::negotiate::Withdrawn;
use smc_core::runtime::SocketOptions;
use smc_testkit::port::HeldPort;

use super::*;

#[test]
fn wildcards_and_both_families_are_found() {
    run(|world| async move {
        let client = world.client();
        let mapped: SocketAddr = (Ipv4Addr::LOCALHOST.to_ipv6_mapped(), 0).into();
        let v4: SocketAddr = (Ipv4Addr::LOCALHOST, 0).into();
        let other_v4: SocketAddr = (Ipv4Addr::new(127, 0, 0, 77), 0).into();
        let any_v4: SocketAddr = (Ipv4Addr::UNSPECIFIED, 0).into();
        let v6: SocketAddr = (Ipv6Addr::LOCALHOST, 0).into();
        let any_v6: SocketAddr = (Ipv6Addr::UNSPECIFIED, 0).into();
        for (at, only_v6, connection) in [
            ("0.0.0.0:0", false, vec![v4, other_v4, any_v4, mapped]),
            (
                "[::]:0",
                false,
                vec![v4, other_v4, any_v4, mapped, v6, any_v6],
            ),
            ("[::]:0", true, vec![v6, any_v6]),
        ] {
            let mut options = SocketOptions::default();
            options.only_v6 = Some(only_v6);
            let server = world.server_with(at.parse().unwrap(), &options, &world.local());
            for mut to in connection {
                to.set_port(server.port());
                let connection = world.dial(&client, to).await;
                assert!(connection.offer.is_some(), "{at} {to}");
                assert_eq!(server.accept_one().await, announced(), "{at} {to}");
            }
            if only_v6 {
                assert!(
                    client
                        .look_up(&world.rt, loopback(server.port()))
                        .await
                        .is_err()
                );
            }
        }
    });
}

#[test]
fn offers_end_with_the_listener() {
    run(|world| async move {
        let Server {
            acceptor,
            published,
        } = world.server("127.0.0.1:0");
        let to = acceptor.local_addr().unwrap();
        let client = world.client();
        let mut connection = world.dial(&client, to).await;
        let offer = connection.offer.as_mut().unwrap();
        assert!(is_open(&mut **offer));
        assert_eq!(world.names().len(), 1);
        drop(published);
        until_lost(&mut **offer).await;
        assert_eq!(offer.withdraw(), Withdrawn::Free);
        assert!(world.names().is_empty());

        // The port goes on without SMC: nothing is announced.
        assert!(client.look_up(&world.rt, to).await.is_err());
        // And with it again.
        let published = world.local().publish(&world.rt, to, acceptor.fd()).unwrap();
        let server = Server {
            acceptor,
            published,
        };
        assert_eq!(
            server.accept_one().await,
            Accepted::Plain,
            "was announced to the former one"
        );
        let _connection = world.dial(&client, to).await;
        assert_eq!(server.accept_one().await, announced());
    });
}

#[test]
fn the_next_listener_on_a_port_is_announced_to_at_once() {
    run(|world| async move {
        let client = world.client();
        let port = HeldPort::of(Ipv4Addr::LOCALHOST).unwrap();
        for _ in 0..20 {
            let server = world.server_with(port.addr(), &SocketOptions::default(), &world.local());
            let _connection = world.dial(&client, port.addr()).await;
            assert_eq!(server.accept_one().await, announced());
        }
    });
}

#[test]
fn of_two_listeners_on_a_port_the_one_with_smc_gets_the_offers() {
    run(|world| async move {
        if !has_sock_diag() {
            return println!("skipped: why: no sock_diag here");
        }
        let options = with_reuse_port();
        let smc = world.server_with(loopback(0), &options, &world.local());
        let plain = world.rt.bind(smc.at(), &options, &mut |_| Ok(())).unwrap();
        let client = world.client();
        let mut kept = Vec::new();
        let (mut with, mut without) = (0, 0);
        for _ in 0..40 {
            let connection = world.dial(&client, smc.at()).await;
            match connection.offer {
                Some(_) => with += 1,
                None => without += 1,
            }
            kept.push(connection);
        }
        for _ in 0..with {
            assert_eq!(smc.accept_one().await, announced());
        }
        for _ in 0..without {
            poll_fn(|cx| plain.poll_accept(cx)).await.unwrap();
        }
        assert!(with > 0 && without > 0, "{with} and {without}");
    });
}

#[test]
fn each_of_several_listeners_answers_for_itself() {
    run(|world| async move {
        let options = with_reuse_port();
        let one = world.server_with(loopback(0), &options, &world.local());
        let two = world.server_with(one.at(), &options, &world.local());
        let client = world.client();
        let mut kept = Vec::new();
        for _ in 0..20 {
            kept.push(world.dial(&client, one.at()).await);
        }
        let mut verdicts = Vec::new();
        for server in [&one, &two] {
            while let Poll::Ready(accepted) = poll_once(|cx| server.acceptor.poll_accept(cx)) {
                let (socket, peer) = accepted.unwrap();
                verdicts.push(Accepted::of(
                    &mut server.published.negotiated(&*socket, peer),
                ));
            }
            // Some runtimes learn of connections only between polls.
            futures_lite::future::yield_now().await;
        }
        while verdicts.len() < 20 {
            let next = one.accept_one().or(two.accept_one()).await;
            verdicts.push(next);
        }
        assert!(verdicts.iter().all(|verdict| *verdict == announced()));
        let mut outcomes = kept
            .iter_mut()
            .map(|connection| connection.offer.as_mut().unwrap().withdraw());
        assert!(outcomes.all(|outcome| outcome == Withdrawn::Taken));
    });
}

#[test]
fn a_plain_listener_on_the_very_address_wins_over_a_wildcard() {
    run(|world| async move {
        if !has_sock_diag() {
            return println!("skipped: why: no sock_diag here");
        }
        let options = with_reuse_port();
        let any = (Ipv4Addr::UNSPECIFIED, 0).into();
        let smc = world.server_with(any, &options, &world.local());
        let plain = world
            .rt
            .bind(loopback(smc.port()), &options, &mut |_| Ok(()))
            .unwrap();
        let connection = world.dial(&world.client(), loopback(smc.port())).await;
        assert!(connection.offer.is_none());
        poll_fn(|cx| plain.poll_accept(cx)).await.unwrap();
    });
}

fn with_reuse_port() -> SocketOptions {
    let mut options = SocketOptions::default();
    options.reuse_port = true;
    options
}
