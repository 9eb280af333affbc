//! Options of listeners.

use std::io;
use std::os::fd::BorrowedFd;

use crate::runtime::SocketHook;

/// Options of a listener that differ from one to the next.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ListenOptions {
    /// TCP connections that may wait to be accepted, and streams that may wait for `accept`; 1024
    /// if not given. A socket that listens already keeps the length of its backlog then. Of
    /// streams there are at most a sixteenth of the descriptors that the process may have
    /// (`RLIMIT_NOFILE`); further connections wait in the backlog.
    pub backlog: Option<u32>,
    /// `SO_REUSEPORT`.
    pub reuse_port: bool,
    /// `IPV6_V6ONLY` on an IPv6 listener; the system's default if not given.
    pub only_v6: Option<bool>,
    /// Called with the socket before it is bound; see [`ListenOptions::socket`].
    pub socket: Option<SocketHook>,
    /// The most bytes of early data to take; see [`ListenOptions::max_early_data`].
    pub max_early_data: usize,
}

impl ListenOptions {
    /// Options that change nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how many TCP connections, and how many streams, may wait to be accepted.
    #[must_use]
    pub fn backlog(mut self, len: u32) -> Self {
        self.backlog = Some(len);
        self
    }

    /// Sets `SO_REUSEPORT`, with which several listeners can have one address. `SO_REUSEADDR` is
    /// set on every listener.
    #[must_use]
    pub fn reuse_port(mut self, on: bool) -> Self {
        self.reuse_port = on;
        self
    }

    /// Sets `IPV6_V6ONLY`, without which a listener at `[::]` has clients of IPv4 too. No effect on
    /// a listener of IPv4.
    #[must_use]
    pub fn only_v6(mut self, on: bool) -> Self {
        self.only_v6 = Some(on);
        self
    }

    /// Takes early data of at most this length, such as 4096, from PROPOSALs: the first bytes of
    /// streams, which clients send with [`ConnectOptions::early_data`]. Clients have 16,352 bytes
    /// at most. Longer data than this comes behind the handshake, as all does without this.
    ///
    /// [`Listener::accept`] returns a stream with early data like any other, and the data is the
    /// first that is read. The client may not have received an answer yet, and may never do so: a
    /// client that repeats a connect that has failed sends its request twice. So allow this for
    /// services whose requests may be repeated; or refuse, by an answer of the service, those that
    /// may not on a stream that [is early](crate::Stream::is_early).
    ///
    /// A PROPOSAL that comes twice is taken once: the listener stores what identifies the last
    /// 4096; over SMC-R each is authenticated with a number that the link group takes once, and
    /// over SMC-D it names a buffer of the client that the endpoint takes once. Data that another
    /// process has changed is not taken over SMC-R. Over SMC-D with the handshake on TCP that
    /// cannot be told.
    ///
    /// [`ConnectOptions::early_data`]: crate::ConnectOptions::early_data
    /// [`Listener::accept`]: crate::Listener::accept
    #[must_use]
    pub fn max_early_data(mut self, max: usize) -> Self {
        self.max_early_data = max;
        self
    }

    /// Sets a function that gets the socket after it was made and before it is bound, for options
    /// that have no method here, such as `SO_BINDTODEVICE` or `SO_RCVBUF`. Accepted connections
    /// inherit most of them. The option `SO_REUSEADDR` and those of this type are set afterwards.
    ///
    /// An error of the function is that of [`Endpoint::bind_with`]. It is not called by a runtime
    /// without sockets of the system.
    ///
    /// [`Endpoint::bind_with`]: crate::Endpoint::bind_with
    #[must_use]
    pub fn socket(
        mut self,
        hook: impl Fn(BorrowedFd<'_>) -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        self.socket = Some(SocketHook::new(hook));
        self
    }
}
