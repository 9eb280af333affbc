//! Scenarios: which ends connect, on what, which failures occur, and how it has to end.
//!
//! A scenario is described from the point of view of a *subject*, which is the userspace stack or,
//! to try the scenario itself, a kernel. The *peer* is a kernel unless the scenario states
//! otherwise. Whether the subject connects or accepts is the role it gets when the scenario runs.

mod closing;
mod data;
mod failovers;
mod fallback;
mod links;
mod many;
mod networks;

use std::str::FromStr;
use std::time::Duration;

use crate::lab::Version;
use crate::protocol::OurFeatures;
use crate::workload::{Carrier, Kind, Script, Step};

pub(crate) use failovers::{epoch as failovers, gate};

/// All scenarios in the order in which they run.
pub(crate) fn all() -> Vec<Scenario> {
    [
        data::scenarios(),
        closing::scenarios(),
        many::scenarios(),
        fallback::scenarios(),
        links::scenarios(),
        networks::scenarios(),
    ]
    .concat()
}

/// The simplest one: three questions and their answers.
pub(crate) fn shown() -> Scenario {
    data::shown()
}

/// One that only states how things usually are.
pub(crate) fn usual() -> Scenario {
    Scenario::new("usual", "nothing")
}

/// As [`usual`], with so many receive buffers of each link of the userspace stack.
pub(crate) fn with_receives(receives: Option<u32>) -> Scenario {
    usual().both(|node| node.receives = receives)
}

/// As [`usual`], with one link in each group.
pub(crate) fn single_link() -> Scenario {
    usual().both(|node| node.sysctls = &[(MAX_LINKS, "1")])
}

/// Three connections, one after the other, in a link group of one or two links. What is recorded is
/// for the caller.
#[cfg(feature = "ours")]
pub(crate) fn one_after_another(
    name: &'static str,
    links: usize,
    features: OurFeatures,
) -> Scenario {
    let mut scenario = links::one_after_another(name, links).both(|node| {
        node.features = features;
        node.offers_ipv6 = features == OurFeatures::FastOpen;
    });
    scenario.is_recorded = false;
    scenario
}

/// One scenario.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// The kernel of the peer. The subject's is always the newest.
    pub(crate) kernel: Version,
    pub(crate) subject: Node,
    pub(crate) peer: Node,
    pub(crate) network: Network,
    /// IPsec policies apply to everything between the two ends.
    pub(crate) has_ipsec: bool,
    pub(crate) triggers: Vec<Trigger>,
    pub(crate) expect: Expect,
    /// Why only the userspace stack can be the subject.
    pub(crate) only_ours: Option<&'static str>,
    /// The end whose unsent data is on a link that stays down.
    ///
    /// Soft-RoCE repeats such data without end, as the kernel's SMC requests. A kernel that is the
    /// server moves its connections to the other link when the client requests it, but closing
    /// them waits for what it sent on the failed one. So with such a kernel the run is over when
    /// both ends have got everything, and the guests are of no use any more.
    pub(crate) unsent_on_lost_link: Option<ScenarioEnd>,
    pub(crate) peers: Peers,
    /// Whether both ends send their events to the network, for readers of the capture.
    pub(crate) sends_events: bool,
    /// Whether all that goes over the wire is recorded.
    pub(crate) is_recorded: bool,
    pub(crate) limit: Duration,
}

/// One of the two ends.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// `None`: as configured for the run.
    pub(crate) kind: Option<Kind>,
    pub(crate) script: Script,
    pub(crate) ueids: &'static [&'static str],
    /// RDMA devices: `rxe0` on `eth0`, `rxe1` on `eth1`, `rxe2` on `eth2`.
    pub(crate) devices: usize,
    /// Interfaces and devices have a PNET ID, the same everywhere.
    pub(crate) has_pnet: bool,
    /// `eth1` is in a network of this end alone.
    pub(crate) is_apart: bool,
    /// The userspace stack runs its drivers on a thread of their own.
    pub(crate) has_driver_thread: bool,
    /// The userspace stack offers SMC-R over IPv6.
    pub(crate) offers_ipv6: bool,
    /// Features of the userspace stack beyond the released protocol.
    pub(crate) features: OurFeatures,
    /// Receive buffers of each link of the userspace stack. `None`: as usual.
    pub(crate) receives: Option<u32>,
    /// Settings of the kernel below `net.smc` that are not the usual ones.
    pub(crate) sysctls: &'static [(&'static str, &'static str)],
}

