//! Finding the sockets of processes, and sending them requests.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, statx};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::geteuid;
use smc_ipc::channel::send;
use smc_ipc::passed::refuse_descriptors;
use smc_ipc::runtime_dir::{by_fd, names};
use smc_ipc::thread::{Lock, spawn};
use smc_ipc::{Credentials, Domain};

use super::{Request, is_name, wait};
use crate::record::Record;

/// A directory with sockets of processes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct Directory {
    /// Its owner. No process of another user answers at its sockets.
    pub owner: u32,
    /// Its path.
    pub path: PathBuf,
}

/// The result of a search for directories.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Search {
    /// The directories.
    pub found: Vec<Directory>,
    /// Where there can be others: these were not searched to their end in time.
    pub incomplete: Vec<PathBuf>,
}

/// The directories of this user; for root those of all users, where they are standard ones, four of
/// each user at most. With `$SMC_RUNTIME_DIR` that directory. Blocks for a second at most.
///
/// A directory that another user could have made or can change counts for root only.
#[must_use]
pub fn directories() -> Search {
    let begin = Instant::now();
    let own = geteuid();
    let configured = std::env::var_os("SMC_RUNTIME_DIR").filter(|dir| !dir.is_empty());
    let searches = match own.is_root() && configured.is_none() {
        // Root's own are among them. A look-up of one that is not there would wait for the lock of
        // `/tmp` in a way that a process cannot end in, and reading the directory does not.
        true => Vec::from(["/run", SESSIONS, "/tmp"].map(|base| {
            let lock = Lock::DirectoriesBelow(base.into());
            let search = spawn(lock, move || {
                directories_in(Path::new(base), base == SESSIONS, begin + LISTING_TIME)
            });
            (PathBuf::from(base), search)
        })),
        false => {
            let search = spawn(Lock::DirectoriesOf(own.as_raw()), || {
                (own_directories(), true)
            });
            let at = configured.unwrap_or_else(|| "/tmp".into());
            vec![(PathBuf::from(at), search)]
        }
    };
    let (mut found, mut incomplete) = (BTreeSet::new(), Vec::new());
    for (base, search) in searches {
        let left = (begin + SEARCH_TIME).saturating_duration_since(Instant::now());
        let answer = search.ok().and_then(|search| search.wait(left).ok());
        let (directories, is_complete) = answer.unwrap_or_default();
        found.extend(directories);
        if !is_complete {
            incomplete.push(base);
        }
    }
    Search {
        found: found.into_iter().collect(),
        incomplete,
    }
}

fn own_directories() -> BTreeSet<Directory> {
    let paths = Domain::default().search_paths().into_iter();
    let found = paths.filter_map(|path| owner(&path).map(|owner| Directory { owner, path }));
    found.collect()
}

/// The owner of a directory that no other user can change, if this user trusts what is in it.
fn owner(dir: &Path) -> Option<u32> {
    // A file system of the user (FUSE) is not asked: it may never answer.
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_DONT_SYNC;
    let found = statx(CWD, dir, flags, StatxFlags::BASIC_STATS).ok()?;
    let is_dir = FileType::from_raw_mode(found.stx_mode.into()) == FileType::Directory;
    let is_private = is_dir && found.stx_mode & 0o022 == 0;
    let own = geteuid();
    let owner = found.stx_uid;
    (is_private && (own.is_root() || owner == own.as_raw())).then_some(owner)
}

/// The standard directories of all users in this one, which may be that of the directories of
/// their sessions, and whether all names of it were read by then. Users can make any number of
/// names. If there are too many, the directories that users of processes have by their number are
/// found all the same.
fn directories_in(
    base: &Path,
    is_of_sessions: bool,
    until: Instant,
) -> (BTreeSet<Directory>, bool) {
    let mut entries = std::fs::read_dir(base).into_iter().flatten().flatten();
    let mut found = Named::default();
    let is_complete = loop {
        if Instant::now() > until {
            break false;
        }
        let Some(entry) = entries.next() else {
            break true;
        };
        if let Some(name) = entry.file_name().to_str() {
            found.add(base, name, is_of_sessions);
        }
    };
    if !is_complete {
        for user in users_of_processes(until + USERS_TIME) {
            found.add(base, &format!("smc-{user}"), is_of_sessions);
            if is_of_sessions {
                found.add(base, &user.to_string(), true);
            }
        }
    }
    (found.directories, is_complete)
}

