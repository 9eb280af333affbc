//! Failovers of SMC-R under load, one after the other, between two of ours.
//!
//! An epoch is a run of [`scenario::failovers`]: new processes, and connections that last for all
//! of its failovers. The ends change places every other epoch.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::Args;

use crate::runner::{Outcome, Run, Show, Table};
use crate::scenario::{self, Role};
use crate::workload::Kind;

#[derive(Debug, Args)]
pub(crate) struct SoakArgs {
    /// How many
    #[arg(long, value_name = "N", default_value_t = 200)]
    failovers: u32,
    /// No other epoch begins after this time
    #[arg(long, value_name = "N")]
    hours: Option<f64>,
}

/// Runs epochs. Gives whether there was no violation.
pub(crate) fn run(args: &SoakArgs) -> Result<bool> {
    ensure!(cfg!(feature = "ours"), "built without feature `ours`");
    let time = args
        .hours
        .map(|hours| Duration::try_from_secs_f64(hours * 3600.0));
    let time = time.transpose().context("--hours")?;
    let show = Show {
        log: false,
        capture: false,
    };
    let (mut lab, table) = (None, Mutex::new(Table::default()));
    let started = Instant::now();
    let (mut epochs, mut failovers, mut restored_late, mut received) = (0, 0, 0, 0);
    let mut violations = Vec::new();
    while failovers < args.failovers && time.is_none_or(|time| started.elapsed() < time) {
        let run = Run {
            scenario: scenario::failovers(epochs, args.failovers - failovers),
            role: [Role::Client, Role::Server][epochs as usize / 2 % 2],
            subject: Kind::Ours,
            peer: Kind::Ours,
        };
        epochs += 1;
        let finished = crate::perform(&mut lab, &run, show, &table);
        failovers += finished.counts.failovers;
        restored_late += finished.counts.restored_late;
        received += finished.counts.received;
        println!(
            "epoch {epochs}: {} failovers in {:.0} s, {failovers} so far; {:?}",
            finished.counts.failovers,
            finished.took.as_secs_f64(),
            finished.outcome
        );
        if let Outcome::Failed(why) = finished.outcome {
            violations.push(format!("epoch {epochs}: {why}"));
            ensure!(
                violations.len() < VIOLATIONS_MAX,
                "{}",
                violations.join("\n")
            );
        }
    }
    println!("{epochs} epochs, {} s", started.elapsed().as_secs());
    println!("failovers under load: {failovers}");
    println!("links not added at the first event of a port: {restored_late}");
    println!("received and right: {received} bytes");
    for violation in &violations {
        println!("VIOLATION: {violation}");
    }
    println!("violations: {}", violations.len());
    Ok(violations.is_empty())
}

/// With more of them nothing further is learned.
const VIOLATIONS_MAX: usize = 20;
