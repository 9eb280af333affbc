//! `smc groups` and `smc links`: link groups of running processes, in the manner of
//! `smcd linkgroup` and `smcr linkgroup`.

use std::collections::BTreeMap;
use std::rc::Rc;

use anyhow::{Result, bail};
use serde_json::json;
use smc::introspection::Subject;
use smc::record::{GroupRecord, LinkQueueRecord, LinkRecord, ProcessRecord, Record};

use super::table::Table;
use super::{Process, collect, json_line};
use crate::output::{Pieces, Usage, print};

/// Arguments of `smc groups`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  smc groups -R
  smc groups netdev eth0
  smc groups all ibdev mlx5_0")]
pub(crate) struct GroupArgs {
    #[command(flatten)]
    which: Which,
    /// SMC-D groups only
    #[arg(short = 'D', long, conflicts_with = "smcr")]
    smcd: bool,
    /// SMC-R groups only
    #[arg(short = 'R', long)]
    smcr: bool,
    /// Also version, EID, host and peer
    #[arg(short, long)]
    debug: bool,
    /// One JSON object per group and line
    #[arg(long)]
    json: bool,
}

/// Arguments of `smc links`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  smc links 1
  smc links netdev eth0")]
pub(crate) struct LinkArgs {
    #[command(flatten)]
    which: Which,
    /// Also the queues: messages sent and coalesced, what waits and has waited at most, receive
    /// credits left, waits for them, and the lowest number of free receive buffers
    #[arg(short, long)]
    debug: bool,
    /// One JSON object per link and line
    #[arg(long)]
    json: bool,
}

/// Which groups are shown, by the words of `smcr linkgroup`.
#[derive(Debug, clap::Args)]
struct Which {
    /// `all` or the identifier of a group; `netdev NAME`, `ibdev NAME`: those with a link at this
    /// network interface, or of this RDMA device
    #[arg(value_name = "FILTER")]
    words: Vec<String>,
}

/// The groups and links that are shown.
#[derive(Debug, Default, PartialEq, Eq)]
struct Filter<'a> {
    id: Option<&'a str>,
    netdev: Option<&'a str>,
    ibdev: Option<&'a str>,
}

impl Which {
    fn filter(&self) -> Result<Filter<'_>, Usage> {
        let mut filter = Filter::default();
        let mut words = self.words.iter().map(String::as_str);
        while let Some(word) = words.next() {
            let (place, value) = match word {
                "netdev" => (&mut filter.netdev, words.next()),
                "ibdev" => (&mut filter.ibdev, words.next()),
                id => (&mut filter.id, Some(id)),
            };
            let value = value.ok_or_else(|| Usage::new(format!("{word} takes a name")))?;
            if let Some(other) = place.replace(value) {
                let text = format!("either {other:?} or {value:?}");
                return Err(Usage::new(text));
            }
        }
        filter.id = filter.id.filter(|id| *id != "all");
        Ok(filter)
    }
}

impl Filter<'_> {
    /// An error if there is no group with the identifier.
    fn check_id(&self, processes: &[Process]) -> Result<()> {
        let Some(id) = self.id else {
            return Ok(());
        };
        let mut records = processes.iter().flat_map(|process| &process.records);
        match records.any(|record| matches!(record, Record::Group(group) if group.id == id)) {
            true => Ok(()),
            false => bail!("no link group {id}: `smc groups` lists those of running processes"),
        }
    }

    fn is_of_links(&self) -> bool {
        self.netdev.is_some() || self.ibdev.is_some()
    }

    /// Whether a group is shown, of which `devices` are those of the endpoint.
    fn takes(&self, group: &GroupRecord, devices: &[&str]) -> bool {
        let is_meant = self.id.is_none_or(|id| id == group.id);
        let has_link = || {
            group
                .links
                .iter()
                .any(|link| self.takes_link(link, devices))
        };
        is_meant && (!self.is_of_links() || has_link())
    }

    fn takes_link(&self, link: &LinkRecord, devices: &[&str]) -> bool {
        let device = devices.get(link.device).copied();
        let is_at = |wanted: Option<&str>, at| wanted.is_none() || wanted == at;
        is_at(self.netdev, link.interface.as_deref()) && is_at(self.ibdev, device)
    }
}

