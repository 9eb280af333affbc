use smc_wire::cdc::StateFlags;
use smc_wire::cursor::{Cursor, Ring};

use super::*;
use crate::error::PeerMisbehaved;

const D: StateFlags = StateFlags::SENDING_DONE;
const C: StateFlags = StateFlags::CLOSED;
const A: StateFlags = StateFlags::ABORTED;

fn ring(size: u32) -> Ring {
    Ring::new(size).unwrap()
}

/// A sender and the receiver at the other end of its ring.
fn pair(size: u32) -> (SendCursors, RecvCursors) {
    (SendCursors::new(ring(size)), RecvCursors::new(ring(size)))
}

#[test]
fn all_bytes_of_the_ring_can_be_used() {
    let (mut send, mut recv) = pair(100);
    assert_eq!(send.space(), 100);
    let producer = send.commit(100);
    assert_eq!(producer, Cursor { wrap: 1, count: 0 });
    assert_eq!(send.space(), 0);
    assert_eq!(recv.handle_producer(producer), Ok(100));
    assert_eq!(recv.readable(), 100);
    recv.consume(100);
    assert_eq!(send.handle_consumer(recv.confirm()), Ok(100));
    assert_eq!(send.space(), 100);
}

#[test]
fn positions_wrap_around_many_times() {
    let (mut send, mut recv) = pair(7);
    for step in 0..200_000_u32 {
        let count = step % 5 + 1;
        assert_eq!(send.at(), recv.at());
        let producer = send.commit(count);
        assert_eq!(recv.handle_producer(producer), Ok(count));
        recv.consume(count);
        assert_eq!(send.handle_consumer(recv.confirm()), Ok(count));
    }
    assert!(send.producer().wrap < 65535);
    assert_eq!(send.producer(), recv.consumer());
}

/// A sender and a receiver that know rewinds, after `read` bytes that were written and read.
fn rewind_pair(read: u32) -> (SendCursors, RecvCursors) {
    let (send, recv) = pair(RING);
    let (mut send, mut recv) = (send.with_rewind(true), recv.with_rewind(true));
    recv.handle_producer(send.commit(read)).unwrap();
    recv.consume(read);
    (send, recv)
}

const RING: u32 = 4 * REWIND_MIN;

#[test]
fn the_writer_of_an_empty_ring_returns_to_its_start() {
    let (mut send, mut recv) = rewind_pair(REWIND_MIN);
    assert!(recv.is_update_due(false));
    send.handle_consumer(recv.confirm()).unwrap();
    assert!(send.rewind());
    assert_eq!((send.at(), send.space()), (0, RING));
    let producer = send.commit(100);
    assert_eq!(
        producer,
        Cursor {
            wrap: 2,
            count: 100
        }
    );
    assert_eq!(recv.handle_producer(producer), Ok(100));
    assert_eq!((recv.at(), recv.readable()), (0, 100));
    assert_eq!(recv.high_water(), REWIND_MIN);
    recv.consume(100);
    assert_eq!(send.handle_consumer(recv.confirm()), Ok(100));
    assert_eq!(recv.confirmed(), producer);
}

#[test]
fn after_a_rewind_the_whole_ring_can_be_written() {
    let (mut send, mut recv) = rewind_pair(REWIND_MIN);
    send.handle_consumer(recv.confirm()).unwrap();
    send.rewind();
    let producer = send.commit(RING);
    assert_eq!((producer, send.space()), (Cursor { wrap: 3, count: 0 }, 0));
    assert_eq!(recv.handle_producer(producer), Ok(RING));
    recv.consume(10);
    assert_eq!(send.handle_consumer(recv.confirm()), Ok(10));
    assert_eq!(recv.handle_producer(send.commit(10)), Ok(10));
    assert_eq!(recv.high_water(), RING);
}

