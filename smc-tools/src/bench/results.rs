//! The samples of all rounds, row by row.

use super::figure::{Figure, Latencies, Sample};
use super::pair::Outcome;
use super::plan::{Case, Cell, Plan, Workload};
use super::stats::{Comparison, Spread};
use super::transport::Kind;
use crate::runtime::Runtime;

/// Everything that was measured.
#[derive(Debug)]
pub(super) struct Results {
    /// In the order of the plan.
    rows: Vec<Row>,
}

/// What one row is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) case: Case,
    pub(super) runtime: Runtime,
    pub(super) transport: Kind,
}

/// The rounds of one cell.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) key: Key,
    pub(super) samples: Vec<Sample>,
    pub(super) skipped: Option<String>,
    pub(super) failed: Vec<String>,
}

impl Results {
    pub(super) fn new(plan: &Plan) -> Self {
        let rows = plan.cells(0).map(|cell| Row {
            key: Key::of(&cell),
            samples: Vec::new(),
            skipped: None,
            failed: Vec::new(),
        });
        Self {
            rows: rows.collect(),
        }
    }

    pub(super) fn add(&mut self, cell: &Cell, outcome: Outcome) {
        let key = Key::of(cell);
        let Some(row) = self.rows.iter_mut().find(|row| row.key == key) else {
            return;
        };
        match outcome {
            Outcome::Measured(sample) => row.samples.push(sample),
            Outcome::Skipped(why) => row.skipped = Some(why),
            Outcome::Failed(why) | Outcome::Overloaded(why) => row.failed.push(why),
        }
    }

    /// Whether a cell need not be tried again, because it cannot be measured here.
    pub(super) fn is_skipped(&self, cell: &Cell) -> bool {
        self.find(Key::of(cell))
            .is_some_and(|row| row.skipped.is_some())
    }

    pub(super) fn has_failures(&self) -> bool {
        self.rows.iter().any(|row| !row.failed.is_empty())
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter()
    }

    /// The rows of a case on a runtime, one for each transport.
    pub(super) fn of(&self, case: Case, runtime: Runtime) -> impl Iterator<Item = &Row> {
        let key = move |row: &&Row| row.key.case == case && row.key.runtime == runtime;
        self.rows.iter().filter(key)
    }

    /// The rows of a workload on a runtime over a transport, one for each load.
    pub(super) fn over(
        &self,
        workload: Workload,
        runtime: Runtime,
        transport: Kind,
    ) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(move |row| {
            let key = row.key;
            key.case.workload == workload && key.runtime == runtime && key.transport == transport
        })
    }

    /// The figure of a row beside the same over another transport.
    pub(super) fn compare(&self, row: &Row, figure: Figure, to: Kind) -> Option<Comparison> {
        let base = self.find(Key {
            transport: to,
            ..row.key
        })?;
        Comparison::new(
            &row.spread(figure)?,
            &base.spread(figure)?,
            figure.is_higher_better(),
        )
    }

    fn find(&self, key: Key) -> Option<&Row> {
        self.rows.iter().find(|row| row.key == key)
    }
}

impl Key {
    fn of(cell: &Cell) -> Self {
        Self {
            case: cell.case,
            runtime: cell.runtime,
            transport: cell.transport,
        }
    }
}

impl Row {
    /// Median and spread of a figure over the rounds.
    pub(super) fn spread(&self, figure: Figure) -> Option<Spread> {
        Spread::of(&self.values(figure))
    }

    /// A figure in each round.
    pub(super) fn values(&self, figure: Figure) -> Vec<f64> {
        let values = self
            .samples
            .iter()
            .filter_map(|sample| sample.figures.get(&figure));
        values.copied().collect()
    }

    /// The latencies of all rounds; `None` if there are none.
    pub(super) fn latencies(&self) -> Option<Latencies> {
        let mut all = Latencies::new().ok()?;
        for sample in &self.samples {
            all.record_many(&sample.latencies);
        }
        (all.len() > 0).then_some(all)
    }

    /// Why there is nothing, or less than there should be.
    pub(super) fn remark(&self) -> Option<String> {
        match (&self.skipped, self.failed.first()) {
            (_, Some(why)) => Some(format!("failed {} times: {why}", self.failed.len())),
            (Some(why), None) => Some(format!("skipped: {why}")),
            (None, None) => None,
        }
    }
}
