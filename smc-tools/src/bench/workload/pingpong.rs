//! `pingpong`: round trips one after the other.

use anyhow::Result;

use super::super::figure::{Figure, Sample};
use super::super::meter::Meter;
use super::super::plan::Cell;
use super::super::transport::Connect;
use super::echo::PingClient;

pub(super) async fn drive<C: Connect>(cell: &Cell, to: &C, meter: Meter) -> Result<Sample> {
    let time = cell.settings.time;
    let mut client = PingClient::new(to.connect().await?, cell.case.load);
    let mut sample = Sample {
        path: to.path(client.stream()),
        ..Sample::default()
    };
    client.play(time / WARM_UP).await?;
    let cpu = meter.cpu()?;
    let latencies = client.play(time).await?;
    let cpu = meter.cpu()? - cpu;
    sample.set_latencies(&latencies);
    sample.set(Figure::Cpu, cpu.as_secs_f64() / latencies.len() as f64);
    sample.verified = client.end().await?;
    Ok(sample)
}

/// Part of the time that is the warm-up.
const WARM_UP: u32 = 4;
