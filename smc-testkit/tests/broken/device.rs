use std::any::Any;
use std::future::pending;
use std::io::IoSlice;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;
use std::thread;
use std::time::Duration;

use async_trait::async_trait;
use smc_core::device::{
    Attachment, Device, DeviceError, Direct, Dmb, Doorbell, Event, Identity, Limits, Nocopy,
    Operations, Signal, SubmitError,
};
use smc_core::mem::Region;
use smc_testkit::memory_device::MemDevice;
use smc_wire::types::{Chid, DmbToken, Gid};

use crate::flaw::Flaw;
use crate::parts::{BrokenAttachment, BrokenDmb, Entry, Held, Relay};

/// A memory device that does one thing wrong.
#[derive(Debug)]
pub(crate) struct Broken {
    pub(crate) inner: Arc<MemDevice>,
    flaw: Flaw,
    index: usize,
    identity: Identity,
    shared: Arc<Shared>,
    relay: Arc<Relay>,
    held: Held,
    count: AtomicU64,
    is_armed: AtomicBool,
    is_polled: AtomicBool,
    is_removed: AtomicBool,
}

/// What the broken devices of a fabric know of each other.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    entries: Mutex<Vec<Entry>>,
    pool: Mutex<Vec<Arc<dyn Dmb>>>,
    devices: Mutex<Vec<Arc<MemDevice>>>,
    memory: Mutex<Option<Region>>,
    attached: Mutex<Vec<Region>>,
}

impl Shared {
    pub(crate) fn entries(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.entries.lock().unwrap()
    }

    pub(crate) fn pool(&self) -> MutexGuard<'_, Vec<Arc<dyn Dmb>>> {
        self.pool.lock().unwrap()
    }

    fn device(&self, gid: Gid) -> Option<Arc<MemDevice>> {
        self.devices
            .lock()
            .unwrap()
            .iter()
            .find(|device| device.gid() == gid)
            .cloned()
    }

    /// The real token, and the entry if it is live.
    fn real(&self, token: DmbToken) -> DmbToken {
        self.entries()
            .iter()
            .rev()
            .find(|entry| entry.token == token && entry.is_live)
            .map_or(token, |entry| entry.inner)
    }

    fn shown(&self, token: DmbToken) -> DmbToken {
        self.entries()
            .iter()
            .rev()
            .find(|entry| entry.inner == token)
            .map_or(token, |entry| entry.token)
    }
}

impl Broken {
    pub(crate) fn new(
        inner: Arc<MemDevice>,
        flaw: Flaw,
        index: usize,
        shared: &Arc<Shared>,
    ) -> Self {
        let name = if flaw == Flaw::Nameless {
            ""
        } else {
            &inner.identity().name
        };
        shared.devices.lock().unwrap().push(Arc::clone(&inner));
        Self {
            identity: Identity::new(name),
            inner,
            flaw,
            index,
            shared: Arc::clone(shared),
            relay: Arc::default(),
            held: Held::default(),
            count: AtomicU64::new(0),
            is_armed: AtomicBool::new(false),
            is_polled: AtomicBool::new(false),
            is_removed: AtomicBool::new(false),
        }
    }

    pub(crate) fn of(device: &Arc<dyn Device>) -> &Self {
        let any: &dyn Any = &**device;
        any.downcast_ref().unwrap()
    }

