//! The program while it runs, for input that comes bit by bit.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Read};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use smc_testkit::wait::{TIMEOUT, until};

/// `smc dissect` that runs. Dropping it kills it.
pub(crate) struct Running {
    child: Child,
    lines: Option<Receiver<String>>,
    notes: Receiver<String>,
}

/// How the program has ended.
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    /// Lines of standard output that were not read before.
    pub(crate) lines: Vec<String>,
    /// Lines of standard error that were not read before.
    pub(crate) notes: Vec<String>,
}

impl Running {
    /// Starts the program and reads its output.
    pub(crate) fn start<S: AsRef<OsStr>>(arguments: &[S]) -> Self {
        let (mut running, out) = Self::start_unread(arguments);
        running.lines = Some(lines(out));
        running
    }

    /// Starts the program and gives the pipe of its output.
    pub(crate) fn start_unread<S: AsRef<OsStr>>(arguments: &[S]) -> (Self, ChildStdout) {
        let mut child = Command::new(env!("CARGO_BIN_EXE_smc"))
            .arg("dissect")
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program runs");
        let out = child.stdout.take().expect("is piped");
        let running = Self {
            notes: lines(child.stderr.take().expect("is piped")),
            lines: None,
            child,
        };
        (running, out)
    }

    /// Its standard input.
    pub(crate) fn input(&mut self) -> ChildStdin {
        self.child.stdin.take().expect("not taken before")
    }

    /// The next line of its output.
    pub(crate) fn line(&self) -> String {
        let lines = self.lines.as_ref().expect("output that is read");
        let line = lines.recv_timeout(TIMEOUT);
        line.unwrap_or_else(|_| panic!("no line, but {:?}", self.notes.try_iter().last()))
    }

    /// The next line of its standard error.
    pub(crate) fn note(&self) -> String {
        self.notes.recv_timeout(TIMEOUT).expect("a note")
    }

    /// Asks it to end, as Ctrl-C does for SIGINT.
    pub(crate) fn end_by(self, signal: Signal) -> Ended {
        let id = i32::try_from(self.child.id()).expect("the id of a process");
        kill(Pid::from_raw(id), signal).expect("it still runs");
        self.end()
    }

    /// Waits until it has ended.
    pub(crate) fn end(mut self) -> Ended {
        let mut status = None;
        until(
            || {
                status = self.child.try_wait().expect("a child");
                status.is_some()
            },
            || "the program does not end".to_owned(),
        );
        Ended {
            status: status.expect("it has ended"),
            lines: self.lines.iter().flatten().collect(),
            notes: self.notes.iter().collect(),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _gone = self.child.wait();
    }
}

fn lines(input: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, lines) = channel();
    thread::spawn(move || {
        for line in BufReader::new(input).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    lines
}
