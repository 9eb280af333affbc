//! A client's channel to one listener.

use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use rustix::io::Errno;

use super::directory::Entry;
use super::message::{ToClient, ToListener};
use super::netns::NetNs;
use super::packet::{Received, connect, receive, send};
use super::token::Token;
use super::{Local, lock};
use crate::io::negotiate::Credentials;
use crate::io::negotiate::passed::PeerSocket;
use crate::io::runtime::{Runtime, Watch};

/// A channel. Many connections use it at a time, each with an id of its own.
#[derive(Debug)]
pub(super) struct Channel {
    fd: PeerSocket,
    entry: Arc<Entry>,
    next_id: AtomicU64,
    dead: AtomicBool,
    inbox: Mutex<Inbox>,
    waiters: Arc<Waiters>,
    /// Wakes all waiters. Always the same one, so that reactors see that nothing has changed.
    waker: Waker,
}

#[derive(Debug)]
struct Inbox {
    watch: Box<dyn Watch>,
    /// What came for whom, until they fetch it.
    news: HashMap<u64, ToClient>,
}

/// Everybody who waits for news, by id.
#[derive(Debug, Default)]
struct Waiters(Mutex<HashMap<u64, Option<Waker>>>);

impl Channel {
    /// Connects to a listener and introduces this process.
    pub(super) fn open(
        config: &Local,
        runtime: &dyn Runtime,
        dir: &Path,
        entry: &Arc<Entry>,
        netns: NetNs,
    ) -> io::Result<Self> {
        let fd = connect(dir, &entry.to_string())?;
        if !config.allows(Credentials::of_peer(&fd)?.uid) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        send(fd.as_fd(), &ToListener::Hello { netns }.encode(), None)?;
        let watch = runtime.watch(fd.as_fd())?;
        let waiters = Arc::new(Waiters::default());
        Ok(Self {
            fd,
            entry: entry.clone(),
            next_id: AtomicU64::new(1),
            dead: AtomicBool::new(false),
            inbox: Mutex::new(Inbox {
                watch,
                news: HashMap::new(),
            }),
            waker: waiters.clone().into(),
            waiters,
        })
    }

    pub(super) fn entry(&self) -> &Arc<Entry> {
        &self.entry
    }

    /// Whether the listener is known to be gone.
    pub(super) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed)
    }

    /// Tells the listener something, if there is room for it now.
    pub(super) fn send(
        &self,
        message: &ToListener<'_>,
        token: Option<&Token>,
    ) -> Result<(), Errno> {
        let sent = send(self.fd.as_fd(), &message.encode(), token.map(AsFd::as_fd));
        if matches!(sent, Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN)) {
            self.dead.store(true, Ordering::Relaxed);
        }
        sent
    }

    /// Takes in what has come, and adds who waits for that to `wakers`; whether that was all.
    fn drain(&self, inbox: &mut Inbox, wakers: &mut Vec<Waker>) -> bool {
        let mut buf = [0; 64];
        for _ in 0..PACKETS {
            let message = match receive(self.fd.as_fd(), &mut buf) {
                Received::Packet(packet, _) => ToClient::parse(packet),
                Received::Empty => return true,
                Received::End => None,
            };
            let Some(message) = message else {
                self.end(wakers);
                return true;
            };
            // News for those who are not interested any more are dropped.
            let mut waiters = lock(&self.waiters.0);
            let Some(waker) = waiters.get_mut(&message.id()) else {
                continue;
            };
            inbox.news.insert(message.id(), message);
            wakers.extend(waker.take());
        }
        false
    }

    fn end(&self, wakers: &mut Vec<Waker>) {
        self.dead.store(true, Ordering::Relaxed);
        wakers.append(&mut self.waiters.take_all());
    }
}

/// Packets that are read before other tasks run.
const PACKETS: usize = 64;

/// One exchange on a channel, with an id that only it has.
#[derive(Debug)]
pub(super) struct Conversation {
    pub(super) channel: Arc<Channel>,
    pub(super) id: u64,
}

impl Conversation {
    pub(super) fn new(channel: Arc<Channel>) -> Self {
        let id = channel.next_id.fetch_add(1, Ordering::Relaxed);
        lock(&channel.waiters.0).insert(id, None);
        Self { channel, id }
    }

    /// Waits for what the listener says; `None` if it is gone. Keeps one waker.
    pub(super) fn poll_news(&self, cx: &mut Context<'_>) -> Poll<Option<ToClient>> {
        // Called without a lock: a waker may run its task at once.
        let mut wakers = Vec::new();
        let news = self.poll_inbox(cx, &mut wakers);
        wakers.into_iter().for_each(Waker::wake);
        news
    }

    fn poll_inbox(&self, cx: &mut Context<'_>, wakers: &mut Vec<Waker>) -> Poll<Option<ToClient>> {
        let channel = &*self.channel;
        // Dropped after the locks: that may drop a task with conversations of its own.
        let _old;
        let mut inbox = lock(&channel.inbox);
        _old = lock(&channel.waiters.0).insert(self.id, Some(cx.waker().clone()));
        loop {
            let all = channel.is_dead() || channel.drain(&mut inbox, wakers);
            if let Some(news) = inbox.news.remove(&self.id) {
                return Poll::Ready(Some(news));
            }
            if channel.is_dead() {
                return Poll::Ready(None);
            }
            if !all {
                wakers.push(cx.waker().clone());
                return Poll::Pending;
            }
            match inbox
                .watch
                .poll_readable(&mut Context::from_waker(&channel.waker))
            {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(_)) => channel.end(wakers),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    pub(super) async fn news(&self) -> Option<ToClient> {
        poll_fn(|cx| self.poll_news(cx)).await
    }
}

impl Drop for Conversation {
    fn drop(&mut self) {
        // The waker is dropped after the lock: that may drop a task with other conversations.
        let _waker = lock(&self.channel.waiters.0).remove(&self.id);
        lock(&self.channel.inbox).news.remove(&self.id);
    }
}

impl Waiters {
    fn wake_all(&self) {
        self.take_all().into_iter().for_each(Waker::wake);
    }

    fn take_all(&self) -> Vec<Waker> {
        let mut waiters = lock(&self.0);
        waiters.values_mut().filter_map(Option::take).collect()
    }
}

impl Wake for Waiters {
    fn wake(self: Arc<Self>) {
        self.wake_all();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.wake_all();
    }
}
