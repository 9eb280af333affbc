//! The async shell: endpoints, listeners and streams over sockets, devices and a runtime.
//!
//! An [`Endpoint`] has devices and settings; it makes [`Stream`]s by connecting or through a
//! [`Listener`]. Inside, `handshake` drives that of [`crate::proto`] and makes a connection of
//! its result, `conn` is that connection, `stream` has its two halves and those of a stream that
//! stayed TCP, `rdma` has the link groups of SMC-R, and `device_driver` has the task that dispatches
//! a device's events to its connections.

pub mod info;
pub mod negotiate;
pub mod runtime;

mod builder;
mod busy_poll;
mod conn;
mod copy_mode;
mod deadlines;
mod device_driver;
mod endpoint;
mod groups;
mod handshake;
mod lifetime;
mod listener;
mod memory;
mod rdma;
mod stream;
mod target;

pub use builder::Builder;
pub use endpoint::{ConnectOptions, Endpoint};
pub use listener::{ListenOptions, Listener, Refused};
pub use stream::{
    Interest, Mode, OwnedReadHalf, OwnedWriteHalf, ReadGuard, ReadHalf, Readiness, Reservation,
    ReuniteError, Stream, WriteHalf,
};
pub use target::{IntoTarget, Target};
