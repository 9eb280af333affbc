//! What the driver of a device waits on.
//!
//! Two epoll sets: the outer one, which the driver waits on, has an eventfd per peer and the inner
//! one; the inner one has all descriptors of set-up: the listener and the channels. So set-up
//! can be run by a call that needs it, without consuming signals of the driver.
//!
//! A peer shares its eventfd with us alone, so no peer can take or fake the signals of another.
//! The eventfds are watched for edges and never read: a write makes an edge whatever the count is.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::Errno;
use smc_core::device::DeviceError;
use smc_core::io::negotiate::passed::{PeerSocket, is_eventfd};

use crate::region::os;

/// The doorbell of one device.
#[derive(Debug)]
pub(crate) struct Doorbell {
    outer: OwnedFd,
    inner: OwnedFd,
    own: Arc<OwnedFd>,
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
    /// A connection without HELLO.
    Pending(u64),
    /// The end of a connection to the listener of a peer that has ended.
    Stale(u64),
    /// The channel from a peer.
    Incoming(u64),
    /// The channel to a peer.
    Outgoing {
        peer: u64,
        is_writable: bool,
        is_dead: bool,
    },
}

impl Doorbell {
    pub(crate) fn new(listener: BorrowedFd<'_>) -> Result<Self, DeviceError> {
        let failed = |error| os("make doorbell", error);
        let outer = epoll::create(CreateFlags::CLOEXEC).map_err(failed)?;
        let inner = epoll::create(CreateFlags::CLOEXEC).map_err(failed)?;
        let own = Arc::new(new_eventfd()?);
        let tag = |kind| EventData::new_u64(kind << KIND_SHIFT);
        epoll::add(&inner, listener, tag(LISTENER), EventFlags::IN).map_err(failed)?;
        epoll::add(&outer, &own, tag(OWN), EventFlags::IN | EventFlags::ET).map_err(failed)?;
        epoll::add(&outer, &inner, tag(SETUP), EventFlags::IN).map_err(failed)?;
        Ok(Self { outer, inner, own })
    }

    /// For the driver to wait on.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.outer.as_fd()
    }

    /// The eventfd by which this device wakes its own driver.
    pub(crate) fn own(&self) -> &Arc<OwnedFd> {
        &self.own
    }

    /// WakeList the driver of this device.
    pub(crate) fn notify_self(&self) {
        let _ = rustix::io::write(&self.own, &1_u64.to_ne_bytes());
    }

    /// Hands the ready descriptors to `each`, without waiting. Edges are consumed.
    pub(crate) fn poll_signals(&self, each: impl FnMut(Ready)) -> Result<(), DeviceError> {
        self.collect(&self.outer, each)
    }

    /// The same for set-up, where all descriptors are level-triggered.
    pub(crate) fn poll_setup(&self, each: impl FnMut(Ready)) -> Result<(), DeviceError> {
        self.collect(&self.inner, each)
    }

    /// Drivers may wait for edges, so remaining work has to notify again.
    fn collect(&self, set: &OwnedFd, each: impl FnMut(Ready)) -> Result<(), DeviceError> {
        if collect(set, each)? {
            self.notify_self();
        }
        Ok(())
    }

    /// Watches the eventfd by which a peer notifies.
    pub(crate) fn watch_peer(&self, eventfd: &OwnedFd, peer: u64) -> Result<(), DeviceError> {
        self.add(
            &self.outer,
            eventfd,
            PEER,
            peer,
            EventFlags::IN | EventFlags::ET,
        )
    }

    pub(crate) fn watch_pending(&self, socket: &PeerSocket, id: u64) -> Result<(), DeviceError> {
        self.add(
            &self.inner,
            socket,
            PENDING,
            id,
            EventFlags::IN | EventFlags::RDHUP,
        )
    }

    pub(crate) fn watch_stale(&self, socket: &PeerSocket, id: u64) -> Result<(), DeviceError> {
        self.add(
            &self.inner,
            socket,
            STALE,
            id,
            EventFlags::IN | EventFlags::RDHUP,
        )
    }

    pub(crate) fn watch_incoming(
        &self,
        channel: &PeerSocket,
        peer: u64,
    ) -> Result<(), DeviceError> {
        self.add(
            &self.inner,
            channel,
            INCOMING,
            peer,
            EventFlags::IN | EventFlags::RDHUP,
        )
    }

    pub(crate) fn watch_outgoing(
        &self,
        channel: &PeerSocket,
        peer: u64,
    ) -> Result<(), DeviceError> {
        self.add(
            &self.inner,
            channel,
            OUTGOING,
            peer,
            EventFlags::IN | EventFlags::RDHUP,
        )
    }

    /// Also, or no longer, watches an outgoing channel for space.
    pub(crate) fn watch_writable(
        &self,
        channel: &PeerSocket,
        peer: u64,
        on: bool,
    ) -> Result<(), DeviceError> {
        let writable = if on {
            EventFlags::OUT
        } else {
            EventFlags::empty()
        };
        let flags = EventFlags::IN | EventFlags::RDHUP | writable;
        let tag = EventData::new_u64(OUTGOING << KIND_SHIFT | peer);
        epoll::modify(&self.inner, channel, tag, flags).map_err(|error| os("watch peer", error))
    }

    /// A descriptor that others share has to be taken out before it is closed.
    pub(crate) fn unwatch_peer(&self, eventfd: &OwnedFd) {
        let _ = epoll::delete(&self.outer, eventfd);
    }

    pub(crate) fn unwatch_channel(&self, socket: &PeerSocket) {
        let _ = epoll::delete(&self.inner, socket);
    }

    fn add(
        &self,
        set: &OwnedFd,
        fd: impl AsFd,
        kind: u64,
        id: u64,
        flags: EventFlags,
    ) -> Result<(), DeviceError> {
        let tag = EventData::new_u64(kind << KIND_SHIFT | id);
        epoll::add(set, fd, tag, flags).map_err(|error| os("watch peer", error))
    }
}

