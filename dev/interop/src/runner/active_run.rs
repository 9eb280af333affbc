//! One run: both ends are started, actions of triggers are performed, and the end is awaited.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use fs_err as fs;

use super::{Counts, Run, Show, guest_of, report, setup, verdict};
use crate::lab::{self, Lab, SideEvent};
use crate::protocol::{End, Event, Job, Order, Resources, SmcState};
use crate::scenario::{self, Action, ScenarioEnd, Shape};
use crate::workload::{Kind, Report};

/// A run under way.
pub(crate) struct ActiveRun<'a> {
    lab: &'a mut Lab,
    run: &'a Run,
    ends: [Side; 2],
    log: String,
    started: Instant,
    capture: Option<PathBuf>,
    failovers: u32,
    /// Links that were not added at the first event of a port.
    restored_late: u32,
}

/// An end under way.
#[derive(Debug, Default)]
pub(crate) struct Side {
    number: u32,
    is_started: bool,
    marks: Vec<String>,
    /// The kind of the link group in use, as ours told.
    kind: u8,
    /// What it had when that was looked at first.
    resources: Option<Resources>,
    pub(crate) report: Option<Report>,
    /// The exit code; `None` inside: killed.
    pub(crate) ended: Option<Option<i32>>,
}

impl<'a> ActiveRun<'a> {
    /// Sets the guests up.
    pub(crate) fn new(lab: &'a mut Lab, run: &'a Run) -> Result<Self> {
        setup::before(lab, run).context("set-up")?;
        let capture = lab.folder().join("capture");
        let capture = run.scenario.is_recorded.then_some(capture);
        if let Some(capture) = &capture {
            lab.record(capture)?;
        }
        Ok(Self {
            run,
            ends: [Side::numbered(), Side::numbered()],
            log: String::new(),
            started: Instant::now(),
            capture,
            failovers: 0,
            restored_late: 0,
            lab,
        })
    }

    /// From the start of the listener to the end of both.
    pub(crate) fn perform(&mut self) -> Result<()> {
        let deadline = self.started + self.run.scenario.limit;
        self.start(self.run.server())?;
        while !self.has_ended() {
            let Some(seen) = self.lab.next_event(deadline)? else {
                bail!("not done after {:?}", self.run.scenario.limit);
            };
            self.handle(seen)?;
            let has_moved = |end: &Side| end.marks.iter().any(|mark| mark == "moved");
            if self.run.has_unclosable_kernel() && self.ends.iter().all(has_moved) {
                return Ok(());
            }
        }
        verdict::on_ends(self.run, &self.ends)?;
        verdict::on_kernels(self.lab, self.run)
    }

    /// Ends what still runs, and shows what there is to see if it went wrong.
    pub(crate) fn close(self, result: Result<()>, show: Show) -> Result<()> {
        let mut trouble = result.is_err();
        if self.run.has_unclosable_kernel() && !trouble {
            return Ok(());
        }
        for end in [ScenarioEnd::Subject, ScenarioEnd::Peer] {
            if self.end(end).is_started && self.end(end).ended.is_none() {
                trouble = true;
                let run = self.end(end).number;
                // It may have ended at this very moment.
                let _ = self.lab.order::<()>(guest_of(end), Order::Kill { run });
            }
        }
        // Uninterrupted by what other labs report.
        let whole = report::hold();
        if trouble || show.log {
            report::log(self.run, &self.log);
        }
        if trouble {
            for end in [ScenarioEnd::Subject, ScenarioEnd::Peer] {
                report::kernel(self.lab, guest_of(end));
            }
        }
        drop(whole);
        if let Some(capture) = &self.capture {
            self.lab.stop_recording()?;
            if trouble || show.capture {
                report::keep(self.run, capture)?;
            } else {
                fs::remove_file(capture)?;
            }
        }
        result
    }

    pub(crate) fn counts(&self) -> Counts {
        let reports = self.ends.iter().filter_map(|end| end.report.as_ref());
        Counts {
            failovers: self.failovers,
            restored_late: self.restored_late,
            received: reports.map(|report| report.received).sum(),
        }
    }

    fn start(&mut self, end: ScenarioEnd) -> Result<()> {
        let port = FIRST_PORT + u16::try_from(self.ends[0].number % 10_000)?;
        let job = job(self.run, end, port);
        let run = self.end(end).number;
        self.end_mut(end).is_started = true;
        self.lab
            .order(guest_of(end), Order::Start { run, job })
            .context("start")
    }

