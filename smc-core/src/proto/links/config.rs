//! Limits, timeouts and negotiated values of the links of a group.

use std::time::Duration;

use smc_wire::llc::{ByteOrder, Dialect};

/// Configuration of the links of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LlcConfig {
    /// Idle time after which a link is tested; `None` for never. 30 s.
    pub test_link: Option<Duration>,
    /// Requests about local keys that may be unanswered at a time, at least 1, and 2 with a peer
    /// that is [known to answer several](LlcTerms::is_linux). Default 1, which peers are
    /// known to expect (docs/spec/llc.md#flows).
    pub rkeys_in_flight: usize,
    /// Wanted number of links in a link group within the negotiated number, 1 or 2. Default 2.
    pub max_links: u8,
    /// A server without another port offers a second link on the same one, as Linux does: a client
    /// with two ports then survives the loss of one. Default true.
    pub same_device: bool,
    /// How long to wait for what.
    pub timeouts: LlcTimeouts,
}

impl Default for LlcConfig {
    fn default() -> Self {
        Self {
            test_link: Some(Duration::from_secs(30)),
            rkeys_in_flight: 1,
            max_links: 2,
            same_device: true,
            timeouts: LlcTimeouts::default(),
        }
    }
}

/// How long to wait for what (docs/spec/llc.md#flows).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LlcTimeouts {
    /// The answer to a request, and the server's for CONFIRM LINK at first contact. 2 s.
    pub response: Duration,
    /// CONFIRM LINK at first contact, client. 4 s.
    pub first_confirm: Duration,
    /// CONFIRM LINK on another link, both sides. 5 s.
    pub added_confirm: Duration,
    /// Work of the local devices: opening, connecting, registering. 5 s each; a client rejects a
    /// link that it cannot accept within `response`.
    pub work: Duration,
    /// The time that a request about a key may wait for its turn. 20 s.
    pub turn: Duration,
    /// The completion of a DELETE LINK that ends the group. 2 s.
    pub delete_all: Duration,
    /// The same, until the message is repeated to a peer that may be adding a link. 200 ms: Linux
    /// completes that after some 30 ms.
    pub delete_all_retry: Duration,
    /// The same for the response to such a message, which the peer does not always acknowledge
    /// (docs/spec/link-groups.md#end). 100 ms.
    pub delete_all_answer: Duration,
}

impl Default for LlcTimeouts {
    fn default() -> Self {
        Self {
            response: Duration::from_secs(2),
            first_confirm: Duration::from_secs(4),
            added_confirm: Duration::from_secs(5),
            work: Duration::from_secs(5),
            turn: Duration::from_secs(20),
            delete_all: Duration::from_secs(2),
            delete_all_retry: Duration::from_millis(200),
            delete_all_answer: Duration::from_millis(100),
        }
    }
}

/// Values that a handshake negotiated for a link group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LlcTerms {
    /// Version of the messages. The byte order is an initial value; the peer's is detected from its
    /// messages.
    pub dialect: Dialect,
    /// Most links: negotiated in v2.1, else 2.
    pub max_links: u8,
    /// Most connections as negotiated in v2.1, else 0.
    pub max_connections: u8,
    /// Whether the peer announces each further RMB by CONFIRM RKEY. Known of Linux; otherwise from
    /// the first CONFIRM RKEY of the peer on.
    pub confirms_rkeys: bool,
    /// Whether the peer is Linux, by what it states. Linux answers several requests about keys at a
    /// time, each at once, and an RMB of it is one element, of one connection.
    pub is_linux: bool,
    /// Whether RMBs stay announced when their connections have ended, so that further connections
    /// need no CONFIRM RKEY: the ends have agreed on a single link
    /// (docs/spec/extensions.md#single-link).
    pub keeps_rkeys: bool,
    /// Whether the ends exchange a key on the first link, by which ACCEPT and CONFIRM of further
    /// connections are authenticated (docs/spec/extensions.md#authentication).
    pub authenticates: bool,
    /// Whether the ends grant receive credits, without which nothing is sent
    /// (docs/spec/extensions.md#receive-credits).
    pub has_credits: bool,
}

impl LlcTerms {
    /// Version 1: two links.
    pub const V1: Self = Self {
        dialect: Dialect::V1,
        max_links: 2,
        max_connections: 0,
        confirms_rkeys: false,
        is_linux: false,
        keeps_rkeys: false,
        authenticates: false,
        has_credits: false,
    };

    /// Version 2 before release 1: two links, with a little-endian peer, as Linux hosts with RoCE
    /// usually are.
    pub const V2: Self = Self {
        dialect: Dialect::V2(ByteOrder::Little),
        ..Self::V1
    };

    /// Version 2.1 with what was negotiated.
    #[must_use]
    pub const fn v2_1(max_links: u8, max_connections: u8) -> Self {
        Self {
            max_links,
            max_connections,
            ..Self::V2
        }
    }
}
