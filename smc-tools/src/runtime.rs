//! The async runtimes, with as much of them as the workloads need.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use futures::channel::oneshot;
use serde::{Deserialize, Serialize};
use smc::Builder;
use smc::runtime::smol::SmolRuntime;
use smc::runtime::tokio::TokioRuntime;

/// An async runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Runtime {
    /// smol with its global executor
    Smol,
    /// tokio, one thread
    Tokio,
    /// tokio, a thread for each CPU
    TokioMt,
}

impl Runtime {
    /// Runs a future to its end, as a task where tasks run on another thread than the one that
    /// waits: what goes from one to the other wakes a thread each time, on any transport.
    pub(crate) fn block_on<T: Send + 'static>(
        self,
        future: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        match self {
            Self::Smol => smol::block_on(smol::spawn(future)),
            Self::Tokio => tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .context("cannot start tokio")?
                .block_on(future),
            Self::TokioMt => tokio::runtime::Runtime::new()
                .context("cannot start tokio")?
                .block_on(async { tokio::spawn(future).await? }),
        }
    }

    /// Starts a task whose result can be waited for.
    pub(crate) fn spawn<T: Send + 'static>(
        self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> oneshot::Receiver<T> {
        let (sender, result) = oneshot::channel();
        self.detach(async { drop(sender.send(future.await)) });
        result
    }

    /// Starts a detached task.
    pub(crate) fn detach(self, future: impl Future<Output = ()> + Send + 'static) {
        match self {
            Self::Smol => smol::spawn(future).detach(),
            Self::Tokio | Self::TokioMt => drop(tokio::spawn(future)),
        }
    }

    pub(crate) async fn sleep(self, time: Duration) {
        match self {
            Self::Smol => drop(smol::Timer::after(time).await),
            Self::Tokio | Self::TokioMt => tokio::time::sleep(time).await,
        }
    }

    /// A builder of endpoints on this runtime.
    pub(crate) fn endpoint(self) -> Result<Builder> {
        let builder = Builder::new();
        Ok(match self {
            Self::Smol => builder.runtime(Arc::new(SmolRuntime::new())),
            Self::Tokio | Self::TokioMt => builder.runtime(Arc::new(TokioRuntime::current()?)),
        })
    }
}

impl fmt::Display for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}
