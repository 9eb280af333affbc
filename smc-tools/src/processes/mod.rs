//! What running processes report of their endpoints: `smc ss`, `smc groups`, `smc links`,
//! `smc stats`, `smc top` and `smc info`, and all of it for `smc report`.
//!
//! `collect` asks all processes on threads of `pool`, `table` formats. Each command is a module.

mod baseline;
mod devices;
mod groups;
mod info;
mod kernel;
mod pool;
mod snapshot;
mod ss;
mod stats;
mod table;
mod top;

pub(crate) use devices::devices_of_endpoints;
pub(crate) use groups::{GroupArgs, LinkArgs, run_groups, run_links};
pub(crate) use info::{InfoArgs, run_info};
pub(crate) use pool::results;
pub(crate) use snapshot::{Snapshot, snapshot};
pub(crate) use ss::{SsArgs, run_ss};
pub(crate) use stats::{StatsArgs, run_stats};
pub(crate) use table::{escaped, printable, shown};
pub(crate) use top::{TopArgs, run_top};

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use nix::unistd::geteuid;
use serde::Serialize;
use smc::Domain;
use smc::introspection::{Directory, Request, Subject, directories, query};
use smc::record::{ProcessRecord, Record};

use crate::output::note;

use self::pool::Job;

/// A process and its records.
#[derive(Debug)]
struct Process {
    /// Name of its socket.
    name: OsString,
    process: ProcessRecord,
    records: Vec<Record>,
}

/// Asks all processes of this user, for root those of all users. Processes that have ended are left
/// out; those that do not answer are named on standard error.
fn collect(what: &[Subject]) -> Vec<Process> {
    let (found, silent) = look(what);
    silent.iter().for_each(|text| note("smc", text));
    found
}

/// The same; what is wrong with processes that do not answer is returned.
fn look(what: &[Subject]) -> (Vec<Process>, Vec<String>) {
    let until = Instant::now() + TIME_IN_ALL;
    let search = directories();
    let refused = match search.found.is_empty() && search.incomplete.is_empty() {
        true => refused_directory().map(|error| format!("no process can be shown: {error}")),
        false => None,
    };
    let (found, mut silent) = look_in((search.found, search.incomplete), what, until);
    silent.extend(refused);
    (found, silent)
}

/// Why the runtime directory of this user is not used, if it is one that others can change.
pub(crate) fn refused_directory() -> Option<String> {
    let user = geteuid().as_raw();
    let job = move || Domain::default().unusable_of(user);
    let (mut found, _missing) = results([(user, job)], Instant::now() + DIRECTORY_TIME);
    Some(printable(&found.pop()??.to_string()))
}

/// The same of the processes in these directories. In others there can be more.
fn look_in(
    (dirs, incomplete): (Vec<Directory>, Vec<PathBuf>),
    what: &[Subject],
    until: Instant,
) -> (Vec<Process>, Vec<String>) {
    let (reports, received) = mpsc::channel();
    let look = Arc::new(Look {
        request: Request::new(what),
        until,
        memory: Mutex::new(Memory::new(MEMORY_MAX)),
    });
    let mut waiting = BTreeMap::new();
    let jobs = dirs.into_iter().map(|dir| {
        let (look, reports) = (Arc::clone(&look), reports.clone());
        let user = dir.owner;
        *waiting.entry(user).or_default() += 1;
        let job = move || ask_all(&dir, &look, &reports);
        (user, Box::new(job) as Job)
    });
    let jobs: Vec<_> = jobs.collect();
    drop(reports);
    pool::start(jobs);
    let (found, mut silent) = receive(&received, until, waiting);
    pool::clear();
    silent.extend(incomplete.iter().map(|base| unsearched(base)));
    (found, silent)
}

fn unsearched(base: &Path) -> String {
    printable(&format!(
        "{} was not searched to its end, as it has many names or another user its lock: processes \
         may be missing",
        base.display()
    ))
}

/// The sockets of all processes that could be asked, with their users.
fn sockets() -> Vec<(u32, PathBuf)> {
    let jobs = directories().found.into_iter().map(|dir| {
        let user = dir.owner;
        let job = move || {
            let sockets = dir.sockets().into_iter();
            sockets.map(|socket| (user, socket)).collect::<Vec<_>>()
        };
        (user, job)
    });
    let (found, _missing) = results(jobs, Instant::now() + TIME_IN_ALL);
    found.concat()
}

/// What the jobs of a look have in common.
struct Look {
    request: Request,
    until: Instant,
    memory: Mutex<Memory>,
}

/// What a job has to report of a user's processes.
#[derive(Debug)]
enum Report {
    /// So many requests are to be sent.
    Begun(u32, usize),
    /// What a process answers, or what is wrong.
    Answer(u32, Result<Option<Process>, String>),
    /// A directory was read.
    Read(u32),
}

/// Has all processes asked whose sockets are in a directory.
fn ask_all(dir: &Directory, look: &Arc<Look>, reports: &Sender<Report>) {
    let user = dir.owner;
    let jobs = dir.sockets().into_iter().map(|socket| {
        let (look, reports) = (Arc::clone(look), reports.clone());
        let job = move || {
            let answer = ask(&socket, user, &look).map_err(|error| failure(&socket, &error));
            let _late = reports.send(Report::Answer(user, answer));
        };
        (user, Box::new(job) as Job)
    });
    let jobs: Vec<_> = jobs.collect();
    let _late = reports.send(Report::Begun(user, jobs.len()));
    if Instant::now() < look.until {
        pool::start(jobs);
    }
    let _late = reports.send(Report::Read(user));
}

