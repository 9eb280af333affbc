//! Two ends, and links between them that fail at any moment.

use std::collections::VecDeque;

use smc_testkit::Rng;

use super::*;
use crate::proto::conn::{Closing, ReadEnd, RecvCursors, WriteEnd};

#[test]
fn nothing_is_lost_or_duplicated_by_link_failures() {
    for seed in 0..600 {
        ConnSimulation::new(seed, Plan::Close).run(seed);
    }
}

#[test]
fn aborts_arrive_and_no_byte_is_wrong() {
    for seed in 0..300 {
        ConnSimulation::new(seed, Plan::Abort).run(seed);
    }
}

#[test]
fn a_stream_passes_hundreds_of_rings_and_hundreds_of_links() {
    let rng = Rng::new(77);
    let mut simulation = ConnSimulation::with_sizes(rng, Plan::Close, [1000, 4096], [700, 1000]);
    for end in &mut simulation.ends {
        end.total = 500_000;
    }
    simulation.faults = 50_000;
    simulation.failure_rate = 60;
    simulation.run(77);
}

/// How the applications close the connection.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Plan {
    Close,
    Abort,
}

pub(super) struct ConnSimulation {
    ends: [End; 2],
    /// The number of the link that is up; the link to which an end is bound is stored in the end.
    up: u32,
    /// Posts of both ends on the link that is up, oldest first.
    posted: [VecDeque<PostInFlight>; 2],
    rng: Rng,
    /// Steps in which links may fail and devices may be busy.
    pub(super) faults: u32,
    /// How often links fail, in a thousand.
    failure_rate: u16,
    busy: u16,
    /// How often an end with something to post is scheduled.
    eager: u16,
    deaths: u32,
}

/// A post in flight, one stage after the other.
struct PostInFlight {
    post: Post,
    /// How many of its writes are done.
    written: usize,
    /// The CDC has arrived; only the completion is missing.
    arrived: bool,
}

struct End {
    transmit: Transmit,
    arrivals: Arrivals,
    half: RecvCursors,
    closing: Closing,
    staging: Vec<u8>,
    /// The local element, written by the other end.
    rmb: Vec<u8>,
    link: u32,
    /// Received and not handled, with the link on which it arrived.
    inbox: VecDeque<(u32, CdcR)>,
    peer_waits: bool,
    seed: u64,
    /// Bytes to write in all.
    total: u64,
    written: u64,
    read: u64,
    shut: bool,
    plan: Plan,
}

impl ConnSimulation {
    fn new(seed: u64, plan: Plan) -> Self {
        let mut rng = Rng::new(seed);
        let sizes = [1, 7, 64, 100, 1000, 4096];
        let mut size = || sizes[rng.below(sizes.len())];
        let (staging, elements) = ([size(), size()], [size(), size()]);
        Self::with_sizes(rng, plan, staging, elements)
    }

    pub(super) fn with_sizes(
        mut rng: Rng,
        plan: Plan,
        staging: [u32; 2],
        elements: [u32; 2],
    ) -> Self {
        let autocork = [0, 16, 64 * 1024][rng.below(3)];
        let end = |at: usize| End::new(at, staging[at], elements[at], elements[1 - at], autocork);
        let mut ends = [end(0), end(1)];
        for (end, peer) in ends.iter_mut().zip([elements[1], elements[0]]) {
            end.plan = plan;
            if rng.chance(500) {
                end.transmit.reserve_byte();
            }
            let element = usize::try_from(peer).unwrap();
            let narrow = end.staging.len().min(element);
            let most = if rng.chance(100) { 1 } else { 50 * narrow };
            end.total = u64::try_from(rng.below(most)).unwrap();
        }
        Self {
            ends,
            up: 1,
            posted: Default::default(),
            faults: u32::try_from(rng.below(3000)).unwrap(),
            failure_rate: [0, 20, 60, 200][rng.below(4)],
            busy: [0, 200, 800][rng.below(3)],
            eager: [50, 300, 900][rng.below(3)],
            deaths: 0,
            rng,
        }
    }

    pub(super) fn run(mut self, seed: u64) {
        while self.faults > 0 {
            self.faults -= 1;
            self.step();
        }
        // From here on nothing fails, and every post has to complete.
        for round in 0.. {
            for _ in 0..100 {
                self.step();
            }
            if self.has_ended() {
                break;
            }
            assert!(round < 50_000, "seed {seed}: stalled: {:#?}", self.state());
        }
        for (at, end) in self.ends.iter().enumerate() {
            let other = &self.ends[1 - at];
            assert!(end.closing.is_removable(), "seed {seed}");
            if end.plan == Plan::Close {
                assert_eq!(end.read, other.total, "seed {seed}");
            }
        }
    }

