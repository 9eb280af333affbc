//! One driver per device: its task dispatches the device's events to connections.

mod after_drain;
mod busy_retries;
mod claimed_buffers;
mod claims;
mod link_owners;
mod task;
mod timeouts;

pub(crate) use after_drain::AfterDrain;
pub(crate) use claims::claim;
pub(crate) use task::DriverTask;

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use atomic_waker::AtomicWaker;
use hashbrown::HashMap;
use smc_wire::types::{Gid, Qpn};

use super::busy_poll::Pollers;
use super::conn::{Conn, ConnKey, DeviceCounters};
use super::groups::Groups;
use super::lifetime::Deadline;
use super::links::RdmaLinkGroup;
use crate::device::{Device, DeviceError, Event, PeerEvent};
use crate::error::{CloseReason, Error};
use crate::info::{DeviceInfo, DeviceKind};
use crate::mem::sync::{AtomicBool, AtomicUsize, Ordering};
use crate::mutex::Mutex;
use crate::peer_descriptors::Source;
use crate::proto::group::{DeviceIndex, GroupEndCause, GroupId};
use crate::proto::links::LinkId;
use crate::runtime::Runtime;
use busy_retries::BusyRetries;
use claimed_buffers::ClaimedBuffers;
use link_owners::LinkOwners;

/// A device of an endpoint with the connections that use it.
pub(crate) struct DeviceDriver {
    pub(crate) device: Arc<dyn Device>,
    /// The device's name, shared by the modes of its streams.
    pub(crate) name: Arc<str>,
    index: DeviceIndex,
    pub(crate) groups: Arc<Groups>,
    table: Mutex<Table>,
    claimed_buffers: ClaimedBuffers,
    /// The table has work for the task.
    has_work: AtomicBool,
    task_waker: AtomicWaker,
    /// The owners of the device's queue pairs.
    pub(crate) links: Mutex<LinkOwners<RdmaLinkGroup>>,
    /// Work to be done when the received messages were dispatched.
    after_drain: Mutex<Vec<AfterDrain>>,
    /// Held while events are dispatched: the device has one consumer at a time.
    draining: Mutex<()>,
    /// Number of links with a waiter for the completion of a post.
    awaiting_links: AtomicUsize,
    /// The task is in a pass and will check `awaiting_links` before it parks.
    in_pass: AtomicBool,
    gone: AtomicBool,
    /// The endpoint was dropped, with its listeners and set-ups.
    is_endpoint_dropped: AtomicBool,
    /// The task has to end.
    is_ending: AtomicBool,
    /// See [`Self::is_stopped`].
    stopped: AtomicBool,
    close_timeout: Duration,
    /// How the device and the streams on it are polled.
    pub(crate) pollers: Arc<Pollers>,
    pub(crate) counters: DeviceCounters,
    /// The runtime of the streams. That of the task is another one if the endpoint has a thread for
    /// drivers.
    pub(crate) stream_runtime: Arc<dyn Runtime>,
}

/// Connections by the token of the local buffer, as in signals.
#[derive(Default)]
struct Table {
    conns: HashMap<ConnKey, Arc<Conn>>,
    /// The same by link group.
    members: BTreeSet<(GroupId, ConnKey)>,
    /// Of groups whose peer is gone, waiting to be ended.
    ending: VecDeque<Arc<Conn>>,
    /// Dropped by the application a moment ago. Until the time given, the earliest first, passes
    /// look for the peer's close, which signals nothing.
    just_closed: VecDeque<(Instant, Weak<Conn>)>,
    /// Dropped by the application, waiting for the peer's close until the time given, the earliest
    /// first.
    awaiting_close: VecDeque<(Instant, Weak<Conn>)>,
    /// Dropped with data to send, until the end of their linger times, the earliest first.
    lingering: VecDeque<(Instant, Weak<Conn>)>,
    /// With an event on their TCP sockets that the task handles: connections that were dropped, or
    /// whose peers have sent an update.
    tcp_events: Vec<Weak<Conn>>,
    /// With the start time of their TCP watch, the earliest first.
    deferred_tcp_watches: VecDeque<(Instant, Weak<Conn>)>,
    /// Half-open: TCP has ended before the peer's first update; with the end of the timeout, the
    /// earliest first.
    half_open: VecDeque<(Instant, Weak<Conn>)>,
    /// Connections with pending words or data at a busy device.
    retries: BusyRetries,
    /// When the task looks at the table next, at the latest.
    next_look: Option<Instant>,
}

