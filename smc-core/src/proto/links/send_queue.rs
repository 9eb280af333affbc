//! Send queue of one link: its outstanding posts, the waiting ones, and its receive credits.

use std::collections::{BTreeMap, VecDeque};
use std::hash::Hash;
use std::time::{Duration, Instant};

use hashbrown::HashMap;

use super::{CreditError, Credits, OpTag};
use crate::device::{OpId, SENDS_MAX, SHORT_LEN};

/// The send queue of one link.
///
/// A link accepts [`SENDS_MAX`] posts before the first is completed, and with [receive
/// credits](Credits) one for each; later ones wait. Messages of the link group are sent first, then
/// credits are granted if that is due, and connections follow in turns.
///
/// Turns are fair by what a message costs (weighted fair queueing): its own bytes and those of its
/// data, up to those of one packet. So a connection that sends little now and then does not wait
/// for all those that send much with each message, none waits for ever, and one that sends more
/// than a packet with each has as many turns as the others.
///
/// `C` identifies a connection.
///
/// ```text
///   queue_message ----> messages -----+
///   received ---------> credits ------+-> next_post --> posted --> outstanding --> completed
///   queue_connection -> connections --+
/// ```
#[derive(Clone, Debug)]
pub struct SendQueue<C> {
    messages: VecDeque<(OpTag, Vec<u8>)>,
    /// Connections that wait, in the order of their turns; each with `shortages` at the time of its
    /// request.
    turns: BTreeMap<Turn, (C, u64)>,
    /// The turn of each.
    waiting: HashMap<C, Turn>,
    /// Connections that have had more than their share of the queue so far.
    shares: HashMap<C, Share>,
    /// What each connection could have sent if all had sent alike: virtual time.
    time: u64,
    /// Requests of connections so far.
    requests: u64,
    pub(super) outstanding: VecDeque<(OpId, Posted<C>)>,
    last: u64,
    /// Nothing is posted or completed although messages wait.
    stalled: Option<Wait>,
    /// `None`: the ends have not agreed on them.
    credits: Option<Credits>,
    /// A connection waits and there is no credit for it.
    starved: Option<Wait>,
    /// How often there was no credit for a connection any more.
    shortages: u64,
    counters: SendCounters,
}

/// The place of a connection: the virtual time at which its message should have been sent, and then
/// the order of requests. Its cost is known behind it, so the last one stands for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Turn {
    end: u64,
    request: u64,
}

/// What a connection has had.
#[derive(Clone, Copy, Debug)]
struct Share {
    /// The virtual time at which it has had no more than others.
    until: u64,
    /// The cost of its last message.
    last: u64,
}

/// How long something has waited, in steps: a process that was stopped meanwhile could neither see
/// that it is over, nor grant the peer what it needs for that. So the time in which it was stopped
/// counts as one step, and as none where that would be the last one.
#[derive(Clone, Copy, Debug)]
struct Wait {
    counted: Duration,
    /// The end of the present step.
    next: Instant,
    /// The last step was noticed late, and counted as none.
    is_extended: bool,
}

impl Wait {
    fn new(now: Instant) -> Self {
        Self {
            counted: Duration::ZERO,
            next: after_step(now),
            is_extended: false,
        }
    }

    /// The end of a step may have come. Returns whether this was too long.
    fn count(&mut self, now: Instant) -> bool {
        if now >= self.next {
            let counted = self.counted.saturating_add(WAIT_STEP);
            let is_late = now >= after_step(self.next);
            self.is_extended = is_late && counted >= SEND_QUEUE_TIMEOUT && !self.is_extended;
            if !self.is_extended {
                self.counted = counted;
            }
            self.next = after_step(now);
        }
        self.counted >= SEND_QUEUE_TIMEOUT
    }
}

/// The end of a step that begins then; it has no length where the clock ends.
fn after_step(at: Instant) -> Instant {
    at.checked_add(WAIT_STEP).unwrap_or(at)
}

/// What a [`SendQueue`] has counted, for tools. Most are of the whole life of the link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "a row of numbers")]
pub struct SendCounters {
    /// Posted messages, whatever they are.
    pub messages: u64,
    /// Those of them that are of connections.
    pub cdc: u64,
    /// Changes of cursors and flags that were sent with a later one, in one message.
    pub coalesced: u64,
    /// Receive credits that this side has granted, besides the initial ones.
    pub credits_granted: u64,
    /// Receive credits that the peer has granted, besides the initial ones.
    pub credits_received: u64,
    /// Turns of connections that had to wait for a receive credit.
    pub credit_waits: u64,
    /// Connections and messages of the link group that wait now.
    pub waiting: usize,
    /// The most that have waited at a time.
    pub waiting_max: usize,
}

