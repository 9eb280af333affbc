//! The statistics of an endpoint: connections, fallbacks, bytes.
//!
//! The counters have the meanings of `smcd stats` and `smcr stats`. They only grow; what has
//! happened in a period is the difference of two snapshots ([`Stats::since`]).

use std::collections::BTreeMap;
use std::time::Duration;

use smc_wire::types::{DeclineCode, Version};

use crate::error::FallbackReason;
use crate::mutex::Mutex;
use crate::proto::Role;
use crate::proto::links::LinkId;

/// The statistics of an endpoint since it was built.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Stats {
    /// By device, in the order in which they were added.
    pub devices: Vec<DeviceStats>,
    /// Streams that are TCP, with those that a policy then has refused.
    pub fallbacks: Vec<FallbackCount>,
    /// Set-ups that have failed, so that there was no stream, by role: also TCP connections that
    /// were refused.
    pub errors: ByRole,
    /// Looking a destination up by the negotiation, as a client.
    pub look_ups: PhaseStats,
    /// Making the TCP connection and the offer on it, as a client.
    pub tcp_connects: PhaseStats,
    /// The CLC handshake with its work: link group, buffers, links.
    pub handshakes: PhaseStats,
    /// Streams on a UNIX socket that has served another one before
    /// ([`Builder::socket_reuse`](crate::Builder::socket_reuse)).
    #[cfg_attr(feature = "serde", serde(default))]
    pub socket_reuses: ByRole,
}

/// The statistics of one device of an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct DeviceStats {
    /// Name of the device.
    pub device: String,
    /// Whether it is a device of SMC-R; else of SMC-D.
    pub is_rdma: bool,
    /// SMC connections by role, with a handshake of version 1.
    pub connections_v1: ByRole,
    /// The same of version 2.
    pub connections_v2: ByRole,
    /// SMC connections that exist.
    pub open: u64,
    /// Counters of received data.
    pub received: DirectionStats,
    /// Counters of sent data.
    pub sent: DirectionStats,
    /// SMC-R: connections that have moved to another link because theirs had failed.
    pub failovers: u64,
    /// SMC-R: the counters that the hardware has for its ports, for all programs together. By name,
    /// as `1/rcvd_rnr_err` for port 1; names depend on the driver. RNR NAKs and retries are among
    /// them where the device counts those.
    #[cfg_attr(feature = "serde", serde(default))]
    pub hardware: BTreeMap<String, u64>,
    /// SMC-R: the send and receive queues of its links.
    #[cfg_attr(feature = "serde", serde(default))]
    pub queues: QueueStats,
}

/// The queues of SMC-R links: messages, receive credits, and messages that met no receive buffer
/// (RNR). Of one link, or the sums over the links of a device, those that have ended included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
#[non_exhaustive]
pub struct QueueStats {
    /// Messages sent (SENDs): CDC and LLC.
    pub messages: u64,
    /// Those of them that are of connections (CDC).
    pub cdc_messages: u64,
    /// CDC messages that were not necessary, because a later one of the same connection has stated
    /// a write, or a cursor of the reader, too. Messages per SEND are
    /// `(cdc_messages + coalesced) / cdc_messages`.
    pub coalesced: u64,
    /// Connections, and LLC messages, that wait for a turn to send now.
    pub waiting: u64,
    /// The most that have waited at a time. Of a device: on one of its links.
    pub waiting_max: u64,
    /// The most received messages of one connection that were held back, because an earlier one had
    /// not been received yet. At most 64. Received messages wait for nothing else.
    pub held_max: u64,
    /// Receive credits that were granted to peers, besides the initial ones.
    pub credits_granted: u64,
    /// Receive credits that peers have granted, besides the initial ones.
    pub credits_received: u64,
    /// How often a message of a connection had to wait for a receive credit.
    pub credit_waits: u64,
    /// Sent messages that met no receive buffer at the peer, as far as the device counts them for
    /// each link; see also [`DeviceStats::rnr_naks_received`].
    pub rnr_naks: Option<u64>,
    /// Links that have failed because the peer had no receive buffer in all retries.
    pub rnr_exceeded: u64,
    /// The lowest number of free receive buffers so far, as far as the device states it. Of a
    /// device: on one of its links.
    pub receives_low: Option<u32>,
}

