//! What is measured, in which order.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::args::{Args, COUNT_MAX, LEN_MAX, Settings};
use super::figure::Figure;
use super::transport::Kind;
use crate::output::Usage;
use crate::runtime::Runtime;

/// Everything that is going to be measured.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) cases: Vec<Case>,
    pub(super) transports: Vec<Kind>,
    pub(super) runtimes: Vec<Runtime>,
    pub(super) rounds: u32,
    /// Where the agent of another machine listens that runs the servers.
    pub(super) remote: Option<SocketAddr>,
    pub(super) settings: Settings,
    pub(super) site: Option<Site>,
}

/// A workload with the number that goes with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Case {
    pub(super) workload: Workload,
    /// Bytes in a write, connections or clients: see [`Workload::load`].
    pub(super) load: usize,
    /// The connections that are active, if that is another number.
    #[serde(default)]
    pub(super) active: Option<usize>,
}

/// One measurement: a case over a transport on a runtime.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Cell {
    pub(super) case: Case,
    pub(super) transport: Kind,
    pub(super) runtime: Runtime,
    pub(super) settings: Settings,
    pub(super) site: Option<Site>,
}

/// How an end meets one in another machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Apart {
    /// Where servers listen.
    pub(super) at: IpAddr,
    /// Socket of the ivshmem server whose fabric ISM devices of this end are on. Without one it is
    /// that of an ivshmem device of the machine.
    pub(super) ism_server: Option<PathBuf>,
}

/// What the ends of `smc demo` use. Others have a directory and devices of their own.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Site {
    /// The ISM fabric, a directory or the socket of an ivshmem server.
    pub(super) fabric: Option<PathBuf>,
    /// The RDMA device; the first usable one if not given.
    pub(super) device: Option<String>,
    /// Buffers of SMC streams.
    pub(super) buffer: Option<usize>,
}

/// What the two processes do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(super) enum Workload {
    /// Small messages one way
    Rate,
    /// Round trips of a small message
    Pingpong,
    /// Large writes one way
    Bulk,
    /// HTTP/1.1 requests on kept connections, by hyper at both ends
    Http,
    /// Connect, 64 bytes there and back, close
    Connect,
    /// Many open connections of which a few are active
    Fanin,
}

impl Plan {
    pub(super) fn new(args: &Args) -> Result<Self> {
        let mut workloads = match args.workloads.is_empty() {
            true => Workload::value_variants().to_vec(),
            false => distinct(&args.workloads),
        };
        // It weighs the memory of both ends.
        workloads.retain(|workload| args.remote.is_none() || *workload != Workload::Fanin);
        let transports = match args.transports.is_empty() {
            true => Kind::value_variants().to_vec(),
            false => distinct(&args.transports),
        };
        let cases: Vec<_> = workloads
            .iter()
            .flat_map(|workload| {
                let loads = match workload {
                    Workload::Rate => vec![args.message],
                    Workload::Pingpong => vec![args.settings.ping],
                    Workload::Bulk => distinct(&args.sizes),
                    Workload::Http => distinct(&args.connections),
                    Workload::Connect => distinct(&args.clients),
                    Workload::Fanin => distinct(&args.open),
                };
                loads
                    .into_iter()
                    .flat_map(|load| cases(*workload, load, &args.active))
            })
            .collect();
        let plan = Self {
            cases,
            transports,
            runtimes: distinct(&args.runtime),
            rounds: args.rounds,
            remote: args.remote,
            settings: Settings {
                apart: args.remote.map(|agent| Apart {
                    at: agent.ip(),
                    ism_server: args.ism_server.clone(),
                }),
                ..args.settings.clone()
            },
            site: None,
        };
        if args.remote.is_some() {
            for kind in &plan.transports {
                let text =
                    format!("--remote needs another transport: {kind} stays within a machine");
                ensure!(kind.leaves_the_machine(), Usage::new(text));
            }
        }
        ensure!(
            plan.cells(0).next().is_some(),
            Usage::new("none of these transports carries any of these workloads")
        );
        Ok(plan)
    }

