//! Options of a connect.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use smc_wire::clc::Extensions;

use super::runtime::SocketHook;
use crate::config::Policy;

/// Options of a connection that differ from the endpoint's.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ConnectOptions {
    /// The policy, instead of the endpoint's.
    pub policy: Option<Policy>,
    /// Size of the receive buffer in bytes, rounded up to a power of two from 16 KiB.
    pub recv_buffer: Option<usize>,
    /// The local address.
    pub local: Option<SocketAddr>,
    /// The longest time for the connection and its handshake together.
    pub timeout: Option<Duration>,
    /// Called with each socket before it is bound and connected; see [`ConnectOptions::socket`].
    pub socket: Option<SocketHook>,
    /// The first bytes of the stream; see [`ConnectOptions::early_data`].
    pub early_data: Option<Arc<[u8]>>,
}

impl ConnectOptions {
    /// Options that change nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the policy.
    #[must_use]
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = Some(policy);
        self
    }

    /// Sets the size of the receive buffer in bytes.
    #[must_use]
    pub fn recv_buffer(mut self, len: usize) -> Self {
        self.recv_buffer = Some(len);
        self
    }

    /// Sets the local address, whose port may be 0. The bound socket gets `SO_REUSEADDR`, so that
    /// the address can be used for other destinations at the same time.
    #[must_use]
    pub fn local(mut self, addr: SocketAddr) -> Self {
        self.local = Some(addr);
        self
    }

    /// Sets the longest time for everything that a connect does: the look-up of a name, the TCP
    /// connections to all addresses that are tried, and the handshake. When it has passed the
    /// connect ends with [`Error::TimedOut`] and [`Phase::Connect`], and what was begun is
    /// cancelled.
    ///
    /// Without it the time for TCP is the system's, and that for the handshake the endpoint's.
    ///
    /// [`Error::TimedOut`]: crate::Error::TimedOut
    /// [`Phase::Connect`]: crate::error::Phase::Connect
    #[must_use]
    pub fn timeout(mut self, time: Duration) -> Self {
        self.timeout = Some(time);
        self
    }

    /// Sets the first bytes of the stream, at most [`ConnectOptions::MAX_EARLY_DATA`]. They are
    /// sent with the PROPOSAL where that is possible, which saves a round trip: the request is at
    /// the server before the handshake is complete.
    ///
    /// That takes an address that this endpoint has connected to within ten minutes, a link group
    /// that exists, and a listener that allows it ([`ListenOptions::max_early_data`]). SMC-R takes
    /// besides that the group has a [single link](crate::Builder::max_links), and an RMB of this
    /// side that is announced and free. SMC-D takes a handshake on TCP, which two processes of one
    /// host do not have at a TCP address unless [`Local`](crate::Local) is left out, or on a UNIX
    /// socket, where the same process listens, and a receive buffer of the server in which the data
    /// leaves space. An endpoint's own listener at a TCP address takes none.
    /// In all other cases, also where the stream is TCP, the connect writes them once the
    /// connection exists: do not write them again. The server's application gets them once, as the
    /// first bytes, and [`Stream::early_data_accepted`] says which case it was.
    ///
    /// A connect that fails may have delivered them: the server has taken them, and its answer did
    /// not arrive. Another attempt then sends them twice, as it would after a write to a TCP
    /// connection that is lost. So this is for requests that may be repeated.
    ///
    /// The server takes each PROPOSAL once, and over SMC-R the data only as the client has sent it:
    /// packets that the network delivers twice have nothing delivered twice, nor has a process that
    /// repeats them, if its copy does not arrive first. Who can intercept the TCP connection can
    /// read the data, and have it delivered twice, by such a copy, or by a DECLINE in place of the
    /// server's answer, as who intercepts a TCP connection always can; over SMC-D, which
    /// authenticates nothing, it can change the data as well. So data that only the fabric may
    /// carry is not for this.
    /// With [`Builder::fast_open`](crate::Builder::fast_open) a listener without SMC that has taken
    /// over the address may get the PROPOSAL, with these bytes in it, on a connection that is then
    /// reset. The connect fails then: the client cannot tell that listener from one whose SMC
    /// option was lost on the way, and which has taken the data.
    ///
    /// [`ListenOptions::max_early_data`]: crate::ListenOptions::max_early_data
    /// [`Stream::early_data_accepted`]: crate::Stream::early_data_accepted
    ///
    /// ```
    /// # #[cfg(feature = "smol")]
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use smc::{Builder, ConnectOptions};
    /// # smol::block_on(async {
    /// # let endpoint = Builder::smol().build()?;
    /// # let listener = endpoint.bind("127.0.0.1:0").await?;
    /// # let addr = listener.local_addr()?;
    /// let options = ConnectOptions::new().early_data(*b"GET / HTTP/1.1\r\n\r\n");
    /// let stream = endpoint.connect_with(addr, &options).await?;
    /// assert!(!stream.early_data_accepted(), "sent behind the handshake");
    /// # Ok(())
    /// # })
    /// # }
    /// # #[cfg(not(feature = "smol"))]
    /// # fn main() {}
    /// ```
    #[must_use]
    pub fn early_data(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.early_data = Some(bytes.into().into());
        self
    }

    /// The most bytes of early data, 16,352. A connect with more fails with
    /// [`Error::Misuse`](crate::Error::Misuse).
    pub const MAX_EARLY_DATA: usize = Extensions::MAX_EARLY_DATA;

    /// Sets a function that gets each socket after it was made and before it is bound and
    /// connected, for options that have no method here, such as `SO_MARK`, `SO_BINDTODEVICE` or
    /// `TCP_USER_TIMEOUT`.
    ///
    /// A connect may make several sockets, and not all of them are connected: to find a free port,
    /// for each address that is tried, and to find the local address of a route, which depends on
    /// the socket's mark and device. An error of the function is that of
    /// [`Endpoint::connect_with`], after which further addresses are still tried. It is not called
    /// by a runtime without sockets of the system. What the negotiation of an endpoint connects by
    /// itself is no connection of the application, and the function does not see it.
    ///
    /// ```
    /// # #[cfg(feature = "smol")]
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use smc::{Builder, ConnectOptions};
    /// use std::time::Duration;
    ///
    /// # smol::block_on(async {
    /// # let endpoint = Builder::smol().build()?;
    /// # let listener = endpoint.bind("127.0.0.1:0").await?;
    /// # let addr = listener.local_addr()?;
    /// let options = ConnectOptions::new()
    ///     .timeout(Duration::from_secs(5))
    ///     .socket(|socket| Ok(rustix::net::sockopt::set_socket_send_buffer_size(socket, 65536)?));
    /// let stream = endpoint.connect_with(addr, &options).await?;
    /// # Ok(())
    /// # })
    /// # }
    /// # #[cfg(not(feature = "smol"))]
    /// # fn main() {}
    /// ```
    ///
    /// [`Endpoint::connect_with`]: crate::Endpoint::connect_with
    #[must_use]
    pub fn socket(
        mut self,
        hook: impl Fn(BorrowedFd<'_>) -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        self.socket = Some(SocketHook::new(hook));
        self
    }
}
