//! Ends as processes: started, listened to, and ended if they hang.

use std::process::ExitStatus;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use smc_testkit::process::{Child, command};

use crate::script::{Done, Part};

/// A process that plays a part; killed when dropped.
pub(crate) struct Process {
    child: Child,
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
        let child = Child::spawn(command("one_end"), "part", part);
        Self {
            child,
            done: Vec::new(),
        }
    }

    /// Where a listener listens.
    pub(crate) fn address(&mut self) -> String {
        self.child.recv()
    }

    /// Waits until the first step has come to something, or the process to its end.
    pub(crate) fn await_first_step(&mut self) {
        if let Ok(line) = self.child.try_recv(TIMEOUT) {
            self.note(&line);
        }
    }

    fn note(&mut self, line: &str) {
        let (at, what): (usize, Done) = serde_json::from_str(line).unwrap();
        assert_eq!(at, self.done.len());
        self.done.push(what);
    }

    pub(crate) fn kill(&mut self) {
        self.child.start_kill();
    }

    /// Waits for the end of the part.
    ///
    /// # Errors
    ///
    /// What the steps have come to when it hangs.
    pub(crate) fn finish(mut self) -> Result<Outcome, Vec<Done>> {
        let until = Instant::now() + TIMEOUT;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.child.try_recv(left) {
                Ok(line) => self.note(&line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => return Err(self.done),
            }
        }
        let status = self.child.wait();
        Ok(Outcome {
            done: self.done,
            status,
        })
    }
}

/// Longer than anything takes that does not hang, also on a busy machine, and shorter than the time
/// after which closed connections are given up.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);
