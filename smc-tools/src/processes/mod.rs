//! What running processes report of their endpoints: `smc ss`, `smc groups`, `smc links`,
//! `smc stats` and `smc info`.
//!
//! `collect` asks all processes at once, `table` formats. Each command is a module.

mod groups;
mod info;
mod ss;
mod stats;
mod table;

pub(crate) use groups::{GroupArgs, LinkArgs, run_groups, run_links};
pub(crate) use info::{InfoArgs, run_info};
pub(crate) use ss::{SsArgs, run_ss};
pub(crate) use stats::{StatsArgs, run_stats};
pub(crate) use table::printable;

use std::io;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::Result;
use serde::Serialize;
use smc::introspection::{Request, Subject, query, sockets};
use smc::record::{ProcessRecord, Record};

use crate::output::note;

/// A process and its records.
#[derive(Debug)]
struct Process {
    process: ProcessRecord,
    records: Vec<Record>,
}

/// Asks all processes of this user, for root those of all users. Processes that have ended are left
/// out; one that does not answer is named on standard error.
fn collect(what: &[Subject]) -> Vec<Process> {
    let sockets = sockets();
    let request = Request::new(what);
    let (next, found) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..sockets.len().min(THREADS_MAX) {
            scope.spawn(|| {
                while let Some(socket) = sockets.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Some(process) = ask(socket, &request) {
                        let mut found = found.lock().unwrap_or_else(|poison| poison.into_inner());
                        found.push(process);
                    }
                }
            });
        }
    });
    let mut found = found
        .into_inner()
        .unwrap_or_else(|poison| poison.into_inner());
    found.sort_by_key(|found: &Process| found.process.pid);
    // A process can be found by several names.
    found.dedup_by_key(|found| (found.process.pid, found.process.uid));
    found
}

fn ask(socket: &Path, request: &Request) -> Option<Process> {
    match query(socket, request, TIMEOUT) {
        Ok(records) => {
            let mut records = records.into_iter();
            match records.next() {
                Some(Record::Process(process)) => Some(Process {
                    process,
                    records: records.collect(),
                }),
                _ => complain(socket, &io::ErrorKind::InvalidData.into()),
            }
        }
        Err(error) => match error.kind() {
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => None,
            _ => complain(socket, &error),
        },
    }
}

fn complain(socket: &Path, error: &io::Error) -> Option<Process> {
    let what = match error.kind() {
        io::ErrorKind::TimedOut => "does not answer".to_owned(),
        _ => error.to_string(),
    };
    note(
        "smc",
        &format_args!("process with the socket {}: {what}", socket.display()),
    );
    None
}

/// A record with its process, as one line of JSON.
fn json_line(process: &ProcessRecord, record: &impl Serialize) -> Result<String> {
    let mut value = serde_json::to_value(record)?;
    if let Some(fields) = value.as_object_mut() {
        fields.insert("pid".to_owned(), process.pid.into());
        fields.insert("uid".to_owned(), process.uid.into());
        fields.insert("program".to_owned(), process.program.clone().into());
    }
    Ok(format!("{value}\n"))
}

/// Processes that are asked at a time.
const THREADS_MAX: usize = 16;

/// How long a process may take to answer.
const TIMEOUT: Duration = Duration::from_secs(5);
