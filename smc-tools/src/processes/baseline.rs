//! What `smc stats` subtracts: the counters as they were at `smc stats reset`. The processes keep
//! theirs.
//!
//! They are in a file of the runtime directory, as numbers of processes mean nothing after a boot.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read as _, Write as _};
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use fs_err as fs;
use fs_err::os::unix::fs::OpenOptionsExt as _;
use nix::libc::O_NOFOLLOW;
use nix::sys::stat::Mode;
use nix::unistd::mkdir;
use serde::{Deserialize, Serialize};
use smc::Domain;
use smc::info::Stats;
use smc::record::{ProcessRecord, Record, StatsRecord};
use tempfile::NamedTempFile;

use super::Process;

/// Counters to subtract, by the name of the process's socket, which no other process has.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Baseline {
    processes: BTreeMap<String, Counted>,
}

/// The counters of a process.
#[derive(Debug, Serialize, Deserialize)]
struct Counted {
    pid: u32,
    endpoints: Vec<StatsRecord>,
}

impl Baseline {
    /// Reads the file; nothing if there is none.
    pub(super) fn load() -> Result<Self> {
        let domain = Domain::default();
        for dir in usable(&domain) {
            let path = dir.join(NAME);
            let mut options = fs::OpenOptions::new();
            let file = match options.read(true).custom_flags(O_NOFOLLOW).open(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                opened => opened?,
            };
            let mut text = Vec::new();
            file.take(LEN_MAX).read_to_end(&mut text)?;
            let read = serde_json::from_slice(&text);
            return read.with_context(|| format!("{} is not valid", path.display()));
        }
        Ok(Self::default())
    }

    /// What an endpoint has counted since.
    pub(super) fn since(&self, process: &Process, now: &StatsRecord) -> Stats {
        let earlier = self.processes.get(&*process.name.to_string_lossy());
        let earlier = earlier.filter(|earlier| earlier.pid == process.process.pid);
        let mut earlier = earlier.into_iter().flat_map(|earlier| &earlier.endpoints);
        let earlier = earlier.find(|earlier| earlier.endpoint == now.endpoint);
        earlier.map_or_else(
            || now.stats.clone(),
            |earlier| now.stats.since(&earlier.stats),
        )
    }

    /// Takes the counters of these processes, and removes those of processes that have ended.
    pub(super) fn reset(&mut self, found: &[Process]) {
        let sockets = super::sockets();
        let names = sockets.iter().filter_map(|socket| socket.file_name());
        let names: BTreeSet<_> = names.map(|name| name.to_string_lossy()).collect();
        let is_there = |name: &String| names.contains(&**name);
        self.processes.retain(|name, _| is_there(name));
        for process in found {
            let stats = process.records.iter().filter_map(|record| match record {
                Record::Stats(stats) => Some(stats.clone()),
                _ => None,
            });
            let ProcessRecord { pid, .. } = process.process;
            let endpoints = stats.collect();
            let name = process.name.to_string_lossy().into_owned();
            self.processes.insert(name, Counted { pid, endpoints });
        }
    }

    /// Replaces the file.
    pub(super) fn store(&self) -> Result<()> {
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
        file.write_all(&serde_json::to_vec(self)?)?;
        let path = dir.join(NAME);
        file.persist(&path)
            .with_context(|| format!("cannot replace {}", path.display()))?;
        Ok(())
    }
}

/// The runtime directories that only this user can change.
fn usable(domain: &Domain) -> impl Iterator<Item = PathBuf> {
    let paths = domain.search_paths().into_iter();
    paths.filter(|path| domain.check(path).is_ok())
}

/// Makes the first directory that can be made. Root may look at processes of others, and have none.
fn make(domain: &Domain) -> Result<PathBuf> {
    let can_be_made = |path: &&PathBuf| mkdir(path.as_path(), Mode::S_IRWXU).is_ok();
    let paths = domain.search_paths();
    match paths.iter().find(can_be_made) {
        Some(path) => Ok(path.clone()),
        None => {
            let uid = nix::unistd::geteuid().as_raw();
            match domain.unusable_of(uid) {
                Some(error) => bail!("no runtime directory for the file: {error}"),
                None => bail!("no runtime directory for the file can be made"),
            }
        }
    }
}

const NAME: &str = "stats-baseline.json";
/// Longest file: that of some 10,000 processes.
const LEN_MAX: u64 = 64 << 20;
