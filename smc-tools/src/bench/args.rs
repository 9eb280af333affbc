//! What can be asked for.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::builder::TypedValueParser as _;
use serde::{Deserialize, Serialize};

use super::plan::{Apart, Workload};
use super::transport::Kind;
use crate::runtime::Runtime;
use crate::values;

/// Arguments of `smc bench`.
///
/// Each measurement takes two fresh processes; rounds go over all transports in turn. What differs
/// by less than the rounds do among themselves is reported as unclear. Exits with a failure if
/// something could not be measured.
#[derive(Clone, Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Args {
    /// What to measure; everything if not given
    #[arg(value_enum)]
    pub(super) workloads: Vec<Workload>,

    /// What to measure it on, separated by commas; everything if not given
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(super) transports: Vec<Kind>,

    /// The async runtimes of both processes, separated by commas
    #[arg(long, value_enum, value_delimiter = ',', default_value = "tokio-mt")]
    pub(super) runtime: Vec<Runtime>,

    /// Rounds over everything
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(super) rounds: u32,

    #[command(flatten)]
    pub(super) settings: Settings,

    /// Bytes in a message of `rate`
    #[arg(long, value_name = "N", default_value = "100", value_parser = len)]
    pub(super) message: usize,

    /// Bytes in a write of `bulk`, with K or M
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "64000,128K",
          value_parser = len)]
    pub(super) sizes: Vec<usize>,

    /// Connections of `http`
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "1,32,500",
          value_parser = count)]
    pub(super) connections: Vec<usize>,

    /// Clients of `connect`, all at once
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "1,2,5,10,64,200",
          value_parser = count)]
    pub(super) clients: Vec<usize>,

    /// Open connections of `fanin`
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "1,10,100,1000,10000",
          value_parser = count)]
    pub(super) open: Vec<usize>,

    /// How many of the open connections of `fanin` are active
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "10",
          value_parser = count)]
    pub(super) active: Vec<usize>,

    /// Have the server's end run in another machine, where `smc bench-agent` listens at this
    /// address; CPU time is left out then
    #[arg(long, value_name = "ADDRESS", requires = "transports")]
    pub(super) remote: Option<SocketAddr>,

    /// With `--remote`: ISM devices of this end are on the fabric of the ivshmem server with this
    /// socket; else on that of an ivshmem device of this machine
    #[arg(long, value_name = "PATH", requires = "remote")]
    pub(super) ism_server: Option<PathBuf>,

    /// Print JSON instead of a table
    #[arg(long)]
    pub(super) json: bool,

    /// Write a page with tables and plots
    #[arg(long, value_name = "FILE")]
    pub(super) report: Option<PathBuf>,
}

/// What is the same for all measurements.
#[derive(Clone, Debug, Default, clap::Args, Serialize, Deserialize)]
pub(super) struct Settings {
    /// Measuring time of each figure in each round, in milliseconds
    #[arg(long, value_name = "MS", default_value = "300",
          value_parser = clap::value_parser!(u64).range(1..=TIME_MAX_MS).map(Duration::from_millis))]
    pub(super) time: Duration,

    /// Bytes in a ping of `pingpong` and `fanin`
    #[arg(long, value_name = "N", default_value = "14", value_parser = len)]
    pub(super) ping: usize,

    /// Bytes that receivers of `rate` and `bulk` read at a time, with K or M
    #[arg(long, value_name = "N", default_value = "128K", value_parser = len)]
    pub(super) read: usize,

    /// Bytes in the body of each response of `http`
    #[arg(long, value_name = "N", default_value = "612", value_parser = len)]
    pub(super) body: usize,

    /// Buffers to ask for, of SMC and of sockets alike, with K or M; each one's default if not
    /// given
    #[arg(long, value_name = "N", value_parser = len)]
    pub(super) buffer: Option<usize>,

    /// Longest time for which SMC streams poll for data before they sleep, in microseconds; 0 for
    /// never; 100 if not given and there is more than one CPU
    #[arg(long, value_name = "US",
          value_parser = clap::value_parser!(u64).map(Duration::from_micros))]
    pub(super) polling: Option<Duration>,

    /// CPUs of the client's and of the server's process, such as 0,1; not pinned if not given
    #[arg(long, value_name = "CLIENT,SERVER", value_parser = cpus)]
    pub(super) pin: Option<[usize; 2]>,

    /// What is different when the two are in two machines.
    #[arg(skip)]
    pub(super) apart: Option<Apart>,
}

impl Settings {
    /// Checks the numbers of settings that came from another process.
    pub(super) fn check(&self) -> Result<()> {
        let lens = [
            ("ping", Some(self.ping)),
            ("read", Some(self.read)),
            ("body", Some(self.body)),
            ("buffer", self.buffer),
        ];
        for (name, len) in lens {
            let len = len.unwrap_or(1);
            ensure!(
                (1..=LEN_MAX).contains(&len),
                "{name} is not between 1 and {LEN_MAX} bytes: {len}"
            );
        }
        ensure!(
            self.time <= Duration::from_millis(TIME_MAX_MS),
            "time is more than {TIME_MAX_MS} ms"
        );
        Ok(())
    }
}

/// A number of bytes from 1 to 1 GiB, such as 64000, 128K or 1M.
fn len(text: &str) -> std::result::Result<usize, String> {
    match usize::try_from(values::size(text)?) {
        Ok(len) if (1..=LEN_MAX).contains(&len) => Ok(len),
        _ => Err(format!("'{text}' is not between 1 and {LEN_MAX} bytes")),
    }
}

fn count(text: &str) -> std::result::Result<usize, String> {
    match text.parse() {
        Ok(count) if (1..=COUNT_MAX).contains(&count) => Ok(count),
        _ => Err(format!("not a number from 1 to {COUNT_MAX}")),
    }
}

fn cpus(text: &str) -> std::result::Result<[usize; 2], String> {
    let cpus = text.split_once(',').and_then(|(client, server)| {
        Some([client.trim().parse().ok()?, server.trim().parse().ok()?])
    });
    cpus.ok_or_else(|| "not two CPUs, such as 0,1".to_owned())
}

const TIME_MAX_MS: u64 = 600_000;

pub(super) const LEN_MAX: usize = 1 << 30;

pub(super) const COUNT_MAX: usize = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_have_units_and_bounds() {
        assert_eq!(len("64000"), Ok(64_000));
        assert_eq!(len("128K"), Ok(128 << 10));
        assert_eq!(len("1MiB"), Ok(1 << 20));
        for bad in ["", "K", "0", "2G", "9999999999999999999M", "-1"] {
            assert!(len(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn counts_are_positive() {
        assert_eq!(count("10000"), Ok(10_000));
        for bad in ["", "0", "x", "10000000"] {
            assert!(count(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn cpus_come_in_pairs() {
        assert_eq!(cpus("0,1"), Ok([0, 1]));
        assert_eq!(cpus("3, 2"), Ok([3, 2]));
        for bad in ["", "1", "0,", "a,b"] {
            assert!(cpus(bad).is_err(), "{bad}");
        }
    }
}
