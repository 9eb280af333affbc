//! The async runtimes, with as much of them as the workloads need.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use smc::Builder;
use smc::runtime::smol::SmolRuntime;
use smc::runtime::tokio::TokioRuntime;

use crate::values;

/// An async runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Runtime {
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
    pub(super) fn block_on<T: Send + 'static>(
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
            Self::TokioMt => tokio::runtime::Builder::new_multi_thread()
                .enable_all()
                .build()
                .context("cannot start tokio")?
                .block_on(async { tokio::spawn(future).await? }),
        }
    }

    /// Starts a task. It ends with what is returned.
    pub(super) fn spawn<T: Send + 'static>(
        self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Spawned<T> {
        match self {
            Self::Smol => Spawned::Smol(smol::spawn(future)),
            Self::Tokio | Self::TokioMt => Spawned::Tokio(tokio::spawn(future)),
        }
    }

    /// Starts a detached task.
    pub(super) fn detach(self, future: impl Future<Output = ()> + Send + 'static) {
        match self {
            Self::Smol => smol::spawn(future).detach(),
            Self::Tokio | Self::TokioMt => drop(tokio::spawn(future)),
        }
    }

    pub(super) async fn sleep(self, time: Duration) {
        match self {
            Self::Smol => drop(smol::Timer::after(time).await),
            Self::Tokio | Self::TokioMt => tokio::time::sleep(time).await,
        }
    }

    /// A builder of endpoints on this runtime.
    pub(super) fn endpoint(self) -> Result<Builder> {
        let builder = Builder::new();
        Ok(match self {
            Self::Smol => builder.runtime(Arc::new(SmolRuntime::new())),
            Self::Tokio | Self::TokioMt => builder.runtime(Arc::new(TokioRuntime::current()?)),
        })
    }
}

impl fmt::Display for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&values::name(self))
    }
}

/// A task that was started; dropping it ends the task.
pub(super) enum Spawned<T> {
    Smol(smol::Task<T>),
    Tokio(tokio::task::JoinHandle<T>),
}

impl<T> Future for Spawned<T> {
    type Output = Result<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Self::Smol(task) => Pin::new(task).poll(cx).map(Ok),
            Self::Tokio(task) => Poll::Ready(match ready!(Pin::new(task).poll(cx)) {
                Ok(value) => Ok(value),
                Err(error) => Err(anyhow!(error)),
            }),
        }
    }
}

impl<T> Drop for Spawned<T> {
    fn drop(&mut self) {
        // smol's tasks end with their handle.
        if let Self::Tokio(task) = self {
            task.abort();
        }
    }
}
