//! UNIX sockets as addresses: how a client and a listener see that both support SMC, and listening.
//!
//! The handshake is that of TCP, with the same messages, on the UNIX socket itself. No byte of it
//! is sent to an end that does not expect it, as each end sees the name that the other one is bound
//! to, and that name has a mark:
//!
//! - A client that is going to send a PROPOSAL is bound to an abstract name with a prefix
//!   ([`names::client`]). A listener gets that name from `accept`.
//! - A listener at a path is bound by way of directories that do not change the path
//!   ([`names::of_listener`]), so that the system keeps another spelling of it. The path works as
//!   any other for clients without SMC, and access to it is what the system says.
//! - An abstract name has one spelling. A second socket listens at the name with a suffix, and
//!   clients with SMC connect to that first. They use it if it belongs to their own user or to
//!   root, as another user could listen there.
//!
//! Without the marks both ends are plain. The mark of a listener ends with its socket. It goes
//! along when the socket is inherited or passed: a client whose PROPOSAL has no answer in CLC
//! connects again without a mark.
//!
//! The device that a peer names has to belong to the process that the socket reports
//! (`SO_PEERCRED`).

mod connect;
mod idle;
mod kept;
mod listener;
pub(crate) mod names;
mod peer_cred;
mod places;

pub(crate) use connect::{Connected, connect};
pub(crate) use idle::{ConnectedSocket, Destination, IdleSockets, is_out_of_descriptors};
pub(crate) use kept::{Expiry, KeptSockets, KnownClient, NextConnection};
pub use listener::UnixListener;
pub(crate) use listener::{ListeningUnix, listen, listen_on};
pub use peer_cred::PeerCred;

#[cfg(test)]
mod tests;
