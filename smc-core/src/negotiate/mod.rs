//! Negotiation: whether both ends of a connection support SMC, before a CLC message is sent.
//!
//! Kernels announce SMC with a TCP option, which ordinary sockets cannot set. So it is a pluggable
//! step of endpoints and listeners, a [`Negotiation`]:
//!
//! - `Local` of the crate `smc-negotiate-local`: on the same host, through directories that only
//!   its [`Domain`](crate::Domain) can change. The builders of `smc::tokio()`, `smc::smol()` and
//!   `smc::builder()` have it.
//! - `SynOption` of the crate `smc-negotiate-syn`: by that TCP option, and so with kernels.
//! - [`Assume`]: all peers support SMC, by configuration.
//! - [`Never`]: no peer supports SMC. The default of a `Builder`.
//! - [`Chain`]: several negotiations in order of preference.
//!
//! ```text
//!   client                                          server
//!                                                   prepare(socket)   before it listens
//!   look_up(to)             is it announced?        publish(listener)
//!   offer(socket, PROPOSAL) before it connects
//!   connect  ---------------- TCP ----------------  accept
//!   connected(socket)       how to go on            negotiated(socket)
//!   side_channel  <---------- beside TCP ----------------> Negotiated::SideChannel
//!   withdraw                no answer is possible
//! ```
//!
//! The rules that keep plain TCP plain:
//!
//! - A server sends CLC only if [`Published::negotiated`] returned that for this connection.
//! - A handshake whose PROPOSAL was delivered beside TCP stays beside it ([`SideChannel`]): TCP
//!   carries what the application sends and nothing else. Bytes on it mean a plain server, unless
//!   the offer was taken.
//! - A client that stops waiting withdraws its offer ([`Offer::withdraw`]). It may go on as plain
//!   TCP only after [`Withdrawn::Free`]: after [`Withdrawn::Taken`] the server is about to answer.
//!
//! Failures of a negotiation are never errors of a connection: it is plain TCP then.

mod assume;
mod chain;

pub use assume::{Assume, Never};
pub use chain::Chain;
#[doc(inline)]
pub use smc_ipc::Credentials;

use std::fmt::{self, Debug};
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::task::{Context, Poll};

use async_trait::async_trait;
use smc_wire::size::SizeCode;
use smc_wire::types::{DmbToken, Gid};

use super::runtime::{Runtime, Socket, Unconnected};
use crate::error::{FallbackCause, Refusal};

/// A method by which two endpoints find out that both support SMC.
///
/// The knowledge of listeners lasts as long as the object, so each endpoint has an object of its
/// own.
#[async_trait]
pub trait Negotiation: Debug + Send + Sync + 'static {
    /// Client: looks up the listeners that are announced at an address.
    ///
    /// Waits only if the files and sockets of this host are not sufficient. Futures of the result
    /// run on `runtime`. Cancelling it has no effect on anything else.
    ///
    /// # Errors
    ///
    /// Why the connection is to be plain TCP; [`FallbackCause::NotAnnounced`] where no listener is.
    async fn look_up(
        &self,
        runtime: &Arc<dyn Runtime>,
        to: SocketAddr,
    ) -> Result<Candidate, FallbackCause>;

    /// Sees the TCP socket of a listener after it was bound and before it listens.
    ///
    /// For settings that a listening socket does not take. Does not wait. An error here is returned
    /// by [`Negotiation::publish`], which follows for the same socket. It is not called for a
    /// socket that listened before (`Endpoint::listen_on`).
    fn prepare(&self, socket: &Unconnected<'_>) {
        let _ = socket;
    }

    /// Announces a listening TCP socket with SMC support, until the result is dropped.
    ///
    /// Does not wait. `at` is the address that it listens on.
    ///
    /// # Errors
    ///
    /// Why it cannot be announced. The listener works without: all its connections are plain.
    fn publish(
        &self,
        runtime: &Arc<dyn Runtime>,
        at: SocketAddr,
        listener: Option<BorrowedFd<'_>>,
    ) -> Result<Arc<dyn Published>, FallbackCause>;
}

