//! What came of it, as a table.

use std::fmt;
use std::time::Duration;

use smc::Mode;
use smc_wire::types::Eid;

use super::Runtime;
use super::net::Transport;

/// The file's way there and back.
#[derive(Clone, Debug)]
pub(super) struct Transfer {
    pub(super) len: u64,
    pub(super) returned: u64,
    pub(super) elapsed: Duration,
    pub(super) sent: u64,
    pub(super) received: u64,
}

/// One round of measurements over one transport.
#[derive(Clone, Copy, Debug)]
pub(super) struct Figures {
    /// Bytes per second in writes of 64,000 bytes.
    pub(super) bulk: f64,
    /// Round trip of 14 bytes.
    pub(super) round_trip: Duration,
    /// Messages of 100 bytes per second.
    pub(super) rate: f64,
}

/// Everything that is printed.
#[derive(Debug)]
pub(super) struct Report {
    runtime: Runtime,
    mode: Mode,
    recv_buffer: Option<usize>,
    transfer: Transfer,
    rounds: Vec<(Transport, Figures)>,
}

impl Report {
    pub(super) fn new(
        runtime: Runtime,
        mode: Mode,
        recv_buffer: Option<usize>,
        transfer: Transfer,
    ) -> Self {
        Self {
            runtime,
            mode,
            recv_buffer,
            transfer,
            rounds: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, transport: Transport, figures: Figures) {
        self.rounds.push((transport, figures));
    }

    /// Whether the stream was SMC and the data came back as it was.
    pub(super) fn is_good(&self) -> bool {
        self.mode.is_smc() && self.is_intact()
    }

    fn is_intact(&self) -> bool {
        let Transfer {
            len,
            returned,
            sent,
            received,
            ..
        } = self.transfer;
        len == returned && sent == received
    }

    fn spread(&self, transport: Transport, figure: impl Fn(&Figures) -> f64) -> Spread {
        let figures = self.rounds.iter().filter(|(of, _)| *of == transport);
        Spread::of(figures.map(|(_, figures)| figure(figures)).collect())
    }

    fn line(
        &self,
        f: &mut fmt::Formatter<'_>,
        what: &str,
        figure: impl Fn(&Figures) -> f64 + Copy,
        show: fn(f64) -> String,
        smaller_is_better: bool,
    ) -> fmt::Result {
        write!(f, "{what:24}")?;
        let smc = self.spread(Transport::Smc, figure);
        for transport in Transport::ALL {
            let spread = self.spread(transport, figure);
            write!(
                f,
                "{:>22}",
                format!("{} ±{:.0}%", show(spread.median), spread.percent)
            )?;
        }
        for transport in [Transport::Tcp, Transport::Unix] {
            let other = self.spread(transport, figure).median;
            let ratio = if smaller_is_better {
                other / smc.median
            } else {
                smc.median / other
            };
            write!(f, "{:>10}", format!("{ratio:.1}x"))?;
        }
        writeln!(f)
    }
}

fn write_eid(f: &mut fmt::Formatter<'_>, eid: Option<&Eid>) -> fmt::Result {
    match eid {
        Some(eid) => writeln!(f, "EID             {eid}"),
        None => Ok(()),
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runtime = match self.runtime {
            Runtime::Smol => "smol",
            Runtime::Tokio => "tokio, one thread",
        };
        writeln!(f, "mode            {}", self.mode)?;
        match &self.mode {
            Mode::SmcD {
                version,
                release,
                nocopy,
                eid,
                ..
            } => {
                writeln!(f, "version         {}.{}", version.get(), release.get())?;
                writeln!(f, "nocopy          {}", if *nocopy { "yes" } else { "no" })?;
                write_eid(f, eid.as_ref())?;
            }
            Mode::SmcR {
                version,
                release,
                local,
                peer,
                eid,
                ..
            } => {
                writeln!(f, "version         {}.{}", version.get(), release.get())?;
                writeln!(f, "GIDs            {local} to {peer}")?;
                write_eid(f, eid.as_ref())?;
            }
            _ => {}
        }
        if let Some(len) = self.recv_buffer {
            writeln!(f, "receive ring    {len} bytes")?;
        }
        writeln!(f, "runtime         {runtime}")?;
        let Transfer {
            len,
            returned,
            elapsed,
            sent,
            received,
        } = &self.transfer;
        let verdict = if self.is_intact() { "ok" } else { "DIFFERENT" };
        writeln!(
            f,
            "there and back  {len} bytes out, {returned} back in {:.2} s",
            elapsed.as_secs_f64()
        )?;
        writeln!(
            f,
            "checksum        {sent:016x} out, {received:016x} back: {verdict}"
        )?;
        if self.rounds.is_empty() {
            return Ok(());
        }
        write!(f, "\n{:24}", "")?;
        for transport in Transport::ALL {
            write!(f, "{transport:>22}")?;
        }
        writeln!(f, "{:>10}{:>10}", "vs TCP", "vs UNIX")?;
        self.line(
            f,
            "throughput, 64,000 B",
            |figures| figures.bulk,
            gigabytes,
            false,
        )?;
        let micros = |figures: &Figures| figures.round_trip.as_secs_f64() * 1e6;
        self.line(f, "round trip, 14 B", micros, microseconds, true)?;
        self.line(
            f,
            "messages, 100 B",
            |figures| figures.rate,
            millions,
            false,
        )?;
        writeln!(
            f,
            "\nmedians of {} rounds; ± is half the range, in percent of the median",
            self.rounds.len() / Transport::ALL.len()
        )
    }
}

/// The median of some figures and how far they lie apart.
struct Spread {
    median: f64,
    percent: f64,
}

impl Spread {
    fn of(mut figures: Vec<f64>) -> Self {
        figures.sort_by(f64::total_cmp);
        let median = figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN);
        let range = figures.last().unwrap_or(&median) - figures.first().unwrap_or(&median);
        Self {
            median,
            percent: 50.0 * range / median,
        }
    }
}

fn gigabytes(per_second: f64) -> String {
    format!("{:.2} GB/s", per_second / 1e9)
}

fn microseconds(micros: f64) -> String {
    format!("{micros:.2} us")
}

fn millions(per_second: f64) -> String {
    format!("{:.2} M/s", per_second / 1e6)
}
