//! Shows a kernel and the userspace stack exchanging data, and what went over the wire.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::lab::Lab;
use crate::runner::{self, Cast, Outcome, Run};
use crate::scenario;

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
    println!("two virtual machines: {}", run.parties());
    let mut lab = Lab::boot(run.kernels())?;
    runner::after_boot(&mut lab)?;
    println!("booted Linux {} and {}", lab.kernel(0), lab.kernel(1));
    let show = runner::Show {
        log: true,
        capture: true,
    };
    let (outcome, _) = runner::run(&mut lab, &run, show)?;
    let capture = runner::kept(&run)?;
    match dissector() {
        Some(program) => {
            Command::new(program).arg("dissect").arg(capture).status()?;
        }
        None => println!("the tool to show it is not built: cargo build -p smc-tools"),
    }
    Ok(match outcome {
        Outcome::Passed => true,
        Outcome::Failed(why) | Outcome::Skipped(why) => {
            println!("failed: {why}");
            false
        }
    })
}

/// The `smc` command, if it was built with the same profile.
fn dissector() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?.with_file_name("smc");
    program.exists().then_some(program)
}

const SHOWN: &str = "half-close";
