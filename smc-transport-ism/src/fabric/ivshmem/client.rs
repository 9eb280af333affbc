//! A process of the host as a client of the ivshmem server.

#[cfg(test)]
use std::os::fd::OwnedFd;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use smc_core::device::DeviceError;
use smc_core::mutex::Mutex;
use smc_ipc::doorbell::Doorbell;
use smc_ipc::passed::{PeerFile, PeerSocket, is_eventfd};

use super::protocol::{self, Reader, ReceivedNumber};
use super::{SERVER_GONE, slot_of};
use crate::fabric::notifier::EventfdNotifier;
use crate::fabric::{ConnectError, FabricOps};
use crate::region::{adopt, os, os_at};
use crate::shared::{FabricMemory, Tag};

/// A process's end of an ivshmem fabric.
#[derive(Debug)]
pub(crate) struct IvshmemClient {
    memory: Arc<FabricMemory>,
    doorbell: Doorbell,
    notifier: EventfdNotifier,
    server: Mutex<ServerConnection>,
}

/// The connection to the server.
#[derive(Debug)]
struct ServerConnection {
    socket: Arc<PeerSocket>,
    reader: Reader,
    own: u16,
    slots: u16,
    /// By slot: number and eventfd of the device.
    eventfds: HashMap<u16, (u16, Arc<PeerFile>)>,
    /// Slots whose devices have left since the last call of [`IvshmemClient::poll_events`].
    left: Vec<u16>,
    is_closed: bool,
}

impl IvshmemClient {
    /// Connects to a server. Blocks for its handshake, with a timeout.
    pub(crate) fn connect(path: &Path) -> Result<(Self, u16), DeviceError> {
        let failed = |error| match error {
            Errno::NOENT | Errno::CONNREFUSED => DeviceError::Gone("no ivshmem server there"),
            error => os_at("connect to ivshmem server", path, error),
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let mut socket = PeerSocket::from(socket.map_err(failed)?);
        // The program has named the server.
        socket.set_allowed();
        let address = SocketAddrUnix::new(path).map_err(failed)?;
        connect(&socket, &address).map_err(failed)?;

        let until = Instant::now() + HANDSHAKE_TIMEOUT;
        let mut reader = Reader::default();
        let mut next_number = || receive_until(until, &socket, &mut reader);
        if next_number()?.0 != protocol::VERSION {
            return Err(DeviceError::Invalid(
                "the ivshmem server has another version",
            ));
        }
        let own = u16::try_from(next_number()?.0)
            .map_err(|_| DeviceError::PeerMisbehaved("the server gave no number"))?;
        let (protocol::MEMORY, Some(memory_file)) = next_number()? else {
            return Err(DeviceError::PeerMisbehaved("the server gave no memory"));
        };
        let memory = Arc::new(FabricMemory::open(adopt(&memory_file)?)?);
        let slot = slot_of(&memory, own);
        let mut eventfds = HashMap::new();
        while !eventfds.contains_key(&slot) {
            let (number, eventfd) = next_number()?;
            if let (Ok(port), Some(eventfd)) = (u16::try_from(number), eventfd) {
                if !is_eventfd(eventfd.as_fd()) {
                    return Err(DeviceError::PeerMisbehaved(
                        "the server gave something else than an eventfd",
                    ));
                }
                // One vector is enough: only the first is used.
                let of_slot = eventfds.entry(slot_of(&memory, port));
                of_slot.or_insert((port, Arc::new(eventfd)));
            }
        }

        let (doorbell, socket) = (Doorbell::new()?, Arc::new(socket));
        if let Some((_, eventfd)) = eventfds.get(&slot) {
            doorbell.set().watch_edges(eventfd, NOTIFICATION)?;
        }
        doorbell.set().watch(&socket, SERVER)?;
        let server = ServerConnection {
            socket,
            reader,
            own,
            slots: memory.slots(),
            eventfds,
            left: Vec::new(),
            is_closed: false,
        };
        let client = Self {
            memory,
            doorbell,
            notifier: EventfdNotifier::new()?,
            server: Mutex::new(server),
        };
        Ok((client, slot))
    }

    /// The eventfds of all devices, as every client has them.
    #[cfg(test)]
    pub(super) fn eventfds(&self) -> Vec<OwnedFd> {
        let server = self.server.lock();
        let eventfds = server.eventfds.values();
        eventfds
            .map(|(_, eventfd)| eventfd.as_fd().try_clone_to_owned().unwrap())
            .collect()
    }
}

impl ServerConnection {
    /// The eventfd of a device, which the server may have announced a moment ago.
    fn eventfd(&mut self, slot: u16) -> Option<&Arc<PeerFile>> {
        if !self.eventfds.contains_key(&slot) {
            self.receive_messages();
        }
        self.eventfds.get(&slot).map(|(_, eventfd)| eventfd)
    }

