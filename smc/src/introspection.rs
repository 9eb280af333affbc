//! Read-only requests from other processes: what `smc ss`, `smc groups`, `smc devices` and
//! `smc stats` show of a process.
//!
//! A process with an endpoint has a socket in the [standard runtime directory](crate::Domain) of
//! its user, unless [`Builder::introspection`](crate::Builder::introspection) has switched that off
//! for all of its endpoints. A thread of its own answers there, so that a program whose runtime is
//! blocked is seen as well.
//!
//! # Format
//!
//! The socket is a UNIX socket of the type `SOCK_SEQPACKET`, with the mode 0600 and a name
//! `i-<pid>-<16 hexadecimal digits>.sock`. Only processes of the same user, and of root, are
//! accepted. A client sends one packet with a [`Request`] in JSON, of 4 KiB at most:
//!
//! ```json
//! {"version": 1, "what": ["connections", "listeners"]}
//! ```
//!
//! The answer is a sequence of packets. Each has one or more [`Record`]s in JSON, one a line, whose
//! kind is the member `record`. The first is of the kind `process`, and the last one `end`; without
//! it the answer is incomplete. A request that is refused gets one record of the kind `error`.
//! Times have the members `secs` and `nanos`. Then the connection is closed. A request changes
//! nothing.
//!
//! One request is answered after the other. A client that does not send its request within 0.2
//! seconds, or has not received the answer within 5 seconds, is disconnected.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, TryRecvError};
use std::sync::{Arc, Weak};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, geteuid};
use serde::{Deserialize, Serialize};
use smc_ipc::channel::{Received, receive, send};
use smc_ipc::passed::PeerSocket;
use smc_ipc::runtime_dir::{Publication, by_fd, names};
use smc_ipc::{Credentials, Domain};

use crate::endpoint::EndpointInner;
use crate::mutex::Mutex;
use crate::process;
use crate::record::{
    ConnectionRecord, DeviceRecord, GroupRecord, ListenerRecord, ProcessRecord, Record, StatsRecord,
};

/// Version of the format.
pub const VERSION: u32 = 1;

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Request {
    /// Version of the format: [`VERSION`].
    pub version: u32,
    /// What is to be reported.
    pub what: Vec<Subject>,
}

/// What can be requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Subject {
    /// Streams.
    Connections,
    /// Listeners.
    Listeners,
    /// Link groups with their links.
    Groups,
    /// Devices.
    Devices,
    /// Statistics.
    Stats,
}

impl Request {
    /// Requests these.
    #[must_use]
    pub fn new(what: &[Subject]) -> Self {
        Self {
            version: VERSION,
            what: what.to_vec(),
        }
    }
}

// ---- Client ------------------------------------------------------------------------------------

/// The sockets of the processes of this user; for root those of all users, where their directories
/// are standard ones. With `$SMC_RUNTIME_DIR` those in that directory.
///
/// A directory that another user could have made or can change counts for root only.
#[must_use]
pub fn sockets() -> Vec<PathBuf> {
    let mut dirs = Domain::default().search_paths();
    let is_configured = std::env::var_os("SMC_RUNTIME_DIR").is_some_and(|dir| !dir.is_empty());
    if geteuid().is_root() && !is_configured {
        dirs.extend(directories_of_all());
    }
    dirs.sort_unstable();
    dirs.dedup();
    let mut found = Vec::new();
    for dir in dirs.into_iter().filter(|dir| owner(dir).is_some()) {
        let named = names(&dir).into_iter().flatten();
        let named = named.filter(|name| is_name(name)).take(SOCKETS_MAX);
        found.extend(named.map(|name| dir.join(name)));
    }
    found
}

/// The owner of a directory that no other user can change, if this user believes what is in it.
fn owner(dir: &Path) -> Option<u32> {
    let found = std::fs::symlink_metadata(dir).ok()?;
    let own = geteuid();
    let is_private = found.is_dir() && found.mode() & 0o022 == 0;
    (is_private && (own.is_root() || found.uid() == own.as_raw())).then_some(found.uid())
}