#[test]
fn a_ring_that_is_not_empty_or_not_used_enough_is_not_left_early() {
    let (mut send, mut recv) = rewind_pair(REWIND_MIN - 1);
    assert!(!recv.is_update_due(false));
    send.handle_consumer(recv.confirm()).unwrap();
    assert!(!send.rewind());
    recv.handle_producer(send.commit(2)).unwrap();
    recv.consume(1);
    send.handle_consumer(recv.confirm()).unwrap();
    assert!(!send.rewind());
    assert_eq!(send.at(), REWIND_MIN + 1);
}

#[test]
fn the_consumer_cursor_of_before_a_rewind_is_no_progress() {
    let (mut send, mut recv) = rewind_pair(REWIND_MIN);
    let before = recv.confirm();
    send.handle_consumer(before).unwrap();
    send.rewind();
    send.commit(5);
    assert_eq!(send.handle_consumer(before), Ok(0));
    assert_eq!(send.space(), RING - 5);
    let behind = Cursor { wrap: 2, count: 6 };
    assert_eq!(
        send.handle_consumer(behind),
        Err(PeerMisbehaved::PassedTheData)
    );
}

#[test]
fn a_ring_with_unread_or_unconfirmed_data_cannot_be_left_early() {
    let jump = Cursor { wrap: 2, count: 1 };
    let is_refused = |recv: &mut RecvCursors| recv.handle_producer(jump).is_err();
    let (mut send, mut recv) = rewind_pair(REWIND_MIN);
    assert!(
        is_refused(&mut recv),
        "the peer does not know that all is read"
    );
    recv.confirm();
    recv.handle_producer(send.commit(1)).unwrap();
    assert!(is_refused(&mut recv), "a byte is unread");
    recv.consume(1);
    recv.confirm();
    for (wrap, count) in [(2, RING), (3, 1), (4, 0), (u16::MAX, 1)] {
        let cursor = Cursor { wrap, count };
        assert!(recv.handle_producer(cursor).is_err(), "{cursor}");
    }
    assert_eq!(recv.handle_producer(jump), Ok(1));
    let mut other = pair(RING).1;
    assert!(is_refused(&mut other), "the fabric has no rewinds");
}

#[test]
fn the_high_water_mark_stays_after_wraps() {
    let (mut send, mut recv) = pair(7);
    let mut pass = |count| {
        let producer = send.commit(count);
        recv.handle_producer(producer).unwrap();
        recv.consume(count);
        send.handle_consumer(recv.confirm()).unwrap();
        (producer, recv.high_water())
    };
    assert_eq!(pass(3), (Cursor { wrap: 0, count: 3 }, 3));
    assert_eq!(pass(2), (Cursor { wrap: 0, count: 5 }, 5));
    assert_eq!(pass(2), (Cursor { wrap: 1, count: 0 }, 7));
    for _ in 1..u16::MAX {
        assert_eq!(pass(7).1, 7);
    }
    let wrapped = Cursor { wrap: 0, count: 0 };
    assert_eq!(pass(7), (wrapped, 7), "wraps have wrapped");
    assert_eq!(pass(1), (Cursor { wrap: 0, count: 1 }, 7));
}

#[test]
fn a_producer_that_passes_the_free_space_is_refused() {
    let mut recv = RecvCursors::new(ring(100));
    recv.handle_producer(Cursor { wrap: 0, count: 60 }).unwrap();
    recv.consume(60);
    // The peer was not sent the cursor behind the 60 bytes, so it may write 40 more and no more.
    let beyond = Cursor { wrap: 1, count: 1 };
    assert_eq!(
        recv.handle_producer(beyond),
        Err(PeerMisbehaved::PassedTheSpace)
    );
    assert_eq!(recv.handle_producer(Cursor { wrap: 1, count: 0 }), Ok(40));
}