/// A listener that may be at the address that was looked up.
pub struct Candidate {
    make_offer: Box<MakeOffer>,
    needs_address: bool,
    is_same_host: bool,
    expected: Option<ExpectedHandshake>,
}

/// See [`Candidate::offer`].
type MakeOffer = dyn Fn(&Unconnected<'_>, &[u8], Option<DmbToken>) -> OfferResult + Send + Sync;

/// An offer, or why the connection is to be plain TCP.
pub type OfferResult = Result<Box<dyn Offer>, FallbackCause>;

impl Candidate {
    /// With this function for [`Candidate::offer`].
    #[must_use]
    pub fn new(
        make_offer: impl Fn(&Unconnected<'_>, &[u8], Option<DmbToken>) -> OfferResult
        + Send
        + Sync
        + 'static,
    ) -> Self {
        Self {
            make_offer: Box::new(make_offer),
            needs_address: true,
            is_same_host: false,
            expected: None,
        }
    }

    /// Its offers do not contain the socket's address, so that the socket need not be bound before:
    /// `connect` may choose the address, which costs less.
    #[must_use]
    pub fn without_address(mut self) -> Self {
        self.needs_address = false;
        self
    }

    /// The listener is a process of this host, whatever its address is.
    #[must_use]
    pub fn of_same_host(mut self) -> Self {
        self.is_same_host = true;
        self
    }

    /// With the handshake that the last one with this listener lets expect. The endpoint then
    /// becomes a member of the link group and registers a receive buffer before it makes the offer.
    #[must_use]
    pub fn expecting(mut self, handshake: Option<ExpectedHandshake>) -> Self {
        self.expected = handshake;
        self
    }

    /// Offers SMC for one connection, before its socket is connected. The socket has an address if
    /// the candidate [needs one](Candidate::needs_address) and a port was free.
    ///
    /// `proposal` is the encoded CLC PROPOSAL, or the DECLINE of a client that has nothing to
    /// offer: only a server that expects CLC on TCP has to receive that. May be called again with
    /// another socket; drop the earlier offer then. Does not wait.
    ///
    /// `buffer` is a receive buffer that was registered for the
    /// [expected handshake](Candidate::expecting), so that the negotiation can confirm it with the
    /// offer. [`SideChannel::is_confirmed`] reports whether that applied. A negotiation may ignore
    /// it.
    ///
    /// # Errors
    ///
    /// Why the connection is to be plain TCP.
    pub fn offer(
        &self,
        socket: &Unconnected<'_>,
        proposal: &[u8],
        buffer: Option<DmbToken>,
    ) -> OfferResult {
        (self.make_offer)(socket, proposal, buffer)
    }

    /// Whether the socket has to be bound before an offer.
    #[must_use]
    pub fn needs_address(&self) -> bool {
        self.needs_address
    }

    /// Whether the listener is known to be a process of this host.
    #[must_use]
    pub fn is_same_host(&self) -> bool {
        self.is_same_host
    }

    /// The handshake that is [expected](Candidate::expecting).
    #[must_use]
    pub fn expected_handshake(&self) -> Option<ExpectedHandshake> {
        self.expected
    }
}

impl Debug for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Candidate")
            .field("needs_address", &self.needs_address)
            .field("expected", &self.expected)
            .finish_non_exhaustive()
    }
}

/// A handshake of SMC-D in an existing link group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_structs,
    reason = "negotiations of other crates make it"
)]
pub struct ExpectedHandshake {
    /// The client's device.
    pub client: Gid,
    /// The server's device.
    pub server: Gid,
    /// The process at the server's end, if it is known.
    pub process: Option<Credentials>,
    /// Size of the client's receive buffer.
    pub size: SizeCode,
    /// Size of the server's receive buffer.
    pub server_size: SizeCode,
}

/// An offer of SMC for one connection. Dropping it withdraws the offer.
pub trait Offer: Debug + Send + Sync {
    /// How to continue, once the socket is connected.
    fn connected(&mut self, socket: &dyn Socket) -> Delivery;

