//! What an author of an SMC transport needs as a dev-dependency: the conformance suite for devices,
//! a virtual runtime for whole streams, and fault injection.
//!
//! - [`conformance`]: every rule that a device has to keep, as a test of its own. One line in the
//!   provider's tests makes them all: [`conformance_suite!`] for SMC-D, [`rdma_conformance_suite!`]
//!   for SMC-R.
//! - `hostile`, with the feature `runtimes`: what a hostile peer can do with an SMC-D device, as
//!   tests, by `hostile_suite!`.
//! - [`memory_device`]: an SMC-D fabric inside one process, in safe code, for simulations and as
//!   the example of a device that keeps the rules.
//! - [`memory_rdma`]: an SMC-R fabric inside one process, with everything that can go wrong on it.
//! - [`middleware`]: devices around devices, that report what happens ([`middleware::Trace`]) or
//!   make it go wrong ([`middleware::Fault`]).
//! - [`runtime`]: a runtime with a virtual clock and TCP in memory, whose every run follows from a
//!   seed and which names what each task waits for when nothing can go on.
//! - [`world`]: hosts with an endpoint and a device each, and peers without an endpoint.
//! - [`negotiation`]: both ends of a negotiation, without the handshake that follows.
//! - [`streams`]: pairs of streams, and what is expected of them.
//! - `on`, with the feature `runtimes`: the runtimes that applications use.
//! - [`process`]: a test's own program again, as another process in a role.
//! - [`port`]: TCP ports of the host that no other process is given between two uses.
//! - [`nested_epoll`]: a lock of the whole system that any user can hold.
//! - [`resources`]: what the test's own process has, and its limits.
//! - [`slow_close`]: descriptors whose closing waits.
//! - [`unix`]: sockets and descriptors of a peer that keeps to no protocol.
//! - [`user`]: sockets and files of another user, for tests that run as root.
//! - [`wait`]: waiting for what another process or thread does.
//! - [`model`]: random use of a stream, judged by an oracle that knows what was written.
//!
//! They fit together: streams over [`memory_device::MemDevice`]s (or
//! [`memory_rdma::MemoryRdma`]), wrapped in
//! [`middleware::Fault`], on a [`runtime::VirtualRuntime`], used by [`model::run`], are a test
//! of everything above the device; the conformance suite is the test of what is below.
//!
//! ```text
//!            model::run            random use, judged
//!      Stream            Stream
//!         |                 |      smc-core
//!       Fault             Fault    middleware
//!         |                 |
//!     MemDevice === === MemDevice  memory_device      <- conformance suite
//!
//!           VirtualRuntime         time, tasks, TCP
//! ```
//!
//! No test here sleeps, and what a test cannot do on a machine it reports as skipped, with the
//! reason.

#![forbid(unsafe_code)]

/// Methods that set a field of a configuration, named `with_` and the field.
macro_rules! setters {
    ($type:ident { $($(#[doc = $doc:literal])* fn $name:ident($field:ident: $value:ty);)* }) => {
        impl $type {
            $(
                $(#[doc = $doc])*
                #[must_use]
                pub fn $name(mut self, $field: $value) -> Self {
                    self.$field = $field;
                    self
                }
            )*
        }
    };
}

pub mod conformance;
pub mod memory_device;
pub mod memory_rdma;
pub mod middleware;
pub mod model;
pub mod negotiation;
pub mod nested_epoll;
#[cfg(feature = "runtimes")]
pub mod on;
pub mod port;
pub mod process;
pub mod resources;
mod rng;
pub mod runtime;
pub mod slow_close;
pub mod streams;
pub mod unix;
pub mod user;
pub mod wait;
pub mod world;

#[cfg(feature = "runtimes")]
pub use conformance::hostile;
pub use rng::Rng;
