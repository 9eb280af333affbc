//! CLC: connection layer control, the three-message handshake on the TCP connection.
//!
//! ```text
//!   client                                server
//!      | ------------ PROPOSAL -------------> |   what the client can do
//!      | <------------- ACCEPT -------------- |   what was chosen, the server's end
//!      | ------------- CONFIRM -------------> |   the client's end
//! ```
//!
//! A DECLINE may take the place of each of them; both ends then keep using the connection as plain
//! TCP. Every message has two forms here. A *view* ([`Message`], [`ProposalView`],
//! [`AcceptConfirmView`], [`DeclineView`]) borrows the received bytes, was checked once, and shows
//! everything down to reserved bits through `as_bytes`. A *repr* ([`Proposal`], [`AcceptConfirm`],
//! [`Decline`]) owns the meaning, and `emit`s it in the canonical form: reserved fields zero,
//! regions without gaps, the eyecatchers that Linux writes.
//!
//! To read from a stream, use [`Frame::peek`].

mod accept;
mod decline;
mod devices;
mod first_contact;
mod frame;
mod header;
mod message;
mod proposal;
pub(crate) mod raw;
mod writer;

pub use accept::{AcceptConfirm, AcceptConfirmView, Body, DirectEnd, RdmaEnd, Step, Terms};
pub use decline::{Decline, DeclineView};
pub use devices::{Device, Devices};
pub use first_contact::{FirstContact, GidList};
pub use frame::Frame;
pub use header::{ClcType, Eyecatcher, HEADER_LEN, Header, TRAILER_LEN};
pub use message::Message;
pub use proposal::{
    DirectExtension, DirectExtensionView, GidEntry, IpArea, IpAreaView, Ipv6Prefix, Proposal,
    ProposalView, SmcdArea, V2Extension, V2ExtensionView,
};

#[cfg(test)]
mod tests;
