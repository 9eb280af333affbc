//! The data path of one connection: cursors, flags and closing, without I/O.
//!
//! A connection is made of parts that do not know each other, so that the halves of a split stream
//! need no common lock:
//!
//! - [`SendHalf`]: how far we wrote into the peer's ring and how far the peer has read it;
//! - [`RecvHalf`]: how far the peer wrote into our ring, how far we read, and when the peer has to
//!   hear of it;
//! - [`Held`]: what of that is still looked at after it was read, and let go of in any order;
//! - [`Closing`]: the state machine of RFC 7609 with the flags that go to the peer.
//!
//! [`SendHalf`] is that of SMC-D. SMC-R sends out of a staging ring, with messages that may get
//! lost: [`staged`] has what takes its place.
//!
//! Bytes: the shell asks a half *where* and *how many*, copies, and then tells the half what it
//! did; a half answers with the word that has to be stored in the peer's CDC block. Everything a
//! peer says is checked here before it is used.

mod close;
mod held;
mod recv;
mod send;
pub mod staged;

pub use close::{Closing, ReadEnd, State, WriteEnd};
pub use held::Held;
pub use recv::RecvHalf;
pub use send::SendHalf;

#[cfg(test)]
mod tests;