    fn handle(&mut self, seen: SideEvent) -> Result<()> {
        let end = [ScenarioEnd::Subject, ScenarioEnd::Peer]
            .into_iter()
            .find(|end| self.end(*end).number == seen.run);
        // Words of a run before this one are of no interest.
        end.map_or(Ok(()), |end| self.note(end, seen.event))
    }

    fn note(&mut self, end: ScenarioEnd, event: Event) -> Result<()> {
        let millis = self.started.elapsed().as_millis();
        // A string takes everything.
        let _ = writeln!(self.log, "{millis:>7} ms {end:?}: {event:?}");
        match event {
            Event::Mark(mark) => {
                if mark == "listening" {
                    self.start(end.other())?;
                }
                self.end_mut(end).marks.push(mark.clone());
                let trigger = self
                    .run
                    .scenario
                    .triggers
                    .iter()
                    .find(|trigger| trigger.end == end && trigger.mark == mark);
                let actions = trigger.map_or(&[][..], |trigger| &trigger.actions);
                for action in actions {
                    self.act(*action)
                        .with_context(|| format!("{action:?} at {mark}"))?;
                    let millis = self.started.elapsed().as_millis();
                    let _ = writeln!(self.log, "{millis:>7} ms host: {action:?} done");
                }
                let loses_link = actions.contains(&Action::Await(Shape::Reduced));
                self.failovers += u32::from(loses_link);
            }
            Event::Log(_) => {}
            Event::Groups { kind, .. } => self.end_mut(end).kind = kind,
            Event::Report(report) => self.end_mut(end).report = Some(report),
            Event::Ended(code) => {
                self.end_mut(end).ended = Some(code);
                if !self.end(end.other()).is_started {
                    bail!("the listener has ended at once: {:?}", self.end(end).report);
                }
            }
        }
        Ok(())
    }

    fn act(&mut self, action: Action) -> Result<()> {
        match action {
            Action::LinkDown(end, nic) => self.exec(end, &format!("ip link set eth{nic} down")),
            Action::LinkUp(end, nic) => self.exec(end, &format!("ip link set eth{nic} up")),
            Action::Cut(end, nic) => self.lab.set_cable(guest_of(end), nic, false),
            Action::Repair(end, nic) => self.lab.set_cable(guest_of(end), nic, true),
            Action::RemoveDevice(end, nic) => self.exec(end, &format!("rdma link delete rxe{nic}")),
            Action::Kill(end) => {
                let run = self.end(end).number;
                self.lab.order(guest_of(end), Order::Kill { run })
            }
            Action::Go(end) => {
                let run = self.end(end).number;
                self.lab.order(guest_of(end), Order::Go { run })
            }
            Action::Wait(millis) => {
                thread::sleep(Duration::from_millis(millis));
                Ok(())
            }
            Action::Await(shape) => self.await_shape(shape),
            Action::Restore(end, nic) => self.restore(end, nic),
            Action::ExpectLoad(end, failover) => {
                if self.are_at_gate(end, failover) {
                    bail!("all data had arrived before the link was lost");
                }
                Ok(())
            }
            Action::AwaitGate(end, failover) => {
                let deadline = Instant::now() + GATE_TIME;
                while !self.are_at_gate(end, failover) {
                    let Some(seen) = self.lab.next_event(deadline)? else {
                        bail!("connections do not go on");
                    };
                    self.handle(seen)?;
                }
                Ok(())
            }
            Action::ExpectResources(end) => self.expect_resources(end),
            Action::StepClock(end, seconds) => {
                self.lab.order(guest_of(end), Order::StepClock(seconds))
            }
        }
    }

    /// A link whose set-up fails, as when the machine is too slow for its timeouts, is tried again
    /// at the next event of a port.
    fn restore(&mut self, end: ScenarioEnd, nic: usize) -> Result<()> {
        for _ in 1..RESTORES {
            self.act(Action::LinkUp(end, nic))?;
            if self.await_shape(Shape::Symmetric).is_ok() {
                return Ok(());
            }
            self.restored_late += 1;
            self.act(Action::LinkDown(end, nic))?;
        }
        self.act(Action::LinkUp(end, nic))?;
        self.await_shape(Shape::Symmetric)
    }

