//! `interop`: unmodified Linux kernels in virtual machines against the userspace stack.
//!
//! One program for everything: on the host it boots two guests and directs them, in a guest it is
//! the first process, and there again it is each side of a scenario. Read `scenario` for what is
//! tried, `workload` for what the ends do, `runner` for how a run goes, `lab` for the machines
//! and `guest` for what runs inside of them.

#![forbid(unsafe_code)]

mod bench;
mod capture;
mod demo;
mod early;
mod guest;
mod hosts;
mod inside;
#[cfg(feature = "ism")]
mod ism;
mod jobs;
mod lab;
mod protocol;
mod runner;
mod scenario;
mod soak;
mod sockets;
#[cfg(feature = "ours")]
mod wire_image;
mod workload;

use std::collections::VecDeque;
use std::process::ExitCode;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::{Args, Parser, Subcommand};

use lab::{Lab, Version};
use runner::{Counts, Finished, Outcome, Pairing, Run, Show, Table};

/// Runs unmodified Linux kernels in virtual machines against the userspace stack
#[derive(Debug, Parser)]
#[command(name = "interop", arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show the scenarios
    List,
    /// Run scenarios
    Run(RunArgs),
    /// Show a kernel and ours exchanging data, and what went over the wire
    Demo,
    /// Compare ours with the kernel's SMC-R, in virtual machines
    Bench(bench::BenchArgs),
    /// Early data while servers, cookies and the network change, in virtual machines
    Early(early::EarlyArgs),
    /// Run scenarios between two hosts with RDMA cards, and write a report on them
    Hosts(hosts::HostsArgs),
    /// Run a program of this machine in a guest with two soft-RoCE devices, rxe0 and rxe1
    Guest(inside::GuestArgs),
    /// Failovers under load between ours and ours, one after the other
    Soak(soak::SoakArgs),
    /// Compare what `smc ss --kernel` shows in guests with what strace reads there
    Sockets(sockets::SocketsArgs),
    /// Compare what ours sends to a kernel with features beyond the released protocol and without
    #[cfg(feature = "ours")]
    WireImage,
    /// SMC-D between this host and guests, over ivshmem
    #[cfg(feature = "ism")]
    Ism(ism::IsmArgs),
    /// One side of a scenario of `ism`
    #[cfg(feature = "ism")]
    #[command(hide = true)]
    IsmSide(ism::SideArgs),
    /// One side of a scenario; in a guest, or on another host
    #[command(hide = true)]
    Side,
    /// Stop the parent process and let it run, in turn
    #[command(hide = true)]
    StopParent,
}

#[derive(Debug, Args)]
struct RunArgs {
    /// Only with this kernel as the peer
    #[arg(long)]
    kernel: Option<Version>,
    /// What ours does; several times for several. Without feature `ours` only kernels are tried
    #[arg(long, value_enum)]
    role: Vec<Pairing>,
    /// Keep the captures of runs that passed, too
    #[arg(long)]
    keep: bool,
    /// Show the events of the ends in runs that passed, too
    #[arg(long)]
    verbose: bool,
    /// Pairs of guests that run scenarios at the same time: much of a scenario is waiting
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = at_least_one)]
    labs: usize,
    /// Names of scenarios; all if none is given
    names: Vec<String>,
}

impl RunArgs {
    fn show(&self) -> Show {
        Show {
            log: self.verbose,
            capture: self.keep,
        }
    }
}

fn at_least_one(text: &str) -> Result<usize, &'static str> {
    let count = text.parse().ok().filter(|count| *count > 0);
    count.ok_or("not a number of one or more")
}

