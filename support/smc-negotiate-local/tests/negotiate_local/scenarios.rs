//! One process, one user, one network namespace.

use std::net::{Ipv4Addr, TcpStream};

use smc::Domain;
use smc_core::negotiate::{Assume, Chain, Delivery, Negotiation, Never, Withdrawn};
use smc_core::runtime::SocketOptions;
use smc_negotiate_local::Local;

use super::*;

#[test]
fn a_plain_client_is_plain_at_once() {
    run(|world| async move {
        let server = world.server("127.0.0.1:0");
        for _ in 0..3 {
            let _client = TcpStream::connect(server.at()).unwrap();
            assert_eq!(server.accept_one().await, Accepted::Plain);
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
                let mut connection = world.dial(&client, server.at()).await;
                let offer = connection.offer.as_mut().unwrap();
                assert_eq!(offer.connected(&*connection.socket), Delivery::Delivered);
                assert!(is_open(&mut **offer));
                let (side_channel, received) = server.accept_side_channel().await;
                assert_eq!(received, PROPOSAL);
                assert!(is_open(&mut **offer));
                drop(side_channel);
                until_lost(&mut **offer).await;
                assert_eq!(offer.withdraw(), Withdrawn::Taken);
            }
        }
    });
}

#[test]
fn messages_go_both_ways_and_end() {
    run_pair(|world, server, client| async move {
        for _ in 0..3 {
            let mut connection = world.dial(&client, server.at()).await;
            let ours = connection.offer.as_mut().unwrap().side_channel().unwrap();
            let (mut theirs, _) = server.accept_side_channel().await;
            // Each waits before the other one sends.
            let us = async {
                assert_eq!(read_exact(ours, 6).await, b"ACCEPT");
                send(ours, b"CONFIRM");
                assert_eq!(read_exact(ours, 3).await, b"LLC");
                ours.send(b"one").unwrap();
                send(ours, b"two");
            };
            let them = async {
                futures_lite::future::yield_now().await;
                send(&mut *theirs, b"ACCEPT");
                assert_eq!(read_exact(&mut *theirs, 7).await, b"CONFIRM");
                send(&mut *theirs, b"LLC");
                assert_eq!(read_exact(&mut *theirs, 6).await, b"onetwo");
            };
            futures_lite::future::zip(us, them).await;
            send(ours, b"last");
            drop(connection);
            assert_eq!(read_exact(&mut *theirs, 10).await, b"last", "and the end");
            theirs.send(b"never read").unwrap();
            theirs.flush();
        }
    });
}

#[test]
fn a_side_channel_has_capacity_for_a_handshake_and_not_for_more() {
    run_pair(|world, server, client| async move {
        let mut connection = world.dial(&client, server.at()).await;
        let offer = connection.offer.as_mut().unwrap();
        let (mut theirs, _) = server.accept_side_channel().await;
        // CONFIRM and ACCEPT have 512 bytes at most.
        send(&mut *theirs, &[8; 512]);
        send(offer.side_channel().unwrap(), &[7; 512]);
        assert_eq!(read_exact(&mut *theirs, 512).await, [7; 512]);
        assert_eq!(
            read_exact(offer.side_channel().unwrap(), 512).await,
            [8; 512]
        );
        assert!(theirs.send(&[9]).is_err());
        assert!(offer.side_channel().unwrap().send(&[9; 1000]).is_err());
        assert!(is_open(&mut **offer), "nothing of it arrives");

        let long = [1; 4096];
        let candidate = client.look_up(&world.rt, server.at()).await.unwrap();
        assert!(Announced::with(bound_to(own_address()), &candidate, &long).is_none());
    });
}

#[test]
fn clients_of_one_process_do_not_read_each_others_messages() {
    run(|world| async move {
        let server = world.server("127.0.0.1:0");
        let clients = [world.client(), world.client()];
        let mut connection = Vec::new();
        for n in 0..20 {
            connection.push(world.dial(&clients[n % 2], server.at()).await);
        }
        let mut asides = Vec::new();
        for _ in 0..connection.len() {
            let (socket, verdict) = server.accept().await;
            let Negotiated::SideChannel(mut side_channel) = verdict else {
                panic!("{verdict:?}")
            };
            assert_eq!(read_available(&mut *side_channel), PROPOSAL);
            send(
                &mut *side_channel,
                &socket.peer_addr().unwrap().port().to_le_bytes(),
            );
            asides.push(side_channel);
        }
        for connection in &mut connection {
            let port = connection.socket.local_addr().unwrap().port();
            let side_channel = connection.offer.as_mut().unwrap().side_channel().unwrap();
            assert_eq!(read_exact(side_channel, 2).await, port.to_le_bytes());
        }
    });
}

