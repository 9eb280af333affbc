//! How peers are let in, listened to, and buried.

use std::collections::BTreeMap;
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

use super::{OpenError, Peers, new_bell};
use crate::bell;
use crate::channel::{self, Message, Received};
use crate::directory::socket_name;
use crate::doorbell::{Rang, check_eventfd, new_eventfd};
use crate::lock;
use crate::outbox::Way;
use crate::peer::{Incoming, Peer};
use crate::region::Mapping;
use crate::remote::{Remote, RingWith, Ringer};

/// Those who have connected and not said who they are, which takes no time unless they mean harm.
#[derive(Debug, Default)]
pub(super) struct Lobby {
    ///
    /// By number, so the first has been silent for longest.
    strangers: BTreeMap<u64, PeerSocket>,
    /// Peers that died a moment ago, with a connection that ends when their socket does.
    dying: HashMap<u64, (Gid, PeerSocket)>,
    /// Given up to accept, and close, a connection when there is no descriptor left.
    spare: Option<OwnedFd>,
}

impl Lobby {
    pub(super) fn new(spare: OwnedFd) -> Self {
        Self {
            spare: Some(spare),
            ..Self::default()
        }
    }
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
        self.doorbell.rang_inside(|rang| match rang {
            Rang::Listener => self.accept(lobby),
            Rang::Stranger(id) => {
                if let Some(socket) = lobby.strangers.remove(&id) {
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
                    self.dirs.remove_if_stale(&socket_name(gid));
                }
            }
            _ => {}
        })
    }

    fn accept(&self, lobby: &mut Lobby) {
        let accept = || lock(&self.publication).accept();
        lock(&self.publication).tend();
        for _ in 0..MAX_ACCEPTS {
            match accept() {
                Ok(socket) => self.meet(lobby, socket),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(error @ (Errno::MFILE | Errno::NFILE)) => {
                    // Before the peer hears of it.
                    self.note(OsError::new("accept a peer device", &error.into()));
                    // Else the listener would ring on and on. The peer sees the connection end.
                    lobby.spare = None;
                    let refused = accept();
                    if refused.is_ok() {
                        // There may be others, of whom the driver might not hear again.
                        self.doorbell.ring_own();
                    }
                    drop(refused);
                    lobby.spare = new_eventfd().ok();
                    return;
                }
                Err(_) => return,
            }
        }
        self.doorbell.ring_own();
    }

    /// Hears who has connected. Whoever gives a wrong answer is shown the door without a word.
    fn meet(&self, lobby: &mut Lobby, socket: PeerSocket) {
        let Ok(credentials) = Credentials::of_peer(&socket) else {
            return;
        };
        if !self.policy.allows(credentials.uid) {
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
                // Whoever is not up to anything speaks at once.
                if lobby.strangers.len() >= MAX_STRANGERS {
                    lobby.strangers.pop_first();
                }
                let id = self.next_id.fetch_add(1, Ordering::Relaxed);
                if self.doorbell.watch_stranger(&socket, id).is_ok() {
                    lobby.strangers.insert(id, socket);
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
            Way::Channel(outbox) if !self.policy.is_own(credentials.uid) => {
                RingWith::Channel(Arc::clone(outbox))
            }
            _ => RingWith::Eventfd(Arc::new(eventfd)),
        };
        let ringer = Arc::new(Ringer::new(gid, bell, ring_with));
        let remote = Remote::new(ringer, Arc::clone(&self.tokens));
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
        if !self.dirs.remove_if_stale(&socket_name(peer.gid)) {
            self.remove_when_stale(lobby, peer.gid);
        }
    }

    /// A process that is killed closes its channels and its listener one after the other, so the
    /// listener may still be there. A connection that nobody accepts ends together with it; if the
    /// process lives after all, it ends the connection because of what it hears.
    fn remove_when_stale(&self, lobby: &mut Lobby, gid: Gid) {
        let Ok(socket) = self.dirs.connect(&socket_name(gid)) else {
            self.dirs.remove_if_stale(&socket_name(gid));
            return;
        };
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let is_watched = channel::send(&socket, Message::Look, &[]).is_ok()
            && lobby.dying.len() < MAX_STRANGERS
            && self.doorbell.watch_dying(&socket, id).is_ok();
        if is_watched {
            lobby.dying.insert(id, (gid, socket));
        }
    }
}

/// Connections taken in a row; the rest waits for the next drain.
const MAX_ACCEPTS: usize = 64;
/// Connections that may be silent at a time.
const MAX_STRANGERS: usize = 64;
