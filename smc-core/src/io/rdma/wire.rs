//! A connected queue pair with those who post to it.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use smc_wire::types::AlertToken;

use crate::device::{Link, OpId, SubmitError, Write};
use crate::mem::sync::{AtomicBool, AtomicU64, Ordering};
use crate::proto::group::DeviceIndex;
use crate::proto::links::{LinkId, OpTag, Overflow, Posted, SendSlots, Turn};

/// A link as connections see it: it takes a bounded number of posts, and turns are fair.
pub(crate) struct Wire {
    id: LinkId,
    device: DeviceIndex,
    link: Arc<dyn Link>,
    slots: Mutex<SendSlots<AlertToken>>,
    down: AtomicBool,
    /// The queue pair sends and receives nothing any more.
    closed: AtomicBool,
    /// When the group was last told that something came, in milliseconds since `since`.
    heard: AtomicU64,
    since: Instant,
}

/// What became of a post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// It is on its way.
    Yes,
    /// No room; a turn comes.
    Later,
    /// The link is down; the group moves its connections or ends.
    Never,
    /// The connection cannot use this link, and no other either.
    NoWay,
}

impl Wire {
    pub(crate) fn new(id: LinkId, device: DeviceIndex, link: Arc<dyn Link>, now: Instant) -> Self {
        Self {
            id,
            device,
            link,
            slots: Mutex::new(SendSlots::new()),
            down: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            heard: AtomicU64::new(0),
            since: now,
        }
    }

    pub(crate) fn id(&self) -> LinkId {
        self.id
    }

    pub(crate) fn device(&self) -> DeviceIndex {
        self.device
    }

    pub(crate) fn link(&self) -> &Arc<dyn Link> {
        &self.link
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

    /// Whether the group has to be told that something came: now and then is enough.
    pub(crate) fn is_news(&self, now: Instant) -> bool {
        let at = now.saturating_duration_since(self.since).as_millis();
        let at = u64::try_from(at).unwrap_or(u64::MAX);
        let before = self.heard.load(Ordering::Relaxed);
        let is_news = at >= before.saturating_add(HEARD_AGAIN);
        if is_news {
            self.heard.store(at, Ordering::Relaxed);
        }
        is_news
    }

    /// Lets a connection post what `fill` gives, if there is room: `fill` is asked only then.
    ///
    /// `in_turn` says that it was given a turn; otherwise those that wait go first.
    pub(crate) fn post<T>(
        &self,
        now: Instant,
        token: AlertToken,
        in_turn: bool,
        fill: impl FnOnce(&mut dyn FnMut(&[Write<'_>], &[u8]) -> Taken) -> T,
    ) -> Option<T> {
        let mut slots = self.lock();
        if self.is_down() {
            return None;
        }
        let open = if in_turn {
            slots.has_room()
        } else {
            slots.is_open()
        };
        if !open {
            slots.wait(token);
            return None;
        }
        let link = &self.link;
        Some(fill(&mut |writes, message| {
            match link.post(slots.next_op(), writes, message) {
                Ok(()) => {
                    slots.posted(now, Posted::Cdc(token));
                    Taken::Yes
                }
                Err(SubmitError::WouldBlock) => {
                    slots.wait(token);
                    Taken::Later
                }
                // The device reports the link as down.
                Err(_) => Taken::Never,
            }
        }))
    }

    /// A connection that had its turn has more to post.
    pub(crate) fn wait(&self, token: AlertToken) {
        self.lock().wait(token);
    }

    /// A connection is gone or was moved.
    pub(crate) fn forget(&self, token: AlertToken) {
        self.lock().forget(token);
    }

    /// A message of the link group; [`Wire::next_turn`] posts it.
    pub(crate) fn queue(&self, now: Instant, tag: OpTag, message: Vec<u8>) -> Result<(), Overflow> {
        self.lock().queue(now, tag, message)
    }

    /// Posts waiting messages of the link group, then says which connection may post.
    pub(crate) fn next_turn(&self, now: Instant) -> Option<AlertToken> {
        let mut slots = self.lock();
        if self.is_down() {
            return None;
        }
        loop {
            match slots.next_turn()? {
                Turn::Cdc(token) => return Some(token),
                Turn::Llc(tag, message) => match self.link.post(slots.next_op(), &[], &message) {
                    Ok(()) => slots.posted(now, Posted::Llc(tag)),
                    Err(SubmitError::WouldBlock) => {
                        slots.put_back(now, tag, message);
                        return None;
                    }
                    Err(_) => return None,
                },
            }
        }
    }

    /// What is completed now, the oldest first.
    pub(crate) fn completed(
        &self,
        now: Instant,
        op: OpId,
    ) -> impl Iterator<Item = Posted<AlertToken>> + use<> {
        self.lock().completed(now, op)
    }

    /// Nothing is posted from now on, and nothing completed.
    pub(crate) fn fail(&self) {
        let mut slots = self.lock();
        self.down.store(true, Ordering::Release);
        drop(slots.fail());
    }

    /// When the link counts as stuck.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.lock().poll_timeout()
    }

    fn lock(&self) -> MutexGuard<'_, SendSlots<AlertToken>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wire")
            .field("id", &self.id)
            .field("link", &self.link)
            .finish_non_exhaustive()
    }
}

/// How often the group is told that a link is alive, in milliseconds.
const HEARD_AGAIN: u64 = 1000;
