//! `smc groups` and `smc links`: link groups of running processes, in the manner of
//! `smcd linkgroup` and `smcr linkgroup`.

use anyhow::Result;
use serde_json::json;
use smc::introspection::Subject;
use smc::record::{GroupRecord, LinkRecord, ProcessRecord, Record};

use super::table::Table;
use super::{Process, collect, json_line};
use crate::output::print;

/// Arguments of `smc groups`.
#[derive(Debug, clap::Args)]
pub(crate) struct GroupArgs {
    /// Identifier of one group; all of them without
    id: Option<String>,
    /// Also version, EID, host and peer
    #[arg(short, long)]
    debug: bool,
    /// One JSON object per group and line
    #[arg(long)]
    json: bool,
}

/// Arguments of `smc links`.
#[derive(Debug, clap::Args)]
pub(crate) struct LinkArgs {
    /// Identifier of one group; all of them without
    group: Option<String>,
    /// One JSON object per link and line
    #[arg(long)]
    json: bool,
}

/// Runs `smc groups`.
pub(crate) fn run_groups(args: &GroupArgs) -> Result<bool> {
    let mut header = vec![
        "LG-ID", "LG-Role", "LG-Type", "State", "VLAN", "#Conns", "PID",
    ];
    if args.debug {
        header.extend(["Version", "EID", "Host", "Peer-GID"]);
    }
    let mut table = Table::new(&header);
    let mut json = String::new();
    let processes = collect(&[Subject::Groups]);
    for (process, group) in groups(&processes, args.id.as_deref()) {
        if args.json {
            json.push_str(&json_line(&process.process, group)?);
            continue;
        }
        let mut row = vec![
            group.id.clone(),
            match group.role.as_deref() {
                Some("client") => "CLNT".to_owned(),
                Some(_) => "SERV".to_owned(),
                None => "-".to_owned(),
            },
            match &group.kind {
                Some(kind) => abbreviated(kind).to_owned(),
                None => "SMCD".to_owned(),
            },
            group.state.clone(),
            group
                .vlan
                .map_or_else(|| "-".to_owned(), |vlan| vlan.to_string()),
            group.connections.to_string(),
            process.process.pid.to_string(),
        ];
        if args.debug {
            let or_none = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
            row.extend([&group.version, &group.eid, &group.host, &group.peer_gid].map(or_none));
        }
        table.add(row);
    }
    print(&if args.json { json } else { table.text() })?;
    Ok(true)
}

/// Runs `smc links`.
pub(crate) fn run_links(args: &LinkArgs) -> Result<bool> {
    let header = [
        "LG-ID", "Link-ID", "Number", "State", "Device", "GID", "Peer-GID", "PID",
    ];
    let mut table = Table::new(&header);
    let mut json = String::new();
    let processes = collect(&[Subject::Groups, Subject::Devices]);
    for (process, group) in groups(&processes, args.group.as_deref()) {
        let devices = process.records.iter().filter_map(|record| match record {
            Record::Device(device) if device.endpoint == group.endpoint => Some(&device.name),
            _ => None,
        });
        let devices: Vec<_> = devices.collect();
        for link in &group.links {
            if args.json {
                json.push_str(&link_line(&process.process, group, link)?);
                continue;
            }
            let gid = |gid: &Option<String>| gid.clone().unwrap_or_else(|| "-".to_owned());
            let device = devices.get(link.device);
            table.add(vec![
                group.id.clone(),
                link.id.clone(),
                link.number.to_string(),
                link.state.clone(),
                device.map_or_else(|| "-".to_owned(), |name| (*name).clone()),
                gid(&link.gid),
                gid(&link.peer_gid),
                process.process.pid.to_string(),
            ]);
        }
    }
    print(&if args.json { json } else { table.text() })?;
    Ok(true)
}

/// A link as one line of JSON.
pub(super) fn link_line(
    process: &ProcessRecord,
    group: &GroupRecord,
    link: &LinkRecord,
) -> Result<String> {
    let link = json!({ "group": group.id, "endpoint": group.endpoint, "link": link });
    json_line(process, &link)
}

/// The groups, or the one with this identifier.
fn groups<'a>(
    processes: &'a [Process],
    id: Option<&'a str>,
) -> impl Iterator<Item = (&'a Process, &'a GroupRecord)> {
    let is_wanted = move |group: &GroupRecord| id.is_none_or(|id| id == "all" || id == group.id);
    processes.iter().flat_map(move |process| {
        process
            .records
            .iter()
            .filter_map(move |record| match record {
                Record::Group(group) if is_wanted(group) => Some((process, group)),
                _ => None,
            })
    })
}

/// The type as smcr shows it.
fn abbreviated(kind: &str) -> &str {
    match kind {
        "SYMMETRIC" => "SYM",
        "ASYMMETRIC_PEER" => "ASYMP",
        "ASYMMETRIC_LOCAL" => "ASYML",
        other => other,
    }
}
