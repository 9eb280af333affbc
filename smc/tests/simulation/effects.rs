//! What the events of a schedule may do to connections, as documented. Nothing else may happen.

use smc_core::wire::types::DeclineCode;

use super::schedule::{Action, Event, HostSetting, Ports, Schedule};

/// What may happen to the connections of a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Effects {
    /// Set-ups may fail, take long, or be TCP.
    pub(crate) on_setups: bool,
    /// The same, for want of memory alone.
    pub(crate) on_memory: bool,
    /// Set-ups may be TCP or use the other transport, and do not fail.
    pub(crate) on_modes: bool,
    /// Streams of SMC-D may be aborted.
    pub(crate) on_direct: bool,
    /// Streams of SMC-R may be aborted.
    pub(crate) on_rdma: bool,
    /// TCP connections may be reset, or end early.
    pub(crate) on_tcp: bool,
    /// A SYN may arrive twice: the second connection has no data.
    pub(crate) on_syns: bool,
}

impl Effects {
    const ALL: Self = Self {
        on_setups: true,
        on_memory: false,
        on_modes: true,
        on_direct: true,
        on_rdma: true,
        on_tcp: true,
        on_syns: false,
    };

    /// Those of a schedule, by host.
    pub(crate) fn of(schedule: &Schedule) -> Vec<Self> {
        let hosts = &schedule.setting.hosts;
        let mut all: Vec<_> = hosts.iter().map(Self::of_setting).collect();
        let mut stopped = vec![0; hosts.len()];
        for event in &schedule.events {
            let (hit, mut effects) = Self::of_action(&event.action);
            if let Action::Failover { .. } = event.action {
                effects.on_rdma = !survives_failover(schedule, event.at);
                effects.on_setups = effects.on_rdma;
            }
            for (host, (sum, stopped)) in all.iter_mut().zip(&mut stopped).enumerate() {
                if hit.is_some_and(|hit| usize::from(hit) != host) {
                    continue;
                }
                *sum = sum.with(effects);
                if let Action::Pause { time, .. } | Action::Jump { time } = event.action {
                    *stopped += u64::from(time);
                }
            }
        }
        for (sum, stopped) in all.iter_mut().zip(stopped) {
            sum.on_setups |= stopped > HARMLESS_STOP;
            sum.on_rdma |= stopped > HARMLESS_STOP;
            sum.on_direct |= stopped > LONG_STOP;
            sum.on_tcp |= stopped > LONG_STOP;
        }
        all
    }

    fn of_setting(setting: &HostSetting) -> Self {
        Self {
            on_memory: setting.memory > 0,
            on_modes: setting.memory > 0,
            ..Self::default()
        }
    }

    /// The host that an action has an effect on, all if there is none, and the effect.
    fn of_action(action: &Action) -> (Option<u8>, Self) {
        let on_rdma = Self {
            on_setups: true,
            on_modes: true,
            on_rdma: true,
            ..Self::default()
        };
        match *action {
            // A listener drops the streams that were not accepted.
            Action::Unlisten { host, .. }
            | Action::Terminate { host }
            | Action::Restart { host, .. }
            | Action::CutTcp { host }
            | Action::Truncate { host, .. }
            | Action::Remove { host, .. } => (Some(host), Self::ALL),
            Action::NoMemory { host, .. } => {
                // The buffer of a client is attached when it has confirmed already.
                let (on_direct, on_rdma) = (true, true);
                let (on_memory, on_modes) = (true, true);
                let effects = Self {
                    on_setups: false,
                    on_memory,
                    on_modes,
                    on_direct,
                    on_rdma,
                    ..Self::default()
                };
                (Some(host), effects)
            }
            Action::Port { host, .. } | Action::Link { host, .. } => (Some(host), on_rdma),
            Action::Network { .. } => (None, on_rdma),
            Action::Failover { .. } => {
                let effects = Self {
                    on_modes: true,
                    ..Self::default()
                };
                (None, effects)
            }
            // With early data there is no second attempt, without the server may have the stream
            // of the first one.
            Action::StripOption { host, .. } => {
                let effects = Self {
                    on_setups: true,
                    on_tcp: true,
                    ..Self::default()
                };
                (Some(host), effects)
            }
            Action::Syn { host, .. } => {
                let effects = Self {
                    on_syns: true,
                    ..Self::default()
                };
                (Some(host), effects)
            }
            Action::Pause { host, .. } => (Some(host), Self::default()),
            _ => (None, Self::default()),
        }
    }

    /// Both.
    pub(crate) fn with(self, other: Self) -> Self {
        Self {
            on_setups: self.on_setups | other.on_setups,
            on_memory: self.on_memory | other.on_memory,
            on_modes: self.on_modes | other.on_modes,
            on_direct: self.on_direct | other.on_direct,
            on_rdma: self.on_rdma | other.on_rdma,
            on_tcp: self.on_tcp | other.on_tcp,
            on_syns: self.on_syns | other.on_syns,
        }
    }

