//! Traits of frameworks on listeners and streams, each behind a feature.

#[cfg(feature = "axum08")]
mod axum;
#[cfg(feature = "tower")]
mod connector;
#[cfg(feature = "hyper-util")]
mod hyper_util;
#[cfg(feature = "tokio-util")]
mod tokio_util;
#[cfg(feature = "tonic014")]
mod tonic;

#[cfg(feature = "tower")]
pub use connector::Connector;

#[cfg(any(feature = "axum08", feature = "hyper-util", feature = "tonic014"))]
use std::net::SocketAddr;

#[cfg(any(feature = "axum08", feature = "hyper-util", feature = "tonic014"))]
use crate::stream::{Mode, Stream};
#[cfg(any(feature = "axum08", feature = "hyper-util", feature = "tonic014"))]
use crate::unix::PeerCred;

/// What a request handler can learn about the connection: by axum's
/// `ConnectInfo<SmcConnectInfo>`, and by `extensions().get::<SmcConnectInfo>()` of requests of a
/// tonic server, whose `remote_addr` is `None`, and of responses of hyper-util's client.
#[cfg(any(feature = "axum08", feature = "hyper-util", feature = "tonic014"))]
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SmcConnectInfo {
    /// The local address of the TCP connection, where it is known.
    pub local_addr: Option<SocketAddr>,
    /// The peer's address of the TCP connection, where it is known.
    pub remote_addr: Option<SocketAddr>,
    /// The process at the other end of a UNIX socket.
    pub peer_cred: Option<PeerCred>,
    /// SMC, or TCP with the reason.
    pub mode: Mode,
}

#[cfg(any(feature = "axum08", feature = "hyper-util", feature = "tonic014"))]
impl From<&Stream> for SmcConnectInfo {
    fn from(stream: &Stream) -> Self {
        Self {
            local_addr: stream.local_addr().ok(),
            remote_addr: stream.peer_addr().ok(),
            peer_cred: stream.peer_cred().ok(),
            mode: stream.mode().clone(),
        }
    }
}