/// Runs `smc groups`.
pub(crate) fn run_groups(args: &GroupArgs) -> Result<bool> {
    let filter = args.which.filter()?;
    let mut header = vec![
        "LG-ID", "LG-Role", "LG-Type", "State", "VLAN", "#Conns", "PID",
    ];
    if args.debug {
        header.extend(["Version", "EID", "Host", "Peer-GID"]);
    }
    let mut table = Table::new(&header);
    let mut json = Pieces::default();
    let processes = collect(&[Subject::Groups, Subject::Devices]);
    filter.check_id(&processes)?;
    for found in groups(&processes, &filter) {
        let Found { process, group, .. } = found;
        let is_direct = group.mode == "SMCD";
        if is_direct && args.smcr || !is_direct && args.smcd {
            continue;
        }
        if args.json {
            json.add(&json_line(process, found.record)?)?;
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
            process.pid.to_string(),
        ];
        if args.debug {
            row.extend([&group.version, &group.eid, &group.host, &group.peer_gid].map(or_none));
        }
        table.add(row);
    }
    match args.json {
        true => json.end()?,
        false => print(&table.text())?,
    }
    Ok(true)
}

/// Runs `smc links`.
pub(crate) fn run_links(args: &LinkArgs) -> Result<bool> {
    let filter = args.which.filter()?;
    let mut header = vec![
        "LG-ID", "Link-ID", "Number", "State", "Net-Dev", "IB-Dev", "GID", "Peer-GID", "PID",
    ];
    if args.debug {
        header.extend([
            "Sent",
            "Coalesced",
            "Waiting",
            "Most",
            "Credits",
            "Waits",
            "Recv-Low",
        ]);
    }
    let mut table = Table::new(&header);
    let mut json = Pieces::default();
    let processes = collect(&[Subject::Groups, Subject::Devices]);
    filter.check_id(&processes)?;
    for found in groups(&processes, &filter) {
        let Found { process, group, .. } = found;
        let links = group.links.iter();
        for link in links.filter(|link| filter.takes_link(link, &found.devices)) {
            if args.json {
                json.add(&link_line(process, group, link)?)?;
                continue;
            }
            let device = found.devices.get(link.device);
            let mut row = vec![
                group.id.clone(),
                link.id.clone(),
                link.number.to_string(),
                link.state.clone(),
                or_none(&link.interface),
                device.map_or_else(|| "-".to_owned(), |name| (*name).to_owned()),
                or_none(&link.gid),
                or_none(&link.peer_gid),
                process.pid.to_string(),
            ];
            if args.debug {
                row.extend(queue_cells(link.queue.as_ref()));
            }
            table.add(row);
        }
    }
    match args.json {
        true => json.end()?,
        false => print(&table.text())?,
    }
    Ok(true)
}

/// The cells of a link's queues.
fn queue_cells(queue: Option<&LinkQueueRecord>) -> [String; 7] {
    let cell = |value: fn(&LinkQueueRecord) -> Option<u64>| {
        let value = queue.and_then(value);
        value.map_or_else(|| "-".to_owned(), |value| value.to_string())
    };
    [
        cell(|queue| Some(queue.stats.messages)),
        cell(|queue| Some(queue.stats.coalesced)),
        cell(|queue| Some(queue.stats.waiting)),
        cell(|queue| Some(queue.stats.waiting_max)),
        cell(|queue| queue.credits.map(u64::from)),
        cell(|queue| Some(queue.stats.credit_waits)),
        cell(|queue| queue.stats.receives_low.map(u64::from)),
    ]
}

fn or_none(text: &Option<String>) -> String {
    text.clone().unwrap_or_else(|| "-".to_owned())
}

/// A group, its process, and the names of the devices of its endpoint.
struct Found<'a> {
    process: &'a ProcessRecord,
    record: &'a Record,
    group: &'a GroupRecord,
    devices: Rc<[&'a str]>,
}

/// A link as one line of JSON.
pub(super) fn link_line(
    process: &ProcessRecord,
    group: &GroupRecord,
    link: &LinkRecord,
) -> Result<String> {
    let link = json!({
        "record": "link", "group": group.id, "endpoint": group.endpoint, "link": link,
    });
    json_line(process, &link)
}

