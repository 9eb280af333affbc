//! A side of a scenario as a process: connects or listens, runs, and reports on stdout.

use std::collections::HashSet;
use std::io::{self, BufRead as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;

#[cfg(not(feature = "ours"))]
use anyhow::bail;
use anyhow::{Context as _, Result};

use super::connection::{Connection, Listener};
use super::script_runner::ScriptRunner;
use super::{Kind, Report, Script, bench, kernel};
use crate::protocol::{End, Event, Job, OurFeatures};

/// Runs the job that is on the first line of stdin. Further lines open gates.
pub(crate) fn run() -> Result<()> {
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    let job: Job = serde_json::from_str(&line).context("no job")?;
    let event_sender = job.events_to.map(EventSender::new).transpose()?;
    let sync_points: &'static SyncPoints = Box::leak(Box::new(SyncPoints {
        event_sender,
        ..SyncPoints::default()
    }));
    thread::spawn(|| {
        for line in io::stdin().lock().lines() {
            if line.is_err() {
                break;
            }
            sync_points.open();
        }
        // What has started this side is gone, perhaps with the connection between two hosts.
        std::process::exit(1);
    });
    #[cfg(feature = "ours")]
    if job.kind == Kind::Ours && !job.measures.is_empty() {
        let report = bench::run_ours(&job, sync_points);
        emit(&Event::Report(report.unwrap_or_else(failed)));
        return Ok(());
    }
    let maker = Maker::new(&job)?;
    let report = match job.end {
        End::Connect(to) if job.measures.is_empty() => client(&maker, to, &job.script, sync_points),
        End::Connect(to) => bench::client(&maker, to, &job.measures, sync_points),
        End::Listen(at) => maker.listen(at).and_then(|listener| {
            sync_points.mark("listening");
            if job.measures.is_empty() {
                server(&*listener, &job.script, sync_points)
            } else {
                bench::server(&*listener, &job.measures)
            }
        }),
    };
    let mut report = report.unwrap_or_else(failed);
    report.failures.extend(maker.end());
    sync_points.send_event("closed");
    emit(&Event::Report(report));
    Ok(())
}

#[expect(clippy::needless_pass_by_value, reason = "for `unwrap_or_else`")]
fn failed(error: anyhow::Error) -> Report {
    Report {
        failures: vec![format!("{error:#}")],
        ..Report::default()
    }
}

/// What all connections of a side share: marks and gates.
#[derive(Debug, Default)]
pub(crate) struct SyncPoints {
    marks: Mutex<HashSet<String>>,
    /// Gates opened and gates passed.
    gates: Mutex<(u32, u32)>,
    opened: Condvar,
    event_sender: Option<EventSender>,
}

impl SyncPoints {
    /// Reports to the host, the first time.
    pub(crate) fn mark(&self, name: &str) {
        let mut marks = self.marks.lock().unwrap_or_else(PoisonError::into_inner);
        if marks.insert(name.to_owned()) {
            self.send_event(name);
            emit(&Event::Mark(name.to_owned()));
        }
    }

