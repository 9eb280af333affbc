//! Connections of either runtime, over each of the transports that are compared.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use futures_lite::{AsyncRead, AsyncWrite};
use smc::{Endpoint, Mode, Stream};
use smol::net as smol_net;
use tokio_util::compat::TokioAsyncReadCompatExt as _;

use super::Runtime;
use super::carrier::Carried;

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    Smc,
    Tcp,
    Unix,
}

impl Transport {
    pub(super) const ALL: [Self; 3] = [Self::Smc, Self::Tcp, Self::Unix];
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Smc => "SMC",
            Self::Tcp => "TCP loopback",
            Self::Unix => "UNIX socket",
        })
    }
}

/// Where a server can be reached.
#[derive(Clone, Debug)]
pub(super) struct Addresses {
    pub(super) smc: SocketAddr,
    pub(super) tcp: SocketAddr,
    pub(super) unix: PathBuf,
}

/// A connection, whatever it is.
pub(super) trait Duplex: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Duplex for T {}

/// Runs a future to its end on the runtime's own terms.
pub(super) fn block_on<T>(runtime: Runtime, future: impl Future<Output = Result<T>>) -> Result<T> {
    match runtime {
        Runtime::Smol => smol::block_on(future),
        Runtime::Tokio => tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start tokio")?
            .block_on(future),
    }
}

/// Opens an SMC stream, or what became of it.
pub(super) async fn connect_smc(endpoint: &Endpoint, to: &Addresses) -> Result<Stream> {
    let stream = endpoint.connect(to.smc).await;
    stream.with_context(|| format!("connect to {}", to.smc))
}

/// Opens a connection of any kind.
pub(super) async fn connect(
    runtime: Runtime,
    endpoint: &Endpoint,
    transport: Transport,
    to: &Addresses,
) -> Result<Box<dyn Duplex>> {
    let tcp = || format!("connect to {}", to.tcp);
    let unix = || format!("connect to {}", to.unix.display());
    Ok(match (transport, runtime) {
        (Transport::Smc, _) => {
            let stream = connect_smc(endpoint, to).await?;
            if let Mode::Tcp { reason, .. } = stream.mode() {
                bail!("the stream is TCP: {reason}");
            }
            Box::new(stream)
        }
        (Transport::Tcp, Runtime::Smol) => {
            let stream = smol_net::TcpStream::connect(to.tcp)
                .await
                .with_context(tcp)?;
            stream.set_nodelay(true)?;
            Box::new(stream)
        }
        (Transport::Tcp, Runtime::Tokio) => {
            let stream = tokio::net::TcpStream::connect(to.tcp)
                .await
                .with_context(tcp)?;
            stream.set_nodelay(true)?;
            Box::new(stream.compat())
        }
        (Transport::Unix, Runtime::Smol) => {
            let stream = smol_net::unix::UnixStream::connect(&to.unix).await;
            Box::new(stream.with_context(unix)?)
        }
        (Transport::Unix, Runtime::Tokio) => {
            let stream = tokio::net::UnixStream::connect(&to.unix).await;
            Box::new(stream.with_context(unix)?.compat())
        }
    })
}

/// Listeners for all transports.
pub(super) struct Listeners {
    smc: smc::Listener,
    sockets: Sockets,
}

enum Sockets {
    Smol(smol_net::TcpListener, smol_net::unix::UnixListener),
    Tokio(tokio::net::TcpListener, tokio::net::UnixListener),
}

impl Listeners {
    pub(super) async fn bind(
        runtime: Runtime,
        carried: &Carried,
        unix: &Path,
    ) -> Result<(Self, Addresses)> {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let host = SocketAddr::from((carried.host, 0));
        let smc = carried.endpoint.bind(host).await;
        let smc = smc.with_context(|| format!("bind to {host}"))?;
        let bind_tcp = || format!("bind to {any}");
        let bind_unix = || format!("bind to {}", unix.display());
        let (sockets, tcp) = match runtime {
            Runtime::Smol => {
                let tcp = smol_net::TcpListener::bind(any)
                    .await
                    .with_context(bind_tcp)?;
                let at = tcp.local_addr()?;
                let unix = smol_net::unix::UnixListener::bind(unix).with_context(bind_unix)?;
                (Sockets::Smol(tcp, unix), at)
            }
            Runtime::Tokio => {
                let tcp = tokio::net::TcpListener::bind(any)
                    .await
                    .with_context(bind_tcp)?;
                let at = tcp.local_addr()?;
                let unix = tokio::net::UnixListener::bind(unix).with_context(bind_unix)?;
                (Sockets::Tokio(tcp, unix), at)
            }
        };
        let addresses = Addresses {
            smc: smc.local_addr()?,
            tcp,
            unix: unix.to_owned(),
        };
        Ok((Self { smc, sockets }, addresses))
    }

    pub(super) async fn accept(&self, transport: Transport) -> io::Result<Box<dyn Duplex>> {
        Ok(match (transport, &self.sockets) {
            (Transport::Smc, _) => Box::new(self.smc.accept().await?.0),
            (Transport::Tcp, Sockets::Smol(tcp, _)) => {
                let stream = tcp.accept().await?.0;
                stream.set_nodelay(true)?;
                Box::new(stream)
            }
            (Transport::Tcp, Sockets::Tokio(tcp, _)) => {
                let stream = tcp.accept().await?.0;
                stream.set_nodelay(true)?;
                Box::new(stream.compat())
            }
            (Transport::Unix, Sockets::Smol(_, unix)) => Box::new(unix.accept().await?.0),
            (Transport::Unix, Sockets::Tokio(_, unix)) => Box::new(unix.accept().await?.0.compat()),
        })
    }
}