    /// All cells in the order of a round. The transports of a case come one after the other, and
    /// another one is the first in each round.
    pub(super) fn cells(&self, round: u32) -> impl Iterator<Item = Cell> {
        let first = usize::try_from(round).unwrap_or(0) % self.transports.len().max(1);
        let (late, early) = self.transports.split_at(first);
        self.runtimes.iter().flat_map(move |runtime| {
            self.cases.iter().flat_map(move |case| {
                let transports = early.iter().chain(late);
                let fitting = transports.filter(|kind| kind.carries(case.workload));
                fitting.map(|kind| Cell {
                    case: *case,
                    transport: *kind,
                    runtime: *runtime,
                    settings: self.settings.clone(),
                    site: self.site.clone(),
                })
            })
        })
    }
}

impl Settings {
    /// Where a server listens, on any port.
    pub(super) fn any_port(&self) -> SocketAddr {
        let own = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let at = self.apart.as_ref().map_or(own, |apart| apart.at);
        (at, 0).into()
    }
}

impl Case {
    /// Checks the numbers of a case that came from another process.
    pub(super) fn check(self) -> Result<()> {
        let most = match self.workload {
            Workload::Rate | Workload::Pingpong | Workload::Bulk => LEN_MAX,
            Workload::Http | Workload::Fanin | Workload::Connect => COUNT_MAX,
        };
        let load = self.load;
        ensure!(
            (1..=most).contains(&load),
            "{self} takes 1 to {most}, not {load}"
        );
        Ok(())
    }

    /// Connections that are open at once.
    pub(super) fn connections(self) -> usize {
        match self.workload {
            Workload::Rate | Workload::Pingpong | Workload::Bulk => 1,
            Workload::Http | Workload::Fanin | Workload::Connect => self.load,
        }
    }
}

impl Workload {
    /// What the number of a [`Case`] counts.
    fn load(self) -> &'static str {
        match self {
            Self::Rate | Self::Pingpong | Self::Bulk => "byte",
            Self::Http | Self::Fanin => "connection",
            Self::Connect => "client",
        }
    }

    /// The figures, the one that is compared first.
    pub(super) fn figures(self) -> &'static [Figure] {
        match self {
            Self::Rate => &[Figure::Messages, Figure::Cpu],
            Self::Pingpong => &[Figure::P50, Figure::P99, Figure::P999, Figure::Cpu],
            Self::Bulk => &[Figure::Bytes, Figure::Cpu],
            Self::Http => &[Figure::Requests, Figure::P50, Figure::P99, Figure::Cpu],
            Self::Connect => &[Figure::Connections, Figure::P50, Figure::P99, Figure::Cpu],
            Self::Fanin => &[
                Figure::P50,
                Figure::P99,
                Figure::Cpu,
                Figure::IdleCpu,
                Figure::Memory,
                Figure::KernelMemory,
            ],
        }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            workload,
            load,
            active,
        } = self;
        let s = if *load == 1 { "" } else { "s" };
        write!(f, "{workload}, {load} {}{s}", workload.load())?;
        match active {
            Some(active) => write!(f, ", {active} active"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}, {}", self.case, self.transport, self.runtime)
    }
}

/// The cases of a workload with this number.
fn cases(workload: Workload, load: usize, active: &[usize]) -> Vec<Case> {
    let active = match workload {
        Workload::Fanin => {
            let active: Vec<_> = active.iter().map(|active| *active.min(&load)).collect();
            distinct(&active).into_iter().map(Some).collect()
        }
        _ => vec![None],
    };
    let case = |active| Case {
        workload,
        load,
        active,
    };
    active.into_iter().map(case).collect()
}

