use std::time::Instant;

use super::*;
use crate::device::{OpId, SENDS_MAX};

/// Makes the next post, if there is one.
pub(super) fn post(slots: &mut SendQueue<u32>, now: Instant) -> Option<Posted<u32>> {
    let what = match slots.next_post()? {
        NextPost::Llc(tag, _) => Posted::Llc(tag),
        NextPost::Cdc(conn) => Posted::Cdc(conn),
        NextPost::Credits(grants) => Posted::Credits(grants),
    };
    slots.posted(now, what);
    Some(what)
}

/// Calls a queue whenever it wants to be called, until the link has to be taken down.
pub(super) fn time_out(queue: &SendQueue<u32>) -> Option<(Instant, SendTimeout)> {
    let mut queue = queue.clone();
    while let Some(at) = queue.poll_timeout() {
        if let Err(why) = queue.handle_timeout(at) {
            return Some((at, why));
        }
    }
    None
}

#[test]
fn messages_go_first_and_connections_in_turn() {
    let now = Instant::now();
    let mut slots = SendQueue::new();
    assert!(slots.can_post_now());
    for conn in [1, 2, 1, 3] {
        slots.queue_connection(now, conn);
    }
    slots.queue_message(now, OpTag(9), vec![0; 44]).unwrap();
    slots.remove_connection(2);
    assert!(!slots.can_post_now());
    let order: Vec<_> = std::iter::from_fn(|| post(&mut slots, now)).collect();
    assert_eq!(
        order,
        [Posted::Llc(OpTag(9)), Posted::Cdc(1), Posted::Cdc(3)]
    );
    // One that has had its turn may wait again.
    slots.queue_connection(now, 1);
    assert_eq!(post(&mut slots, now), Some(Posted::Cdc(1)));
    assert_eq!(slots.outstanding.len(), 4);
}

/// Turns of connections that always have more to send, with so many bytes in each message, and of
/// the last one, which asks again as soon as it was served. Returns how many each has had.
fn turns(data: &[u64], count: usize) -> Vec<usize> {
    let now = Instant::now();
    let mut slots = SendQueue::new();
    let conns = || 0..u32::try_from(data.len()).unwrap();
    conns().for_each(|conn| slots.queue_connection(now, conn));
    let mut turns = vec![0; data.len()];
    for at in 1..=count {
        let Some(Posted::Cdc(conn)) = post(&mut slots, now) else {
            panic!("they all wait");
        };
        let index = usize::try_from(conn).unwrap();
        slots.charge(conn, data[index], 0);
        slots.queue_connection(now, conn);
        slots.completed(now, OpId(at as u64)).for_each(drop);
        turns[index] += 1;
    }
    turns
}

#[test]
fn connections_have_turns_by_what_their_messages_cost() {
    assert_eq!(turns(&[100; 10], 1000), [100; 10], "equal ones in turn");
    // One that sends the message alone, which costs 44 bytes, beside 254 with ten times that.
    let mut data = [396; 255];
    data[254] = 0;
    let few = turns(&data, 264 * 20);
    assert!((190..=210).contains(&few[254]), "{few:?}");
    assert!(few[..254].iter().all(|count| (19..=21).contains(count)));
    // Above a packet all are equal.
    let large = turns(&[2000, 1_000_000], 100);
    assert_eq!(large, [50, 50]);
}

#[test]
fn a_connection_that_sends_little_now_and_then_does_not_wait_for_all_others() {
    let now = Instant::now();
    let mut slots = SendQueue::new();
    (0..254).for_each(|conn| slots.queue_connection(now, conn));
    let mut op = 0;
    let mut waits = Vec::new();
    let mut since = None;
    for at in 0..5000 {
        if at % 40 == 0 && since.is_none() {
            slots.queue_connection(now, 999);
            since = Some(at);
        }
        let Some(Posted::Cdc(conn)) = post(&mut slots, now) else {
            panic!("they all wait");
        };
        op += 1;
        slots.completed(now, OpId(op)).for_each(drop);
        match conn {
            999 => {
                slots.charge(conn, 64, 0);
                waits.push(at - since.take().unwrap());
            }
            _ => {
                // All that was written since its last turn is in one message, and more follows.
                slots.charge(conn, 1400, 0);
                slots.queue_connection(now, conn);
            }
        }
    }
    // At first they are all alike.
    let (first, later) = waits.split_first().unwrap();
    assert!((200..=260).contains(first), "{waits:?}");
    assert!(later.len() > 100, "{waits:?}");
    let long = later.iter().filter(|wait| **wait > 10).count();
    assert!(long < later.len() / 10, "{waits:?}");
}

