//! Set-up of peers: accepting channels, receiving messages, and removing ended peers.

use std::future::Future as _;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use smc_core::device::{DeviceError, Event};
use smc_core::quota::Permit;
use smc_ipc::doorbell::PACKETS_PER_ROUND;
use smc_ipc::passed::{Passed, PeerFile, PeerSocket};
use smc_ipc::runtime_dir::Connected;
use smc_ipc::thread::Answer;
use smc_ipc::{Credentials, OsError, is_own_user};
use smc_wire::types::Gid;

use super::open::CONNECT_WITHIN;
use super::pending_channels::PendingChannels;
use super::{DESCRIPTORS_PER_PEER, OpenError, Peers, new_signal_page};
use crate::channel::{self, Message, ReceivedMessage};
use crate::doorbell::{ENDED, EventSource, check_eventfd};
use crate::peer::{Incoming, Peer, ReceiveOutcome};
use crate::peer_buffers::{Notifier, NotifyBy, PeerBuffers};
use crate::region::Mapping;
use crate::send_queue::SendPath;
use crate::signal_page;

/// Connections that do not belong to peers: unauthenticated, or of ended peers.
#[derive(Debug, Default)]
pub(super) struct SetupState {
    /// Each with its descriptor in the quota of the process.
    pending: PendingChannels<(Arc<PeerSocket>, Permit)>,
    /// Peers that have just ended, each with a connection that ends with the peer's listening
    /// socket, and its descriptor in the quota of the process.
    stale: HashMap<u64, (Gid, Arc<PeerSocket>, Permit)>,
    /// The same while that connection is made.
    ended: Vec<(Gid, Answer<Connected>, Permit)>,
    /// Channels that wait for a connection to the device which they name, the oldest first.
    unverified: Vec<Unverified>,
}

#[derive(Debug)]
struct Unverified {
    hello: Hello,
    /// Descriptors that the peer will take up.
    descriptors: Permit,
    device: Answer<Connected>,
    until: Instant,
}

/// A channel on which HELLO was received.
#[derive(Debug)]
struct Hello {
    gid: Gid,
    credentials: Credentials,
    socket: Arc<PeerSocket>,
    signal_page: PeerFile,
    eventfd: PeerFile,
}

impl Peers {
    /// Accepts connections and receives messages, a bounded number of them. Only the driver, which
    /// passes `events`, removes and reports ended peers. Returns whether there may be more:
    /// something was ready, which can have been the first of several messages, or a channel was not
    /// accepted before, of which only some messages are received now.
    pub(super) fn run_setup(&self, events: Option<&mut Vec<Event>>) -> Result<bool, DeviceError> {
        let result = self.run_setup_in(&mut self.setup.lock(), events);
        self.wake();
        result
    }

    fn run_setup_in(
        &self,
        setup: &mut SetupState,
        mut events: Option<&mut Vec<Event>>,
    ) -> Result<bool, DeviceError> {
        let mut has_found = false;
        let mut handle = |source, id, flags: EventFlags, share| match source {
            EventSource::Listener => self.accept(setup),
            EventSource::Pending => {
                if let Some((socket, descriptor)) = setup.pending.remove(id) {
                    self.doorbell.unwatch_channel(&socket);
                    // One of those of the peer from now on.
                    drop(descriptor);
                    self.authenticate(setup, socket);
                }
            }
            EventSource::Incoming => {
                let Some(peer) = self.by_id(id) else { return };
                let outcome = peer.receive(share);
                self.note_received(&peer, outcome, events.is_some());
                if let (true, Some(events)) = (outcome.has_ended, events.as_deref_mut()) {
                    self.remove_ended_peer(setup, &peer, events);
                }
            }
            EventSource::Outgoing => {
                let Some(peer) = self.by_id(id) else { return };
                let is_writable = flags.contains(EventFlags::OUT);
                if let (true, SendPath::Channel(send_queue)) = (is_writable, &peer.local.send_path)
                {
                    self.wakes.lock().extend(send_queue.flush());
                }
                let has_ended = flags.intersects(ENDED);
                if let (true, Some(events)) = (has_ended, events.as_deref_mut()) {
                    self.remove_ended_peer(setup, &peer, events);
                }
            }
            EventSource::Stale => {
                if let Some((gid, socket, _)) = setup.stale.remove(&id) {
                    self.doorbell.unwatch_channel(&socket);
                    self.remove_if_stale(gid);
                }
            }
            _ => {}
        };
        let result = self.doorbell.poll_setup(|source, id, flags, share| {
            has_found = true;
            handle(source, id, flags, share);
        });
        let had_unverified = !setup.unverified.is_empty();
        let waker = Waker::from(Arc::clone(&self.setup_waker));
        self.handle_connected(setup, &waker);
        self.handle_ended(setup, &mut Context::from_waker(&waker));
        self.expire(setup);
        result.map(|()| has_found || had_unverified)
    }

