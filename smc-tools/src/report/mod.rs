//! `smc report`: what a bug report needs of this machine and of its processes, in one archive.

mod archive;
mod kernel;
mod runtime;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, anyhow};
use nix::sys::utsname::uname;
use nix::unistd::{getegid, geteuid, getgroups};
use smc::introspection::VERSION;

use self::archive::Archive;
use crate::devices;
use crate::output::{Usage, print};
use crate::processes::{Snapshot, snapshot};

/// Arguments of `smc report`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The archive has no data of applications, no command lines, and of the environment only SMC_* and \
XDG_RUNTIME_DIR. It has addresses of peers, names of programs and interfaces, and numbers of processes and \
users. Without root it has what this user may see; the file `contents.txt` in it names each part, and \
why it is not there.

The file is made for this user alone (mode 0600). One that exists, as a link too, is an error.")]
pub(crate) struct Args {
    /// The file to make; in the working directory and with the time in its name unless set
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<bool> {
    if args.output.as_deref() == Some(Path::new("-")) {
        let text = "the archive goes to a file, not to standard output; `./-` is a file";
        return Err(Usage::new(text).into());
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.context("the clock is before 1970")?.as_secs();
    let name = format!("smc-report-{now}");
    let path = args.output.clone();
    let path = path.unwrap_or_else(|| format!("{name}.tar.gz").into());
    let mut archive = Archive::create(&path, name, now)?;
    match fill(&mut archive).and_then(|()| archive.finish()) {
        Ok(contents) => {
            print(&contents)?;
            let len = fs_err::metadata(&path)?.len();
            print(&format!("{}: {len} bytes\n", path.display()))?;
            Ok(true)
        }
        Err(error) => {
            // What was made by this command, and is not complete.
            let _left = fs_err::remove_file(&path);
            Err(error.context("the archive is not complete"))
        }
    }
}

/// Adds all parts.
fn fill(archive: &mut Archive) -> Result<()> {
    archive.add("versions.txt", versions())?;
    archive.add("devices.json", Ok(devices::json()))?;
    for (name, part) in kernel::parts() {
        archive.add(name, part)?;
    }
    let Snapshot {
        files,
        silent,
        pids,
    } = snapshot()?;
    for (name, lines) in files {
        let part = match lines.is_empty() {
            true => Err(anyhow!("there is none")),
            false => Ok(lines),
        };
        archive.add(name, part)?;
    }
    if !silent.is_empty() {
        archive.add("processes/silent.txt", Ok(silent.join("\n") + "\n"))?;
    }
    archive.add("runtime/directories.txt", runtime::directories())?;
    archive.add("runtime/environment.txt", runtime::environment(&pids))?;
    archive.add("runtime/limits.txt", runtime::limits(&pids))?;
    let logs =
        "the library logs by the subscriber (feature `tracing`) of each program: see its log";
    archive.add("library.log", Err(anyhow!(logs)))
}

fn versions() -> Result<String> {
    let kernel = uname()?;
    let [name, release, version, machine] = [
        kernel.sysname(),
        kernel.release(),
        kernel.version(),
        kernel.machine(),
    ]
    .map(|text| text.to_string_lossy());
    let features = [
        ("rdma", cfg!(feature = "rdma")),
        ("syn-option", cfg!(feature = "syn-option")),
    ];
    let features = features.iter().filter(|(_, is_on)| *is_on);
    let features: Vec<_> = features.map(|(name, _)| *name).collect();
    let groups: Vec<_> = getgroups()?.iter().map(ToString::to_string).collect();
    let mut text = format!(
        "smc {}, features {}, format {VERSION} of introspection\n{name} {release} {version} {machine}\n\
         user {}, group {}, supplementary groups {}\n",
        env!("CARGO_PKG_VERSION"),
        features.join(", "),
        geteuid(),
        getegid(),
        groups.join(", "),
    );
    match fs_err::read_to_string("/etc/os-release") {
        Ok(system) => {
            let name = system.lines().find(|line| line.starts_with("PRETTY_NAME="));
            let _ = writeln!(text, "{}", name.unwrap_or("a system without a name"));
        }
        // Writing to a string cannot fail.
        Err(error) => drop(writeln!(text, "{error}")),
    }
    Ok(text)
}
