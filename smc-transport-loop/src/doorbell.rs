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
use smc_ipc::doorbell::{self, WatchSet};
use smc_ipc::passed::{PeerFile, PeerSocket, is_eventfd};

use crate::region::os;

/// The doorbell of one device.
#[derive(Debug)]
pub(crate) struct Doorbell {
    outer: doorbell::Doorbell,
    inner: WatchSet,
}

/// What is ready, by its watched descriptor. Those of peers and channels have numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventSource {
    /// The inner set: see [`Doorbell::poll_setup`].
    Setup,
    /// A new connection.
    Listener,
    /// The eventfd by which a peer notifies this device while it sleeps.
    Peer,
    /// A pending channel: an accepted connection without HELLO.
    Pending,
    /// No channel: a connection to the listener of a peer that has ended, whose end is awaited.
    Stale,
    /// The channel on which a peer sends.
    Incoming,
    /// The channel on which this device sends to a peer.
    Outgoing,
    /// This device itself.
    Own,
}

impl Doorbell {
    pub(crate) fn new(listener: &Arc<OwnedFd>) -> Result<Self, DeviceError> {
        let (outer, inner) = (doorbell::Doorbell::new()?, WatchSet::new()?);
        inner.watch(listener, EventSource::Listener.tag(0))?;
        outer.set().watch_set(&inner, EventSource::Setup.tag(0))?;
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
    pub(crate) fn poll_signals(
        &self,
        mut each: impl FnMut(EventSource, u64),
    ) -> Result<(), DeviceError> {
        Ok(self
            .outer
            .poll(|tag| each(EventSource::of(tag), tag & ID_MASK))?)
    }

    /// The same for set-up, where all descriptors are level-triggered: one round, with the share of
    /// messages of each descriptor.
    pub(crate) fn poll_setup(
        &self,
        mut each: impl FnMut(EventSource, u64, EventFlags, usize),
    ) -> Result<(), DeviceError> {
        let pass = |tag, flags, share| each(EventSource::of(tag), tag & ID_MASK, flags, share);
        // The driver was woken if there is more.
        let _more = self.outer.poll_round(&self.inner, pass)?;
        Ok(())
    }

    /// Watches the eventfd by which a peer notifies.
    pub(crate) fn watch_peer(&self, eventfd: &Arc<PeerFile>, peer: u64) -> Result<(), DeviceError> {
        Ok(self
            .outer
            .set()
            .watch_edges(eventfd, EventSource::Peer.tag(peer))?)
    }

    pub(crate) fn watch_channel(
        &self,
        socket: &Arc<PeerSocket>,
        source: EventSource,
        id: u64,
    ) -> Result<(), DeviceError> {
        Ok(self.inner.watch(socket, source.tag(id))?)
    }

    /// Also, or no longer, watches an outgoing channel for space.
    pub(crate) fn watch_writable(
        &self,
        channel: &PeerSocket,
        peer: u64,
        on: bool,
    ) -> Result<(), DeviceError> {
        let tag = EventSource::Outgoing.tag(peer);
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

impl EventSource {
    /// What a descriptor is watched under: the source in the top byte, the number below.
    fn tag(self, number: u64) -> u64 {
        (self as u64) << ROLE_SHIFT | number
    }

    fn of(tag: u64) -> Self {
        let watched = [
            Self::Setup,
            Self::Listener,
            Self::Peer,
            Self::Pending,
            Self::Stale,
            Self::Incoming,
            Self::Outgoing,
        ];
        let source = watched
            .into_iter()
            .find(|source| source.tag(0) == tag & !ID_MASK);
        // Nothing else is watched but the own eventfd, under a larger number.
        source.unwrap_or(Self::Own)
    }
}

/// Of an outgoing channel, on which peers do not send: the peer has closed it, or breaks the rules.
pub(crate) const ENDED: EventFlags = EventFlags::IN
    .union(EventFlags::RDHUP)
    .union(EventFlags::HUP)
    .union(EventFlags::ERR);

const ROLE_SHIFT: u32 = 56;
const ID_MASK: u64 = (1 << ROLE_SHIFT) - 1;
