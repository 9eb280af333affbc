//! Wire format of Shared Memory Communications (SMC): bytes to meaning and back.
//!
//! SMC lets two programs that opened an ordinary TCP connection move their bytes by direct writes
//! into each other's memory, over RDMA (SMC-R, RFC 7609) or through a device that shares memory
//! between systems or processes (SMC-D). This crate knows every message of both kinds in versions
//! 1, 2.0 and 2.1, as implemented by Linux. It does no I/O, holds no state and allocates nothing.
//!
//! Use it to build an SMC stack or to decode captures. To merely use SMC in a program, take a
//! crate that builds on this one.
//!
//! # Message map
//!
//! ```text
//!   client                                        server
//!     |  SYN + option       ------------------->    |    option
//!     |  <-------------------  SYN/ACK + option     |
//!     |  PROPOSAL           ------------------->    |    clc, on the TCP connection
//!     |  <-------------------            ACCEPT     |
//!     |  CONFIRM            ------------------->    |
//!     |  <--- CONFIRM LINK, ADD LINK, RKEYs ---->   |    llc, on the queue pair (SMC-R only)
//!     |  <=== payload, then CDC ================>   |    cdc, on the queue pair or in memory
//! ```
//!
//! | module | bytes | carried by | byte order |
//! |---|---|---|---|
//! | [`option`] | TCP option of SYN and SYN/ACK | TCP header | - |
//! | [`clc`] | PROPOSAL, ACCEPT, CONFIRM, DECLINE | the TCP connection | big-endian |
//! | [`llc`] | link control of SMC-R | RDMA SEND | big-endian, with exceptions |
//! | [`cdc`] | cursors and flags, SMC-R | RDMA SEND | big-endian |
//! | [`cdc`] | cursors and flags, SMC-D | the peer's buffer | native |
//! | [`pretty`] | any of them as text | | |
//!
//! [`types`] has the identifiers and codes, [`size`] the buffer sizes, [`cursor`] the arithmetic of
//! ring positions.
//!
//! # Reading and writing a message
//!
//! Each message is a value with public fields, such as [`clc::Proposal`]. `parse` makes it from
//! received bytes and checks everything that can be checked without context. Long lists of LLC
//! messages and early data stay borrowed from the bytes, nothing else does. `emit` writes the
//! message into a buffer of the caller, reserved fields zero, and `encoded_len` is the length that
//! the buffer needs. Reserved fields and unknown flags are not part of the value; [`pretty`] shows
//! them.
//!
//! Receiver rules are those of Linux, down to which malformed messages it takes. Where it reads
//! beyond a message, this crate does not. Errors name message, field, offset and cause; see
//! [`DecodeError`].
//!
//! # Example
//!
//! A client without any device declines, and the server reads the reason:
//!
//! ```
//! use smc_wire::clc::{Decline, Frame, Message};
//! use smc_wire::types::{DeclineCode, OsType, Version};
//!
//! let mut buffer = [0; 64];
//! let decline = Decline::new(Version::V2, DeclineCode::NOSMCDEV, OsType::LINUX);
//! let len = decline.emit(&mut buffer)?;
//!
//! // The other end peeks at its TCP connection until a whole message is there.
//! let stream = &buffer[..len];
//! let frame = Frame::peek(stream)?.expect("at least eight bytes are there");
//! match Message::parse(&stream[..frame.keep()])? {
//!     Message::Decline(decline) => {
//!         let reason = decline.diagnosis;
//!         assert_eq!(reason.to_string(), "0x03030000 (NOSMCDEV)");
//!         assert!(reason.description().is_some());
//!     }
//!     other => panic!("unexpected {}", other.kind()),
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::as_conversions,
        clippy::expect_used,
        clippy::panic,
        clippy::unwrap_used
    )
)]
#![allow(
    clippy::exhaustive_structs,
    reason = "messages and identifiers are fixed by the protocol; a new field is a new format"
)]

#[cfg(test)]
extern crate std;

mod bounded;
pub mod cdc;
pub mod clc;
mod codes;
pub mod cursor;
pub mod error;
mod layout;
pub mod llc;
pub mod option;
pub mod pretty;
pub mod size;
pub mod types;
mod writer;

pub use bounded::Bounded;
pub use error::{DecodeError, DecodeErrorKind, EmitError, MessageKind};
