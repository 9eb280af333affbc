//! Clients that violate the protocol.

use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{SealFlags, fcntl_add_seals};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use smc_core::negotiate::Withdrawn;
use smc_testkit::resources::open_descriptors;
use smc_testkit::unix::unsealed;

use super::raw::{
    CANCELLED, CLAIMED, LEN, OFFERED, RawChannel, RawMailbox, TAKEN, hello, notify, slot_at,
};
use super::*;

#[test]
fn rubbish_ends_the_channel_and_nothing_else() {
    run_pair(|world, server, client| async move {
        let former = [&b"\x01SMCL\x01"[..], &hello()[6..]].concat();
        for rubbish in [
            vec![vec![0xff]],
            vec![b"GET / HTTP/1.1\r\n\r\n".to_vec()],
            vec![vec![0; 60_000]],
            vec![former],
            vec![[&hello()[..], &[9]].concat()],
            vec![hello(), hello()],
            vec![notify(0), hello()],
            vec![hello(), notify(0)[..5].to_vec()],
            vec![hello(), notify(u64::MAX)],
            vec![hello(), [&[4][..], &[0; 24], &[4, 127, 0, 0, 1]].concat()], // PROVE in the same namespace
        ] {
            let channel = RawChannel::to(&world);
            let mailbox = RawMailbox::new();
            for packet in &rubbish {
                channel.send(packet, Some(mailbox.file()));
            }
            println!("{rubbish:?}");
            channel.until_ended(&world).await;
            world.assert_announced(&client, &server).await;
        }
    });
}

#[test]
fn a_client_that_sends_no_hello_is_ended() {
    run(|world| async move {
        let server = world.server("127.0.0.1:0");
        let silent = RawChannel::to(&world);
        silent.until_ended(&world).await;
        // One that has done so may be silent.
        let (channel, _mailbox) = introduced(&world);
        RawChannel::to(&world).until_ended(&world).await;
        assert!(!channel.is_ended());
        world.assert_announced(&world.client(), &server).await;
    });
}

#[test]
fn only_a_sealed_file_of_the_right_length_is_a_mailbox() {
    run_pair(|world, server, client| async move {
        let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let event = rustix::event::eventfd(1, rustix::event::EventfdFlags::empty()).unwrap();
        let ordinary = fs::File::create(world.dir.path.join("file")).unwrap();
        ordinary.set_len(LEN as u64).unwrap();
        let size = SealFlags::SHRINK | SealFlags::GROW;
        let all = size | SealFlags::SEAL;
        for (name, file) in [
            ("nothing", None),
            ("a socket", Some(socket.into())),
            ("an event", Some(event)),
            ("an ordinary file", Some(ordinary.into())),
            ("not sealed", Some(file(LEN, SealFlags::empty()))),
            (
                "may grow",
                Some(file(LEN, SealFlags::SHRINK | SealFlags::SEAL)),
            ),
            (
                "may shrink",
                Some(file(LEN, SealFlags::GROW | SealFlags::SEAL)),
            ),
            ("seals may follow", Some(file(LEN, size))),
            (
                "not writable",
                Some(file(LEN, all | SealFlags::FUTURE_WRITE)),
            ),
            ("short", Some(file(LEN - 4096, all))),
            ("empty", Some(file(0, all))),
            ("long", Some(file(LEN + 4096, all))),
        ] {
            println!("{name}");
            let file = file.as_ref().map(OwnedFd::as_fd);
            let channel = RawChannel::to(&world).send_hello(file);
            channel.until_ended(&world).await;
            world.assert_announced(&client, &server).await;
        }
        let good = RawChannel::to(&world).send_hello(Some(file(LEN, all).as_fd()));
        world.assert_announced(&client, &server).await;
        assert!(!good.is_ended());
    });
}