    /// Reports to the host and waits for its answer.
    pub(crate) fn gate(&self, name: &str) {
        emit(&Event::Mark(name.to_owned()));
        let mut gates = self.gates.lock().unwrap_or_else(PoisonError::into_inner);
        gates.1 += 1;
        let ticket = gates.1;
        while gates.0 < ticket {
            gates = self
                .opened
                .wait(gates)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Sends it to the network, if this is configured.
    fn send_event(&self, words: &str) {
        if let Some(EventSender { socket, to }) = &self.event_sender {
            // No listener is expected.
            let _ = socket.send_to(words.as_bytes(), to);
        }
    }

    fn open(&self) {
        let mut gates = self.gates.lock().unwrap_or_else(PoisonError::into_inner);
        gates.0 += 1;
        self.opened.notify_all();
    }
}

/// Sends words to a port without a listener.
#[derive(Debug)]
struct EventSender {
    socket: UdpSocket,
    to: SocketAddr,
}

impl EventSender {
    fn new(to: SocketAddr) -> Result<Self> {
        let any: IpAddr = match to {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = UdpSocket::bind((any, 0)).context("no socket to send events with")?;
        Ok(Self { socket, to })
    }
}

/// Writes an event for the agent.
pub(crate) fn emit(event: &Event) {
    if let Ok(line) = serde_json::to_string(event) {
        let mut out = io::stdout().lock();
        // This process ends with its agent.
        let _ = writeln!(out, "{line}").and_then(|()| out.flush());
    }
}

fn client(
    maker: &Maker,
    to: SocketAddr,
    script: &Script,
    sync_points: &SyncPoints,
) -> Result<Report> {
    let mut report = Report::default();
    for _ in 0..script.rounds {
        let mut open: Vec<Box<dyn Connection>> = Vec::new();
        for index in 0..script.connections {
            let conn = maker
                .connect(to)
                .with_context(|| format!("connection {index}"))?;
            open.push(conn);
        }
        for conn in open.iter().take(QUERIED) {
            report.note_carrier(&**conn)?;
        }
        sync_points.mark("connected");
        run_all(open, true, script, sync_points, &mut report);
    }
    Ok(report)
}

fn server(listener: &dyn Listener, script: &Script, sync_points: &SyncPoints) -> Result<Report> {
    let mut report = Report::default();
    for _ in 0..script.rounds {
        let mut open = Vec::new();
        for _ in 0..script.connections {
            let conn = listener.accept().context("accept")?;
            if open.len() < QUERIED {
                report.note_carrier(&*conn)?;
            }
            open.push(conn);
        }
        sync_points.mark("accepted");
        run_all(open, false, script, sync_points, &mut report);
    }
    Ok(report)
}

/// Each connection in a thread of its own.
fn run_all(
    open: Vec<Box<dyn Connection>>,
    is_client: bool,
    script: &Script,
    sync_points: &SyncPoints,
    report: &mut Report,
) {
    let results: Vec<_> = thread::scope(|scope| {
        let runners: Vec<_> = open
            .into_iter()
            .map(|conn| {
                thread::Builder::new()
                    .stack_size(STACK)
                    .spawn_scoped(scope, move || {
                        match ScriptRunner::new(conn, is_client, sync_points) {
                            Ok(runner) => runner.run(&script.steps),
                            Err(error) => (0, 0, Err(error.into())),
                        }
                    })
            })
            .collect();
        runners
            .into_iter()
            .map(|runner| match runner.map(|runner| runner.join()) {
                Ok(Ok(result)) => result,
                Ok(Err(_)) => (0, 0, Err(anyhow::anyhow!("panicked"))),
                Err(error) => (0, 0, Err(error.into())),
            })
            .collect()
    });
    for (sent, received, result) in results {
        report.connections += 1;
        report.sent += sent;
        report.received += received;
        if let Err(error) = result {
            report.failures.push(format!("{error:#}"));
        }
    }
}

impl Report {
    pub(super) fn note_carrier(&mut self, conn: &dyn Connection) -> Result<()> {
        let carrier = conn.carrier().context("what carries it")?;
        if !self.carriers.contains(&carrier) {
            self.carriers.push(carrier);
        }
        Ok(())
    }
}

/// Makes connections of one kind.
pub(super) enum Maker {
    Sockets(kernel::Sockets),
    #[cfg(feature = "ours")]
    Ours(super::ours::Ours),
}

impl Maker {
    fn new(job: &Job) -> Result<Self> {
        Ok(match job.kind {
            Kind::Kernel => Self::Sockets(kernel::Sockets::Smc),
            Kind::Tcp if job.features == OurFeatures::FastOpen => {
                Self::Sockets(kernel::Sockets::TcpFastOpen)
            }
            Kind::Tcp => Self::Sockets(kernel::Sockets::Tcp),
            #[cfg(feature = "ours")]
            Kind::Ours => Self::Ours(super::ours::Ours::new(job)?),
            #[cfg(not(feature = "ours"))]
            Kind::Ours => bail!("built without feature `ours`"),
        })
    }

    /// A listener may not be there yet in the first moments, though it reported it.
    pub(super) fn connect(&self, to: SocketAddr) -> Result<Box<dyn Connection>> {
        Ok(match self {
            Self::Sockets(sockets) => Box::new(
                sockets
                    .connect(to)
                    .with_context(|| format!("connect to {to}"))?,
            ),
            #[cfg(feature = "ours")]
            Self::Ours(ours) => ours.connect(to)?,
        })
    }

    fn listen(&self, at: SocketAddr) -> Result<Box<dyn Listener>> {
        Ok(match self {
            Self::Sockets(sockets) => Box::new(
                sockets
                    .listen(at)
                    .with_context(|| format!("listen at {at}"))?,
            ),
            #[cfg(feature = "ours")]
            Self::Ours(ours) => ours.listen(at)?,
        })
    }

    /// Gives what was closed the time to be closed; the kernel needs none. Returns what is
    /// wrong then.
    fn end(&self) -> Vec<String> {
        match self {
            Self::Sockets(_) => Vec::new(),
            #[cfg(feature = "ours")]
            Self::Ours(ours) => ours.end(),
        }
    }
}

/// Connections whose transport is queried; the query reads all sockets.
const QUERIED: usize = 4;

const STACK: usize = 256 * 1024;
