//! `smc check`: connects to a server as a program would, and says step by step what became of it.

use std::fmt::Display;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use nix::errno::Errno;
use serde::Serialize;
use serde_json::{Map, Value as Json, json};
use smc::error::Refusal;
use smc::info::{CandidateTransport, Exclusion};
use smc::record::{CandidateRecord, ConnectionRecord};
use smc::wire::types::DeclineCode;
use smc::{Domain, Endpoint, FallbackCause, FallbackReason, Mode, Stream, Target};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::runtime::Runtime;
use tokio::time::timeout;

use crate::endpoint::{self, EndpointArgs};
use crate::output::{Usage, print};
use crate::processes::{escaped, printable, results};
use crate::user::become_user;
use crate::values;

/// Arguments of `smc check`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Connects for real: the server sees a connection that ends at once. What is found holds for programs of \
the user who runs this, with the same SMC_RUNTIME_DIR, in the same network namespace. --user switches \
user, group and supplementary groups, and not the environment: SMC_RUNTIME_DIR counts as the caller has \
it, XDG_RUNTIME_DIR only if that directory is the user's, and HOME is not read.

No data is sent, unless with --round-trip: then the server gets ten probes of 32 bytes, one after the \
other, each `smc check probe ` and a number of 16 hexadecimal digits, and has to send each of them back. \
`smc listen` does, and so does any echo server.

The exit status is 0 if the connection is SMC, 1 if it is TCP or there is none, 2 for wrong arguments.

Examples:
  smc check localhost:8080
  smc check --user www-data 127.0.0.1:8080
  smc check --round-trip 127.0.0.1:4000    # where `smc listen 4000` runs")]
pub(crate) struct CheckArgs {
    /// The server
    #[arg(value_name = "HOST:PORT", value_parser = values::target)]
    server: Target,
    /// Longest time for each address, and for the probes
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = values::some_seconds)]
    timeout: Duration,
    /// Connect as a program of this user; takes root
    #[arg(long, value_name = "NAME|UID")]
    user: Option<String>,
    /// Send probes to the server, which has to send them back, and report the time
    #[arg(long)]
    round_trip: bool,
    /// One JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    endpoint: EndpointArgs,
}

/// Runs the command.
pub(crate) fn run_check(args: &CheckArgs) -> Result<bool> {
    let mut report = Report {
        json: args.json,
        written: Ok(()),
        // Members that may not be found out.
        fields: [
            "reason",
            "peer_reason",
            "candidates",
            "connection",
            "round_trip",
        ]
        .map(|name| (name.to_owned(), Json::Null))
        .into_iter()
        .collect(),
    };
    if let Some(user) = &args.user {
        report.add("user", become_user(user)?);
    }
    let is_smc = check(args, &mut report)?;
    report.set("smc", &is_smc);
    if args.json {
        let line = Json::Object(report.fields).to_string();
        print(&(escaped(&line) + "\n"))?;
    }
    report.written.map(|()| is_smc)
}

/// What was found so far. As text each step is written at once: the next one can take long.
struct Report {
    json: bool,
    /// The first error of writing.
    written: Result<()>,
    fields: Map<String, Json>,
}

impl Report {
    /// A step and its result.
    fn add(&mut self, step: &str, result: impl Display) {
        let result = printable(&result.to_string());
        if !self.json && self.written.is_ok() {
            self.written = print(&format!("{step:<11}{result}\n"));
        }
        let steps = self.fields.entry("steps").or_insert_with(|| json!([]));
        if let Some(steps) = steps.as_array_mut() {
            steps.push(json!({ "step": step, "result": result }));
        }
    }

    /// A member of the JSON object.
    fn set(&mut self, name: &str, value: &impl Serialize) {
        let value = serde_json::to_value(value).unwrap_or_default();
        self.fields.insert(name.to_owned(), value);
    }
}

