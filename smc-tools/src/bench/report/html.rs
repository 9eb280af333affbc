//! The results as a page that needs nothing but itself.

use std::fmt::{self, Write as _};

use super::super::figure::Figure;
use super::super::host::Host;
use super::super::plan::{Plan, Workload};
use super::super::results::{Results, Row};
use super::super::runtime::Runtime;
use super::super::stats::Verdict;
use super::super::transport::Kind;
use super::plot::{Axis, Line, Plot, Scale, escape};
use super::table::ratio;
use super::{LEGEND, about, header};

/// Header, then plots and tables for each runtime.
pub(in crate::bench) fn html(host: &Host, plan: &Plan, results: &Results) -> String {
    let mut page = String::from(HEAD);
    let _infallible = body(&mut page, host, plan, results);
    page
}

fn body(page: &mut String, host: &Host, plan: &Plan, results: &Results) -> fmt::Result {
    writeln!(page, "<table class=\"header\">")?;
    for (name, value) in header(host, plan) {
        let value = escape(&value);
        writeln!(page, "<tr><th>{name}</th><td>{value}</td></tr>")?;
    }
    writeln!(page, "</table>")?;
    for runtime in &plan.runtimes {
        writeln!(page, "<h2>{runtime}</h2>")?;
        for svg in plots(plan, results, *runtime).iter().filter_map(Plot::svg) {
            page.push_str(&svg);
        }
        tables(page, plan, results, *runtime)?;
    }
    writeln!(page, "<p>{}</p>\n</body>\n</html>", escape(LEGEND))
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
    let by_load = |workload, figure, title: &str, x| {
        let lines = lines(plan, |kind| {
            by_load(results, runtime, workload, kind, figure)
        });
        let mut marks: Vec<_> = loads(plan, workload);
        marks.dedup();
        let y = Axis {
            label: figure.heading(),
            scale: if figure.is_higher_better() {
                Scale::Linear
            } else {
                Scale::Log
            },
            marks: None,
            show: show(figure),
        };
        let x = Axis {
            label: x,
            scale: Scale::Log,
            marks: Some(marks),
            show: |value| value.to_string(),
        };
        Plot {
            title: title.to_owned(),
            x,
            y,
            lines,
        }
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
        name: kind.to_string(),
        color: color(*kind),
        points: points(*kind),
        has_dots: true,
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
    let rows = results.rows().filter(|row| {
        let key = row.key;
        key.runtime == runtime && key.transport == kind && key.case.workload == workload
    });
    let points =
        rows.filter_map(|row| Some((row.key.case.load as f64, row.spread(figure)?.median)));
    let mut points: Vec<_> = points.collect();
    points.sort_by(|one, other| one.0.total_cmp(&other.0));
    points
}

fn loads(plan: &Plan, workload: Workload) -> Vec<(f64, String)> {
    let cases = plan.cases.iter().filter(|case| case.workload == workload);
    cases
        .map(|case| (case.load as f64, case.load.to_string()))
        .collect()
}

/// Latency by the share of trips that were slower, the rare ones to the right.
fn distribution(plan: &Plan, results: &Results, runtime: Runtime) -> Plot {
    let points = |kind: Kind| {
        let is_wanted = |row: &&Row| {
            let key = row.key;
            key.runtime == runtime
                && key.transport == kind
                && key.case.workload == Workload::Pingpong
        };
        let Some(latencies) = results.rows().find(is_wanted).and_then(Row::latencies) else {
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
    let marks = [
        (2.0, "50 %"),
        (10.0, "90 %"),
        (100.0, "99 %"),
        (1e3, "99.9 %"),
        (1e4, "99.99 %"),
    ];
    let marks = marks.into_iter().chain([(1e5, "99.999 %")]);
    Plot {
        title: "pingpong: latency distribution".to_owned(),
        x: Axis {
            label: "of all trips took no longer",
            scale: Scale::Log,
            marks: Some(marks.map(|(at, text)| (at, text.to_owned())).collect()),
            show: |value| value.to_string(),
        },
        y: Axis {
            label: "round trip",
            scale: Scale::Log,
            marks: None,
            show: show(Figure::P50),
        },
        lines: lines(plan, points)
            .into_iter()
            .map(|line| Line {
                has_dots: false,
                ..line
            })
            .collect(),
    }
}

fn show(figure: Figure) -> fn(f64) -> String {
    match figure {
        Figure::Messages => |value| Figure::Messages.show(value),
        Figure::Bytes => |value| Figure::Bytes.show(value),
        Figure::Requests | Figure::Connections => |value| Figure::Requests.show(value),
        _ => |value| Figure::P50.show(value),
    }
}

/// Colours that colour-blind readers can distinguish.
fn color(kind: Kind) -> &'static str {
    match kind {
        Kind::Loop => "#0072b2",
        Kind::LoopCopy => "#56b4e9",
        Kind::LoopInplace => "#009e73",
        Kind::Ism | Kind::Rdma => "#000000",
        Kind::IsmCopy => "#f0e442",
        Kind::Tcp => "#d55e00",
        Kind::Unix => "#cc79a7",
        Kind::Fallback => "#e69f00",
        #[cfg(feature = "peers")]
        Kind::Iceoryx2 => "#999999",
    }
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
svg { width: 100%; margin: 1em 0; font: 12px system-ui, sans-serif; }
svg .title { font-size: 15px; font-weight: 600; } svg .rule { stroke: #ddd; }
</style>
</head>
<body>
<h1>smc bench</h1>
";
