use super::*;

#[test]
fn data_is_written_and_a_cdc_follows() {
    let mut transmit = transmit(1000, 500);
    assert_eq!(transmit.space(), 1000);
    assert_eq!(transmit.poll_post(), None, "nothing to send");
    let post = send(&mut transmit, 100);
    let writes: Vec<_> = post.writes().collect();
    let pieces = [Piece { at: 0, len: 100 }, Piece::default()];
    assert_eq!(writes, [&PeerWrite { pieces, at: 0 }]);
    let expected = CdcR {
        producer: cursor(0, 100),
        ..CdcR::new(1, token())
    };
    assert_eq!(post.cdc, expected);
    assert_eq!(transmit.space(), 900, "not freed until completed");
    assert_eq!(transmit.handle_completed(post.id), 100);
    assert_eq!(transmit.space(), 1000);
    assert_eq!(transmit.peer_space(), 400, "not read yet");
    assert!(transmit.is_idle());
}

#[test]
fn data_that_passes_the_end_of_the_peers_ring_takes_two_writes_and_one_cdc() {
    let mut transmit = transmit(1000, 300);
    let post = send(&mut transmit, 200);
    transmit.handle_completed(post.id);
    transmit.handle_peer(cursor(0, 200)).unwrap();
    let post = send(&mut transmit, 250);
    let writes: Vec<_> = post.writes().copied().collect();
    let expected = [
        PeerWrite {
            pieces: [Piece { at: 200, len: 100 }, Piece { at: 0, len: 0 }],
            at: 200,
        },
        PeerWrite {
            pieces: [Piece { at: 300, len: 150 }, Piece { at: 0, len: 0 }],
            at: 0,
        },
    ];
    assert_eq!(writes, expected);
    assert_eq!(post.cdc.producer, cursor(1, 150));
}

#[test]
fn data_that_passes_the_end_of_the_staging_ring_is_gathered_from_two_pieces() {
    let mut transmit = transmit(300, 1000);
    let post = send(&mut transmit, 250);
    transmit.handle_completed(post.id);
    assert_eq!(transmit.at(), 250);
    let post = send(&mut transmit, 120);
    let writes: Vec<_> = post.writes().copied().collect();
    let pieces = [Piece { at: 250, len: 50 }, Piece { at: 0, len: 70 }];
    assert_eq!(writes, [PeerWrite { pieces, at: 250 }]);
    assert_eq!(transmit.at(), 70);
}

#[test]
fn both_rings_can_end_within_one_post() {
    let mut transmit = transmit(300, 280);
    let post = send(&mut transmit, 200);
    transmit.handle_completed(post.id);
    transmit.handle_peer(cursor(0, 200)).unwrap();
    let post = send(&mut transmit, 270);
    let writes: Vec<_> = post.writes().copied().collect();
    let expected = [
        PeerWrite {
            pieces: [Piece { at: 200, len: 80 }, Piece { at: 0, len: 0 }],
            at: 200,
        },
        PeerWrite {
            pieces: [Piece { at: 280, len: 20 }, Piece { at: 0, len: 170 }],
            at: 0,
        },
    ];
    assert_eq!(writes, expected);
}

#[test]
fn writes_go_behind_the_start_of_the_element() {
    let base = 254 * (512 << 20);
    let (staging, peer) = (ring(100), ring(100));
    let mut transmit = Transmit::new(staging, peer, token(), base, AUTOCORK);
    let post = send(&mut transmit, 60);
    assert_eq!(post.spans[0].at, base);
    transmit.handle_completed(post.id);
    transmit.handle_peer(cursor(0, 60)).unwrap();
    let post = send(&mut transmit, 60);
    assert_eq!([post.spans[0].at, post.spans[1].at], [base + 60, base]);
}

#[test]
fn filling_the_ring_exactly_sets_writer_blocked() {
    let mut transmit = transmit(1000, 300);
    let post = send(&mut transmit, 300);
    assert_eq!(post.cdc.producer, cursor(1, 0));
    assert_eq!(post.cdc.producer_flags, BLOCKED);
    assert_eq!(transmit.peer_space(), 0);
}