fn check(args: &CheckArgs, report: &mut Report) -> Result<bool> {
    let name = endpoint::name(&args.server);
    let found = match &args.server {
        Target::Addr(address) => Ok(vec![*address]),
        Target::Name(host, port) => {
            let found = (host.as_str(), *port).to_socket_addrs();
            found.map(Iterator::collect::<Vec<_>>)
        }
        other => return Err(Usage::new(format!("{other:?} is no server")).into()),
    };
    let addresses = match found {
        Ok(addresses) => addresses,
        Err(error) => {
            report.add("name", format!("{name} has no address: {error}"));
            report.add("to do", "check the name, /etc/hosts and DNS");
            return Ok(false);
        }
    };
    let texts: Vec<_> = addresses.iter().map(ToString::to_string).collect();
    report.add("name", format!("{name} is {}", texts.join(", ")));
    directory(report);
    let runtime = Runtime::new().context("cannot start tokio")?;
    runtime.block_on(async {
        let endpoint = match args.endpoint.build() {
            Ok(endpoint) => endpoint,
            Err(error) => {
                report.add("device", format!("{error:#}"));
                let advice = match args.endpoint.has_rdma_device() {
                    true => "see `smc devices`",
                    false => "see `smc devices`, and the limits of this process (`ulimit -n`)",
                };
                report.add("to do", advice);
                return Ok(false);
            }
        };
        let mut is_smc = false;
        for address in addresses {
            devices(&endpoint, address, report).await;
            is_smc = connect(&endpoint, address, args, report).await;
            if is_smc {
                break;
            }
        }
        endpoint::close(endpoint).await;
        Ok(is_smc)
    })
}

/// The directory in which listeners of this host are found. A look-up waits for as long as another
/// user holds the lock of the directory above it, so that a thread of its own does it.
fn directory(report: &mut Report) {
    let uid = nix::unistd::geteuid().as_raw();
    let (mut found, _missing) = results([(uid, move || found(uid))], Instant::now() + LOOK_UP);
    let found = found.pop().unwrap_or_else(|| {
        format!("not known for user {uid}: nothing within {LOOK_UP:?}, as with a lock held by another user")
    });
    report.add("directory", found);
}

fn found(uid: u32) -> String {
    let domain = Domain::default();
    let joined = |paths: Vec<PathBuf>| {
        let paths: Vec<_> = paths.iter().map(|it| it.display().to_string()).collect();
        paths.join(", ")
    };
    let searched = domain.search_paths();
    let (present, missing) = searched
        .into_iter()
        .partition::<Vec<_>, _>(|it| it.is_dir());
    match domain.unusable_of(uid) {
        Some(error) => format!("none can be used by user {uid}: {error}"),
        None if present.is_empty() => format!("none yet for user {uid}: {}", joined(missing)),
        None => format!("user {uid}: {}", joined(present)),
    }
}

/// The devices that a connection to this address could use, and why it does not use the others.
async fn devices(endpoint: &Endpoint, to: SocketAddr, report: &mut Report) {
    // There is no error for an address.
    let candidates = endpoint.candidates(to).await.unwrap_or_default();
    let records: Vec<_> = candidates.iter().map(CandidateRecord::from).collect();
    report.set("candidates", &records);
    for candidate in candidates {
        let device = match &candidate.transport {
            CandidateTransport::SmcD { device, gid, .. } => format!("{device}, GID {gid}"),
            CandidateTransport::SmcR {
                device, port, gid, ..
            } => format!("{device}, port {port}, GID {gid}"),
            _ => continue,
        };
        match &candidate.excluded {
            Some(Exclusion::Device(why)) => {
                report.add("device", format!("{device} is not offered: {why}"));
            }
            // Why there is no SMC at all follows.
            _ => report.add("device", format!("{device} can be used")),
        }
    }
}

async fn connect(
    endpoint: &Endpoint,
    to: SocketAddr,
    args: &CheckArgs,
    report: &mut Report,
) -> bool {
    let begin = Instant::now();
    let limit = args.timeout;
    let connected = timeout(limit, endpoint.connect(to)).await;
    let took = begin.elapsed();
    let mut stream = match connected {
        Ok(Ok(stream)) => stream,
        Ok(Err(smc::Error::Declined(reason))) => {
            report.add(
                "connect",
                format!("{to}: SMC is required, and not possible"),
            );
            return fallback(&reason, None, report);
        }
        Ok(Err(error)) => {
            report.add("connect", format!("{to}: {error}"));
            report.add("to do", connect_advice(&error));
            return false;
        }
        Err(_) => {
            report.add("connect", format!("{to}: no answer within {limit:?}"));
            let advice = "the host drops packets (firewall), or the process is stopped: look \
                          at it with `ps` and `ss -ltn`";
            report.add("to do", advice);
            return false;
        }
    };
    report.add("connect", format!("{to}: connected in {took:.1?}"));
    let owner = smc_negotiate_local::listening_user(to).ok().flatten();
    if let Some(uid) = owner {
        report.add("listener", format!("a socket of user {uid} on this host"));
    }
    let look_ups = endpoint.stats().look_ups;
    if look_ups.count > 0 {
        report.add("look-up", format!("{:.1?}", look_ups.max));
    }
    let is_smc = describe(&stream, owner, report);
    if let Some(info) = endpoint.connections().first() {
        report.set("connection", &ConnectionRecord::from(info));
    }
    if args.round_trip {
        round_trip(&mut stream, limit, report).await;
    }
    is_smc
}

