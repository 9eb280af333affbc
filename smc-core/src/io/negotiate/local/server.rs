//! The listener's side: a name in the directory, verdicts, handshakes beside TCP.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use atomic_waker::AtomicWaker;
use rustix::fs::fstat;
use rustix::io::Errno;
use rustix::net::sockopt::{ipv6_v6only, socket_cookie, socket_reuseport};
use rustix::process::geteuid;

use super::board::{Card, Turn, Voice};
use super::directory::{Entry, Scope};
use super::inbox::{Claimed, Collected, Inbox, Pair, Proof};
use super::message::ToClient;
use super::netns::{NetNs, canonical};
use super::{is_own, lock, proof};
use crate::error::{FallbackCause, OsError};
use crate::io::negotiate::runtime_dir::{Domain, Publication};
use crate::io::negotiate::{Credentials, Published, SideChannel, Verdict};
use crate::io::runtime::{Runtime, Socket, SocketOptions, Watch};
use crate::mem::sync::{AtomicBool, Ordering};

/// A published listener. Dropping it takes its name away and ends its channels.
#[derive(Debug)]
pub(super) struct Listening {
    shared: Arc<Shared>,
}

/// What the listener shares with the task that serves its clients.
#[derive(Debug)]
struct Shared {
    runtime: Arc<dyn Runtime>,
    netns: NetNs,
    inbox: Mutex<Inbox>,
    /// Why a connection was not offered, as far as that is known beforehand.
    not_offered: FallbackCause,
    closed: AtomicBool,
    /// The task, while it waits.
    task: AtomicWaker,
}

impl Listening {
    pub(super) fn publish(
        domain: Domain,
        runtime: &Arc<dyn Runtime>,
        at: SocketAddr,
        tcp: BorrowedFd<'_>,
    ) -> Result<Self, FallbackCause> {
        let inspect = |error: Errno| OsError::new("inspect the listener", &error.into());
        let netns = NetNs::current()?;
        let salt = crate::random::bytes();
        let salt = salt.map_err(|error| OsError::new("get random bytes", &error))?;
        let entry = Entry {
            shared: socket_reuseport(tcp).map_err(inspect)?,
            port: at.port(),
            scope: Scope::of(at, at.is_ipv6() && ipv6_v6only(tcp).map_err(inspect)?),
            netns,
            cookie: socket_cookie(tcp).map_err(inspect)?,
            salt: u32::from_ne_bytes(salt),
        };
        domain.sweep(|name| Entry::parse(name).is_some());
        let failed = |error: io::Error| OsError::new("announce the listener", &error);
        let publication = Publication::new(domain.clone(), entry.to_string()).map_err(failed)?;
        // A directory that was configured has to be right. The default ones may become so.
        if let (Some(error), false) = (publication.error(), domain.is_default()) {
            return Err(error.clone().into());
        }
        let inbox = Inbox::new(domain, entry, publication, at).map_err(failed)?;
        let watch = runtime.watch(inbox.bell()).map_err(failed)?;
        let shared = Arc::new(Shared {
            runtime: runtime.clone(),
            netns,
            inbox: Mutex::new(inbox),
            not_offered: match fstat(tcp).map_err(inspect)?.st_uid {
                owner if is_own(owner) => FallbackCause::NotOffered,
                owner => FallbackCause::NotOwner {
                    uid: geteuid().as_raw(),
                    owner: Some(owner),
                },
            },
            closed: AtomicBool::new(false),
            task: AtomicWaker::new(),
        });
        runtime.spawn(Box::pin(shared.clone().serve(watch)));
        Ok(Self { shared })
    }
}

impl Published for Listening {
    fn verdict(&self, socket: &dyn Socket, peer: SocketAddr) -> Verdict {
        match self.find(socket, peer, Inbox::claim) {
            Some(Claimed {
                channel,
                card,
                turn,
                client,
                dead,
            }) => Verdict::SideChannel(Box::new(ListenerSideChannel {
                shared: Arc::clone(&self.shared),
                channel,
                card,
                turn,
                client,
                fate: Fate::Open,
                dead,
                heard: 0,
                early: None,
            })),
            None => Verdict::Plain(self.cause()),
        }
    }

    fn dismiss(&self, socket: &dyn Socket, peer: SocketAddr) -> Verdict {
        let refuse = |inbox: &mut Inbox, pair, _| {
            inbox.refuse(pair);
            None::<()>
        };
        self.find(socket, peer, refuse);
        Verdict::Plain(FallbackCause::Policy)
    }
}

impl Listening {
    /// Why a connection was not claimed.
    fn cause(&self) -> FallbackCause {
        let cause = lock(&self.shared.inbox).take_cause();
        cause.unwrap_or_else(|| self.shared.not_offered.clone())
    }

    /// Looks for a connection's addresses on the boards that are known, then on those that have
    /// come meanwhile.
    fn find<T>(
        &self,
        socket: &dyn Socket,
        peer: SocketAddr,
        look: impl Fn(&mut Inbox, Pair, Instant) -> Option<T>,
    ) -> Option<T> {
        let now = self.shared.runtime.now();
        let mut inbox = lock(&self.shared.inbox);
        inbox.beat(now);
        let pair = |inbox: &Inbox| {
            if inbox.is_empty() {
                return None;
            }
            let local = inbox.address().or_else(|| socket.local_addr().ok())?;
            Some((canonical(peer), canonical(local)))
        };
        if let Some(found) = pair(&inbox).and_then(|pair| look(&mut inbox, pair, now)) {
            return Some(found);
        }
        let collected = inbox.collect();
        let found = pair(&inbox).and_then(|pair| look(&mut inbox, pair, now));
        // A runtime may run the task at once, which needs the inbox.
        drop(inbox);
        self.shared.act(collected);
        found
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Release);
        let wakers = lock(&self.shared.inbox).close();
        wakers.into_iter().for_each(Waker::wake);
        self.shared.task.wake();
    }
}

