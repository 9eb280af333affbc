//! What all commands write, and how they fail.

use std::fmt;
use std::io::{self, Write as _};
use std::time::Instant;

use anyhow::{Context as _, Result};
use smc_core::quota::{LineQuota, LineVerdict};
use thiserror::Error;

/// Writes text to standard output. It is no error if its reader has closed it.
pub(crate) fn print(text: &str) -> Result<()> {
    print_while_open(text).map(drop)
}

/// As [`print`]. Returns whether standard output is still open.
pub(crate) fn print_while_open(text: &str) -> Result<bool> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        done => done
            .map(|()| true)
            .context("cannot write to standard output"),
    }
}

/// Text that is written to standard output in pieces, as it can be long.
#[derive(Debug, Default)]
pub(crate) struct Pieces(String);

impl Pieces {
    /// Adds a line, with its end.
    pub(crate) fn add(&mut self, line: &str) -> Result<()> {
        self.0.push_str(line);
        if self.0.len() < PIECE {
            return Ok(());
        }
        print(&std::mem::take(&mut self.0))
    }

    /// Writes what is left.
    pub(crate) fn end(self) -> Result<()> {
        print(&self.0)
    }
}

/// What is written in place of a line that other processes or machines can cause. `what` names such
/// lines together.
pub(crate) fn bounded(
    quota: &mut LineQuota,
    what: &str,
    line: String,
    now: Instant,
) -> Vec<String> {
    match quota.take(now) {
        LineVerdict::Written { left_out: 0 } => vec![line],
        LineVerdict::Written { left_out } => vec![format!("{left_out} {what} were left out"), line],
        LineVerdict::FirstLeftOut => vec![format!("further {what} are left out for a minute")],
        LineVerdict::LeftOut => Vec::new(),
    }
}

/// Writes a line of a command to standard error. An error of that write is ignored.
pub(crate) fn note(command: &str, what: &dyn fmt::Display) {
    let _ignored = writeln!(io::stderr(), "{command}: {what}");
}

/// Arguments that are not valid together, where the parser cannot know that. The exit status is the
/// one of the parser.
#[derive(Debug, Error)]
#[error("{0}")]
pub(crate) struct Usage(String);

impl Usage {
    /// What is wrong with the arguments.
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

/// Bytes that are written at a time.
const PIECE: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_others_cause_are_bounded_and_counted() {
        let mut quota = LineQuota::default();
        let begin = Instant::now();
        let mut lines = |now| bounded(&mut quota, "failures", "a".to_owned(), now);
        for _ in 0..LineQuota::MAX {
            assert_eq!(lines(begin), ["a"]);
        }
        assert_eq!(lines(begin), ["further failures are left out for a minute"]);
        assert!(lines(begin).is_empty());
        let next = begin + LineQuota::PERIOD;
        assert_eq!(lines(next), ["2 failures were left out", "a"]);
    }
}
