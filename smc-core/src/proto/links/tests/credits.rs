//! Two ends of a link with receive credits, and receivers that are as slow as a schedule wants.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use smc_testkit::Rng;
use smc_wire::cdc::CdcR;
use smc_wire::llc::{AnnounceCredits, ByteOrder, MESSAGE_LEN};
use smc_wire::types::AlertToken;

use super::send_queue::{post, time_out};
use super::*;
use crate::device::OpId;

#[test]
fn a_new_link_has_32_credits_and_more_are_announced_at_once() {
    let mut credits = Credits::new(128);
    assert_eq!(credits.available(), 32);
    assert_eq!(credits.announcement(), Some(80), "16 receives are spare");
    credits.sent(80);
    assert_eq!(credits.announcement(), None);
    assert_eq!(credits.available(), 31, "the message takes one");
    // The least that a link has is what both ends take for granted.
    assert_eq!(Credits::new(48).announcement(), None);
}

#[test]
fn half_of_the_credits_are_worth_a_message_and_a_cdc_message_takes_along_what_there_is() {
    let mut credits = Credits::new(48);
    for _ in 0..15 {
        credits.received(0).unwrap();
    }
    assert_eq!(credits.announcement(), None);
    assert_eq!(credits.with_cdc(), 15);
    credits.received(0).unwrap();
    assert_eq!(credits.announcement(), Some(16));
    credits.sent(16);
    assert_eq!((credits.announcement(), credits.with_cdc()), (None, 0));
}

#[test]
fn the_last_credits_are_for_llc_messages_and_the_very_last_for_credits() {
    let now = Instant::now();
    let mut queue = SendQueue::with_credits(Credits::new(48));
    for conn in 0..40_u32 {
        queue.queue_connection(now, conn);
        if post(&mut queue, now).is_none() {
            assert_eq!(conn, 28);
            break;
        }
        queue.completed(now, OpId(conn.into())).for_each(drop);
    }
    queue.completed(now, OpId(28)).for_each(drop);
    for at in 0..4 {
        queue.queue_message(now, OpTag(at), vec![0; 44]).unwrap();
    }
    let sent: Vec<_> = std::iter::from_fn(|| post(&mut queue, now)).collect();
    assert_eq!(sent, [0, 1, 2].map(|at| Posted::Llc(OpTag(at))));
    for _ in 0..16 {
        queue.received(now, 0).unwrap();
    }
    assert_eq!(post(&mut queue, now), Some(Posted::Credits(16)));
    assert_eq!(post(&mut queue, now), None);
    // The peer grants some: what waits goes on, LLC first.
    assert_eq!(queue.received(now, 20), Ok(true));
    assert_eq!(post(&mut queue, now), Some(Posted::Llc(OpTag(3))));
    assert_eq!(post(&mut queue, now), Some(Posted::Cdc(28)));
}

/// A queue that has sent all that the initial credits allow; all of it is completed.
fn without_credits(now: Instant) -> SendQueue<u32> {
    let mut queue = SendQueue::with_credits(Credits::new(48));
    for conn in 0..28 {
        queue.queue_connection(now, conn);
        post(&mut queue, now).unwrap();
        let op = OpId(u64::from(conn) + 1);
        queue.completed(now, op).for_each(drop);
    }
    queue
}

fn starved_since(at: Instant) -> Option<(Instant, SendTimeout)> {
    Some((at + SEND_QUEUE_TIMEOUT, SendTimeout::Credit))
}

#[test]
fn a_peer_that_grants_nothing_is_noticed() {
    let start = Instant::now();
    let mut queue = without_credits(start);
    assert!(!queue.is_starved(), "nothing waits");
    assert_eq!(queue.poll_timeout(), None);
    let later = start + SECOND;
    queue.queue_connection(later, 99);
    queue.queue_connection(later + SECOND, 98);
    assert!(queue.is_starved());
    assert_eq!(time_out(&queue), starved_since(later));
    queue.received(later, 2).unwrap();
    assert_eq!(queue.poll_timeout(), None);
    assert_eq!(post(&mut queue, later), Some(Posted::Cdc(99)));
    assert_eq!(post(&mut queue, later), Some(Posted::Cdc(98)));
    assert!(!queue.is_starved(), "nothing waits");
}

#[test]
fn a_peer_that_grants_a_few_and_then_nothing_is_noticed() {
    let start = Instant::now();
    let mut queue = without_credits(start);
    (100..120).for_each(|conn| queue.queue_connection(start, conn));
    // Nothing of what follows is a completion.
    let later = start + 4 * SECOND;
    assert_eq!(queue.received(later, 5), Ok(true));
    let sent = std::iter::from_fn(|| post(&mut queue, later));
    assert_eq!(sent.count(), 5);
    assert_eq!(time_out(&queue), starved_since(later));
}

