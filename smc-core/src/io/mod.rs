//! The async shell: endpoints, listeners and streams over sockets, devices and a runtime.
//!
//! An [`Endpoint`] has devices and settings; it makes [`Stream`]s by connecting or through a
//! [`Listener`]. Inside, `setup` drives the handshake of [`crate::proto`] over a `carrier`,
//! `build_conn` makes a connection of its result, `conn` is that connection, `send` and `recv` are
//! its two halves, `in_place` borrows their memory, `rdma` has the parts of SMC-R, `tcp` has the
//! halves of a stream that stayed TCP, and `device_driver` has the task that dispatches a device's
//! events to its connections.

pub mod info;
pub mod negotiate;
pub mod runtime;

mod build_conn;
mod builder;
mod busy_poll;
mod carrier;
mod cgroup;
mod compat;
mod conn;
mod copy_mode;
mod deadlines;
mod device_driver;
mod endpoint;
mod groups;
mod half;
mod halves;
mod in_place;
mod lifetime;
mod listener;
mod memory;
mod mode;
mod rdma;
mod readiness;
mod recv;
mod send;
mod setup;
mod split;
mod stream;
mod target;
mod tcp;

pub use builder::Builder;
pub use endpoint::{ConnectOptions, Endpoint};
pub use in_place::{ReadGuard, Reservation};
pub use listener::{ListenOptions, Listener, Refused};
pub use mode::Mode;
pub use readiness::{Interest, Readiness};
pub use split::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, ReuniteError, WriteHalf};
pub use stream::Stream;
pub use target::{IntoTarget, Target};
