//! An SMC-D device in the memory of one process.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use atomic_waker::AtomicWaker;
use smc_core::device::{
    Attachment, Device, DeviceError, Direct, Dmb, Doorbell, Event, Identity, Limits, Nocopy,
    Operations, PeerEvent, PeerEvents, Signal, SubmitError,
};
use smc_core::mem::sync::{AtomicBool, Ordering};
use smc_wire::types::{Chid, DmbToken, Gid};

use super::SharedFabric;
use super::buffer::{Buffer, MemAttachment, MemDmb};

/// A device of a [`super::MemFabric`].
///
/// Dropping it takes it off the fabric: its buffers can no longer be written and all other devices
/// report [`Event::PeerGone`].
#[derive(Debug)]
pub struct MemDevice {
    identity: Identity,
    limits: Limits,
    nocopy: bool,
    port: Arc<Port>,
    shared: Arc<SharedFabric>,
}

impl MemDevice {
    pub(super) fn new(
        name: &str,
        gid: Gid,
        nocopy: bool,
        limits: Limits,
        shared: &Arc<SharedFabric>,
    ) -> Self {
        let port = Arc::new(Port::new(gid));
        shared.write().ports.insert(gid, Arc::clone(&port));
        Self {
            identity: Identity::new(name),
            limits,
            nocopy,
            port,
            shared: Arc::clone(shared),
        }
    }

    /// Takes the device off the fabric, as if its process had ended.
    pub fn leave(&self) {
        self.port.gone.store(true, Ordering::Release);
        self.shared.leave(self.port.gid);
    }

    /// Removes the device under its user: it reports [`Event::DeviceGone`], and then no longer
    /// works. All other devices see it leave.
    pub fn remove(&self) {
        self.port.report(Event::DeviceGone);
        self.leave();
    }

    fn check_alive(&self) -> Result<(), DeviceError> {
        if self.port.is_gone() {
            Err(DeviceError::Gone("removed"))
        } else {
            Ok(())
        }
    }

    /// The buffer that a peer has for this device.
    fn buffer_of(&self, peer: Gid, token: DmbToken) -> Option<Arc<Buffer>> {
        let shared = self.shared.read();
        let buffer = shared.buffers.get(&token);
        buffer
            .filter(|buffer| buffer.is_owned_by(peer) && buffer.peer == self.port.gid)
            .cloned()
    }
}

impl Drop for MemDevice {
    fn drop(&mut self) {
        self.leave();
    }
}

impl Device for MemDevice {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn operations(&self) -> Operations<'_> {
        Operations::Direct(self)
    }

    fn drain(&self, sink: &mut dyn FnMut(Event)) -> Result<(), DeviceError> {
        let queued = std::mem::take(&mut *self.port.queued());
        if queued.is_empty() {
            // Stays armed: this is how the second drain before parking ends.
            return self.check_alive();
        }
        self.port.armed.store(false, Ordering::SeqCst);
        // Outside of the lock: the sink may call the device.
        queued.into_iter().for_each(sink);
        Ok(())
    }

    fn arm(&self) -> Result<(), DeviceError> {
        self.port.armed.store(true, Ordering::SeqCst);
        Ok(())
    }

    fn doorbell(&self) -> Doorbell<'_> {
        Doorbell::Waker(&self.port.doorbell)
    }
}

#[async_trait]
impl Direct for MemDevice {
    fn gid(&self) -> Gid {
        self.port.gid
    }

    fn chid(&self) -> Chid {
        self.shared.chid
    }

    async fn reach(&self, peer: Gid) -> Result<(), DeviceError> {
        self.check_alive()?;
        if self.shared.read().ports.contains_key(&peer) {
            return Ok(());
        }
        Err(DeviceError::Unreachable {
            peer,
            why: "not on the fabric",
        })
    }

    async fn register(&self, peer: Gid, len: usize) -> Result<Arc<dyn Dmb>, DeviceError> {
        self.reach(peer).await?;
        if len == 0 || len > self.limits.max_dmb_len {
            return Err(DeviceError::Invalid("buffer length"));
        }
        let mut table = self.shared.write();
        let buffers = table.buffers.values();
        let own = buffers.filter(|buffer| buffer.is_owned_by(self.port.gid));
        if own.count() >= self.limits.max_dmbs {
            return Err(DeviceError::Exhausted);
        }
        let token = loop {
            let token = DmbToken(self.shared.bits());
            if !table.buffers.contains_key(&token) {
                break token;
            }
        };
        let buffer = Arc::new(Buffer::new(token, len, Arc::clone(&self.port), peer));
        table.buffers.insert(token, Arc::clone(&buffer));
        let shared = Arc::clone(&self.shared);
        Ok(Arc::new(MemDmb { buffer, shared }))
    }

    fn move_data(
        &self,
        peer: Gid,
        to: DmbToken,
        at: u32,
        data: &[IoSlice<'_>],
        signal: Signal,
    ) -> Result<(), SubmitError> {
        self.check_alive()?;
        let buffer = self.buffer_of(peer, to).ok_or(SubmitError::UnknownToken)?;
        buffer.write(at, data, signal)
    }

    fn is_registered(&self, peer: Gid, token: DmbToken) -> bool {
        self.buffer_of(peer, token).is_some()
    }

    fn allows_rewind(&self) -> bool {
        true
    }

    fn nocopy(&self) -> Option<&dyn Nocopy> {
        self.nocopy.then_some(self)
    }

    fn peer_events(&self) -> Option<&dyn PeerEvents> {
        Some(self)
    }
}

#[async_trait]
impl Nocopy for MemDevice {
    async fn attach(&self, peer: Gid, token: DmbToken) -> Result<Arc<dyn Attachment>, DeviceError> {
        self.reach(peer).await?;
        let buffer = self.buffer_of(peer, token).ok_or(DeviceError::Invalid(
            "no buffer of the peer for this device has this token",
        ))?;
        Ok(Arc::new(MemAttachment { buffer }))
    }
}

impl PeerEvents for MemDevice {
    fn signal_event(&self, peer: Gid, event: PeerEvent) -> Result<(), SubmitError> {
        self.check_alive()?;
        let port = self.shared.read().ports.get(&peer).cloned();
        port.ok_or(SubmitError::PeerGone)?.report(Event::Peer {
            from: self.port.gid,
            event,
        });
        Ok(())
    }
}

/// The part of a device that others reach: its list of events and its waker.
#[derive(Debug)]
pub(super) struct Port {
    pub(super) gid: Gid,
    queued: Mutex<VecDeque<Event>>,
    armed: AtomicBool,
    doorbell: AtomicWaker,
    gone: AtomicBool,
}

impl Port {
    fn new(gid: Gid) -> Self {
        Self {
            gid,
            queued: Mutex::default(),
            armed: AtomicBool::new(false),
            doorbell: AtomicWaker::new(),
            gone: AtomicBool::new(false),
        }
    }

    /// Adds an event and rings if the owner is armed.
    ///
    /// The lock orders this with `drain`: if the owner's last drain came before, its `arm` did as
    /// well and is seen here; if not, the drain finds the event.
    pub(super) fn report(&self, event: Event) {
        self.queued().push_back(event);
        if self.armed.swap(false, Ordering::SeqCst) {
            self.doorbell.wake();
        }
    }

    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    fn queued(&self) -> MutexGuard<'_, VecDeque<Event>> {
        self.queued.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
