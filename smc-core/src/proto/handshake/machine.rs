use std::time::Instant;

use super::{Established, Fallback, Work, WorkDone};
use crate::error::Error;
use crate::proto::group::GroupId;

/// One side of a handshake; see the [module](super) for the contract.
pub trait Machine: std::fmt::Debug + Send {
    /// Bytes received, at most [`wants`](Self::wants) at a time. Returns how many were taken; the
    /// rest is not part of the handshake.
    fn handle_bytes(&mut self, now: Instant, bytes: &[u8]) -> usize;

    /// The peer closed the connection.
    fn handle_closed(&mut self);

    /// Reading or writing failed; the machine aborts with this error.
    fn handle_io_error(&mut self, error: Error);

    /// The peer has our CONFIRM already: it was given in advance, for the ACCEPT that was received
    /// last. Of meaning to a client of SMC-D alone.
    fn handle_confirmed(&mut self);

    /// The work that was asked for has an outcome. What does not fit the work that was asked for
    /// is a bug of the caller and aborts.
    fn handle_done(&mut self, now: Instant, done: WorkDone);

    /// The link group that [`WorkDone::Entered`] brought was terminated
    /// ([`group::RegistryOutput::Terminate`](crate::proto::group::RegistryOutput::Terminate)).
    fn handle_terminated(&mut self);

    /// Time has passed.
    fn handle_timeout(&mut self, now: Instant);

    /// How many bytes to read at most; zero while the machine waits for something else or is at
    /// its end.
    fn wants(&self) -> usize;

    /// The next thing to do, until `None`.
    fn poll_output(&mut self) -> Option<HandshakeOutput>;

    /// When [`handle_timeout`](Self::handle_timeout) has to be called at the latest.
    fn poll_timeout(&self) -> Option<Instant>;

    /// What the machine waits for, for logs; `None` when it is at its end.
    fn state(&self) -> Option<&'static str>;
}

/// What there is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HandshakeOutput {
    /// Send these bytes on the TCP connection, before anything that follows.
    Send(Vec<u8>),
    /// Do this and report with [`Machine::handle_done`].
    Work(Work),
    /// Release what work has brought so far; another device is tried.
    Discard,
    /// The peer says that it does not have our link group:
    /// [`Registry::handle_out_of_sync`](crate::proto::group::Registry::handle_out_of_sync).
    OutOfSync(GroupId),
    /// The connection stands. Nothing more is sent or received on TCP.
    Established(Box<Established>),
    /// The stream stays TCP.
    Fallback(Fallback),
    /// The connection failed; close it.
    Abort(Error),
}
