//! UNIX stream sockets, as the runtimes have them.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use smol::net::unix as smol_unix;
use tokio_util::compat::{Compat, FuturesAsyncReadCompatExt as _, TokioAsyncReadCompatExt as _};

use super::super::plan::Settings;
use super::{Accept, Buffers, Connect, Duplex, describe};

impl Duplex for smol_unix::UnixStream {
    type Tokio = Compat<Self>;

    fn into_tokio(self) -> Compat<Self> {
        self.compat()
    }
}

impl Duplex for Compat<tokio::net::UnixStream> {
    type Tokio = tokio::net::UnixStream;

    fn into_tokio(self) -> tokio::net::UnixStream {
        self.into_inner()
    }
}

/// Opens connections on smol.
pub(in crate::bench) struct SmolConnector(PathBuf, Buffers);

/// Takes connections in on smol.
pub(in crate::bench) struct SmolListener(smol_unix::UnixListener, PathBuf, Buffers);

/// Opens connections on tokio.
pub(in crate::bench) struct TokioConnector(PathBuf, Buffers);

/// Takes connections in on tokio.
pub(in crate::bench) struct TokioListener(tokio::net::UnixListener, PathBuf, Buffers);

impl SmolConnector {
    pub(in crate::bench) fn new(address: &str, settings: &Settings) -> Self {
        Self(address.into(), Buffers(settings.buffer))
    }
}

impl Connect for SmolConnector {
    type Stream = smol_unix::UnixStream;

    async fn connect(&self) -> Result<Self::Stream> {
        let stream = smol_unix::UnixStream::connect(&self.0).await;
        let stream = stream.with_context(|| format!("connect to {}", self.0.display()))?;
        self.1.ask(&stream)?;
        Ok(stream)
    }

    fn path(&self, stream: &Self::Stream) -> String {
        describe("UNIX", stream)
    }
}

impl SmolListener {
    pub(in crate::bench) fn bind(dir: &Path, settings: &Settings) -> Result<Self> {
        let path = dir.join(NAME);
        let listener = smol_unix::UnixListener::bind(&path);
        let listener = listener.with_context(|| format!("bind to {}", path.display()))?;
        Ok(Self(listener, path, Buffers(settings.buffer)))
    }
}

impl Accept for SmolListener {
    type Stream = smol_unix::UnixStream;

    async fn accept(&self) -> io::Result<Self::Stream> {
        let stream = self.0.accept().await?.0;
        self.2.ask(&stream)?;
        Ok(stream)
    }

    fn address(&self) -> Result<String> {
        text(&self.1)
    }
}

impl TokioConnector {
    pub(in crate::bench) fn new(address: &str, settings: &Settings) -> Self {
        Self(address.into(), Buffers(settings.buffer))
    }
}

impl Connect for TokioConnector {
    type Stream = Compat<tokio::net::UnixStream>;

    async fn connect(&self) -> Result<Self::Stream> {
        let stream = tokio::net::UnixStream::connect(&self.0).await;
        let stream = stream.with_context(|| format!("connect to {}", self.0.display()))?;
        self.1.ask(&stream)?;
        Ok(stream.compat())
    }

    fn path(&self, stream: &Self::Stream) -> String {
        describe("UNIX", stream.get_ref())
    }
}

impl TokioListener {
    pub(in crate::bench) fn bind(dir: &Path, settings: &Settings) -> Result<Self> {
        let path = dir.join(NAME);
        let listener = tokio::net::UnixListener::bind(&path);
        let listener = listener.with_context(|| format!("bind to {}", path.display()))?;
        Ok(Self(listener, path, Buffers(settings.buffer)))
    }
}

impl Accept for TokioListener {
    type Stream = Compat<tokio::net::UnixStream>;

    async fn accept(&self) -> io::Result<Self::Stream> {
        let stream = self.0.accept().await?.0;
        self.2.ask(&stream)?;
        Ok(stream.compat())
    }

    fn address(&self) -> Result<String> {
        text(&self.1)
    }
}

fn text(path: &Path) -> Result<String> {
    let text = path
        .to_str()
        .context("the name of the socket is not UTF-8")?;
    Ok(text.to_owned())
}

const NAME: &str = "bench.sock";
