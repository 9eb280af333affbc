//! Negotiation of SMC between processes of one host, without privileges.
//!
//! A [`Local`] is a [negotiation](smc_core::negotiate) for an endpoint of the crate `smc`:
//! connections with listeners of the same [`Domain`] use SMC if both ends have a device in common.
//!
//! ```
//! use std::sync::Arc;
//!
//! use futures_lite::future::zip;
//! use smc::{Builder, Domain};
//! use smc_negotiate_local::Local;
//! use smc_testkit::memory_device::MemFabric;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! let domain = Domain::directory(dir.path()); // `Local::new()` is for the default one
//! let fabric = MemFabric::new(1); // or devices that processes share, such as a `LoopDevice`
//! let endpoint = |device| {
//!     let local = Arc::new(Local::in_domain(domain.clone()));
//!     Builder::tokio().negotiation(local).device(device).build()
//! };
//! let (server, client) = (endpoint(fabric.device("a"))?, endpoint(fabric.device("b"))?);
//! let listener = server.bind("127.0.0.1:0").await?;
//! let connecting = client.connect(listener.local_addr()?);
//! let (connected, accepted) = zip(connecting, listener.accept()).await;
//! assert!(connected?.mode().is_smc());
//! assert!(accepted?.0.mode().is_smc());
//! # Ok(())
//! # }
//! ```
//!
//! # How it works
//!
//! A listener has a UNIX socket in the runtime directory, named after its port. A client that finds
//! this socket opens one channel to the listener and passes a memory file on it, the `mailbox`. For
//! each connection the client binds its TCP socket, writes both addresses and the PROPOSAL into a
//! *slot* of the mailbox, and connects. When the listener accepts a connection, it searches the
//! slots for the addresses. Without a slot the connection is plain TCP at once. With a slot, the
//! rest of the handshake uses the slot in both directions. TCP carries application data only. The
//! channel carries notifications of a changed slot to a side that sleeps.
//!
//! A client that has completed a handshake with a listener adds an early CONFIRM to its next offer,
//! valid if the ACCEPT is as before (`EarlyConfirm`). The handshake of the
//! listener is then complete as soon as it has answered.
//!
//! No step waits for the other side, with one exception: a listener in *another network namespace*
//! has to prove from time to time that the address is its own.
//!
//! # Threats and how they are prevented
//!
//! **CLC sent to a peer that does not expect it.** No CLC is sent on TCP. A message in a slot is
//! read by the process at the other end of the channel, whatever process has the TCP connection.
//!
//! **A plain connection taken for SMC.** A listener takes an offer only for a connection between
//! exactly the addresses of the offer, and only while the client's channel is open. A client that
//! stops waiting withdraws its offer, and the port is not announced afterwards. The offer of a
//! client of another user also contains the cookie of its socket, a number that is unique until the
//! next boot. The listener queries the kernel (`sock_diag`) for the connected socket at the other
//! end of the accepted connection and compares both. Processes of the same user are trusted.
//!
//! **A client that waits without end.** One atomic transition of the slot ends an offer: the
//! listener takes it by its answer or refuses it, or the client withdraws it. A listener increments
//! a heartbeat counter in the mailbox while it works on any connection. A listener that is stopped,
//! starved or without descriptors does not. After
//! `Builder::answer_timeout` without progress the client withdraws the offer, and the connection is
//! plain TCP at both ends. Further connections to this listener are plain at once during a
//! `client::backoff`. The same holds when the listener refuses or has ended. Bytes on TCP before an
//! offer was taken come from another server, and end the wait.
//!
//! **A user who interferes with connections of another user.** Both sides check the credentials of
//! the channel (`SO_PEERCRED`), and compare them with the owner of the TCP socket at the other end,
//! which the kernel reports: a name in a directory proves nothing. A listener of another user is
//! asked about after `connect` as well, as a packet filter may redirect the connection. Only the
//! directory of the owner is searched for a listener. Others can hold its lock without end, so the
//! search is on a thread (`client::search`), and has a timeout. The kernel does not report the
//! process, so processes of one user can take each other's place. `SECURITY.md` lists what each can
//! do.
//!
//! **Other network namespaces with the same addresses.** The name of a listener and the first
//! message of a client contain their network namespaces. Addresses of the client's own host
//! (loopback and all others that it can bind) are announced to listeners in the same namespace
//! only, all other addresses to listeners in other namespaces only. Such a listener first has to
//! prove that the address is its own (`reachability`): the listener binds a port of this address,
//! and the client connects to it through the network and sends a nonce that the listener got on the
//! channel. If the packets arrive in this namespace with the client's address, no other connection
//! there has the same addresses. The kernel cannot be queried across namespaces, so only processes
//! of the same user are trusted there.
//!
//! **Wildcards, and several listeners on one port.** The kernel reports the listening socket that
//! will get a connection between two addresses, also among sockets that share a port. Only that
//! listener gets the announcement. Without a report all listeners get it, each in a slot of its
//! mailbox, and the one that takes it has the connection. A report is cached for a moment, unless
//! the socket belongs to another user.
//!
//! **Listeners that have ended.** Their channels are closed, which clients notice at once. Their
//! names are removed by the next process that finds them.
//!
//! **Names that are removed while the listener runs.** They are published again, see
//! [`Publication`](smc_ipc::runtime_dir::Publication).
//!
//! **Floods, malformed packets, and memory that changes.** All numbers are limited, and a malformed
//! packet ends its channel. Each side copies what it reads from a mailbox, within its own bounds,
//! and checks the copy. Each failure, also a lack of slots, means plain TCP for that connection. A
//! slot is reused only after the listener has closed its direction.
//!
//! On a kernel without `sock_diag` for TCP neither cookie nor owner can be compared, so other users
//! are not served, and their listeners get no announcements.