#[test]
fn one_byte_less_than_the_ring_does_not() {
    let mut transmit = transmit(1000, 300);
    let post = send(&mut transmit, 299);
    assert_eq!(post.cdc.producer_flags, ProducerFlags::empty());
}

#[test]
fn the_flag_is_set_anew_with_payload_only() {
    let mut transmit = transmit(1000, 300);
    let post = send(&mut transmit, 300);
    transmit.handle_completed(post.id);
    transmit.handle_peer(cursor(1, 0)).unwrap();
    transmit.set_consumer(cursor(0, 50));
    let bare = only_post(&mut transmit);
    assert_eq!(bare.cdc.producer_flags, BLOCKED, "repeated");
    let post = send(&mut transmit, 10);
    assert_eq!(post.cdc.producer_flags, ProducerFlags::empty());
}

#[test]
fn a_slow_reader_gets_as_much_as_it_frees() {
    let mut transmit = transmit(1000, 300);
    assert_eq!(transmit.stage(1000), 1000);
    let first = only_post(&mut transmit);
    assert_eq!(first.payload(), 300);
    assert_eq!(transmit.handle_completed(first.id), 300);
    assert_eq!(transmit.poll_post(), None, "the peer has no space");
    assert_eq!(transmit.space(), 300);
    for step in 1..=10_u16 {
        let read = u32::from(step) * 70;
        let position = cursor(u16::try_from(read / 300).unwrap(), read % 300);
        assert_eq!(transmit.handle_peer(position), Ok(70));
        let post = only_post(&mut transmit);
        assert_eq!(post.payload(), 70);
        assert_eq!(post.cdc.producer_flags, BLOCKED);
        transmit.handle_completed(post.id);
    }
    assert_eq!(transmit.unposted(), 0);
    assert_eq!(transmit.space(), 1000);
}

#[test]
fn small_writes_are_gathered_while_payload_is_in_flight() {
    let mut transmit = transmit(1000, 4000);
    let first = send(&mut transmit, 10);
    for _ in 0..20 {
        assert_eq!(transmit.stage(10), 10);
        assert_eq!(transmit.poll_post(), None);
    }
    assert_eq!(transmit.unposted(), 200);
    assert!(!transmit.is_flushed());
    transmit.handle_completed(first.id);
    let staged = only_post(&mut transmit);
    assert_eq!(staged.payload(), 200);
    assert_eq!(staged.cdc.sequence, 2);
}

#[test]
fn more_than_half_of_the_staging_ring_is_not_corked() {
    let mut transmit = transmit(1000, 4000);
    send(&mut transmit, 10);
    transmit.stage(500);
    assert_eq!(transmit.poll_post(), None);
    transmit.stage(1);
    assert_eq!(only_post(&mut transmit).payload(), 501);
}

#[test]
fn the_cork_limit_can_be_set() {
    for (autocork, sent) in [(0, 1), (99, 100), (64 * 1024, 501)] {
        let (staging, peer) = (ring(1000), ring(4000));
        let mut transmit = Transmit::new(staging, peer, token(), 0, autocork);
        send(&mut transmit, 10);
        let mut staged = 0;
        let post = loop {
            staged += transmit.stage(1);
            if let Some(post) = transmit.poll_post() {
                break post;
            }
        };
        assert_eq!((post.payload(), staged), (sent, sent), "{autocork}");
    }
}

#[test]
fn uncorking_sends_what_is_staged_so_far() {
    let mut transmit = transmit(1000, 4000);
    send(&mut transmit, 10);
    transmit.stage(10);
    transmit.uncork();
    assert_eq!(only_post(&mut transmit).payload(), 10);
    transmit.stage(10);
    assert_eq!(transmit.poll_post(), None, "corked again");
}

#[test]
fn new_space_of_the_peer_uncorks() {
    let mut transmit = transmit(1000, 4000);
    send(&mut transmit, 10);
    transmit.stage(10);
    assert_eq!(transmit.poll_post(), None);
    transmit.handle_peer(cursor(0, 10)).unwrap();
    assert_eq!(only_post(&mut transmit).payload(), 10);
}