/// Says how long probes take to the server and back.
async fn round_trip(stream: &mut Stream, limit: Duration, report: &mut Report) {
    // A stream that was reset takes no options.
    let _reset = stream.set_nodelay(true);
    let result = match timeout(limit, probe(stream)).await {
        Ok(result) => result,
        Err(_elapsed) => Err(io::Error::new(
            io::ErrorKind::TimedOut,
            format!("no answer within {limit:?}"),
        )),
    };
    match result {
        Ok(mut times) => {
            times.sort_unstable();
            let (best, median) = (times[0], times[PROBES / 2]);
            let text = format!("{best:.1?} at best, median {median:.1?}, of {PROBES} probes");
            report.add("round trip", text);
            let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
            let times = json!({ "min_ns": nanos(best), "median_ns": nanos(median) });
            report.set("round_trip", &times);
        }
        Err(error) => {
            report.add("round trip", &error);
            report.add("to do", probe_advice(&error));
        }
    }
}

async fn probe(stream: &mut Stream) -> io::Result<[Duration; PROBES]> {
    let mut times = [Duration::ZERO; PROBES];
    for (number, time) in times.iter_mut().enumerate() {
        let probe = format!("smc check probe {number:016x}");
        let mut answer = [0; PROBE_LEN];
        let begin = Instant::now();
        stream.write_all(probe.as_bytes()).await?;
        stream.read_exact(&mut answer).await?;
        *time = begin.elapsed();
        if answer != *probe.as_bytes() {
            let what = "the server has sent something else than the probe";
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
    }
    Ok(times)
}

/// What to do when probes do not come back.
fn probe_advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::TimedOut => {
            "the server does not send probes back, as `smc listen` does, or it is stopped: look at it \
             with `ps` and `smc ss -d`"
        }
        io::ErrorKind::InvalidData => "check a server that sends back what it gets: `smc listen`",
        _ => "the server has ended the connection or itself: look at its log",
    }
}

/// Says what the stream is. Returns whether it is SMC.
fn describe(stream: &Stream, owner: Option<u32>, report: &mut Report) -> bool {
    match stream.mode() {
        Mode::Tcp { reason, .. } => fallback(reason, owner, report),
        mode => {
            report.add("mode", mode);
            match &mode {
                Mode::SmcD { peer, eid, .. } => {
                    let eid = eid.map_or_else(|| "none".to_owned(), |eid| eid.to_string());
                    report.add("peer", format!("GID {peer}, EID {eid}"));
                }
                Mode::SmcR {
                    local, peer, eid, ..
                } => {
                    let eid = eid.map_or_else(|| "none".to_owned(), |eid| eid.to_string());
                    report.add("peer", format!("GID {local} to {peer}, EID {eid}"));
                }
                _ => {}
            }
            if let (Some(own), Some(peer)) =
                (stream.recv_buffer_size(), stream.peer_recv_buffer_size())
            {
                report.add("buffers", format!("{own} bytes here, {peer} at the peer"));
            }
            true
        }
    }
}

/// Says why the connection is not SMC.
fn fallback(reason: &FallbackReason, owner: Option<u32>, report: &mut Report) -> bool {
    report.add("mode", format!("TCP, {reason}"));
    report.set("reason", &reason.local.0);
    report.set("peer_reason", &reason.peer.map(|code| code.0));
    let own = nix::unistd::geteuid().as_raw();
    match owner.filter(|owner| *owner != own) {
        Some(owner) if matches!(reason.cause, FallbackCause::NotAnnounced { .. }) => {
            let text = format!(
                "the server runs as user {owner}: as root `smc check --user {owner}` shows whether \
                 it uses SMC; if so, user {own} needs a shared domain (`Domain::shared`) at both ends"
            );
            report.add("to do", text);
        }
        Some(owner) if matches!(reason.cause, FallbackCause::Directory(_)) => {
            let text = format!(
                "the runtime directory is not one of user {own}; the server runs as user {owner}: as \
                 root `smc check --user {owner}`"
            );
            report.add("to do", text);
        }
        _ => report.add("to do", advice(reason)),
    }
    false
}

