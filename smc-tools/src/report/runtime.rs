//! Runtime directories, and what processes have of limits and environment.

use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use fs_err as fs;
use smc::Domain;

use crate::processes::printable;

/// Owners, modes and names in the directories where sockets are. No link is followed.
pub(super) fn directories(found: Vec<PathBuf>) -> Result<String> {
    let domain = Domain::default();
    let mut text = String::new();
    let uid = nix::unistd::geteuid().as_raw();
    if let Some(error) = domain.unusable_of(uid) {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "user {uid} has none that can be used: {error}");
    }
    let mut dirs = domain.search_paths();
    dirs.extend(found);
    dirs.sort_unstable();
    dirs.dedup();
    for dir in &dirs {
        entry(&mut text, dir);
        let Ok(entries) = fs::read_dir(dir) else {
            continue;
        };
        let entries = entries.flatten().take(ENTRIES_MAX);
        let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
        paths.sort_unstable();
        paths.iter().for_each(|path| entry(&mut text, path));
    }
    Ok(text)
}

fn entry(text: &mut String, path: &Path) {
    let name = printable(&path.to_string_lossy());
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
        Err(error) => writeln!(text, "missing   {}", printable(&error.to_string())),
    };
}

/// What names the runtime directory in the environment of this process and of those that use the
/// library, and nothing else of it.
pub(super) fn environment(pids: &[u32]) -> Result<String> {
    let mut text = of_each(pids, "environ", |bytes| {
        let all = bytes.split(|byte| *byte == 0);
        let ours = all.filter(|entry| is_ours(entry));
        let ours = ours.map(|entry| printable(&String::from_utf8_lossy(entry)));
        ours.collect::<Vec<_>>().join("\n")
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
pub(super) fn limits(pids: &[u32]) -> Result<String> {
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

/// A file of each process, or why it cannot be read.
fn of_each(pids: &[u32], file: &str, shown: impl Fn(&[u8]) -> String) -> String {
    let mut text = String::new();
    for pid in pids {
        let found = match fs::read(format!("/proc/{pid}/{file}")) {
            Ok(bytes) => shown(&bytes),
            Err(error) => error.to_string(),
        };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "process {pid}:\n{found}");
    }
    text
}

/// Names of a directory that are listed.
const ENTRIES_MAX: usize = 4096;
