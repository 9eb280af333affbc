//! Clients that do not keep to the rules.

use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use smc_core::io::negotiate::Withdrawn;

use super::child::{self, Child, Where};
use super::raw::{CLAIMED, LEN, OFFERED, RawBoard, RawChannel, TAKEN, VOID, hello, look, place};
use super::*;

#[test]
fn rubbish_ends_the_channel_and_nothing_else() {
    run(|world| async move {
        let server = world.server("127.0.0.1:0");
        let client = world.client();
        let former = [&b"\x01SMCL\x01"[..], &hello()[6..]].concat();
        for rubbish in [
            vec![vec![0xff]],
            vec![b"GET / HTTP/1.1\r\n\r\n".to_vec()],
            vec![vec![0; 60_000]],
            vec![former],
            vec![[&hello()[..], &[9]].concat()],
            vec![hello(), hello()],
            vec![look(0), hello()],
            vec![hello(), look(0)[..5].to_vec()],
            vec![hello(), look(u64::MAX)],
            vec![hello(), [&[4][..], &[0; 24], &[4, 127, 0, 0, 1]].concat()], // PROVE at home
        ] {
            let channel = RawChannel::to(&world);
            let board = RawBoard::new();
            for packet in &rubbish {
                channel.send(packet, Some(board.file()));
            }
            println!("{rubbish:?}");
            channel.until_ended(&world).await;
            let _dialled = world.dial(&*client, server.at()).await;
            assert_eq!(server.accept().await, announced());
        }
    });
}

#[test]
fn a_client_that_does_not_introduce_itself_is_ended() {
    run(|world| async move {
        let server = world.server("127.0.0.1:0");
        let silent = RawChannel::to(&world);
        silent.until_ended(&world).await;
        // One that has done so may be silent.
        let board = RawBoard::new();
        let channel = RawChannel::to(&world).introduce(Some(board.file()));
        RawChannel::to(&world).until_ended(&world).await;
        assert!(!channel.is_ended());
        let _dialled = world.dial(&*world.client(), server.at()).await;
        assert_eq!(server.accept().await, announced());
    });
}

#[test]
fn only_a_sealed_file_of_the_right_length_is_a_board() {
    run(|world| async move {
        let server = world.server("127.0.0.1:0");
        let client = world.client();
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
            let channel = RawChannel::to(&world).introduce(file);
            channel.until_ended(&world).await;
            let _dialled = world.dial(&*client, server.at()).await;
            assert_eq!(server.accept().await, announced());
        }
        let good = RawChannel::to(&world).introduce(Some(file(LEN, all).as_fd()));
        let _dialled = world.dial(&*client, server.at()).await;
        assert_eq!(server.accept().await, announced());
        assert!(!good.is_ended());
    });
}

#[test]
fn a_board_that_lies_spoils_its_own_connections() {
    run(|world| async move {
        let server = world.server("127.0.0.1:0");
        let client = world.client();
        let board = RawBoard::new();
        let channel = RawChannel::to(&world).introduce(Some(board.file()));

        // As it should be, first: what is written here is read there.
        let (socket, from) = bound();
        board.announce(3, 0, from, server.at(), PROPOSAL);
        rustix::net::connect(&socket, &server.at()).unwrap();
        let (side_channel, said_first) = server.accept_side_channel().await;
        assert_eq!((said_first, board.state(3)), (PROPOSAL.to_vec(), CLAIMED));
        drop(side_channel);

        // More than there is room for, or less than was read already.
        let card = place(4);
        for lie in [u64::MAX >> 1, 1 << 62, 5000, 0, 3] {
            let (socket, from) = bound();
            board.announce(4, 0, from, server.at(), PROPOSAL);
            board.set(card + 16, lie);
            rustix::net::connect(&socket, &server.at()).unwrap();
            let (mut side_channel, first) = server.accept_side_channel().await;
            assert!(first.len() <= 1344, "{}", first.len());
            for next in [0, 1, u64::MAX >> 1, 1 << 40] {
                board.set(card + 16, next);
                board.set(card, next);
                let rest = said(&mut *side_channel);
                assert!(first.len() + rest.len() <= 2 * 1344);
            }
            // What the listener says is its own business, wherever that is said to end.
            board.set(card + 72, u64::MAX >> 1);
            assert!(side_channel.send(b"ACCEPT").is_err());
            side_channel.flush();
            board.set(card + 16, 1 << 63);
            assert_eq!(hear(&mut *side_channel, 1).await, b"", "has hung up");
        }

        // Index and cards that lead nowhere, and cards of others' connections.
        let (socket, from) = bound();
        for (probe, number) in [u64::from(u32::MAX), 1024, 5000, 1023, 7, 8, 9, 7]
            .into_iter()
            .enumerate()
        {
            board.enter(from.port(), probe, number);
        }
        board.set(place(7), OFFERED);
        board.announce(8, 0, server.at(), server.at(), PROPOSAL);
        board.announce(9, 0, from, from, PROPOSAL);
        rustix::net::connect(&socket, &server.at()).unwrap();
        assert_eq!(server.accept().await, Heard::Plain);

        for byte in [0xff, 0x01, 0x00] {
            board.scribble(byte);
            let _plain = TcpStream::connect(server.at()).unwrap();
            assert_eq!(server.accept().await, Heard::Plain);
            let _dialled = world.dial(&*client, server.at()).await;
            assert_eq!(server.accept().await, announced());
        }
        assert!(!channel.is_ended());
    });
}

