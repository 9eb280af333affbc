//! What the driver of a device waits on.
//!
//! Two epoll sets: the outer one, which the driver waits on, has an eventfd per peer and the inner
//! one; the inner one has everything that concerns set-up: the listener and the channels. So that
//! can be caught up with by a call that needs it, without taking signals away from the driver.
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

/// Something that rang. Numbers are those of peers and strangers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rang {
    /// This device itself.
    Own,
    /// Set-up: ask [`Doorbell::rang_inside`].
    Inside,
    /// A peer that found us asleep.
    Peer(u64),
    /// Somebody connected.
    Listener,
    /// Somebody who connected but did not say who he is.
    Stranger(u64),
    /// The connection to a peer that was dying ended.
    Dying(u64),
    /// The channel on which a peer talks to us.
    Incoming(u64),
    /// The channel on which we talk to a peer.
    Outgoing {
        peer: u64,
        has_room: bool,
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
        epoll::add(&outer, &inner, tag(INSIDE), EventFlags::IN).map_err(failed)?;
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

    /// Wakes the driver of this device.
    pub(crate) fn ring_own(&self) {
        let _ = rustix::io::write(&self.own, &1_u64.to_ne_bytes());
    }

    /// Hands what rang to `each`, without waiting. Edges are gone afterwards.
    pub(crate) fn rang(&self, each: impl FnMut(Rang)) -> Result<(), DeviceError> {
        self.collect(&self.outer, each)
    }

    /// The same for set-up, where everything rings until it is dealt with.
    pub(crate) fn rang_inside(&self, each: impl FnMut(Rang)) -> Result<(), DeviceError> {
        self.collect(&self.inner, each)
    }

    /// Drivers may wait for edges, so whatever is left to be done has to ring again.
    fn collect(&self, set: &OwnedFd, each: impl FnMut(Rang)) -> Result<(), DeviceError> {
        if collect(set, each)? {
            self.ring_own();
        }
        Ok(())
    }

    /// Watches the eventfd by which a peer rings.
    pub(crate) fn watch_peer(&self, eventfd: &OwnedFd, peer: u64) -> Result<(), DeviceError> {
        self.add(
            &self.outer,
            eventfd,
            PEER,
            peer,
            EventFlags::IN | EventFlags::ET,
        )
    }

    pub(crate) fn watch_stranger(&self, socket: &PeerSocket, id: u64) -> Result<(), DeviceError> {
        self.add(
            &self.inner,
            socket,
            STRANGER,
            id,
            EventFlags::IN | EventFlags::RDHUP,
        )
    }

    pub(crate) fn watch_dying(&self, socket: &PeerSocket, id: u64) -> Result<(), DeviceError> {
        self.add(
            &self.inner,
            socket,
            DYING,
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

    /// Also, or no longer, watches an outgoing channel for room.
    pub(crate) fn watch_room(
        &self,
        channel: &PeerSocket,
        peer: u64,
        on: bool,
    ) -> Result<(), DeviceError> {
        let room = if on {
            EventFlags::OUT
        } else {
            EventFlags::empty()
        };
        let flags = EventFlags::IN | EventFlags::RDHUP | room;
        let tag = EventData::new_u64(OUTGOING << KIND_SHIFT | peer);
        epoll::modify(&self.inner, channel, tag, flags).map_err(|error| os("watch peer", error))
    }

    /// A descriptor that others share has to be taken out before it is closed.
    pub(crate) fn forget_peer(&self, eventfd: &OwnedFd) {
        let _ = epoll::delete(&self.outer, eventfd);
    }

    pub(crate) fn forget_channel(&self, socket: &PeerSocket) {
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

/// Refuses a descriptor to which a write could block or do anything but ring.
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
fn collect(set: &OwnedFd, mut each: impl FnMut(Rang)) -> Result<bool, DeviceError> {
    for _ in 0..MAX_ROUNDS {
        let mut events = [epoll::Event {
            flags: EventFlags::empty(),
            data: EventData::new_u64(0),
        }; EVENTS_PER_ROUND];
        let count = match epoll::wait(set, &mut events[..], Some(&NOW)) {
            Ok(count) => count,
            Err(Errno::INTR) => continue,
            Err(error) => return Err(os("look at doorbell", error)),
        };
        for event in &events[..count] {
            if let Some(rang) = rang(event.flags, event.data.u64()) {
                each(rang);
            }
        }
        if count < EVENTS_PER_ROUND {
            return Ok(false);
        }
    }
    Ok(true)
}

fn rang(flags: EventFlags, tag: u64) -> Option<Rang> {
    let id = tag & ID_MASK;
    Some(match tag >> KIND_SHIFT {
        OWN => Rang::Own,
        INSIDE => Rang::Inside,
        PEER => Rang::Peer(id),
        LISTENER => Rang::Listener,
        STRANGER => Rang::Stranger(id),
        DYING => Rang::Dying(id),
        INCOMING => Rang::Incoming(id),
        OUTGOING => Rang::Outgoing {
            peer: id,
            has_room: flags.contains(EventFlags::OUT),
            // Nobody talks to us on this channel.
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
const INSIDE: u64 = 2;
const PEER: u64 = 3;
const LISTENER: u64 = 4;
const STRANGER: u64 = 5;
const INCOMING: u64 = 6;
const OUTGOING: u64 = 7;
const DYING: u64 = 8;

const EVENTS_PER_ROUND: usize = 64;
/// What rings again and again must not hold the driver; it comes back.
const MAX_ROUNDS: usize = 16;
const NOW: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};
