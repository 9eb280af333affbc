//! The figures that come out of a measurement, and the sample that has them.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::{Result, anyhow};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// A figure, always in units of seconds, bytes and the like without prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Figure {
    /// Messages that arrived, per second.
    Messages,
    /// Bytes that arrived, per second.
    Bytes,
    /// Requests that were answered, per second.
    Requests,
    /// Connections made, used and closed, per second.
    Connections,
    /// Latency that half of the operations did not exceed.
    P50,
    /// The same for 99 %.
    P99,
    /// The same for 99.9 %.
    P999,
    /// CPU time of both processes for one operation.
    Cpu,
    /// CPU time of both processes per second while nothing is sent.
    IdleCpu,
    /// User memory of both processes for one connection.
    Memory,
    /// The kernel's slabs, of the whole machine, for one connection.
    KernelMemory,
}

impl Figure {
    pub(super) fn is_higher_better(self) -> bool {
        matches!(
            self,
            Self::Messages | Self::Bytes | Self::Requests | Self::Connections
        )
    }

    pub(super) fn unit(self) -> &'static str {
        match self {
            Self::Messages => "messages/s",
            Self::Bytes => "B/s",
            Self::Requests => "requests/s",
            Self::Connections => "connections/s",
            Self::P50 | Self::P99 | Self::P999 => "s",
            Self::Cpu => "CPU s/operation",
            Self::IdleCpu => "CPU s/s",
            Self::Memory | Self::KernelMemory => "B/connection",
        }
    }

    /// Name in tables.
    pub(super) fn heading(self) -> &'static str {
        match self {
            Self::Messages => "messages",
            Self::Bytes => "throughput",
            Self::Requests => "requests",
            Self::Connections => "connections",
            Self::P50 => "p50",
            Self::P99 => "p99",
            Self::P999 => "p99.9",
            Self::Cpu => "CPU/op",
            Self::IdleCpu => "idle CPU",
            Self::Memory => "memory",
            Self::KernelMemory => "kernel",
        }
    }

    /// A value of this figure for people.
    pub(super) fn show(self, value: f64) -> String {
        match self {
            Self::Messages | Self::Requests | Self::Connections => {
                format!("{}/s", prefixed(value, &["", "k", "M", "G"], 1000.0))
            }
            Self::Bytes => prefixed(value, &["B/s", "kB/s", "MB/s", "GB/s"], 1000.0),
            Self::P50 | Self::P99 | Self::P999 | Self::Cpu => {
                prefixed(value * 1e9, &["ns", "us", "ms", "s"], 1000.0)
            }
            Self::IdleCpu => format!("{:.2} %", value * 100.0),
            Self::Memory | Self::KernelMemory => {
                prefixed(value, &["B", "KiB", "MiB", "GiB"], 1024.0)
            }
        }
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// With the first prefix that leaves less than `step` of it, and three digits.
fn prefixed(value: f64, prefixes: &[&str], step: f64) -> String {
    let mut value = value;
    let mut prefixes = prefixes.iter().peekable();
    while let Some(prefix) = prefixes.next() {
        if value.abs() < step || prefixes.peek().is_none() {
            let digits = match value.abs() {
                small if small < 10.0 => 2,
                small if small < 100.0 => 1,
                _ => 0,
            };
            return format!("{value:.digits$} {prefix}");
        }
        value /= step;
    }
    value.to_string()
}

/// The result of one measurement.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Sample {
    /// The transport of the streams, as it describes itself.
    pub(super) path: String,
    /// Operations whose arrival was verified.
    pub(super) verified: u64,
    pub(super) figures: BTreeMap<Figure, f64>,
    /// Latencies in nanoseconds with how often each was seen.
    pub(super) latencies: Vec<(u64, u64)>,
}

impl Sample {
    pub(super) fn set(&mut self, figure: Figure, value: f64) {
        self.figures.insert(figure, value);
    }

    /// Takes latencies over, and sets the figures that come of them.
    pub(super) fn set_latencies(&mut self, latencies: &Latencies) {
        if latencies.0.is_empty() {
            return;
        }
        for (figure, quantile) in [
            (Figure::P50, 0.5),
            (Figure::P99, 0.99),
            (Figure::P999, 0.999),
        ] {
            self.set(figure, latencies.0.value_at_quantile(quantile) as f64 / 1e9);
        }
        let seen = latencies.0.iter_recorded();
        self.latencies = seen
            .map(|step| (step.value_iterated_to(), step.count_since_last_iteration()))
            .collect();
    }
}

/// Latencies of many operations.
#[derive(Clone, Debug)]
pub(super) struct Latencies(Histogram<u64>);

impl Latencies {
    pub(super) fn new() -> Result<Self> {
        Histogram::new_with_bounds(1, LATENCY_MAX, DIGITS)
            .map(Self)
            .map_err(|error| anyhow!("no histogram: {error:?}"))
    }

    pub(super) fn record(&mut self, nanos: u128) {
        self.0
            .saturating_record(u64::try_from(nanos).unwrap_or(LATENCY_MAX));
    }

    pub(super) fn record_many(&mut self, latencies: &[(u64, u64)]) {
        for (nanos, count) in latencies {
            self.0.saturating_record_n(*nanos, *count);
        }
    }

    pub(super) fn len(&self) -> u64 {
        self.0.len()
    }

    /// In seconds.
    pub(super) fn at(&self, quantile: f64) -> f64 {
        self.0.value_at_quantile(quantile) as f64 / 1e9
    }
}

/// A minute, in nanoseconds.
const LATENCY_MAX: u64 = 60_000_000_000;

/// Digits of latencies that are kept.
const DIGITS: u8 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_shown_with_three_digits() {
        assert_eq!(Figure::Messages.show(13_050_000.0), "13.1 M/s");
        assert_eq!(Figure::Bytes.show(4.4e9), "4.40 GB/s");
        assert_eq!(Figure::P50.show(2.6e-7), "260 ns");
        assert_eq!(Figure::P99.show(0.000_070_8), "70.8 us");
        assert_eq!(Figure::Memory.show(9000.0), "8.79 KiB");
        assert_eq!(Figure::IdleCpu.show(0.015), "1.50 %");
        assert_eq!(Figure::Bytes.show(0.0), "0.00 B/s");
    }

    #[test]
    fn latencies_become_figures_and_survive_the_way_to_the_parent() {
        let mut latencies = Latencies::new().unwrap();
        for nanos in 1..=1000 {
            latencies.record(nanos * 1000);
        }
        let mut sample = Sample::default();
        sample.set_latencies(&latencies);
        let about = |value: f64, wanted: f64| (value / wanted - 1.0).abs() < 0.002;
        assert!(about(sample.figures[&Figure::P50], 500e-6));
        assert!(about(sample.figures[&Figure::P99], 990e-6));
        let text = serde_json::to_string(&sample).unwrap();
        let sample: Sample = serde_json::from_str(&text).unwrap();
        let mut again = Latencies::new().unwrap();
        again.record_many(&sample.latencies);
        assert_eq!(again.len(), 1000);
        assert!(about(again.at(0.5), 500e-6));
    }
}