#[test]
fn plain_and_announced_clients_are_told_apart() {
    run_pair(|world, server, client| async move {
        let mut expected = Vec::new();
        let mut kept = Vec::new();
        let mut plain = Vec::new();
        for n in 0..40 {
            if n % 3 == 0 {
                plain.push(TcpStream::connect(server.at()).unwrap());
                expected.push(Accepted::Plain);
            } else {
                kept.push(world.dial(&client, server.at()).await);
                expected.push(announced());
            }
        }
        for verdict in expected {
            assert_eq!(server.accept_one().await, verdict);
        }
    });
}

#[test]
fn other_ports_addresses_and_hosts_are_not_announced() {
    run_pair(|world, server, client| async move {
        let port = server.port();
        assert!(client.look_up(&world.rt, loopback(port)).await.is_ok());
        assert!(client.look_up(&world.rt, loopback(port ^ 1)).await.is_err());
        assert!(
            client
                .look_up(&world.rt, (Ipv4Addr::new(127, 0, 0, 2), port).into())
                .await
                .is_err()
        );

        let wildcard = world.server("0.0.0.0:0");
        let elsewhere = (Ipv4Addr::new(192, 0, 2, 1), wildcard.port()).into();
        assert!(
            client.look_up(&world.rt, elsewhere).await.is_err(),
            "not an address of this host"
        );
    });
}

#[test]
fn an_offer_that_was_taken_back_is_not_answered() {
    run_pair(|world, server, client| async move {
        let mut connection = world.dial(&client, server.at()).await;
        let offer = connection.offer.as_mut().unwrap();
        assert_eq!(offer.withdraw(), Withdrawn::Free);
        assert_eq!(offer.withdraw(), Withdrawn::Free);
        assert_eq!(server.accept_one().await, Accepted::Plain);

        let mut connection = world.dial(&client, server.at()).await;
        assert_eq!(server.accept_one().await, announced());
        assert_eq!(
            connection.offer.as_mut().unwrap().withdraw(),
            Withdrawn::Taken
        );

        let mut connection = world.dial(&client, server.at()).await;
        drop(connection.offer.take());
        assert_eq!(server.accept_one().await, Accepted::Plain);
    });
}

#[test]
fn an_offer_can_be_taken_back_until_it_is_answered() {
    run_pair(|world, server, client| async move {
        let mut connection = world.dial(&client, server.at()).await;
        let offer = connection.offer.as_mut().unwrap();
        let (mut theirs, _) = server.accept_side_channel().await;
        assert!(!theirs.is_withdrawn());
        assert_eq!(offer.withdraw(), Withdrawn::Free);
        assert!(theirs.send(b"ACCEPT").is_err());
        assert!(theirs.is_withdrawn(), "the connection is plain");
        assert_eq!(offer.withdraw(), Withdrawn::Free);

        let mut connection = world.dial(&client, server.at()).await;
        let offer = connection.offer.as_mut().unwrap();
        let (mut theirs, _) = server.accept_side_channel().await;
        send(&mut *theirs, b"ACCEPT");
        assert_eq!(offer.withdraw(), Withdrawn::Taken);
        assert!(!theirs.is_withdrawn());
        assert_eq!(
            read_exact(offer.side_channel().unwrap(), 6).await,
            b"ACCEPT"
        );
    });
}

#[test]
fn a_listener_that_works_publishes_progress() {
    run_pair(|world, server, client| async move {
        let mut connection = world.dial(&client, server.at()).await;
        let offer = connection.offer.as_mut().unwrap().side_channel().unwrap();
        let before = offer.progress();
        let (theirs, _) = server.accept_side_channel().await;
        let claimed = offer.progress();
        assert_ne!(claimed, before);
        world
            .until(|| {
                theirs.publish_progress();
                offer.progress() != claimed
            })
            .await;
    });
}

