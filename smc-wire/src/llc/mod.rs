//! LLC: link layer control of SMC-R, the messages by which two peers manage links and RMB keys.
//!
//! Each message is one RDMA SEND on a queue pair of the link group. [`Message::parse`] takes
//! the bytes of one receive completion and gives one of the nine messages, such as
//! [`ConfirmLink`], in version 1 or 2; its long lists borrow the received bytes. `emit` writes a
//! message into the caller's buffer, reserved fields zero. CDC messages (first byte `0xFE`) arrive
//! on the same queue pair and belong to [`cdc`](crate::cdc).
//!
//! The messages are those of RFC 7609 appendix A.3 and of the SMC-R v2 documents.
//!
//! # What to do about errors
//!
//! Every error of a parser here means the same: **drop the message and carry on**. Nothing is
//! answered and the link group lives on, which is how peers stay compatible with messages they do
//! not know. A message that is well formed but wrong in its context is for the state machine to
//! judge.
//!
//! # Size and byte order
//!
//! The size of a message is the received byte count, never its length field: Linux stores the v2
//! length in the byte order of its CPU. The field serves to find that order
//! ([`detect_order`]), which also governs the rtoken count of ADD LINK, and which a sender keeps up
//! towards this peer. It is part of [`Dialect`], and hence of every v2 message value: what was
//! parsed is emitted in the same order.
//!
//! ```
//! use smc_wire::llc::{Message, Class, TestLink};
//!
//! let mut request = [0; 44];
//! request[..8].copy_from_slice(&[0x27, 0x2C, 0x00, 0x00, 1, 2, 3, 4]);
//!
//! let Message::TestLink(test) = Message::parse(&request)? else { unreachable!() };
//! let response = TestLink { class: Class::Response, ..test };
//!
//! let mut buffer = [0; 44];
//! let len = response.emit(&mut buffer)?;
//! assert_eq!(buffer[..8], [0x27, 0x2C, 0x00, 0x80, 1, 2, 3, 4]);
//! # assert_eq!(len, 44);
//! # Ok::<(), Box<dyn core::error::Error>>(())
//! ```

pub(crate) mod add_link;
pub(crate) mod header;
mod link;
mod message;
pub(crate) mod rkey;
mod rtoken;

pub use add_link::{
    AddLink, AddLinkClass, AddLinkCont, AddLinkExtension, RejectReason, RequestAddLink,
    RequestAddLinkClass,
};
pub use header::{Class, Dialect, Header, MessageType, detect_order};
pub use link::{AnnounceCredits, ConfirmLink, DeleteLink, DeleteLinkReason, TestLink};
pub use message::Message;
pub use rkey::{ConfirmRkey, ConfirmRkeyCont, DeleteRkey, DeleteRkeyErrors, RkeyClass};
pub use rtoken::{LinkRtoken, Rtoken, WireRkey, WireRtoken};

pub use crate::cdc::ByteOrder;

/// Size of every v1 message and of most v2 messages, and the least a receiver accepts.
pub const MESSAGE_LEN: usize = 44;

/// Most bytes a v2 message may have; receive buffers of a v2 link group need this size.
pub const MAX_MESSAGE_LEN: usize = 8192;

/// Most rtokens a receiver takes from one ADD LINK, and most rkeys from one DELETE RKEY.
pub const MAX_RTOKENS: usize = 255;
