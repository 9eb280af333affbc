use std::any::Any;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;

use async_trait::async_trait;
use smc_core::device::{
    Access, Device, DeviceError, Doorbell, Event, Identity, Inbound, Limits, Mr, Operations,
    PendingLink, ProtectionDomain, Rdma, RdmaAddress,
};
use smc_core::mem::Region;
use smc_testkit::memory_rdma::MemoryRdma;
use smc_wire::types::Qpn;

use super::flaw::Flaw;
use super::parts::{BrokenMr, BrokenPending, Shared};
use crate::parts::Relay;

/// A memory device for SMC-R that does one thing wrong.
#[derive(Debug)]
pub(crate) struct Broken {
    pub(crate) inner: Arc<MemoryRdma>,
    flaw: Flaw,
    index: usize,
    identity: Identity,
    shared: Arc<Shared>,
    relay: Arc<Relay>,
    links: Arc<AtomicUsize>,
    known: Arc<Mutex<BTreeSet<Qpn>>>,
    domain: Mutex<Option<Arc<dyn ProtectionDomain>>>,
    count: AtomicU64,
    is_armed: AtomicBool,
}

impl Broken {
    pub(crate) fn new(
        inner: Arc<MemoryRdma>,
        flaw: Flaw,
        index: usize,
        shared: &Arc<Shared>,
    ) -> Self {
        let name = match flaw {
            Flaw::Nameless => "",
            _ => &inner.identity().name,
        };
        Self {
            identity: Identity::new(name),
            inner,
            flaw,
            index,
            shared: Arc::clone(shared),
            relay: Arc::default(),
            links: Arc::default(),
            known: Arc::default(),
            domain: Mutex::default(),
            count: AtomicU64::new(0),
            is_armed: AtomicBool::new(false),
        }
    }

    pub(crate) fn of(device: &Arc<dyn Device>) -> &Self {
        let any: &dyn Any = &**device;
        any.downcast_ref().unwrap()
    }

    pub(crate) fn remove(&self) {
        if self.flaw != Flaw::IgnoresRemoval {
            self.inner.remove();
        }
    }

    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == flaw
    }

    /// True for a few of all events.
    fn is_lost(&self) -> bool {
        self.count.fetch_add(1, Ordering::SeqCst) % 97 == 96
    }

    fn spoil(&self, events: &mut Vec<Event>) {
        let is_message = |event: &Event| matches!(event, Event::Received { .. });
        let is_completion = |event: &Event| matches!(event, Event::Completed { .. });
        match self.flaw {
            Flaw::OneWay if self.index == 0 => events.retain(|event| !is_message(event)),
            Flaw::LosesSome => events.retain(|event| !is_message(event) || !self.is_lost()),
            Flaw::LosesCompletions => {
                events.retain(|event| !is_completion(event) || !self.is_lost())
            }
            Flaw::LosesWhenFull => events.truncate(20),
            Flaw::ReordersMessages if events.iter().filter(|it| is_message(it)).count() > 1 => {
                events.reverse();
            }
            Flaw::ReordersCompletions
                if events.iter().filter(|it| is_completion(it)).count() > 1 =>
            {
                events.reverse();
            }
            Flaw::ReportsCompletionsTwice => {
                let again: Vec<_> = events
                    .iter()
                    .filter(|it| is_completion(it))
                    .cloned()
                    .collect();
                events.extend(again);
            }
            Flaw::HidesDown => events.retain(|it| !matches!(it, Event::LinkDown { .. })),
            Flaw::HidesPorts => events.retain(|it| *it != Event::AddressesChanged),
            Flaw::ReportsDownTwice => {
                let downs = events.iter();
                let downs = downs.filter(|it| matches!(it, Event::LinkDown { .. }));
                let again: Vec<_> = downs.cloned().collect();
                events.extend(again);
            }
            Flaw::AllGoTogether => {
                let causes = events.iter().filter_map(|event| match event {
                    Event::LinkDown { cause, .. } => Some(*cause),
                    _ => None,
                });
                let known = self.known.lock().unwrap().clone();
                let others = causes.flat_map(|cause| {
                    let downs = known.iter();
                    downs.map(move |link| Event::LinkDown { link: *link, cause })
                });
                let others: Vec<_> = others.collect();
                events.extend(others);
            }
            Flaw::Panics if events.iter().any(is_message) => panic!("broken as ordered"),
            _ => {}
        }
        for event in events {
            if let Event::Received { link, message } = event {
                match self.flaw {
                    Flaw::AlwaysLong => *message = Inbound::Long(message.as_bytes().into()),
                    Flaw::WrongLink => *link = *self.known.lock().unwrap().first().unwrap(),
                    _ => {}
                }
            }
        }
    }
}

