//! What `smc stats` subtracts: the counters as they were at `smc stats reset`. The processes keep
//! theirs.
//!
//! They are in a file of the runtime directory, as numbers of processes mean nothing after a boot.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io::{self, Read as _, Write as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use fs_err as fs;
use fs_err::os::unix::fs::OpenOptionsExt as _;
use nix::libc::O_NOFOLLOW;
use nix::sys::stat::Mode;
use nix::unistd::{geteuid, mkdir};
use serde::{Deserialize, Serialize};
use smc::Domain;
use smc::info::Stats;
use smc::record::{ProcessRecord, Record, StatsRecord};
use tempfile::NamedTempFile;

use super::pool::results;
use super::{Memory, Process};

/// Counters to subtract, by the process's user and the name of its socket, which no other process
/// of that user has. Another user can give a socket the same name.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Baseline {
    processes: BTreeMap<String, Counted>,
}

/// The counters of a process, by endpoint.
#[derive(Debug, Serialize, Deserialize)]
struct Counted {
    pid: u32,
    uid: u32,
    endpoints: BTreeMap<usize, Stats>,
}

impl Baseline {
    /// Reads the file; nothing if there is none.
    pub(super) fn load() -> Result<Self> {
        in_time(Self::read)
    }

    fn read() -> Result<Self> {
        let domain = Domain::default();
        for dir in usable(&domain) {
            let path = dir.join(NAME);
            let mut options = fs::OpenOptions::new();
            let file = match options.read(true).custom_flags(O_NOFOLLOW).open(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                opened => opened?,
            };
            let mut text = Vec::new();
            file.take(LEN_MAX as u64).read_to_end(&mut text)?;
            let read = serde_json::from_slice(&text);
            return read.with_context(|| format!("{} is not valid", path.display()));
        }
        Ok(Self::default())
    }

    /// What an endpoint has counted since.
    pub(super) fn since<'a>(&self, process: &Process, now: &'a StatsRecord) -> Cow<'a, Stats> {
        let earlier = self.processes.get(&key(process.process.uid, &process.name));
        let earlier = earlier.filter(|earlier| earlier.pid == process.process.pid);
        let earlier = earlier.and_then(|earlier| earlier.endpoints.get(&now.endpoint));
        match earlier {
            Some(earlier) => Cow::Owned(now.stats.since(earlier)),
            None => Cow::Borrowed(&now.stats),
        }
    }

    /// Takes the counters of these processes, and removes those of processes that have ended.
    /// Returns how many are left out, as their users have too many counters.
    pub(super) fn reset(&mut self, found: &[Process]) -> Result<usize> {
        let sockets = super::sockets().into_iter();
        let names = sockets.filter_map(|(user, socket)| Some(key(user, socket.file_name()?)));
        let names: BTreeSet<_> = names.collect();
        self.processes.retain(|name, _| names.contains(name));
        self.add(found);
        self.shorten(LEN_MAX)
    }

    fn add(&mut self, found: &[Process]) {
        for process in found {
            let stats = process.records.iter().filter_map(|record| match record {
                Record::Stats(of) => Some((of.endpoint, of.stats.clone())),
                _ => None,
            });
            let ProcessRecord { pid, uid, .. } = process.process;
            let endpoints = stats.collect();
            let name = key(uid, &process.name);
            let counted = Counted {
                pid,
                uid,
                endpoints,
            };
            self.processes.insert(name, counted);
        }
    }

    /// Removes counters of users whose counters take more of the file than others have left.
    fn shorten(&mut self, len: usize) -> Result<usize> {
        let mut memory = Memory::new(len.saturating_sub(FRAME));
        let before = self.processes.len();
        let mut kept = BTreeMap::new();
        for (name, counted) in std::mem::take(&mut self.processes) {
            let len = serde_json::to_vec(&(&name, &counted))?.len();
            if memory.take(counted.uid, len) {
                kept.insert(name, counted);
            }
        }
        self.processes = kept;
        Ok(before - self.processes.len())
    }

    /// Replaces the file.
    pub(super) fn store(&self) -> Result<()> {
        let text = serde_json::to_vec(self)?;
        in_time(move || Self::write(&text))
    }

    fn write(text: &[u8]) -> Result<()> {
        let domain = Domain::default();
        let dirs: Vec<_> = usable(&domain).collect();
        let has_file = |dir: &&PathBuf| fs::symlink_metadata(dir.join(NAME)).is_ok();
        let dir = match dirs.iter().find(has_file).or_else(|| dirs.first()) {
            Some(dir) => dir.clone(),
            None => make(&domain)?,
        };
        // A file of its own with mode 0600 takes the place of the name, whatever that is.
        let mut file = NamedTempFile::new_in(&dir)
            .with_context(|| format!("cannot write in {}", dir.display()))?;
        file.write_all(text)?;
        let path = dir.join(NAME);
        file.persist(&path)
            .with_context(|| format!("cannot replace {}", path.display()))?;
        Ok(())
    }
}