/// The standard directories of all users.
fn directories_of_all() -> Vec<PathBuf> {
    let in_dir = |dir: &str| {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        let entries = entries.take(DIRECTORIES_MAX);
        entries.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let is_named = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with("smc-"))
    };
    let mut dirs = in_dir("/run");
    dirs.extend(in_dir("/tmp"));
    dirs.retain(is_named);
    dirs.extend(in_dir("/run/user").iter().map(|dir| dir.join("smc")));
    dirs
}

/// Sends a request to the process with this socket. Blocks, for so long at most. Number and user of
/// the process are those that the kernel reports.
///
/// # Errors
///
/// `ConnectionRefused` if the process has ended; `TimedOut` if it does not answer;
/// `PermissionDenied` if it is not of the user whose directory it is; `Unsupported` if it does not
/// know the version or a subject; `InvalidData` if it answers with anything else than records, or
/// with more than 64 MiB.
pub fn query(socket: &Path, request: &Request, timeout: Duration) -> io::Result<Vec<Record>> {
    let begin = Instant::now();
    let until = begin.checked_add(timeout.min(LONGEST)).unwrap_or(begin);
    let fd = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?;
    connect(&fd, socket)?;
    let process = Credentials::of_peer(&fd)?;
    if socket.parent().and_then(owner) != Some(process.uid) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    send(&fd, &serde_json::to_vec(request)?, &[])?;
    let mut packet = vec![0; PACKET_MAX];
    let (mut records, mut received) = (Vec::new(), 0);
    while received <= ANSWER_MAX {
        wait(&fd, PollFlags::IN, until, None)?;
        let (len, _) = match rustix::net::recv(&fd, &mut packet[..], RecvFlags::DONTWAIT) {
            Err(Errno::AGAIN | Errno::INTR) => continue,
            received => received?,
        };
        received += len;
        let lines = packet.get(..len).unwrap_or_default();
        if lines.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for line in lines.split(|byte| *byte == b'\n') {
            if line.is_empty() {
                continue;
            }
            match serde_json::from_slice(line)? {
                Record::End => return Ok(records),
                Record::Error { error } => {
                    return Err(io::Error::new(io::ErrorKind::Unsupported, error));
                }
                Record::Process(mut stated) => {
                    stated.uid = process.uid;
                    // 0 in another PID namespace.
                    if let Ok(pid @ 1..) = u32::try_from(process.pid) {
                        stated.pid = pid;
                    }
                    records.push(Record::Process(stated));
                }
                record => records.push(record),
            }
        }
    }
    let text = "the answer does not end";
    Err(io::Error::new(io::ErrorKind::InvalidData, text))
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

// ---- Server ------------------------------------------------------------------------------------

/// What answers for this process.
static SERVER: Mutex<Option<Server>> = Mutex::new(None);

struct Server {
    process: Pid,
    endpoints: Vec<Weak<EndpointInner>>,
    /// Written to end the thread.
    stop: Arc<OwnedFd>,
    thread: ThreadId,
    /// Disconnected when the thread has ended.
    ended: mpsc::Receiver<()>,
}

/// Has a new endpoint answer requests.
///
/// # Errors
///
/// When there are no descriptors or threads left. The endpoint works without, so that is no reason
/// to give it up.
pub(crate) fn register(endpoint: &Arc<EndpointInner>) -> io::Result<()> {
    let mut server = SERVER.lock();
    // In a child process the thread of the parent does not exist, and the name is the parent's.
    if let Some(inherited) = server.take_if(|server| server.process != process::current()) {
        std::mem::forget(inherited);
    }
    // Its thread may have found no descriptor.
    let has_ended =
        |server: &mut Server| server.ended.try_recv() == Err(TryRecvError::Disconnected);
    let former = server.take_if(has_ended).map(|server| server.endpoints);
    let server = match &mut *server {
        Some(server) => server,
        None => server.insert(Server::start()?),
    };
    server.endpoints.extend(former.into_iter().flatten());
    let endpoints = &mut server.endpoints;
    endpoints.retain(|endpoint| endpoint.strong_count() > 0);
    server.endpoints.push(Arc::downgrade(endpoint));
    Ok(())
}

/// An endpoint was dropped. After the last one the socket is closed.
pub(crate) fn unregister() {
    let unused = |server: &mut Server| {
        let mut endpoints = server.endpoints.iter();
        server.process == process::current()
            && endpoints.all(|endpoint| endpoint.strong_count() == 0)
    };
    let Some(server) = SERVER.lock().take_if(unused) else {
        return;
    };
    let _full = rustix::io::write(&server.stop, &1_u64.to_ne_bytes());
    if server.thread != thread::current().id() {
        // So that a process that ends now leaves no name behind.
        let _ended = server.ended.recv_timeout(END_TIME);
    }
}

impl Server {
    fn start() -> io::Result<Self> {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (running, ended) = mpsc::channel();
        let random = crate::random::bytes().map_err(io::Error::other)?;
        let name = format!(
            "i-{}-{:016x}.sock",
            std::process::id(),
            u64::from_ne_bytes(random)
        );
        let stopped = Arc::clone(&stop);
        let thread = thread::Builder::new()
            .name("smc-introspect".into())
            .stack_size(STACK)
            .spawn(move || {
                serve(name, &stopped);
                drop(running);
            })?;
        Ok(Self {
            process: process::current(),
            endpoints: Vec::new(),
            stop,
            thread: thread.thread().id(),
            ended,
        })
    }
}

/// Accepts clients until the end.
fn serve(name: String, stop: &OwnedFd) {
    let domain = Domain::default();
    domain.sweep(is_name);
    let Ok(mut publication) = Publication::new(domain, name) else {
        return;
    };
    publication.admit_root();
    loop {
        let epoll = Arc::clone(publication.epoll_fd());
        let mut fds = [
            PollFd::new(stop, PollFlags::IN),
            PollFd::new(&epoll, PollFlags::IN),
        ];
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return,
        }
        publication.handle_events();
        loop {
            if rustix::io::read(stop, &mut [0; 8]).is_ok() {
                return;
            }
            match publication.accept() {
                // A client that breaks the rules is disconnected.
                Ok(client) => drop(answer(&client, stop)),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(_) => break,
            }
        }
    }
}

