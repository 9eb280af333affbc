//! Settings of an endpoint.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use smc_wire::size::SizeCode;
use smc_wire::types::{Eid, Features, PnetId};

use crate::address::Address;
#[cfg(any(feature = "tokio", feature = "smol"))]
use crate::environment::Environment;
use crate::mem::TrustPeers;
use crate::proto::handshake::DEFAULT_SEID;

/// Whether a stream may, must or must not be SMC.
///
/// ```
/// use smc::{Builder, ConnectOptions, Policy};
///
/// // SMC on this host or an error; plain TCP to all others.
/// let builder = Builder::new().policy_for(|addr| match addr.ip().is_loopback() {
///     true => Policy::Require,
///     false => Policy::Never,
/// });
/// // For one connection.
/// let options = ConnectOptions::new().policy(Policy::Prefer);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Policy {
    /// SMC if possible, else TCP.
    #[default]
    Prefer,
    /// SMC or an error.
    Require,
    /// Plain TCP; SMC is not announced to peers.
    Never,
}

impl Policy {
    /// The name in logs.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Prefer => "prefer",
            Self::Require => "require",
            Self::Never => "never",
        }
    }
}

/// By what destinations (or, on a listener, clients) get their policy.
#[derive(Clone)]
pub(crate) enum PolicyRule {
    /// All have this one.
    Fixed(Policy),
    /// A function of the application.
    ByAddress(Arc<dyn Fn(&SocketAddr) -> Policy + Send + Sync>),
    /// `SMC_POLICY`.
    #[cfg(any(feature = "tokio", feature = "smol"))]
    Environment(&'static Environment),
}

impl PolicyRule {
    /// The policy for a destination.
    pub(crate) fn of_destination(&self, addr: &Address) -> Policy {
        match (self, addr) {
            (Self::Fixed(policy), _) => *policy,
            (Self::ByAddress(policy), Address::Tcp(addr)) => policy(addr),
            (Self::ByAddress(_), Address::Unix(_)) => Policy::default(),
            #[cfg(any(feature = "tokio", feature = "smol"))]
            (Self::Environment(environment), Address::Tcp(addr)) => {
                environment.policy(addr.ip(), Some(addr.port()))
            }
            #[cfg(any(feature = "tokio", feature = "smol"))]
            (Self::Environment(environment), Address::Unix(_)) => environment.policy_of_unix(),
        }
    }

    /// The policy for a client of a listener.
    pub(crate) fn of_client(&self, addr: &Address) -> Policy {
        match (self, addr) {
            // The client chooses its port.
            #[cfg(any(feature = "tokio", feature = "smol"))]
            (Self::Environment(environment), Address::Tcp(addr)) => {
                environment.policy(addr.ip(), None)
            }
            (rule, _) => rule.of_destination(addr),
        }
    }

    /// The name that tools show.
    #[cfg(feature = "introspection")]
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Fixed(policy) => policy.name(),
            _ => "by address",
        }
    }
}

/// Settings of an endpoint; [`crate::Builder`] makes them.
#[derive(Clone)]
pub(crate) struct EndpointConfig {
    pub(crate) policy: PolicyRule,
    /// Code of the receive buffer's size.
    pub(crate) recv_buffer: SizeCode,
    /// Code of the RMB's size, with SMC-R.
    pub(crate) rmb: SizeCode,
    /// Code of the size of SMC-R's staging rings.
    pub(crate) send_buffer: SizeCode,
    pub(crate) ueids: Vec<Eid>,
    pub(crate) seid_enabled: bool,
    /// SMC also for connections that an IPsec policy applies to.
    pub(crate) bypass_ipsec: bool,
    /// The system EID where no device states one.
    pub(crate) seid: Eid,
    pub(crate) pnet_ids: Vec<PnetId>,
    pub(crate) handshake_timeout: Duration,
    pub(crate) answer_timeout: Duration,
    pub(crate) close_timeout: Duration,
    pub(crate) polling: Duration,
    pub(crate) max_handshakes: usize,
    pub(crate) trust: Option<TrustPeers>,
    /// Features beyond the released protocol to agree on.
    pub(crate) vendor_features: Features,
    /// PROPOSALs in the SYN.
    pub(crate) fast_open: bool,
    /// Tools can see the endpoint.
    #[cfg(feature = "introspection")]
    pub(crate) introspection: bool,
}

