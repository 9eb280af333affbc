//! One task per device that hands the device's events to the connections concerned.

mod busy_retries;
mod claims;
mod task;

pub(crate) use claims::claim;
pub(crate) use task::DriverTask;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use atomic_waker::AtomicWaker;
use hashbrown::HashMap;
use smc_wire::types::{Gid, Qpn};

use super::conn::{Conn, ConnKey};
use super::deadlines::Deadline;
use super::groups::Groups;
use super::rdma::{LinkSender, RdmaGroup};
use crate::device::{Device, DeviceError, Event};
use crate::error::{CloseReason, Error};
use crate::mem::sync::{AtomicBool, AtomicUsize, Ordering};
use crate::proto::group::{Cause, DeviceIndex, GroupId};
use crate::proto::links::LinkId;
use busy_retries::{BusyRetries, Due};

/// A device of an endpoint with the connections that use it.
pub(crate) struct DeviceDriver {
    device: Arc<dyn Device>,
    /// The device's name, shared by the modes of its streams.
    name: Arc<str>,
    index: DeviceIndex,
    groups: Arc<Groups>,
    table: Mutex<Table>,
    /// The table has work that the driver has to come for.
    has_work: AtomicBool,
    task_waker: AtomicWaker,
    /// Whose queue pairs those of the device are.
    links: Mutex<HashMap<Qpn, (Weak<RdmaGroup>, LinkId)>>,
    /// Links to be closed when everything that they have received was handed out.
    closing: Mutex<Vec<(Arc<LinkSender>, Weak<RdmaGroup>)>>,
    /// Held while events are handed out: the device has one consumer at a time.
    draining: Mutex<()>,
    /// Links on which somebody waits for the completion of a post.
    awaiting: AtomicUsize,
    /// The driver is awake and will look at `awaiting` before it sleeps.
    in_pass: AtomicBool,
    gone: AtomicBool,
    /// The endpoint is gone, with its listeners and all that was being set up.
    is_endpoint_dropped: AtomicBool,
    /// See [`Self::is_stopped`].
    stopped: AtomicBool,
    close_timeout: Duration,
}

/// Connections by the token of our buffer, which is what signals name.
#[derive(Default)]
struct Table {
    conns: HashMap<ConnKey, Arc<Conn>>,
    /// Dropped by the application, waiting for the peer's last word until the time given, the
    /// earliest first.
    lingering: VecDeque<(Instant, Weak<Conn>)>,
    /// Dropped since the driver looked last.
    released: Vec<Weak<Conn>>,
    /// Dropped, and something happened on their TCP sockets.
    tcp_events: Vec<Weak<Conn>>,
    /// Whose TCP connection is not looked at before the time given, the earliest first.
    deferred_tcp_watches: VecDeque<(Instant, Weak<Conn>)>,
    /// TCP has ended before the peer has said anything; until when it may, the earliest first.
    half_open: VecDeque<(Instant, Weak<Conn>)>,
    /// Those of which a busy device has not taken everything.
    retries: BusyRetries,
}

impl DeviceDriver {
    pub(crate) fn new(
        device: Arc<dyn Device>,
        index: DeviceIndex,
        groups: Arc<Groups>,
        close_timeout: Duration,
    ) -> Arc<Self> {
        let name = Arc::from(device.identity().name.as_str());
        Arc::new(Self {
            device,
            name,
            index,
            groups,
            table: Mutex::default(),
            has_work: AtomicBool::new(false),
            task_waker: AtomicWaker::new(),
            links: Mutex::default(),
            closing: Mutex::default(),
            draining: Mutex::default(),
            awaiting: AtomicUsize::new(0),
            in_pass: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            is_endpoint_dropped: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            close_timeout,
        })
    }

    pub(crate) fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    pub(crate) fn name(&self) -> &Arc<str> {
        &self.name
    }

