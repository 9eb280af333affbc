//! The calls of libibverbs that sideway does not offer, or only with an allocation per call.
//!
//! This is the only file of the crate with `unsafe` in it. Objects are sideway's, which keep their
//! order of destruction; here their raw handles are borrowed for the length of one call each. Only
//! registrations are made here ([`Registered`]), as sideway has none at another address. Addresses
//! that devices access are named together with a key of registered memory, which the device
//! checks, so a wrong one is an error of the request and nothing worse.

#![allow(
    unsafe_code,
    reason = "the one file that calls libibverbs by its raw interface"
)]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rdma_mummy_sys as sys;
use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::completion::{BasicCompletionQueue, CompletionChannel, CompletionQueue};
use sideway::ibverbs::device_context::DeviceContext;
use sideway::ibverbs::protection_domain::ProtectionDomain;
use sideway::ibverbs::queue_pair::{BasicQueuePair, QueuePair};
use smc_core::mem::Region;

/// The result of a work request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Completion {
    /// The identifier it was posted with.
    pub(crate) id: u64,
    /// An [`ibv_wc_status`](sys::ibv_wc_status).
    pub(crate) status: u32,
    /// Bytes received.
    pub(crate) len: u32,
}

/// Takes completions out of a queue, as many as there are and fit; returns how many.
pub(crate) fn poll(
    queue: &BasicCompletionQueue,
    into: &mut [Completion; BATCH],
) -> io::Result<usize> {
    let mut found = [const { MaybeUninit::<sys::ibv_wc>::zeroed() }; BATCH];
    // SAFETY: the handle is used in this call only, while the queue is borrowed.
    let handle = unsafe { queue.cq() };
    // SAFETY: the queue is alive, and `found` has space for as many entries as are requested.
    let count = unsafe {
        sys::ibv_poll_cq(
            handle.as_ptr(),
            BATCH as i32,
            found.as_mut_ptr().cast::<sys::ibv_wc>(),
        )
    };
    let count = usize::try_from(count).map_err(|_| from_return(count))?;
    for (found, into) in found.iter().zip(into.iter_mut()).take(count) {
        // SAFETY: zeroed before, and all zeros are a valid entry, whichever fields a driver sets.
        let entry = unsafe { found.assume_init_ref() };
        *into = Completion {
            id: entry.wr_id,
            status: entry.status,
            len: entry.byte_len,
        };
    }
    Ok(count.min(BATCH))
}

/// Requests that the next completion makes its channel readable, once.
pub(crate) fn request_notify(queue: &BasicCompletionQueue) -> io::Result<()> {
    // SAFETY: the handle is used in this call only, while the queue is borrowed.
    let handle = unsafe { queue.cq() };
    // SAFETY: the queue is alive.
    let status = unsafe { sys::ibv_req_notify_cq(handle.as_ptr(), 0) };
    check(status)
}

/// Names a completion queue for as long as it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueId(usize);

impl QueueId {
    pub(crate) fn of(queue: &BasicCompletionQueue) -> Self {
        // SAFETY: the handle is used in this call only, while the queue is borrowed.
        let handle = unsafe { queue.cq() };
        Self(handle.as_ptr().addr())
    }
}

/// Takes one event out of a channel that does not block, and acknowledges it. Returns its owner;
/// `None` if there is none.
pub(crate) fn take_event(channel: &CompletionChannel) -> io::Result<Option<QueueId>> {
    let mut queue = ptr::null_mut();
    let mut context = ptr::null_mut();
    // SAFETY: the handle is used in this call only, while the channel is borrowed.
    let handle = unsafe { channel.comp_channel() };
    // SAFETY: the channel is alive, and both results have a place.
    let status = unsafe { sys::ibv_get_cq_event(handle.as_ptr(), &mut queue, &mut context) };
    if status != 0 {
        return none_if_blocked().map(|()| None);
    }
    // SAFETY: the event just taken names its queue, which cannot be destroyed before the event is
    // acknowledged.
    unsafe { sys::ibv_ack_cq_events(queue, 1) };
    Ok(Some(QueueId(queue.addr())))
}

/// A span of registered memory.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Span {
    pub(crate) addr: u64,
    pub(crate) len: u32,
    pub(crate) lkey: u32,
}

