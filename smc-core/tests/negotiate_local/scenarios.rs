//! One process, one user, one network namespace.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};

use rustix::net::{AddressFamily, SocketType, sockopt};
use smc_core::io::negotiate::{
    Assume, Chain, Delivery, Local, Negotiation, Never, Verdict, Withdrawn,
};
use smc_core::io::runtime::SocketOptions;

use super::*;

#[test]
fn a_plain_client_is_plain_at_once() {
    run(|world| async move {
        let server = world.server("127.0.0.1:0");
        for _ in 0..3 {
            let _client = TcpStream::connect(server.at()).unwrap();
            assert_eq!(server.accept().await, Verdict::Plain);
        }
    });
}

#[test]
fn an_announced_client_is_recognised() {
    run(|world| async move {
        let client = world.client();
        for at in ["127.0.0.1:0", "[::1]:0"] {
            let server = world.server(at);
            for _ in 0..3 {
                let mut dialled = world.dial(&*client, server.at()).await;
                let offer = dialled.offer.as_mut().unwrap();
                assert_eq!(offer.connected(&*dialled.socket), Delivery::Delivered);
                assert!(!is_lost(&mut **offer));
                assert_eq!(server.accept().await, clc(PROPOSAL));
                assert!(!is_lost(&mut **offer));
            }
        }
    });
}

#[test]
fn plain_and_announced_clients_are_told_apart() {
    run(|world| async move {
        let server = world.server("127.0.0.1:0");
        let client = world.client();
        let mut expected = Vec::new();
        let mut kept = Vec::new();
        let mut plain = Vec::new();
        for n in 0..40 {
            if n % 3 == 0 {
                plain.push(TcpStream::connect(server.at()).unwrap());
                expected.push(Verdict::Plain);
            } else {
                kept.push(world.dial(&*client, server.at()).await);
                expected.push(clc(PROPOSAL));
            }
        }
        for verdict in expected {
            assert_eq!(server.accept().await, verdict);
        }
    });
}

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
        for (at, only_v6, dialled) in [
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
            for mut to in dialled {
                to.set_port(server.port());
                let dialled = world.dial(&*client, to).await;
                assert!(dialled.offer.is_some(), "{at} {to}");
                assert_eq!(server.accept().await, clc(PROPOSAL), "{at} {to}");
            }
            if only_v6 {
                assert!(client.look_up(loopback(server.port())).await.is_none());
            }
        }
    });
}

#[test]
fn other_ports_addresses_and_hosts_are_not_announced() {
    run(|world| async move {
        let server = world.server("127.0.0.1:0");
        let client = world.client();
        let port = server.port();
        assert!(client.look_up(loopback(port)).await.is_some());
        assert!(client.look_up(loopback(port ^ 1)).await.is_none());
        assert!(
            client
                .look_up((Ipv4Addr::new(127, 0, 0, 2), port).into())
                .await
                .is_none()
        );

        let wildcard = world.server("0.0.0.0:0");
        let elsewhere = (Ipv4Addr::new(192, 0, 2, 1), wildcard.port()).into();
        assert!(
            client.look_up(elsewhere).await.is_none(),
            "not an address of this host"
        );
    });
}

#[test]
fn an_offer_that_was_taken_back_is_not_answered() {
    run(|world| async move {
        let server = world.server("127.0.0.1:0");
        let client = world.client();
        let mut dialled = world.dial(&*client, server.at()).await;
        let offer = dialled.offer.as_mut().unwrap();
        assert_eq!(offer.withdraw(), Withdrawn::Free);
        assert_eq!(offer.withdraw(), Withdrawn::Free);
        assert_eq!(server.accept().await, Verdict::Plain);

        let mut dialled = world.dial(&*client, server.at()).await;
        assert_eq!(server.accept().await, clc(PROPOSAL));
        assert_eq!(dialled.offer.as_mut().unwrap().withdraw(), Withdrawn::Taken);

        let mut dialled = world.dial(&*client, server.at()).await;
        drop(dialled.offer.take());
        assert_eq!(server.accept().await, Verdict::Plain);
    });
}

#[test]
fn a_dismissed_client_learns_of_it() {
    run(|world| async move {
        let server = world.server("127.0.0.1:0");
        let mut dialled = world.dial(&*world.client(), server.at()).await;
        let offer = dialled.offer.as_mut().unwrap();
        assert!(!is_lost(&mut **offer));
        let (socket, peer) = poll_fn(|cx| server.acceptor.poll_accept(cx)).await.unwrap();
        server.published.dismiss(&*socket, peer);
        until_lost(&mut **offer).await;
        assert_eq!(offer.withdraw(), Withdrawn::Free);
    });
}