#[test]
fn a_connection_does_not_wait_since_another_one_did() {
    let start = Instant::now();
    let mut queue = without_credits(start);
    queue.queue_connection(start, 99);
    queue.queue_connection(start, 98);
    queue.remove_connection(98);
    assert_eq!(time_out(&queue), starved_since(start));
    queue.remove_connection(99);
    assert_eq!(queue.poll_timeout(), None, "none waits any more");
    let later = start + 20 * SECOND;
    queue.queue_connection(later, 97);
    assert_eq!(time_out(&queue), starved_since(later));
}

#[test]
fn time_in_which_this_process_was_stopped_does_not_count() {
    let mut now = Instant::now();
    let mut queue = without_credits(now);
    queue.queue_connection(now, 99);
    for _ in 0..9 {
        now += SECOND;
        assert_eq!(queue.handle_timeout(now), Ok(()));
    }
    now += 60 * SECOND;
    assert_eq!(queue.handle_timeout(now), Ok(()), "a grant may be there");
    assert_eq!(time_out(&queue), Some((now + SECOND, SendTimeout::Credit)));
    queue.received(now, 1).unwrap();
    assert_eq!(time_out(&queue), None);
}

#[test]
fn a_process_that_always_looks_late_gives_a_link_up_as_well() {
    let start = Instant::now();
    let mut queue = without_credits(start);
    queue.queue_connection(start, 99);
    let looks = (1..).map(|look| queue.handle_timeout(start + look * SECOND * 21 / 10));
    let in_vain = looks.take_while(Result::is_ok).count();
    assert_eq!(in_vain, 10);
}

#[test]
fn one_credit_at_a_time_is_enough() {
    let mut now = Instant::now();
    let mut queue = without_credits(now);
    for conn in 100..120 {
        (conn..120).for_each(|conn| queue.queue_connection(now, conn));
        for _ in 0..9 {
            now += SECOND;
            assert_eq!(queue.handle_timeout(now), Ok(()));
        }
        now += SECOND * 9 / 10;
        assert_eq!(queue.received(now, 1), Ok(true));
        assert_eq!(post(&mut queue, now), Some(Posted::Cdc(conn)));
        assert_eq!(post(&mut queue, now), None);
        let last = queue.last_outstanding().unwrap();
        queue.completed(now, last).for_each(drop);
    }
}

#[test]
fn a_peer_that_sends_without_a_credit_or_grants_too_many_is_refused() {
    let now = Instant::now();
    let mut queue = SendQueue::<u32>::with_credits(Credits::new(48));
    for _ in 0..32 {
        queue.received(now, 0).unwrap();
    }
    assert_eq!(queue.received(now, 0), Err(CreditError::Overdrawn));

    let mut queue = SendQueue::<u32>::with_credits(Credits::new(48));
    let most = CREDITS_MAX - INITIAL_CREDITS;
    assert_eq!(queue.received(now, most + 1), Err(CreditError::TooMany));
    let mut queue = SendQueue::<u32>::with_credits(Credits::new(48));
    assert_eq!(queue.received(now, most), Ok(false));
    assert_eq!(queue.received(now, 1), Err(CreditError::TooMany));
}

#[test]
fn messages_say_what_they_grant() {
    let mut cdc = CdcR::new(1, AlertToken::new(9).unwrap()).to_bytes();
    CdcR::set_credits(&mut cdc, 200);
    assert_eq!(granted_credits(&cdc), 200);
    assert_eq!(granted_credits(&cdc[..26]), 0, "without the byte");
    let mut announcement = [0; MESSAGE_LEN];
    let credits = AnnounceCredits {
        order: ByteOrder::Little,
        credits: 500,
    };
    credits.emit(&mut announcement).unwrap();
    assert_eq!(granted_credits(&announcement), 500);
    assert_eq!(granted_credits(&[0x27; MESSAGE_LEN]), 0);
    assert_eq!(granted_credits(&[]), 0);
}

/// No message finds the receive queue empty, nothing that waits is forgotten, and everything
/// arrives in order, whatever is lost with a link. No link times out.
#[test]
fn simulation_of_credits() {
    let (mut waits, mut long_waits, mut announcements) = (0, 0, 0);
    for seed in 0..SCHEDULES {
        let mut ends = Ends::new(seed);
        ends.run(40);
        ends.finish();
        waits += ends.waits;
        long_waits += ends.long_waits;
        announcements += ends.announcements;
    }
    // Otherwise it would prove little.
    assert!(waits > SCHEDULES / 4, "{waits} waits for credits");
    assert!(long_waits > SCHEDULES / 100, "{long_waits} of seconds");
    assert!(
        announcements > SCHEDULES / 4,
        "{announcements} announcements"
    );
}

