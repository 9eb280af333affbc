//! What came of a soak.

use std::fmt::Write as _;
use std::time::Duration;

use super::end::Counts;
use super::fault::Fault;

/// Counts of all epochs.
#[derive(Debug, Default)]
pub(super) struct Summary {
    pub(super) epochs: u64,
    pub(super) elapsed: Duration,
    /// Connections as the clients count them that faults are for.
    pub(super) clients: Counts,
    /// As their servers count them.
    pub(super) servers: Counts,
    /// Connections of the two processes without faults, as the client counts them.
    pub(super) others: Counts,
    faults: [u64; Fault::ALL.len()],
    /// Bytes per second of one connection after each epoch.
    pub(super) rates: Vec<f64>,
    pub(super) violations: Vec<String>,
}

impl Summary {
    pub(super) fn add_fault(&mut self, fault: Fault) {
        let mut counts = Fault::ALL.iter().zip(&mut self.faults);
        if let Some((_, count)) = counts.find(|(each, _)| **each == fault) {
            *count += 1;
        }
    }

    /// Adds what the throughput says: its median in the last third of the epochs is not below all
    /// of the first third.
    pub(super) fn check_rates(&mut self) {
        if let Some(Drift { first, last }) = drift(&self.rates) {
            if last < first {
                self.violations.push(format!(
                    "the throughput fell: at least {:.0} MB/s in the first third of the epochs, \
                     {:.0} MB/s in the median of the last one",
                    first / 1e6,
                    last / 1e6
                ));
            }
        }
    }

    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        let seconds = self.elapsed.as_secs();
        // Writing to a string cannot fail.
        let mut line = |what: &str| {
            let _written = writeln!(text, "{what}");
        };
        line(&format!("{} epochs, {seconds} s", self.epochs));
        for (who, counts) in [
            ("clients", &self.clients),
            ("servers", &self.servers),
            ("without faults", &self.others),
        ] {
            line(&format!(
                "{who}: {} connections whole, {} reset, {} lost with a process, {} for want of memory, {} not used, \
                 {} refused, {} of them without SMC; {} bytes received and right",
                counts.whole,
                counts.reset,
                counts.lost,
                counts.starved,
                counts.unused,
                counts.refused,
                counts.fallback,
                counts.bytes
            ));
        }
        for (fault, count) in Fault::ALL.iter().zip(self.faults) {
            line(&format!("{fault}: {count}"));
        }
        if let (Some(least), Some(most)) = (
            self.rates.iter().copied().reduce(f64::min),
            self.rates.iter().copied().reduce(f64::max),
        ) {
            let median = median(&self.rates);
            line(&format!(
                "throughput of one connection: {:.0} MB/s ({:.0} to {:.0})",
                median / 1e6,
                least / 1e6,
                most / 1e6
            ));
        }
        for violation in &self.violations {
            line(&format!("VIOLATION: {violation}"));
        }
        line(&format!("violations: {}", self.violations.len()));
        text
    }
}

/// The least value of the first third, and the median of the last one.
struct Drift {
    first: f64,
    last: f64,
}

/// `None` with too few values.
fn drift(rates: &[f64]) -> Option<Drift> {
    let third = rates.len() / 3;
    if third < THIRD_MIN {
        return None;
    }
    Some(Drift {
        first: rates[..third].iter().copied().reduce(f64::min)?,
        last: median(&rates[rates.len() - third..]),
    })
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Epochs in a third that say something.
const THIRD_MIN: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_throughput_that_falls_below_all_of_the_first_epochs_is_a_violation() {
        let with = |rates: &[f64]| {
            let mut summary = Summary {
                rates: rates.to_vec(),
                ..Summary::default()
            };
            summary.check_rates();
            summary.violations.len()
        };
        let steady: Vec<f64> = (0..30)
            .map(|epoch| 1e9 + f64::from(epoch % 5) * 1e8)
            .collect();
        assert_eq!(with(&steady), 0);
        let falling: Vec<f64> = (0..30).map(|epoch| 2e9 - f64::from(epoch) * 3e7).collect();
        assert_eq!(with(&falling), 1);
        assert_eq!(with(&falling[..6]), 0, "too few");
    }

    #[test]
    fn the_text_has_each_fault_and_each_violation() {
        let mut summary = Summary::default();
        summary.add_fault(Fault::KillServer);
        summary.violations.push("client: no end within 60s".into());
        let text = summary.text();
        assert!(text.contains("\nkill server: 1\n"), "{text}");
        assert!(text.contains("\nVIOLATION: client: no end within 60s\nviolations: 1\n"));
    }
}
