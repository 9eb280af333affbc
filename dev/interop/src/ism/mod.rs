//! SMC-D between this host and guests, over the memory of an ivshmem server.
//!
//! The server runs in this process. Two guests have ivshmem devices and are started, like processes
//! of the host, to be one side of each scenario: `call` and `serve` are the sides, `job` is what
//! they do, `model` the stream model between two of them, `testbed` is where they run, `bench`
//! measures there, `inside` what one guest does with several devices of its own, and `failures`
//! is what happens when a process, a machine or the server ends.

mod bench;
mod call;
mod failures;
mod inside;
mod job;
mod model;
mod serve;
mod testbed;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::{Args, Subcommand};
use smc::{Builder, Endpoint};
use smc_core::negotiate::Assume;
use smc_transport_ism::{FabricAddress, IsmDevice};

use testbed::{At, Testbed};

/// Arguments of `interop ism`.
#[derive(Debug, Args)]
pub(crate) struct IsmArgs {
    /// Only show streams from this host to a guest
    #[arg(long)]
    demo: bool,
    /// Measure this host and a guest instead, by `smc bench`: ISM, and TCP over virtio-net. Takes
    /// root, for the network
    #[arg(long, conflicts_with = "demo")]
    bench: bool,
    /// Rounds of that
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// How much is exchanged in the scenario for that, each way
    #[arg(long, value_name = "BYTES", default_value_t = 100_000_000)]
    bulk: u64,
    /// Only with devices that move data, or only with those that write in place
    #[arg(long, value_name = "ON")]
    nocopy: Option<bool>,
    /// Only with interrupts by vfio-pci, or only without interrupts
    #[arg(long, value_name = "ON")]
    vfio: Option<bool>,
    /// Without what one guest does with devices of its own
    #[arg(long)]
    no_inside: bool,
    /// Only what ends
    #[arg(long)]
    failures: bool,
    /// Show the output of the sides
    #[arg(long)]
    verbose: bool,
}

/// Arguments of a side.
#[derive(Debug, Args)]
pub(crate) struct SideArgs {
    /// The server's socket; the PCI bus if not given
    #[arg(long)]
    socket: Option<PathBuf>,
    #[command(subcommand)]
    what: Side,
}

#[derive(Debug, Subcommand)]
enum Side {
    /// Do what comes on streams
    Serve { at: SocketAddr },
    /// Run all scenarios that need no help
    Call {
        to: SocketAddr,
        #[arg(long)]
        bulk: u64,
    },
    /// Open streams and wait for their end
    Hold { to: SocketAddr },
    /// Open streams and use them again on request
    Keep { to: SocketAddr },
    /// Say hello
    Ping {
        to: SocketAddr,
        /// On a stream that is TCP, because the server has lost its device
        #[arg(long)]
        tcp: bool,
    },
    /// The rules for devices and streams, with several devices of this machine
    Inside,
    /// Be the ivshmem server
    KeepMemory {
        path: PathBuf,
        #[arg(long)]
        nocopy: bool,
    },
}

/// Runs one side to its end. Whether all went well is the result.
pub(crate) fn side(args: &SideArgs) -> Result<bool> {
    let place = match &args.socket {
        Some(path) => FabricAddress::server(path),
        None => FabricAddress::guest(),
    };
    let endpoint = || -> Result<Endpoint> {
        let device = IsmDevice::builder(place.clone()).build()?;
        // Both ends are this program, so they know of each other.
        let builder = Builder::smol()
            .negotiation(Arc::new(Assume::new()))
            .recv_buffer(RECV_BUFFER)
            .device(Arc::new(device));
        Ok(builder.build()?)
    };
    match &args.what {
        Side::Serve { at } => smol::block_on(serve::serve(&endpoint()?, *at)).map(|()| true),
        Side::Call { to, bulk } => smol::block_on(call::call(&endpoint()?, *to, *bulk)),
        Side::Hold { to } => smol::block_on(call::hold(&endpoint()?, *to)),
        Side::Keep { to } => smol::block_on(call::keep(&endpoint()?, *to)),
        Side::Ping { to, tcp } => smol::block_on(call::ping(&endpoint()?, *to, *tcp)),
        Side::Inside => inside::run(),
        Side::KeepMemory { path, nocopy } => testbed::keep_memory(path, *nocopy).map(|()| true),
    }
}

