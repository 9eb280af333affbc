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

#[test]
fn messages_go_first_and_connections_in_turn() {
    let now = Instant::now();
    let mut slots = SendQueue::new();
    assert!(slots.can_post_now());
    for conn in [1, 2, 1, 3] {
        slots.queue_connection(conn);
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
    slots.queue_connection(1);
    assert_eq!(post(&mut slots, now), Some(Posted::Cdc(1)));
    assert_eq!(slots.outstanding.len(), 4);
}

#[test]
fn a_connection_with_few_messages_does_not_wait_for_all_that_have_many() {
    let now = Instant::now();
    let mut slots = SendQueue::new();
    (10..20).for_each(|conn| slots.requeue_connection(conn));
    slots.queue_connection(1);
    slots.queue_connection(2);
    let order: Vec<_> = std::iter::from_fn(|| post(&mut slots, now)).collect();
    let first = [1, 10, 2, 11, 12, 13].map(Posted::Cdc);
    assert_eq!(order[..6], first, "one of each kind in turn");
    assert_eq!(order.len(), 12);
    slots.requeue_connection(10);
    slots.remove_connection(10);
    assert!(slots.next_post().is_none());
}

#[test]
fn no_more_than_the_link_takes() {
    let now = Instant::now();
    let mut slots = SendQueue::new();
    for conn in 0..40 {
        slots.queue_connection(conn);
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
        slots.queue_connection(conn);
    }
    while post(&mut slots, now).is_some() {}
    assert_eq!(slots.poll_timeout(), None, "connections may wait");
    slots.queue_message(now, OpTag(1), vec![0; 44]).unwrap();
    assert_eq!(slots.poll_timeout(), Some(now + SEND_QUEUE_TIMEOUT));
    let later = now + SECOND;
    slots.completed(later, OpId(1)).for_each(drop);
    assert_eq!(slots.poll_timeout(), Some(later + SEND_QUEUE_TIMEOUT));
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
