use smc_wire::types::{DmbToken, Gid};

/// What a device reports when it is drained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The peer wrote into this buffer of ours and signalled. Several signals may be reported as
    /// one; a report without a write is harmless.
    Signalled(DmbToken),
    /// This buffer of the peer can no longer be written.
    BufferGone(DmbToken),
    /// The peer's device went away, with all its buffers: process ended, partition reset.
    PeerGone(Gid),
    /// A peer sent an event of its own accord ([`super::PeerEvents`]).
    Peer {
        /// Who sent it.
        from: Gid,
        /// What it says.
        event: PeerEvent,
    },
    /// Our device was removed; all its connections end.
    DeviceGone,
}

/// Events between devices (ISM software events).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PeerEvent {
    /// The link group to the sender ends (code 0x80).
    Shutdown,
    /// Asks for an answer (code 0x83, request).
    TestRequest,
    /// The answer (code 0x83, response).
    TestResponse,
}