    /// Whether a connect may fail.
    pub(crate) fn may_fail(self) -> bool {
        self.on_setups || self.on_memory
    }

    /// Whether a stream in this mode may end at any time.
    pub(crate) fn may_abort(self, mode: &smc::Mode) -> bool {
        match mode {
            smc::Mode::SmcD { .. } => self.on_direct,
            smc::Mode::SmcR { .. } => self.on_rdma,
            _ => self.on_tcp,
        }
    }

    /// Whether this can be the code of a fallback, besides that of [`Expected`].
    pub(crate) fn explain(self, code: DeclineCode) -> bool {
        match self.on_setups || self.on_modes && !self.on_memory {
            true => !OF_MISTAKES.contains(&code),
            false => self.on_memory && OF_MEMORY.contains(&code),
        }
    }
}

/// Whether all link groups have two links at this time, one of which is there when all links of a
/// port are lost.
fn survives_failover(schedule: &Schedule, at: u64) -> bool {
    let hosts = &schedule.setting.hosts;
    let has_two = |host: &&HostSetting| matches!(host.rdma, Ports::TwoDevices | Ports::OneDevice);
    let has_links = hosts
        .iter()
        .all(|host| host.max_links == 2 && host.max_conns == 0);
    let ends = |event: &Event| match event.action {
        Action::Connect { from, to, .. } => Some((from, to)),
        _ => None,
    };
    // One that is given up may make no link group.
    let makes_group = |event: &&Event| {
        let is_kept = matches!(event.action, Action::Connect { give_up: 0, .. });
        event.at == 0 && is_kept
    };
    let events = schedule.events.iter();
    let first: Vec<_> = events.filter(makes_group).filter_map(ends).collect();
    let mut pairs = schedule.events.iter().filter_map(ends);
    has_links
        && hosts.iter().filter(has_two).count() + 1 >= hosts.len()
        && at >= LINKS_TIME
        && pairs.all(|pair| first.contains(&pair))
}

/// What a set-up comes to if nothing happens to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    Direct,
    Rdma,
    /// The client has this code, and the server this one.
    TcpByClient(DeclineCode),
    /// The server declines with this code.
    TcpByServer(DeclineCode),
    /// There is no offer.
    Plain,
}

impl Expected {
    /// By docs/spec/handshake.md#selection.
    pub(crate) fn of(client: &HostSetting, server: &HostSetting) -> Self {
        let has_rdma = |host: &HostSetting| host.rdma != Ports::None;
        if client.direct && server.direct {
            Self::Direct
        } else if has_rdma(client) && has_rdma(server) {
            Self::Rdma
        } else if has_rdma(client) {
            // The search for a port is the last one.
            Self::TcpByServer(DeclineCode::NOSMCRDEV)
        } else if client.direct {
            Self::TcpByServer(DeclineCode::NOISM2SUPP)
        } else {
            Self::TcpByClient(DeclineCode::NOSMCDEV)
        }
    }
}

/// Codes of messages that no endpoint here sends, and of rules that all of them keep.
const OF_MISTAKES: [DeclineCode; 15] = [
    DeclineCode::CNFERR,
    DeclineCode::PEERNOSMC,
    DeclineCode::IPSEC,
    DeclineCode::NOV2EXT,
    DeclineCode::NOV2DEXT,
    DeclineCode::NOUEID,
    DeclineCode::RELEASEERR,
    DeclineCode::MAXCONNERR,
    DeclineCode::MAXLINKERR,
    DeclineCode::MODEUNSUPP,
    DeclineCode::RMBE_EC,
    DeclineCode::OPTUNSUPP,
    DeclineCode::DIFFPREFIX,
    DeclineCode::GETVLANERR,
    DeclineCode::NOINDIRECT,
];

/// Codes of steps that need memory.
const OF_MEMORY: [DeclineCode; 8] = [
    DeclineCode::MEM,
    DeclineCode::MAX_DMB,
    DeclineCode::INTERR,
    DeclineCode::ERR_RDYLNK,
    DeclineCode::ERR_REGBUF,
    DeclineCode::TIMEOUT_CL,
    DeclineCode::NOSMCD2DEV,
    DeclineCode::NOACTLINK,
];

/// Microseconds after which link groups have two links.
pub(crate) const LINKS_TIME: u64 = 300_000;

/// Microseconds for which a host can stand still: a peer waits for two seconds.
const HARMLESS_STOP: u64 = 1_000_000;

/// Longer than that a closed connection waits for its peer.
const LONG_STOP: u64 = 50_000_000;
