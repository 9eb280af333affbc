//! What people get to see.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use anyhow::Result;
use fs_err as fs;

use super::{Outcome, Run};
use crate::lab::{self, Lab};
use crate::lock;
use crate::protocol::{Order, SmcState};

/// The results of all runs.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Vec<(String, Outcome, Duration)>,
    kernels: BTreeSet<String>,
    boots: u32,
}

impl Table {
    /// Notes which kernels run.
    pub(crate) fn booted(&mut self, lab: &Lab, took: Duration) {
        let [a, b] = [0, 1].map(|guest| lab.kernel(guest).to_owned());
        println!("booted Linux {a} and {b} in {:.1} s", took.as_secs_f64());
        self.kernels.extend([a, b]);
        self.boots += 1;
    }

    /// Notes a result and shows it.
    pub(crate) fn add(&mut self, run: &Run, outcome: Outcome, took: Duration) {
        let row = format!("{:<20} {:<18}", run.scenario.name, run.parties());
        let _whole = hold();
        println!("{}", line(&row, &outcome, took));
        self.rows.push((row, outcome, took));
    }

    /// Shows everything again, failures last. Gives whether something passed and nothing failed: a
    /// run of which everything was skipped has shown nothing.
    pub(crate) fn conclude(&self) -> bool {
        let count = |wanted: fn(&Outcome) -> bool| {
            self.rows
                .iter()
                .filter(|(_, outcome, _)| wanted(outcome))
                .count()
        };
        let failed = count(|outcome| matches!(outcome, Outcome::Failed(_)));
        let passed = count(|outcome| matches!(outcome, Outcome::Passed));
        println!();
        for (row, outcome, took) in &self.rows {
            if matches!(outcome, Outcome::Failed(_)) {
                println!("{}", line(row, outcome, *took));
            }
        }
        let kernels: Vec<_> = self.kernels.iter().map(String::as_str).collect();
        println!(
            "kernels: {}; two guests booted {} times",
            kernels.join(", "),
            self.boots
        );
        println!(
            "{passed} passed, {failed} failed, {} skipped",
            count(|outcome| matches!(outcome, Outcome::Skipped(_))),
        );
        if passed == 0 && failed == 0 {
            println!("nothing was tried");
        }
        failed == 0 && passed > 0
    }
}

/// Keeps the lines of a report together: others wait until it is dropped.
pub(crate) fn hold() -> MutexGuard<'static, ()> {
    static REPORTING: Mutex<()> = Mutex::new(());
    lock(&REPORTING)
}

/// States that a kernel had not received the end of a link group.
pub(crate) fn late(run: &Run, guest: usize, waited: Duration) {
    println!(
        "{} {}: {} kept its link group for {:.0} s: did it have to test the link?",
        run.scenario.name,
        run.parties(),
        lab::name(guest),
        waited.as_secs_f64()
    );
}

fn line(row: &str, outcome: &Outcome, took: Duration) -> String {
    let seconds = took.as_secs_f64();
    match outcome {
        Outcome::Passed => format!("{row} passed  {seconds:>6.1} s"),
        Outcome::Failed(why) => format!("{row} FAILED  {seconds:>6.1} s  {why}"),
        Outcome::Skipped(why) => format!("{row} skipped: {why}"),
    }
}

/// Shows the events of both ends.
pub(crate) fn log(run: &Run, log: &str) {
    println!("--- {} {}: what happened", run.scenario.name, run.parties());
    print!("{log}");
}

/// Shows the log of a kernel and its open sockets.
pub(crate) fn kernel(lab: &mut Lab, guest: usize) {
    println!("--- {} ({})", lab::name(guest), lab.kernel(guest));
    match lab.order::<SmcState>(guest, Order::SmcState) {
        Ok(state) => println!("{} {}", sockets(&state), groups(&state)),
        Err(error) => {
            println!("{error:#}");
            println!("{}", tail(&lab.console(guest)));
            return;
        }
    }
    match lab.kernel_log(guest) {
        Ok(words) => println!("{}", tail(&words)),
        Err(error) => println!("{error:#}"),
    }
}

/// Puts a capture where it stays.
pub(crate) fn keep(run: &Run, capture: &Path) -> Result<()> {
    let to = kept(run)?;
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::rename(capture, &to)?;
    println!("kept: cargo run -p smc-tools -- dissect {}", to.display());
    Ok(())
}

/// Where the capture of a run stays.
pub(crate) fn kept(run: &Run) -> Result<PathBuf> {
    let parties = run.parties().replace(" -> ", "-").replace('*', "");
    let file = format!("{}-{parties}.pcap", run.scenario.name);
    Ok(lab::home()?.join("captures").join(file))
}

/// The sockets in one line.
pub(crate) fn sockets(state: &SmcState) -> String {
    let mut text = format!("{} sockets", state.sockets.len());
    for socket in state.sockets.iter().take(SHOWN) {
        // A string takes everything.
        let _ = write!(
            text,
            " [{} {:?} {}-{} {:#x}/{:#x}]",
            socket.state_name(),
            socket.mode,
            socket.local_port,
            socket.peer_port,
            socket.reason,
            socket.peer_reason
        );
    }
    text
}

/// The link groups in one line.
pub(crate) fn groups(state: &SmcState) -> String {
    let mut text = format!("{} link groups", state.groups.len());
    for group in state.groups.iter().take(SHOWN) {
        let role = if group.is_server { "server" } else { "client" };
        let _ = write!(
            text,
            " [{:08x} {role} {} {} connections:",
            group.id,
            group.kind_name(),
            group.conns
        );
        for link in &group.links {
            let _ = write!(
                text,
                " {} on {} state {} with {}",
                link.id, link.device, link.state, link.conns
            );
        }
        text.push(']');
    }
    text
}

fn tail(text: &str) -> String {
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}

const SHOWN: usize = 4;

const LINES: usize = 30;