/// The groups that a filter takes.
fn groups<'a>(processes: &'a [Process], filter: &Filter<'_>) -> Vec<Found<'a>> {
    let mut found = Vec::new();
    for Process {
        process, records, ..
    } in processes
    {
        let mut names = BTreeMap::<_, Vec<_>>::new();
        for record in records {
            if let Record::Device(device) = record {
                names
                    .entry(device.endpoint)
                    .or_default()
                    .push(&*device.name);
            }
        }
        // Groups share them: a process states any number of both.
        let names: BTreeMap<_, Rc<[_]>> = names
            .into_iter()
            .map(|(endpoint, names)| (endpoint, names.into()))
            .collect();
        for record in records {
            let Record::Group(group) = record else {
                continue;
            };
            let devices = names.get(&group.endpoint).cloned().unwrap_or_default();
            if filter.takes(group, &devices) {
                found.push(Found {
                    process,
                    record,
                    group,
                    devices,
                });
            }
        }
    }
    found
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

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Which {
        let words = words.iter().map(|word| (*word).to_owned());
        Which {
            words: words.collect(),
        }
    }

    #[test]
    fn filters_take_groups_and_links_by_the_words_of_smcr() {
        let link = |id: &str, device: usize, interface: &str| {
            json!({
                "id": id, "number": 1, "state": "ACTIVE", "device": device,
                "interface": interface, "is_asymmetric": false,
            })
        };
        let group = |id: &str, links: &[serde_json::Value]| -> GroupRecord {
            let group = json!({
                "endpoint": 0, "id": id, "mode": "SMCR", "state": "ACTIVE", "connections": 1,
                "links": links,
            });
            serde_json::from_value(group).unwrap()
        };
        let devices = ["mlx5_0", "mlx5_1"];
        let both = group("1", &[link("11", 0, "eth0"), link("12", 1, "eth1")]);
        let one = group("2", &[link("21", 1, "eth1")]);
        let direct = group("3", &[]);
        for (filter, taken, links) in [
            (&[][..], [true, true, true], 3),
            (&["all"], [true, true, true], 3),
            (&["2"], [false, true, false], 1),
            (&["netdev", "eth1"], [true, true, false], 2),
            (&["ibdev", "mlx5_0"], [true, false, false], 1),
            (&["1", "netdev", "eth1"], [true, false, false], 1),
            (
                &["all", "ibdev", "mlx5_1", "netdev", "eth1"],
                [true, true, false],
                2,
            ),
            // Of one link, not of two.
            (&["ibdev", "mlx5_0", "netdev", "eth1"], [false; 3], 0),
            (&["netdev", "all"], [false; 3], 0),
        ] {
            let which = words(filter);
            let filter = which.filter().unwrap();
            let groups = [&both, &one, &direct];
            assert_eq!(
                groups.map(|group| filter.takes(group, &devices)),
                taken,
                "{which:?}"
            );
            let groups = groups
                .into_iter()
                .filter(|group| filter.takes(group, &devices));
            let shown = groups.flat_map(|group| &group.links);
            let shown = shown.filter(|link| filter.takes_link(link, &devices));
            assert_eq!(shown.count(), links, "{which:?}");
        }
        for wrong in [&["netdev"][..], &["1", "2"], &["ibdev", "a", "ibdev", "b"]] {
            assert!(words(wrong).filter().is_err(), "{wrong:?}");
        }
        // A process with an earlier version of the library states no interface.
        let mut earlier = link("1", 0, "");
        earlier.as_object_mut().unwrap().remove("interface");
        assert_eq!(group("4", &[earlier]).links[0].interface, None);
    }

    #[test]
    fn queues_are_shown_as_far_as_a_link_states_them() {
        let cells = |queue: serde_json::Value| {
            let queue: Option<LinkQueueRecord> = serde_json::from_value(queue).unwrap();
            queue_cells(queue.as_ref()).join(" ")
        };
        assert_eq!(cells(json!(null)), "- - - - - - -");
        let mut queue = json!({
            "messages": 9, "cdc_messages": 7, "coalesced": 3, "waiting": 2, "waiting_max": 5,
            "credit_waits": 4, "receives_low": 100, "receives": 128, "credits": 17,
        });
        assert_eq!(cells(queue.clone()), "9 3 2 5 17 4 100");
        // Of a link without credits, whose device does not count its receives.
        queue["credits"] = json!(null);
        queue["receives_low"] = json!(null);
        assert_eq!(cells(queue), "9 3 2 5 - 4 -");
    }
}