/// The queues of one SMC-R link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkQueueInfo {
    /// The link, by its identifier in the group.
    pub link: LinkId,
    /// What it has counted.
    pub stats: QueueStats,
    /// Receive buffers that it has.
    pub receives: u32,
    /// Receive credits that are left for sending; `None` where the ends have not agreed on credits.
    pub credits: Option<u32>,
}

/// One direction of the connections of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct DirectionStats {
    /// Bytes of the application.
    pub bytes: u64,
    /// Reads or writes by the number of their bytes: at most 8, 16, 32, 64, 128, 256, 512 KiB, and
    /// more.
    pub requests: [u64; SIZE_CLASSES],
    /// Connections by the size of their receive buffer, in the same classes.
    pub buffers: [u64; SIZE_CLASSES],
    /// Connections whose buffer is smaller than was configured, for lack of memory.
    pub buffer_downgrades: u64,
    /// Connections whose buffer was one of a former connection: received, the receive buffer; sent,
    /// the send buffer of SMC-R. A device that does not reuse memory has none.
    #[cfg_attr(feature = "serde", serde(default))]
    pub buffer_reuses: u64,
    /// Writes that have filled the peer's buffer.
    pub buffer_full: u64,
    /// How often a task had to park until there was data, or space.
    pub parked: u64,
    /// How often busy polling has spared that.
    pub polls_won: u64,
}

/// Counts by the role of this side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct ByRole {
    /// As a client.
    pub client: u64,
    /// As a server.
    pub server: u64,
}

/// Streams that are TCP for one reason.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct FallbackCount {
    /// The local reason as a number, as `smcss` shows it.
    pub code: u32,
    /// The diagnosis of the peer, if it has declined; missing as well for those beyond the 256th
    /// reason.
    pub peer_code: Option<u32>,
    /// By the role of this side.
    pub count: ByRole,
}

/// How often a phase of set-up was completed, and how long that took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct PhaseStats {
    /// How often.
    pub count: u64,
    /// The times together.
    pub total: Duration,
    /// The longest time.
    pub max: Duration,
}

/// Classes of sizes.
pub const SIZE_CLASSES: usize = 8;

/// The largest size of the first class.
pub(crate) const FIRST_CLASS_MAX: usize = 0x2000;

/// The class of a size: see [`DirectionStats::requests`].
pub(crate) fn size_class(len: usize) -> usize {
    let bounds = [
        FIRST_CLASS_MAX,
        0x4000,
        0x8000,
        0x1_0000,
        0x2_0000,
        0x4_0000,
        0x8_0000,
    ];
    bounds.iter().filter(|bound| len > **bound).count()
}

impl Stats {
    /// The statistics since an earlier snapshot of the same endpoint. The numbers of open
    /// connections and the longest times are those of this snapshot.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        // Devices are not removed, so that each one keeps its place.
        let devices = self.devices.iter().enumerate().map(|(at, device)| {
            let same = earlier.devices.get(at);
            let same = same.filter(|earlier| earlier.device == device.device);
            same.map_or_else(|| device.clone(), |earlier| device.since(earlier))
        });
        let reason = |of: &FallbackCount| (of.code, of.peer_code);
        let counts = earlier.fallbacks.iter();
        let counts: BTreeMap<_, _> = counts.map(|of| (reason(of), of.count)).collect();
        let fallbacks = self.fallbacks.iter().map(|fallback| {
            let earlier = counts.get(&reason(fallback));
            let count = earlier.map_or(fallback.count, |earlier| fallback.count.since(*earlier));
            FallbackCount { count, ..*fallback }
        });
        Self {
            devices: devices.collect(),
            fallbacks: fallbacks
                .filter(|fallback| fallback.count != ByRole::default())
                .collect(),
            errors: self.errors.since(earlier.errors),
            socket_reuses: self.socket_reuses.since(earlier.socket_reuses),
            look_ups: self.look_ups.since(earlier.look_ups),
            tcp_connects: self.tcp_connects.since(earlier.tcp_connects),
            handshakes: self.handshakes.since(earlier.handshakes),
        }
    }
}

