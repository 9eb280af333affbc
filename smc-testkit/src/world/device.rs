//! A device with scripted behaviour, which counts its objects.

use std::collections::HashMap;
use std::io::IoSlice;
use std::sync::{Arc, Mutex, Weak};

use async_trait::async_trait;
use event_listener::Event as Notice;
use smc_core::device::{
    Attachment, Device, DeviceError, Direct, Dmb, Doorbell, Event, Identity, Limits, MemoryLimit,
    Nocopy, Operations, PeerEvents, Signal, SubmitError,
};
use smc_core::error::OsError;
use smc_core::negotiate::Credentials;
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
    dmbs: Handed<dyn Dmb>,
    attachments: Handed<dyn Attachment>,
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
            dmbs: Handed::default(),
            attachments: Handed::default(),
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
        let calls = self.calls.lock().expect(INTACT);
        calls.get(&call).copied().unwrap_or(0)
    }

    /// Buffers that are registered now.
    pub fn dmbs(&self) -> usize {
        self.dmbs.count()
    }

    /// Buffers of peers that are attached now.
    pub fn attachments(&self) -> usize {
        self.attachments.count()
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

    async fn apply_order(&self, call: Call) -> Result<(), DeviceError> {
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

    fn operations(&self) -> Operations<'_> {
        Operations::Direct(self)
    }

    fn drain(&self, sink: &mut dyn FnMut(Event)) -> Result<(), DeviceError> {
        self.inner.drain(sink)
    }

    fn poll(&self, sink: &mut dyn FnMut(Event)) -> Result<(), DeviceError> {
        self.inner.poll(sink)
    }

    fn arm(&self) -> Result<(), DeviceError> {
        self.inner.arm()
    }

    fn doorbell(&self) -> Doorbell<'_> {
        self.inner.doorbell()
    }

    fn limit_memory(&self, limit: &MemoryLimit) {
        self.inner.limit_memory(limit);
    }

    fn trim_memory(&self) {
        self.inner.trim_memory();
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
        self.apply_order(Call::Reach).await?;
        direct(&*self.inner).reach(peer).await
    }

    fn process(&self, peer: Gid) -> Result<Option<Credentials>, DeviceError> {
        direct(&*self.inner).process(peer)
    }

    fn shortage(&self) -> Option<OsError> {
        self.shortage.clone()
    }

    async fn register(&self, peer: Gid, len: usize) -> Result<Arc<dyn Dmb>, DeviceError> {
        self.apply_order(Call::Register).await?;
        let dmb = direct(&*self.inner).register(peer, len).await?;
        Ok(self.dmbs.hand_out(dmb))
    }

    fn move_data(
        &self,
        peer: Gid,
        to: DmbToken,
        at: u32,
        data: &[IoSlice<'_>],
        signal: Signal,
    ) -> Result<(), SubmitError> {
        direct(&*self.inner).move_data(peer, to, at, data, signal)
    }

    fn is_registered(&self, peer: Gid, token: DmbToken) -> bool {
        direct(&*self.inner).is_registered(peer, token)
    }

    fn allows_rewind(&self) -> bool {
        direct(&*self.inner).allows_rewind()
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
        self.apply_order(Call::Attach).await?;
        let attachment = nocopy(&*self.inner).attach(peer, token).await?;
        Ok(self.attachments.hand_out(attachment))
    }
}

/// What was handed out, to count what is still held.
#[derive(Debug)]
struct Handed<T: ?Sized>(Mutex<Vec<Weak<T>>>);

impl<T: ?Sized> Default for Handed<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: ?Sized> Handed<T> {
    fn hand_out(&self, object: Arc<T>) -> Arc<T> {
        let mut all = self.0.lock().expect(INTACT);
        all.retain(|object| object.strong_count() > 0);
        all.push(Arc::downgrade(&object));
        object
    }

    fn count(&self) -> usize {
        let all = self.0.lock().expect(INTACT);
        all.iter()
            .filter(|object| object.strong_count() > 0)
            .count()
    }
}

const INTACT: &str = "no call panics while it holds the lock";
