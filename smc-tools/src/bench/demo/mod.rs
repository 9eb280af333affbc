//! `smc demo`: two processes exchange a file over SMC-D or SMC-R, and the path is measured beside
//! TCP loopback and a UNIX socket.
//!
//! The file goes from this process to a server and back ([`transfer`]). Then some cells are
//! measured as `smc bench` does it, and [`report`] shows what came of both.

mod report;
mod transfer;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::ValueEnum;

use super::args::Settings;
use super::pair::{self, Outcome};
use super::plan::{Case, Plan, Site, Workload};
use super::report::bar;
use super::results::Results;
use super::transport::Kind;
use crate::runtime::Runtime;
use crate::{output, values};

/// Arguments of `smc demo`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
The table has the median of all rounds and half of their range in percent of it:
  throughput   one way, in writes of 64,000 bytes; GB are 10^9 bytes
  round trip   of 14 bytes
  messages     of 100 bytes one way; M are 10^6 in a second
for the stream over SMC, TCP over the loopback interface, and a UNIX socket. `vs TCP` and
`vs UNIX` are how many times better SMC is: above 1 it has more throughput or messages, or
shorter round trips.

The exit status is 0 if the stream was SMC and the data came back as it was.")]
pub(crate) struct Args {
    /// The file to stream there and back; generated data if not given
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,

    /// How much data to generate, in bytes or with K, M or G
    #[arg(long, value_name = "N", default_value = "1G", value_parser = values::size, conflicts_with = "file")]
    size: u64,

    /// The async runtime of both processes
    #[arg(long, value_enum, default_value_t = Runtime::TokioMt)]
    runtime: Runtime,

    /// What carries the SMC streams
    #[arg(long, value_enum, default_value_t = Carrier::Loop)]
    transport: Carrier,

    /// The RDMA device, with `--transport rdma`; the first usable one if not given
    #[arg(long, value_name = "NAME")]
    device: Option<String>,

    /// The fabric, with `--transport ism`: a directory, or the socket of an ivshmem server; a
    /// directory of its own if not given
    #[arg(long, value_name = "PATH")]
    fabric: Option<PathBuf>,

    /// Have the device move data instead of mapping the peer's buffers
    #[arg(long)]
    copy: bool,

    /// Receive buffers of SMC streams, in bytes or with K or M; 4M over SMC-D and 1M over SMC-R if
    /// not given, as far as the device goes
    #[arg(long, value_name = "N", value_parser = values::size)]
    buffer: Option<u64>,

    /// Measuring time of each figure in each round, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 400)]
    time: u64,

    /// Rounds over all transports
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
}

/// What carries SMC streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Carrier {
    /// SMC-D between processes of this host
    Loop,
    /// SMC-D over memory that processes share, as virtual machines do
    Ism,
    /// SMC-R over an RDMA device of this host
    Rdma,
}

/// Runs `smc demo`. Gives whether it was SMC and the data came back as it was.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let plan = plan(args)?;
    let transfer = transfer::there_and_back(args, &plan)?;
    let mut results = Results::new(&plan);
    if transfer.is_good() {
        let bar = bar(
            u64::from(args.rounds),
            "measuring  {bar:40} {pos}/{len} rounds",
        );
        for round in 0..plan.rounds {
            for cell in plan.cells(round) {
                match pair::run(&cell, None, |what| output::note("smc demo", &what)) {
                    measured @ Outcome::Measured(_) => results.add(&cell, measured),
                    Outcome::Skipped(why) | Outcome::Failed(why) | Outcome::Overloaded(why) => {
                        bail!("{cell}: {why}")
                    }
                }
            }
            bar.inc(1);
        }
        bar.finish_and_clear();
    }
    output::print(&report::text(&plan, &transfer, &results))?;
    Ok(transfer.is_good())
}

/// The cells, and what they use.
fn plan(args: &Args) -> Result<Plan> {
    let carrier = match (args.transport, args.copy) {
        (Carrier::Loop, false) => Kind::Loop,
        (Carrier::Loop, true) => Kind::LoopCopy,
        (Carrier::Ism, false) => Kind::Ism,
        (Carrier::Ism, true) => Kind::IsmCopy,
        (Carrier::Rdma, _) => Kind::Rdma,
    };
    let case = |workload, load| Case {
        workload,
        load,
        active: None,
    };
    Ok(Plan {
        cases: vec![
            case(Workload::Bulk, 64_000),
            case(Workload::Pingpong, PING_LEN),
            case(Workload::Rate, 100),
        ],
        transports: vec![carrier, Kind::Tcp, Kind::Unix],
        runtimes: vec![args.runtime],
        rounds: args.rounds,
        remote: None,
        settings: Settings {
            time: Duration::from_millis(args.time.max(1)),
            ping: PING_LEN,
            read: READ_LEN,
            ..Settings::default()
        },
        site: Some(Site {
            fabric: args.fabric.clone(),
            device: args.device.clone(),
            buffer: args.buffer.map(usize::try_from).transpose()?,
        }),
    })
}

/// The ping of sockperf's ping-pong.
const PING_LEN: usize = 14;

/// Bytes that servers read at a time.
const READ_LEN: usize = 128 * 1024;
