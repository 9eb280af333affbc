//! Errors of the SYN option and of its set-up.

use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

/// Why the TCP option cannot be had, or what `smc setup` does cannot be done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// No cgroup v2 hierarchy is mounted; the program can be attached nowhere else.
    #[error(
        "no cgroup v2 hierarchy is mounted (as root: mount -t cgroup2 none /sys/fs/cgroup, or \
         at another mount point)"
    )]
    NoCgroup2,
    /// This process is in no cgroup of the hierarchy that is mounted, as seen from here.
    #[error("the cgroup of this process is not visible below {mounted}")]
    NoOwnCgroup {
        /// Where the hierarchy is mounted.
        mounted: PathBuf,
    },
    /// The directory is none of a cgroup v2 hierarchy.
    #[error("{path} is not a directory of a cgroup v2 hierarchy")]
    NotCgroup2 {
        /// What was given.
        path: PathBuf,
    },
    /// Objects can only be pinned in a bpf file system.
    #[error("{path} is not in a bpf file system (as root: mount -t bpf bpf /sys/fs/bpf)")]
    NoBpffs {
        /// The nearest directory that exists.
        path: PathBuf,
    },
    /// Users other than root and the one who installs can change what is in the directory.
    #[error(
        "{path} belongs to user {uid} and has mode {mode:04o}: others can change what is in it"
    )]
    UnsafeDirectory {
        /// Where it was to be pinned.
        path: PathBuf,
        /// Its owner.
        uid: u32,
        /// Its permissions.
        mode: u32,
    },
    /// Nothing is pinned there.
    #[error("nothing is pinned in {directory} (as root: smc setup)")]
    NotInstalled {
        /// The directory that was searched.
        directory: PathBuf,
    },
    /// Something else is pinned there, or another version.
    #[error("{path} is not what this version pins there (as root: smc setup --undo)")]
    Foreign {
        /// What was found.
        path: PathBuf,
    },
    /// What is pinned there is attached to another cgroup than was requested.
    #[error("what is pinned in {directory} is attached to another cgroup (smc setup --undo)")]
    OtherCgroup {
        /// Where it is pinned.
        directory: PathBuf,
    },
    /// Another instance runs for that cgroup already; two of them would do all work twice.
    #[error(
        "program {program} adds the option for {cgroup} already: use what is pinned, or end its \
         process"
    )]
    AlreadyAttached {
        /// The cgroup that was requested.
        cgroup: PathBuf,
        /// The program's number in the kernel.
        program: u32,
    },
    /// The program does not run for sockets of this process.
    #[error("what is pinned in {directory} is not attached to a cgroup of this process")]
    NotAttached {
        /// Where it is pinned.
        directory: PathBuf,
    },
    /// A privilege is missing.
    #[error("not permitted to {doing}: {needs}")]
    NotPermitted {
        /// What was tried.
        doing: &'static str,
        /// What it takes.
        needs: &'static str,
    },
    /// The verifier of this kernel does not accept the program.
    #[error("this kernel does not take the program: {log}")]
    Rejected {
        /// The log of the verifier.
        log: String,
    },
    /// The kernel cannot do it at all.
    #[error("this kernel cannot {doing}: it takes Linux 5.11 with CONFIG_CGROUP_BPF")]
    Unsupported {
        /// What was tried.
        doing: &'static str,
    },
    /// Something else went wrong.
    #[error("cannot {doing}{}: {source}", at(.path))]
    Io {
        /// What was tried.
        doing: &'static str,
        /// With which file.
        path: Option<PathBuf>,
        /// How it failed.
        source: io::Error,
    },
}

impl SetupError {
    /// For `bpf(2)` that makes or attaches something.
    pub(super) fn privileged(doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| match Errno::from_io_error(&source) {
            Some(Errno::PERM | Errno::ACCESS) => Self::NotPermitted {
                doing,
                needs: "it takes CAP_BPF and CAP_NET_ADMIN",
            },
            Some(Errno::NOSYS | Errno::INVAL) => Self::Unsupported { doing },
            _ => Self::io(doing)(source),
        }
    }

    pub(super) fn io(doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io {
            doing,
            path: None,
            source,
        }
    }

    pub(super) fn file(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io {
            doing,
            path: Some(path.to_owned()),
            source,
        }
    }
}

impl From<SetupError> for io::Error {
    fn from(error: SetupError) -> Self {
        let kind = match &error {
            SetupError::NotPermitted { .. } | SetupError::UnsafeDirectory { .. } => {
                io::ErrorKind::PermissionDenied
            }
            SetupError::NotInstalled { .. } => io::ErrorKind::NotFound,
            SetupError::AlreadyAttached { .. } => io::ErrorKind::AlreadyExists,
            SetupError::Io { source, .. } => source.kind(),
            _ => io::ErrorKind::Unsupported,
        };
        Self::new(kind, error)
    }
}

fn at(path: &Option<PathBuf>) -> String {
    let path = path.as_ref();
    path.map_or_else(String::new, |path| format!(" {}", path.display()))
}
