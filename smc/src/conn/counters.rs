//! Counters of the two halves of a connection, for tools.

use std::sync::{Arc, Weak};

use super::super::links::LinkSender;
use crate::mem::sync::{AtomicU64, Ordering};
use crate::mutex::Mutex;
use crate::stats::{
    DeviceStats, DirectionStats, FIRST_CLASS_MAX, QueueStats, SIZE_CLASSES, size_class,
};

/// The counters of a connection, those of one half in no cache line of the other's: by a line of
/// padding, since the allocator takes many times as long for aligned memory.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct ConnCounters {
    pub(crate) received: HalfCounters,
    _apart: [u64; 8],
    pub(crate) sent: HalfCounters,
}

/// The counters of one half of a stream. Only that half stores, by plain stores; tools read them at
/// any time.
#[derive(Debug)]
pub(crate) struct HalfCounters {
    bytes: AtomicU64,
    requests: AtomicU64,
    /// The requests above the first class, by class. Most requests are in the first class, and cost
    /// no second addition.
    long_requests: [AtomicU64; SIZE_CLASSES],
    full: AtomicU64,
    parked: AtomicU64,
    polls_won: AtomicU64,
}

impl Default for HalfCounters {
    fn default() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            bytes: zero(),
            requests: zero(),
            long_requests: std::array::from_fn(|_| zero()),
            full: zero(),
            parked: zero(),
            polls_won: zero(),
        }
    }
}

impl HalfCounters {
    /// A read or write of so many bytes.
    #[inline(always)]
    pub(crate) fn add_request(&self, len: usize) {
        add(&self.bytes, u64::try_from(len).unwrap_or(u64::MAX));
        add(&self.requests, 1);
        if len > FIRST_CLASS_MAX {
            self.add_long_request(len);
        }
    }

    #[cold]
    fn add_long_request(&self, len: usize) {
        if let Some(requests) = self.long_requests.get(size_class(len)) {
            add(requests, 1);
        }
    }

    /// A write has filled the peer's buffer.
    pub(crate) fn add_full(&self) {
        add(&self.full, 1);
    }

    /// A task parks until the half is ready.
    pub(crate) fn add_parked(&self) {
        add(&self.parked, 1);
    }

    /// Busy polling has found the half ready, so that no task had to park.
    pub(crate) fn add_poll_won(&self) {
        add(&self.polls_won, 1);
    }

    pub(crate) fn stats(&self) -> DirectionStats {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut requests = self.long_requests.each_ref().map(load);
        let long: u64 = requests.iter().sum();
        // The half may be at work.
        requests[0] = load(&self.requests).saturating_sub(long);
        DirectionStats {
            bytes: load(&self.bytes),
            requests,
            buffer_full: load(&self.full),
            parked: load(&self.parked),
            polls_won: load(&self.polls_won),
            ..DirectionStats::default()
        }
    }
}

/// The counters of a device: those of its connections, and the sums of those that have ended.
#[derive(Debug, Default)]
pub(crate) struct DeviceCounters(Mutex<Counted>);

#[derive(Debug, Default)]
struct Counted {
    stats: DeviceStats,
    /// Of connections that may exist.
    conns: Vec<Arc<ConnCounters>>,
    /// When there are so many, those of ended connections are summed up.
    most: usize,
    /// Links, with what they had counted when that was read last: a link that is being dropped
    /// cannot be read, and sums must not go back.
    links: Vec<(Weak<LinkSender>, QueueStats)>,
}

impl DeviceCounters {
    /// Counts a new connection; `count` adds it to the statistics.
    pub(crate) fn add_conn(&self, conn: &Arc<ConnCounters>, count: impl FnOnce(&mut DeviceStats)) {
        let mut counted = self.0.lock();
        count(&mut counted.stats);
        if counted.conns.len() >= counted.most {
            counted.sum_up_ended();
            counted.most = counted.conns.len().saturating_mul(2).max(CONNS_MIN);
        }
        counted.conns.push(Arc::clone(conn));
    }

    /// Counts a connection that has moved to another link.
    pub(crate) fn add_failover(&self) {
        self.0.lock().stats.failovers += 1;
    }

    /// Counts a new link.
    pub(crate) fn add_link(&self, link: &Arc<LinkSender>) {
        let entry = (Arc::downgrade(link), QueueStats::default());
        self.0.lock().links.push(entry);
    }

    /// A link is dropped.
    pub(crate) fn end_link(&self, link: &LinkSender) {
        let ended = link.info().stats.of_ended();
        let mut counted = self.0.lock();
        counted.stats.queues.add(&ended);
        counted
            .links
            .retain(|(other, _)| !std::ptr::eq(other.as_ptr(), link));
    }

    /// The sums of all connections and links.
    pub(crate) fn stats(&self) -> DeviceStats {
        let links = self.0.lock().links.clone();
        // Dropped without the lock, which the end of a link takes.
        let links: Vec<_> = links
            .iter()
            .filter_map(|(link, _)| link.upgrade())
            .collect();
        let mut counted = self.0.lock();
        for (link, stats) in &mut counted.links {
            let found = links
                .iter()
                .find(|it| std::ptr::eq(link.as_ptr(), Arc::as_ptr(it)));
            if let Some(found) = found {
                *stats = found.info().stats;
            }
        }
        counted.sum_up_ended();
        let mut stats = counted.stats.clone();
        for conn in &counted.conns {
            stats.received.add(&conn.received.stats());
            stats.sent.add(&conn.sent.stats());
            stats.open += 1;
        }
        for (_, link) in &counted.links {
            stats.queues.add(link);
        }
        drop(counted);
        drop(links);
        stats
    }
}

impl Counted {
    fn sum_up_ended(&mut self) {
        let Self { stats, conns, .. } = self;
        conns.retain_mut(|conn| {
            // By this all that the connection has stored is visible.
            let ended = Arc::get_mut(conn);
            if let Some(ended) = &ended {
                stats.received.add(&ended.received.stats());
                stats.sent.add(&ended.sent.stats());
            }
            ended.is_none()
        });
    }
}

/// Connections of a device before the counters of ended ones are summed up.
const CONNS_MIN: usize = 64;

#[inline(always)]
fn add(counter: &AtomicU64, more: u64) {
    let sum = counter.load(Ordering::Relaxed).wrapping_add(more);
    counter.store(sum, Ordering::Relaxed);
}
