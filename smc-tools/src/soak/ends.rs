//! The processes of the soak, as their parent sees them.

use std::collections::HashMap;
use std::io::Write as _;
use std::process::{Child, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::census::{Baseline, Census};
use super::end::{Counts, Event, Order, Task};
use super::exchange::HANG;
use super::limit::{HEAP, Limited};
use crate::child;
use crate::runtime::Runtime;

/// A process of the soak, killed when dropped.
pub(super) struct End {
    /// In reports.
    name: String,
    task: Task,
    child: Child,
    lines: mpsc::Receiver<std::io::Result<String>>,
    /// Of this and the processes before it, which may have had another runtime.
    baselines: HashMap<Runtime, Baseline>,
    /// A stopped process goes on then.
    stopped_until: Option<Instant>,
    pub(super) violations: Vec<String>,
}

impl End {
    pub(super) fn start(name: &str, task: Task) -> Result<Self> {
        let (child, lines) = child::start("soak-end", &task, Stdio::inherit(), HEAP)?;
        let mut end = Self {
            name: name.to_owned(),
            task,
            child,
            lines,
            baselines: HashMap::new(),
            stopped_until: None,
            violations: Vec::new(),
        };
        end.wait(|event| matches!(event, Event::Started).then_some(()))?;
        Ok(end)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(self.child.id().try_into()?);
        Ok(kill(pid, signal)?)
    }

    pub(super) fn order(&mut self, order: &Order) -> Result<()> {
        let stdin = self.child.stdin.as_mut().context("no standard input")?;
        let mut line = serde_json::to_string(order)?;
        line.push('\n');
        stdin
            .write_all(line.as_bytes())
            .with_context(|| format!("{} has ended", self.name))
    }

    /// Has it lack something for this time.
    pub(super) fn limit(&mut self, what: Limited, time: Duration) -> Result<()> {
        let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        self.order(&Order::Limit { what, millis })
    }

    /// Has a server listen anew. Returns where.
    pub(super) fn listen(&mut self) -> Result<String> {
        self.order(&Order::Listen)?;
        self.wait(|event| match event {
            Event::Listening(at) => Some(at),
            _ => None,
        })
    }

    /// Has it end what is under way. Returns what it did since the last time.
    pub(super) fn quiesce(&mut self) -> Result<Counts> {
        self.order(&Order::Quiesce)?;
        self.wait(|event| match event {
            Event::Quiet(counts) => Some(counts),
            _ => None,
        })
    }

    /// Bytes per second of one connection, both directions together.
    pub(super) fn measure(&mut self, at: &str, bytes: u64) -> Result<f64> {
        self.order(&Order::Measure {
            at: at.to_owned(),
            bytes,
        })?;
        let seconds = self.wait(|event| match event {
            Event::Measured(seconds) => Some(seconds),
            _ => None,
        })?;
        Ok(2.0 * bytes as f64 / seconds)
    }

    /// Takes reported violations, without waiting.
    pub(super) fn take_reports(&mut self) {
        while let Ok(Ok(line)) = self.lines.try_recv() {
            if let Ok(Event::Violation(what)) = serde_json::from_str(&line) {
                self.violate(&what);
            }
        }
    }

    fn violate(&mut self, what: &str) {
        self.violations.push(format!("{}: {what}", self.name));
    }

    /// Checks that nothing was lost where nothing ends connections.
    pub(super) fn expect_none_lost(&mut self, counts: Counts) {
        if (counts.lost, counts.refused) != (0, 0) {
            let Counts { lost, refused, .. } = counts;
            self.violate(&format!(
                "{lost} connections lost and {refused} refused without a reason"
            ));
        }
    }

    fn wait<T>(&mut self, mut wanted: impl FnMut(Event) -> Option<T>) -> Result<T> {
        let until = Instant::now() + ANSWER;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let line = match self.lines.recv_timeout(left) {
                Ok(line) => line?,
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    bail!("{} has not answered within {ANSWER:?}", self.name)
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    bail!("{} has ended; its standard error has the reason", self.name)
                }
            };
            match serde_json::from_str(&line)? {
                Event::Violation(what) => self.violate(&what),
                event => {
                    if let Some(found) = wanted(event) {
                        return Ok(found);
                    }
                }
            }
        }
    }

    /// Kills it, and starts another one in its place. On a machine with a high load a device may
    /// not be made in time, so that it takes another start.
    pub(super) fn kill_and_restart(&mut self, task: Task) -> Result<()> {
        self.take_reports();
        self.kill();
        let mut starts = 1;
        let mut new = loop {
            match Self::start(&self.name, task.clone()) {
                Err(_has_ended) if starts < STARTS => starts += 1,
                started => break started?,
            }
        };
        new.violations.append(&mut self.violations);
        new.baselines = std::mem::take(&mut self.baselines);
        *self = new;
        Ok(())
    }

    fn kill(&mut self) {
        // Also one that is stopped.
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }

    pub(super) fn task(&self) -> &Task {
        &self.task
    }

    /// Stops it until then.
    pub(super) fn stop_until(&mut self, until: Instant) -> Result<()> {
        self.signal(Signal::SIGSTOP)?;
        self.stopped_until = Some(until);
        Ok(())
    }

    /// Has it go on, at a given time only if it was stopped until then.
    pub(super) fn go_on(&mut self, now: Option<Instant>) -> Result<()> {
        let is_over = |until: Instant| now.is_none_or(|now| until <= now);
        if self.stopped_until.is_some_and(is_over) {
            self.signal(Signal::SIGCONT)?;
            self.stopped_until = None;
        }
        Ok(())
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped_until.is_some()
    }

    /// Checks that an idle process has what it and those before it had, once what closes later is
    /// closed.
    pub(super) fn check_census(&mut self) -> Result<Census> {
        let pid = self.child.id();
        let baseline = self.baselines.entry(self.task.runtime).or_default();
        let (census, is_accepted) = baseline.check(|| Census::of_process(pid, &self.task.dir))?;
        if !is_accepted {
            let most = baseline.most().clone();
            self.violate(&format!("{census} when idle, and at most {most} before"));
        }
        Ok(census)
    }

    /// Ends it in order.
    pub(super) fn finish(mut self) -> Result<Vec<String>> {
        drop(self.child.stdin.take());
        let until = Instant::now() + ANSWER;
        loop {
            if let Some(status) = self.child.try_wait()? {
                self.take_reports();
                if !status.success() {
                    self.violate(&format!("ended with {status}"));
                }
                return Ok(std::mem::take(&mut self.violations));
            }
            if Instant::now() > until {
                bail!("{} does not end", self.name);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.kill();
    }
}

/// How often a process is started that ends at once.
const STARTS: u32 = 3;

/// How long an answer may take: longer than the longest exchange.
const ANSWER: Duration = HANG.saturating_mul(3);