    pub(crate) fn remove(&self) {
        if self.flaw == Flaw::IgnoresRemoval {
            self.is_removed.store(true, Ordering::SeqCst);
        } else {
            self.inner.remove();
        }
    }

    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == flaw
    }

    /// True for a few of all signals.
    fn loses_this_one(&self) -> bool {
        self.count.fetch_add(1, Ordering::SeqCst) % 997 == 996
    }

    fn report(&self, event: Event, sink: &mut dyn FnMut(Event)) {
        match event {
            Event::Signalled(_) if self.has(Flaw::Mute) => {}
            Event::Signalled(_) if self.has(Flaw::LosesSome) && self.loses_this_one() => {}
            Event::Signalled(_) if self.has(Flaw::ReportsAll) => {
                let tokens: Vec<_> = self.shared.entries().iter().map(|e| e.token).collect();
                tokens
                    .into_iter()
                    .for_each(|token| sink(Event::Signalled(token)));
            }
            Event::Signalled(_) if self.has(Flaw::Panics) => panic!("broken as ordered"),
            Event::Signalled(token) => sink(Event::Signalled(self.shared.shown(token))),
            Event::PeerGone(_) if self.has(Flaw::HidesGone) => {}
            Event::PeerGone(gid) => self.report_gone(gid, sink),
            other => sink(other),
        }
    }

    fn report_gone(&self, gid: Gid, sink: &mut dyn FnMut(Event)) {
        sink(Event::PeerGone(gid));
        if self.has(Flaw::ReportsGoneTwice) {
            sink(Event::PeerGone(gid));
        }
        if self.has(Flaw::AllGoTogether) {
            let devices = self.shared.devices.lock().unwrap();
            let others = devices.iter().map(|device| device.gid());
            others
                .filter(|other| *other != gid)
                .for_each(|other| sink(Event::PeerGone(other)));
        }
        if self.has(Flaw::DeathWipes) {
            for entry in self.shared.entries().iter().filter(|entry| entry.is_live) {
                entry.region.zero(0, entry.region.len()).unwrap();
            }
            for region in self.shared.attached.lock().unwrap().iter() {
                region.zero(0, region.len()).unwrap();
            }
        }
    }
}

impl Device for Broken {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn limits(&self) -> Limits {
        let limits = self.inner.limits();
        match self.flaw {
            // The real limit stays.
            Flaw::NoLimits => Limits::new(0, limits.max_dmb_len),
            _ => limits,
        }
    }

    fn operations(&self) -> Operations<'_> {
        Operations::Direct(self)
    }

    fn drain(&self, sink: &mut dyn FnMut(Event)) -> Result<(), DeviceError> {
        if self.has(Flaw::EmptyDrainDisarms) {
            self.relay.is_armed.store(false, Ordering::SeqCst);
        }
        let was_armed = self.is_armed.swap(false, Ordering::SeqCst);
        let mut events = Vec::new();
        self.inner.drain(&mut |event| events.push(event))?;
        if self.has(Flaw::ArmedDrainForgets) && was_armed {
            events.retain(|event| !matches!(event, Event::Signalled(_)));
        }
        if self.has(Flaw::FreedSpoilsDrain) {
            let entries = self.shared.entries();
            let is_freed = |token| entries.iter().any(|e| e.inner == token && !e.is_live);
            let spoils = |event: &Event| matches!(event, Event::Signalled(t) if is_freed(*t));
            if events.iter().any(spoils) {
                return Ok(());
            }
        }
        events
            .into_iter()
            .for_each(|event| self.report(event, sink));
        Ok(())
    }

    fn poll(&self, sink: &mut dyn FnMut(Event)) -> Result<(), DeviceError> {
        self.is_polled.store(true, Ordering::SeqCst);
        match self.flaw {
            Flaw::PollForgets => self.inner.drain(&mut |_| {}),
            _ => self.drain(sink),
        }
    }

    fn arm(&self) -> Result<(), DeviceError> {
        if self.has(Flaw::PollDisarms) && self.is_polled.load(Ordering::SeqCst) {
            return Ok(());
        }
        if self.has(Flaw::ArmForgets) {
            self.inner.drain(&mut |_| {})?;
        }
        self.is_armed.store(true, Ordering::SeqCst);
        if self.has(Flaw::EmptyDrainDisarms) {
            self.relay.is_armed.store(true, Ordering::SeqCst);
            if let Doorbell::Waker(inner) = self.inner.doorbell() {
                inner.register(&Waker::from(Arc::clone(&self.relay)));
            }
        }
        self.inner.arm()?;
        if let (true, Doorbell::Waker(wake_signal)) =
            (self.has(Flaw::RestlessBell), self.doorbell())
        {
            wake_signal.wake();
        }
        Ok(())
    }

    fn doorbell(&self) -> Doorbell<'_> {
        match self.flaw {
            Flaw::EmptyDrainDisarms | Flaw::NoBell => Doorbell::Waker(&self.relay.outer),
            _ => self.inner.doorbell(),
        }
    }
}

