//! The CLC handshake (connection layer control) as a machine, [`Handshake`].
//!
//! ```text
//!   Client                                            Server
//!   device search                                        |
//!      | ------------------ PROPOSAL ------------------> |
//!      |                                              screening; for a device:
//!      |                                              Reach, Enter, Register
//!      | <------------------- ACCEPT ------------------- |
//!   Reach, Enter, Register, Attach                       |
//!      | ------------------ CONFIRM -------------------> |
//!   Open                                              Open, Attach
//!   Established                                       Established
//! ```
//!
//! That is SMC-D, with the [`Work`] of each side. `steps.rs` has all sequences, and for each step
//! what follows from an error, a timeout and the end of the link group. With SMC-R both sides have
//! more to do:
//!
//! * First contact: [`Work::OpenLink`] and [`Work::PrepareRmb`] before the own message,
//!   [`Work::BindPeer`] and [`Work::ConnectLink`] after the peer's, and then, when CONFIRM has been
//!   sent, [`Work::ConfirmLink`] over the new link. Its failure is still answered with a DECLINE,
//!   or the peer's is waited for. A TCP connection that the peer closes meanwhile does not count:
//!   the peer may have finished already.
//! * In a group that exists: [`Work::PrepareRmb`] and [`Work::ConfirmRkey`] before the own message,
//!   [`Work::BindPeer`] after the peer's.
//!
//! A DECLINE may take the place of every message; then the stream stays TCP, which is a
//! [`HandshakeOutput::Fallback`] and no error. What the protocol calls fatal is a
//! [`HandshakeOutput::Abort`]: the TCP connection has to be closed, there is nothing to fall back to.
//!
//! # Contract
//!
//! After each `handle_*` call, drain [`Handshake::poll_output`] until `None` and perform the outputs
//! in that order; then wait for the first of
//!
//! * bytes, if [`Handshake::wants`] is not zero: read **no more** than that many, because what
//!   follows a message may be application data;
//! * the outcome of the [`Work`] that was asked for, of which there is at most one at a time;
//! * the time that [`Handshake::poll_timeout`] names.
//!
//! The outcome is [`HandshakeOutput::Established`], [`HandshakeOutput::Fallback`] or
//! [`HandshakeOutput::Abort`]; after it nothing follows and all inputs are ignored. Work still under
//! way is to be cancelled then.
//! What work has acquired (membership in a link group, a buffer, an attachment) is kept by the
//! caller: for the connection when it is established, to be released on [`HandshakeOutput::Discard`],
//! [`HandshakeOutput::Fallback`] and [`HandshakeOutput::Abort`].
//!
//! # Example
//!
//! The drive loop over a blocking transport and blocking device work. An async shell does the same
//! with `select` in the place of the last step.
//!
//! ```
//! use std::io::{self, Read, Write};
//! use std::sync::Arc;
//! use std::time::Instant;
//!
//! use smc_core::error::{Error, FallbackCause};
//! use smc_core::proto::handshake::{
//!     Established, Fallback, Handshake, HandshakeConfig, HandshakeOutput, TcpPath, Work, WorkDone,
//! };
//!
//! enum Outcome {
//!     Smc(Box<Established>),
//!     Tcp(Fallback),
//! }
//!
//! /// Does device work and keeps what it brings.
//! trait Worker {
//!     fn carry_out(&mut self, work: Work) -> WorkDone;
//!     fn release_all(&mut self);
//! }
//!
//! fn drive(
//!     machine: &mut Handshake,
//!     tcp: &mut (impl Read + Write),
//!     worker: &mut impl Worker,
//! ) -> Result<Outcome, Error> {
//!     loop {
//!         let mut done = None;
//!         while let Some(output) = machine.poll_output() {
//!             match output {
//!                 HandshakeOutput::Send(bytes) => {
//!                     if let Err(error) = tcp.write_all(&bytes) {
//!                         machine.handle_io_error(error.into());
//!                     }
//!                 }
//!                 HandshakeOutput::Work(work) => done = Some(worker.carry_out(work)),
//!                 HandshakeOutput::Discard => worker.release_all(),
//!                 HandshakeOutput::OutOfSync(_group) => { /* registry.handle_out_of_sync(group) */ }
//!                 HandshakeOutput::Established(established) => return Ok(Outcome::Smc(established)),
//!                 HandshakeOutput::Fallback(fallback) => {
//!                     worker.release_all();
//!                     return Ok(Outcome::Tcp(fallback));
//!                 }
//!                 HandshakeOutput::Abort(error) => {
//!                     worker.release_all();
//!                     return Err(error);
//!                 }
//!                 _ => {}
//!             }
//!         }
//!         match done {
//!             Some(done) => machine.handle_done(Instant::now(), done),
//!             None => {
//!                 let mut buf = vec![0; machine.wants()];
//!                 match tcp.read(&mut buf) {
//!                     Ok(0) => machine.handle_closed(),
//!                     Ok(n) => {
//!                         machine.handle_bytes(Instant::now(), &buf[..n]);
//!                     }
//!                     Err(error) => machine.handle_io_error(error.into()),
//!                 }
//!             }
//!         }
//!     }
//! }
//!
//! // A host without devices declines, and its stream stays TCP.
//! # struct NoDevice;
//! # impl Worker for NoDevice {
//! #     fn carry_out(&mut self, _: Work) -> WorkDone { unreachable!() }
//! #     fn release_all(&mut self) {}
//! # }
//! # let mut worker = NoDevice;
//! let config = Arc::new(HandshakeConfig::new(vec![]));
//! let mut client = Handshake::client(Instant::now(), config, &TcpPath::default());
//! let mut tcp = io::Cursor::new(Vec::new());
//! let Outcome::Tcp(fallback) = drive(&mut client, &mut tcp, &mut worker)? else { panic!() };
//! assert_eq!(fallback.reason.cause, FallbackCause::NoDevice);
//! # Ok::<(), Error>(())
//! ```

mod attempt;
mod client;
mod config;
mod crossing;
mod decline;
mod machine;
mod message_buffer;
mod offer;
mod outcome;
mod ports;
mod select;
mod server;
mod steps;
mod work;

pub use config::{
    CLC_TIMEOUT, CONFIRM_LINK_TIMEOUT, DEFAULT_SEID, DirectDevice, HandshakeConfig,
    HandshakeTimeouts, Interface, LATE_DECLINE_TIMEOUT, Subnet, TcpPath, WORK_TIMEOUT,
};
pub use crossing::CrossingDecline;
pub(crate) use decline::{DeclineCause, PEER_DECLINED};
pub use machine::{Handshake, HandshakeOutput};
pub use offer::ClientOffer;
pub use outcome::{
    DirectPath, Established, Fallback, PeerAccess, PeerBuffer, RdmaPath, Role, Transport,
};
pub use ports::{RdmaConfig, RdmaPort};
pub use work::{LinkChoice, LocalRmb, PeerRmb, RmbError, Work, WorkDone};

#[cfg(test)]
mod tests;