/// An eventfd that does not block.
pub(crate) fn new_eventfd() -> Result<OwnedFd, DeviceError> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|error| os("make eventfd", error))
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

/// Whether there may be more.
fn collect(set: &OwnedFd, mut each: impl FnMut(Ready)) -> Result<bool, DeviceError> {
    for _ in 0..MAX_ROUNDS {
        let mut events = [epoll::Event {
            flags: EventFlags::empty(),
            data: EventData::new_u64(0),
        }; EVENTS_PER_ROUND];
        let count = match epoll::wait(set, &mut events[..], Some(&NOW)) {
            Ok(count) => count,
            Err(Errno::INTR) => continue,
            Err(error) => return Err(os("poll the doorbell", error)),
        };
        for event in &events[..count] {
            if let Some(ready) = decode(event.flags, event.data.u64()) {
                each(ready);
            }
        }
        if count < EVENTS_PER_ROUND {
            return Ok(false);
        }
    }
    Ok(true)
}

fn decode(flags: EventFlags, tag: u64) -> Option<Ready> {
    let id = tag & ID_MASK;
    Some(match tag >> KIND_SHIFT {
        OWN => Ready::Own,
        SETUP => Ready::Setup,
        PEER => Ready::Peer(id),
        LISTENER => Ready::Listener,
        PENDING => Ready::Pending(id),
        STALE => Ready::Stale(id),
        INCOMING => Ready::Incoming(id),
        OUTGOING => Ready::Outgoing {
            peer: id,
            is_writable: flags.contains(EventFlags::OUT),
            // Peers do not send on this channel.
            is_dead: flags
                .intersects(EventFlags::IN | EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR),
        },
        _ => return None,
    })
}

/// Kinds in the top byte of a tag, the number below.
const KIND_SHIFT: u32 = 56;
const ID_MASK: u64 = (1 << KIND_SHIFT) - 1;
const OWN: u64 = 1;
const SETUP: u64 = 2;
const PEER: u64 = 3;
const LISTENER: u64 = 4;
const PENDING: u64 = 5;
const INCOMING: u64 = 6;
const OUTGOING: u64 = 7;
const STALE: u64 = 8;

const EVENTS_PER_ROUND: usize = 64;
/// Descriptors that are always ready must not block the driver; the rest is for the next drain.
const MAX_ROUNDS: usize = 16;
const NOW: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};
