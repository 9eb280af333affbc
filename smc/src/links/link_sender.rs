//! A connected queue pair with the queue of its users.

use std::sync::atomic::AtomicU64 as StdAtomicU64;
use std::sync::{Arc, MutexGuard, Weak};
use std::time::Instant;

use smc_wire::cdc::CdcR;
use smc_wire::llc::{AnnounceCredits, ByteOrder, MESSAGE_LEN, MessageType};
use smc_wire::types::AlertToken;

use super::super::device_driver::DeviceDriver;
use crate::device::{Link, LinkFailure, OpId, SHORT_LEN, SubmitError, Write};
use crate::mem::sync::{AtomicBool, AtomicU64, Ordering};
use crate::mutex::Mutex;
use crate::proto::group::DeviceIndex;
use crate::proto::links::{
    CreditError, Credits, LinkId, LlcTerms, NextPost, OpTag, Overflow, Posted, SendQueue,
    SendTimeout, granted_credits,
};
use crate::stats::{LinkQueueInfo, QueueStats};

/// The sending side of a link, shared by connections: the number of outstanding posts is bounded,
/// and turns are fair by what messages cost.
pub(crate) struct LinkSender {
    pub(crate) id: LinkId,
    pub(crate) device: DeviceIndex,
    pub(crate) link: Arc<dyn Link>,
    posts: Mutex<Posts>,
    driver: Weak<DeviceDriver>,
    /// Of LLC messages.
    order: ByteOrder,
    /// The ends have agreed on receive credits.
    has_credits: bool,
    down: AtomicBool,
    /// The peer had no receive buffer in all retries.
    is_rnr_exceeded: AtomicBool,
    /// The most messages of a connection that were held back.
    held_max: StdAtomicU64,
    /// The queue pair sends and receives nothing any more.
    closed: AtomicBool,
    /// The time of the last activity that was reported to the group, in milliseconds since `since`.
    last_activity: AtomicU64,
    since: Instant,
    /// Behind `link`, which is dropped before.
    _end: LinkEnd,
}

/// Notifies waiters of the end of a link: a set-up may wait for its place on the device.
struct LinkEnd(Weak<DeviceDriver>);

impl Drop for LinkEnd {
    fn drop(&mut self) {
        if let Some(driver) = self.0.upgrade() {
            driver.groups.notify_ended();
        }
    }
}

/// Outstanding posts.
struct Posts {
    queue: SendQueue<AlertToken>,
    /// A task waits for the completion of this post. Other completions need not wake a task.
    awaited: Option<OpId>,
}

/// The result of a post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PostResult {
    /// It was posted.
    Posted,
    /// No send capacity; the connection is queued for a turn.
    Queued,
    /// The link is down; the group moves its connections or ends.
    LinkDown,
    /// The connection cannot use this link, and no other either.
    Unreachable,
}

impl LinkSender {
    /// `driver` is that of the device.
    pub(crate) fn new(
        id: LinkId,
        device: DeviceIndex,
        link: Arc<dyn Link>,
        driver: &Arc<DeviceDriver>,
        terms: &LlcTerms,
        now: Instant,
    ) -> Self {
        let queue = match terms.has_credits {
            true => SendQueue::with_credits(Credits::new(link.receives())),
            false => SendQueue::new(),
        };
        Self {
            id,
            device,
            link,
            posts: Mutex::new(Posts {
                queue,
                awaited: None,
            }),
            driver: Arc::downgrade(driver),
            order: terms.dialect.order(),
            has_credits: terms.has_credits,
            down: AtomicBool::new(false),
            is_rnr_exceeded: AtomicBool::new(false),
            held_max: StdAtomicU64::new(0),
            closed: AtomicBool::new(false),
            last_activity: AtomicU64::new(0),
            since: now,
            _end: LinkEnd(Arc::downgrade(driver)),
        }
    }

    pub(crate) fn is_down(&self) -> bool {
        self.down.load(Ordering::Acquire)
    }

    /// Whether the queue pair sends and receives nothing any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub(crate) fn set_closed(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// The device has reported why the link is down.
    pub(crate) fn note_failure(&self, cause: LinkFailure) {
        let is_rnr = cause == LinkFailure::RnrExceeded;
        self.is_rnr_exceeded.fetch_or(is_rnr, Ordering::Relaxed);
    }

    /// A connection holds so many received messages.
    pub(crate) fn note_held(&self, count: usize) {
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        self.held_max.fetch_max(count, Ordering::Relaxed);
    }

