//! Scenarios between two hosts with RDMA cards, and a report to send to the developers.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Args, ValueEnum};
use fs_err as fs;

use crate::jobs::Jobs;
use crate::protocol::{End, Event, Job, SocketMode};
use crate::scenario::{self, Carried, Network, Scenario};
use crate::workload::{Kind, Report};

#[derive(Debug, Args)]
pub(crate) struct HostsArgs {
    /// The host that connects, as ssh knows it; `here` for this one
    #[arg(long)]
    client: String,
    /// The host that listens, likewise
    #[arg(long)]
    server: String,
    /// The server's address in the network of the cards
    #[arg(long)]
    address: Ipv4Addr,
    /// RDMA devices of the client for ours, as `smc devices` lists them
    #[arg(long, value_delimiter = ',')]
    client_devices: Vec<String>,
    /// RDMA devices of the server for ours
    #[arg(long, value_delimiter = ',')]
    server_devices: Vec<String>,
    /// What connects to what; several times for several
    #[arg(long, value_enum, required = true)]
    pair: Vec<Pair>,
    /// The command that runs another one on a host
    #[arg(long, default_value = "ssh -o BatchMode=yes")]
    ssh: String,
    /// The folder of the report, which does not exist yet
    #[arg(long, default_value = "smc-report")]
    report: PathBuf,
    /// Names of scenarios; all that need no virtual machines if none is given
    names: Vec<String>,
}

/// What connects to what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Pair {
    /// Ours connects to ours.
    OursOurs,
    /// Ours connects to a kernel.
    OursKernel,
    /// A kernel connects to ours.
    KernelOurs,
    /// A kernel connects to a kernel.
    KernelKernel,
    /// Plain TCP, to try the way to the hosts.
    TcpTcp,
}

impl Pair {
    /// Client and server.
    fn kinds(self) -> [Kind; 2] {
        use Kind::{Kernel, Ours, Tcp};
        match self {
            Self::OursOurs => [Ours, Ours],
            Self::OursKernel => [Ours, Kernel],
            Self::KernelOurs => [Kernel, Ours],
            Self::KernelKernel => [Kernel, Kernel],
            Self::TcpTcp => [Tcp, Tcp],
        }
    }
}

/// Runs the scenarios and writes the report. Whether all passed is the result.
pub(crate) fn run(args: &HostsArgs) -> Result<bool> {
    let scenarios = chosen(&args.names)?;
    fs::create_dir(&args.report).context("folder of the report (option --report)")?;
    let names = [&args.client, &args.server];
    let hosts = [
        Host::prepare(args, names[0])?,
        Host::prepare(args, names[1])?,
    ];
    for (host, file) in hosts.iter().zip(["client.txt", "server.txt"]) {
        fs::write(args.report.join(file), host.system_info())?;
    }
    let (mut table, mut log) = (String::new(), String::new());
    let mut has_failed = false;
    let mut port = FIRST_PORT;
    for pair in &args.pair {
        for scenario in &scenarios {
            port += 1;
            let started = Instant::now();
            let [client, server] = pair.kinds();
            writeln!(log, "--- {} {client} -> {server}", scenario.name)?;
            let verdict = match exchange(args, &hosts, *pair, scenario, port, &mut log) {
                Ok(()) => "passed".to_owned(),
                Err(error) => {
                    has_failed = true;
                    format!("FAILED: {error:#}")
                }
            };
            let (took, name) = (started.elapsed().as_secs_f64(), scenario.name);
            let ends = format!("{client} -> {server}");
            let line = format!("{name:<20} {ends:<18} {took:5.1} s  {verdict}");
            println!("{line}");
            writeln!(table, "{line}")?;
        }
    }
    fs::write(args.report.join("results.txt"), table)?;
    fs::write(args.report.join("events.txt"), log)?;
    println!(
        "{} has the results, what happened, and system information of both hosts; read it before you send it",
        args.report.display()
    );
    Ok(!has_failed)
}

/// The scenarios with two plain ends, in which nothing happens to their networks.
fn chosen(names: &[String]) -> Result<Vec<Scenario>> {
    let usual = scenario::usual();
    let is_plain = |scenario: &Scenario| {
        let plain = [&scenario.subject, &scenario.peer];
        scenario.triggers.is_empty()
            && scenario.network == Network::V4
            && !scenario.has_ipsec
            && scenario.kernel == usual.kernel
            && scenario.only_ours.is_none()
            && scenario.expect.killed.is_none()
            && matches!(scenario.expect.as_client, Carried::SmcR)
            && plain
                .iter()
                .all(|node| node.kind.is_none() && node.devices == 1 && node.sysctls.is_empty())
    };
    let plain: Vec<_> = scenario::all().into_iter().filter(is_plain).collect();
    if names.is_empty() {
        return Ok(plain);
    }
    let known = || plain.iter().map(|scenario| scenario.name);
    let find = |name: &String| {
        let found = plain.iter().find(|scenario| scenario.name == name);
        let all = || known().collect::<Vec<_>>().join(", ");
        found
            .cloned()
            .with_context(|| format!("no scenario {name:?} between hosts; there are {}", all()))
    };
    names.iter().map(find).collect()
}

