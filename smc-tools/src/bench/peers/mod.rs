//! Ways between processes that others have made, in `rate` and `pingpong`. They carry messages, not
//! streams.

pub(super) mod iceoryx2;
pub(super) mod ipc_channel;

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use super::figure::{Figure, Latencies, Sample};
use super::meter::Meter;
use super::plan::{Cell, Workload};
use super::workload::one_way::Run;

/// One end of two channels of messages, one for each direction.
trait Messages {
    fn send(&self, data: &[u8]) -> Result<()>;

    /// Waits for a message and shows it.
    fn take<T>(&self, show: impl FnOnce(&[u8]) -> T) -> Result<T>;

    fn receive(&self, to: &mut [u8]) -> Result<()> {
        let is_whole = self.take(|data| {
            let is_whole = data.len() == to.len();
            if is_whole {
                to.copy_from_slice(data);
            }
            is_whole
        })?;
        ensure!(is_whole, "a message of another length");
        Ok(())
    }

    fn receive_number(&self) -> Result<u64> {
        let mut number = [0; NUMBER_LEN];
        self.receive(&mut number)?;
        Ok(u64::from_be_bytes(number))
    }
}

/// The client's part; `path` says what carries the messages.
fn drive(cell: &Cell, to: &impl Messages, path: &str, meter: Meter) -> Result<Sample> {
    let mut sample = Sample {
        path: path.to_owned(),
        ..Sample::default()
    };
    match cell.case.workload {
        Workload::Rate => rate(cell, to, meter, &mut sample)?,
        Workload::Pingpong => pingpong(cell, to, meter, &mut sample)?,
        other => bail!("no {other} over {path}"),
    }
    Ok(sample)
}

/// The server's part, until the client has ended.
fn serve(cell: &Cell, from: &impl Messages) -> Result<()> {
    match cell.case.workload {
        Workload::Rate => count(from),
        _ => send_back(from, cell.case.load),
    }
}

fn rate(cell: &Cell, to: &impl Messages, meter: Meter, sample: &mut Sample) -> Result<()> {
    let message = vec![0x5a; cell.case.load];
    let send = |messages: u64| {
        let start = Instant::now();
        to.send(&messages.to_be_bytes())?;
        for _ in 0..messages {
            to.send(&message)?;
        }
        let got = to.receive_number()?;
        ensure!(got == messages, "{got} messages arrived of {messages}");
        Ok(start.elapsed())
    };
    let mut run = Run::new(cell.settings.time);
    while !run.is_long {
        run.took(send(run.writes)?);
    }
    let messages = run.writes;
    let cpu = meter.cpu()?;
    let elapsed = send(messages)?;
    let cpu = meter.cpu()? - cpu;
    sample.verified = messages;
    sample.set(Figure::Messages, messages as f64 / elapsed.as_secs_f64());
    sample.set(Figure::Cpu, cpu.as_secs_f64() / messages as f64);
    Ok(())
}

fn pingpong(cell: &Cell, to: &impl Messages, meter: Meter, sample: &mut Sample) -> Result<()> {
    let mut ping = vec![0x5a; cell.case.load];
    let mut play = |time: Duration| {
        let mut latencies = Latencies::new()?;
        let start = Instant::now();
        let mut before = start;
        while before - start < time {
            to.send(&ping)?;
            to.receive(&mut ping)?;
            let now = Instant::now();
            latencies.record((now - before).as_nanos());
            before = now;
        }
        anyhow::Ok(latencies)
    };
    sample.verified = play(cell.settings.time / WARM_UP)?.len();
    let cpu = meter.cpu()?;
    let latencies = play(cell.settings.time)?;
    let cpu = meter.cpu()? - cpu;
    sample.set_latencies(&latencies);
    sample.set(Figure::Cpu, cpu.as_secs_f64() / latencies.len() as f64);
    sample.verified += latencies.len();
    Ok(())
}

fn count(from: &impl Messages) -> Result<()> {
    loop {
        let announced = from.receive_number()?;
        let mut got = 0;
        while got < announced {
            from.take(|_message| got += 1)?;
        }
        from.send(&got.to_be_bytes())?;
    }
}

fn send_back(from: &impl Messages, len: usize) -> Result<()> {
    let mut ping = vec![0; len];
    loop {
        from.receive(&mut ping)?;
        from.send(&ping)?;
    }
}

const NUMBER_LEN: usize = 8;

/// Part of the time that is the warm-up.
const WARM_UP: u32 = 4;
