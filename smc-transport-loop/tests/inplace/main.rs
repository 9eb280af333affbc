//! Writing and reading in place: the same scenarios where that is possible and where it is not.

#![allow(unsafe_code, reason = "the promise about peers is an unsafe function")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;
mod exact;

use std::future::Future;
use std::io::{ErrorKind, Write as _};
use std::net::Shutdown;
use std::task::{Context, Poll, Waker};
use std::thread;

use futures_lite::future::{poll_once, yield_now, zip};
use futures_lite::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _};
use smc::{Endpoint, Policy, Stream};
use smc::{ReadGuard, Reservation};
use smc_core::mem::TrustPeers;
use smc_testkit::Rng;
use smc_testkit::on::On;
use smc_testkit::streams::{self, check_pattern as check, expect, expect_rest, pattern, patterned};

use common::World;
use exact::*;

/// The transport of the streams, and whether the peer is trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transport {
    Mapped,
    MappedTrusted,
    Moved,
    MovedTrusted,
    Tcp,
}

impl Transport {
    fn is_trusted(self) -> bool {
        matches!(self, Self::MappedTrusted | Self::MovedTrusted)
    }

    fn is_mapped(self) -> bool {
        matches!(self, Self::Mapped | Self::MappedTrusted)
    }

    fn endpoint(self, world: &World) -> Endpoint {
        let mut builder = world.builder().recv_buffer(RING);
        if self.is_trusted() {
            // SAFETY: the only peers of these endpoints are those of this test, whose streams
            // write bytes of a ring only while they are free.
            builder = builder.trust_peers(unsafe { TrustPeers::new() });
        }
        if self == Self::Tcp {
            builder = builder.policy(Policy::Never);
        }
        builder.build().unwrap()
    }
}

/// Two ends of a stream, and their transport.
struct Scene {
    transport: Transport,
    world: World,
    client: Endpoint,
    server: Endpoint,
}

impl Scene {
    async fn pair(&self) -> (Stream, Stream) {
        let (ours, theirs) = streams::pair(&self.client, &self.server).await;
        assert_eq!(ours.mode().is_smc(), self.transport != Transport::Tcp);
        (ours, theirs)
    }
}

fn run<F: Future<Output = ()>>(on: On, transport: Transport, scenario: impl FnOnce(Scene) -> F) {
    let world = World::new(on, transport.is_mapped());
    on.run(async {
        let (client, server) = (transport.endpoint(&world), transport.endpoint(&world));
        scenario(Scene {
            transport,
            world,
            client,
            server,
        })
        .await;
    });
}

macro_rules! on_all_transports {
    ($($name:ident)+) => {
        $( mod $name {
            use super::{On, Transport, run};

            #[test] fn mapped() { run(On::Smol, Transport::Mapped, super::$name); }
            #[test] fn mapped_trusted() { run(On::Smol, Transport::MappedTrusted, super::$name); }
            #[test] fn moved() { run(On::Smol, Transport::Moved, super::$name); }
            #[test] fn moved_trusted() { run(On::Tokio, Transport::MovedTrusted, super::$name); }
            #[test] fn tcp() { run(On::Smol, Transport::Tcp, super::$name); }
            #[test] fn tcp_on_tokio() { run(On::Tokio, Transport::Tcp, super::$name); }
            #[test] fn mapped_trusted_on_tokio() { run(On::Tokio, Transport::MappedTrusted, super::$name); }
        } )+
    };
}

