//! Streams of SMC-D against a peer that has a device and no endpoint, and what they ask of their
//! own device.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::io::{ErrorKind, IoSlice};
use std::net::Shutdown;
use std::sync::Arc;
use std::time::Duration;

use futures_lite::{AsyncReadExt, AsyncWriteExt};
use smc::Stream;
use smc_core::device::{Device, Direct, Dmb, Event, PeerEvent, Signal};
use smc_core::mem::Element;
use smc_core::mem::sync::Ordering;
use smc_core::wire::cdc::{ConsumerWord, ProducerFlags, ProducerWord, StateFlags};
use smc_core::wire::clc::Message;
use smc_core::wire::cursor::Cursor;
use smc_core::wire::size::SizeCode;
use smc_core::wire::types::{DmbToken, Gid};
use smc_testkit::middleware::{Journal, Trace, What};
use smc_testkit::process::is_alone;
use smc_testkit::resources::limit_descriptors;
use smc_testkit::streams::{connect_smc, expect_error, expect_rest, expect_write_error, patterned};
use smc_testkit::world::messages::{bytes, direct};
use smc_testkit::world::{
    Host, Raw, ScriptedDevice, World, accept_now, connect_pair_smc, proposal_from,
};

/// Enough for everything that does not wait for a timeout.
const MOMENT: Duration = Duration::from_millis(1);

/// The peer of a stream, which moves what it likes into the stream's buffer.
struct Peer {
    device: ScriptedDevice,
    /// Written by the stream.
    dmb: Arc<dyn Dmb>,
    /// The stream's device and buffer.
    to: (Gid, DmbToken),
    _tcp: Raw,
}

/// A server's stream, and its peer.
fn forged(world: &World) -> (Stream, Peer) {
    let server = world.host("server");
    let device = world.device("peer");
    let size = SizeCode::MIN;
    let dmb = world.block_on(device.register(server.device.gid(), size.byte_len()));
    let dmb = dmb.unwrap();
    let token = dmb.token();
    connect_forged(world, &server, device, dmb, token)
}

/// The same, with this device, buffer, and token in CONFIRM.
fn connect_forged(
    world: &World,
    server: &Host,
    device: ScriptedDevice,
    dmb: Arc<dyn Dmb>,
    token: DmbToken,
) -> (Stream, Peer) {
    let mut confirm = world.forged_peer(&server.device).confirm();
    let end = direct(&mut confirm);
    (end.gid, end.dmb) = (device.gid(), token);
    world.block_on(async {
        let (listener, at) = server.listen().await;
        let raw = world.raw_that_sent(at, proposal_from(&device)).await;
        let Message::Accept(mut accept) = Message::parse(&raw.message().await).unwrap() else {
            panic!("no ACCEPT");
        };
        raw.send(&bytes(&confirm)).await;
        world.sleep(MOMENT).await;
        let (stream, _) = accept_now(&listener).unwrap();
        assert!(stream.mode().is_smc(), "{}", stream.mode());
        let peer = Peer {
            to: (server.device.gid(), direct(&mut accept).dmb),
            device,
            dmb,
            _tcp: raw,
        };
        (stream, peer)
    })
}

impl Peer {
    fn put(&self, at: usize, data: &[u8], signal: Signal) {
        let at = u32::try_from(at).unwrap();
        let moved = self
            .device
            .move_data(self.to.0, self.to.1, at, &[IoSlice::new(data)], signal);
        moved.unwrap();
    }

    /// Writes data at the start of the ring, with these flags.
    fn write(&self, data: &[u8], flags: ProducerFlags) {
        self.put(32, data, Signal::No);
        let consumer = ConsumerWord {
            producer_flags: flags,
            ..ConsumerWord::default()
        };
        let consumer = consumer.to_ne().to_ne_bytes();
        self.put(ConsumerWord::OFFSET, &consumer, Signal::No);
        let count = u32::try_from(data.len()).unwrap();
        self.show(Cursor { wrap: 0, count });
    }

