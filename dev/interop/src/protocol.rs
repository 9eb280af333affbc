//! Messages between the host and the agent in a guest: one JSON value a line.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::workload::{Kind, Measure, Report, Script};

/// From the host: do something and answer.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    pub(crate) id: u64,
    pub(crate) order: Order,
}

/// What an agent can do.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Run a program to its end. Answer: what it wrote.
    Exec(Vec<String>),
    /// Run these commands of `ip` in one process, until one fails.
    Ip(Vec<String>),
    /// Forget what the kernel has reported.
    ClearKernelLog,
    /// Answer: what the kernel has reported since.
    KernelLog,
    /// Answer: the contents of a file.
    ReadFile(String),
    /// Write a file, such as a sysctl.
    WriteFile { path: String, text: String },
    /// Answer: the names in a folder.
    ListDir(String),
    /// The UEIDs are these from now on.
    SetUeids(Vec<String>),
    /// The PNET table is this from now on.
    SetPnets(Vec<Pnet>),
    /// Answer: a [`SmcState`].
    SmcState,
    /// Start one side of a scenario in a process of its own. Its events carry the number.
    Start { run: u32, job: Job },
    /// Start any program. Its words and its end are events that carry the number.
    Spawn {
        run: u32,
        argv: Vec<String>,
        env: Vec<(String, String)>,
    },
    /// Let a side that waits at a gate go on.
    Go { run: u32 },
    /// End a side at once, as the out-of-memory killer would.
    Kill { run: u32 },
    /// Answer: the [`Resources`] of a side and of all RDMA devices.
    Resources { run: u32 },
    /// Set the clock (CLOCK_REALTIME) forward by so many seconds.
    StepClock(i64),
    /// Switch the machine off. No answer.
    PowerOff,
}

/// A line of the PNET table.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Pnet {
    /// A network interface belongs to a network.
    Interface { pnet: String, name: String },
    /// Port 1 of an RDMA device belongs to a network.
    Rdma { pnet: String, name: String },
}

/// Features of the userspace stack beyond the released protocol, each with those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum OurFeatures {
    /// Version 2.1 alone.
    None,
    /// RMBs stay announced in groups with a single link, messages have receive credits, and SMC-R
    /// over IPv6 is accepted.
    SingleLink,
    /// The PROPOSAL has the client's end of the connection.
    EarlyConfirm,
    /// Connects send their first request with the PROPOSAL, if it fits.
    EarlyData,
    /// The PROPOSAL is data of the SYN. Of TCP: the first request is.
    FastOpen,
}

impl OurFeatures {
    /// All that are on unless an endpoint is set otherwise.
    pub(crate) const DEFAULT: Self = Self::EarlyData;

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::None => "v2.1",
            Self::SingleLink => "single link",
            Self::EarlyConfirm => "early CONFIRM",
            Self::EarlyData => "early data",
            Self::FastOpen => "fast open",
        }
    }
}

/// One side of a scenario.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) kind: Kind,
    pub(crate) end: End,
    pub(crate) script: Script,
    /// What to measure instead of running the script, if anything.
    pub(crate) measures: Vec<Measure>,
    /// UEIDs for the userspace stack; the kernel has its own table.
    pub(crate) ueids: Vec<String>,
    /// RDMA devices for the userspace stack.
    pub(crate) devices: Vec<String>,
    /// Most links of a link group, for the userspace stack; the kernel has a sysctl.
    pub(crate) max_links: u8,
    /// Seconds without a message after which it tests a link, likewise.
    pub(crate) test_link: u64,
    /// The userspace stack's features beyond the released protocol.
    pub(crate) features: OurFeatures,
    /// How many bytes connections of the userspace stack may take. `None`: as usual.
    pub(crate) memory: Option<usize>,
    /// Receive buffers of each link of the userspace stack. `None`: as usual.
    pub(crate) receives: Option<u32>,
    /// The userspace stack runs its drivers on a thread of their own.
    pub(crate) has_driver_thread: bool,
    /// The userspace stack offers SMC-R over IPv6.
    pub(crate) offers_ipv6: bool,
    /// Where its events are sent as datagrams too, so that captures show it in its place.
    pub(crate) events_to: Option<SocketAddr>,
}

