//! The file fabric: devices of processes that share a directory.
//!
//! ```text
//! lock      held while a device comes
//! memory    the shared memory
//! 0.sock    where the device of slot 0 listens; and so on
//! ```
//!
//! A device connects to each peer that it has to do with. Either may send a byte on the connection,
//! which is all a doorbell has to say; that the connection ends says that the peer is gone. A
//! socket that refuses connections is that of a process that has ended.

mod files;
mod hello;

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};

use hashbrown::HashMap;
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use rustix::process::geteuid;
use smc_core::device::DeviceError;
use smc_core::io::negotiate::Credentials;
use smc_core::io::negotiate::passed::{self, PeerSocket};
use smc_core::io::negotiate::runtime_dir::Publication;

use super::doorbell::Doorbell;
use super::{Fabric, News, Unmet};
use crate::lock;
use crate::region::os_at;
use crate::shared::{Plan, Room, Tag};
use files::Files;
use hello::Hello;

/// One device's end of a file fabric.
#[derive(Debug)]
pub(crate) struct Directory {
    room: Arc<Room>,
    files: Files,
    publication: Mutex<Publication>,
    doorbell: Doorbell,
    own: OnceLock<Tag>,
    conns: Mutex<Conns>,
}

#[derive(Debug, Default)]
struct Conns {
    next_id: u64,
    by_id: HashMap<u64, Conn>,
    by_peer: HashMap<Tag, u64>,
}

#[derive(Debug)]
struct Conn {
    socket: PeerSocket,
    /// `None` until the one who connected has said who he is.
    peer: Option<Tag>,
}

impl Directory {
    /// Goes into a directory, after making it and its memory if need be.
    pub(crate) fn enter(path: &Path, len: usize, plan: Plan) -> Result<(Self, u16), DeviceError> {
        let files = Files::open(path)?;
        let lock = files.lock()?;
        let room = Arc::new(files.memory(len, plan)?);
        let (slot, publication) = files.take_slot(room.slots())?;
        drop(lock);
        let doorbell = Doorbell::new()?;
        doorbell.watch(publication.epoll_fd(), LISTENER)?;
        let directory = Self {
            room,
            files,
            publication: Mutex::new(publication),
            doorbell,
            own: OnceLock::new(),
            conns: Mutex::default(),
        };
        Ok((directory, slot))
    }

    /// Accepts those who connected.
    fn accept(&self) {
        lock(&self.publication).handle_events();
        let accept = || lock(&self.publication).accept();
        for _ in 0..MAX_ACCEPTS {
            match accept() {
                Ok(socket) => self.admit(socket),
                Err(Errno::INTR | Errno::CONNABORTED | Errno::MFILE | Errno::NFILE) => {}
                Err(_) => return,
            }
        }
        self.doorbell.ring_own();
    }

    fn admit(&self, socket: PeerSocket) {
        if !is_own_user(&socket) {
            return;
        }
        let mut conns = lock(&self.conns);
        let strangers = conns.by_id.values().filter(|conn| conn.peer.is_none());
        if strangers.count() >= MAX_STRANGERS {
            return;
        }
        let _ = self.add(&mut conns, socket, None);
    }

    fn add(
        &self,
        conns: &mut Conns,
        socket: PeerSocket,
        peer: Option<Tag>,
    ) -> Result<(), DeviceError> {
        conns.next_id += 1;
        let id = conns.next_id;
        self.doorbell.watch(&socket, id)?;
        conns.by_id.insert(id, Conn { socket, peer });
        if let Some(peer) = peer {
            conns.by_peer.insert(peer, id);
        }
        Ok(())
    }

    /// Reads what came on a connection. Returns the peer if it has ended.
    fn listen(&self, id: u64) -> Option<Tag> {
        let mut conns = lock(&self.conns);
        for _ in 0..MAX_MESSAGES {
            let conn = conns.by_id.get_mut(&id)?;
            let mut bytes = [0; hello::LEN + 1];
            match passed::receive(&conn.socket, &mut bytes) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return None,
                Ok(packet) if packet.is_overloaded(0) => return self.close(&mut conns, id),
                Ok(packet) if packet.len == 1 && conn.peer.is_some() => {}
                Ok(packet) if packet.len == hello::LEN && conn.peer.is_none() => {
                    let hello = Hello::parse(&bytes[..hello::LEN]);
                    let known = hello.filter(|hello| hello.fabric == self.room.fabric());
                    let Some(peer) = known.map(|hello| hello.from) else {
                        return self.close(&mut conns, id);
                    };
                    conn.peer = Some(peer);
                    conns.by_peer.entry(peer).or_insert(id);
                }
                // The end, an error, or something that no device says.
                Ok(_) | Err(_) => return self.close(&mut conns, id),
            }
        }
        self.doorbell.ring_own();
        None
    }

    /// Closes a connection. Returns the peer unless there is another connection to it.
    fn close(&self, conns: &mut Conns, id: u64) -> Option<Tag> {
        if let Some(conn) = conns.by_id.get(&id) {
            self.doorbell.forget(&conn.socket);
        }
        conns.remove(id)
    }
}

