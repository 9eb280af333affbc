//! The thread that answers the requests of other processes.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::mpsc::{self, TryRecvError};
use std::sync::{Arc, Weak};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use rustix::process::{Pid, geteuid};
use smc_ipc::Domain;
use smc_ipc::channel::{Received, receive, send};
use smc_ipc::passed::PeerSocket;
use smc_ipc::runtime_dir::Publication;

use super::{Request, Subject, VERSION, is_name, wait};
use crate::endpoint::EndpointInner;
use crate::mutex::Mutex;
use crate::process;
use crate::record::{
    ConnectionRecord, DeviceRecord, EndpointRecord, GroupRecord, LinkRecord, ListenerRecord,
    ProcessRecord, Record, StatsRecord,
};

/// The server that answers requests to this process.
static SERVER: Mutex<Server> = Mutex::new(Server {
    process: None,
    endpoints: Vec::new(),
    next_number: 0,
    thread: None,
});

struct Server {
    /// The process of the last call.
    process: Option<Pid>,
    /// With their numbers, which no other endpoint of the process gets.
    endpoints: Vec<(usize, Weak<EndpointInner>)>,
    next_number: usize,
    /// There while there are endpoints, unless it has failed.
    thread: Option<ServerThread>,
}

struct ServerThread {
    /// Written to end it.
    stop: Arc<OwnedFd>,
    id: ThreadId,
    /// Disconnected when it has ended.
    ended: mpsc::Receiver<()>,
}

/// Has a new endpoint answer requests.
///
/// # Errors
///
/// When there are no descriptors or threads left. The endpoint works without, so that is no reason
/// to give it up. The next one that is built tries again, for this one too.
pub(crate) fn register(endpoint: &Arc<EndpointInner>) -> io::Result<()> {
    let mut server = SERVER.lock();
    let Server {
        process,
        endpoints,
        next_number,
        thread,
    } = &mut *server;
    // In a child process the thread of the parent does not exist, and the name is the parent's.
    if process.replace(process::current()) != Some(process::current()) {
        std::mem::forget(thread.take());
        endpoints.clear();
    }
    endpoints.retain(|(_, endpoint)| endpoint.strong_count() > 0);
    endpoints.push((*next_number, Arc::downgrade(endpoint)));
    *next_number += 1;
    // It may have found no descriptor.
    thread.take_if(|thread| thread.ended.try_recv() == Err(TryRecvError::Disconnected));
    if thread.is_none() {
        *thread = Some(ServerThread::start()?);
    }
    Ok(())
}

/// An endpoint was dropped. After the last one the socket is closed.
pub(crate) fn unregister() {
    let mut server = SERVER.lock();
    let mut endpoints = server.endpoints.iter();
    let is_in_use = endpoints.any(|(_, endpoint)| endpoint.strong_count() > 0);
    if server.process != Some(process::current()) || is_in_use {
        return;
    }
    let Some(stopping) = server.thread.take() else {
        return;
    };
    drop(server);
    let _full = rustix::io::write(&stopping.stop, &1_u64.to_ne_bytes());
    if stopping.id != thread::current().id() {
        // So that a process that ends now leaves no name behind.
        let _ended = stopping.ended.recv_timeout(END_TIME);
    }
}

impl ServerThread {
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
            stop,
            id: thread.thread().id(),
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
        let endpoints = SERVER.lock().endpoints.clone();
        let endpoints = endpoints.iter();
        let endpoints = endpoints.map(|(number, of)| Some((*number, of.upgrade()?)));
        let endpoints: Vec<_> = endpoints.flatten().collect();
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
        for (number, endpoint) in &endpoints {
            for (at, subject) in what.iter().enumerate() {
                // Each one once, so that a request has no long answer by repetition.
                if what.iter().position(|other| other == subject) == Some(at) {
                    self.add_subject(*number, endpoint, *subject)?;
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
            Subject::Endpoints => {
                let record = EndpointRecord::new(number, endpoint);
                self.add(&Record::Endpoint(Box::new(record)))?;
            }
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
                    let links = rdma.map_or(&[][..], |group| &group.links);
                    let links = links.iter().map(|link| {
                        let interface = endpoint.interface_of(link);
                        let queues = rdma.map_or(&[][..], |group| &group.queues);
                        let queue = queues.iter().find(|queue| queue.link == link.id);
                        LinkRecord::new(link, queue, interface)
                    });
                    let links = links.collect();
                    let record = GroupRecord::new(number, &info, rdma, links);
                    self.add(&Record::Group(record))?;
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

/// Longest request.
const REQUEST_MAX: usize = 4096;

/// Packets of an answer are not longer, unless one record is.
const PACKET_LEN: usize = 32 * 1024;

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
    use rustix::net::RecvFlags;
    use smc_testkit::runtime::VirtualRuntime;

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
    fn an_endpoint_keeps_its_number_when_another_one_ends() {
        if !smc_testkit::process::is_alone() {
            return;
        }
        let endpoint = |seed| {
            let runtime = VirtualRuntime::new(seed).handle();
            crate::Builder::new().runtime(runtime).build().unwrap()
        };
        let request = serde_json::to_vec(&Request::new(&[Subject::Stats])).unwrap();
        let numbers = || {
            let records = answer_to(&request);
            let numbers = records.iter().filter_map(|record| match record {
                Record::Stats(stats) => Some(stats.endpoint),
                _ => None,
            });
            numbers.collect::<Vec<_>>()
        };
        let (first, _second) = (endpoint(1), endpoint(2));
        assert_eq!(numbers(), [0, 1]);
        drop(first);
        assert_eq!(numbers(), [1]);
        let _third = endpoint(3);
        assert_eq!(numbers(), [1, 2]);
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
}
