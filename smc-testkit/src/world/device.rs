//! A device with scripted behaviour, which counts its objects.

use std::collections::HashMap;
use std::io::IoSlice;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use event_listener::Event as Notice;
use smc_core::device::{
    Attachment, Device, DeviceError, Direct, Dmb, Doorbell, Event, Fabric, Identity, Limits,
    Nocopy, PeerEvents, Signal, SubmitError,
};
use smc_core::error::OsError;
use smc_core::mem::Region;
use smc_core::wire::types::{Chid, DmbToken, Eid, Gid, PnetId};

use crate::memory_device::MemDevice;
use crate::middleware::{direct, nocopy};

/// An SMC-D device that fails, waits or has other properties as it is told.
#[derive(Debug)]
pub struct ScriptedDevice {
    inner: Arc<dyn Device>,
    memory: Option<Arc<MemDevice>>,
    identity: Identity,
    gid: Gid,
    chid: Chid,
    seid: Option<Eid>,
    shortage: Option<OsError>,
    orders: Mutex<HashMap<Call, Order>>,
    recovered: Notice,
    calls: Mutex<HashMap<Call, usize>>,
    dmbs: Arc<AtomicUsize>,
    attachments: Arc<AtomicUsize>,
}

/// What can be asked of a device in the course of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_enums, reason = "tests go through all of them")]
pub enum Call {
    /// [`Direct::reach`].
    Reach,
    /// [`Direct::register`].
    Register,
    /// [`Nocopy::attach`].
    Attach,
}

#[derive(Clone, Debug)]
enum Order {
    /// Fail so many times, then work.
    Fail(DeviceError, usize),
    /// Come to an end when the order is taken back.
    Stall,
}

impl ScriptedDevice {
    /// A device in memory, as it is.
    #[must_use]
    pub fn new(memory: Arc<MemDevice>) -> Self {
        Self {
            memory: Some(Arc::clone(&memory)),
            ..Self::around(memory)
        }
    }

    /// Any SMC-D device, as it is.
    ///
    /// # Panics
    ///
    /// If it is another device.
    #[must_use]
    pub fn around(inner: Arc<dyn Device>) -> Self {
        Self {
            identity: inner.identity().clone(),
            gid: direct(&*inner).gid(),
            chid: direct(&*inner).chid(),
            inner,
            memory: None,
            seid: None,
            shortage: None,
            orders: Mutex::default(),
            recovered: Notice::new(),
            calls: Mutex::default(),
            dmbs: Arc::default(),
            attachments: Arc::default(),
        }
    }

    /// With the GID of another device.
    #[must_use]
    pub fn with_gid(mut self, gid: Gid) -> Self {
        self.gid = gid;
        self
    }

    /// With a network of this name.
    ///
    /// # Panics
    ///
    /// If it is no name of a network.
    #[must_use]
    pub fn on_network(mut self, pnet_id: &str) -> Self {
        let pnet_id = PnetId::new(pnet_id).expect("a name of a network");
        self.identity = self.identity.with_pnet_id(pnet_id);
        self
    }

    /// With another CHID.
    #[must_use]
    pub fn on_fabric(mut self, chid: u16) -> Self {
        self.chid = Chid(chid);
        self
    }

    /// With this system EID.
    #[must_use]
    pub fn of_system(mut self, seid: &[u8; 32]) -> Self {
        self.seid = Some(Eid::from_bytes(*seid));
        self
    }

    /// Has lacked something when a peer was to be let in, a moment ago at all times.
    #[must_use]
    pub fn short_of(mut self, what: OsError) -> Self {
        self.shortage = Some(what);
        self
    }

    /// Lets every such call fail.
    pub fn fail(&self, call: Call, error: DeviceError) {
        self.fail_times(call, error, usize::MAX);
    }

    /// Lets the next such calls fail.
    pub fn fail_times(&self, call: Call, error: DeviceError, times: usize) {
        let order = Order::Fail(error, times);
        self.orders.lock().expect(INTACT).insert(call, order);
    }

    /// Lets such calls wait until [`ScriptedDevice::recover`].
    pub fn stall(&self, call: Call) {
        self.orders.lock().expect(INTACT).insert(call, Order::Stall);
    }

    /// Takes all orders back.
    pub fn recover(&self) {
        self.orders.lock().expect(INTACT).clear();
        self.recovered.notify(usize::MAX);
    }

    /// How often it was asked.
    pub fn calls(&self, call: Call) -> usize {
        self.calls
            .lock()
            .expect(INTACT)
            .get(&call)
            .copied()
            .unwrap_or(0)
    }

