use super::*;

fn cdc(sequence: u16, producer: Cursor, consumer: Cursor) -> CdcR {
    CdcR {
        producer,
        consumer,
        ..CdcR::new(sequence, token())
    }
}

/// The local element has 1000 bytes, the peer's 500.
fn arrivals() -> Arrivals {
    Arrivals::new(ring(1000), ring(500))
}

fn update(arrivals: &mut Arrivals, cdc: &CdcR) -> CdcUpdate {
    match arrivals.handle(cdc) {
        Ok(Arrival::Update(update)) => update,
        other => panic!("{other:?}"),
    }
}

#[test]
fn cursors_and_flags_are_accepted() {
    let mut arrivals = arrivals();
    let received = CdcR {
        producer_flags: BLOCKED,
        state_flags: D,
        ..cdc(1, cursor(0, 600), cursor(0, 200))
    };
    let update = update(&mut arrivals, &received);
    assert_eq!((update.arrived, update.freed), (600, 200));
    assert_eq!(update.producer.cursor, cursor(0, 600));
    assert_eq!(update.consumer.cursor, cursor(0, 200));
    assert_eq!(update.consumer.producer_flags, BLOCKED);
    assert_eq!(update.consumer.state_flags, D);
    assert_eq!(update.state, D);
    assert!(update.uncork && !update.requests_update);
    assert_eq!(arrivals.sequence, 1);
}

#[test]
fn freed_space_is_a_reason_to_push() {
    let mut arrivals = arrivals();
    let update = update(&mut arrivals, &cdc(1, Cursor::START, cursor(0, 200)));
    assert!(update.uncork);
}

#[test]
fn flags_are_new_once() {
    let mut arrivals = arrivals();
    let mut end = cdc(1, Cursor::START, Cursor::START);
    end.state_flags = D;
    assert_eq!(update(&mut arrivals, &end).state, D);
    end.sequence = 2;
    end.state_flags = D | C;
    assert_eq!(update(&mut arrivals, &end).state, C);
    end.sequence = 3;
    assert_eq!(update(&mut arrivals, &end).state, NONE);
}

#[test]
fn older_numbers_are_dropped_and_equal_ones_are_not() {
    let mut arrivals = arrivals();
    let first = cdc(1, cursor(0, 100), Cursor::START);
    let third = cdc(3, cursor(0, 300), Cursor::START);
    update(&mut arrivals, &third);
    assert_eq!(arrivals.handle(&first), Ok(Arrival::Stale));
    assert_eq!(update(&mut arrivals, &third).arrived, 0);
    assert_eq!(arrivals.producer, cursor(0, 300));
}

#[test]
fn sequence_numbers_wrap_around() {
    let mut arrivals = arrivals();
    for sequence in (1..=u16::MAX).chain(0..10) {
        update(&mut arrivals, &cdc(sequence, Cursor::START, Cursor::START));
    }
    for older in [8, 0, u16::MAX, 32_777] {
        let old = cdc(older, cursor(0, 5), Cursor::START);
        assert_eq!(arrivals.handle(&old), Ok(Arrival::Stale), "{older}");
    }
    let newer = cdc(32_776, cursor(0, 5), Cursor::START);
    assert_eq!(update(&mut arrivals, &newer).arrived, 5);
}

#[test]
fn a_cursor_that_goes_back_is_ignored_and_the_rest_accepted() {
    let mut arrivals = arrivals();
    update(&mut arrivals, &cdc(1, cursor(0, 900), cursor(0, 50)));
    update(&mut arrivals, &cdc(1, cursor(1, 100), cursor(0, 50)));
    // Across a wrap too, and then with a wrap of zero.
    for (sequence, producer) in [(2, cursor(1, 40)), (3, cursor(0, 700))] {
        let consumer = cursor(0, 50 + u32::from(sequence));
        let again = CdcR {
            state_flags: D,
            ..cdc(sequence, producer, consumer)
        };
        let update = update(&mut arrivals, &again);
        assert_eq!(update.arrived, 0);
        assert_eq!(update.producer.cursor, cursor(1, 100));
        assert_eq!(update.consumer.cursor, consumer);
        assert_eq!(update.consumer.state_flags, D);
    }
}