impl Shared {
    /// Serves clients that come newly, and those that say something.
    async fn serve(self: Arc<Self>, watch: Box<dyn Watch>) {
        loop {
            let rung = poll_fn(|cx| {
                self.task.register(cx.waker());
                if self.closed.load(Ordering::Acquire) {
                    return Poll::Ready(false);
                }
                watch.poll_readable(cx).map(|result| result.is_ok())
            });
            if !rung.await {
                return;
            }
            loop {
                let collected = lock(&self.inbox).collect();
                let more = collected.more;
                self.act(collected);
                if !more {
                    break;
                }
                yield_now().await;
                if self.closed.load(Ordering::Acquire) {
                    return;
                }
            }
        }
    }

    /// Does what came of looking at the channels.
    fn act(self: &Arc<Self>, collected: Collected) {
        collected.wakers.into_iter().for_each(Waker::wake);
        for proof in collected.proofs {
            self.prove(proof);
        }
    }

    /// Begins a proof for a client in another namespace.
    fn prove(self: &Arc<Self>, proof: Proof) {
        let shared = self.clone();
        self.runtime.spawn(Box::pin(async move {
            let from = shared.meet(&proof).await;
            lock(&shared.inbox).proven(&proof, from, shared.runtime.now());
        }));
    }

    /// Who came to the meeting point, if it could be set up and the right one came.
    async fn meet(&self, proof: &Proof) -> Option<IpAddr> {
        // A task may run on a thread that lives in another namespace than the listener.
        if NetNs::current().ok()? != self.netns {
            return None;
        }
        let options = SocketOptions {
            backlog: Some(4),
            ..SocketOptions::default()
        };
        let meeting = self
            .runtime
            .bind(SocketAddr::new(proof.to, 0), &options, &mut |_| Ok(()))
            .ok()?;
        let port = meeting.local_addr().ok()?.port();
        lock(&self.inbox).tell(proof.channel, ToClient::Meet { id: proof.id, port });
        proof::answer(&*self.runtime, &*meeting, proof.nonce).await
    }
}

/// The listener's end of a handshake.
struct ListenerSideChannel {
    shared: Arc<Shared>,
    channel: u64,
    card: Card,
    turn: Turn,
    client: Credentials,
    fate: Fate,
    /// Whether the channel has ended, and with it the client.
    dead: Arc<AtomicBool>,
    /// Bytes that were read.
    heard: usize,
    /// What the client has confirmed early, as far as it was not read.
    early: Option<Vec<u8>>,
}

/// What has become of an offer that was claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Open,
    /// The answer was there before the client gave up.
    Taken,
    Withdrawn,
}

impl SideChannel for ListenerSideChannel {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        if self.fate == Fate::Withdrawn {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        let early = self.card.early().filter(|early| early.answers(message));
        self.card.say(Voice::Listener, message)?;
        if self.fate == Fate::Open {
            self.decide();
        }
        if self.fate == Fate::Withdrawn {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        self.early = early.map(|early| early.confirm);
        Ok(())
    }

    fn is_withdrawn(&self) -> bool {
        self.fate == Fate::Withdrawn
    }

    fn credentials(&self) -> Option<Credentials> {
        Some(self.client)
    }

    fn publish_progress(&self) {
        lock(&self.shared.inbox).beat(self.shared.runtime.now());
    }

    fn flush(&mut self) {
        lock(&self.shared.inbox).ring(self.channel, &self.card);
    }

    fn try_read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        // Looked at first: a client that ends has said before what it had to say.
        let is_dead = self.dead.load(Ordering::Acquire);
        match self.card.hear(Voice::Client, self.heard, buf) {
            // Even if the client has hung up: it has the stream already.
            None | Some(0) if self.early.is_some() => Ok(self.hear_early(buf)),
            Some(count) => {
                self.heard += count;
                Ok(count)
            }
            None if is_dead => Ok(0),
            None => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        let waker = Some(cx.waker().clone());
        lock(&self.shared.inbox).wait(self.channel, self.card.number(), waker);
        self.card.wait_for(Voice::Client);
        match self.try_read(buf) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
            read => Poll::Ready(read),
        }
    }
}

impl ListenerSideChannel {
    /// Takes the offer, unless the client has taken it back.
    fn decide(&mut self) {
        self.fate = match self.card.take(self.turn) {
            true => Fate::Taken,
            false => Fate::Withdrawn,
        };
    }

    /// Copies what was confirmed early.
    fn hear_early(&mut self, buf: &mut [u8]) -> usize {
        let mut left = self.early.take().unwrap_or_default();
        let count = left.len().min(buf.len());
        for (to, from) in buf.iter_mut().zip(left.drain(..count)) {
            *to = from;
        }
        self.early = Some(left).filter(|left| !left.is_empty());
        count
    }
}

impl Drop for ListenerSideChannel {
    fn drop(&mut self) {
        if self.fate == Fate::Open {
            // There is no answer, and no TCP either: the connection ends.
            self.decide();
        }
        let mut inbox = lock(&self.shared.inbox);
        inbox.wait(self.channel, self.card.number(), None);
        self.card.hang_up(Voice::Listener);
        inbox.ring(self.channel, &self.card);
    }
}

impl fmt::Debug for ListenerSideChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListenerSideChannel")
            .field("channel", &self.channel)
            .field("card", &self.card.number())
            .finish_non_exhaustive()
    }
}

/// Lets other tasks run.
async fn yield_now() {
    let mut yielded = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
