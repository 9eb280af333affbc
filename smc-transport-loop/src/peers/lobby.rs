//! How peers are let in, listened to, and buried.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use hashbrown::HashMap;
use rustix::io::Errno;
use smc_core::device::{DeviceError, Event};
use smc_core::error::OsError;
use smc_core::io::negotiate::Credentials;
use smc_core::io::negotiate::passed::{Passed, PeerSocket};
use smc_core::mem::sync::Ordering;
use smc_wire::types::Gid;

use super::waiting::Waiting;
use super::{OpenError, Peers, new_bell, share};
use crate::bell;
use crate::channel::{self, Message, Received};
use crate::directory::socket_name;
use crate::doorbell::{Rang, check_eventfd};
use crate::lock;
use crate::outbox::Way;
use crate::peer::{Incoming, Peer};
use crate::region::Mapping;
use crate::remote::{Remote, RingWith, Ringer};

/// Connections that are not those of peers: not yet, or no more.
#[derive(Debug, Default)]
pub(super) struct Lobby {
    waiting: Waiting<PeerSocket>,
    /// Peers that died a moment ago, with a connection that ends when their socket does.
    dying: HashMap<u64, (Gid, PeerSocket)>,
}

impl Peers {
    /// Lets connections in and reads messages. Deaths are cleared up, and reported, by the driver
    /// only: that is the one who passes `events`.
    pub(super) fn set_up(&self, events: Option<&mut Vec<Event>>) -> Result<(), DeviceError> {
        let result = self.set_up_in(&mut lock(&self.lobby), events);
        self.wake();
        result
    }

    fn set_up_in(
        &self,
        lobby: &mut Lobby,
        mut events: Option<&mut Vec<Event>>,
    ) -> Result<(), DeviceError> {
        let result = self.doorbell.rang_inside(|rang| match rang {
            Rang::Listener => self.accept(lobby),
            Rang::Stranger(id) => {
                if let Some(socket) = lobby.waiting.remove(id) {
                    self.doorbell.forget_channel(&socket);
                    self.meet(lobby, socket);
                }
            }
            Rang::Incoming(id) => {
                let Some(peer) = self.by_id(id) else { return };
                let heard = peer.listen();
                if heard.more {
                    self.doorbell.ring_own();
                }
                if heard.anything {
                    self.active.add(&peer);
                    if events.is_none() {
                        self.doorbell.ring_own();
                    }
                }
                if let (true, Some(events)) = (heard.dead, events.as_deref_mut()) {
                    self.bury(lobby, &peer, events);
                }
            }
            Rang::Outgoing {
                peer,
                has_room,
                is_dead,
            } => {
                let Some(peer) = self.by_id(peer) else { return };
                if let (true, Way::Channel(outbox)) = (has_room, peer.owner.way()) {
                    lock(&self.wakes).append(outbox.flush());
                }
                if let (true, Some(events)) = (is_dead, events.as_deref_mut()) {
                    self.bury(lobby, &peer, events);
                }
            }
            Rang::Dying(id) => {
                if let Some((gid, socket)) = lobby.dying.remove(&id) {
                    self.doorbell.forget_channel(&socket);
                    self.domain.remove_if_stale(&socket_name(gid));
                }
            }
            _ => {}
        });
        if let Some(left) = lobby.waiting.time_left(Instant::now()) {
            lock(&self.publication).wake_after(left);
        }
        result
    }

    fn accept(&self, lobby: &mut Lobby) {
        lock(&self.publication).handle_events();
        while let Some(late) = lobby.waiting.remove_late(Instant::now()) {
            self.doorbell.forget_channel(&late);
        }
        for _ in 0..MAX_ACCEPTS {
            match self.accept_next() {
                Ok(socket) => self.meet(lobby, socket),
                Err(Errno::INTR | Errno::CONNABORTED | Errno::MFILE | Errno::NFILE) => {}
                Err(_) => return,
            }
        }
        self.doorbell.ring_own();
    }

    fn accept_next(&self) -> Result<PeerSocket, Errno> {
        // Locked, so that what is lacking is known before the peer sees its connection end.
        let mut shortage = lock(&self.shortage);
        let result = lock(&self.publication).accept();
        if let Err(errno @ (Errno::MFILE | Errno::NFILE)) = result {
            let error = OsError::new("accept a peer device", &errno.into());
            *shortage = Some((Instant::now(), error));
        }
        result
    }

