//! The listener's side: a name in the directory, announcements, verdicts.

use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use atomic_waker::AtomicWaker;
use rustix::net::sockopt::{ipv6_v6only, socket_cookie};

use super::directory::{Entry, Scope, sweep_all};
use super::inbox::{Collected, Inbox, Pair, Proof};
use super::message::ToClient;
use super::netns::{NetNs, canonical};
use super::packet::listen;
use super::{Local, lock, proof};
use crate::io::negotiate::{Published, Verdict, runtime_dir};
use crate::io::runtime::{Runtime, Socket, SocketOptions, Watch};

/// A published listener. Dropping it takes its name away and ends its channels.
#[derive(Debug)]
pub(super) struct Listening {
    shared: Arc<Shared>,
    path: PathBuf,
}

/// What the listener shares with the task that serves its clients.
#[derive(Debug)]
struct Shared {
    runtime: Arc<dyn Runtime>,
    netns: NetNs,
    inbox: Mutex<Inbox>,
    closed: AtomicBool,
    /// The task, while it waits.
    task: AtomicWaker,
}

impl Listening {
    pub(super) fn publish(
        config: Local,
        runtime: &Arc<dyn Runtime>,
        at: SocketAddr,
        tcp: BorrowedFd<'_>,
    ) -> io::Result<Self> {
        let netns = NetNs::current()?;
        let mut salt = [0; 4];
        rustix::rand::getrandom(&mut salt, rustix::rand::GetRandomFlags::empty())?;
        let entry = Entry {
            port: at.port(),
            scope: Scope::of(at, at.is_ipv6() && ipv6_v6only(tcp)?),
            netns,
            cookie: socket_cookie(tcp)?,
            salt: u32::from_ne_bytes(salt),
        };
        let dir = config.directory.clone().map_or_else(runtime_dir, Ok)?;
        sweep_all(&dir);

        let name = entry.to_string();
        let path = dir.join(&name);
        let socket = listen(&dir, &name, !config.uids.is_empty());
        // From here on the name is taken away again when something fails.
        let listening = socket.and_then(|socket| {
            let inbox = Inbox::new(config, entry, socket, at)?;
            let watch = runtime.watch(inbox.bell())?;
            let shared = Arc::new(Shared {
                runtime: runtime.clone(),
                netns,
                inbox: Mutex::new(inbox),
                closed: AtomicBool::new(false),
                task: AtomicWaker::new(),
            });
            runtime.spawn(Box::pin(shared.clone().serve(watch)));
            Ok(Self {
                shared,
                path: path.clone(),
            })
        });
        listening.inspect_err(|_| drop(std::fs::remove_file(&path)))
    }
}

impl Published for Listening {
    fn verdict(&self, socket: &dyn Socket, peer: SocketAddr) -> Verdict {
        match self.with_announced(socket, peer, Inbox::claim).flatten() {
            Some(proposal) => Verdict::Clc {
                proposal: Some(proposal),
            },
            None => Verdict::Plain,
        }
    }

    fn dismiss(&self, socket: &dyn Socket, peer: SocketAddr) -> Verdict {
        self.with_announced(socket, peer, Inbox::refuse);
        Verdict::Plain
    }
}

impl Listening {
    /// Calls `f` with a connection's addresses, if any connection is announced.
    fn with_announced<T>(
        &self,
        socket: &dyn Socket,
        peer: SocketAddr,
        f: impl FnOnce(&mut Inbox, Pair) -> T,
    ) -> Option<T> {
        let mut inbox = lock(&self.shared.inbox);
        let Collected { proofs, .. } = inbox.collect(self.shared.runtime.now());
        let local = match inbox.is_empty() {
            true => None,
            false => socket.local_addr().ok(),
        };
        let result = local.map(|local| f(&mut inbox, (canonical(peer), canonical(local))));
        // A runtime may run the task at once, which needs the inbox.
        drop(inbox);
        proofs
            .into_iter()
            .for_each(|proof| self.shared.prove(proof));
        result
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
        self.shared.closed.store(true, Ordering::Release);
        lock(&self.shared.inbox).close();
        self.shared.task.wake();
    }
}

impl Shared {
    /// Serves clients while no connection is accepted: those that come newly, and those that
    /// need an answer. What others announce waits until a connection is accepted.
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
                let Collected {
                    proofs,
                    exhausted,
                    more,
                } = lock(&self.inbox).collect(self.runtime.now());
                proofs.into_iter().for_each(|proof| self.prove(proof));
                if exhausted {
                    self.runtime
                        .timer(self.runtime.now() + WHEN_EXHAUSTED)
                        .await;
                } else if !more {
                    break;
                } else {
                    yield_now().await;
                }
                if self.closed.load(Ordering::Acquire) {
                    return;
                }
            }
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

/// How long to wait when there are no descriptors left for a new channel.
const WHEN_EXHAUSTED: Duration = Duration::from_millis(100);
