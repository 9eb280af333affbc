//! The file fabric: devices of processes that share a directory.
//!
//! ```text
//! lock      locked while a device joins
//! memory    the shared memory
//! 0.sock    listening socket of the device of slot 0; and so on
//! ```
//!
//! A device connects to each peer that it communicates with. Either side may send a byte on the
//! connection as a doorbell; end of file means that the peer is gone. A socket that refuses
//! connections belongs to a process that has ended.

mod files;
mod hello;

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::{Arc, OnceLock};

use hashbrown::HashMap;
use rustix::io::Errno;
use smc_core::device::DeviceError;
use smc_core::mutex::Mutex;
use smc_ipc::Credentials;
use smc_ipc::channel::{self, Received, send};
use smc_ipc::doorbell::Doorbell;
use smc_ipc::passed::PeerSocket;
use smc_ipc::runtime_dir::Publication;

use super::{ConnectError, FabricOps};
use crate::region::os_at;
use crate::shared::{FabricMemory, FabricOptions, Tag};
use files::Files;
use hello::Hello;

/// One device's end of a file fabric.
#[derive(Debug)]
pub(crate) struct Directory {
    memory: Arc<FabricMemory>,
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
    /// By slot, the last peer whose connection was closed for the next device there, until it is
    /// reported.
    replaced: HashMap<u16, Tag>,
}

#[derive(Debug)]
struct Conn {
    socket: Arc<PeerSocket>,
    /// `None` until the hello of an accepted connection has arrived.
    peer: Option<Tag>,
    is_accepted: bool,
}

impl Directory {
    /// Opens a directory, and creates it and its memory if necessary.
    pub(crate) fn open(
        path: &Path,
        len: usize,
        options: FabricOptions,
    ) -> Result<(Self, u16), DeviceError> {
        let files = Files::open(path)?;
        let lock = files.lock()?;
        let memory = Arc::new(files.memory(len, options)?);
        let (slot, publication) = files.take_slot(memory.slots())?;
        drop(lock);
        let doorbell = Doorbell::new()?;
        doorbell.set().watch(publication.epoll_fd(), LISTENER)?;
        let directory = Self {
            memory,
            files,
            publication: Mutex::new(publication),
            doorbell,
            own: OnceLock::new(),
            conns: Mutex::default(),
        };
        Ok((directory, slot))
    }

    /// Accepts pending connections.
    fn accept(&self) {
        self.publication.lock().handle_events();
        let accept = || self.publication.lock().accept();
        for _ in 0..MAX_ACCEPTS {
            match accept() {
                Ok(socket) => self.admit(socket),
                Err(Errno::INTR | Errno::CONNABORTED | Errno::MFILE | Errno::NFILE) => {}
                Err(_) => return,
            }
        }
        self.doorbell.notify_self();
    }

    fn admit(&self, socket: PeerSocket) {
        if !is_own_user(&socket) {
            return;
        }
        let mut conns = self.conns.lock();
        let unidentified = conns.by_id.values().filter(|conn| conn.peer.is_none());
        if unidentified.count() >= MAX_UNIDENTIFIED {
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
        let socket = Arc::new(socket);
        self.doorbell.set().watch(&socket, id)?;
        let is_accepted = peer.is_none();
        let conn = Conn {
            socket,
            peer,
            is_accepted,
        };
        conns.by_id.insert(id, conn);
        Ok(())
    }

    /// Handles the input of a connection, at most so many messages. Returns the peer if it has
    /// ended.
    fn handle_input(&self, id: u64, limit: usize) -> Option<Tag> {
        let mut conns = self.conns.lock();
        for _ in 0..limit {
            let conn = conns.by_id.get_mut(&id)?;
            let mut bytes = [0; hello::LEN];
            match channel::receive(&conn.socket, &mut bytes, 0) {
                Received::Nothing => return None,
                Received::Packet([_], _) if conn.peer.is_some() => {}
                Received::Packet(packet, _) if conn.peer.is_none() => {
                    let hello = Hello::parse(packet);
                    let known = hello.filter(|hello| {
                        hello.fabric == self.memory.fabric && self.memory.has_slot(hello.from.slot)
                    });
                    let Some(peer) = known.map(|hello| hello.from) else {
                        return self.close(&mut conns, id);
                    };
                    return self.identify(&mut conns, id, peer);
                }
                // End of file, an error, or a message that no device sends.
                _ => return self.close(&mut conns, id),
            }
        }
        self.doorbell.notify_self();
        None
    }

    /// An accepted connection is that of this peer. Each slot has one: it takes the place of one of
    /// a device that is no longer there, which is returned if it has ended by that.
    fn identify(&self, conns: &mut Conns, id: u64, peer: Tag) -> Option<Tag> {
        // What follows the hello is read in the next pass.
        self.doorbell.notify_self();
        let ended = match conns.of_slot(peer.slot, true) {
            Some((_, other)) if self.memory.is_live(other) => return self.close(conns, id),
            Some((other, _)) => self.close(conns, other),
            None => None,
        };
        if let Some(conn) = conns.by_id.get_mut(&id) {
            conn.peer = Some(peer);
        }
        ended.filter(|ended| *ended != peer)
    }

    /// Closes the connection that this device has opened to an earlier device of the slot of
    /// `peer`: each slot has one.
    fn close_earlier(&self, conns: &mut Conns, peer: Tag) -> Result<(), ConnectError> {
        let Some((id, earlier)) = conns.of_slot(peer.slot, false) else {
            return Ok(());
        };
        if self.memory.is_live(earlier) {
            return Err(ConnectError::Dead);
        }
        let ended = self.close(conns, id);
        conns
            .replaced
            .extend(ended.map(|ended| (ended.slot, ended)));
        self.doorbell.notify_self();
        Ok(())
    }

    /// Closes a connection. Returns the peer unless there is another connection to it.
    fn close(&self, conns: &mut Conns, id: u64) -> Option<Tag> {
        let conn = conns.by_id.remove(&id)?;
        self.doorbell.set().unwatch(&conn.socket);
        // Two devices that connect to each other at the same time have two connections, and
        // close both when they end.
        conn.peer.filter(|peer| conns.to(*peer).is_none())
    }
}

impl Conns {
    /// A connection to a peer.
    fn to(&self, peer: Tag) -> Option<&Conn> {
        let mut conns = self.by_id.values();
        conns.find(|conn| conn.peer == Some(peer))
    }

