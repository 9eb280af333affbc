//! `smc devices`: what could carry SMC on this machine, or why it cannot.

#[cfg(feature = "rdma")]
mod rdma;
#[cfg(not(feature = "rdma"))]
mod rdma {
    use super::One;

    pub(super) fn found() -> Vec<One> {
        let why = "this program was built without SMC-R; build smc-tools with `--features rdma`, which \
                   takes cmake and libclang";
        vec![One::unknown(why.to_owned())]
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
    let found = [("smc-d", vec![host()]), ("smc-r", rdma::found())];
    let mut found = found
        .iter()
        .flat_map(|(kind, devices)| devices.iter().map(move |device| (kind, device)));
    let is_usable = found.clone().any(|(_, device)| device.trouble.is_none());
    let mut out = io::stdout().lock();
    let shown = found.try_for_each(|(kind, device)| match args.json {
        true => writeln!(out, "{}", device.json(kind)),
        false => device.show(kind, &mut out),
    });
    match shown {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("cannot write")
        }
        _ => Ok(is_usable),
    }
}

/// A device.
struct One {
    /// None if there is no device of a kind, or there is no telling.
    name: Option<String>,
    /// Why it cannot be used, if so.
    trouble: Option<String>,
    /// Its description: a line for people, the fields for programs.
    lines: Vec<String>,
    fields: Map<String, Json>,
}

impl One {
    /// There is none, or there is no telling, and why.
    fn unknown(why: String) -> Self {
        Self {
            name: None,
            trouble: Some(why),
            lines: Vec::new(),
            fields: Map::new(),
        }
    }

    fn show(&self, kind: &str, out: &mut dyn Write) -> io::Result<()> {
        let name = self.name.as_deref().unwrap_or("-");
        let verdict = match (&self.name, &self.trouble) {
            (_, None) => "usable".to_owned(),
            (None, Some(why)) => why.clone(),
            (Some(_), Some(why)) => format!("not usable: {why}"),
        };
        writeln!(out, "{name:<8} {kind}  {verdict}")?;
        let mut lines = self.lines.iter();
        lines.try_for_each(|line| writeln!(out, "         {line}"))
    }

    fn json(&self, kind: &str) -> Json {
        let mut object = json!({
            "kind": kind,
            "name": self.name,
            "usable": self.trouble.is_none(),
            "why": self.trouble,
        });
        for (name, value) in &self.fields {
            object[name] = value.clone();
        }
        object
    }
}

/// The device between processes of this host. Each process makes one for itself, so this tries.
fn host() -> One {
    let mut one = One {
        name: Some("loop0".to_owned()),
        trouble: None,
        lines: Vec::new(),
        fields: Map::new(),
    };
    let device = match LoopDevice::new() {
        Ok(device) => device,
        Err(why) => {
            one.trouble = Some(why.to_string());
            return one;
        }
    };
    let limits = device.limits();
    let dir = device.runtime_dir().map(|dir| dir.display().to_string());
    let line = match &dir {
        Ok(dir) => format!("runtime directory {dir}"),
        Err(_) => "not found by other processes".to_owned(),
    };
    one.name = Some(device.identity().name.clone());
    one.lines = vec![
        "between processes of this host that have the runtime directory in common".into(),
        line,
    ];
    one.fields = Map::from_iter([
        ("runtime_dir".to_owned(), json!(dir.as_ref().ok())),
        ("max_dmbs".to_owned(), json!(limits.max_dmbs)),
        ("max_dmb_len".to_owned(), json!(limits.max_dmb_len)),
    ]);
    one.trouble = dir.err().map(|why| why.to_string());
    one
}
