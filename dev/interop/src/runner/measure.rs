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
    let setting = ServerSetting::new(run.peer, features);
    let server = Server::start(lab, run, port, setting, measures)?;
    let measured = take(lab, run, port, features, measures, watch)?;
    server.stop(lab)?;
    Ok(measured)
}

/// The server of a measure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerSetting {
    pub(crate) kind: Kind,
    /// Those of the userspace stack.
    pub(crate) features: OurFeatures,
    /// How many bytes its connections may take. `None`: as usual.
    pub(crate) memory: Option<usize>,
}

impl ServerSetting {
    pub(crate) fn new(kind: Kind, features: OurFeatures) -> Self {
        Self {
            kind,
            features,
            memory: None,
        }
    }
}

/// Takes a measure with one server and then with another one at the same address. Returns the
/// values of both.
pub(crate) fn measure_across(
    lab: &mut Lab,
    run: &Run,
    client: OurFeatures,
    servers: [ServerSetting; 2],
    measure: Measure,
    between: &mut dyn FnMut(&mut Lab) -> Result<()>,
) -> Result<[Vec<f64>; 2]> {
    setup::before(lab, run).context("set-up")?;
    let port = PORTS.fetch_add(1, Ordering::Relaxed);
    let [first, second] = servers;
    let mut server = Some(Server::start(lab, run, port, first, &[measure])?);
    let mut has_measured = false;
    let mut change = |lab: &mut Lab, gate: &str| {
        if gate == BEFORE && std::mem::replace(&mut has_measured, true) {
            if let Some(server) = server.take() {
                server.stop(lab)?;
            }
            between(lab)?;
            server = Some(Server::start(lab, run, port, second, &[measure])?);
        }
        Ok(())
    };
    let measured = take(lab, run, port, client, &[measure; 2], &mut change);
    if let Some(server) = server {
        server.stop(lab)?;
    }
    let mut first = measured?;
    let second = first.split_off(first.len() / 2);
    Ok([first, second])
}

/// A process at the peer that listens, until it is stopped.
struct Server(u32);

impl Server {
    fn start(
        lab: &mut Lab,
        run: &Run,
        port: u16,
        setting: ServerSetting,
        measures: &[Measure],
    ) -> Result<Self> {
        let run = Run {
            peer: setting.kind,
            ..run.clone()
        };
        let number = RUNS.fetch_add(1, Ordering::Relaxed);
        let mut job = active_run::job(&run, ScenarioEnd::Peer, port);
        job.measures = measures.to_vec();
        job.features = setting.features;
        job.memory = setting.memory;
        let start = Order::Start { run: number, job };
        lab.order::<()>(guest_of(ScenarioEnd::Peer), start)?;
        lab.wait(number, TIMEOUT, |event| {
            matches!(event, Event::Mark(mark) if mark == "listening").then_some(())
        })?;
        Ok(Self(number))
    }

    fn stop(self, lab: &mut Lab) -> Result<()> {
        let kill = Order::Kill { run: self.0 };
        lab.order::<()>(guest_of(ScenarioEnd::Peer), kill)?;
        lab.wait(self.0, TIMEOUT, is_over)
    }
}

fn is_over(event: &Event) -> Option<()> {
    matches!(event, Event::Ended(_)).then_some(())
}

/// Has the client take measures.
fn take(
    lab: &mut Lab,
    run: &Run,
    port: u16,
    features: OurFeatures,
    measures: &[Measure],
    watch: &mut dyn FnMut(&mut Lab, &str) -> Result<()>,
) -> Result<Vec<f64>> {
    let (subject, number) = (
        guest_of(ScenarioEnd::Subject),
        RUNS.fetch_add(1, Ordering::Relaxed),
    );
    let mut job = active_run::job(run, ScenarioEnd::Subject, port);
    job.measures = measures.to_vec();
    job.features = features;
    lab.order::<()>(subject, Order::Start { run: number, job })?;
    for gate in measures.iter().flat_map(|_| [BEFORE, AFTER]) {
        lab.wait(number, TIMEOUT, |event| {
            matches!(event, Event::Mark(mark) if mark == gate).then_some(())
        })?;
        watch(lab, gate)?;
        lab.order::<()>(subject, Order::Go { run: number })?;
    }
    let report = lab.wait(number, TIMEOUT, |event| match event {
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
    lab.wait(number, TIMEOUT, is_over)?;
    Ok(measured)
}

const TIMEOUT: Duration = Duration::from_secs(120);

/// Apart from those of scenarios.
static RUNS: AtomicU32 = AtomicU32::new(1_000_000);

static PORTS: AtomicU16 = AtomicU16::new(40_000);
