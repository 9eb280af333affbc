//! The two processes of a measurement, as their parent sees them.

use std::io::{self, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::process::{Child, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use super::end::{Ready, Role, Task};
use super::figure::Sample;
use super::observe::Observer;
use super::plan::Cell;
use super::transport::Kind;
use crate::child::{self, lines_of};
use crate::processes::shown;

/// What came of a cell.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Outcome {
    Measured(Sample),
    /// It cannot be measured on this machine, and why.
    Skipped(String),
    /// It should have been measured.
    Failed(String),
    /// All ports are taken, most likely by connections that were closed a moment ago.
    Overloaded(String),
}

impl Outcome {
    /// With a text that can be one of another machine as it is shown.
    fn shown(self) -> Self {
        match self {
            Self::Measured(sample) => Self::Measured(sample),
            Self::Skipped(why) => Self::Skipped(shown(&why)),
            Self::Failed(why) => Self::Failed(shown(&why)),
            Self::Overloaded(why) => Self::Overloaded(shown(&why)),
        }
    }
}

/// Measures a cell, with the server in another machine if its agent is given. When earlier
/// measurements have left no port, waits until they are given back, and reports it with `report`.
pub(super) fn run(cell: &Cell, remote: Option<SocketAddr>, report: impl Fn(&str)) -> Outcome {
    let attempt = || {
        measure(cell, remote)
            .unwrap_or_else(|error| Outcome::Failed(format!("{error:#}")))
            .shown()
    };
    match attempt() {
        Outcome::Overloaded(why) => {
            report(&format!(
                "{cell}: {why}; again in {} s",
                TIME_WAIT.as_secs()
            ));
            thread::sleep(TIME_WAIT);
            attempt()
        }
        outcome => outcome,
    }
}

fn measure(cell: &Cell, remote: Option<SocketAddr>) -> Result<Outcome> {
    let dir = child::directory("bench")?;
    let timeout = START + cell.settings.time * 10;
    let task = |role| Task {
        cell: cell.clone(),
        dir: dir.path().to_owned(),
        role,
    };
    let server = match remote {
        None => End::start(&task(Role::Server))?,
        Some(agent) => End::start_remotely(&task(Role::Server), agent)?,
    };
    let ready = match server.ready()? {
        Ready::At(address) => address,
        Ready::Skip(why) => return Ok(Outcome::Skipped(why)),
    };
    let client = End::start(&task(Role::Client {
        address: ready,
        server: server.process(),
    }))?;
    let observer = match (cell.transport, server.process(), client.process()) {
        (Kind::LoopObserved, Some(server), Some(client)) => Some(Observer::start([server, client])),
        _ => None,
    };
    let line = client.line(timeout).context("the client failed");
    observer.map_or(Ok(()), Observer::end)?;
    let line = line?;
    let outcome = serde_json::from_str(&line).context("the client sent an invalid result")?;
    // The client goes first, so that the server sees connections end in order.
    drop(client);
    drop(server);
    Ok(outcome)
}

/// One of the two, ended when dropped.
pub(super) struct End {
    handle: ServerHandle,
    lines: mpsc::Receiver<io::Result<String>>,
    /// Lines of its standard error, if that is not the one of this process.
    errors: Option<mpsc::Receiver<io::Result<String>>>,
}

/// What keeps an end going; it ends with that, even if this process is killed.
enum ServerHandle {
    Child(Child),
    /// The connection to the agent.
    Remote(TcpStream),
}

impl End {
    /// Starts it as a child, which has the standard error of this process.
    pub(super) fn start(task: &Task) -> Result<Self> {
        Self::start_child(task, Stdio::inherit())
    }

    /// As [`End::start`], for a task of another machine: [`End::finish`] gives what it writes to
    /// standard error.
    pub(super) fn start_for_another(task: &Task) -> Result<Self> {
        Self::start_child(task, Stdio::piped())
    }

    fn start_child(task: &Task, errors: Stdio) -> Result<Self> {
        let (mut child, lines) = child::start("bench-end", task, errors, &[])?;
        Ok(Self {
            lines,
            errors: child.stderr.take().map(lines_of),
            handle: ServerHandle::Child(child),
        })
    }

    /// Ends it. Returns what it has written to standard error: a few lines at most.
    pub(super) fn finish(mut self) -> Vec<String> {
        let errors = self.errors.take();
        drop(self);
        let mut lines = Vec::new();
        while let Some(Ok(Ok(line))) = errors.as_ref().map(|errors| errors.recv_timeout(END)) {
            lines.push(line);
        }
        lines
    }

    /// Has an agent start it in its machine.
    fn start_remotely(task: &Task, agent: SocketAddr) -> Result<Self> {
        let attempt = || {
            let mut stream = TcpStream::connect_timeout(&agent, START)?;
            let mut line = serde_json::to_string(task)?;
            line.push('\n');
            stream.write_all(line.as_bytes())?;
            anyhow::Ok((stream.try_clone()?, stream))
        };
        let (stream, reader) = attempt().with_context(|| {
            format!("no agent at {agent}, where `smc bench-agent {agent}` starts one")
        })?;
        Ok(Self {
            lines: lines_of(reader),
            errors: None,
            handle: ServerHandle::Remote(stream),
        })
    }

    /// Number of the process, if it is one of this machine.
    fn process(&self) -> Option<u32> {
        match &self.handle {
            ServerHandle::Child(child) => Some(child.id()),
            ServerHandle::Remote(_) => None,
        }
    }

    /// What a server reports when it has started. Of another machine's the address is one of the
    /// agent.
    pub(super) fn ready(&self) -> Result<Ready> {
        let line = self.line(START).context("the server did not start")?;
        let ready = serde_json::from_str(&line)?;
        if let (Ready::At(address), ServerHandle::Remote(stream)) = (&ready, &self.handle) {
            check_address(address, stream.peer_addr()?)?;
        }
        Ok(ready)
    }

    /// The next line of its output.
    pub(super) fn line(&self, timeout: Duration) -> Result<String> {
        match self.lines.recv_timeout(timeout) {
            Ok(line) => Ok(line?),
            Err(mpsc::RecvTimeoutError::Timeout) => bail!("nothing within {timeout:?}"),
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                bail!("it has ended; its standard error has the reason")
            }
        }
    }
}

