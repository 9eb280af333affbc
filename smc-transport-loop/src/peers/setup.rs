//! Set-up of peers: accepting channels, receiving messages, and removing ended peers.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;

use hashbrown::HashMap;
use rustix::io::Errno;
use smc_core::device::{DeviceError, Event};
use smc_core::mem::sync::Ordering;
use smc_ipc::passed::{Passed, PeerFile, PeerSocket};
use smc_ipc::{Credentials, OsError};
use smc_wire::types::Gid;

use super::pending_channels::PendingChannels;
use super::{OpenError, Peers, new_signal_page, share};
use crate::channel::{self, Message, Received};
use crate::directory::socket_name;
use crate::doorbell::{Channel, Ready, check_eventfd};
use crate::lock;
use crate::peer::{Incoming, Peer};
use crate::region::Mapping;
use crate::remote::{Notifier, NotifyBy, RemoteBuffers};
use crate::send_queue::SendPath;
use crate::signal_page;

/// Connections that do not belong to peers: unauthenticated, or of ended peers.
#[derive(Debug, Default)]
pub(super) struct SetupState {
    pending: PendingChannels<PeerSocket>,
    /// Peers that have just ended, each with a connection that ends with the peer's listening
    /// socket.
    stale: HashMap<u64, (Gid, PeerSocket)>,
}

impl Peers {
    /// Accepts connections and receives messages. Only the driver, which passes `events`, removes
    /// and reports ended peers.
    pub(super) fn run_setup(&self, events: Option<&mut Vec<Event>>) -> Result<(), DeviceError> {
        let result = self.run_setup_in(&mut lock(&self.setup), events);
        self.wake();
        result
    }

    fn run_setup_in(
        &self,
        setup: &mut SetupState,
        mut events: Option<&mut Vec<Event>>,
    ) -> Result<(), DeviceError> {
        let result = self.doorbell.poll_setup(|ready| match ready {
            Ready::Listener => self.accept(setup),
            Ready::Channel(Channel::Pending, id) => {
                if let Some(socket) = setup.pending.remove(id) {
                    self.doorbell.unwatch_channel(&socket);
                    self.authenticate(setup, socket);
                }
            }
            Ready::Channel(Channel::Incoming, id) => {
                let Some(peer) = self.by_id(id) else { return };
                let outcome = peer.receive();
                if outcome.more {
                    self.doorbell.notify_self();
                }
                if outcome.received {
                    self.active.add(&peer);
                    if events.is_none() {
                        self.doorbell.notify_self();
                    }
                }
                if let (true, Some(events)) = (outcome.dead, events.as_deref_mut()) {
                    self.remove_dead_peer(setup, &peer, events);
                }
            }
            Ready::Outgoing {
                peer,
                is_writable,
                is_dead,
            } => {
                let Some(peer) = self.by_id(peer) else { return };
                if let (true, SendPath::Channel(send_queue)) = (is_writable, &peer.local.send_path)
                {
                    lock(&self.wakes).append(send_queue.flush());
                }
                if let (true, Some(events)) = (is_dead, events.as_deref_mut()) {
                    self.remove_dead_peer(setup, &peer, events);
                }
            }
            Ready::Channel(Channel::Stale, id) => {
                if let Some((gid, socket)) = setup.stale.remove(&id) {
                    self.doorbell.unwatch_channel(&socket);
                    self.domain.remove_if_stale(&socket_name(gid));
                }
            }
            _ => {}
        });
        if let Some(left) = setup.pending.time_left(Instant::now()) {
            lock(&self.publication).wake_after(left);
        }
        result
    }

