//! The counters of an endpoint by the facade crate `metrics`.
//!
//! [`record`] takes a snapshot and passes it to the recorder of the program. It is called when the
//! recorder is about to be read, such as for each scrape. Nothing is counted twice, and streams do
//! no more work than without it. All metrics have the label `endpoint` besides, by which the
//! program tells its endpoints apart.
//!
//! | name | kind | labels |
//! |---|---|---|
//! | `smc_connections_total` | counter | `device`, `role`, `version` |
//! | `smc_connections_open` | gauge | `device` |
//! | `smc_bytes_total` | counter | `device`, `direction` |
//! | `smc_requests_total` | counter | `device`, `direction`, `size` |
//! | `smc_buffers_total` | counter | `device`, `direction`, `size` |
//! | `smc_buffer_full_total` | counter | `device`, `direction` |
//! | `smc_buffer_downgrades_total`, `smc_buffer_reuses_total` | counter | `device`, `direction` |
//! | `smc_parked_total`, `smc_polls_won_total` | counter | `device`, `direction` |
//! | `smc_failovers_total` | counter | `device` |
//! | `smc_messages_total`, `smc_messages_coalesced_total` | counter | `device` |
//! | `smc_credits_total` | counter | `device`, `direction` |
//! | `smc_credit_waits_total`, `smc_rnr_exceeded_total` | counter | `device` |
//! | `smc_rnr_naks_total` | counter | `device`, `direction` |
//! | `smc_send_queue`, `smc_send_queue_max`, `smc_held_messages_max` | gauge | `device` |
//! | `smc_receives_low` | gauge | `device` |
//! | `smc_hardware_total` | counter | `device`, `counter` (port and name, as `1/rcvd_rnr_err`) |
//! | `smc_fallbacks_total` | counter | `role`, `reason`, `peer_reason` (codes as smcss shows them) |
//! | `smc_handshake_errors_total`, `smc_socket_reuses_total` | counter | `role` |
//! | `smc_setups_total`, `smc_setup_microseconds_total` | counter | `phase`: `look_up`, `tcp`, `handshake` |
//! | `smc_memory_bytes` | gauge | |
//!
//! The label `size` is the upper bound of a class of sizes in bytes. Each read, write or buffer
//! counts in one class, so that the sum of the classes is the number of all. This is no histogram,
//! whose classes would contain the smaller ones: functions such as `histogram_quantile` do not
//! apply.
//!
//! Each call describes the metrics too, which exporters show as help.

use metrics::{counter, describe_counter, describe_gauge, gauge};

use crate::Endpoint;
use crate::info::{ByRole, DeviceStats, DirectionStats, PhaseStats, SIZE_CLASSES};

/// Passes the counters of an endpoint to the recorder of the program, with this name as the label
/// `endpoint`. Two endpoints of a program need two names.
pub fn record(endpoint: &Endpoint, name: &str) {
    describe();
    let stats = endpoint.stats();
    let mut devices: Vec<DeviceStats> = Vec::new();
    for device in stats.devices {
        // One that was plugged in again has the same name.
        match devices
            .iter_mut()
            .find(|other| other.device == device.device)
        {
            Some(other) => other.add(&device),
            None => devices.push(device),
        }
    }
    for device in &devices {
        record_device(name, device);
    }
    for fallback in &stats.fallbacks {
        let reason = format!("0x{:08x}", fallback.code);
        let peer = fallback.peer_code.map(|code| format!("0x{code:08x}"));
        let peer = peer.unwrap_or_default();
        for (role, count) in roles(fallback.count) {
            let labels = [
                ("endpoint", name.to_owned()),
                ("role", role.to_owned()),
                ("reason", reason.clone()),
                ("peer_reason", peer.clone()),
            ];
            counter!("smc_fallbacks_total", &labels).absolute(count);
        }
    }
    for (metric, by_role) in [
        ("smc_handshake_errors_total", stats.errors),
        ("smc_socket_reuses_total", stats.socket_reuses),
    ] {
        for (role, count) in roles(by_role) {
            let labels = [("endpoint", name.to_owned()), ("role", role.to_owned())];
            counter!(metric, &labels).absolute(count);
        }
    }
    record_phase(name, "look_up", stats.look_ups);
    record_phase(name, "tcp", stats.tcp_connects);
    record_phase(name, "handshake", stats.handshakes);
    let used = endpoint.memory().used() as f64;
    gauge!("smc_memory_bytes", "endpoint" => name.to_owned()).set(used);
}

