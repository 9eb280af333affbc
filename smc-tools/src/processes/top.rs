//! `smc top`: the SMC connections with the most data, again and again.

use std::collections::HashMap;
use std::io::IsTerminal as _;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Result;
use smc::introspection::Subject;
use smc::record::{ConnectionRecord, Record};

use super::table::{Table, cut};
use super::{Process, collect, json_line};
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
    /// Connections to show; 20 unless set, all with --json
    #[arg(short, long, value_name = "N")]
    lines: Option<usize>,
    /// End after so many tables
    #[arg(short = 'n', long, value_name = "N")]
    iterations: Option<u32>,
    /// One JSON object per connection and line
    #[arg(long)]
    json: bool,
}

/// What a connection had done by a look: bytes and requests, received and sent.
type Counts = [u64; 4];

/// A connection, by the user of its process, the name of the process's socket, and its number.
type Key = (u32, std::ffi::OsString, u64);

/// Runs the command.
pub(crate) fn run_top(args: &TopArgs) -> Result<bool> {
    let look = || (Instant::now(), collect(&[Subject::Connections]));
    let (mut before, mut counted) = {
        let (now, found) = look();
        (now, counts(&found))
    };
    let mut left = args.iterations;
    while left != Some(0) {
        sleep(Duration::from_secs(args.interval.into()));
        let (now, found) = look();
        let rates = rates(&found, &counted, now.duration_since(before));
        let text = match args.json {
            true => json(&rates, args.lines.unwrap_or(usize::MAX))?,
            false => table(&rates, args.lines.unwrap_or(LINES)),
        };
        let clear = match !args.json && std::io::stdout().is_terminal() {
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
    (process.process.uid, process.name.clone(), connection.id)
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

/// A connection, and what it did in a second since the look before: bytes and requests, received
/// and sent.
struct Rates<'a> {
    process: &'a Process,
    connection: &'a ConnectionRecord,
    /// `None` for TCP: the kernel counts what such a stream carries.
    per_second: Option<[f64; 4]>,
}

/// All connections, those with the most bytes first.
fn rates<'a>(
    found: &'a [Process],
    before: &HashMap<Key, Counts>,
    time: Duration,
) -> Vec<Rates<'a>> {
    let of_one = |(process, connection): (&'a Process, &'a ConnectionRecord)| {
        let before = before.get(&key(process, connection)).copied();
        let (now, before) = (counts_of(connection), before.unwrap_or_default());
        let more = std::array::from_fn(|at| now[at].saturating_sub(before[at]) as f64);
        let per_second = more.map(|more: f64| more / time.as_secs_f64());
        Rates {
            process,
            connection,
            per_second: connection.reads.is_some().then_some(per_second),
        }
    };
    let mut rates: Vec<_> = connections(found).map(of_one).collect();
    let bytes = |rates: &Rates<'_>| rates.per_second.map_or(0.0, |rates| rates[0] + rates[1]);
    rates.sort_by(|one, other| bytes(other).total_cmp(&bytes(one)));
    rates
}

fn json(rates: &[Rates<'_>], lines: usize) -> Result<String> {
    let mut text = String::new();
    for rates in rates.iter().take(lines) {
        let record = Record::Connection(Box::new(rates.connection.clone()));
        let mut line = serde_json::to_value(record)?;
        for (at, name) in ["received", "sent", "reads", "writes"].iter().enumerate() {
            let rate = rates.per_second.map(|rates| rates[at]);
            line[format!("{name}_per_second")] = rate.into();
        }
        text.push_str(&json_line(&rates.process.process, &line)?);
    }
    Ok(text)
}

fn table(rates: &[Rates<'_>], lines: usize) -> String {
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
    for rates in rates.iter().take(lines) {
        let (process, connection) = (&rates.process.process, rates.connection);
        let rate = |at: usize| {
            let rate = rates.per_second.map(|rates| scaled(rates[at]));
            rate.unwrap_or_else(|| "-".to_owned())
        };
        table.add(vec![
            rate(0),
            rate(1),
            rate(2),
            rate(3),
            connection.mode.clone(),
            process.pid.to_string(),
            connection.id.to_string(),
            cut(&connection.peer, 47),
            process.program.clone(),
        ]);
    }
    let count = rates.len();
    let s = if count == 1 { "" } else { "s" };
    let shown = match count > lines {
        true => format!(", {lines} of them shown (--lines)"),
        false => String::new(),
    };
    format!("{count} connection{s}{shown}\n{}", table.text())
}

/// A number with a prefix.
fn scaled(number: f64) -> String {
    let units = [(1e9, "G"), (1e6, "M"), (1e3, "k")];
    match units.iter().find(|(unit, _)| number >= *unit) {
        Some((unit, name)) => format!("{:.1}{name}", number / unit),
        None => format!("{number:.0}"),
    }
}

/// Connections that a table has.
const LINES: usize = 20;

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