/// What the peer of the userspace stack can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peers {
    /// A kernel, or the userspace stack as well.
    Any,
    /// Not the userspace stack.
    NotOurs,
    /// The userspace stack alone.
    Ours,
}

/// Addresses that the TCP connection uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Network {
    V4,
    V6,
    /// An IPv4 client comes to a socket that listens on IPv6.
    V4ToV6,
    /// IPv4 over an interface of VLAN 7 on `eth0`.
    Vlan,
    /// IPv4 over an interface of a MAC address of its own (macvlan) on `eth0`.
    Macvlan,
    /// IPv4 between addresses of different subnets, by a direct route.
    Onlink,
    /// IPv4 between addresses of different subnets, by a route over a gateway.
    Gateway,
}

/// One of the two ends, by its part in the scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScenarioEnd {
    Subject,
    Peer,
}

/// Whether the subject connects or accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Client,
    Server,
}

/// What the host does when an end has reached a mark.
#[derive(Clone, Debug)]
pub(crate) struct Trigger {
    pub(crate) end: ScenarioEnd,
    pub(crate) mark: String,
    pub(crate) actions: Vec<Action>,
}

/// A thing that the host does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Take an interface down, and with it the RDMA device's port.
    LinkDown(ScenarioEnd, usize),
    LinkUp(ScenarioEnd, usize),
    /// Lose all frames from and to an interface, without a report.
    Cut(ScenarioEnd, usize),
    Repair(ScenarioEnd, usize),
    /// Delete an RDMA device.
    RemoveDevice(ScenarioEnd, usize),
    /// End the process of an end.
    Kill(ScenarioEnd),
    /// Let an end that waits at a gate go on.
    Go(ScenarioEnd),
    /// Milliseconds.
    Wait(u64),
    /// Wait until the link group that the connections use is like that at both ends.
    Await(Shape),
    /// Expect that not all connections of an end are at the gate behind this failover.
    ExpectLoad(ScenarioEnd, u32),
    /// Take an interface up until the link group of the connections is symmetric again.
    Restore(ScenarioEnd, usize),
    /// Wait until all connections of an end are at this gate.
    AwaitGate(ScenarioEnd, u32),
    /// Expect that an end has what it had when this was expected for the first time.
    ExpectResources(ScenarioEnd),
    /// Set the clock of an end forward by so many seconds.
    StepClock(ScenarioEnd, i64),
}

/// What the links of a group have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// They are not symmetric any more: one is left, or a second one shares a device already.
    Reduced,
    /// There are two.
    Double,
    /// There are two, and they share no device.
    Symmetric,
}

impl Shape {
    /// Whether a link group has it, by its kind.
    pub(crate) fn is_of(self, kind: u8) -> bool {
        match self {
            Self::Reduced => kind == 1 || kind > 2,
            Self::Double => kind >= 2,
            Self::Symmetric => kind == 2,
        }
    }
}

/// How a scenario has to end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expect {
    pub(crate) as_client: Carried,
    pub(crate) as_server: Carried,
    /// The end that is killed and gives no report.
    pub(crate) killed: Option<ScenarioEnd>,
}

/// What carries the connections, as the subject and the peer see it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Carried {
    /// SMC-R, for both.
    SmcR,
    /// TCP, with the reasons of subject and peer; `None` where an end does not support SMC.
    Tcp(Option<Reason>, Option<Reason>),
}

/// Why a connection is TCP: own code and, if a DECLINE came, that of the other end.
pub(crate) type Reason = (u32, u32);

impl Scenario {
    /// A scenario with usual ends that both do SMC-R.
    fn new(name: &'static str, about: &'static str) -> Self {
        Self {
            name,
            about,
            kernel: Version::V6_12,
            subject: Node::usual(),
            peer: Node::usual(),
            network: Network::V4,
            has_ipsec: false,
            triggers: Vec::new(),
            expect: Expect {
                as_client: Carried::SmcR,
                as_server: Carried::SmcR,
                killed: None,
            },
            only_ours: None,
            unsent_on_lost_link: None,
            peers: Peers::Any,
            sends_events: false,
            is_recorded: true,
            limit: Duration::from_secs(120),
        }
    }

    fn scripts(mut self, subject: Script, peer: Script) -> Self {
        self.subject.script = subject;
        self.peer.script = peer;
        self
    }

    /// One connection: what the subject and the peer do.
    fn steps(self, subject: impl Into<Vec<Step>>, peer: impl Into<Vec<Step>>) -> Self {
        self.scripts(Script::one(subject), Script::one(peer))
    }

