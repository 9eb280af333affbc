//! Types with the names, the methods and the traits of `smol::net`, in place of those.
//!
//! A program changes its `use` lines:
//!
//! ```
//! use smc::smol::{TcpListener, TcpStream}; // before: use smol::net::{TcpListener, TcpStream};
//! use smol::io::{AsyncReadExt, AsyncWriteExt};
//!
//! # fn main() -> std::io::Result<()> {
//! smol::block_on(async {
//!     let listener = TcpListener::bind("127.0.0.1:0").await?;
//!     let addr = listener.local_addr()?;
//!     let client = smol::spawn(async move {
//!         let mut stream = TcpStream::connect(addr).await?;
//!         stream.write_all(b"hello").await
//!     });
//!     let (mut stream, _peer) = listener.accept().await?;
//!     let mut word = String::new();
//!     stream.read_to_string(&mut word).await?;
//!     assert_eq!(word, "hello");
//!     println!("it was {}", stream.mode()); // SMC-D, or TCP and the reason
//!     client.await
//! })
//! # }
//! ```
//!
//! They belong to the default [`endpoint`] of smol's global executor, which the environment
//! [configures](crate::manual::environment). An [`Endpoint`] of the application makes
//! [`Stream`](crate::Stream)s and [`Listener`](crate::Listener)s, which convert to the types here
//! with `into`.
//!
//! UNIX sockets have [`UnixListener`] and [`UnixStream`].
//!
//! A [`TcpStream`] has the traits of futures-io alone, as smol's; by reference it has all methods
//! of [`Stream`](crate::Stream).

mod incoming;
mod stream_type;
mod tcp_listener;
mod tcp_stream;
mod unix_listener;
mod unix_stream;

pub use incoming::Incoming;
pub use tcp_listener::TcpListener;
pub use tcp_stream::TcpStream;
pub use unix_listener::UnixListener;
pub use unix_stream::UnixStream;

use std::io;
use std::sync::Arc;

use crate::default_endpoint::DefaultEndpoints;
use crate::endpoint::Endpoint;
use crate::runtime::smol::SmolRuntime;

/// The default endpoint on smol; makes it when there is none.
///
/// It has a [`LoopDevice`](crate::LoopDevice) and [`Local`](crate::Local) negotiation of the
/// default [`Domain`](crate::Domain), and the settings of the
/// [environment](crate::manual::environment). Where the device cannot be made, as without memory
/// or descriptors, its streams are TCP, with the cause
/// [`NoDefaultDevice`](crate::FallbackCause::NoDefaultDevice). It lasts as long as the process.
///
/// # Errors
///
/// As [`Builder::build`](crate::Builder::build).
pub fn endpoint() -> io::Result<Endpoint> {
    static ENDPOINTS: DefaultEndpoints<()> = DefaultEndpoints::new();
    Ok(ENDPOINTS.get((), || Arc::new(SmolRuntime::new()))?)
}