#[async_trait]
impl Direct for Broken {
    fn gid(&self) -> Gid {
        let gid = self.inner.gid();
        match self.flaw {
            Flaw::NativeGid => Gid::from(gid.hi()),
            Flaw::RestlessGid => Gid::new(
                gid.hi().0 ^ self.count.fetch_add(1, Ordering::SeqCst),
                gid.lo().0,
            ),
            _ => gid,
        }
    }

    fn chid(&self) -> Chid {
        self.inner.chid()
    }

    async fn reach(&self, peer: Gid) -> Result<(), DeviceError> {
        match self.flaw {
            Flaw::Hangs => pending().await,
            Flaw::ReachesNothing => Err(DeviceError::Unreachable {
                peer,
                why: "broken",
            }),
            Flaw::ReachesEverything => Ok(()),
            _ => self.inner.reach(peer).await,
        }
    }

    async fn register(&self, peer: Gid, len: usize) -> Result<Arc<dyn Dmb>, DeviceError> {
        let len = match self.flaw {
            Flaw::Hangs => pending().await,
            Flaw::ClampsLength => len.min(self.inner.limits().max_dmb_len),
            _ => len,
        };
        // A restless GID is known under its first name.
        let peer = if self.has(Flaw::RestlessGid) {
            self.inner.gid()
        } else {
            peer
        };
        let pooled = self
            .shared
            .pool()
            .pop()
            .filter(|dmb| dmb.region().len() == len);
        let inner = match pooled {
            Some(dmb) => dmb,
            None => self.inner.register(peer, len).await?,
        };
        let mut region = inner.region().clone();
        if self.has(Flaw::ShortBuffers) {
            region = region.part(0, len - 8).unwrap();
        }
        if self.has(Flaw::OneMemory) {
            region = self
                .shared
                .memory
                .lock()
                .unwrap()
                .get_or_insert(region)
                .clone();
        }
        let token = {
            let entries = self.shared.entries();
            let is_used = |number| entries.iter().any(|e| e.is_live && e.token.0 == number);
            match self.flaw {
                Flaw::NumbersTokens => DmbToken((1..).find(|n| !is_used(*n)).unwrap()),
                _ => inner.token(),
            }
        };
        self.shared.entries().push(Entry {
            token,
            inner: inner.token(),
            region: region.clone(),
            writer: peer,
            is_live: true,
        });
        let (flaw, shared) = (self.flaw, Arc::clone(&self.shared));
        Ok(Arc::new(BrokenDmb {
            inner,
            token,
            region,
            flaw,
            shared,
        }))
    }

