//! `fanin`: many open connections of which a few are active.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use futures::stream::{self, StreamExt as _, TryStreamExt as _};

use super::super::figure::{Figure, Sample};
use super::super::meter::Meter;
use super::super::plan::Cell;
use super::super::transport::Connect;
use super::echo::PingClient;
use super::window::Window;

/// Each connection is used once when it is opened. Then most of them have a task at each end that
/// waits for more, and the active ones play all at once.
pub(super) async fn drive<C: Connect>(cell: &Cell, to: Arc<C>, meter: Meter) -> Result<Sample> {
    let open = cell.case.load;
    let runtime = cell.runtime;
    let mut sample = Sample::default();
    // A first one, so that what both ends have in common is there.
    let first = PingClient::new(to.connect().await?, cell.settings.ping);
    sample.path = to.path(first.stream());
    let before = (meter.memory()?, Meter::kernel_memory()?);
    let mut clients = open_all(cell, &to).await?;
    let active = cell.case.active.unwrap_or(open);
    let active = clients.split_off(open.saturating_sub(active));
    for client in clients {
        runtime.detach(client.idle());
    }
    runtime.sleep(SETTLE).await;
    if open >= ENOUGH {
        let share = |now: u64, before: u64| now.saturating_sub(before) as f64 / open as f64;
        sample.set(Figure::Memory, share(meter.memory()?, before.0));
        sample.set(
            Figure::KernelMemory,
            share(Meter::kernel_memory()?, before.1),
        );
    }
    let (cpu, from) = (meter.cpu()?, Instant::now());
    runtime.sleep(cell.settings.time).await;
    let cpu = (meter.cpu()? - cpu).as_secs_f64();
    sample.set(Figure::IdleCpu, cpu / from.elapsed().as_secs_f64());

    let window = Window::new(cell.settings.time);
    let pings = active.into_iter().map(|mut client| {
        runtime.spawn(async move {
            let mut counter = window.counter();
            while counter.is_open() {
                client.trip().await?;
                counter.done();
            }
            counter.all = client.end().await?;
            Ok(counter)
        })
    });
    let pings = pings.collect();
    window.gather(cell, meter, pings, None, &mut sample).await?;
    first.end().await?;
    Ok(sample)
}

async fn open_all<C: Connect>(cell: &Cell, to: &Arc<C>) -> Result<Vec<PingClient<C::Stream>>> {
    stream::iter(0..cell.case.load)
        .map(|_| async {
            let mut client = PingClient::new(to.connect().await?, cell.settings.ping);
            client.trip().await?;
            anyhow::Ok(client)
        })
        .buffer_unordered(AT_A_TIME)
        .try_collect()
        .await
}

/// Connections that are opened at a time: less than a listener's backlog.
const AT_A_TIME: usize = 32;

/// From so many connections on, memory is measured well enough.
const ENOUGH: usize = 100;

/// How long what opening takes may go on afterwards.
const SETTLE: Duration = Duration::from_millis(300);