    fn are_at_gate(&self, end: ScenarioEnd, failover: u32) -> bool {
        let gate = scenario::gate(failover);
        let marks = self.end(end).marks.iter();
        let waiting = marks.filter(|mark| **mark == gate).count();
        waiting >= self.run.scenario.node(end).script.connections as usize
    }

    /// What was closed may take a while to be gone.
    fn expect_resources(&mut self, end: ScenarioEnd) -> Result<()> {
        let deadline = Instant::now() + RESOURCES_TIME;
        let run = self.end(end).number;
        loop {
            let now: Resources = self.lab.order(guest_of(end), Order::Resources { run })?;
            let most = *self.end_mut(end).resources.get_or_insert(now);
            if now.is_within(&most) {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!(
                    "{now:?} in {}, and {most:?} before",
                    lab::name(guest_of(end))
                );
            }
            thread::sleep(MOMENT);
        }
    }

    fn exec(&mut self, end: ScenarioEnd, command: &str) -> Result<()> {
        self.lab.exec(guest_of(end), command).map(drop)
    }

    fn await_shape(&mut self, wanted: Shape) -> Result<()> {
        let deadline = Instant::now() + LINK_TIME;
        for end in [ScenarioEnd::Subject, ScenarioEnd::Peer] {
            loop {
                let kind = self.kind_of_group(end)?;
                if wanted.is_of(kind) {
                    break;
                }
                if Instant::now() > deadline {
                    bail!("of kind {kind} in {}", lab::name(guest_of(end)));
                }
            }
        }
        Ok(())
    }

    /// The kind of the link group in use, after a moment.
    fn kind_of_group(&mut self, end: ScenarioEnd) -> Result<u8> {
        match self.run.kind(end) {
            Kind::Kernel => {
                thread::sleep(MOMENT);
                let state: SmcState = self.lab.order(guest_of(end), Order::SmcState)?;
                let used = state.groups.iter().find(|group| group.conns > 0);
                Ok(used.map_or(0, |group| group.kind))
            }
            Kind::Ours => {
                if let Some(seen) = self.lab.next_event(Instant::now() + MOMENT)? {
                    self.handle(seen)?;
                }
                Ok(self.end(end).kind)
            }
            Kind::Tcp => bail!("TCP has no links"),
        }
    }

    fn has_ended(&self) -> bool {
        self.ends.iter().all(|end| end.ended.is_some())
    }

    fn end(&self, end: ScenarioEnd) -> &Side {
        &self.ends[guest_of(end)]
    }

    fn end_mut(&mut self, end: ScenarioEnd) -> &mut Side {
        &mut self.ends[guest_of(end)]
    }
}

impl Side {
    fn numbered() -> Self {
        Self {
            number: RUNS.fetch_add(1, Ordering::Relaxed),
            ..Self::default()
        }
    }
}

/// What an end has to do.
pub(crate) fn job(run: &Run, end: ScenarioEnd, port: u16) -> Job {
    let node = run.scenario.node(end);
    let endpoint = if end == run.server() {
        End::Listen(setup::any(run, port))
    } else {
        End::Connect(setup::address(run, run.server(), port))
    };
    Job {
        kind: run.kind(end),
        end: endpoint,
        script: node.script.clone(),
        measures: Vec::new(),
        ueids: node.ueids.iter().map(|eid| (*eid).to_owned()).collect(),
        devices: (0..node.devices).map(|nic| format!("rxe{nic}")).collect(),
        max_links: node.max_links(),
        test_link: node.test_link(),
        features: node.features,
        memory: None,
        receives: node.receives,
        has_driver_thread: node.has_driver_thread,
        offers_ipv6: node.offers_ipv6,
        events_to: run
            .scenario
            .sends_events
            .then(|| setup::address(run, end.other(), EVENT_PORT)),
    }
}

static RUNS: AtomicU32 = AtomicU32::new(1);

/// Every run has a port of its own, so that nothing of an earlier one is in the way.
const FIRST_PORT: u16 = 20_000;

/// The port for reports of programs, without a listener.
pub(crate) const EVENT_PORT: u16 = 9;

const LINK_TIME: Duration = Duration::from_secs(30);

/// How often an interface is taken up for a link.
const RESTORES: u32 = 3;

/// How long a transfer may take behind a failover.
const GATE_TIME: Duration = Duration::from_secs(120);

/// Soft-RoCE may take 50 seconds to destroy a queue pair.
const RESOURCES_TIME: Duration = Duration::from_secs(90);

const MOMENT: Duration = Duration::from_millis(100);
