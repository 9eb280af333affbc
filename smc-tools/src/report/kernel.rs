//! What the kernel states: settings, limits, cgroups, modules, capabilities and its log.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::{self, Read as _};

use anyhow::{Result, anyhow};
use fs_err::os::unix::fs::OpenOptionsExt as _;
use fs_err::{OpenOptions, read_dir, read_to_string};
use nix::libc::O_NONBLOCK;
use smc_ipc::cgroup::{Hierarchy, Mount};

use crate::processes::printable;

/// All parts, by name.
pub(super) fn parts() -> [(&'static str, Result<String>); 6] {
    [
        ("kernel/limits.txt", limits()),
        ("kernel/sysctl.txt", Ok(settings())),
        ("kernel/cgroup.txt", cgroup()),
        ("kernel/modules.txt", modules()),
        ("kernel/capabilities.txt", capabilities()),
        ("kernel/log.txt", log()),
    ]
}

/// The limits of this command.
fn limits() -> Result<String> {
    Ok(read_to_string("/proc/self/limits")?)
}

/// Settings that matter: a line for each, with the reason where it cannot be read.
fn settings() -> String {
    let mut text = String::new();
    for name in SETTINGS {
        add_setting(&mut text, name);
    }
    match read_dir("/proc/sys/net/smc") {
        Ok(found) => {
            let found = found.flatten().take(SETTINGS_MAX);
            let mut found: Vec<_> = found.map(|entry| entry.file_name()).collect();
            found.sort_unstable();
            for name in found {
                add_setting(&mut text, &format!("net/smc/{}", name.to_string_lossy()));
            }
        }
        // Writing to a string cannot fail.
        Err(error) => drop(writeln!(text, "net.smc: {error}")),
    }
    text
}

fn add_setting(text: &mut String, name: &str) {
    // Writing to a string cannot fail.
    let _ = match read_to_string(format!("/proc/sys/{name}")) {
        Ok(value) => writeln!(text, "{} = {}", name.replace('/', "."), value.trim()),
        Err(error) => writeln!(text, "{}: {error}", name.replace('/', ".")),
    };
}

/// The cgroups of this process up to the root, with their limits.
fn cgroup() -> Result<String> {
    let (mounts, own) = (
        read_to_string("/proc/self/mountinfo")?,
        read_to_string("/proc/self/cgroup")?,
    );
    let mut text = own.clone();
    for hierarchy in [Hierarchy::V2, Hierarchy::V1Memory] {
        let Some(mount) = Mount::find(&mounts, hierarchy) else {
            continue;
        };
        let path = hierarchy.own(&own).and_then(|own| mount.path_of(own));
        let path = path.unwrap_or_else(|| mount.at.clone());
        for cgroup in path.ancestors().take_while(|it| it.starts_with(&mount.at)) {
            for file in CGROUP_FILES {
                // A file that is not there is one of another version, or of the root.
                if let Ok(value) = read_to_string(cgroup.join(file)) {
                    let value = value.trim().replace('\n', ", ");
                    let _ = writeln!(text, "{} = {value}", cgroup.join(file).display());
                }
            }
        }
    }
    Ok(text)
}

/// The modules for SMC, RDMA and shared memory.
fn modules() -> Result<String> {
    let all = read_to_string("/proc/modules")?;
    let is_ours = |line: &&str| MODULES.iter().any(|name| line.starts_with(name));
    let found: Vec<_> = all.lines().filter(is_ours).collect();
    match found.is_empty() {
        true => Err(anyhow!(
            "none of SMC or RDMA is loaded; what is built into the kernel is not listed"
        )),
        false => Ok(found.join("\n") + "\n"),
    }
}

fn capabilities() -> Result<String> {
    let status = read_to_string("/proc/self/status")?;
    let is_ours = |line: &&str| STATUS.iter().any(|name| line.starts_with(name));
    let mut text: String = status
        .lines()
        .filter(is_ours)
        .fold(String::new(), |text, it| text + it + "\n");
    for name in ["user", "net", "pid", "mnt"] {
        // Writing to a string cannot fail.
        let _ = match fs_err::read_link(format!("/proc/self/ns/{name}")) {
            Ok(link) => writeln!(text, "{}", link.display()),
            Err(error) => writeln!(text, "{error}"),
        };
    }
    Ok(text)
}

/// The last lines of the kernel's log about SMC, RDMA and a lack of memory.
fn log() -> Result<String> {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(O_NONBLOCK);
    let mut file = options.open("/dev/kmsg")?;
    let (mut lines, mut seen) = (VecDeque::new(), 0_usize);
    // Longer than a record can be.
    let mut record = vec![0; 8 << 10];
    while seen < LOG_RECORDS_MAX {
        let len = match file.read(&mut record) {
            Ok(0) => break,
            Ok(len) => len,
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => break,
                // The record was overwritten; the next one is read next.
                io::ErrorKind::BrokenPipe | io::ErrorKind::Interrupted => 0,
                _ => return Err(error.into()),
            },
        };
        seen += 1;
        let text = String::from_utf8_lossy(record.get(..len).unwrap_or_default());
        // The first line, after what it is headed by; then come dictionaries.
        let line = text.lines().next().unwrap_or_default();
        let (head, line) = line.split_once(';').unwrap_or(("", line));
        if is_ours(line) {
            let micros = head.split(',').nth(2).and_then(|it| it.parse().ok());
            let seconds = micros.unwrap_or(0_u64) / 1_000_000;
            lines.push_back(format!("[{seconds}] {}", printable(line)));
            if lines.len() > LOG_LINES {
                lines.pop_front();
            }
        }
    }
    match lines.is_empty() {
        true => Err(anyhow!(
            "none of the {seen} messages in the log of the kernel is about SMC, RDMA or memory"
        )),
        false => Ok(Vec::from(lines).join("\n") + "\n"),
    }
}