#[test]
fn cursors_that_go_back_or_lie_outside_are_refused() {
    let (mut send, mut recv) = pair(100);
    recv.handle_producer(Cursor { wrap: 0, count: 60 }).unwrap();
    for cursor in [
        (0, 59),
        (0, 100),
        (0, u32::MAX),
        (1, 61),
        (2, 0),
        (u16::MAX, 99),
    ] {
        let cursor = Cursor {
            wrap: cursor.0,
            count: cursor.1,
        };
        let refused = recv.handle_producer(cursor);
        assert!(
            matches!(refused, Err(PeerMisbehaved::Cursor(_))),
            "{cursor}: {refused:?}"
        );
    }
    assert_eq!(recv.readable(), 60);
    send.commit(10);
    let beyond = send.handle_consumer(Cursor { wrap: 0, count: 11 });
    assert_eq!(beyond, Err(PeerMisbehaved::PassedTheData));
    assert_eq!(send.space(), 90);
}

#[test]
fn an_update_is_due_when_the_peer_waits_or_half_the_ring_is_used() {
    let mut recv = RecvCursors::new(ring(100_000));
    recv.handle_producer(Cursor {
        wrap: 0,
        count: 40_000,
    })
    .unwrap();
    recv.consume(10_000);
    assert!(!recv.is_update_due(true), "a tenth is too little");
    recv.consume(1);
    assert!(recv.is_update_due(true), "the peer waits");
    assert!(
        !recv.is_update_due(false),
        "the peer has more than half left"
    );
    recv.handle_producer(Cursor {
        wrap: 0,
        count: 50_000,
    })
    .unwrap();
    assert!(
        recv.is_update_due(false),
        "the peer knows of half a ring at most"
    );
    recv.confirm();
    assert!(!recv.is_update_due(true));
    assert_eq!(recv.unconfirmed(), 0);
}

#[test]
fn a_reader_of_everything_never_leaves_a_waiting_writer_without_an_update() {
    for size in [1, 2, 10, 16_352, 65_504, 1_048_544] {
        let (mut send, mut recv) = pair(size);
        let producer = send.commit(size);
        recv.handle_producer(producer).unwrap();
        recv.consume(size);
        assert!(recv.is_update_due(true), "ring of {size}");
    }
}

#[test]
fn the_table_of_states_is_that_of_the_specification() {
    let expected = "\
state            | establish | shutdown_write | close            | close_last | peer_done      | peer_closed     | peer_closed_last | peer_aborted | peer_aborted_last | aborted
INIT             | ACTIVE    | -              | CLOSED           | -          | APPCLOSEWAIT1  | APPCLOSEWAIT1   | -                | PROCESSABORT | -                 | -
ACTIVE           | -         | PEERCLOSEWAIT1 | PEERCLOSEWAIT1   | -          | APPCLOSEWAIT1  | APPCLOSEWAIT1   | -                | PROCESSABORT | -                 | PEERABORTWAIT
PEERCLOSEWAIT1   | -         | -              | PEERCLOSEWAIT1   | -          | PEERCLOSEWAIT2 | APPFINCLOSEWAIT | CLOSED           | PROCESSABORT | CLOSED            | PEERABORTWAIT
PEERCLOSEWAIT2   | -         | -              | PEERCLOSEWAIT2   | -          | -              | APPFINCLOSEWAIT | CLOSED           | PROCESSABORT | CLOSED            | PEERABORTWAIT
APPCLOSEWAIT1    | -         | APPCLOSEWAIT2  | PEERFINCLOSEWAIT | CLOSED     | -              | APPCLOSEWAIT1   | -                | PROCESSABORT | -                 | PEERABORTWAIT
APPCLOSEWAIT2    | -         | -              | PEERFINCLOSEWAIT | CLOSED     | -              | APPCLOSEWAIT2   | -                | CLOSED       | -                 | PEERABORTWAIT
APPFINCLOSEWAIT  | -         | -              | -                | CLOSED     | -              | -               | -                | PROCESSABORT | -                 | PEERABORTWAIT
PEERFINCLOSEWAIT | -         | -              | PEERFINCLOSEWAIT | -          | -              | CLOSED          | CLOSED           | -            | CLOSED            | PEERABORTWAIT
PEERABORTWAIT    | -         | -              | CLOSED           | CLOSED     | -              | -               | -                | CLOSED       | CLOSED            | -
PROCESSABORT     | -         | -              | -                | CLOSED     | -              | -               | -                | -            | -                 | PEERABORTWAIT
CLOSED           | -         | -              | -                | -          | -              | -               | -                | -            | -                 | -
";
    assert_eq!(ConnState::table(), expected);
}

