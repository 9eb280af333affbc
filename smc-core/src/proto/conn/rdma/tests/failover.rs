use super::*;

#[test]
fn what_was_not_completed_is_written_again_to_the_same_place() {
    let mut transmit = transmit(1000, 600);
    let first = send(&mut transmit, 100);
    transmit.handle_completed(first.id);
    let lost = send(&mut transmit, 200);
    transmit.stage(50);
    transmit.failover();
    assert_eq!(transmit.in_flight.posts.len(), 0);
    let again = moved(&mut transmit, 1);
    let [write] = again.writes().collect::<Vec<_>>()[..] else {
        panic!("one write");
    };
    assert_eq!(write.pieces[0], Piece { at: 100, len: 250 });
    assert_eq!(write.at, 100);
    assert_eq!(again.cdc.producer, cursor(0, 350));
    assert_eq!(again.cdc.sequence, 3, "numbers continue");
    assert_eq!(transmit.handle_completed(lost.id), 0, "of the old link");
    assert_eq!(transmit.handle_completed(again.id), 250);
}

#[test]
fn a_connection_that_has_sent_nothing_moves_too() {
    let mut transmit = transmit(1000, 600);
    transmit.failover();
    let full = moved(&mut transmit, 0);
    assert_eq!(full.cdc, CdcR::new(1, token()));
    transmit.handle_completed(full.id);
    assert!(transmit.is_idle());
}

#[test]
fn with_nothing_in_flight_a_full_cdc_follows_all_the_same() {
    let mut transmit = transmit(1000, 600);
    let post = send(&mut transmit, 600);
    transmit.handle_completed(post.id);
    transmit.set_consumer(cursor(0, 77));
    let lost = only_post(&mut transmit);
    transmit.failover();
    let full = moved(&mut transmit, 1);
    assert_eq!(full.payload(), 0);
    assert_eq!(full.cdc.sequence, lost.cdc.sequence + 1);
    assert_eq!(full.cdc.producer, cursor(1, 0));
    assert_eq!(full.cdc.consumer, cursor(0, 77));
    assert_eq!(full.cdc.producer_flags, ASKING);
}

#[test]
fn in_every_closing_state_data_and_flags_are_sent_again() {
    for flags in [D, C, D | C, A, D | A] {
        for in_flight in [false, true] {
            let mut transmit = transmit(1000, 600);
            let post = send(&mut transmit, 100);
            if !in_flight {
                transmit.handle_completed(post.id);
            }
            if flags.contains(D) {
                transmit.set_flags(D);
                let done = only_post(&mut transmit);
                if flags != D && !in_flight {
                    transmit.handle_completed(done.id);
                }
            }
            transmit.set_flags(flags);
            while transmit.poll_post().is_some() {}
            transmit.failover();
            assert!(!transmit.is_flushed());
            let completed = match (in_flight, flags.contains(D) && flags != D) {
                (true, _) => 0,
                (false, false) => 1,
                (false, true) => 2,
            };
            let full = moved(&mut transmit, completed);
            assert_eq!(full.cdc.state_flags, flags, "{flags:?}");
            assert_eq!(full.payload(), if in_flight { 100 } else { 0 });
            assert_eq!(full.cdc.producer, cursor(0, 100));
            assert!(transmit.is_flushed());
            assert_eq!(transmit.poll_post(), None);
            transmit.handle_completed(full.id);
            assert!(transmit.is_idle());
        }
    }
}

#[test]
fn flags_that_were_completed_are_sent_again_too() {
    let mut transmit = transmit(1000, 600);
    transmit.set_flags(C);
    let closed = only_post(&mut transmit);
    transmit.handle_completed(closed.id);
    assert!(transmit.is_idle());
    transmit.failover();
    assert!(!transmit.is_idle());
    assert_eq!(moved(&mut transmit, 1).cdc.state_flags, C);
}

#[test]
fn an_abort_after_a_failover_repeats_all_flags_that_were_sent() {
    let mut transmit = transmit(1000, 600);
    send(&mut transmit, 100);
    transmit.stage(300);
    transmit.failover();
    transmit.set_flags(A);
    let full = moved(&mut transmit, 0);
    assert_eq!(full.payload(), 100, "only what the peer may have seen");
    assert_eq!(full.cdc.producer, cursor(0, 100));
    assert_eq!(full.cdc.state_flags, A);
}