    /// Shows how far it has written.
    fn show(&self, cursor: Cursor) {
        let producer = ProducerWord { cursor }.to_ne().to_ne_bytes();
        self.put(ProducerWord::OFFSET, &producer, Signal::Yes);
    }

    /// What the stream has shown last.
    fn shown(&self) -> ConsumerWord {
        let element = Element::new(self.dmb.region().clone()).unwrap();
        ConsumerWord::from_ne(element.consumer().load(Ordering::Acquire))
    }
}

#[test]
fn urgent_data_is_answered_with_an_update_once_it_is_read() {
    for nocopy in [true, false] {
        for flags in [
            ProducerFlags::URGENT_PENDING,
            ProducerFlags::URGENT_PRESENT,
            ProducerFlags::UPDATE_REQUESTED,
        ] {
            let world = World::new().with_fabric(|fabric| fabric.with_nocopy(nocopy));
            let (mut stream, peer) = forged(&world);
            world.block_on(async {
                peer.write(b"urgent", flags);
                stream.read_exact(&mut [0; 5]).await.unwrap();
                assert_eq!(peer.shown().cursor.count, 0, "{flags:?}");
                stream.read_exact(&mut [0; 1]).await.unwrap();
                assert_eq!(peer.shown().cursor.count, 6, "{flags:?}");
            });
        }
    }
}

#[test]
fn a_test_request_is_answered_and_an_answer_is_not() {
    let world = World::new();
    let server = world.host("server");
    let device = world.device("peer");
    world.block_on(async {
        for (event, answers) in [(PeerEvent::TestRequest, 1), (PeerEvent::TestResponse, 0)] {
            let events = device.peer_events().unwrap();
            events.signal_event(server.device.gid(), event).unwrap();
            world.sleep(MOMENT).await;
            let mut seen = Vec::new();
            device.drain(&mut |event| seen.push(event)).unwrap();
            let answer = Event::Peer {
                from: server.device.gid(),
                event: PeerEvent::TestResponse,
            };
            assert_eq!(seen, vec![answer; answers], "{event:?}");
        }
    });
}

#[test]
fn a_refused_move_is_a_reset_unless_the_peer_is_gone() {
    for is_gone in [false, true] {
        let world = World::new().with_fabric(|fabric| fabric.with_nocopy(false));
        let (mut stream, peer) = forged(&world);
        world.block_on(async {
            stream.write_all(b"data").await.unwrap();
            let kind = match is_gone {
                true => ErrorKind::ConnectionAborted,
                false => ErrorKind::ConnectionReset,
            };
            let device = peer.device;
            if is_gone {
                device.leave();
                world.sleep(MOMENT).await;
            } else {
                drop(peer.dmb);
            }
            expect_write_error(&mut stream, kind).await;
            expect_error(&mut stream, kind).await;
        });
    }
}

#[test]
fn nothing_is_moved_into_the_buffer_of_another_peer_that_a_handshake_names() {
    let world = World::new().with_fabric(|fabric| fabric.with_nocopy(false));
    let server = world.host("server");
    let [victim, device] = ["victim", "peer"].map(|name| world.device(name));
    let register = |owner: &ScriptedDevice| {
        let registered = owner.register(server.device.gid(), SizeCode::MIN.byte_len());
        world.block_on(registered).unwrap()
    };
    let (theirs, own) = (register(&victim), register(&device));
    let (mut stream, _peer) = connect_forged(&world, &server, device, own, theirs.token());
    world.block_on(async {
        expect_write_error(&mut stream, ErrorKind::ConnectionReset).await;
        expect_error(&mut stream, ErrorKind::ConnectionReset).await;
    });
    let mut content = vec![0; theirs.region().len()];
    theirs.region().copy_out(0, &mut content).unwrap();
    assert!(content.iter().all(|byte| *byte == 0));
}

