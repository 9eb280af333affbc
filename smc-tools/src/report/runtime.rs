//! Runtime directories, and what processes have of limits and environment.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Read as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use fs_err as fs;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::{Mode, fstat};
use nix::unistd::geteuid;
use smc::{Domain, introspection};

use crate::processes::{Memory, printable, results};

/// Owners, modes and names in the directories where sockets are. No link is followed but that which
/// `$SMC_RUNTIME_DIR` is, and no directory listed that belongs to another user than it should.
pub(super) fn directories() -> Result<String> {
    let until = Instant::now() + TIME;
    let own = geteuid().as_raw();
    let of_own = move || {
        let domain = Domain::default();
        (domain.search_paths(), domain.unusable_of(own))
    };
    let (of_own, missing) = results([(own, of_own)], until);
    let mut text = String::new();
    let mut dirs = BTreeMap::new();
    for (paths, unusable) in of_own {
        if let Some(error) = unusable {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "user {own} has none that can be used: {error}");
        }
        dirs.extend(paths.into_iter().map(|path| (path, own)));
    }
    dirs.extend(
        introspection::directories()
            .found
            .into_iter()
            .map(|dir| (dir.path, dir.owner)),
    );
    let jobs = dirs.into_iter().map(|(path, owner)| {
        let job = move || (listing(&path, owner), path);
        (owner, job)
    });
    let (mut listings, unread) = results(jobs, until);
    listings.sort_unstable_by(|one, other| one.1.cmp(&other.1));
    listings
        .iter()
        .for_each(|(listing, _)| text.push_str(listing));
    match missing + unread {
        0 => {}
        // Writing to a string cannot fail.
        count => drop(writeln!(
            text,
            "{count} more could not be read within {TIME:?}"
        )),
    }
    Ok(text)
}

/// A directory, and what is in it if it is of this user. Blocks as long as a user has it block.
fn listing(dir: &Path, owner: u32) -> String {
    let mut text = String::new();
    entry(&mut text, dir, dir);
    let is_configured = std::env::var_os("SMC_RUNTIME_DIR").is_some_and(|it| *it == *dir);
    let mut flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    if !is_configured {
        flags |= OFlag::O_NOFOLLOW;
    }
    let Ok(fd) = open(dir, flags, Mode::empty()) else {
        return text;
    };
    // Of the directory that is read, whatever has its name by now.
    let opened = PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    if fstat(&fd).map_or(true, |found| found.st_uid != owner) {
        text.push_str("          not listed: it is not of this user\n");
        return text;
    }
    let entries = fs::read_dir(&opened).into_iter().flatten();
    let names = entries.flatten().map(|entry| entry.file_name());
    let mut names: Vec<_> = names.take(ENTRIES_MAX).collect();
    names.sort_unstable();
    for name in names {
        entry(&mut text, &opened.join(&name), &dir.join(&name));
    }
    text
}

/// Adds what is at a path, with the name that is shown for it.
fn entry(text: &mut String, path: &Path, name: &Path) {
    let name = printable(&name.to_string_lossy());
    // Writing to a string cannot fail.
    let _ = match fs::symlink_metadata(path) {
        Ok(found) => {
            let (mode, uid, gid, len) =
                (found.mode() & 0o7777, found.uid(), found.gid(), found.len());
            let kind = found.file_type();
            let kind = match () {
                () if kind.is_dir() => "directory",
                () if kind.is_socket() => "socket",
                () if kind.is_symlink() => "link",
                () if kind.is_file() => "file",
                () => "other",
            };
            writeln!(text, "{kind:<9} {mode:04o} {uid}:{gid} {len:>8} {name}")
        }
        Err(error) => writeln!(text, "missing   {name}: {}", error.kind()),
    };
}