impl Span {
    fn raw(self) -> sys::ibv_sge {
        sys::ibv_sge {
            addr: self.addr,
            length: self.len,
            lkey: self.lkey,
        }
    }
}

/// Posts a receive into two spans, one behind the other, or into one if the second is empty.
pub(crate) fn post_receive(qp: &BasicQueuePair, id: u64, into: [Span; 2]) -> io::Result<()> {
    let count = if into[1].len > 0 { 2 } else { 1 };
    let mut spans = into.map(Span::raw);
    let mut request = sys::ibv_recv_wr {
        wr_id: id,
        next: ptr::null_mut(),
        sg_list: spans.as_mut_ptr(),
        num_sge: count,
    };
    let mut refused = ptr::null_mut();
    // SAFETY: the handle is used in this call only, while the queue pair is borrowed.
    let handle = unsafe { qp.qp() };
    // SAFETY: the queue pair is alive; the request and its list live until the call returns, which
    // has copied them. The device writes only into memory that the keys in them stand for.
    let status = unsafe { sys::ibv_post_recv(handle.as_ptr(), &mut request, &mut refused) };
    check(status)
}

/// An RDMA WRITE.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WriteRequest {
    /// What to write, one behind the other.
    pub(crate) from: [Span; 2],
    /// How many of the spans count.
    pub(crate) spans: u8,
    pub(crate) rkey: u32,
    pub(crate) to: u64,
}

/// Where the bytes of a message are.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Payload<'a> {
    /// Copied by the call.
    Inline(&'a [u8]),
    /// Read by the device, later.
    Registered(Span),
}

/// A chain was not posted.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) error: io::Error,
    /// The front part of the chain was taken.
    pub(crate) torn: bool,
}

/// Posts writes and a message behind them as one chain. Only the message is signalled, and it is
/// solicited.
pub(crate) fn post_send(
    qp: &BasicQueuePair,
    id: u64,
    write_id: u64,
    writes: &[WriteRequest],
    message: Payload<'_>,
) -> Result<(), Refused> {
    let mut spans = [[Span::default().raw(); 2]; WRITES_MAX];
    let (payload, inline) = match message {
        Payload::Inline(bytes) => {
            let span = Span {
                addr: bytes.as_ptr().addr() as u64,
                len: u32::try_from(bytes.len()).unwrap_or(u32::MAX),
                lkey: 0,
            };
            (span, sys::ibv_send_flags::IBV_SEND_INLINE.0)
        }
        Payload::Registered(span) => (span, 0),
    };
    let mut payload = payload.raw();
    let flags =
        sys::ibv_send_flags::IBV_SEND_SIGNALED.0 | sys::ibv_send_flags::IBV_SEND_SOLICITED.0;
    let mut last = request(id, sys::ibv_wr_opcode::IBV_WR_SEND, flags | inline);
    last.sg_list = &raw mut payload;
    last.num_sge = 1;

    let mut chain: [sys::ibv_send_wr; WRITES_MAX] =
        std::array::from_fn(|_| request(write_id, sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE, 0));
    let mut next = &raw mut last;
    let wanted = chain.iter_mut().zip(&mut spans).zip(writes);
    for ((slot, spans), write) in wanted.rev() {
        *spans = write.from.map(Span::raw);
        slot.sg_list = spans.as_mut_ptr();
        slot.num_sge = i32::from(write.spans.min(2));
        slot.wr.rdma = sys::rdma_t {
            remote_addr: write.to,
            rkey: write.rkey,
        };
        slot.next = next;
        next = &raw mut *slot;
    }

    let mut refused = ptr::null_mut();
    // SAFETY: the handle is used in this call only, while the queue pair is borrowed.
    let handle = unsafe { qp.qp() };
    // SAFETY: the queue pair is alive; the chain, its lists and inline bytes live until the call
    // returns, which has copied them. The device reads only memory that the keys stand for.
    let status = unsafe { sys::ibv_post_send(handle.as_ptr(), next, &mut refused) };
    check(status).map_err(|error| Refused {
        error,
        torn: !refused.is_null() && refused != next,
    })
}

