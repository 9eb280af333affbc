//! `smc devices`: what could carry SMC on this machine, or why it cannot.

#[cfg(feature = "rdma")]
mod rdma;
#[cfg(not(feature = "rdma"))]
mod rdma {
    pub(super) fn found() -> Vec<super::One> {
        super::no_rdma(
            "this program was built without SMC-R; build smc-tools with `--features rdma`, which \
             takes cmake and libclang",
        )
    }
}

use std::io::{self, Write};

use anyhow::{Context as _, Result};
use serde::Serialize;
use serde_json::{Map, Value as Json, json};
use smc_core::device::Device as _;
use smc_transport_loop::LoopDevice;

use crate::output::print;
use crate::processes::devices_of_endpoints;

/// Arguments of `smc devices`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The exit status is 0 if at least one device can be used, and with --endpoints in any case.

Examples:
  smc devices
  smc devices --json | jq 'select(.kind == \"smc-r\" and .usable)'")]
pub(crate) struct Args {
    /// One JSON object per device and line
    #[arg(long)]
    json: bool,

    /// The devices of running endpoints instead, with their connections
    #[arg(long)]
    endpoints: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<bool> {
    if args.endpoints {
        print(&devices_of_endpoints(args.json)?)?;
        return Ok(true);
    }
    let found = found();
    let mut out = io::stdout().lock();
    let shown = found.iter().try_for_each(|device| match args.json {
        true => writeln!(out, "{}", json!(device)),
        false => device.show(&mut out),
    });
    match shown {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("cannot write")
        }
        _ => Ok(found.iter().any(|device| device.usable)),
    }
}

/// What could carry SMC, one JSON object a line.
pub(crate) fn json() -> String {
    let found = found();
    let lines = found.iter().map(|device| format!("{}\n", json!(device)));
    lines.collect()
}

fn found() -> Vec<One> {
    let mut found = rdma::found();
    found.insert(0, host());
    found
}

/// A device.
#[derive(Default, Serialize)]
struct One {
    kind: &'static str,
    /// None if there is no device of a kind, or there is no telling.
    name: Option<String>,
    usable: bool,
    /// Why it is not, if so.
    why: Option<String>,
    /// Its description: a line for people, the fields for programs.
    #[serde(skip)]
    lines: Vec<String>,
    #[serde(flatten)]
    fields: Map<String, Json>,
}

impl One {
    fn show(&self, out: &mut dyn Write) -> io::Result<()> {
        let name = self.name.as_deref().unwrap_or("-");
        let verdict = match (&self.name, &self.why) {
            (_, None) => "usable".to_owned(),
            (None, Some(why)) => why.clone(),
            (Some(_), Some(why)) => format!("not usable: {why}"),
        };
        writeln!(out, "{name:<8} {}  {verdict}", self.kind)?;
        let mut lines = self.lines.iter();
        lines.try_for_each(|line| writeln!(out, "         {line}"))
    }
}

/// The device between processes of this host. Each process makes one for itself, so this tries.
fn host() -> One {
    let kind = "smc-d";
    let device = match LoopDevice::new() {
        Ok(device) => device,
        Err(why) => {
            return One {
                kind,
                name: Some("loop0".to_owned()),
                why: Some(why.to_string()),
                ..One::default()
            };
        }
    };
    let limits = device.limits();
    let dir = device.runtime_dir().map(|dir| dir.display().to_string());
    let line = match &dir {
        Ok(dir) => format!("runtime directory {dir}"),
        Err(_) => "not found by other processes".to_owned(),
    };
    One {
        kind,
        name: Some(device.identity().name.clone()),
        usable: dir.is_ok(),
        lines: vec![
            "between processes of this host that have the runtime directory in common".into(),
            line,
        ],
        fields: Map::from_iter([
            ("runtime_dir".to_owned(), json!(dir.as_ref().ok())),
            ("max_dmbs".to_owned(), json!(limits.max_dmbs)),
            ("max_dmb_len".to_owned(), json!(limits.max_dmb_len)),
        ]),
        why: dir.err().map(|why| why.to_string()),
    }
}

/// There is no SMC-R device, or there is no telling, and why.
fn no_rdma(why: impl ToString) -> Vec<One> {
    vec![One {
        kind: "smc-r",
        why: Some(why.to_string()),
        ..One::default()
    }]
}
