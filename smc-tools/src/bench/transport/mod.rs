//! What carries the streams: the same few things to ask of all of them.
//!
//! Streams are those of `futures-io`, which is what the SMC streams and smol's are; tokio's sockets
//! come through an adapter that does nothing but pass calls on. hyper gets them as tokio's.

pub(super) mod smc;
pub(super) mod tcp;
pub(super) mod unix;

mod trust;

pub(super) use smc::InPlace;

use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::task::{Context, Poll};

use anyhow::Result;
use clap::ValueEnum;
use futures_lite::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use serde::{Deserialize, Serialize};
use socket2::SockRef;

use super::plan::Workload;

/// A transport, with the settings that make it another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Kind {
    /// SMC-D between processes; the peer's buffer is mapped and written
    Loop,
    /// SMC-D between processes; the device moves the data
    LoopCopy,
    /// SMC-D between processes; the sender makes the data where the receiver reads it
    LoopInplace,
    /// SMC-D by an ISM device over memory in a file; the peer's buffer is written in place
    Ism,
    /// SMC-D by an ISM device over memory in a file; the device moves the data
    IsmCopy,
    /// TCP over the loopback interface
    Tcp,
    /// UNIX stream sockets
    Unix,
    /// SMC-R over an RDMA device, for `smc demo` alone
    #[value(skip)]
    Rdma,
    /// TCP over the loopback interface by way of an SMC endpoint that has fallen back
    Fallback,
    /// iceoryx2: samples in shared memory, both ends poll for them without a pause
    #[cfg(feature = "peers")]
    Iceoryx2,
}

impl Kind {
    /// Whether a workload has anything to do that is not the same as over another transport.
    pub(super) fn carries(self, workload: Workload) -> bool {
        match self {
            Self::LoopInplace => matches!(workload, Workload::Rate | Workload::Bulk),
            Self::Loop
            | Self::LoopCopy
            | Self::Ism
            | Self::IsmCopy
            | Self::Tcp
            | Self::Unix
            | Self::Rdma
            | Self::Fallback => true,
            #[cfg(feature = "peers")]
            Self::Iceoryx2 => matches!(workload, Workload::Rate | Workload::Pingpong),
        }
    }

    /// Whether its two ends can be in two machines.
    pub(super) fn leaves_the_machine(self) -> bool {
        matches!(self, Self::Ism | Self::IsmCopy | Self::Tcp | Self::Fallback)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Loop => "loop",
            Self::LoopCopy => "loop-copy",
            Self::LoopInplace => "loop-inplace",
            Self::Ism => "ism",
            Self::IsmCopy => "ism-copy",
            Self::Tcp => "tcp",
            Self::Unix => "unix",
            Self::Rdma => "rdma",
            Self::Fallback => "fallback",
            #[cfg(feature = "peers")]
            Self::Iceoryx2 => "iceoryx2",
        })
    }
}

/// A stream to measure.
pub(super) trait Duplex: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    /// The same with tokio's traits.
    type Tokio: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static;

    fn into_tokio(self) -> Self::Tokio;

    /// Sends as many bytes as `data` has: these, unless the stream has a way to make them where
    /// they go.
    fn put<'a>(
        &'a mut self,
        data: &'a [u8],
    ) -> impl Future<Output = io::Result<()>> + Send + use<'a, Self> {
        self.write_all(data)
    }

    /// Takes at most as many bytes as `buf` has off the stream, by way of `buf` unless there is a
    /// shorter one. Returns how many; 0 at end of stream.
    fn poll_take(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        Pin::new(self).poll_read(cx, buf)
    }
}

/// Opens streams.
pub(super) trait Connect: Send + Sync + 'static {
    type Stream: Duplex;

    fn connect(&self) -> impl Future<Output = Result<Self::Stream>> + Send;

    /// What the stream is, in words.
    fn path(&self, stream: &Self::Stream) -> String;
}

/// Takes streams in.
pub(super) trait Accept: Send + Sync + 'static {
    type Stream: Duplex;

    fn accept(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;

    /// Where to connect to, for the transport's own connector.
    fn address(&self) -> Result<String>;
}

/// Buffers to ask for of sockets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Buffers(pub(super) Option<usize>);

impl Buffers {
    fn ask(self, socket: &impl AsFd) -> io::Result<()> {
        let Some(len) = self.0 else { return Ok(()) };
        let socket = SockRef::from(socket);
        socket.set_send_buffer_size(len)?;
        socket.set_recv_buffer_size(len)
    }
}

/// A socket in words.
fn describe(what: &str, socket: &impl AsFd) -> String {
    let socket = SockRef::from(socket);
    match (socket.send_buffer_size(), socket.recv_buffer_size()) {
        (Ok(send), Ok(receive)) => {
            format!("{what}, buffers of {send} bytes to send and {receive} to receive at first")
        }
        _ => what.to_owned(),
    }
}
