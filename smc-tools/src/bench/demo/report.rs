//! The results, as a table.

use std::fmt::{self, Write as _};

use smc::Mode;

use super::super::plan::{Case, Plan};
use super::super::results::{Results, Row};
use super::super::transport::Kind;
use super::transfer::Transfer;

/// The transfer, and the table of what was measured, if anything was.
pub(super) fn text(plan: &Plan, transfer: &Transfer, results: &Results) -> String {
    let mut text = String::new();
    // A string takes everything.
    let _infallible = head(&mut text, plan, transfer);
    if results.rows().all(|row| !row.samples.is_empty()) {
        let _infallible = table(&mut text, plan, results);
    }
    text
}

fn head(text: &mut String, plan: &Plan, transfer: &Transfer) -> fmt::Result {
    writeln!(text, "mode            {}", transfer.mode)?;
    let eid = match &transfer.mode {
        Mode::SmcD {
            version,
            release,
            nocopy,
            eid,
            ..
        } => {
            let nocopy = if *nocopy { "yes" } else { "no" };
            writeln!(text, "version         {}.{}", version.get(), release.get())?;
            writeln!(text, "nocopy          {nocopy}")?;
            eid.as_ref()
        }
        Mode::SmcR {
            version,
            release,
            local,
            peer,
            eid,
            ..
        } => {
            writeln!(text, "version         {}.{}", version.get(), release.get())?;
            writeln!(text, "GIDs            {local} to {peer}")?;
            eid.as_ref()
        }
        _ => None,
    };
    if let Some(eid) = eid {
        writeln!(text, "EID             {eid}")?;
    }
    if let Some(len) = transfer.recv_buffer {
        writeln!(text, "receive ring    {len} bytes")?;
    }
    for runtime in &plan.runtimes {
        writeln!(text, "runtime         {runtime}")?;
    }
    let Transfer {
        len,
        returned,
        sent,
        received,
        ..
    } = transfer;
    let seconds = transfer.elapsed.as_secs_f64();
    let verdict = if transfer.is_intact() {
        "ok"
    } else {
        "DIFFERENT"
    };
    writeln!(
        text,
        "there and back  {len} bytes out, {returned} back in {seconds:.2} s"
    )?;
    writeln!(
        text,
        "checksum        {sent:016x} out, {received:016x} back: {verdict}"
    )
}

fn table(text: &mut String, plan: &Plan, results: &Results) -> fmt::Result {
    write!(text, "\n{:24}", "")?;
    for heading in ["SMC", "TCP loopback", "UNIX socket"] {
        write!(text, "{heading:>22}")?;
    }
    writeln!(text, "{:>10}{:>10}", "vs TCP", "vs UNIX")?;
    for (case, what) in plan.cases.iter().zip(ABOUT) {
        line(text, plan, results, *case, what)?;
    }
    writeln!(
        text,
        "\nmedians of {} rounds; ± is half the range, in percent of the median",
        plan.rounds
    )
}

fn line(text: &mut String, plan: &Plan, results: &Results, case: Case, what: &str) -> fmt::Result {
    let figure = case.workload.figures()[0];
    write!(text, "{what:24}")?;
    let mut carried: Option<&Row> = None;
    for row in plan
        .runtimes
        .iter()
        .flat_map(|runtime| results.of(case, *runtime))
    {
        carried.get_or_insert(row);
        if let Some(spread) = row.spread(figure) {
            let percent = 50.0 * (spread.max - spread.min) / spread.median;
            let value = format!("{} ±{percent:.0}%", figure.show(spread.median));
            write!(text, "{value:>22}")?;
        }
    }
    for base in [Kind::Tcp, Kind::Unix] {
        if let Some(comparison) = carried.and_then(|row| results.compare(row, figure, base)) {
            write!(text, "{:>10}", format!("{:.1}x", comparison.ratio))?;
        }
    }
    writeln!(text)
}

/// The cases of the plan.
const ABOUT: [&str; 3] = [
    "throughput, 64,000 B",
    "round trip, 14 B",
    "messages, 100 B",
];
