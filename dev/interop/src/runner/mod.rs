//! Runs scenarios in a lab and judges how they ended.

mod active_run;
mod measure;
mod report;
mod setup;
mod verdict;

use std::time::{Duration, Instant};

use anyhow::Result;
use clap::ValueEnum;

use crate::lab::{Lab, Version};
use crate::scenario::{Peers, Role, Scenario, ScenarioEnd};
use crate::workload::Kind;

pub(crate) use active_run::{EVENT_PORT, job};
pub(crate) use measure::{ServerSetting, measure, measure_across};
#[cfg(feature = "ours")]
pub(crate) use report::keep;
pub(crate) use report::{Table, kept};
#[cfg(feature = "ours")]
pub(crate) use setup::addresses;
pub(crate) use setup::{address, after_boot, before, give_devices, set_sysctl};
pub(crate) use verdict::is_spent;

/// Which implementation connects to which in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Pairing {
    /// Ours connects to a kernel.
    Client,
    /// A kernel connects to ours.
    Server,
    /// Ours connects to ours.
    Pair,
    /// A kernel connects to a kernel: tries the scenarios themselves.
    Kernel,
}

/// One scenario with all that a run needs.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) scenario: Scenario,
    pub(crate) role: Role,
    pub(crate) subject: Kind,
    pub(crate) peer: Kind,
}

/// What is shown of a run even if it passed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Show {
    pub(crate) log: bool,
    pub(crate) capture: bool,
}

/// A run that is over.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) outcome: Outcome,
    pub(crate) took: Duration,
    pub(crate) counts: Counts,
}

/// What was done in a run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    /// Links that were lost, after which all that was expected came.
    pub(crate) failovers: u32,
    /// Links that were not added at the first event of a port.
    pub(crate) restored_late: u32,
    /// Bytes that both ends received and that were right.
    pub(crate) received: u64,
}

/// How a run ended.
#[derive(Debug)]
pub(crate) enum Outcome {
    Passed,
    Failed(String),
    Skipped(String),
}

impl Run {
    /// The runs of a scenario with a pairing, each with why it is skipped, if it is.
    pub(crate) fn of(scenario: &Scenario, pairing: Pairing) -> Vec<(Self, Option<String>)> {
        let (subject, peer) = match pairing {
            Pairing::Client | Pairing::Server => (Kind::Ours, Kind::Kernel),
            Pairing::Pair => (Kind::Ours, Kind::Ours),
            Pairing::Kernel => (Kind::Kernel, Kind::Kernel),
        };
        let roles: &[Role] = match pairing {
            Pairing::Client => &[Role::Client],
            Pairing::Server => &[Role::Server],
            Pairing::Pair | Pairing::Kernel if scenario.is_symmetric() => &[Role::Client],
            Pairing::Pair | Pairing::Kernel => &[Role::Client, Role::Server],
        };
        roles
            .iter()
            .map(|role| {
                let run = Self {
                    role: *role,
                    subject: scenario.subject.kind.unwrap_or(subject),
                    peer: scenario.peer.kind.unwrap_or(peer),
                    scenario: scenario.clone(),
                };
                let why = run.lacks(pairing);
                (run, why)
            })
            .collect()
    }

    fn lacks(&self, pairing: Pairing) -> Option<String> {
        let ours = [self.subject, self.peer].contains(&Kind::Ours);
        if ours && !cfg!(feature = "ours") {
            return Some("built without feature `ours`".into());
        }
        let why = match (self.scenario.peers, pairing) {
            (Peers::NotOurs, Pairing::Pair) => Some("needs a peer that is not ours"),
            (Peers::Ours, Pairing::Client | Pairing::Server | Pairing::Kernel) => {
                Some("needs a peer that is ours")
            }
            _ => None,
        };
        if let Some(why) = why {
            return Some(why.into());
        }
        let only_ours = self.scenario.only_ours.filter(|_| !ours);
        only_ours.map(str::to_owned)
    }

    /// Kernels of the subject's and the peer's guest.
    pub(crate) fn kernels(&self) -> [Version; 2] {
        [Version::V6_12, self.scenario.kernel]
    }

    pub(crate) fn kind(&self, end: ScenarioEnd) -> Kind {
        match end {
            ScenarioEnd::Subject => self.subject,
            ScenarioEnd::Peer => self.peer,
        }
    }

    /// Whether this end connects.
    pub(crate) fn is_client(&self, end: ScenarioEnd) -> bool {
        (end == ScenarioEnd::Subject) == (self.role == Role::Client)
    }

    /// The end that listens.
    pub(crate) fn server(&self) -> ScenarioEnd {
        match self.role {
            Role::Client => ScenarioEnd::Peer,
            Role::Server => ScenarioEnd::Subject,
        }
    }

    /// Whether a kernel is left behind that cannot close its connections.
    pub(crate) fn has_unclosable_kernel(&self) -> bool {
        let cannot_close = |end| self.kind(end) == Kind::Kernel && !self.is_client(end);
        self.scenario.unsent_on_lost_link.is_some_and(cannot_close)
    }

    /// Such as `ours -> kernel`.
    pub(crate) fn parties(&self) -> String {
        let (client, server) = match self.role {
            Role::Client => (self.subject, self.peer),
            Role::Server => (self.peer, self.subject),
        };
        match self.role {
            Role::Client => format!("{client}* -> {server}"),
            Role::Server => format!("{client} -> {server}*"),
        }
    }
}

/// Runs it to its end. An error means that the lab is of no use any more.
pub(crate) fn run(lab: &mut Lab, run: &Run, show: Show) -> Result<Finished> {
    let started = Instant::now();
    let mut active = active_run::ActiveRun::new(lab, run)?;
    let result = active.perform();
    let counts = active.counts();
    let outcome = match active.close(result, show) {
        Ok(()) => Outcome::Passed,
        Err(error) => Outcome::Failed(format!("{error:#}")),
    };
    Ok(Finished {
        outcome,
        took: started.elapsed(),
        counts,
    })
}

/// The guest of an end.
pub(crate) fn guest_of(end: ScenarioEnd) -> usize {
    match end {
        ScenarioEnd::Subject => 0,
        ScenarioEnd::Peer => 1,
    }
}
