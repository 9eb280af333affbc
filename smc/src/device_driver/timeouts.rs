//! The work of a driver that is due: queued events of connections, and their timeouts.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::busy_retries::Due;
use super::{DeviceDriver, Table};
use crate::conn::{Conn, ConnKey};
use crate::error::{CloseReason, Error};
use crate::proto::group::GroupId;

impl DeviceDriver {
    /// Handles queued work and timeouts, of each kind up to [`CONNS_PER_PASS`]. Returns the next
    /// timeout, which is `now` if there are more.
    ///
    /// Most passes of a task have none of these, and find that out under one lock.
    pub(super) fn handle_timeouts(&self, now: Instant) -> Option<Instant> {
        let mut table = self.table.lock();
        if !table.ending.is_empty() {
            drop(table);
            if self.end_conns(CONNS_PER_PASS) {
                return Some(now);
            }
            table = self.table.lock();
        }
        if !table.tcp_events.is_empty() {
            let count = table.tcp_events.len().min(CONNS_PER_PASS);
            let events: Vec<_> = table.tcp_events.drain(..count).collect();
            drop(table);
            for conn in events.iter().filter_map(Weak::upgrade) {
                conn.watch_tcp();
                conn.handle_signal();
            }
            table = self.table.lock();
        }
        if !table.just_closed.is_empty() {
            drop(table);
            self.look_for_closes(now);
            table = self.table.lock();
        }
        let due = table.take_due(now);
        if due.is_empty() && table.retries.is_empty() {
            let next = table.plan_next_look(now);
            // Before what was looked at.
            drop(table);
            return next;
        }
        drop(table);
        for conn in due.tcp_watches {
            conn.start_tcp_watch();
        }
        for conn in due.lingering {
            conn.end_linger();
        }
        for conn in due.overdue {
            conn.abort(Error::Closed(CloseReason::Aborted));
        }
        // Unless what was done above has found an update of the peer.
        for conn in due.silent.iter().filter(|conn| conn.is_peer_silent()) {
            conn.abort(Error::Closed(CloseReason::Aborted));
        }
        for (conn, due) in self.due_retries(now) {
            match due {
                Due::Retry => {
                    let result = conn.retry_pending();
                    self.table
                        .lock()
                        .retries
                        .handle_result(conn.key(), result, now);
                }
                Due::TimedOut => conn.handle_busy_timeout(),
                Due::Drop => conn.drop_pending(),
            }
        }
        self.table.lock().plan_next_look(now)
    }

    /// Releases the connections of [`Table::just_closed`] that their peers have closed, too.
    /// Returns whether there were any to look at.
    pub(crate) fn look_for_closes(&self, now: Instant) -> bool {
        let just_closed = self.table.lock().take_just_closed(now);
        let any = !just_closed.is_empty();
        for (conn, is_due) in just_closed {
            if is_due {
                conn.arm_peer_close();
            } else {
                conn.handle_peer_flags();
            }
        }
        any
    }

    /// Connections with a retry due at a busy device.
    fn due_retries(&self, now: Instant) -> Vec<(Arc<Conn>, Due)> {
        let mut table = self.table.lock();
        let due = table.retries.due(now, CONNS_PER_PASS);
        let found = due.into_iter().filter_map(|(key, due)| {
            let conn = table.conns.get(&key)?;
            Some((Arc::clone(conn), due))
        });
        found.collect()
    }
}

/// How long passes of the task, which other events cause, look for the close of a peer before the
/// peer has to signal it. Most peers close within that time, and waking this process for nothing
/// but the release of the connection's memory costs more than all else about the close.
const CLOSE_LOOK: Duration = Duration::from_millis(2);

/// Connections for which that is done. With more of them other events keep the task awake, so that
/// a signal costs nothing, and their memory is needed for the next ones.
const JUST_CLOSED_MAX: usize = 4;

/// Connections that are handled in one pass for one reason: other tasks run between passes. Each
/// takes some ten microseconds.
const CONNS_PER_PASS: usize = 32;

/// Connections whose timeout has passed.
#[derive(Default)]
struct DueConns {
    /// Their TCP watch starts now.
    tcp_watches: Vec<Arc<Conn>>,
    /// Their linger time has passed.
    lingering: Vec<Arc<Conn>>,
    /// The peer has not closed in time.
    overdue: Vec<Arc<Conn>>,
    /// Half-open, and the peer has sent nothing in time.
    silent: Vec<Arc<Conn>>,
    /// Not due. The last reference to a connection may be dropped here, so not under the lock.
    _others: Vec<Arc<Conn>>,
}

