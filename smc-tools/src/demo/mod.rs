//! `smc demo`: two processes exchange a file over SMC-D or SMC-R, and the path is measured beside TCP
//! loopback and a UNIX socket.
//!
//! The process that was started is the client; it starts itself again as the server. Each
//! connection carries one [`job`]; [`carrier`] opens the device, [`net`] opens connections on either
//! runtime, [`client`] does the jobs and takes the time, [`report`] prints what came of it.

mod carrier;
mod client;
mod job;
mod net;
mod report;
mod server;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args as ClapArgs, ValueEnum};

/// Arguments of `smc demo`.
#[derive(Clone, Debug, ClapArgs)]
#[command(after_help = "\
The table has the median of all rounds and half of their range in percent of it:
  throughput   one way, in writes of 64,000 bytes; GB are 10^9 bytes
  round trip   of 14 bytes, in microseconds
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
    #[arg(long, value_name = "N", default_value = "1G", value_parser = size, conflicts_with = "file")]
    size: u64,

    /// The async runtime of both processes
    #[arg(long, value_enum, default_value_t = Runtime::Tokio)]
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
    #[arg(long, value_name = "N", value_parser = size)]
    buffer: Option<u64>,

    /// Measuring time of each figure in each round, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 400)]
    time: u64,

    /// Rounds over all transports
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

    /// Be the server: announce addresses on standard output, end with standard input
    #[arg(long, hide = true, value_name = "UNIX_PATH")]
    serve: Option<PathBuf>,
}

/// The async runtime to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Runtime {
    /// smol
    Smol,
    /// tokio, one thread
    Tokio,
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

/// Runs `smc demo`.
pub(crate) fn run(args: &Args) -> ExitCode {
    let outcome = match &args.serve {
        Some(path) => net::block_on(args.runtime, server::serve(args, path)).map(|()| true),
        None => client::run(args),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("smc demo: {error:#}");
            ExitCode::FAILURE
        }
    }
}

impl Args {
    fn measuring_time(&self) -> Duration {
        Duration::from_millis(self.time.max(1))
    }
}

/// A number of bytes, as 1048576, 1024K, 1M or 1MiB.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = match unit {
        "" | "B" => 1,
        "K" | "KiB" => 1 << 10,
        "M" | "MiB" => 1 << 20,
        "G" | "GiB" => 1 << 30,
        _ => return Err(format!("'{unit}' is none of the units K, M and G")),
    };
    let number: u64 = number
        .parse()
        .map_err(|_| format!("'{text}' does not begin with a number"))?;
    number
        .checked_mul(unit)
        .ok_or_else(|| format!("'{text}' is too large"))
}

#[cfg(test)]
mod tests {
    use super::size;

    #[test]
    fn sizes_have_units() {
        assert_eq!(size("64000"), Ok(64_000));
        assert_eq!(size("16K"), Ok(16 << 10));
        assert_eq!(size("3GiB"), Ok(3 << 30));
        assert!(size("").is_err() && size("M").is_err() && size("1T").is_err());
        assert!(size("99999999999999999999").is_err() && size("99999999999999G").is_err());
    }
}
