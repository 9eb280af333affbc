//! The core of userspace Shared Memory Communications (SMC): the protocol without I/O, and the
//! traits of what it needs from its surroundings.
//!
//! Applications use the crate `smc`, whose endpoints, listeners and streams are built on this one.
//! This crate is for authors of the other parts:
//!
//! | to write | implement | see |
//! |---|---|---|
//! | a transport | [`device::Device`] with [`device::Direct`] (SMC-D) or [`device::Rdma`] (SMC-R) | the conformance suites of `smc-testkit`; `examples/src/bin/custom_device.rs` |
//! | a way to find out that a peer supports SMC | [`negotiate::Negotiation`] | `smc-negotiate-local`, `smc-negotiate-syn` |
//! | an adapter for an async runtime | [`runtime::Runtime`] | `smc::runtime` |
//!
//! It has no features, and depends on no async runtime.
//!
//! # How it is built
//!
//! ```text
//!            application                      application of the peer
//!              | bytes                            ^ bytes
//!      +-------v--------+                 +-------+--------+
//!      | Stream         |    crate smc    | Stream         |    async
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
//! Modules, in the order in which bytes pass them: `proto` (the protocol without I/O; not a stable
//! interface), [`mem`] (memory that others write, with all unsafe code of this crate),
//! [`device`] (what a transport has to offer). [`negotiate`] and [`runtime`] have the other traits,
//! and [`error`] has all errors. What is left serves the other crates of this workspace and is no
//! stable interface: `quota` (what peers may take of this process), [`random`], `mutex`, `process`
//! (detects `fork`) and `reactor_turns` (fairness of tasks).
//!
//! # Example
//!
//! The buffer of a connection: a file of shared memory, with the cursors (CDC) in front of
//! a ring. A peer that maps the same file writes into it.
//!
//! ```
//! use std::os::fd::AsFd;
//!
//! use smc_core::mem::{Element, HEADER_LEN, Region};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let len = HEADER_LEN + 4096;
//! let (own, file) = Region::shared("buffer", len)?;
//! let peer = Region::adopt(file.as_fd(), len)?;
//!
//! Element::new(peer)?.write(4094, b"around the end")?;
//! let mut received = [0; 14];
//! Element::new(own)?.read(4094, &mut received)?;
//! assert_eq!(&received, b"around the end");
//! # Ok(()) }
//! ```

pub mod device;
pub mod error;
pub mod mem;
#[doc(hidden)]
pub mod mutex;
pub mod negotiate;
#[doc(hidden)]
pub mod process;
#[doc(hidden)]
pub mod proto;
#[doc(hidden)]
pub mod quota;
pub mod random;
#[doc(hidden)]
pub mod reactor_turns;
pub mod runtime;

pub use error::{Error, FallbackCause, FallbackReason};
#[doc(inline)]
pub use smc_ipc::Domain;
pub use smc_wire as wire;