impl DueConns {
    fn is_empty(&self) -> bool {
        let Self {
            tcp_watches,
            lingering,
            overdue,
            silent,
            _others: _,
        } = self;
        let all = [tcp_watches, lingering, overdue, silent];
        all.into_iter().all(Vec::is_empty)
    }
}

impl Table {
    /// The connections of a link group.
    pub(super) fn members_of(&self, group: GroupId) -> Vec<Arc<Conn>> {
        let first = (group, ConnKey::FIRST);
        let members = self
            .members
            .range(first..)
            .map_while(|(of, key)| (*of == group).then_some(key));
        members
            .filter_map(|key| self.conns.get(key).cloned())
            .collect()
    }

    /// Adds a connection that the application has dropped. Returns when it is looked at first, and
    /// whether its peer has to signal the close.
    pub(super) fn add_closed(
        &mut self,
        conn: &Arc<Conn>,
        now: Instant,
        close_timeout: Duration,
        linger: Option<Duration>,
    ) -> (Instant, bool) {
        let until = now + close_timeout;
        self.awaiting_close.push_back((until, Arc::downgrade(conn)));
        let mut first = until;
        if let Some(linger) = linger {
            let end = now + linger;
            let at = self.lingering.partition_point(|(until, _)| *until <= end);
            self.lingering.insert(at, (end, Arc::downgrade(conn)));
            first = first.min(end);
        }
        self.just_closed.retain(|(_, conn)| conn.strong_count() > 0);
        let is_looked_for = conn.rdma().is_none() && self.just_closed.len() < JUST_CLOSED_MAX;
        if is_looked_for {
            let look = now + CLOSE_LOOK;
            self.just_closed.push_back((look, Arc::downgrade(conn)));
            first = first.min(look);
        }
        (first, !is_looked_for)
    }

    /// The connections of [`Table::just_closed`] that still exist, and whether their time has
    /// passed, which takes them out of it.
    fn take_just_closed(&mut self, now: Instant) -> Vec<(Arc<Conn>, bool)> {
        let mut all = Vec::new();
        self.just_closed.retain(|(until, conn)| {
            let Some(conn) = conn.upgrade() else {
                return false;
            };
            let is_due = *until <= now;
            all.push((conn, is_due));
            !is_due
        });
        all
    }

    fn take_due(&mut self, now: Instant) -> DueConns {
        let mut others = Vec::new();
        let mut take = |queue, waits: fn(&Conn) -> bool| take_due(queue, now, waits, &mut others);
        let due = DueConns {
            tcp_watches: take(&mut self.deferred_tcp_watches, |_| true),
            lingering: take(&mut self.lingering, |_| true),
            overdue: take(&mut self.awaiting_close, |_| true),
            silent: take(&mut self.half_open, Conn::is_peer_silent),
            _others: others,
        };
        for queue in [&mut self.awaiting_close, &mut self.lingering] {
            if queue.len() > 2 * self.conns.len() + 64 {
                queue.retain(|(_, conn)| conn.strong_count() > 0);
            }
        }
        due
    }

    /// The time of the next timeout, or of work that was left, at which the task has to look again.
    fn plan_next_look(&mut self, now: Instant) -> Option<Instant> {
        self.next_look = self.next_timeout(now);
        self.next_look
    }

    fn next_timeout(&self, now: Instant) -> Option<Instant> {
        if !self.tcp_events.is_empty() {
            return Some(now);
        }
        let queues = [
            &self.just_closed,
            &self.awaiting_close,
            &self.lingering,
            &self.half_open,
            &self.deferred_tcp_watches,
        ];
        let next = queues.into_iter().filter_map(VecDeque::front);
        next.map(|(until, _)| *until)
            .chain(self.retries.next())
            .min()
    }
}

/// Takes connections whose time has passed from the front of a queue, and removes those that do not
/// wait any more. `others` are those that were looked at and are not due.
fn take_due(
    queue: &mut VecDeque<(Instant, Weak<Conn>)>,
    now: Instant,
    waits: impl Fn(&Conn) -> bool,
    others: &mut Vec<Arc<Conn>>,
) -> Vec<Arc<Conn>> {
    let mut due = Vec::new();
    while let (true, Some((until, conn))) = (due.len() < CONNS_PER_PASS, queue.front()) {
        if let Some(conn) = conn.upgrade() {
            let (waits, is_late) = (waits(&conn), *until <= now);
            match waits && is_late {
                true => due.push(conn),
                false => others.push(conn),
            }
            if waits && !is_late {
                break;
            }
        }
        queue.pop_front();
    }
    due
}