mod client;
mod directory;
mod early;
mod listener;
mod mailbox;
mod message;
mod netns;
mod reachability;
mod sock_diag;

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use async_trait::async_trait;
use smc_core::error::{FallbackCause, OsError};
use smc_core::mutex::Mutex;
use smc_core::negotiate::{Candidate, Negotiation, Published};
use smc_core::runtime::Runtime;
use smc_ipc::Domain;

use client::LocalClient;
use sock_diag::SockDiag;

#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub use listener::fuzz;

/// Negotiation between processes of one host, through directories that only they can change.
///
/// See the [crate](self) for the protocol and its threat model.
///
/// Clones share what they know of listeners, for each endpoint's runtime apart, and of so many
/// endpoints as [`Local::MAX_ENDPOINTS`]. Channels to listeners stay until the last clone is gone.
#[derive(Clone, Debug, Default)]
pub struct Local {
    domain: Domain,
    /// One for each runtime, made at its first use, the oldest first.
    clients: Arc<Mutex<Vec<LocalClient>>>,
}

impl Local {
    /// Endpoints that can share a `Local`: beyond that, the one that was made first loses what is
    /// known for it, and finds it again.
    pub const MAX_ENDPOINTS: usize = 16;

    /// Between the processes of [`Domain::default`].
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Between the processes of this domain.
    ///
    /// Processes of other users have to be in the same network namespace, with a kernel that
    /// reports the owners of TCP sockets (`sock_diag`).
    #[must_use]
    pub fn in_domain(domain: Domain) -> Self {
        Self {
            domain,
            clients: Arc::default(),
        }
    }

    fn client(&self, runtime: &Arc<dyn Runtime>) -> LocalClient {
        let mut known = self.clients.lock();
        if let Some(client) = known.iter().find(|client| client.runs_on(runtime)) {
            return client.clone();
        }
        if known.len() == Self::MAX_ENDPOINTS {
            known.remove(0);
        }
        let client = LocalClient::new(self.domain.clone(), Arc::clone(runtime));
        known.push(client.clone());
        client
    }
}

