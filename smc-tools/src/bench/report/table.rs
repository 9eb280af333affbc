//! The results as text.

use std::fmt::Write as _;

use super::super::figure::Figure;
use super::super::host::Host;
use super::super::plan::{Case, Plan};
use super::super::results::{Results, Row};
use super::super::runtime::Runtime;
use super::super::stats::Comparison;
use super::super::transport::Kind;
use super::{LEGEND, about, header};

/// Header, a table for each case and runtime, and how to read them.
pub(in crate::bench) fn table(host: &Host, plan: &Plan, results: &Results) -> String {
    let mut text = String::new();
    for (name, value) in header(host, plan) {
        line(&mut text, &format!("{name:12} {value}"));
    }
    let mut before = None;
    for runtime in &plan.runtimes {
        for case in &plan.cases {
            if before != Some((*runtime, case.workload)) {
                before = Some((*runtime, case.workload));
                let about = about(case.workload, plan);
                line(
                    &mut text,
                    &format!("\n{} on {runtime}: {about}", case.workload),
                );
            }
            block(&mut text, results, *case, *runtime);
        }
    }
    line(&mut text, "");
    line(&mut text, LEGEND);
    text
}

fn block(text: &mut String, results: &Results, case: Case, runtime: Runtime) {
    let figures = case.workload.figures();
    let rows: Vec<_> = results.of(case, runtime).collect();
    if rows.is_empty() {
        return;
    }
    let mut heading = format!("  {:<28}", case.to_string());
    for (place, figure) in figures.iter().enumerate() {
        if place == 0 {
            let _infallible = write!(heading, "{:>18}{:>9}  {:8}", figure.heading(), "vs TCP", "");
        } else {
            let _infallible = write!(heading, "{:>11}", figure.heading());
        }
    }
    line(text, &heading);
    for row in rows {
        line(text, &row_line(results, row, figures));
    }
}

fn row_line(results: &Results, row: &Row, figures: &[Figure]) -> String {
    let mut line = format!("    {:<26}", row.key.transport);
    for (place, figure) in figures.iter().enumerate() {
        let spread = row.spread(*figure);
        let value = spread.map(|spread| figure.show(spread.median));
        if place > 0 {
            let _infallible = write!(line, "{:>11}", value.unwrap_or_default());
            continue;
        }
        let value = value.zip(spread);
        let value = value.map(|(value, spread)| format!("{value} {spread}"));
        let _infallible = write!(line, "{:>18}", value.unwrap_or_default());
        let comparison = match row.key.transport {
            Kind::Tcp => None,
            _ => results.compare(row, *figure, Kind::Tcp),
        };
        let _infallible = match comparison {
            Some(Comparison { ratio, verdict }) => {
                write!(line, "{:>9}  {verdict:8}", self::ratio(ratio))
            }
            None => write!(line, "{:19}", ""),
        };
    }
    if let Some(remark) = row.remark() {
        let _infallible = write!(line, "  {remark}");
    }
    line
}

/// Such as `15.2x`, or `0.98x`.
pub(super) fn ratio(ratio: f64) -> String {
    let digits = if ratio < 10.0 { 2 } else { 1 };
    format!("{ratio:.digits$}x")
}

fn line(text: &mut String, line: &str) {
    text.push_str(line.trim_end());
    text.push('\n');
}
