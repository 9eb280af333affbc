//! Links: reliable connected queue pairs.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use rustix::io::Errno;
use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::address::{AddressHandleAttribute, Gid};
use sideway::ibverbs::device_context::Mtu;
use sideway::ibverbs::protection_domain::ProtectionDomain;
use sideway::ibverbs::queue_pair::{
    CreateQueuePairErrorKind, ModifyQueuePairError, ModifyQueuePairErrorKind, QueuePair,
    QueuePairAttribute, QueuePairAttributeMask, QueuePairState, QueuePairType,
};
use smc_core::device::{
    DeviceError, Inbound, Link, LinkAddress, LinkCounters, LinkFailure, MESSAGE_MAX, OpId,
    PendingLink, RdmaAddress, Route, SHORT_LEN, SubmitError, Write,
};
use smc_core::mem::sync::{AtomicBool, Ordering};
use smc_core::mutex::Mutex;
use smc_wire::types::{MtuCode, Psn, Qpn};

use crate::buffers::{Buffers, LONGS};
use crate::completion::Work;
use crate::device::Parts;
use crate::error::not_made;
use crate::links::Serial;
use crate::memory;
use crate::port;
use crate::teardown::{DeferredTeardown, OwnedQueuePair};
use crate::verbs::{self, Payload, WRITES_MAX, WriteRequest};

/// A queue pair and its buffers. What is reported of it finds it by its number.
pub(crate) struct Core {
    pub(crate) serial: Serial,
    pub(crate) qpn: Qpn,
    /// The address at which the link was opened.
    pub(crate) at: RdmaAddress,
    /// Its queue pair is stopped: nothing more is posted on it.
    stopped: AtomicBool,
    /// Nothing more is reported of it.
    down: AtomicBool,
    /// It has failed: destroying it can take long.
    failed: AtomicBool,
    queue: Mutex<LinkQueue>,
    /// Used by the queue pair, which has to go before.
    buffers: Arc<Buffers>,
    domain: Arc<ProtectionDomain>,
    parts: Arc<Parts>,
}

/// State under the lock.
struct LinkQueue {
    /// There until the link is dropped.
    qp: OwnedQueuePair,
    inline: usize,
    /// Posts without a completion, oldest first.
    sends: VecDeque<Sending>,
    /// Posts ever made; their place among the short and long buffers.
    posted: u32,
    posted_long: u32,
    long: u32,
    level: ReceiveLevel,
}

/// The lowest number of posted receives.
///
/// What has completed is not posted. Taking it out of the queue and posting it again is much faster
/// than handling the messages, so all of a link that is taken in one round was used at once, and
/// the next round begins with all receives posted. A round takes at least as many completions as a
/// link has receives: those of several links that are late at once may be in two rounds, and fewer
/// receives have been left then.
#[derive(Debug)]
struct ReceiveLevel {
    round: u64,
    used: u32,
    low: u32,
}

impl ReceiveLevel {
    const fn new(receives: u32) -> Self {
        Self {
            round: 0,
            used: 0,
            low: receives,
        }
    }

    /// A receive, of so many, was taken out of the queue in this round.
    fn take(&mut self, round: u64, receives: u32) {
        if self.round != round {
            self.round = round;
            self.used = 0;
        }
        self.used = self.used.saturating_add(1);
        self.low = self.low.min(receives.saturating_sub(self.used));
    }
}

#[derive(Clone, Copy, Debug)]
struct Sending {
    op: OpId,
    long: bool,
}