/// Describes all metrics. Each call of [`record`] does, as a program can have several recorders.
fn describe() {
    for (name, meaning) in COUNTERS {
        describe_counter!(name, meaning);
    }
    for (name, meaning) in GAUGES {
        describe_gauge!(name, meaning);
    }
}

fn record_device(name: &str, stats: &DeviceStats) {
    let endpoint = || ("endpoint", name.to_owned());
    let device = || ("device", stats.device.clone());
    for (version, by_role) in [("1", stats.connections_v1), ("2", stats.connections_v2)] {
        for (role, count) in roles(by_role) {
            let labels = [
                endpoint(),
                device(),
                ("role", role.to_owned()),
                ("version", version.to_owned()),
            ];
            counter!("smc_connections_total", &labels).absolute(count);
        }
    }
    let labels = [endpoint(), device()];
    gauge!("smc_connections_open", &labels).set(stats.open as f64);
    counter!("smc_failovers_total", &labels).absolute(stats.failovers);
    if stats.is_rdma {
        record_queues(&labels, stats);
    }
    for (name, value) in &stats.hardware {
        let [endpoint, device] = labels.clone();
        let labels = [endpoint, device, ("counter", name.clone())];
        counter!("smc_hardware_total", &labels).absolute(*value);
    }
    record_direction(&labels, "received", &stats.received);
    record_direction(&labels, "sent", &stats.sent);
}