/// A completed or outstanding post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posted<C> {
    /// A message of the link group.
    Llc(OpTag),
    /// A message of a connection, with its data.
    Cdc(C),
    /// A message that grants so many receive credits.
    Credits(u16),
}

/// The next post.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextPost<C> {
    /// Post this message, then call [`SendQueue::posted`], or [`SendQueue::requeue`].
    Llc(OpTag, Vec<u8>),
    /// Let this connection post **one** message if it has any.
    Cdc(C),
    /// Grant so many receive credits, then call [`SendQueue::posted`].
    Credits(u16),
}

/// So many messages wait that the peer must be flooding this side; take the link down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many messages wait for the link")]
pub struct Overflow;

/// Most messages that wait on one link: twice what a peer with all its RMBs can cause.
pub const WAITING_MAX: usize = 1024;

/// Something has waited for [`SEND_QUEUE_TIMEOUT`]; take the link down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.message())]
#[non_exhaustive]
pub enum SendTimeout {
    /// A message of the link group for the completion of a post.
    Completion,
    /// A connection, or a message of the link group, for a receive credit.
    Credit,
}

impl SendTimeout {
    /// What is wrong.
    #[must_use]
    pub const fn message(self) -> &'static str {
        match self {
            Self::Completion => "posts are not completed",
            Self::Credit => "peer grants no receive credits",
        }
    }
}

/// The cost of a message with so many bytes of data.
fn cost_of(data: u64) -> u64 {
    let message = u64::try_from(SHORT_LEN).unwrap_or(u64::MAX);
    data.min(PACKET_LEN)
        .saturating_add(message)
        .saturating_mul(SCALE)
}

/// The most that the data of a message costs: a packet, with the smallest path MTU that RoCE
/// usually has. Sending more takes the device longer, but not this queue.
const PACKET_LEN: u64 = 1024;

/// So that the share of each connection in the cost of a message is a number.
const SCALE: u64 = 1024;

/// How long messages wait for space, and connections for receive credits, before the link has to be
/// taken down (docs/spec/link-groups.md#queue-pair, docs/spec/extensions.md#receive-credits).
pub const SEND_QUEUE_TIMEOUT: Duration = Duration::from_secs(10);

/// A process that is stopped for longer is noticed.
const WAIT_STEP: Duration = Duration::from_secs(1);

impl<C: Copy + Eq + Hash> Default for SendQueue<C> {
    fn default() -> Self {
        Self::new()
    }
}

impl<C: Copy + Eq + Hash> SendQueue<C> {
    /// The queue of a link on which nothing was posted yet.
    #[must_use]
    pub fn new() -> Self {
        Self {
            messages: VecDeque::new(),
            turns: BTreeMap::new(),
            waiting: HashMap::new(),
            shares: HashMap::new(),
            time: 0,
            requests: 0,
            outstanding: VecDeque::new(),
            last: 0,
            stalled: None,
            credits: None,
            starved: None,
            shortages: 0,
            counters: SendCounters::default(),
        }
    }

    /// The same of a link whose ends have agreed on receive credits.
    #[must_use]
    pub fn with_credits(credits: Credits) -> Self {
        Self {
            credits: Some(credits),
            ..Self::new()
        }
    }

    /// A message was received, which grants so many receive credits. Returns whether
    /// [`next_post`](Self::next_post) may have something that it did not have before.
    ///
    /// # Errors
    ///
    /// As [`Credits::received`]: the link has to be taken down.
    pub fn received(&mut self, now: Instant, grants: u32) -> Result<bool, CreditError> {
        let Some(credits) = &mut self.credits else {
            return Ok(false);
        };
        credits.received(grants)?;
        let sum = &mut self.counters.credits_received;
        *sum = sum.saturating_add(grants.into());
        if grants > 0 {
            self.reset_stall_timer(now);
            self.update_starvation(now);
        }
        let waits = !self.messages.is_empty() || !self.waiting.is_empty();
        let is_due = self
            .credits
            .as_ref()
            .is_some_and(|credits| credits.announcement().is_some());
        Ok(is_due || (waits && grants > 0))
    }

    /// The receive credits that the next message of a connection has to grant.
    #[must_use]
    pub fn grants_with_cdc(&self) -> u8 {
        self.credits.as_ref().map_or(0, Credits::with_cdc)
    }

    /// A message of the link group has to be posted
    /// ([`LinkGroupOutput::Send`](super::LinkGroupOutput::Send)).
    ///
    /// # Errors
    ///
    /// [`Overflow`] when [`WAITING_MAX`] messages wait already.
    pub fn queue_message(
        &mut self,
        now: Instant,
        tag: OpTag,
        message: Vec<u8>,
    ) -> Result<(), Overflow> {
        if self.messages.len() >= WAITING_MAX {
            return Err(Overflow);
        }
        self.messages.push_back((tag, message));
        self.stalled.get_or_insert_with(|| Wait::new(now));
        self.note_waiting();
        Ok(())
    }

