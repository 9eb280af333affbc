//! The CLC handshake (connection layer control) as two machines, [`Client`] and [`Server`].
//!
//! ```text
//!   Client                                            Server
//!   device search                                     ExpectProposal
//!      | ------------------ PROPOSAL ------------------> |  screening, device selection:
//!   ExpectAccept                                         |  ExpectReach, ExpectSeat,
//!      |                                                 |  ExpectBuffer
//!      | <------------------- ACCEPT ------------------- |
//!   ExpectSeat, ExpectBuffer, ExpectAttachment        ExpectConfirm
//!      | ------------------ CONFIRM -------------------> |
//!   ExpectOpening                                     ExpectOpening, ExpectAttachment
//!   Established                                       Established
//! ```
//!
//! That is SMC-D. With SMC-R both sides have more to do:
//!
//! * First contact: [`Work::OpenLink`] and [`Work::PrepareRmb`] before the own message,
//!   [`Work::BindPeer`] and [`Work::ConnectLink`] after the peer's, and then, when CONFIRM has been
//!   sent, [`Work::ConfirmLink`] over the new link. Its failure is still answered with a DECLINE,
//!   or the peer's is waited for. A TCP connection that the peer closes meanwhile does not count:
//!   the peer may be through already.
//! * In a group that exists: [`Work::PrepareRmb`] and [`Work::ConfirmRkey`] before the own message,
//!   [`Work::BindPeer`] after the peer's.
//!
//! A DECLINE may take the place of every message; then the stream stays TCP, which is an
//! [`Output::Fallback`] and no error. What the protocol calls fatal is an [`Output::Abort`]: the
//! TCP connection has to be closed, there is nothing to fall back to.
//!
//! # Contract
//!
//! Both are a [`Machine`]. After each `handle_*` call, drain [`Machine::poll_output`] until `None`
//! and carry out what it says in that order; then wait for whatever comes first of
//!
//! * bytes, if [`Machine::wants`] is not zero: read **no more** than that many, because what
//!   follows a message may be application data;
//! * the outcome of the [`Work`] that was asked for, of which there is at most one at a time;
//! * the time that [`Machine::poll_timeout`] names.
//!
//! The outcome is [`Output::Established`], [`Output::Fallback`] or [`Output::Abort`]; after it
//! nothing follows and all inputs are ignored. Work still under way is to be cancelled then.
//! Whatever work has brought (a seat in a link group, a buffer, an attachment) is kept by the
//! caller: for the connection when it is established, to be released on [`Output::Discard`],
//! [`Output::Fallback`] and [`Output::Abort`].
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
//! use smc_core::Error;
//! use smc_core::proto::handshake::{
//!     Client, Config, Done, Established, Fallback, Machine, Output, Path, Work,
//! };
//! use smc_wire::types::DeclineCode;
//!
//! enum Outcome {
//!     Smc(Box<Established>),
//!     Tcp(Fallback),
//! }
//!
//! /// Does device work and keeps what it brings.
//! trait Worker {
//!     fn carry_out(&mut self, work: Work) -> Done;
//!     fn release_all(&mut self);
//! }
//!
//! fn drive(
//!     machine: &mut dyn Machine,
//!     tcp: &mut (impl Read + Write),
//!     worker: &mut impl Worker,
//! ) -> Result<Outcome, Error> {
//!     loop {
//!         let mut done = None;
//!         while let Some(output) = machine.poll_output() {
//!             match output {
//!                 Output::Send(bytes) => {
//!                     if let Err(error) = tcp.write_all(&bytes) {
//!                         machine.handle_io_error(error.into());
//!                     }
//!                 }
//!                 Output::Work(work) => done = Some(worker.carry_out(work)),
//!                 Output::Discard => worker.release_all(),
//!                 Output::OutOfSync(_group) => { /* registry.out_of_sync(group) */ }
//!                 Output::Established(established) => return Ok(Outcome::Smc(established)),
//!                 Output::Fallback(fallback) => {
//!                     worker.release_all();
//!                     return Ok(Outcome::Tcp(fallback));
//!                 }
//!                 Output::Abort(error) => {
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
//! # struct Nobody;
//! # impl Worker for Nobody {
//! #     fn carry_out(&mut self, _: Work) -> Done { unreachable!() }
//! #     fn release_all(&mut self) {}
//! # }
//! # let mut worker = Nobody;
//! let config = Arc::new(Config::new(vec![]));
//! let mut client = Client::new(Instant::now(), config, &Path::default());
//! let mut tcp = io::Cursor::new(Vec::new());
//! let Outcome::Tcp(fallback) = drive(&mut client, &mut tcp, &mut worker)? else { panic!() };
//! assert_eq!(fallback.reason.local, DeclineCode::NOSMCDEV);
//! # Ok::<(), Error>(())
//! ```

mod client;
mod config;
mod crossing;
mod engine;
mod inbox;
mod machine;
mod offer;
mod outcome;
mod ports;
mod rdma;
mod select;
mod server;
mod work;

pub use client::Client;
pub use config::{
    CLC_TIMEOUT, CONFIRM_LINK_TIMEOUT, Config, DEFAULT_SEID, DirectDevice, Interface,
    LATE_DECLINE_TIMEOUT, Path, Subnet, Timeouts, WORK_TIMEOUT,
};
pub use crossing::CrossingDecline;
pub use machine::{Machine, Output};
pub use offer::Offer;
pub use outcome::{
    DirectPath, Established, Fallback, PeerAccess, PeerBuffer, RdmaPath, Role, Transport,
};
pub use ports::{RdmaConfig, RdmaPort};
pub use server::Server;
pub use work::{
    ConfirmFailure, Done, LinkChoice, LinkTerms, LocalRmb, PeerRmb, RkeyFailure, RmbError,
    TableFull, Work,
};

#[cfg(test)]
mod tests;
