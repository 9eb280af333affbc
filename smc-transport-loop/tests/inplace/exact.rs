//! Reservations of an exact length.

use super::*;

pub(super) async fn records_of_an_exact_length_are_never_cut(scene: Scene) {
    const LEN: usize = 1_000_000;
    let (mut writer, mut reader) = scene.pair().await;
    let is_mapped = scene.transport.is_mapped();
    let writing = async {
        let mut rng = Rng::new(7);
        let (mut at, mut in_place, mut private) = (0, 0, 0);
        while at < LEN {
            let max = rng.between(1, 12_000).min(LEN - at);
            let min = match rng.below(2) {
                0 => max,
                _ => rng.between(1, max),
            };
            let mut space = match min == max {
                true => writer.reserve_exact(max).await.unwrap(),
                false => writer.reserve_at_least(min, max).await.unwrap(),
            };
            let len = space.len();
            assert!((min..=max).contains(&len), "{len} of {min} to {max}");
            match space.is_in_place() {
                true => in_place += 1,
                false => private += 1,
            }
            let bytes: Vec<u8> = (at..at + len).map(pattern).collect();
            match rng.below(3) {
                0 => space.write_all(&bytes).unwrap(),
                1 => {
                    let (one, two) = bytes.split_at(len / 2);
                    space.write_at(len / 2, two).unwrap();
                    space.write_at(0, one).unwrap();
                }
                _ => space.as_mut_slice().copy_from_slice(&bytes),
            }
            space.commit(len).await.unwrap();
            at += len;
        }
        writer.close().await.unwrap();
        // One in each round of the ring goes on at its start.
        assert_eq!((in_place > 0, private > 0), (is_mapped, true));
    };
    let reading = async {
        let mut rng = Rng::new(8);
        let mut at = 0;
        loop {
            let guard = reader.read_guard(rng.between(1, 9_000)).await.unwrap();
            if guard.is_empty() {
                break;
            }
            check(at, &guard);
            at += guard.len();
        }
        assert_eq!(at, LEN);
    };
    zip(writing, reading).await;
}

pub(super) async fn reservations_that_never_fit_are_refused(scene: Scene) {
    let (mut writer, mut reader) = scene.pair().await;
    let limit = writer.peer_recv_buffer_size().unwrap_or(512 << 20);
    let is_refused = |reserved: std::io::Result<Reservation<'_>>| {
        reserved.is_err_and(|error| error.kind() == ErrorKind::InvalidInput)
    };
    let error = writer.reserve_exact(limit + 1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    let text = format!(
        "misuse: a reservation has at most {limit} bytes here, and {} were requested",
        limit + 1
    );
    assert_eq!(error.to_string(), text);
    assert!(is_refused(writer.reserve_exact(usize::MAX).await));
    assert!(is_refused(
        writer.reserve_at_least(limit + 1, usize::MAX).await
    ));
    assert!(is_refused(writer.reserve_at_least(2, 1).await));
    assert!(writer.reserve_exact(0).await.unwrap().is_empty());
    assert!(writer.reserve_at_least(0, 0).await.unwrap().is_empty());
    let len = limit.min(16_000);
    assert_eq!(writer.reserve_at_least(0, len).await.unwrap().len(), len);
    let mut space = writer.reserve_exact(len).await.unwrap();
    space.as_mut_slice().fill(7);
    space.commit(len).await.unwrap();
    expect(&mut reader, vec![7; len]).await;
}

pub(super) async fn a_writer_that_waits_for_the_whole_ring_gets_it(scene: Scene) {
    let (mut writer, mut reader) = scene.pair().await;
    let ring = writer.peer_recv_buffer_size().unwrap_or(100_000);
    let writing = async {
        for round in 0..20 {
            // So little that the reader would keep it to itself.
            writer.write_all(&[round; 700]).await.unwrap();
            let mut space = writer.reserve_exact(ring).await.unwrap();
            space.as_mut_slice().fill(round);
            space.commit(ring).await.unwrap();
        }
    };
    let reading = async {
        for round in 0..20 {
            expect(&mut reader, vec![round; 700 + ring]).await;
        }
    };
    zip(writing, reading).await;
}

pub(super) async fn an_exact_reservation_that_waits_can_be_dropped(scene: Scene) {
    let (mut writer, mut reader) = scene.pair().await;
    let Some(ring) = writer.peer_recv_buffer_size() else {
        println!("skipped: on TCP it does not wait");
        return;
    };
    for round in 0..10 {
        writer.write_all(&[round; 5_000]).await.unwrap();
        assert!(poll_once(writer.reserve_exact(ring)).await.is_none());
        let mut cx = Context::from_waker(Waker::noop());
        assert!(writer.poll_reserve_exact(&mut cx, ring).is_pending());
        assert!(
            writer
                .poll_reserve_at_least(&mut cx, ring, ring)
                .is_pending()
        );
        // What there is space for is as near as before.
        writer.write_all(&[round; 1_000]).await.unwrap();
        let mut space = writer.reserve_exact(1_000).await.unwrap();
        space.as_mut_slice().fill(round);
        space.commit(1_000).await.unwrap();
        expect(&mut reader, [round; 7_000]).await;
    }
}

pub(super) async fn halves_reserve_exactly_too(scene: Scene) {
    let (mut writer, mut reader) = scene.pair().await;
    {
        let (_, mut write) = Stream::split(&mut writer);
        let mut space = write.reserve_exact(3).await.unwrap();
        space.write_all(b"one").unwrap();
        space.commit(3).await.unwrap();
        let mut space = write.reserve_at_least(2, 3).await.unwrap();
        space.write_all(b"two").unwrap();
        space.commit(3).await.unwrap();
    }
    let (_, mut write) = writer.into_split();
    let mut cx = Context::from_waker(Waker::noop());
    for word in [b"3rd", b"4th"] {
        let space = match word {
            b"3rd" => write.poll_reserve_exact(&mut cx, 3),
            _ => write.poll_reserve_at_least(&mut cx, 3, 3),
        };
        let Poll::Ready(space) = space else {
            panic!("there is space");
        };
        let mut space = space.unwrap();
        space.write_all(word).unwrap();
        assert!(space.poll_commit(&mut cx, 3).is_ready());
    }
    expect(&mut reader, b"onetwo3rd4th").await;
}