on_all_transports! {
    a_long_stream_by_reservations_and_guards
    only_what_is_committed_goes_out
    misuse_is_refused_and_sends_nothing
    an_empty_guard_that_is_dropped_late_changes_nothing
    a_full_reservation_takes_no_more_at_the_end_of_the_ring_either
    a_slice_shows_what_was_written_before
    a_reservation_is_filled_piece_by_piece_in_order
    guards_and_other_reads_in_turn
    guards_are_split_and_detached
    guards_outlive_everything
    bytes_released_on_a_thread_let_the_writer_go_on
    the_oldest_guard_holds_the_writer_back
    ends_and_errors
    a_reservation_that_waits_can_be_dropped
    split_halves_reserve_and_read_guards
    guards_of_a_closed_stream_do_not_affect_the_next
    consuming_more_than_was_shown_takes_what_was_shown
    wrong_amounts_consumed_beside_a_guard_leave_it_as_it_is
    records_of_an_exact_length_are_never_cut
    reservations_that_never_fit_are_refused
    a_writer_that_waits_for_the_whole_ring_gets_it
    an_exact_reservation_that_waits_can_be_dropped
    halves_reserve_exactly_too
}

async fn a_long_stream_by_reservations_and_guards(scene: Scene) {
    const LEN: usize = 1_000_000;
    let (mut writer, mut reader) = scene.pair().await;
    let transport = scene.transport;
    let writing = async {
        let mut rng = Rng::new(1);
        let mut at = 0;
        while at < LEN {
            let wanted = rng.between(1, 20_000).min(LEN - at);
            let mut space = writer.reserve(wanted).await.unwrap();
            assert!((1..=wanted).contains(&space.len()), "{space:?}");
            let len = rng.between(1, space.len());
            let bytes: Vec<u8> = (at..at + len).map(pattern).collect();
            match rng.below(3) {
                0 => space.write_all(&bytes).unwrap(),
                1 => {
                    let (one, two) = bytes.split_at(len / 2);
                    space.write_at(len / 2, two).unwrap();
                    space.write_at(0, one).unwrap();
                }
                _ => space.as_mut_slice()[..len].copy_from_slice(&bytes),
            }
            space.commit(len).await.unwrap();
            at += len;
        }
        writer.close().await.unwrap();
    };
    let reading = async {
        let mut rng = Rng::new(2);
        let (mut at, mut guards) = (0, Vec::new());
        loop {
            let max = rng.between(1, 3_000);
            let guard = reader.read_guard(max).await.unwrap();
            if guard.is_empty() {
                break;
            }
            assert!(guard.len() <= max);
            assert_eq!(guard.is_in_place(), transport.is_trusted());
            guards.push((at, guard));
            at += guards[guards.len() - 1].1.len();
            // The ring has 16 KiB, so that four of these never fill it.
            while guards.len() > 3 || guards.first().is_some_and(|(start, _)| at - start > 9_000) {
                let is_old = at - guards[0].0 > 9_000;
                let index = if is_old { 0 } else { rng.below(guards.len()) };
                let (start, guard) = guards.swap_remove(index);
                guards.sort_by_key(|(start, _)| *start);
                check(start, &guard);
            }
        }
        assert_eq!(at, LEN);
        for (start, guard) in guards {
            check(start, &guard);
        }
    };
    zip(writing, reading).await;
}

async fn only_what_is_committed_goes_out(scene: Scene) {
    let (mut writer, mut reader) = scene.pair().await;
    let mut space = writer.reserve(100).await.unwrap();
    assert_eq!(space.is_in_place(), scene.transport.is_mapped());
    space.write_all(b"never sent").unwrap();
    drop(space);
    let mut space = writer.reserve(100).await.unwrap();
    space.write_all(b"sent, and not this").unwrap();
    assert_eq!(space.written(), 18);
    space.commit(4).await.unwrap();
    let space = writer.reserve(100).await.unwrap();
    space.commit(0).await.unwrap();
    assert!(writer.reserve(0).await.unwrap().is_empty());
    writer.write_all(b"!").await.unwrap();
    writer.close().await.unwrap();
    expect_rest(&mut reader, "sent!").await;
}

