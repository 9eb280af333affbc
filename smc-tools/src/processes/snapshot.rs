//! All that running processes report, for `smc report`.

use std::collections::BTreeMap;

use anyhow::Result;
use smc::introspection::Subject;
use smc::record::Record;

use super::groups::link_line;
use super::info::info_line;
use super::{json_line, look};

/// All that running processes report at one time.
pub(crate) struct Snapshot {
    /// By the name of the file, in the format of the command's `--json`.
    pub(crate) files: [(&'static str, String); 6],
    /// What is wrong with processes that do not answer.
    pub(crate) silent: Vec<String>,
    /// The processes, with their users.
    pub(crate) pids: BTreeMap<u32, u32>,
}

/// Asks all processes.
pub(crate) fn snapshot() -> Result<Snapshot> {
    let subjects = [
        Subject::Endpoints,
        Subject::Listeners,
        Subject::Connections,
        Subject::Groups,
        Subject::Devices,
        Subject::Stats,
    ];
    let (found, silent) = look(&subjects);
    let [
        mut info,
        mut ss,
        mut groups,
        mut links,
        mut devices,
        mut stats,
    ] = [const { String::new() }; 6];
    for one in &found {
        let process = &one.process;
        info.push_str(&info_line(one)?);
        for record in &one.records {
            match record {
                Record::Listener(_) | Record::Connection(_) => {
                    ss.push_str(&json_line(process, record)?);
                }
                Record::Group(group) => {
                    groups.push_str(&json_line(process, record)?);
                    for link in &group.links {
                        links.push_str(&link_line(process, group, link)?);
                    }
                }
                Record::Device(_) => devices.push_str(&json_line(process, record)?),
                Record::Stats(_) => stats.push_str(&json_line(process, record)?),
                _ => {}
            }
        }
    }
    let pids = found.iter().map(|one| (one.process.pid, one.process.uid));
    Ok(Snapshot {
        files: [
            ("processes/info.json", info),
            ("processes/ss.json", ss),
            ("processes/groups.json", groups),
            ("processes/links.json", links),
            ("processes/devices.json", devices),
            ("processes/stats.json", stats),
        ],
        silent,
        pids: pids.collect(),
    })
}