    fn step(&mut self) {
        let at = self.rng.below(2);
        match self.rng.below(12) {
            0 | 1 => self.ends[at].write(&mut self.rng),
            2 | 3 => self.ends[at].read(&mut self.rng),
            4 => self.ends[at].end(&mut self.rng),
            5 | 6 => self.progress(at),
            7 => self.ends[at].receive(&mut self.rng),
            8 if self.faults > 0 && self.rng.chance(self.failure_rate) => self.fail_link(),
            9 => self.notice(at),
            _ => {}
        }
        if self.rng.chance(self.eager) {
            self.post(at);
        }
    }

    /// The link fails; its posts stay in their present stage.
    fn fail_link(&mut self) {
        self.deaths += 1;
        self.up += 1;
        for posted in &mut self.posted {
            posted.clear();
        }
    }

    /// An end detects that its link is down and moves to the one that is up.
    fn notice(&mut self, at: usize) {
        let up = self.up;
        let end = &mut self.ends[at];
        if end.link != up {
            end.link = up;
            end.transmit.failover();
        }
    }

    fn post(&mut self, at: usize) {
        let is_busy = self.faults > 0 && self.rng.chance(self.busy);
        let end = &mut self.ends[at];
        while let Some(post) = end.transmit.poll_post() {
            if is_busy {
                end.transmit.cancel_post();
                return;
            }
            let bare = |posted: &&PostInFlight| {
                let flags = posted.post.cdc.producer_flags;
                posted.post.payload() == 0
                    && !flags.contains(VALIDATION)
                    && !posted.post.cdc.state_flags.contains(A)
            };
            // A post on a failed link has no effect.
            if end.link == self.up {
                self.posted[at].push_back(PostInFlight {
                    post,
                    written: 0,
                    arrived: false,
                });
                assert!(self.posted[at].iter().filter(bare).count() <= 1);
                assert!(self.posted[at].len() <= SENDS_MAX);
            }
        }
    }

    /// The oldest unfinished post of an end advances by one stage.
    fn progress(&mut self, at: usize) {
        let Some(posted) = self.posted[at].iter_mut().find(|posted| !posted.arrived) else {
            return self.complete(at);
        };
        let (mut first, mut second) = {
            let (first, second) = self.ends.split_at_mut(1);
            (&mut first[0], &mut second[0])
        };
        if at == 1 {
            std::mem::swap(&mut first, &mut second);
        }
        let (from, to) = (first, second);
        if let Some(write) = posted.post.writes().nth(posted.written) {
            // The device reads the bytes as late as possible.
            to.take(write, from);
            posted.written += 1;
            return;
        }
        to.inbox.push_back((self.up, posted.post.cdc));
        posted.arrived = true;
        if self.rng.chance(500) {
            self.complete(at);
        }
    }

    fn complete(&mut self, at: usize) {
        if self.posted[at].front().is_some_and(|posted| posted.arrived) {
            let posted = self.posted[at].pop_front().unwrap();
            // A completion can overtake the event that the link is down, but not the move.
            if self.ends[at].link == self.up {
                self.ends[at].transmit.handle_completed(posted.post.id);
            }
        }
    }

    fn has_ended(&self) -> bool {
        self.ends
            .iter()
            .all(|end| end.closing.is_removable() && end.transmit.is_idle() && end.inbox.is_empty())
            && self.posted.iter().all(VecDeque::is_empty)
    }

    fn state(&self) -> impl std::fmt::Debug + use<'_> {
        let end = |end: &End| format!("{:#?} {:?} {:?}", end.transmit, end.closing, end.half);
        (self.deaths, end(&self.ends[0]), end(&self.ends[1]))
    }
}

impl End {
    fn new(at: usize, staging: u32, local: u32, peer: u32, autocork: u32) -> Self {
        Self {
            transmit: Transmit::new(ring(staging), ring(peer), token(), 0, autocork),
            arrivals: Arrivals::new(ring(local), ring(peer)),
            half: RecvCursors::new(ring(local)),
            closing: Closing::default(),
            staging: vec![0; usize::try_from(staging).unwrap()],
            rmb: vec![0; usize::try_from(local).unwrap()],
            link: 1,
            inbox: VecDeque::new(),
            peer_waits: false,
            seed: u64::try_from(at).unwrap(),
            total: 0,
            written: 0,
            read: 0,
            shut: false,
            plan: Plan::Close,
        }
    }