fn request(id: u64, opcode: sys::ibv_wr_opcode::Type, flags: u32) -> sys::ibv_send_wr {
    let request = MaybeUninit::<sys::ibv_send_wr>::zeroed();
    // SAFETY: numbers, addresses, and unions of these: all zeros are a valid request.
    let mut request = unsafe { request.assume_init() };
    request.wr_id = id;
    request.opcode = opcode;
    request.send_flags = flags;
    request
}

/// Memory that a device may access, registered for as long as this lives.
#[derive(Debug)]
pub(crate) struct Registered {
    mr: NonNull<sys::ibv_mr>,
    addr: u64,
    region: Region,
    domain: Arc<ProtectionDomain>,
}

// SAFETY: libibverbs may be called from any thread, and a registration belongs to none.
unsafe impl Send for Registered {}

// SAFETY: what is shared is only read: the keys do not change.
unsafe impl Sync for Registered {}

impl Registered {
    /// Registers a region at its own address.
    pub(crate) fn new(
        domain: &Arc<ProtectionDomain>,
        region: Region,
        access: AccessFlags,
    ) -> io::Result<Self> {
        let addr = region.as_ptr().as_ptr().addr() as u64;
        Self::at(domain, region, access, addr)
    }

    /// Registers a region. Devices and peers use this address for its first byte; it has to be at
    /// the same place within a page.
    pub(crate) fn at(
        domain: &Arc<ProtectionDomain>,
        region: Region,
        access: AccessFlags,
        addr: u64,
    ) -> io::Result<Self> {
        let (start, len) = (region.as_ptr().as_ptr().cast(), region.len());
        // SAFETY: the handle is used in this call only, while the domain is borrowed.
        let pd = unsafe { domain.pd() };
        // Optional access is left out where the library, the kernel or the device has none.
        let access = access.bits() as u32;
        // SAFETY: the domain is alive. `region` is valid memory and is kept until after the
        // registration is gone. The device is one of the concurrent writers that a region's memory
        // is made for.
        let mr = unsafe { sys::ibv_reg_mr_iova2(pd.as_ptr(), start, len, addr, access) };
        Ok(Self {
            mr: NonNull::new(mr).ok_or_else(io::Error::last_os_error)?,
            addr,
            region,
            domain: Arc::clone(domain),
        })
    }

    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    /// Whether links of this domain may use it.
    pub(crate) fn is_in(&self, domain: &Arc<ProtectionDomain>) -> bool {
        Arc::ptr_eq(&self.domain, domain)
    }

    /// Address of the first byte, as devices use it.
    pub(crate) fn addr(&self) -> u64 {
        self.addr
    }

    pub(crate) fn rkey(&self) -> u32 {
        // SAFETY: the registration is there for as long as `self`.
        unsafe { self.mr.as_ref() }.rkey
    }

    fn lkey(&self) -> u32 {
        // SAFETY: the registration is there for as long as `self`.
        unsafe { self.mr.as_ref() }.lkey
    }

    /// A part of it, which the caller has checked to be inside.
    pub(crate) fn span(&self, at: u64, len: u32) -> Span {
        Span {
            addr: self.addr.wrapping_add(at),
            len,
            lkey: self.lkey(),
        }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // SAFETY: the registration is this value's own, its domain is alive, and nothing uses it
        // from here on. Where the device is gone it fails, and the system has taken the
        // registration.
        let _ = unsafe { sys::ibv_dereg_mr(self.mr.as_ptr()) };
    }
}

