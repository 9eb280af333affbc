//! Processes that run one test of this binary, also as another user or in another namespace.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, WaitOptions};

/// The user and the network namespace of a process.
pub(super) enum Placement<'a> {
    Same,
    /// As this user.
    As(u32),
    /// As this user, in a user namespace in which no user has a number.
    Unmapped(u32),
    /// In this network namespace.
    In(&'a str),
}

/// A process. Dropping it kills it.
pub(super) struct Child {
    process: std::process::Child,
    lines: BufReader<ChildStdout>,
}

impl Child {
    pub(super) fn start(place: Placement<'_>, test: &str, args: &[&str]) -> Self {
        Self::try_start(place, test, args).unwrap()
    }

    pub(super) fn try_start(
        place: Placement<'_>,
        test: &str,
        args: &[&str],
    ) -> std::io::Result<Self> {
        let exe = std::env::current_exe()?;
        let mut command = match place {
            Placement::In(netns) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", netns]).arg(exe);
                command
            }
            Placement::Unmapped(_) => {
                let mut command = Command::new("unshare");
                command.arg("--user").arg(exe);
                command
            }
            _ => Command::new(exe),
        };
        if let Placement::As(uid) | Placement::Unmapped(uid) = place {
            command.uid(uid).gid(uid);
        }
        command.args([
            test,
            "--exact",
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ]);
        command
            .env(ARGS, args.join(" "))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut process = command.spawn()?;
        let lines = BufReader::new(process.stdout.take().unwrap());
        Ok(Self { process, lines })
    }

    /// The next line that the process reports.
    pub(super) fn line(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(
                self.lines.read_line(&mut line).unwrap() > 0,
                "the process has ended"
            );
            if let Some((_, received)) = line.split_once(MARK) {
                return received.trim().to_owned();
            }
        }
    }

    /// Waits until it ends by itself.
    pub(super) fn wait(mut self) {
        assert!(self.process.wait().unwrap().success());
    }

    pub(super) fn signal(&self, signal: Signal) {
        rustix::process::kill_process(Pid::from_child(&self.process), signal).unwrap();
    }

    /// Stops it, and waits until all of its threads stand still, which takes a moment.
    pub(super) fn stop(&self) {
        self.signal(Signal::STOP);
        let pid = Pid::from_child(&self.process);
        let stopped = rustix::process::waitpid(Some(pid), WaitOptions::UNTRACED).unwrap();
        assert!(stopped.is_some_and(|(_, status)| status.stopped()));
    }

    /// Ends it with SIGKILL and waits until it is gone.
    pub(super) fn kill(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.end();
    }
}

/// The arguments from the parent; `None` if there is none.
pub(super) fn args() -> Option<Vec<String>> {
    let args = std::env::var(ARGS).ok();
    if args.is_none() {
        println!("skipped: why: runs only as a process of another test");
    }
    args.map(|args| args.split_whitespace().map(str::to_owned).collect())
}

/// Reports a line to the parent.
pub(super) fn report(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{MARK}{line}").unwrap();
    out.flush().unwrap();
}

/// Waits until the parent ends this process, or ends itself.
pub(super) fn stay() {
    let _ = std::io::stdin().read_line(&mut String::new());
}

const ARGS: &str = "SMC_NEGOTIATE_TEST_ARGS";
const MARK: &str = "child reports: ";