async fn misuse_is_refused_and_sends_nothing(scene: Scene) {
    let (mut writer, mut reader) = scene.pair().await;
    let mut space = writer.reserve(10).await.unwrap();
    for (at, data) in [(5, &b"123456"[..]), (usize::MAX, b"1")] {
        let error = space.write_at(at, data).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        let count = data.len();
        let text = format!(
            "misuse: write of {count} bytes at {at} passes the end of the reservation of 10 bytes"
        );
        assert_eq!(error.to_string(), text);
    }
    space.write_all(b"0123456789").unwrap();
    let full = space.write_all(b"x").unwrap_err();
    assert_eq!(full.kind(), ErrorKind::WriteZero);
    let error = space.commit(11).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    let text = "misuse: 11 bytes are committed, and 10 were reserved";
    assert_eq!(error.to_string(), text);
    writer.close().await.unwrap();
    assert!(reader.read_guard(10).await.unwrap().is_empty());
}

async fn a_full_reservation_takes_no_more_at_the_end_of_the_ring_either(scene: Scene) {
    let (mut writer, mut reader) = scene.pair().await;
    let mut space = writer.reserve(1 << 20).await.unwrap();
    let all = vec![7; space.len()];
    space.write_all(&all).unwrap();
    assert_eq!(space.write(b"more").unwrap(), 0);
    assert_eq!(space.write(b"").unwrap(), 0);
    space.write_at(all.len(), b"").unwrap();
    let error = space.write_at(all.len(), b"1").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    let (committed, ()) = zip(space.commit(all.len()), expect(&mut reader, &all)).await;
    committed.unwrap();
}

async fn a_reservation_is_filled_piece_by_piece_in_order(scene: Scene) {
    let (mut writer, mut reader) = scene.pair().await;
    let data = patterned(30_000);
    let writing = async {
        let mut rest = &data[..];
        while !rest.is_empty() {
            let mut space = writer.reserve_at_least(1, rest.len()).await.unwrap();
            let len = space.len();
            let mut next = 0;
            let fill = space.fill_with(|offset, piece| {
                assert_eq!(offset, next);
                next += piece.len();
                piece.copy_from_slice(&rest[offset..next]);
            });
            fill.unwrap();
            assert_eq!(next, len);
            space.commit(len).await.unwrap();
            rest = &rest[len..];
        }
        let mut none = writer.reserve_at_least(0, 0).await.unwrap();
        none.fill_with(|_, _| panic!("nothing to fill")).unwrap();
    };
    let mut read = vec![0; data.len()];
    let (_, result) = zip(writing, reader.read_exact(&mut read)).await;
    result.unwrap();
    assert_eq!(read, data);
}

async fn a_slice_shows_what_was_written_before(scene: Scene) {
    let (mut writer, mut reader) = scene.pair().await;
    let mut space = writer.reserve(11).await.unwrap();
    space.write_at(0, b"hello world").unwrap();
    assert_eq!(space.as_mut_slice(), b"hello world");
    assert_eq!(
        space.is_in_place(),
        scene.transport == Transport::MappedTrusted,
        "memory that a peer may write is no slice"
    );
    space.as_mut_slice()[0] = b'j';
    space.write_at(10, b"s").unwrap();
    assert_eq!(space.as_mut_slice(), b"jello worls");
    space.commit(11).await.unwrap();
    expect(&mut reader, b"jello worls").await;
}

async fn guards_and_other_reads_in_turn(scene: Scene) {
    const LEN: usize = 200_000;
    let (mut writer, mut reader) = scene.pair().await;
    let writing = async {
        let all = patterned(LEN);
        writer.write_all(&all).await.unwrap();
        writer.close().await.unwrap();
    };
    let reading = async {
        let mut rng = Rng::new(3);
        let (mut at, mut guards) = (0, Vec::new());
        loop {
            let start = at;
            match rng.below(3) {
                0 => {
                    let guard = reader.read_guard(rng.between(1, 500)).await.unwrap();
                    at += guard.len();
                    guards.push((start, guard));
                }
                1 => {
                    let mut buf = vec![0; rng.between(1, 500)];
                    let count = reader.read(&mut buf).await.unwrap();
                    check(at, &buf[..count]);
                    at += count;
                }
                _ => {
                    let bytes = reader.fill_buf().await.unwrap();
                    let count = bytes.len().min(rng.between(1, 500));
                    check(at, &bytes[..count]);
                    reader.consume(count);
                    at += count;
                }
            }
            if guards.len() > 5 {
                let (start, guard) = guards.swap_remove(rng.below(5));
                check(start, &guard);
            }
            // What is read beyond the oldest must fit the ring.
            guards.retain(|(start, _)| at - start < 8_000);
            if start == at {
                break;
            }
        }
        assert_eq!(at, LEN);
    };
    zip(writing, reading).await;
}

