//! The data path of one SMC-R connection: data is copied from a local staging ring into the peer's
//! ring, and a CDC message behind each write announces it.
//!
//! - [`Transmit`]: which data is written where, which CDC follows, and what is repeated when the
//!   connection moves to another link (docs/spec/data-path.md#sending and
//!   docs/spec/failover.md#moving-a-connection);
//! - [`Arrivals`]: which parts of a received CDC are new (docs/spec/data-path.md#receiving).
//!
//! The other parts of a connection are the same as for SMC-D: [`RecvCursors`](super::RecvCursors)
//! gets the words that [`Arrivals`] accepts, and [`Closing`](super::Closing) gets the flags.
//!
//! Neither part takes a lock or waits. The sequence of calls for sending is: copy to
//! [`Transmit::at`], call [`Transmit::stage`], then post the results of [`Transmit::poll_post`]
//! until it returns `None`. Every other event (a completion, a CDC, bytes read, a close) is passed
//! to [`Transmit`] and followed by the same loop.
//!
//! A [`CdcUpdate`] goes to both methods: [`Transmit::handle_peer`] and, if it has the flag of a
//! close or an abort, [`Transmit::handle_peer_closed`].

mod arrivals;
mod due;
mod in_flight;
mod position;
mod post;
mod transmit;

pub use arrivals::{Arrival, Arrivals, CdcUpdate};
pub use post::{PeerWrite, Post, PostId};
pub use transmit::{AUTOCORK, StreamDelivery, Transmit};

#[cfg(test)]
mod tests;