/// Directories that are found by their names.
#[derive(Debug, Default)]
struct Named {
    directories: BTreeSet<Directory>,
    counts: BTreeMap<u32, usize>,
}

impl Named {
    /// Takes what has this name in a directory, if that is the directory of a user.
    fn add(&mut self, base: &Path, name: &str, is_of_sessions: bool) {
        let path = base.join(name);
        // Nothing is looked up in a directory of a user here: that can block.
        let (user, dir) = match name.strip_prefix("smc-") {
            Some(rest) => (rest.split('-').next(), path.clone()),
            None if is_of_sessions => (Some(name), path.join(IN_SESSION)),
            None => return,
        };
        let Some(Ok(user)) = user.map(str::parse::<u32>) else {
            return;
        };
        // Its name has its owner, so that a user has no more than a user needs.
        if owner(&path) != Some(user) {
            return;
        }
        let count = self.counts.entry(user).or_default();
        let directory = Directory {
            owner: user,
            path: dir,
        };
        if *count < DIRECTORIES_OF_USER && self.directories.insert(directory) {
            *count += 1;
        }
    }
}

/// The users that have processes, as far as that is known by then.
fn users_of_processes(until: Instant) -> BTreeSet<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let in_time = entries.take_while(|_| Instant::now() <= until);
    let pids = in_time.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.flat_map(users_of).collect()
}

impl Directory {
    /// The sockets in it. Reads the directory, which blocks as long as its owner has it block.
    #[must_use]
    pub fn sockets(&self) -> Vec<PathBuf> {
        if owner(&self.path) != Some(self.owner) {
            return Vec::new();
        }
        let named = names(&self.path).into_iter().flatten();
        let named = named.filter(|name| is_name(name)).take(SOCKETS_MAX);
        named.map(|name| self.path.join(name)).collect()
    }
}