/// The name of a process in the file.
fn key(user: u32, socket: &OsStr) -> String {
    format!("{user}/{}", socket.to_string_lossy())
}

/// Runs this on a thread of the pool: another user can hold the lock of a directory for any time.
fn in_time<T: Send + 'static>(job: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let user = geteuid().as_raw();
    let (mut done, _missing) = results([(user, job)], Instant::now() + TIME);
    done.pop().unwrap_or_else(|| {
        bail!("the runtime directory does not answer within {TIME:?}: another user may hold a lock")
    })
}

/// The runtime directories that only this user can change.
fn usable(domain: &Domain) -> impl Iterator<Item = PathBuf> {
    let paths = domain.search_paths().into_iter();
    paths.filter(|path| domain.check(path).is_ok())
}

/// Makes the first directory that can be made. Root may look at processes of others, and have none.
fn make(domain: &Domain) -> Result<PathBuf> {
    let can_be_made = |path: &&PathBuf| {
        // The process can be ended while this waits for the lock, and not while `mkdir` does.
        let parent = path.parent().map(fs::read_dir);
        let _first = parent
            .and_then(Result::ok)
            .and_then(|mut names| names.next());
        mkdir(path.as_path(), Mode::S_IRWXU).is_ok()
    };
    let paths = domain.search_paths();
    match paths.iter().find(can_be_made) {
        Some(path) => Ok(path.clone()),
        None => {
            let uid = geteuid().as_raw();
            match domain.unusable_of(uid) {
                Some(error) => bail!("no runtime directory for the file: {error}"),
                None => bail!("no runtime directory for the file can be made"),
            }
        }
    }
}

const NAME: &str = "stats-baseline.json";

/// Longest file: that of some 10,000 processes.
const LEN_MAX: usize = 64 << 20;

/// What it has around processes.
const FRAME: usize = 64;

/// How long reading or writing it may take.
const TIME: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::super::tests::process;
    use super::*;

    #[test]
    fn a_user_with_long_counters_does_not_displace_those_of_others() {
        let counted = |uid, len| {
            let mut stats = Stats::default();
            stats.errors.client = 1;
            let endpoints = (0..len).map(|number| (number, stats.clone())).collect();
            Counted {
                pid: 1,
                uid,
                endpoints,
            }
        };
        let mut baseline = Baseline::default();
        for number in 0..20 {
            let name = format!("i-{number:02}-1.sock");
            baseline.processes.insert(name, counted(1, 100));
        }
        baseline
            .processes
            .insert("i-9-2.sock".to_owned(), counted(2, 1));
        let len = 200_000;
        let left_out = baseline.shorten(len).unwrap();
        assert!(baseline.processes.contains_key("i-9-2.sock"));
        assert!((1..20).contains(&left_out), "{left_out}");
        assert!(serde_json::to_vec(&baseline).unwrap().len() <= len);
        assert_eq!(baseline.shorten(len).unwrap(), 0);
    }

    #[test]
    fn a_process_of_another_user_with_a_socket_of_the_same_name_takes_no_place() {
        let with_errors = |user, count| {
            let mut stats = Stats::default();
            stats.errors.client = count;
            let stats = serde_json::json!({"record": "stats", "endpoint": 0, "stats": stats});
            Process {
                name: "i-1-0123456789abcdef.sock".into(),
                process: process(user),
                records: vec![serde_json::from_value(stats).unwrap()],
            }
        };
        let both = [with_errors(1, 5), with_errors(2, 0)];
        let mut baseline = Baseline::default();
        baseline.add(&both);
        let Record::Stats(now) = &both[0].records[0] else {
            panic!("{both:?}");
        };
        assert_eq!(baseline.since(&both[0], now).errors.client, 0);
    }

    #[test]
    fn what_does_not_end_is_an_error_in_time() {
        let (release, released) = std::sync::mpsc::channel::<()>();
        let outcome = in_time(move || Ok(released.recv()));
        let error = outcome.unwrap_err().to_string();
        assert!(error.contains("another user may hold a lock"), "{error}");
        drop(release);
    }
}