    /// Handles the messages that the server has sent.
    fn receive_messages(&mut self) {
        for _ in 0..MAX_MESSAGES {
            match self.reader.receive(&self.socket) {
                ReceivedNumber::Nothing => return,
                ReceivedNumber::Closed => {
                    self.is_closed = true;
                    return;
                }
                ReceivedNumber::Number(port, eventfd) => {
                    let Ok(port) = u16::try_from(port) else {
                        continue;
                    };
                    let slot = port % self.slots;
                    let known = self.eventfds.get(&slot).map(|(known, _)| *known);
                    match eventfd {
                        Some(eventfd) if known != Some(port) && is_eventfd(eventfd.as_fd()) => {
                            self.eventfds.insert(slot, (port, Arc::new(eventfd)));
                        }
                        None if port != self.own && known == Some(port) => {
                            self.eventfds.remove(&slot);
                            self.left.push(slot);
                        }
                        _ => {}
                    }
                }
            }
        }
    }
}

impl FabricOps for IvshmemClient {
    fn memory(&self) -> &Arc<FabricMemory> {
        &self.memory
    }

    fn port(&self) -> u16 {
        self.server.lock().own
    }

    fn connect_peer(&self, peer: Tag) -> Result<(), ConnectError> {
        match self.server.lock().eventfd(peer.slot) {
            Some(_) => Ok(()),
            // The server marks ended devices in the memory.
            None => Err(ConnectError::Busy),
        }
    }

    fn notify(&self, peer: Tag) {
        if let Some(eventfd) = self.server.lock().eventfd(peer.slot) {
            self.notifier.notify(eventfd);
        }
    }

    fn poll_events(&self, each: &mut dyn FnMut(Tag)) -> Result<(), DeviceError> {
        let mut is_server_readable = false;
        self.doorbell
            .poll(|id| is_server_readable |= id == SERVER)?;
        let mut server = self.server.lock();
        if is_server_readable {
            server.receive_messages();
        }
        let left = std::mem::take(&mut server.left);
        let is_closed = server.is_closed;
        drop(server);
        // The server has marked them in the memory before; a device that joined since is another
        // one.
        let gone = left
            .into_iter()
            .filter_map(|slot| self.memory.device_of_slot(slot));
        gone.filter(|(tag, _)| self.memory.is_dead(*tag))
            .for_each(|(tag, _)| each(tag));
        if is_closed {
            return Err(SERVER_GONE);
        }
        Ok(())
    }

    fn doorbell(&self) -> BorrowedFd<'_> {
        self.doorbell.as_fd()
    }
}

/// Waits for one of the first messages of the server.
fn receive_until(
    until: Instant,
    socket: &PeerSocket,
    reader: &mut Reader,
) -> Result<(i64, Option<PeerFile>), DeviceError> {
    loop {
        // Before each receive: a server may send other messages without end.
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(DeviceError::Gone(
                "the ivshmem server has not completed the handshake in time",
            ));
        }
        match reader.receive(socket) {
            ReceivedNumber::Number(number, descriptor) => return Ok((number, descriptor)),
            ReceivedNumber::Closed => return Err(DeviceError::Exhausted),
            ReceivedNumber::Nothing => {}
        }
        let left = Timespec::try_from(left).ok();
        match poll(&mut [PollFd::new(socket, PollFlags::IN)], left.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(os("wait for ivshmem server", error)),
        }
    }
}

/// Ids in the epoll set.
const SERVER: u64 = 0;
const NOTIFICATION: u64 = 1;
/// A server that sends without end must not occupy the driver.
const MAX_MESSAGES: usize = 4096;
/// For the first messages of the server.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests;