impl DirectionStats {
    fn since(&self, earlier: &Self) -> Self {
        let classes = |now: &[u64; SIZE_CLASSES], earlier: &[u64; SIZE_CLASSES]| {
            let mut difference = *now;
            for (count, earlier) in difference.iter_mut().zip(earlier) {
                *count = count.saturating_sub(*earlier);
            }
            difference
        };
        Self {
            bytes: self.bytes.saturating_sub(earlier.bytes),
            requests: classes(&self.requests, &earlier.requests),
            buffers: classes(&self.buffers, &earlier.buffers),
            buffer_downgrades: self
                .buffer_downgrades
                .saturating_sub(earlier.buffer_downgrades),
            buffer_reuses: self.buffer_reuses.saturating_sub(earlier.buffer_reuses),
            buffer_full: self.buffer_full.saturating_sub(earlier.buffer_full),
            parked: self.parked.saturating_sub(earlier.parked),
            polls_won: self.polls_won.saturating_sub(earlier.polls_won),
        }
    }

    /// Reads or writes in all.
    #[must_use]
    pub fn request_count(&self) -> u64 {
        self.requests
            .iter()
            .fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Adds what others have counted.
    pub(crate) fn add(&mut self, more: &Self) {
        self.bytes += more.bytes;
        add_each(&mut self.requests, more.requests);
        add_each(&mut self.buffers, more.buffers);
        self.buffer_downgrades += more.buffer_downgrades;
        self.buffer_reuses += more.buffer_reuses;
        self.buffer_full += more.buffer_full;
        self.parked += more.parked;
        self.polls_won += more.polls_won;
    }

    /// Counts a buffer of a new connection.
    pub(crate) fn add_buffer(&mut self, len: usize) {
        if let Some(count) = self.buffers.get_mut(size_class(len)) {
            *count += 1;
        }
    }
}

fn add_each(sums: &mut [u64; SIZE_CLASSES], more: [u64; SIZE_CLASSES]) {
    for (sum, more) in sums.iter_mut().zip(more) {
        *sum += more;
    }
}

impl ByRole {
    pub(crate) fn add(&mut self, role: Role) {
        match role {
            Role::Client => self.client += 1,
            Role::Server => self.server += 1,
        }
    }

    fn since(self, earlier: Self) -> Self {
        Self {
            client: self.client.saturating_sub(earlier.client),
            server: self.server.saturating_sub(earlier.server),
        }
    }
}

impl PhaseStats {
    fn add(&mut self, time: Duration) {
        self.count += 1;
        self.total += time;
        self.max = self.max.max(time);
    }

    fn since(self, earlier: Self) -> Self {
        Self {
            count: self.count.saturating_sub(earlier.count),
            total: self.total.saturating_sub(earlier.total),
            max: self.max,
        }
    }
}

impl DeviceStats {
    fn since(&self, earlier: &Self) -> Self {
        Self {
            device: self.device.clone(),
            is_rdma: self.is_rdma,
            connections_v1: self.connections_v1.since(earlier.connections_v1),
            connections_v2: self.connections_v2.since(earlier.connections_v2),
            open: self.open,
            received: self.received.since(&earlier.received),
            sent: self.sent.since(&earlier.sent),
            failovers: self.failovers.saturating_sub(earlier.failovers),
            hardware: self.hardware_since(earlier),
            queues: self.queues.since(&earlier.queues),
        }
    }

    /// RNR NAKs that the ports have received, of all programs together: messages that met no
    /// receive buffer at a peer, which waits and gets them again. `None` where neither the hardware
    /// nor the links count them.
    ///
    /// Taken from the counters of [`hardware`](Self::hardware) that the drivers bnxt_re, mlx5 and
    /// rxe have for that.
    #[must_use]
    pub fn rnr_naks_received(&self) -> Option<u64> {
        let names = ["rcvd_rnr_err", "rnr_nak_retry_err", "rnr_naks_rcvd"];
        self.of_hardware(&names).or(self.queues.rnr_naks)
    }

