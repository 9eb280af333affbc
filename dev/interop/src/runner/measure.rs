//! Runs benchmarks in a lab.

use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::{Run, active_run, guest_of, report, setup};
use crate::lab::Lab;
use crate::protocol::{Event, Order, OurFeatures};
use crate::scenario::ScenarioEnd;
use crate::workload::{AFTER, BEFORE, Kind, Measure, Report};

/// Has the subject take measures with the peer as the server, with these features of the
/// userspace stack. `watch` is called before and after each of them, when
/// nothing runs, with its number.
pub(crate) fn measure(
    lab: &mut Lab,
    run: &Run,
    features: OurFeatures,
    measures: &[Measure],
    watch: &mut dyn FnMut(&mut Lab, &str) -> Result<()>,
) -> Result<Vec<f64>> {
    setup::before(lab, run).context("set-up")?;
    let measured = perform(lab, run, features, measures, watch);
    if measured.is_err() {
        for end in [ScenarioEnd::Subject, ScenarioEnd::Peer] {
            report::kernel(lab, guest_of(end));
        }
    }
    measured
}

fn perform(
    lab: &mut Lab,
    run: &Run,
    features: OurFeatures,
    measures: &[Measure],
    watch: &mut dyn FnMut(&mut Lab, &str) -> Result<()>,
) -> Result<Vec<f64>> {
    let port = PORTS.fetch_add(1, Ordering::Relaxed);
    let numbers = [(); 2].map(|()| RUNS.fetch_add(1, Ordering::Relaxed));
    let start = |lab: &mut Lab, end: ScenarioEnd| {
        let mut job = active_run::job(run, end, port);
        job.measures = measures.to_vec();
        job.features = features;
        let number = numbers[guest_of(end)];
        lab.order::<()>(guest_of(end), Order::Start { run: number, job })
    };
    start(lab, ScenarioEnd::Peer)?;
    lab.wait(numbers[1], TIMEOUT, |event| {
        matches!(event, Event::Mark(mark) if mark == "listening").then_some(())
    })?;
    start(lab, ScenarioEnd::Subject)?;
    for gate in measures.iter().flat_map(|_| [BEFORE, AFTER]) {
        lab.wait(numbers[0], TIMEOUT, |event| {
            matches!(event, Event::Mark(mark) if mark == gate).then_some(())
        })?;
        watch(lab, gate)?;
        lab.order::<()>(
            guest_of(ScenarioEnd::Subject),
            Order::Go { run: numbers[0] },
        )?;
    }
    let report = lab.wait(numbers[0], TIMEOUT, |event| match event {
        Event::Report(report) => Some(report.clone()),
        _ => None,
    })?;
    let Report {
        failures,
        measured,
        carriers,
        ..
    } = report;
    ensure!(failures.is_empty(), "{}", failures.join("; "));
    if run.subject != Kind::Tcp {
        let expected = run.scenario.expect.as_client.seen_by(ScenarioEnd::Subject);
        ensure!(carriers == expected.as_slice(), "carried by {carriers:?}");
    }
    let is_over = |event: &Event| matches!(event, Event::Ended(_)).then_some(());
    lab.wait(numbers[0], TIMEOUT, is_over)?;
    // It would listen indefinitely.
    let server = numbers[1];
    lab.order::<()>(guest_of(ScenarioEnd::Peer), Order::Kill { run: server })?;
    lab.wait(server, TIMEOUT, is_over)?;
    Ok(measured)
}

const TIMEOUT: Duration = Duration::from_secs(120);

/// Apart from those of scenarios.
static RUNS: AtomicU32 = AtomicU32::new(1_000_000);

static PORTS: AtomicU16 = AtomicU16::new(40_000);