impl Core {
    /// Makes a queue pair at an address, with all its receives posted.
    pub(crate) fn open(
        parts: &Arc<Parts>,
        domain: &Arc<ProtectionDomain>,
        serial: Serial,
        entry: &port::IndexedAddress,
    ) -> Result<Arc<Self>, DeviceError> {
        let depths = parts.depths;
        let buffers = Buffers::new(domain, depths)?;
        let (mut qp, inline) = make(domain, parts)?;
        let made = qp.get_mut().ok_or(NO_QUEUE_PAIR)?;
        let qpn = Qpn::new(made.qp_number()).ok_or(NO_QUEUE_PAIR)?;
        let mut init = QueuePairAttribute::new();
        init.setup_state(QueuePairState::Init)
            .setup_pkey_index(0)
            .setup_port(entry.address.port)
            .setup_access_flags(AccessFlags::LocalWrite | AccessFlags::RemoteWrite);
        made.modify(&init)
            .map_err(|error| not_modified("preparing a queue pair", error))?;
        for index in 0..depths.receives {
            let id = Work::Receive(index).id(serial);
            verbs::post_receive(made, id, buffers.receive(index))
                .map_err(|error| DeviceError::os("posting a receive", &error))?;
        }
        Ok(Arc::new(Self {
            serial,
            qpn,
            at: entry.address.clone(),
            stopped: AtomicBool::new(false),
            down: AtomicBool::new(false),
            queue: Mutex::new(LinkQueue {
                qp,
                inline,
                sends: VecDeque::with_capacity(depths.sends as usize),
                posted: 0,
                posted_long: 0,
                long: 0,
                level: ReceiveLevel::new(depths.receives),
            }),
            failed: AtomicBool::new(false),
            buffers: Arc::new(buffers),
            domain: Arc::clone(domain),
            parts: Arc::clone(parts),
        }))
    }

    /// The link went down by itself.
    pub(crate) fn set_failed(&self) {
        self.failed.store(true, Ordering::Release);
    }

    pub(crate) fn is_down(&self) -> bool {
        self.down.load(Ordering::Acquire)
    }

