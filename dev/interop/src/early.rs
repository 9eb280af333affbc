//! Early data between our own ends while something changes: the server at the address, the cookie
//! of TCP Fast Open, the network. Each request is answered once.

use anyhow::{Result, ensure};
use clap::Args;

use crate::lab::Lab;
use crate::protocol::OurFeatures;
use crate::runner::{self, Run};
use crate::scenario::{self, Role};
use crate::workload::{Kind, Measure};

/// What a client with all features sees.
struct Case {
    name: &'static str,
    client: OurFeatures,
    /// The server of the first connections and that of the others.
    servers: [(Kind, OurFeatures); 2],
    /// Between them.
    change: Change,
    /// How much early data is taken from the PROPOSAL before and after the change, at least.
    taken: [f64; 2],
}

#[derive(Clone, Copy)]
enum Change {
    None,
    /// The cookies that the server has given away are void.
    Cookie,
    /// Packets are lost, late and duplicated, SYNs among them.
    Network,
    /// SYNs alone are.
    Syns(&'static [&'static str]),
}

#[derive(Debug, Args)]
pub(crate) struct EarlyArgs {
    /// Only cases with this in their names, such as "TCP"
    #[arg(long, default_value = "")]
    only: String,
}

/// Runs the cases.
pub(crate) fn run(args: &EarlyArgs) -> Result<bool> {
    ensure!(cfg!(feature = "ours"), "built without feature `ours`");
    let run = Run {
        scenario: scenario::single_link(),
        role: Role::Client,
        subject: Kind::Ours,
        peer: Kind::Ours,
    };
    let mut lab = None;
    let mut passed = true;
    let wanted = |case: &Case| case.name.contains(&args.only);
    for case in cases().into_iter().filter(wanted) {
        let booted = match lab.take() {
            Some(booted) => booted,
            None => {
                let mut booted = Lab::boot(run.kernels())?;
                runner::after_boot(&mut booted)?;
                booted
            }
        };
        let booted = lab.insert(booted);
        match perform(booted, &run, &case) {
            Ok([before, after]) => println!(
                "passed: {}; taken from the PROPOSAL: {before} and {after} of {COUNT} each",
                case.name
            ),
            Err(error) => {
                println!("FAILED: {}: {error:#}", case.name);
                passed = false;
                lab = None;
            }
        }
    }
    Ok(passed)
}

fn perform(lab: &mut Lab, run: &Run, case: &Case) -> Result<[f64; 2]> {
    let measure = Measure::Requests { count: COUNT };
    let mut change = |lab: &mut Lab| match case.change {
        Change::None => Ok(()),
        Change::Cookie => runner::set_sysctl(lab, 1, "net/ipv4/tcp_fastopen_key", OTHER_KEY),
        Change::Network => lab.impair(LOSSY),
        Change::Syns(how) => lab.impair_syns(how),
    };
    let measured =
        runner::measure_across(lab, run, case.client, case.servers, measure, &mut change)?;
    match case.change {
        Change::None | Change::Cookie => {}
        Change::Network => lab.repair()?,
        Change::Syns(how) => {
            let syns = lab.impaired_syns()?;
            lab.repair()?;
            ensure!(
                syns.sent >= COUNT && (syns.lost > 0) == how.contains(&"loss"),
                "{COUNT} connections, and {syns:?}"
            );
        }
    }
    for (measured, least) in measured.iter().zip(case.taken) {
        let is_none = least == 0.0;
        ensure!(
            *measured >= least && (*measured == 0.0 || !is_none),
            "{measured} were taken, and not {least}"
        );
    }
    Ok(measured)
}

fn cases() -> Vec<Case> {
    let all = OurFeatures::FastOpen;
    let ours = (Kind::Ours, all);
    let case = |name, servers, change, taken| Case {
        name,
        client: all,
        servers,
        change,
        taken,
    };
    // The first connection of a server makes the link group; where it was another one before, so
    // does the first one after the change.
    let most = f64::from(COUNT) - 3.0;
    let mut cases = vec![
        case("another process", [ours; 2], Change::None, [most; 2]),
        case(
            "without features",
            [ours, (Kind::Ours, OurFeatures::None)],
            Change::None,
            [most, 0.0],
        ),
        case(
            "without fast open",
            [ours, (Kind::Ours, OurFeatures::EarlyData)],
            Change::None,
            [most; 2],
        ),
        case(
            "a kernel",
            [ours, (Kind::Kernel, all)],
            Change::None,
            [most, 0.0],
        ),
        case(
            "plain TCP",
            [ours, (Kind::Tcp, OurFeatures::None)],
            Change::None,
            [most, 0.0],
        ),
        case(
            "plain TCP with fast open",
            [ours, (Kind::Tcp, all)],
            Change::None,
            [most, 0.0],
        ),
        case(
            "features where there were none",
            [(Kind::Kernel, all), ours],
            Change::None,
            [0.0, most],
        ),
        case(
            "cookies that are refused",
            [ours; 2],
            Change::Cookie,
            [most; 2],
        ),
        case(
            "a network that loses and duplicates",
            [ours; 2],
            Change::Network,
            [most, 1.0],
        ),
        case(
            "every other SYN lost",
            [ours; 2],
            Change::Syns(EVERY_OTHER_LOST),
            [most; 2],
        ),
        case(
            "each SYN duplicated",
            [ours; 2],
            Change::Syns(&["duplicate", "100%"]),
            [most; 2],
        ),
    ];
    cases.push(Case {
        name: "a client without features",
        client: OurFeatures::None,
        servers: [ours; 2],
        change: Change::None,
        taken: [0.0; 2],
    });
    cases
}

/// Connections before the change, and as many after it.
const COUNT: u32 = 6;

const OTHER_KEY: &str = "01020304-05060708-090a0b0c-0d0e0f10";

/// Between the guests, in each direction.
const LOSSY: &[&str] = &[
    "limit",
    "100000",
    "delay",
    "5ms",
    "2ms",
    "loss",
    "5%",
    "duplicate",
    "20%",
    "reorder",
    "25%",
];

/// Each packet changes the state of the model, in one of which packets are lost.
const EVERY_OTHER_LOST: &[&str] = &["loss", "gemodel", "100%", "100%"];
