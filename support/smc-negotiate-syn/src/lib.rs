//! Negotiation of SMC with the TCP option that kernels use, and so with kernels.
//!
//! A [`SynOption`] is a [negotiation](smc_core::negotiate) for an endpoint of `smc`:
//! connections with kernels, and with endpoints that have one, use SMC. Kernels speak SMC-R, so
//! such an endpoint has an RDMA device.
//!
//! A kernel's `AF_SMC` socket announces itself with an option in the SYN, and answers with the same
//! option in the SYN-ACK (docs/spec/tcp-option.md). Ordinary sockets cannot set options, but a
//! small eBPF program of type `sock_ops`, attached to a cgroup, can, for the sockets of all
//! processes in it. `program` has it, instruction by instruction.
//!
//! ```text
//!   client                                           server
//!   mark the socket                                  mark the socket, keep SYNs
//!   connect                                          listen
//!         ------------- SYN + option -------------->
//!         <---------- SYN-ACK + option -------------  only if the SYN had it
//!         ------------------ ACK ------------------>
//!   has the SYN-ACK had it?                          has the SYN had it?
//!         ----------- CLC, or plain TCP ------------
//! ```
//!
//! Marking a socket and asking what its peer did are accesses to the program's map by the socket's
//! descriptor. The map only ever gives access to one's own sockets, so all users may have it.
//!
//! # Two ways to get it
//!
//! - [`SynOption::load`]: the process loads the program itself and attaches it to its cgroup, which
//!   takes `CAP_BPF` and `CAP_NET_ADMIN`. It ends with the process.
//! - [`SynOption::pinned`]: root has done that once, with `smc setup` or [`Setup`], and has left
//!   the map in a bpf file system. Using it takes no privilege but access to that file.
//!
//! [`SynOption::open`] takes what there is. Without either there is no way to send the option, and
//! an error that names what is missing; `Local` of the crate `smc-negotiate-local` and
//! [`Assume`](smc_core::negotiate::Assume) need nothing of this.
//!
//! # When a connection stays plain TCP
//!
//! CLC is only sent on connections whose SYN and SYN-ACK both carried the option. That is not so
//!
//! - if the peer does not support SMC;
//! - if the server answered with a SYN cookie, as it does under load: the option is not remembered
//!   then, and neither sent nor accepted;
//! - if the option space of the SYN was full, or a middlebox has removed the option;
//! - for sockets that this has not marked: those of other programs, and a listener that was
//!   inherited or bound elsewhere (`Endpoint::listen_on`), unless
//!   whatever made it listen had marked it.
//!
//! What a server cannot see is what became of its SYN-ACK. If that alone lost the option, on the
//! way or to other programs that fill the option space, the server waits for CLC until its timeout
//! and ends the connection, as a kernel does.
//!
//! A listener that is shared with child processes by `fork` works in all that go on using this
//! object; a process that got the listener in another way sees CLC as data.
//!
//! # Other programs of this kind
//!
//! Loading a second instance where one is effective is refused, as far as the process may see
//! the programs of others (`CAP_SYS_ADMIN`). Two at a time are harmless, but need twice the space
//! in the option space. If *another* program writes TCP options in SYN-ACKs of listeners that do
//! not support SMC, this one cannot distinguish them from marked ones; [`Status::others`] lists
//! such programs.

mod asm;
mod bpf;
mod btf;
mod cgroup;
mod error;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzz;
mod program;
mod setup;
mod syn;

pub use error::SetupError;
pub use setup::{Installed, Setup, Status};

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use rustix::io::Errno;
use rustix::net::{SocketAddrAny, SocketFlags, SocketType};
use smc_core::error::{FallbackCause, OsError, Refusal};
use smc_core::negotiate::{
    Candidate, Delivery, Negotiated, Negotiation, Offer, Published, Withdrawn,
};
use smc_core::runtime::{Runtime, Socket, Unconnected};

use cgroup::Cgroup;
use program::entry::{HAS, MARK, SEEN};

/// Negotiation with the SMC option in TCP's handshake; see the [crate](self).
///
/// Clones share the program. Where both ends may be on one host, put `Local` of the crate
/// `smc-negotiate-local` in front of it, which saves a round trip:
///
/// ```no_run
/// use std::sync::Arc;
///
/// use smc_core::negotiate::{Chain, Negotiation};
/// use smc_negotiate_local::Local;
/// use smc_negotiate_syn::SynOption;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let links: [Arc<dyn Negotiation>; 2] = [Arc::new(Local::new()), Arc::new(SynOption::open()?)];
/// let negotiation = Arc::new(Chain::new(links));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct SynOption {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    map: bpf::Map,
    /// Keeps the program attached, if it was attached here.
    _link: Option<OwnedFd>,
}

