//! The listener's side: a name in the directory, verdicts, handshakes beside TCP.

mod channels;
#[cfg(feature = "fuzzing")]
pub mod fuzz;

use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use atomic_waker::AtomicWaker;
use rustix::fs::fstat;
use rustix::io::Errno;
use rustix::net::sockopt::{ipv6_v6only, socket_cookie, socket_reuseport};
use rustix::process::geteuid;
use smc_core::error::{FallbackCause, OsError, Refusal};
use smc_core::mem::sync::{AtomicBool, Ordering};
use smc_core::mutex::Mutex;
use smc_core::negotiate::{Credentials, Negotiated, Published, SideChannel};
use smc_core::reactor_turns::reactor_turn;
use smc_core::runtime::{Runtime, Socket, SocketOptions, Watch};
use smc_ipc::doorbell;
use smc_ipc::runtime_dir::Publication;
use smc_ipc::{Domain, is_own_user};

use crate::directory::{ListenerEntry, Scope};
use crate::mailbox::Direction;
use crate::message::ToClient;
use crate::netns::{NetNs, canonical};
use crate::reachability;
use channels::{Claimed, Collected, ListenerChannels, Pair, ProbeRequest};

/// A published listener. Dropping it removes its name and ends its channels.
#[derive(Debug)]
pub(super) struct LocalListener {
    shared: Arc<Shared>,
}

/// What the listener shares with the task that serves its clients.
#[derive(Debug)]
struct Shared {
    runtime: Arc<dyn Runtime>,
    netns: NetNs,
    clients: Mutex<ListenerChannels>,
    /// Why a connection was not offered, as far as that is known beforehand.
    not_offered: FallbackCause,
    closed: AtomicBool,
    /// The task, while it waits.
    task: AtomicWaker,
}

