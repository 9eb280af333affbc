//! The devices of running endpoints, for `smc devices --endpoints`.

use anyhow::Result;
use smc::introspection::Subject;
use smc::record::Record;

use super::table::Table;
use super::{collect, json_line};

/// The devices of running endpoints as a table, or as JSON, one object a line.
pub(crate) fn devices_of_endpoints(json: bool) -> Result<String> {
    let header = [
        "Device", "Mode", "GID", "CHID", "PNET-ID", "State", "#Conns", "PID", "Program",
    ];
    let mut table = Table::new(&header);
    let mut lines = String::new();
    for found in collect(&[Subject::Devices]) {
        for record in &found.records {
            let Record::Device(device) = record else {
                continue;
            };
            if json {
                lines.push_str(&json_line(&found.process, record)?);
                continue;
            }
            let or_none = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
            let state = if device.is_gone { "GONE" } else { "ACTIVE" };
            table.add(vec![
                device.name.clone(),
                device.mode.clone(),
                or_none(&device.gid),
                or_none(&device.chid),
                or_none(&device.pnet_id),
                state.to_owned(),
                device.connections.to_string(),
                found.process.pid.to_string(),
                found.process.program.clone(),
            ]);
        }
    }
    Ok(if json { lines } else { table.text() })
}