#[test]
fn a_mailbox_with_wrong_content_affects_only_its_own_connections() {
    run_pair(|world, server, client| async move {
        let (channel, mailbox) = introduced(&world);

        // As it should be, first: what is written here is read there.
        let _socket = connect_announced(&mailbox, 3, server.at());
        let (side_channel, first_read) = server.accept_side_channel().await;
        assert_eq!((first_read, mailbox.state(3)), (PROPOSAL.to_vec(), CLAIMED));
        drop(side_channel);

        // More than the capacity, or less than was read already.
        let slot = slot_at(4);
        for lie in [u64::MAX >> 1, 1 << 62, 5000, 0, 3] {
            let (socket, from) = bound();
            mailbox.announce(4, 0, from, server.at(), PROPOSAL);
            mailbox.set(slot + 16, lie);
            rustix::net::connect(&socket, &server.at()).unwrap();
            let (mut side_channel, first) = server.accept_side_channel().await;
            assert!(first.len() <= 1344, "{}", first.len());
            for next in [0, 1, u64::MAX >> 1, 1 << 40] {
                mailbox.set(slot + 16, next);
                mailbox.set(slot, next);
                let rest = read_available(&mut *side_channel);
                assert!(first.len() + rest.len() <= 2 * 1344);
            }
            // The content of messages is not checked here, the positions are.
            mailbox.set(slot + 72, u64::MAX >> 1);
            assert!(side_channel.send(b"ACCEPT").is_err());
            side_channel.flush();
            mailbox.set(slot + 16, 1 << 63);
            assert_eq!(read_exact(&mut *side_channel, 1).await, b"", "was closed");
        }

        // Index and slots that lead nowhere, and slots of others' connections.
        let (socket, from) = bound();
        for (probe, number) in [u64::from(u32::MAX), 1024, 5000, 1023, 7, 8, 9, 7]
            .into_iter()
            .enumerate()
        {
            mailbox.insert(from.port(), probe, number);
        }
        mailbox.set(slot_at(7), OFFERED);
        mailbox.announce(8, 0, server.at(), server.at(), PROPOSAL);
        mailbox.announce(9, 0, from, from, PROPOSAL);
        rustix::net::connect(&socket, &server.at()).unwrap();
        assert_eq!(server.accept_one().await, Accepted::Plain);

        for byte in [0xff, 0x01, 0x00] {
            mailbox.scribble(byte);
            let _plain = TcpStream::connect(server.at()).unwrap();
            assert_eq!(server.accept_one().await, Accepted::Plain);
            world.assert_announced(&client, &server).await;
        }
        assert!(!channel.is_ended());
    });
}

#[test]
fn offers_that_come_and_go_are_taken_at_most_once() {
    run(|world| async move {
        let server = world.server("127.0.0.1:0");
        let (channel, mailbox) = introduced(&world);
        // All eight places of a port lead to offers of the same connection.
        let (socket, from) = bound();
        for slot in 0..8 {
            mailbox.announce(slot, 0, from, server.at(), PROPOSAL);
            mailbox.insert(from.port(), slot, slot as u64);
        }
        rustix::net::connect(&socket, &server.at()).unwrap();
        assert_eq!(server.accept_one().await, announced());
        let taken =
            |mailbox: &RawMailbox| (0..8).filter(|slot| mailbox.state(*slot) == TAKEN).count();
        assert_eq!(taken(&mailbox), 1);
        // A refused offer is notified at once.
        let (socket, from) = bound();
        mailbox.announce(20, 0, from, server.at(), PROPOSAL);
        mailbox.set(slot_at(20) + 64, 1);
        rustix::net::connect(&socket, &server.at()).unwrap();
        let (socket, peer) = poll_fn(|cx| server.acceptor.poll_accept(cx)).await.unwrap();
        server.published.dismiss(&*socket, peer, Refusal::Policy);
        assert_eq!(mailbox.state(20), CANCELLED);
        let rung = [&[0x84][..], &20_u64.to_le_bytes()].concat();
        assert_eq!(channel.received().last(), Some(&rung));
    });
}

#[test]
fn offers_of_an_ended_client_are_not_taken() {
    run(|world| async move {
        let server = world.server("127.0.0.1:0");
        let (channel, mailbox) = introduced(&world);
        let _socket = connect_announced(&mailbox, 0, server.at());
        assert_eq!(server.accept_one().await, announced());

        // It ends, and another process may have the port now.
        let _socket = connect_announced(&mailbox, 1, server.at());
        let (socket, peer) = poll_fn(|cx| server.acceptor.poll_accept(cx)).await.unwrap();
        drop(channel);
        // At once, before the listener's task can have seen it.
        let mut verdict = server.published.negotiated(&*socket, peer);
        assert_eq!(Accepted::of(&mut verdict), Accepted::Plain);
        assert_ne!(mailbox.state(1), TAKEN);
    });
}

#[test]
fn a_claim_on_the_connection_of_another_socket_gets_nothing_of_it() {
    // Of the same user, who is believed; others are not (`users_are_kept_apart`).
    run_pair(|world, server, client| async move {
        let candidate = client.look_up(&world.rt, server.at()).await.unwrap();
        let (_channel, mailbox) = introduced(&world);
        let Announced { mut offer, socket } = Announced::to(&candidate).unwrap();
        mailbox.announce(0, 0, address_of(&socket), server.at(), b"forged");
        let victim = connect(socket, server.at());
        let (_socket, mut verdict) = server.accept().await;
        let Negotiated::SideChannel(side_channel) = &mut verdict else {
            panic!("{verdict:?}")
        };
        let received = read_available(&mut **side_channel);
        send(&mut **side_channel, b"ACCEPT");
        victim.set_nonblocking(true).unwrap();
        let read = (&victim).read(&mut [0; 8]).unwrap_err();
        assert_eq!(read.kind(), io::ErrorKind::WouldBlock, "not a byte");
        // One of both was taken; if it is the forged one, the rightful client goes on plain.
        let outcome = offer.withdraw();
        assert_eq!(outcome == Withdrawn::Taken, received == PROPOSAL);
        assert_eq!(outcome == Withdrawn::Free, received == b"forged");
    });
}

