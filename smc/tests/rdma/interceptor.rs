//! A device whose user sees other messages than its peer has sent.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};

use async_trait::async_trait;
use futures_lite::future::block_on;
use smc_core::device::{
    Access, Device, DeviceError, Doorbell, Event, Identity, Inbound, Limits, Link, LinkAddress,
    LinkCounters, Mr, OpId, Operations, PendingLink, ProtectionDomain, Rdma, RdmaAddress, Route,
    SubmitError, Write,
};
use smc_core::mem::Region;
use smc_core::wire::cdc::CdcR;
use smc_core::wire::llc::{Class, Header, MessageType};
use smc_core::wire::types::{Qpn, Rkey, RmbAddr};
use smc_testkit::memory_rdma::{MemoryRdma, RdmaNetwork};

/// What becomes of a message: those that are seen instead of it.
type MessageFilter = Box<dyn FnMut(&[u8]) -> Vec<Vec<u8>> + Send>;

/// When messages that are kept back are handed out.
type Gate = Box<dyn Fn() -> bool + Send>;

/// Where all writes of a device go, if not where its user wants.
type Aim = Arc<Mutex<Option<(Rkey, RmbAddr)>>>;

/// A [`MemoryRdma`] with a hand in between.
pub(crate) struct Interceptor {
    inner: Arc<MemoryRdma>,
    filter: Mutex<Option<MessageFilter>>,
    kept: Mutex<Option<(Gate, Vec<Event>)>>,
    aim: Aim,
    drains: AtomicUsize,
    is_flooded: AtomicBool,
    is_stopped: AtomicBool,
}

impl Interceptor {
    pub(crate) fn new(inner: Arc<MemoryRdma>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            filter: Mutex::default(),
            kept: Mutex::default(),
            aim: Aim::default(),
            drains: AtomicUsize::default(),
            is_flooded: AtomicBool::default(),
            is_stopped: AtomicBool::default(),
        })
    }

    /// Both devices of a host, and the same for an endpoint.
    pub(crate) fn pair(inner: &[Arc<MemoryRdma>; 2]) -> ([Arc<Self>; 2], Vec<Arc<dyn Device>>) {
        let both = inner.each_ref().map(|inner| Self::new(Arc::clone(inner)));
        let devices = both.iter().map(|device| Arc::clone(device) as _);
        (both.clone(), devices.collect())
    }

    /// From now on each message is replaced by what this gives.
    pub(crate) fn set_filter(&self, with: impl FnMut(&[u8]) -> Vec<Vec<u8>> + Send + 'static) {
        *self.filter.lock().expect("the lock is not poisoned") = Some(Box::new(with));
    }

    /// From now on messages are kept back, until a drain finds that they may be handed out: as in a
    /// receive queue that is drained late.
    pub(crate) fn keep_until(&self, may_pass: impl Fn() -> bool + Send + 'static) {
        let kept: (Gate, _) = (Box::new(may_pass), Vec::new());
        *self.kept.lock().expect("the lock is not poisoned") = Some(kept);
    }

    /// Whether each drain has an event of another link, as with a peer that sends without end.
    pub(crate) fn set_flooded(&self, is_flooded: bool) {
        self.is_flooded.store(is_flooded, Ordering::Relaxed);
    }

    /// Whether drains take nothing, so that no receive is posted again: as in a process that does
    /// not run.
    pub(crate) fn set_stopped(&self, is_stopped: bool) {
        self.is_stopped.store(is_stopped, Ordering::Relaxed);
        if let (false, Doorbell::Waker(doorbell)) = (is_stopped, self.inner.doorbell()) {
            doorbell.wake();
        }
    }

    /// How often the device was drained since the last call.
    pub(crate) fn take_drains(&self) -> usize {
        self.drains.swap(0, Ordering::Relaxed)
    }

    /// What may be handed out of these events and those before, in their order.
    fn passed(&self, mut events: Vec<Event>) -> Vec<Event> {
        match &mut *self.kept.lock().expect("the lock is not poisoned") {
            None => events,
            Some((may_pass, kept)) => {
                kept.append(&mut events);
                match may_pass() {
                    true => std::mem::take(kept),
                    false => Vec::new(),
                }
            }
        }
    }

    /// Changes the next message of a connection that this takes.
    pub(crate) fn change_once(&self, mut change: impl FnMut(&mut CdcR) -> bool + Send + 'static) {
        let mut is_done = false;
        self.set_filter(move |message| {
            let mut message = message.to_vec();
            if let (false, Ok(mut cdc)) = (is_done, CdcR::parse(&message)) {
                is_done = change(&mut cdc);
                if is_done {
                    message = cdc.to_bytes().to_vec();
                }
            }
            vec![message]
        });
    }

    /// From now on all writes go to this memory of the peer's device.
    pub(crate) fn aim_at(&self, rkey: Rkey, addr: RmbAddr) {
        *self.aim.lock().expect("the lock is not poisoned") = Some((rkey, addr));
    }

    fn seen(&self, message: &Inbound) -> Vec<Vec<u8>> {
        match &mut *self.filter.lock().expect("the lock is not poisoned") {
            Some(filter) => filter(message.as_bytes()),
            None => vec![message.as_bytes().to_vec()],
        }
    }
}

