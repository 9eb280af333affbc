//! The device.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use sideway::ibverbs::completion::{
    BasicCompletionQueue, CompletionChannel, CreateCompletionChannelErrorKind,
    CreateCompletionQueueErrorKind,
};
use sideway::ibverbs::device_context::{DeviceAttr, DeviceContext, QueryDeviceErrorKind};
use smc_core::device::{
    Device, DeviceError, Doorbell, Event, Identity, Limits, LinkFailure, Operations,
    ProtectionDomain, RECEIVES_MIN, Rdma, RdmaAddress, SENDS_MAX,
};
use smc_core::mem::sync::{AtomicBool, Ordering};
use smc_core::mutex::Mutex;

use crate::buffers::buffers_len;
use crate::completion::Taken;
use crate::config::{Builder, CONTIGUOUS_RECEIVES, RECEIVES};
use crate::domain::{self, RdmaProtectionDomain};
use crate::doorbell::{EventSet, ReadySources, node_of};
use crate::error::OpenError;
use crate::link::{self, Core};
use crate::links::{Links, Serial};
use crate::offload::Workers;
use crate::retry_policy::RetryPolicy;
use crate::teardown::is_device_gone;
use crate::verbs::{self, QueueId};
use crate::{async_events, completion, hardware_counters, port, probe};

/// An RDMA device that supports RoCE.
///
/// It is closed when it and all links and registrations made by it are dropped, in whatever order.
#[derive(Debug)]
pub struct RdmaDevice {
    identity: Identity,
    limits: Limits,
    consumer: Mutex<Consumer>,
    parts: Arc<Parts>,
}

/// State that only the one consumer uses.
#[derive(Debug, Default)]
struct Consumer {
    /// Drains so far.
    drains: u64,
    /// Queues that are armed and whose event was not read.
    receives_armed: bool,
    sends_armed: bool,
    /// Other descriptors that became readable, for the next drain.
    ready: ReadySources,
    taken: Taken,
}

impl RdmaDevice {
    /// Opens a device by its name, such as `mlx5_0` or `rxe0`, with the usual settings.
    ///
    /// # Errors
    ///
    /// As [`Builder::open`].
    pub fn open(name: &str) -> Result<Self, OpenError> {
        Self::builder(name).open()
    }

    /// Settings of a device to be opened.
    pub fn builder(name: impl Into<String>) -> Builder {
        Builder::new(name)
    }

    /// Names of the devices that there are, usable or not; see [`probe`](crate::probe()) for more.
    ///
    /// # Errors
    ///
    /// [`OpenError::NoLibrary`], [`OpenError::NoDevices`].
    pub fn list() -> Result<Vec<String>, OpenError> {
        probe::names()
    }

    pub(crate) fn with(settings: Builder) -> Result<Self, OpenError> {
        let context = probe::context(&settings.name)?;
        let attributes = attributes(&context)?;
        let depths = Depths::of(&attributes, &settings)?;
        let limits = Limits::new(
            usize::try_from(attributes.max_mr()).unwrap_or(0),
            usize::try_from(attributes.max_mr_size()).unwrap_or(usize::MAX),
        );
        let retry_policy = match attributes.vendor_id() {
            SOFT_ROCE => RetryPolicy::SOFT_ROCE,
            _ => RetryPolicy::HARDWARE,
        };
        let parts = Parts::new(&settings, context, depths, retry_policy)?;
        let mut identity = Identity::new(settings.name);
        identity.pnet_id = settings.pnet_id;
        Ok(Self {
            identity,
            limits,
            consumer: Mutex::default(),
            parts: Arc::new(parts),
        })
    }

    #[cfg(test)]
    pub(crate) fn parts(&self) -> &Arc<Parts> {
        &self.parts
    }

