//! Finding out who speaks SMC, before a byte of it is sent.
//!
//! Kernels announce SMC with a TCP option, which ordinary sockets cannot set. So it is a pluggable
//! step of endpoints and listeners, a [`Negotiation`]:
//!
//! - [`Local`]: on the same host, through directories that only its
//!   [`Domain`] can change. The default.
//! - `SynOption`: by that TCP option, and so with kernels; see `option` (feature `syn-option`).
//! - [`Assume`]: both ends were told by configuration.
//! - [`Never`]: nobody does.
//! - [`Chain`]: several of them, the first that knows wins.
//!
//! ```text
//!   client                                          server
//!                                                   prepare(socket)   before it listens
//!   look_up(to)             is anybody there?       publish(listener)
//!   offer(socket, PROPOSAL) before it connects
//!   connect  ---------------- TCP ----------------  accept
//!   connected(socket)       how to go on            verdict(socket)
//!   side_channel  <---------- beside TCP ----------------> Verdict::SideChannel
//!   withdraw                nobody may answer now
//! ```
//!
//! The rules that keep plain TCP plain:
//!
//! - A server sends CLC only if [`Published::verdict`] said so about this very connection.
//! - A handshake whose PROPOSAL was delivered beside TCP stays beside it ([`SideChannel`]): TCP carries
//!   what the application sends and nothing else. Bytes on it mean a plain server, unless the
//!   offer was taken.
//! - A client that does not want to wait any longer takes its offer back ([`Offer::withdraw`]).
//!   Only if that says [`Withdrawn::Free`] may it go on as plain TCP: after [`Withdrawn::Taken`]
//!   the server is about to answer.
//!
//! Failures of a negotiation are never errors of a connection: it is plain TCP then.

mod assume;
mod chain;
mod credentials;
mod early;
pub mod local;
#[cfg(feature = "syn-option")]
pub mod option;
pub mod passed;
pub mod runtime_dir;

pub use assume::{Assume, Never};
pub use chain::Chain;
pub use credentials::{Credentials, is_ambiguous_user};
pub use early::{CachedHandshake, EarlyConfirm};
pub use local::Local;
#[cfg(feature = "syn-option")]
pub use option::SynOption;
pub use runtime_dir::Domain;

use std::fmt::Debug;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::task::{Context, Poll};

use async_trait::async_trait;

use super::runtime::{Runtime, Socket, Unconnected};
use crate::error::FallbackCause;

/// A way in which two endpoints find out that both speak SMC.
pub trait Negotiation: Debug + Send + Sync + 'static {
    /// The client side, one per endpoint. Futures of the result have to run on `runtime`.
    fn client(&self, runtime: &Arc<dyn Runtime>) -> Arc<dyn Client>;

    /// Sees the TCP socket of a listener after it was bound and before it listens.
    ///
    /// For what cannot be done to a listening socket any more. Does not wait. What goes wrong here
    /// shows in [`Negotiation::publish`], which follows for the same socket. For a socket that
    /// listened before ([`Endpoint::listen_on`](super::Endpoint::listen_on)) it is not called.
    fn prepare(&self, socket: &Unconnected<'_>) {
        let _ = socket;
    }

    /// Makes a listening TCP socket known as one that speaks SMC, until the result is dropped.
    ///
    /// Does not wait. `at` is the address that it listens on.
    ///
    /// # Errors
    ///
    /// Why it cannot be made known. The listener works without: all its connections are plain.
    fn publish(
        &self,
        runtime: &Arc<dyn Runtime>,
        at: SocketAddr,
        listener: Option<BorrowedFd<'_>>,
    ) -> Result<Arc<dyn Published>, FallbackCause>;
}

/// The client side of a negotiation.
#[async_trait]
pub trait Client: Debug + Send + Sync {
    /// Looks who may be listening at an address.
    ///
    /// Waits only when it is not enough to look at this host's own files and sockets.
    /// Cancelling it has no effect on anything else.
    ///
    /// # Errors
    ///
    /// Why the connection is to be plain TCP; [`FallbackCause::NotAnnounced`] where no listener is.
    async fn look_up(&self, to: SocketAddr) -> Result<Box<dyn Candidate>, FallbackCause>;
}

/// Somebody who may be listening at the address that was looked up.
pub trait Candidate: Debug + Send + Sync {
    /// Offers SMC for one connection, between binding and connecting its socket.
    ///
    /// `proposal` is the encoded CLC PROPOSAL. May be called again with another socket; drop the
    /// earlier offer then. Does not wait.
    ///
    /// `early` is a CONFIRM for the case that the listener answers as expected. Whether it held shows
    /// in [`SideChannel::is_confirmed`]; who cannot say it leaves it out.
    ///
    /// # Errors
    ///
    /// Why the connection is to be plain TCP.
    fn offer(
        &self,
        socket: &Unconnected<'_>,
        proposal: &[u8],
        early: Option<&EarlyConfirm>,
    ) -> Result<Box<dyn Offer>, FallbackCause>;

