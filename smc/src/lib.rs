//! Userspace Shared Memory Communications: byte streams with the semantics of TCP that move their
//! data through shared memory or by RDMA.
//!
//! This crate has endpoints with everything that connections between processes of one host need:
//! [`smc_core`] with a [`LoopDevice`], which moves the data, and [`Local`] negotiation, which finds
//! out whether the other end supports SMC. Streams to all other programs and hosts are TCP.
//!
//! ```
//! # #[cfg(feature = "tokio")]
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use tokio::io::{AsyncReadExt, AsyncWriteExt};
//!
//! let endpoint = smc::tokio()?.build()?;
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
//! # #[cfg(not(feature = "tokio"))]
//! # fn main() {}
//! ```
//!
//! [`tokio()`], [`smol()`] and [`builder()`] return a [`Builder`], which takes further devices,
//! another negotiation and all settings; [`add_defaults`] adds the same to a builder, for another
//! [`Domain`]. [`io::Builder`] by itself has no device and no negotiation.
//!
//! # More
//!
//! The manual is in the documentation of [`smc_core`].
//!
//! | feature | adds |
//! |---|---|
//! | `tokio` | [`tokio()`], and tokio's I/O traits on streams |
//! | `smol` | [`smol()`] |
//! | `ism` | `ism`: devices for SMC-D between virtual machines and their host |
//! | `rdma` | `rdma`: devices for SMC-R between hosts; takes cmake and libclang to build |
//! | `syn-option` | `syn_option`: negotiation by TCP option, as kernels do it |
//!
//! None is on by default, and none changes the behaviour of others.

#![forbid(unsafe_code)]

use std::sync::Arc;

use smc_core::device::DeviceError;

pub use smc_core::io::Builder;
pub use smc_core::{
    Domain, Endpoint, Error, FallbackCause, FallbackReason, Listener, Mode, Policy, Stream, config,
    device, error, io, mem, wire,
};
pub use smc_negotiate_local::Local;
#[cfg(feature = "syn-option")]
pub use smc_negotiate_syn as syn_option;
#[cfg(feature = "ism")]
pub use smc_transport_ism as ism;
pub use smc_transport_loop::LoopDevice;
#[cfg(feature = "rdma")]
pub use smc_transport_rdma as rdma;

/// A builder of endpoints on the tokio runtime of the calling task: [`Builder::tokio`] with the
/// [defaults](add_defaults).
///
/// # Errors
///
/// As [`add_defaults`]. Outside of a tokio runtime [`Builder::build`] fails.
#[cfg(feature = "tokio")]
pub fn tokio() -> Result<Builder, DeviceError> {
    add_defaults(Builder::tokio(), Domain::default())
}

/// A builder of endpoints on smol's global executor: [`Builder::smol`] with the
/// [defaults](add_defaults).
///
/// # Errors
///
/// As [`add_defaults`].
#[cfg(feature = "smol")]
pub fn smol() -> Result<Builder, DeviceError> {
    add_defaults(Builder::smol(), Domain::default())
}

/// A builder of endpoints with the [defaults](add_defaults), and without a runtime, which
/// [`Builder::runtime`] sets.
///
/// # Errors
///
/// As [`add_defaults`].
pub fn builder() -> Result<Builder, DeviceError> {
    add_defaults(Builder::new(), Domain::default())
}

/// Adds a [`LoopDevice`] and [`Local`] negotiation of this domain to a builder.
///
/// ```
/// use smc::{Domain, io::Builder};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // The same call in all programs of the two users.
/// let domain = Domain::shared("/run/smc", [1001, 1002]);
/// # let dir = tempfile::tempdir()?;
/// # let domain = Domain::directory(dir.path());
/// let builder = smc::add_defaults(Builder::new(), domain)?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// As [`LoopDevice::new`].
pub fn add_defaults(builder: Builder, domain: Domain) -> Result<Builder, DeviceError> {
    let device = LoopDevice::builder().domain(domain.clone()).build()?;
    let local = Local::in_domain(domain);
    Ok(builder
        .device(Arc::new(device))
        .negotiation(Arc::new(local)))
}
