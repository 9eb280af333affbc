//! The two connections that a proxy copies between.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use smc::{Endpoint, Stream};
use smc_ipc::Credentials;
use socket2::{SockAddr, SockRef};
use tokio::io::{AsyncRead, AsyncWrite, split};
use tokio::net::TcpStream;
use tokio::time::sleep;

use super::address::Address;
use super::unix::{self, abstract_address};
use crate::relay::{Broken, copy};

/// A connection of any kind.
pub(super) struct Socket {
    kind: Kind,
    name: String,
}

enum Kind {
    Smc(Box<Stream>),
    Tcp(TcpStream),
    Unix(unix::Connection),
}

impl Socket {
    /// Connects to an address.
    pub(super) async fn connect(to: &Address, endpoint: Option<&Endpoint>) -> io::Result<Self> {
        match to {
            Address::Smc(target) => {
                let endpoint = endpoint.ok_or(ErrorKind::Unsupported)?;
                let stream = endpoint.connect(target.clone()).await?;
                let peer = stream.peer_addr()?;
                Ok(Self::smc(stream, peer))
            }
            Address::Tcp(target) => {
                let stream = TcpStream::connect(target).await?;
                let peer = stream.peer_addr()?;
                Ok(Self::tcp(stream, peer))
            }
            Address::Unix(path) => Self::connect_unix(to, &SockAddr::unix(path)?).await,
            Address::Abstract(name) => Self::connect_unix(to, &abstract_address(name)?).await,
        }
    }

    async fn connect_unix(to: &Address, address: &SockAddr) -> io::Result<Self> {
        // The caller has a timeout.
        loop {
            match unix::Connection::connect(address) {
                // The backlog is full, and the kernel does not report when it no longer is.
                Err(error) if error.kind() == ErrorKind::WouldBlock => sleep(UNIX_RETRY).await,
                Err(error) => return Err(error),
                Ok(connection) => {
                    return Ok(Self {
                        kind: Kind::Unix(connection),
                        name: to.to_string(),
                    });
                }
            }
        }
    }

    pub(super) fn smc(stream: Stream, peer: SocketAddr) -> Self {
        // The programs at the ends decide what is sent together. A peer that is gone is noticed. A
        // connection that was reset takes no options.
        let _reset = stream.set_nodelay(true);
        let _reset = stream.set_keepalive(true);
        Self {
            name: format!("smc:{peer} ({})", stream.mode()),
            kind: Kind::Smc(Box::new(stream)),
        }
    }

    pub(super) fn tcp(stream: TcpStream, peer: SocketAddr) -> Self {
        let _reset = stream.set_nodelay(true);
        let _reset = SockRef::from(&stream).set_keepalive(true);
        Self {
            name: format!("tcp:{peer}"),
            kind: Kind::Tcp(stream),
        }
    }

    /// The connection of a client at a UNIX socket.
    pub(super) fn unix(connection: unix::Connection) -> Self {
        let name = match connection.peer() {
            Ok(Credentials { uid, pid: 0, .. }) => format!("unix (user {uid})"),
            Ok(Credentials { uid, pid, .. }) => format!("unix (process {pid}, user {uid})"),
            Err(_) => "unix".to_owned(),
        };
        Self {
            kind: Kind::Unix(connection),
            name,
        }
    }

    /// The peer, and what carries the connection.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Closes the connection in a way that its peer does not take for the end of the stream. UNIX
    /// sockets have no such way, unless the peer has sent data that was not read, from Linux 6.16
    /// on.
    pub(super) fn reset(self) {
        let _ended = match &self.kind {
            Kind::Smc(stream) => stream.set_zero_linger(),
            Kind::Tcp(stream) => stream.set_zero_linger(),
            Kind::Unix(_) => Ok(()),
        };
    }

    fn stream(&mut self) -> Box<dyn Duplex + '_> {
        match &mut self.kind {
            Kind::Smc(stream) => Box::new(&mut **stream),
            Kind::Tcp(stream) => Box::new(stream),
            Kind::Unix(connection) => Box::new(connection),
        }
    }
}

trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// How the copying between two connections ended.
#[derive(Debug)]
pub(super) enum End {
    /// By the ends of both streams.
    Complete,
    /// A connection no longer takes data, and its own data was complete.
    Refused(String),
    /// Data of a connection is incomplete. The peer of the other one must not take it for complete.
    Broken(String),
}

/// Copies in both directions until both have ended, and counts the bytes.
///
/// `tokio::io::copy_bidirectional` ends with the first error, and loses what the other direction
/// has read by then: a server may answer and close although the client is still sending.
pub(super) async fn relay(
    client: &mut Socket,
    server: &mut Socket,
    there: &mut u64,
    back: &mut u64,
) -> End {
    let (from_client, to_client) = split(client.stream());
    let (from_server, to_server) = split(server.stream());
    let mut going = pin!(copy(from_client, to_server, there));
    let mut coming = pin!(copy(from_server, to_client, back));
    let (mut is_going, mut is_coming) = (true, true);
    let mut end = End::Complete;
    while is_going || is_coming {
        let (ended, source, destination) = tokio::select! {
            ended = &mut going, if is_going => {
                is_going = false;
                (ended, "client", "server")
            }
            ended = &mut coming, if is_coming => {
                is_coming = false;
                (ended, "server", "client")
            }
        };
        match ended {
            Ok(()) => {}
            // The peer is gone: there is nothing to carry to it either.
            Err(Broken::Read(error)) => return End::Broken(format!("from the {source}: {error}")),
            // What it has sent before can still be read.
            Err(Broken::Write(error)) => {
                end = End::Refused(format!("to the {destination}: {error}"))
            }
        }
    }
    end
}

/// How often a connection to a UNIX socket with a full backlog is tried again.
const UNIX_RETRY: Duration = Duration::from_millis(5);
