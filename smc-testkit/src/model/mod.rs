//! Random use of a stream, judged by an oracle.
//!
//! [`run`] takes both ends of a connection and a seed. The seed decides how each end is used (as a
//! whole, split, shared between tasks), a schedule of operations with sizes from nothing to more
//! than a ring, where futures are dropped half-way, and how each end is closed. Every result is
//! compared with what a stream may do:
//!
//! - bytes arrive once, in order, and none that were not written;
//! - reads give 0 only behind the last byte, after the peer shut writing down or closed in order;
//! - resets come from peers that closed with unread data or without linger, and from them only;
//! - writes fail with `BrokenPipe` after an own shutdown or after the peer closed in order, with
//!   `ConnectionReset` after the peer closed otherwise, and for no other reason;
//! - a dropped read has taken nothing, a dropped write has written nothing;
//! - bytes of a guard stay what they are for as long as it is held, in whatever order guards are
//!   released, and after the stream is closed;
//! - what is reserved and not committed is not written, and no reservation is shorter than it has
//!   to be;
//! - no more is consumed than was shown, whatever amount is named;
//! - what is reported ready does not wait;
//! - every waiting task is woken in time.
//!
//! The caller connects the ends: tests of this crate use memory devices on a
//! [`VirtualRuntime`](crate::runtime::VirtualRuntime), a provider can use its own devices on any
//! runtime.
//!
//! ```
//! use std::sync::Arc;
//! use smc::Builder;
//! use smc_core::negotiate::Assume;
//! use smc_testkit::memory_device::MemFabric;
//! use smc_testkit::model::{self, Rules};
//! use smc_testkit::runtime::VirtualRuntime;
//!
//! let runtime = VirtualRuntime::new(1);
//! let fabric = MemFabric::new(1);
//! let endpoint = |name: &str| {
//!     Builder::new()
//!         .device(fabric.device(name))
//!         .runtime(runtime.handle())
//!         .negotiation(Arc::new(Assume::new()))
//!         .build()
//! };
//! let (server, client) = (endpoint("mem0")?, endpoint("mem1")?);
//! let tally = runtime.block_on(async {
//!     let listener = server.bind("127.0.0.1:80").await?;
//!     let connected = client.connect("127.0.0.1:80").await?;
//!     let (accepted, _) = listener.accept().await?;
//!     let tally = model::run(7, &runtime.handle(), (connected, accepted), Rules::exact()).await;
//!     Ok::<_, smc_core::Error>(tally)
//! })?;
//! println!("{} bytes", tally.expect("streams keep the rules").bytes);
//! # Ok::<_, smc_core::Error>(())
//! ```

mod end_report;
mod ends;
mod oracle;
mod plan;
mod reader;
mod retained_guards;
mod side;
mod writer;

pub use end_report::EndReport;

use std::future::poll_fn;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use futures_lite::future::or;
use serde::{Deserialize, Serialize};
use smc::Stream;
use smc_core::runtime::Runtime;

use crate::Rng;
use oracle::Oracle;
use plan::Plan;

/// How strictly an end of a stream is judged.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Rules {
    /// What one end does shows at the other at once, as on a single-threaded runtime with devices
    /// that are never busy. Otherwise results that depend on which end was first may be either way.
    pub is_exact: bool,
    /// The device goes away at some time: either end may be aborted.
    pub may_abort: bool,
    /// Time, on the runtime's clock, after which the run counts as stuck.
    pub timeout: Duration,
}

impl Rules {
    /// For single-threaded runtimes and devices that are never busy.
    #[must_use]
    pub fn exact() -> Self {
        Self {
            is_exact: true,
            may_abort: false,
            timeout: Duration::from_secs(60),
        }
    }

    /// For everything else.
    #[must_use]
    pub fn relaxed() -> Self {
        Self {
            is_exact: false,
            ..Self::exact()
        }
    }

    /// Allows the connection to be aborted, also as what was written is not delivered in time.
    #[must_use]
    pub fn with_aborts(mut self) -> Self {
        self.may_abort = true;
        self
    }
}

setters! {
    Rules {
        /// Sets after what time a run counts as stuck.
        fn with_timeout(timeout: Duration);
    }
}

/// Counts of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Tally {
    /// Operations made at both ends.
    pub operations: u64,
    /// Bytes read at both ends.
    pub bytes: u64,
    /// Directions that were read to the end of the stream.
    pub ends: u32,
    /// Reads and writes that found the connection reset.
    pub resets: u32,
    /// Reads and writes that found the connection aborted.
    pub aborts: u32,
    /// Futures that were dropped while they waited.
    pub cancelled: u64,
}