/// Of the links of an SMC-R device.
fn record_queues(labels: &[(&'static str, String); 2], stats: &DeviceStats) {
    let queues = &stats.queues;
    counter!("smc_messages_total", labels).absolute(queues.messages);
    counter!("smc_messages_coalesced_total", labels).absolute(queues.coalesced);
    counter!("smc_credit_waits_total", labels).absolute(queues.credit_waits);
    counter!("smc_rnr_exceeded_total", labels).absolute(queues.rnr_exceeded);
    gauge!("smc_send_queue", labels).set(queues.waiting as f64);
    gauge!("smc_send_queue_max", labels).set(queues.waiting_max as f64);
    gauge!("smc_held_messages_max", labels).set(queues.held_max as f64);
    if let Some(low) = queues.receives_low {
        gauge!("smc_receives_low", labels).set(low);
    }
    for (direction, credits, rnr_naks) in [
        (
            "received",
            queues.credits_received,
            stats.rnr_naks_received(),
        ),
        ("sent", queues.credits_granted, stats.rnr_naks_sent()),
    ] {
        let [endpoint, device] = labels.clone();
        let labels = [endpoint, device, ("direction", direction.to_owned())];
        counter!("smc_credits_total", &labels).absolute(credits);
        if let Some(count) = rnr_naks {
            counter!("smc_rnr_naks_total", &labels).absolute(count);
        }
    }
}

fn record_direction(
    [endpoint, device]: &[(&'static str, String); 2],
    direction: &str,
    stats: &DirectionStats,
) {
    let direction = ("direction", direction.to_owned());
    let labels = [endpoint.clone(), device.clone(), direction];
    counter!("smc_bytes_total", &labels).absolute(stats.bytes);
    counter!("smc_buffer_full_total", &labels).absolute(stats.buffer_full);
    counter!("smc_buffer_downgrades_total", &labels).absolute(stats.buffer_downgrades);
    counter!("smc_buffer_reuses_total", &labels).absolute(stats.buffer_reuses);
    counter!("smc_parked_total", &labels).absolute(stats.parked);
    counter!("smc_polls_won_total", &labels).absolute(stats.polls_won);
    let [endpoint, device, direction] = labels;
    for ((size, requests), buffers) in SIZES.iter().zip(stats.requests).zip(stats.buffers) {
        let size = ("size", (*size).to_owned());
        let labels = [endpoint.clone(), device.clone(), direction.clone(), size];
        counter!("smc_requests_total", &labels).absolute(requests);
        counter!("smc_buffers_total", &labels).absolute(buffers);
    }
}

fn record_phase(name: &str, phase: &str, stats: PhaseStats) {
    let labels = [("endpoint", name.to_owned()), ("phase", phase.to_owned())];
    let time = u64::try_from(stats.total.as_micros()).unwrap_or(u64::MAX);
    counter!("smc_setups_total", &labels).absolute(stats.count);
    counter!("smc_setup_microseconds_total", &labels).absolute(time);
}

fn roles(counts: ByRole) -> [(&'static str, u64); 2] {
    [("client", counts.client), ("server", counts.server)]
}

/// The upper bounds of the classes of sizes, in bytes.
const SIZES: [&str; SIZE_CLASSES] = [
    "8192", "16384", "32768", "65536", "131072", "262144", "524288", "+Inf",
];

/// The counters with their meanings.
const COUNTERS: [(&str, &str); 22] = [
    ("smc_connections_total", "SMC connections"),
    ("smc_bytes_total", "Bytes of applications by SMC"),
    (
        "smc_requests_total",
        "Reads and writes by class of size: each counts in one class",
    ),
    (
        "smc_buffers_total",
        "Connections by class of size of their buffer: each counts in one class",
    ),
    (
        "smc_buffer_full_total",
        "Writes that have filled the peer's buffer",
    ),
    (
        "smc_buffer_downgrades_total",
        "Connections whose buffer is smaller than configured, for lack of memory",
    ),
    (
        "smc_buffer_reuses_total",
        "Connections whose buffer is one of a former connection",
    ),
    (
        "smc_parked_total",
        "How often a task had to park until there was data, or space",
    ),
    (
        "smc_polls_won_total",
        "How often busy polling has made parking unnecessary",
    ),
    (
        "smc_failovers_total",
        "SMC-R connections that have moved to another link because theirs had failed",
    ),
    (
        "smc_messages_total",
        "Messages sent on SMC-R links: CDC and LLC",
    ),
    (
        "smc_messages_coalesced_total",
        "CDC messages that a later one of the same connection has made unnecessary",
    ),
    (
        "smc_credits_total",
        "Receive credits of SMC-R links, granted by peers and to them",
    ),
    (
        "smc_credit_waits_total",
        "How often a connection had to wait for a receive credit",
    ),
    (
        "smc_rnr_naks_total",
        "Messages that met no receive buffer, at peers and here, of all programs together",
    ),
    (
        "smc_rnr_exceeded_total",
        "SMC-R links that have failed because the peer had no receive buffer in all retries",
    ),
    (
        "smc_hardware_total",
        "Counters of the hardware for its ports, for all programs together",
    ),
    (
        "smc_fallbacks_total",
        "Streams that are TCP, by local reason and that of the peer",
    ),
    (
        "smc_socket_reuses_total",
        "SMC connections whose UNIX socket has served another one before",
    ),
    (
        "smc_handshake_errors_total",
        "Set-ups that have failed, so that there was no stream",
    ),
    ("smc_setups_total", "Phases of set-up that were completed"),
    (
        "smc_setup_microseconds_total",
        "Time of these phases together, in microseconds",
    ),
];

/// The gauges with their meanings.
const GAUGES: [(&str, &str); 6] = [
    ("smc_connections_open", "SMC connections that exist"),
    ("smc_memory_bytes", "Memory of connections in bytes"),
    (
        "smc_send_queue",
        "Connections and LLC messages that wait for a turn to send",
    ),
    (
        "smc_send_queue_max",
        "The most that have waited on one link at a time",
    ),
    (
        "smc_held_messages_max",
        "The most received messages of one connection that waited for an earlier one",
    ),
    (
        "smc_receives_low",
        "The lowest number of free receive buffers of a link so far",
    ),
];
