//! The results as a page that needs nothing but itself.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};

use anyhow::Result;

use super::super::figure::Figure;
use super::super::host::Host;
use super::super::plan::{Case, Plan, Workload};
use super::super::results::{Results, Row};
use super::super::stats::Verdict;
use super::super::transport::Kind;
use super::plot::{Axis, Line, Plot};
use super::table::ratio;
use super::{LEGEND, about, header};
use crate::runtime::Runtime;

/// Header, then plots and tables for each runtime.
pub(in crate::bench) fn html(host: &Host, plan: &Plan, results: &Results) -> Result<String> {
    let mut text = String::from(HEAD);
    let page = &mut text;
    writeln!(page, "<table class=\"header\">")?;
    for (name, value) in header(host, plan) {
        let value = escape(&value);
        writeln!(page, "<tr><th>{name}</th><td>{value}</td></tr>")?;
    }
    writeln!(page, "</table>")?;
    for runtime in &plan.runtimes {
        writeln!(page, "<h2>{runtime}</h2>")?;
        for plot in plots(plan, results, *runtime) {
            page.push_str(&plot.svg()?);
        }
        tables(page, plan, results, *runtime)?;
    }
    writeln!(page, "<p>{}</p>\n</body>\n</html>", escape(LEGEND))?;
    Ok(text)
}

fn tables(page: &mut String, plan: &Plan, results: &Results, runtime: Runtime) -> fmt::Result {
    let mut before = None;
    for case in &plan.cases {
        if before != Some(case.workload) {
            before = Some(case.workload);
            let about = escape(&about(case.workload, plan));
            writeln!(page, "<h3>{}</h3>\n<p>{about}</p>", case.workload)?;
        }
        let figures = case.workload.figures();
        writeln!(page, "<table>\n<tr><th>{case}</th>")?;
        for (place, figure) in figures.iter().enumerate() {
            writeln!(page, "<th>{}</th>", figure.heading())?;
            if place == 0 {
                writeln!(page, "<th>vs TCP</th><th>vs UNIX</th>")?;
            }
        }
        writeln!(page, "<th></th></tr>")?;
        for row in results.of(*case, runtime) {
            writeln!(page, "<tr><td>{}</td>", row.key.transport)?;
            for (place, figure) in figures.iter().enumerate() {
                cell(page, results, row, *figure, place == 0)?;
            }
            let remark = escape(&row.remark().unwrap_or_default());
            writeln!(page, "<td class=\"remark\">{remark}</td></tr>")?;
        }
        writeln!(page, "</table>")?;
    }
    Ok(())
}

fn cell(
    page: &mut String,
    results: &Results,
    row: &Row,
    figure: Figure,
    is_first: bool,
) -> fmt::Result {
    let spread = row.spread(figure);
    let value = spread.map_or_else(String::new, |spread| {
        format!("{} <small>{spread}</small>", figure.show(spread.median))
    });
    writeln!(page, "<td>{value}</td>")?;
    if !is_first {
        return Ok(());
    }
    for base in [Kind::Tcp, Kind::Unix] {
        let comparison = results.compare(row, figure, base);
        match comparison.filter(|_| row.key.transport != base) {
            None => writeln!(page, "<td></td>")?,
            Some(comparison) => {
                let class = comparison.verdict;
                let mark = match comparison.verdict {
                    Verdict::Unclear => " ?",
                    _ => "",
                };
                let ratio = ratio(comparison.ratio);
                writeln!(page, "<td class=\"{class}\">{ratio}{mark}</td>")?;
            }
        }
    }
    Ok(())
}