#[test]
fn a_consumer_update_in_flight_does_not_cork_data() {
    let mut transmit = transmit(1000, 4000);
    transmit.set_consumer(cursor(0, 100));
    let bare = only_post(&mut transmit);
    assert_eq!(bare.payload(), 0);
    send(&mut transmit, 10);
}

#[test]
fn consumer_updates_are_sent_one_at_a_time_with_the_newest_cursor() {
    let mut transmit = transmit(1000, 4000);
    transmit.set_consumer(cursor(0, 100));
    let first = only_post(&mut transmit);
    assert_eq!(first.cdc.consumer, cursor(0, 100));
    transmit.set_consumer(cursor(0, 200));
    transmit.set_consumer(cursor(0, 300));
    assert_eq!(transmit.poll_post(), None);
    assert!(!transmit.is_idle());
    assert_eq!(transmit.handle_completed(first.id), 0);
    let second = only_post(&mut transmit);
    assert_eq!(second.cdc.consumer, cursor(0, 300));
    assert_eq!(second.cdc.sequence, 2);
    transmit.handle_completed(second.id);
    assert_eq!(transmit.poll_post(), None);
    assert!(transmit.is_idle());
}

#[test]
fn payload_carries_an_update_along() {
    let mut transmit = transmit(1000, 4000);
    transmit.set_consumer(cursor(0, 100));
    let post = send(&mut transmit, 10);
    assert_eq!(post.cdc.consumer, cursor(0, 100));
    transmit.handle_completed(post.id);
    let post = send(&mut transmit, 10);
    assert_eq!(post.cdc.consumer, cursor(0, 100), "repeated");
}

#[test]
fn a_half_close_waits_for_all_data() {
    let mut transmit = transmit(1000, 300);
    transmit.stage(500);
    transmit.set_flags(D);
    let first = only_post(&mut transmit);
    assert_eq!((first.payload(), first.cdc.state_flags), (300, NONE));
    assert_eq!(transmit.stage(10), 0, "no data behind the end");
    transmit.handle_completed(first.id);
    assert_eq!(transmit.poll_post(), None);
    assert!(!transmit.is_flushed());
    transmit.set_consumer(cursor(0, 5));
    let bare = only_post(&mut transmit);
    assert_eq!(bare.cdc.state_flags, NONE);
    transmit.handle_peer(cursor(0, 150)).unwrap();
    let second = only_post(&mut transmit);
    assert_eq!((second.payload(), second.cdc.state_flags), (150, NONE));
    transmit.handle_peer(cursor(1, 0)).unwrap();
    let last = only_post(&mut transmit);
    assert_eq!((last.payload(), last.cdc.state_flags), (50, D));
    assert!(transmit.is_flushed());
    assert!(!transmit.is_idle());
    transmit.handle_completed(last.id);
    assert!(transmit.is_idle(), "all posts up to the last are completed");
}

#[test]
fn a_close_uncorks_data() {
    let mut transmit = transmit(1000, 4000);
    send(&mut transmit, 10);
    transmit.stage(10);
    assert_eq!(transmit.poll_post(), None);
    transmit.set_flags(C);
    let post = only_post(&mut transmit);
    assert_eq!((post.payload(), post.cdc.state_flags), (10, C));
}

#[test]
fn flags_stay_set() {
    let mut transmit = transmit(1000, 4000);
    transmit.set_flags(D);
    let done = only_post(&mut transmit);
    assert_eq!(done.cdc.state_flags, D);
    transmit.set_consumer(cursor(0, 9));
    assert_eq!(
        transmit.poll_post(),
        None,
        "one CDC without payload at a time"
    );
    transmit.handle_completed(done.id);
    assert_eq!(only_post(&mut transmit).cdc.state_flags, D);
    transmit.set_flags(C);
    assert_eq!(transmit.poll_post(), None);
    transmit.handle_completed(PostId(2));
    assert_eq!(only_post(&mut transmit).cdc.state_flags, D | C);
}

