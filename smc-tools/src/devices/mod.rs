//! `smc devices`: what could carry SMC on this machine, or why it cannot.

#[cfg(feature = "rdma")]
mod rdma;
#[cfg(not(feature = "rdma"))]
mod rdma {
    use super::Found;

    pub(super) fn found() -> Found {
        Found::Unknown(
            "this program was built without SMC-R; build smc-tools with `--features rdma`, which \
             takes cmake and libclang"
                .to_owned(),
        )
    }
}

use std::io::{self, Write};

use anyhow::{Context as _, Result};
use serde_json::{Map, Value as Json, json};
use smc_core::device::Device as _;
use smc_transport_loop::LoopDevice;

/// Arguments of `smc devices`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The exit status is 0 if at least one device can be used.

Examples:
  smc devices
  smc devices --json | jq 'select(.kind == \"smc-r\" and .usable)'")]
pub(crate) struct Args {
    /// One JSON object per device and line
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let found = [("smc-d", host()), ("smc-r", rdma::found())];
    let is_usable = found.iter().any(|(_, found)| found.is_usable());
    let mut out = io::stdout().lock();
    let shown = found.iter().try_for_each(|(kind, found)| {
        if args.json {
            found.show_json(kind, &mut out)
        } else {
            found.show(kind, &mut out)
        }
    });
    match shown {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("cannot write")
        }
        _ => Ok(is_usable),
    }
}

/// The devices of one kind.
enum Found {
    Devices(Vec<One>),
    /// There is none, or there is no telling, and why.
    Unknown(String),
}

/// A device.
struct One {
    name: String,
    /// Why it cannot be used, if so.
    trouble: Option<String>,
    /// Its description: a line for people, the fields for programs.
    lines: Vec<String>,
    fields: Map<String, Json>,
}

impl Found {
    fn is_usable(&self) -> bool {
        match self {
            Self::Devices(devices) => devices.iter().any(|device| device.trouble.is_none()),
            Self::Unknown(_) => false,
        }
    }

    fn show(&self, kind: &str, out: &mut dyn Write) -> io::Result<()> {
        match self {
            Self::Unknown(why) => writeln!(out, "{:<8} {kind}  {why}", "-"),
            Self::Devices(devices) => devices.iter().try_for_each(|device| {
                let verdict = match &device.trouble {
                    None => "usable".to_owned(),
                    Some(why) => format!("not usable: {why}"),
                };
                writeln!(out, "{:<8} {kind}  {verdict}", device.name)?;
                let mut lines = device.lines.iter();
                lines.try_for_each(|line| writeln!(out, "         {line}"))
            }),
        }
    }

    fn show_json(&self, kind: &str, out: &mut dyn Write) -> io::Result<()> {
        match self {
            Self::Unknown(why) => {
                let object = json!({ "kind": kind, "name": null, "usable": false, "why": why });
                writeln!(out, "{object}")
            }
            Self::Devices(devices) => devices.iter().try_for_each(|device| {
                let mut object = Map::new();
                object.insert("kind".to_owned(), json!(kind));
                object.insert("name".to_owned(), json!(device.name));
                object.insert("usable".to_owned(), json!(device.trouble.is_none()));
                object.insert("why".to_owned(), json!(device.trouble));
                object.extend(device.fields.clone());
                writeln!(out, "{}", Json::Object(object))
            }),
        }
    }
}

/// The device between processes of this host. Each process makes one for itself, so this tries.
fn host() -> Found {
    let mut device = One {
        name: "loop0".to_owned(),
        trouble: None,
        lines: Vec::new(),
        fields: Map::new(),
    };
    match LoopDevice::new() {
        Ok(found) => {
            let limits = found.limits();
            let (dir, line) = match found.runtime_dir() {
                Ok(dir) => {
                    let dir = dir.display().to_string();
                    let line = format!("runtime directory {dir}");
                    (json!(dir), line)
                }
                Err(why) => {
                    device.trouble = Some(why.to_string());
                    (Json::Null, "not found by other processes".into())
                }
            };
            device.name.clone_from(&found.identity().name);
            device.lines = vec![
                "between processes of this host that have the runtime directory in common".into(),
                line,
            ];
            device.fields.insert("runtime_dir".into(), dir);
            device
                .fields
                .insert("max_dmbs".into(), json!(limits.max_dmbs));
            device
                .fields
                .insert("max_dmb_len".into(), json!(limits.max_dmb_len));
        }
        Err(why) => device.trouble = Some(why.to_string()),
    }
    Found::Devices(vec![device])
}
