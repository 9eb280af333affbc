//! What most programs with an endpoint of their own use: `use smc::prelude::*`.
//!
//! It has no I/O trait: those of the runtime, `tokio::io::AsyncReadExt` or
//! `futures_lite::AsyncReadExt`, are taken from there.

pub use crate::{
    Builder, ConnectOptions, Domain, Endpoint, Error, FallbackReason, IntoTarget, ListenOptions,
    Listener, Mode, Policy, Stream,
};