#[test]
fn cursors_wrap_through_zero() {
    let mut arrivals = arrivals();
    let mut sequence = 0;
    for wrap in (0..=u16::MAX).chain(0..3) {
        sequence = u16::wrapping_add(sequence, 1);
        let position = cursor(wrap, 10);
        let received = cdc(sequence, position, position);
        let update = update(&mut arrivals, &received);
        assert_eq!(update.producer.cursor, position);
        if sequence > 1 {
            assert_eq!((update.arrived, update.freed), (1000, 500));
        }
        // One behind, across the wrap through zero as well.
        let behind = cdc(sequence, cursor(wrap.wrapping_sub(1), 999), position);
        let kept = arrivals.handle(&behind).unwrap();
        assert!(matches!(kept, Arrival::Update(kept) if kept.arrived == 0));
        assert_eq!(arrivals.producer, position);
    }
}

#[test]
fn hostile_cursors_are_refused_and_change_nothing() {
    let mut arrivals = arrivals();
    for wrap in 0..=5 {
        let (producer, consumer) = (cursor(wrap, 100), cursor(wrap, 50));
        update(&mut arrivals, &cdc(1, producer, consumer));
    }
    let known = (cursor(5, 100), cursor(5, 50));
    let hostile = [
        (cursor(5, 1000), known.1),
        (cursor(5, u32::MAX), known.1),
        (cursor(4, 1000), known.1),
        (cursor(6, 101), known.1),
        (cursor(7, 0), known.1),
        (cursor(65_535, 0), known.1),
        (cursor(0, 0), known.1),
        (known.0, cursor(5, 500)),
        (known.0, cursor(6, 51)),
    ];
    for (producer, consumer) in hostile {
        let refused = arrivals.handle(&cdc(2, producer, consumer));
        let refused = refused.unwrap_err();
        assert!(matches!(refused, PeerMisbehaved::Cursor(_)), "{refused}");
        assert_eq!((arrivals.producer, arrivals.consumer), known);
        assert_eq!(arrivals.sequence, 1);
    }
}

#[test]
fn urgent_data_and_requests_need_an_update() {
    for (flags, push) in [
        (ProducerFlags::URGENT_PENDING, true),
        (ProducerFlags::URGENT_PRESENT, false),
        (ProducerFlags::UPDATE_REQUESTED, true),
    ] {
        let received = CdcR {
            producer_flags: flags,
            ..cdc(1, Cursor::START, Cursor::START)
        };
        let update = update(&mut arrivals(), &received);
        assert!(update.requests_update, "{flags}");
        assert_eq!(update.uncork, push, "{flags}");
    }
}

#[test]
fn a_validation_is_compared_by_number_only() {
    let mut arrivals = arrivals();
    for sequence in [30_000, 60_000, 65_535] {
        update(
            &mut arrivals,
            &cdc(sequence, cursor(0, 600), cursor(0, 200)),
        );
    }
    for acknowledged in [65_535, 65_534, 32_768] {
        let validation = CdcR {
            producer: cursor(9, u32::MAX),
            consumer: cursor(9, u32::MAX),
            state_flags: A,
            ..CdcR::failover(acknowledged, token())
        };
        assert_eq!(arrivals.handle(&validation), Ok(Arrival::Validated));
    }
    let missed = Arrival::Missed {
        received: 65_535,
        acknowledged: 0,
    };
    let validation = CdcR::failover(0, token());
    assert_eq!(arrivals.handle(&validation), Ok(missed));
    assert_eq!(arrivals.sequence, 65_535);
    assert_eq!(arrivals.producer, cursor(0, 600));
}

/// Arbitrary messages of a peer: no panic, and a cursor never leaves its ring.
#[test]
fn arbitrary_messages_of_a_peer_are_handled() {
    let values = [0, 1, 2, 499, 500, 999, 1000, 32_767, 32_768, 65_535];
    let mut arrivals = arrivals();
    for seed in 0..200_000_usize {
        let pick = |turn: usize| values[(seed / turn) % values.len()];
        let small = |turn: usize| u16::try_from(pick(turn)).unwrap();
        let received = CdcR {
            producer_flags: ProducerFlags::from_bits_retain(small(7).to_be_bytes()[1]),
            ..cdc(
                arrivals.sequence.wrapping_add(small(1) % 3),
                cursor(small(10), pick(100)),
                cursor(small(1000), pick(10_000)),
            )
        };
        let _any = arrivals.handle(&received);
        assert!(arrivals.producer.count < 1000);
        assert!(arrivals.consumer.count < 500);
    }
}
