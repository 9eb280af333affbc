//! SMC-R in the shell: link groups over queue pairs, and connections that write through a staging
//! ring.
//!
//! ```text
//!   driver --- Received, Sent, LinkDown ---> RdmaGroup --- LLC ---> proto::links::LinkGroup
//!                                              |  |
//!                                         CDC  |  | posts in turn
//!                                              v  v
//!   Sender ---- write ----> RdmaConn ---------> LinkSender ---> device::Link
//!   Receiver <-- words in front of the RMB's ring
//! ```
//!
//! A handshake gets there through `work`. Locks are taken in this order: a connection's, its
//! sender's; the group's own is a leaf. None is held while something is waited for.
//!
//! A link that is given up goes through the driver of its device: what it has received is handed
//! out before it is closed, because the peer knows that it arrived; and only when it is closed,
//! and sends nothing of the staging rings any more, its connections go on over another one.

mod conn;
mod link_group;
mod link_sender;
mod memory;
mod persist_timer;
mod ports;
pub(crate) mod work;

pub(crate) use conn::{RdmaConn, RdmaConnHandle};
pub(crate) use link_group::RdmaGroup;
pub use link_group::RdmaGroupInfo;
pub(crate) use link_sender::LinkSender;
pub(crate) use ports::Ports;
