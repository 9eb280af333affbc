//! `smc info`: versions, and the processes with the settings of their endpoints.

use std::collections::BTreeSet;

use anyhow::Result;
use smc::introspection::{Subject, VERSION};
use smc::record::{EndpointRecord, Record};

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
    let header = [
        "PID",
        "UID",
        "Version",
        "Endpoints",
        "Devices",
        "EIDs",
        "Program",
    ];
    let mut table = Table::new(&header);
    let mut json = String::new();
    for found in collect(&[Subject::Endpoints, Subject::Devices]) {
        if args.json {
            json.push_str(&info_line(&found)?);
            continue;
        }
        let process = &found.process;
        table.add(vec![
            process.pid.to_string(),
            process.uid.to_string(),
            process.library.clone(),
            process.endpoints.to_string(),
            joined(&devices(&found)),
            joined(&eids(&found)),
            process.program.clone(),
        ]);
    }
    if args.json {
        print(&json)?;
        return Ok(true);
    }
    let version = env!("CARGO_PKG_VERSION");
    // Of this program; processes can be built otherwise.
    let kinds = match cfg!(feature = "rdma") {
        true => "SMC-D and SMC-R",
        false => "SMC-D (built without SMC-R)",
    };
    print(&format!(
        "smc {version}: {kinds} v1, v2.0, v2.1; format {VERSION} of introspection\n\n{}",
        table.text()
    ))?;
    Ok(true)
}

/// A process as one line of JSON.
pub(super) fn info_line(found: &Process) -> Result<String> {
    let mut line = serde_json::to_value(Record::Process(found.process.clone()))?;
    line["devices"] = devices(found).into();
    line["settings"] = serde_json::to_value(settings(found).collect::<Vec<_>>())?;
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

/// The EIDs of all endpoints, each once.
fn eids(found: &Process) -> Vec<&str> {
    let eids = settings(found).flat_map(|of| of.ueids.iter().chain(&of.seid));
    let eids: BTreeSet<_> = eids.map(|eid| eid.trim_end()).collect();
    eids.into_iter().collect()
}

fn settings(found: &Process) -> impl Iterator<Item = &EndpointRecord> {
    found.records.iter().filter_map(|record| match record {
        Record::Endpoint(endpoint) => Some(&**endpoint),
        _ => None,
    })
}

fn joined(names: &[&str]) -> String {
    match names {
        [] => "-".to_owned(),
        names => names.join(","),
    }
}
