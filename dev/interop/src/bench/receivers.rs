//! Receivers that are slower than their senders: how often a message finds no receive buffer (RNR),
//! and what other connections of the link lose by it.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail};

use super::{BenchArgs, Combination, Spread};
use crate::lab::Lab;
use crate::protocol::Order;
use crate::runner;
use crate::workload::{Measure, ReceiverLoad};

/// Measures all combinations in turn, round after round, and shows medians.
pub(super) fn run(args: &BenchArgs) -> Result<bool> {
    let mut combinations = Combination::of_receivers(args.receives);
    combinations.retain(|combination| {
        let only = args.only.as_ref();
        only.is_none_or(|only| combination.name().contains(only))
    });
    let mut measures = measures();
    measures.retain(|measure| measure.title().contains(&args.measure));
    let (Some(first), false) = (combinations.first(), measures.is_empty()) else {
        bail!("no such combination or measure");
    };
    let boot = || -> Result<Lab> {
        let mut lab = Lab::boot(first.run.kernels())?;
        runner::after_boot(&mut lab)?;
        Ok(lab)
    };
    let mut lab = boot()?;
    println!("Linux {} and {}", lab.kernel(0), lab.kernel(1));
    let mut passed = true;
    // The values of all rounds, by measure and combination.
    let mut values: BTreeMap<(usize, usize), Vec<Values>> = BTreeMap::new();
    for round in 1..=args.rounds {
        for (at, measure) in measures.iter().enumerate() {
            for (column, combination) in combinations.iter().enumerate() {
                println!("round {round}, {}, {}", combination.name(), measure.title());
                match take(&mut lab, combination, *measure) {
                    Ok(taken) => values.entry((at, column)).or_default().push(taken),
                    Err(error) => {
                        println!("failed: {error:#}");
                        passed = false;
                        lab = boot()?;
                    }
                }
            }
        }
    }
    for (at, measure) in measures.iter().enumerate() {
        println!("\n{}: median (smallest..largest)", measure.title());
        print!("{:<20}", "");
        FIGURES.iter().for_each(|figure| print!(" {figure:>26}"));
        println!();
        for (column, combination) in combinations.iter().enumerate() {
            print!("{:<20}", combination.name());
            let rounds = values.remove(&(at, column)).unwrap_or_default();
            for figure in 0..FIGURES.len() {
                let of_rounds: Vec<_> = rounds.iter().map(|values| values[figure]).collect();
                let Spread { low, median, high } = Spread::of(&of_rounds);
                let digits = usize::from(figure == PER_SEND);
                let shown = format!("{median:.digits$} ({low:.digits$}..{high:.digits$})");
                print!(" {shown:>26}");
            }
            println!();
        }
    }
    Ok(passed)
}

type Values = [f64; FIGURES.len()];

/// What is shown, in columns.
const FIGURES: [&str; 5] = [
    "RNR NAKs",
    "messages/s",
    "messages per SEND",
    "round trip p50, us",
    "p99, us",
];

const PER_SEND: usize = 2;

fn take(lab: &mut Lab, combination: &Combination, measure: Measure) -> Result<Values> {
    let mut counters = Vec::new();
    let watch = &mut |lab: &mut Lab, _: &str| {
        counters.push(Counters::read(lab)?);
        Ok(())
    };
    let Combination { run, features } = combination;
    let measured = runner::measure(lab, run, *features, &[measure], watch)?;
    let ([rate, median, p99], [before, after]) = (&measured[..], &counters[..]) else {
        bail!(
            "measured {measured:?}, and counters {} times",
            counters.len()
        );
    };
    let sends = after.sends - before.sends;
    Ok([
        after.rnr_naks - before.rnr_naks,
        *rate,
        measure.times() / sends,
        *median,
        *p99,
    ])
}

/// Of the devices of both guests, since they booted.
struct Counters {
    /// That receivers have sent.
    rnr_naks: f64,
    /// SEND operations of the guest that connects.
    sends: f64,
}

impl Counters {
    fn read(lab: &mut Lab) -> Result<Self> {
        Ok(Self {
            rnr_naks: counter(lab, SENDER, "send_rnr_err")?
                + counter(lab, RECEIVER, "send_rnr_err")?,
            sends: counter(lab, SENDER, "rdma_sends")?,
        })
    }
}

/// The sum of a hardware counter over the devices of a guest.
fn counter(lab: &mut Lab, guest: usize, name: &str) -> Result<f64> {
    let devices: Vec<String> = lab.order(guest, Order::ListDir(DEVICES.into()))?;
    let mut sum = 0.0;
    for device in devices {
        let path = format!("{DEVICES}/{device}/ports/1/hw_counters/{name}");
        let text: String = lab.order(guest, Order::ReadFile(path.clone()))?;
        let value: u32 = text.trim().parse().context(path)?;
        sum += f64::from(value);
    }
    Ok(sum)
}

const DEVICES: &str = "/sys/class/infiniband";

/// The guest that connects, and sends.
const SENDER: usize = 0;
const RECEIVER: usize = 1;

/// All loads with few and many connections. One more has round trips: 255 fit into a link group.
fn measures() -> Vec<Measure> {
    let loads = [
        ReceiverLoad::None,
        ReceiverLoad::Busy,
        ReceiverLoad::Stopped,
    ];
    let each = |receiver| {
        let numbers = match receiver {
            // With 254 there are more than a hundred round trips: the first one waits for the
            // first turn of all connections.
            ReceiverLoad::None | ReceiverLoad::Busy => [(1, 10_000), (32, 2000), (254, 4000)],
            // Threads of a process that is stopped and runs in turn take many times as long.
            ReceiverLoad::Stopped => [(1, 625), (32, 125), (254, 62)],
        };
        numbers.map(|(connections, each)| Measure::Messages {
            connections,
            each,
            receiver,
        })
    };
    loads.into_iter().flat_map(each).collect()
}
