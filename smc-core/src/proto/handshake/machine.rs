use std::time::Instant;

use smc_wire::size::SizeCode;
use smc_wire::types::{DmbToken, Gid};

use super::{Established, Fallback};
use crate::device::DeviceError;
use crate::error::Error;
use crate::proto::group::{DeviceIndex, GroupId, Intent, Key, NoGroup, Seat, Terminated, Terms};

/// One side of a handshake; see the [module](super) for the contract.
pub trait Machine: std::fmt::Debug + Send {
    /// Bytes received, at most [`wants`](Self::wants) at a time. Returns how many were taken; the
    /// rest is not part of the handshake.
    fn handle_bytes(&mut self, now: Instant, bytes: &[u8]) -> usize;

    /// The peer closed the connection.
    fn handle_closed(&mut self);

    /// Reading or writing failed; the machine aborts with this error.
    fn handle_io_error(&mut self, error: Error);

    /// The work that was asked for has an outcome. What does not fit the work that was asked for
    /// is a bug of the caller and aborts.
    fn handle_done(&mut self, now: Instant, done: Done);

    /// The link group that [`Done::Entered`] brought was terminated
    /// ([`group::Output::Terminate`](crate::proto::group::Output::Terminate)).
    fn handle_terminated(&mut self, now: Instant);

    /// Time has passed.
    fn handle_timeout(&mut self, now: Instant);

    /// How many bytes to read at most; zero while the machine waits for something else or is at
    /// its end.
    fn wants(&self) -> usize;

    /// The next thing to do, until `None`.
    fn poll_output(&mut self) -> Option<Output>;

    /// When [`handle_timeout`](Self::handle_timeout) has to be called at the latest.
    fn poll_timeout(&self) -> Option<Instant>;

    /// What the machine waits for, for logs; `None` when it is at its end.
    fn state(&self) -> Option<&'static str>;
}

/// What there is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Output {
    /// Send these bytes on the TCP connection, before anything that follows.
    Send(Vec<u8>),
    /// Do this and report with [`Machine::handle_done`].
    Work(Work),
    /// Release what work has brought so far; another device is tried.
    Discard,
    /// The peer does not know our link group:
    /// [`Registry::terminate`](crate::proto::group::Registry::terminate) it, out of sync.
    Terminate(GroupId),
    /// The connection stands. Nothing more is sent or received on TCP.
    Established(Box<Established>),
    /// The stream stays TCP.
    Fallback(Fallback),
    /// The connection failed; close it.
    Abort(Error),
}

/// Work that takes time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Work {
    /// Ask the device whether it reaches the peer ([`Direct::reach`](crate::device::Direct)).
    /// Answer: [`Done::Reached`].
    Reach {
        /// Our device.
        device: DeviceIndex,
        /// The peer's device.
        peer: Gid,
    },
    /// Get a seat in a link group ([`Registry::enter`](crate::proto::group::Registry::enter)).
    /// Answer: [`Done::Entered`].
    Enter {
        /// Which group.
        key: Key,
        /// How.
        intent: Intent,
    },
    /// Register a receive buffer that the peer may write
    /// ([`Direct::register`](crate::device::Direct)). Answer: [`Done::Registered`].
    Register {
        /// Our device.
        device: DeviceIndex,
        /// Who may write.
        peer: Gid,
        /// How large it has to be.
        size: SizeCode,
    },
    /// Map the peer's buffer ([`Nocopy::attach`](crate::device::Nocopy)). Answer:
    /// [`Done::Attached`].
    Attach {
        /// Our device.
        device: DeviceIndex,
        /// The peer's device.
        peer: Gid,
        /// The buffer.
        token: DmbToken,
    },
    /// Open the new link group to others
    /// ([`Registry::establish`](crate::proto::group::Registry::establish)). Answer:
    /// [`Done::Opened`].
    Open {
        /// The group.
        group: GroupId,
        /// What was agreed.
        terms: Terms,
    },
}

/// What came of [`Work`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Done {
    /// Of [`Work::Reach`].
    Reached(Result<(), DeviceError>),
    /// Of [`Work::Enter`].
    Entered(Result<Seat, NoGroup>),
    /// Of [`Work::Register`]: the token of the buffer.
    Registered(Result<DmbToken, DeviceError>),
    /// Of [`Work::Attach`]: the length of the mapped buffer in bytes.
    Attached(Result<usize, DeviceError>),
    /// Of [`Work::Open`].
    Opened(Result<(), Terminated>),
}
