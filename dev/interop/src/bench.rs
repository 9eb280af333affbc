//! Compares the userspace stack with the kernel's SMC-R, in the same guests and on the same
//! devices. Software emulation makes the numbers those of no real machine; only their
//! ratios are meaningful.

mod count;
mod receivers;

use count::Count;

use anyhow::{Result, bail};
use clap::Args;

use crate::lab::Lab;
use crate::protocol::OurFeatures;
use crate::runner::{self, Run};
use crate::scenario::{self, Role, Scenario};
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
    /// Compare ways to set a connection up, with one link in each group: TCP, the kernel's and ours
    /// with each feature beyond the released protocol. Measures connections per second
    #[arg(long)]
    set_up: bool,
    /// As --set-up. Delay packets between the guests so that a round trip takes this many
    /// milliseconds, and measure how many of them a set-up takes
    #[arg(long, value_name = "MS")]
    delay: Option<u32>,
    /// Compare what receivers cost that are slow, busy or stopped while 1, 32 or 254 connections
    /// send small messages: RNR NAKs, messages per second, and round trips on another connection
    #[arg(long, conflicts_with_all = ["set_up", "delay", "count"])]
    rnr: bool,
    /// With --rnr: receive buffers of each link of the userspace stack, 48 at least
    #[arg(long, value_name = "COUNT", requires = "rnr")]
    receives: Option<u32>,
    /// Instead of times show what the kernels count: system calls, switches, packets, for each
    /// round trip, write or connection
    #[arg(long)]
    count: bool,
}

/// What is compared: a column.
struct Combination {
    run: Run,
    /// Of the userspace stack.
    features: OurFeatures,
}

impl Combination {
    fn new([subject, peer]: [Kind; 2], scenario: Scenario) -> Self {
        let run = Run {
            scenario,
            role: Role::Client,
            subject,
            peer,
        };
        Self {
            run,
            features: OurFeatures::DEFAULT,
        }
    }

    /// Client and server.
    fn name(&self) -> String {
        let Run { subject, peer, .. } = &self.run;
        match self.features {
            OurFeatures::DEFAULT => format!("{subject} -> {peer}"),
            other => format!("{subject} -> {peer}, {}", other.name()),
        }
    }

    fn all() -> Vec<Self> {
        let pairs = PAIRS.iter().filter(|pair| is_built(pair));
        pairs
            .map(|pair| Self::new(*pair, scenario::usual()))
            .collect()
    }

    /// The userspace stack with so many receive buffers of each link, with itself also without
    /// receive credits.
    fn of_receivers(receives: Option<u32>) -> Vec<Self> {
        let with = |pair: &[Kind; 2]| Self::new(*pair, scenario::with_receives(receives));
        let mut all: Vec<_> = PAIRS.iter().filter(|it| is_built(it)).map(with).collect();
        if cfg!(feature = "ours") {
            all.push(Self {
                features: OurFeatures::None,
                ..with(&[Kind::Ours; 2])
            });
        }
        all
    }

    /// With one link in each group, and TCP beside them.
    fn of_set_up() -> Vec<Self> {
        let with = |pair: &[Kind; 2]| Self::new(*pair, scenario::single_link());
        let mut all = vec![
            with(&[Kind::Tcp; 2]),
            Self {
                features: OurFeatures::FastOpen,
                ..with(&[Kind::Tcp; 2])
            },
        ];
        all.extend(PAIRS.iter().filter(|pair| is_built(pair)).map(with));
        if cfg!(feature = "ours") {
            let others = [
                OurFeatures::None,
                OurFeatures::SingleLink,
                OurFeatures::EarlyConfirm,
                OurFeatures::FastOpen,
            ];
            all.extend(others.map(|features| Self {
                features,
                ..with(&[Kind::Ours; 2])
            }));
        }
        all
    }
}

fn is_built(pair: &[Kind; 2]) -> bool {
    cfg!(feature = "ours") || !pair.contains(&Kind::Ours)
}