/// What to do when there is no connection.
fn connect_advice(error: &smc::Error) -> &'static str {
    let smc::Error::Io(error) = error else {
        return "see the error";
    };
    match error.kind() {
        io::ErrorKind::ConnectionRefused => {
            "no process listens there: look at `ss -ltn` and `smc ss -l` on the server's host"
        }
        io::ErrorKind::TimedOut
        | io::ErrorKind::HostUnreachable
        | io::ErrorKind::NetworkUnreachable => {
            "the host cannot be reached: check the address, routes and firewalls"
        }
        io::ErrorKind::ConnectionReset => {
            "the server has accepted the connection and ended it: look at the server's log"
        }
        _ if is_out_of_descriptors(error.code()) => "descriptors are used up: raise `ulimit -n`",
        _ => "see the error",
    }
}

fn is_out_of_descriptors(code: Option<i32>) -> bool {
    let errno = code.map(Errno::from_raw);
    matches!(errno, Some(Errno::EMFILE | Errno::ENFILE))
}

/// What to do when the connection is TCP.
fn advice(reason: &FallbackReason) -> &'static str {
    match &reason.cause {
        FallbackCause::NotAnnounced { .. } => {
            "the server does not use SMC, or uses another runtime directory or network \
             namespace: compare with `smc ss -l` there, as its user, and set the same \
             SMC_RUNTIME_DIR, or a shared domain, for both. A server on another host takes `--rdma`"
        }
        FallbackCause::NoSynOption => {
            "the server's kernel sends no SMC option: is SMC enabled there, and does no firewall \
             remove TCP options?"
        }
        FallbackCause::NoDevice | FallbackCause::OtherHost => {
            "there is no device for this peer: a loop device reaches this host only; see \
             `smc devices`"
        }
        FallbackCause::NoCommonEid => {
            "give both ends a common UEID (`Builder::ueid`), or enable the system EID on both"
        }
        FallbackCause::NoAnswer { .. } | FallbackCause::BackOff => {
            "the server is stopped, or has no CPU time or descriptors: look at it with `ps` and \
             `smc ss`"
        }
        FallbackCause::PlainServer => "the server does not use SMC",
        FallbackCause::ListenerGone => "the server has just ended; check again",
        FallbackCause::Refused(Refusal::User { .. }) | FallbackCause::User { .. } => {
            "the server does not list this user: both ends have to list each other \
             (`Domain::shared`)"
        }
        FallbackCause::NotOwner { .. } => {
            "the process that announces the server is not the one that listens: end it, or look at \
             the owner of the directory"
        }
        FallbackCause::Refused(Refusal::Policy) | FallbackCause::Policy => {
            "the policy of one end is TCP for this address: `--policy` here, `Builder::policy` at the \
             server"
        }
        FallbackCause::Refused(_) | FallbackCause::Full(_) => {
            "the server is at a limit: `smc ss` there shows its streams, `ulimit -n` its descriptors"
        }
        FallbackCause::Directory(_) => {
            "the runtime directory cannot be used: correct owner and mode as the reason says"
        }
        FallbackCause::NotProven => {
            "the address is translated, or another process answers there: use an address of the \
             server's own network namespace"
        }
        FallbackCause::PeerDeclined(code) if *code == DeclineCode::MEM => {
            "the server has no memory left for buffers (`Builder::memory_limit`, `smc ss` there)"
        }
        FallbackCause::PeerDeclined(
            DeclineCode::NOSMCDEV
            | DeclineCode::NOSMCRDEV
            | DeclineCode::NOISM2SUPP
            | DeclineCode::NOSMCD2DEV,
        ) => {
            "the server has no device that works for this connection: look at `smc devices \
             --endpoints` there, and at the limits of its process"
        }
        FallbackCause::PeerDeclined(
            DeclineCode::NOSMCDDEV | DeclineCode::NOSEID | DeclineCode::NOUEID,
        ) => {
            "the ends have no EID, or no device, in common: compare `--ueid` and `--no-seid` here \
             with `Builder::ueid` and `seid` at the server, and `smc devices --endpoints`"
        }
        FallbackCause::PeerDeclined(_) => "look at the server: `smc stats -d` has its reasons",
        FallbackCause::Os(_) | FallbackCause::Device { .. } => {
            "the system has refused a step: see the error, and limits of descriptors, memory and \
             mappings"
        }
        _ => "see the reason",
    }
}

/// How long the look-up of the directory may take.
const LOOK_UP: Duration = Duration::from_secs(2);
/// Probes of a round trip.
const PROBES: usize = 10;
/// Bytes of a probe.
const PROBE_LEN: usize = 32;