    /// The application writes some of its remaining bytes.
    fn write(&mut self, rng: &mut Rng) {
        let left = self.total - self.written;
        let count = u64::try_from(rng.between(1, 3000)).unwrap().min(left);
        let count = u32::try_from(count).unwrap().min(self.transmit.space());
        if self.closing.write_end() != WriteEnd::Open {
            return;
        }
        let size = self.staging.len();
        let start = usize::try_from(self.transmit.at()).unwrap();
        for offset in 0..usize::try_from(count).unwrap() {
            self.staging[(start + offset) % size] = byte(self.seed, self.written);
            self.written += 1;
        }
        assert_eq!(self.transmit.stage(count), count);
        if rng.chance(100) {
            self.transmit.uncork();
        }
    }

    /// The application reads some of the readable bytes.
    fn read(&mut self, rng: &mut Rng) {
        let half = &mut self.half;
        let wanted = u32::try_from(rng.between(1, 2000)).unwrap();
        let count = half.readable().min(wanted);
        if self.closing.is_app_closed() {
            return;
        }
        let size = self.rmb.len();
        let start = usize::try_from(half.at()).unwrap();
        for offset in 0..usize::try_from(count).unwrap() {
            let read = self.rmb[(start + offset) % size];
            assert_eq!(read, byte(1 - self.seed, self.read), "byte {}", self.read);
            self.read += 1;
        }
        half.consume(count);
        if half.is_update_due(self.peer_waits) {
            self.transmit.set_consumer(half.confirm());
        } else if rng.chance(20) {
            // Sooner than required, as after urgent data was read.
            self.transmit.set_consumer(half.confirm());
        }
    }

    /// The application makes one step towards the close, if it is due.
    fn end(&mut self, rng: &mut Rng) {
        let has_ended = self.closing.read_end() != ReadEnd::Open;
        if self.plan == Plan::Abort && rng.chance(5) {
            self.say(|closing| closing.close(true));
        } else if self.written == self.total && !self.shut && rng.chance(300) {
            self.shut = true;
            self.say(Closing::shutdown_write);
        } else if self.shut && has_ended && self.half.readable() == 0 {
            // Flags follow the data: no data is missing when the end of stream is received.
            self.say(|closing| closing.close(false));
        } else if self.closing.read_end() == ReadEnd::Reset {
            self.say(|closing| closing.close(false));
        }
    }

    fn say(&mut self, change: impl FnOnce(&mut Closing) -> Option<StateFlags>) {
        if let Some(flags) = change(&mut self.closing) {
            self.transmit.set_flags(flags);
        }
    }

    /// Handles the oldest message received, or the oldest of a new link. Queues are polled
    /// independently, as a kernel does, so a CDC of the old link may come late.
    fn receive(&mut self, rng: &mut Rng) {
        let is_late = match (self.inbox.front(), self.inbox.get(1)) {
            (Some((old, cdc)), Some((new, _))) => {
                old != new && !cdc.producer_flags.contains(VALIDATION) && rng.chance(900)
            }
            _ => false,
        };
        let Some((_, cdc)) = self.inbox.remove(usize::from(is_late)) else {
            return;
        };
        let update = match self.arrivals.handle(&cdc).unwrap() {
            Arrival::Update(update) => update,
            Arrival::Stale => return,
            Arrival::Validated => return self.transmit.handle_peer_moved(),
            // All messages of the old link but one are handled before those of the new one.
            other => panic!("{other:?}"),
        };
        self.half.handle_producer(update.producer.cursor).unwrap();
        self.peer_waits = update.consumer.producer_flags.contains(BLOCKED);
        self.transmit.handle_peer(update.consumer.cursor).unwrap();
        self.closing.handle_peer(update.consumer.state_flags);
        if update.state.intersects(C | A) {
            self.transmit.handle_peer_closed();
        }
        if self.plan == Plan::Close && self.closing.read_end() != ReadEnd::Open {
            assert!(!self.closing.is_aborted_by_peer());
            let known = self.read + u64::from(self.half.readable());
            // The end of the stream was received when this many bytes were known.
            assert_eq!(place_of(known, self.half.ring()), update.producer.cursor);
        }
    }

    /// A write of the other end.
    fn take(&mut self, write: &PeerWrite, from: &Self) {
        let mut to = usize::try_from(write.at).unwrap();
        for piece in write.pieces {
            let (at, len) = (
                usize::try_from(piece.at).unwrap(),
                usize::try_from(piece.len).unwrap(),
            );
            self.rmb[to..to + len].copy_from_slice(&from.staging[at..at + len]);
            to += len;
        }
    }
}

/// The byte that an end writes at a position of its stream.
fn byte(seed: u64, position: u64) -> u8 {
    let mixed = (position + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15 ^ (seed << 7));
    mixed.to_be_bytes()[0]
}

fn place_of(position: u64, ring: Ring) -> Cursor {
    let size = u64::from(ring.size());
    let [.., high, low] = (position / size).to_be_bytes();
    Cursor {
        wrap: u16::from_be_bytes([high, low]),
        count: u32::try_from(position % size).unwrap(),
    }
}