/// Sends a request to the process with this socket. Number and user of the process are those that
/// the kernel reports, except for the number of a process in another PID namespace.
///
/// Blocks for so long at most. It can block longer where the owner of the directory has a look-up
/// in it block, and before Linux 6.16 where the process passes a descriptor whose closing blocks.
///
/// `permit` is called for what is received, with the bytes that it takes of memory, roughly, before
/// they are taken.
///
/// # Errors
///
/// `ConnectionRefused` if the process has ended; `TimedOut` if it does not answer;
/// `PermissionDenied` if it is not of the user whose directory it is, or if the process that
/// listens has ended while another one has its socket; `Unsupported` if it does not know the
/// version or a subject; `InvalidData` if it answers with anything else than records, with more
/// than 64 MiB, or with more than `permit` permits.
pub fn query(
    socket: &Path,
    request: &Request,
    timeout: Duration,
    mut permit: impl FnMut(usize) -> bool,
) -> io::Result<Vec<Record>> {
    let begin = Instant::now();
    let until = begin.checked_add(timeout.min(LONGEST)).unwrap_or(begin);
    let fd = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?;
    // The kernel would close a descriptor in `recv`, for as long as that takes.
    let _since_linux_6_16 = refuse_descriptors(&fd);
    connect(&fd, socket)?;
    let process = Credentials::of_peer(&fd)?;
    if socket.parent().and_then(owner) != Some(process.uid) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    // 0 in another PID namespace.
    let pid = u32::try_from(process.pid).ok().filter(|pid| *pid != 0);
    if pid.is_some_and(|pid| !is_process_of(pid, process.uid)) {
        let text = "the process that listens has ended";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    send(&fd, &serde_json::to_vec(request)?, &[])?;
    let mut packet = vec![0; PACKET_MAX];
    let (mut records, mut received, mut program) = (Vec::new(), 0_usize, 0);
    // The endpoints whose counters were received.
    let mut counted = BTreeSet::new();
    while received <= ANSWER_MAX {
        wait(&fd, PollFlags::IN, until, None)?;
        let (len, _) = match rustix::net::recv(&fd, &mut packet[..], RecvFlags::DONTWAIT) {
            Err(Errno::AGAIN | Errno::INTR) => continue,
            received => received?,
        };
        // There can always be another packet.
        if Instant::now() > until {
            return Err(io::ErrorKind::TimedOut.into());
        }
        received = received.saturating_add(len);
        let lines = packet.get(..len).unwrap_or_default();
        if lines.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for line in lines.split(|byte| *byte == b'\n') {
            if line.is_empty() {
                continue;
            }
            if !permit(memory_of(line, program)) {
                return Err(invalid("the answers of this user are too long"));
            }
            match serde_json::from_slice(line)? {
                Record::End => return Ok(records),
                Record::Error { error } => {
                    return Err(io::Error::new(io::ErrorKind::Unsupported, error));
                }
                Record::Process(mut stated) => {
                    if stated.program.len() > NAME_MAX || stated.library.len() > NAME_MAX {
                        return Err(invalid("the name of the program is too long"));
                    }
                    program = stated.program.len();
                    stated.uid = process.uid;
                    stated.pid = pid.unwrap_or(stated.pid);
                    records.push(Record::Process(stated));
                }
                record => {
                    if !record
                        .subject()
                        .is_some_and(|of| request.what.contains(&of))
                    {
                        return Err(invalid("a record that was not requested"));
                    }
                    if let Record::Stats(of) = &record {
                        if !counted.insert(of.endpoint) {
                            return Err(invalid("the counters of an endpoint a second time"));
                        }
                    }
                    if !permit(repeated(&record, program)) {
                        return Err(invalid("the answers of this user are too long"));
                    }
                    records.push(record);
                }
            }
        }
    }
    Err(invalid("the answer does not end"))
}

/// The approximate memory of a record: its text as it was received and as a tool writes it; its
/// line in a table, which has the program beside it; and its members and elements, which are longer
/// than their text where that is short.
fn memory_of(line: &[u8], program: usize) -> usize {
    let separators = line.iter().filter(|byte| matches!(byte, b',' | b':'));
    let parts = separators.count().saturating_mul(PART_LEN);
    // Tools write a character that a terminal would act on as `\u` with four digits.
    let written = line.iter().map(|byte| match byte {
        0x7f => 6,
        0x80.. => 3,
        _ => 1,
    });
    let texts = line.len() + written.sum::<usize>();
    texts + program + parts.max(RECORD_LEN)
}

/// The memory of those parts of a record that have lines of their own. Each line repeats the
/// program and the name of the whole.
fn repeated(record: &Record, program: usize) -> usize {
    let (parts, len) = match record {
        Record::Group(group) => (group.links.len(), group.id.len() + program + RECORD_LEN),
        Record::Stats(of) => {
            let devices = of.stats.devices.iter();
            let lens = devices.map(|it| it.hardware.len().saturating_mul(it.device.len()));
            (1, lens.fold(0, usize::saturating_add))
        }
        _ => (0, 0),
    };
    parts.saturating_mul(len)
}

fn invalid(text: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// Whether there is a process with this number, and it is of this user. A socket keeps the number
/// of the process that has called `listen`, which another process has some time after its end.
fn is_process_of(pid: u32, user: u32) -> bool {
    // A process that has changed its user since then may have that one as real or saved one.
    users_of(pid).contains(&user)
}

/// The users of a process: real, effective, saved and of files.
fn users_of(pid: u32) -> Vec<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let users = users.unwrap_or_default().split_whitespace();
    users.filter_map(|number| number.parse().ok()).collect()
}

/// Connects to a path, which may be longer than an address.
fn connect(fd: &OwnedFd, path: &Path) -> io::Result<()> {
    let flags =
        rustix::fs::OFlags::PATH | rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, rustix::fs::Mode::empty())?;
    Ok(rustix::net::connect(
        fd,
        &SocketAddrUnix::new(by_fd(&file))?,
    )?)
}

/// Longest packet that a client takes: below the default limit of a socket's send buffer.
const PACKET_MAX: usize = 200 * 1024;

/// Bytes of an answer that a client takes: those of some 40,000 connections.
const ANSWER_MAX: usize = 64 << 20;

/// The least memory of a record beside its text, with its line in a table.
const RECORD_LEN: usize = 2048;

