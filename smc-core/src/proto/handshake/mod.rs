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
//!   EstablishGroup                                    EstablishGroup, Attach
//!   Established                                       Established
//! ```
//!
//! That is SMC-D, with the [`Work`] of each side. `steps.rs` has all sequences, and for each step
//! what follows from an error, a timeout and the end of the link group. With SMC-R both sides have
//! more to do:
//!
//! * First contact: [`Work::OpenLink`] and [`Work::PrepareRmb`] before the local message,
//!   [`Work::BindPeer`] and [`Work::ConnectLink`] after the peer's, and then, when CONFIRM has been
//!   sent, [`Work::ConfirmLink`] over the new link. Its failure is still answered with a DECLINE,
//!   or the peer's is waited for. A TCP connection that the peer closes meanwhile does not count:
//!   the peer may have finished already.
//! * In a group that exists: [`Work::PrepareRmb`] and [`Work::ConfirmRkey`] before the local
//!   message, [`Work::BindPeer`] after the peer's.
//!
//! A DECLINE may take the place of every message; then the stream stays TCP, which is a
//! [`HandshakeOutput::Fallback`] and no error. What the protocol calls fatal is a
//! [`HandshakeOutput::Abort`]: the TCP connection has to be closed, there is nothing to fall back
//! to.
//!
//! # Contract
//!
//! After each `handle_*` call, drain [`Handshake::poll_output`] until `None` and perform the
//! outputs in that order. The result of an output may be passed in at once, before the next one is
//! polled: the failure of a [`HandshakeOutput::Send`], or the outcome of work that was done
//! already. Then wait for the first of
//!
//! * bytes, if [`Handshake::bytes_needed`] is not zero: read **no more** than that many, because
//!   what follows a message may be application data;
//! * the outcome of the [`Work`] that was asked for, of which there is at most one at a time;
//! * the time that [`Handshake::poll_timeout`] names;
//! * the termination of the link group, once work has entered one
//!   ([`Handshake::handle_terminated`]).
//!
//! The outcome is [`HandshakeOutput::Established`], [`HandshakeOutput::Fallback`] or
//! [`HandshakeOutput::Abort`]; after it nothing follows and all inputs are ignored. Work still
//! under way is to be cancelled then. What work has acquired (membership in a link group, a buffer,
//! an attachment) is kept by the caller: for the connection when it is established, to be released
//! on [`HandshakeOutput::Discard`], [`HandshakeOutput::Fallback`] and [`HandshakeOutput::Abort`].
//! `handshake/mod.rs` of the crate `smc` is such a loop.

mod attempt;
mod client;
mod config;
mod crossing;
mod decline;
mod device_scan;
mod early;
mod machine;
mod rdma_port;
mod server;
mod steps;

pub use attempt::{
    DirectParams, EARLY_RDMA, Established, Fallback, PeerAccess, PeerBuffer, RdmaParams, Transport,
};
pub use client::{ClientProposal, OfferedDevices};
pub use config::{
    CLC_TIMEOUT, CONFIRM_LINK_TIMEOUT, DEFAULT_SEID, DirectDevice, HandshakeConfig,
    HandshakeTimeouts, Interface, LATE_DECLINE_TIMEOUT, LATE_SERVER_DECLINE_TIMEOUT, Subnet,
    TcpPath, WORK_TIMEOUT,
};
pub use crossing::CrossingDecline;
pub(crate) use decline::{DeclineCause, PEER_DECLINED};
pub use early::{EarlyConfirm, EarlyData, EarlyDataPolicy, RefusedEarly};
pub use machine::{Handshake, HandshakeOutput};
pub use rdma_port::{DeviceExclusion, RdmaConfig, RdmaPort, Routes};
pub use steps::{LocalRmb, RmbError, Work, WorkDone};

#[cfg(test)]
mod tests;