impl Device for Interceptor {
    fn identity(&self) -> &Identity {
        self.inner.identity()
    }

    fn limits(&self) -> Limits {
        self.inner.limits()
    }

    fn operations(&self) -> Operations<'_> {
        Operations::Rdma(self)
    }

    fn drain(&self, sink: &mut dyn FnMut(Event)) -> Result<(), DeviceError> {
        self.drains.fetch_add(1, Ordering::Relaxed);
        if self.is_stopped.load(Ordering::Relaxed) {
            return Ok(());
        }
        if self.is_flooded.load(Ordering::Relaxed) {
            let link = Qpn::new(0x00ff_ffff).expect("24 bits");
            sink(Event::Completed { link, op: OpId(0) });
        }
        loop {
            let (mut may_be_disarmed, mut is_silent) = (false, true);
            let mut sink = |event| {
                is_silent = false;
                sink(event);
            };
            self.passed(Vec::new()).into_iter().for_each(&mut sink);
            self.inner.drain(&mut |event| {
                may_be_disarmed = true;
                match event {
                    Event::Received { link, message } => {
                        let seen = self.seen(&message).into_iter().map(|message| {
                            let message = Inbound::new(&message);
                            Event::Received { link, message }
                        });
                        self.passed(seen.collect()).into_iter().for_each(&mut sink);
                    }
                    event => sink(event),
                }
            })?;
            if !(is_silent && may_be_disarmed) {
                return Ok(());
            }
            // A drain that hands out nothing leaves the device armed.
            self.inner.arm()?;
        }
    }

    fn arm(&self) -> Result<(), DeviceError> {
        self.inner.arm()
    }

    fn doorbell(&self) -> Doorbell<'_> {
        self.inner.doorbell()
    }
}

#[async_trait]
impl Rdma for Interceptor {
    fn addresses(&self) -> Vec<RdmaAddress> {
        self.inner.addresses()
    }

    fn arm_completions(&self) -> Result<(), DeviceError> {
        match self.inner.operations() {
            Operations::Rdma(inner) => inner.arm_completions(),
            _ => Ok(()),
        }
    }

    async fn protection_domain(&self) -> Result<Arc<dyn ProtectionDomain>, DeviceError> {
        Ok(Arc::new(InterceptedDomain {
            inner: self.inner.protection_domain().await?,
            aim: Arc::clone(&self.aim),
        }))
    }
}

#[derive(Debug)]
struct InterceptedDomain {
    inner: Arc<dyn ProtectionDomain>,
    aim: Aim,
}

#[async_trait]
impl ProtectionDomain for InterceptedDomain {
    async fn open_link(&self, at: &RdmaAddress) -> Result<Box<dyn PendingLink>, DeviceError> {
        Ok(Box::new(InterceptedPending {
            inner: self.inner.open_link(at).await?,
            aim: Arc::clone(&self.aim),
        }))
    }

    async fn register(&self, memory: &Region, access: Access) -> Result<Arc<dyn Mr>, DeviceError> {
        self.inner.register(memory, access).await
    }
}