async fn guards_are_split_and_detached(scene: Scene) {
    let (mut writer, mut reader) = scene.pair().await;
    writer.write_all(b"headbodytail").await.unwrap();
    let mut rest = reader.read_guard(12).await.unwrap();
    let mut head = rest.split_to(4);
    let body = rest.split_to(4);
    let (none, all) = (head.split_to(0), rest.split_to(4));
    assert_eq!((&*none, &*rest), (&[][..], &[][..]));
    let body = body.detach();
    assert!(!body.is_in_place());
    drop(rest);
    assert_eq!([&*head, &*body, &*all], [b"head", b"body", b"tail"]);
    drop(head);
    let bytes = all.into_bytes();
    let slice = bytes.slice(1..3);
    drop(bytes);
    assert_eq!(&slice[..], b"ai");
}

/// A guard of no bytes retains nothing, so the reading half has the consumer cursor again.
async fn an_empty_guard_that_is_dropped_late_changes_nothing(scene: Scene) {
    let (mut writer, mut reader) = scene.pair().await;
    writer.write_all(&patterned(1_000)).await.unwrap();
    let mut rest = reader.read_guard(1_000).await.unwrap();
    let head = rest.split_to(rest.len());
    drop(head);
    let data = patterned(200_000);
    let reading = async {
        let mut at = 0;
        let mut rest = Some(rest);
        while at < data.len() {
            let mut part = vec![0; 10_000.min(data.len() - at)];
            // The writer waits for space then, and looks again.
            for round in 0..100 {
                yield_now().await;
                if round == 50 && at >= 50_000 {
                    drop(rest.take());
                }
            }
            reader.read_exact(&mut part).await.unwrap();
            assert_eq!(part, data[at..at + part.len()]);
            at += part.len();
        }
    };
    let writing = async { writer.write_all(&data).await.unwrap() };
    zip(writing, reading).await;
}

async fn guards_outlive_everything(scene: Scene) {
    let (mut writer, mut reader) = scene.pair().await;
    let data = patterned(5_000);
    writer.write_all(&data).await.unwrap();
    let mut guards = Vec::new();
    let mut at = 0;
    while at < data.len() {
        let guard = reader.read_guard(700).await.unwrap();
        at += guard.len();
        guards.push((at - guard.len(), guard));
    }
    drop((writer, reader));
    // Connections that would use the buffer again.
    for _ in 0..5 {
        let (mut ours, mut theirs) = scene.pair().await;
        ours.write_all(&[0xff; 10_000]).await.unwrap();
        expect(&mut theirs, [0xff; 10_000]).await;
    }
    let Scene { client, server, .. } = scene;
    drop((client, server));
    for (start, guard) in guards {
        check(start, &guard);
    }
}

async fn bytes_released_on_a_thread_let_the_writer_go_on(scene: Scene) {
    let (mut writer, mut reader) = scene.pair().await;
    let all = patterned(100_000);
    let writing = async {
        writer.write_all(&all).await.unwrap();
        writer.close().await.unwrap();
    };
    let reading = async {
        let mut at = 0;
        loop {
            let guard = reader.read_guard(usize::MAX).await.unwrap();
            if guard.is_empty() {
                break;
            }
            let (start, bytes) = (at, guard.into_bytes());
            at += bytes.len();
            // They are released by that thread.
            thread::spawn(move || check(start, &bytes));
        }
        assert_eq!(at, all.len());
    };
    zip(writing, reading).await;
}