/// Receives a request and answers it, unless the thread has to end.
fn answer(client: &PeerSocket, stop: &OwnedFd) -> io::Result<()> {
    let begin = Instant::now();
    let mut packet = [0; REQUEST_MAX];
    wait(client, PollFlags::IN, begin + REQUEST_TIME, Some(stop))?;
    let Received::Packet(bytes, _) = receive(client, &mut packet, 0) else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    let mut answer = Answer::default();
    match serde_json::from_slice::<Request>(bytes) {
        Ok(request) if request.version == VERSION => answer.add_all(&request.what)?,
        Ok(request) => {
            let error = format!("version {} is not known, {VERSION} is", request.version);
            answer.add(&Record::Error { error })?;
        }
        Err(error) => {
            let error = format!("this is not a request: {error}");
            answer.add(&Record::Error { error })?;
        }
    }
    for packet in &answer.packets {
        loop {
            match send(client, packet, &[]) {
                Err(Errno::AGAIN) => {
                    wait(client, PollFlags::OUT, begin + ANSWER_TIME, Some(stop))?;
                }
                sent => {
                    sent?;
                    break;
                }
            }
        }
    }
    Ok(())
}

/// An answer, made before it is sent: a slow client keeps no endpoint.
#[derive(Default)]
struct Answer {
    packets: Vec<Vec<u8>>,
}