/// Takes reports up to the last one, or for so long. `waiting` has the jobs of each user.
fn receive(
    reports: &Receiver<Report>,
    until: Instant,
    mut waiting: BTreeMap<u32, usize>,
) -> (Vec<Process>, Vec<String>) {
    let (mut found, mut silent, mut unnamed) = (Vec::new(), Vec::new(), BTreeMap::new());
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let (user, answer) = match reports.recv_timeout(left) {
            Ok(Report::Begun(user, count)) => {
                *waiting.entry(user).or_default() += count;
                continue;
            }
            Ok(Report::Answer(user, answer)) => (user, answer),
            Ok(Report::Read(user)) => (user, Ok(None)),
            Err(_) => break,
        };
        let left = waiting.entry(user).or_default();
        *left = left.saturating_sub(1);
        match answer {
            Ok(process) => found.extend(process),
            Err(failure) => {
                let count: &mut usize = unnamed.entry(user).or_default();
                *count += 1;
                if *count <= COMPLAINTS_MAX {
                    silent.push(failure);
                }
            }
        }
    }
    for (user, count) in waiting {
        let unnamed = unnamed
            .get(&user)
            .map_or(0, |count| count.saturating_sub(COMPLAINTS_MAX));
        let count = count.saturating_add(unnamed);
        if count > 0 {
            let text =
                format!("user {user}: {count} more directories or sockets without an answer");
            silent.push(text);
        }
    }
    // A process can be in several directories, by one name.
    found.sort_by(|one: &Process, other| one.name.cmp(&other.name));
    found.dedup_by(|one, other| one.name == other.name && one.process == other.process);
    found.sort_by_key(|found| found.process.pid);
    (found, silent)
}

/// What a process answers; `None` if it has ended.
fn ask(socket: &Path, user: u32, look: &Look) -> io::Result<Option<Process>> {
    let left = look.until.saturating_duration_since(Instant::now());
    let permit = |len| {
        let mut memory = look.memory.lock().unwrap_or_else(PoisonError::into_inner);
        memory.take(user, len)
    };
    match query(socket, &look.request, left.min(TIMEOUT), permit) {
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

fn failure(socket: &Path, error: &io::Error) -> String {
    let what = match error.kind() {
        io::ErrorKind::TimedOut => "does not answer".to_owned(),
        _ => error.to_string(),
    };
    let path = printable(&socket.display().to_string());
    format!("process with the socket {path}: {}", shown(&what))
}

/// Memory that users share, of which none can leave the others without.
#[derive(Debug)]
pub(crate) struct Memory {
    left: usize,
    of_users: BTreeMap<u32, usize>,
}

impl Memory {
    pub(crate) fn new(len: usize) -> Self {
        Self {
            left: len,
            of_users: BTreeMap::new(),
        }
    }

    /// Takes so much for a user, who has no more than is left free. Returns whether that is so.
    pub(crate) fn take(&mut self, user: u32, len: usize) -> bool {
        let of_user = self.of_users.entry(user).or_default();
        let wanted = of_user.saturating_add(len);
        let is_left = wanted <= self.left.saturating_sub(len);
        if is_left {
            self.left = self.left.saturating_sub(len);
            *of_user = wanted;
        }
        is_left
    }
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

/// How long the look-up of the own directory may take.
const DIRECTORY_TIME: Duration = Duration::from_secs(1);

/// How long all of them may take.
const TIME_IN_ALL: Duration = Duration::from_secs(20);

/// How long a process may take to answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// What all answers may take of memory. Half of it holds some 30,000 connections of one user.
const MEMORY_MAX: usize = 384 << 20;

/// Processes of one user of which is told that they have not answered.
const COMPLAINTS_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    /// A process with this number, of a user with the same number.
    pub(super) fn process(number: u32) -> ProcessRecord {
        let text = format!(
            r#"{{"record":"process","version":1,"pid":{number},"uid":{number},"program":"x",
            "library":"","endpoints":0}}"#
        );
        match serde_json::from_str(&text) {
            Ok(Record::Process(process)) => process,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_user_has_no_more_memory_than_is_left_free() {
        let mut memory = Memory::new(MEMORY_MAX);
        assert!(!memory.take(1, MEMORY_MAX));
        while memory.take(1, 1 << 20) {}
        assert_eq!(memory.left, MEMORY_MAX / 2);
        assert!(!memory.take(1, 1));
        for user in 2..10 {
            assert!(memory.take(user, 1 << 18), "{user}");
        }
        assert!(!memory.take(2, usize::MAX));
    }

    #[test]
    fn what_was_not_searched_is_named() {
        let text = unsearched(Path::new("/tmp/\u{1b}"));
        assert!(text.starts_with("/tmp/\u{fffd} was not searched to its end"));
        let until = Instant::now() + TIME_IN_ALL;
        let search = (Vec::new(), vec![PathBuf::from("/tmp")]);
        let (found, silent) = look_in(search, &[], until);
        assert!(found.is_empty());
        assert_eq!(silent, [unsearched(Path::new("/tmp"))]);
    }

    #[test]
    fn what_has_come_is_returned_although_a_job_does_not_end() {
        let (reports, received) = mpsc::channel();
        let name = OsString::from("i-1-0123456789abcdef.sock");
        let process = process(1);
        let records = Vec::new();
        let answer = Process {
            name,
            process,
            records,
        };
        reports.send(Report::Answer(1, Ok(Some(answer)))).unwrap();
        let until = Instant::now() + Duration::from_millis(50);
        let (found, silent) = receive(&received, until, BTreeMap::from([(1, 1), (2, 1)]));
        assert_eq!(found.len(), 1);
        assert!(silent.iter().all(|text| text.starts_with("user 2: 1 more")));
        assert_eq!(silent.len(), 1);
        drop(reports);
    }
}