impl Conns {
    /// Returns the peer unless there is another connection to it.
    fn remove(&mut self, id: u64) -> Option<Tag> {
        let peer = self.by_id.remove(&id)?.peer?;
        if self.by_peer.get(&peer) == Some(&id) {
            self.by_peer.remove(&peer);
        }
        // Two that connect to each other at once have two, and end both when they end.
        let other = self.by_id.iter().find(|(_, conn)| conn.peer == Some(peer));
        match other {
            Some((other, _)) => {
                self.by_peer.insert(peer, *other);
                None
            }
            None => Some(peer),
        }
    }
}

impl Fabric for Directory {
    fn room(&self) -> &Arc<Room> {
        &self.room
    }

    fn joined(&self, tag: Tag) {
        let _ = self.own.set(tag);
    }

    fn meet(&self, peer: Tag) -> Result<(), Unmet> {
        let Some(own) = self.own.get() else {
            return Err(Unmet::Failed(DeviceError::Gone(
                "the device has not joined",
            )));
        };
        if peer == *own {
            return Ok(());
        }
        // Locked until the peer is known, so that there is one connection to each from here.
        let mut conns = lock(&self.conns);
        if conns.by_peer.contains_key(&peer) {
            return Ok(());
        }
        let socket = match self.files.connect(peer.slot) {
            Ok(socket) => socket,
            Err(Errno::NOENT | Errno::CONNREFUSED) => return Err(Unmet::Dead),
            Err(Errno::AGAIN) => return Err(Unmet::Busy),
            Err(error) => {
                let path = self.files.socket_path(peer.slot);
                let failed = os_at("connect to peer", &path, error);
                return Err(Unmet::Failed(failed));
            }
        };
        if !is_own_user(&socket) {
            let why = format!(
                "the peer device of {} belongs to another user",
                self.files.socket_path(peer.slot).display()
            );
            return Err(Unmet::Failed(DeviceError::NotPermitted(why.into())));
        }
        let hello = Hello {
            from: *own,
            fabric: self.room.fabric(),
        };
        match send(&socket, &hello.to_bytes(), SAY) {
            Ok(_) => {}
            Err(Errno::PIPE | Errno::CONNRESET) => return Err(Unmet::Dead),
            Err(error) => {
                let path = self.files.socket_path(peer.slot);
                return Err(Unmet::Failed(os_at("greet peer", &path, error)));
            }
        }
        self.add(&mut conns, socket, Some(peer))
            .map_err(Unmet::Failed)
    }

    fn ring(&self, peer: Tag) {
        if self.own.get() == Some(&peer) {
            self.doorbell.ring_own();
            return;
        }
        let conns = lock(&self.conns);
        let conn = conns.by_peer.get(&peer).and_then(|id| conns.by_id.get(id));
        match conn {
            // A full socket has enough in it to be woken by; an error means that the peer is on
            // its way out, which its end of the connection says.
            Some(conn) => {
                let _ = send(&conn.socket, &[0], SAY);
            }
            None => {
                drop(conns);
                // The greeting rings.
                let _ = self.meet(peer);
            }
        }
    }

    fn look(&self, each: &mut dyn FnMut(News)) -> Result<(), DeviceError> {
        self.doorbell.rang(|id| match id {
            LISTENER => self.accept(),
            id => {
                if let Some(peer) = self.listen(id) {
                    each(News::Left(peer));
                }
            }
        })
    }

    fn doorbell(&self) -> BorrowedFd<'_> {
        self.doorbell.as_fd()
    }

    fn is_dead(&self, peer: Tag) -> bool {
        self.room.is_dead(peer) || self.meet(peer) == Err(Unmet::Dead)
    }
}

fn is_own_user(socket: &PeerSocket) -> bool {
    let own = geteuid().as_raw();
    Credentials::of_peer(&socket.as_fd()).is_ok_and(|peer| peer.uid == own)
}

const SAY: SendFlags = SendFlags::NOSIGNAL.union(SendFlags::DONTWAIT);
/// The id of the listener; connections have larger ones.
const LISTENER: u64 = 0;
/// What others can do without end must not hold the driver; the rest is done next time.
const MAX_ACCEPTS: usize = 256;
const MAX_MESSAGES: usize = 4096;
/// Connections of those who have not said who they are.
const MAX_STRANGERS: usize = 64;