/// One scenario. Its subject is the client.
fn exchange(
    args: &HostsArgs,
    hosts: &[Host; 2],
    pair: Pair,
    scenario: &Scenario,
    port: u16,
    log: &mut String,
) -> Result<()> {
    let [client, server] = pair.kinds();
    let (sender, events) = mpsc::channel();
    let jobs = Jobs::new(move |run, event| {
        // The end of the run may have come.
        let _ = sender.send((run, event));
    });
    let job = |kind, end, node: &scenario::Node, devices: &[String]| Job {
        kind,
        end,
        script: node.script.clone(),
        measures: Vec::new(),
        ueids: node.ueids.iter().map(|eid| (*eid).to_owned()).collect(),
        devices: devices.to_vec(),
        max_links: node.max_links(),
        test_link: node.test_link(),
        features: node.features,
        memory: None,
        receives: node.receives,
        has_driver_thread: false,
        offers_ipv6: false,
        events_to: None,
    };
    let at = SocketAddr::new(args.address.into(), port);
    let until = Instant::now() + scenario.limit;
    let mut ends = [EndState::default(), EndState::default()];
    let listening = job(
        server,
        End::Listen(at),
        &scenario.peer,
        &args.server_devices,
    );
    jobs.start_by(SERVER, &mut hosts[1].side(), &listening)?;
    while !ends[1].is_listening {
        note(&events, until, &mut ends, log)?;
        ensure!(
            !ends[1].has_ended,
            "the server does not listen: {}",
            ends[1].problems()
        );
    }
    let connecting = job(
        client,
        End::Connect(at),
        &scenario.subject,
        &args.client_devices,
    );
    jobs.start_by(CLIENT, &mut hosts[0].side(), &connecting)?;
    // An end may wait for what the other one, which has failed, will not do.
    while !ends.iter().all(|end| end.has_ended) && !ends.iter().any(EndState::has_failed) {
        note(&events, until, &mut ends, log)?;
    }
    let expected = match pair {
        Pair::TcpTcp => SocketMode::Tcp,
        _ => SocketMode::SmcR,
    };
    let named = || ends.iter().zip(["client", "server"]);
    let failed = named().filter(|(end, _)| end.has_failed());
    for (end, name) in failed.chain(named()) {
        let report = end.report.as_ref();
        let report = report.with_context(|| format!("{name}: {}", end.problems()))?;
        ensure!(
            report.failures.is_empty(),
            "{name}: {}",
            report.failures.join("; ")
        );
        let carriers = &report.carriers;
        let is_expected = carriers.iter().all(|carrier| carrier.mode == expected);
        ensure!(
            is_expected,
            "{name}: carried by {carriers:?}, expected {expected:?}"
        );
    }
    Ok(())
}

/// What is known of an end.
#[derive(Default)]
struct EndState {
    is_listening: bool,
    has_ended: bool,
    report: Option<Report>,
    last_words: Vec<String>,
}

impl EndState {
    /// Whether it has ended, and not as it should.
    fn has_failed(&self) -> bool {
        let report = self.report.as_ref();
        self.has_ended && report.is_none_or(|report| !report.failures.is_empty())
    }

    fn problems(&self) -> String {
        let failures = self.report.iter().flat_map(|report| &report.failures);
        let problems: Vec<_> = failures
            .chain(&self.last_words)
            .map(String::as_str)
            .collect();
        match problems.as_slice() {
            [] => "it has ended without a report".to_owned(),
            problems => problems.join("; "),
        }
    }
}

/// Notes the next event.
fn note(
    events: &Receiver<(u32, Event)>,
    until: Instant,
    ends: &mut [EndState; 2],
    log: &mut String,
) -> Result<()> {
    let left = until.saturating_duration_since(Instant::now());
    let Ok((run, event)) = events.recv_timeout(left) else {
        bail!("it has not ended in time");
    };
    let (name, end) = match run {
        CLIENT => ("client", &mut ends[0]),
        _ => ("server", &mut ends[1]),
    };
    writeln!(log, "{name}: {event:?}")?;
    match event {
        Event::Mark(mark) => end.is_listening |= mark == "listening",
        Event::Log(words) => end.last_words.push(words),
        Event::Report(report) => end.report = Some(report),
        Event::Ended(_) => end.has_ended = true,
        Event::Groups { .. } => {}
    }
    Ok(())
}