/// Each once, in the order in which they came first.
fn distinct<T: Copy + PartialEq>(of: &[T]) -> Vec<T> {
    let mut once = Vec::new();
    for item in of {
        if !once.contains(item) {
            once.push(*item);
        }
    }
    once
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use std::time::Duration;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn plan(line: &str) -> Result<Plan> {
        let words = ["bench"].into_iter().chain(line.split_whitespace());
        Plan::new(&Cli::try_parse_from(words)?.args)
    }

    #[test]
    fn everything_is_measured_unless_told_otherwise() {
        let plan = plan("").unwrap();
        for workload in Workload::value_variants() {
            assert!(plan.cases.iter().any(|case| case.workload == *workload));
        }
        assert_eq!(plan.transports, Kind::value_variants());
        assert_eq!(plan.runtimes, [Runtime::TokioMt]);
    }

    #[test]
    fn the_transports_of_a_case_take_turns_in_being_first() {
        let plan = plan("rate pingpong --transports loop,tcp,unix --runtime smol,tokio").unwrap();
        let order = |round| {
            let cells = plan.cells(round);
            cells.map(|cell| cell.transport).collect::<Vec<_>>()
        };
        assert_eq!(order(0).len(), 2 * 2 * 3);
        assert_eq!(order(0)[..3], [Kind::Loop, Kind::Tcp, Kind::Unix]);
        assert_eq!(order(1)[..3], [Kind::Tcp, Kind::Unix, Kind::Loop]);
        assert_eq!(order(3), order(0));
    }

    #[test]
    fn loads_come_once_and_belong_to_their_workload() {
        let plan = plan("bulk http --sizes 1K,1024,64000 --connections 2").unwrap();
        let cases: Vec<_> = plan.cases.iter().map(ToString::to_string).collect();
        assert_eq!(
            cases,
            [
                "bulk, 1024 bytes",
                "bulk, 64000 bytes",
                "http, 2 connections"
            ]
        );
    }

    #[test]
    fn no_more_connections_are_active_than_are_open() {
        let plan = plan("fanin --open 2,100 --active 1,2,10").unwrap();
        let cases: Vec<_> = plan.cases.iter().map(ToString::to_string).collect();
        assert_eq!(
            cases,
            [
                "fanin, 2 connections, 1 active",
                "fanin, 2 connections, 2 active",
                "fanin, 100 connections, 1 active",
                "fanin, 100 connections, 2 active",
                "fanin, 100 connections, 10 active"
            ]
        );
    }

    #[test]
    fn a_transport_is_left_out_where_it_makes_no_difference() {
        let plan = plan("bulk http --transports loop,loop-inplace,tcp --sizes 1K --connections 1");
        let cells: Vec<_> = plan
            .unwrap()
            .cells(0)
            .map(|cell| cell.to_string())
            .collect();
        assert_eq!(cells.len(), 5);
        assert!(plan_error("http --transports loop-inplace"));
        assert!(plan_error("nonsense") && plan_error("--runtime none") && plan_error("--time 0"));
    }

    #[test]
    fn what_stays_within_a_machine_is_not_measured_between_two() {
        let far = "--remote 10.0.0.2:7000 --transports";
        let plan = plan(&format!("{far} ism-copy,tcp --ism-server /run/s")).unwrap();
        assert!(
            plan.cases
                .iter()
                .all(|case| case.workload != Workload::Fanin)
        );
        let apart = plan.settings.apart.clone().unwrap();
        assert_eq!(apart.ism_server, Some("/run/s".into()));
        assert_eq!(plan.settings.any_port(), "10.0.0.2:0".parse().unwrap());
        for kind in ["loop", "loop-inplace", "unix"] {
            assert!(plan_error(&format!("rate {far} {kind}")), "{kind}");
        }
        assert!(plan_error(&format!("fanin {far} tcp")));
        assert!(plan_error("rate --remote 10.0.0.2:7000") && plan_error("rate --ism-server /s"));
    }

    fn plan_error(line: &str) -> bool {
        plan(line).is_err()
    }

    #[test]
    fn a_cell_survives_the_way_to_its_processes() {
        let plan = plan("fanin --polling 0 --pin 1,0 --buffer 256K").unwrap();
        let cell = plan.cells(0).next().unwrap();
        let text = serde_json::to_string(&cell).unwrap();
        let back: Cell = serde_json::from_str(&text).unwrap();
        assert_eq!(back.to_string(), cell.to_string());
        assert_eq!(back.settings.polling, Some(Duration::ZERO));
        assert_eq!(back.settings.pin, Some([1, 0]));
        assert_eq!(back.settings.buffer, Some(256 << 10));
    }
}