    /// Sees what has rung, and takes the events of the completion channel, which make it readable.
    fn poll(&self, consumer: &mut Consumer) -> Result<(), DeviceError> {
        let ready = self.parts.event_set.poll();
        let ready = ready.map_err(|error| DeviceError::os("polling for events", &error))?;
        consumer.ready.asynchronous |= ready.asynchronous;
        consumer.ready.nodes |= ready.nodes;
        // A queue has one event at most, since it is armed only after the one before was read.
        let mut is_rung = ready.completion;
        while is_rung && (consumer.receives_armed || consumer.sends_armed) {
            let event = verbs::take_event(&self.parts.channel)
                .map_err(|error| DeviceError::os("reading completion events", &error))?;
            match event {
                Some(queue) if queue == QueueId::of(&self.parts.receives) => {
                    consumer.receives_armed = false;
                }
                Some(_) => consumer.sends_armed = false,
                None => is_rung = false,
            }
        }
        Ok(())
    }
}

impl Device for RdmaDevice {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn operations(&self) -> Operations<'_> {
        Operations::Rdma(self)
    }

    fn drain(&self, sink: &mut dyn FnMut(Event)) -> Result<(), DeviceError> {
        let mut consumer = self.consumer.lock();
        self.parts.check()?;
        consumer.drains = consumer.drains.wrapping_add(1);
        let mut is_any = false;
        let sink = &mut |event| {
            is_any = true;
            sink(event);
        };
        let was_armed = (consumer.receives_armed, consumer.sends_armed);
        // A check takes a system call. Arming checks each time, polling alone once in some drains.
        if consumer.drains % LOOK_EVERY == 0 {
            self.poll(&mut consumer)?;
        }
        self.deliver(&mut consumer, sink)?;
        if !is_any && was_armed != (consumer.receives_armed, consumer.sends_armed) {
            // The event was late, for a completion that was handed out before. The driver may sleep
            // now, as it gets nothing, and no completion would wake it.
            self.parts.event_set.ring();
        }
        Ok(())
    }

    fn arm(&self) -> Result<(), DeviceError> {
        let mut consumer = self.consumer.lock();
        self.parts.check()?;
        // The caller may have been woken by the event, and would be again.
        self.poll(&mut consumer)?;
        if !consumer.receives_armed {
            request_notify(&self.parts.receives)?;
            consumer.receives_armed = true;
        }
        Ok(())
    }

    fn doorbell(&self) -> Doorbell<'_> {
        Doorbell::Fd(self.parts.event_set.fd())
    }
}

impl RdmaDevice {
    /// Hands out what there is.
    fn deliver(
        &self,
        consumer: &mut Consumer,
        sink: &mut dyn FnMut(Event),
    ) -> Result<(), DeviceError> {
        let ready = std::mem::take(&mut consumer.ready);
        if ready.asynchronous || ready.nodes {
            // What links received and acknowledged before they failed comes first.
            completion::drain(&self.parts, &mut consumer.taken, sink)?;
        }
        if ready.asynchronous || self.parts.is_port_change_pending.load(Ordering::Relaxed) {
            async_events::drain(&self.parts, sink)?;
        }
        if ready.nodes && self.parts.is_removed() {
            async_events::gone(&self.parts, sink);
        }
        if self.parts.is_gone() {
            return Ok(());
        }
        completion::drain(&self.parts, &mut consumer.taken, sink)?;
        if self.parts.has_stopped() {
            // The peer takes for delivered what a link has acknowledged. That is in the queue once
            // its queue pair is stopped, and would be lost behind the report.
            completion::drain_receives(&self.parts, &mut consumer.taken, sink)?;
            self.parts.report_stopped(sink);
        }
        Ok(())
    }
}

#[async_trait]
impl Rdma for RdmaDevice {
    fn addresses(&self) -> Vec<RdmaAddress> {
        let entries = self.parts.addresses.lock();
        entries.iter().map(|entry| entry.address.clone()).collect()
    }

    async fn protection_domain(&self) -> Result<Arc<dyn ProtectionDomain>, DeviceError> {
        self.parts.check()?;
        let parts = Arc::clone(&self.parts);
        let domain = self
            .parts
            .calls
            .run(move || RdmaProtectionDomain::new(&parts));
        Ok(Arc::new(domain.await??))
    }

