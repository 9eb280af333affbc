//! A process of the host as a client of the server.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use smc_core::device::DeviceError;
use smc_core::io::negotiate::passed::{PeerSocket, is_eventfd};

use super::protocol::{self, Heard, Reader};
use super::{SERVER_GONE, slot_of};
use crate::fabric::doorbell::Doorbell;
use crate::fabric::notifier::Ringer;
use crate::fabric::{Fabric, News, Unmet};
use crate::lock;
use crate::region::{adopt, os, os_at};
use crate::shared::{Room, Tag};

/// A process's end of an ivshmem fabric.
#[derive(Debug)]
pub(crate) struct Client {
    room: Arc<Room>,
    doorbell: Doorbell,
    ringer: Ringer,
    line: Mutex<Line>,
}

/// What the server says.
#[derive(Debug)]
struct Line {
    socket: PeerSocket,
    reader: Reader,
    own: u16,
    slots: u16,
    /// By slot: number, and by what it is rung.
    eventfds: HashMap<u16, (u16, OwnedFd)>,
    /// Slots whose devices have gone since [`Client::look`] was called last.
    left: Vec<u16>,
    is_closed: bool,
}

impl Client {
    /// Connects to a server. Waits for its greeting, but not for long.
    pub(crate) fn connect(path: &Path) -> Result<(Self, u16), DeviceError> {
        let failed = |error| match error {
            Errno::NOENT | Errno::CONNREFUSED => DeviceError::Gone("no ivshmem server there"),
            error => os_at("connect to ivshmem server", path, error),
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let socket = PeerSocket::from(socket.map_err(failed)?);
        let address = SocketAddrUnix::new(path).map_err(failed)?;
        connect(&socket, &address).map_err(failed)?;

        let mut greeting = Greeting::new(&socket);
        if greeting.number()?.0 != protocol::VERSION {
            return Err(DeviceError::Invalid(
                "the ivshmem server has another version",
            ));
        }
        let own = u16::try_from(greeting.number()?.0)
            .map_err(|_| DeviceError::PeerMisbehaved("the server gave no number"))?;
        let (protocol::MEMORY, Some(memory)) = greeting.number()? else {
            return Err(DeviceError::PeerMisbehaved("the server gave no memory"));
        };
        let room = Arc::new(Room::find(adopt(&memory)?)?);
        let slot = slot_of(&room, own);
        let mut eventfds = HashMap::new();
        while !eventfds.contains_key(&slot) {
            if let (Ok(port), Some(eventfd)) = greeting.peer()? {
                if !is_eventfd(eventfd.as_fd()) {
                    return Err(DeviceError::PeerMisbehaved(
                        "the server gave something else than an eventfd",
                    ));
                }
                // One vector is enough, and we ring the first.
                let of_slot = eventfds.entry(slot_of(&room, port));
                of_slot.or_insert((port, eventfd));
            }
        }
        let reader = greeting.reader;

        let doorbell = Doorbell::new()?;
        if let Some((_, eventfd)) = eventfds.get(&slot) {
            doorbell.watch_edges(eventfd, RUNG)?;
        }
        doorbell.watch(&socket, SERVER)?;
        let line = Line {
            socket,
            reader,
            own,
            slots: room.slots(),
            eventfds,
            left: Vec::new(),
            is_closed: false,
        };
        let client = Self {
            room,
            doorbell,
            ringer: Ringer::new()?,
            line: Mutex::new(line),
        };
        Ok((client, slot))
    }

    /// What devices are rung by, as any client has it.
    #[cfg(test)]
    pub(super) fn eventfds(&self) -> Vec<OwnedFd> {
        let line = lock(&self.line);
        let eventfds = line.eventfds.values();
        eventfds
            .map(|(_, eventfd)| eventfd.try_clone().unwrap())
            .collect()
    }
}

impl Line {
    /// Takes in what the server has said.
    fn listen(&mut self) {
        for _ in 0..MAX_MESSAGES {
            match self.reader.receive(&self.socket) {
                Heard::Nothing => return,
                Heard::Closed => {
                    self.is_closed = true;
                    return;
                }
                Heard::Number(port, eventfd) => {
                    let Ok(port) = u16::try_from(port) else {
                        continue;
                    };
                    let slot = port % self.slots;
                    let known = self.eventfds.get(&slot).map(|(known, _)| *known);
                    match eventfd {
                        Some(eventfd) if known != Some(port) && is_eventfd(eventfd.as_fd()) => {
                            self.eventfds.insert(slot, (port, eventfd));
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

impl Fabric for Client {
    fn room(&self) -> &Arc<Room> {
        &self.room
    }

    fn port(&self) -> u16 {
        lock(&self.line).own
    }

    fn joined(&self, _: Tag) {}

    fn meet(&self, peer: Tag) -> Result<(), Unmet> {
        let mut line = lock(&self.line);
        if !line.eventfds.contains_key(&peer.slot) {
            line.listen();
        }
        if line.eventfds.contains_key(&peer.slot) {
            Ok(())
        } else {
            // Who has ended is marked in the memory, by the server.
            Err(Unmet::Busy)
        }
    }

    fn ring(&self, peer: Tag) {
        let mut line = lock(&self.line);
        if !line.eventfds.contains_key(&peer.slot) {
            line.listen();
        }
        if let Some((_, eventfd)) = line.eventfds.get(&peer.slot) {
            self.ringer.ring(eventfd);
        }
    }

    fn look(&self, each: &mut dyn FnMut(News)) -> Result<(), DeviceError> {
        let mut has_word = false;
        self.doorbell.rang(|id| has_word |= id == SERVER)?;
        let mut line = lock(&self.line);
        if has_word {
            line.listen();
        }
        let left = std::mem::take(&mut line.left);
        let is_closed = line.is_closed;
        drop(line);
        // The server has said so in the memory first; a device that came since is another one.
        let gone = left.into_iter().filter_map(|slot| self.room.occupant(slot));
        gone.filter(|(tag, _)| self.room.is_dead(*tag))
            .for_each(|(tag, _)| each(News::Left(tag)));
        if is_closed {
            return Err(SERVER_GONE);
        }
        Ok(())
    }

    fn doorbell(&self) -> BorrowedFd<'_> {
        self.doorbell.as_fd()
    }

    fn is_dead(&self, peer: Tag) -> bool {
        self.room.is_dead(peer)
    }
}

/// What the server says first, which is waited for.
struct Greeting<'a> {
    socket: &'a PeerSocket,
    reader: Reader,
    until: Instant,
}

impl<'a> Greeting<'a> {
    fn new(socket: &'a PeerSocket) -> Self {
        Self {
            socket,
            reader: Reader::default(),
            until: Instant::now() + PATIENCE,
        }
    }

    fn number(&mut self) -> Result<(i64, Option<OwnedFd>), DeviceError> {
        loop {
            // Before a look: a server may go on saying other things for ever.
            let left = self.until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(DeviceError::Gone(
                    "the ivshmem server has not said in time what a client needs",
                ));
            }
            match self.reader.receive(self.socket) {
                Heard::Number(number, descriptor) => return Ok((number, descriptor)),
                Heard::Closed => return Err(DeviceError::Exhausted),
                Heard::Nothing => {}
            }
            let left = Timespec::try_from(left).ok();
            let socket = self.socket.as_fd();
            match poll(&mut [PollFd::new(&socket, PollFlags::IN)], left.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(os("wait for ivshmem server", error)),
            }
        }
    }

    fn peer(&mut self) -> Result<(Result<u16, ()>, Option<OwnedFd>), DeviceError> {
        let (number, eventfd) = self.number()?;
        Ok((u16::try_from(number).map_err(|_| ()), eventfd))
    }
}

/// Ids of what rings.
const SERVER: u64 = 0;
const RUNG: u64 = 1;
/// A server that talks without end must not hold the driver.
const MAX_MESSAGES: usize = 4096;
/// For the greeting of the server.
const PATIENCE: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests;