/// A peer decides when it closes, and until then this side has a descriptor and a buffer.
#[test]
fn a_peer_that_closes_none_of_its_streams_has_a_share_of_the_descriptors() {
    if !is_alone() {
        return;
    }
    limit_descriptors(512);
    let share = 512 / 8;
    let world = World::new();
    let (server, client) = (world.host("server"), world.host("client"));
    world.block_on(async {
        let (listener, _) = server.listen().await;
        let mut held = Vec::new();
        for number in 0..3 * share {
            let (ours, mut theirs) = connect_smc(&client.endpoint, &listener).await;
            theirs.write_all(&[1; 100]).await.unwrap();
            drop(theirs);
            held.push(ours);
            let waiting = server.endpoint.connections().len();
            assert!(waiting <= share, "{waiting} of {number}");
        }
        // Those that have ended for others of them, too: what was written is in the peer's buffer.
        for stream in &mut held {
            expect_rest(stream, &[1; 100]).await;
        }
        drop(held);
        world.sleep(MOMENT).await;
        assert_eq!(server.endpoint.connections().len(), 0);
        for _ in 0..2 * share {
            let (mut ours, theirs) = connect_smc(&client.endpoint, &listener).await;
            drop(theirs);
            expect_rest(&mut ours, &[]).await;
            drop(ours);
            world.sleep(MOMENT).await;
        }
    });
}

/// The signals of the moves since the last call.
fn signals(journal: &Journal) -> Vec<(usize, Signal)> {
    let records = journal.take().into_iter();
    let moves = records.filter_map(|record| match record.what {
        What::Moved { len, signal, .. } => Some((len, signal)),
        _ => None,
    });
    moves.collect()
}

#[test]
fn a_word_that_is_followed_by_the_producer_cursor_has_no_signal_of_its_own() {
    let world = World::new().with_fabric(|fabric| fabric.with_nocopy(false));
    let (traced, journal) = Trace::with_journal(Arc::new(world.device("client")));
    let client = world.host_on(ScriptedDevice::around(traced), |builder| builder);
    let server = world.host_with("server", |builder| builder.recv_buffer(16 * 1024));
    world.block_on(async {
        let (mut ours, mut theirs) = connect_pair_smc(&client, &server).await;
        let ring = ours.peer_recv_buffer_size().unwrap();
        ours.write_all(b"x").await.unwrap();
        assert_eq!(signals(&journal), [(1, Signal::No), (8, Signal::Yes)]);
        // The last byte of the ring, so that the flag of a blocked writer is set.
        ours.write_all(&patterned(ring - 1)).await.unwrap();
        let filled = [(ring - 1, Signal::No), (8, Signal::No), (8, Signal::Yes)];
        assert_eq!(signals(&journal), filled);
        // And cleared again.
        theirs.read_exact(&mut vec![0; ring]).await.unwrap();
        ours.write_all(b"y").await.unwrap();
        let freed = [(1, Signal::No), (8, Signal::No), (8, Signal::Yes)];
        assert_eq!(signals(&journal), freed);
        // Flags that end the stream signal.
        ours.close().await.unwrap();
        assert_eq!(signals(&journal), [(8, Signal::Yes)]);
    });
}

#[test]
fn a_shutdown_of_both_directions_shows_the_peer_what_a_close_does() {
    const DONE: StateFlags = StateFlags::SENDING_DONE;
    for (is_shut, is_read, expected) in [
        (false, true, StateFlags::CLOSED),
        (false, false, StateFlags::ABORTED),
        (true, true, DONE.union(StateFlags::CLOSED)),
        (true, false, DONE.union(StateFlags::ABORTED)),
    ] {
        let world = World::new();
        let (mut stream, peer) = forged(&world);
        world.block_on(async {
            peer.write(b"data", ProducerFlags::empty());
            if is_read {
                stream.read_exact(&mut [0; 4]).await.unwrap();
            }
            if is_shut {
                stream.shutdown_how(Shutdown::Write).unwrap();
            }
            stream.shutdown_how(Shutdown::Both).unwrap();
            assert_eq!(peer.shown().state_flags, expected);
            assert_eq!(stream.read(&mut [0; 1]).await.unwrap(), 0);
            expect_write_error(&mut stream, ErrorKind::BrokenPipe).await;
            stream.close().await.unwrap();
            drop(stream);
            assert_eq!(peer.shown().state_flags, expected);
        });
    }
}