impl Answer {
    fn add_all(&mut self, what: &[Subject]) -> io::Result<()> {
        let endpoints: Vec<_> = match &*SERVER.lock() {
            Some(server) => server.endpoints.iter().filter_map(Weak::upgrade).collect(),
            None => Vec::new(),
        };
        let program = std::env::current_exe().ok();
        let program = program.as_deref().and_then(Path::file_name);
        self.add(&Record::Process(ProcessRecord {
            version: VERSION,
            pid: std::process::id(),
            uid: geteuid().as_raw(),
            program: program.unwrap_or_default().to_string_lossy().into_owned(),
            library: env!("CARGO_PKG_VERSION").to_owned(),
            endpoints: endpoints.len(),
        }))?;
        for (number, endpoint) in endpoints.iter().enumerate() {
            for (at, subject) in what.iter().enumerate() {
                // Each one once, so that a request has no long answer by repetition.
                if what.iter().position(|other| other == subject) == Some(at) {
                    self.add_subject(number, endpoint, *subject)?;
                }
            }
        }
        self.add(&Record::End)
    }

    fn add_subject(
        &mut self,
        number: usize,
        endpoint: &Arc<EndpointInner>,
        subject: Subject,
    ) -> io::Result<()> {
        match subject {
            Subject::Connections => {
                for info in endpoint.connections() {
                    let record = ConnectionRecord::new(number, &info);
                    self.add(&Record::Connection(Box::new(record)))?;
                }
            }
            Subject::Listeners => {
                for info in endpoint.listener_infos() {
                    self.add(&Record::Listener(ListenerRecord::new(number, &info)))?;
                }
            }
            Subject::Groups => {
                let rdma = endpoint.rdma_groups();
                for info in endpoint.groups.infos() {
                    let rdma = rdma.iter().find(|group| group.id == info.id);
                    self.add(&Record::Group(GroupRecord::new(number, &info, rdma)))?;
                }
            }
            Subject::Devices => {
                for info in endpoint.device_infos() {
                    self.add(&Record::Device(DeviceRecord::new(number, &info)))?;
                }
            }
            Subject::Stats => {
                let stats = endpoint.stats();
                self.add(&Record::Stats(StatsRecord {
                    endpoint: number,
                    stats,
                }))?;
            }
        }
        Ok(())
    }

    fn add(&mut self, record: &Record) -> io::Result<()> {
        let mut line = serde_json::to_vec(record)?;
        line.push(b'\n');
        match self.packets.last_mut() {
            Some(packet) if packet.len() + line.len() <= PACKET_LEN => packet.extend(line),
            _ => self.packets.push(line),
        }
        Ok(())
    }
}