#[test]
fn a_listener_that_did_not_answer_is_not_asked_during_the_backoff() {
    run_pair(|world, server, client| async move {
        let other = world.server("127.0.0.1:0");
        let mut connection = world.dial(&client, server.at()).await;
        let offer = connection.offer.as_mut().unwrap();
        assert_eq!(offer.side_channel().unwrap().withdraw(), Withdrawn::Free);
        let candidate = client.look_up(&world.rt, server.at()).await.unwrap();
        let asked = Announced::try_with(bound_to(own_address()), &candidate, PROPOSAL);
        assert_eq!(asked.err(), Some(FallbackCause::BackOff));
        // Another listener of the same process and user is.
        world.assert_announced(&client, &other).await;
        let asked = world.dial(&client, server.at()).await;
        assert!(asked.offer.is_none());
        assert_eq!(server.accept_one().await, Accepted::Plain);
        assert_eq!(server.accept_one().await, Accepted::Plain);
        // After that it is, and once it has answered all others make offers, too.
        let mut asked = world.dial(&client, server.at()).await;
        while asked.offer.is_none() {
            assert_eq!(server.accept_one().await, Accepted::Plain);
            world.pause().await;
            asked = world.dial(&client, server.at()).await;
        }
        let (mut theirs, _) = server.accept_side_channel().await;
        send(&mut *theirs, b"ACCEPT");
        let offer = asked.offer.as_mut().unwrap();
        assert_eq!(
            read_exact(offer.side_channel().unwrap(), 6).await,
            b"ACCEPT"
        );
        for _ in 0..3 {
            world.assert_announced(&client, &server).await;
        }
    });
}

#[test]
fn a_dismissed_client_is_notified() {
    run_pair(|world, server, client| async move {
        let mut connection = world.dial(&client, server.at()).await;
        let offer = connection.offer.as_mut().unwrap();
        assert!(is_open(&mut **offer));
        let (socket, peer) = poll_fn(|cx| server.acceptor.poll_accept(cx)).await.unwrap();
        server.published.dismiss(&*socket, peer, Refusal::Policy);
        until_lost(&mut **offer).await;
        assert_eq!(offer.withdraw(), Withdrawn::Free);
        assert_eq!(offer.cause(), FallbackCause::Refused(Refusal::Policy));
    });
}

#[test]
fn a_port_is_plain_again_when_its_offer_was_taken_back() {
    run_pair(|world, server, client| async move {
        let candidate = client.look_up(&world.rt, server.at()).await.unwrap();
        for is_kept in [true, false] {
            let Announced { mut offer, socket } = Announced::to(&candidate).unwrap();
            assert_eq!(offer.withdraw(), Withdrawn::Free);
            let offer = is_kept.then_some(offer);
            let _plain = connect(socket, server.at());
            assert_eq!(server.accept_one().await, Accepted::Plain);
            drop(offer);
        }
    });
}

#[test]
fn an_offer_is_worth_nothing_for_another_address() {
    run(|world| async move {
        let server = world.server("0.0.0.0:0");
        let client = world.client();
        let candidate = client
            .look_up(&world.rt, loopback(server.port()))
            .await
            .unwrap();
        let Announced { mut offer, socket } = Announced::to(&candidate).unwrap();
        let elsewhere = (Ipv4Addr::new(127, 0, 0, 77), server.port()).into();
        let _plain = connect(socket, elsewhere);
        assert_eq!(server.accept_one().await, Accepted::Plain);
        assert!(is_open(&mut *offer));
        assert_eq!(offer.withdraw(), Withdrawn::Free);
    });
}

