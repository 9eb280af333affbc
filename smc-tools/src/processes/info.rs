//! `smc info`: versions, and the processes with their endpoints.

use anyhow::Result;
use smc::introspection::{Subject, VERSION};
use smc::record::Record;

use super::table::Table;
use super::{Process, collect, json_line};
use crate::output::print;

/// Arguments of `smc info`.
#[derive(Debug, clap::Args)]
pub(crate) struct InfoArgs {
    /// One JSON object per process and line
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run_info(args: &InfoArgs) -> Result<bool> {
    let header = ["PID", "UID", "Version", "Endpoints", "Devices", "Program"];
    let mut table = Table::new(&header);
    let mut json = String::new();
    for found in collect(&[Subject::Devices]) {
        if args.json {
            json.push_str(&info_line(&found)?);
            continue;
        }
        let process = &found.process;
        let mut devices = devices(&found);
        if devices.is_empty() {
            devices.push("-");
        }
        table.add(vec![
            process.pid.to_string(),
            process.uid.to_string(),
            process.library.clone(),
            process.endpoints.to_string(),
            devices.join(","),
            process.program.clone(),
        ]);
    }
    if args.json {
        print(&json)?;
        return Ok(true);
    }
    let version = env!("CARGO_PKG_VERSION");
    print(&format!(
        "smc {version}: SMC-D and SMC-R v1, v2.0, v2.1; format {VERSION} of introspection\n\n{}",
        table.text()
    ))?;
    Ok(true)
}

/// A process as one line of JSON.
pub(super) fn info_line(found: &Process) -> Result<String> {
    let mut line = serde_json::to_value(Record::Process(found.process.clone()))?;
    line["devices"] = devices(found).into();
    json_line(&found.process, &line)
}

/// The names of the devices of all endpoints.
fn devices(found: &Process) -> Vec<&str> {
    let devices = found.records.iter().filter_map(|record| match record {
        Record::Device(device) => Some(&*device.name),
        _ => None,
    });
    devices.collect()
}
