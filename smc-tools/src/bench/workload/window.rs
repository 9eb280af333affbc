//! A span of time in which what many tasks do counts.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures::channel::oneshot;

use super::super::figure::{Figure, Latencies, Sample};
use super::super::meter::Meter;
use super::super::plan::Cell;

/// From `start` to `end`; before it tasks warm up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    start: Instant,
    end: Instant,
}

/// Counts what a task does.
#[derive(Debug)]
pub(super) struct Counter {
    window: Window,
    /// When the last operation ended.
    before: Instant,
    /// In nanoseconds, of operations that ended inside of the window. A list, because some hundred
    /// histograms would not fit the caches.
    latencies: Vec<u128>,
    /// The operation that was under way at its end: when that ended, and how long it took.
    late: Option<(Instant, Duration)>,
    /// Operations inside and outside of the window, all verified.
    pub(super) all: u64,
}

impl Counter {
    /// Whether there is time for another operation.
    pub(super) fn is_open(&self) -> bool {
        self.before < self.window.end
    }

    /// An operation has ended.
    pub(super) fn done(&mut self) {
        let now = Instant::now();
        self.all += 1;
        let latency = now - self.before;
        if now > self.window.end {
            self.late = Some((now, latency));
        } else if now >= self.window.start {
            self.latencies.push(latency.as_nanos());
        }
        self.before = now;
    }
}

impl Window {
    /// Opens after a while of warming up.
    pub(super) fn new(time: Duration) -> Self {
        let start = Instant::now() + time / WARM_UP;
        Self {
            start,
            end: start + time,
        }
    }

    /// Counts what one task does, one after the other.
    pub(super) fn counter(self) -> Counter {
        Counter {
            window: self,
            before: Instant::now(),
            latencies: Vec::new(),
            late: None,
            all: 0,
        }
    }

    /// Waits for the tasks and puts together what they have done. What is done per second goes
    /// into `figure`.
    pub(super) async fn gather(
        self,
        cell: &Cell,
        meter: Meter,
        tasks: Vec<oneshot::Receiver<Result<Counter>>>,
        figure: Option<Figure>,
        sample: &mut Sample,
    ) -> Result<()> {
        let runtime = cell.runtime;
        runtime
            .sleep(self.start.saturating_duration_since(Instant::now()))
            .await;
        let (cpu, from) = (meter.cpu()?, Instant::now());
        runtime
            .sleep(self.end.saturating_duration_since(Instant::now()))
            .await;
        let (cpu, until) = (meter.cpu()? - cpu, Instant::now());
        let mut latencies = Latencies::new()?;
        let mut late = Vec::new();
        let count = tasks.len() as u64;
        for task in tasks {
            let counter = task.await.context("a task has ended")??;
            for nanos in counter.latencies {
                latencies.record(nanos);
            }
            late.extend(counter.late);
            sample.verified += counter.all;
        }
        let mut end = self.end;
        if latencies.len() < count {
            // Operations take about as long as the window: what went on at its end counts too.
            for (when, latency) in late {
                latencies.record(latency.as_nanos());
                end = end.max(when);
            }
        }
        ensure!(latencies.len() > 0, "nothing was done");
        let per_second = latencies.len() as f64 / (end - self.start).as_secs_f64();
        if let Some(figure) = figure {
            sample.set(figure, per_second);
        }
        let cpu = cpu.as_secs_f64() / (until - from).as_secs_f64();
        sample.set(Figure::Cpu, cpu / per_second);
        sample.set_latencies(&latencies);
        Ok(())
    }
}

/// Part of the time for which tasks warm up.
const WARM_UP: u32 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    fn window(after: Duration, time: Duration) -> Window {
        let start = Instant::now() + after;
        Window {
            start,
            end: start + time,
        }
    }

    #[test]
    fn what_ends_before_the_window_is_warming_up() {
        let mut counter = window(HOUR, HOUR).counter();
        counter.done();
        assert!(counter.is_open());
        assert_eq!((counter.all, counter.latencies.len()), (1, 0));
        assert_eq!(counter.late, None);
    }

    #[test]
    fn what_ends_inside_counts_and_what_ends_later_is_kept_apart() {
        let mut counter = window(Duration::ZERO, HOUR).counter();
        counter.done();
        counter.window.end = Instant::now();
        counter.done();
        assert!(!counter.is_open());
        assert_eq!((counter.all, counter.latencies.len()), (2, 1));
        assert!(counter.late.is_some());
    }

    const HOUR: Duration = Duration::from_secs(3600);
}
