//! The server: makes the memory and tells machines and processes of each other.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::unlink;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, connect,
    listen, recv, socket_with,
};
use smc_core::device::DeviceError;
use smc_core::io::negotiate::runtime_dir::bind_with_mode;

use super::{BEAT, SILENCE, protocol, slot_of};
use crate::fabric::doorbell::new_eventfd;
use crate::fabric::ringer::Ringer;
use crate::lock;
use crate::region::{map, memory_file, os, os_at};
use crate::shared::{Phase, Plan, Room, Sleep, Tag};

/// The server of an ivshmem fabric, for QEMU (`ivshmem-doorbell`) and processes of the host.
///
/// It makes the memory, sealed so that it keeps its length, and tells its clients of each other. It
/// is also who notices the end of a client and says so in the memory, for guests hear of it there
/// only. The server is not a device itself; a process can have both.
///
/// When it is dropped, the fabric ends: all devices report it at once, and new ones need a new
/// server. Of one whose process was killed, devices of guests report it after 15 seconds. QEMU goes
/// on with the old memory until its machine is started anew.
///
/// QEMU crashes when the number of a client that went is given to another one, so each of the 65,536
/// numbers is used once while anybody is connected; then nobody else is let in. It takes two
/// descriptors for each client; without any left, connections are closed.
///
/// Whoever can connect to the socket can read and write all of the memory.
#[derive(Debug)]
pub struct Server {
    path: PathBuf,
    listener: OwnedFd,
    memory: OwnedFd,
    room: Room,
    stop: OwnedFd,
    ringer: Ringer,
    /// Given up to close a connection for which there is no descriptor.
    reserve: Mutex<Option<OwnedFd>>,
    clients: Mutex<Clients>,
}

#[derive(Debug, Default)]
struct Clients {
    by_slot: HashMap<u16, Client>,
    /// Smaller numbers were given before.
    next: u32,
}

/// Options of a [`Server`]; see [`Server::builder`].
#[derive(Clone, Debug)]
pub struct ServerBuilder {
    path: PathBuf,
    len: usize,
    plan: Plan,
    mode: u32,
}

#[derive(Debug)]
struct Client {
    /// Its number.
    port: u16,
    socket: Arc<OwnedFd>,
    eventfd: OwnedFd,
    /// The device there, its last beat, and when it came.
    beat: (Option<Tag>, u64, Instant),
    /// At the last look somebody was about to ring it.
    is_rung: bool,
}

impl ServerBuilder {
    /// Length of the memory in bytes; 64 MiB if not given. QEMU wants a power of two.
    #[must_use]
    pub fn len(mut self, bytes: usize) -> Self {
        self.len = bytes;
        self
    }

    /// How many clients there can be, up to 1024; 64 if not given.
    #[must_use]
    pub fn devices(mut self, devices: u16) -> Self {
        self.plan.slots = devices;
        self
    }

    /// Whether devices write in place in their peers' buffers; false if not given.
    #[must_use]
    pub fn nocopy(mut self, on: bool) -> Self {
        self.plan.nocopy = on;
        self
    }

    /// Permissions of the socket; 0600 if not given.
    #[must_use]
    pub fn mode(mut self, mode: u32) -> Self {
        self.mode = mode;
        self
    }

    /// Makes the memory and listens.
    ///
    /// A socket that a server left behind is replaced.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Invalid`] for a length or number that makes no sense,
    /// [`DeviceError::NotPermitted`] when another server listens there, else what the system
    /// refused.
    pub fn bind(self) -> Result<Server, DeviceError> {
        if !self.len.is_power_of_two() {
            return Err(DeviceError::Invalid(
                "length of the memory is no power of two",
            ));
        }
        let memory = memory_file(self.len)?;
        let room = Room::make(map(&memory, 0, self.len)?, self.plan)?;
        Ok(Server {
            listener: listener(&self.path, self.mode)?,
            path: self.path,
            memory,
            room,
            stop: new_eventfd()?,
            ringer: Ringer::new()?,
            reserve: Mutex::new(Some(new_eventfd()?)),
            clients: Mutex::default(),
        })
    }
}

impl Server {
    /// Options for a server that listens at this path.
    #[must_use]
    pub fn builder(path: impl Into<PathBuf>) -> ServerBuilder {
        ServerBuilder {
            path: path.into(),
            len: crate::fabric::place::LEN,
            plan: Plan {
                slots: crate::fabric::place::SLOTS,
                nocopy: false,
            },
            mode: 0o600,
        }
    }

    /// Where it listens.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The random number of the fabric.
    #[must_use]
    pub fn fabric_id(&self) -> u128 {
        self.room.fabric()
    }

    /// Number of machines and processes that are connected.
    #[must_use]
    pub fn clients(&self) -> usize {
        lock(&self.clients).by_slot.len()
    }

