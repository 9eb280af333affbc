//! SMC-R in the shell: link groups over queue pairs, and connections that write through a staging
//! ring.
//!
//! ```text
//!   driver -- Received, Completed, LinkDown --> RdmaLinkGroup --- LLC ---> proto::links::LinkGroup
//!                                              |  |
//!                                         CDC  |  | posts
//!                                              v  v
//!   Writer ---- write ----> RdmaConn ---------> LinkSender ---> device::Link
//!   Reader <---- words in front of the RMB's ring
//! ```
//!
//! A handshake enters through its executor. Locks are taken in this order: a connection's, its link
//! sender's; the group's own is a leaf. None is held across an await.
//!
//! A failed link is closed by the driver of its device: its received messages are dispatched before
//! it is closed, because the peer knows that they arrived; and its connections continue on another
//! link only after it is closed, and sends nothing of the staging rings any more.

mod buffer_pool;
mod link_group;
mod link_sender;
mod persist_timer;
mod ports;
mod spare;

pub(crate) use buffer_pool::RdmaBuffer;
pub use link_group::RdmaGroupInfo;
pub(crate) use link_group::RdmaLinkGroup;
pub(crate) use link_sender::{LinkSender, PostResult, SendSlot};
pub(crate) use persist_timer::PersistTimer;
pub(crate) use ports::RdmaPorts;
pub(crate) use spare::Spares;
