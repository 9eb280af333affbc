use std::time::Duration;

use smc_wire::llc::{ByteOrder, Dialect};

/// What holds for the links of an endpoint, by configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LlcConfig {
    /// How long a link may receive no message before it is tested; `None` for never. 30 s.
    pub test_link: Option<Duration>,
    /// Requests about our keys that may be unanswered at a time, at least 1. Default 1, which is
    /// what peers are known to expect; Linux answers any number
    /// (docs/spec/llc.md#flows).
    pub rkeys_in_flight: usize,
    /// Links we want in a link group besides what was negotiated, 1 or 2. Default 2.
    pub max_links: u8,
    /// A server without another port offers a second link on the same one, as Linux does: a client
    /// with two ports then survives the loss of one. Default true.
    pub same_device: bool,
    /// How long to wait for what.
    pub timeouts: Timeouts,
}

impl Default for LlcConfig {
    fn default() -> Self {
        Self {
            test_link: Some(Duration::from_secs(30)),
            rkeys_in_flight: 1,
            max_links: 2,
            same_device: true,
            timeouts: Timeouts::default(),
        }
    }
}

/// How long to wait for what (docs/spec/llc.md#flows).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Timeouts {
    /// The answer to a request, and the server's for CONFIRM LINK at first contact. 2 s.
    pub response: Duration,
    /// CONFIRM LINK at first contact, client. 4 s.
    pub first_confirm: Duration,
    /// CONFIRM LINK on another link, both sides. 5 s.
    pub added_confirm: Duration,
    /// Work of our devices: opening, connecting, registering. 5 s.
    pub work: Duration,
    /// A request about a key waits for its turn. 20 s.
    pub turn: Duration,
    /// The completion of a DELETE LINK that ends the group. 2 s.
    pub farewell: Duration,
    /// The same, until it is said again to a peer that may be adding a link. 200 ms: Linux is back
    /// from that after some 30 ms.
    pub farewell_again: Duration,
    /// The same for the answer to one: the peer acknowledges only by luck
    /// (docs/spec/link-groups.md#end). 100 ms.
    pub farewell_answer: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            response: Duration::from_secs(2),
            first_confirm: Duration::from_secs(4),
            added_confirm: Duration::from_secs(5),
            work: Duration::from_secs(5),
            turn: Duration::from_secs(20),
            farewell: Duration::from_secs(2),
            farewell_again: Duration::from_millis(200),
            farewell_answer: Duration::from_millis(100),
        }
    }
}

/// What a handshake has agreed on for a link group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "the protocol's own list")]
pub struct Terms {
    /// Version of the messages. The byte order is what to begin with; that of the peer is learnt
    /// from its messages.
    pub dialect: Dialect,
    /// Most links: negotiated in v2.1, else 2.
    pub max_links: u8,
    /// Most connections as negotiated in v2.1, else 0.
    pub max_connections: u8,
}

impl Terms {
    /// Version 1: two links.
    pub const V1: Self = Self {
        dialect: Dialect::V1,
        max_links: 2,
        max_connections: 0,
    };

    /// Version 2 before release 1: two links. The peer is taken for little-endian, as Linux hosts
    /// with RoCE usually are, until it says otherwise.
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
