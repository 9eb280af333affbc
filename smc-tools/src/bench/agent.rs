//! Starts the servers of measurements that are driven from another machine.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::thread::sleep;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use smc_core::quota::LineQuota;

use super::end::{Role, Task};
use super::pair::{End, START};
use super::plan::{Apart, Workload};
use crate::child;
use crate::output;
use crate::processes::shown;
use crate::serve::ACCEPT_PAUSE;

/// Arguments of `smc bench-agent`.
///
/// Runs until it is ended. A peer that can connect can start measurement servers, one after the
/// other, each for up to 20 times the longest measuring time, and nothing
/// else.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example, in a guest with an ivshmem device, and on its host:
  smc bench-agent 10.0.0.2:7000
  smc bench rate pingpong bulk --transports ism-copy,tcp --remote 10.0.0.2:7000 \\
      --ism-server /run/smc/ism.sock")]
pub(crate) struct Args {
    /// Where to listen; servers do so at the same address, on other ports
    #[arg(value_name = "ADDRESS")]
    at: SocketAddr,

    /// ISM devices are on the fabric of the ivshmem server with this socket; else on that of an
    /// ivshmem device of this machine
    #[arg(long, value_name = "PATH")]
    ism_server: Option<PathBuf>,
}

/// Runs `smc bench-agent`.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let listener =
        TcpListener::bind(args.at).with_context(|| format!("cannot listen at {}", args.at))?;
    output::print(&format!("listening at {}\n", listener.local_addr()?))?;
    let mut quota = LineQuota::default();
    loop {
        let mut errors = Vec::new();
        let served = match listener.accept() {
            // One after the other: two would disturb each other.
            Ok((stream, _)) => serve_task(args, stream, &mut errors),
            // Such as a client that is gone, or too many open files.
            Err(error) => {
                sleep(ACCEPT_PAUSE);
                Err(error.into())
            }
        };
        errors.extend(served.err().map(|error| format!("{error:#}")));
        for error in errors {
            for line in lines(&mut quota, &error, Instant::now()) {
                output::note("smc bench-agent", &line);
            }
        }
    }
}

/// What is written about an error, whose text can be one of another machine.
fn lines(quota: &mut LineQuota, error: &str, now: Instant) -> Vec<String> {
    output::bounded(quota, "errors", shown(error), now)
}

/// Starts what the other machine asks for, forwards its output, and ends it when the other machine
/// has had enough. What it has written to standard error is appended to `errors`.
fn serve_task(args: &Args, mut stream: TcpStream, errors: &mut Vec<String>) -> Result<()> {
    let line = read_task(&stream, Instant::now() + START)?;
    let mut task: Task = serde_json::from_slice(&line).context("not a task")?;
    check(&task)?;
    let dir = child::directory("bench")?;
    task.dir = dir.path().to_owned();
    task.cell.settings.apart = Some(Apart {
        at: stream.local_addr()?.ip(),
        ism_server: args.ism_server.clone(),
    });
    let server = End::start_for_another(&task)?;
    let served = forward(&server, &mut stream).map(|()| {
        let end = Instant::now() + START + task.cell.settings.time * TIMES_MAX;
        wait_for_end(&stream, end);
    });
    errors.extend(server.finish());
    served
}

/// Forwards the line that a server writes when clients can connect.
fn forward(server: &End, stream: &mut TcpStream) -> Result<()> {
    writeln!(stream, "{}", server.line(START)?)?;
    Ok(())
}

/// Reads a line until this time.
fn read_task(mut stream: &TcpStream, until: Instant) -> Result<Vec<u8>> {
    let mut line = Vec::new();
    let mut piece = [0; 4096];
    while !line.ends_with(b"\n") {
        let left = until.saturating_duration_since(Instant::now());
        ensure!(!left.is_zero(), "no task within {START:?}");
        stream.set_read_timeout(Some(left))?;
        let len = stream.read(&mut piece).context("no task")?;
        line.extend_from_slice(piece.get(..len).unwrap_or_default());
        ensure!(len > 0, "the other machine has closed the connection");
        ensure!(
            line.len() <= TASK_MAX,
            "the task is longer than {TASK_MAX} bytes"
        );
    }
    Ok(line)
}

/// Waits until the other machine has closed the connection, or this time.
fn wait_for_end(mut stream: &TcpStream, end: Instant) {
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || stream.set_read_timeout(Some(left)).is_err() {
            return;
        }
        match stream.read(&mut [0; 64]) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
    }
}

