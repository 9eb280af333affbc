//! Measures instead of checking: how long things take, over whatever carries them.
//!
//! Each is used as it is meant to be: sockets of the kernel by threads that block in system calls,
//! a thread for each connection; the userspace stack by the tasks of one thread. Both do the same
//! with the same buffers.

mod requests;
mod sockets;
#[cfg(feature = "ours")]
mod tasks;

use std::fmt;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use super::Report;

pub(crate) use requests::Requested;
pub(super) use sockets::{client, server};
#[cfg(feature = "ours")]
pub(super) use tasks::run as run_ours;

/// A thing to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Measure {
    /// Microseconds of a message of that many bytes and its answer, one after the other.
    RoundTrip { size: u64, count: u32 },
    /// Megabytes per second in one direction, in writes of 64 KiB, until the peer has all.
    Bulk { bytes: u64 },
    /// Connections per second that are made, send a request, are answered and closed: so many
    /// clients at a time, so many by each of them.
    Connects { clients: u32, each: u32 },
    /// Requests of HTTP per second, each on a connection of its own that the server closes behind
    /// its response (`Connection: close`): so many clients at a time, so many by each of them.
    Http { clients: u32, each: u32 },
    /// Time from `connect` to the answer to 64 bytes, in round trips of a connection that exists:
    /// the median of so many connections, one after the other.
    SetUp { count: u32 },
    /// What becomes of so many requests of so many bytes, each of which a connect has sent, one
    /// after the other ([`Requested`]). Each is answered once, or its connect fails, as may two of
    /// them, and none comes to the server twice. With `beside` there is another connection at that
    /// time, made for each of them.
    Requests { count: u32, len: u64, beside: bool },
    /// Messages of [`MESSAGE_LEN`] bytes in one direction, each written by itself, `each` on each
    /// of so many connections at once, until the peer has all; another connection has one round
    /// trip after the other meanwhile. Messages per second, then the median and the 99th percentile
    /// of the round trips in microseconds.
    Messages {
        connections: u32,
        each: u32,
        receiver: ReceiverLoad,
    },
}

/// What keeps the receiving process from receiving.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ReceiverLoad {
    /// Nothing.
    None,
    /// Other work, a millisecond at a time: a task of the executor, or a thread.
    Busy,
    /// It is stopped for 100 ms (SIGSTOP), and then runs for three times as long: each stop takes
    /// some of it, for each thread that it wakes up.
    Stopped,
}

impl fmt::Display for ReceiverLoad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "ready",
            Self::Busy => "busy for 1 ms",
            Self::Stopped => "stopped for 100 ms",
        })
    }
}

impl Measure {
    /// Whether more is better.
    pub(crate) fn is_rate(self) -> bool {
        !matches!(self, Self::RoundTrip { .. } | Self::SetUp { .. })
    }

    /// What is measured, with its unit.
    pub(crate) fn title(self) -> String {
        match self {
            Self::RoundTrip { size, .. } => format!("round trip, {size} B, us"),
            Self::Bulk { .. } => "bulk, 64 KiB writes, MB/s".into(),
            Self::Connects { clients, .. } => format!("connects, {clients} at a time, 1/s"),
            Self::Http { clients, .. } => format!("HTTP, {clients} at a time, 1/s"),
            Self::SetUp { .. } => "set-up to answer, round trips".into(),
            Self::Requests { count, .. } => format!("early data taken, of {count}"),
            Self::Messages {
                connections,
                receiver,
                ..
            } => format!("{connections} connections, receiver {receiver}"),
        }
    }

    /// A median with the smallest and the largest value.
    pub(crate) fn shown(self, [median, low, high]: [f64; 3]) -> String {
        let digits = match self {
            Self::SetUp { .. } => 2,
            _ => 0,
        };
        format!("{median:.digits$} ({low:.digits$}..{high:.digits$})")
    }

    /// How often the thing is done that is measured: round trips, writes, connections.
    pub(crate) fn times(self) -> f64 {
        match self {
            Self::RoundTrip { count, .. }
            | Self::SetUp { count, .. }
            | Self::Requests { count, .. } => f64::from(count),
            #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
            Self::Bulk { bytes } => bytes as f64 / CHUNK as f64,
            Self::Connects { clients, each } | Self::Http { clients, each } => {
                f64::from(clients * each)
            }
            Self::Messages {
                connections, each, ..
            } => f64::from(connections * each),
        }
    }

    /// The figure of a measure that took this time.
    fn value(self, took: Duration) -> f64 {
        let seconds = took.as_secs_f64();
        match self {
            Self::RoundTrip { count, .. } => seconds * 1e6 / f64::from(count),
            #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
            Self::Bulk { bytes } => bytes as f64 / 1e6 / seconds,
            Self::Connects { .. } | Self::Http { .. } | Self::Messages { .. } => {
                self.times() / seconds
            }
            // Not times.
            Self::SetUp { .. } | Self::Requests { .. } => seconds,
        }
    }

    /// The figures of [`Measure::Messages`].
    fn message_values(self, took: Duration, round_trips: Vec<Duration>) -> Vec<f64> {
        let [median, p99] = [50, 99].map(|percent| percentile(round_trips.clone(), percent));
        vec![
            self.value(took),
            median.as_secs_f64() * 1e6,
            p99.as_secs_f64() * 1e6,
        ]
    }
}

