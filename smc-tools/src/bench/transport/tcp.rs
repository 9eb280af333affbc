//! TCP over the loopback interface, as the runtimes have it.

use std::io;
use std::net::SocketAddr;

use anyhow::{Context as _, Result};
use smol::net as smol_net;
use tokio_util::compat::{Compat, FuturesAsyncReadCompatExt as _, TokioAsyncReadCompatExt as _};

use super::super::plan::Settings;
use super::{Accept, Buffers, Connect, Duplex, describe};

impl Duplex for smol_net::TcpStream {
    type Tokio = Compat<Self>;

    fn into_tokio(self) -> Compat<Self> {
        self.compat()
    }
}

impl Duplex for Compat<tokio::net::TcpStream> {
    type Tokio = tokio::net::TcpStream;

    fn into_tokio(self) -> tokio::net::TcpStream {
        self.into_inner()
    }
}

/// Opens connections on smol.
pub(in crate::bench) struct SmolConnector(SocketAddr, Buffers);

/// Takes connections in on smol.
pub(in crate::bench) struct SmolListener(smol_net::TcpListener, Buffers);

/// Opens connections on tokio.
pub(in crate::bench) struct TokioConnector(SocketAddr, Buffers);

/// Takes connections in on tokio.
pub(in crate::bench) struct TokioListener(tokio::net::TcpListener, Buffers);

impl SmolConnector {
    pub(in crate::bench) fn new(address: &str, settings: &Settings) -> Result<Self> {
        Ok(Self(address.parse()?, Buffers(settings.buffer)))
    }
}

impl Connect for SmolConnector {
    type Stream = smol_net::TcpStream;

    async fn connect(&self) -> Result<Self::Stream> {
        let stream = smol_net::TcpStream::connect(self.0).await;
        let stream = stream.with_context(|| format!("connect to {}", self.0))?;
        stream.set_nodelay(true)?;
        self.1.ask(&stream)?;
        Ok(stream)
    }

    fn path(&self, stream: &Self::Stream) -> String {
        describe("TCP", stream)
    }
}

impl SmolListener {
    pub(in crate::bench) fn bind(settings: &Settings) -> Result<Self> {
        let at = settings.any_port();
        let listener = smol::Async::<std::net::TcpListener>::bind(at);
        let listener = listener.with_context(|| format!("bind to {at}"))?;
        Ok(Self(listener.into(), Buffers(settings.buffer)))
    }
}

impl Accept for SmolListener {
    type Stream = smol_net::TcpStream;

    async fn accept(&self) -> io::Result<Self::Stream> {
        let stream = self.0.accept().await?.0;
        stream.set_nodelay(true)?;
        self.1.ask(&stream)?;
        Ok(stream)
    }

    fn address(&self) -> Result<String> {
        Ok(self.0.local_addr()?.to_string())
    }
}

impl TokioConnector {
    pub(in crate::bench) fn new(address: &str, settings: &Settings) -> Result<Self> {
        Ok(Self(address.parse()?, Buffers(settings.buffer)))
    }
}

impl Connect for TokioConnector {
    type Stream = Compat<tokio::net::TcpStream>;

    async fn connect(&self) -> Result<Self::Stream> {
        let stream = tokio::net::TcpStream::connect(self.0).await;
        let stream = stream.with_context(|| format!("connect to {}", self.0))?;
        stream.set_nodelay(true)?;
        self.1.ask(&stream)?;
        Ok(stream.compat())
    }

    fn path(&self, stream: &Self::Stream) -> String {
        describe("TCP", stream.get_ref())
    }
}

impl TokioListener {
    pub(in crate::bench) fn bind(settings: &Settings) -> Result<Self> {
        let at = settings.any_port();
        let socket = match at {
            SocketAddr::V4(_) => tokio::net::TcpSocket::new_v4()?,
            SocketAddr::V6(_) => tokio::net::TcpSocket::new_v6()?,
        };
        socket.bind(at).with_context(|| format!("bind to {at}"))?;
        Ok(Self(socket.listen(BACKLOG)?, Buffers(settings.buffer)))
    }
}

impl Accept for TokioListener {
    type Stream = Compat<tokio::net::TcpStream>;

    async fn accept(&self) -> io::Result<Self::Stream> {
        let stream = self.0.accept().await?.0;
        stream.set_nodelay(true)?;
        self.1.ask(&stream)?;
        Ok(stream.compat())
    }

    fn address(&self) -> Result<String> {
        Ok(self.0.local_addr()?.to_string())
    }
}

/// That of SMC listeners, too.
const BACKLOG: u32 = 1024;