impl LocalListener {
    pub(super) fn publish(
        domain: Domain,
        runtime: &Arc<dyn Runtime>,
        at: SocketAddr,
        tcp: BorrowedFd<'_>,
    ) -> Result<Self, FallbackCause> {
        let inspect = |error: Errno| OsError::new("inspect the listener", &error.into());
        let netns = NetNs::current()?;
        let salt = smc_core::random::bytes();
        let salt = salt.map_err(|error| OsError::new("get random bytes", &error))?;
        let entry = ListenerEntry {
            shared: socket_reuseport(tcp).map_err(inspect)?,
            port: at.port(),
            scope: Scope::of(at, at.is_ipv6() && ipv6_v6only(tcp).map_err(inspect)?),
            netns,
            cookie: socket_cookie(tcp).map_err(inspect)?,
            salt: u32::from_ne_bytes(salt),
        };
        domain.sweep(|name| ListenerEntry::parse(name).is_some());
        let failed = |error: io::Error| OsError::new("announce the listener", &error);
        let is_default = domain.is_default();
        let publication = Publication::new(domain, entry.to_string()).map_err(failed)?;
        // A directory that was configured has to be right, as soon as that is known. The default
        // ones may become so.
        match publication.error() {
            Some(error) if !is_default && error.kind() != io::ErrorKind::TimedOut => {
                return Err(error.clone().into());
            }
            _ => {}
        }
        let clients = ListenerChannels::new(entry, publication, at)?;
        let watching = Arc::clone(runtime);
        let watch = doorbell::register(clients.epoll_fd(), move |fd| watching.watch(fd));
        let watch = watch.map_err(failed)?;
        let shared = Arc::new(Shared {
            runtime: runtime.clone(),
            netns,
            clients: Mutex::new(clients),
            not_offered: match fstat(tcp).map_err(inspect)?.st_uid {
                owner if is_own_user(owner) => FallbackCause::NotOffered,
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

impl Published for LocalListener {
    fn negotiated(&self, socket: &dyn Socket, peer: SocketAddr) -> Negotiated {
        match self.find(socket, peer, ListenerChannels::claim) {
            Some(claimed) => Negotiated::SideChannel(Box::new(ListenerSideChannel {
                shared: Arc::clone(&self.shared),
                claimed,
                claim: ClaimState::Open,
                read_len: 0,
                early: None,
            })),
            None => Negotiated::Plain(self.cause()),
        }
    }

    fn dismiss(&self, socket: &dyn Socket, peer: SocketAddr, why: Refusal) -> Negotiated {
        let refuse = |clients: &mut ListenerChannels, pair, _| {
            clients.refuse(pair, why);
            None::<()>
        };
        self.find(socket, peer, refuse);
        Negotiated::Plain(FallbackCause::Policy)
    }
}

impl LocalListener {
    /// Why a connection was not claimed.
    fn cause(&self) -> FallbackCause {
        let cause = self.shared.clients.lock().take_cause();
        cause.unwrap_or_else(|| self.shared.not_offered.clone())
    }

    /// Searches the known mailboxes for a connection's addresses, then those that have arrived
    /// meanwhile.
    fn find<T>(
        &self,
        socket: &dyn Socket,
        peer: SocketAddr,
        find: impl Fn(&mut ListenerChannels, Pair, Instant) -> Option<T>,
    ) -> Option<T> {
        let now = self.shared.runtime.now();
        let mut clients = self.shared.clients.lock();
        clients.heartbeat(now);
        let pair = |clients: &ListenerChannels| {
            if clients.is_empty() {
                return None;
            }
            let local = clients.address().or_else(|| socket.local_addr().ok())?;
            Some((canonical(peer), canonical(local)))
        };
        if let Some(found) = pair(&clients).and_then(|pair| find(&mut clients, pair, now)) {
            return Some(found);
        }
        let collected = clients.collect();
        let found = pair(&clients).and_then(|pair| find(&mut clients, pair, now));
        // A runtime may run the task at once, which needs the clients.
        drop(clients);
        self.shared.handle_collected(collected);
        found
    }
}

impl Drop for LocalListener {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Release);
        let wakers = self.shared.clients.lock().close();
        wakers.into_iter().for_each(Waker::wake);
        self.shared.task.wake();
    }
}

impl Shared {
    /// Accepts clients and handles their messages.
    async fn serve(self: Arc<Self>, watch: Box<dyn Watch>) {
        loop {
            let is_readable = poll_fn(|cx| {
                self.task.register(cx.waker());
                if self.closed.load(Ordering::Acquire) {
                    return Poll::Ready(false);
                }
                watch.poll_readable(cx).map(|result| result.is_ok())
            });
            if !is_readable.await {
                return;
            }
            loop {
                let collected = self.clients.lock().collect();
                let more = collected.more;
                self.handle_collected(collected);
                if !more {
                    break;
                }
                reactor_turn(&*self.runtime).await;
                if self.closed.load(Ordering::Acquire) {
                    return;
                }
            }
        }
    }

    /// Wakes tasks and starts probes after a poll of the channels.
    fn handle_collected(self: &Arc<Self>, collected: Collected) {
        collected.wakers.into_iter().for_each(Waker::wake);
        for probe in collected.probes {
            self.start_probe(probe);
        }
    }

    /// Starts a reachability probe for a client in another namespace.
    fn start_probe(self: &Arc<Self>, probe: ProbeRequest) {
        let shared = self.clone();
        self.runtime.spawn(Box::pin(async move {
            let from = shared.run_probe(&probe).await;
            let mut clients = shared.clients.lock();
            clients.end_probe(&probe, from, shared.runtime.now());
        }));
    }

    /// The address that sent the nonce to the probe socket, if one did.
    async fn run_probe(&self, probe: &ProbeRequest) -> Option<IpAddr> {
        // A task may run on a thread in another namespace than the listener's.
        if NetNs::current().ok()? != self.netns {
            return None;
        }
        let mut options = SocketOptions::default();
        options.backlog = Some(4);
        let probe_socket = self
            .runtime
            .bind(SocketAddr::new(probe.to, 0), &options, &mut |_| Ok(()))
            .ok()?;
        let port = probe_socket.local_addr().ok()?.port();
        let answer = ToClient::ProbePort { id: probe.id, port };
        self.clients.lock().send(probe.channel, answer);
        reachability::accept_probe(&*self.runtime, &*probe_socket, probe.nonce).await
    }
}

/// The listener's end of a handshake.
#[derive(Debug)]
struct ListenerSideChannel {
    shared: Arc<Shared>,
    claimed: Claimed,
    claim: ClaimState,
    /// Bytes that were read.
    read_len: usize,
    /// The early CONFIRM of the client, as far as it was not read.
    early: Option<Vec<u8>>,
}

/// The state of an offer that was claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClaimState {
    Open,
    /// The answer was written before the client withdrew the offer.
    Taken,
    Withdrawn,
}

impl SideChannel for ListenerSideChannel {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        if self.claim == ClaimState::Withdrawn {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        let early = self
            .claimed
            .slot
            .early()
            .filter(|early| early.expects(message));
        self.claimed.slot.write(Direction::FromListener, message)?;
        if self.claim == ClaimState::Open {
            self.decide();
        }
        if self.claim == ClaimState::Withdrawn {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        self.early = early.map(|early| early.confirm);
        Ok(())
    }

    fn is_withdrawn(&self) -> bool {
        self.claim == ClaimState::Withdrawn
    }

    fn credentials(&self) -> Option<Credentials> {
        Some(self.claimed.client)
    }

    fn is_own_user(&self) -> bool {
        self.claimed.own
    }

    fn publish_progress(&self) {
        let mut clients = self.shared.clients.lock();
        clients.heartbeat(self.shared.runtime.now());
    }

    fn flush(&mut self) {
        let clients = self.shared.clients.lock();
        clients.notify(self.claimed.channel, &self.claimed.slot);
    }

    fn try_read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        // Loaded first: a client writes all its messages before it ends.
        let has_ended = self.claimed.has_ended.load(Ordering::Acquire);
        match self
            .claimed
            .slot
            .read(Direction::FromClient, self.read_len, buf)
        {
            // Even if the client has closed its direction: it has the stream already.
            None | Some(0) if self.early.is_some() => Ok(self.read_early(buf)),
            Some(count) => {
                self.read_len += count;
                Ok(count)
            }
            None if has_ended => Ok(0),
            None => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        let waker = Some(cx.waker().clone());
        let Claimed { channel, slot, .. } = &self.claimed;
        let mut clients = self.shared.clients.lock();
        clients.wait(*channel, slot.number(), waker);
        drop(clients);
        slot.request_wake(Direction::FromClient);
        match self.try_read(buf) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
            read => Poll::Ready(read),
        }
    }
}

impl ListenerSideChannel {
    /// Takes the offer, unless the client has withdrawn it.
    fn decide(&mut self) {
        self.claim = match self.claimed.slot.take(self.claimed.generation) {
            true => ClaimState::Taken,
            false => ClaimState::Withdrawn,
        };
    }

    /// Copies the early CONFIRM.
    fn read_early(&mut self, buf: &mut [u8]) -> usize {
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
        if self.claim == ClaimState::Open {
            // There is no answer, and no TCP either: the connection ends.
            self.decide();
        }
        let mut clients = self.shared.clients.lock();
        clients.wait(self.claimed.channel, self.claimed.slot.number(), None);
        self.claimed.slot.close(Direction::FromListener);
        clients.notify(self.claimed.channel, &self.claimed.slot);
    }
}
