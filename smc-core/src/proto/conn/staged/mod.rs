//! The data path of one SMC-R connection: data goes through a staging ring of ours into the peer's
//! ring, and a CDC message behind each write says what is there.
//!
//! - [`Transmit`]: what to write where, which CDC follows, and what has to be done again when the
//!   connection moves to another link (docs/spec/data-path.md#sending and
//!   docs/spec/failover.md#moving-a-connection);
//! - [`Arrivals`]: which parts of a received CDC are news (docs/spec/data-path.md#receiving).
//!
//! The other parts of a connection are those of SMC-D: [`RecvHalf`](super::RecvHalf) is fed with
//! the words that [`Arrivals`] lets through, and [`Closing`](super::Closing) with the flags.
//!
//! Neither part locks or waits. The sequence of calls for sending is: copy to
//! [`Transmit::at`], [`Transmit::stage`], then post what [`Transmit::poll_post`] gives until it
//! gives nothing. Whatever else happened (a completion, a CDC, bytes read, an end) is told to
//! [`Transmit`] and followed by the same loop.
//!
//! [`News`] of a CDC go to both: [`Transmit::handle_peer`] and, when they have the flag of a close
//! or an abort, [`Transmit::handle_peer_closed`].

mod arrivals;
mod flight;
mod position;
mod post;
mod transmit;

pub use arrivals::{Arrival, Arrivals, News};
pub use post::{PeerWrite, Post, PostId};
pub use transmit::{Delivery, Transmit, TransmitConfig};

#[cfg(test)]
mod tests;
