//! Userspace Shared Memory Communications: byte streams with TCP's habits that move their data
//! through shared memory.
//!
//! A program connects and accepts as it would with TCP. Both ends then find out in a handshake of
//! three messages (CLC) whether there is a better path between them, and use it; if anything is
//! missing, the stream simply stays TCP. [`io::Stream::mode`] tells which it is, and why.
//!
//! Use it where both ends are on one host (SMC-D over a loopback device) and round trips or
//! message rate matter. Do not use it where a stream crosses a network without RDMA: it will be
//! TCP with a slightly longer set-up.
//!
//! ```text
//!             you                              the peer
//!              | bytes                            ^ bytes
//!      +-------v--------+                 +-------+--------+
//!      | Stream         |    crate::io    | Stream         |    async shell
//!      +-------+--------+                 +-------^--------+
//!      +-------v--------+                 +-------+--------+
//!      | cursors, flags |   crate::proto  | cursors, flags |    sans-I/O
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
//! Rooms, in the order in which bytes pass them: [`io`] (endpoints, listeners, streams, runtimes),
//! [`proto`] (the protocol without I/O), [`mem`] (memory that others write; but for system calls the only unsafe code),
//! [`device`] (what a transport has to offer). [`error`] has all errors and [`config`] the
//! defaults. Devices live in crates of their own, such as `smc-transport-loop`.
//!
//! # Features
//!
//! None is on by default, and none changes what others do.
//!
//! | feature | adds |
//! |---|---|
//! | `tokio` | tokio's I/O traits on streams and halves |
//! | `runtime-tokio` | [`io::runtime`]'s adapter for tokio |
//! | `runtime-smol` | [`io::runtime`]'s adapter for smol |
//! | `syn-option` | negotiation by TCP option, as kernels do it: `io::negotiate::option` |

#![deny(unsafe_code)]

pub mod config;
pub mod device;
pub mod error;
pub mod io;
pub mod mem;
pub mod proto;
pub mod random;

pub use config::Policy;
pub use error::{Error, FallbackCause, FallbackReason};
pub use io::{Endpoint, Listener, Mode, Stream};
pub use smc_wire as wire;
