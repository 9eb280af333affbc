//! The records in which [`introspection`](crate::introspection) reports: plain numbers and texts,
//! for tools of any version.
//!
//! Fields may be added. A reader ignores those that it does not know.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use smc_wire::cursor::Cursor;
use smc_wire::types::{Features, Release, Version};

use crate::endpoint::EndpointInner;
use crate::error::FallbackReason;
use crate::info::{
    CandidateInfo, CandidateTransport, ConnectionInfo, Cursors, DeviceInfo, DeviceKind,
    DirectionStats, GroupKey, LinkGroupInfo, LinkInfo, LinkQueueInfo, ListenerInfo, QueueStats,
    RdmaGroupInfo, Role, SmcInfo, Stats,
};
use crate::introspection::Subject;
use crate::stream::Mode;

/// A record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Record {
    /// The process that answers; the first record of an answer.
    Process(ProcessRecord),
    /// The settings of an endpoint.
    Endpoint(Box<EndpointRecord>),
    /// A listener.
    Listener(ListenerRecord),
    /// A stream.
    Connection(Box<ConnectionRecord>),
    /// A link group.
    Group(GroupRecord),
    /// A device.
    Device(DeviceRecord),
    /// The statistics of an endpoint.
    Stats(StatsRecord),
    /// The request was refused; the last record.
    Error {
        /// Why.
        error: String,
    },
    /// The last record of a complete answer.
    End,
}

impl Record {
    /// The subject that this record belongs to; `None` for records of no subject.
    pub(crate) const fn subject(&self) -> Option<Subject> {
        Some(match self {
            Self::Endpoint(_) => Subject::Endpoints,
            Self::Listener(_) => Subject::Listeners,
            Self::Connection(_) => Subject::Connections,
            Self::Group(_) => Subject::Groups,
            Self::Device(_) => Subject::Devices,
            Self::Stats(_) => Subject::Stats,
            Self::Process(_) | Self::Error { .. } | Self::End => return None,
        })
    }
}

/// A process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ProcessRecord {
    /// Version of the format, [`VERSION`](crate::introspection::VERSION).
    pub version: u32,
    /// Its number, in its own PID namespace.
    pub pid: u32,
    /// Its effective user.
    pub uid: u32,
    /// Its program.
    pub program: String,
    /// Version of the library.
    pub library: String,
    /// Number of its endpoints.
    pub endpoints: usize,
}

/// The settings of an endpoint, as [`Builder`](crate::Builder) has made them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct EndpointRecord {
    /// Number of the endpoint in the process, which keeps it.
    pub endpoint: usize,
    /// `prefer`, `require` or `never`; `by address` if a function decides.
    pub policy: String,
    /// The user-defined EIDs.
    pub ueids: Vec<String>,
    /// The system EID that is offered and accepted; none if that is disabled.
    pub seid: Option<String>,
    /// The PNET IDs of attached networks.
    pub pnet_ids: Vec<String>,
    /// SMC-D: size of receive buffers in bytes.
    pub recv_buffer: usize,
    /// SMC-R: size of receive buffers (RMBs) in bytes.
    pub rmb: usize,
    /// SMC-R: size of send buffers in bytes.
    pub send_buffer: usize,
    /// The limit on the memory of connections in bytes, which endpoints can share.
    pub memory_limit: usize,
    /// The memory that is charged to that limit, in bytes.
    pub memory_used: usize,
    /// Handshakes of a listener at a time.
    pub max_handshakes: usize,
    /// How long each message of the handshake may take.
    pub handshake_timeout: Duration,
    /// How long a listener on the same host may be silent.
    pub answer_timeout: Duration,
    /// How long a closed connection waits for the peer's close.
    pub close_timeout: Duration,
    /// The polling window; zero if polling is off.
    pub polling: Duration,
    /// The application has declared that it trusts its peers.
    pub trusts_peers: bool,
    /// SMC also for connections that an IPsec policy applies to.
    pub bypass_ipsec: bool,
}

