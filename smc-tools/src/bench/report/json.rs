//! The results for programs. Values are in seconds, bytes and the like, without prefixes.

use serde_json::{Map, Value, json};

use super::super::figure::Figure;
use super::super::host::Host;
use super::super::plan::Plan;
use super::super::results::{Results, Row};
use super::super::transport::Kind;

/// Machine, settings, and a row for each case, runtime and transport.
pub(in crate::bench) fn json(host: &Host, plan: &Plan, results: &Results) -> Value {
    json!({
        "host": host,
        "rounds": plan.rounds,
        "settings": plan.settings,
        "rows": results.rows().map(|row| self::row(results, row)).collect::<Vec<_>>(),
    })
}

fn row(results: &Results, row: &Row) -> Value {
    let figures = row.key.case.workload.figures().iter();
    let figures: Map<_, _> = figures
        .filter_map(|figure| Some((figure.to_string(), self::figure(results, row, *figure)?)))
        .collect();
    let verified: u64 = row.samples.iter().map(|sample| sample.verified).sum();
    json!({
        "workload": row.key.case.workload,
        "load": row.key.case.load,
        "active": row.key.case.active,
        "runtime": row.key.runtime,
        "transport": row.key.transport,
        "path": row.samples.first().map(|sample| &sample.path),
        "verified": verified,
        "figures": figures,
        "skipped": row.skipped,
        "failed": row.failed,
    })
}

fn figure(results: &Results, row: &Row, figure: Figure) -> Option<Value> {
    let spread = row.spread(figure)?;
    Some(json!({
        "unit": figure.unit(),
        "better": if figure.is_higher_better() { "higher" } else { "lower" },
        "values": row.values(figure),
        "median": spread.median,
        "spread": spread.spread,
        "vs_tcp": results.compare(row, figure, Kind::Tcp),
        "vs_unix": results.compare(row, figure, Kind::Unix),
    }))
}
