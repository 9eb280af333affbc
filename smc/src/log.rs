//! Events and spans of the feature `tracing`.
//!
//! Without the feature the macros expand to code that is type-checked and never run: no argument is
//! evaluated, and a variable that only a log needs does not count as unused. Spans are then empty
//! values. A list of all spans and events is in the manual, `smc/src/manual/debugging.md`.
//!
//! A macro takes the text, then the fields, which are all recorded by their `Display`:
//!
//! ```text
//! debug!("work begins", step = name);
//! let span = root_span!("smc.conn", conn = number, peer = address);
//! ```
//!
//! A span is entered for a call ([`Span::in_scope`]) or for the polls of a future
//! ([`Span::instrument`]). There are no guards, which could be held across an await.

#[macro_use]
mod macros;

mod group;
mod handshake;
mod warned;

pub(crate) use group::GroupLog;
pub(crate) use handshake::HandshakeLog;
pub(crate) use warned::{Destination, Warned};

use std::future::Future;

use crate::proto::Role;
use crate::proto::group::{GroupId, GroupKey};

/// A span; empty without the feature.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    #[cfg(feature = "tracing")]
    inner: tracing::Span,
}

#[cfg(feature = "tracing")]
impl Span {
    pub(crate) fn new(inner: tracing::Span) -> Self {
        Self { inner }
    }

    /// Calls a function inside of the span.
    pub(crate) fn in_scope<T>(&self, call: impl FnOnce() -> T) -> T {
        self.inner.in_scope(call)
    }

    /// The same future, whose polls are inside of the span.
    pub(crate) fn instrument<F: Future>(&self, future: F) -> tracing::instrument::Instrumented<F> {
        tracing::Instrument::instrument(future, self.inner.clone())
    }
}

#[cfg(not(feature = "tracing"))]
impl Span {
    pub(crate) const fn none() -> Self {
        Self {}
    }

    /// Calls a function.
    pub(crate) fn in_scope<T>(&self, call: impl FnOnce() -> T) -> T {
        call()
    }

    /// The same future.
    pub(crate) fn instrument<F: Future>(&self, future: F) -> F {
        future
    }
}

/// The span of a link group. With SMC-D roles do not matter.
pub(crate) fn group_span(group: GroupId, key: &GroupKey) -> Span {
    match key {
        GroupKey::Direct { peer, .. } => root_span!("smc.group", group = group, peer = peer),
        GroupKey::Rdma { role, gid, .. } => {
            root_span!(
                "smc.group",
                group = group,
                role = role_name(*role),
                peer = gid
            )
        }
        _ => root_span!("smc.group", group = group),
    }
}

const fn role_name(role: Role) -> &'static str {
    match role {
        Role::Client => "client",
        Role::Server => "server",
    }
}
