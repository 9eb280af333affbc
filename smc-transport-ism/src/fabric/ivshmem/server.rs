//! The server: makes the memory and tells machines and processes of each other.

mod send_queue;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{fstat, lstat, unlink};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, listen, socket_with,
};
use smc_core::device::DeviceError;
use smc_core::io::negotiate::passed::{Listener, PeerSocket, Reserve};
use smc_core::io::negotiate::runtime_dir::bind_with_mode;

use self::send_queue::Outbox;
use super::{BEAT, SILENCE, protocol, slot_of};
use crate::fabric::doorbell::new_eventfd;
use crate::fabric::notifier::Ringer;
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
    listener: Named,
    memory: Arc<OwnedFd>,
    room: Room,
    stop: OwnedFd,
    ringer: Ringer,
    reserve: Mutex<Reserve>,
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
    outbox: Outbox,
    eventfd: Arc<OwnedFd>,
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
        let reserve = Reserve::new().map_err(|error| DeviceError::os("make eventfd", &error))?;
        Ok(Server {
            listener: Named::listen(self.path, self.mode)?,
            memory: Arc::new(memory),
            room,
            stop: new_eventfd()?,
            ringer: Ringer::new()?,
            reserve: Mutex::new(reserve),
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
        &self.listener.path
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
                self.tell_again();
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
            .map(|(slot, client)| {
                let flags = match client.outbox.is_full() {
                    true => PollFlags::IN | PollFlags::OUT,
                    false => PollFlags::IN,
                };
                (*slot, Arc::clone(client.outbox.socket()), flags)
            })
            .collect();
        drop(clients);
        let come = if can_accept {
            PollFlags::IN
        } else {
            PollFlags::empty()
        };
        let mut fds = vec![
            PollFd::new(&self.stop, PollFlags::IN),
            PollFd::new(&self.listener.socket, come),
        ];
        let each = sockets.iter();
        fds.extend(each.map(|(_, socket, flags)| PollFd::new(&**socket, *flags)));
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
        // Clients have nothing to say: what comes is the end, or what would ring until it is read.
        let mut ended = Vec::new();
        let mut clients = lock(&self.clients);
        for ((slot, ..), fd) in sockets.iter().zip(&fds[2..]) {
            if fd.revents() == PollFlags::OUT {
                clients.tell(*slot);
            } else if has_rung(fd) {
                ended.push(*slot);
            }
        }
        Ok(Woken::For {
            is_new: has_rung(&fds[1]),
            ended,
        })
    }

    /// Accepts those who connected. Returns whether it is of use to try again soon.
    fn accept(&self) -> bool {
        for _ in 0..MAX_ACCEPTS {
            match lock(&self.reserve).accept(&self.listener.socket) {
                // Closed if there is no room for it: QEMU says that the server sent nothing.
                Ok(socket) => drop(self.admit(socket)),
                Err(refused) if refused.errno == Errno::AGAIN => return true,
                Err(refused) if refused.is_waiting => return false,
                Err(_) => {}
            }
        }
        true
    }

    fn admit(&self, socket: PeerSocket) -> Result<(), DeviceError> {
        let mut clients = lock(&self.clients);
        let (port, slot) = clients.number(&self.room).ok_or(DeviceError::Exhausted)?;
        clients.next = u32::from(port) + 1;
        let eventfd = Arc::new(new_eventfd()?);
        let failed = |error| os("greet client", error);
        let own = i64::from(port);
        let mut outbox = Outbox::new(socket).map_err(failed)?;
        outbox.push(protocol::VERSION, None);
        outbox.push(own, None);
        outbox.push(protocol::MEMORY, Some(&self.memory));
        for client in clients.by_slot.values() {
            outbox.push(client.port.into(), Some(&client.eventfd));
        }
        outbox.flush().map_err(failed)?;
        for client in clients.by_slot.values_mut() {
            client.outbox.push(own, Some(&eventfd));
            let _ = client.outbox.flush();
        }
        // Last, so that others that read know of it before it is seen in the memory.
        outbox.push(own, Some(&eventfd));
        if let Err(error) = outbox.flush() {
            clients.tell_left(port);
            return Err(failed(error));
        }
        let client = Client {
            port,
            outbox,
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
        clients.tell_left(gone.port);
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

    /// Tells clients what could not be sent before, for whatever reason.
    fn tell_again(&self) {
        for client in lock(&self.clients).by_slot.values_mut() {
            let _ = client.outbox.flush();
        }
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
    /// Sends what a client is yet to be told. One that is gone is noticed in another way.
    fn tell(&mut self, slot: u16) {
        if let Some(client) = self.by_slot.get_mut(&slot) {
            let _ = client.outbox.flush();
        }
    }

    fn tell_left(&mut self, port: u16) {
        for client in self.by_slot.values_mut() {
            client.outbox.push_left(port);
            let _ = client.outbox.flush();
        }
    }

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
    }
}

enum Woken {
    Stopped,
    For { is_new: bool, ended: Vec<u16> },
}

/// A listening socket and its name, which goes with it.
#[derive(Debug)]
struct Named {
    socket: Listener,
    path: PathBuf,
    /// Device and number of the inode, which no other one gets while the socket is open.
    inode: (u64, u64),
}

impl Named {
    fn listen(path: PathBuf, mode: u32) -> Result<Self, DeviceError> {
        let failed = |error| os_at("listen for ivshmem clients at", &path, error);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let stream = || socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let address = SocketAddrUnix::new(&path).map_err(failed)?;
        match connect(stream().map_err(failed)?, &address) {
            Err(Errno::NOENT) => {}
            Err(Errno::CONNREFUSED) => unlink(&path).map_err(failed)?,
            _ => {
                let why = format!("a server listens at {} already", path.display());
                return Err(DeviceError::NotPermitted(why.into()));
            }
        }
        let socket = stream().map_err(failed)?;
        // Connections are refused before it listens.
        let file = bind_with_mode(&socket, &path, mode).map_err(failed)?;
        let stat = fstat(&file).map_err(failed)?;
        let named = Self {
            socket: socket.into(),
            inode: (stat.st_dev, stat.st_ino),
            path,
        };
        let listening = listen(&named.socket, 64);
        listening.map_err(|error| os_at("listen for ivshmem clients at", &named.path, error))?;
        Ok(named)
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        // Another server may have taken its place.
        let stat = lstat(&self.path);
        if stat.is_ok_and(|stat| (stat.st_dev, stat.st_ino) == self.inode) {
            let _ = unlink(&self.path);
        }
    }
}

/// Connections that are accepted before clients that went are looked at.
const MAX_ACCEPTS: usize = 64;

#[cfg(test)]
mod tests;
