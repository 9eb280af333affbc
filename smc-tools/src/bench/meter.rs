//! What measurements take: CPU time, memory, descriptors, CPUs.

use std::time::Duration;

use anyhow::{Context as _, Result};
use fs_err as fs;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::time::{ClockId, clock_getcpuclockid};
use nix::unistd::Pid;

/// Looks at what this process and the one at the other end have used up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Meter {
    /// The other process with its clock, if it is one of this machine.
    peer: Option<(u32, ClockId)>,
}

impl Meter {
    /// `peer` is the number of the other process, unless that is in another machine.
    pub(super) fn new(peer: Option<u32>) -> Result<Self> {
        let Some(peer) = peer else {
            return Ok(Self { peer: None });
        };
        let pid = Pid::from_raw(i32::try_from(peer)?);
        let clock = clock_getcpuclockid(pid).context("cannot see the CPU time of the server")?;
        Ok(Self {
            peer: Some((peer, clock)),
        })
    }

    /// Whether both processes can be seen.
    pub(super) fn sees_both(&self) -> bool {
        self.peer.is_some()
    }

    /// CPU time of both processes since they started, or of this one if only it can be seen.
    pub(super) fn cpu(&self) -> Result<Duration> {
        let own = Duration::from(ClockId::CLOCK_PROCESS_CPUTIME_ID.now()?);
        let peer = match self.peer {
            Some((_, clock)) => clock.now()?.into(),
            None => Duration::ZERO,
        };
        Ok(own + peer)
    }

    /// User memory of both processes in bytes; what they share counts once.
    pub(super) fn memory(&self) -> Result<u64> {
        let (peer, _) = self.peer.context("the server is in another machine")?;
        Ok(proportional_set("self")? + proportional_set(&peer.to_string())?)
    }

    /// Memory of the kernel's slabs in bytes: sockets and all the rest, of all processes.
    pub(super) fn kernel_memory() -> Result<u64> {
        let text = fs::read_to_string("/proc/meminfo")?;
        kibibytes(&text, "Slab:").context("no Slab in /proc/meminfo")
    }
}

/// Raises the limit of descriptors, and returns it.
pub(super) fn raise_descriptors() -> Result<usize> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft < hard {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    }
    Ok(usize::try_from(hard).unwrap_or(usize::MAX))
}

/// Has this thread, and those that it starts, run on one CPU.
pub(super) fn pin(cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu).with_context(|| format!("no CPU {cpu}"))?;
    sched_setaffinity(Pid::from_raw(0), &set).with_context(|| format!("cannot run on CPU {cpu}"))
}

fn proportional_set(process: &str) -> Result<u64> {
    let path = format!("/proc/{process}/smaps_rollup");
    let text = fs::read_to_string(&path)?;
    kibibytes(&text, "Pss:").with_context(|| format!("no Pss in {path}"))
}

/// The bytes in a line such as `Pss:   12 kB`.
fn kibibytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let number = line.trim().strip_suffix("kB")?.trim();
    number.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel_are_in_kibibytes() {
        let text = "Rss:  1 kB\nPss:        12 kB\nPss_Anon: 3 kB\n";
        assert_eq!(kibibytes(text, "Pss:"), Some(12 * 1024));
        assert_eq!(kibibytes(text, "Slab:"), None);
        assert_eq!(kibibytes("Pss: x kB", "Pss:"), None);
    }

    #[test]
    fn this_process_uses_something() {
        let meter = Meter::new(Some(std::process::id())).unwrap();
        assert!(meter.cpu().unwrap() > Duration::ZERO);
        assert!(meter.memory().unwrap() > 0);
    }
}