/// Something that happened to a device, of its own accord.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Async {
    /// A queue pair can no longer be used.
    QueuePair { qpn: u32, why: &'static str },
    /// State, addresses or the like of a port may have changed.
    Port,
    /// The device, or the completion queue that everything depends on, failed.
    Device(&'static str),
    /// Nothing to do about it.
    Other,
}

/// Takes one asynchronous event out of a device that does not block, and acknowledges it.
pub(crate) fn take_async(context: &DeviceContext) -> io::Result<Option<Async>> {
    let mut event = MaybeUninit::<sys::ibv_async_event>::zeroed();
    // SAFETY: the handle is used in this call only, while the context is borrowed.
    let handle = unsafe { context.context() };
    // SAFETY: the context is alive, and the event has a place.
    let status = unsafe { sys::ibv_get_async_event(handle.as_ptr(), event.as_mut_ptr()) };
    if status != 0 {
        return none_if_blocked().map(|()| None);
    }
    let at = event.as_mut_ptr();
    // SAFETY: a place inside of `event`; nothing is read.
    let kind = unsafe { &raw const (*at).event_type };
    // SAFETY: the field is a C enumeration of this size. It is read as a number, since a newer
    // system may have kinds that the bindings do not.
    let kind = unsafe { kind.cast::<u32>().read() };
    let known = |event: sys::ibv_event_type| kind == event as u32;
    let about_qp = if known(sys::ibv_event_type::IBV_EVENT_QP_FATAL) {
        Some("queue pair failed")
    } else if known(sys::ibv_event_type::IBV_EVENT_QP_REQ_ERR) {
        Some("peer sent an invalid request")
    } else if known(sys::ibv_event_type::IBV_EVENT_QP_ACCESS_ERR) {
        Some("peer wrote where it may not")
    } else {
        None
    };
    let outcome = if let Some(why) = about_qp {
        // SAFETY: a place inside of `event`; nothing is read.
        let element = unsafe { &raw const (*at).element };
        // SAFETY: for events of this kind the union has the queue pair.
        let qp = unsafe { element.cast::<*const sys::ibv_qp>().read() };
        // SAFETY: the queue pair cannot be destroyed before the event is acknowledged.
        let qpn = unsafe { (*qp).qp_num };
        Async::QueuePair { qpn, why }
    } else if known(sys::ibv_event_type::IBV_EVENT_DEVICE_FATAL) {
        Async::Device("it reported a fatal error")
    } else if known(sys::ibv_event_type::IBV_EVENT_CQ_ERR) {
        Async::Device("its completion queue failed")
    } else if PORT_EVENTS.iter().any(|event| *event as u32 == kind) {
        Async::Port
    } else {
        Async::Other
    };
    // SAFETY: as taken above, and once.
    unsafe { sys::ibv_ack_async_event(at) };
    Ok(Some(outcome))
}

const PORT_EVENTS: [sys::ibv_event_type; 7] = [
    sys::ibv_event_type::IBV_EVENT_PORT_ACTIVE,
    sys::ibv_event_type::IBV_EVENT_PORT_ERR,
    sys::ibv_event_type::IBV_EVENT_LID_CHANGE,
    sys::ibv_event_type::IBV_EVENT_PKEY_CHANGE,
    sys::ibv_event_type::IBV_EVENT_SM_CHANGE,
    sys::ibv_event_type::IBV_EVENT_CLIENT_REREGISTER,
    sys::ibv_event_type::IBV_EVENT_GID_CHANGE,
];

/// The descriptor that becomes readable with asynchronous events.
pub(crate) fn async_fd(context: &DeviceContext) -> BorrowedFd<'_> {
    // SAFETY: the handle is used in this function only, while the context is borrowed.
    let handle = unsafe { context.context() };
    // SAFETY: the context is alive; the field is set when a device is opened and never changes.
    let fd = unsafe { handle.as_ref() }.async_fd;
    // SAFETY: libibverbs keeps the descriptor open for as long as the context is alive.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// The descriptor that becomes readable with completion events.
pub(crate) fn channel_fd(channel: &CompletionChannel) -> BorrowedFd<'_> {
    let fd = channel.as_raw_fd();
    // SAFETY: libibverbs keeps the descriptor open for as long as the channel is alive.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// An entry of a GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GidEntry {
    pub(crate) gid: [u8; 16],
    pub(crate) index: u32,
    pub(crate) port: u32,
    /// One of [`GID_ROCE_V1`] and [`GID_ROCE_V2`], or another.
    pub(crate) kind: u32,
    /// Number of the network interface, 0 without.
    pub(crate) interface: u32,
}