    /// Buffers that are registered now.
    pub fn dmbs(&self) -> usize {
        self.dmbs.load(Ordering::SeqCst)
    }

    /// Buffers of peers that are attached now.
    pub fn attachments(&self) -> usize {
        self.attachments.load(Ordering::SeqCst)
    }

    /// Takes a device in memory off the fabric, as if its process had ended.
    ///
    /// # Panics
    ///
    /// If it is another device.
    pub fn leave(&self) {
        self.memory.as_ref().expect("a device in memory").leave();
    }

    /// Removes a device in memory under its endpoint.
    ///
    /// # Panics
    ///
    /// If it is another device.
    pub fn remove(&self) {
        self.memory.as_ref().expect("a device in memory").remove();
    }

    async fn obey(&self, call: Call) -> Result<(), DeviceError> {
        *self.calls.lock().expect(INTACT).entry(call).or_default() += 1;
        loop {
            let recovered = self.recovered.listen();
            let order = self.orders.lock().expect(INTACT).get(&call).cloned();
            match order {
                None | Some(Order::Fail(_, 0)) => return Ok(()),
                Some(Order::Stall) => recovered.await,
                Some(Order::Fail(error, times)) => {
                    self.fail_times(call, error.clone(), times.saturating_sub(1));
                    return Err(error);
                }
            }
        }
    }
}

impl Device for ScriptedDevice {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn limits(&self) -> Limits {
        self.inner.limits()
    }

    fn fabric(&self) -> Fabric<'_> {
        Fabric::Direct(self)
    }

    fn drain(&self, sink: &mut dyn FnMut(Event)) -> Result<(), DeviceError> {
        self.inner.drain(sink)
    }

    fn arm(&self) -> Result<(), DeviceError> {
        self.inner.arm()
    }

    fn doorbell(&self) -> Doorbell<'_> {
        self.inner.doorbell()
    }
}

#[async_trait]
impl Direct for ScriptedDevice {
    fn gid(&self) -> Gid {
        self.gid
    }

    fn chid(&self) -> Chid {
        self.chid
    }

    fn seid(&self) -> Option<Eid> {
        self.seid
    }

    async fn reach(&self, peer: Gid) -> Result<(), DeviceError> {
        self.obey(Call::Reach).await?;
        direct(&*self.inner).reach(peer).await
    }

    fn shortage(&self) -> Option<OsError> {
        self.shortage.clone()
    }

    async fn register(&self, peer: Gid, len: usize) -> Result<Arc<dyn Dmb>, DeviceError> {
        self.obey(Call::Register).await?;
        let inner = direct(&*self.inner).register(peer, len).await?;
        let counted = Counted::new(&self.dmbs);
        Ok(Arc::new(CountedDmb { inner, counted }))
    }

    fn move_data(
        &self,
        to: DmbToken,
        at: u32,
        data: &[IoSlice<'_>],
        signal: Signal,
    ) -> Result<(), SubmitError> {
        direct(&*self.inner).move_data(to, at, data, signal)
    }

    fn nocopy(&self) -> Option<&dyn Nocopy> {
        direct(&*self.inner).nocopy().map(|_| self as &dyn Nocopy)
    }

    fn peer_events(&self) -> Option<&dyn PeerEvents> {
        direct(&*self.inner).peer_events()
    }
}

#[async_trait]
impl Nocopy for ScriptedDevice {
    async fn attach(&self, peer: Gid, token: DmbToken) -> Result<Arc<dyn Attachment>, DeviceError> {
        self.obey(Call::Attach).await?;
        let inner = nocopy(&*self.inner).attach(peer, token).await?;
        let counted = Counted::new(&self.attachments);
        Ok(Arc::new(CountedAttachment { inner, counted }))
    }
}

#[derive(Debug)]
struct CountedDmb {
    inner: Arc<dyn Dmb>,
    #[expect(dead_code, reason = "held for its drop")]
    counted: Counted,
}

impl Dmb for CountedDmb {
    fn token(&self) -> DmbToken {
        self.inner.token()
    }

    fn region(&self) -> &Region {
        self.inner.region()
    }

    fn arm(&self) {
        self.inner.arm();
    }
}

#[derive(Debug)]
struct CountedAttachment {
    inner: Arc<dyn Attachment>,
    #[expect(dead_code, reason = "held for its drop")]
    counted: Counted,
}

impl Attachment for CountedAttachment {
    fn region(&self) -> &Region {
        self.inner.region()
    }

    fn signal(&self) -> Result<(), SubmitError> {
        self.inner.signal()
    }
}

#[derive(Debug)]
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(count))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

const INTACT: &str = "no call panics while it holds the lock";