/// A listener.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ListenerRecord {
    /// Number of the endpoint in the process, which keeps it.
    pub endpoint: usize,
    /// The address listened on.
    pub local: String,
    /// Why clients cannot find that it supports SMC, if so.
    pub unpublished: Option<String>,
    /// Streams that wait for `accept`.
    pub ready: usize,
    /// Clients that were closed because the policy requires SMC.
    pub refused: u64,
}

/// A stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ConnectionRecord {
    /// Number of the endpoint in the process, which keeps it.
    pub endpoint: usize,
    /// A number that no other stream of the process has.
    pub id: u64,
    /// `client` or `server`.
    pub role: String,
    /// `SMCD`, `SMCR`, `TCP` or, for a plain UNIX socket, `UNIX`.
    pub mode: String,
    /// The state, by the names of smcss; `ACTIVE` without SMC.
    pub state: String,
    /// The local address of the TCP connection.
    pub local: Option<String>,
    /// The peer's address.
    pub peer: String,
    /// Without SMC: the local reason.
    pub reason: Option<u32>,
    /// Without SMC: the diagnosis of the peer, if it has declined.
    pub peer_reason: Option<u32>,
    /// Without SMC: the reason in words, with its cause.
    pub cause: Option<String>,
    /// SMC: version of the handshake, such as `2.1`.
    pub version: Option<String>,
    /// SMC: the device.
    pub device: Option<String>,
    /// SMC: the EID.
    pub eid: Option<String>,
    /// SMC-R: features beyond the released protocol, with `|` between them.
    pub vendor_features: Option<String>,
    /// The GID of this end.
    pub gid: Option<String>,
    /// The GID of the peer's end.
    pub peer_gid: Option<String>,
    /// SMC-D: the fabric.
    pub chid: Option<String>,
    /// SMC-D: data is copied once only.
    pub nocopy: Option<bool>,
    /// The link group.
    pub group: Option<String>,
    /// SMC-R: the link.
    pub link: Option<String>,
    /// The token by which the peer names this end, in hexadecimal.
    pub token: Option<String>,
    /// The peer's token.
    pub peer_token: Option<String>,
    /// Size of the receive buffer in bytes.
    pub recv_buffer: Option<usize>,
    /// SMC-R: size of the send buffer in bytes.
    pub send_buffer: Option<usize>,
    /// Size of the peer's ring in bytes.
    pub peer_buffer: Option<usize>,
    /// The cursors of the local ring.
    pub received: Option<CursorsRecord>,
    /// The cursors of the peer's ring.
    pub sent: Option<CursorsRecord>,
    /// The flags of this side: those of the producer, then those of the state, as in a CDC message.
    pub flags: Option<[u8; 2]>,
    /// The same of the peer.
    pub peer_flags: Option<[u8; 2]>,
    /// Counters of the application's reads.
    pub reads: Option<DirectionStats>,
    /// Counters of the application's writes.
    pub writes: Option<DirectionStats>,
}

/// The two cursors of a ring: wrap and count of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CursorsRecord {
    /// The end of the data.
    pub producer: (u16, u32),
    /// The start of the data.
    pub consumer: (u16, u32),
}

/// A link group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct GroupRecord {
    /// Number of the endpoint in the process, which keeps it.
    pub endpoint: usize,
    /// The local identifier (LG-ID).
    pub id: String,
    /// `SMCD` or `SMCR`.
    pub mode: String,
    /// SMC-R: `client` or `server`.
    pub role: Option<String>,
    /// SMC-R: `NONE`, `SINGLE`, `SYMMETRIC`, `ASYMMETRIC_LOCAL` or `ASYMMETRIC_PEER`.
    pub kind: Option<String>,
    /// The state.
    pub state: String,
    /// Connections, with set-ups.
    pub connections: usize,
    /// SMC-D: the local device.
    pub device: Option<usize>,
    /// The GID of the peer.
    pub peer_gid: Option<String>,
    /// SMC-R at a server: the VLAN.
    pub vlan: Option<u16>,
    /// Version of the handshake.
    pub version: Option<String>,
    /// The EID.
    pub eid: Option<String>,
    /// The name of the peer's host, if it was stated.
    pub host: Option<String>,
    /// SMC-R: the links.
    pub links: Vec<LinkRecord>,
}

