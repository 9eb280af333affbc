//! `rate` and `bulk`: writes of one length one way.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::super::figure::{Figure, Sample};
use super::super::meter::Meter;
use super::super::plan::Cell;
use super::super::transport::{Accept, Connect};

/// Sends runs of writes. A run is announced with its length in bytes, and takes until the receiver
/// has reported that it has all of it.
pub(super) async fn drive<C: Connect>(
    cell: &Cell,
    to: &C,
    meter: Meter,
    figure: Figure,
) -> Result<Sample> {
    let mut stream = to.connect().await?;
    let data = vec![0x5a; cell.case.load];
    let time = cell.settings.time;
    let mut run = Run::new(time);
    while !run.is_long {
        run.took(send(to, &mut stream, &data, run.writes).await?);
    }
    let writes = run.writes;
    let cpu = meter.cpu()?;
    let elapsed = send(to, &mut stream, &data, writes).await?;
    let cpu = meter.cpu()? - cpu;

    let mut sample = Sample {
        path: to.path(&stream),
        verified: writes,
        ..Sample::default()
    };
    let per_second = writes as f64 / elapsed.as_secs_f64();
    sample.set(Figure::Cpu, cpu.as_secs_f64() / writes as f64);
    sample.set(
        figure,
        match figure {
            Figure::Bytes => per_second * data.len() as f64,
            _ => per_second,
        },
    );
    Ok(sample)
}

/// Counts the bytes of runs until the stream ends.
pub(super) async fn serve<A: Accept>(at: &A, mut stream: A::Stream, read: usize) -> Result<()> {
    let mut buf = vec![0; read];
    loop {
        let mut head = [0; 8];
        match stream.read_exact(&mut head).await {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            outcome => outcome?,
        };
        let announced = u64::from_be_bytes(head);
        let mut got = 0;
        while got < announced {
            let space = usize::try_from(announced - got).unwrap_or(usize::MAX);
            let space = &mut buf[..space.min(read)];
            match at.take(&mut stream, space).await? {
                0 => break,
                count => got += count as u64,
            }
        }
        stream.write_all(&got.to_be_bytes()).await?;
    }
}

async fn send<C: Connect>(
    to: &C,
    stream: &mut C::Stream,
    data: &[u8],
    writes: u64,
) -> Result<Duration> {
    let bytes = writes * data.len() as u64;
    let start = Instant::now();
    stream.write_all(&bytes.to_be_bytes()).await?;
    for _ in 0..writes {
        to.put(stream, data).await?;
    }
    stream.flush().await?;
    let mut got = [0; 8];
    stream.read_exact(&mut got).await?;
    let elapsed = start.elapsed();
    let got = u64::from_be_bytes(got);
    ensure!(got == bytes, "{got} bytes arrived of {bytes}");
    Ok(elapsed)
}

/// A number of writes that grows until it fills the time.
#[derive(Clone, Copy, Debug)]
pub(in crate::bench) struct Run {
    pub(in crate::bench) writes: u64,
    /// Whether `writes` is how many take about the time, because enough of them were tried.
    pub(in crate::bench) is_long: bool,
    time: Duration,
}

impl Run {
    pub(in crate::bench) fn new(time: Duration) -> Self {
        Self {
            writes: 1,
            is_long: false,
            time,
        }
    }

    /// That many writes took so long.
    pub(in crate::bench) fn took(&mut self, elapsed: Duration) {
        let time = self.time.as_secs_f64() / elapsed.as_secs_f64().max(1e-9);
        self.is_long = elapsed * WARM_UP >= self.time;
        let fit = (self.writes as f64 * time) as u64;
        self.writes = match self.is_long {
            true => fit.max(1),
            false => fit.clamp(self.writes * 2, self.writes * 16),
        };
    }
}

/// The last run before the one that is measured takes at least this part of its time.
const WARM_UP: u32 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_grow_until_they_tell_how_many_writes_fill_the_time() {
        let time = Duration::from_millis(300);
        let mut run = Run::new(time);
        let mut tried = Vec::new();
        while !run.is_long {
            tried.push(run.writes);
            // A microsecond each.
            run.took(Duration::from_micros(run.writes));
        }
        assert!(tried.is_sorted() && tried[tried.len() - 1] >= 75_000);
        assert_eq!(run.writes, 300_000);
    }

    #[test]
    fn a_run_has_at_least_one_write() {
        let mut run = Run::new(Duration::from_millis(300));
        run.took(Duration::from_secs(900));
        assert!(run.is_long);
        assert_eq!(run.writes, 1);
        let mut run = Run::new(Duration::from_millis(300));
        run.took(Duration::ZERO);
        assert_eq!((run.writes, run.is_long), (16, false));
    }
}
