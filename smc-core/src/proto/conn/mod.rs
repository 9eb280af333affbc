//! The data path of one connection: cursors, flags and closing, without I/O.
//!
//! The parts of a connection do not depend on each other, so that the halves of a split stream need
//! no common lock:
//!
//! - [`SendCursors`]: how far this side wrote into the peer's ring and how far the peer has read
//!   it;
//! - [`RecvCursors`]: how far the peer wrote into the local ring, how far it was read, and when the
//!   consumer cursor has to be sent to the peer;
//! - [`RetainedWindow`]: bytes that were read and are still in use, released in any order;
//! - [`Closing`]: the state machine of RFC 7609 with the flags sent to the peer.
//!
//! [`SendCursors`] is used by SMC-D. SMC-R sends from a staging ring, with messages that may be
//! lost; [`rdma`] contains the replacement.
//!
//! For a transfer, the shell reads from the cursors the position and the number of bytes, copies,
//! and then reports the copied bytes; the cursors return the word that has to be stored in
//! the peer's CDC block. All values received from a peer are checked here before they are used.

mod close;
pub mod rdma;
mod recv;
mod retained;
mod send;

pub use close::{Closing, ConnState, ReadEnd, WriteEnd};
pub use recv::{RecvCursors, UPDATE_FLAGS, used_length};
pub use retained::RetainedWindow;
pub use send::{REWIND_MIN, SendCursors};

#[cfg(test)]
mod tests;
