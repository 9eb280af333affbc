//! `smc setup`: lets programs without privileges use SMC with kernels.

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::Result;
use clap::ValueEnum;
use smc_negotiate_syn::{Setup, SetupError, Status};

use crate::{output, values};

/// Arguments of `smc setup`.
///
/// A kernel supports SMC only to peers that announce it with a TCP option. This loads the eBPF
/// program that does so for sockets of the SMC crates, and pins its map, which they find. It takes
/// root (or CAP_BPF, CAP_NET_ADMIN and the right to write in the bpf file system) and lasts until
/// it is undone or the machine restarts. Other sockets are not touched.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Args {
    /// What to do
    #[arg(value_enum, default_value_t = Action::Install)]
    action: Action,

    /// Remove it again; the same as the action `undo`
    #[arg(long, conflicts_with = "action")]
    undo: bool,

    /// Only for processes in this cgroup (v2) and below; all if not given
    #[arg(long, value_name = "PATH")]
    cgroup: Option<PathBuf>,

    /// Permissions of the map, in octal: who may use it
    #[arg(long, value_name = "MODE", default_value = "0666", value_parser = values::mode)]
    mode: u32,

    /// Group of the map, by number; with --mode 0660 only its members may use it
    #[arg(long, value_name = "GID")]
    group: Option<u32>,

    /// Directory in a bpf file system
    #[arg(long, value_name = "PATH", default_value = Setup::DIRECTORY)]
    directory: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Action {
    /// Load and pin it, or report that it is there
    Install,
    /// Show what is installed
    Status,
    /// Remove it
    Undo,
}

/// Runs `smc setup`.
pub(crate) fn run(args: &Args) -> Result<bool> {
    output::print(&attempt(args)?)?;
    Ok(true)
}

fn attempt(args: &Args) -> Result<String, SetupError> {
    let mut setup = Setup::new().directory(&args.directory).mode(args.mode);
    if let Some(path) = &args.cgroup {
        setup = setup.cgroup(path);
    }
    if let Some(gid) = args.group {
        setup = setup.group(gid);
    }
    let action = if args.undo { Action::Undo } else { args.action };
    Ok(match action {
        Action::Install => {
            let done = setup.install()?;
            let what = match done.is_new {
                true => "installed",
                false => "was installed already; mode and group are set",
            };
            format!("{what}\n{}", describe(&done.status))
        }
        Action::Status => describe(&setup.status()?),
        Action::Undo => match setup.undo()? {
            true => format!("removed from {}\n", args.directory.display()),
            false => format!("nothing in {} to remove\n", args.directory.display()),
        },
    })
}

fn describe(status: &Status) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        let _infallible = writeln!(text, "{name:<10}{value}");
    };
    let Status { mode, uid, gid, .. } = status;
    let map = status.map.display();
    line("map", format!("{map}, mode {mode:04o}, owner {uid}:{gid}"));
    line(
        "program",
        match status.program {
            Some(id) => format!("number {id}"),
            None => "not visible to this user".to_owned(),
        },
    );
    line(
        "cgroup",
        match (status.is_attached, &status.cgroup) {
            (_, Some(path)) => path.display().to_string(),
            (Some(false), None) => "none: it was removed; install again".to_owned(),
            (Some(true), None) => "not visible from here".to_owned(),
            (None, None) => "not visible to this user".to_owned(),
        },
    );
    line(
        "sockets",
        match status.is_effective {
            Some(true) => "those of this process can use it",
            Some(false) => "those of this process cannot use it: another cgroup",
            None => "not tried: the map or the loopback addresses cannot be used from here",
        }
        .to_owned(),
    );
    if status.is_frozen == Some(true) {
        let remedy = "the map was frozen, no socket can be marked; install again";
        line("warning", remedy.to_owned());
    }
    if let Some(path) = &status.closed {
        let path = path.display();
        let remedy =
            format!("{path} keeps other users out of it (chmod o+x {path}, or --directory)");
        line("warning", remedy);
    }
    if !status.others.is_empty() {
        let ids: Vec<_> = status.others.iter().map(u32::to_string).collect();
        let others = format!(
            "other sock_ops programs ({}): if one writes options for all listeners, so may this",
            ids.join(", ")
        );
        line("warning", others);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_an_error() {
        use clap::Parser;

        #[derive(Parser)]
        struct Cli {
            #[command(flatten)]
            args: Args,
        }
        let parse = |line: &[&str]| Cli::try_parse_from(line).map(|cli| cli.args);
        let args = parse(&["setup", "status", "--directory", "/nowhere"]).unwrap();
        let error = attempt(&args).unwrap_err();
        let text = "/ is not in a bpf file system (as root: mount -t bpf bpf /sys/fs/bpf)";
        assert_eq!(error.to_string(), text);
        let args = parse(&["setup", "--undo", "--directory", "/nowhere"]).unwrap();
        assert_eq!(attempt(&args).unwrap(), "nothing in /nowhere to remove\n");
        parse(&["setup", "install", "--undo"]).unwrap_err();
    }
}