#[test]
fn notifications_for_unknown_slots_are_ignored() {
    run_pair(|world, server, client| async move {
        let (channel, mailbox) = introduced(&world);
        for round in 0..2000 {
            channel.send(
                &notify([0, 1023, 1024, 5000, u64::from(u32::MAX)][round % 5]),
                None,
            );
        }
        let _socket = connect_announced(&mailbox, 0, server.at());
        let (mut side_channel, received) = server.accept_side_channel().await;
        assert_eq!(received, PROPOSAL);
        // Spurious notifications: there is still nothing to read.
        let read = async { Some(read_exact(&mut *side_channel, 1).await) };
        let rings = async {
            for _ in 0..20 {
                channel.send(&notify(0), None);
                world.pause().await;
            }
            None
        };
        assert_eq!(read.or(rings).await, None);
        world.assert_announced(&client, &server).await;
        assert!(!channel.is_ended());
        drop(channel);
        assert_eq!(read_exact(&mut *side_channel, 1).await, b"");
    });
}

#[test]
fn floods_are_limited() {
    // Counts descriptors, so it needs a process without other tests.
    let mut flooded = Child::start("floods", "");
    assert_eq!(flooded.recv(), "limited");
    flooded.finish();
}

pub(super) fn flood(role: &Role) {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let current = maximum.map_or(8192, |maximum| maximum.min(8192));
    let enough = Rlimit {
        current: Some(current),
        maximum,
    };
    setrlimit(Resource::Nofile, enough).unwrap();
    if current < 4000 {
        role.send("limited");
        return println!("skipped: why: not descriptors enough");
    }
    run_once(TempDir::new(), |world| async move {
        let server = world.server("127.0.0.1:0");
        let client = world.client();
        world.assert_announced(&client, &server).await;
        let (descriptors, mailboxes) = (open_descriptors(), mapped_mailboxes());

        let mailbox = RawMailbox::new();
        let mut channels = Vec::new();
        for _ in 0..1200 {
            channels.push(RawChannel::to(&world).send_hello(Some(mailbox.file())));
            if channels.len() % 50 == 0 {
                world.assert_announced(&client, &server).await;
                world.pause().await;
            }
        }
        let open = || channels.iter().filter(|channel| !channel.is_ended());
        world.until(|| open().count() <= 1024).await;
        assert!(mapped_mailboxes() - mailboxes <= 1025);
        assert!(open_descriptors() - descriptors <= 1200 + 1 + 1024);
        // Clients that were there before are still served.
        world.assert_announced(&client, &server).await;
        // Another one is told why it is not. While descriptors of the flood wait to be closed,
        // nothing is received from its user, and so not the reason either.
        let cause = loop {
            let refused = world.client();
            let mut connection = world.dial(&refused, server.at()).await;
            let offer = connection.offer.as_mut().unwrap();
            until_lost(&mut **offer).await;
            let cause = offer.cause();
            assert_eq!(server.accept_one().await, Accepted::Plain);
            match cause {
                FallbackCause::ListenerGone => world.pause().await,
                cause => break cause,
            }
        };
        assert_eq!(cause, FallbackCause::Refused(Refusal::Full));

        channels.clear();
        drop(mailbox);
        let is_clean = || mapped_mailboxes() <= mailboxes && open_descriptors() <= descriptors + 5;
        world.until(is_clean).await;
        let late = world.client();
        world.assert_announced(&late, &server).await;
        role.send("limited");
    });
}

/// A channel that has sent HELLO with this mailbox.
fn introduced(world: &World) -> (RawChannel, RawMailbox) {
    let mailbox = RawMailbox::new();
    let channel = RawChannel::to(world).send_hello(Some(mailbox.file()));
    (channel, mailbox)
}

/// Announces a connection in a slot, and makes it.
fn connect_announced(mailbox: &RawMailbox, slot: usize, to: SocketAddr) -> OwnedFd {
    let (socket, from) = bound();
    mailbox.announce(slot, 0, from, to, PROPOSAL);
    rustix::net::connect(&socket, &to).unwrap();
    socket
}

/// A memory file.
fn file(len: usize, seals: SealFlags) -> OwnedFd {
    let file = unsealed(len as u64);
    fcntl_add_seals(&file, seals).unwrap();
    file.into()
}

/// A socket that is not connected yet, and its address.
fn bound() -> (OwnedFd, SocketAddr) {
    let socket = bound_to(loopback(0));
    let at = address_of(&socket);
    (socket, at)
}

fn mapped_mailboxes() -> usize {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines()
        .filter(|line| line.contains("smc-mailbox"))
        .count()
}