    /// Nothing more is to be reported of it. `true` for the first call.
    pub(crate) fn set_down(&self) -> bool {
        !self.down.swap(true, Ordering::AcqRel)
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Stops the queue pair. `true` for the first call.
    pub(crate) fn stop(&self) -> bool {
        if self.stopped.swap(true, Ordering::AcqRel) {
            return false;
        }
        let mut error = QueuePairAttribute::new();
        error.setup_state(QueuePairState::Error);
        if let Some(qp) = self.queue.lock().qp.get_mut() {
            // It may be in that state already, or its device be gone: stopped in any case.
            let _stopped = qp.modify(&error);
        }
        true
    }

    /// A receive completed. Copies the message out, and posts the buffers again.
    pub(crate) fn received(
        &self,
        index: u32,
        len: u32,
        round: u64,
    ) -> Result<Inbound, LinkFailure> {
        let message = self.buffers.message(index, len)?;
        if self.is_stopped() {
            // What was acknowledged before that; no more follows.
            return Ok(message);
        }
        let mut queue = self.queue.lock();
        let id = Work::Receive(index).id(self.serial);
        let qp = queue.qp.get().ok_or(LinkFailure::Flushed)?;
        if verbs::post_receive(qp, id, self.buffers.receive(index)).is_err() {
            drop(queue);
            let why = "a receive could not be posted";
            self.parts.stop_link(self, LinkFailure::QueuePair(why));
            return Ok(message);
        }
        queue.level.take(round, self.buffers.receives);
        Ok(message)
    }

    /// The oldest post has completed.
    pub(crate) fn complete_oldest(&self) -> Option<OpId> {
        let mut queue = self.queue.lock();
        let sent = queue.sends.pop_front()?;
        queue.long -= u32::from(sent.long);
        Some(sent.op)
    }

    fn post(&self, op: OpId, writes: &[Write<'_>], message: &[u8]) -> Result<(), SubmitError> {
        if message.len() > MESSAGE_MAX {
            return Err(SubmitError::OutOfBounds);
        }
        if writes.len() > WRITES_MAX {
            let why = "more than two writes in a post";
            return Err(DeviceError::Invalid(why).into());
        }
        let mut requests = [WriteRequest::default(); WRITES_MAX];
        let mut count = 0;
        for write in writes {
            if let Some(request) = memory::request(&self.domain, write)? {
                requests[count] = request;
                count += 1;
            }
        }

        let mut queue = self.queue.lock();
        if self.is_stopped() {
            return Err(SubmitError::PeerGone);
        }
        if queue.sends.len() >= self.parts.depths.sends as usize {
            return Err(SubmitError::WouldBlock);
        }
        let long = message.len() > SHORT_LEN;
        let payload = if message.len() <= queue.inline {
            Payload::Inline(message)
        } else if !long {
            Payload::Registered(self.buffers.short(queue.posted, message)?)
        } else if queue.long < LONGS {
            Payload::Registered(self.buffers.long(queue.posted_long, message)?)
        } else {
            return Err(SubmitError::WouldBlock);
        };
        let Some(qp) = queue.qp.get() else {
            return Err(SubmitError::PeerGone);
        };
        let (id, write_id) = (Work::Send.id(self.serial), Work::Write.id(self.serial));
        match verbs::post_send(qp, id, write_id, &requests[..count], payload) {
            Ok(()) => {
                queue.sends.push_back(Sending { op, long });
                queue.posted = queue.posted.wrapping_add(1);
                queue.posted_long = queue.posted_long.wrapping_add(u32::from(long));
                queue.long += u32::from(long);
                Ok(())
            }
            // Some devices free the places of a chain later than they report it.
            Err(refused) if is_full(&refused) && !queue.sends.is_empty() => {
                Err(SubmitError::WouldBlock)
            }
            Err(_) => {
                drop(queue);
                self.parts
                    .stop_link_and_ring(self, LinkFailure::QueuePair("a post was refused"));
                Err(SubmitError::PeerGone)
            }
        }
    }

    fn connect(
        &self,
        own: &LinkAddress,
        peer: &LinkAddress,
        index: u8,
        route: Route,
    ) -> Result<(), DeviceError> {
        let mtu = path_mtu(own.mtu.min(peer.mtu))?;
        if peer.gid.is_zero() {
            return Err(DeviceError::Invalid("peer has no GID"));
        }
        let hop_limit = match route {
            Route::SameSubnet => 1,
            Route::Gateway => 64,
        };
        let to = Gid {
            raw: *peer.gid.as_bytes(),
        };
        let mut address = AddressHandleAttribute::new();
        address.setup_port(self.at.port).setup_grh(
            &to,
            0,
            index,
            hop_limit,
            self.parts.traffic_class,
        );
        let mut receive = QueuePairAttribute::new();
        receive
            .setup_state(QueuePairState::ReadyToReceive)
            .setup_path_mtu(mtu)
            .setup_dest_qp_num(peer.qpn.get())
            .setup_rq_psn(peer.psn.get())
            .setup_max_dest_read_atomic(1)
            .setup_min_rnr_timer(MIN_RNR_TIMER)
            .setup_address_vector(&address);
        let retry_policy = self.parts.retry_policy;
        let mut send = QueuePairAttribute::new();
        send.setup_state(QueuePairState::ReadyToSend)
            .setup_sq_psn(own.psn.get())
            .setup_timeout(retry_policy.ack_timeout)
            .setup_retry_cnt(retry_policy.retries)
            .setup_rnr_retry(RNR_RETRIES)
            .setup_max_read_atomic(1);
        let mut queue = self.queue.lock();
        let qp = queue
            .qp
            .get_mut()
            .ok_or(DeviceError::Gone("link is closed"))?;
        if self.is_stopped() {
            return Err(DeviceError::Gone("link is closed"));
        }
        qp.modify(&receive)
            .map_err(|error| not_modified("connecting a queue pair", error))?;
        qp.modify(&send)
            .map_err(|error| not_modified("connecting a queue pair", error))
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        let teardown = DeferredTeardown {
            qp: self.queue.lock().qp.take(),
            _buffers: Arc::clone(&self.buffers),
            parts: Arc::clone(&self.parts),
        };
        if self.failed.load(Ordering::Acquire) {
            teardown.spawn();
        }
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("qpn", &self.qpn)
            .field("at", &self.at)
            .field("down", &self.down)
            .finish_non_exhaustive()
    }
}

/// The handle of users: dropping it removes the link from its device.
#[derive(Debug)]
struct Handle(Arc<Core>);

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.set_down();
        self.0.parts.links.remove(self.0.serial);
    }
}

