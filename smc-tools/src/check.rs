//! `smc check`: connects to a server as a program would, and says step by step what became of it.

use std::fmt::{Display, Write as _};
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde_json::{Map, Value as Json, json};
use smc::error::Refusal;
use smc::wire::types::DeclineCode;
use smc::{Domain, Endpoint, FallbackCause, FallbackReason, Mode, Stream};

use crate::output::print;
use crate::processes::printable;

/// Arguments of `smc check`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Connects for real: the server sees a connection that ends at once. What is found holds for programs of \
the user who runs this, with the same SMC_RUNTIME_DIR, in the same network namespace. The exit status is \
0 if the connection is SMC, 1 if it is TCP or there is none.

Examples:
  smc check localhost:8080
  sudo -u www-data smc check 127.0.0.1:8080")]
pub(crate) struct CheckArgs {
    /// The server, as host and port
    #[arg(value_name = "HOST:PORT")]
    server: String,
    /// Longest time for each address, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    timeout: u32,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run_check(args: &CheckArgs) -> Result<bool> {
    let mut report = Report::default();
    let is_smc = check(args, &mut report)?;
    match args.json {
        true => {
            report.fields.insert("smc".to_owned(), is_smc.into());
            print(&format!("{}\n", Json::Object(report.fields)))?;
        }
        false => print(&report.text)?,
    }
    Ok(is_smc)
}

/// What was found so far.
#[derive(Default)]
struct Report {
    text: String,
    fields: Map<String, Json>,
}

impl Report {
    /// A step and its result.
    fn add(&mut self, step: &str, result: impl Display) {
        let result = printable(&result.to_string());
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "{step:<11}{result}");
        let steps = self.fields.entry("steps").or_insert_with(|| json!([]));
        if let Some(steps) = steps.as_array_mut() {
            steps.push(json!({ "step": step, "result": result }));
        }
    }
}

fn check(args: &CheckArgs, report: &mut Report) -> Result<bool> {
    let addresses: Vec<SocketAddr> = match args.server.to_socket_addrs() {
        Ok(addresses) => addresses.collect(),
        Err(error) => {
            let name = &args.server;
            report.add("name", format!("{name:?} has no address: {error}"));
            report.add(
                "to do",
                "give HOST:PORT; check the name, /etc/hosts and DNS",
            );
            return Ok(false);
        }
    };
    let texts: Vec<_> = addresses.iter().map(ToString::to_string).collect();
    report.add("name", format!("{} is {}", args.server, texts.join(", ")));
    directory(report);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start tokio")?;
    runtime.block_on(async {
        let endpoint = match smc::tokio()
            .map_err(smc::Error::from)
            .and_then(smc::Builder::build)
        {
            Ok(endpoint) => endpoint,
            Err(error) => {
                report.add("device", format!("the loop device cannot be made: {error}"));
                report.add("to do", "see `smc devices`");
                return Ok(false);
            }
        };
        for device in endpoint.device_infos() {
            report.add("device", format!("{} can be used", device.name));
        }
        let mut is_smc = false;
        for address in addresses {
            is_smc = connect(&endpoint, address, args.timeout, report).await;
            if is_smc {
                break;
            }
        }
        endpoint.close().await;
        Ok(is_smc)
    })
}

/// The directory in which listeners of this host are found.
fn directory(report: &mut Report) {
    let domain = Domain::default();
    let uid = nix::unistd::geteuid().as_raw();
    let paths = domain.search_paths();
    let is_there = |path: &&std::path::PathBuf| Path::new(path).is_dir();
    let present: Vec<_> = paths
        .iter()
        .filter(is_there)
        .map(|path| path.display())
        .collect();
    let present: Vec<_> = present.iter().map(ToString::to_string).collect();
    match domain.unusable_of(uid) {
        Some(error) => {
            report.add(
                "directory",
                format!("none can be used by user {uid}: {error}"),
            );
        }
        None if present.is_empty() => {
            let searched: Vec<_> = paths
                .iter()
                .map(|path| path.display().to_string())
                .collect();
            let searched = searched.join(", ");
            report.add("directory", format!("none yet for user {uid}: {searched}"));
        }
        None => report.add("directory", format!("user {uid}: {}", present.join(", "))),
    }
}

