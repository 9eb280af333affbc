//! Shows a kernel and the userspace stack exchanging data, and what went over the wire.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use crate::lab::Lab;
use crate::runner::{self, Cast, Outcome, Run, guest_of};
use crate::scenario::{self, Who};
use crate::workload::Kind;

/// Boots two guests, runs one scenario in them, and takes the capture apart.
pub(crate) fn run() -> Result<bool> {
    let cast = if cfg!(feature = "ours") {
        Cast::Client
    } else {
        Cast::Kernel
    };
    let scenario = scenario::all()
        .into_iter()
        .find(|scenario| scenario.name == SHOWN)
        .context("no such scenario")?;
    let (run, lacks) = Run::of(&scenario, cast)
        .into_iter()
        .next()
        .context("no way to run it")?;
    if let Some(why) = lacks {
        bail!("{why}");
    }
    let mut lab = Lab::boot(run.kernels())?;
    runner::after_boot(&mut lab)?;
    for who in [run.server().other(), run.server()] {
        introduce(&lab, &run, who);
    }
    println!();
    let show = runner::Show {
        log: true,
        capture: true,
    };
    let (outcome, _) = runner::run(&mut lab, &run, show)?;
    println!("\nthe messages, by frame; the data itself is not shown");
    dissect(&runner::kept(&run)?)?;
    println!();
    Ok(match outcome {
        Outcome::Passed => {
            println!("passed: all bytes were right, and neither end has anything left open");
            true
        }
        Outcome::Failed(why) | Outcome::Skipped(why) => {
            println!("failed: {why}");
            false
        }
    })
}

fn introduce(lab: &Lab, run: &Run, who: Who) {
    let part = if run.is_client(who) {
        "connects"
    } else {
        "listens"
    };
    let what = match run.kind(who) {
        Kind::Kernel => "a program with an AF_SMC socket",
        Kind::Ours => "a program with the userspace stack",
        Kind::Tcp => "a program with a TCP socket",
    };
    let guest = guest_of(who);
    let release = lab.kernel(guest);
    println!("{who:?} {part}: {what}, on Linux {release}");
    println!("    {:?}", run.scenario.node(who).script.steps);
}

/// Has the `smc` command show the messages; builds it if it is not there.
fn dissect(capture: &Path) -> Result<()> {
    let mut command = if let Some(program) = built() {
        Command::new(program)
    } else {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command.args(["run", "-q", "-p", "smc-tools", "--"]);
        command
    };
    let status = command
        .arg("dissect")
        .arg(capture)
        .status()
        .with_context(|| format!("{command:?}"))?;
    ensure!(status.success(), "{command:?}: {status}");
    Ok(())
}

/// The `smc` command, if it was built with the same profile.
fn built() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?.with_file_name("smc");
    program.exists().then_some(program)
}

const SHOWN: &str = "close-first";