    fn hardware_counters(&self) -> Vec<(String, u64)> {
        hardware_counters::read(&self.identity.name)
    }

    fn arm_completions(&self) -> Result<(), DeviceError> {
        let mut consumer = self.consumer.lock();
        self.parts.check()?;
        if !consumer.sends_armed {
            request_notify(&self.parts.sends)?;
            consumer.sends_armed = true;
        }
        Ok(())
    }
}

/// State of a device for its links and registrations; dropped with the last of them.
///
/// Sideway's objects hold what they depend on, so they may go in any order.
#[derive(Debug)]
pub(crate) struct Parts {
    /// Completions of receives. They always ring, those of posts only for tasks that wait.
    pub(crate) receives: Arc<BasicCompletionQueue>,
    pub(crate) sends: Arc<BasicCompletionQueue>,
    channel: Arc<CompletionChannel>,
    pub(crate) context: Arc<DeviceContext>,
    event_set: EventSet,
    node: Option<PathBuf>,
    pub(crate) depths: Depths,
    /// When its links are given up.
    pub(crate) retry_policy: RetryPolicy,
    /// Of the packets of its links.
    pub(crate) traffic_class: u8,
    /// It may access the memory of connections in any order.
    pub(crate) is_relaxed: bool,
    /// Long buffers of connections have huge pages.
    pub(crate) has_huge_pages: bool,
    pub(crate) links: Links,
    /// For calls that the device itself answers.
    pub(crate) calls: Workers,
    /// For calls that wait for the network: peers can have these take long.
    pub(crate) connects: Workers,
    pub(crate) addresses: Mutex<Vec<port::IndexedAddress>>,
    /// The ports have changed, and their addresses could not be read: the next drain does so.
    pub(crate) is_port_change_pending: AtomicBool,
    /// Links whose queue pair was stopped, and that are not reported as down.
    stopped: Mutex<Vec<(Serial, LinkFailure)>>,
    has_stopped: AtomicBool,
    gone: AtomicBool,
}

impl Parts {
    fn new(
        settings: &Builder,
        context: Arc<DeviceContext>,
        depths: Depths,
        retry_policy: RetryPolicy,
    ) -> Result<Self, OpenError> {
        let domain = domain::allocate(&context);
        let domain = domain.map_err(|error| OpenError::verbs(domain::ALLOCATING, error))?;
        probe::check_locked_memory(&domain, buffers_len(depths))?;
        let channel = context
            .create_comp_channel()
            .map_err(|error| match error.0 {
                CreateCompletionChannelErrorKind::Ibverbs(error) => {
                    OpenError::verbs("making a completion channel", error)
                }
                _ => OpenError::Incapable("no completion channel"),
            })?;
        let queue = |depth| {
            let mut builder = context.create_cq_builder();
            builder.setup_cqe(depth).setup_comp_channel(&channel, 0);
            builder.build().map_err(|error| match error.0 {
                CreateCompletionQueueErrorKind::Ibverbs(error) => {
                    OpenError::verbs("making a completion queue", error)
                }
                _ => OpenError::Incapable("no completion queue"),
            })
        };
        let receives = queue(depths.receive_completions())?;
        let sends = queue(depths.send_completions())?;
        let event_set = EventSet::new(verbs::channel_fd(&channel), verbs::async_fd(&context))
            .map_err(|error| OpenError::verbs("making a doorbell", error))?;
        let ports = port::read(&context)
            .map_err(|error| OpenError::verbs("reading the GID table", error))?;
        let parts = Self {
            receives,
            sends,
            channel,
            context,
            event_set,
            node: node_of(&settings.name),
            depths,
            retry_policy,
            traffic_class: settings.traffic_class,
            is_relaxed: settings.is_relaxed,
            has_huge_pages: settings.has_huge_pages,
            links: Links::new(depths.links as usize, depths.capacity() as usize),
            calls: Workers::new(CALL_THREADS, CALLS_MAX),
            connects: Workers::new(CONNECT_THREADS, CONNECTS_MAX),
            addresses: Mutex::new(port::active(&ports)),
            is_port_change_pending: AtomicBool::new(false),
            stopped: Mutex::default(),
            has_stopped: AtomicBool::new(false),
            gone: AtomicBool::new(false),
        };
        if depths.is_contiguous {
            // The device need not have said what its sends take, which is two spans.
            let made = link::make(&domain, &parts);
            made.map_err(|_| OpenError::Incapable("it has no gather lists"))?;
        }
        Ok(parts)
    }