async fn the_oldest_guard_holds_the_writer_back(scene: Scene) {
    let (mut writer, mut reader) = scene.pair().await;
    let Some(ring) = reader.recv_buffer_size() else {
        println!("skipped: TCP has no ring");
        return;
    };
    writer.write_all(&vec![1; ring]).await.unwrap();
    let waits = |writer: &Stream| {
        let written = writer.try_write(&[2; 100]);
        written.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    };
    assert!(waits(&writer));
    let oldest = reader.read_guard(10).await.unwrap();
    let middle = reader.read_guard(ring / 2).await.unwrap();
    let mut rest = vec![0; ring - 10 - middle.len()];
    reader.read_exact(&mut rest).await.unwrap();
    if !scene.transport.is_trusted() {
        assert!(!waits(&writer), "copies hold nothing back");
        return;
    }
    assert!(waits(&writer));
    drop(middle);
    assert!(waits(&writer));
    let written = zip(writer.write_all(&[2; 100]), async { drop(oldest) }).await;
    written.0.unwrap();
    // A writer that waits is woken for any space, however little a guard has released.
    writer.write_all(&vec![3; ring - 100]).await.unwrap();
    assert!(waits(&writer));
    let one = reader.read_guard(1).await.unwrap();
    let two = reader.read_guard(1).await.unwrap();
    let _three = reader.read_guard(1).await.unwrap();
    drop(two);
    assert!(waits(&writer));
    drop(one);
    assert_eq!(writer.try_write(&[4; 100]).unwrap(), 2);
}

async fn ends_and_errors(scene: Scene) {
    let (mut writer, mut reader) = scene.pair().await;
    writer.write_all(b"last").await.unwrap();
    writer.shutdown_how(Shutdown::Write).unwrap();
    let refused = try_send(&mut writer).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::BrokenPipe);
    assert_eq!(&*reader.read_guard(0).await.unwrap(), b"");
    assert_eq!(&*reader.read_guard(100).await.unwrap(), b"last");
    assert!(reader.read_guard(100).await.unwrap().is_empty());

    // A peer that closes under a reservation.
    let (mut writer, reader) = scene.pair().await;
    writer.write_all(b"unread").await.unwrap();
    let mut space = writer.reserve(4).await.unwrap();
    drop(reader);
    space.write_all(b"lost").unwrap();
    let mut sent = space.commit(4).await;
    // TCP takes a while to notice.
    while sent.is_ok() && scene.transport == Transport::Tcp {
        sent = try_send(&mut writer).await;
    }
    let kind = sent.unwrap_err().kind();
    assert!(
        matches!(kind, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe),
        "{kind:?}"
    );
}

async fn try_send(writer: &mut Stream) -> std::io::Result<()> {
    let mut space = writer.reserve(4).await?;
    space.write_all(b"more")?;
    space.commit(4).await
}

async fn a_reservation_that_waits_can_be_dropped(scene: Scene) {
    let (mut writer, mut reader) = scene.pair().await;
    let Some(ring) = reader.recv_buffer_size() else {
        println!("skipped: on TCP it does not wait");
        return;
    };
    writer.write_all(&vec![1; ring]).await.unwrap();
    assert!(poll_once(writer.reserve(5)).await.is_none());
    let mut cx = Context::from_waker(Waker::noop());
    assert!(writer.poll_reserve(&mut cx, 5).is_pending());
    let (sent, ()) = zip(try_send(&mut writer), async {
        let mut all = vec![0; ring];
        reader.read_exact(&mut all).await.unwrap();
    })
    .await;
    sent.unwrap();
    expect(&mut reader, b"more").await;
}

async fn split_halves_reserve_and_read_guards(scene: Scene) {
    let (mut writer, mut reader) = scene.pair().await;
    {
        let (_, mut write) = Stream::split(&mut writer);
        let mut space = write.reserve(3).await.unwrap();
        space.write_all(b"one").unwrap();
        space.commit(3).await.unwrap();
        let (mut read, _) = Stream::split(&mut reader);
        assert_eq!(&*read.read_guard(10).await.unwrap(), b"one");
    }
    let (_, mut write) = writer.into_split();
    let (mut read, _write) = reader.into_split();
    let mut cx = Context::from_waker(Waker::noop());
    let Poll::Ready(space) = write.poll_reserve(&mut cx, 3) else {
        panic!("there is space");
    };
    let mut space = space.unwrap();
    space.write_all(b"two").unwrap();
    assert!(space.poll_commit(&mut cx, 3).is_ready());
    assert!(space.is_empty());
    drop(space);
    assert_eq!(&*read.read_guard(10).await.unwrap(), b"two");
}