    /// Number of devices that are in use.
    #[must_use]
    pub fn devices(&self) -> usize {
        self.room.live().count()
    }

    /// Serves until [`Server::stop`] is called. Blocks the thread.
    ///
    /// # Errors
    ///
    /// When the system cannot wait for clients.
    pub fn run(&self) -> Result<(), DeviceError> {
        let mut next_beat = Instant::now();
        let mut can_accept = true;
        loop {
            let now = Instant::now();
            if now >= next_beat {
                next_beat = now + BEAT;
                can_accept = true;
                self.room.beat_keeper();
                self.bury_silent(now);
                self.ring_again();
            }
            let left = next_beat.saturating_duration_since(now);
            match self.wait(left, can_accept)? {
                Woken::Stopped => return Ok(()),
                Woken::For { is_new, ended } => {
                    ended.into_iter().for_each(|slot| self.dismiss(slot));
                    if is_new {
                        can_accept = self.accept();
                    }
                }
            }
        }
    }

    /// Has [`Server::run`] return, on whatever thread it is.
    pub fn stop(&self) {
        let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
    }

    /// Waits for clients that go and, if they can be accepted, for those that come.
    fn wait(&self, time: Duration, can_accept: bool) -> Result<Woken, DeviceError> {
        let clients = lock(&self.clients);
        let sockets: Vec<_> = clients
            .by_slot
            .iter()
            .map(|(slot, client)| (*slot, Arc::clone(&client.socket)))
            .collect();
        drop(clients);
        let come = if can_accept {
            PollFlags::IN
        } else {
            PollFlags::empty()
        };
        let mut fds = vec![
            PollFd::new(&self.stop, PollFlags::IN),
            PollFd::new(&self.listener, come),
        ];
        let sockets_of = sockets.iter().map(|(_, socket)| &**socket);
        fds.extend(sockets_of.map(|socket| PollFd::new(socket, PollFlags::IN)));
        let time = Timespec::try_from(time).unwrap_or(Timespec {
            tv_sec: 1,
            tv_nsec: 0,
        });
        match poll(&mut fds, Some(&time)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(os("wait for clients", error)),
        }
        let has_rung = |fd: &PollFd<'_>| !fd.revents().is_empty();
        if has_rung(&fds[0]) {
            return Ok(Woken::Stopped);
        }
        let ended = sockets.iter().zip(&fds[2..]);
        let ended = ended.filter(|((_, socket), fd)| has_rung(fd) && has_ended(socket));
        Ok(Woken::For {
            is_new: has_rung(&fds[1]),
            ended: ended.map(|((slot, _), _)| *slot).collect(),
        })
    }