#[derive(Debug)]
struct InterceptedPending {
    inner: Box<dyn PendingLink>,
    aim: Aim,
}

#[async_trait]
impl PendingLink for InterceptedPending {
    fn local(&self) -> LinkAddress {
        self.inner.local()
    }

    async fn connect(
        self: Box<Self>,
        peer: LinkAddress,
        route: Route,
    ) -> Result<Arc<dyn Link>, DeviceError> {
        Ok(Arc::new(InterceptedLink {
            inner: self.inner.connect(peer, route).await?,
            aim: self.aim,
        }))
    }
}

#[derive(Debug)]
struct InterceptedLink {
    inner: Arc<dyn Link>,
    aim: Aim,
}

impl Link for InterceptedLink {
    fn qpn(&self) -> Qpn {
        self.inner.qpn()
    }

    fn post(&self, op: OpId, writes: &[Write<'_>], message: &[u8]) -> Result<(), SubmitError> {
        let mut writes = writes.to_vec();
        if let Some((rkey, to)) = *self.aim.lock().expect("the lock is not poisoned") {
            for write in &mut writes {
                (write.rkey, write.to) = (rkey, to);
            }
        }
        self.inner.post(op, &writes, message)
    }

    fn close(&self) {
        self.inner.close();
    }

    fn receives(&self) -> u32 {
        self.inner.receives()
    }

    fn counters(&self) -> LinkCounters {
        self.inner.counters()
    }
}

impl fmt::Debug for Interceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// Drain, arm, drain, park: what comes after that has to wake, whatever the second drain kept back.
#[test]
fn a_drain_that_hands_out_nothing_leaves_the_device_armed() {
    struct Bell(AtomicBool);
    impl Wake for Bell {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let network = RdmaNetwork::new(1);
    let (a, b) = (network.device("a0"), Interceptor::new(network.device("b0")));
    block_on(async {
        let [to_b, to_a] = [rdma(&a), &*b].map(|device| async {
            let at = device.addresses().remove(0);
            let domain = device.protection_domain().await.expect("a domain");
            domain.open_link(&at).await.expect("a queue pair")
        });
        let (to_b, to_a) = (to_b.await, to_a.await);
        let ends = (to_b.local(), to_a.local());
        let to_b = to_b
            .connect(ends.1, Route::SameSubnet)
            .await
            .expect("connects");
        let _to_a = to_a
            .connect(ends.0, Route::SameSubnet)
            .await
            .expect("connects");

        let bell = Arc::new(Bell(AtomicBool::new(false)));
        let Doorbell::Waker(doorbell) = b.doorbell() else {
            panic!("memory devices wake");
        };
        doorbell.register(&Waker::from(Arc::clone(&bell)));
        b.set_filter(|_| Vec::new());
        to_b.post(OpId(1), &[], &[1; 44]).expect("has space");
        b.arm().expect("works");
        b.drain(&mut |event| panic!("{event:?} is handed out"))
            .expect("works");
        to_b.post(OpId(2), &[], &[2; 44]).expect("has space");
        assert!(bell.0.load(Ordering::Relaxed), "a lost wake-up");
    });
}

fn rdma(device: &MemoryRdma) -> &dyn Rdma {
    match device.operations() {
        Operations::Rdma(rdma) => rdma,
        _ => unreachable!("it is one"),
    }
}

/// The LLC messages that a device receives; those that `keep` refuses are dropped.
pub(crate) fn recorded(
    device: &Interceptor,
    keep: impl Fn(MessageType, Class) -> bool + Send + 'static,
) -> Arc<Mutex<Vec<(MessageType, Class)>>> {
    let messages = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&messages);
    device.set_filter(move |message| {
        let kind = Header::parse(message, None).ok();
        let kind = kind.and_then(|header| Some((header.message_type()?, header.class())));
        if let Some((kind, class)) = kind {
            log.lock()
                .expect("the lock is not poisoned")
                .push((kind, class));
            if !keep(kind, class) {
                return Vec::new();
            }
        }
        vec![message.to_vec()]
    });
    messages
}