    /// RNR NAKs that the ports have sent, of all programs together: messages that met no receive
    /// buffer here. `None` where the hardware does not count them; see
    /// [`rnr_naks_received`](Self::rnr_naks_received).
    #[must_use]
    pub fn rnr_naks_sent(&self) -> Option<u64> {
        self.of_hardware(&["send_rnr_err", "out_of_buffer"])
    }

    /// The sum of a counter over all ports, by its name with one of the drivers.
    fn of_hardware(&self, names: &[&str]) -> Option<u64> {
        let is_it = |name: &str| {
            let name = name.split_once('/').map_or(name, |(_, name)| name);
            names.contains(&name)
        };
        let ports = self.hardware.iter().filter(|(name, _)| is_it(name));
        let ports = ports.map(|(_, count)| *count);
        ports.reduce(u64::saturating_add)
    }

    fn hardware_since(&self, earlier: &Self) -> BTreeMap<String, u64> {
        let counters = self.hardware.iter().map(|(name, count)| {
            let earlier = earlier.hardware.get(name).copied().unwrap_or(0);
            (name.clone(), count.saturating_sub(earlier))
        });
        counters.collect()
    }

    /// Adds what another device of the same name has counted.
    #[cfg(feature = "metrics")]
    pub(crate) fn add(&mut self, more: &Self) {
        for (sum, more) in [
            (&mut self.connections_v1, more.connections_v1),
            (&mut self.connections_v2, more.connections_v2),
        ] {
            sum.client += more.client;
            sum.server += more.server;
        }
        self.open += more.open;
        self.failovers += more.failovers;
        self.hardware.extend(more.hardware.clone());
        self.queues.add(&more.queues);
        self.received.add(&more.received);
        self.sent.add(&more.sent);
    }

    pub(crate) fn add_connection(&mut self, role: Role, version: Version) {
        match version.is_v2() {
            true => self.connections_v2.add(role),
            false => self.connections_v1.add(role),
        }
    }
}

impl QueueStats {
    /// What is counted since an earlier snapshot. What waits, and what was most or least, are of
    /// this snapshot.
    fn since(&self, earlier: &Self) -> Self {
        let since = |pick: fn(&Self) -> u64| pick(self).saturating_sub(pick(earlier));
        Self {
            messages: since(|it| it.messages),
            cdc_messages: since(|it| it.cdc_messages),
            coalesced: since(|it| it.coalesced),
            credits_granted: since(|it| it.credits_granted),
            credits_received: since(|it| it.credits_received),
            credit_waits: since(|it| it.credit_waits),
            rnr_naks: self
                .rnr_naks
                .map(|_| since(|it| it.rnr_naks.unwrap_or_default())),
            rnr_exceeded: since(|it| it.rnr_exceeded),
            ..*self
        }
    }

    /// What of a link counts after its end: nothing waits any more.
    pub(crate) fn of_ended(self) -> Self {
        Self { waiting: 0, ..self }
    }

    /// Adds what others have counted.
    pub(crate) fn add(&mut self, more: &Self) {
        for (sum, more) in [
            (&mut self.messages, more.messages),
            (&mut self.cdc_messages, more.cdc_messages),
            (&mut self.coalesced, more.coalesced),
            (&mut self.waiting, more.waiting),
            (&mut self.credits_granted, more.credits_granted),
            (&mut self.credits_received, more.credits_received),
            (&mut self.credit_waits, more.credit_waits),
            (&mut self.rnr_exceeded, more.rnr_exceeded),
        ] {
            *sum = sum.saturating_add(more);
        }
        self.waiting_max = self.waiting_max.max(more.waiting_max);
        self.held_max = self.held_max.max(more.held_max);
        let both = [self.rnr_naks, more.rnr_naks].into_iter().flatten();
        self.rnr_naks = both.reduce(u64::saturating_add);
        let both = [self.receives_low, more.receives_low].into_iter().flatten();
        self.receives_low = both.min();
    }
}

/// The counters of set-ups of an endpoint.
#[derive(Debug, Default)]
pub(crate) struct SetupCounters(Mutex<Setups>);

#[derive(Debug, Default)]
struct Setups {
    /// By the local reason and that of the peer. Peers choose theirs, so the number is bounded.
    fallbacks: BTreeMap<(u32, Option<u32>), ByRole>,
    errors: ByRole,
    socket_reuses: ByRole,
    look_ups: PhaseStats,
    tcp_connects: PhaseStats,
    handshakes: PhaseStats,
}

/// A part of set-up whose time is counted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SetupTiming {
    LookUp,
    TcpConnect,
    Handshake,
}