    /// Has the driver poll a peer that has sent something, and read what is left.
    pub(super) fn note_received(&self, peer: &Arc<Peer>, outcome: ReceiveOutcome, is_driver: bool) {
        self.scans.scan(peer);
        if outcome.received {
            self.active.add(peer);
        }
        if outcome.more || (outcome.received && !is_driver) {
            self.doorbell.notify_self();
        }
    }

    /// Wakes tasks that have waited for too long, and has the driver woken for all that wait, and
    /// for channels of ended peers that are read meanwhile.
    fn expire(&self, setup: &SetupState) {
        let now = Instant::now();
        self.wakes.lock().extend(self.waiting.remove_expired(now));
        let unverified = setup.unverified.first().map(|oldest| oldest.until);
        let next = unverified.into_iter().chain(self.waiting.next_expiry());
        let left = next.map(|until| until.saturating_duration_since(now));
        let unread = self.forget_read().then_some(UNREAD_INTERVAL);
        if let Some(left) = left.chain(setup.pending.time_left(now)).chain(unread).min() {
            self.publication.lock().wake_after(left);
        }
    }

    /// Accepts channels whose device was connected to, and ends those that have waited for too
    /// long.
    fn handle_connected(&self, setup: &mut SetupState, waker: &Waker) {
        let cx = &mut Context::from_waker(waker);
        let mut opened = 0;
        for mut channel in std::mem::take(&mut setup.unverified) {
            let gid = channel.hello.gid;
            if opened == MAX_ACCEPTS {
                setup.unverified.push(channel);
                continue;
            }
            let peer = match (
                self.find_opened(gid),
                Pin::new(&mut channel.device).poll(cx),
            ) {
                (Some(peer), _) => Ok(peer),
                (None, Poll::Ready(device)) => {
                    self.establish(gid, device, Some(channel.descriptors))
                }
                (None, Poll::Pending) if channel.until > Instant::now() => {
                    setup.unverified.push(channel);
                    continue;
                }
                (None, Poll::Pending) => continue,
            };
            opened += 1;
            // On refusal the socket is closed, which is the answer.
            let peer = self.record_shortage(peer);
            let _ = peer.and_then(|peer| self.accept_channel(&peer, channel.hello));
        }
        if opened == MAX_ACCEPTS {
            waker.wake_by_ref();
        }
    }

    fn handle_ended(&self, setup: &mut SetupState, cx: &mut Context<'_>) {
        for (gid, mut device, descriptor) in std::mem::take(&mut setup.ended) {
            match Pin::new(&mut device).poll(cx) {
                Poll::Pending => setup.ended.push((gid, device, descriptor)),
                Poll::Ready(Ok(Connected {
                    socket: Ok(socket), ..
                })) => {
                    self.watch_stale(setup, gid, socket, descriptor);
                }
                Poll::Ready(_) => self.remove_if_stale(gid),
            }
        }
    }

    fn accept(&self, setup: &mut SetupState) {
        self.publication.lock().handle_events();
        while let Some((expired, _)) = setup.pending.remove_expired(Instant::now()) {
            self.doorbell.unwatch_channel(&expired);
        }
        for _ in 0..MAX_ACCEPTS {
            match self.accept_next() {
                Ok(socket) => self.authenticate(setup, socket),
                Err(Errno::INTR | Errno::CONNABORTED | Errno::MFILE | Errno::NFILE) => {}
                Err(_) => return,
            }
        }
        self.doorbell.notify_self();
    }