    /// A connection has a message to post. Repeated calls have no effect until it was served.
    pub fn queue_connection(&mut self, now: Instant, conn: C) {
        if self.waiting.contains_key(&conn) {
            return;
        }
        let share = self.shares.get(&conn).copied();
        let share = share.filter(|share| share.until > self.time);
        let (begin, cost) = match share {
            Some(share) => (share.until, share.last),
            None => (self.time, cost_of(0)),
        };
        if share.is_none() {
            self.shares.remove(&conn);
        }
        let turn = Turn {
            end: begin.saturating_add(cost),
            request: self.requests,
        };
        self.requests = self.requests.wrapping_add(1);
        self.waiting.insert(conn, turn);
        self.turns.insert(turn, (conn, self.shortages_before()));
        self.note_waiting();
        self.update_starvation(now);
    }

    /// A connection was removed, or moved to another link.
    pub fn remove_connection(&mut self, conn: C) {
        self.shares.remove(&conn);
        if let Some(turn) = self.waiting.remove(&conn) {
            self.turns.remove(&turn);
        }
        self.starved = self.starved.filter(|_| !self.waiting.is_empty());
    }

    /// Whether there is space for the post of a connection, regardless of waiting ones.
    #[must_use]
    pub fn has_capacity(&self) -> bool {
        self.has_space() && self.has_credit()
    }

    /// Whether the device has space for a post.
    #[must_use]
    pub fn has_space(&self) -> bool {
        self.outstanding.len() < SENDS_MAX
    }

    /// Whether there is a receive credit for a connection, or none is needed.
    fn has_credit(&self) -> bool {
        self.credits.as_ref().is_none_or(Credits::allows_cdc)
    }

    /// Whether a connection may post at once: there is space, and nothing waits.
    #[must_use]
    pub fn can_post_now(&self) -> bool {
        self.has_capacity() && self.messages.is_empty() && self.waiting.is_empty()
    }

    /// The next post; `None` without space, and when nothing waits.
    ///
    /// A connection that has more than one message to post calls
    /// [`queue_connection`](Self::queue_connection) again.
    pub fn next_post(&mut self) -> Option<NextPost<C>> {
        if !self.has_space() {
            return None;
        }
        let credits = self.credits.as_ref();
        if credits.is_none_or(Credits::allows_llc) {
            if let Some((tag, message)) = self.messages.pop_front() {
                return Some(NextPost::Llc(tag, message));
            }
        }
        if let Some(grants) = credits.and_then(Credits::announcement) {
            return Some(NextPost::Credits(grants));
        }
        if !self.has_credit() {
            return None;
        }
        let conn = self.next_connection()?;
        self.waiting.remove(&conn);
        Some(NextPost::Cdc(conn))
    }

    fn next_connection(&mut self) -> Option<C> {
        let (_, (conn, shortages)) = self.turns.pop_first()?;
        let waited = u64::from(shortages != self.shortages);
        self.counters.credit_waits = self.counters.credit_waits.saturating_add(waited);
        Some(conn)
    }

    /// The number under which the next post is reported; pass it to the device.
    #[must_use]
    pub const fn next_op(&self) -> OpId {
        OpId(self.last.wrapping_add(1))
    }

    /// The device accepted the post with the number [`next_op`](Self::next_op).
    pub fn posted(&mut self, now: Instant, what: Posted<C>) {
        let op = self.next_op();
        self.last = op.0;
        let counters = &mut self.counters;
        counters.messages = counters.messages.saturating_add(1);
        let is_cdc = matches!(what, Posted::Cdc(_));
        counters.cdc = counters.cdc.saturating_add(is_cdc.into());
        if let Some(credits) = &mut self.credits {
            let grants = match &what {
                Posted::Llc(_) => 0,
                Posted::Cdc(_) => credits.with_cdc().into(),
                Posted::Credits(grants) => (*grants).into(),
            };
            let had_one = credits.allows_cdc();
            credits.sent(grants);
            let is_short = had_one && !credits.allows_cdc();
            self.shortages = self.shortages.wrapping_add(is_short.into());
            counters.credits_granted = counters.credits_granted.saturating_add(grants.into());
        }
        self.outstanding.push_back((op, what));
        self.reset_stall_timer(now);
        self.update_starvation(now);
    }

    /// The device had no space for a message: it is first in the queue again.
    pub fn requeue(&mut self, now: Instant, tag: OpTag, message: Vec<u8>) {
        self.messages.push_front((tag, message));
        self.stalled.get_or_insert_with(|| Wait::new(now));
        self.note_waiting();
    }

