//! Compares what `smc ss --kernel` shows with what `strace` reads in the same answers of a kernel,
//! and has `smc check` connect to the servers of the kernel.

mod check;
mod decoded;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use serde_json::Value;

use crate::lab::{self, Lab, SideEvent};
use crate::protocol::{End, Event, Job, Order};
use crate::runner::{self, Run, guest_of};
use crate::scenario::{self, Network, Role, ScenarioEnd};
use crate::workload::{Kind, Script, Step};

#[derive(Debug, Args)]
pub(crate) struct SocketsArgs {
    /// The command `smc`, built with `--features rdma`
    smc: PathBuf,
}

/// Boots, makes connections, and compares.
pub(crate) fn run(args: &SocketsArgs) -> Result<bool> {
    let smc = args.smc.canonicalize();
    let smc = smc.with_context(|| args.smc.display().to_string())?;
    let programs = [&*smc, &*lab::find("strace")?, &*lab::find("setpriv")?];
    let run = usual(Network::V4);
    let mut lab = Lab::boot_with(run.kernels(), &programs)?;
    runner::after_boot(&mut lab)?;
    runner::before(&mut lab, &run)?;
    for (index, pair) in (0..).zip(PAIRS) {
        pair.start(&mut lab, 2 * index)?;
    }
    let smc = lab::in_guest(&smc)?;
    let mut kinds = BTreeSet::new();
    for guest in [guest_of(ScenarioEnd::Subject), guest_of(ScenarioEnd::Peer)] {
        for options in OPTIONS {
            let compared = compare(&mut lab, guest, &smc, options, &mut kinds);
            compared
                .with_context(|| format!("`smc ss --kernel {options}` {}", lab::name(guest)))?;
        }
        compare_json(&mut lab, guest, &smc)
            .with_context(|| format!("`smc ss --kernel --json` {}", lab::name(guest)))?;
    }
    let missing = KINDS.iter().filter(|kind| !kinds.contains(**kind));
    let missing: Vec<_> = missing.collect();
    ensure!(missing.is_empty(), "not among the sockets: {missing:?}");
    println!("all columns agree for sockets of these kinds: {kinds:?}");
    check::run(&mut lab, &smc)?;
    Ok(true)
}

/// Compares the table with the kernel's answers from which it was made, column by column.
fn compare(
    lab: &mut Lab,
    guest: usize,
    smc: &str,
    options: &str,
    kinds: &mut BTreeSet<String>,
) -> Result<()> {
    let (table, trace) = traced(lab, guest, &format!("{smc} ss --kernel {options}"))?;
    let has = |option| options.split(' ').any(|given| given == option);
    let mut lines = table.lines();
    let header = lines.next().context("no header")?;
    let columns = columns(header)?;
    let mut rows: Vec<Vec<&str>> = lines.map(|line| cells(line, &columns)).collect();
    for socket in decoded::sockets(&trace) {
        let (state, mode) = (socket.state()?, socket.mode()?);
        let is_shown = match state {
            "LISTEN" => (has("-a") || has("-l")) && !has("-R") && !has("-D"),
            _ if has("-l") => false,
            _ if has("-R") => mode == "SMCR",
            _ if has("-D") => mode == "SMCD",
            _ => true,
        };
        if !is_shown {
            continue;
        }
        kinds.insert(match state {
            "LISTEN" => state.to_owned(),
            _ => format!("{state} {mode}"),
        });
        let inode = format!("{:07}", socket.inode()?);
        let place = rows.iter().position(|row| row.contains(&&*inode));
        let place = place.with_context(|| format!("no row of socket {inode} in\n{table}"))?;
        let row = rows.swap_remove(place);
        for ((name, _), cell) in columns.iter().zip(row) {
            let expected = socket.cell(name, has("-W")).context(*name)?;
            ensure!(
                cell == expected,
                "{name} of {inode} is {cell}, strace has {expected}:\n{table}"
            );
        }
    }
    ensure!(rows.is_empty(), "rows without a socket: {rows:?}");
    Ok(())
}

/// Every socket is an object, also for a user without privileges.
fn compare_json(lab: &mut Lab, guest: usize, smc: &str) -> Result<()> {
    let unprivileged = "/bin/setpriv --reuid 65534 --regid 65534 --clear-groups";
    let text = lab.exec(
        guest,
        &format!("{unprivileged} {smc} ss --kernel --json -a"),
    )?;
    let (_, trace) = traced(lab, guest, &format!("{smc} ss --kernel -a"))?;
    let mut shown = Vec::new();
    for line in text.lines() {
        let socket: Value = serde_json::from_str(line)?;
        ensure!(socket["record"] == "kernel_socket", "{line}");
        shown.push((socket["inode"].as_u64(), socket["state"].clone()));
    }
    let sockets = decoded::sockets(&trace).into_iter();
    let sockets: Result<Vec<_>> = sockets
        .map(|socket| Ok((Some(socket.inode()?), Value::from(socket.state()?))))
        .collect();
    let sockets = sockets?;
    ensure!(shown == sockets, "{shown:?}, strace has {sockets:?}");
    Ok(())
}

/// What a command prints, and what strace reads in what it receives.
fn traced(lab: &mut Lab, guest: usize, command: &str) -> Result<(String, String)> {
    let strace = format!("/bin/strace -X raw -xx -v -s 65536 -e trace=recvfrom -o {TRACE}");
    let text = lab.exec(guest, &format!("{strace} {command}"))?;
    Ok((text, lab.order(guest, Order::ReadFile(TRACE.into()))?))
}