    /// What the last handshake with the same listener came to, if the next may count on the same.
    fn cached_handshake(&self) -> Option<CachedHandshake> {
        None
    }

    /// Whether the offer names the socket's address, which has to be bound to it beforehand then.
    /// Otherwise the system may choose it as it connects, which costs less.
    fn needs_address(&self) -> bool {
        true
    }
}

/// An offer of SMC for one connection. Dropping it takes it back.
pub trait Offer: Debug + Send + Sync {
    /// Says how to go on, once the socket is connected.
    fn connected(&mut self, socket: &dyn Socket) -> Delivery;

    /// Takes the offer back, at once, without asking anybody. Asked again, says the same again.
    fn withdraw(&mut self) -> Withdrawn;

    /// Why the connection is plain TCP: after [`Delivery::Plain`], and after [`Withdrawn::Free`] if
    /// the reason is not that the server has not answered in time or has sent data.
    fn cause(&self) -> FallbackCause {
        FallbackCause::not_announced()
    }

    /// Where the handshake goes on after [`Delivery::Delivered`]; the PROPOSAL was sent already.
    fn side_channel(&mut self) -> Option<&mut dyn SideChannel> {
        None
    }
}

/// The messages of one handshake that pass beside its TCP connection.
///
/// Dropping it, or the [`Offer`] that has it, says that no more will come.
pub trait SideChannel: Debug + Send {
    /// Sends a message, or holds it back until [`SideChannel::flush`]. Does not wait.
    ///
    /// # Errors
    ///
    /// When there is no room for it, which there is for those of any handshake.
    fn send(&mut self, message: &[u8]) -> io::Result<()>;

    /// Makes sure that the other side notices what was sent.
    fn flush(&mut self);

    /// Whether the other side has answered so that it need not wait for a CONFIRM: it has the stream.
    fn is_confirmed(&self) -> bool {
        false
    }

    /// Reads what is there now; 0 if nothing will come any more.
    ///
    /// # Errors
    ///
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) if nothing is there yet.
    fn try_read(&mut self, buf: &mut [u8]) -> io::Result<usize>;

    /// As [`SideChannel::try_read`], waiting. Keeps one waker, the last one given.
    ///
    /// # Errors
    ///
    /// When it cannot be waited for.
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>>;

    /// Server: the client's process, where the way beside TCP shows it.
    fn credentials(&self) -> Option<Credentials> {
        None
    }

    /// Client: a number that changes as long as the server works, on this handshake or on others.
    /// Without a change for some time, the offer is [withdrawn](SideChannel::withdraw).
    fn progress(&self) -> u64 {
        0
    }

    /// Client: as [`Offer::withdraw`]. [`Withdrawn::Taken`] if that is not possible.
    fn withdraw(&mut self) -> Withdrawn {
        Withdrawn::Taken
    }

    /// Server: lets the client see that its offer is being worked on, by [`SideChannel::progress`].
    fn publish_progress(&self) {}

    /// Server: whether the client has withdrawn its offer, so that the connection is plain TCP.
    /// Sending fails then.
    fn is_withdrawn(&self) -> bool {
        false
    }
}

/// How the PROPOSAL gets to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Delivery {
    /// It was delivered: the handshake goes on beside TCP ([`Offer::side_channel`]).
    Delivered,
    /// It has to be sent on TCP: the server is known to expect it.
    OnTcp,
    /// The server does not support SMC: this connection is plain TCP.
    Plain,
}

/// What became of an offer that was taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Withdrawn {
    /// Nobody had taken it, and nobody can now: this connection is plain TCP.
    Free,
    /// The server has taken it and answers with CLC: the handshake has to go on.
    Taken,
}

/// A listener that is known to speak SMC.
pub trait Published: Debug + Send + Sync {
    /// Says what to expect from a connection that was just accepted. Does not wait.
    ///
    /// Ask once per connection, soon: the answer is about the moment. After [`Verdict::Clc`] the
    /// client counts on an answer in CLC; a listener that does not want SMC has to decline, or to
    /// [`Published::dismiss`] the connection instead of asking.
    fn verdict(&self, socket: &dyn Socket, peer: SocketAddr) -> Verdict;

    /// Asked instead of [`Published::verdict`]: says that this connection is going to be plain TCP
    /// in any case. A client that was able to make an offer learns of it, so that it does not wait.
    ///
    /// [`Verdict::Clc`] means that the client cannot be told but by a DECLINE: it has begun to
    /// speak CLC on TCP, or will.
    fn dismiss(&self, socket: &dyn Socket, peer: SocketAddr) -> Verdict {
        let _ = (socket, peer);
        Verdict::Plain(FallbackCause::Policy)
    }
}

/// What to expect from an accepted connection.
#[derive(Debug)]
#[non_exhaustive]
pub enum Verdict {
    /// Plain TCP, in both directions, from now on, and why.
    Plain(FallbackCause),
    /// The client speaks CLC on TCP, the PROPOSAL first, and waits for the answer.
    Clc,
    /// The same beside TCP, where the PROPOSAL is to be read already.
    SideChannel(Box<dyn SideChannel>),
}
