//! A schedule: everything that a run does, as data.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A run. Together with the seed, which decides the order of tasks and all delays, it is complete.
///
/// Its text has a line of JSON for the setting and one for each event. Lines that begin with `#`
/// are comments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Schedule {
    pub(crate) setting: Setting,
    /// In the order of time.
    pub(crate) events: Vec<Event>,
}

/// What does not change in a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Setting {
    pub(crate) seed: u64,
    pub(crate) network: Network,
    pub(crate) hosts: Vec<HostSetting>,
}

/// Delays in microseconds, at most.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Network {
    pub(crate) tcp: u32,
    pub(crate) rdma: u32,
    /// Of calls that set something up on an RDMA device.
    pub(crate) setup: u32,
    /// The longest piece of TCP.
    pub(crate) fragment: u32,
    /// Whether SMC-D devices map the buffers of their peers.
    pub(crate) nocopy: bool,
}

/// A host. Zero stands for what the library does unless configured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HostSetting {
    /// Whether it has an SMC-D device.
    pub(crate) direct: bool,
    pub(crate) rdma: Ports,
    /// Bits of the features beyond the released protocol.
    pub(crate) features: u16,
    pub(crate) max_links: u8,
    pub(crate) max_conns: u8,
    pub(crate) rkeys_in_flight: u8,
    /// Buffers in KiB.
    pub(crate) receive: u16,
    pub(crate) send: u16,
    /// Limit of the memory of all connections in KiB.
    pub(crate) memory: u32,
    /// The longest early data that its listener takes.
    pub(crate) early: u16,
    /// PROPOSALs are data of SYNs.
    pub(crate) fast_open: bool,
}

/// The RDMA ports of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Ports {
    None,
    One,
    /// Two devices with a port each.
    TwoDevices,
    /// One device with two ports.
    OneDevice,
}

/// What happens, and when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Event {
    /// Microseconds since the start.
    pub(crate) at: u64,
    pub(crate) action: Action,
}

/// What happens. Times are in microseconds; indices of what is not there do nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Action {
    // ---- Use -----------------------------------------------------------------------------------
    /// A host connects to another one.
    Connect {
        conn: u8,
        from: u8,
        to: u8,
        /// Bytes of early data.
        early: u16,
        policy: Policy,
        /// When the connect is dropped, unless 0.
        give_up: u32,
        /// Both ends are used as `smc_testkit::model` decides from this seed, unless 0.
        model: u64,
    },
    Write {
        conn: u8,
        end: End,
        len: u32,
    },
    Read {
        conn: u8,
        end: End,
        len: u32,
    },
    /// Shuts writing down.
    Shutdown {
        conn: u8,
        end: End,
    },
    /// Drops the stream behind its writes.
    Close {
        conn: u8,
        end: End,
        /// With a linger time of zero.
        resets: bool,
    },
    /// Closes the listener of a host for a time.
    Unlisten {
        host: u8,
        time: u32,
    },
    /// Terminates all link groups of a host.
    Terminate {
        host: u8,
    },
    /// Ends a host, in order or killed, and starts it again.
    Restart {
        host: u8,
        is_killed: bool,
        /// How long it is down.
        time: u32,
    },

    // ---- Time and processes --------------------------------------------------------------------
    /// The clock jumps.
    Jump {
        time: u32,
    },
    /// A host stands still.
    Pause {
        host: u8,
        time: u32,
    },

    // ---- TCP -----------------------------------------------------------------------------------
    /// All TCP connections of a host are reset.
    CutTcp {
        host: u8,
    },
    /// The next TCP connection to a host loses what is behind so many bytes of one direction.
    Truncate {
        host: u8,
        end: End,
        len: u16,
    },
    /// A PROPOSAL of one host is sent to another one again, or a part of it.
    Replay {
        from: u8,
        to: u8,
        /// Connections with this PROPOSAL.
        copies: u8,
        len: u16,
        time: u32,
    },
    /// The next SYN with a PROPOSAL as its data, to a host.
    Syn {
        host: u8,
        delivery: SynDelivery,
        /// After which it arrives a second time.
        time: u32,
    },
    /// The SMC option of such a SYN, or of its SYN-ACK alone, is lost.
    StripOption {
        host: u8,
        syn: bool,
    },

    // ---- Devices -------------------------------------------------------------------------------
    /// Allocations of a device fail: after so many, this number.
    NoMemory {
        host: u8,
        device: u8,
        after: u16,
        count: u16,
    },
    /// Events of a device are late, and so on: in so many of a thousand cases.
    Slow {
        host: u8,
        device: u8,
        delayed: u16,
        spurious: u16,
        busy: u16,
    },
    Remove {
        host: u8,
        device: u8,
    },
    /// The state of a port.
    Port {
        host: u8,
        port: u8,
        fault: PortFault,
    },
    /// One of the links of a host.
    Link {
        host: u8,
        link: u8,
        fault: LinkFault,
        /// Posts that get through before.
        after: u8,
    },
    /// The whole RDMA network loses everything, or stops.
    Network {
        stops: bool,
    },
    /// Everything at devices and networks is repaired.
    Repair,
    /// One of two links is lost for a time, and repaired: no stream may notice.
    Failover {
        host: u8,
        port: u8,
        fault: LinkFault,
        after: u8,
        time: u32,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Policy {
    Prefer,
    Require,
    /// TCP without an offer.
    Never,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum End {
    Client,
    Server,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SynDelivery {
    WithoutCookie,
    AfterLoss,
    Twice,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PortFault {
    Down,
    /// Active, but everything is lost.
    Cut,
    /// Completions are not reported.
    HoldsCompletions,
    /// Messages are reported late.
    Lags,
    /// No further queue pairs.
    NoLinks,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LinkFault {
    LosesAll,
    LosesMessages,
    LosesAnswers,
    Cut,
    RetryExceeded,
    Flushed,
    QueuePair,
    /// Of a [`Failover`](Action::Failover): the port is down.
    PortDown,
    /// Of a [`Failover`](Action::Failover): everything at the port is lost.
    PortCut,
    /// Of a [`Failover`](Action::Failover): the link fails while its peers report messages late.
    PeersLag,
}

impl Event {
    pub(crate) fn new(at: u64, action: Action) -> Self {
        Self { at, action }
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", to_line(&self.setting))?;
        let mut events = self.events.iter();
        events.try_for_each(|event| writeln!(f, "{}", to_line(event)))
    }
}

impl FromStr for Schedule {
    type Err = serde_json::Error;

    fn from_str(text: &str) -> Result<Self, serde_json::Error> {
        let lines = text.lines().map(str::trim);
        let mut lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        Ok(Self {
            setting: serde_json::from_str(lines.next().unwrap_or_default())?,
            events: lines.map(serde_json::from_str).collect::<Result<_, _>>()?,
        })
    }
}

fn to_line(part: &impl Serialize) -> String {
    serde_json::to_string(part).expect("numbers, names and lists can be written")
}