    /// The place of a link in the completion queue is free after the next drain.
    pub(crate) fn release_link(&self) {
        if self.links.release() {
            self.event_set.ring();
        }
    }

    /// Stops a link outside of a drain; the next one reports it.
    pub(crate) fn stop_link_and_ring(&self, link: &Core, cause: LinkFailure) {
        if self.stop_link(link, cause) {
            self.event_set.ring();
        }
    }

    /// Stops the queue pair of a link. [`Parts::report_stopped`] reports it. `false` if it was
    /// stopped before.
    pub(crate) fn stop_link(&self, link: &Core, cause: LinkFailure) -> bool {
        if !link.stop() {
            return false;
        }
        link.set_failed();
        self.stopped.lock().push((link.serial, cause));
        self.has_stopped.store(true, Ordering::Release);
        true
    }

    /// Whether a link was stopped and is not reported.
    fn has_stopped(&self) -> bool {
        self.has_stopped.load(Ordering::Acquire)
    }

    /// Reports the links that were stopped as down. Nothing more is reported of them.
    pub(crate) fn report_stopped(&self, sink: &mut dyn FnMut(Event)) {
        if !self.has_stopped.swap(false, Ordering::AcqRel) {
            return;
        }
        let stopped = std::mem::take(&mut *self.stopped.lock());
        for (serial, cause) in stopped {
            if let Some(link) = self.links.find(serial).filter(|link| link.set_down()) {
                sink(Event::LinkDown {
                    link: link.qpn,
                    cause,
                });
            }
        }
    }

    pub(crate) fn check(&self) -> Result<(), DeviceError> {
        if self.is_gone() {
            return Err(DeviceError::Gone("it was removed"));
        }
        Ok(())
    }

    fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// `true` for the first report.
    pub(crate) fn set_gone(&self) -> bool {
        !self.gone.swap(true, Ordering::AcqRel)
    }

    /// Whether the device node has disappeared. The system waits with the removal of some devices
    /// until they have no user, and this is the only indication.
    fn is_removed(&self) -> bool {
        self.node.as_ref().is_some_and(|node| !node.exists())
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        if is_device_gone(&self.context) {
            // Destroying it would fail, at which sideway panics. The kernel has released
            // its resources already.
            std::mem::forget(Arc::clone(&self.receives));
            std::mem::forget(Arc::clone(&self.sends));
        }
    }
}

/// What a device has and can do.
pub(crate) fn attributes(context: &DeviceContext) -> Result<DeviceAttr, OpenError> {
    context.query_device().map_err(|error| match error.0 {
        QueryDeviceErrorKind::Ibverbs(error) => OpenError::verbs("querying the device", error),
        _ => OpenError::Incapable("it cannot be queried"),
    })
}

/// How much a device has space for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Depths {
    /// A receive is a single span, with space for the longest message.
    pub(crate) is_contiguous: bool,
    pub(crate) receives: u32,
    pub(crate) sends: u32,
    pub(crate) links: u32,
}

impl Depths {
    /// What a device with these attributes has of it.
    pub(crate) fn of(attributes: &DeviceAttr, wish: &Builder) -> Result<Self, OpenError> {
        let positive = |number: i32| u32::try_from(number).unwrap_or(0);
        Self::new(
            wish,
            positive(attributes.max_qp_wr()),
            positive(attributes.max_cqe()),
            positive(attributes.max_sge()),
        )
    }

