//! Compares the userspace stack with the kernel's SMC-R, in the same guests and on the same
//! devices. Software emulation makes the numbers those of no real machine; only their
//! ratios are meaningful.

mod count;

use count::Count;

use anyhow::{Result, bail};
use clap::Args;

use crate::lab::Lab;
use crate::runner::{self, Run};
use crate::scenario::{self, Role};
use crate::workload::{Kind, Measure};

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// How often everything is measured
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Only combinations with this in their names, such as "kernel -> ours"
    #[arg(long)]
    only: Option<String>,
    /// Only measures with this in their names, such as "round"
    #[arg(long, default_value = "")]
    measure: String,
    /// Instead of times show what the kernels count: system calls, switches, packets, for each
    /// round trip, write or connection
    #[arg(long)]
    count: bool,
}

/// Measures all combinations in turn, round after round, and shows medians.
pub(crate) fn run(args: &BenchArgs) -> Result<bool> {
    let pairs: &[[Kind; 2]] = if cfg!(feature = "ours") {
        PAIRS
    } else {
        &[[Kind::Kernel; 2]]
    };
    let runs: Vec<_> = pairs
        .iter()
        .map(|[client, server]| Run {
            scenario: scenario::usual(),
            role: Role::Client,
            subject: *client,
            peer: *server,
        })
        .filter(|run| {
            let only = args.only.as_ref();
            only.is_none_or(|only| name(run).contains(only))
        })
        .collect();
    let Some(first) = runs.first() else {
        bail!("no such combination");
    };
    let boot = || -> Result<Lab> {
        let mut lab = Lab::boot(first.kernels())?;
        runner::after_boot(&mut lab)?;
        println!("Linux {} and {}", lab.kernel(0), lab.kernel(1));
        Ok(lab)
    };
    let wanted = |measure: &&Measure| measure.title().contains(&args.measure);
    let measures: Vec<_> = MEASURES.iter().filter(wanted).copied().collect();
    if measures.is_empty() {
        bail!("no such measure");
    }
    let mut lab = boot()?;
    if args.count {
        return count_all(&mut lab, &runs, &measures).map(|()| true);
    }
    let mut passed = true;
    // Of each combination, each measure: the values of all rounds.
    let mut values = vec![vec![Vec::new(); measures.len()]; runs.len()];
    for round in 1..=args.rounds {
        for (run, values) in runs.iter().zip(&mut values) {
            println!("round {round}, {}", name(run));
            let measured = match runner::measure(&mut lab, run, &measures, &mut |_, _| Ok(())) {
                Ok(measured) => measured,
                Err(error) => {
                    println!("failed: {error:#}");
                    passed = false;
                    lab = boot()?;
                    continue;
                }
            };
            for (all, value) in values.iter_mut().zip(measured) {
                all.push(value);
            }
        }
    }
    show(&runs, &measures, &values);
    Ok(passed)
}

/// Counts for each measure and combination.
fn count_all(lab: &mut Lab, runs: &[Run], measures: &[Measure]) -> Result<()> {
    for run in runs {
        for measure in measures {
            println!("{}, {}:", name(run), measure.title());
            let mut count = None;
            runner::measure(lab, run, &[*measure], &mut |lab, _| {
                match count.take() {
                    None => count = Some(Count::start(lab)?),
                    Some(count) => Count::show(count, lab, measure.times())?,
                }
                Ok(())
            })?;
        }
    }
    Ok(())
}

fn show(runs: &[Run], measures: &[Measure], values: &[Vec<Vec<f64>>]) {
    print!("\n{:<28}", "median (smallest..largest)");
    for run in runs {
        print!(" {:>22}", name(run));
    }
    println!();
    for (index, measure) in measures.iter().enumerate() {
        print!("{:<28}", measure.title());
        for values in values {
            let Spread { low, median, high } = Spread::of(&values[index]);
            print!(" {:>22}", format!("{median:.0} ({low:.0}..{high:.0})"));
        }
        println!();
    }
    let kernel = runs
        .iter()
        .position(|run| (run.subject, run.peer) == (Kind::Kernel, Kind::Kernel));
    let Some(kernel) = kernel.filter(|_| runs.len() > 1) else {
        return;
    };
    println!("\nas good as the kernel with itself; below 1 is worse");
    for (index, measure) in measures.iter().enumerate() {
        print!("{:<28}", measure.title());
        let base = Spread::of(&values[kernel][index]).median;
        for values in values {
            let median = Spread::of(&values[index]).median;
            let ratio = if measure.is_rate() {
                median / base
            } else {
                base / median
            };
            print!(" {ratio:>22.2}");
        }
        println!();
    }
}

/// Client and server.
fn name(run: &Run) -> String {
    format!("{} -> {}", run.subject, run.peer)
}

struct Spread {
    low: f64,
    median: f64,
    high: f64,
}

impl Spread {
    fn of(values: &[f64]) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
        Self {
            low: at(0),
            median: at(sorted.len() / 2),
            high: at(sorted.len().saturating_sub(1)),
        }
    }
}

/// Client and server.
const PAIRS: &[[Kind; 2]] = &[
    [Kind::Ours, Kind::Ours],
    [Kind::Kernel, Kind::Kernel],
    [Kind::Ours, Kind::Kernel],
    [Kind::Kernel, Kind::Ours],
];

const MEASURES: &[Measure] = &[
    Measure::RoundTrip {
        size: 64,
        count: 500,
    },
    Measure::Bulk { bytes: 30_000_000 },
    Measure::Connects {
        clients: 1,
        each: 50,
    },
    Measure::Connects {
        clients: 8,
        each: 20,
    },
    Measure::Connects {
        clients: 64,
        each: 5,
    },
];
