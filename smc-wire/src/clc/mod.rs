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
//! TCP. [`Proposal`], [`AcceptConfirm`] and [`Decline`] have the contents of a message. `parse`
//! checks all that can be checked without context, and `emit` writes the canonical form: reserved
//! fields zero, regions without gaps, the eyecatchers that Linux writes.
//!
//! To read from a stream, use [`Frame::peek`].
//!
//! [`Extensions`] are for peers that have stated [`Features`](crate::types::Features):
//! [`Message::parse_extended`] reads a message with them.

pub(crate) mod accept;
mod decline;
mod devices;
pub(crate) mod extension;
pub(crate) mod first_contact;
mod frame;
pub(crate) mod header;
mod message;
pub(crate) mod proposal;

pub use accept::{AcceptConfirm, AcceptKind, Body, DirectEnd, RdmaEnd, Terms};
pub use decline::Decline;
pub use devices::OfferedDevice;
pub use extension::{Authentication, EarlyRdmaEnd, ExtensionPayload, ExtensionType, Extensions};
pub use first_contact::{FirstContact, GidList};
pub use frame::Frame;
pub use header::{ClcType, Eyecatcher, HEADER_LEN, Header, TRAILER_LEN};
pub use message::Message;
pub use proposal::{
    DirectExtension, GidEntry, IpArea, Ipv6Prefix, Proposal, SmcdArea, V2Extension,
};

#[cfg(test)]
mod tests;
