//! What carries the streams: the same few things to ask of all of them.
//!
//! Streams are those of tokio, which is what the SMC streams are too, and what hyper takes; smol's
//! sockets come through an adapter that does nothing but pass calls on.

pub(super) mod smc;
pub(super) mod socket;

mod trust;

use std::fmt;
use std::io;

use anyhow::Result;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

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
    /// As `loop`, while another process asks both ends 100 times a second what they do
    LoopObserved,
    /// SMC-D between processes, as `loop`, over a UNIX socket in place of TCP
    LoopUnix,
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
    /// ipc-channel: messages of bytes, whose receiver blocks
    #[cfg(feature = "peers")]
    IpcChannel,
}

impl Kind {
    /// Whether a workload has anything to do that is not the same as over another transport.
    pub(super) fn carries(self, workload: Workload) -> bool {
        match self {
            Self::LoopInplace => matches!(workload, Workload::Rate | Workload::Bulk),
            Self::LoopObserved => matches!(workload, Workload::Rate | Workload::Pingpong),
            #[cfg(feature = "peers")]
            Self::Iceoryx2 | Self::IpcChannel => {
                matches!(workload, Workload::Rate | Workload::Pingpong)
            }
            _ => true,
        }
    }

    /// Whether its two ends can be in two machines.
    pub(super) fn leaves_the_machine(self) -> bool {
        matches!(self, Self::Ism | Self::IsmCopy | Self::Tcp | Self::Fallback)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// A stream to measure.
pub(super) trait Duplex: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Duplex for S {}

/// Opens streams.
pub(super) trait Connect: Send + Sync + 'static {
    type Stream: Duplex;

    fn connect(&self) -> impl Future<Output = Result<Self::Stream>> + Send;

    /// What the stream is, in words.
    fn path(&self, stream: &Self::Stream) -> String;

    /// Sends as many bytes as `data` has: these, unless the stream has a way to make them where
    /// they go.
    fn put(
        &self,
        stream: &mut Self::Stream,
        data: &[u8],
    ) -> impl Future<Output = io::Result<()>> + Send {
        async { stream.write_all(data).await }
    }
}

/// Takes streams in.
pub(super) trait Accept: Send + Sync + 'static {
    type Stream: Duplex;

    fn accept(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;

    /// Where to connect to, for the transport's own connector.
    fn address(&self) -> Result<String>;

    /// Takes at most as many bytes as `buf` has off the stream, by way of `buf` unless there is a
    /// shorter one. Returns how many; 0 at end of stream.
    fn take(
        &self,
        stream: &mut Self::Stream,
        buf: &mut [u8],
    ) -> impl Future<Output = io::Result<usize>> + Send {
        async { stream.read(buf).await }
    }
}
