//! `smc top`: the SMC connections with the most data, again and again.

use std::collections::HashMap;
use std::io::IsTerminal as _;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Result;
use smc::introspection::Subject;
use smc::record::{ConnectionRecord, Record};

use super::table::{Table, cut};
use super::{Process, collect};
use crate::output::print_while_open;

/// Arguments of `smc top`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Rates are those of the time between two looks. Ctrl-C ends it.

Example:
  smc top --interval 5 --lines 10")]
pub(crate) struct TopArgs {
    /// Seconds between two looks
    #[arg(short, long, value_name = "SECONDS", default_value_t = 2,
          value_parser = clap::value_parser!(u32).range(1..))]
    interval: u32,
    /// Connections to show
    #[arg(short, long, value_name = "N", default_value_t = 20)]
    lines: usize,
    /// End after so many tables
    #[arg(short = 'n', long, value_name = "N")]
    iterations: Option<u32>,
}

/// What a connection had done by a look: bytes and requests, received and sent.
type Counts = [u64; 4];

/// A connection, by the name of its process's socket and its number.
type Key = (std::ffi::OsString, u64);

/// Runs the command.
pub(crate) fn run_top(args: &TopArgs) -> Result<bool> {
    let look = || (Instant::now(), collect(&[Subject::Connections]));
    let (mut before, found) = look();
    let mut counted = counts(&found);
    let mut left = args.iterations;
    while left != Some(0) {
        sleep(Duration::from_secs(args.interval.into()));
        let (now, found) = look();
        let text = text(&found, &counted, now.duration_since(before), args.lines);
        let clear = match std::io::stdout().is_terminal() {
            true => "\u{1b}[2J\u{1b}[H",
            false => "",
        };
        if !print_while_open(&format!("{clear}{text}"))? {
            break;
        }
        (before, counted) = (now, counts(&found));
        left = left.map(|left| left - 1);
    }
    Ok(true)
}

fn counts(found: &[Process]) -> HashMap<Key, Counts> {
    let connections = connections(found);
    connections
        .map(|(process, connection)| (key(process, connection), counts_of(connection)))
        .collect()
}

fn connections(found: &[Process]) -> impl Iterator<Item = (&Process, &ConnectionRecord)> {
    found.iter().flat_map(|process| {
        process
            .records
            .iter()
            .filter_map(move |record| match record {
                Record::Connection(connection) => Some((process, &**connection)),
                _ => None,
            })
    })
}

fn key(process: &Process, connection: &ConnectionRecord) -> Key {
    (process.name.clone(), connection.id)
}

fn counts_of(connection: &ConnectionRecord) -> Counts {
    let [reads, writes] = [&connection.reads, &connection.writes];
    let bytes = |stats: &Option<smc::info::DirectionStats>| {
        stats
            .as_ref()
            .map_or((0, 0), |it| (it.bytes, it.request_count()))
    };
    let ((received, reads), (sent, writes)) = (bytes(reads), bytes(writes));
    [received, sent, reads, writes]
}

/// The connections with the most bytes since the look before.
fn text(found: &[Process], before: &HashMap<Key, Counts>, time: Duration, lines: usize) -> String {
    let mut rows: Vec<_> = connections(found)
        .map(|(process, connection)| {
            let before = before
                .get(&key(process, connection))
                .copied()
                .unwrap_or_default();
            let now = counts_of(connection);
            let rates: [f64; 4] = std::array::from_fn(|at| {
                let more = now.get(at).zip(before.get(at));
                let more = more.map_or(0, |(now, before)| now.saturating_sub(*before));
                more as f64 / time.as_secs_f64()
            });
            (rates, process, connection)
        })
        .collect();
    let bytes = |rates: &[f64; 4]| rates[0] + rates[1];
    rows.sort_by(|(one, ..), (other, ..)| bytes(other).total_cmp(&bytes(one)));
    let header = [
        "RX/s",
        "TX/s",
        "Reads/s",
        "Writes/s",
        "Mode",
        "PID",
        "ID",
        "Peer Address",
        "Program",
    ];
    let mut table = Table::new(&header);
    for ([received, sent, reads, writes], process, connection) in rows.iter().take(lines) {
        // The kernel counts what a stream of TCP carries.
        let is_counted = connection.reads.is_some();
        let rate = |rate: &f64| {
            if is_counted {
                scaled(*rate)
            } else {
                "-".to_owned()
            }
        };
        table.add(vec![
            rate(received),
            rate(sent),
            rate(reads),
            rate(writes),
            connection.mode.clone(),
            process.process.pid.to_string(),
            connection.id.to_string(),
            cut(&connection.peer, 47),
            process.process.program.clone(),
        ]);
    }
    let count = rows.len();
    let s = if count == 1 { "" } else { "s" };
    format!("{count} connection{s}\n{}", table.text())
}

/// A number with a prefix.
fn scaled(number: f64) -> String {
    let units = [(1e9, "G"), (1e6, "M"), (1e3, "k")];
    match units.iter().find(|(unit, _)| number >= *unit) {
        Some((unit, name)) => format!("{:.1}{name}", number / unit),
        None => format!("{number:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_prefixes() {
        for (number, text) in [
            (0.0, "0"),
            (999.0, "999"),
            (1500.0, "1.5k"),
            (2.04e9, "2.0G"),
        ] {
            assert_eq!(scaled(number), text);
        }
    }
}
