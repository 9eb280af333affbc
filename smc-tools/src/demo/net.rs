//! Connections of either runtime, over each of the transports that are compared.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use futures_lite::{AsyncRead, AsyncWrite};
use smc_core::io::runtime::smol::SmolRuntime;
use smc_core::io::runtime::tokio::TokioRuntime;
use smc_core::{Endpoint, Mode, Stream};
use smc_transport_loop::LoopDevice;
use smol::net as smol_net;
use tokio_util::compat::TokioAsyncReadCompatExt as _;

use super::{Args, Runtime};

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
            Self::Smc => "SMC-D",
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

/// An endpoint with one loop device, as the arguments want it, and the device to see it go.
pub(super) fn endpoint(args: &Args) -> Result<(Endpoint, Weak<LoopDevice>)> {
    let device = LoopDevice::builder().nocopy(!args.copy).build();
    let device = Arc::new(device.context("cannot open the loop device")?);
    let going = Arc::downgrade(&device);
    let builder = match args.runtime {
        Runtime::Smol => Endpoint::builder().runtime(Arc::new(SmolRuntime::new())),
        Runtime::Tokio => Endpoint::builder().runtime(Arc::new(TokioRuntime::current()?)),
    };
    let mut builder = builder.device(device);
    if let Some(len) = args.buffer {
        builder = builder.recv_buffer(usize::try_from(len)?);
    }
    Ok((builder.build()?, going))
}

/// Waits until the last words of connections are said and the device has taken its name back,
/// which happens in tasks that end with the process.
pub(super) async fn part(endpoint: Endpoint, device: &Weak<LoopDevice>) {
    drop(endpoint);
    let until = Instant::now() + PATIENCE;
    while device.strong_count() > 0 && Instant::now() < until {
        thread::sleep(Duration::from_micros(100));
        futures_lite::future::yield_now().await;
    }
}

/// How long parting may take.
const PATIENCE: Duration = Duration::from_secs(1);

/// Opens an SMC stream, or what became of it.
pub(super) async fn connect_smc(endpoint: &Endpoint, to: &Addresses) -> Result<Stream> {
    Ok(endpoint.connect(to.smc).await?)
}

/// Opens a connection of any kind.
pub(super) async fn connect(
    runtime: Runtime,
    endpoint: &Endpoint,
    transport: Transport,
    to: &Addresses,
) -> Result<Box<dyn Duplex>> {
    Ok(match (transport, runtime) {
        (Transport::Smc, _) => {
            let stream = connect_smc(endpoint, to).await?;
            if let Mode::Tcp { reason, .. } = stream.mode() {
                bail!("the stream is TCP: {reason}");
            }
            Box::new(stream)
        }
        (Transport::Tcp, Runtime::Smol) => {
            let stream = smol_net::TcpStream::connect(to.tcp).await?;
            stream.set_nodelay(true)?;
            Box::new(stream)
        }
        (Transport::Tcp, Runtime::Tokio) => {
            let stream = tokio::net::TcpStream::connect(to.tcp).await?;
            stream.set_nodelay(true)?;
            Box::new(stream.compat())
        }
        (Transport::Unix, Runtime::Smol) => {
            Box::new(smol_net::unix::UnixStream::connect(&to.unix).await?)
        }
        (Transport::Unix, Runtime::Tokio) => {
            Box::new(tokio::net::UnixStream::connect(&to.unix).await?.compat())
        }
    })
}

/// Listeners for all transports.
pub(super) struct Listeners {
    smc: smc_core::Listener,
    sockets: Sockets,
}

enum Sockets {
    Smol(smol_net::TcpListener, smol_net::unix::UnixListener),
    Tokio(tokio::net::TcpListener, tokio::net::UnixListener),
}

impl Listeners {
    pub(super) async fn bind(
        runtime: Runtime,
        endpoint: &Endpoint,
        unix: &Path,
    ) -> Result<(Self, Addresses)> {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let smc = endpoint.bind(any).await?;
        let (sockets, tcp) = match runtime {
            Runtime::Smol => {
                let tcp = smol_net::TcpListener::bind(any).await?;
                let at = tcp.local_addr()?;
                (
                    Sockets::Smol(tcp, smol_net::unix::UnixListener::bind(unix)?),
                    at,
                )
            }
            Runtime::Tokio => {
                let tcp = tokio::net::TcpListener::bind(any).await?;
                let at = tcp.local_addr()?;
                (
                    Sockets::Tokio(tcp, tokio::net::UnixListener::bind(unix)?),
                    at,
                )
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
