//! The results as text.

use std::fmt::{self, Write as _};

use super::super::host::Host;
use super::super::plan::{Case, Plan};
use super::super::results::Results;
use super::super::stats::Comparison;
use super::super::transport::Kind;
use super::{LEGEND, about, header};
use crate::runtime::Runtime;

/// Header, a table for each case and runtime, and how to read them.
pub(in crate::bench) fn table(host: &Host, plan: &Plan, results: &Results) -> String {
    let mut text = String::new();
    let _infallible = body(&mut text, host, plan, results);
    let lines = text.lines().map(str::trim_end);
    lines.flat_map(|line| [line, "\n"]).collect()
}

fn body(text: &mut String, host: &Host, plan: &Plan, results: &Results) -> fmt::Result {
    for (name, value) in header(host, plan) {
        writeln!(text, "{name:12} {value}")?;
    }
    let mut before = None;
    for runtime in &plan.runtimes {
        for case in &plan.cases {
            let workload = case.workload;
            if before != Some((*runtime, workload)) {
                before = Some((*runtime, workload));
                let about = about(workload, plan);
                writeln!(text, "\n{workload} on {runtime}: {about}")?;
            }
            block(text, results, *case, *runtime)?;
        }
    }
    writeln!(text, "\n{LEGEND}")
}

fn block(text: &mut String, results: &Results, case: Case, runtime: Runtime) -> fmt::Result {
    let [first, others @ ..] = case.workload.figures() else {
        return Ok(());
    };
    let mut rows = results.of(case, runtime).peekable();
    if rows.peek().is_none() {
        return Ok(());
    }
    let (case, heading) = (case.to_string(), first.heading());
    write!(text, "  {case:<28}{heading:>18}{:>9}  {:8}", "vs TCP", "")?;
    for figure in others {
        write!(text, "{:>11}", figure.heading())?;
    }
    writeln!(text)?;
    for row in rows {
        let spread = row.spread(*first);
        let value = spread.map(|spread| format!("{} {spread}", first.show(spread.median)));
        let transport = row.key.transport;
        write!(text, "    {transport:<26}{:>18}", value.unwrap_or_default())?;
        let comparison = results.compare(row, *first, Kind::Tcp);
        match comparison.filter(|_| transport != Kind::Tcp) {
            Some(Comparison { ratio, verdict }) => {
                write!(text, "{:>9}  {verdict:8}", self::ratio(ratio))?;
            }
            None => write!(text, "{:19}", "")?,
        }
        for figure in others {
            let value = row.spread(*figure).map(|spread| figure.show(spread.median));
            write!(text, "{:>11}", value.unwrap_or_default())?;
        }
        writeln!(text, "  {}", row.remark().unwrap_or_default())?;
    }
    Ok(())
}

/// Such as `15.2x`, or `0.98x`.
pub(super) fn ratio(ratio: f64) -> String {
    let digits = if ratio < 10.0 { 2 } else { 1 };
    format!("{ratio:.digits$}x")
}