#[test]
fn an_announcement_is_worth_nothing_for_another_socket_on_the_port() {
    run(|world| async move {
        let server = world.server("127.0.0.1:0");
        let client = world.client();
        let candidate = client.look_up(server.at()).await.unwrap();
        // Announced and never connected, but the offer stays.
        let (port, mut offer) = announce_only(&*candidate).unwrap();

        let plain = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        sockopt::set_socket_reuseaddr(&plain, true).unwrap();
        rustix::net::bind(&plain, &loopback(port)).unwrap();
        rustix::net::connect(&plain, &server.at()).unwrap();
        if !kernel_says() {
            return println!("skipped: why: no sock_diag here");
        }
        assert_eq!(server.accept().await, Verdict::Plain);
        until_lost(&mut *offer).await;
        assert_eq!(offer.withdraw(), Withdrawn::Free);
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
        let mut dialled = world.dial(&*client, to).await;
        let offer = dialled.offer.as_mut().unwrap();
        assert!(!is_lost(&mut **offer));
        assert_eq!(world.names().len(), 1);
        drop(published);
        until_lost(&mut **offer).await;
        assert_eq!(offer.withdraw(), Withdrawn::Free);
        assert!(world.names().is_empty());

        // The port goes on without SMC: nobody is asked and nothing is announced.
        assert!(client.look_up(to).await.is_none());
        // And with it again.
        let published = world.local().publish(&world.rt, to, acceptor.fd()).unwrap();
        let server = Server {
            acceptor,
            published,
        };
        assert_eq!(
            server.accept().await,
            Verdict::Plain,
            "was announced to the former one"
        );
        let _dialled = world.dial(&*client, to).await;
        assert_eq!(server.accept().await, clc(PROPOSAL));
    });
}

