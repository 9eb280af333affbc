//! The way to a peer: our channel to it, and what waits for room there.

use std::collections::VecDeque;
use std::future::Future;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use atomic_waker::AtomicWaker;
use rustix::io::Errno;
use smc_core::device::DeviceError;
use smc_core::io::negotiate::passed::PeerSocket;
use smc_core::mem::sync::{AtomicU8, Ordering};

use crate::channel::{self, Message};
use crate::doorbell::Doorbell;
use crate::lock;
use crate::region::{has_unread, os};

/// How to tell a peer about our buffers.
#[derive(Debug)]
pub(crate) enum Way {
    /// The peer is this very device, which looks when it is woken.
    Own(Arc<OwnedFd>),
    Channel(Arc<Outbox>),
}

impl Way {
    /// Has the peer look at what changed in our bell.
    pub(crate) fn look(&self) {
        match self {
            Self::Own(eventfd) => {
                let _ = rustix::io::write(eventfd, &1_u64.to_ne_bytes());
            }
            Self::Channel(outbox) => outbox.look(),
        }
    }

    pub(crate) fn close(&self) -> Wakes {
        match self {
            Self::Own(_) => Wakes::default(),
            Self::Channel(outbox) => outbox.close(),
        }
    }
}

/// Our channel to a peer.
#[derive(Debug)]
pub(crate) struct Outbox {
    doorbell: Arc<Doorbell>,
    peer: u64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// `None` once closed.
    channel: Option<Arc<PeerSocket>>,
    waiting: VecDeque<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    message: Message,
    file: OwnedFd,
    ticket: Arc<Ticket>,
}

impl Outbox {
    /// `peer` is the number under which the doorbell watches the channel.
    pub(crate) fn new(doorbell: Arc<Doorbell>, peer: u64, channel: Arc<PeerSocket>) -> Self {
        let state = State {
            channel: Some(channel),
            waiting: VecDeque::new(),
        };
        Self {
            doorbell,
            peer,
            state: Mutex::new(state),
        }
    }

    /// Sends a message with a file; the future completes when it is on its way.
    pub(crate) fn send(
        self: &Arc<Self>,
        message: Message,
        file: OwnedFd,
    ) -> Result<Sending, DeviceError> {
        let mut state = lock(&self.state);
        let channel = state.channel.as_ref().ok_or(DeviceError::PeerGone)?;
        if state.waiting.is_empty() {
            match channel::send(channel, message, &[file.as_fd()]) {
                Ok(()) => return Ok(Sending { waits: None }),
                Err(Errno::AGAIN) => self.doorbell.watch_room(channel, self.peer, true)?,
                Err(error) => return Err(failed(error)),
            }
        }
        let ticket = Arc::new(Ticket::default());
        state.waiting.push_back(Waiting {
            message,
            file,
            ticket: Arc::clone(&ticket),
        });
        Ok(Sending {
            waits: Some((Arc::clone(self), ticket)),
        })
    }

    /// The channel, until it is closed, if the peer has not read all that was sent.
    pub(crate) fn unread(&self) -> Option<Arc<PeerSocket>> {
        let channel = lock(&self.state).channel.clone();
        channel.filter(|channel| has_unread(channel))
    }

    /// Has the peer look. If there is no room, it has unread messages and looks after those.
    pub(crate) fn look(&self) {
        if let Some(channel) = &lock(&self.state).channel {
            let _ = channel::send(channel, Message::Look, &[]);
        }
    }

    /// Sends what waits, now that there is room.
    pub(crate) fn flush(&self) -> Wakes {
        let mut wakes = Wakes::default();
        let mut state = lock(&self.state);
        let State {
            channel: Some(channel),
            waiting,
        } = &mut *state
        else {
            return wakes;
        };
        while let Some(next) = waiting.front() {
            let outcome = match channel::send(&**channel, next.message, &[next.file.as_fd()]) {
                Ok(()) => SENT,
                Err(Errno::AGAIN) => return wakes,
                Err(_) => FAILED,
            };
            wakes.0.extend(next.ticket.settle(outcome));
            waiting.pop_front();
        }
        // If it fails, the doorbell rings once too often.
        let _ = self.doorbell.watch_room(channel, self.peer, false);
        wakes
    }

    fn close(&self) -> Wakes {
        let mut wakes = Wakes::default();
        let mut state = lock(&self.state);
        if let Some(channel) = state.channel.take() {
            self.doorbell.forget_channel(&channel);
        }
        for waiting in state.waiting.drain(..) {
            wakes.0.extend(waiting.ticket.settle(FAILED));
        }
        wakes
    }
}

/// Completes when a message is on its way; takes it back if dropped earlier.
#[derive(Debug)]
pub(crate) struct Sending {
    waits: Option<(Arc<Outbox>, Arc<Ticket>)>,
}

impl Future for Sending {
    type Output = Result<(), DeviceError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some((_, ticket)) = &self.waits else {
            return Poll::Ready(Ok(()));
        };
        ticket.waker.register(cx.waker());
        match ticket.state.load(Ordering::Acquire) {
            WAITING => Poll::Pending,
            SENT => Poll::Ready(Ok(())),
            _ => Poll::Ready(Err(DeviceError::PeerGone)),
        }
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        if let Some((outbox, ticket)) = &self.waits {
            let mut state = lock(&outbox.state);
            state
                .waiting
                .retain(|waiting| !Arc::ptr_eq(&waiting.ticket, ticket));
        }
    }
}

#[derive(Debug, Default)]
struct Ticket {
    state: AtomicU8,
    waker: AtomicWaker,
}

impl Ticket {
    fn settle(&self, outcome: u8) -> Option<Waker> {
        self.state.store(outcome, Ordering::Release);
        self.waker.take()
    }
}

/// Tasks to be woken without any lock: a waker may run its task at once.
#[derive(Debug, Default)]
#[must_use]
pub(crate) struct Wakes(Vec<Waker>);

impl Wakes {
    pub(crate) fn append(&mut self, mut others: Self) {
        self.0.append(&mut others.0);
    }

    pub(crate) fn wake(self) {
        self.0.into_iter().for_each(Waker::wake);
    }
}

fn failed(error: Errno) -> DeviceError {
    match error {
        Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN => DeviceError::PeerGone,
        // Too many descriptors of this user are under way.
        Errno::TOOMANYREFS => DeviceError::Exhausted,
        error => os("pass a buffer to the peer", error),
    }
}

const WAITING: u8 = 0;
const SENT: u8 = 1;
const FAILED: u8 = 2;
