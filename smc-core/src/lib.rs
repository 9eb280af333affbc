//! Userspace Shared Memory Communications: byte streams with the semantics of TCP that move their
//! data through shared memory or by RDMA.
//!
//! A program connects and accepts as it would with TCP. Both ends then agree in a handshake of
//! three messages (CLC) on a better path, if they have one; if anything is missing, the stream
//! stays TCP. [`Stream::mode`] reports which it is, and why.
//!
//! - **SMC-D** between processes, containers and virtual machines of one host: `smc-transport-loop`,
//!   `smc-transport-ism`.
//! - **SMC-R** between hosts with RDMA devices, also with an unmodified Linux kernel as the peer:
//!   `smc-transport-rdma`.
//! - A transport of your own: [`device`].
//!
//! Before the handshake both ends have to find out that the other one supports SMC
//! ([`io::negotiate`]): `smc-negotiate-local` on one host, `smc-negotiate-syn` with kernels. The crate
//! `smc` has endpoints with what connections between processes of one host need.
//!
//! Do not use it where a stream crosses a network without RDMA: it is TCP there, with a slightly
//! longer set-up.
//!
//! # Example
//!
//! ```
//! # #[cfg(feature = "runtime-tokio")]
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::sync::Arc;
//!
//! use smc_core::Builder;
//! use smc_negotiate_local::Local;
//! use smc_transport_loop::LoopDevice;
//! use tokio::io::{AsyncReadExt, AsyncWriteExt};
//!
//! let builder = Builder::tokio().negotiation(Arc::new(Local::new()));
//! let endpoint = builder.device(Arc::new(LoopDevice::new()?)).build()?;
//! let listener = endpoint.bind("127.0.0.1:0").await?;
//! let addr = listener.local_addr()?;
//!
//! let client = tokio::spawn(async move {
//!     let mut stream = endpoint.connect(addr).await?;
//!     println!("connected over {}", stream.mode()); // SMC-D, or TCP and the reason
//!     stream.write_all(b"hello").await
//! });
//! let (mut stream, _peer) = listener.accept().await?;
//! let mut word = String::new();
//! stream.read_to_string(&mut word).await?;
//! assert_eq!(word, "hello");
//! client.await??;
//! # Ok(()) }
//! # #[cfg(not(feature = "runtime-tokio"))]
//! # fn main() {}
//! ```
//!
//! # How it is built
//!
//! ```text
//!            application                      application of the peer
//!              | bytes                            ^ bytes
//!      +-------v--------+                 +-------+--------+
//!      | Stream         |    crate::io    | Stream         |    async
//!      +-------+--------+                 +-------^--------+
//!      +-------v--------+                 +-------+--------+
//!      | cursors, flags |   proto         | cursors, flags |    sans-I/O
//!      +---+--------+---+                 +---^--------^---+
//!     data |        | CDC                     |        |
//!      +---v--------v---+                 +---+--------+---+
//!      | device         | ==== memory ==> | device         |    crate::device
//!      +----------------+                 +----------------+
//!
//!   TCP socket --> CLC --> handshake --> link group --> connection
//!                            +-- declined --> the same stream over the same TCP socket
//! ```
//!
//! Modules, in the order in which bytes pass them: [`io`] (endpoints, listeners, streams, runtimes),
//! `proto` (the protocol without I/O; not a stable interface), [`mem`] (memory that others write;
//! but for system calls the only unsafe code), [`device`] (what a transport has to offer). [`error`]
//! has all errors and [`config`] the defaults.
//!
//! # Manual
//!
//! [`manual`] has a chapter each on transports and users, fallback, how streams end, memory, access
//! without copies, writing a device, and debugging.
//!
//! # Features
//!
//! None is on by default, and none changes the behaviour of others.
//!
//! | feature | adds |
//! |---|---|
//! | `tokio` | tokio's I/O traits on streams and halves; no reactor |
//! | `runtime-tokio` | [`io::runtime`]'s adapter for tokio |
//! | `runtime-smol` | [`io::runtime`]'s adapter for smol |

#[doc(hidden)]
pub mod cgroup;
pub mod config;
pub mod device;
pub mod error;
pub mod io;
#[cfg(any(doc, doctest))]
pub mod manual;
pub mod mem;
#[doc(hidden)]
pub mod process;
#[doc(hidden)]
pub mod proto;
pub mod random;
#[doc(hidden)]
pub mod shares;
mod source;

pub use config::Policy;
pub use error::{Error, FallbackCause, FallbackReason};
pub use io::{Builder, Endpoint, Listener, Mode, Stream};
#[doc(inline)]
pub use smc_ipc::Domain;
pub use smc_wire as wire;
