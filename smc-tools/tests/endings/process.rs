//! Ends as processes: started, listened to, and ended if they hang.

use std::env;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::script::{Done, Part};

/// Makes this program one end.
pub(crate) const PART: &str = "SMC_ENDINGS_PART";

/// A process that plays a part; killed when dropped.
pub(crate) struct Process {
    child: Child,
    lines: Receiver<String>,
    done: Vec<Done>,
}

/// What came of a part.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// What the steps that ended have come to, in their order.
    pub(crate) done: Vec<Done>,
    pub(crate) status: ExitStatus,
}

impl Process {
    pub(crate) fn start(part: &Part) -> Self {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "one_end", "--nocapture"])
            .env(PART, part.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        thread::spawn(move || {
            let lines = output.lines().map_while(Result::ok);
            for line in lines.filter_map(|line| Some(line.strip_prefix('@')?.to_owned())) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self {
            child,
            lines,
            done: Vec::new(),
        }
    }

    /// Where a listener listens.
    pub(crate) fn address(&self) -> String {
        let line = self.lines.recv_timeout(TIMEOUT).expect("an address");
        line.strip_prefix("at ").expect("an address").to_owned()
    }

    /// Waits until the first step has come to something, or the process to its end.
    pub(crate) fn await_first_step(&mut self) {
        if let Ok(line) = self.lines.recv_timeout(TIMEOUT) {
            self.note(&line);
        }
    }

    fn note(&mut self, line: &str) {
        let (at, what) = line.split_once(' ').unwrap();
        assert_eq!(at, self.done.len().to_string());
        self.done.push(what.parse().unwrap());
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
    }

    /// Waits for the end of the part.
    ///
    /// # Errors
    ///
    /// What the steps have come to when it hangs.
    pub(crate) fn finish(mut self) -> Result<Outcome, Vec<Done>> {
        let until = Instant::now() + TIMEOUT;
        loop {
            match self
                .lines
                .recv_timeout(until.saturating_duration_since(Instant::now()))
            {
                Ok(line) => self.note(&line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => return Err(std::mem::take(&mut self.done)),
            }
        }
        let status = self.child.wait().unwrap();
        let done = std::mem::take(&mut self.done);
        Ok(Outcome { done, status })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// Longer than anything takes that does not hang, also on a busy machine, and shorter than the time
/// after which closed connections are given up.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);