    fn accept(&self, setup: &mut SetupState) {
        lock(&self.publication).handle_events();
        while let Some(expired) = setup.pending.remove_expired(Instant::now()) {
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

    fn accept_next(&self) -> Result<PeerSocket, Errno> {
        // Locked, so that the shortage is recorded before the peer sees the end of its connection.
        let mut shortage = lock(&self.shortage);
        let result = lock(&self.publication).accept();
        if let Err(errno @ (Errno::MFILE | Errno::NFILE)) = result {
            let error = OsError::new("accept a peer device", &errno.into());
            *shortage = Some((Instant::now(), error));
        }
        result
    }

    /// Receives HELLO from a new connection. Without a valid HELLO the connection is closed.
    fn authenticate(&self, setup: &mut SetupState, socket: PeerSocket) {
        let Ok(credentials) = Credentials::of_peer(&socket) else {
            return;
        };
        if !self.domain.allows(credentials.uid) {
            return;
        }
        match channel::receive(&socket) {
            Received::Message(
                Message::Hello { gid },
                [Some(Passed::File(signal_page)), Some(Passed::File(eventfd))],
            ) => {
                // On refusal the socket is closed, which is the answer.
                let _ = self.accept_channel(gid, credentials, socket, &signal_page, eventfd);
            }
            Received::Message(
                Message::Hello { .. },
                [Some(Passed::Lost), _] | [_, Some(Passed::Lost)],
            ) => {
                let error = Errno::MFILE.into();
                self.set_shortage(OsError::new(
                    "receive the signal page of a peer device",
                    &error,
                ));
            }
            Received::Nothing => {
                let id = self.next_id.fetch_add(1, Ordering::Relaxed);
                if self
                    .doorbell
                    .watch_channel(&socket, Channel::Pending, id)
                    .is_ok()
                {
                    let now = Instant::now();
                    let too_many = setup.pending.add(id, credentials.uid, socket, now);
                    if let Some(oldest) = too_many {
                        self.doorbell.unwatch_channel(&oldest);
                    }
                }
            }
            _ => {}
        }
    }

    /// Accepts a channel from `gid`, if the process behind it is verified.
    fn accept_channel(
        &self,
        gid: Gid,
        credentials: Credentials,
        socket: PeerSocket,
        signal_page: &PeerFile,
        eventfd: PeerFile,
    ) -> Result<(), OpenError> {
        if gid == self.gid {
            return Err(DeviceError::PeerMisbehaved("GID of this device").into());
        }
        if credentials.uid != self.user_of(gid) {
            return Err(DeviceError::PeerMisbehaved("GID of another user").into());
        }
        // A GID is proved by listening at its socket: the same process has to be behind both.
        let peer = self.record_shortage(self.open_now(gid))?;
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
            SendPath::Channel(send_queue) if !share::is_own(credentials.uid) => {
                NotifyBy::Channel(Arc::clone(send_queue))
            }
            _ => NotifyBy::Eventfd(eventfd),
        };
        let notifier = Arc::new(Notifier::new(gid, signal_page, notify_by));
        let remote = RemoteBuffers::new(notifier, Arc::clone(&self.tokens), &self.account);
        self.doorbell
            .watch_channel(&socket, Channel::Incoming, peer.id)?;
        let incoming = Incoming {
            channel: Some(socket),
            remote,
            mappings: Arc::clone(&self.mappings),
            user: credentials.uid,
        };
        if let Err(refused) = peer.set_incoming(incoming) {
            drop(refused);
            return Err(DeviceError::PeerMisbehaved("a second channel").into());
        }
        // It may have signalled before the channel was set.
        let outcome = peer.receive();
        if outcome.received {
            self.active.add(&peer);
        }
        if outcome.received || outcome.more {
            self.doorbell.notify_self();
        }
        Ok(())
    }

    /// Records a shortage that refuses a peer, before the refusal.
    fn record_shortage<T>(&self, step: Result<T, OpenError>) -> Result<T, OpenError> {
        if let Err(OpenError::Failed(DeviceError::Os(error))) = &step {
            self.set_shortage(error.clone());
        }
        step
    }

    fn set_shortage(&self, error: OsError) {
        if error.is_lack() {
            *lock(&self.shortage) = Some((Instant::now(), error));
        }
    }

    fn remove_dead_peer(&self, setup: &mut SetupState, peer: &Arc<Peer>, events: &mut Vec<Event>) {
        if !self.remove(peer) {
            return;
        }
        // Its last signals first, then its end.
        peer.collect(events);
        self.close(peer);
        events.push(Event::PeerGone(peer.gid));
        if !self.domain.remove_if_stale(&socket_name(peer.gid)) {
            self.remove_when_stale(setup, peer.gid);
        }
    }

    /// A process that is killed closes its channels and its listener one after the other, so the
    /// listener may still be there. A connection in its backlog ends together with it; a process
    /// that still runs closes the connection because of the invalid message.
    fn remove_when_stale(&self, setup: &mut SetupState, gid: Gid) {
        let Ok(socket) = self.domain.connect_to(self.user_of(gid), &socket_name(gid)) else {
            self.domain.remove_if_stale(&socket_name(gid));
            return;
        };
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let is_watched = channel::send(&socket, Message::Notify, &[]).is_ok()
            && setup.stale.len() < MAX_STALE
            && self
                .doorbell
                .watch_channel(&socket, Channel::Stale, id)
                .is_ok();
        if is_watched {
            setup.stale.insert(id, (gid, socket));
        }
    }
}

/// Connections accepted per drain; the rest waits for the next drain.
const MAX_ACCEPTS: usize = 32;
/// Connections to peers that have just ended.
const MAX_STALE: usize = 64;