#[test]
fn an_abort_is_sent_at_once_and_discards_data() {
    let mut transmit = transmit(1000, 300);
    send(&mut transmit, 300);
    transmit.stage(200);
    transmit.set_flags(C);
    transmit.set_consumer(cursor(0, 9));
    let bare = only_post(&mut transmit);
    assert_eq!(bare.payload(), 0);
    assert_eq!(transmit.unposted(), 200);
    transmit.set_flags(A);
    assert_eq!(transmit.unposted(), 0);
    let abort = only_post(&mut transmit);
    assert_eq!(abort.cdc.state_flags, A, "the stream was not closed");
    assert_eq!(abort.cdc.producer, cursor(1, 0));
    transmit.handle_peer(cursor(1, 0)).unwrap();
    transmit.set_consumer(cursor(0, 19));
    assert_eq!(transmit.poll_post(), None, "nothing behind an abort");
    transmit.handle_completed(abort.id);
    assert!(transmit.is_idle());
}

#[test]
fn flags_do_not_wait_for_data_that_is_not_read() {
    let mut transmit = transmit(1000, 300);
    transmit.stage(500);
    transmit.set_flags(D | C);
    let post = only_post(&mut transmit);
    assert_eq!((post.payload(), post.cdc.state_flags), (300, NONE));
    transmit.handle_peer_closed();
    let last = only_post(&mut transmit);
    assert_eq!((last.payload(), last.cdc.state_flags), (0, D | C));
    assert_eq!(last.cdc.producer, cursor(1, 0));
    assert!(transmit.is_flushed());
}

#[test]
fn no_data_is_accepted_for_a_peer_that_has_closed() {
    let mut transmit = transmit(1000, 300);
    send(&mut transmit, 10);
    transmit.stage(10);
    transmit.handle_peer_closed();
    assert_eq!((transmit.unposted(), transmit.stage(10)), (0, 0));
    transmit.cancel_post();
    assert_eq!(transmit.unposted(), 0);
    transmit.set_flags(C);
    assert_eq!(only_post(&mut transmit).cdc.producer, cursor(0, 0));
}

#[test]
fn a_completion_covers_all_posts_up_to_it() {
    let mut transmit = transmit(1000, 4000);
    let first = send(&mut transmit, 100);
    transmit.stage(100);
    transmit.uncork();
    let second = only_post(&mut transmit);
    assert_eq!(transmit.in_flight.posts.len(), 2);
    assert_eq!(transmit.handle_completed(second.id), 200);
    assert_eq!(transmit.in_flight.posts.len(), 0);
    assert_eq!(transmit.handle_completed(first.id), 0, "late");
    assert_eq!(transmit.handle_completed(PostId(999)), 0, "never posted");
}

#[test]
fn a_post_without_space_is_cancelled() {
    let mut transmit = transmit(1000, 300);
    transmit.cancel_post();
    transmit.set_consumer(cursor(0, 9));
    transmit.stage(300);
    transmit.set_flags(D);
    let post = only_post(&mut transmit);
    transmit.cancel_post();
    assert_eq!(transmit.in_flight.posts.len(), 0);
    assert_eq!(transmit.unposted(), 300);
    assert!(!transmit.is_flushed());
    transmit.cancel_post();
    let again = only_post(&mut transmit);
    assert_eq!((again.cdc, again.spans), (post.cdc, post.spans));
    assert_eq!(transmit.handle_completed(post.id), 0, "it was cancelled");
    assert_eq!(transmit.handle_completed(again.id), 300);
}

#[test]
fn an_update_without_space_is_replaced_by_a_newer_one() {
    let mut transmit = transmit(1000, 300);
    transmit.set_consumer(cursor(0, 9));
    only_post(&mut transmit);
    transmit.cancel_post();
    transmit.set_consumer(cursor(0, 19));
    let post = only_post(&mut transmit);
    assert_eq!(post.cdc.consumer, cursor(0, 19));
    assert_eq!(post.cdc.sequence, 1);
}