async fn guards_of_a_closed_stream_do_not_affect_the_next(scene: Scene) {
    for round in 0..20 {
        let (mut writer, mut reader) = scene.pair().await;
        writer.write_all(&[round; 9_000]).await.unwrap();
        let old = reader.read_guard(4_000).await.unwrap();
        let older = reader.read_guard(4_000).await.unwrap();
        drop((writer, reader));
        let (mut writer, mut reader) = scene.pair().await;
        writer.write_all(b"hello").await.unwrap();
        assert!(old.iter().chain(&*older).all(|byte| *byte == round));
        drop(old);
        writer.write_all(&[7; 12_000]).await.unwrap();
        drop(older);
        let mut all = vec![0; 12_005];
        reader.read_exact(&mut all).await.unwrap();
        assert_eq!((&all[..5], all[12_004]), (&b"hello"[..], 7));
    }
    assert!(scene.world.dir().exists());
}

async fn consuming_more_than_was_shown_takes_what_was_shown(scene: Scene) {
    let (mut writer, mut reader) = scene.pair().await;
    for amount in [1_000, 5_000, usize::MAX] {
        writer.write_all(b"shown").await.unwrap();
        assert_eq!(reader.fill_buf().await.unwrap(), b"shown");
        writer.write_all(b"behind").await.unwrap();
        // Another look finds out that there is more, which was not shown.
        let mut all = [0; 11];
        while reader.peek(&mut all).await.unwrap() < 5 {}
        reader.consume(amount);
        // Nothing is shown any more.
        reader.consume(amount);
        let mut behind = [0; 6];
        reader.read_exact(&mut behind).await.unwrap();
        assert_eq!(&behind, b"behind", "after {amount}");
    }
    reader.consume(1_000);
    writer.write_all(b"end").await.unwrap();
    writer.close().await.unwrap();
    expect_rest(&mut reader, "end").await;
}

async fn wrong_amounts_consumed_beside_a_guard_leave_it_as_it_is(scene: Scene) {
    const LEN: usize = 300_000;
    let (mut writer, mut reader) = scene.pair().await;
    let all = patterned(LEN);
    let writing = async {
        writer.write_all(&all).await.unwrap();
        writer.close().await.unwrap();
    };
    let reading = async {
        let mut rng = Rng::new(5);
        let mut at = 0;
        'stream: loop {
            let guard = reader.read_guard(rng.between(1, 4_000)).await.unwrap();
            let start = at;
            at += guard.len();
            for _ in 0..rng.below(4) {
                if at - start > 7_000 {
                    // The ring may be full: waiting for more would be without end.
                    break;
                }
                let shown = reader.fill_buf().await.unwrap();
                check(at, shown);
                let len = shown.len();
                if len == 0 {
                    check(start, &guard);
                    break 'stream;
                }
                let amount = match rng.below(4) {
                    0 => rng.below(len + 1),
                    1 => len + 1 + rng.below(100_000),
                    2 => usize::MAX,
                    _ => len,
                };
                reader.consume(amount);
                at += amount.min(len);
                // The peer runs as far as it is let.
                yield_now().await;
                yield_now().await;
            }
            check(start, &guard);
            if guard.is_empty() {
                break;
            }
        }
        assert_eq!(at, LEN);
    };
    zip(writing, reading).await;
}

#[test]
fn guards_and_reservations_go_to_other_tasks() {
    fn is_send<T: Send>() {}
    fn is_shared<T: Send + Sync + 'static>() {}
    is_shared::<ReadGuard>();
    is_send::<Reservation<'static>>();
}

const RING: usize = 1 << 14;