#[test]
fn offers_that_come_and_go_are_taken_at_most_once() {
    run(|world| async move {
        let server = world.server("127.0.0.1:0");
        let board = RawBoard::new();
        let channel = RawChannel::to(&world).introduce(Some(board.file()));
        // All eight places of a port lead to offers of the same connection.
        let (socket, from) = bound();
        for card in 0..8 {
            board.announce(card, 0, from, server.at(), PROPOSAL);
            board.enter(from.port(), card, card as u64);
        }
        rustix::net::connect(&socket, &server.at()).unwrap();
        assert_eq!(server.accept().await, announced());
        let taken = |board: &RawBoard| (0..8).filter(|card| board.state(*card) == TAKEN).count();
        assert_eq!(taken(&board), 1);
        // And it is told at once if nobody wants it.
        let (socket, from) = bound();
        board.announce(20, 0, from, server.at(), PROPOSAL);
        board.set(place(20) + 64, 1);
        rustix::net::connect(&socket, &server.at()).unwrap();
        let (socket, peer) = poll_fn(|cx| server.acceptor.poll_accept(cx)).await.unwrap();
        server.published.dismiss(&*socket, peer);
        assert_eq!(board.state(20), VOID);
        let rung = [&[0x84][..], &20_u64.to_le_bytes()].concat();
        assert_eq!(channel.heard().last(), Some(&rung));
    });
}

#[test]
fn offers_of_the_dead_are_not_taken() {
    run(|world| async move {
        let server = world.server("127.0.0.1:0");
        let board = RawBoard::new();
        let channel = RawChannel::to(&world).introduce(Some(board.file()));
        let (socket, from) = bound();
        board.announce(0, 0, from, server.at(), PROPOSAL);
        // The listener knows the board by now.
        rustix::net::connect(&socket, &server.at()).unwrap();
        assert_eq!(server.accept().await, announced());

        // It ends, and whoever has the port now is somebody else.
        let (socket, from) = bound();
        board.announce(1, 0, from, server.at(), PROPOSAL);
        rustix::net::connect(&socket, &server.at()).unwrap();
        let (socket, peer) = poll_fn(|cx| server.acceptor.poll_accept(cx)).await.unwrap();
        drop(channel);
        // At once, before the listener's task can have seen it.
        let mut verdict = server.published.verdict(&*socket, peer);
        assert_eq!(Heard::of(&mut verdict), Heard::Plain);
        assert_ne!(board.state(1), TAKEN);
    });
}

#[test]
fn whoever_claims_another_connection_gets_nothing_of_it() {
    // Of the same user, who is believed; others are not (`users_are_kept_apart`).
    run(|world| async move {
        let server = world.server("127.0.0.1:0");
        let client = world.client();
        let candidate = client.look_up(server.at()).await.unwrap();
        let board = RawBoard::new();
        let _channel = RawChannel::to(&world).introduce(Some(board.file()));
        let Announced { mut offer, socket } = Announced::to(&*candidate).unwrap();
        let from = rustix::net::getsockname(&socket).unwrap();
        board.announce(0, 0, from.try_into().unwrap(), server.at(), b"forged");
        let victim = connect(socket, server.at());
        let (_socket, mut verdict) = server.accept_stream().await;
        let Verdict::SideChannel(side_channel) = &mut verdict else {
            panic!("{verdict:?}")
        };
        let said = said(&mut **side_channel);
        tell(&mut **side_channel, b"ACCEPT");
        victim.set_nonblocking(true).unwrap();
        let read = (&victim).read(&mut [0; 8]).unwrap_err();
        assert_eq!(read.kind(), io::ErrorKind::WouldBlock, "not a byte");
        // One of both was taken; if it is the forged one, the rightful client goes on plain.
        let outcome = offer.withdraw();
        assert_eq!(outcome == Withdrawn::Taken, said == PROPOSAL);
        assert_eq!(outcome == Withdrawn::Free, said == b"forged");
    });
}