    pub(crate) fn close_deadline(&self) -> Deadline {
        let until = self.groups.runtime().now() + self.close_timeout;
        self.groups.deadlines().at(until)
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Whether the driver has ended: nothing tells connections what happens.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    /// Starts to hand signals to a connection. Signals that came before are not lost: a half looks
    /// at the memory before it sleeps.
    pub(crate) fn add_conn(&self, conn: &Arc<Conn>) {
        let deferred_tcp_watches = {
            let mut table = self.table();
            table.conns.insert(conn.key(), Arc::clone(conn));
            if conn.is_tcp_watch_deferred() {
                let until = self.groups.runtime().now() + TCP_WATCH_DELAY;
                table
                    .deferred_tcp_watches
                    .push_back((until, Arc::downgrade(conn)));
            }
            table.deferred_tcp_watches.len()
        };
        if deferred_tcp_watches == 1 {
            self.wake_task();
        }
        // Those of SMC-R may have moved to another device.
        if self.is_gone() && conn.rdma().is_none() {
            conn.abort(Error::Closed(CloseReason::Aborted));
        }
    }

    /// The connection has ended for both sides.
    pub(crate) fn remove(&self, key: ConnKey) {
        // Dropped after the lock: dropping a connection unregisters its buffer.
        let conn = {
            let mut table = self.table();
            table.retries.remove(key);
            table.conns.remove(&key)
        };
        drop(conn);
        self.groups.notify_ended();
    }

    /// The application dropped the stream; the peer's last word is still to come.
    pub(crate) fn linger(&self, conn: &Arc<Conn>) {
        if self.is_stopped() {
            conn.abort(Error::Closed(CloseReason::Endpoint));
            return;
        }
        self.table().released.push(Arc::downgrade(conn));
        self.wake_task();
    }

    /// TCP has ended, and the peer has not said anything yet: it has to do so soon.
    pub(crate) fn start_half_open_timeout(&self, conn: &Arc<Conn>) {
        let until = self.groups.runtime().now() + HALF_OPEN_TIMEOUT;
        let half_open = (until, Arc::downgrade(conn));
        self.table().half_open.push_back(half_open);
        self.wake_task();
    }

    /// Something happened on the TCP socket of a dropped connection.
    pub(crate) fn note_tcp_event(&self, conn: &Arc<Conn>) {
        self.table().tcp_events.push(Arc::downgrade(conn));
        self.wake_task();
    }

    /// The endpoint is gone: only streams still use the device.
    pub(crate) fn handle_endpoint_dropped(&self) {
        self.is_endpoint_dropped.store(true, Ordering::Release);
    }

    /// Another endpoint wants the device. If only streams are left that were dropped, they do not
    /// wait for the last words of their peers: those of SMC-D have said theirs, behind all that was
    /// written.
    pub(crate) fn release_to_other_endpoint(&self) {
        self.poll_device();
        let is_over = |conn: &Arc<Conn>| conn.is_released() && conn.rdma().is_none();
        let left = self.connections();
        let is_unused = self.is_endpoint_dropped.load(Ordering::Acquire);
        if is_unused && left.iter().all(is_over) {
            for conn in left {
                conn.abort(Error::Closed(CloseReason::Endpoint));
            }
        }
    }

    /// The driver ended, most likely with its runtime: the last word of peers would not be read.
    /// Streams that the application still has go on as far as they can without waiting.
    fn stop(&self) {
        // Before looking at what is owed; a connection that comes to owe something looks at this.
        self.stopped.store(true, Ordering::SeqCst);
        self.close_links();
        for conn in self.connections() {
            conn.publish_without_driver();
            if conn.is_released() {
                conn.abort(Error::Closed(CloseReason::Endpoint));
            } else {
                conn.wake();
            }
        }
    }

    /// The device was too busy for something of this connection, which has `written` up to there.
    pub(crate) fn schedule_retry(&self, key: ConnKey, written: u64) {
        let now = self.groups.runtime().now();
        self.table().retries.add(key, written, now);
        self.wake_task();
    }

    /// Whether everything written to streams that were dropped, or shut down for writing, is in the
    /// peers' memory. If it is not, [`Groups::notify_ended`] is called when it may be.
    pub(crate) fn await_delivery(&self) -> bool {
        let mut closed = self.connections();
        closed.retain(|conn| conn.is_write_closed());
        closed.iter().all(|conn| conn.await_delivery())
    }

    /// Whether an SMC-R connection that was dropped has not come to its end yet.
    pub(crate) fn has_released_rdma(&self) -> bool {
        let conns = self.connections();
        conns
            .iter()
            .any(|conn| conn.rdma().is_some() && conn.is_released())
    }

    /// A connection that was dropped, or shut down for writing, may have been delivered.
    pub(crate) fn note_delivery(&self) {
        self.groups.notify_ended();
    }

    pub(crate) fn connections(&self) -> Vec<Arc<Conn>> {
        self.table().conns.values().cloned().collect()
    }

    /// Hands out what the device has. Returns whether there was anything.
    fn drain(&self) -> Result<bool, DeviceError> {
        let _one = self.draining.lock().unwrap_or_else(PoisonError::into_inner);
        self.drain_alone()
    }

    fn drain_alone(&self) -> Result<bool, DeviceError> {
        let mut any = false;
        self.device.drain(&mut |event| {
            any = true;
            self.handle(event);
        })?;
        Ok(any)
    }

    fn handle(&self, event: Event) {
        match event {
            Event::Signalled(token) => {
                let conn = self.table().conns.get(&ConnKey::direct(token)).cloned();
                if let Some(conn) = conn {
                    conn.handle_signal();
                }
            }
            Event::PeerGone(peer) => self.peer_gone(peer),
            Event::Peer {
                from,
                event: crate::device::PeerEvent::Shutdown,
            } => self.groups.peer_shutdown(self.index, from),
            Event::DeviceGone => self.device_gone(),
            // Connections notice a lost buffer when they write, tests are the device's business.
            Event::BufferGone(_) | Event::Peer { .. } => {}
            Event::Received { link, message } => {
                if let Some((group, link)) = self.link(link) {
                    group.received(self.index, link, &message);
                }
            }
            Event::Sent { link, op } => {
                if let Some((group, link)) = self.link(link) {
                    group.sent(link, op);
                }
            }
            Event::LinkDown { link, cause } => {
                if let Some((group, link)) = self.link(link) {
                    group.link_down(link, cause);
                }
            }
            Event::AddressesChanged => self.groups.addresses_changed(),
        }
    }

    fn peer_gone(&self, peer: Gid) {
        // Ends the groups with that peer, which comes back here for their connections.
        self.groups.peer_gone(self.index, peer);
    }

    /// The link group ended under its connections.
    pub(crate) fn group_ended(&self, group: GroupId, cause: Cause) {
        for conn in self.members(group) {
            match cause {
                // It may have closed before.
                Cause::PeerGone | Cause::DeviceGone => conn.handle_peer_gone(),
                Cause::Shutdown => conn.end_with_endpoint(),
                _ => conn.abort(Error::Closed(CloseReason::Aborted)),
            }
        }
    }

    fn members(&self, group: GroupId) -> Vec<Arc<Conn>> {
        let table = self.table();
        let members = table.conns.values().filter(|conn| conn.group() == group);
        members.cloned().collect()
    }

    fn device_gone(&self) {
        self.gone.store(true, Ordering::Release);
        self.groups.device_gone(self.index);
        for group in self.groups.all_rdma() {
            group.device_gone(self.index);
        }
        if self.device.fabric().rdma().is_some() {
            self.groups.addresses_changed();
        }
    }

    /// What the driver was called for. Returns when it has to come again.
    fn handle_timeouts(&self, now: Instant) -> Option<Instant> {
        let tcp_events = std::mem::take(&mut self.table().tcp_events);
        for conn in tcp_events.iter().filter_map(Weak::upgrade) {
            conn.handle_signal();
        }
        for conn in self.due_tcp_watches(now) {
            conn.start_tcp_watch();
        }
        for conn in self.overdue(now) {
            conn.abort(Error::Closed(CloseReason::Aborted));
        }
        for conn in self.expired_half_open(now) {
            conn.abort(Error::Closed(CloseReason::Aborted));
        }
        for (conn, due) in self.due_retries(now) {
            match due {
                Due::Retry => {
                    let result = conn.retry_pending();
                    self.table().retries.handle_result(conn.key(), result, now);
                }
                Due::TimedOut => conn.handle_busy_timeout(),
                Due::Drop => conn.drop_pending(),
            }
        }
        let table = self.table();
        let lingering = table.lingering.front().map(|(until, _)| *until);
        let half_open = table.half_open.front().map(|(until, _)| *until);
        let deferred_tcp_watches = table.deferred_tcp_watches.front().map(|(until, _)| *until);
        lingering
            .into_iter()
            .chain(deferred_tcp_watches)
            .chain(half_open)
            .chain(table.retries.next())
            .min()
    }

    /// Connections that are not deferred_tcp_watches any more.
    fn due_tcp_watches(&self, now: Instant) -> Vec<Arc<Conn>> {
        let mut grown = Vec::new();
        let mut table = self.table();
        while let Some((until, conn)) = table.deferred_tcp_watches.front() {
            match conn.upgrade() {
                Some(conn) if *until <= now => grown.push(conn),
                Some(_) => break,
                None => {}
            }
            table.deferred_tcp_watches.pop_front();
        }
        grown
    }

    /// Connections whose TCP has ended and whose peer has had its time to say something.
    fn expired_half_open(&self, now: Instant) -> Vec<Arc<Conn>> {
        let mut silent = Vec::new();
        let mut table = self.table();
        while let Some((until, conn)) = table.half_open.front() {
            match conn.upgrade().filter(|conn| conn.is_peer_silent()) {
                Some(conn) if *until <= now => silent.push(conn),
                Some(_) => break,
                None => {}
            }
            table.half_open.pop_front();
        }
        silent
    }

    /// Connections whose peer has not said its last word in time.
    fn overdue(&self, now: Instant) -> Vec<Arc<Conn>> {
        let mut overdue = Vec::new();
        let mut table = self.table();
        let Table {
            conns,
            lingering,
            released,
            ..
        } = &mut *table;
        let until = now + self.close_timeout;
        lingering.extend(released.drain(..).map(|conn| (until, conn)));
        // The table holds every connection that has not ended.
        while let Some((until, conn)) = lingering.front() {
            match conn.upgrade() {
                Some(conn) if *until <= now => overdue.push(conn),
                Some(_) => break,
                None => {}
            }
            lingering.pop_front();
        }
        if lingering.len() > 2 * conns.len() + 64 {
            lingering.retain(|(_, conn)| conn.strong_count() > 0);
        }
        overdue
    }

    /// Connections of which a busy device has not taken everything, where something is due.
    fn due_retries(&self, now: Instant) -> Vec<(Arc<Conn>, Due)> {
        let mut table = self.table();
        let due = table.retries.due(now);
        let found = due.into_iter().filter_map(|(key, due)| {
            let conn = table.conns.get(&key)?;
            Some((Arc::clone(conn), due))
        });
        found.collect()
    }

    /// Somebody waits for the completion of a post on another link.
    pub(crate) fn await_sent(&self) {
        self.awaiting.fetch_add(1, Ordering::SeqCst);
        if !self.in_pass.load(Ordering::SeqCst) {
            self.wake_task();
        }
    }

    /// What was waited for on a link is completed, or the link is down.
    pub(crate) fn end_await_sent(&self) {
        self.awaiting.fetch_sub(1, Ordering::SeqCst);
    }

    /// Asks the device to ring for whatever somebody waits for.
    fn arm(&self) -> Result<(), DeviceError> {
        self.device.arm()?;
        match self.device.fabric().rdma() {
            Some(rdma) if self.awaiting.load(Ordering::SeqCst) > 0 => rdma.arm_sent(),
            _ => Ok(()),
        }
    }

    pub(crate) fn wake_task(&self) {
        if !self.has_work.swap(true, Ordering::AcqRel) {
            self.task_waker.wake();
        }
    }

    /// Hands out what the device has, on behalf of somebody who looks for it. Returns whether that
    /// was possible: nothing is done if somebody else is at it.
    pub(crate) fn poll_device(&self) -> bool {
        let is_quiet = match self.draining.try_lock() {
            Ok(_one) => self.drain_and_arm(),
            Err(_) => return false,
        };
        // There is more than can be done here, or the device has failed.
        if !is_quiet {
            self.wake_task();
        }
        true
    }

    /// Hands out what the device has. The driver may be asleep, and what was armed for it taken
    /// back, so it is armed again. Returns whether the driver can sleep on.
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

    /// The same for somebody who cannot do without what the device has. Whoever is at it is waited
    /// for, though not without end: they may be waiting for us.
    pub(crate) fn poll_device_blocking(&self) {
        for _ in 0..BLOCKING_POLLS_MAX {
            if self.poll_device() {
                return;
            }
            std::thread::yield_now();
        }
    }

    /// What a queue pair reports is for this link from now on.
    pub(crate) fn add_link(&self, qpn: Qpn, group: &Arc<RdmaGroup>, link: LinkId) {
        let mut links = self.links();
        // A set-up that was given up leaves its link behind.
        links.retain(|_, (group, _)| group.strong_count() > 0);
        links.insert(qpn, (Arc::downgrade(group), link));
    }

    pub(crate) fn remove_link(&self, qpn: Qpn) {
        self.links().remove(&qpn);
    }

    /// Has a link closed as soon as everything that it has received was handed out, and its group
    /// told so: what the peer knows to have arrived must not get lost.
    pub(crate) fn close_link(&self, sender: Arc<LinkSender>, group: &Arc<RdmaGroup>) {
        let closing = (sender, Arc::downgrade(group));
        self.closing().push(closing);
        if self.is_gone() || self.is_stopped() {
            self.close_links();
        } else {
            self.wake_task();
        }
    }

    fn close_links(&self) {
        let closing = std::mem::take(&mut *self.closing());
        self.close_all(closing);
    }

    fn close_all(&self, closing: Vec<(Arc<LinkSender>, Weak<RdmaGroup>)>) {
        for (sender, group) in closing {
            sender.link().close();
            sender.set_closed();
            self.remove_link(sender.link().qpn());
            if let Some(group) = group.upgrade() {
                group.closed(sender.id());
            }
        }
    }

    fn link(&self, qpn: Qpn) -> Option<(Arc<RdmaGroup>, LinkId)> {
        let (group, link) = self.links().get(&qpn).cloned()?;
        Some((group.upgrade()?, link))
    }

    fn links(&self) -> MutexGuard<'_, HashMap<Qpn, (Weak<RdmaGroup>, LinkId)>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn closing(&self) -> MutexGuard<'_, Vec<(Arc<LinkSender>, Weak<RdmaGroup>)>> {
        self.closing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for DeviceDriver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeviceDriver")
            .field("device", &self.name)
            .finish_non_exhaustive()
    }
}

impl Drop for DeviceDriver {
    fn drop(&mut self) {
        // The driver finds nothing to upgrade to and ends.
        self.task_waker.wake();
        claims::release();
    }
}

/// Passes in one turn of the executor.
const PASSES_MAX: usize = 4;

/// How long a connection of this host goes without a look at its TCP connection: most have heard of
/// their peer by then.
const TCP_WATCH_DELAY: Duration = Duration::from_millis(20);

/// How long a peer whose TCP connection has ended has for its first word: its last one may be on
/// its way, and its link may have to be given up first.
const HALF_OPEN_TIMEOUT: Duration = Duration::from_secs(5);

/// Looks at whether somebody else has finished with a device.
const BLOCKING_POLLS_MAX: usize = 10_000;