#[test]
fn a_connection_has_as_many_posts_in_flight_as_a_link_takes() {
    let (staging, peer) = (ring(1000), ring(1000));
    let mut transmit = Transmit::new(staging, peer, token(), 0, 0);
    let posts: Vec<_> = (0..SENDS_MAX).map(|_| send(&mut transmit, 1)).collect();
    transmit.stage(1);
    transmit.set_flags(A);
    assert_eq!(transmit.poll_post(), None);
    transmit.handle_completed(posts[0].id);
    assert_eq!(only_post(&mut transmit).cdc.state_flags, A);
}

#[test]
fn sequence_numbers_and_cursors_wrap_around() {
    let mut transmit = transmit(7, 5);
    let mut sequence = 0_u16;
    let mut consumed = 0_u64;
    for step in 0..400_000_u64 {
        let count = u32::try_from(step % 5 + 1).unwrap();
        let post = send(&mut transmit, count);
        sequence = sequence.wrapping_add(1);
        assert_eq!(post.cdc.sequence, sequence);
        consumed += u64::from(count);
        let [.., high, low] = (consumed / 5).to_be_bytes();
        let position = cursor(
            u16::from_be_bytes([high, low]),
            u32::try_from(consumed % 5).unwrap(),
        );
        assert_eq!(post.cdc.producer, position);
        assert_eq!(transmit.handle_completed(post.id), count);
        assert_eq!(transmit.handle_peer(position), Ok(count));
    }
    assert!(consumed / 5 > 3 * 65_536);
}

#[test]
fn a_consumer_cursor_past_the_data_is_refused() {
    let mut transmit = transmit(1000, 300);
    send(&mut transmit, 100);
    let passed = Err(PeerMisbehaved::PassedTheData);
    assert_eq!(transmit.handle_peer(cursor(0, 101)), passed);
    assert_eq!(transmit.handle_peer(cursor(0, 100)), Ok(100));
    for (wrap, count) in [(0, 300), (0, u32::MAX), (2, 0), (32_768, 100)] {
        let refused = transmit.handle_peer(cursor(wrap, count));
        let cause = refused.unwrap_err();
        assert!(matches!(cause, PeerMisbehaved::Cursor(_)), "{wrap}:{count}");
    }
    assert_eq!(transmit.handle_peer(cursor(0, 100)), Ok(0), "nothing new");
    assert_eq!(transmit.handle_peer(cursor(0, 99)), Ok(0), "late");
    assert_eq!(transmit.peer_space(), 300);
}

#[test]
fn more_than_the_space_counts_as_the_space() {
    let mut transmit = transmit(1000, 300);
    assert_eq!(transmit.stage(u32::MAX), 1000);
    assert_eq!(transmit.stage(1), 0);
    assert_eq!(transmit.space(), 0);
}

#[test]
fn a_killed_connection_sends_nothing() {
    let mut transmit = transmit(1000, 300);
    let post = send(&mut transmit, 100);
    transmit.set_flags(C);
    transmit.abort();
    transmit.failover();
    assert_eq!(transmit.poll_post(), None);
    assert_eq!(transmit.stage(1), 0);
    assert_eq!(transmit.handle_completed(post.id), 0);
    assert!(transmit.is_idle() && transmit.is_flushed());
}

#[test]
fn a_message_states_how_many_it_replaces() {
    let mut transmit = transmit(1000, 1000);
    let first = send(&mut transmit, 10);
    assert_eq!(first.coalesced, 0);
    // Corked, with the cursor of the reader.
    for at in 1..4 {
        assert_eq!(transmit.stage(10), 10);
        transmit.set_consumer(cursor(0, at));
    }
    let update = only_post(&mut transmit);
    assert_eq!((update.payload(), update.coalesced), (0, 5), "one of six");
    transmit.cancel_post();
    transmit.handle_completed(first.id);
    let post = only_post(&mut transmit);
    assert_eq!((post.payload(), post.coalesced), (30, 5), "counted once");
    transmit.handle_completed(post.id);
    assert_eq!(send(&mut transmit, 1).coalesced, 0);
}