/// Boots guests and runs all scenarios.
pub(crate) fn run(args: &IsmArgs) -> Result<bool> {
    if args.bench {
        let on = |wanted: Option<bool>| wanted.unwrap_or(false);
        return bench::run(on(args.nocopy), on(args.vfio), args.rounds);
    }
    let started = Instant::now();
    let mut failed = 0;
    let mut modes = MODES.to_vec();
    modes.retain(|(nocopy, _)| args.nocopy.is_none_or(|wanted| wanted == *nocopy));
    modes.retain(|(_, vfio)| args.vfio.is_none_or(|wanted| wanted == *vfio));
    if let (Some(nocopy), Some(vfio)) = (args.nocopy, args.vfio) {
        modes = vec![(nocopy, vfio)];
    }
    modes.truncate(if args.demo { 1 } else { modes.len() });
    for (nocopy, vfio) in modes {
        let moves = if nocopy {
            "write in place"
        } else {
            "move data"
        };
        let wakes = if vfio { "interrupts" } else { "no interrupts" };
        println!("booting, for devices that {moves} and have {wakes}");
        let mut testbed = Testbed::boot(nocopy, vfio, args.verbose)?;
        println!("booted after {:.0} s", started.elapsed().as_secs_f64());
        let mut check = |name: &str, result: Result<()>| match result {
            Ok(()) => println!("  ok      {name}"),
            Err(error) => {
                failed += 1;
                println!("  FAILED  {name}: {error:#}");
            }
        };
        let ways: &[_] = if args.demo { &WAYS[..1] } else { &WAYS };
        for (client, server) in ways.iter().filter(|_| !args.failures) {
            println!("{client} to {server}");
            let result = scenarios(&mut testbed, *client, *server, args.bulk);
            if result.is_err() {
                testbed.clear();
            }
            check("scenarios", result);
        }
        if args.demo {
            continue;
        }
        if !args.no_inside && !args.failures {
            println!("inside of {}", At::GuestA);
            check("rules", inside_of_guest(&mut testbed));
        }
        println!("processes, machines and servers that end");
        for (name, run) in failures::ALL {
            let begun = Instant::now();
            let result = run(&mut testbed);
            if result.is_err() {
                testbed.clear();
            }
            let seconds = begun.elapsed().as_secs_f64();
            check(&format!("{name} ({seconds:.0} s)"), result);
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    println!("{failed} failed, {seconds:.0} s in all");
    Ok(failed == 0)
}

fn scenarios(testbed: &mut Testbed, client: At, server: At, bulk: u64) -> Result<()> {
    let serving = testbed.serve(server, WORD_TIME)?;
    let to = testbed.way(client, &serving)?;
    let bulk = format!("--bulk={bulk}");
    let calling = testbed.start(client, &["call", &to, &bulk])?;
    let code = testbed.show_until_end(calling, SCENARIOS_TIME)?;
    // What only the other end sees.
    let aborted = testbed.await_line(serving.side, "ended aborted as expected", WORD_TIME);
    testbed.kill(serving.side)?;
    ensure!(code == Some(0), "the client reports that not all was well");
    aborted
}

fn inside_of_guest(testbed: &mut Testbed) -> Result<()> {
    let inside = testbed.start(At::GuestA, &["inside"])?;
    let code = testbed.show_until_end(inside, SCENARIOS_TIME)?;
    ensure!(code == Some(0), "not all rules are kept");
    Ok(())
}

/// Devices that write in place, and interrupts by vfio-pci.
const MODES: [(bool, bool); 2] = [(false, false), (true, true)];

const WAYS: [(At, At); 3] = [
    (At::Host, At::GuestA),
    (At::GuestA, At::GuestB),
    (At::GuestA, At::Host),
];

/// Fifty connections of both ends fit the memory.
const RECV_BUFFER: usize = 256 << 10;

/// Limits that only failures reach; emulated machines are slow.
const SCENARIOS_TIME: Duration = Duration::from_secs(600);
const WORD_TIME: Duration = Duration::from_secs(60);