    fn accept_next(&self) -> Result<Arc<PeerSocket>, Errno> {
        // Locked, so that the shortage is recorded before the peer sees the end of its connection.
        let mut shortage = self.shortage.lock();
        let result = self.publication.lock().accept();
        if let Err(errno @ (Errno::MFILE | Errno::NFILE)) = result {
            shortage.record(&OsError::new("accept a peer device", &errno.into()));
        }
        result.map(Arc::new)
    }

    /// Receives HELLO from a new connection. Without a valid HELLO the connection is closed.
    fn authenticate(&self, setup: &mut SetupState, socket: Arc<PeerSocket>) {
        let Ok(credentials) = Credentials::of_peer(&socket) else {
            return;
        };
        if !self.domain.allows(credentials.uid) {
            return;
        }
        match channel::receive(&socket) {
            ReceivedMessage::Message(
                Message::Hello { gid },
                [Some(Passed::File(signal_page)), Some(Passed::File(eventfd))],
            ) => {
                // On refusal the socket is closed, which is the answer.
                let _ = self.verify(
                    setup,
                    Hello {
                        gid,
                        credentials,
                        socket,
                        signal_page,
                        eventfd,
                    },
                );
            }
            ReceivedMessage::Message(
                Message::Hello { .. },
                [Some(Passed::Lost), _] | [_, Some(Passed::Lost)],
            ) => {
                let error = Errno::MFILE.into();
                let operation = "receive the signal page of a peer device";
                self.shortage
                    .lock()
                    .record(&OsError::new(operation, &error));
            }
            ReceivedMessage::Nothing => {
                // Without a descriptor in the quota it is closed.
                let _ = self.add_pending(setup, credentials.uid, socket);
            }
            _ => {}
        }
    }

    /// Has a channel wait for HELLO.
    fn add_pending(
        &self,
        setup: &mut SetupState,
        uid: u32,
        socket: Arc<PeerSocket>,
    ) -> Result<(), DeviceError> {
        let descriptor = self.take_descriptors_evicting(setup, uid, 1)?;
        let id = self.new_id();
        self.doorbell
            .watch_channel(&socket, EventSource::Pending, id)?;
        let pending = (socket, descriptor);
        if let Some((oldest, _)) = setup.pending.add(id, uid, pending, Instant::now()) {
            self.doorbell.unwatch_channel(&oldest);
        }
        Ok(())
    }

    /// Takes descriptors for a channel of this user. Where the share of the user has too few, those
    /// of its channels without HELLO are closed for it, the oldest first.
    fn take_descriptors_evicting(
        &self,
        setup: &mut SetupState,
        uid: u32,
        count: usize,
    ) -> Result<Permit, DeviceError> {
        let mut taken = self.take_descriptors(uid, count);
        while taken.is_err() {
            let Some((oldest, descriptor)) = setup.pending.remove_oldest(uid) else {
                break;
            };
            self.doorbell.unwatch_channel(&oldest);
            drop(descriptor);
            taken = self.take_descriptors(uid, count);
        }
        taken
    }

    /// Accepts a channel, as soon as there is one to the device that it names.
    fn verify(&self, setup: &mut SetupState, hello: Hello) -> Result<(), OpenError> {
        let Hello {
            gid, credentials, ..
        } = hello;
        if gid == self.gid {
            return Err(DeviceError::PeerMisbehaved("GID of this device").into());
        }
        if credentials.uid != self.user_of(gid) {
            return Err(DeviceError::PeerMisbehaved("GID of another user").into());
        }
        if let Some(peer) = self.find_opened(gid) {
            return self.accept_channel(&peer, hello);
        }
        let is_of_user = |channel: &&Unverified| channel.hello.credentials.uid == credentials.uid;
        if setup.unverified.iter().filter(is_of_user).count() >= MAX_UNVERIFIED {
            return Err(DeviceError::Exhausted.into());
        }
        let descriptors =
            self.take_descriptors_evicting(setup, credentials.uid, DESCRIPTORS_PER_PEER)?;
        setup.unverified.push(Unverified {
            descriptors,
            device: self.connect(gid),
            until: Instant::now() + CONNECT_WITHIN,
            hello,
        });
        Ok(())
    }