impl Report {
    fn note_values(&mut self, measure: Measure, values: Vec<f64>) {
        let shown: Vec<_> = values.iter().map(|value| format!("{value:.0}")).collect();
        eprintln!("{}: {}", measure.title(), shown.join(", "));
        self.measured.extend(values);
    }
}

/// What set-ups took, in median round trips.
fn in_round_trips(set_ups: Vec<Duration>, round_trips: Vec<Duration>) -> f64 {
    let [set_up, round_trip] = [set_ups, round_trips].map(|times| percentile(times, 50));
    set_up.as_secs_f64() / round_trip.as_secs_f64()
}

/// Zero if there are no times.
fn percentile(mut times: Vec<Duration>, percent: usize) -> Duration {
    times.sort_unstable();
    let at = times.len() * percent / 100;
    times.get(at).copied().unwrap_or_default()
}

/// So many messages, and one answer of a byte.
fn one_way(messages: u32) -> RequestSizes {
    RequestSizes {
        request: u64::from(messages) * MESSAGE_LEN as u64,
        answer: 1,
    }
}

/// The load of the end that receives, by what is measured.
fn receiver_load(measures: &[Measure]) -> ReceiverLoad {
    let mut loads = measures.iter().filter_map(|measure| match measure {
        Measure::Messages { receiver, .. } => Some(*receiver),
        _ => None,
    });
    loads.next().unwrap_or(ReceiverLoad::None)
}

/// Computes for a millisecond.
fn work() {
    let until = Instant::now() + Duration::from_millis(1);
    while Instant::now() < until {
        std::hint::spin_loop();
    }
}

/// Starts another process that stops this one and lets it run in turn ([`stop_parent`]).
fn start_stops() -> Result<()> {
    let mut command = Command::new("/proc/self/exe");
    let child = command.arg("stop-parent").spawn();
    child.map(drop).with_context(|| format!("{command:?}"))
}

/// Stops the parent process for 100 ms and lets it run for 300 ms, until it has ended.
pub(crate) fn stop_parent() -> Result<()> {
    let own_parent = rustix::process::getppid;
    let parent = own_parent().context("no parent")?;
    for (signal, millis) in [(Signal::STOP, 100), (Signal::CONT, 300)].iter().cycle() {
        if own_parent() != Some(parent) {
            break;
        }
        rustix::process::kill_process(parent, *signal).context("the parent")?;
        std::thread::sleep(Duration::from_millis(*millis));
    }
    Ok(())
}

/// The head of a connection and its first request: in one write, as two would be delayed by Nagle's
/// algorithm. Returns what is left of the request.
fn first_write(sizes: RequestSizes) -> (Vec<u8>, u64) {
    let mut bytes = sizes.to_bytes().to_vec();
    let first = part(CHUNK, sizes.request);
    bytes.resize(SIZES_LEN + first, 0);
    (bytes, sizes.request - first as u64)
}

/// Round trips of which the median is that of set-ups.
const ROUND_TRIPS: u32 = 20;

/// First message of a client: length of each request and of each answer, in bytes.
#[derive(Clone, Copy, Debug)]
struct RequestSizes {
    request: u64,
    answer: u64,
}

impl RequestSizes {
    fn to_bytes(self) -> [u8; SIZES_LEN] {
        let mut bytes = [0; SIZES_LEN];
        let (request, answer) = bytes.split_at_mut(8);
        request.copy_from_slice(&self.request.to_le_bytes());
        answer.copy_from_slice(&self.answer.to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: [u8; SIZES_LEN]) -> Self {
        let (request, answer) = bytes.split_at(8);
        let number = |bytes: &[u8]| bytes.try_into().map(u64::from_le_bytes).unwrap_or(0);
        Self {
            request: number(request),
            answer: number(answer),
        }
    }
}

/// Whether these are the first bytes of [`HTTP_REQUEST`], and not [`RequestSizes`].
fn is_http(first: [u8; SIZES_LEN]) -> bool {
    HTTP_REQUEST.starts_with(&first)
}

/// The response to [`HTTP_REQUEST`], with as many bytes as the answers of other connections.
fn http_response() -> Vec<u8> {
    let len = MESSAGE.answer;
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n");
    let mut response = head.into_bytes();
    response.resize(response.len() + part(CHUNK, len), b'.');
    response
}

/// What a client has read until the end.
fn expect_http_response(read: &[u8]) -> Result<()> {
    ensure!(
        read == http_response(),
        "a response of {} bytes",
        read.len()
    );
    Ok(())
}

/// What a thread or task reads or writes at a time.
fn part(buf_len: usize, left: u64) -> usize {
    usize::try_from(left).map_or(buf_len, |left| left.min(buf_len))
}

/// Gates before and after each measure.
pub(crate) const BEFORE: &str = "before";
pub(crate) const AFTER: &str = "after";

const SIZES_LEN: usize = 16;

/// The most bytes of early data that a server takes.
pub(crate) const EARLY_DATA_MAX: usize = 4096;

const CHUNK: usize = 64 * 1024;

/// What the client of [`Measure::Http`] sends.
const HTTP_REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: server\r\nConnection: close\r\n\r\n";

/// Bytes in each of many messages.
pub(crate) const MESSAGE_LEN: usize = 100;

/// What is sent on connections whose set-up is measured.
const SHORT: RequestSizes = RequestSizes {
    request: 64,
    answer: 64,
};

/// What is sent on connections that are made to be closed.
const MESSAGE: RequestSizes = RequestSizes {
    request: 1000,
    answer: 1000,
};
