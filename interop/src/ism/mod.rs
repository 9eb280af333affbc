//! SMC-D between this host and guests, over the memory of an ivshmem server.
//!
//! The server runs in this process. Two guests have ivshmem devices and are told, like processes of
//! the host, to be one side of each scene: `call` and `serve` are the sides, `job` is what they do,
//! `stage` is where they run, `inside` what one guest does with several devices of its own.

mod call;
mod inside;
mod job;
mod serve;
mod stage;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::{Args, Subcommand};
use smc_core::Endpoint;
use smc_core::io::negotiate::Assume;
use smc_transport_ism::{IsmDevice, Place};

use stage::{At, Stage};

/// Arguments of `interop ism`.
#[derive(Debug, Args)]
pub(crate) struct IsmArgs {
    /// Only show streams from this host to a guest
    #[arg(long)]
    demo: bool,
    /// How much is exchanged in the scene for that, each way
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
    /// Show what the sides say
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
    /// Play all scenes that need no help
    Call {
        to: SocketAddr,
        #[arg(long)]
        bulk: u64,
    },
    /// Open streams and wait for their end
    Hold { to: SocketAddr },
    /// Say hello
    Greet { to: SocketAddr },
    /// The rules for devices and streams, with several devices of this machine
    Inside,
}

/// Runs one side to its end. Whether all went well is the result.
pub(crate) fn side(args: &SideArgs) -> Result<bool> {
    let place = match &args.socket {
        Some(path) => Place::server(path),
        None => Place::guest(),
    };
    let endpoint = || -> Result<Endpoint> {
        let device = IsmDevice::builder(place.clone()).build()?;
        // Both ends are this program, so they know of each other.
        let builder = Endpoint::smol()
            .negotiation(Arc::new(Assume::new()))
            .recv_buffer(RECV_BUFFER)
            .device(Arc::new(device));
        Ok(builder.build()?)
    };
    match &args.what {
        Side::Serve { at } => smol::block_on(serve::serve(&endpoint()?, *at)).map(|()| true),
        Side::Call { to, bulk } => smol::block_on(call::call(&endpoint()?, *to, *bulk)),
        Side::Hold { to } => smol::block_on(call::hold(&endpoint()?, *to)),
        Side::Greet { to } => smol::block_on(call::greet(&endpoint()?, *to)),
        Side::Inside => inside::run(),
    }
}

/// Boots guests and plays all scenes.
pub(crate) fn run(args: &IsmArgs) -> Result<bool> {
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
        let mut stage = Stage::boot(nocopy, vfio, args.verbose)?;
        println!("booted after {:.0} s", started.elapsed().as_secs_f64());
        let ways: &[_] = if args.demo { &WAYS[..1] } else { &WAYS };
        for (client, server) in ways {
            println!("{client} to {server}");
            let mut check = |name: &str, result: Result<()>| match result {
                Ok(()) => println!("  ok      {name}"),
                Err(error) => {
                    failed += 1;
                    println!("  FAILED  {name}: {error:#}");
                }
            };
            check("scenes", scenes(&mut stage, *client, *server, args.bulk));
            if !args.demo {
                check(
                    "kill -9 of the server",
                    kill_server(&mut stage, *client, *server),
                );
                check(
                    "kill -9 of the client",
                    kill_client(&mut stage, *client, *server),
                );
            }
        }
        if !args.demo && !args.no_inside {
            println!("inside of {}", At::GuestA);
            if let Err(error) = inside_of_guest(&mut stage) {
                failed += 1;
                println!("  FAILED  {error:#}");
            }
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    println!("{failed} failed, {seconds:.0} s in all");
    Ok(failed == 0)
}

fn scenes(stage: &mut Stage, client: At, server: At, bulk: u64) -> Result<()> {
    let (serving, to) = serve_at(stage, client, server)?;
    let bulk = format!("--bulk={bulk}");
    let calling = stage.start(client, &["call", &to, &bulk])?;
    let code = stage.show_until_end(calling, SCENES_TIME)?;
    // What only the other end sees.
    let aborted = stage.await_line(serving, "ended aborted as expected", WORD_TIME);
    stage.kill(serving)?;
    ensure!(code == Some(0), "the client says that not all was well");
    aborted
}

fn kill_server(stage: &mut Stage, client: At, server: At) -> Result<()> {
    let (serving, to) = serve_at(stage, client, server)?;
    let holding = stage.start(client, &["hold", &to])?;
    stage.await_line(holding, "holding", WORD_TIME)?;
    stage.kill(serving)?;
    let code = stage.show_until_end(holding, DEATH_TIME)?;
    ensure!(
        code == Some(0),
        "the client does not see the end as it should"
    );
    Ok(())
}

fn kill_client(stage: &mut Stage, client: At, server: At) -> Result<()> {
    let (serving, to) = serve_at(stage, client, server)?;
    let holding = stage.start(client, &["hold", &to])?;
    stage.await_line(holding, "holding", WORD_TIME)?;
    stage.kill(holding)?;
    for _ in 0..call::HELD {
        stage.await_line(serving, "ended broken", DEATH_TIME)?;
    }
    // The server goes on.
    let greeting = stage.start(client, &["greet", &to])?;
    let code = stage.show_until_end(greeting, WORD_TIME)?;
    stage.kill(serving)?;
    ensure!(code == Some(0), "the server does not go on");
    Ok(())
}

fn inside_of_guest(stage: &mut Stage) -> Result<()> {
    let inside = stage.start(At::GuestA, &["inside"])?;
    let code = stage.show_until_end(inside, SCENES_TIME)?;
    ensure!(code == Some(0), "not all rules are kept");
    Ok(())
}

/// Starts a server; gives its number and where the client finds it.
fn serve_at(stage: &mut Stage, client: At, server: At) -> Result<(u32, String)> {
    let (listen, to) = stage.addresses(client, server);
    let serving = stage.start(server, &["serve", &listen])?;
    stage.await_line(serving, "listening", WORD_TIME)?;
    Ok((serving, to))
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
const SCENES_TIME: Duration = Duration::from_secs(600);
const WORD_TIME: Duration = Duration::from_secs(60);
const DEATH_TIME: Duration = Duration::from_secs(120);