/// A queue pair that is not connected.
#[derive(Debug)]
pub(crate) struct Pending {
    handle: Handle,
    own: LinkAddress,
    index: u8,
}

impl Pending {
    /// Puts a fresh link into its device's table.
    pub(crate) fn new(core: Arc<Core>, entry: &port::IndexedAddress) -> Result<Self, DeviceError> {
        let psn = smc_core::random::bytes()
            .map_err(|error| DeviceError::os("choosing a sequence number", &error))?;
        let own = LinkAddress {
            gid: entry.address.gid,
            mac: entry.address.mac,
            qpn: core.qpn,
            psn: Psn::from_be_bytes(psn),
            mtu: entry.address.mtu,
        };
        core.parts.links.insert(Arc::clone(&core));
        Ok(Self {
            handle: Handle(core),
            own,
            index: entry.index,
        })
    }
}

#[async_trait]
impl PendingLink for Pending {
    fn local(&self) -> LinkAddress {
        self.own
    }

    async fn connect(
        self: Box<Self>,
        peer: LinkAddress,
        route: Route,
    ) -> Result<Arc<dyn Link>, DeviceError> {
        let parts = Arc::clone(&self.handle.0.parts);
        let connected = parts.connects.run(move || {
            let core = &self.handle.0;
            core.connect(&self.own, &peer, self.index, route)?;
            Ok::<_, DeviceError>(self.handle)
        });
        Ok(Arc::new(connected.await??))
    }
}

/// The link of a connected queue pair.
impl Link for Handle {
    fn qpn(&self) -> Qpn {
        self.0.qpn
    }

