//! The server: creates the memory and announces machines and processes to each other.

mod numbers;
mod send_queue;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, fstat, lstat, unlink};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, listen, socket_with,
};
use smc_core::device::DeviceError;
use smc_core::mutex::Mutex;
use smc_ipc::Credentials;
use smc_ipc::doorbell::new_eventfd;
use smc_ipc::passed::{Listener, PeerFile, PeerSocket, Reserve};
use smc_ipc::runtime_dir::bind_with_mode;

use self::numbers::Numbers;
use self::send_queue::SendQueue;
use super::{HEARTBEAT_INTERVAL, HEARTBEAT_TIMEOUT, protocol};
use crate::fabric::notifier::EventfdNotifier;
use crate::region::{map, memory_file, os, os_at};
use crate::shared::{FabricMemory, FabricOptions, Phase, Sleep, Tag};

/// The server of an ivshmem fabric, for QEMU (`ivshmem-doorbell`) and processes of the host.
///
/// It creates the memory, sealed so that it keeps its length, and announces its clients to each
/// other. It also detects the end of a client and marks it in the memory, which is the only way to
/// inform guests. The server is not a device itself; a process can have both.
///
/// When it is dropped, the fabric ends: all devices report it at once, and new ones need a new
/// server. If its process is killed, devices of guests report it after 15 seconds. QEMU continues
/// to use the old memory until its machine is restarted.
///
/// QEMU crashes when the number of a client that has left is assigned to another one, so each of
/// the 65,536 numbers is used once while any client is connected; then new clients are rejected. In
/// each slot a quarter of the numbers is reserved for processes of the server's user and of root;
/// of the rest, one user has no more than are left. The server uses two descriptors for each
/// client; without free ones, connections are closed.
///
/// Every process that can connect to the socket can read and write all of the memory.
#[derive(Debug)]
pub struct Server {
    listener: BoundSocket,
    memory_file: Arc<OwnedFd>,
    memory: FabricMemory,
    stop: OwnedFd,
    notifier: EventfdNotifier,
    reserve: Mutex<Reserve>,
    clients: Mutex<Clients>,
}

#[derive(Debug)]
struct Clients {
    by_slot: HashMap<u16, ConnectedClient>,
    numbers: Numbers,
}

/// Options of a [`Server`]; see [`Server::builder`].
#[derive(Clone, Debug)]
pub struct ServerBuilder {
    path: PathBuf,
    len: usize,
    options: FabricOptions,
    mode: u32,
}

#[derive(Debug)]
struct ConnectedClient {
    /// Its number.
    port: u16,
    queue: SendQueue,
    /// All clients have it.
    eventfd: Arc<PeerFile>,
    /// The device of the client, its last heartbeat, and the time of that.
    heartbeat: (Option<Tag>, u64, Instant),
    /// At the last check it was marked as notified.
    was_notified: bool,
}

impl ServerBuilder {
    /// Length of the memory in bytes; 64 MiB if not given. QEMU requires a power of two.
    #[must_use]
    pub fn len(mut self, bytes: usize) -> Self {
        self.len = bytes;
        self
    }

    /// How many clients there can be, up to 1024; 64 if not given.
    #[must_use]
    pub fn devices(mut self, devices: u16) -> Self {
        self.options.slots = devices;
        self
    }

    /// Whether devices write in place in their peers' buffers; false if not given.
    #[must_use]
    pub fn nocopy(mut self, on: bool) -> Self {
        self.options.nocopy = on;
        self
    }

    /// Permissions of the socket; 0600 if not given.
    #[must_use]
    pub fn mode(mut self, mode: u32) -> Self {
        self.mode = mode;
        self
    }

    /// Creates the memory and listens.
    ///
    /// A stale socket of an earlier server is replaced.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Invalid`] for an invalid length or number,
    /// [`DeviceError::NotPermitted`] when another server listens there, else the error of the
    /// system call.
    pub fn bind(self) -> Result<Server, DeviceError> {
        if !self.len.is_power_of_two() {
            return Err(DeviceError::Invalid(
                "length of the memory is no power of two",
            ));
        }
        let memory_file = memory_file(self.len)?;
        let memory = FabricMemory::create(map(&memory_file, 0, self.len)?, self.options)?;
        let reserve = Reserve::new().map_err(|error| DeviceError::os("make eventfd", &error))?;
        let clients = Clients {
            by_slot: HashMap::new(),
            numbers: Numbers::new(memory.slots(), Credentials::own().uid),
        };
        Ok(Server {
            listener: BoundSocket::listen(self.path, self.mode)?,
            memory_file: Arc::new(memory_file),
            memory,
            stop: new_eventfd()?,
            notifier: EventfdNotifier::new()?,
            reserve: Mutex::new(reserve),
            clients: Mutex::new(clients),
        })
    }
}

