//! The send path to a peer: the channel, and messages that wait for space in it.

use std::collections::VecDeque;
use std::future::Future;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use rustix::io::Errno;
use smc_core::device::DeviceError;
use smc_core::mem::sync::{AtomicU8, AtomicWaker, Mutex, Ordering};
use smc_ipc::doorbell;
use smc_ipc::passed::PeerSocket;

use crate::channel::{self, Message};
use crate::doorbell::Doorbell;
use crate::region::{has_unread, os};

/// How messages about the local buffers reach a peer.
#[derive(Debug)]
pub(crate) enum SendPath {
    /// The peer is this device, which scans when it is woken.
    Own(Arc<OwnedFd>),
    Channel(Arc<SendQueue>),
}

impl SendPath {
    /// Notifies the peer of changes in the local signal page.
    pub(crate) fn notify(&self) {
        match self {
            Self::Own(eventfd) => doorbell::notify(eventfd),
            Self::Channel(send_queue) => send_queue.notify(),
        }
    }

    pub(crate) fn close(&self) -> WakeList {
        match self {
            Self::Own(_) => WakeList::new(),
            Self::Channel(send_queue) => send_queue.close(),
        }
    }
}

/// The local channel to a peer.
#[derive(Debug)]
pub(crate) struct SendQueue {
    doorbell: Arc<Doorbell>,
    peer: u64,
    /// The user of the peer.
    pub(crate) user: u32,
    state: Mutex<SendQueueState>,
}

#[derive(Debug)]
struct SendQueueState {
    /// `None` once closed.
    channel: Option<Arc<PeerSocket>>,
    waiting: VecDeque<Queued>,
}

#[derive(Debug)]
struct Queued {
    message: Message,
    file: OwnedFd,
    completion: Arc<Completion>,
}

impl SendQueue {
    /// `peer` is the number under which the doorbell watches the channel.
    pub(crate) fn new(
        doorbell: Arc<Doorbell>,
        peer: u64,
        user: u32,
        channel: Arc<PeerSocket>,
    ) -> Self {
        let state = SendQueueState {
            channel: Some(channel),
            waiting: VecDeque::new(),
        };
        Self {
            doorbell,
            peer,
            user,
            state: Mutex::new(state),
        }
    }

    /// Sends a message with a file; the future completes when it is sent.
    pub(crate) fn send(
        self: &Arc<Self>,
        message: Message,
        file: OwnedFd,
    ) -> Result<Sending, DeviceError> {
        let mut state = self.state.lock();
        let channel = state.channel.as_ref().ok_or(DeviceError::PeerGone)?;
        if state.waiting.is_empty() {
            match channel::send(channel, message, &[file.as_fd()]) {
                Ok(()) => return Ok(Sending { pending: None }),
                Err(Errno::AGAIN) => self.doorbell.watch_writable(channel, self.peer, true)?,
                Err(error) => return Err(failed(error)),
            }
        }
        let completion = Arc::new(Completion::default());
        state.waiting.push_back(Queued {
            message,
            file,
            completion: Arc::clone(&completion),
        });
        Ok(Sending {
            pending: Some((Arc::clone(self), completion)),
        })
    }

    /// The channel, until it is closed, if the peer has not read all that was sent.
    pub(crate) fn unread(&self) -> Option<Arc<PeerSocket>> {
        let channel = self.state.lock().channel.clone();
        channel.filter(|channel| has_unread(channel))
    }

    /// Notifies the peer. Without space it has unread messages, and scans after those.
    pub(crate) fn notify(&self) {
        if let Some(channel) = &self.state.lock().channel {
            let _ = channel::send(channel, Message::Notify, &[]);
        }
    }

    /// Sends queued messages, now that there is space.
    pub(crate) fn flush(&self) -> WakeList {
        let mut wakes = WakeList::new();
        let mut state = self.state.lock();
        let SendQueueState {
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
            wakes.extend(next.completion.complete(outcome));
            waiting.pop_front();
        }
        // On failure there is one spurious notification.
        let _ = self.doorbell.watch_writable(channel, self.peer, false);
        wakes
    }

    fn close(&self) -> WakeList {
        let mut wakes = WakeList::new();
        let mut state = self.state.lock();
        if let Some(channel) = state.channel.take() {
            self.doorbell.unwatch_channel(&channel);
        }
        for waiting in state.waiting.drain(..) {
            wakes.extend(waiting.completion.complete(FAILED));
        }
        wakes
    }
}

/// Completes when a message is sent; removes it from the queue if dropped earlier.
#[derive(Debug)]
pub(crate) struct Sending {
    pending: Option<(Arc<SendQueue>, Arc<Completion>)>,
}

impl Future for Sending {
    type Output = Result<(), DeviceError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some((_, completion)) = &self.pending else {
            return Poll::Ready(Ok(()));
        };
        completion.waker.register(cx.waker());
        match completion.state.load(Ordering::Acquire) {
            WAITING => Poll::Pending,
            SENT => Poll::Ready(Ok(())),
            _ => Poll::Ready(Err(DeviceError::PeerGone)),
        }
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        if let Some((send_queue, completion)) = &self.pending {
            let mut state = send_queue.state.lock();
            state
                .waiting
                .retain(|waiting| !Arc::ptr_eq(&waiting.completion, completion));
        }
    }
}

#[derive(Debug, Default)]
struct Completion {
    state: AtomicU8,
    waker: AtomicWaker,
}

impl Completion {
    fn complete(&self, outcome: u8) -> Option<Waker> {
        self.state.store(outcome, Ordering::Release);
        self.waker.take()
    }
}

/// Tasks to be woken without any lock: a waker may run its task at once.
pub(crate) type WakeList = Vec<Waker>;

fn failed(error: Errno) -> DeviceError {
    match error {
        Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN => DeviceError::PeerGone,
        // Too many descriptors of this user are in flight.
        Errno::TOOMANYREFS => DeviceError::Exhausted,
        error => os("pass a buffer to the peer", error),
    }
}

const WAITING: u8 = 0;
const SENT: u8 = 1;
const FAILED: u8 = 2;