    fn post(&self, op: OpId, writes: &[Write<'_>], message: &[u8]) -> Result<(), SubmitError> {
        self.0.post(op, writes, message)
    }

    fn close(&self) {
        self.0.set_down();
        self.0.stop();
    }

    fn receives(&self) -> u32 {
        self.0.buffers.receives
    }

    fn counters(&self) -> LinkCounters {
        let mut counters = LinkCounters::default();
        counters.receives_low = Some(self.0.queue.lock().level.low);
        counters
    }
}

/// Makes a queue pair; returns how many bytes of a message it copies at once.
pub(crate) fn make(
    domain: &Arc<ProtectionDomain>,
    parts: &Parts,
) -> Result<(OwnedQueuePair, usize), DeviceError> {
    let depths = parts.depths;
    let mut builder = domain.create_qp_builder();
    builder
        .setup_qp_type(QueuePairType::ReliableConnection)
        .setup_max_send_wr(depths.send_requests())
        .setup_max_recv_wr(depths.receives)
        .setup_max_send_sge(2)
        .setup_max_recv_sge(if depths.is_contiguous { 1 } else { 2 })
        .setup_max_inline_data(SHORT_LEN as u32)
        .setup_send_cq(Arc::clone(&parts.sends))
        .setup_recv_cq(Arc::clone(&parts.receives));
    let made = builder.build().or_else(|_| {
        builder.setup_max_inline_data(0);
        builder.build()
    });
    let qp = made.map_err(|error| match error.0 {
        CreateQueuePairErrorKind::Ibverbs(error) => not_made("making a queue pair", &error),
        _ => NO_QUEUE_PAIR,
    })?;
    let qp = OwnedQueuePair::new(qp, &parts.context);
    // The granted size is not always the requested one.
    let made = qp.get().ok_or(NO_QUEUE_PAIR)?;
    let granted = made.query(QueuePairAttributeMask::Capabilities);
    let inline = granted.map_or(0, |(_, granted)| granted.max_inline_data());
    Ok((qp, (inline as usize).min(SHORT_LEN)))
}

fn is_full(refused: &verbs::Refused) -> bool {
    !refused.torn && Errno::from_io_error(&refused.error) == Some(Errno::NOMEM)
}

fn path_mtu(code: MtuCode) -> Result<Mtu, DeviceError> {
    Ok(match code {
        MtuCode::MTU_256 => Mtu::Mtu256,
        MtuCode::MTU_512 => Mtu::Mtu512,
        MtuCode::MTU_1024 => Mtu::Mtu1024,
        MtuCode::MTU_2048 => Mtu::Mtu2048,
        MtuCode::MTU_4096 => Mtu::Mtu4096,
        _ => return Err(DeviceError::Invalid("reserved code for the path MTU")),
    })
}

fn not_modified(what: &'static str, error: ModifyQueuePairError) -> DeviceError {
    match error.0 {
        ModifyQueuePairErrorKind::ResolveRouteTimedout { .. } => {
            DeviceError::Invalid("no host has the peer's address")
        }
        ModifyQueuePairErrorKind::NetworkUnreachable { .. } => {
            DeviceError::Invalid("no route to the peer's address")
        }
        ModifyQueuePairErrorKind::Ibverbs(error) => not_made(what, &error),
        ModifyQueuePairErrorKind::InvalidTransition { source, .. }
        | ModifyQueuePairErrorKind::InvalidAttributeMask { source, .. } => {
            DeviceError::os(what, &source)
        }
        _ => DeviceError::Invalid(what),
    }
}

const NO_QUEUE_PAIR: DeviceError = DeviceError::Invalid("queue pair");

/// Endless: a peer without receive buffers is slow, not gone.
const RNR_RETRIES: u8 = 7;

/// Code 5: peers that met no receive buffer here try again after 0.06 ms.
const MIN_RNR_TIMER: u8 = 5;

#[cfg(test)]
mod tests {
    use futures_lite::future::block_on;
    use smc_core::device::Rdma as _;

    use super::*;
    use crate::{Builder, RdmaDevice, probe};

    #[test]
    fn receives_that_were_posted_again_do_not_count_as_used() {
        let mut level = ReceiveLevel::new(128);
        (0..5).for_each(|_| level.take(1, 128));
        // However much comes while messages are handled.
        for round in 2..1000 {
            level.take(round, 128);
        }
        assert_eq!(level.low, 123);
        (0..128).for_each(|_| level.take(1000, 128));
        assert_eq!(level.low, 0);
        level.take(1001, 128);
        assert_eq!(level.low, 0, "the lowest so far");
    }

    #[test]
    fn links_have_the_traffic_class_of_their_device() {
        let reports = probe().unwrap_or_default();
        let Some(usable) = reports.iter().find(|report| report.usable.is_ok()) else {
            println!("skipped: no RDMA device that can be used");
            return;
        };
        let class = |set: fn(Builder) -> Builder| {
            let device = set(RdmaDevice::builder(&usable.name)).open().unwrap();
            // An IPv6 address is no destination before the detection of duplicates is over.
            let mut addresses = device.addresses().into_iter();
            let at = addresses.find(|at| at.gid.ipv4().is_some()).unwrap();
            block_on(async {
                let domain = device.protection_domain().await.unwrap();
                let pending = domain.open_link(&at).await.unwrap();
                let own = pending.local();
                let _link = pending.connect(own, Route::SameSubnet).await.unwrap();
                let core = device.parts().links.all().remove(0);
                let queue = core.queue.lock();
                verbs::traffic_class(queue.qp.get().unwrap()).unwrap()
            })
        };
        assert_eq!(class(|builder| builder), 0);
        assert_eq!(class(|builder| builder.traffic_class(104)), 104);
    }
}