#[test]
fn what_the_peer_has_read_is_not_written_again() {
    let mut transmit = transmit(1000, 600);
    send(&mut transmit, 300);
    transmit.handle_peer(cursor(0, 200)).unwrap();
    transmit.failover();
    assert_eq!(transmit.space(), 900, "200 bytes need not be kept");
    let again = moved(&mut transmit, 0);
    assert_eq!(again.spans[0].pieces[0], Piece { at: 200, len: 100 });
    assert_eq!(again.spans[0].at, 200);
    assert_eq!(transmit.peer_space(), 500);
}

#[test]
fn the_peer_may_move_its_consumer_cursor_before_data_is_posted_again() {
    let mut transmit = transmit(1000, 600);
    send(&mut transmit, 300);
    transmit.failover();
    let beyond = transmit.handle_peer(cursor(0, 301));
    assert_eq!(beyond, Err(PeerMisbehaved::PassedTheData));
    assert_eq!(transmit.handle_peer(cursor(0, 300)), Ok(300));
    assert_eq!(transmit.space(), 1000);
    let full = moved(&mut transmit, 0);
    assert_eq!((full.payload(), full.cdc.producer), (0, cursor(0, 300)));
}

#[test]
fn a_full_ring_is_written_again_across_its_end() {
    let mut transmit = transmit(1000, 300);
    let post = send(&mut transmit, 200);
    transmit.handle_completed(post.id);
    transmit.handle_peer(cursor(0, 200)).unwrap();
    let lost = send(&mut transmit, 300);
    assert_eq!(lost.cdc.producer_flags, BLOCKED);
    transmit.stage(100);
    transmit.failover();
    let again = moved(&mut transmit, 1);
    assert_eq!(again.spans, lost.spans);
    assert_eq!(again.cdc.producer, lost.cdc.producer);
    assert_eq!(again.cdc.producer_flags, ASKING);
}

#[test]
fn a_second_failover_before_anything_was_posted_starts_over() {
    let mut transmit = transmit(1000, 300);
    send(&mut transmit, 200);
    transmit.failover();
    transmit.failover();
    moved(&mut transmit, 0);
    transmit.failover();
    let again = moved(&mut transmit, 0);
    assert_eq!(again.payload(), 200);
    assert_eq!(again.cdc.sequence, 3);
    assert_eq!(transmit.poll_post(), None);
}

#[test]
fn the_completion_of_a_validation_has_no_effect() {
    let mut transmit = transmit(1000, 300);
    send(&mut transmit, 200);
    transmit.failover();
    let validation = transmit.poll_post().unwrap();
    assert_eq!(transmit.handle_completed(validation.id), 0);
    transmit.failover();
    moved(&mut transmit, 0);
}

#[test]
fn without_space_on_the_new_link_both_are_due_again() {
    let mut transmit = transmit(1000, 300);
    send(&mut transmit, 200);
    transmit.failover();
    for _ in 0..3 {
        let validation = transmit.poll_post().unwrap();
        assert_eq!(validation.cdc.producer_flags, VALIDATION);
        transmit.cancel_post();
    }
    transmit.poll_post().unwrap();
    let full = transmit.poll_post().unwrap();
    transmit.cancel_post();
    let again = transmit.poll_post().unwrap();
    assert_eq!((again.cdc, again.spans), (full.cdc, full.spans));
    assert_eq!(transmit.poll_post(), None);
}

#[test]
fn data_sent_again_is_not_corked() {
    let mut transmit = transmit(1000, 300);
    let completed = send(&mut transmit, 100);
    transmit.stage(10);
    transmit.failover();
    assert_eq!(transmit.handle_completed(completed.id), 0);
    assert_eq!(moved(&mut transmit, 0).payload(), 110);
    transmit.stage(10);
    assert_eq!(transmit.poll_post(), None, "corked as usual");
}

