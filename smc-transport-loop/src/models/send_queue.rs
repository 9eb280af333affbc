//! A message that waits for space in the channel, while the driver sends what waits.

use std::future::Future;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use loom::thread;
use rustix::event::epoll::EventFlags;
use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socketpair};
use smc_core::device::DeviceError;
use smc_core::mem::sync::model::check;
use smc_core::mem::sync::{AtomicBool, Ordering};
use smc_ipc::doorbell::new_eventfd;
use smc_ipc::passed::PeerSocket;

use crate::channel::{self, Message};
use crate::doorbell::{Doorbell, EventSource};
use crate::send_queue::{SendPath, SendQueue, Sending};

#[test]
fn a_message_that_waits_is_sent_and_its_task_woken() {
    let channel = Channel::new();
    check(move || {
        let (queue, filled) = channel.full_queue();
        let task = Arc::new(Task::default());
        let sender = task.spawn(&queue);
        // System calls are no steps for loom: here the message can come to wait.
        thread::yield_now();
        let mut read = channel.read_all();
        channel.drive(&queue);
        let (mut sending, sent) = sender.join().unwrap();
        channel.drive(&queue);
        read += channel.read_all();
        assert_eq!(read, filled + 1, "a message is not sent");
        if sent.is_pending() {
            assert!(task.is_woken(), "the task is not woken");
            assert_eq!(task.poll(&mut sending), Poll::Ready(Ok(())));
        }
    });
}

#[test]
fn a_message_that_waits_fails_when_the_channel_is_closed() {
    let channel = Channel::new();
    check(move || {
        let (queue, _) = channel.full_queue();
        let task = Arc::new(Task::default());
        let sender = task.spawn(&queue);
        let wakes = SendPath::Channel(Arc::clone(&queue)).close();
        wakes.into_iter().for_each(Waker::wake);
        let (mut sending, sent) = sender.join().unwrap();
        if sent.is_pending() {
            assert!(task.is_woken(), "the task is not woken");
            let ended = Poll::Ready(Err(DeviceError::PeerGone));
            assert_eq!(task.poll(&mut sending), ended);
        }
    });
}

/// A task that sends a message.
#[derive(Debug)]
struct Task(AtomicBool);

impl Default for Task {
    fn default() -> Self {
        Self(AtomicBool::new(false))
    }
}

impl Task {
    /// Has a thread send a message, and poll once.
    fn spawn(
        self: &Arc<Self>,
        queue: &Arc<SendQueue>,
    ) -> thread::JoinHandle<(Option<Sending>, Sent)> {
        let (task, queue) = (Arc::clone(self), Arc::clone(queue));
        let message = Message::Memory {
            index: 0,
            number: 1,
            len: 1,
        };
        thread::spawn(move || {
            let sending = queue.send(message, new_eventfd().unwrap());
            let mut sending = sending.ok();
            let sent = task.poll(&mut sending);
            (sending, sent)
        })
    }

    fn poll(self: &Arc<Self>, sending: &mut Option<Sending>) -> Sent {
        let waker = Waker::from(Arc::clone(self));
        let Some(sending) = sending else {
            return Poll::Ready(Err(DeviceError::PeerGone));
        };
        Pin::new(sending).poll(&mut Context::from_waker(&waker))
    }

    fn is_woken(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

type Sent = Poll<Result<(), DeviceError>>;

/// A channel to a peer, the same one in all runs of a model.
struct Channel {
    doorbell: Arc<Doorbell>,
    socket: Arc<PeerSocket>,
    peer: OwnedFd,
}

impl Channel {
    fn new() -> Self {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let (socket, peer) = pair.unwrap();
        set_socket_send_buffer_size(&socket, 1).unwrap();
        let no_listener = Arc::new(new_eventfd().unwrap());
        Self {
            doorbell: Arc::new(Doorbell::new(&no_listener).unwrap()),
            socket: Arc::new(PeerSocket::from(socket)),
            peer,
        }
    }

    /// A send queue for the channel, which is full, and the number of messages in it.
    fn full_queue(&self) -> (Arc<SendQueue>, usize) {
        self.read_all();
        let (doorbell, socket) = (&self.doorbell, &self.socket);
        if doorbell.watch_writable(socket, PEER, false).is_err() {
            let watched = doorbell.watch_channel(socket, EventSource::Outgoing, PEER);
            watched.unwrap();
        }
        let mut filled = 0;
        while channel::send(&**socket, Message::Notify, &[]).is_ok() {
            filled += 1;
        }
        let queue = SendQueue::new(Arc::clone(doorbell), PEER, 0, Arc::clone(socket));
        (Arc::new(queue), filled)
    }

    /// Reads as the peer; returns the number of messages.
    fn read_all(&self) -> usize {
        let mut count = 0;
        while recv(&self.peer, &mut [0; 64][..], RecvFlags::DONTWAIT).is_ok() {
            count += 1;
        }
        count
    }

    /// What the driver does while the channel is reported to have space.
    fn drive(&self, queue: &SendQueue) {
        loop {
            let mut is_writable = false;
            let polled = self.doorbell.poll_setup(|source, _, flags, _| {
                is_writable |= source == EventSource::Outgoing && flags.contains(EventFlags::OUT);
            });
            polled.unwrap();
            if !is_writable {
                return;
            }
            queue.flush().into_iter().for_each(Waker::wake);
        }
    }
}

/// The number under which the doorbell watches the channel.
const PEER: u64 = 1;