#[test]
fn what_was_sent_while_none_waited_costs_nothing() {
    let now = Instant::now();
    let mut slots = SendQueue::new();
    for op in 1..100 {
        assert!(slots.can_post_now());
        slots.posted(now, Posted::Cdc(1));
        slots.charge(1, 1000, 0);
        slots.completed(now, OpId(op)).for_each(drop);
    }
    slots.queue_connection(now, 1);
    slots.queue_connection(now, 2);
    assert_eq!(post(&mut slots, now), Some(Posted::Cdc(1)));
    // Nor does it cost one that is removed, whose number another one gets.
    slots.charge(1, 1000, 0);
    slots.remove_connection(1);
    slots.queue_connection(now, 1);
    slots.queue_connection(now, 3);
    let order: Vec<_> = std::iter::from_fn(|| post(&mut slots, now)).collect();
    assert_eq!(order, [2, 1, 3].map(Posted::Cdc));
}

#[test]
fn no_more_than_the_link_takes() {
    let now = Instant::now();
    let mut slots = SendQueue::new();
    for conn in 0..40 {
        slots.queue_connection(now, conn);
    }
    while post(&mut slots, now).is_some() {}
    assert_eq!(slots.outstanding.len(), SENDS_MAX);
    assert!(!slots.has_capacity());
    // A completion stands for all before it.
    let done: Vec<_> = slots.completed(now, OpId(3)).collect();
    assert_eq!(done, [0, 1, 2].map(Posted::Cdc));
    assert_eq!(slots.completed(now, OpId(3)).count(), 0);
    assert_eq!(slots.completed(now, OpId(99)).count(), 0);
    while post(&mut slots, now).is_some() {}
    assert_eq!(slots.outstanding.len(), SENDS_MAX);
    let lost: Vec<_> = slots.fail().collect();
    assert_eq!(lost.len(), SENDS_MAX);
    assert!(slots.can_post_now());
}

#[test]
fn a_message_that_the_device_did_not_take_keeps_its_turn() {
    let now = Instant::now();
    let mut slots = SendQueue::<u32>::new();
    slots.queue_message(now, OpTag(1), vec![1; 44]).unwrap();
    slots.queue_message(now, OpTag(2), vec![2; 44]).unwrap();
    let Some(NextPost::Llc(tag, message)) = slots.next_post() else {
        panic!("a message");
    };
    slots.requeue(now, tag, message);
    assert_eq!(post(&mut slots, now), Some(Posted::Llc(OpTag(1))));
}

#[test]
fn a_link_that_is_stuck_is_noticed() {
    let now = Instant::now();
    let mut slots = SendQueue::new();
    for conn in 0..20 {
        slots.queue_connection(now, conn);
    }
    while post(&mut slots, now).is_some() {}
    assert_eq!(slots.poll_timeout(), None, "connections may wait");
    slots.queue_message(now, OpTag(1), vec![0; 44]).unwrap();
    let expected = (now + SEND_QUEUE_TIMEOUT, SendTimeout::Completion);
    assert_eq!(time_out(&slots), Some(expected));
    let later = now + SECOND;
    slots.completed(later, OpId(1)).for_each(drop);
    let expected = (later + SEND_QUEUE_TIMEOUT, SendTimeout::Completion);
    assert_eq!(time_out(&slots), Some(expected));
    post(&mut slots, later);
    assert_eq!(slots.poll_timeout(), None);
}

#[test]
fn a_flood_is_noticed() {
    let now = Instant::now();
    let mut slots = SendQueue::<u32>::new();
    for at in 0..WAITING_MAX as u64 {
        slots.queue_message(now, OpTag(at), vec![0; 44]).unwrap();
    }
    assert_eq!(
        slots.queue_message(now, OpTag(0), vec![0; 44]),
        Err(Overflow)
    );
}

#[test]
fn counters_state_what_was_sent_and_what_has_waited() {
    let now = Instant::now();
    // All it has can be granted at once.
    let mut slots = SendQueue::with_credits(Credits::new(48));
    for conn in 0..60 {
        slots.queue_connection(now, conn);
    }
    slots.queue_message(now, OpTag(1), vec![0; 44]).unwrap();
    let mut op = 0;
    while post(&mut slots, now).is_some() {
        op += 1;
        slots.completed(now, OpId(op)).for_each(drop);
    }
    slots.charge(0, 100, 5);
    // 32 at first, of which 4 are not for connections.
    let counted = SendCounters {
        messages: 28,
        cdc: 27,
        coalesced: 5,
        waiting: 60 - 27,
        waiting_max: 61,
        ..SendCounters::default()
    };
    assert_eq!(slots.counters(), counted);
    assert_eq!(slots.credits(), Some(4));
    slots.queue_connection(now, 60);
    for _ in 0..3 {
        slots.received(now, 7).unwrap();
    }
    assert_eq!(slots.counters().credits_received, 21);
    // One that is queued in the meantime waits for its turn, and for no credit.
    slots.queue_connection(now, 61);
    for _ in 0..2 {
        post(&mut slots, now);
    }
    let before = slots.counters();
    assert_eq!(before.credit_waits, 2);
    assert_eq!(before.credits_granted, 3, "those of three messages");
    slots.remove_connection(61);
    let lost = slots.fail().count();
    assert_eq!(lost, 2);
    let after = SendCounters {
        waiting: 0,
        ..before
    };
    assert_eq!(slots.counters(), after, "they are of the whole life");
}