/// Waits until a socket is ready; `Interrupted` when `stop` is readable, if there is one.
fn wait(fd: impl AsFd, flags: PollFlags, until: Instant, stop: Option<&OwnedFd>) -> io::Result<()> {
    let mut fds = vec![PollFd::new(&fd, flags)];
    fds.extend(stop.map(|stop| PollFd::new(stop, PollFlags::IN)));
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).unwrap_or_default();
        match poll(&mut fds, Some(&left)) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Ok(_) if fds.get(1).is_some_and(|stop| !stop.revents().is_empty()) => {
                return Err(io::ErrorKind::Interrupted.into());
            }
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Whether it is the name of a socket for requests.
fn is_name(name: &str) -> bool {
    let inner = name
        .strip_prefix("i-")
        .and_then(|name| name.strip_suffix(".sock"));
    let parts = inner.and_then(|inner| inner.split_once('-'));
    parts.is_some_and(|(pid, random)| {
        pid.parse::<u32>().is_ok()
            && random.len() == 16
            && random.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}

/// Longest request.
const REQUEST_MAX: usize = 4096;

/// Packets of an answer are not longer, unless one record is.
const PACKET_LEN: usize = 32 * 1024;

/// Longest packet that a client takes: below the default limit of a socket's send buffer.
const PACKET_MAX: usize = 200 * 1024;

/// Bytes of an answer that a client takes: those of some 50,000 connections.
const ANSWER_MAX: usize = 64 << 20;

/// Sockets of one directory, and directories, that are looked at.
const SOCKETS_MAX: usize = 1024;
const DIRECTORIES_MAX: usize = 65_536;

/// Longest timeout.
const LONGEST: Duration = Duration::from_secs(3600);

/// How long a client may take to send its request.
const REQUEST_TIME: Duration = Duration::from_millis(200);

/// How long it may take to send that and to receive the answer.
const ANSWER_TIME: Duration = Duration::from_secs(5);

/// How long the drop of the last endpoint waits for the thread.
const END_TIME: Duration = Duration::from_millis(200);

/// Of the thread: enough for a backtrace.
const STACK: usize = 512 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    /// The answer to a packet, as lines.
    fn answer_to(packet: &[u8]) -> Vec<Record> {
        let (client, server) = smc_testkit::unix::pair();
        send(&client, packet, &[]).unwrap();
        // A request that is refused may be an error here.
        let _refused = answer(&server.into(), &no_stop());
        let mut records = Vec::new();
        let mut packet = vec![0; PACKET_LEN];
        while let Ok((len @ 1.., _)) =
            rustix::net::recv(&client, &mut packet[..], RecvFlags::DONTWAIT)
        {
            let lines = packet[..len].split(|byte| *byte == b'\n');
            let lines = lines.filter(|line| !line.is_empty());
            records.extend(lines.map(|line| serde_json::from_slice::<Record>(line).unwrap()));
        }
        records
    }

    fn no_stop() -> OwnedFd {
        eventfd(0, EventfdFlags::CLOEXEC).unwrap()
    }

    #[test]
    fn an_answer_begins_with_the_process_and_has_an_end() {
        let request = Request::new(&[Subject::Connections, Subject::Stats]);
        let records = answer_to(&serde_json::to_vec(&request).unwrap());
        let [Record::Process(process), .., Record::End] = &*records else {
            panic!("{records:?}");
        };
        assert_eq!(process.pid, std::process::id());
        assert_eq!(process.version, VERSION);
    }

    #[test]
    fn a_request_that_is_not_understood_gets_the_reason() {
        let long = vec![b' '; REQUEST_MAX + 1];
        let nested = [b'['; REQUEST_MAX];
        let cases = [
            (&b"what?"[..], Some("not a request")),
            (br#"{"version": 2, "what": []}"#, Some("version 2")),
            (
                br#"{"version": 1, "what": ["passwords"]}"#,
                Some("passwords"),
            ),
            (br#"{"version": 1}"#, Some("what")),
            (&nested, Some("not a request")),
            (&[0xff, 0, 1], Some("not a request")),
            // It is not received whole.
            (&long, None),
        ];
        for (packet, reason) in cases {
            let records = answer_to(packet);
            match (&*records, reason) {
                ([], None) => {}
                ([Record::Error { error }], Some(reason)) => {
                    assert!(error.contains(reason), "{error}");
                }
                _ => panic!("{records:?}"),
            }
        }
    }

    #[test]
    fn a_client_that_sends_nothing_is_disconnected() {
        let (_silent, server) = smc_testkit::unix::pair();
        let error = answer(&server.into(), &no_stop()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn a_client_that_sends_nothing_does_not_keep_the_thread_from_ending() {
        let (_silent, server) = smc_testkit::unix::pair();
        let stop = eventfd(1, EventfdFlags::CLOEXEC).unwrap();
        let error = answer(&server.into(), &stop).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Interrupted);
    }

    #[test]
    fn packets_are_bounded_and_a_long_record_has_one_of_its_own() {
        let mut answer = Answer::default();
        for len in [10, PACKET_LEN, 10, 10, PACKET_LEN / 2, PACKET_LEN / 2] {
            let error = "x".repeat(len);
            answer.add(&Record::Error { error }).unwrap();
        }
        assert_eq!(answer.packets.len(), 4);
        assert!(answer.packets.iter().all(|packet| packet.ends_with(b"}\n")));
    }

    #[test]
    fn names_of_sockets_are_told_from_others() {
        assert!(is_name("i-1-0123456789abcdef.sock"));
        for other in [
            "d-0123456789abcdef.sock",
            "i-1-0123456789abcde.sock",
            "i--0123456789abcdef.sock",
            "i-1-0123456789abcdef",
            "i-x-0123456789abcdef.sock",
        ] {
            assert!(!is_name(other), "{other}");
        }
    }
}
