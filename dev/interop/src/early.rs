//! Early data between our own ends while something changes: the server at the address, the cookie
//! of TCP Fast Open, the network. Each request is answered once.

use anyhow::{Context as _, Result, ensure};
use clap::Args;

use crate::lab::Lab;
use crate::protocol::OurFeatures;
use crate::runner::{self, Run, ServerSetting};
use crate::scenario::{self, Role};
use crate::workload::{EARLY_DATA_MAX, Kind, Measure, Requested};

/// What a client sees.
struct Case {
    name: &'static str,
    client: OurFeatures,
    /// The server of the first connections and that of the others. One with a limit of memory has
    /// enough for one connection, which there is besides that of the request.
    servers: [ServerSetting; 2],
    /// Between them.
    change: Change,
    /// Of each request.
    len: usize,
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
            Ok([before, after]) => {
                println!(
                    "passed: {}; taken from the PROPOSAL: {} and {} of {COUNT} each",
                    case.name, before.taken, after.taken
                );
                if case.servers[1].kind == Kind::Tcp {
                    println!(
                        "  its application has got {} connection with a CLC message, of {} bytes",
                        after.clc, after.clc_len
                    );
                }
            }
            Err(error) => {
                println!("FAILED: {}: {error:#}", case.name);
                passed = false;
                lab = None;
            }
        }
    }
    Ok(passed)
}

fn perform(lab: &mut Lab, run: &Run, case: &Case) -> Result<[Requested; 2]> {
    let is_short = |server: &ServerSetting| server.memory.is_some();
    let measure = Measure::Requests {
        count: COUNT,
        len: case.len as u64,
        beside: case.servers.iter().any(is_short),
    };
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
    let mut seen = [Requested::default(); 2];
    for (seen, values) in seen.iter_mut().zip(measured) {
        let values = values[..].try_into().context("other values")?;
        *seen = Requested::from_values(values);
    }
    for ((seen, least), server) in seen.iter().zip(case.taken).zip(&case.servers) {
        let Requested { taken, .. } = *seen;
        let is_none = least == 0.0;
        ensure!(
            taken >= least && (taken == 0.0 || !is_none),
            "{taken} were taken, and not {least}"
        );
        let is_tcp = is_short(server) || server.kind == Kind::Tcp;
        ensure!(
            !is_tcp || seen.over_tcp == f64::from(COUNT),
            "not all over TCP: {seen:?}"
        );
        // The SYN of the first connection, which is reset.
        let clc_max = f64::from(u8::from(server.kind == Kind::Tcp));
        ensure!(
            seen.clc <= clc_max && seen.clc_len <= SEGMENT_MAX,
            "CLC messages for the application: {seen:?}"
        );
    }
    Ok(seen)
}

fn cases() -> Vec<Case> {
    let all = OurFeatures::FastOpen;
    let server = ServerSetting::new;
    let ours = server(Kind::Ours, all);
    let case = |name, servers, change, taken| Case {
        name,
        client: all,
        servers,
        change,
        len: SHORT,
        taken,
    };
    // The first connection of a server makes the link group; where it was another one before, so
    // does the first one after the change.
    let most = f64::from(COUNT) - 3.0;
    let mut cases = vec![
        case("another process", [ours; 2], Change::None, [most; 2]),
        case(
            "without features",
            [ours, server(Kind::Ours, OurFeatures::None)],
            Change::None,
            [most, 0.0],
        ),
        case(
            "without fast open",
            [ours, server(Kind::Ours, OurFeatures::EarlyData)],
            Change::None,
            [most; 2],
        ),
        case(
            "a kernel",
            [ours, server(Kind::Kernel, all)],
            Change::None,
            [most, 0.0],
        ),
        case(
            "plain TCP",
            [ours, server(Kind::Tcp, OurFeatures::None)],
            Change::None,
            [most, 0.0],
        ),
        case(
            "plain TCP with fast open",
            [ours, server(Kind::Tcp, all)],
            Change::None,
            [most, 0.0],
        ),
        case(
            "features where there were none",
            [server(Kind::Kernel, all), ours],
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
    let without = Case {
        client: OurFeatures::None,
        ..case(
            "a client without features",
            [ours; 2],
            Change::None,
            [0.0; 2],
        )
    };
    cases.push(Case {
        name: "both ends without features",
        servers: [server(Kind::Ours, OurFeatures::None); 2],
        ..without
    });
    cases.push(without);
    cases.push(Case {
        len: EARLY_DATA_MAX,
        ..case(
            "more early data than the listener allows",
            [ours; 2],
            Change::None,
            [0.0; 2],
        )
    });
    let short = ServerSetting {
        memory: Some(OF_ONE_CONNECTION),
        ..ours
    };
    cases.push(case(
        "a server out of memory",
        [ours, short],
        Change::None,
        [most, 0.0],
    ));
    cases
}

/// Connections before the change, and as many after it.
const COUNT: u32 = 6;

/// The length of most requests.
const SHORT: usize = 64;

/// The smallest RMB and staging ring, 16 KiB each, and not twice that.
const OF_ONE_CONNECTION: usize = 48 << 10;

/// The data of a SYN in Ethernet, at most.
const SEGMENT_MAX: f64 = 1460.0;

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