    /// Accepts those who connected. Returns whether it is of use to try again soon.
    fn accept(&self) -> bool {
        for _ in 0..MAX_ACCEPTS {
            match accept_with(&self.listener, CLIENT_FLAGS) {
                // Closed if there is no room for it: QEMU says that the server sent nothing.
                Ok(socket) => drop(self.admit(socket)),
                Err(Errno::AGAIN) => return true,
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::MFILE | Errno::NFILE) if self.turn_away() => {}
                // Others stay in the queue until there is memory, or a descriptor.
                Err(_) => return false,
            }
        }
        true
    }

    /// Closes the next connection, for which there is no descriptor but the reserve. Returns whether
    /// that can be done again.
    fn turn_away(&self) -> bool {
        let mut reserve = lock(&self.reserve);
        drop(reserve.take());
        drop(accept_with(&self.listener, CLIENT_FLAGS));
        *reserve = new_eventfd().ok();
        reserve.is_some()
    }

    fn admit(&self, socket: OwnedFd) -> Result<(), DeviceError> {
        let mut clients = lock(&self.clients);
        let (port, slot) = clients.number(&self.room).ok_or(DeviceError::Exhausted)?;
        clients.next = u32::from(port) + 1;
        let eventfd = new_eventfd()?;
        let failed = |error| os("greet client", error);
        let own = i64::from(port);
        protocol::send(&socket, protocol::VERSION, None).map_err(failed)?;
        protocol::send(&socket, own, None).map_err(failed)?;
        let memory = Some(self.memory.as_fd());
        protocol::send(&socket, protocol::MEMORY, memory).map_err(failed)?;
        for client in clients.by_slot.values() {
            let fd = Some(client.eventfd.as_fd());
            protocol::send(&socket, client.port.into(), fd).map_err(failed)?;
        }
        for client in clients.by_slot.values() {
            // Who has no room for it does not read, and is thrown out when it next matters.
            let _ = protocol::send(&client.socket, own, Some(eventfd.as_fd()));
        }
        // Last, so that others know of the newcomer before it is seen in the memory.
        if let Err(error) = protocol::send(&socket, own, Some(eventfd.as_fd())) {
            for client in clients.by_slot.values() {
                let _ = protocol::send(&client.socket, own, None);
            }
            return Err(failed(error));
        }
        let client = Client {
            port,
            socket: Arc::new(socket),
            eventfd,
            beat: (None, 0, Instant::now()),
            is_rung: false,
        };
        clients.by_slot.insert(slot, client);
        Ok(())
    }

    fn dismiss(&self, slot: u16) {
        let mut clients = lock(&self.clients);
        let Some(gone) = clients.by_slot.remove(&slot) else {
            return;
        };
        if let Some((tag, _)) = self.room.occupant(slot) {
            self.bury(tag, &clients);
        }
        for client in clients.by_slot.values() {
            let _ = protocol::send(&client.socket, gone.port.into(), None);
        }
    }

    /// Counts devices as dead that used to show that they are alive and no longer do.
    fn bury_silent(&self, now: Instant) {
        let mut clients = lock(&self.clients);
        let mut silent = Vec::new();
        for (slot, client) in &mut clients.by_slot {
            let beat = self.room.beat_of(*slot);
            let Some((tag, Phase::Live | Phase::Leaving)) = self.room.occupant(*slot) else {
                continue;
            };
            // Another device there starts to count anew, and may do so with the same number.
            if (client.beat.0, client.beat.1) != (Some(tag), beat) {
                client.beat = (Some(tag), beat, now);
            }
            if beat != 0 && now.duration_since(client.beat.2) > SILENCE {
                silent.push(tag);
            }
        }
        for tag in silent {
            self.bury(tag, &clients);
        }
    }

    fn bury(&self, tag: Tag, clients: &Clients) {
        if !self.room.bury(tag) {
            return;
        }
        self.ring_all(clients);
    }

    /// Rings devices for which somebody wanted to do that and did not: it was killed before, or its
    /// QEMU had not heard yet of the device. Nobody else does it then.
    fn ring_again(&self) {
        for (slot, client) in &mut lock(&self.clients).by_slot {
            let is_rung = self.room.sleep_of(*slot) == Sleep::Rung;
            if std::mem::replace(&mut client.is_rung, is_rung) && is_rung {
                self.ringer.ring(&client.eventfd);
            }
        }
    }

    /// Has all devices look who is there.
    fn ring_all(&self, clients: &Clients) {
        for other in self.room.live() {
            self.room.ask_to_look(other.slot);
            if let Some(client) = clients.by_slot.get(&other.slot) {
                // Who wanted to ring it may be the one that is dead.
                if self.room.must_ring(other.slot) || self.room.sleep_of(other.slot) == Sleep::Rung
                {
                    self.ringer.ring(&client.eventfd);
                }
            }
        }
    }
}

impl Clients {
    /// A number that was not given before, or that nobody who is there has heard of, and its slot.
    fn number(&mut self, room: &Room) -> Option<(u16, u16)> {
        if self.by_slot.is_empty() {
            self.next = 0;
        }
        let ports = (self.next..=u16::MAX.into()).take(room.slots().into());
        ports
            .filter_map(|port| u16::try_from(port).ok())
            .map(|port| (port, slot_of(room, port)))
            .find(|(_, slot)| !self.by_slot.contains_key(slot))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Guests see nothing of the connections that close.
        self.room.end_keeper();
        self.ring_all(&lock(&self.clients));
        let _ = unlink(&self.path);
    }
}

enum Woken {
    Stopped,
    For { is_new: bool, ended: Vec<u16> },
}

/// Clients have nothing to say, so all that can come is the end.
fn has_ended(socket: &OwnedFd) -> bool {
    let mut buf = [0; 64];
    match recv(socket, &mut buf[..], RecvFlags::DONTWAIT) {
        Ok((0, _)) => true,
        Ok(_) | Err(Errno::AGAIN | Errno::INTR) => false,
        Err(_) => true,
    }
}

fn listener(path: &Path, mode: u32) -> Result<OwnedFd, DeviceError> {
    let failed = |error| os_at("listen for ivshmem clients at", path, error);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let stream = || socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    let address = SocketAddrUnix::new(path).map_err(failed)?;
    match connect(stream().map_err(failed)?, &address) {
        Err(Errno::NOENT) => {}
        Err(Errno::CONNREFUSED) => unlink(path).map_err(failed)?,
        _ => {
            let why = format!("a server listens at {} already", path.display());
            return Err(DeviceError::NotPermitted(why.into()));
        }
    }
    let listener = stream().map_err(failed)?;
    // Nobody can connect before it listens.
    bind_with_mode(&listener, path, mode).map_err(failed)?;
    listen(&listener, 64).map_err(failed)?;
    Ok(listener)
}

const CLIENT_FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);
/// Connections that are accepted before clients that went are looked at.
const MAX_ACCEPTS: usize = 64;

#[cfg(test)]
mod tests;
