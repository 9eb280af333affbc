//! TCP over the loopback interface and UNIX stream sockets, as the runtimes have them.

use std::io;
use std::marker::PhantomData;
use std::path::Path;

use anyhow::{Context as _, Result};
use smol::net as smol_net;
use smol::net::unix as smol_unix;
use socket2::{SockAddr, SockRef, Socket, Type};
use tokio_util::compat::{Compat, FuturesAsyncReadCompatExt as _};

use super::super::args::Settings;
use super::{Accept, Connect, Duplex};

pub(in crate::bench) type SmolTcp = Compat<smol_net::TcpStream>;
pub(in crate::bench) type SmolUnix = Compat<smol_unix::UnixStream>;
pub(in crate::bench) type TokioTcp = tokio::net::TcpStream;
pub(in crate::bench) type TokioUnix = tokio::net::UnixStream;

/// Opens connections.
pub(in crate::bench) struct Connector<S> {
    to: String,
    buffer: Option<usize>,
    stream: PhantomData<fn() -> S>,
}

/// Takes connections in.
pub(in crate::bench) struct Listener<S: Native> {
    listener: S::Listener,
    address: String,
    buffer: Option<usize>,
}

/// What is different for each kind of socket and runtime.
pub(in crate::bench) trait Native: Duplex + Sized {
    type Listener: Send + Sync + 'static;

    const IS_TCP: bool;

    fn open(to: &str) -> impl Future<Output = io::Result<Self>> + Send;

    fn listener(socket: Socket) -> io::Result<Self::Listener>;

    fn take(from: &Self::Listener) -> impl Future<Output = io::Result<Self>> + Send;

    fn socket(&self) -> SockRef<'_>;
}

impl<S: Native> Connector<S> {
    pub(in crate::bench) fn new(address: String, settings: &Settings) -> Self {
        Self {
            to: address,
            buffer: settings.buffer,
            stream: PhantomData,
        }
    }
}

impl<S: Native> Connect for Connector<S> {
    type Stream = S;

    async fn connect(&self) -> Result<S> {
        let stream = S::open(&self.to).await;
        let stream = stream.with_context(|| format!("connect to {}", self.to))?;
        set_options(&stream, self.buffer)?;
        Ok(stream)
    }

    fn path(&self, stream: &S) -> String {
        let what = if S::IS_TCP { "TCP" } else { "UNIX" };
        let socket = stream.socket();
        match (socket.send_buffer_size(), socket.recv_buffer_size()) {
            (Ok(send), Ok(receive)) => {
                format!("{what}, buffers of {send} bytes to send and {receive} to receive at first")
            }
            _ => what.to_owned(),
        }
    }
}

impl<S: Native> Listener<S> {
    pub(in crate::bench) fn bind(dir: &Path, settings: &Settings) -> Result<Self> {
        let (at, name) = if S::IS_TCP {
            let at = settings.any_port();
            (at.into(), at.to_string())
        } else {
            let path = dir.join("bench.sock");
            let name = path.to_str();
            let name = name.context("the name of the socket is not UTF-8")?;
            (SockAddr::unix(name)?, name.to_owned())
        };
        let socket = Socket::new(at.domain(), Type::STREAM, None)?;
        let bound = socket.bind(&at).and_then(|()| socket.listen(BACKLOG));
        bound.with_context(|| format!("bind to {name}"))?;
        socket.set_nonblocking(true)?;
        let bound = socket.local_addr()?.as_socket();
        let address = bound.map_or(name, |at| at.to_string());
        Ok(Self {
            listener: S::listener(socket)?,
            address,
            buffer: settings.buffer,
        })
    }
}

impl<S: Native> Accept for Listener<S> {
    type Stream = S;

    async fn accept(&self) -> io::Result<S> {
        let stream = S::take(&self.listener).await?;
        set_options(&stream, self.buffer)?;
        Ok(stream)
    }

    fn address(&self) -> Result<String> {
        Ok(self.address.clone())
    }
}

/// Asks for buffers, and that nothing waits for more data.
fn set_options<S: Native>(stream: &S, buffer: Option<usize>) -> io::Result<()> {
    let socket = stream.socket();
    if S::IS_TCP {
        socket.set_tcp_nodelay(true)?;
    }
    if let Some(len) = buffer {
        socket.set_send_buffer_size(len)?;
        socket.set_recv_buffer_size(len)?;
    }
    Ok(())
}

impl Native for SmolTcp {
    type Listener = smol_net::TcpListener;

    const IS_TCP: bool = true;

    async fn open(to: &str) -> io::Result<Self> {
        Ok(smol_net::TcpStream::connect(to).await?.compat())
    }

    fn listener(socket: Socket) -> io::Result<Self::Listener> {
        std::net::TcpListener::from(socket).try_into()
    }

    async fn take(from: &Self::Listener) -> io::Result<Self> {
        Ok(from.accept().await?.0.compat())
    }

    fn socket(&self) -> SockRef<'_> {
        self.get_ref().into()
    }
}

impl Native for SmolUnix {
    type Listener = smol_unix::UnixListener;

    const IS_TCP: bool = false;

    async fn open(to: &str) -> io::Result<Self> {
        Ok(smol_unix::UnixStream::connect(to).await?.compat())
    }

    fn listener(socket: Socket) -> io::Result<Self::Listener> {
        std::os::unix::net::UnixListener::from(socket).try_into()
    }

    async fn take(from: &Self::Listener) -> io::Result<Self> {
        Ok(from.accept().await?.0.compat())
    }

    fn socket(&self) -> SockRef<'_> {
        self.get_ref().into()
    }
}

impl Native for TokioTcp {
    type Listener = tokio::net::TcpListener;

    const IS_TCP: bool = true;

    async fn open(to: &str) -> io::Result<Self> {
        Self::connect(to).await
    }

    fn listener(socket: Socket) -> io::Result<Self::Listener> {
        Self::Listener::from_std(socket.into())
    }

    async fn take(from: &Self::Listener) -> io::Result<Self> {
        Ok(from.accept().await?.0)
    }

    fn socket(&self) -> SockRef<'_> {
        self.into()
    }
}

impl Native for TokioUnix {
    type Listener = tokio::net::UnixListener;

    const IS_TCP: bool = false;

    async fn open(to: &str) -> io::Result<Self> {
        Self::connect(to).await
    }

    fn listener(socket: Socket) -> io::Result<Self::Listener> {
        Self::Listener::from_std(socket.into())
    }

    async fn take(from: &Self::Listener) -> io::Result<Self> {
        Ok(from.accept().await?.0)
    }

    fn socket(&self) -> SockRef<'_> {
        self.into()
    }
}

/// The backlog of listeners, also of SMC listeners.
const BACKLOG: i32 = 1024;
