use std::time::Instant;

use super::super::add_link_client::ClientStage;
use super::super::add_link_server::ServerStage;
use super::send_queue::{post, time_out};
use super::*;
use crate::proto::table::matrix;

#[test]
fn link_states() {
    let expected = "\
state      | open       | confirm | deactivate | clear
UNUSED     | ACTIVATING | -       | -          | -
ACTIVATING | -          | ACTIVE  | INACTIVE   | UNUSED
ACTIVE     | -          | -       | INACTIVE   | UNUSED
INACTIVE   | -          | -       | -          | UNUSED
";
    assert_eq!(LinkState::table(), expected);
}

#[test]
fn stages_of_an_offer() {
    let expected = "\
state      | opened  | mapped  | accepted   | connected_v1 | connected_v2 | exchanged  | confirmed
OPENING    | MAPPING | -       | -          | -            | -            | -          | -
MAPPING    | -       | OFFERED | -          | -            | -            | -          | -
OFFERED    | -       | -       | CONNECTING | -            | -            | -          | -
CONNECTING | -       | -       | -          | EXCHANGING   | CONFIRMING   | -          | -
EXCHANGING | -       | -       | -          | -            | -            | CONFIRMING | -
CONFIRMING | -       | -       | -          | -            | -            | -          | CONFIRMED
CONFIRMED  | -       | -       | -          | -            | -            | -          | -
";
    assert_eq!(ServerStage::table(), expected);
}

#[test]
fn stages_of_a_join() {
    let expected = "\
state      | opened     | connected | mapped_v1  | mapped_v2  | exchanged  | confirmed
OPENING    | CONNECTING | -         | -          | -          | -          | -
CONNECTING | -          | MAPPING   | -          | -          | -          | -
MAPPING    | -          | -         | EXCHANGING | CONFIRMING | -          | -
EXCHANGING | -          | -         | -          | -          | CONFIRMING | -
CONFIRMING | -          | -         | -          | -          | -          | CONFIRMED
CONFIRMED  | -          | -         | -          | -          | -          | -
";
    assert_eq!(ClientStage::table(), expected);
}

/// A link by its receive credits: MANY allow more than one CDC message, LAST allows one, KEPT are
/// for LLC messages alone, and ONE for a message that grants some. In STARVED a connection waits.
#[test]
fn credits_of_a_link() {
    let expected = "\
state   | post    | llc     | completion | grant | remove | overdraw | timeout
NONE    | NONE    | NONE    | NONE       | NONE  | NONE   | NONE     | NONE
MANY    | MANY    | MANY    | MANY       | MANY  | MANY   | CLOSED   | MANY
LAST    | KEPT    | KEPT    | LAST       | MANY  | LAST   | CLOSED   | LAST
KEPT    | STARVED | ONE     | KEPT       | KEPT  | KEPT   | CLOSED   | KEPT
ONE     | STARVED | ONE     | ONE        | KEPT  | ONE    | CLOSED   | ONE
STARVED | STARVED | STARVED | STARVED    | KEPT  | KEPT   | CLOSED   | CLOSED
";
    let now = Instant::now();
    let names = ["NONE", "MANY", "LAST", "KEPT", "ONE", "STARVED"];
    let events: [(_, Change); 7] = [
        ("post", |queue, now| {
            queue.queue_connection(now, 1);
            true
        }),
        ("llc", |queue, now| {
            queue.queue_message(now, OpTag(1), vec![0; 44]).is_ok()
        }),
        ("completion", |queue, now| {
            let last = queue.last_outstanding().unwrap();
            queue.completed(now, last).count() == 1
        }),
        ("grant", |queue, now| queue.received(now, 1).is_ok()),
        ("remove", |queue, _| {
            queue.remove_connection(99);
            true
        }),
        ("overdraw", |queue, now| {
            (0..=INITIAL_CREDITS).all(|_| queue.received(now, 0).is_ok())
        }),
        ("timeout", |queue, _| time_out(queue).is_none()),
    ];
    let cells = events.map(|(event, change)| {
        let next = |name: &&str| {
            let mut queue = in_state(name, now);
            let goes_on = change(&mut queue, now);
            // As a shell does it after each event.
            while post(&mut queue, now).is_some() {}
            Some(if goes_on { state(&queue) } else { "CLOSED" })
        };
        (event, names.iter().map(next).collect())
    });
    assert_eq!(matrix(&names, &cells), expected);
}

/// Changes a queue. Returns whether the link goes on.
type Change = fn(&mut SendQueue<u32>, Instant) -> bool;

fn state(queue: &SendQueue<u32>) -> &'static str {
    match queue.credits() {
        None => "NONE",
        Some(_) if queue.is_starved() => "STARVED",
        Some(0) => panic!("the last one is for grants, and none are due"),
        Some(1) => "ONE",
        Some(2..5) => "KEPT",
        Some(5) => "LAST",
        Some(_) => "MANY",
    }
}

/// A queue with one post that is not completed.
fn in_state(name: &str, now: Instant) -> SendQueue<u32> {
    let mut queue = match name {
        "NONE" => SendQueue::new(),
        _ => SendQueue::with_credits(Credits::new(48)),
    };
    let left = match name {
        "NONE" | "MANY" => INITIAL_CREDITS - 1,
        "LAST" => 5,
        "KEPT" => 2,
        "STARVED" => 4,
        _ => 1,
    };
    for _ in left..INITIAL_CREDITS {
        let done = queue.last_outstanding();
        done.into_iter()
            .for_each(|op| drop(queue.completed(now, op)));
        queue.queue_message(now, OpTag(0), vec![0; 44]).unwrap();
        post(&mut queue, now).unwrap();
    }
    if name == "STARVED" {
        queue.queue_connection(now, 99);
    }
    assert_eq!(state(&queue), name);
    queue
}