/// Which side it is.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum End {
    Connect(SocketAddr),
    Listen(SocketAddr),
}

/// From an agent.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum FromGuest {
    /// The guest has booted.
    Hello { kernel: String },
    /// The answer to the request with this number.
    Answer {
        id: u64,
        result: Result<serde_json::Value, String>,
    },
    /// Something happened in a side of a scenario.
    Event { run: u32, event: Event },
}

/// What happens in a side of a scenario.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Event {
    /// The script has reached a mark; a listening side has reached `listening`.
    Mark(String),
    /// Words for the log.
    Log(String),
    /// The link groups of the userspace stack are these now; the kind is that of the one in use,
    /// as in [`LinkGroup`].
    Groups { kind: u8, text: String },
    /// The script was worked off.
    Report(Report),
    /// The process has ended. `None`: killed by a signal.
    Ended(Option<i32>),
}

/// What a process has, and what all have of RDMA devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Resources {
    pub(crate) descriptors: usize,
    pub(crate) threads: usize,
    pub(crate) queue_pairs: usize,
    pub(crate) registrations: usize,
}

impl Resources {
    /// Whether there is hardly more of anything: a script has some threads more while it sends.
    pub(crate) fn is_within(&self, most: &Self) -> bool {
        self.descriptors <= most.descriptors
            && self.threads <= most.threads + THREADS
            && self.queue_pairs <= most.queue_pairs
            && self.registrations <= most.registrations
    }
}

/// What a script may have started in between: fewer than one for each failover of an epoch.
const THREADS: usize = 4;

/// What `smcss` and `smcr` would show.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct SmcState {
    pub(crate) sockets: Vec<SmcSocket>,
    pub(crate) groups: Vec<LinkGroup>,
}

/// A socket of the kernel's AF_SMC.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SmcSocket {
    pub(crate) state: u8,
    pub(crate) mode: SocketMode,
    pub(crate) local_port: u16,
    pub(crate) peer_port: u16,
    /// Why it is TCP, here and at the peer.
    pub(crate) reason: u32,
    pub(crate) peer_reason: u32,
}

/// What carries a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum SocketMode {
    SmcR,
    SmcD,
    Tcp,
}

/// A link group of the kernel's SMC-R with its links.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LinkGroup {
    pub(crate) id: u32,
    pub(crate) is_server: bool,
    /// See [`LinkGroup::kind_name`].
    pub(crate) kind: u8,
    pub(crate) conns: u32,
    pub(crate) links: Vec<Link>,
}

/// A link of the kernel's SMC-R.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Link {
    pub(crate) id: u8,
    pub(crate) device: String,
    pub(crate) state: u32,
    pub(crate) conns: u32,
}

/// The network that all devices are on, in the PNET tables.
pub(crate) const PNET: &str = "INTEROP";

impl SmcSocket {
    /// The state by the name that `smcss` gives it.
    pub(crate) fn state_name(&self) -> &'static str {
        Self::name_of_state(self.state)
    }

    /// The name of a state by its number.
    pub(crate) fn name_of_state(number: u8) -> &'static str {
        match number {
            1 => "ACTIVE",
            2 => "INIT",
            7 => "CLOSED",
            10 => "LISTEN",
            20 => "PEERCLOSEWAIT1",
            21 => "PEERCLOSEWAIT2",
            22 => "APPCLOSEWAIT1",
            23 => "APPCLOSEWAIT2",
            24 => "APPFINCLOSEWAIT",
            25 => "PEERFINCLOSEWAIT",
            26 => "PEERABORTWAIT",
            27 => "PROCESSABORT",
            _ => "unknown",
        }
    }
}

impl LinkGroup {
    /// The type by the name that `smcr` gives it.
    pub(crate) fn kind_name(&self) -> &'static str {
        match self.kind {
            0 => "NONE",
            1 => "SINGLE",
            2 => "SYM",
            3 => "ASYMP",
            4 => "ASYML",
            _ => "unknown",
        }
    }
}