    /// What the link has counted, for tools.
    pub(crate) fn info(&self) -> LinkQueueInfo {
        let (counters, credits) = {
            let queue = &self.posts.lock().queue;
            (queue.counters(), queue.credits())
        };
        let of_device = self.link.counters();
        let count = |len| u64::try_from(len).unwrap_or(u64::MAX);
        let stats = QueueStats {
            messages: counters.messages,
            cdc_messages: counters.cdc,
            coalesced: counters.coalesced,
            waiting: count(counters.waiting),
            waiting_max: count(counters.waiting_max),
            held_max: self.held_max.load(Ordering::Relaxed),
            credits_granted: counters.credits_granted,
            credits_received: counters.credits_received,
            credit_waits: counters.credit_waits,
            rnr_naks: of_device.rnr,
            rnr_exceeded: self.is_rnr_exceeded.load(Ordering::Relaxed).into(),
            receives_low: of_device.receives_low,
        };
        LinkQueueInfo {
            link: self.id,
            stats,
            receives: self.link.receives(),
            credits,
        }
    }

    /// Whether received activity has to be reported to the group: once per [`ACTIVITY_INTERVAL`] is
    /// enough.
    pub(crate) fn take_activity_due(&self, now: Instant) -> bool {
        let at = now.saturating_duration_since(self.since).as_millis();
        let at = u64::try_from(at).unwrap_or(u64::MAX);
        let before = self.last_activity.load(Ordering::Relaxed);
        let is_due = at >= before.saturating_add(ACTIVITY_INTERVAL);
        if is_due {
            self.last_activity.store(at, Ordering::Relaxed);
        }
        is_due
    }

    /// Reserves send capacity for one post of a connection. If there is none, the connection is
    /// queued for a turn; a link that is down has none, and gets none.
    ///
    /// `in_turn`: the connection has a turn; otherwise waiting connections come first.
    pub(crate) fn try_reserve(
        &self,
        now: Instant,
        token: AlertToken,
        in_turn: bool,
    ) -> Option<SendSlot<'_>> {
        let mut posts = self.posts.lock();
        if self.is_down() {
            return None;
        }
        let queue = &mut posts.queue;
        let is_open = match in_turn {
            true => queue.has_capacity(),
            false => queue.can_post_now(),
        };
        if !is_open {
            queue.queue_connection(now, token);
            self.arm_last(&mut posts);
            return None;
        }
        Some(SendSlot {
            sender: self,
            posts,
            token,
        })
    }

    /// Queues a connection again that had its turn and has more to post.
    pub(crate) fn requeue_connection(&self, now: Instant, token: AlertToken) {
        self.posts.lock().queue.queue_connection(now, token);
    }

    /// Removes a connection that ended or was moved.
    pub(crate) fn remove(&self, token: AlertToken) {
        self.posts.lock().queue.remove_connection(token);
    }

    /// Queues a message of the link group; [`LinkSender::next_turn`] posts it.
    pub(crate) fn queue(&self, now: Instant, tag: OpTag, message: Vec<u8>) -> Result<(), Overflow> {
        self.posts.lock().queue.queue_message(now, tag, message)
    }

    /// Posts queued messages of the link group, then returns the connection that may post.
    pub(crate) fn next_turn(&self, now: Instant) -> Option<AlertToken> {
        let mut posts = self.posts.lock();
        if self.is_down() {
            return None;
        }
        loop {
            let queue = &mut posts.queue;
            let (message, what) = match queue.next_post() {
                Some(NextPost::Cdc(token)) => return Some(token),
                Some(NextPost::Llc(tag, message)) => (message, Posted::Llc(tag)),
                Some(NextPost::Credits(credits)) => {
                    let order = self.order;
                    let mut message = vec![0; MESSAGE_LEN];
                    let announcement = AnnounceCredits { order, credits };
                    announcement.emit(&mut message).ok()?;
                    (message, Posted::Credits(credits))
                }
                None => {
                    if !queue.has_space() {
                        self.arm_last(&mut posts);
                    }
                    return None;
                }
            };
            match self.link.post(queue.next_op(), &[], &message) {
                Ok(()) => {
                    queue.posted(now, what);
                    if !is_routine(&message) {
                        self.arm_last(&mut posts);
                    }
                }
                Err(SubmitError::WouldBlock) => {
                    if let Posted::Llc(tag) = what {
                        queue.requeue(now, tag, message);
                    }
                    self.arm_last(&mut posts);
                    return None;
                }
                Err(_) => return None,
            }
        }
    }

    /// A message was received. Returns whether something may be posted now that could not be posted
    /// before.
    pub(crate) fn received(&self, now: Instant, message: &[u8]) -> Result<bool, CreditError> {
        if !self.has_credits {
            return Ok(false);
        }
        let grants = granted_credits(message);
        self.posts.lock().queue.received(now, grants)
    }

    /// Whether a connection waits for receive credits: the task of the group has a new timeout.
    pub(crate) fn is_starved(&self) -> bool {
        self.has_credits && self.posts.lock().queue.is_starved()
    }

    /// Requests a wake-up for the completion of the posts so far.
    pub(crate) fn arm_completions(&self) {
        self.arm_last(&mut self.posts.lock());
    }

    fn arm_last(&self, posts: &mut Posts) {
        let Some(last) = posts.queue.last_outstanding() else {
            return;
        };
        if posts.awaited.replace(last).is_none() {
            if let Some(driver) = self.driver.upgrade() {
                driver.add_awaiting_link();
            }
        }
    }

    fn disarm(&self) {
        if let Some(driver) = self.driver.upgrade() {
            driver.remove_awaiting_link();
        }
    }

    /// The posts that are completed now, the oldest first.
    pub(crate) fn completed(
        &self,
        now: Instant,
        op: OpId,
    ) -> impl Iterator<Item = Posted<AlertToken>> + use<> {
        let mut posts = self.posts.lock();
        if posts.awaited.is_some_and(|awaited| awaited <= op) {
            posts.awaited = None;
            self.disarm();
        }
        posts.queue.completed(now, op)
    }

    /// Sets the link down: nothing is posted or completed from now on.
    pub(crate) fn fail(&self) {
        let mut posts = self.posts.lock();
        self.down.store(true, Ordering::Release);
        if posts.awaited.take().is_some() {
            self.disarm();
        }
        drop(posts.queue.fail());
    }

    /// When to call [`LinkSender::handle_timeout`].
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.posts.lock().queue.poll_timeout()
    }

    /// Time has passed. An error if the link is stuck.
    pub(crate) fn handle_timeout(&self, now: Instant) -> Result<(), SendTimeout> {
        self.posts.lock().queue.handle_timeout(now)
    }
}

