//! Types with the names, the methods and the traits of `tokio::net`, in place of those.
//!
//! A program changes its `use` lines:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> std::io::Result<()> {
//! use smc::tokio::{TcpListener, TcpStream}; // before: use tokio::net::{TcpListener, TcpStream};
//! use tokio::io::{AsyncReadExt, AsyncWriteExt};
//!
//! let listener = TcpListener::bind("127.0.0.1:0").await?;
//! let addr = listener.local_addr()?;
//! let client = tokio::spawn(async move {
//!     let mut stream = TcpStream::connect(addr).await?;
//!     stream.write_all(b"hello").await
//! });
//! let (mut stream, _peer) = listener.accept().await?;
//! let mut word = String::new();
//! stream.read_to_string(&mut word).await?;
//! assert_eq!(word, "hello");
//! println!("it was {}", stream.mode()); // SMC-D, or TCP and the reason
//! # client.await?
//! # }
//! ```
//!
//! They belong to the default [`endpoint`] of the tokio runtime that they are made on, which the
//! environment [configures](crate::manual::environment). An [`Endpoint`] of the application makes
//! [`Stream`](crate::Stream)s and [`Listener`](crate::Listener)s, which convert to the types here
//! and back with `into`.
//!
//! UNIX sockets have [`UnixListener`] and [`UnixStream`].
//!
//! A [`TcpStream`] has the traits of tokio alone, so that `use futures::prelude::*` does not make
//! `read` ambiguous; by reference it has all methods of [`Stream`](crate::Stream).

mod stream_types;
mod tcp_listener;
mod tcp_stream;
mod unix_listener;
mod unix_stream;

pub use ::tokio::net::ToSocketAddrs;
pub use tcp_listener::TcpListener;
pub use tcp_stream::TcpStream;
pub use unix_listener::UnixListener;
pub use unix_stream::UnixStream;

/// The halves of a [`TcpStream`], in place of those of `tokio::net::tcp`.
pub mod tcp {
    pub use super::tcp_stream::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, ReuniteError, WriteHalf};
}

/// The halves, addresses and credentials of a [`UnixStream`], in place of those of
/// `tokio::net::unix`.
pub mod unix {
    pub use ::tokio::net::unix::SocketAddr;

    pub use super::unix_stream::{
        OwnedReadHalf, OwnedWriteHalf, ReadHalf, ReuniteError, WriteHalf,
    };
    pub use crate::unix::PeerCred as UCred;
}

use std::io;
use std::sync::Arc;

use ::tokio::runtime::{Handle, Id};

use crate::default_endpoint::DefaultEndpoints;
use crate::endpoint::Endpoint;
use crate::runtime::tokio::TokioRuntime;

/// The default endpoint of the tokio runtime that this code runs on; makes it when there is none.
///
/// It has a [`LoopDevice`](crate::LoopDevice) and [`Local`](crate::Local) negotiation of the
/// default [`Domain`](crate::Domain), and the settings of the
/// [environment](crate::manual::environment). Where the device cannot be made, as without memory
/// or descriptors, its streams are TCP, with the cause
/// [`NoDefaultDevice`](crate::FallbackCause::NoDefaultDevice). It lasts until the runtime ends.
///
/// # Errors
///
/// `InvalidInput` outside of a tokio runtime.
///
/// # Panics
///
/// As [`Builder::build`](crate::Builder::build) on this runtime.
pub fn endpoint() -> io::Result<Endpoint> {
    static ENDPOINTS: DefaultEndpoints<Id> = DefaultEndpoints::new();
    let handle = Handle::try_current()
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    let id = handle.id();
    Ok(ENDPOINTS.get(id, || Arc::new(TokioRuntime::new(handle)))?)
}