    fn move_data(
        &self,
        peer: Gid,
        to: DmbToken,
        at: u32,
        data: &[IoSlice<'_>],
        signal: Signal,
    ) -> Result<(), SubmitError> {
        if self.is_removed.load(Ordering::SeqCst) {
            return Ok(());
        }
        let to = self.shared.real(to);
        let bytes: Vec<u8> = data
            .iter()
            .flat_map(|slice| slice.iter().copied())
            .collect();
        let put = |at: u32, part: &[u8], signal| {
            self.inner
                .move_data(peer, to, at, &[IoSlice::new(part)], signal)
        };
        match self.flaw {
            Flaw::WritesOffByOne if at > 0 => put(at - 1, &bytes, signal),
            Flaw::TakesFirstSlice => put(at, data.first().map_or(&[], |slice| slice), signal),
            Flaw::RefusesEmpty if bytes.is_empty() => Err(SubmitError::OutOfBounds),
            Flaw::ReordersMoves => {
                let earlier = self.held.lock().unwrap().take();
                if signal == Signal::No && earlier.is_none() {
                    *self.held.lock().unwrap() = Some((to, at, bytes));
                    return Ok(());
                }
                put(at, &bytes, signal)?;
                thread::sleep(Duration::from_micros(50));
                earlier.map_or(Ok(()), |(to, at, bytes)| {
                    self.inner
                        .move_data(peer, to, at, &[IoSlice::new(&bytes)], Signal::No)
                })
            }
            Flaw::Truncates => match put(at, &bytes, signal) {
                Err(SubmitError::OutOfBounds) => {
                    put(at, &bytes[..bytes.len().min(1)], signal).or(Ok(()))
                }
                other => other,
            },
            Flaw::WrapsOffsets => put(at % (1 << 14), &bytes, signal),
            Flaw::SwallowsErrors => put(at, &bytes, signal).or(Ok(())),
            Flaw::AllWritersPermitted => match put(at, &bytes, signal) {
                Err(SubmitError::UnknownToken) => {
                    let writer = {
                        let entries = self.shared.entries();
                        entries
                            .iter()
                            .find(|e| e.is_live && e.inner == to)
                            .map(|e| e.writer)
                    };
                    let device = writer.and_then(|gid| self.shared.device(gid));
                    device
                        .ok_or(SubmitError::UnknownToken)?
                        .move_data(peer, to, at, data, signal)
                }
                other => other,
            },
            Flaw::AllOwnersPermitted => {
                let devices = self.shared.devices.lock().unwrap().clone();
                let mut moves = devices
                    .iter()
                    .map(|owner| self.inner.move_data(owner.gid(), to, at, data, signal));
                let unknown = Err(SubmitError::UnknownToken);
                moves.find(|moved| *moved != unknown).unwrap_or(unknown)
            }
            Flaw::RedirectsFreed => match put(at, &bytes, signal) {
                Err(SubmitError::UnknownToken) => {
                    let entries = self.shared.entries();
                    let victim = entries.iter().find(|e| e.is_live);
                    victim.map_or(Err(SubmitError::UnknownToken), |victim| {
                        victim.region.copy_in(at as usize, &bytes).unwrap();
                        Err(SubmitError::UnknownToken)
                    })
                }
                other => other,
            },
            Flaw::TearsWords if bytes.len() == 32 => (0..8_usize)
                .try_for_each(|i| put(at + 4 * i as u32, &bytes[4 * i..][..4], Signal::No))
                .and_then(|()| put(at, &[], signal)),
            Flaw::WritesBackwards if bytes.len() == 32 => (0..4_usize)
                .rev()
                .try_for_each(|i| put(at + 8 * i as u32, &bytes[8 * i..][..8], Signal::No))
                .and_then(|()| put(at, &[], signal)),
            Flaw::AlwaysSignals => put(at, &bytes, Signal::Yes),
            Flaw::SignalsFirst if signal == Signal::Yes => {
                put(at, &[], signal)?;
                thread::sleep(Duration::from_micros(200));
                put(at, &bytes, Signal::No)
            }
            _ => self.inner.move_data(peer, to, at, data, signal),
        }
    }

    fn nocopy(&self) -> Option<&dyn Nocopy> {
        let is_lacking = self.has(Flaw::OneSidedNocopy) && self.index == 1;
        (!is_lacking).then_some(self)
    }
}

#[async_trait]
impl Nocopy for Broken {
    async fn attach(&self, peer: Gid, token: DmbToken) -> Result<Arc<dyn Attachment>, DeviceError> {
        let flaw = self.flaw;
        let token = self.shared.real(token);
        match self.inner.attach(peer, token).await {
            Ok(inner) => {
                let region = match flaw {
                    Flaw::AttachesCopy => Region::anonymous(inner.region().len()),
                    _ => inner.region().clone(),
                };
                self.shared.attached.lock().unwrap().push(region.clone());
                Ok(Arc::new(BrokenAttachment {
                    inner: Some(inner),
                    region,
                    flaw,
                }))
            }
            Err(_) if flaw == Flaw::AttachesAnything => {
                let region = Region::anonymous(1 << 14);
                Ok(Arc::new(BrokenAttachment {
                    inner: None,
                    region,
                    flaw,
                }))
            }
            Err(error) => Err(error),
        }
    }
}
