//! What running processes report of their endpoints: `smc ss`, `smc groups`, `smc links`,
//! `smc stats`, `smc top` and `smc info`, and all of it for `smc report`.
//!
//! `collect` asks all processes at once, `table` formats. Each command is a module.

mod baseline;
mod devices;
mod groups;
mod info;
mod kernel;
mod snapshot;
mod ss;
mod stats;
mod table;
mod top;

pub(crate) use devices::devices_of_endpoints;
pub(crate) use groups::{GroupArgs, LinkArgs, run_groups, run_links};
pub(crate) use info::{InfoArgs, run_info};
pub(crate) use snapshot::{Snapshot, snapshot};
pub(crate) use ss::{SsArgs, run_ss};
pub(crate) use stats::{StatsArgs, run_stats};
pub(crate) use table::printable;
pub(crate) use top::{TopArgs, run_top};

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Serialize;
use smc::introspection::{Request, Subject, query, sockets};
use smc::record::{ProcessRecord, Record};

use crate::output::note;

use self::table::escaped;

/// A process and its records.
#[derive(Debug)]
struct Process {
    /// Name of its socket.
    name: OsString,
    process: ProcessRecord,
    records: Vec<Record>,
}

/// Asks all processes of this user, for root those of all users. Processes that have ended are left
/// out; one that does not answer is named on standard error.
fn collect(what: &[Subject]) -> Vec<Process> {
    let (found, silent) = look(what);
    silent.iter().for_each(|text| note("smc", text));
    found
}

/// The same; what is wrong with processes that do not answer is returned.
fn look(what: &[Subject]) -> (Vec<Process>, Vec<String>) {
    let sockets = sockets();
    let until = Instant::now() + TIME_IN_ALL;
    let request = Request::new(what);
    let (next, found) = (AtomicUsize::new(0), Mutex::new((Vec::new(), Vec::new())));
    thread::scope(|scope| {
        for _ in 0..sockets.len().min(THREADS_MAX) {
            scope.spawn(|| {
                while let Some(socket) = sockets.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let left = until.saturating_duration_since(Instant::now());
                    let answer = ask(socket, &request, left.min(TIMEOUT));
                    let mut found = found.lock().unwrap_or_else(|poison| poison.into_inner());
                    match answer {
                        Ok(process) => found.0.extend(process),
                        Err(error) => found.1.push(complaint(socket, &error)),
                    }
                }
            });
        }
    });
    let (mut found, silent) = found
        .into_inner()
        .unwrap_or_else(|poison| poison.into_inner());
    // A process can be in several directories, by one name.
    found.sort_by(|one: &Process, other| one.name.cmp(&other.name));
    found.dedup_by(|one, other| one.name == other.name && one.process == other.process);
    found.sort_by_key(|found| found.process.pid);
    (found, silent)
}

/// What a process answers; `None` if it has ended.
fn ask(socket: &Path, request: &Request, timeout: Duration) -> io::Result<Option<Process>> {
    match query(socket, request, timeout) {
        Ok(records) => {
            let mut records = records.into_iter();
            match records.next() {
                Some(Record::Process(process)) => Ok(Some(Process {
                    name: socket.file_name().unwrap_or_default().to_owned(),
                    process,
                    records: records.collect(),
                })),
                _ => Err(io::ErrorKind::InvalidData.into()),
            }
        }
        Err(error) => match error.kind() {
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => Ok(None),
            _ => Err(error),
        },
    }
}

fn complaint(socket: &Path, error: &io::Error) -> String {
    let what = match error.kind() {
        io::ErrorKind::TimedOut => "does not answer".to_owned(),
        _ => error.to_string(),
    };
    printable(&format!(
        "process with the socket {}: {what}",
        socket.display()
    ))
}

/// A record with its process, as one line of JSON.
fn json_line(process: &ProcessRecord, record: &impl Serialize) -> Result<String> {
    let mut value = serde_json::to_value(record)?;
    if let Some(fields) = value.as_object_mut() {
        fields.insert("pid".to_owned(), process.pid.into());
        fields.insert("uid".to_owned(), process.uid.into());
        fields.insert("program".to_owned(), process.program.clone().into());
    }
    Ok(escaped(&value.to_string()) + "\n")
}

/// Processes that are asked at a time.
const THREADS_MAX: usize = 16;

/// How long all of them may take.
const TIME_IN_ALL: Duration = Duration::from_secs(20);

/// How long a process may take to answer.
const TIMEOUT: Duration = Duration::from_secs(5);
