//! Userspace Shared Memory Communications: byte streams with the semantics of TCP that move their
//! data through shared memory or by RDMA.
//!
//! A program connects and accepts as it would with TCP. Both ends then agree in a handshake of
//! three messages (CLC) on a better path, if they have one; if anything is missing, the stream
//! stays TCP. [`Stream::mode`] reports which it is, and why.
//!
//! - **SMC-D** between processes and containers of one host, by a [`LoopDevice`]; between virtual
//!   machines and their host, by `ism`.
//! - **SMC-R** between hosts with RDMA devices, also with an unmodified Linux kernel as the peer,
//!   by `rdma`.
//! - A transport of your own: [`device`].
//!
//! Before the handshake both ends have to find out that the other one supports SMC ([`negotiate`]):
//! [`Local`] on one host, `syn_option` with kernels.
//!
//! Do not use it where a stream crosses a network without RDMA: it is TCP there, with a slightly
//! longer set-up.
//!
//! # Example
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
//! [`Domain`]. A [`Builder`] by itself has no device and no negotiation.
//!
//! # Manual
//!
//! [`manual`] has a cookbook, and a chapter each on transports and users, fallback, settings by the
//! environment, how streams end, memory, access without copies, differences from the types of tokio
//! and std, writing a device, and debugging.
//!
//! # How it is built
//!
//! The protocol is the sans-I/O part of [`smc_core`]; this crate is the async shell around it. An
//! [`Endpoint`] has devices and settings, and makes [`Stream`]s by connecting or through a
//! [`Listener`]. `handshake` drives the machine of the core and makes a connection of its result,
//! `conn` is that connection, `stream` has its two halves and those of a stream that stayed TCP,
//! `groups` and `links` have the link groups, and `device_driver` has the task that dispatches a
//! device's events to its connections. `docs/architecture.md` of the repository follows a byte and
//! a connect through them.
//!
//! # Features
//!
//! | feature | adds |
//! |---|---|
//! | `introspection` | [`introspection`]: what `smc ss` and its like show of a process. On by default, with `serde` |
//! | `metrics` | [`metrics`]: the counters by the facade crate of that name |
//! | `serde` | `Serialize` and `Deserialize` of [`info::Stats`] |
//! | `tokio` | [`mod@tokio`]: types in place of tokio's; [`tokio()`], and tokio's I/O traits on streams |
//! | `tokio-io` | tokio's I/O traits on streams and halves alone; no reactor |
//! | `smol` | [`mod@smol`]: types in place of smol's; [`smol()`] |
//! | `axum08` | `axum::serve` on listeners; `ConnectInfo` with peer and mode |
//! | `hyper-util` | `Connector` for hyper-util's legacy client |
//! | `tonic014` | tonic's servers and, by `Connector`, its clients; takes Rust 1.88 |
//! | `tower`, `tokio-util` | `Connector` as a service of targets; tokio-util's trait of listeners |
//! | `ism` | `ism`: devices for SMC-D between virtual machines and their host |
//! | `rdma` | `rdma`: devices for SMC-R between hosts; takes cmake and libclang to build |
//! | `syn-option` | `syn_option`: negotiation by TCP option, as kernels do it |
//! | `tracing` | events and spans of the crate `tracing`: [`debugging`](manual::debugging) |
//!
//! The others are not on by default, and no feature changes the behaviour of others.

// Pages name items of all features.
#![cfg_attr(
    not(all(
        feature = "tokio",
        feature = "smol",
        feature = "tower",
        feature = "metrics",
        feature = "introspection"
    )),
    allow(rustdoc::broken_intra_doc_links)
)]
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

use std::sync::Arc;

#[macro_use]
mod log;

pub mod config;
pub mod info;
#[cfg(feature = "introspection")]
pub mod introspection;
#[cfg(any(doc, doctest))]
pub mod manual;
#[cfg(feature = "metrics")]
pub mod metrics;
mod peer_descriptors;
pub mod prelude;
#[cfg(feature = "introspection")]
pub mod record;
pub mod runtime;
#[cfg(feature = "smol")]
pub mod smol;
#[cfg(feature = "tokio")]
pub mod tokio;

mod address;
mod append_list;
mod builder;
mod busy_poll;
mod candidates;
mod conn;
mod connect_options;
mod copy_mode;
#[cfg(any(feature = "tokio", feature = "smol"))]
mod default_endpoint;
mod device_driver;
mod devices;
mod endpoint;
#[cfg(any(feature = "tokio", feature = "smol"))]
mod environment;
#[cfg(any(
    feature = "axum08",
    feature = "hyper-util",
    feature = "tokio-util",
    feature = "tonic014",
    feature = "tower"
))]
mod frameworks;
mod groups;
mod handshake;
mod incoming;
mod lifetime;
mod links;
mod listener;
mod memory_limit;
mod oneshot;
mod precedents;
mod stats;
mod stream;
mod target;
mod tcp_streams;
mod unix;
mod unwind;

pub use address::{Address, UnixAddr};
pub use builder::Builder;
pub use config::Policy;
pub use connect_options::ConnectOptions;
pub use endpoint::Endpoint;
#[cfg(feature = "tower")]
pub use frameworks::Connector;
#[cfg(any(feature = "axum08", feature = "hyper-util", feature = "tonic014"))]
pub use frameworks::SmcConnectInfo;
pub use incoming::Incoming;
pub use listener::{ListenOptions, Listener, Refused};
pub use smc_core::{
    Domain, Error, FallbackCause, FallbackReason, device, error, mem, negotiate, wire,
};
pub use stream::{
    Interest, Mode, OwnedReadHalf, OwnedWriteHalf, ReadGuard, ReadHalf, Readiness, Reservation,
    ReuniteError, Stream, TcpKeepalive, WriteHalf,
};
pub use target::{IntoTarget, Target};
pub use unix::{PeerCred, UnixListener};

use smc_core::device::DeviceError;
use smc_core::{mutex, process, proto, quota, random, reactor_turns};

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
/// use smc::{Builder, Domain};
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