/// A link of an SMC-R group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LinkRecord {
    /// Its identifier in the group.
    pub id: String,
    /// Its number, which both ends use.
    pub number: u8,
    /// Its state.
    pub state: String,
    /// Index of its device in the endpoint.
    pub device: usize,
    /// The network interface of its GID, where the device states it and the port is active.
    pub interface: Option<String>,
    /// The GID of this end.
    pub gid: Option<String>,
    /// The GID of the peer's end.
    pub peer_gid: Option<String>,
    /// It shares a port with the other link.
    pub is_asymmetric: bool,
    /// Its queues, while it is connected.
    #[serde(default)]
    pub queue: Option<LinkQueueRecord>,
}

/// The queues of an SMC-R link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LinkQueueRecord {
    /// What it has counted.
    #[serde(flatten)]
    pub stats: QueueStats,
    /// Receive buffers that it has.
    pub receives: u32,
    /// Receive credits that are left for sending; none where the ends have not agreed on credits.
    pub credits: Option<u32>,
}

/// A device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DeviceRecord {
    /// Number of the endpoint in the process, which keeps it.
    pub endpoint: usize,
    /// Its name.
    pub name: String,
    /// `SMCD` or `SMCR`.
    pub mode: String,
    /// SMC-D: its GID.
    pub gid: Option<String>,
    /// SMC-D: the fabric.
    pub chid: Option<String>,
    /// The PNET ID.
    pub pnet_id: Option<String>,
    /// It was removed or reset.
    pub is_gone: bool,
    /// SMC connections on it.
    pub connections: usize,
}

/// The statistics of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StatsRecord {
    /// Number of the endpoint in the process, which keeps it.
    pub endpoint: usize,
    /// Its statistics.
    pub stats: Stats,
}

/// A way to a destination ([`Endpoint::candidates`](crate::Endpoint::candidates)). It is no part of
/// answers to requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CandidateRecord {
    /// The address of the destination.
    pub to: String,
    /// `SMCD`, `SMCR` or `TCP`.
    pub mode: String,
    /// SMC: the device.
    pub device: Option<String>,
    /// SMC-R: number of the port.
    pub port: Option<u8>,
    /// SMC: the GID.
    pub gid: Option<String>,
    /// Why it is not used, if so.
    pub excluded: Option<String>,
}

impl ConnectionRecord {
    pub(crate) fn new(endpoint: usize, info: &ConnectionInfo) -> Self {
        let mut record = Self {
            endpoint,
            id: info.id,
            role: role(info.role),
            state: "ACTIVE".to_owned(),
            local: info.local.as_ref().map(ToString::to_string),
            peer: info.peer.to_string(),
            ..Self::default()
        };
        record.set_mode(&info.mode);
        if let Some(smc) = &info.smc {
            record.set_smc(smc);
        }
        record
    }

    fn set_mode(&mut self, mode: &Mode) {
        match mode {
            Mode::SmcD {
                version,
                release,
                nocopy,
                device,
                chid,
                peer,
                eid,
                vendor_features,
            } => {
                self.mode = DIRECT.to_owned();
                self.version = Some(version_text(*version, *release));
                self.nocopy = Some(*nocopy);
                self.device = Some(device.to_string());
                self.chid = Some(chid.to_string());
                self.peer_gid = Some(peer.to_string());
                self.eid = eid.map(|eid| eid.to_string());
                self.set_features(*vendor_features);
            }
            Mode::SmcR {
                version,
                release,
                device,
                local,
                peer,
                eid,
                vendor_features,
            } => {
                self.mode = RDMA.to_owned();
                self.version = Some(version_text(*version, *release));
                self.device = Some(device.to_string());
                self.gid = Some(local.to_string());
                self.peer_gid = Some(peer.to_string());
                self.eid = eid.map(|eid| eid.to_string());
                self.set_features(*vendor_features);
            }
            Mode::Tcp { reason } => self.set_fallback(TCP, reason),
            Mode::Unix { reason } => self.set_fallback(UNIX, reason),
        }
    }