#[test]
fn closing_first_then_the_peer() {
    let mut closing = Closing::default();
    assert_eq!(closing.close(false), Some(C));
    assert_eq!(closing.state(), ConnState::PeerCloseWait1);
    assert!(closing.handle_peer(C));
    assert!(closing.is_removable());
}

#[test]
fn the_peer_closes_first() {
    let mut closing = Closing::default();
    closing.handle_peer(C);
    assert_eq!(closing.state(), ConnState::AppCloseWait1);
    assert_eq!(closing.read_end(), ReadEnd::Eof);
    assert_eq!(closing.write_end(), WriteEnd::PeerClosed);
    assert_eq!(closing.close(false), Some(C));
    assert!(closing.is_removable());
}

#[test]
fn a_connection_has_ended_in_order_when_both_sides_have_closed_it() {
    type Step = fn(&mut Closing);
    let close: Step = |closing| _ = closing.close(false);
    let peer_closes: Step = |closing| _ = closing.handle_peer(C);
    let shut: Step = |closing| _ = closing.shutdown_write();
    let abort: Step = |closing| _ = closing.abort();
    let discard: Step = |closing| _ = closing.close(true);
    let peer_aborts: Step = |closing| _ = closing.handle_peer(A);
    let peer_is_done: Step = |closing| _ = closing.handle_peer(D);
    for (steps, in_order) in [
        (&[close, peer_closes][..], true),
        (&[peer_closes, close], true),
        (&[shut, peer_is_done, peer_closes, close], true),
        (&[close], false),
        (&[peer_closes], false),
        (&[shut, peer_is_done], false),
        (&[shut, peer_closes], false),
        (&[discard, peer_closes], false),
        (&[close, peer_aborts], false),
        (&[peer_closes, peer_aborts, close], false),
        (&[peer_closes, abort, close], false),
        (&[abort, close], false),
    ] {
        let mut closing = Closing::default();
        steps.iter().for_each(|step| step(&mut closing));
        assert_eq!(closing.has_ended_in_order(), in_order, "{closing:?}");
    }
}

#[test]
fn an_abort_of_the_peer_after_its_close_resets() {
    let mut closing = Closing::default();
    closing.handle_peer(C);
    closing.handle_peer(C | A);
    assert_eq!(closing.read_end(), ReadEnd::Reset);
    assert_eq!(closing.write_end(), WriteEnd::Reset);
}

#[test]
fn half_closes_of_both_sides_then_closing() {
    let mut closing = Closing::default();
    assert_eq!(closing.shutdown_write(), Some(D));
    assert_eq!(closing.shutdown_write(), None, "once is enough");
    assert_eq!(closing.write_end(), WriteEnd::Shut);
    assert_eq!(closing.read_end(), ReadEnd::Open);
    closing.handle_peer(D);
    assert_eq!(closing.state(), ConnState::PeerCloseWait2);
    assert_eq!(closing.read_end(), ReadEnd::Eof);
    assert_eq!(closing.close(false), Some(D | C));
    assert!(!closing.is_removable());
    closing.handle_peer(D | C);
    assert!(closing.is_removable());
}