    /// The requested values, as far as the device has them.
    fn new(
        wish: &Builder,
        max_requests: u32,
        max_completions: u32,
        max_spans: u32,
    ) -> Result<Self, OpenError> {
        // The lower one of the limits of receives and of sends.
        let is_contiguous = wish.is_contiguous || max_spans < 2;
        let receives = match is_contiguous {
            true => CONTIGUOUS_RECEIVES,
            false => RECEIVES,
        };
        let mut depths = Self {
            is_contiguous,
            receives: wish.receives.unwrap_or(receives).min(max_requests),
            sends: wish.sends.min(max_requests / REQUESTS_PER_SEND),
            links: wish.links,
        };
        let most = |depths: Self| depths.receive_completions().max(depths.send_completions());
        while depths.links > 0 && most(depths) > max_completions {
            depths.links -= 1;
        }
        if depths.sends < SENDS_MAX as u32 || depths.receives < RECEIVES_MIN {
            return Err(OpenError::Incapable("its queues are too short"));
        }
        if depths.links == 0 {
            return Err(OpenError::Incapable("its completion queues are too short"));
        }
        Ok(depths)
    }

    /// Requests in the send queue: each post may be two writes and a message.
    pub(crate) fn send_requests(self) -> u32 {
        self.sends * REQUESTS_PER_SEND
    }

    /// Entries of the completion queue of receives.
    pub(crate) fn receive_completions(self) -> u32 {
        self.capacity() * self.receives
    }

    /// Entries of the completion queue of posts: when a link fails, every request is reported.
    pub(crate) fn send_completions(self) -> u32 {
        self.capacity() * self.send_requests()
    }

    /// Links that these are for. Some more than there may be: what a dropped link has left in the
    /// queues stays there until the next drain.
    fn capacity(self) -> u32 {
        self.links + (self.links / 4).max(8)
    }
}

fn request_notify(queue: &BasicCompletionQueue) -> Result<(), DeviceError> {
    verbs::request_notify(queue)
        .map_err(|error| DeviceError::os("asking for a notification", &error))
}

const REQUESTS_PER_SEND: u32 = 3;

/// Drains between two polls of rare event sources, while no task sleeps.
const LOOK_EVERY: u64 = 64;

/// Threads for registrations and new queue pairs, so that one slow call does not delay all others.
const CALL_THREADS: usize = 2;

/// Registrations and queue pairs that wait for a thread, beyond which set-ups are better off with
/// TCP: at a millisecond each, the last one waits for two seconds.
const CALLS_MAX: usize = 4096;

/// Threads for connecting. A host that is not there takes one for a second or three.
const CONNECT_THREADS: usize = 16;

/// Links that wait for such a thread: those that a device has at a time unless set otherwise, and
/// as many that were given up.
const CONNECTS_MAX: usize = 256;

/// Vendor name of soft-RoCE.
const SOFT_ROCE: u32 = 0x00ff_ffff;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_of_single_spans_has_fewer_receives_unless_they_are_set() {
        let depths = |wish: &Builder, max_spans| Depths::new(wish, 4096, 1 << 20, max_spans);
        let usual = RdmaDevice::builder("a");
        let kib = |depths| buffers_len(depths) / 1024;

        let two = depths(&usual, 2).unwrap();
        assert!(!two.is_contiguous);
        assert_eq!((two.receives, kib(two)), (128, 265));

        let one = depths(&usual, 1).unwrap();
        assert!(one.is_contiguous);
        assert_eq!((one.receives, kib(one)), (64, 641));
        assert_eq!(one.receive_completions(), one.capacity() * 64);

        let set = depths(&usual.clone().receives(100), 1).unwrap();
        assert_eq!(set.receives, 100);
        assert_eq!(depths(&usual.contiguous_receives(), 30).unwrap(), one);
    }

    /// Fewer than a peer may send to without waiting (docs/spec/link-groups.md).
    #[test]
    fn a_device_with_short_receive_queues_is_refused() {
        let depths = |most| Depths::new(&RdmaDevice::builder("a"), most, 1 << 20, 2);
        assert!(matches!(
            depths(RECEIVES_MIN - 1),
            Err(OpenError::Incapable(_))
        ));
        let least = depths(RECEIVES_MIN).unwrap();
        assert_eq!(least.receives, RECEIVES_MIN);
    }
}