/// The features beyond the released protocol that an endpoint has unless it is set otherwise.
pub(crate) const VENDOR_FEATURES: Features = Features::SINGLE_LINK
    .union(Features::AUTHENTICATION)
    .union(Features::EARLY_CONFIRM)
    .union(Features::EARLY_DATA)
    .union(Features::RECEIVE_CREDITS)
    .union(Features::SOCKET_REUSE)
    .union(Features::RDMA_IPV6);

impl Default for EndpointConfig {
    fn default() -> Self {
        Self {
            policy: PolicyRule::Fixed(Policy::Prefer),
            recv_buffer: SizeCode::for_len(RECV_BUFFER).unwrap_or(SizeCode::LINUX_DEFAULT),
            rmb: SizeCode::for_len(RMB).unwrap_or(SizeCode::LINUX_DEFAULT),
            send_buffer: SizeCode::for_len(SEND_BUFFER).unwrap_or(SizeCode::LINUX_DEFAULT),
            ueids: Vec::new(),
            seid_enabled: true,
            bypass_ipsec: false,
            seid: DEFAULT_SEID,
            pnet_ids: Vec::new(),
            handshake_timeout: HANDSHAKE_TIMEOUT,
            answer_timeout: ANSWER_TIMEOUT,
            close_timeout: CLOSE_TIMEOUT,
            polling: default_polling(),
            max_handshakes: HANDSHAKES_MAX,
            trust: None,
            vendor_features: VENDOR_FEATURES,
            fast_open: false,
            #[cfg(feature = "introspection")]
            introspection: true,
        }
    }
}

impl fmt::Debug for EndpointConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EndpointConfig")
            .field("recv_buffer", &self.recv_buffer)
            .field("ueids", &self.ueids)
            .field("polling", &self.polling)
            .finish_non_exhaustive()
    }
}

/// Polling is useless on a single CPU, where the peer runs only while this process does not.
fn default_polling() -> Duration {
    match std::thread::available_parallelism() {
        Ok(cpus) if cpus.get() > 1 => POLLING,
        _ => Duration::ZERO,
    }
}

/// Default receive buffer of SMC-D in bytes, limited by the device. Only pages that were touched
/// take memory.
///
/// In a bulk transfer the writer is ahead by about this size. If the size exceeds a CPU's private
/// cache, both ends find the lines in their shared cache instead of fetching them from the private
/// cache of the other CPU, which is up to three times faster.
pub const RECV_BUFFER: usize = 4 * 1024 * 1024;

/// Default receive buffer of SMC-R in bytes: all of it is pinned, for each connection.
pub const RMB: usize = 1024 * 1024;

/// Default staging ring of SMC-R in bytes: all of it is pinned, for each connection.
pub const SEND_BUFFER: usize = 256 * 1024;

/// Default limit on the memory of connections: this part of what the machine has, or the process's
/// cgroups allow. A quarter leaves memory for the application, and for TCP's buffers of the streams
/// that fall back.
pub const MEMORY_SHARE: u64 = 4;

/// Default polling window: about twice what a wake-up across CPUs costs.
pub const POLLING: Duration = Duration::from_micros(100);

/// How long each message of the handshake may take (docs/spec/handshake.md#timers).
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(6);

/// How long a listener on the same host may stay silent before a connection falls back to TCP.
pub const ANSWER_TIMEOUT: Duration = Duration::from_millis(200);

/// How long a closed connection waits for the peer's close.
pub const CLOSE_TIMEOUT: Duration = Duration::from_secs(120);

/// Handshakes that a listener has under way at a time.
pub const HANDSHAKES_MAX: usize = 256;
