//! What processes and their directory have of the system.

use std::fmt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use fs_err as fs;

/// What something has when it is idle.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Census(Vec<Amount>);

/// How much there is of one thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Amount {
    what: &'static str,
    count: u64,
    /// How much may be kept of a peer that was lost a moment ago: what is lost with each fault
    /// exceeds it after some epochs.
    slack: u64,
}

impl Census {
    /// Of a process of this user. Its files are those of the directory.
    pub(super) fn of_process(pid: u32, directory: &Path) -> Result<Self> {
        let count = |what: &str| -> Result<u64> {
            Ok(fs::read_dir(format!("/proc/{pid}/{what}"))?.count() as u64)
        };
        let read = |what: &str| fs::read_to_string(format!("/proc/{pid}/{what}"));
        Ok(Self(vec![
            Amount::of("descriptors", count("fd")?, SLACK),
            Amount::of("shared mappings", shared_mappings(&read("maps")?), SLACK),
            Amount::of("threads", count("task")?, SLACK),
            Amount::of(
                "KB of shared memory",
                shared_memory(&read("smaps")?, directory).context("smaps")?,
                SLACK_KB,
            ),
        ]))
    }

    /// Of a directory and all below it.
    pub(super) fn of_directory(path: &Path) -> Result<Self> {
        let (mut files, mut bytes) = (0, 0);
        let mut directories = vec![path.to_owned()];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(directory)? {
                let entry = entry?;
                // Names are removed meanwhile.
                let Ok(metadata) = entry.metadata() else {
                    continue;
                };
                files += 1;
                match metadata.is_dir() {
                    true => directories.push(entry.path()),
                    false => bytes += metadata.len(),
                }
            }
        }
        Ok(Self(vec![
            Amount::of("files", files, SLACK),
            Amount::of("KB in files", bytes / 1024, SLACK_KB),
        ]))
    }

    /// The most of each of both.
    fn max(&self, other: &Self) -> Self {
        let mut most = self.clone();
        for amount in &other.0 {
            match most.0.iter_mut().find(|most| most.what == amount.what) {
                Some(most) => most.count = most.count.max(amount.count),
                None => most.0.push(*amount),
            }
        }
        most
    }

    /// Whether it is hardly more of anything.
    fn is_within(&self, most: &Self) -> bool {
        self.0.iter().all(|amount| {
            let most = most.0.iter().find(|most| most.what == amount.what);
            most.is_some_and(|most| amount.count <= most.count + most.slack)
        })
    }
}

impl Amount {
    fn of(what: &'static str, count: u64, slack: u64) -> Self {
        Self { what, count, slack }
    }
}

impl fmt::Display for Census {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Amount { what, count, .. }) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{count} {what}")?;
        }
        Ok(())
    }
}

/// Mappings of memory that is shared with other processes.
fn shared_mappings(maps: &str) -> u64 {
    // "ADDRESSES rw-s OFFSET ..."
    let permissions = maps.lines().filter_map(|line| line.split(' ').nth(1));
    permissions.filter(|is| is.ends_with('s')).count() as u64
}

/// KB of shared mappings, each page divided by the processes that have it mapped, without files of
/// a directory.
fn shared_memory(smaps: &str, directory: &Path) -> Result<u64> {
    let directory = directory.to_string_lossy();
    let (mut sum, mut is_counted) = (0, false);
    for line in smaps.lines() {
        // "Pss:    64 kB" of a mapping, whose first line is as in `maps`
        let (first, rest) = line.split_once(' ').unwrap_or((line, ""));
        if !first.ends_with(':') {
            let is_shared = shared_mappings(line) == 1;
            is_counted = is_shared && !rest.contains(&*directory);
        } else if first == "Pss:" && is_counted {
            let count = rest.trim().strip_suffix(" kB").context("not in kB")?;
            sum += count.parse::<u64>()?;
        }
    }
    Ok(sum)
}

/// What something had at first, when it was idle.
#[derive(Clone, Debug, Default)]
pub(super) struct Baseline {
    most: Census,
    taken: u32,
}

