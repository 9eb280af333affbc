//! The counters of an endpoint by the facade crate [`metrics`](::metrics).
//!
//! [`record`] takes a snapshot and passes it to the recorder of the program. It is called when the
//! recorder is about to be read, such as for each scrape. Nothing is counted twice, and streams do
//! no more work than without it.
//!
//! | name | kind | labels |
//! |---|---|---|
//! | `smc_connections_total` | counter | `device`, `role`, `version` |
//! | `smc_connections_open` | gauge | `device` |
//! | `smc_bytes_total` | counter | `device`, `direction` |
//! | `smc_requests_total` | counter | `device`, `direction`, `size` (upper bound in bytes) |
//! | `smc_buffers_total` | counter | `device`, `direction`, `size` |
//! | `smc_buffer_full_total` | counter | `device`, `direction` |
//! | `smc_buffer_downgrades_total` | counter | `device`, `direction` |
//! | `smc_parked_total`, `smc_polls_won_total` | counter | `device`, `direction` |
//! | `smc_failovers_total` | counter | `device` |
//! | `smc_fallbacks_total` | counter | `role`, `reason`, `peer_reason` (codes as smcss shows them) |
//! | `smc_handshake_errors_total` | counter | `role` |
//! | `smc_setups_total`, `smc_setup_microseconds_total` | counter | `phase`: `look_up`, `tcp`, `handshake` |
//! | `smc_memory_bytes` | gauge | |

use metrics::{counter, gauge};

use crate::Endpoint;
use crate::info::{ByRole, DeviceStats, DirectionStats, PhaseStats, SIZE_CLASSES};

/// Passes the counters of an endpoint to the recorder of the program.
pub fn record(endpoint: &Endpoint) {
    let stats = endpoint.stats();
    stats.devices.iter().for_each(record_device);
    for fallback in &stats.fallbacks {
        let reason = format!("0x{:08x}", fallback.code);
        let peer = fallback.peer_code.map(|code| format!("0x{code:08x}"));
        let peer = peer.unwrap_or_default();
        for (role, count) in roles(fallback.count) {
            let labels = [
                ("role", role.to_owned()),
                ("reason", reason.clone()),
                ("peer_reason", peer.clone()),
            ];
            counter!("smc_fallbacks_total", &labels).absolute(count);
        }
    }
    for (role, count) in roles(stats.errors) {
        counter!("smc_handshake_errors_total", "role" => role).absolute(count);
    }
    record_phase("look_up", stats.look_ups);
    record_phase("tcp", stats.tcp_connects);
    record_phase("handshake", stats.handshakes);
    gauge!("smc_memory_bytes").set(endpoint.memory().used() as f64);
}

fn record_device(stats: &DeviceStats) {
    let device = || ("device", stats.device.clone());
    for (version, by_role) in [("1", stats.connections_v1), ("2", stats.connections_v2)] {
        for (role, count) in roles(by_role) {
            let labels = [
                device(),
                ("role", role.to_owned()),
                ("version", version.to_owned()),
            ];
            counter!("smc_connections_total", &labels).absolute(count);
        }
    }
    gauge!("smc_connections_open", &[device()]).set(stats.open as f64);
    counter!("smc_failovers_total", &[device()]).absolute(stats.failovers);
    record_direction(stats, "received", &stats.received);
    record_direction(stats, "sent", &stats.sent);
}

fn record_direction(device: &DeviceStats, direction: &str, stats: &DirectionStats) {
    let labels = [
        ("device", device.device.clone()),
        ("direction", direction.to_owned()),
    ];
    counter!("smc_bytes_total", &labels).absolute(stats.bytes);
    counter!("smc_buffer_full_total", &labels).absolute(stats.buffer_full);
    counter!("smc_buffer_downgrades_total", &labels).absolute(stats.buffer_downgrades);
    counter!("smc_parked_total", &labels).absolute(stats.parked);
    counter!("smc_polls_won_total", &labels).absolute(stats.polls_won);
    let [device, direction] = labels;
    for ((size, requests), buffers) in SIZES.iter().zip(stats.requests).zip(stats.buffers) {
        let size = ("size", (*size).to_owned());
        let labels = [device.clone(), direction.clone(), size];
        counter!("smc_requests_total", &labels).absolute(requests);
        counter!("smc_buffers_total", &labels).absolute(buffers);
    }
}

fn record_phase(phase: &'static str, stats: PhaseStats) {
    let time = u64::try_from(stats.total.as_micros()).unwrap_or(u64::MAX);
    counter!("smc_setups_total", "phase" => phase).absolute(stats.count);
    counter!("smc_setup_microseconds_total", "phase" => phase).absolute(time);
}

fn roles(counts: ByRole) -> [(&'static str, u64); 2] {
    [("client", counts.client), ("server", counts.server)]
}

/// The upper bounds of the classes of sizes, in bytes.
const SIZES: [&str; SIZE_CLASSES] = [
    "8192", "16384", "32768", "65536", "131072", "262144", "524288", "+Inf",
];