/// The GIDs of all ports of a device, up to `max`.
pub(crate) fn gid_table(context: &DeviceContext, max: usize) -> io::Result<Vec<GidEntry>> {
    let empty = sys::ibv_gid_entry {
        gid: sys::ibv_gid { raw: [0; 16] },
        gid_index: 0,
        port_num: 0,
        gid_type: 0,
        ndev_ifindex: 0,
    };
    let mut entries = vec![empty; max.max(1)];
    // SAFETY: the handle is used in this call only, while the context is borrowed.
    let handle = unsafe { context.context() };
    // SAFETY: the context is alive, and there is space for as many entries as are requested.
    let count = unsafe {
        sys::ibv_query_gid_table(handle.as_ptr(), entries.as_mut_ptr(), entries.len(), 0)
    };
    let count = usize::try_from(count)
        .map_err(|_| from_return(i32::try_from(count).unwrap_or(i32::MIN)))?;
    let entries = entries.into_iter().take(count);
    Ok(entries
        .map(|entry| GidEntry {
            // SAFETY: both views of the union are plain bytes.
            gid: unsafe { entry.gid.raw },
            index: entry.gid_index,
            port: entry.port_num,
            kind: entry.gid_type,
            interface: entry.ndev_ifindex,
        })
        .collect())
}

/// Whether the system has removed the device, so that nothing of it can be destroyed.
pub(crate) fn is_device_gone(context: &DeviceContext) -> bool {
    let mut attributes = MaybeUninit::<sys::ibv_device_attr>::zeroed();
    // SAFETY: the handle is used in this call only, while the context is borrowed.
    let handle = unsafe { context.context() };
    // SAFETY: the context is alive, and the answer has a place.
    let status = unsafe { sys::ibv_query_device(handle.as_ptr(), attributes.as_mut_ptr()) };
    status != 0
}

/// Has the library keep memory that is registered from now on out of child processes, unless the
/// kernel copies such memory when it makes one. A kernel that does neither lets a store of the
/// parent, after `fork`, go to a copy of the page, while the device goes on with the page itself.
///
/// It fails where another user of the library in this process has registered memory before.
pub(crate) fn protect_from_fork() -> io::Result<()> {
    if is_protected_from_fork() {
        return Ok(());
    }
    // SAFETY: takes nothing. The library refuses it when memory is registered already, and applies
    // it once, however often it is called; callers in this process have a lock.
    check(unsafe { sys::ibv_fork_init() })
}

/// Whether registered memory is safe in a process that has children.
pub(crate) fn is_protected_from_fork() -> bool {
    // SAFETY: takes nothing, and asks the kernel and the library.
    let status = unsafe { sys::ibv_is_fork_initialized() };
    status != sys::IBV_FORK_DISABLED
}

/// The traffic class with which a queue pair was connected.
#[cfg(test)]
pub(crate) fn traffic_class(qp: &BasicQueuePair) -> io::Result<u8> {
    let mut attributes = MaybeUninit::<sys::ibv_qp_attr>::zeroed();
    let mut init = MaybeUninit::<sys::ibv_qp_init_attr>::zeroed();
    let wanted = sys::ibv_qp_attr_mask::IBV_QP_AV.0 as i32;
    let at = attributes.as_mut_ptr();
    // SAFETY: the handle is used in this call only, while the queue pair is borrowed.
    let handle = unsafe { qp.qp() };
    // SAFETY: the queue pair is alive, and both answers have a place.
    check(unsafe { sys::ibv_query_qp(handle.as_ptr(), at, wanted, init.as_mut_ptr()) })?;
    // SAFETY: a place inside of `attributes`; nothing is read.
    let class = unsafe { &raw const (*at).ah_attr.grh.traffic_class };
    // SAFETY: zeroed before, and any byte is a number.
    Ok(unsafe { class.read() })
}

/// Zero or an error number, as most calls return it.
fn check(status: i32) -> io::Result<()> {
    if status == 0 {
        Ok(())
    } else {
        Err(from_return(status))
    }
}

/// Error numbers come positive from some drivers and negative from others; -1 contains no
/// information.
fn from_return(status: i32) -> io::Error {
    match status.checked_abs() {
        None | Some(1) => io::Error::last_os_error(),
        Some(code) => io::Error::from_raw_os_error(code),
    }
}

/// After a call that sets `errno`: fine if there was only nothing to read.
fn none_if_blocked() -> io::Result<()> {
    let error = io::Error::last_os_error();
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(()),
        _ => Err(error),
    }
}

/// Completions per call.
pub(crate) const BATCH: usize = 16;

/// Writes per chain.
pub(crate) const WRITES_MAX: usize = 2;

pub(crate) const GID_ROCE_V1: u32 = sys::IBV_GID_TYPE_ROCE_V1;
pub(crate) const GID_ROCE_V2: u32 = sys::IBV_GID_TYPE_ROCE_V2;
