//! The results for people and for programs.

mod html;
mod json;
mod plot;
mod progress;
mod table;

pub(super) use html::html;
pub(super) use json::json;
pub(super) use progress::{Progress, bar};
pub(super) use table::table;

use super::host::Host;
use super::plan::{Plan, Workload};

/// Machine and settings, as names and values.
fn header(host: &Host, plan: &Plan) -> Vec<(&'static str, String)> {
    let settings = &plan.settings;
    let mut lines = host.lines();
    lines.push((
        "rounds",
        format!("{} of {} ms each", plan.rounds, settings.time.as_millis()),
    ));
    lines.push((
        "buffers",
        match (settings.buffer, host.tcp_buffers) {
            (Some(len), _) => format!("{len} bytes asked of all"),
            (None, Some([send, receive])) => {
                format!("defaults; TCP's may grow to {send} (send) and {receive} (receive)")
            }
            (None, None) => "defaults".to_owned(),
        },
    ));
    lines.push((
        "polling",
        match settings.polling {
            None => "default".to_owned(),
            Some(window) if window.is_zero() => "off".to_owned(),
            Some(window) => format!("{} us", window.as_micros()),
        },
    ));
    lines.push((
        "pinning",
        match settings.pin {
            None => "none".to_owned(),
            Some([client, server]) => format!("client to CPU {client}, server to CPU {server}"),
        },
    ));
    lines
}

/// What a workload is about, in one line.
fn about(workload: Workload, plan: &Plan) -> String {
    let settings = &plan.settings;
    match workload {
        Workload::Rate => format!(
            "small messages one way, until the receiver has them all; it reads up to {} bytes at \
             a time",
            settings.read
        ),
        Workload::Pingpong => "one message there and back at a time".to_owned(),
        Workload::Bulk => format!(
            "large writes one way, until the receiver has them all; it reads up to {} bytes at a \
             time",
            settings.read
        ),
        Workload::Http => format!(
            "HTTP/1.1 requests by hyper on kept connections, responses of {} bytes",
            settings.body
        ),
        Workload::Connect => {
            "connect, 64 bytes there and back, close; by clients all at once".to_owned()
        }
        Workload::Fanin => format!(
            "open connections of which some are active with {} bytes there and back; memory and \
             kernel are per connection",
            settings.ping
        ),
    }
}

/// How to read the tables.
const LEGEND: &str = "\
Medians of all rounds; ± is half their spread in percent: of all while there are fewer than five,
else of the middle half. The ratio states how many times better than TCP. Where it is unclear, the
rounds differ by as much as the medians, or are too few. CPU is that of both processes.";
