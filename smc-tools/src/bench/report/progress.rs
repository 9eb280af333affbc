//! Where it is, on standard error.

use std::io::IsTerminal as _;

use indicatif::{ProgressBar, ProgressStyle};

use super::super::plan::{Cell, Plan};
use crate::output;

/// Shows a bar on a terminal, and a line for each round elsewhere.
#[derive(Debug)]
pub(in crate::bench) struct Progress {
    bar: ProgressBar,
    rounds: u32,
    reported: Option<u32>,
}

impl Progress {
    pub(in crate::bench) fn new(plan: &Plan) -> Self {
        let cells = plan.cells(0).count() as u64 * u64::from(plan.rounds);
        Self {
            bar: bar(cells, "{bar:30} {pos}/{len}  {eta} left  {msg}"),
            rounds: plan.rounds,
            reported: None,
        }
    }

    /// A cell is going to be measured.
    pub(in crate::bench) fn at(&mut self, round: u32, cell: &Cell) {
        if self.bar.is_hidden() {
            if self.reported != Some(round) {
                let (round, rounds) = (round + 1, self.rounds);
                output::note("smc bench", &format_args!("round {round} of {rounds}"));
                self.reported = Some(round);
            }
            return;
        }
        self.bar.set_message(cell.to_string());
        // The one before is done.
        if self.reported.is_some() {
            self.bar.inc(1);
        }
        self.reported = Some(round);
    }

    /// Something happened that is worth a line.
    pub(in crate::bench) fn report(&self, what: &str) {
        self.bar.suspend(|| output::note("smc bench", &what));
    }

    pub(in crate::bench) fn end(&self) {
        self.bar.finish_and_clear();
    }
}

/// A bar on a terminal, and nothing elsewhere.
pub(in crate::bench) fn bar(len: u64, template: &str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template(template);
    ProgressBar::new(len).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
