//! Whether a run has ended as it should.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use super::active_run::Side;
use super::{Run, guest_of, report};
use crate::lab::{self, Lab};
use crate::protocol::{Order, SmcState};
use crate::scenario::ScenarioEnd;
use crate::workload::Kind;

/// Checks the events of both ends.
pub(crate) fn on_ends(run: &Run, ends: &[Side; 2]) -> Result<()> {
    let expected = run.scenario.carried_for(run.role);
    for end in [ScenarioEnd::Subject, ScenarioEnd::Peer] {
        let side = &ends[guest_of(end)];
        if run.scenario.expect.killed == Some(end) {
            ensure!(side.ended == Some(None), "{end:?} was not killed: {side:?}");
            continue;
        }
        let Some(report) = &side.report else {
            bail!("{end:?} ended without a report: {:?}", side.ended);
        };
        ensure!(
            report.failures.is_empty(),
            "{end:?}: {}",
            report.failures.join("; ")
        );
        ensure!(side.ended == Some(Some(0)), "{end:?}: {:?}", side.ended);
        let script = &run.scenario.node(end).script;
        let connections = script.connections * script.rounds;
        ensure!(
            report.connections == connections,
            "{end:?}: {} of {connections} connections",
            report.connections
        );
        if let Some(carrier) = expected.seen_by(end) {
            ensure!(
                report.carriers == [carrier],
                "{end:?}: carried by {:?}, expected {carrier:?}",
                report.carriers
            );
        }
    }
    Ok(())
}

/// Judges what is left in the kernels: no connection, no link group but idle ones, and those only
/// where the other end is a system that goes on.
pub(crate) fn on_kernels(lab: &mut Lab, run: &Run) -> Result<()> {
    for end in [ScenarioEnd::Subject, ScenarioEnd::Peer] {
        let guest = guest_of(end);
        let idle_is_fine = run.kind(end.other()) == Kind::Kernel;
        let started = Instant::now();
        loop {
            let state: SmcState = lab.order(guest, Order::SmcState)?;
            let has_groups = if idle_is_fine {
                state.groups.iter().any(|group| group.conns > 0)
            } else {
                !state.groups.is_empty()
            };
            if state.sockets.is_empty() && !has_groups {
                break;
            }
            if started.elapsed() > CLEAN_TIME {
                let (sockets, groups) = (report::sockets(&state), report::groups(&state));
                bail!("left over in {}: {sockets} {groups}", lab::name(guest));
            }
            thread::sleep(Duration::from_millis(100));
        }
        if started.elapsed() > LINK_TEST_LIKELY {
            report::late(run, guest, started.elapsed());
        }
        let words = lab.kernel_log(guest)?;
        let error_line = words
            .lines()
            .filter(|line| !line.contains(SOFT_ROCE))
            .find(|line| KERNEL_ERRORS.iter().any(|word| line.contains(word)));
        if let Some(line) = error_line {
            bail!(
                "the kernel of {} reports an error: {line}",
                lab::name(guest)
            );
        }
    }
    Ok(())
}

/// Whether soft-RoCE could not clean a queue pair up. Such a guest crashes when the device goes.
pub(crate) fn is_spent(lab: &mut Lab) -> Result<bool> {
    for end in [ScenarioEnd::Subject, ScenarioEnd::Peer] {
        if lab.kernel_log(guest_of(end))?.contains(NOT_CLEAN) {
            return Ok(true);
        }
    }
    Ok(false)
}

const NOT_CLEAN: &str = "rxe_destroy_qp: cleanup failed";

/// A kernel that has not received the end tests its link when it has received nothing for 30
/// seconds, and gives it up two seconds later. That is its right, and a run does not fail at that
/// boundary. All its other waits are of two to five seconds.
const CLEAN_TIME: Duration = Duration::from_secs(60);

/// What takes longer has probably come to that.
const LINK_TEST_LIKELY: Duration = Duration::from_secs(20);

const KERNEL_ERRORS: &[&str] = &["BUG:", "WARNING:", "Oops", "refcount_t"];

/// Soft-RoCE warns of itself when something is deleted that it still retries.
const SOFT_ROCE: &str = "drivers/infiniband/sw/rxe";