impl SynOption {
    /// What is pinned in [`Setup::DIRECTORY`] if that serves this process; else loads the program.
    ///
    /// # Errors
    ///
    /// Why what is there cannot be used, or, if nothing is there, why nothing could be loaded.
    pub fn open() -> Result<Self, SetupError> {
        Self::pinned().or_else(|pinned| match (pinned, Self::load()) {
            (_, Ok(loaded)) => Ok(loaded),
            (SetupError::NotInstalled { .. }, Err(loading)) => Err(loading),
            (pinned, Err(_)) => Err(pinned),
        })
    }

    /// Loads the program and attaches it to the cgroup of this process, until the last clone is
    /// dropped or the process ends.
    ///
    /// # Errors
    ///
    /// What is missing: privileges, cgroups of version 2, support of the kernel. Also if an
    /// instance serves this cgroup already.
    pub fn load() -> Result<Self, SetupError> {
        Self::load_into(&Cgroup::own()?)
    }

    /// As [`SynOption::load`], for sockets of all processes in a cgroup and those below it.
    ///
    /// # Errors
    ///
    /// As [`SynOption::load`].
    pub fn load_for(cgroup: impl AsRef<Path>) -> Result<Self, SetupError> {
        Self::load_into(&Cgroup::open(cgroup.as_ref())?)
    }

    fn load_into(cgroup: &Cgroup) -> Result<Self, SetupError> {
        setup::refuse_second(cgroup)?;
        let (map, link) = setup::load(cgroup)?;
        Ok(Self::new(map, Some(link)))
    }

    /// Uses the map that is pinned in [`Setup::DIRECTORY`].
    ///
    /// # Errors
    ///
    /// [`SetupError::NotInstalled`] if there is none, [`SetupError::NotPermitted`] if it is not for
    /// this user, [`SetupError::NotAttached`] if its program does not run for this process.
    pub fn pinned() -> Result<Self, SetupError> {
        Self::pinned_in(Setup::DIRECTORY)
    }

    /// As [`SynOption::pinned`], in another directory of a bpf file system.
    ///
    /// # Errors
    ///
    /// As [`SynOption::pinned`].
    pub fn pinned_in(directory: impl AsRef<Path>) -> Result<Self, SetupError> {
        let directory = directory.as_ref();
        let found = Self::new(setup::open_map(directory)?, None);
        match found.is_effective() {
            Ok(Some(false)) => Err(SetupError::NotAttached {
                directory: directory.to_owned(),
            }),
            Ok(_) => Ok(found),
            Err(error) => Err(SetupError::io("mark a socket")(error)),
        }
    }

    fn new(map: bpf::Map, link: Option<OwnedFd>) -> Self {
        Self {
            shared: Arc::new(Shared { map, _link: link }),
        }
    }

    /// Whether the program runs for sockets that this process makes now.
    ///
    /// Tries it, with a socket that listens on a loopback address for a moment. `None` if there is
    /// no such address here.
    ///
    /// # Errors
    ///
    /// As `socket(2)` and `listen(2)`; when no socket can be marked.
    pub fn is_effective(&self) -> io::Result<Option<bool>> {
        for ip in [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()] {
            let at = SocketAddrAny::from(SocketAddr::new(ip, 0));
            let family = at.address_family();
            let flags = SocketFlags::CLOEXEC;
            let Ok(socket) = rustix::net::socket_with(family, SocketType::STREAM, flags, None)
            else {
                continue;
            };
            if rustix::net::bind(&socket, &at).is_err() {
                continue;
            }
            self.mark(socket.as_fd())?;
            rustix::net::listen(&socket, 0)?;
            return Ok(Some(self.is_seen(socket.as_fd())?));
        }
        Ok(None)
    }

    /// Marks a socket that is not connected.
    fn offer(&self, socket: &Unconnected<'_>) -> Result<Box<dyn Offer>, OsError> {
        let failed = |error: &io::Error| OsError::new("mark the socket for the SMC option", error);
        let fd = socket
            .fd
            .ok_or_else(|| failed(&io::ErrorKind::Unsupported.into()))?;
        self.mark(fd).map_err(|error| failed(&error))?;
        Ok(Box::new(Marked {
            option: self.clone(),
            has_peer: false,
        }))
    }