/// Refuses an address elsewhere than at the agent, which would choose whom this machine connects
/// to.
fn check_address(address: &str, agent: SocketAddr) -> Result<()> {
    let at: Option<SocketAddr> = address.parse().ok();
    let is_agents = at.is_some_and(|at| at.ip().to_canonical() == agent.ip().to_canonical());
    ensure!(
        is_agents,
        "the agent at {agent} has its server at {address}, which is not at the same IP address"
    );
    Ok(())
}

impl Drop for End {
    fn drop(&mut self) {
        match &mut self.handle {
            ServerHandle::Child(child) => {
                drop(child.stdin.take());
                let until = Instant::now() + END;
                while matches!(child.try_wait(), Ok(None)) && Instant::now() < until {
                    thread::sleep(Duration::from_millis(1));
                }
                // Most often it has ended by now.
                let _killed = child.kill();
                let _reaped = child.wait();
            }
            ServerHandle::Remote(stream) => {
                // The agent closes its end when the process has ended.
                let _ignored = stream.shutdown(Shutdown::Write);
                let until = Instant::now() + END;
                while Instant::now() < until && self.lines.recv_timeout(END).is_ok() {}
                // Ends the thread that reads from it.
                let _ignored = stream.shutdown(Shutdown::Both);
            }
        }
    }
}

/// How long a process may take to start, and what it takes to open connections and to warm up.
pub(super) const START: Duration = Duration::from_secs(60);

/// How long a process may take to end.
const END: Duration = Duration::from_secs(3);

/// For how long a closed connection keeps its port, and some more.
const TIME_WAIT: Duration = Duration::from_secs(62);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_another_machine_reach_no_terminal() {
        let outcome = Outcome::Failed("connect to \u{1b}]0;x\u{7}\nsmc: forged".into()).shown();
        let Outcome::Failed(text) = outcome else {
            panic!("{outcome:?}");
        };
        assert!(!text.contains(['\u{1b}', '\u{7}', '\n']), "{text}");
        let Outcome::Skipped(text) = Outcome::Skipped("y".repeat(100_000)).shown() else {
            panic!("not skipped");
        };
        assert!(text.len() < 1000);
    }

    #[test]
    fn an_agent_has_its_servers_at_its_own_address() {
        let agent = "10.0.0.2:7000".parse().unwrap();
        check_address("10.0.0.2:41000", agent).unwrap();
        check_address("[::ffff:10.0.0.2]:41000", agent).unwrap();
        for other in ["10.0.0.3:80", "/run/other.sock", "", "10.0.0.2"] {
            let error = check_address(other, agent).unwrap_err().to_string();
            assert!(error.contains("not at the same IP address"), "{error}");
        }
    }
}