/// A peer that takes no messages any more is given up after ten seconds.
#[test]
fn simulation_of_peers_that_grant_nothing() {
    let mut given_up = 0;
    for seed in 0..SCHEDULES / 10 {
        let mut ends = Ends::new(seed);
        let steps = below(&mut ends.rng, 20);
        ends.run(steps);
        given_up += u64::from(ends.is_given_up_by_first());
    }
    assert_eq!(given_up, SCHEDULES / 10);
}

/// A peer that sends and grants what it likes is refused when it sends without a credit or grants
/// too many, and not before; and this side never has more messages under way than it was granted.
#[test]
fn simulation_of_lying_peers() {
    let now = Instant::now();
    let (mut overdrawn, mut too_many) = (0, 0);
    for seed in 0..SCHEDULES / 10 {
        let mut rng = Rng::new(seed);
        let mut queue = SendQueue::with_credits(Credits::new(below(&mut rng, 300)));
        let (mut granted, mut sent, mut received) = (INITIAL_CREDITS, 0, 0);
        // Some send much before this side comes to send.
        let kinds = 3 + rng.below(40);
        for _ in 0..rng.below(300) {
            match rng.below(kinds) {
                2.. => {
                    let grants = match rng.below(100) {
                        0 => below(&mut rng, u32::from(u16::MAX)),
                        _ => below(&mut rng, 10),
                    };
                    // All that it was ever granted.
                    let peer_granted =
                        u64::from(INITIAL_CREDITS) + queue.counters().credits_granted;
                    let is_overdrawn = received == peer_granted;
                    let expected = match granted - sent + grants > CREDITS_MAX {
                        _ if is_overdrawn => Err(CreditError::Overdrawn),
                        true => Err(CreditError::TooMany),
                        false => Ok(()),
                    };
                    let result = queue.received(now, grants).map(drop);
                    assert_eq!(result, expected, "seed {seed}");
                    match result {
                        Err(CreditError::Overdrawn) => overdrawn += 1,
                        Err(CreditError::TooMany) => too_many += 1,
                        Ok(()) => {}
                    }
                    if result.is_err() {
                        break;
                    }
                    received += 1;
                    granted += grants;
                }
                1 => queue.queue_connection(now, below(&mut rng, 300)),
                0 => {
                    while post(&mut queue, now).is_some() {
                        sent += 1;
                        queue.completed(now, OpId(u64::from(sent))).for_each(drop);
                    }
                }
            }
            assert!(sent <= granted, "seed {seed}");
        }
    }
    // Otherwise it would prove little.
    assert!(overdrawn > SCHEDULES / 100, "{overdrawn} without a credit");
    assert!(too_many > SCHEDULES / 100, "{too_many} with too many");
}

fn below(rng: &mut Rng, end: u32) -> u32 {
    u32::try_from(rng.below(end as usize)).unwrap()
}

/// A message on its way.
struct Sent {
    what: Posted<u32>,
    /// Of its connection, or of all LLC messages.
    number: u32,
    grants: u32,
}

/// One end of the link.
struct LinkEnd {
    queue: SendQueue<u32>,
    receives: u32,
    /// Messages of each connection that wait, and the numbers of those that were sent.
    waiting: BTreeMap<u32, u32>,
    numbers: BTreeMap<Option<u32>, u32>,
    /// What has reached a receive buffer, and was not taken yet.
    received: VecDeque<Sent>,
    /// Numbers that arrived last.
    arrived: BTreeMap<Option<u32>, u32>,
    /// Sent by this end, and not at the other one yet.
    wire: VecDeque<Sent>,
    /// Sends that are not completed, and the number of the last that is.
    delivered: u64,
    completed: u64,
    /// When it had last taken all that the other one had sent, and had all completions.
    caught_up: Instant,
}

struct Ends {
    seed: u64,
    rng: Rng,
    now: Instant,
    ends: [LinkEnd; 2],
    waits: u64,
    /// Steps at which a connection has waited for credits for some seconds.
    long_waits: u64,
    announcements: u64,
}

impl LinkEnd {
    fn new(receives: u32, now: Instant) -> Self {
        Self {
            queue: SendQueue::with_credits(Credits::new(receives)),
            receives,
            waiting: BTreeMap::new(),
            numbers: BTreeMap::new(),
            received: VecDeque::new(),
            arrived: BTreeMap::new(),
            wire: VecDeque::new(),
            delivered: 0,
            completed: 0,
            caught_up: now,
        }
    }