/// Send capacity for one post of a connection; the sender is locked meanwhile.
pub(crate) struct SendSlot<'a> {
    sender: &'a LinkSender,
    posts: MutexGuard<'a, Posts>,
    token: AlertToken,
}

impl SendSlot<'_> {
    /// Posts writes, and a message behind them, which grants receive credits besides. It has so
    /// many changes besides one.
    pub(crate) fn post(
        mut self,
        now: Instant,
        writes: &[Write<'_>],
        cdc: &CdcR,
        coalesced: u32,
    ) -> PostResult {
        let queue = &mut self.posts.queue;
        let mut message = cdc.to_bytes();
        CdcR::set_credits(&mut message, queue.grants_with_cdc());
        match self.sender.link.post(queue.next_op(), writes, &message) {
            Ok(()) => {
                queue.posted(now, Posted::Cdc(self.token));
                let pieces = writes.iter().flat_map(|write| [write.first, write.second]);
                let data = pieces.map(|piece| u64::from(piece.len)).sum();
                queue.charge(self.token, data, coalesced);
                PostResult::Posted
            }
            Err(SubmitError::WouldBlock) => {
                queue.queue_connection(now, self.token);
                self.sender.arm_last(&mut self.posts);
                PostResult::Queued
            }
            // The device reports the link as down.
            Err(_) => PostResult::LinkDown,
        }
    }
}

impl Drop for LinkSender {
    fn drop(&mut self) {
        if self.posts.lock().awaited.is_some() {
            self.disarm();
        }
        if let Some(driver) = self.driver.upgrade() {
            driver.counters.end_link(self);
        }
    }
}

/// Whether this is a routine message of the link group, which every connection or many messages
/// cause: no task waits for its completion.
fn is_routine(message: &[u8]) -> bool {
    let kind = message.first().copied().and_then(MessageType::from_byte);
    let is_routine = matches!(
        kind,
        Some(
            MessageType::ConfirmRkey
                | MessageType::DeleteRkey
                | MessageType::TestLink
                | MessageType::AnnounceCredits
        )
    );
    is_routine && message.len() <= SHORT_LEN
}

/// Interval at which activity of a link is reported to the group, in milliseconds.
const ACTIVITY_INTERVAL: u64 = 1000;