#[test]
fn more_connections_than_a_mailbox_has_slots_are_plain() {
    run_pair(|world, server, client| async move {
        let candidate = client.look_up(&world.rt, server.at()).await.unwrap();
        // The listener is not involved and does not read them.
        let mut offers = Vec::new();
        let cause = loop {
            match Announced::try_with(bound_to(own_address()), &candidate, PROPOSAL) {
                Ok(Announced { offer, .. }) => offers.push(offer),
                Err(cause) => break cause,
            }
            assert!(offers.len() <= SLOTS);
        };
        let is_full = |what, limit| cause == FallbackCause::Full(Limit::new(what, limit));
        assert!(
            is_full("limit of connections under way", SLOTS as u64)
                || is_full("limit of connections under way with ports like this", 8),
            "{cause}"
        );
        assert!(offers.len() > SLOTS / 2, "{}", offers.len());
        let connection = world.dial(&client, server.at()).await;
        assert!(connection.offer.is_none());
        assert_eq!(server.accept_one().await, Accepted::Plain);
        drop(offers);
        world.assert_announced(&client, &server).await;
    });
}

#[test]
fn slots_that_a_listener_still_uses_are_not_used_again() {
    run_once(TempDir::new(), |world| async move {
        let server = world.server("127.0.0.1:0");
        let client = world.client();
        let mut held = Vec::new();
        loop {
            let Some(offer) = world.dial(&client, server.at()).await.offer else {
                break;
            };
            let (side_channel, received) = server.accept_side_channel().await;
            assert_eq!(received, PROPOSAL);
            held.push(side_channel);
            drop(offer);
            assert!(held.len() <= SLOTS);
        }
        assert!(held.len() > SLOTS / 2, "{}", held.len());
        assert_eq!(
            server.accept_one().await,
            Accepted::Plain,
            "no slot was left"
        );
        // Writes to those slots reach no other connection.
        for mut side_channel in held {
            assert_eq!(read_available(&mut *side_channel), b"");
            assert!(side_channel.send(b"late").is_err());
        }
        let mut connection = world.dial(&client, server.at()).await;
        let (mut side_channel, received) = server.accept_side_channel().await;
        assert_eq!(received, PROPOSAL);
        send(&mut *side_channel, b"now");
        let offer = connection.offer.as_mut().unwrap();
        assert_eq!(read_exact(offer.side_channel().unwrap(), 3).await, b"now");
    });
}

#[test]
fn names_of_ended_processes_are_removed() {
    run(|world| async move {
        let server = world.server("127.0.0.1:0");
        let live = world.names();
        let [_, port, scope, netns, cookie, _] = live[0].split('-').collect::<Vec<_>>()[..]
            .try_into()
            .unwrap();
        let dead = format!("l-{port}-{scope}-{netns}-{cookie}-00000000.sock");
        let gone = || {
            let path = world.dir.path.join(&dead);
            drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
            // Children that other tests are starting may have it for a moment.
            while std::os::unix::net::UnixStream::connect(&path).is_ok() {
                std::thread::yield_now();
            }
        };
        gone();
        let client = world.client();
        world.assert_announced(&client, &server).await;
        // By a client, on another thread.
        world.until(|| world.names() == live).await;

        gone();
        let other = world.server("127.0.0.1:0");
        assert!(!world.names().contains(&dead), "by a listener");
        drop((server, other));
        assert!(world.names().is_empty());
    });
}

#[test]
fn a_directory_that_others_can_write_to_is_not_used() {
    run_pair(|world, server, client| async move {
        fs::set_permissions(&world.dir.path, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(client.look_up(&world.rt, server.at()).await.is_err());
        fs::write(world.dir.path.join("file"), "").unwrap();
        let file = Local::in_domain(Domain::directory(world.dir.path.join("file")));
        assert!(file.look_up(&world.rt, server.at()).await.is_err());
        assert!(
            file.publish(&world.rt, server.at(), server.acceptor.fd())
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
            (vec![never.clone()], false, None, Accepted::Plain),
            (
                vec![assume.clone()],
                true,
                Some(Delivery::OnTcp),
                Accepted::OnTcp,
            ),
            (
                vec![never, local.clone()],
                true,
                Some(Delivery::Delivered),
                announced(),
            ),
            (
                vec![local, assume],
                true,
                Some(Delivery::Delivered),
                announced(),
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
            let mut connection = world.dial(&chain, at).await;
            assert_eq!(connection.offer.is_some(), offered);
            let connected = connection
                .offer
                .as_mut()
                .map(|o| o.connected(&*connection.socket));
            assert_eq!(connected, delivery);
            assert_eq!(server.accept_one().await, verdict);
        }
    });
}

/// Pending connections of a client with one listener.
const SLOTS: usize = 1024;