#[test]
fn writing_continues_after_the_peer_shut_down_writing() {
    let mut closing = Closing::default();
    closing.handle_peer(D);
    assert_eq!(closing.write_end(), WriteEnd::Open);
    assert_eq!(closing.close(false), Some(C));
    assert_eq!(closing.state(), ConnState::PeerFinCloseWait);
    closing.handle_peer(D | C);
    assert!(closing.is_removable());
}

#[test]
fn we_shut_down_and_the_peer_closes() {
    let mut closing = Closing::default();
    closing.shutdown_write();
    closing.handle_peer(C);
    assert_eq!(closing.state(), ConnState::AppFinCloseWait);
    assert_eq!(closing.close(false), Some(D | C));
    assert!(closing.is_removable());
}

#[test]
fn an_abort_of_the_peer_resets_and_is_answered_with_an_abort() {
    let mut closing = Closing::default();
    closing.handle_peer(A);
    assert_eq!(closing.state(), ConnState::ProcessAbort);
    assert_eq!(closing.read_end(), ReadEnd::Reset);
    assert_eq!(closing.write_end(), WriteEnd::Reset);
    assert_eq!(closing.close(false), Some(A));
    assert!(closing.is_removable());
}

#[test]
fn an_abort_after_both_shut_down_is_answered_as_well() {
    let mut closing = Closing::default();
    closing.handle_peer(D);
    closing.shutdown_write();
    closing.handle_peer(D | A);
    assert_eq!(closing.state(), ConnState::Closed);
    assert!(!closing.is_removable(), "the application has not closed");
    assert_eq!(closing.close(false), Some(D | A));
    assert!(closing.is_removable());
}

#[test]
fn an_abort_after_the_final_flags_closes_the_connection() {
    let mut closing = Closing::default();
    closing.close(true);
    assert_eq!(closing.sent, A);
    closing.handle_peer(A);
    assert!(closing.is_removable());
}

#[test]
fn a_kill_aborts_once_and_closing_then_finishes() {
    let mut closing = Closing::default();
    assert_eq!(closing.abort(), Some(A));
    assert_eq!(closing.abort(), None);
    assert_eq!(closing.read_end(), ReadEnd::Aborted);
    assert_eq!(closing.write_end(), WriteEnd::Aborted);
    assert_eq!(closing.close(false), None);
    assert!(closing.is_removable());
}

#[test]
fn a_kill_after_the_peer_closed_still_reads_to_an_orderly_end() {
    let mut closing = Closing::default();
    closing.handle_peer(C);
    closing.abort();
    assert_eq!(closing.read_end(), ReadEnd::Eof);
    closing.close(false);
    assert!(closing.is_removable());
}

#[test]
fn a_kill_of_a_dropped_connection_finishes_it() {
    let mut closing = Closing::default();
    closing.close(false);
    assert_eq!(closing.abort(), None, "the final flags were sent");
    assert!(closing.is_removable());
}

#[test]
fn an_endpoint_shutdown_closes_what_was_shut_down_and_aborts_the_rest() {
    let mut closing = Closing::default();
    closing.shutdown_write();
    assert_eq!(closing.abort_or_close(), Some(D | C));
    assert_eq!(closing.read_end(), ReadEnd::Aborted);
    assert_eq!(closing.write_end(), WriteEnd::Shut);
    assert_eq!(closing.close(false), None);
    assert!(closing.is_removable());

    let mut open = Closing::default();
    open.handle_peer(D);
    assert_eq!(open.abort_or_close(), Some(A));
    let mut aborted = Closing::default();
    aborted.shutdown_write();
    aborted.handle_peer(A);
    assert_eq!(aborted.abort_or_close(), Some(D | A));
}

/// The peer drops what it has not sent when it gets the final flags.
#[test]
fn an_end_that_the_peer_states_behind_an_own_end_is_none_of_the_stream() {
    for is_shut in [false, true] {
        let mut closing = Closing::default();
        if is_shut {
            closing.shutdown_write();
        }
        closing.abort_or_close();
        closing.handle_peer(D | C);
        assert_eq!(closing.read_end(), ReadEnd::Aborted);
    }

    let mut ended_before = Closing::default();
    ended_before.handle_peer(D);
    assert_eq!(ended_before.abort(), Some(A));
    ended_before.handle_peer(C);
    assert_eq!(ended_before.read_end(), ReadEnd::Eof);
}