    /// Posts whatever can be posted, as a shell does when it is told to.
    fn pump(&mut self, now: Instant) -> u64 {
        let mut announcements = 0;
        while let Some(next) = self.queue.next_post() {
            let (what, of) = match next {
                NextPost::Llc(tag, _) => (Posted::Llc(tag), Some(None)),
                NextPost::Cdc(conn) => (Posted::Cdc(conn), Some(Some(conn))),
                NextPost::Credits(grants) => (Posted::Credits(grants), None),
            };
            let grants = match what {
                Posted::Llc(_) => 0,
                Posted::Cdc(_) => self.queue.grants_with_cdc().into(),
                Posted::Credits(grants) => {
                    announcements += 1;
                    grants.into()
                }
            };
            self.queue.posted(now, what);
            let number = of.map_or(0, |of| {
                let number = self.numbers.entry(of).or_default();
                *number += 1;
                *number
            });
            self.wire.push_back(Sent {
                what,
                number,
                grants,
            });
            if let Posted::Cdc(conn) = what {
                let left = self.waiting.get_mut(&conn).unwrap();
                *left -= 1;
                if *left > 0 {
                    self.queue.queue_connection(now, conn);
                }
            }
        }
        announcements
    }
}

impl Ends {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let receives = [0; 2].map(|_: u32| 48 + below(&mut rng, 30));
        let now = Instant::now();
        let mut ends = Self {
            seed,
            rng,
            now,
            ends: receives.map(|receives| LinkEnd::new(receives, now)),
            waits: 0,
            long_waits: 0,
            announcements: 0,
        };
        // As CONFIRM LINK does.
        ends.requeue();
        ends
    }

    fn run(&mut self, steps: u32) {
        for _ in 0..steps {
            self.spend_time();
            let end = self.rng.below(2);
            match self.rng.below(40) {
                0 => self.lose_link(),
                1..8 => self.send(end),
                8..11 => self.send_llc(end),
                11..25 => self.deliver(end, 20),
                25..32 => self.take(end, 40),
                _ => self.complete(end),
            }
        }
    }

    /// Time passes; no end is behind for longer than [`LATE_MAX`].
    fn spend_time(&mut self) {
        let longest = [0, 0, 0, 0, 100, 900][self.rng.below(6)];
        self.now += Duration::from_millis(self.rng.below(longest + 1) as u64);
        for end in 0..2 {
            if self.now - self.ends[end].caught_up > LATE_MAX {
                self.deliver_all(1 - end);
                self.take_all(end);
                self.complete(end);
                self.ends[end].caught_up = self.now;
            }
        }
        for end in &mut self.ends {
            let is_due = end.queue.poll_timeout().is_some_and(|at| at <= self.now);
            self.long_waits += u64::from(is_due && end.queue.is_starved());
            let in_time = end.queue.handle_timeout(self.now);
            assert_eq!(in_time, Ok(()), "seed {}", self.seed);
        }
    }

    /// From now on the second end takes no messages. Returns whether the first one gives it up, ten
    /// seconds after it has had no credit for the first time.
    fn is_given_up_by_first(&mut self) -> bool {
        self.deliver_all(1);
        self.take_all(0);
        let mut starved = None;
        // More than all credits at one message a time.
        for _ in 0..200 {
            self.send(0);
            self.deliver_all(0);
            self.complete(0);
            let queue = &mut self.ends[0].queue;
            if queue.is_starved() {
                starved.get_or_insert(self.now);
            }
            let over = queue.handle_timeout(self.now);
            let waited = starved.map_or(Duration::ZERO, |since| self.now - since);
            let expected = match waited < SEND_QUEUE_TIMEOUT {
                true => Ok(()),
                false => Err(SendTimeout::Credit),
            };
            assert_eq!(over, expected, "seed {}: after {waited:?}", self.seed);
            if over.is_err() {
                return true;
            }
            self.now += SECOND;
        }
        false
    }

    /// Everything that waits is sent and arrives, if the ends do what they are told to.
    fn finish(&mut self) {
        for _ in 0..2_000 {
            if (0..2).all(|end| self.is_quiet(end)) {
                break;
            }
            for end in 0..2 {
                self.deliver_all(end);
                self.take_all(end);
                self.complete(end);
            }
        }
        for (end, other) in [(0, 1), (1, 0)] {
            assert!(self.is_quiet(end), "seed {}: end {end} is stuck", self.seed);
            let [sent, arrived] = [&self.ends[end].numbers, &self.ends[other].arrived];
            assert_eq!(sent, arrived, "seed {}", self.seed);
        }
    }

    fn is_quiet(&mut self, end: usize) -> bool {
        let end = &mut self.ends[end];
        let has_none = end.waiting.values().all(|left| *left == 0);
        has_none
            && end.wire.is_empty()
            && end.received.is_empty()
            && end.queue.next_post().is_none()
            && end.queue.last_outstanding().is_none()
    }

    fn send(&mut self, end: usize) {
        let (conn, count) = (below(&mut self.rng, 60), 1 + below(&mut self.rng, 24));
        let end = &mut self.ends[end];
        *end.waiting.entry(conn).or_default() += count;
        end.queue.queue_connection(self.now, conn);
        self.waits += u64::from(end.queue.has_space() && !end.queue.has_capacity());
        self.announcements += end.pump(self.now);
    }

    fn send_llc(&mut self, end: usize) {
        let end = &mut self.ends[end];
        end.queue
            .queue_message(self.now, OpTag(0), vec![0; 44])
            .unwrap();
        self.announcements += end.pump(self.now);
    }

    fn deliver_all(&mut self, end: usize) {
        while !self.ends[end].wire.is_empty() {
            self.deliver(end, 40);
        }
    }

    fn take_all(&mut self, end: usize) {
        while !self.ends[end].received.is_empty() {
            self.take(end, 40);
        }
    }

    /// Messages of this end reach the other one, and take a receive buffer each.
    fn deliver(&mut self, end: usize, most: usize) {
        let (seed, count) = (self.seed, 1 + self.rng.below(most));
        for _ in 0..count {
            let Some(message) = self.ends[end].wire.pop_front() else {
                return;
            };
            self.ends[end].delivered += 1;
            let other = &mut self.ends[1 - end];
            other.received.push_back(message);
            let taken = other.received.len();
            assert!(taken <= other.receives as usize, "seed {seed}: RNR");
        }
    }

    /// This end takes messages out of their buffers.
    fn take(&mut self, end: usize, most: usize) {
        let count = 1 + self.rng.below(most);
        let end = &mut self.ends[end];
        for _ in 0..count {
            let Some(message) = end.received.pop_front() else {
                return;
            };
            let of = match message.what {
                Posted::Llc(_) => Some(None),
                Posted::Cdc(conn) => Some(Some(conn)),
                Posted::Credits(_) => None,
            };
            if let Some(of) = of {
                let last = end.arrived.insert(of, message.number).unwrap_or(0);
                assert_eq!(message.number, last + 1, "seed {}: order", self.seed);
            }
            let may_post = end.queue.received(self.now, message.grants);
            if may_post.unwrap() {
                self.announcements += end.pump(self.now);
            }
        }
    }

    /// The device of this end reports that messages were delivered.
    fn complete(&mut self, end: usize) {
        let end = &mut self.ends[end];
        if end.delivered > end.completed {
            end.completed = end.delivered;
            let op = OpId(end.completed);
            end.queue.completed(self.now, op).for_each(drop);
            self.announcements += end.pump(self.now);
        }
    }

    /// A new link takes its place: connections send again what has not arrived.
    fn lose_link(&mut self) {
        for (end, other) in [(0, 1), (1, 0)] {
            let arrived = self.ends[other].arrived.clone();
            let end = &mut self.ends[end];
            end.queue = SendQueue::with_credits(Credits::new(end.receives));
            (end.delivered, end.completed) = (0, 0);
            end.wire.clear();
            for (of, sent) in &mut end.numbers {
                let has_arrived = arrived.get(of).copied().unwrap_or(0);
                let lost = *sent - has_arrived;
                *sent = has_arrived;
                // LLC messages are lost with their link.
                if let Some(conn) = of {
                    *end.waiting.entry(*conn).or_default() += lost;
                }
            }
            end.numbers.retain(|_, sent| *sent > 0);
        }
        for end in &mut self.ends {
            // What was in the buffers went with the queue pair.
            end.received.clear();
        }
        self.requeue();
    }

    fn requeue(&mut self) {
        for end in &mut self.ends {
            let waiting = end.waiting.iter().filter(|(_, left)| **left > 0);
            waiting.for_each(|(conn, _)| end.queue.queue_connection(self.now, *conn));
            self.announcements += end.pump(self.now);
        }
    }
}

const SCHEDULES: u64 = 100_000;

/// How late an honest end may be: credits can take three such times, as the ends may need some of
/// each other, and have to be there before the time-out.
const LATE_MAX: Duration = Duration::from_secs(2);