#[async_trait]
impl Negotiation for Local {
    async fn look_up(
        &self,
        runtime: &Arc<dyn Runtime>,
        to: SocketAddr,
    ) -> Result<Candidate, FallbackCause> {
        let found = self.client(runtime).look_up(to).await?;
        let expected = found.expected_handshake();
        let candidate = Candidate::new(move |socket, proposal, buffer| {
            let offer = found.offer(socket, proposal, buffer)?;
            Ok(Box::new(offer))
        });
        Ok(candidate.of_same_host().expecting(expected))
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
        Ok(Arc::new(listener::LocalListener::publish(
            self.domain.clone(),
            runtime,
            at,
            tcp,
        )?))
    }
}

/// The user whose listening socket a connection to this address gets, where that is a socket of
/// this host in this thread's network namespace; `None` for an address of another host, and where
/// no socket listens.
///
/// # Errors
///
/// When there is no descriptor left, or the kernel reports no TCP sockets (`sock_diag`).
pub fn listening_user(at: SocketAddr) -> Result<Option<u32>, OsError> {
    if !netns::is_local(at)? {
        return Ok(None);
    }
    let at = netns::canonical(at);
    // No connection comes from this port, so that a listening socket is found.
    let peer = SocketAddr::new(at.ip(), 0);
    let found = SockDiag::open().and_then(|mut diag| diag.find(at, peer));
    let found = found.map_err(|error| OsError::new("look up the listening socket", &error))?;
    let found = found.filter(sock_diag::SocketInfo::is_listening);
    Ok(found.map(|socket| socket.uid))
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use smc_testkit::port::HeldPort;
    use smc_testkit::runtime::VirtualRuntime;
    use smc_testkit::user::{is_root, run_as};

    use super::*;

    #[test]
    fn endpoints_that_share_it_keep_what_they_know() {
        let local = Local::new();
        let runtimes: [Arc<dyn Runtime>; 2] = [1, 2].map(|seed| VirtualRuntime::new(seed).handle());
        let before = runtimes.each_ref().map(|runtime| local.client(runtime));
        for (runtime, before) in runtimes.iter().zip(before) {
            assert!(local.client(runtime).is_same(&before));
        }
    }

    #[test]
    fn the_number_of_endpoints_is_bounded() {
        let local = Local::new();
        for seed in 0..2 * Local::MAX_ENDPOINTS as u64 {
            let runtime: Arc<dyn Runtime> = VirtualRuntime::new(seed).handle();
            local.client(&runtime);
        }
        assert_eq!(local.clients.lock().len(), Local::MAX_ENDPOINTS);
    }

    #[test]
    fn the_user_of_a_listener_is_that_of_the_socket_at_the_address() {
        let port = HeldPort::of(Ipv4Addr::LOCALHOST).unwrap();
        let at = port.addr();
        if let Err(error) = listening_user(at) {
            return println!("skipped: why: no sock_diag here: {error}");
        }
        assert_eq!(listening_user(at), Ok(None));
        let own = TcpListener::bind(at).unwrap();
        let uid = rustix::process::geteuid().as_raw();
        let mapped = SocketAddr::new(Ipv4Addr::LOCALHOST.to_ipv6_mapped().into(), at.port());
        for at in [at, mapped, (Ipv4Addr::UNSPECIFIED, at.port()).into()] {
            assert_eq!(listening_user(at), Ok(Some(uid)), "{at}");
        }
        // Another address with the port, of this host and of none.
        assert_eq!(listening_user(([127, 0, 0, 2], at.port()).into()), Ok(None));
        assert_eq!(listening_user(([192, 0, 2, 1], at.port()).into()), Ok(None));
        drop(own);
        if is_root("listen as another user") {
            let listen = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let other = run_as(990, listen).unwrap();
            assert_eq!(listening_user(other.local_addr().unwrap()), Ok(Some(990)));
        }
    }
}