#[test]
fn a_shutdown_of_both_directions_sends_the_final_flags_and_waits_for_the_close() {
    let mut closing = Closing::default();
    assert_eq!(closing.shutdown_both(false), Some(C));
    assert_eq!(
        closing.shutdown_both(true),
        None,
        "the final flags were sent"
    );
    assert_eq!(closing.shutdown_write(), None);
    assert_eq!(closing.state(), ConnState::PeerCloseWait1);
    assert_eq!(closing.write_end(), WriteEnd::Shut);
    closing.handle_peer(C);
    assert_eq!(closing.state(), ConnState::AppFinCloseWait);
    assert!(!closing.is_removable(), "the application has not closed");
    assert_eq!(closing.close(true), None);
    assert!(closing.is_removable());

    let mut unread = Closing::default();
    unread.shutdown_write();
    assert_eq!(unread.shutdown_both(true), Some(D | A));
    unread.handle_peer(A);
    assert_eq!(unread.state(), ConnState::Closed);
    assert!(!unread.is_removable(), "the application has not closed");
    assert_eq!(unread.close(true), None);
    assert!(unread.is_removable());
}

#[test]
fn a_shutdown_of_both_directions_follows_that_of_the_peer() {
    let mut closing = Closing::default();
    closing.handle_peer(D);
    assert_eq!(closing.shutdown_both(false), Some(C));
    assert_eq!(closing.state(), ConnState::PeerFinCloseWait);
    closing.handle_peer(D | C);
    assert_eq!(closing.state(), ConnState::Closed);
    assert_eq!(closing.close(false), None);
    assert!(closing.is_removable());

    for (flags, sent) in [(C, C), (A, A)] {
        let mut last = Closing::default();
        last.handle_peer(flags);
        assert_eq!(last.shutdown_both(false), Some(sent));
        assert_eq!(last.state(), ConnState::Closed);
        assert_eq!(last.abort(), None);
        assert_eq!(last.write_end(), WriteEnd::Shut);
        assert_eq!(last.close(false), None);
        assert!(last.is_removable());
    }
}

#[test]
fn a_shutdown_of_both_directions_after_the_end_sends_nothing() {
    let mut closing = Closing::default();
    closing.abort();
    assert_eq!(closing.shutdown_both(false), None);
    assert_eq!(closing.write_end(), WriteEnd::Aborted);
    closing.close(false);
    assert!(closing.is_removable());
}

/// Events in any order: no panic, flags are only added, and the final flags of both sides finish
/// it.
#[test]
fn every_order_of_events_finishes() {
    for script in 0..11_u32.pow(5) {
        let mut closing = Closing::default();
        let mut sent = closing.sent;
        let mut rest = script;
        for _ in 0..5 {
            match rest % 11 {
                0 => drop(closing.shutdown_write()),
                1 => drop(closing.close(false)),
                2 => drop(closing.close(true)),
                3 => drop(closing.handle_peer(D)),
                4 => drop(closing.handle_peer(C)),
                5 => drop(closing.handle_peer(D | C)),
                6 => drop(closing.handle_peer(A)),
                7 => drop(closing.abort_or_close()),
                8 => drop(closing.shutdown_both(false)),
                9 => drop(closing.shutdown_both(true)),
                _ => drop(closing.abort()),
            }
            assert!(closing.sent.contains(sent), "script {script}");
            sent = closing.sent;
            rest /= 11;
        }
        closing.close(false);
        closing.handle_peer(C);
        closing.handle_peer(C | A);
        assert!(closing.is_removable(), "script {script}: {:?}", closing);
    }
}