impl SetupCounters {
    pub(crate) fn add_timing(&self, part: SetupTiming, time: Duration) {
        let mut setups = self.0.lock();
        let stats = match part {
            SetupTiming::LookUp => &mut setups.look_ups,
            SetupTiming::TcpConnect => &mut setups.tcp_connects,
            SetupTiming::Handshake => &mut setups.handshakes,
        };
        stats.add(time);
    }

    pub(crate) fn add_fallback(&self, role: Role, reason: &FallbackReason) {
        let mut setups = self.0.lock();
        let number = |code: DeclineCode| code.0;
        let mut key = (number(reason.local), reason.peer.map(number));
        if setups.fallbacks.len() >= REASONS_MAX && !setups.fallbacks.contains_key(&key) {
            key.1 = None;
        }
        setups.fallbacks.entry(key).or_default().add(role);
    }

    pub(crate) fn add_error(&self, role: Role) {
        self.0.lock().errors.add(role);
    }

    pub(crate) fn add_socket_reuse(&self, role: Role) {
        self.0.lock().socket_reuses.add(role);
    }

    /// The counters, with those of devices.
    pub(crate) fn stats(&self, devices: Vec<DeviceStats>) -> Stats {
        let setups = self.0.lock();
        let fallbacks = setups.fallbacks.iter();
        let fallbacks = fallbacks.map(|((code, peer_code), count)| FallbackCount {
            code: *code,
            peer_code: *peer_code,
            count: *count,
        });
        Stats {
            devices,
            fallbacks: fallbacks.collect(),
            errors: setups.errors,
            socket_reuses: setups.socket_reuses,
            look_ups: setups.look_ups,
            tcp_connects: setups.tcp_connects,
            handshakes: setups.handshakes,
        }
    }
}

/// Reasons that are counted apart.
const REASONS_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_happened_since_a_snapshot_is_the_difference() {
        let device = |name: &str, bytes, open, client| DeviceStats {
            device: name.to_owned(),
            open,
            connections_v2: ByRole { client, server: 0 },
            received: DirectionStats {
                bytes,
                requests: [bytes, 0, 0, 0, 0, 0, 0, 1],
                ..DirectionStats::default()
            },
            ..DeviceStats::default()
        };
        let fallback = |code, client| FallbackCount {
            code,
            peer_code: None,
            count: ByRole { client, server: 1 },
        };
        let phase = |count, secs, max| PhaseStats {
            count,
            total: Duration::from_secs(secs),
            max: Duration::from_secs(max),
        };
        let earlier = Stats {
            devices: vec![device("a", 10, 1, 1), device("b", 1, 1, 1)],
            fallbacks: vec![fallback(1, 1), fallback(2, 1)],
            look_ups: phase(2, 10, 7),
            ..Stats::default()
        };
        let now = Stats {
            devices: vec![
                device("a", 15, 3, 4),
                device("other", 9, 1, 1),
                device("new", 5, 1, 1),
            ],
            fallbacks: vec![fallback(1, 1), fallback(2, 4), fallback(3, 1)],
            look_ups: phase(5, 11, 7),
            ..Stats::default()
        };
        let since = now.since(&earlier);
        let first = &since.devices[0];
        assert_eq!((first.open, first.connections_v2.client), (3, 3));
        assert_eq!(first.received.bytes, 5);
        assert_eq!(first.received.requests, [5, 0, 0, 0, 0, 0, 0, 0]);
        // Another device has no earlier count.
        assert_eq!(since.devices[1..], now.devices[1..]);
        let count = |client, server| ByRole { client, server };
        let counts: Vec<_> = since
            .fallbacks
            .iter()
            .map(|it| (it.code, it.count))
            .collect();
        assert_eq!(counts, [(2, count(3, 0)), (3, count(1, 1))]);
        assert_eq!(since.look_ups, phase(3, 1, 7));
        assert_eq!(now.since(&Stats::default()), now);
    }
}