    /// Hears who has connected. Whoever gives a wrong answer is shown the door without a word.
    fn meet(&self, lobby: &mut Lobby, socket: PeerSocket) {
        let Ok(credentials) = Credentials::of_peer(&socket) else {
            return;
        };
        if !self.domain.allows(credentials.uid) {
            return;
        }
        match channel::receive(&socket) {
            Received::Message(
                Message::Hello { gid },
                [Some(Passed::File(bell)), Some(Passed::File(eventfd))],
            ) => {
                // Refused: the socket is closed, which is the answer.
                let _ = self.admit(gid, credentials, socket, &bell, eventfd);
            }
            Received::Message(
                Message::Hello { .. },
                [Some(Passed::Lost), _] | [_, Some(Passed::Lost)],
            ) => {
                let error = Errno::MFILE.into();
                self.note(OsError::new("receive the bell of a peer device", &error));
            }
            Received::Nothing => {
                let id = self.next_id.fetch_add(1, Ordering::Relaxed);
                if self.doorbell.watch_stranger(&socket, id).is_ok() {
                    let now = Instant::now();
                    let too_many = lobby.waiting.add(id, credentials.uid, socket, now);
                    if let Some(oldest) = too_many {
                        self.doorbell.forget_channel(&oldest);
                    }
                }
            }
            _ => {}
        }
    }

    /// Takes over a channel on which `gid` talks to us, if it is who it says.
    fn admit(
        &self,
        gid: Gid,
        credentials: Credentials,
        socket: PeerSocket,
        bell: &OwnedFd,
        eventfd: OwnedFd,
    ) -> Result<(), OpenError> {
        if gid == self.gid {
            return Err(DeviceError::PeerMisbehaved("our own GID").into());
        }
        // A GID is proved by listening at its socket: the same process has to be behind both.
        let peer = self.noted(self.open_now(gid))?;
        if !peer
            .credentials
            .is_some_and(|listens| listens.is_same_process(credentials))
        {
            return Err(DeviceError::PeerMisbehaved("GID of another process").into());
        }
        let bell = Mapping::adopt(bell.as_fd(), bell::LEN, self.mappings.take()?);
        let bell = new_bell(&self.noted(bell.map_err(OpenError::from))?)?;
        check_eventfd(eventfd.as_fd())?;
        let ring_with = match peer.owner.way() {
            Way::Channel(outbox) if !share::is_own(credentials.uid) => {
                RingWith::Channel(Arc::clone(outbox))
            }
            _ => RingWith::Eventfd(Arc::new(eventfd)),
        };
        let ringer = Arc::new(Ringer::new(gid, bell, ring_with));
        let remote = Remote::new(ringer, Arc::clone(&self.tokens), &self.account);
        self.doorbell.watch_incoming(&socket, peer.id)?;
        let incoming = Incoming {
            channel: Some(socket),
            remote,
            mappings: Arc::clone(&self.mappings),
        };
        if let Err(refused) = peer.set_incoming(incoming) {
            drop(refused);
            return Err(DeviceError::PeerMisbehaved("a second channel").into());
        }
        // It may have signalled before we knew how.
        let heard = peer.listen();
        if heard.anything {
            self.active.add(&peer);
        }
        if heard.anything || heard.more {
            self.doorbell.ring_own();
        }
        Ok(())
    }

    /// Remembers what this process lacks that a peer is not let in, before the peer is told.
    fn noted<T>(&self, step: Result<T, OpenError>) -> Result<T, OpenError> {
        if let Err(OpenError::Failed(DeviceError::Os(error))) = &step {
            self.note(error.clone());
        }
        step
    }

    fn note(&self, error: OsError) {
        if error.is_lack() {
            *lock(&self.shortage) = Some((Instant::now(), error));
        }
    }

    fn bury(&self, lobby: &mut Lobby, peer: &Arc<Peer>, events: &mut Vec<Event>) {
        if !self.remove(peer) {
            return;
        }
        // What it signalled last, then that there is nothing more to come.
        peer.collect(events);
        self.close(peer);
        events.push(Event::PeerGone(peer.gid));
        if !self.domain.remove_if_stale(&socket_name(peer.gid)) {
            self.remove_when_stale(lobby, peer.gid);
        }
    }

    /// A process that is killed closes its channels and its listener one after the other, so the
    /// listener may still be there. A connection that nobody accepts ends together with it; if the
    /// process lives after all, it ends the connection because of what it hears.
    fn remove_when_stale(&self, lobby: &mut Lobby, gid: Gid) {
        let Ok(socket) = self.domain.connect(&socket_name(gid)) else {
            self.domain.remove_if_stale(&socket_name(gid));
            return;
        };
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let is_watched = channel::send(&socket, Message::Look, &[]).is_ok()
            && lobby.dying.len() < MAX_DYING
            && self.doorbell.watch_dying(&socket, id).is_ok();
        if is_watched {
            lobby.dying.insert(id, (gid, socket));
        }
    }
}

/// Connections taken in a row; the rest waits for the next drain.
const MAX_ACCEPTS: usize = 64;
/// Connections to peers that died a moment ago.
const MAX_DYING: usize = 64;