    /// Withdraws the offer at once, without waiting. A further call returns the same.
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

/// A side channel (out of band): the messages of one handshake, beside its TCP connection.
///
/// Dropping it, or its [`Offer`], ends the messages of this side.
pub trait SideChannel: Debug + Send {
    /// Sends a message, at [`SideChannel::flush`] at the latest. Does not wait.
    ///
    /// # Errors
    ///
    /// When there is no space for it. There is for the messages of any handshake.
    fn send(&mut self, message: &[u8]) -> io::Result<()>;

    /// Notifies the other side of what was sent.
    fn flush(&mut self);

    /// Client: whether the answer was the [expected](Candidate::expecting) one, so that the
    /// listener has its CONFIRM already.
    fn is_confirmed(&self) -> bool {
        false
    }

    /// Reads what is there now; 0 at the end.
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

    /// The process at the other end, where the side channel reports it; the server's once a message
    /// of it was read. The device that the other end names has to belong to that process
    /// ([`Direct::process`](crate::device::Direct::process)).
    fn credentials(&self) -> Option<Credentials> {
        None
    }

    /// Server: whether the client is a process of the listener's user, for whose clients a part of
    /// the handshakes is reserved. Unless implemented: whether the credentials say so.
    fn is_own_user(&self) -> bool {
        let own = |client: Credentials| client.uid == Credentials::own().uid;
        self.credentials().is_some_and(own)
    }

    /// Client: a counter that changes while the server works, on this handshake or on others.
    /// Without a change for some time, the offer is [withdrawn](SideChannel::withdraw).
    fn progress(&self) -> u64 {
        0
    }

    /// Client: as [`Offer::withdraw`]. [`Withdrawn::Taken`] if that is not possible.
    fn withdraw(&mut self) -> Withdrawn {
        Withdrawn::Taken
    }

    /// Server: changes the [`SideChannel::progress`] that the client reads.
    fn publish_progress(&self) {}

    /// Server: whether the client has withdrawn its offer, so that the connection is plain TCP.
    /// Sending fails then.
    fn is_withdrawn(&self) -> bool {
        false
    }
}

/// How the PROPOSAL reaches the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_enums,
    reason = "providers make it, and an endpoint has to handle every case"
)]
pub enum Delivery {
    /// It was delivered: the handshake goes on beside TCP ([`Offer::side_channel`]).
    Delivered,
    /// It has to be sent on TCP: the server is known to expect it.
    OnTcp,
    /// The server does not support SMC: this connection is plain TCP.
    Plain,
}

/// The result of a withdrawal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_enums,
    reason = "providers make it, and an endpoint has to handle every case"
)]
pub enum Withdrawn {
    /// The offer was not taken, and cannot be taken any more: this connection is plain TCP.
    Free,
    /// The server has taken it and answers with CLC: the handshake has to go on.
    Taken,
}

/// A listener that is announced with SMC support.
pub trait Published: Debug + Send + Sync {
    /// How a connection that was just accepted continues. Does not wait.
    ///
    /// To be called once per connection, soon after `accept`. After [`Negotiated::Clc`] the client
    /// expects an answer in CLC; a listener without SMC has to decline, or to call
    /// [`Published::dismiss`] instead.
    fn negotiated(&self, socket: &dyn Socket, peer: SocketAddr) -> Negotiated;

    /// Called instead of [`Published::negotiated`] if this connection is plain TCP in any case. An
    /// offer of the client is refused, so that the client does not wait; it gets this reason, where
    /// the negotiation can pass one.
    ///
    /// [`Negotiated::Clc`] means that only a DECLINE can refuse it: the client sends CLC on TCP.
    fn dismiss(&self, socket: &dyn Socket, peer: SocketAddr, why: Refusal) -> Negotiated {
        let _ = (socket, peer, why);
        Negotiated::Plain(FallbackCause::Policy)
    }
}

/// The way in which an accepted connection continues.
#[derive(Debug)]
#[expect(
    clippy::exhaustive_enums,
    reason = "providers make it, and an endpoint has to handle every case"
)]
pub enum Negotiated {
    /// Plain TCP, in both directions, from now on, and why.
    Plain(FallbackCause),
    /// The client sends CLC on TCP, the PROPOSAL first, and waits for the answer.
    Clc,
    /// The same beside TCP, where the PROPOSAL is to be read already.
    SideChannel(Box<dyn SideChannel>),
}