/// A host on which this program can be started.
struct Host {
    /// The words of the command that runs another one there; none for this host.
    by: Vec<String>,
    /// Where the program is.
    program: String,
    /// A folder there that was made for it.
    folder: Option<String>,
}

impl Host {
    /// Copies this program to the host.
    fn prepare(args: &HostsArgs, name: &str) -> Result<Self> {
        let own = std::env::current_exe().context("path of this program")?;
        if name == "here" {
            return Ok(Self {
                by: Vec::new(),
                program: own.to_str().context("path of this program")?.to_owned(),
                folder: None,
            });
        }
        let by = args.ssh.split_whitespace().chain([name]).map(str::to_owned);
        let mut host = Self {
            by: by.collect(),
            program: String::new(),
            folder: None,
        };
        let failed = || format!("{name}: cannot copy this program there");
        let folder = host.output("mktemp -d").with_context(failed)?;
        let folder = folder.trim();
        let is_safe = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte);
        ensure!(
            folder.starts_with('/') && folder.bytes().all(is_safe),
            "{name}: mktemp gives {folder:?}"
        );
        host.folder = Some(folder.to_owned());
        host.program = format!("{folder}/interop");
        let mut copy = host.shell(&format!("cat > {0} && chmod 700 {0}", host.program));
        copy.stdin(fs::File::open(&own)?.into_parts().0);
        let copied = copy.status().with_context(failed)?;
        ensure!(copied.success(), "{}: {copied}", failed());
        Ok(host)
    }

    /// A command of the shell there.
    fn shell(&self, command: &str) -> Command {
        let mut words = self.by.iter().map(String::as_str);
        match words.next() {
            Some(program) => {
                let mut remote = Command::new(program);
                remote.args(words).arg(command);
                remote
            }
            None => {
                let mut local = Command::new("sh");
                local.args(["-c", command]);
                local
            }
        }
    }

    /// One side of a scenario.
    fn side(&self) -> Command {
        // Quoted: on this host its path may have any characters but one.
        self.shell(&format!(
            "exec '{}' side",
            self.program.replace('\'', "'\\''")
        ))
    }

    fn output(&self, command: &str) -> Result<String> {
        let made = self.shell(command).stdin(Stdio::null()).output();
        let made = made.with_context(|| format!("cannot run {:?}", self.by))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        ensure!(
            made.status.success(),
            "{command}: {}",
            text(&made.stderr).trim()
        );
        Ok(text(&made.stdout))
    }

    /// What the system there is. Commands that it does not have say so.
    fn system_info(&self) -> String {
        let mut info = String::new();
        for command in SYSTEM_INFO {
            let output = self.output(&format!("( {command} ) 2>&1; true"));
            let output = output.unwrap_or_else(|error| format!("{error:#}\n"));
            info += &format!("$ {command}\n{output}\n");
        }
        info
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(folder) = &self.folder {
            // The system there empties such folders as well.
            let _ = self.output(&format!("rm -r {folder}"));
        }
    }
}

/// Kernel, cards and their settings; nothing of what programs do.
const SYSTEM_INFO: &[&str] = &[
    "uname -srvm",
    "cat /etc/os-release",
    "lscpu",
    "rdma dev",
    "rdma link",
    "ibv_devinfo -v",
    "grep . /sys/class/infiniband/*/fw_ver /sys/class/infiniband/*/board_id",
    "ip -d link",
    "ip addr",
    "ip route",
    "smcr device",
    "smcr ueid",
    "smc_pnet -s",
    "sysctl net.smc",
    "grep -E '^(smc|rdma|mlx|irdma|bnxt|ib_)' /proc/modules",
    "ulimit -l",
];

const CLIENT: u32 = 0;
const SERVER: u32 = 1;

/// Each run has a port of its own, so that nothing of an earlier one is in the way.
const FIRST_PORT: u16 = 20_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scenarios_between_hosts_need_nothing_of_a_virtual_machine() {
        let all = chosen(&[]).unwrap();
        let names: Vec<_> = all.iter().map(|scenario| scenario.name).collect();
        for expected in ["echo", "bulk", "close-both", "many-300"] {
            assert!(names.contains(&expected), "{names:?}");
        }
        assert!(
            !names.contains(&"vlan") && !names.contains(&"wire-cut"),
            "{names:?}"
        );
        let error = chosen(&["wire-cut".to_owned()]).unwrap_err();
        assert!(error.to_string().contains("there are echo"), "{error}");
    }
}
