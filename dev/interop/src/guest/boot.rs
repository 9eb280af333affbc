//! From the start of the first process to a system with its modules loaded.

use std::ffi::CStr;
use std::io;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use fs_err::{self as fs, File};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount};
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::system::{RebootCommand, finit_module, reboot};

/// Mounts what programs expect and loads the modules of the image in their order.
pub(crate) fn boot() -> Result<()> {
    for (kind, at) in MOUNTS {
        fs::create_dir_all(at)?;
        mount(*kind, *at, *kind, MountFlags::empty(), None)
            .with_context(|| format!("cannot mount {at}"))?;
    }
    let modules = fs::read_to_string(MODULES)?;
    for module in modules.lines() {
        load(Path::new(module)).with_context(|| format!("cannot load {module}"))?;
    }
    // Processes inherit it. What a client may have is a share of it.
    let limit = Rlimit {
        current: Some(DESCRIPTORS),
        maximum: Some(DESCRIPTORS),
    };
    setrlimit(Resource::Nofile, limit).context("cannot raise the limit of descriptors")
}

/// Switches the machine off.
pub(crate) fn power_off() -> ! {
    loop {
        let _ = reboot(RebootCommand::PowerOff);
        thread::sleep(Duration::from_secs(1));
    }
}

fn load(module: &Path) -> io::Result<()> {
    match finit_module(File::open(module)?, c"", 0) {
        // A module that found no hardware of its own, such as a fast variant of an algorithm, is
        // not missed; one that is there already is fine.
        Ok(()) | Err(Errno::EXIST | Errno::NODEV) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Descriptors of a process, as services have them.
const DESCRIPTORS: u64 = 65_536;

/// Kind and place of the file systems.
const MOUNTS: &[(&CStr, &str)] = &[
    (c"proc", "/proc"),
    (c"sysfs", "/sys"),
    (c"devtmpfs", "/dev"),
    (c"tmpfs", "/tmp"),
    (c"tmpfs", "/run"),
    (c"cgroup2", "/sys/fs/cgroup"),
    (c"bpf", "/sys/fs/bpf"),
    (c"tracefs", "/sys/kernel/tracing"),
];

/// Paths of modules, one a line, in the order in which they need each other.
pub(crate) const MODULES: &str = "/modules.list";