#[test]
fn a_peer_cannot_write_to_a_stream_that_was_shut_down_for_both_directions() {
    let world = World::new();
    world.between_hosts(async |client, server| {
        let (mut ours, mut theirs) = connect_pair_smc(&client, &server).await;
        ours.write_all(b"last").await.unwrap();
        ours.shutdown_how(Shutdown::Both).unwrap();
        expect_write_error(&mut theirs, ErrorKind::BrokenPipe).await;
        expect_rest(&mut theirs, b"last").await;
        // The record stays until the stream is dropped.
        drop(theirs);
        world.sleep(MOMENT).await;
        assert_eq!(client.endpoint.connections().len(), 1);
        drop(ours);
        world.only_idle_groups_left([&client, &server]).await;
    });
}

#[test]
fn the_queues_of_a_stream_are_what_was_not_read_and_what_was_not_delivered() {
    for nocopy in [true, false] {
        let world = World::new().with_fabric(|fabric| fabric.with_nocopy(nocopy));
        world.between_hosts(async |client, server| {
            let (mut ours, mut theirs) = connect_pair_smc(&client, &server).await;
            assert_eq!(theirs.recv_queue_len().unwrap(), 0);
            ours.write_all(&[0; 1000]).await.unwrap();
            assert_eq!(theirs.recv_queue_len().unwrap(), 1000);
            assert_eq!(theirs.peek(&mut [0; 10]).await.unwrap(), 10);
            theirs.read_exact(&mut [0; 100]).await.unwrap();
            assert_eq!(theirs.recv_queue_len().unwrap(), 900);
            assert_eq!(ours.send_queue_len().unwrap(), 0, "is in the peer's memory");
            theirs.shutdown_how(Shutdown::Read).unwrap();
            assert_eq!(
                theirs.recv_queue_len().unwrap(),
                900,
                "is not read any more"
            );
        });
    }
}

#[test]
fn a_peer_that_passes_its_space_has_no_queue() {
    let world = World::new();
    let (stream, peer) = forged(&world);
    world.block_on(async {
        let cursor = Cursor { wrap: 7, count: 1 };
        let producer = ProducerWord { cursor }.to_ne().to_ne_bytes();
        peer.put(ProducerWord::OFFSET, &producer, Signal::Yes);
        let error = stream.recv_queue_len().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
        assert_eq!(peer.shown().state_flags, StateFlags::ABORTED);
    });
}

/// A writer that has filled more of a ring than it leaves before the end.
async fn beyond_rewind_min(ours: &mut Stream) -> Vec<u8> {
    let data = patterned(40_000);
    assert!(ours.peer_recv_buffer_size().unwrap() > 2 * data.len());
    ours.write_all(&data).await.unwrap();
    data
}

#[test]
fn a_reservation_stays_in_its_place_when_the_reader_catches_up() {
    let world = World::new();
    world.between_hosts(async |client, server| {
        let (mut ours, mut theirs) = connect_pair_smc(&client, &server).await;
        let data = beyond_rewind_min(&mut ours).await;
        let mut space = ours.reserve(4).await.unwrap();
        assert!(space.is_in_place());
        space.write_at(0, b"kept").unwrap();
        let mut read = vec![0; data.len()];
        theirs.read_exact(&mut read).await.unwrap();
        assert_eq!(read, data);
        space.commit(4).await.unwrap();
        ours.write_all(b" and next").await.unwrap();
        ours.shutdown_how(Shutdown::Write).unwrap();
        expect_rest(&mut theirs, b"kept and next").await;
    });
}

#[test]
fn a_peer_cannot_leave_a_ring_early_that_has_unread_data() {
    let world = World::new();
    let (mut stream, peer) = forged(&world);
    world.block_on(async {
        peer.write(b"data", ProducerFlags::empty());
        stream.read_exact(&mut [0; 3]).await.unwrap();
        peer.show(Cursor { wrap: 2, count: 1 });
        stream.read_exact(&mut [0; 1]).await.unwrap();
        expect_error(&mut stream, ErrorKind::InvalidData).await;
    });
}