#[test]
fn rings_for_unknown_cards_are_borne() {
    run(|world| async move {
        let server = world.server("127.0.0.1:0");
        let client = world.client();
        let board = RawBoard::new();
        let channel = RawChannel::to(&world).introduce(Some(board.file()));
        for round in 0..2000 {
            channel.send(
                &look([0, 1023, 1024, 5000, u64::from(u32::MAX)][round % 5]),
                None,
            );
        }
        let (socket, from) = bound();
        board.announce(0, 0, from, server.at(), PROPOSAL);
        rustix::net::connect(&socket, &server.at()).unwrap();
        let (mut side_channel, said) = server.accept_side_channel().await;
        assert_eq!(said, PROPOSAL);
        // Rung in vain: what was said is still nothing.
        let heard = async { Some(hear(&mut *side_channel, 1).await) };
        let rings = async {
            for _ in 0..20 {
                channel.send(&look(0), None);
                world.pause().await;
            }
            None
        };
        assert_eq!(heard.or(rings).await, None);
        let _dialled = world.dial(&*client, server.at()).await;
        assert_eq!(server.accept().await, announced());
        assert!(!channel.is_ended());
        drop(channel);
        assert_eq!(hear(&mut *side_channel, 1).await, b"");
    });
}

#[test]
fn floods_are_limited() {
    // Counts descriptors, so it needs a process without other tests.
    let mut flooded = Child::start(Where::Here, "hostile::flood", &[]);
    assert_eq!(flooded.line(), "limited");
    flooded.wait();
}

#[test]
#[ignore = "started by `floods_are_limited`"]
fn flood() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let current = maximum.map_or(8192, |maximum| maximum.min(8192));
    let enough = Rlimit {
        current: Some(current),
        maximum,
    };
    setrlimit(Resource::Nofile, enough).unwrap();
    if current < 4000 {
        child::say("limited");
        return println!("skipped: why: not descriptors enough");
    }
    run_once(TempDir::new(), |world| async move {
        let server = world.server("127.0.0.1:0");
        let client = world.client();
        let _dialled = world.dial(&*client, server.at()).await;
        assert_eq!(server.accept().await, announced());
        let (descriptors, boards) = (open_descriptors(), mapped_boards());

        let board = RawBoard::new();
        let mut channels = Vec::new();
        for _ in 0..1200 {
            channels.push(RawChannel::to(&world).introduce(Some(board.file())));
            if channels.len() % 50 == 0 {
                let _dialled = world.dial(&*client, server.at()).await;
                assert_eq!(server.accept().await, announced());
                world.pause().await;
            }
        }
        let open = || channels.iter().filter(|channel| !channel.is_ended());
        world.until(|| open().count() <= 1024).await;
        assert!(mapped_boards() - boards <= 1025);
        assert!(open_descriptors() - descriptors <= 1200 + 1 + 1024);
        // Those who were there before are still served.
        let _dialled = world.dial(&*client, server.at()).await;
        assert_eq!(server.accept().await, announced());

        channels.clear();
        drop(board);
        let is_clean = || mapped_boards() <= boards && open_descriptors() <= descriptors + 5;
        world.until(is_clean).await;
        let newcomer = world.client();
        let _dialled = world.dial(&*newcomer, server.at()).await;
        assert_eq!(server.accept().await, announced());
        child::say("limited");
    });
}

/// A memory file.
fn file(len: usize, seals: SealFlags) -> OwnedFd {
    let file = memfd_create("board", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&file, len as u64).unwrap();
    fcntl_add_seals(&file, seals).unwrap();
    file
}

/// A socket that is not connected yet, and its address.
fn bound() -> (OwnedFd, SocketAddr) {
    let socket = bound_to(loopback(0));
    let at = rustix::net::getsockname(&socket).unwrap();
    (socket, at.try_into().unwrap())
}

fn open_descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

fn mapped_boards() -> usize {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines()
        .filter(|line| line.contains("smc-board"))
        .count()
}