/// A sender that moves between links, and a receiver that has received everything.
#[test]
fn the_receiver_validates_what_it_has() {
    let mut transmit = transmit(1000, 300);
    let mut arrivals = Arrivals::new(ring(300), ring(300));
    let first = send(&mut transmit, 100);
    arrivals.handle(&first.cdc).unwrap();
    transmit.handle_completed(first.id);
    // Arrived, but the completion is lost.
    let second = send(&mut transmit, 100);
    arrivals.handle(&second.cdc).unwrap();
    transmit.failover();
    let validation = transmit.poll_post().unwrap();
    assert_eq!(arrivals.handle(&validation.cdc), Ok(Arrival::Validated));
    let full = transmit.poll_post().unwrap();
    let Ok(Arrival::Update(update)) = arrivals.handle(&full.cdc) else {
        panic!("a full CDC is accepted");
    };
    assert_eq!(update.arrived, 0);
}

#[test]
fn a_receiver_that_lags_by_one_completed_cdc_validates() {
    // Also where sequence numbers wrap around.
    for before in [0, 1, 65_534, 65_535, 65_536] {
        let mut transmit = transmit(1000, 300);
        let mut arrivals = Arrivals::new(ring(300), ring(300));
        for _ in 0..before {
            transmit.set_consumer(cursor(0, 0));
            let post = only_post(&mut transmit);
            arrivals.handle(&post.cdc).unwrap();
            transmit.handle_completed(post.id);
        }
        // Its transmission is completed, and it is still in another receive queue of the peer.
        let late = send(&mut transmit, 100);
        transmit.handle_completed(late.id);
        transmit.failover();
        let validation = transmit.poll_post().unwrap();
        assert_eq!(arrivals.handle(&validation.cdc), Ok(Arrival::Validated));
        let full = transmit.poll_post().unwrap();
        let Ok(Arrival::Update(update)) = arrivals.handle(&full.cdc) else {
            panic!("a full CDC is accepted");
        };
        assert_eq!(
            update.arrived, 100,
            "it repeats the contents of the late one"
        );
        assert_eq!(arrivals.handle(&late.cdc), Ok(Arrival::Stale));
    }
}

#[test]
fn the_receiver_detects_missing_cdcs() {
    let mut transmit = transmit(1000, 300);
    let mut arrivals = Arrivals::new(ring(300), ring(300));
    let first = send(&mut transmit, 100);
    transmit.stage(100);
    transmit.uncork();
    let second = only_post(&mut transmit);
    // Acknowledged by a device that failed before the messages were polled.
    transmit.handle_completed(second.id);
    transmit.failover();
    let validation = transmit.poll_post().unwrap();
    let full = transmit.poll_post().unwrap();
    let missed = Arrival::Missed {
        received: 0,
        acknowledged: 1,
    };
    assert_eq!(arrivals.handle(&validation.cdc), Ok(missed));
    assert_eq!(arrivals.missing(), Some(1));
    // Data behind it must not be read before it has come.
    for held in [&full, &validation] {
        assert_eq!(arrivals.handle(&held.cdc), Ok(Arrival::Held));
    }
    // It was still in the queue of another device.
    arrivals.handle(&first.cdc).unwrap();
    assert_eq!(arrivals.missing(), None);
    assert_eq!(arrivals.handle(&validation.cdc), Ok(Arrival::Validated));
    let Ok(Arrival::Update(update)) = arrivals.handle(&full.cdc) else {
        panic!("a full CDC is accepted");
    };
    assert_eq!(update.producer.cursor, cursor(0, 200));
}

#[test]
fn after_a_lost_cdc_only_the_close_of_the_peer_counts() {
    let mut arrivals = Arrivals::new(ring(300), ring(300));
    let cdc = |sequence, flags| CdcR {
        producer: cursor(0, 100),
        producer_flags: ProducerFlags::UPDATE_REQUESTED,
        state_flags: flags,
        ..CdcR::new(sequence, token())
    };
    let validation = CdcR::failover(5, token());
    assert!(matches!(
        arrivals.handle(&validation),
        Ok(Arrival::Missed { .. })
    ));
    assert_eq!(arrivals.handle(&cdc(6, A)), Ok(Arrival::Held));
    arrivals.give_up();
    assert_eq!(arrivals.missing(), None);
    let Ok(Arrival::Update(update)) = arrivals.handle(&cdc(6, A)) else {
        panic!("the abort is accepted");
    };
    assert_eq!((update.arrived, update.state), (0, A));
    assert_eq!(update.producer.cursor, Cursor::START);
    assert!(!update.uncork && !update.requests_update);
    for again in [cdc(5, NONE), CdcR::failover(9, token())] {
        assert_eq!(arrivals.handle(&again), Ok(Arrival::Stale));
    }
}
