//! The runtimes that applications use, for tests with real sockets.

use std::fmt;
use std::future::Future;
use std::str::FromStr;
use std::time::Duration;

use async_io::Timer;
use futures_lite::future::or;
use smc::Builder;

/// A runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "tests match on all of them")]
pub enum On {
    /// Tokio with two worker threads.
    Tokio,
    /// Tokio with the calling thread alone.
    TokioAlone,
    /// smol.
    Smol,
}

impl On {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Tokio, Self::TokioAlone, Self::Smol];

    /// Runs a scenario, which has two minutes.
    ///
    /// # Panics
    ///
    /// If it takes longer.
    pub fn run<T>(self, scenario: impl Future<Output = T>) -> T {
        self.run_unbounded(in_time(Duration::from_secs(120), scenario))
    }

    /// Runs a scenario, however long it takes, and without a timer, which would take descriptors.
    /// With tokio the runtime has ended when this returns.
    ///
    /// # Panics
    ///
    /// If the runtime cannot be made.
    pub fn run_unbounded<T>(self, scenario: impl Future<Output = T>) -> T {
        match self {
            Self::Smol => smol::block_on(scenario),
            _ => self.tokio().block_on(scenario),
        }
    }

    /// A runtime of tokio.
    ///
    /// # Panics
    ///
    /// If it cannot be made.
    #[must_use]
    pub fn tokio(self) -> tokio::runtime::Runtime {
        let mut builder = match self {
            Self::TokioAlone => tokio::runtime::Builder::new_current_thread(),
            _ => tokio::runtime::Builder::new_multi_thread(),
        };
        let runtime = builder.worker_threads(2).enable_all().build();
        runtime.expect("a runtime of tokio")
    }

    /// An endpoint on this runtime, which waits for its peer however busy this machine is.
    #[must_use]
    pub fn endpoint(self) -> Builder {
        self.builder().answer_timeout(Duration::from_secs(60))
    }

    /// An endpoint on this runtime, as applications have it.
    #[must_use]
    pub fn builder(self) -> Builder {
        match self {
            Self::Smol => Builder::smol(),
            _ => Builder::tokio(),
        }
    }
}

/// A scenario that has so much time.
///
/// # Panics
///
/// If it takes longer.
pub async fn in_time<T>(time: Duration, scenario: impl Future<Output = T>) -> T {
    let late = async {
        Timer::after(time).await;
        panic!("the scenario does not end");
    };
    or(scenario, late).await
}

/// Waits until something holds, on any runtime.
///
/// # Panics
///
/// If it does not for a minute, with this text.
pub async fn until(mut is_so: impl FnMut() -> bool, text: impl FnOnce() -> String) {
    for _ in 0..60_000 {
        if is_so() {
            return;
        }
        Timer::after(Duration::from_millis(1)).await;
    }
    panic!("{}", text());
}

impl fmt::Display for On {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tokio => "tokio",
            Self::TokioAlone => "tokio-alone",
            Self::Smol => "smol",
        })
    }
}

impl FromStr for On {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = Self::ALL.into_iter().find(|on| on.to_string() == text);
        named.ok_or_else(|| format!("no runtime {text}"))
    }
}
