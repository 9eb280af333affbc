//! Negotiation on one host, without privileges.
//!
//! A listener has a socket of its own in the runtime directory, named after its port. A client
//! that finds it keeps one channel to it, and passes a file of memory on it, the `board`. For every
//! connection the client binds its TCP socket, writes both addresses and the PROPOSAL on a *card* of
//! the board, and connects. When the listener accepts a connection, it looks for its addresses among
//! the cards: without one the connection is plain TCP, at once. With one, the rest of the handshake
//! goes over the card as well, in both directions. TCP carries what the application sends and
//! nothing else, and the channel says only that there is news on a card, to a side that sleeps.
//!
//! A client that has been through a handshake with a listener writes down with its next offer what
//! it will confirm, if the answer is as it was ([`EarlyConfirm`](super::EarlyConfirm)). The listener's end is complete
//! then as soon as it has answered.
//!
//! No step waits for the other side, except that a client asks a listener in *another network
//! namespace* to prove, once in a while, that the address leads to it.
//!
//! # What must not happen, and why it does not
//!
//! **CLC sent to somebody who does not expect it.** Nobody sends any on TCP. A message on a card is
//! read by the process at the other end of the channel, whoever has the TCP connection: a listener
//! answers the client that announced, and a client hears the listener that it announced to.
//!
//! **A plain connection taken for SMC.** A listener takes an offer only for a connection between the
//! very addresses that it names, of a channel whose client is alive. A client that does not want the
//! answer any more takes its offer back, so the port is worth nothing afterwards. Of a client of
//! another user the offer also names the cookie of its socket, a number that no other socket of this
//! boot has: the listener asks the kernel (`diag`) for the connected socket at the other end of what
//! it accepted, and compares. Processes of the same user are believed.
//!
//! **A client that waits for nobody.** The right to decide about an offer exists once: a listener
//! takes it by its answer, or refuses it, or the client takes it back, by one atomic change of the
//! card. A listener that is stopped, starved or without descriptors, before it accepts or before it
//! answers, shows no sign of itself: it sets a word of the board while it works, on any connection.
//! After [`Builder::answer_timeout`](crate::io::Builder::answer_timeout) without a sign the client
//! withdraws and goes on as plain TCP, and so does the listener when it gets there. Other connections
//! to it are plain at once for a while (`pause`). So they are when the listener refuses or is gone.
//! Bytes on TCP before an offer was taken come from another server than the listener, and end the
//! wait.
//!
//! **One user meddling with another's connections.** Both sides look at the credentials of the channel
//! (`SO_PEERCRED`). By default only the same user is served, and the directory belongs to that user and
//! no other one can write to it, which is checked. Other users can be let in ([`Domain::shared`]). A
//! client announces a connection to them only if the listening socket that will get it belongs to the
//! user at the other end of the channel: the cookie in a name is public, and users write any name into
//! their directories. A listener believes an announcement of theirs only if the socket at the other end
//! belongs to them. The kernel says whose the sockets are. Where packets are led elsewhere on their
//! way, the listener does not get the connection at all: so a client asks the kernel again once it is
//! connected, and takes its offer to another user back unless there is a socket at the other end that
//! was not there before. It does not say which process has one: processes of the same user can publish
//! a name for each other's listeners, and get what clients send there; and they can claim each other's
//! connections, of which they get nothing but their own handshake.
//!
//! **Other network namespaces with the same addresses.** The namespace of a listener is in its
//! name, that of a client in its first message. Addresses that are the client's own host's
//! (loopback and all others that it can bind) are announced to listeners in the same namespace
//! only, all other addresses to listeners in other namespaces only. Those have to prove first that
//! the address leads to them (`proof`): the listener binds a port of this address, the client
//! connects to it through the network and sends a secret that it has given the listener on the
//! channel. If the client's packets get to this namespace, and with the client's address, there is
//! no other connection with the same addresses in it. The kernel cannot be asked across namespaces,
//! so only processes of the same user are believed there.
//!
//! **Wildcards, and several listeners on one port.** The kernel says which listening socket a
//! connection between two addresses will go to, also among sockets that share a port; only that
//! one gets the announcement. Where the kernel does not say, all get it, each on a card of its
//! board, and one that takes it has the connection. What the kernel said is remembered for a moment,
//! unless it was a socket of another user.
//!
//! **Listeners that died.** Nobody answers on their channels, which clients see at once, and their
//! names are removed by the next process that stumbles over them.
//!
//! **Names that are removed while the listener lives.** They are published again, see
//! [`Publication`](super::runtime_dir::Publication).
//!
//! **Floods, rubbish, and memory that changes.** Channels are limited in number, also those of a client
//! to listeners of one other user, and boards in length. A file that could shrink is no board; packets
//! that are not exactly right end the channel. Of a board each side copies out what it looks at, within
//! bounds of its own, and checks the copy. Whatever goes wrong, also a lack of cards, means plain TCP
//! for that connection. A card is used again only when the listener has let go of it.
//!
//! On a kernel without `sock_diag` for TCP neither cookie nor owner can be compared, so other users
//! are not served, and their listeners get no announcements.

mod board;
mod channel;
mod client;
mod diag;
mod directory;
mod inbox;
mod message;
mod netns;
mod offer;
mod packet;
mod pause;
mod proof;
mod server;

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::process::geteuid;

use super::runtime_dir::Domain;
use super::{Client, Negotiation, Published};
use crate::error::{FallbackCause, OsError};
use crate::io::runtime::Runtime;

/// Negotiation between processes of one host, through directories that only they can change.
///
/// See the [module](self) for how, and for what it protects against.
#[derive(Clone, Debug, Default)]
pub struct Local {
    domain: Domain,
}

impl Local {
    /// Between the processes of [`Domain::default`].
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Between the processes of this domain.
    ///
    /// Processes of other users have to be in the same network namespace, with a kernel that says
    /// whose TCP sockets are (`sock_diag`).
    #[must_use]
    pub fn in_domain(domain: Domain) -> Self {
        Self { domain }
    }
}

impl Negotiation for Local {
    fn client(&self, runtime: &Arc<dyn Runtime>) -> Arc<dyn Client> {
        Arc::new(client::LocalClient::new(
            self.domain.clone(),
            runtime.clone(),
        ))
    }

    fn publish(
        &self,
        runtime: &Arc<dyn Runtime>,
        at: SocketAddr,
        listener: Option<BorrowedFd<'_>>,
    ) -> Result<Arc<dyn Published>, FallbackCause> {
        let unsupported =
            |error: io::ErrorKind| OsError::new("announce the listener", &error.into());
        let tcp = listener.ok_or_else(|| unsupported(io::ErrorKind::Unsupported))?;
        Ok(Arc::new(server::Listening::publish(
            self.domain.clone(),
            runtime,
            at,
            tcp,
        )?))
    }
}

fn is_own(uid: u32) -> bool {
    uid == geteuid().as_raw()
}

/// Nothing in here is left half changed by a panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