#[test]
fn of_two_listeners_on_a_port_the_one_that_speaks_smc_gets_the_offers() {
    run(|world| async move {
        if !kernel_says() {
            return println!("skipped: why: no sock_diag here");
        }
        let mut options = SocketOptions::default();
        options.reuse_port = true;
        let smc = world.server_with(loopback(0), &options, &world.local());
        let plain = world.rt.bind(smc.at(), &options, &mut |_| Ok(())).unwrap();
        let client = world.client();
        let mut kept = Vec::new();
        let (mut with, mut without) = (0, 0);
        for _ in 0..40 {
            let dialled = world.dial(&*client, smc.at()).await;
            match dialled.offer {
                Some(_) => with += 1,
                None => without += 1,
            }
            kept.push(dialled);
        }
        for _ in 0..with {
            assert_eq!(smc.accept().await, clc(PROPOSAL));
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
        let mut options = SocketOptions::default();
        options.reuse_port = true;
        let one = world.server_with(loopback(0), &options, &world.local());
        let two = world.server_with(one.at(), &options, &world.local());
        let client = world.client();
        let mut kept = Vec::new();
        for _ in 0..20 {
            kept.push(world.dial(&*client, one.at()).await);
        }
        let mut verdicts = Vec::new();
        for server in [&one, &two] {
            while let Poll::Ready(accepted) = poll_once(|cx| server.acceptor.poll_accept(cx)) {
                let (socket, peer) = accepted.unwrap();
                verdicts.push(server.published.verdict(&*socket, peer));
            }
            // Some runtimes learn of connections only between polls.
            futures_lite::future::yield_now().await;
        }
        while verdicts.len() < 20 {
            let next = one.accept().or(two.accept()).await;
            verdicts.push(next);
        }
        assert!(verdicts.iter().all(|verdict| *verdict == clc(PROPOSAL)));
        let mut outcomes = kept
            .iter_mut()
            .map(|dialled| dialled.offer.as_mut().unwrap().withdraw());
        assert!(outcomes.all(|outcome| outcome == Withdrawn::Taken));
    });
}

#[test]
fn a_plain_listener_on_the_very_address_wins_over_a_wildcard() {
    run(|world| async move {
        if !kernel_says() {
            return println!("skipped: why: no sock_diag here");
        }
        let mut options = SocketOptions::default();
        options.reuse_port = true;
        let any = (Ipv4Addr::UNSPECIFIED, 0).into();
        let smc = world.server_with(any, &options, &world.local());
        let plain = world
            .rt
            .bind(loopback(smc.port()), &options, &mut |_| Ok(()))
            .unwrap();
        let dialled = world.dial(&*world.client(), loopback(smc.port())).await;
        assert!(dialled.offer.is_none());
        poll_fn(|cx| plain.poll_accept(cx)).await.unwrap();
    });
}

#[test]
fn a_busy_listener_makes_connections_plain_and_nothing_worse() {
    run(|world| async move {
        let mut options = SocketOptions::default();
        options.backlog = Some(4096);
        let server = world.server_with(loopback(0), &options, &world.local());
        let client = world.client();
        let candidate = client.look_up(server.at()).await.unwrap();
        // Without a look at the channel in between it fills up some time.
        let mut offers = Vec::new();
        let full = (0..100_000).any(|_| match announce_only(&*candidate) {
            Some((_, offer)) => {
                offers.push(offer);
                false
            }
            None => true,
        });
        assert!(full);
        let dialled = world.dial(&*client, server.at()).await;
        assert!(dialled.offer.is_none());
        assert_eq!(server.accept().await, Verdict::Plain);
        // Everything was taken in by then.
        drop(offers);
        let _dialled = world.dial(&*client, server.at()).await;
        assert_eq!(server.accept().await, clc(PROPOSAL));
    });
}

#[test]
fn names_of_the_dead_are_removed() {
    run(|world| async move {
        let server = world.server("127.0.0.1:0");
        let live = world.names();
        let [_, port, scope, netns, cookie, _] = live[0].split('-').collect::<Vec<_>>()[..]
            .try_into()
            .unwrap();
        let dead = format!("l-{port}-{scope}-{netns}-{cookie}-00000000.sock");
        let gone = || {
            let path = world.dir.path.join(&dead);
            drop(std::os::unix::net::UnixListener::bind(path).unwrap());
        };
        gone();
        let client = world.client();
        let _dialled = world.dial(&*client, server.at()).await;
        assert_eq!(server.accept().await, clc(PROPOSAL));
        assert_eq!(world.names(), live, "by a client");

        gone();
        let other = world.server("127.0.0.1:0");
        assert!(!world.names().contains(&dead), "by a listener");
        drop((server, other));
        assert!(world.names().is_empty());
    });
}

#[test]
fn a_directory_that_others_can_write_to_is_not_used() {
    run(|world| async move {
        let server = world.server("127.0.0.1:0");
        fs::set_permissions(&world.dir.path, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(world.client().look_up(server.at()).await.is_none());
        let missing = Local::new().with_directory(world.dir.path.join("missing"));
        assert!(
            missing
                .client(&world.rt)
                .look_up(server.at())
                .await
                .is_none()
        );
        assert!(
            missing
                .publish(&world.rt, server.at(), server.acceptor.fd())
                .is_err()
        );
    });
}

#[test]
fn assumptions_and_chains() {
    run(|world| async move {
        let local: Arc<dyn Negotiation> = Arc::new(world.local());
        let never: Arc<dyn Negotiation> = Arc::new(Never::new());
        let assume: Arc<dyn Negotiation> = Arc::new(Assume::new());
        for (links, offered, delivery, verdict) in [
            (vec![never.clone()], false, None, Verdict::Plain),
            (
                vec![assume.clone()],
                true,
                Some(Delivery::OnTcp),
                Verdict::Clc { proposal: None },
            ),
            (
                vec![never, local.clone()],
                true,
                Some(Delivery::Delivered),
                clc(PROPOSAL),
            ),
            (
                vec![local, assume],
                true,
                Some(Delivery::Delivered),
                clc(PROPOSAL),
            ),
        ] {
            let chain = Chain::new(links);
            let acceptor = world
                .rt
                .bind(loopback(0), &SocketOptions::default(), &mut |_| Ok(()))
                .unwrap();
            let at = acceptor.local_addr().unwrap();
            let published = chain.publish(&world.rt, at, acceptor.fd()).unwrap();
            let server = Server {
                acceptor,
                published,
            };
            let mut dialled = world.dial(&*chain.client(&world.rt), at).await;
            assert_eq!(dialled.offer.is_some(), offered);
            let connected = dialled
                .offer
                .as_mut()
                .map(|o| o.connected(&*dialled.socket));
            assert_eq!(connected, delivery);
            assert_eq!(server.accept().await, verdict);
        }
    });
}

/// Whether the kernel answers questions about sockets: it then says where a connection goes.
fn kernel_says() -> bool {
    let here = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = here.local_addr().unwrap().port();
    let shown = std::process::Command::new("ss")
        .args(["-Hltn", &format!("sport = :{port}")])
        .output();
    shown.is_ok_and(|out| !out.stdout.is_empty())
}