/// The memory for each separator in the text of a record: an entry of a map with a short name takes
/// some 90 bytes, and has two of them.
const PART_LEN: usize = 48;

/// Longest name of a program: one of 255 bytes that are no UTF-8 has three times as many.
const NAME_MAX: usize = 765;

/// Sockets of one directory, and directories of one user in the directory above it: that with the
/// user's number alone, and those with a random name.
const SOCKETS_MAX: usize = 1024;
const DIRECTORIES_OF_USER: usize = 4;

/// Where the directories of users' sessions are, and the name of the one in such a directory.
const SESSIONS: &str = "/run/user";
const IN_SESSION: &str = "smc";

/// How long a search for directories may take. That of `/tmp` waits as long as another user holds
/// the lock of that directory.
const SEARCH_TIME: Duration = Duration::from_secs(1);

/// How long of it names are read, and then users of processes are.
const LISTING_TIME: Duration = Duration::from_millis(600);
const USERS_TIME: Duration = Duration::from_millis(200);

/// Longest timeout.
const LONGEST: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests {
    use std::fs::DirBuilder;
    use std::os::unix::fs::DirBuilderExt as _;

    use super::*;

    #[test]
    fn text_that_is_written_longer_counts_as_it_is_written() {
        // As members of a record, whose own memory is less.
        let [plain, delete, accents] = ["x", "\u{7f}", "\u{e9}"].map(|text| text.repeat(100_000));
        assert_eq!(memory_of(plain.as_bytes(), 0), 200_000 + RECORD_LEN);
        assert_eq!(memory_of(delete.as_bytes(), 0), 700_000 + RECORD_LEN);
        assert_eq!(memory_of(accents.as_bytes(), 0), 800_000 + RECORD_LEN);
        let parts = ",".repeat(100_000);
        assert_eq!(memory_of(parts.as_bytes(), 0), 200_000 + 100_000 * PART_LEN);
    }

    #[test]
    fn a_number_is_that_of_a_process_of_the_user_only() {
        let own = geteuid().as_raw();
        assert!(is_process_of(std::process::id(), own));
        assert!(!is_process_of(std::process::id(), own + 1));
        assert!(!is_process_of(u32::MAX, own));
    }

    #[test]
    fn a_directory_counts_by_the_owner_in_its_name_and_few_of_a_user() {
        let base = tempfile::tempdir().unwrap();
        let own = geteuid().as_raw();
        let other = own + 1;
        let make = |path| {
            let mut builder = DirBuilder::new();
            builder
                .recursive(true)
                .mode(0o700)
                .create::<PathBuf>(path)
                .unwrap();
        };
        for name in [
            format!("smc-{own}"),
            format!("smc-{other}"),
            "smc-x".to_owned(),
            "smc-".to_owned(),
            own.to_string(),
            other.to_string(),
        ] {
            make(base.path().join(name));
        }
        let all = |is_of_sessions| {
            let until = Instant::now() + Duration::from_secs(60);
            let (found, is_complete) = directories_in(base.path(), is_of_sessions, until);
            assert!(is_complete);
            found
        };
        let found = all(true);
        let paths: Vec<_> = found.iter().map(|it| it.path.clone()).collect();
        let expected = [format!("{own}/smc"), format!("smc-{own}")];
        assert_eq!(paths, expected.map(|name| base.path().join(name)));
        assert!(found.iter().all(|it| it.sockets().is_empty()));
        assert_eq!(all(false).len(), 1);
        assert!(found.iter().all(|it| it.owner == own));
        for number in 0..10 {
            make(base.path().join(format!("smc-{own}-{number}")));
        }
        assert_eq!(all(false).len(), DIRECTORIES_OF_USER);
        // As with more names than can be read in the time: those of users of processes are found.
        let over = Instant::now() - Duration::from_millis(1);
        let (found, is_complete) = directories_in(base.path(), true, over);
        let paths: Vec<_> = found.iter().map(|it| it.path.clone()).collect();
        let expected = [format!("{own}/smc"), format!("smc-{own}")];
        assert_eq!(paths, expected.map(|name| base.path().join(name)));
        assert!(!is_complete);
    }
}
