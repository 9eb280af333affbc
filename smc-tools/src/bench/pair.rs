//! The two processes of a measurement, as their parent sees them.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use super::end::{Ready, Role, Task};
use super::figure::Sample;
use super::plan::Cell;

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
    Crowded(String),
}

/// Measures a cell. When earlier measurements have left no port, waits until they are given back,
/// and says so with `say`.
pub(super) fn run(cell: &Cell, say: impl Fn(&str)) -> Outcome {
    let attempt = || measure(cell).unwrap_or_else(|error| Outcome::Failed(format!("{error:#}")));
    let outcome = match attempt() {
        Outcome::Crowded(why) => {
            say(&format!(
                "{cell}: {why}; again in {} s",
                TIME_WAIT.as_secs()
            ));
            thread::sleep(TIME_WAIT);
            attempt()
        }
        outcome => outcome,
    };
    match outcome {
        Outcome::Crowded(why) => Outcome::Failed(why),
        outcome => outcome,
    }
}

fn measure(cell: &Cell) -> Result<Outcome> {
    let dir = directory().context("cannot make a directory for the two processes")?;
    let patience = START + cell.settings.time * 10;
    let mut server = End::start(cell, dir.path(), Role::Server)?;
    let ready = server.line(START).context("the server did not start")?;
    let ready = match serde_json::from_str(&ready)? {
        Ready::At(address) => address,
        Ready::Skip(why) => return Ok(Outcome::Skipped(why)),
    };
    let server_pid = server.child.id();
    let client = Role::Client {
        address: ready,
        server: server_pid,
    };
    let mut client = End::start(cell, dir.path(), client)?;
    let line = client.line(patience).context("the client failed")?;
    let outcome = serde_json::from_str(&line).context("the client talks nonsense")?;
    // The client goes first, so that the server sees connections end in order.
    drop(client);
    drop(server);
    Ok(outcome)
}

/// In memory, where there is such a place: a file there is what ISM devices share.
fn directory() -> std::io::Result<TempDir> {
    TempDir::with_prefix_in(PREFIX, "/dev/shm").or_else(|_| TempDir::with_prefix(PREFIX))
}

/// One of the two, ended when dropped.
struct End {
    child: Child,
    /// Its end is what ends the process, even if we are killed.
    stdin: Option<ChildStdin>,
    lines: mpsc::Receiver<String>,
}

impl End {
    fn start(cell: &Cell, dir: &Path, role: Role) -> Result<Self> {
        let task = Task {
            cell: cell.clone(),
            dir: dir.to_owned(),
            role,
        };
        let program = std::env::current_exe().context("cannot find the program itself")?;
        let mut child = Command::new(program)
            .arg("bench-end")
            .arg(serde_json::to_string(&task)?)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start a process")?;
        let (sender, lines) = mpsc::channel();
        if let Some(stdout) = child.stdout.take() {
            thread::spawn(move || forward(stdout, &sender));
        }
        Ok(Self {
            stdin: child.stdin.take(),
            child,
            lines,
        })
    }

    /// The next line of its output.
    fn line(&mut self, patience: Duration) -> Result<String> {
        match self.lines.recv_timeout(patience) {
            Ok(line) => Ok(line),
            Err(mpsc::RecvTimeoutError::Timeout) => bail!("nothing within {patience:?}"),
            Err(mpsc::RecvTimeoutError::Disconnected) => bail!("it ended without a word"),
        }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let until = Instant::now() + END;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
        // Most often it has ended by now.
        let _killed = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// Passes lines on, and then reads on so that the process never waits for us.
fn forward(stdout: ChildStdout, to: &mpsc::Sender<String>) {
    let mut stdout = BufReader::new(stdout);
    let mut line = String::new();
    while matches!(stdout.read_line(&mut line), Ok(count) if count > 0) {
        if to.send(std::mem::take(&mut line)).is_err() {
            let _rest = stdout.read_to_end(&mut Vec::new());
        }
    }
}

const PREFIX: &str = "smc-bench-";

/// How long a process may take to start, and what it takes to open connections and to warm up.
const START: Duration = Duration::from_secs(60);

/// How long a process may take to end.
const END: Duration = Duration::from_secs(3);

/// For how long a closed connection keeps its port, and some more.
const TIME_WAIT: Duration = Duration::from_secs(62);
