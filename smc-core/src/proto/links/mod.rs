//! The links of an SMC-R link group, and the LLC messages (link layer control) about them.
//!
//! ```text
//!            first_link, confirm_link          Send, Open, Connect, Map
//!            establish, confirm_rkey    +-----------+  Links, Stop, Move, Close
//!   shell ------------------------------> LinkGroup |----------------------> shell
//!            handle_message, _sent      |           |  FirstLink, RkeyConfirmed
//!            handle_link_down, _timeout +-----------+  Terminate, Ended, Notice
//! ```
//!
//! A [`LinkGroup`] is driven in the background by device events and by its timers, never by
//! handshakes or streams: a request of the peer is answered at once, independent of local waits.
//! All waits are a timer and a state; a call costs time in proportion to the links and keys it
//! affects.
//!
//! # What the shell calls, and when
//!
//! After each call, drain [`LinkGroup::poll_output`] and apply the outputs in their order, then
//! read [`LinkGroup::poll_timeout`]. All messages received on a link are passed to
//! [`LinkGroup::handle_message`], except CDC (first byte 0xFE).
//!
//! **First contact, client** (the handshake waits for what is marked `<-`):
//!
//! 1. queue pair made: [`LinkGroup::new`], [`first_link`](LinkGroup::first_link),
//!    [`handle_candidates`](LinkGroup::handle_candidates);
//! 2. local RMB registered: [`add_rmb`](LinkGroup::add_rmb);
//! 3. ACCEPT names the peer's end: [`first_peer`](LinkGroup::first_peer), and its RMB:
//!    [`add_rtoken`](LinkGroup::add_rtoken); the shell connects the queue pair itself;
//! 4. CONFIRM is sent: [`confirm_link`](LinkGroup::confirm_link)
//!    `<-` [`LinkGroupOutput::FirstLink`] (4 s; CONFIRM LINK may arrive before this call, it is
//!    stored);
//! 5. [`establish`](LinkGroup::establish).
//!
//! **First contact, server**: 1, 2; ACCEPT is sent, CONFIRM arrives; 3; 4 (sends CONFIRM LINK, 2
//! s); 5 (offers another link, in the background).
//!
//! **Reuse, server**: the link by [`link_for`](LinkGroup::link_for); register the RMB with all
//! [`devices`](LinkGroup::devices); [`confirm_rkey`](LinkGroup::confirm_rkey) `<-`
//! [`LinkGroupOutput::RkeyConfirmed`]; ACCEPT; CONFIRM comes; `add_rtoken`.
//!
//! **Reuse, client**: the link that ACCEPT names, by [`link_for`](LinkGroup::link_for); register;
//! `add_rtoken`; `confirm_rkey` `<-` `RkeyConfirmed`; CONFIRM.
//!
//! **End of a connection**, or of a set-up that got that far:
//! [`release_rtoken`](LinkGroup::release_rtoken), [`delete_rkey`](LinkGroup::delete_rkey) `<-`
//! [`LinkGroupOutput::RkeyDeleted`]; only then the memory is free for others.
//!
//! **Failover**: [`handle_link_down`](LinkGroup::handle_link_down) (or an unanswered TEST LINK, or
//! a DELETE LINK of the peer) gives [`LinkGroupOutput::Stop`]. When nothing is received on the link
//! any more, the shell calls [`handle_stopped`](LinkGroup::handle_stopped), which chooses the other
//! link and gives [`LinkGroupOutput::Move`]: the shell binds the connections to it, starts their
//! failover there and calls [`handle_moved`](LinkGroup::handle_moved). [`LinkGroupOutput::Close`]
//! follows. Without another link, [`LinkGroupOutput::Terminate`] follows at once.
//!
//! **End of the group**: the registry decides, and the shell ends the connections and then calls
//! [`end`](LinkGroup::end). If the peer or the network has ended all links,
//! [`LinkGroupOutput::Terminate`] reports that to the registry. In all cases
//! [`LinkGroupOutput::Close`] for each link and [`LinkGroupOutput::Ended`] follow.

mod add_link_client;
mod add_link_server;
mod authentication;
mod config;
mod confirm_link;
mod credits;
mod delete_link;
mod dispatch;
mod failover;
mod flow;
mod group_end;
mod link;
mod link_group;
mod long_message;
mod notice;
mod output;
mod peer_rmb;
mod ports;
mod request_add_link;
mod rkeys;
mod rmbs;
mod rtoken_exchange;
mod rtokens;
mod send_queue;
mod stale_deletes;
mod test_link;

pub use authentication::{AuthenticatedPart, Authentications, EarlyDataHash, HandshakeHash};
pub use config::{LlcConfig, LlcTerms, LlcTimeouts};
pub use credits::{CREDITS_MAX, CreditError, Credits, INITIAL_CREDITS, granted_credits};
pub use link::{GroupType, LinkChoice, LinkId, LinkInfo, LinkState};
pub use link_group::LinkGroup;
pub use notice::{DropReason, LinkDownCause, NotAdded, Notice};
pub use output::{FirstLinkError, LinkGroupOutput, OpTag, PortCandidate, RkeyError, RmbKey};
pub use peer_rmb::PeerRmb;
pub use rtokens::{RTOKENS_MAX, RtokenError, RtokenId};
pub use send_queue::{
    NextPost, Overflow, Posted, SEND_QUEUE_TIMEOUT, SendCounters, SendQueue, SendTimeout,
    WAITING_MAX,
};

/// Identifies a local receive buffer within a link group; the number is chosen by the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RmbId(pub u64);

#[cfg(test)]
mod tests;