/// Names and places of the columns.
fn columns(header: &str) -> Result<Vec<(&'static str, usize)>> {
    let mut columns = Vec::new();
    let mut at = 0;
    while let Some(rest) = header.get(at..).filter(|rest| !rest.trim().is_empty()) {
        at += rest.len() - rest.trim_start().len();
        let rest = rest.trim_start();
        let is_next = |name: &&&str| {
            let behind = rest.strip_prefix(**name);
            behind.is_some_and(|behind| behind.is_empty() || behind.starts_with(' '))
        };
        let name = COLUMNS.iter().find(is_next);
        let name = name.with_context(|| format!("an unknown column: {rest}"))?;
        columns.push((*name, at));
        at += name.len();
    }
    Ok(columns)
}

fn cells<'a>(line: &'a str, columns: &[(&str, usize)]) -> Vec<&'a str> {
    let starts = columns.iter().map(|(_, at)| *at);
    let ends = starts.clone().skip(1).chain([line.len()]);
    let cells = starts.zip(ends);
    cells
        .map(|(start, end)| line.get(start..end).unwrap_or_default().trim_end())
        .collect()
}

/// Kernel and kernel.
fn usual(network: Network) -> Run {
    let mut scenario = scenario::usual();
    scenario.network = network;
    Run {
        scenario,
        role: Role::Client,
        subject: Kind::Kernel,
        peer: Kind::Kernel,
    }
}

/// A connection from the first guest to the second one, whose ends wait at a gate.
struct Pair {
    server: Kind,
    network: Network,
    client_steps: &'static [Step],
    server_steps: &'static [Step],
}

impl Pair {
    /// Where the server with this number listens.
    fn port(number: u32) -> Result<u16> {
        Ok(FIRST_PORT + u16::try_from(number)?)
    }

    fn start(&self, lab: &mut Lab, number: u32) -> Result<()> {
        let port = Self::port(number)?;
        let run = usual(self.network);
        for (end, number, kind, steps) in [
            (ScenarioEnd::Peer, number, self.server, self.server_steps),
            (
                ScenarioEnd::Subject,
                number + 1,
                Kind::Kernel,
                self.client_steps,
            ),
        ] {
            let mut job: Job = runner::job(&run, end, port);
            job.kind = kind;
            let is_server = matches!(job.end, End::Listen(_));
            let gate = Step::Gate(GATE.to_owned());
            job.script = Script::one([steps, &[gate]].concat());
            lab.order::<()>(guest_of(end), Order::Start { run: number, job })?;
            if is_server {
                await_mark(lab, &[number], "listening")?;
            }
        }
        await_mark(lab, &[number, number + 1], GATE)
    }
}

/// Waits until all of these sides have reached a mark.
fn await_mark(lab: &mut Lab, sides: &[u32], wanted: &str) -> Result<()> {
    let deadline = Instant::now() + LIMIT;
    let mut waiting = sides.to_vec();
    while !waiting.is_empty() {
        let seen = lab.next_event(deadline)?;
        let SideEvent { run, event } = seen.with_context(|| format!("no mark {wanted}"))?;
        match event {
            Event::Mark(mark) if mark == wanted => waiting.retain(|side| *side != run),
            Event::Report(report) => bail!("side {run} has ended: {report:?}"),
            _ => {}
        }
    }
    Ok(())
}

const PAIRS: [Pair; 4] = [
    Pair {
        server: Kind::Kernel,
        network: Network::V4,
        client_steps: &[Step::Send(1000), Step::Receive(70_000)],
        server_steps: &[Step::Receive(1000), Step::Send(70_000)],
    },
    Pair {
        server: Kind::Kernel,
        network: Network::V4,
        client_steps: &[Step::Send(100), Step::Finish],
        server_steps: &[Step::Receive(100), Step::End],
    },
    Pair {
        server: Kind::Kernel,
        network: Network::V6,
        client_steps: &[Step::Send(10)],
        server_steps: &[Step::Receive(10)],
    },
    Pair {
        server: Kind::Tcp,
        network: Network::V4,
        client_steps: &[Step::Send(10)],
        server_steps: &[Step::Receive(10)],
    },
];

/// Kinds of sockets that these are of, in both guests.
const KINDS: [&str; 7] = [
    "LISTEN",
    "ACTIVE SMCR",
    "PEERCLOSEWAIT1 SMCR",
    "APPCLOSEWAIT1 SMCR",
    "ACTIVE TCP 0x03010000",
    "ACTIVE TCP 0x03030000",
    "ACTIVE TCP 0x05000000/0x03030000",
];

const OPTIONS: [&str; 6] = ["", "-a", "-l", "-a -d -W", "-a -d -R -W", "-a -D"];

/// Columns of all options.
const COLUMNS: [&str; 31] = [
    "State",
    "UID",
    "Inode",
    "Local Address",
    "Peer Address",
    "Intf",
    "Mode",
    "Shutd",
    "Token",
    "Sndbuf",
    "Rcvbuf",
    "Peerbuf",
    "rxprod-Cursor",
    "rxcons-Cursor",
    "rxFlags",
    "txprod-Cursor",
    "txcons-Cursor",
    "txFlags",
    "txprep-Cursor",
    "txsent-Cursor",
    "txfin-Cursor",
    "Role",
    "IB-device",
    "Port",
    "Linkid",
    "GID",
    "Peer-GID",
    "Peer-Token",
    "PID",
    "ID",
    "Program",
];

/// Where strace writes in a guest.
const TRACE: &str = "/tmp/trace";

const GATE: &str = "up";

const LIMIT: Duration = Duration::from_secs(30);

const FIRST_PORT: u16 = 50_000;