/// Measures all combinations in turn, round after round, and shows medians.
pub(crate) fn run(args: &BenchArgs) -> Result<bool> {
    if args.rnr {
        return receivers::run(args);
    }
    let (mut runs, all_measures) = match (args.delay, args.set_up) {
        (None, false) => (Combination::all(), MEASURES.to_vec()),
        (None, true) => (Combination::of_set_up(), SET_UPS.to_vec()),
        (Some(_), _) => (Combination::of_set_up(), vec![Measure::SetUp { count: 50 }]),
    };
    runs.retain(|run| {
        let only = args.only.as_ref();
        only.is_none_or(|only| run.name().contains(only))
    });
    let Some(first) = runs.first() else {
        bail!("no such combination");
    };
    let boot = || -> Result<Lab> {
        let mut lab = Lab::boot(first.run.kernels())?;
        runner::after_boot(&mut lab)?;
        if let Some(delay) = args.delay {
            delay_packets(&mut lab, delay)?;
        }
        println!("Linux {} and {}", lab.kernel(0), lab.kernel(1));
        Ok(lab)
    };
    let wanted = |measure: &Measure| measure.title().contains(&args.measure);
    let measures: Vec<_> = all_measures.into_iter().filter(wanted).collect();
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
        for (combination, values) in runs.iter().zip(&mut values) {
            println!("round {round}, {}", combination.name());
            let Combination { run, features } = combination;
            let nothing = &mut |_: &mut Lab, _: &str| Ok(());
            let measured = match runner::measure(&mut lab, run, *features, &measures, nothing) {
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

/// Delays what leaves each network interface, by half of the round trip.
fn delay_packets(lab: &mut Lab, round_trip: u32) -> Result<()> {
    let delay = format!("{}us", round_trip.saturating_mul(1000) / 2);
    lab.impair(&["limit", "100000", "delay", &delay])
}

/// Counts for each measure and combination.
fn count_all(lab: &mut Lab, runs: &[Combination], measures: &[Measure]) -> Result<()> {
    for combination in runs {
        for measure in measures {
            println!("{}, {}:", combination.name(), measure.title());
            let mut count = None;
            let Combination { run, features } = combination;
            runner::measure(lab, run, *features, &[*measure], &mut |lab, _| {
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

fn show(runs: &[Combination], measures: &[Measure], values: &[Vec<Vec<f64>>]) {
    print!("\n{:<28}", "median (smallest..largest)");
    for run in runs {
        print!(" {:>22}", run.name());
    }
    println!();
    for (index, measure) in measures.iter().enumerate() {
        print!("{:<28}", measure.title());
        for values in values {
            let Spread { low, median, high } = Spread::of(&values[index]);
            print!(" {:>22}", measure.shown([median, low, high]));
        }
        println!();
    }
    let kernel = runs.iter().position(|combination| {
        let Run { subject, peer, .. } = combination.run;
        (subject, peer) == (Kind::Kernel, Kind::Kernel)
    });
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

/// Connections of so many clients at a time.
const SET_UPS: &[Measure] = &[
    Measure::Connects {
        clients: 1,
        each: 50,
    },
    Measure::Connects {
        clients: 2,
        each: 40,
    },
    Measure::Connects {
        clients: 5,
        each: 20,
    },
    Measure::Connects {
        clients: 10,
        each: 15,
    },
    Measure::Connects {
        clients: 64,
        each: 5,
    },
    Measure::Connects {
        clients: 200,
        each: 2,
    },
    Measure::Http {
        clients: 1,
        each: 50,
    },
    Measure::Http {
        clients: 2,
        each: 40,
    },
    Measure::Http {
        clients: 5,
        each: 20,
    },
    Measure::Http {
        clients: 10,
        each: 15,
    },
    Measure::Http {
        clients: 200,
        each: 2,
    },
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