impl DeviceDriver {
    pub(crate) fn new(
        device: Arc<dyn Device>,
        index: DeviceIndex,
        groups: Arc<Groups>,
        close_timeout: Duration,
        stream_runtime: Arc<dyn Runtime>,
    ) -> Arc<Self> {
        let name = Arc::from(device.identity().name.as_str());
        // With SMC-R connections that share a link would proceed less evenly.
        let driver_may_poll = device.operations().direct().is_some();
        let pollers = Pollers::new(driver_may_poll, stream_runtime.has_several_threads());
        Arc::new(Self {
            device,
            name,
            index,
            groups,
            table: Mutex::default(),
            claimed_buffers: ClaimedBuffers::default(),
            has_work: AtomicBool::new(false),
            task_waker: AtomicWaker::new(),
            links: Mutex::default(),
            after_drain: Mutex::default(),
            draining: Mutex::default(),
            awaiting_links: AtomicUsize::new(0),
            in_pass: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            is_endpoint_dropped: AtomicBool::new(false),
            is_ending: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            close_timeout,
            pollers: Arc::new(pollers),
            counters: DeviceCounters::default(),
            stream_runtime,
        })
    }

    pub(crate) fn close_deadline(&self) -> Deadline {
        self.groups.after(self.close_timeout)
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Whether the task has ended: no events are dispatched any more.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    /// Starts to dispatch signals to a connection. Earlier signals are not lost: a half reads the
    /// memory before it parks.
    pub(crate) fn add_conn(&self, conn: &Arc<Conn>) {
        let deferred_tcp_watches = {
            let mut table = self.table.lock();
            table.conns.insert(conn.key(), Arc::clone(conn));
            table.members.insert((conn.group, conn.key()));
            if conn.is_tcp_watch_deferred() {
                let until = self.groups.runtime.now() + TCP_WATCH_DELAY;
                table
                    .deferred_tcp_watches
                    .push_back((until, Arc::downgrade(conn)));
            }
            table.deferred_tcp_watches.len()
        };
        if deferred_tcp_watches == 1 {
            self.wake_task();
        }
        // SMC-R connections may have moved to another device.
        if self.is_gone() && conn.rdma().is_none() {
            conn.abort_unreachable(Error::Closed(CloseReason::Aborted));
        }
    }

    /// Removes a connection that both sides have closed.
    pub(crate) fn remove(&self, key: ConnKey) {
        // Dropped after the lock: dropping a connection unregisters its buffer.
        let conn = {
            let mut table = self.table.lock();
            table.retries.remove(key);
            let conn = table.conns.remove(&key);
            if let Some(conn) = &conn {
                table.members.remove(&(conn.group, key));
            }
            conn
        };
        drop(conn);
        self.groups.notify_ended();
    }

    /// Waits for the peer's close of a stream that the application dropped. If there is a linger
    /// time, data is not sent for longer than that.
    pub(crate) fn await_peer_close(&self, conn: &Arc<Conn>, linger: Option<Duration>) {
        if self.is_stopped() {
            conn.abort(Error::Closed(CloseReason::Endpoint));
            return;
        }
        let now = self.groups.runtime.now();
        let linger = linger.filter(|linger| *linger < self.close_timeout);
        let (wakes_task, arms) = {
            let mut table = self.table.lock();
            let (first, arms) = table.add_closed(conn, now, self.close_timeout, linger);
            (table.next_look.is_none_or(|next| first < next), arms)
        };
        match arms {
            true => conn.arm_peer_close(),
            false => conn.watch_for_proposal(),
        }
        if wakes_task {
            self.wake_task();
        }
    }

    /// Of the connections whose stream the application has dropped, with data to send or without,
    /// that with a peer of this source which waits for its close for the longest time; of those
    /// with data first one that has sent it since.
    pub(crate) fn longest_closing(
        &self,
        source: Option<Source>,
        with_unsent: bool,
    ) -> Option<Arc<Conn>> {
        let all: Vec<_> = {
            let table = self.table.lock();
            let waiting = table.awaiting_close.iter();
            waiting.map(|(_, conn)| conn).cloned().collect()
        };
        // Upgraded after the lock: the last reference to a connection may be dropped here.
        let closing = all
            .iter()
            .filter_map(Weak::upgrade)
            .filter(|conn| conn.source == source && conn.is_closing(with_unsent));
        let mut longest = None;
        for conn in closing {
            if !conn.has_unsent() {
                return Some(conn);
            }
            longest.get_or_insert(conn);
        }
        longest
    }

    /// Starts the timeout of a half-open connection: TCP has ended, and the peer has not sent an
    /// update yet.
    pub(crate) fn start_half_open_timeout(&self, conn: &Arc<Conn>) {
        let until = self.groups.runtime.now() + HALF_OPEN_TIMEOUT;
        let half_open = (until, Arc::downgrade(conn));
        self.table.lock().half_open.push_back(half_open);
        self.wake_task();
    }

    /// Notes an event on the TCP socket of a connection that was dropped, or whose peer has sent an
    /// update.
    pub(crate) fn note_tcp_event(&self, conn: &Arc<Conn>) {
        self.table.lock().tcp_events.push(Arc::downgrade(conn));
        self.wake_task();
    }

    /// The endpoint was dropped: only streams still use the device.
    pub(crate) fn handle_endpoint_dropped(&self) {
        self.is_endpoint_dropped.store(true, Ordering::Release);
    }

    /// Another endpoint requests the device. If only dropped streams are left, they do not wait for
    /// the close of their peers: SMC-D streams have published their own, behind all written data.
    pub(crate) fn release_to_other_endpoint(&self) {
        self.poll_device();
        let has_ended = |conn: &Arc<Conn>| conn.is_app_closed() && conn.rdma().is_none();
        let left = self.connections();
        let is_unused = self.is_endpoint_dropped.load(Ordering::Acquire);
        if is_unused && left.iter().all(has_ended) {
            for conn in left {
                conn.abort_unreachable(Error::Closed(CloseReason::Endpoint));
            }
        }
    }

    /// Ends the task, wherever it runs.
    pub(crate) fn end_task(&self) {
        self.is_ending.store(true, Ordering::Release);
        self.has_work.store(true, Ordering::Release);
        // Whatever work it has: it may have passed its look at the flag.
        self.task_waker.wake();
    }

    /// The task has ended, most likely with its runtime: the close of peers would not be read.
    /// Streams in use go on as far as they can without waiting.
    fn stop(&self) {
        // Set before pending words are published; a connection with new pending words checks this
        // flag.
        self.stopped.store(true, Ordering::SeqCst);
        self.finish_drain();
        self.end_conns(usize::MAX);
        for conn in self.connections() {
            conn.publish_without_driver();
            if conn.is_app_closed() {
                conn.abort_unreachable(Error::Closed(CloseReason::Endpoint));
            } else {
                conn.wake();
            }
        }
    }

    /// Schedules a retry for a connection, which has `written` up to there: the device was busy.
    pub(crate) fn schedule_retry(&self, key: ConnKey, written: u64) {
        let now = self.groups.runtime.now();
        self.table.lock().retries.add(key, written, now);
        self.wake_task();
    }

    /// Whether all data written to streams that were dropped, or shut down for writing, is in the
    /// peers' memory. If it is not, [`Groups::notify_ended`] is called when it may be.
    pub(crate) fn arm_delivery(&self) -> bool {
        let mut closed = self.connections();
        closed.retain(|conn| conn.is_write_closed());
        closed.iter().all(|conn| conn.arm_delivery())
    }

    /// Whether a dropped SMC-R connection has not ended yet.
    pub(crate) fn has_app_closed_rdma(&self) -> bool {
        let conns = self.connections();
        conns
            .iter()
            .any(|conn| conn.rdma().is_some() && conn.is_app_closed())
    }

    pub(crate) fn info(&self) -> DeviceInfo {
        let kind = match self.device.operations().direct() {
            Some(direct) => DeviceKind::Direct {
                gid: direct.gid(),
                chid: direct.chid(),
            },
            None => DeviceKind::Rdma,
        };
        DeviceInfo {
            name: self.name.to_string(),
            kind,
            pnet_id: self.device.identity().pnet_id.map(|id| id.to_string()),
            is_gone: self.is_gone(),
            connections: self.table.lock().conns.len(),
        }
    }

    pub(crate) fn connections(&self) -> Vec<Arc<Conn>> {
        self.table.lock().conns.values().cloned().collect()
    }

    /// Dispatches the device's events. Returns whether there was one.
    fn drain(&self) -> Result<bool, DeviceError> {
        let _one = self.draining.lock();
        self.drain_alone()
    }

    /// As [`Self::drain`] between two polls of the device.
    fn poll(&self) -> Result<bool, DeviceError> {
        let _one = self.draining.lock();
        self.dispatch(|sink| self.device.poll(sink))
    }

    fn drain_alone(&self) -> Result<bool, DeviceError> {
        self.dispatch(|sink| self.device.drain(sink))
    }

    /// Handles the events that a call of the device takes. Returns whether there was one.
    fn dispatch(
        &self,
        take: impl FnOnce(&mut dyn FnMut(Event)) -> Result<(), DeviceError>,
    ) -> Result<bool, DeviceError> {
        let mut any = false;
        take(&mut |event| {
            any = true;
            self.handle(event);
        })?;
        Ok(any)
    }

    fn handle(&self, event: Event) {
        match event {
            Event::Signalled(token) => {
                let conn = self
                    .table
                    .lock()
                    .conns
                    .get(&ConnKey::direct(token))
                    .cloned();
                if let Some(conn) = conn {
                    self.pollers.count_stream(&conn.counted_in);
                    conn.handle_signal();
                }
            }
            // Ends the groups with that peer, and so calls [`Self::end_group`].
            Event::PeerGone(peer) => self
                .groups
                .update(|registry| registry.handle_peer_gone(self.index, peer)),
            Event::Peer { from, event } => self.handle_peer_event(from, event),
            Event::DeviceGone => self.handle_device_gone(&REMOVED),
            Event::Received { link, message } => {
                if let Some((group, link)) = self.link(link) {
                    group.handle_received(link, &message);
                }
            }
            Event::Completed { link, op } => {
                if let Some((group, link)) = self.link(link) {
                    group.handle_completed(link, op);
                }
            }
            Event::LinkDown { link, cause } => {
                if let Some((group, link)) = self.link(link) {
                    group.handle_link_down(link, cause);
                }
            }
            Event::AddressesChanged => self.groups.addresses_changed(),
        }
    }

    fn handle_peer_event(&self, from: Gid, event: PeerEvent) {
        match event {
            PeerEvent::Shutdown => self
                .groups
                .update(|registry| registry.handle_peer_shutdown(self.index, from)),
            PeerEvent::TestRequest => {
                let direct = self.device.operations().direct();
                if let Some(events) = direct.and_then(|direct| direct.peer_events()) {
                    // A peer that gets no answer has to ask again.
                    let _best_effort = events.signal_event(from, PeerEvent::TestResponse);
                }
            }
            // No test is requested here.
            _ => {}
        }
    }

    /// Ends the connections of an SMC-D link group. If the peer is gone, which can have very many,
    /// the task does so in pieces.
    pub(crate) fn end_group(&self, group: GroupId, cause: GroupEndCause) {
        let members = {
            let mut table = self.table.lock();
            let mut members = table.members_of(group);
            if cause == GroupEndCause::PeerGone {
                table.ending.extend(members.drain(..));
            }
            members
        };
        for conn in members {
            conn.handle_group_end(cause);
        }
        match self.is_stopped() {
            true => {
                self.end_conns(usize::MAX);
            }
            false => self.wake_task(),
        }
    }

    /// Whether connections wait to be ended.
    fn has_ending(&self) -> bool {
        !self.table.lock().ending.is_empty()
    }

    /// Ends up to `most` of the connections whose peer is gone. Returns whether others are left.
    fn end_conns(&self, most: usize) -> bool {
        let (ending, is_any_left) = {
            let mut table = self.table.lock();
            let count = table.ending.len().min(most);
            let ending: Vec<_> = table.ending.drain(..count).collect();
            (ending, !table.ending.is_empty())
        };
        for conn in ending {
            conn.handle_group_end(GroupEndCause::PeerGone);
        }
        is_any_left
    }

    fn handle_device_gone(&self, cause: &DeviceError) {
        if !self.gone.swap(true, Ordering::AcqRel) {
            info!("device is gone", device = self.name, cause = cause);
        }
        self.groups
            .update(|registry| registry.handle_device_gone(self.index));
        for group in self.groups.all_rdma() {
            group.handle_device_gone(self.index);
        }
        if self.device.operations().rdma().is_some() {
            self.groups.addresses_changed();
        }
    }

    /// Adds a link with a waiter for the completion of a post.
    pub(crate) fn add_awaiting_link(&self) {
        self.awaiting_links.fetch_add(1, Ordering::SeqCst);
        if !self.in_pass.load(Ordering::SeqCst) {
            self.wake_task();
        }
    }

    /// The awaited post of a link has completed, or the link is down.
    pub(crate) fn remove_awaiting_link(&self) {
        self.awaiting_links.fetch_sub(1, Ordering::SeqCst);
    }

    /// Arms the doorbell, for completions too if there is a waiter.
    fn arm(&self) -> Result<(), DeviceError> {
        self.device.arm()?;
        match self.device.operations().rdma() {
            Some(rdma) if self.awaiting_links.load(Ordering::SeqCst) > 0 => rdma.arm_completions(),
            _ => Ok(()),
        }
    }

    /// Has the task poll the device, if that was requested ([`Pollers`]). Called by a half before
    /// it parks.
    pub(crate) fn start_polling(&self) {
        if self.pollers.take_request() {
            self.wake_task();
        }
    }

    pub(crate) fn wake_task(&self) {
        if !self.has_work.swap(true, Ordering::AcqRel) {
            self.task_waker.wake();
        }
    }

    /// Dispatches the device's events on behalf of a polling task, unless another thread is
    /// draining the device. Returns false if there may be more.
    pub(crate) fn poll_device(&self) -> bool {
        let is_quiet = match self.draining.try_lock() {
            Some(_one) => self.drain_and_arm(),
            None => return true,
        };
        // More events are left, or the device has failed.
        if !is_quiet {
            self.wake_task();
        }
        is_quiet
    }

    /// Dispatches the device's events. The driver task may be parked, and a drain may disarm the
    /// doorbell, so it is armed again. Returns whether the task can stay parked.
    fn drain_and_arm(&self) -> bool {
        for _ in 0..PASSES_MAX {
            match self.drain_alone() {
                Ok(false) => return true,
                Ok(true) if self.arm().is_ok() => {}
                Ok(true) | Err(_) => return false,
            }
        }
        false
    }

    fn link(&self, qpn: Qpn) -> Option<(Arc<RdmaLinkGroup>, LinkId)> {
        self.links.lock().get(qpn)
    }
}

impl Drop for DeviceDriver {
    fn drop(&mut self) {
        // The task cannot upgrade its reference any more and ends.
        self.task_waker.wake();
        // Unless the runtime has ended, the task does so in order.
        self.groups.abandon_if_unused();
        claims::release();
    }
}

const REMOVED: DeviceError = DeviceError::Gone("device was removed");

/// Passes in one poll of the task.
const PASSES_MAX: usize = 4;

/// Delay of the TCP watch of a connection on this host: most have received an update of their peer
/// by then.
const TCP_WATCH_DELAY: Duration = Duration::from_millis(20);

/// Timeout of a half-open connection: the peer's first update may be in flight, and a failed link
/// may have to be removed first.
const HALF_OPEN_TIMEOUT: Duration = Duration::from_secs(5);