    /// The connection with a device of a slot that this device has accepted, or opened.
    fn of_slot(&self, slot: u16, is_accepted: bool) -> Option<(u64, Tag)> {
        let mut conns = self.by_id.iter();
        conns.find_map(|(id, conn)| {
            let peer = conn.peer.filter(|peer| peer.slot == slot)?;
            (conn.is_accepted == is_accepted).then_some((*id, peer))
        })
    }
}

impl FabricOps for Directory {
    fn memory(&self) -> &Arc<FabricMemory> {
        &self.memory
    }

    fn joined(&self, tag: Tag) {
        let _ = self.own.set(tag);
    }

    fn connect_peer(&self, peer: Tag) -> Result<(), ConnectError> {
        let not_joined = DeviceError::Gone("the device has not joined");
        let own = self.own.get().ok_or(not_joined)?;
        if peer == *own {
            return Ok(());
        }
        // Locked until the peer is inserted, so that this device opens one connection per peer.
        let mut conns = self.conns.lock();
        if conns.to(peer).is_some() {
            return Ok(());
        }
        self.close_earlier(&mut conns, peer)?;
        let path = self.files.socket_path(peer.slot);
        let socket = self.files.connect(peer.slot);
        let socket = socket.map_err(|error| match error {
            Errno::NOENT | Errno::CONNREFUSED => ConnectError::Dead,
            Errno::AGAIN => ConnectError::Busy,
            error => os_at("connect to peer", &path, error).into(),
        })?;
        if !is_own_user(&socket) {
            let path = path.display();
            let why = format!("the peer device of {path} belongs to another user");
            return Err(DeviceError::NotPermitted(why.into()).into());
        }
        let hello = Hello {
            from: *own,
            fabric: self.memory.fabric,
        };
        let sent = send(&socket, &hello.to_bytes(), &[]);
        sent.map_err(|error| match error {
            Errno::PIPE | Errno::CONNRESET => ConnectError::Dead,
            error => os_at("send hello to peer", &path, error).into(),
        })?;
        Ok(self.add(&mut conns, socket, Some(peer))?)
    }

    fn notify(&self, peer: Tag) {
        if self.own.get() == Some(&peer) {
            self.doorbell.notify_self();
            return;
        }
        let conns = self.conns.lock();
        match conns.to(peer) {
            // A full socket wakes the peer anyway; after an error the peer closes the connection
            // soon, which is detected.
            Some(conn) => {
                let _ = send(&conn.socket, &[0], &[]);
            }
            None => {
                drop(conns);
                // The hello wakes the peer.
                let _ = self.connect_peer(peer);
            }
        }
    }

    fn poll_events(&self, each: &mut dyn FnMut(Tag)) -> Result<(), DeviceError> {
        let replaced = std::mem::take(&mut self.conns.lock().replaced);
        replaced.into_values().for_each(&mut *each);
        let doorbell = &self.doorbell;
        // The driver was woken if there is more.
        let _more = doorbell.poll_round(doorbell.set(), |id, _, share| match id {
            LISTENER => self.accept(),
            id => {
                if let Some(peer) = self.handle_input(id, share) {
                    each(peer);
                }
            }
        })?;
        Ok(())
    }

    fn doorbell(&self) -> BorrowedFd<'_> {
        self.doorbell.as_fd()
    }

    fn is_dead(&self, peer: Tag) -> bool {
        self.memory.is_dead(peer) || self.connect_peer(peer) == Err(ConnectError::Dead)
    }
}

fn is_own_user(socket: &PeerSocket) -> bool {
    Credentials::of_peer(socket).is_ok_and(|peer| smc_ipc::is_own_user(peer.uid))
}

/// The id of the listener; connections have larger ones.
const LISTENER: u64 = 0;
/// Connections that peers can make without end must not occupy the driver; the rest is handled by
/// the next call.
const MAX_ACCEPTS: usize = 32;
/// Accepted connections whose hello is missing.
const MAX_UNIDENTIFIED: usize = 64;