    /// Accepts a channel from a peer, if the same process is behind both. A GID is proved by
    /// listening at its socket.
    fn accept_channel(&self, peer: &Arc<Peer>, hello: Hello) -> Result<(), OpenError> {
        let Hello {
            gid,
            credentials,
            socket,
            signal_page,
            eventfd,
        } = hello;
        if !peer
            .credentials
            .is_some_and(|listens| listens.is_same_process(credentials))
        {
            return Err(DeviceError::PeerMisbehaved("GID of another process").into());
        }
        let permit = self.mappings.take(credentials.uid)?;
        let signal_page = Mapping::adopt(signal_page.as_fd(), signal_page::LEN, permit);
        let signal_page =
            new_signal_page(&self.record_shortage(signal_page.map_err(OpenError::from))?)?;
        check_eventfd(eventfd.as_fd())?;
        let notify_by = match &peer.local.send_path {
            SendPath::Channel(send_queue) if !is_own_user(credentials.uid) => {
                NotifyBy::Channel(Arc::clone(send_queue))
            }
            _ => NotifyBy::Eventfd(eventfd),
        };
        let notifier = Arc::new(Notifier::new(gid, signal_page, notify_by));
        let buffers = PeerBuffers::new(
            notifier,
            Arc::clone(&self.tokens),
            Arc::clone(&self.released),
            &self.account,
        );
        self.doorbell
            .watch_channel(&socket, EventSource::Incoming, peer.id)?;
        let incoming = Incoming {
            channel: Some(socket),
            buffers,
            mappings: Arc::clone(&self.mappings),
            user: credentials.uid,
        };
        if let Err(refused) = peer.set_incoming(incoming) {
            // It may outlive this: unread messages are closed on another thread.
            if let Some(socket) = &refused.channel {
                self.doorbell.unwatch_channel(socket);
            }
            return Err(DeviceError::PeerMisbehaved("a second channel").into());
        }
        // It may have signalled before the channel was set.
        let outcome = peer.receive(PACKETS_PER_ROUND / MAX_ACCEPTS);
        self.note_received(peer, outcome, false);
        Ok(())
    }

    /// Records a shortage that refuses a peer, before the refusal.
    fn record_shortage<T>(&self, step: Result<T, OpenError>) -> Result<T, OpenError> {
        if let Err(OpenError::Failed(DeviceError::Os(error))) = &step {
            self.shortage.lock().record(error);
        }
        step
    }

    fn remove_ended_peer(&self, setup: &mut SetupState, peer: &Arc<Peer>, events: &mut Vec<Event>) {
        if !self.remove(peer) {
            return;
        }
        // Its last signals first, then its end.
        peer.local.collect(events);
        self.close(peer);
        events.push(Event::PeerGone(peer.gid));
        let user = self.user_of(peer.gid);
        if !is_own_user(user) || setup.stale.len() + setup.ended.len() >= MAX_STALE {
            return;
        }
        if let Ok(descriptor) = self.take_descriptors(user, 1) {
            let device = self.connect(peer.gid);
            setup.ended.push((peer.gid, device, descriptor));
        }
    }

    /// A process that is killed closes its channels and its listener one after the other, so the
    /// listener may still be there. A connection in its backlog ends together with it; a process
    /// that still runs closes the connection because of the invalid message.
    fn watch_stale(
        &self,
        setup: &mut SetupState,
        gid: Gid,
        socket: PeerSocket,
        descriptor: Permit,
    ) {
        let socket = Arc::new(socket);
        let id = self.new_id();
        let is_watched = channel::send(&socket, Message::Notify, &[]).is_ok()
            && self
                .doorbell
                .watch_channel(&socket, EventSource::Stale, id)
                .is_ok();
        if is_watched {
            setup.stale.insert(id, (gid, socket, descriptor));
        } else {
            // It may have ended since the connection.
            self.remove_if_stale(gid);
        }
    }
}

/// Connections accepted per drain; the rest waits for the next drain.
const MAX_ACCEPTS: usize = 32;
/// Channels of one user that wait for connections to the devices which they name.
const MAX_UNVERIFIED: usize = 256;
/// How often channels are looked at that an ended peer has not read. Until it has, their
/// descriptors count to its user, for all devices and listeners of this process.
const UNREAD_INTERVAL: Duration = Duration::from_secs(1);
/// Connections to peers that have just ended.
const MAX_STALE: usize = 64;