    fn set_features(&mut self, features: Features) {
        self.vendor_features = (!features.is_empty()).then(|| features.to_string());
    }

    fn set_fallback(&mut self, mode: &str, reason: &FallbackReason) {
        self.mode = mode.to_owned();
        self.reason = Some(reason.local.0);
        self.peer_reason = reason.peer.map(|code| code.0);
        self.cause = Some(reason.to_string());
    }

    fn set_smc(&mut self, smc: &SmcInfo) {
        self.state = smc.state.name().to_owned();
        self.group = Some(smc.group.to_string());
        self.gid = smc
            .gid
            .map(|gid| gid.to_string())
            .or_else(|| self.gid.take());
        self.link = smc.link.map(|link| link.to_string());
        let token = |token: u64| format!("{token:x}");
        self.token = Some(token(smc.token));
        self.peer_token = smc.peer_token.map(token);
        self.recv_buffer = Some(smc.recv_buffer);
        self.send_buffer = smc.send_buffer;
        self.peer_buffer = Some(smc.peer_buffer);
        self.received = Some(smc.received.into());
        self.sent = Some(smc.sent.into());
        self.flags = Some([smc.flags.producer.bits(), smc.flags.state.bits()]);
        self.peer_flags = Some([smc.peer_flags.producer.bits(), smc.peer_flags.state.bits()]);
        self.reads = Some(smc.reads.clone());
        self.writes = Some(smc.writes.clone());
    }
}

impl EndpointRecord {
    pub(crate) fn new(number: usize, endpoint: &EndpointInner) -> Self {
        let config = &endpoint.config;
        let memory = &endpoint.groups.memory;
        let seid = endpoint.base_config().seid;
        Self {
            endpoint: number,
            policy: config.policy.name().to_owned(),
            ueids: config.ueids.iter().map(ToString::to_string).collect(),
            seid: seid.map(|seid| seid.to_string()),
            pnet_ids: config.pnet_ids.iter().map(ToString::to_string).collect(),
            recv_buffer: config.recv_buffer.byte_len(),
            rmb: config.rmb.byte_len(),
            send_buffer: config.send_buffer.byte_len(),
            memory_limit: memory.limit(),
            memory_used: memory.used(),
            max_handshakes: config.max_handshakes,
            handshake_timeout: config.handshake_timeout,
            answer_timeout: config.answer_timeout,
            close_timeout: config.close_timeout,
            polling: config.polling,
            trusts_peers: config.trust.is_some(),
            bypass_ipsec: config.bypass_ipsec,
        }
    }
}

impl From<&ConnectionInfo> for ConnectionRecord {
    /// The endpoint is 0.
    fn from(info: &ConnectionInfo) -> Self {
        Self::new(0, info)
    }
}

impl From<Cursors> for CursorsRecord {
    fn from(cursors: Cursors) -> Self {
        let pair = |cursor: Cursor| (cursor.wrap, cursor.count);
        Self {
            producer: pair(cursors.producer),
            consumer: pair(cursors.consumer),
        }
    }
}

impl ListenerRecord {
    pub(crate) fn new(endpoint: usize, info: &ListenerInfo) -> Self {
        Self {
            endpoint,
            local: info.local.to_string(),
            unpublished: info.unpublished.as_ref().map(ToString::to_string),
            ready: info.ready,
            refused: info.refused.count,
        }
    }
}