    /// A post was completed. Completions arrive in the order of the posts, and one includes all
    /// before it: returns everything that is completed now, the oldest first.
    pub fn completed(
        &mut self,
        now: Instant,
        op: OpId,
    ) -> impl Iterator<Item = Posted<C>> + use<C> {
        let at = self.outstanding.iter().position(|(of, _)| *of == op);
        let count = at.map_or(0, |at| at.saturating_add(1));
        let done: Vec<_> = self
            .outstanding
            .drain(..count)
            .map(|(_, what)| what)
            .collect();
        if !done.is_empty() {
            self.reset_stall_timer(now);
        }
        done.into_iter()
    }

    /// The newest post that is not completed.
    #[must_use]
    pub fn last_outstanding(&self) -> Option<OpId> {
        self.outstanding.back().map(|(op, _)| *op)
    }

    /// The link is down: returns everything that was not completed, the oldest first. Nothing waits
    /// any more.
    pub fn fail(&mut self) -> impl Iterator<Item = Posted<C>> + use<C> {
        let counters = self.counters;
        let Self { outstanding, .. } = std::mem::take(self);
        self.counters = counters;
        outstanding.into_iter().map(|(_, what)| what)
    }

    /// A connection has posted so many bytes of data with its message, and changes that would have
    /// been messages of their own; call this behind [`posted`](Self::posted).
    pub fn charge(&mut self, conn: C, data: u64, coalesced: u32) {
        let sum = &mut self.counters.coalesced;
        *sum = sum.saturating_add(coalesced.into());
        // While none waits it takes nothing away from others.
        if self.waiting.is_empty() {
            return;
        }
        let cost = cost_of(data);
        let begin = self.shares.get(&conn).map_or(0, |share| share.until);
        let share = Share {
            until: begin.max(self.time).saturating_add(cost),
            last: cost,
        };
        self.shares.insert(conn, share);
        let connections = u64::try_from(self.waiting.len()).unwrap_or(u64::MAX);
        let each = cost.checked_div(connections.saturating_add(1));
        self.time = self.time.saturating_add(each.unwrap_or(0));
    }

    /// What was counted so far.
    #[must_use]
    pub fn counters(&self) -> SendCounters {
        SendCounters {
            waiting: self.waiting_len(),
            ..self.counters
        }
    }

    /// Receive credits that are left: SENDs that can be made now. `None` where the ends have not
    /// agreed on them.
    #[must_use]
    pub fn credits(&self) -> Option<u32> {
        self.credits.as_ref().map(Credits::available)
    }

    fn waiting_len(&self) -> usize {
        self.messages.len().saturating_add(self.waiting.len())
    }

    fn note_waiting(&mut self) {
        self.counters.waiting_max = self.counters.waiting_max.max(self.waiting_len());
    }

    /// The number of shortages for a connection that waits from now on: without the present one.
    fn shortages_before(&self) -> u64 {
        let is_short = u64::from(!self.has_credit());
        self.shortages.wrapping_sub(is_short)
    }

    /// When to call [`handle_timeout`](Self::handle_timeout).
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let waits = self.stalled.into_iter().chain(self.starved);
        waits.map(|wait| wait.next).min()
    }

    /// Time has passed.
    ///
    /// # Errors
    ///
    /// The link has to be taken down: for [`SEND_QUEUE_TIMEOUT`] no post was completed although
    /// messages wait, or the peer has granted no receive credit although connections do. Time in
    /// which this was not called counts as a second, as while the process was stopped.
    pub fn handle_timeout(&mut self, now: Instant) -> Result<(), SendTimeout> {
        let is_over = |wait: &mut Option<Wait>| wait.as_mut().is_some_and(|wait| wait.count(now));
        let (is_stalled, is_starved) = (is_over(&mut self.stalled), is_over(&mut self.starved));
        match (is_stalled, is_starved) {
            (_, true) => Err(SendTimeout::Credit),
            (true, false) if self.last_outstanding().is_none() => Err(SendTimeout::Credit),
            (true, false) => Err(SendTimeout::Completion),
            (false, false) => Ok(()),
        }
    }

    /// Whether a connection waits for receive credits: a [timeout](Self::poll_timeout) is running.
    #[must_use]
    pub const fn is_starved(&self) -> bool {
        self.starved.is_some()
    }

    /// Credits or waiting connections have changed. What a grant has allowed may be spent while
    /// others wait: these wait from then on.
    fn update_starvation(&mut self, now: Instant) {
        let is_starved = !self.has_credit() && !self.waiting.is_empty();
        self.starved = is_starved.then(|| self.starved.unwrap_or_else(|| Wait::new(now)));
    }

    fn reset_stall_timer(&mut self, now: Instant) {
        self.stalled = (!self.messages.is_empty()).then(|| Wait::new(now));
    }
}