fn plots(plan: &Plan, results: &Results, runtime: Runtime) -> Vec<Plot> {
    let by_load = |workload, y, title, label| Plot {
        title,
        x: Axis {
            label,
            marks: loads(plan, workload),
            show: f64::to_string,
        },
        y,
        y_label: y.heading(),
        lines: lines(plan, |kind| by_load(results, runtime, workload, kind, y)),
        has_dots: true,
    };
    vec![
        by_load(
            Workload::Bulk,
            Figure::Bytes,
            "bulk: throughput by size",
            "bytes in a write",
        ),
        distribution(plan, results, runtime),
        by_load(
            Workload::Http,
            Figure::Requests,
            "http: requests by connections",
            "connections",
        ),
        by_load(
            Workload::Connect,
            Figure::Connections,
            "connect: connections by clients",
            "clients",
        ),
        by_load(
            Workload::Fanin,
            Figure::P50,
            "fanin: median latency by open connections",
            "open connections",
        ),
    ]
}

/// One line for each transport that has points.
fn lines(plan: &Plan, points: impl Fn(Kind) -> Vec<(f64, f64)>) -> Vec<Line> {
    let lines = plan.transports.iter().map(|kind| Line {
        transport: *kind,
        points: points(*kind),
    });
    lines.filter(|line| !line.points.is_empty()).collect()
}

fn by_load(
    results: &Results,
    runtime: Runtime,
    workload: Workload,
    kind: Kind,
    figure: Figure,
) -> Vec<(f64, f64)> {
    let rows = results.over(workload, runtime, kind);
    let points = rows.filter_map(|row| {
        let Case { load, active, .. } = row.key.case;
        Some(((load, active), row.spread(figure)?.median))
    });
    // Of those with the same load, the one with the most active connections is the last.
    let points: BTreeMap<_, _> = points.collect();
    let points = points.into_iter().map(|((load, _), y)| (load, y));
    let points: BTreeMap<_, _> = points.collect();
    points
        .into_iter()
        .map(|(load, y)| (load as f64, y))
        .collect()
}

fn loads(plan: &Plan, workload: Workload) -> Vec<f64> {
    let cases = plan.cases.iter().filter(|case| case.workload == workload);
    let loads: BTreeSet<_> = cases.map(|case| case.load).collect();
    loads.into_iter().map(|load| load as f64).collect()
}

/// Latency by the share of trips that were slower, the rare ones to the right.
fn distribution(plan: &Plan, results: &Results, runtime: Runtime) -> Plot {
    let points = |kind: Kind| {
        let mut rows = results.over(Workload::Pingpong, runtime, kind);
        let Some(latencies) = rows.next().and_then(Row::latencies) else {
            return Vec::new();
        };
        // Beyond that there are hardly any trips.
        let end = (latencies.len() as f64 / 10.0).clamp(10.0, 1e5);
        let steps = 0..=100;
        let points = steps.map(|step| {
            let one_in = end.powf(f64::from(step) / 100.0);
            (one_in, latencies.at(1.0 - 1.0 / one_in))
        });
        points.collect()
    };
    Plot {
        title: "pingpong: latency distribution",
        x: Axis {
            label: "of all trips took no longer",
            marks: vec![2.0, 10.0, 1e2, 1e3, 1e4, 1e5],
            show: |one_in| format!("{} %", 100.0 - 100.0 / one_in),
        },
        y: Figure::P50,
        y_label: "round trip",
        lines: lines(plan, points),
        has_dots: false,
    }
}

/// Text for markup.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

const HEAD: &str = "<!DOCTYPE html>
<html lang=\"en\">
<head>
<meta charset=\"utf-8\">
<meta name=\"viewport\" content=\"width=device-width\">
<title>smc bench</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; max-width: 900px; margin: 2em auto; padding: 0 1em; }
table { border-collapse: collapse; margin: 1em 0; font-variant-numeric: tabular-nums; }
th, td { padding: 0.15em 0.8em; border-bottom: 1px solid #ddd; text-align: right; }
th:first-child, td:first-child, table.header td { text-align: left; }
td.better { color: #006d46; } td.worse { color: #b00020; } td.unclear { color: #777; }
td.remark { text-align: left; color: #777; }
small { color: #777; }
svg { width: 100%; height: auto; margin: 1em 0; }
</style>
</head>
<body>
<h1>smc bench</h1>
";