impl Server {
    /// Options for a server that listens at this path.
    #[must_use]
    pub fn builder(path: impl Into<PathBuf>) -> ServerBuilder {
        ServerBuilder {
            path: path.into(),
            len: crate::fabric::address::LEN,
            options: FabricOptions::default(),
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
        self.memory.fabric
    }

    /// Number of machines and processes that are connected.
    #[must_use]
    pub fn clients(&self) -> usize {
        self.clients.lock().by_slot.len()
    }

    /// Number of devices that are in use.
    #[must_use]
    pub fn devices(&self) -> usize {
        self.memory.live().count()
    }

    /// Serves until [`Server::stop`] is called. Blocks the thread.
    ///
    /// # Errors
    ///
    /// When `poll(2)` fails.
    pub fn run(&self) -> Result<(), DeviceError> {
        let mut next_heartbeat = Instant::now();
        let mut can_accept = true;
        loop {
            let now = Instant::now();
            if now >= next_heartbeat {
                next_heartbeat = now + HEARTBEAT_INTERVAL;
                can_accept = true;
                self.memory.bump_server_heartbeat();
                self.mark_silent_dead(now);
                self.retry_notifications();
                self.flush_clients();
            }
            let left = next_heartbeat.saturating_duration_since(now);
            match self.wait(left, can_accept)? {
                Wakeup::Stopped => return Ok(()),
                Wakeup::For { is_new, ended } => {
                    ended.into_iter().for_each(|slot| self.remove_client(slot));
                    if is_new {
                        can_accept = self.accept();
                    }
                }
            }
        }
    }

    /// Makes [`Server::run`] return, on any thread.
    pub fn stop(&self) {
        let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
    }

    /// Waits for clients that leave and, if `can_accept`, for new connections.
    fn wait(&self, time: Duration, can_accept: bool) -> Result<Wakeup, DeviceError> {
        let clients = self.clients.lock();
        let sockets: Vec<_> = clients
            .by_slot
            .iter()
            .map(|(slot, client)| {
                let flags = match client.queue.is_full {
                    true => PollFlags::IN | PollFlags::OUT,
                    false => PollFlags::IN,
                };
                (*slot, Arc::clone(&client.queue.socket), flags)
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
        let is_ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
        if is_ready(&fds[0]) {
            return Ok(Wakeup::Stopped);
        }
        // Clients send nothing: input is end of file, or data that would keep the socket readable.
        let mut ended = Vec::new();
        let mut clients = self.clients.lock();
        for ((slot, ..), fd) in sockets.iter().zip(&fds[2..]) {
            if fd.revents() == PollFlags::OUT {
                // The end of a client is detected by the next call.
                if let Some(client) = clients.by_slot.get_mut(slot) {
                    let _ = client.queue.flush();
                }
            } else if is_ready(fd) {
                ended.push(*slot);
            }
        }
        Ok(Wakeup::For {
            is_new: is_ready(&fds[1]),
            ended,
        })
    }

    /// Accepts pending connections. Returns whether a new attempt soon can succeed.
    fn accept(&self) -> bool {
        for _ in 0..MAX_ACCEPTS {
            // The mode of the socket decides who may connect.
            match self
                .reserve
                .lock()
                .accept(&self.listener.socket, |_| true, |_| Vec::new())
            {
                // Closed if there is no free slot: QEMU reports that the server sent nothing.
                Ok(socket) => drop(self.admit(socket)),
                Err(refused) if refused.errno == Errno::AGAIN => return true,
                Err(refused) if refused.is_waiting => return false,
                Err(_) => {}
            }
        }
        true
    }

    fn admit(&self, socket: PeerSocket) -> Result<(), DeviceError> {
        let mut clients = self.clients.lock();
        // Users without a number in this user namespace are treated as one.
        let uid = Credentials::of_peer(&socket).map_or(u32::MAX, |peer| peer.uid);
        let (port, slot) = clients.number(uid).ok_or(DeviceError::Exhausted)?;
        let eventfd = Arc::new(PeerFile::shared(new_eventfd()?, &socket));
        let failed = |error| os("send handshake to client", error);
        let own = i64::from(port);
        let mut queue = SendQueue::new(socket, &self.memory_file).map_err(failed)?;
        queue.push(protocol::VERSION, None);
        queue.push(own, None);
        queue.push(protocol::MEMORY, None);
        for client in clients.by_slot.values() {
            queue.push(client.port.into(), Some(&client.eventfd));
        }
        queue.flush().map_err(failed)?;
        for client in clients.by_slot.values_mut() {
            client.queue.push(own, Some(&eventfd));
            let _ = client.queue.flush();
        }
        // Last, so that other clients have received the number before the device appears in the
        // memory.
        queue.push(own, Some(&eventfd));
        if let Err(error) = queue.flush() {
            clients.announce_left(port);
            return Err(failed(error));
        }
        let client = ConnectedClient {
            port,
            queue,
            eventfd,
            heartbeat: (None, 0, Instant::now()),
            was_notified: false,
        };
        clients.by_slot.insert(slot, client);
        Ok(())
    }

    fn remove_client(&self, slot: u16) {
        let mut clients = self.clients.lock();
        let Some(removed) = clients.by_slot.remove(&slot) else {
            return;
        };
        if let Some((tag, _)) = self.memory.device_of_slot(slot) {
            self.mark_dead(tag, &clients);
        }
        clients.announce_left(removed.port);
    }

    /// Marks devices as dead whose heartbeats have stopped.
    fn mark_silent_dead(&self, now: Instant) {
        let mut clients = self.clients.lock();
        let mut silent = Vec::new();
        for (slot, client) in &mut clients.by_slot {
            let heartbeat = self.memory.heartbeat_of(*slot);
            let Some((tag, Phase::Live | Phase::Leaving)) = self.memory.device_of_slot(*slot)
            else {
                continue;
            };
            // Another device in the slot starts from the beginning, and may reach the same number.
            if (client.heartbeat.0, client.heartbeat.1) != (Some(tag), heartbeat) {
                client.heartbeat = (Some(tag), heartbeat, now);
            }
            if heartbeat != 0 && now.duration_since(client.heartbeat.2) > HEARTBEAT_TIMEOUT {
                silent.push(tag);
            }
        }
        for tag in silent {
            self.mark_dead(tag, &clients);
        }
    }

    fn mark_dead(&self, tag: Tag, clients: &Clients) {
        if self.memory.mark_dead(tag) {
            self.notify_all(clients);
        }
    }

    /// Sends the pending messages of all clients.
    fn flush_clients(&self) {
        for client in self.clients.lock().by_slot.values_mut() {
            let _ = client.queue.flush();
        }
    }

    /// Notifies devices that were marked as notified by a peer which then did not notify them: it
    /// was killed before, or its QEMU had not received the number of the device. No other peer does
    /// it then.
    fn retry_notifications(&self) {
        for (slot, client) in &mut self.clients.lock().by_slot {
            let was_notified = self.memory.sleep_of(*slot) == Sleep::Notified;
            if std::mem::replace(&mut client.was_notified, was_notified) && was_notified {
                self.notifier.notify(&client.eventfd);
            }
        }
    }

    /// Requests all devices to check their peers.
    fn notify_all(&self, clients: &Clients) {
        for other in self.memory.live() {
            self.memory.set_peers_changed(other.slot);
            if let Some(client) = clients.by_slot.get(&other.slot) {
                // The peer that marked it as notified may be the dead one.
                if self.memory.must_notify(other.slot)
                    || self.memory.sleep_of(other.slot) == Sleep::Notified
                {
                    self.notifier.notify(&client.eventfd);
                }
            }
        }
    }
}

impl Clients {
    fn announce_left(&mut self, port: u16) {
        for client in self.by_slot.values_mut() {
            client.queue.push_left(port);
            let _ = client.queue.flush();
        }
    }

    /// A number that was not assigned before, or that no connected client has received, and its
    /// slot.
    fn number(&mut self, uid: u32) -> Option<(u16, u16)> {
        if self.by_slot.is_empty() {
            self.numbers.reset();
        }
        self.numbers
            .assign(uid, |slot| !self.by_slot.contains_key(&slot))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Guests have no connection whose close they could detect.
        self.memory.mark_server_ended();
        self.notify_all(&self.clients.lock());
    }
}

enum Wakeup {
    Stopped,
    For { is_new: bool, ended: Vec<u16> },
}

/// A listening socket and its name, which is removed with it.
#[derive(Debug)]
struct BoundSocket {
    socket: Listener,
    path: PathBuf,
    /// Device and number of the inode, which are not reused while the socket is open.
    inode: (u64, u64),
}

impl BoundSocket {
    fn listen(path: PathBuf, mode: u32) -> Result<Self, DeviceError> {
        let failed = |error| os_at("listen for ivshmem clients at", &path, error);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let stream = || socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let address = SocketAddrUnix::new(&path).map_err(failed)?;
        match connect(stream().map_err(failed)?, &address) {
            Err(Errno::NOENT) => {}
            // As for a socket without a server, also for a file that is none.
            Err(Errno::CONNREFUSED) => {
                let found = lstat(&path).map_err(failed)?;
                if FileType::from_raw_mode(found.st_mode) != FileType::Socket {
                    let why = format!("{} exists and is no socket", path.display());
                    return Err(DeviceError::NotPermitted(why.into()));
                }
                unlink(&path).map_err(failed)?;
            }
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
            socket: Listener::new(socket, false),
            inode: (stat.st_dev, stat.st_ino),
            path,
        };
        let listening = listen(&named.socket, 64);
        listening.map_err(|error| os_at("listen for ivshmem clients at", &named.path, error))?;
        Ok(named)
    }
}

impl Drop for BoundSocket {
    fn drop(&mut self) {
        // Another server may have replaced it.
        let stat = lstat(&self.path);
        if stat.is_ok_and(|stat| (stat.st_dev, stat.st_ino) == self.inode) {
            let _ = unlink(&self.path);
        }
    }
}

/// Connections that are accepted before clients that have left are handled.
const MAX_ACCEPTS: usize = 64;

#[cfg(test)]
mod tests;