    /// To be done before the socket is connected or listens.
    fn mark(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        bpf::set_entry(&self.shared.map, socket, [MARK as u32, 0])
    }

    fn is_seen(&self, socket: BorrowedFd<'_>) -> io::Result<bool> {
        let entry = bpf::entry(&self.shared.map, socket)?;
        Ok(entry.is_some_and(|[flags, _]| flags & SEEN as u32 != 0))
    }

    /// Whether the peer's half of the handshake had the option.
    fn has_peer(&self, socket: BorrowedFd<'_>) -> io::Result<bool> {
        let known = || {
            let entry = bpf::entry(&self.shared.map, socket)?;
            Ok::<_, io::Error>(entry.map(|[_, verdict]| verdict).filter(|it| *it != 0))
        };
        let mut verdict = known()?;
        if verdict.is_none() {
            // A socket is seen to be connected a moment before the program runs. This call waits
            // for the lock that is held meanwhile.
            let _ = bpf::saved_syn(socket);
            verdict = known()?;
        }
        Ok(verdict == Some(HAS as u32))
    }
}

#[async_trait]
impl Negotiation for SynOption {
    /// The option shows whether a listener supports SMC.
    async fn look_up(
        &self,
        _runtime: &Arc<dyn Runtime>,
        _to: SocketAddr,
    ) -> Result<Candidate, FallbackCause> {
        let option = self.clone();
        let candidate = Candidate::new(move |socket, _, _| Ok(option.offer(socket)?));
        Ok(candidate.without_address())
    }

    fn prepare(&self, socket: &Unconnected<'_>) {
        let Some(fd) = socket.fd else {
            return;
        };
        // In this order: without its SYNs a listener must not promise anything.
        if bpf::save_syn(fd).is_ok() {
            let _ = self.mark(fd);
        }
    }

    /// # Errors
    ///
    /// `Unsupported` if the socket was not marked before it began to listen, or if the program does
    /// not run for it.
    fn publish(
        &self,
        _runtime: &Arc<dyn Runtime>,
        _at: SocketAddr,
        listener: Option<BorrowedFd<'_>>,
    ) -> Result<Arc<dyn Published>, FallbackCause> {
        let failed = |error: io::Error| OsError::new("announce the listener by SYN option", &error);
        let listener = listener.ok_or_else(|| failed(io::ErrorKind::Unsupported.into()))?;
        match self.is_seen(listener).map_err(failed)? {
            true => Ok(Arc::new(self.clone())),
            false => Err(failed(io::Error::new(
                io::ErrorKind::Unsupported,
                "not marked in time, or in another cgroup",
            ))
            .into()),
        }
    }
}

/// A socket whose SYN has the option.
#[derive(Debug)]
struct Marked {
    option: SynOption,
    has_peer: bool,
}

impl Offer for Marked {
    fn connected(&mut self, socket: &dyn Socket) -> Delivery {
        let has_peer = |fd| self.option.has_peer(fd).unwrap_or(false);
        self.has_peer = socket.fd().is_some_and(has_peer);
        match self.has_peer {
            true => Delivery::OnTcp,
            false => Delivery::Plain,
        }
    }

    /// Both have announced that they will send CLC, or they have not: neither can be withdrawn.
    fn withdraw(&mut self) -> Withdrawn {
        match self.has_peer {
            true => Withdrawn::Taken,
            false => Withdrawn::Free,
        }
    }

    fn cause(&self) -> FallbackCause {
        FallbackCause::NoSynOption
    }
}

impl Published for SynOption {
    /// From the SYN as it came, and from the verdict of the program, which answered with the option
    /// only then. Reading the SYN waits until the program has run.
    fn negotiated(&self, socket: &dyn Socket, _peer: SocketAddr) -> Negotiated {
        let expects_clc = |fd| {
            let syn = bpf::saved_syn(fd).is_ok_and(|syn| syn::has_option(&syn));
            syn && self.has_peer(fd).unwrap_or(false)
        };
        match socket.fd().is_some_and(expects_clc) {
            true => Negotiated::Clc,
            false => Negotiated::Plain(FallbackCause::NoSynOption),
        }
    }

    /// A client that got the option sends CLC in any case.
    fn dismiss(&self, socket: &dyn Socket, peer: SocketAddr, _why: Refusal) -> Negotiated {
        self.negotiated(socket, peer)
    }
}

/// Whether an error is about a name that is not there.
fn is_missing(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::NOENT | Errno::NOTDIR)
    )
}