/// The rule that a stream broke, with the last operations before.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("seed {seed}: {what}\n{history}")]
#[non_exhaustive]
pub struct Violation {
    /// The seed of the run.
    pub seed: u64,
    /// The rule that was broken.
    pub what: String,
    /// How the ends were used, and what was done last.
    pub history: String,
}

/// Uses both ends of a connection as the seed states; consumes and closes them.
///
/// Spawns tasks on `runtime`, the one that the streams are on. After a violation they are left
/// behind.
///
/// # Errors
///
/// [`Violation`] when a stream did what a stream must not do, or did not get on in time.
pub async fn run(
    seed: u64,
    runtime: &Arc<dyn Runtime>,
    (first, second): (Stream, Stream),
    rules: Rules,
) -> Result<Tally, Violation> {
    let mut rng = Rng::new(seed);
    let plans = Plan::pair(&mut rng);
    let oracle = Oracle::new(rules, &plans, first.mode().is_smc(), false);
    for (side, (stream, plan)) in [first, second].into_iter().zip(plans).enumerate() {
        let (oracle, inner) = (Arc::clone(&oracle), Arc::clone(runtime));
        runtime.spawn(Box::pin(side::live(stream, side, plan, oracle, inner)));
    }
    in_time(seed, runtime, &oracle, 0..2).await
}

/// Which end of a connection is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum End {
    /// The first one of [`run`].
    First,
    /// The second one.
    Second,
}

/// Uses one end of a connection whose other end is used in the same way elsewhere, as another
/// process, or on another machine; consumes and closes it.
///
/// The ends do with one seed what [`run`] does, and each is judged at once by all that does not
/// depend on the other one. What does is in the report: [`compare`] those of both. That
/// something was early shows in numbers only: an end of the stream that came before the peer shut
/// writing down, if bytes were missing then.
///
/// Spawns tasks on `runtime`, the one that the stream is on. After a violation they are left
/// behind.
///
/// # Errors
///
/// As [`run`].
pub async fn run_end(
    seed: u64,
    runtime: &Arc<dyn Runtime>,
    stream: Stream,
    end: End,
    rules: Rules,
) -> Result<EndReport, Violation> {
    let plans = Plan::pair(&mut Rng::new(seed));
    let oracle = Oracle::new(rules, &plans, stream.mode().is_smc(), true);
    let [first, second] = plans;
    let (side, plan) = match end {
        End::First => (0, first),
        End::Second => (1, second),
    };
    let (judge, inner) = (Arc::clone(&oracle), Arc::clone(runtime));
    runtime.spawn(Box::pin(side::live(stream, side, plan, judge, inner)));
    in_time(seed, runtime, &oracle, side..side + 1).await?;
    Ok(oracle.report(side))
}

/// Holds what both ends of a run did against each other.
///
/// # Errors
///
/// [`Violation`] when an end saw what the other one did not do.
pub fn compare(seed: u64, first: &EndReport, second: &EndReport) -> Result<Tally, Violation> {
    for (side, one, peer) in [(0, first, second), (1, second, first)] {
        one.is_explained_by(peer).map_err(|what| Violation {
            seed,
            what: format!("side {side} {what}"),
            history: format!("0: {first:?}\n1: {second:?}"),
        })?;
    }
    let (one, two) = (first.tally, second.tally);
    Ok(Tally {
        operations: one.operations + two.operations,
        bytes: one.bytes + two.bytes,
        ends: one.ends + two.ends,
        resets: one.resets + two.resets,
        aborts: one.aborts + two.aborts,
        cancelled: one.cancelled + two.cancelled,
    })
}

/// Waits until a run has ended at these ends, or is stuck.
async fn in_time(
    seed: u64,
    runtime: &Arc<dyn Runtime>,
    oracle: &Oracle,
    sides: Range<usize>,
) -> Result<Tally, Violation> {
    let over = async {
        poll_fn(|cx| oracle.poll_ended(sides.clone(), cx)).await;
        oracle.outcome()
    };
    let late = async {
        runtime.timer(runtime.now() + oracle.rules.timeout).await;
        Err(format!("stuck: {}", oracle.waiting()))
    };
    or(over, late).await.map_err(|what| Violation {
        seed,
        what,
        history: oracle.history(),
    })
}
