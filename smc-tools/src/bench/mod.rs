//! `smc bench`: SMC streams, TCP and UNIX sockets measured side by side, between two processes.
//!
//! A [`plan`] is a list of cells: one workload over one transport on one runtime. For each cell,
//! [`pair`] starts two fresh processes of this program, the [`end`]s, so that nothing of one
//! measurement is left for the next; the client's end takes the time and reports the result. All
//! cells are gone through once per round, so that each transport gets its share of whatever else
//! the machine does. [`results`] puts the rounds together, [`stats`] states what may be concluded,
//! and [`report`] shows it.
//!
//! Inside an end, [`runtime`] and [`transport`] hide what differs, and [`workload`] is the same
//! code for all of them.
//!
//! The server's end may run in another machine, where an [`agent`] starts it.
//!
//! `smc demo`, the [`demo`], streams a file and then measures a few cells in the same way.

mod agent;
mod args;
mod demo;
mod end;
mod figure;
mod host;
mod meter;
mod observe;
mod pair;
#[cfg(feature = "peers")]
mod peers;
mod plan;
mod report;
mod results;
mod stats;
mod transport;
mod workload;

pub(crate) use agent::Args as AgentArgs;
pub(crate) use agent::run as run_agent;
pub(crate) use args::Args;
pub(crate) use demo::Args as DemoArgs;
pub(crate) use demo::run as run_demo;
pub(crate) use end::run as run_end;

use anyhow::Result;
use fs_err as fs;

use host::Host;
use pair::Outcome;
use plan::Plan;
use report::Progress;
use results::Results;

use crate::output;

/// Runs `smc bench`. Gives whether everything that was asked for could be measured, or was left out
/// for a reason.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let plan = Plan::new(args)?;
    let host = Host::detect();
    let mut results = Results::new(&plan);
    let mut progress = Progress::new(&plan);
    for round in 0..plan.rounds {
        for cell in plan.cells(round) {
            progress.at(round, &cell);
            if results.is_skipped(&cell) {
                continue;
            }
            let outcome = pair::run(&cell, plan.remote, |what| progress.report(what));
            if let Outcome::Failed(why) | Outcome::Overloaded(why) = &outcome {
                progress.report(&format!("{cell}: failed: {why}"));
            }
            results.add(&cell, outcome);
        }
    }
    progress.end();
    if let Some(path) = &args.report {
        fs::write(path, report::html(&host, &plan, &results)?)?;
    }
    let text = if args.json {
        let mut text = serde_json::to_string_pretty(&report::json(&host, &plan, &results))?;
        text.push('\n');
        text
    } else {
        report::table(&host, &plan, &results)
    };
    output::print(&text)?;
    Ok(!results.has_failures())
}