/// What names the runtime directory in the environment of this process and of those that use the
/// library, and nothing else of it.
pub(super) fn environment(pids: &BTreeMap<u32, u32>) -> Result<String> {
    let mut text = of_each(pids, "environ", |bytes| {
        let all = bytes.split(|byte| *byte == 0);
        let ours = all.filter(|entry| is_ours(entry));
        let ours = ours.map(|entry| printable(&String::from_utf8_lossy(entry)));
        cut(ours.collect::<Vec<_>>().join("\n"))
    });
    for (name, value) in std::env::vars_os() {
        let entry = [name.as_bytes(), b"=", value.as_bytes()].concat();
        if is_ours(&entry) {
            let entry = printable(&String::from_utf8_lossy(&entry));
            // Writing to a string cannot fail.
            let _ = writeln!(text, "this command: {entry}");
        }
    }
    match text.is_empty() {
        true => Err(anyhow!("neither SMC_* nor XDG_RUNTIME_DIR is set")),
        false => Ok(text),
    }
}

fn is_ours(entry: &[u8]) -> bool {
    entry.starts_with(b"SMC_") || entry.starts_with(b"XDG_RUNTIME_DIR=")
}

/// The limits of the processes that use the library.
pub(super) fn limits(pids: &BTreeMap<u32, u32>) -> Result<String> {
    match pids.is_empty() {
        true => Err(anyhow!("there is no process")),
        false => Ok(of_each(pids, "limits", |bytes| {
            printable_lines(&String::from_utf8_lossy(bytes))
        })),
    }
}

fn printable_lines(text: &str) -> String {
    let lines: Vec<_> = text.lines().map(printable).collect();
    lines.join("\n")
}

/// A file of each process, or why it cannot be read. The process determines how long its
/// environment is, and how long it takes to read it.
fn of_each(
    pids: &BTreeMap<u32, u32>,
    file: &'static str,
    shown: impl Fn(&[u8]) -> String + Copy + Send + 'static,
) -> String {
    let jobs = pids.iter().map(|(&pid, &user)| {
        let job = move || {
            let found = read_start(&format!("/proc/{pid}/{file}"));
            let found = found.map(|(bytes, is_cut)| (shown(&bytes), is_cut));
            let mut text = match found {
                Ok((text, false)) => text,
                Ok((text, true)) => format!("{text}\n(cut: it is longer than {FILE_MAX} bytes)"),
                Err(error) => error.to_string(),
            };
            text.push('\n');
            (pid, user, text)
        };
        (user, job)
    });
    let (mut found, missing) = results(jobs, Instant::now() + TIME);
    found.sort_unstable();
    let (mut text, mut left_out) = (String::new(), 0_usize);
    let mut memory = Memory::new(TEXT_MAX);
    for (pid, user, found) in found {
        match memory.take(user, found.len()) {
            // Writing to a string cannot fail.
            true => drop(write!(text, "process {pid}:\n{found}")),
            false => left_out += 1,
        }
    }
    if missing + left_out > 0 {
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "left out: {missing} processes that could not be read within {TIME:?}, {left_out} whose \
             users have too many or too long ones"
        );
    }
    text
}

/// The begin of a file, and whether there is more.
fn read_start(path: &str) -> io::Result<(Vec<u8>, bool)> {
    let mut bytes = Vec::new();
    let file = fs::File::open(path)?;
    file.take(FILE_MAX + 1).read_to_end(&mut bytes)?;
    let is_cut = bytes.len() as u64 > FILE_MAX;
    bytes.truncate(FILE_MAX as usize);
    Ok((bytes, is_cut))
}

/// What is shown of an environment.
fn cut(mut text: String) -> String {
    let end = (0..=SHOWN_MAX).rev().find(|at| text.is_char_boundary(*at));
    if text.len() > SHOWN_MAX {
        text.truncate(end.unwrap_or_default());
        text.push_str("\n(cut)");
    }
    text
}

/// Names of a directory that are listed.
const ENTRIES_MAX: usize = 4096;

/// How long reading the directories, or a file of all processes, may take.
const TIME: Duration = Duration::from_secs(5);

/// Bytes that are read of a file of a process: what the system permits for one string of its
/// environment, which has all of ours in nearly all cases.
const FILE_MAX: u64 = 128 * 1024;

/// Bytes that are shown of a process, and of all.
const SHOWN_MAX: usize = 4096;
const TEXT_MAX: usize = 4 << 20;