/// Whether a line of the log is about SMC, RDMA or a lack of memory. The command line of the kernel
/// is none of them.
fn is_ours(line: &str) -> bool {
    let line = line.to_lowercase();
    let mut words = line.split(|char: char| !char.is_ascii_alphanumeric());
    let is_named = words.any(|word| LOG_WORDS.iter().any(|begin| word.starts_with(begin)));
    (is_named || line.contains("out of memory")) && !line.contains("command line:")
}

const SETTINGS: &[&str] = &[
    "fs/file-max",
    "fs/file-nr",
    "fs/nr_open",
    "fs/pipe-user-pages-soft",
    "kernel/dmesg_restrict",
    "kernel/pid_max",
    "kernel/threads-max",
    "kernel/unprivileged_bpf_disabled",
    "kernel/yama/ptrace_scope",
    "net/core/optmem_max",
    "net/core/rmem_max",
    "net/core/somaxconn",
    "net/core/wmem_max",
    "net/ipv4/ip_local_port_range",
    "net/ipv4/tcp_rmem",
    "net/ipv4/tcp_wmem",
    "net/unix/max_dgram_qlen",
    "user/max_net_namespaces",
    "user/max_user_namespaces",
    "vm/max_map_count",
    "vm/nr_hugepages",
    "vm/overcommit_memory",
    "vm/overcommit_ratio",
];
const SETTINGS_MAX: usize = 64;
const CGROUP_FILES: &[&str] = &[
    "memory.max",
    "memory.high",
    "memory.current",
    "memory.events",
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    "pids.max",
    "pids.current",
    "cpu.max",
];
/// How names of modules begin.
const MODULES: &[&str] = &[
    "smc", "ism", "ib_", "rdma", "mlx", "irdma", "bnxt_re", "siw", "rxe", "ivshmem", "uio",
];
/// How lines of `/proc/self/status` begin.
const STATUS: &[&str] = &["Cap", "NoNewPrivs", "Seccomp", "Uid", "Gid", "Groups"];
/// How words begin in lines of the log that are about this, in lower case.
const LOG_WORDS: &[&str] = &[
    "smc",
    "ism",
    "rdma",
    "infiniband",
    "mlx",
    "rxe",
    "roce",
    "siw",
    "oom",
];
/// Lines of the log in the archive.
const LOG_LINES: usize = 500;
/// Messages of the log that are read: more than its buffer has.
const LOG_RECORDS_MAX: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_log_are_chosen_by_words() {
        for ours in [
            "smc: adding ib device mlx5_0 with port count 1",
            "ism 0001:00:00.0: enabled",
            "Out of memory: Killed process 7 (server)",
            "infiniband rxe0: port is up",
        ] {
            assert!(is_ours(ours), "{ours}");
        }
        for other in [
            "smpboot: Total of 2 processors activated",
            "Kernel command line: smc.secret=1",
            "a mechanism of prisms",
        ] {
            assert!(!is_ours(other), "{other}");
        }
    }
}