impl Device for Broken {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn limits(&self) -> Limits {
        self.inner.limits()
    }

    fn operations(&self) -> Operations<'_> {
        Operations::Rdma(self)
    }

    fn drain(&self, sink: &mut dyn FnMut(Event)) -> Result<(), DeviceError> {
        if self.has(Flaw::EmptyDrainDisarms) {
            self.relay.is_armed.store(false, Ordering::SeqCst);
        }
        let was_armed = self.is_armed.swap(false, Ordering::SeqCst);
        let mut events = Vec::new();
        self.inner.drain(&mut |event| events.push(event))?;
        if self.has(Flaw::ArmedDrainForgets) && was_armed {
            return Ok(());
        }
        self.spoil(&mut events);
        events.into_iter().for_each(sink);
        Ok(())
    }

    fn arm(&self) -> Result<(), DeviceError> {
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
impl Rdma for Broken {
    fn addresses(&self) -> Vec<RdmaAddress> {
        let mut addresses = self.inner.addresses();
        match self.flaw {
            Flaw::DoublesAddresses => addresses.extend_from_within(..),
            Flaw::RestlessAddresses => {
                let turn = self.count.fetch_add(1, Ordering::SeqCst) as usize;
                let count = addresses.len();
                addresses.rotate_left(turn % count);
            }
            _ => {}
        }
        addresses
    }

    fn arm_completions(&self) -> Result<(), DeviceError> {
        self.inner.arm_completions()
    }

    async fn protection_domain(&self) -> Result<Arc<dyn ProtectionDomain>, DeviceError> {
        let fresh = self.inner.protection_domain().await?;
        let mut one = self.domain.lock().unwrap();
        let first = Arc::clone(one.get_or_insert_with(|| Arc::clone(&fresh)));
        Ok(Arc::new(BrokenDomain {
            inner: if self.has(Flaw::OneDomain) {
                first
            } else {
                fresh
            },
            device: Arc::clone(&self.inner),
            flaw: self.flaw,
            index: self.index,
            shared: Arc::clone(&self.shared),
            links: Arc::clone(&self.links),
            known: Arc::clone(&self.known),
        }))
    }
}

#[derive(Debug)]
struct BrokenDomain {
    inner: Arc<dyn ProtectionDomain>,
    device: Arc<MemoryRdma>,
    flaw: Flaw,
    index: usize,
    shared: Arc<Shared>,
    links: Arc<AtomicUsize>,
    known: Arc<Mutex<BTreeSet<Qpn>>>,
}

impl BrokenDomain {
    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == flaw
    }
}

#[async_trait]
impl ProtectionDomain for BrokenDomain {
    async fn open_link(&self, at: &RdmaAddress) -> Result<Box<dyn PendingLink>, DeviceError> {
        let known = self.known.lock().unwrap().len();
        if self.has(Flaw::FewLinks) && known >= 8 {
            return Err(DeviceError::Exhausted);
        }
        if self.has(Flaw::Stingy) && known >= 3 {
            return Err(DeviceError::Exhausted);
        }
        let result = self.inner.open_link(at).await;
        let inner = match result {
            Err(_) if self.has(Flaw::OpensAnywhere) => {
                let first = self.device.addresses().remove(0);
                self.inner.open_link(&first).await?
            }
            other => other?,
        };
        let local = inner.local();
        self.known.lock().unwrap().insert(local.qpn);
        let mut state = self.shared.lock();
        state.ends.insert((local.gid, local.qpn), local);
        Ok(Box::new(BrokenPending {
            inner: Some(inner),
            flaw: self.flaw,
            index: self.index,
            shared: Arc::clone(&self.shared),
            links: Arc::clone(&self.links),
        }))
    }

    async fn register(&self, memory: &Region, access: Access) -> Result<Arc<dyn Mr>, DeviceError> {
        let (real, access) = match self.flaw {
            Flaw::CopiesMemory => (Region::anonymous(memory.len()), access),
            Flaw::ShortMemory => (memory.part(0, memory.len() - 1).unwrap(), access),
            Flaw::IgnoresAccess => (memory.clone(), Access::RemoteWrite),
            _ => (memory.clone(), access),
        };
        let inner = self.inner.register(&real, access).await?;
        let mut state = self.shared.lock();
        if access == Access::RemoteWrite {
            let entry = (memory.clone(), inner.addr());
            state.memory.insert(inner.rkey().0, entry);
        }
        let shown = match self.flaw {
            Flaw::ShowsPart => memory.part(0, memory.len() / 2).unwrap(),
            _ => memory.clone(),
        };
        Ok(Arc::new(BrokenMr {
            inner,
            region: shown,
            flaw: self.flaw,
            shared: Arc::clone(&self.shared),
            links: Arc::clone(&self.links),
        }))
    }
}