    fn peer(mut self, change: impl FnOnce(&mut Node)) -> Self {
        change(&mut self.peer);
        self
    }

    fn both(mut self, change: impl Fn(&mut Node)) -> Self {
        change(&mut self.subject);
        change(&mut self.peer);
        self
    }

    fn trigger(
        mut self,
        end: ScenarioEnd,
        mark: impl Into<String>,
        actions: impl Into<Vec<Action>>,
    ) -> Self {
        self.triggers.push(Trigger {
            end,
            mark: mark.into(),
            actions: actions.into(),
        });
        self
    }

    fn unsent_on_lost_link(mut self, end: ScenarioEnd) -> Self {
        self.unsent_on_lost_link = Some(end);
        self
    }

    fn carried(mut self, as_client: Carried, as_server: Carried) -> Self {
        self.expect.as_client = as_client;
        self.expect.as_server = as_server;
        self
    }

    /// Whether two equal ends are in the same place, whatever they do there. Then they do not need
    /// to try both roles.
    pub(crate) fn is_symmetric(&self) -> bool {
        let place = |node: &Node| {
            (
                node.kind,
                node.ueids,
                node.devices,
                node.has_pnet,
                node.sysctls,
            )
        };
        place(&self.subject) == place(&self.peer)
            && self.triggers.is_empty()
            && self.kernel == Version::V6_12
    }

    pub(crate) fn node(&self, end: ScenarioEnd) -> &Node {
        match end {
            ScenarioEnd::Subject => &self.subject,
            ScenarioEnd::Peer => &self.peer,
        }
    }

    /// What an end should report of its connections.
    pub(crate) fn carried_for(&self, role: Role) -> Carried {
        match role {
            Role::Client => self.expect.as_client,
            Role::Server => self.expect.as_server,
        }
    }
}

impl Node {
    fn usual() -> Self {
        Self {
            kind: None,
            script: Script::one([]),
            ueids: &[EID],
            devices: 1,
            has_pnet: true,
            is_apart: false,
            has_driver_thread: false,
            offers_ipv6: false,
            features: OurFeatures::DEFAULT,
            receives: None,
            sysctls: &[],
        }
    }

    /// Most links of a group, by its sysctl.
    pub(crate) fn max_links(&self) -> u8 {
        self.sysctl(MAX_LINKS).unwrap_or(2)
    }

    /// Seconds without a message after which a link is tested, by its sysctl.
    pub(crate) fn test_link(&self) -> u64 {
        self.sysctl(TEST_LINK).unwrap_or(30)
    }

    fn sysctl<T: FromStr>(&self, wanted: &str) -> Option<T> {
        let (_, value) = self.sysctls.iter().find(|(name, _)| *name == wanted)?;
        value.parse().ok()
    }
}

impl Carried {
    /// What one end should report. `None`: anything.
    pub(crate) fn seen_by(self, end: ScenarioEnd) -> Option<Carrier> {
        use crate::protocol::SocketMode;
        let (mode, reason) = match (self, end) {
            (Self::SmcR, _) => (SocketMode::SmcR, (0, 0)),
            (Self::Tcp(subject, _), ScenarioEnd::Subject) => (SocketMode::Tcp, subject?),
            (Self::Tcp(_, peer), ScenarioEnd::Peer) => (SocketMode::Tcp, peer?),
        };
        Some(Carrier {
            mode,
            reason: reason.0,
            peer_reason: reason.1,
        })
    }
}

impl ScenarioEnd {
    pub(crate) fn other(self) -> Self {
        match self {
            Self::Subject => Self::Peer,
            Self::Peer => Self::Subject,
        }
    }
}

/// The EID of all ends that are to find each other.
pub(crate) const EID: &str = "SMC-INTEROP";

const MAX_LINKS: &str = "smcr_max_links_per_lgr";

/// Seconds after which the kernel tests a link that received nothing.
const TEST_LINK: &str = "smcr_testlink_time";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_cues_have_their_marks() {
        let mut all = all();
        all.push(failovers(0, 8));
        for (index, scenario) in all.iter().enumerate() {
            let twins = all.iter().filter(|other| other.name == scenario.name);
            assert_eq!(twins.count(), 1, "{}", scenario.name);
            for trigger in &scenario.triggers {
                let is_said = scenario.node(trigger.end).script.steps.iter().any(
                    |step| matches!(step, Step::Mark(name) | Step::Gate(name) if *name == trigger.mark),
                );
                assert!(is_said, "{index}: {} in {}", trigger.mark, scenario.name);
            }
        }
    }
}