async fn connect(endpoint: &Endpoint, to: SocketAddr, timeout: u32, report: &mut Report) -> bool {
    let begin = Instant::now();
    let limit = Duration::from_secs(timeout.max(1).into());
    let connected = tokio::time::timeout(limit, endpoint.connect(to)).await;
    let took = begin.elapsed();
    let stream = match connected {
        Ok(Ok(stream)) => stream,
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
    if let Some(uid) = listening_user(to) {
        report.add("listener", format!("a socket of user {uid} on this host"));
    }
    let stats = endpoint.stats();
    report.add("look-up", format!("{:.1?}", stats.look_ups.max));
    describe(&stream, report)
}

/// The owner of the socket that listens at this port of this host, as `/proc/net` states it; `None`
/// for an address of another host, or where there is no telling.
fn listening_user(to: SocketAddr) -> Option<u32> {
    let is_own = to.ip().is_loopback()
        || nix::ifaddrs::getifaddrs().is_ok_and(|mut all| {
            all.any(|interface| {
                let address = interface.address;
                let v4 = address.and_then(|it| Some(IpAddr::from(it.as_sockaddr_in()?.ip())));
                let v6 = address.and_then(|it| Some(IpAddr::from(it.as_sockaddr_in6()?.ip())));
                [v4, v6].contains(&Some(to.ip()))
            })
        });
    if !is_own {
        return None;
    }
    let lists = ["/proc/self/net/tcp", "/proc/self/net/tcp6"];
    lists.iter().find_map(|list| {
        let list = fs_err::read_to_string(list).ok()?;
        list.lines().find_map(|line| listener(line, to.port()))
    })
}

/// The owner in a line of `/proc/net/tcp`, if it is that of a socket that listens at this port.
fn listener(line: &str, port: u16) -> Option<u32> {
    let columns: Vec<_> = line.split_whitespace().collect();
    let [_, local, _, state, _, _, _, uid, ..] = *columns else {
        return None;
    };
    let (_, local_port) = local.rsplit_once(':')?;
    let is_it = state == "0A" && u16::from_str_radix(local_port, 16) == Ok(port);
    uid.parse().ok().filter(|_| is_it)
}

/// Says what the stream is. Returns whether it is SMC.
fn describe(stream: &Stream, report: &mut Report) -> bool {
    match stream.mode() {
        Mode::Tcp { reason, .. } => {
            report.add("mode", format!("TCP, {reason}"));
            report
                .fields
                .insert("reason".to_owned(), reason.local.0.into());
            report.add("to do", advice(reason));
            false
        }
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
        _ => "see the error",
    }
}

/// What to do when the connection is TCP.
fn advice(reason: &FallbackReason) -> String {
    let text = match &reason.cause {
        FallbackCause::NotAnnounced { .. } => {
            "the server does not use SMC, runs as another user, or uses another runtime directory or \
             network namespace: compare with `smc ss -l` there, as its user, and set the same \
             SMC_RUNTIME_DIR, or a shared domain, for both"
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
            "the policy of an endpoint is TCP for this address"
        }
        FallbackCause::Refused(_) | FallbackCause::Full(_) => {
            "the server is at a limit: `smc ss` there shows its streams, `ulimit -n` its descriptors"
        }
        FallbackCause::Directory(_) => {
            "the runtime directory cannot be used: mend owner and mode as the reason says"
        }
        FallbackCause::NotProven => {
            "the address is translated, or another process answers there: use an address of the \
             server's own network namespace"
        }
        FallbackCause::PeerDeclined(code) if *code == DeclineCode::MEM => {
            "the server has no memory left for buffers (`Builder::memory_limit`, `smc ss` there)"
        }
        FallbackCause::PeerDeclined(_) => "look at the server: `smc stats -d` has its reasons",
        FallbackCause::Os(_) | FallbackCause::Device { .. } => {
            "the system has refused a step: see the error, and limits of descriptors, memory and \
             mappings"
        }
        _ => "see the reason",
    };
    text.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_of_a_listening_socket_is_found_by_its_port() {
        let listening = "   1: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  \
                         1000        0 12345 1 0000000000000000 100 0 0 10 0";
        assert_eq!(listener(listening, 0x1f90), Some(1000));
        assert_eq!(listener(listening, 80), None);
        assert_eq!(listener(&listening.replace(" 0A ", " 01 "), 0x1f90), None);
        assert_eq!(listener("  sl  local_address rem_address   st", 80), None);
        let own = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let uid = nix::unistd::geteuid().as_raw();
        assert_eq!(listening_user(own.local_addr().unwrap()), Some(uid));
        assert_eq!(listening_user(([192, 0, 2, 1], 80).into()), None);
    }
}