fn main() -> ExitCode {
    if std::process::id() == 1 {
        guest::init();
    }
    let result = match Cli::parse().command {
        Command::List => {
            list();
            Ok(true)
        }
        Command::Run(args) => run(&args),
        Command::Demo => demo::run(),
        Command::Bench(args) => bench::run(&args),
        Command::Early(args) => early::run(&args),
        Command::Hosts(args) => hosts::run(&args),
        Command::Guest(args) => inside::run(&args),
        Command::Soak(args) => soak::run(&args),
        Command::Sockets(args) => sockets::run(&args),
        #[cfg(feature = "ours")]
        Command::WireImage => wire_image::run(),
        #[cfg(feature = "ism")]
        Command::Ism(args) => ism::run(&args),
        #[cfg(feature = "ism")]
        Command::IsmSide(args) => ism::side(&args),
        Command::Side => workload::run().map(|()| true),
        Command::StopParent => workload::stop_parent().map(|()| true),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("interop: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn list() {
    for scenario in scenario::all() {
        println!(
            "{:<20} {:<5} {}",
            scenario.name, scenario.kernel, scenario.about
        );
    }
}

fn run(args: &RunArgs) -> Result<bool> {
    let started = Instant::now();
    let mut table = Table::default();
    let mut runs = Vec::new();
    for (run, lacks) in chosen(args)? {
        match lacks {
            Some(why) => table.add(&run, Outcome::Skipped(why), Duration::ZERO),
            None => runs.push(run),
        }
    }
    // Guests are booted once for all runs that want the same kernels, and runs that leave unusable
    // guests behind come last.
    runs.sort_by_key(|run| {
        (
            run.scenario.kernel == Version::V6_1,
            run.has_unclosable_kernel(),
        )
    });
    let labs = args.labs.min(runs.len());
    let (table, runs) = (Mutex::new(table), Mutex::new(VecDeque::from(runs)));
    thread::scope(|scope| {
        for _ in 0..labs {
            scope.spawn(|| run_in_turn(&runs, args.show(), &table));
        }
    });
    let passed = lock(&table).conclude();
    println!("{:.0} s in all", started.elapsed().as_secs_f64());
    Ok(passed)
}

/// Performs one run after the other in a lab of its own, until there are no more.
fn run_in_turn(runs: &Mutex<VecDeque<Run>>, show: Show, table: &Mutex<Table>) {
    let (mut lab, mut booted) = (None, None);
    loop {
        let Some(run) = lock(runs).pop_front() else {
            return;
        };
        if booted.replace(run.scenario.kernel) != Some(run.scenario.kernel) {
            lab = None;
        }
        let Finished { outcome, took, .. } = perform(&mut lab, &run, show, table);
        lock(table).add(&run, outcome, took);
    }
}

/// What another thread has left when it panicked is as good as ever.
pub(crate) fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

fn chosen(args: &RunArgs) -> Result<Vec<(Run, Option<String>)>> {
    let all = scenario::all();
    for name in &args.names {
        ensure!(
            all.iter().any(|scenario| scenario.name == name),
            "no scenario {name}; see `interop list`"
        );
    }
    let casts = match &args.role[..] {
        [] if cfg!(feature = "ours") => &[Pairing::Client, Pairing::Server][..],
        [] => &[Pairing::Kernel],
        casts => casts,
    };
    Ok(casts
        .iter()
        .flat_map(|pairing| all.iter().flat_map(|scenario| Run::of(scenario, *pairing)))
        .filter(|(run, _)| {
            args.names.is_empty() || args.names.iter().any(|name| name == run.scenario.name)
        })
        .filter(|(run, _)| {
            args.kernel
                .is_none_or(|kernel| run.scenario.kernel == kernel)
        })
        .collect())
}

/// Boots when there are no guests, or when the last run has left them unusable.
fn perform(lab: &mut Option<Lab>, run: &Run, show: Show, table: &Mutex<Table>) -> Finished {
    let started = Instant::now();
    let result = (|| {
        let booted = match lab.take() {
            Some(booted) => booted,
            None => {
                let mut booted = Lab::boot(run.kernels())?;
                runner::after_boot(&mut booted)?;
                lock(table).booted(&booted, started.elapsed());
                booted
            }
        };
        runner::run(lab.insert(booted), run, show)
    })();
    match result {
        Ok(finished) => {
            // What this run has left must not fail the next.
            let is_spent = |lab: &mut Lab| runner::is_spent(lab).unwrap_or(true);
            if matches!(finished.outcome, Outcome::Failed(_))
                || run.has_unclosable_kernel()
                || lab.as_mut().is_none_or(is_spent)
            {
                *lab = None;
            }
            finished
        }
        Err(error) => {
            *lab = None;
            Finished {
                outcome: Outcome::Failed(format!("{error:#}")),
                took: started.elapsed(),
                counts: Counts::default(),
            }
        }
    }
}
