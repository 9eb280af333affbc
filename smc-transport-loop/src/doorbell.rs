//! What the driver of a device waits on.
//!
//! Two epoll sets: the outer one, which the driver waits on, has an eventfd per peer and the inner
//! one; the inner one has all descriptors of set-up: the listener and the channels. So set-up
//! can be run by a call that needs it, without consuming signals of the driver.
//!
//! A peer shares its eventfd with this device alone, so no peer can take or fake the signals of
//! another.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::epoll::EventFlags;
use rustix::fs::{OFlags, fcntl_getfl};
use smc_core::device::DeviceError;
use smc_ipc::doorbell::{self, OWN, WatchSet};
use smc_ipc::passed::{PeerFile, PeerSocket, is_eventfd};

use crate::region::os;

/// The doorbell of one device.
#[derive(Debug)]
pub(crate) struct Doorbell {
    outer: doorbell::Doorbell,
    inner: WatchSet,
}

/// The role of a watched socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SocketRole {
    /// A pending channel: an accepted connection without HELLO.
    Pending,
    /// No channel: a connection to the listener of a peer that has ended, whose end is awaited.
    Stale,
    /// The channel on which a peer sends.
    Incoming,
    /// The channel on which this device sends to a peer.
    Outgoing,
}

/// A descriptor that is ready. Numbers are those of peers and pending channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ready {
    /// This device itself.
    Own,
    /// Set-up: see [`Doorbell::poll_setup`].
    Setup,
    /// A peer that notified this device while it slept.
    Peer(u64),
    /// A new connection.
    Listener,
    /// A socket other than an outgoing channel, that has received something or has ended.
    Socket(SocketRole, u64),
    /// The channel to a peer.
    Outgoing {
        peer: u64,
        is_writable: bool,
        is_dead: bool,
    },
}

impl Doorbell {
    pub(crate) fn new(listener: &Arc<OwnedFd>) -> Result<Self, DeviceError> {
        let (outer, inner) = (doorbell::Doorbell::new()?, WatchSet::new()?);
        inner.watch(listener, tag(LISTENER, 0))?;
        outer.set().watch_set(&inner, tag(SETUP, 0))?;
        Ok(Self { outer, inner })
    }

    /// For the driver to wait on.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.outer.as_fd()
    }

    /// The eventfd by which this device wakes its own driver.
    pub(crate) fn own(&self) -> &Arc<OwnedFd> {
        self.outer.own()
    }

    /// Wakes the driver of this device.
    pub(crate) fn notify_self(&self) {
        self.outer.notify_self();
    }

    /// Hands the ready descriptors to `each`, without waiting. Edges are consumed.
    pub(crate) fn poll_signals(&self, mut each: impl FnMut(Ready)) -> Result<(), DeviceError> {
        let pass = |id| {
            decode(id, EventFlags::empty())
                .into_iter()
                .for_each(&mut each)
        };
        Ok(self.outer.poll(pass)?)
    }

    /// The same for set-up, where all descriptors are level-triggered: one round, with the share of
    /// messages of each descriptor.
    pub(crate) fn poll_setup(&self, mut each: impl FnMut(Ready, usize)) -> Result<(), DeviceError> {
        let pass = |id, flags, share| {
            let ready = decode(id, flags).into_iter();
            ready.for_each(|ready| each(ready, share));
        };
        // The driver was woken if there is more.
        let _more = self.outer.poll_round(&self.inner, pass)?;
        Ok(())
    }

    /// Watches the eventfd by which a peer notifies.
    pub(crate) fn watch_peer(&self, eventfd: &Arc<PeerFile>, peer: u64) -> Result<(), DeviceError> {
        Ok(self.outer.set().watch_edges(eventfd, tag(PEER, peer))?)
    }

    pub(crate) fn watch_channel(
        &self,
        socket: &Arc<PeerSocket>,
        role: SocketRole,
        id: u64,
    ) -> Result<(), DeviceError> {
        Ok(self.inner.watch(socket, tag(role as u64, id))?)
    }

    /// Also, or no longer, watches an outgoing channel for space.
    pub(crate) fn watch_writable(
        &self,
        channel: &PeerSocket,
        peer: u64,
        on: bool,
    ) -> Result<(), DeviceError> {
        let tag = tag(SocketRole::Outgoing as u64, peer);
        Ok(self.inner.watch_writable(channel, tag, on)?)
    }

    /// A descriptor that others share has to be taken out before it is closed.
    pub(crate) fn unwatch_peer(&self, eventfd: &PeerFile) {
        self.outer.set().unwatch(eventfd);
    }

    pub(crate) fn unwatch_channel(&self, socket: &PeerSocket) {
        self.inner.unwatch(socket);
    }
}

/// Refuses a descriptor to which a write could block or have another effect than a notification.
pub(crate) fn check_eventfd(fd: BorrowedFd<'_>) -> Result<(), DeviceError> {
    let bad = DeviceError::PeerMisbehaved;
    let flags = fcntl_getfl(fd).map_err(|error| os("inspect doorbell", error))?;
    if !flags.contains(OFlags::NONBLOCK) {
        return Err(bad("doorbell blocks"));
    }
    if is_eventfd(fd) {
        Ok(())
    } else {
        Err(bad("doorbell is not an eventfd"))
    }
}

fn decode(id: u64, flags: EventFlags) -> Option<Ready> {
    if id == OWN {
        return Some(Ready::Own);
    }
    let number = id & ID_MASK;
    Some(match id >> KIND_SHIFT {
        SETUP => Ready::Setup,
        PEER => Ready::Peer(number),
        LISTENER => Ready::Listener,
        kind if kind == SocketRole::Outgoing as u64 => Ready::Outgoing {
            peer: number,
            is_writable: flags.contains(EventFlags::OUT),
            // Peers do not send on this channel.
            is_dead: flags
                .intersects(EventFlags::IN | EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR),
        },
        kind => {
            let roles = [SocketRole::Pending, SocketRole::Stale, SocketRole::Incoming];
            let role = roles.into_iter().find(|it| *it as u64 == kind)?;
            Ready::Socket(role, number)
        }
    })
}

fn tag(kind: u64, number: u64) -> u64 {
    kind << KIND_SHIFT | number
}

/// Kinds in the top byte of a tag, the number below. Those of channels are smaller than these.
const KIND_SHIFT: u32 = 56;
const ID_MASK: u64 = (1 << KIND_SHIFT) - 1;
const SETUP: u64 = 16;
const PEER: u64 = 17;
const LISTENER: u64 = 18;