impl Baseline {
    /// Takes a census until it has hardly more than after the first epochs, for as long as threads
    /// and what closes later may last. Returns the last one, and whether it is accepted.
    pub(super) fn check(&mut self, take: impl Fn() -> Result<Census>) -> Result<(Census, bool)> {
        let until = Instant::now() + SETTLING;
        loop {
            let census = take()?;
            let is_accepted = self.accepts(&census);
            if is_accepted {
                self.add(&census);
            }
            if is_accepted || Instant::now() > until {
                return Ok((census, is_accepted));
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Whether it has hardly more than after the first epochs, in which runtimes start their
    /// threads.
    fn accepts(&self, census: &Census) -> bool {
        self.taken < EPOCHS || census.is_within(&self.most)
    }

    fn add(&mut self, census: &Census) {
        if self.taken < EPOCHS {
            self.most = self.most.max(census);
            self.taken += 1;
        }
    }

    pub(super) fn most(&self) -> &Census {
        &self.most
    }
}

/// Of descriptors, mappings, threads and files.
const SLACK: u64 = 8;

/// Of memory: less than what a tenth of the kills of an hour would leave.
const SLACK_KB: u64 = 8 << 10;

/// After which a process has all threads that it needs.
const EPOCHS: u32 = 3;

/// How long threads of runtimes and closing threads may last that have nothing more to do.
const SETTLING: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_process_has_what_it_has() {
        let census = Census::of_process(std::process::id(), Path::new("/dev/shm/none")).unwrap();
        let count = |what| {
            census
                .0
                .iter()
                .find(|amount| amount.what == what)
                .unwrap()
                .count
        };
        assert!(
            count("descriptors") >= 3 && count("threads") >= 1,
            "{census}"
        );
    }

    #[test]
    fn mappings_and_memory_of_others_are_not_counted() {
        let maps = "\
7f00-7f01 r-xp 00000000 00:01 5 /usr/lib/libc.so.6
7f01-7f02 rw-s 00000000 00:01 6 /memfd:smc (deleted)
7f02-7f03 r--s 00000000 00:01 7 /dev/shm/x/ism
";
        assert_eq!(shared_mappings(maps), 2);
        let smaps = "\
7f00-7f01 r-xp 00000000 00:01 5      /usr/lib/libc.so.6
Pss:                 314 kB
7f01-7f02 rw-s 00000000 00:01 6      /memfd:smc (deleted)
Size:                100 kB
Pss:                  64 kB
VmFlags: rd wr
7f02-7f03 rw-s 00000000 00:01 7      /dev/shm/x/ism
Pss:                  32 kB
";
        assert_eq!(shared_memory(smaps, Path::new("/dev/shm/x")).unwrap(), 64);
        assert_eq!(shared_memory(smaps, Path::new("/dev/shm/y")).unwrap(), 96);
    }

    #[test]
    fn files_of_a_directory_are_counted_with_those_below() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("below")).unwrap();
        fs::write(dir.path().join("below/file"), [0; 5000]).unwrap();
        let census = Census::of_directory(dir.path()).unwrap();
        assert_eq!(census.to_string(), "2 files, 4 KB in files");
    }

    #[test]
    fn growth_after_the_first_epochs_is_not_accepted() {
        let census = |descriptors, memory| {
            Census(vec![
                Amount::of("descriptors", descriptors, SLACK),
                Amount::of("KB of shared memory", memory, SLACK_KB),
            ])
        };
        let mut baseline = Baseline::default();
        for descriptors in [10, 12, 11] {
            assert!(baseline.accepts(&census(descriptors, 500)));
            baseline.add(&census(descriptors, 500));
        }
        assert!(baseline.accepts(&census(12 + SLACK, 500)));
        assert!(!baseline.accepts(&census(13 + SLACK, 500)));
        assert!(baseline.accepts(&census(1, 500 + SLACK_KB)));
        assert!(!baseline.accepts(&census(1, 501 + SLACK_KB)));
        assert_eq!(baseline.most(), &census(12, 500));
    }
}