impl GroupRecord {
    /// `rdma` is the same group, if it is one of SMC-R.
    pub(crate) fn new(
        endpoint: usize,
        info: &LinkGroupInfo,
        rdma: Option<&RdmaGroupInfo>,
        links: Vec<LinkRecord>,
    ) -> Self {
        let (mode, peer_gid, vlan) = match &info.key {
            GroupKey::Rdma {
                role, gid, vlan, ..
            } => {
                let vlan = (*role == Role::Server).then_some(*vlan);
                (RDMA, Some(gid.to_string()), vlan)
            }
            key => (DIRECT, key.peer().map(|gid| gid.to_string()), None),
        };
        let terms = info.terms.as_ref();
        let host = terms.map(|terms| terms.host.to_string());
        Self {
            endpoint,
            id: info.id.to_string(),
            mode: mode.to_owned(),
            role: rdma.map(|group| role(group.role)),
            kind: rdma.map(|group| group.kind.name().to_owned()),
            state: info.state.name().to_owned(),
            connections: info.connections,
            device: info.key.device().map(|device| device.0),
            peer_gid,
            vlan,
            version: terms.map(|terms| version_text(terms.version, terms.release)),
            eid: terms.and_then(|terms| terms.eid).map(|eid| eid.to_string()),
            host: host.filter(|host| !host.is_empty()),
            links,
        }
    }
}

impl LinkRecord {
    pub(crate) fn new(
        info: &LinkInfo,
        queue: Option<&LinkQueueInfo>,
        interface: Option<String>,
    ) -> Self {
        let queue = queue.map(|queue| LinkQueueRecord {
            stats: queue.stats,
            receives: queue.receives,
            credits: queue.credits,
        });
        Self {
            id: info.id.to_string(),
            number: info.number.0,
            state: info.state.name().to_owned(),
            device: info.device.0,
            interface,
            gid: info.local.as_ref().map(|end| end.gid.to_string()),
            peer_gid: info.peer.as_ref().map(|end| end.gid.to_string()),
            is_asymmetric: info.is_asymmetric,
            queue,
        }
    }
}

impl DeviceRecord {
    pub(crate) fn new(endpoint: usize, info: &DeviceInfo) -> Self {
        let (mode, gid, chid) = match &info.kind {
            DeviceKind::Direct { gid, chid } => {
                (DIRECT, Some(gid.to_string()), Some(chid.to_string()))
            }
            DeviceKind::Rdma => (RDMA, None, None),
        };
        Self {
            endpoint,
            name: info.name.clone(),
            mode: mode.to_owned(),
            gid,
            chid,
            pnet_id: info.pnet_id.clone(),
            is_gone: info.is_gone,
            connections: info.connections,
        }
    }
}

impl From<&CandidateInfo> for CandidateRecord {
    fn from(info: &CandidateInfo) -> Self {
        let (mode, device, port, gid) = match &info.transport {
            CandidateTransport::SmcD { device, gid, .. } => {
                (DIRECT, Some(device), None, Some(gid.to_string()))
            }
            CandidateTransport::SmcR {
                device, port, gid, ..
            } => (RDMA, Some(device), Some(*port), Some(gid.to_string())),
            CandidateTransport::Tcp => (TCP, None, None, None),
        };
        Self {
            to: info.to.to_string(),
            mode: mode.to_owned(),
            device: device.cloned(),
            port,
            gid,
            excluded: info.excluded.as_ref().map(ToString::to_string),
        }
    }
}

fn role(role: Role) -> String {
    let name = match role {
        Role::Client => "client",
        Role::Server => "server",
    };
    name.to_owned()
}

fn version_text(version: Version, release: Release) -> String {
    match version.is_v2() {
        true => format!("{}.{}", version.get(), release.get()),
        false => version.get().to_string(),
    }
}

const DIRECT: &str = "SMCD";
const RDMA: &str = "SMCR";
const TCP: &str = "TCP";
const UNIX: &str = "UNIX";