/// Refuses a task that does more here than serve one measurement: the other machine decides neither
/// about files nor about devices, and its numbers are those that `smc bench` takes.
fn check(task: &Task) -> Result<()> {
    let Task { cell, role, .. } = task;
    ensure!(matches!(role, Role::Server), "not a server's task");
    ensure!(cell.site.is_none(), "a task with devices of its own");
    let kind = cell.transport;
    ensure!(kind.leaves_the_machine(), "{kind} stays within a machine");
    cell.case.check()?;
    cell.settings.check()?;
    let settings = &cell.settings;
    let connections = cell.case.connections();
    let buffer = match cell.case.workload {
        Workload::Rate | Workload::Bulk => settings.read,
        Workload::Pingpong | Workload::Fanin => settings.ping,
        Workload::Http => HTTP_BUFFER,
        Workload::Connect => 0,
    };
    ensure!(
        connections.saturating_mul(buffer) <= MEMORY_MAX,
        "{connections} connections with buffers of {buffer} bytes are more than {MEMORY_MAX} bytes"
    );
    Ok(())
}

/// Bytes of the buffers of all connections of a task.
const MEMORY_MAX: usize = 1 << 32;

/// Longest read buffer of a connection of hyper.
const HTTP_BUFFER: usize = 8192 + 4096 * 100;

/// A measurement with warm-up and end takes no more than this many times its measuring time.
const TIMES_MAX: u32 = 20;

/// Bytes of a task, and more than that.
const TASK_MAX: usize = 1 << 16;

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::thread;
    use std::time::Duration;

    use clap::Parser as _;

    use super::super::args::Args as Bench;
    use super::super::plan::{Plan, Site};
    use super::super::transport::Kind;
    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        bench: Bench,
    }

    /// A task as `smc bench --remote` sends it.
    fn task() -> Task {
        let line = Line::parse_from("bench rate --transports tcp --remote 127.0.0.1:1".split(' '));
        let plan = Plan::new(&line.bench).unwrap();
        let cell = plan.cells(0).next().unwrap();
        Task {
            cell,
            dir: PathBuf::new(),
            role: Role::Server,
        }
    }

    fn refusal(change: impl FnOnce(&mut Task)) -> String {
        let mut task = task();
        check(&task).unwrap();
        change(&mut task);
        check(&task).unwrap_err().to_string()
    }

    #[test]
    fn a_task_that_comes_byte_by_byte_is_given_up_in_time() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        // Until the other end is closed.
        let client = thread::spawn(move || {
            while client.write_all(b" ").is_ok() {
                sleep(Duration::from_millis(5));
            }
        });
        let error = read_task(&stream, Instant::now() + Duration::from_millis(100)).unwrap_err();
        assert!(error.to_string().starts_with("no task"), "{error:#}");
        drop(stream);
        client.join().unwrap();
    }

    #[test]
    fn errors_of_other_machines_reach_no_terminal_and_are_bounded() {
        let mut quota = LineQuota::default();
        let text = format!("unknown variant \u{1b}]0;x\u{7}{}", "y".repeat(100_000));
        let now = Instant::now();
        let written: Vec<_> = (0..1000)
            .flat_map(|_| lines(&mut quota, &text, now))
            .collect();
        assert_eq!(written.len() as u32, LineQuota::MAX + 1);
        assert!(written[0].len() < 1000);
        assert!(!written.concat().contains(['\u{1b}', '\u{7}']));
    }

    #[test]
    fn the_other_machine_names_no_files_devices_or_numbers_without_bound() {
        let fabric = Some(PathBuf::from("/var/lib/new"));
        let site = Site {
            fabric,
            ..Site::default()
        };
        assert_eq!(
            refusal(|task| task.cell.site = Some(site)),
            "a task with devices of its own"
        );
        assert_eq!(
            refusal(|task| task.cell.transport = Kind::Loop),
            "loop stays within a machine"
        );
        let text = refusal(|task| task.cell.settings.read = 1 << 40);
        assert!(text.starts_with("read is not between 1 and"), "{text}");
        let text = refusal(|task| task.cell.case.load = 0);
        assert!(text.contains("not 0"), "{text}");
        let text = refusal(|task| task.cell.settings.time *= 1_000_000);
        assert_eq!(text, "time is more than 600000 ms");
        let text = refusal(|task| {
            task.cell.case.workload = Workload::Fanin;
            task.cell.case.load = 10_000;
            task.cell.settings.ping = 1 << 20;
        });
        assert!(text.starts_with("10000 connections with"), "{text}");
    }
}
