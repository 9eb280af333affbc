//! `smc ism-server`: the memory that guests and processes share, and the server that announces them
//! to each other.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use anyhow::Result;
use nix::sys::signal::{SigSet, Signal};
use smc_core::device::DeviceError;
use smc_transport_ism::Server;

use crate::{output, values};

/// Arguments of `smc ism-server`.
///
/// Runs until it is ended, by Ctrl-C or SIGTERM. Its end is the end of the fabric, which all
/// devices report at once: start guests and processes anew then.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The machine needs, with the socket and the size of this server:
  -chardev socket,id=ism,path=/run/smc/ism.sock
  -device ivshmem-doorbell,chardev=ism,vectors=1

Example:
  smc ism-server /run/smc/ism.sock --size 256M")]
pub(crate) struct Args {
    /// The UNIX socket to listen on
    #[arg(value_name = "PATH")]
    socket: PathBuf,

    /// How much memory, in bytes or with K, M or G; a power of two
    #[arg(long, value_name = "N", default_value = "64M", value_parser = values::size)]
    size: u64,

    /// Machines and processes that can be connected at a time
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024))]
    devices: u16,

    /// Let devices write in place in their peers' buffers
    #[arg(long)]
    nocopy: bool,

    /// Permissions of the socket, in octal: who may use the memory
    #[arg(long, value_name = "MODE", default_value = "0600", value_parser = values::mode)]
    mode: u32,
}

/// Runs `smc ism-server`.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let server = Server::builder(&args.socket)
        .len(usize::try_from(args.size).map_err(|_| DeviceError::NoMemory)?)
        .devices(args.devices)
        .nocopy(args.nocopy)
        .mode(args.mode)
        .bind()?;
    output::print(&format!(
        "fabric {:032x}: {} bytes for {} devices at {}\n",
        server.fabric_id(),
        args.size,
        args.devices,
        args.socket.display()
    ))?;
    run_until_told(server)?;
    Ok(true)
}

/// A server that is asked to end marks that for guests, which would otherwise detect it after a
/// while.
fn run_until_told(server: Server) -> Result<(), DeviceError> {
    let ends: SigSet = [Signal::SIGINT, Signal::SIGTERM].into_iter().collect();
    let server = Arc::new(server);
    let stopping = Arc::clone(&server);
    // Where signals cannot be kept back they end the process.
    let waiting = ends.thread_block().map(|()| {
        thread::spawn(move || {
            if ends.wait().is_ok() {
                stopping.stop();
            }
        })
    });
    server.run()?;
    if let Ok(waiting) = waiting {
        let _ = waiting.join();
    }
    Ok(())
}
