//! The stream model between machines: either end runs its part of a seed, and what the server's
//! end did comes over a stream of its own, to be held against what the client's did.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use futures_lite::future::try_zip;
use futures_lite::{AsyncReadExt as _, AsyncWriteExt as _};
use smc::runtime::smol::SmolRuntime;
use smc::{Endpoint, Stream};
use smc_core::runtime::Runtime;
use smc_testkit::model::{self, End, EndReport, Rules};
use smol::channel::{Receiver, Sender, bounded};

use super::call::open;
use super::job::Job;
use crate::lock;

/// Reports of ends, requested on another stream, by seed.
#[derive(Clone, Debug, Default)]
pub(super) struct EndReports(Arc<Mutex<HashMap<u64, ReportChannel>>>);

type ReportChannel = (Sender<EndReport>, Receiver<EndReport>);

impl EndReports {
    /// The server's end of a stream.
    pub(super) async fn run_end(&self, stream: Stream, seed: u64) -> Result<()> {
        let report = run_end(stream, seed, End::Second).await?;
        // The channel has capacity for one, and this seed is used once at a time.
        let _ = self.of(seed).0.try_send(report);
        Ok(())
    }

    /// Sends the report of the server's end, once there is one.
    pub(super) async fn send_report(&self, mut stream: Stream, seed: u64) -> Result<()> {
        let report = self.of(seed).1.recv().await?;
        self.lock().remove(&seed);
        stream.write_all(&serde_json::to_vec(&report)?).await?;
        stream.close().await?;
        Ok(())
    }

    fn of(&self, seed: u64) -> ReportChannel {
        self.lock()
            .entry(seed)
            .or_insert_with(|| bounded(1))
            .clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u64, ReportChannel>> {
        lock(&self.0)
    }
}

/// The client's ends of streams with all seeds.
pub(super) async fn scenario(endpoint: &Endpoint, to: SocketAddr) -> Result<String> {
    let (mut operations, mut bytes, mut resets) = (0, 0, 0);
    for seed in 0..SEEDS {
        let stream = open(endpoint, to, Job::Model { seed }).await?;
        let ours = run_end(stream, seed, End::First);
        let theirs = receive_report(endpoint, to, seed);
        let (ours, theirs) = try_zip(ours, theirs).await?;
        let tally = model::compare(seed, &ours, &theirs)?;
        operations += tally.operations;
        bytes += tally.bytes;
        resets += tally.resets;
    }
    ensure!(resets > 0, "no seed has reset a stream");
    Ok(format!(
        "{SEEDS} seeds, {operations} operations, {bytes} bytes"
    ))
}

async fn run_end(stream: Stream, seed: u64, end: End) -> Result<EndReport> {
    let runtime: Arc<dyn Runtime> = Arc::new(SmolRuntime::new());
    let rules = Rules::relaxed().with_timeout(TIMEOUT);
    Ok(model::run_end(seed, &runtime, stream, end, rules).await?)
}

async fn receive_report(endpoint: &Endpoint, to: SocketAddr, seed: u64) -> Result<EndReport> {
    let mut stream = open(endpoint, to, Job::SendReport { seed }).await?;
    let mut report = Vec::new();
    stream.read_to_end(&mut report).await?;
    serde_json::from_slice(&report)
        .with_context(|| format!("the server's end with seed {seed} has not come to its end"))
}

const SEEDS: u64 = 60;

/// Emulated machines are slow.
const TIMEOUT: Duration = Duration::from_secs(60);
